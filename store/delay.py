"""The delay levels: `1s 5s 10s ...` as milliseconds. Parsed before recovery needs them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duolog_server.store.kernels.jit import I64

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def parse_delay_levels(text: str) -> "I64":
    """Milliseconds of each level, level 1 first. ValueError names the level that is wrong."""
    import numpy as np  # commands need the name of the topic alone

    levels = []
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in _UNIT_MS or not number.isdecimal():
            raise ValueError(f"delay level {word!r} is not a number followed by s, m, h or d")
        levels.append(int(number) * _UNIT_MS[unit])
    return np.array(levels, np.int64)
