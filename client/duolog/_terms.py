"""Terms of a send: delay, transaction, origin, expected offset."""

from dataclasses import dataclass, replace

from duolog._checks import INT32_MAX, checked_number, checked_whole
from duolog._errors import BadRequest

DELAY_SECONDS_MAX = 1e12  # more, in ms since 1970, may not fit the wire
MS_LEAST = 30_000_000_000  # a time in seconds is taken for one in ms below this


@dataclass(frozen=True, slots=True)
class Terms:
    """How a node stores a batch: when consumers get it (a time in ms, or a level's delay),
    and whether it is half messages of a producer group.

    copied_from: topic, queue and offset where its one message is stored already. expect_offset:
    queue offset of the first message, without which nothing is stored.
    """

    deliver_time: int = 0
    delay_level: int = 0
    transaction_group: str = ""
    immunity_seconds: int = 0
    copied_from: tuple[str, int, int] | None = None
    expect_offset: int | None = None

    @staticmethod
    def of(
        delay: float | None, deliver_at: int | None, delay_level: int | None, wall_ms: int
    ) -> "Terms":
        """Terms for a caller's delay. Raises BadRequest for more than one of them."""
        given = [word for word in (delay, deliver_at, delay_level) if word is not None]
        if not given:
            return PLAIN
        if len(given) > 1:
            raise BadRequest("give only one of delay, deliver_at and delay_level")
        if delay is not None:
            return Terms(int(wall_ms + checked_number("delay", delay, 0, DELAY_SECONDS_MAX) * 1000))
        if delay_level is not None:
            return Terms(delay_level=checked_whole("delay_level", delay_level, 0, INT32_MAX))
        assert deliver_at is not None, "one of them is given"
        deliver_at = checked_whole("deliver_at", deliver_at)
        if 0 < deliver_at < MS_LEAST:
            raise BadRequest(f"deliver_at is {deliver_at}: that is 1970; give ms, not seconds")
        return Terms(deliver_at)

    def expecting(self, offset: int, queue_id: int | None) -> "Terms":
        """The terms of a batch that is stored at this offset of its queue alone, or BadRequest."""
        if queue_id is None or offset < 0 or self is not PLAIN:
            raise BadRequest(f"expect_offset={offset} needs a queue_id, no delay, and a value >= 0")
        return replace(self, expect_offset=offset)


PLAIN = Terms()
