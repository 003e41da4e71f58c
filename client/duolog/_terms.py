"""Terms of a send: delay, transaction, origin, expected offset."""

from dataclasses import dataclass, replace

from duolog._errors import BadRequest


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
        if len(given) > 1 or min(given) < 0:
            raise BadRequest(
                "give only one of delay, deliver_at and delay_level, and not a negative one"
            )
        if delay is not None:
            return Terms(int(wall_ms + delay * 1000))
        return Terms(deliver_at or 0, delay_level or 0)

    def expecting(self, offset: int, queue_id: int | None) -> "Terms":
        """The terms of a batch that is stored at this offset of its queue alone, or BadRequest."""
        if queue_id is None or offset < 0 or self is not PLAIN:
            raise BadRequest(f"expect_offset={offset} needs a queue_id, no delay, and a value >= 0")
        return replace(self, expect_offset=offset)


PLAIN = Terms()
