"""Times as people write and read them."""

from datetime import datetime, timedelta

MS_MAX = (1 << 63) - 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class BadTime(ValueError):
    """A text is not a time; its own text says how one is written."""


def time_of(text: str) -> int:
    """A time as ms since 1970. Raises BadTime.

    text: ISO, of this machine's zone where it names none; ms since 1970; or how long ago (`10m`,
    `2h`, `3d`).
    """
    try:
        if text and text[-1] in _UNITS and text[:-1].isdecimal():
            past = timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
            time_ms = int((datetime.now().astimezone() - past).timestamp() * 1000)
        elif text.isdecimal():
            time_ms = int(text)
        else:
            time_ms = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadTime(
            f"{text!r} is not a time: use 10m, 2h, 3d, ms since 1970, or 2026-01-31T12:00"
        ) from None
    if not 0 <= time_ms <= MS_MAX:
        raise BadTime(f"{text!r} is not a time between 1970 and now, or ms since 1970")
    return time_ms


def iso(time_ms: int | None) -> str | None:
    """A time for people; the number, where a client told one that no calendar has."""
    if not time_ms:
        return None
    try:
        found = datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
    return found.isoformat(timespec="milliseconds")
