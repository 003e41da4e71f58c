"""Puts into light queues: which ones a message may be in, and where it stands there.

Rules: only the store writes places into a record; a queue that is held gets nothing; the ends of
queues move only once the log has the message, by `store.puts`.
"""

from collections.abc import Iterable, Sequence

from duolog_server.store.columns import BadProperties, Columns
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.errors import BadMessage
from duolog_server.store.kernels.encode import RECORD_CRC_BYTES, UNIQ_KEY_BYTES
from duolog_server.store.lightqueues import (
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    NAME_BYTES_MAX,
    is_light,
)
from duolog_server.store.queueends import QueueEnds, QueueKey
from duolog_server.store.record import PROPERTIES_BYTES_MAX
from duolog_server.store.status import PutMessageStatus

_PAIR, _END = b"\x01", b"\x02"


class NoPlace(BadMessage):
    """A light queue takes no message now."""

    def __init__(self, status: PutMessageStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LightPuts:
    """Gives messages their places in light queues. queues_max: there may be so many."""

    def __init__(self, log: CommitLog, queues_max: int) -> None:
        self._log = log
        self._queues_max = queues_max
        self._held: set[str] = set()  # about to be forgotten

    def hold(self, names: Iterable[str]) -> None:
        """Store nothing in light queues while it is decided whether they are forgotten."""
        self._held.update(names)

    def release(self, names: Iterable[str]) -> None:
        """It is decided."""
        self._held.difference_update(names)

    def places(self, names: Sequence[str], ends: QueueEnds) -> list[tuple[QueueKey, int]]:
        """Light queues, and the queue offset of the next message in each. Raises NoPlace."""
        if not self._held.isdisjoint(names):
            status = PutMessageStatus.SERVICE_NOT_AVAILABLE
            raise NoPlace(status, "the light queue is being deleted")
        new = sum((name, 0) not in ends for name in names)
        if new and ends.light_count + new > self._queues_max:
            raise NoPlace(
                PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED,
                f"this node has reached its limit of {self._queues_max} light queues "
                "(store.max_lmq_consume_queue_num)",
            )
        return self._next_offsets(names, ends)

    def _next_offsets(self, names: Sequence[str], ends: QueueEnds) -> list[tuple[QueueKey, int]]:
        begin = self._log.wrote_offset
        return [((name, 0), ends.get((name, 0), begin)) for name in names]


def check_names(columns: Columns, names: Sequence[str], hidden: bool) -> None:
    """Raise BadMessage unless a batch may be in light queues. hidden: a half message."""
    for name in names:
        if not is_light(name) or len(name.encode()) > NAME_BYTES_MAX or "/" in name or "," in name:
            raise BadMessage(f"{name!r} is not the name of a light queue")
        if not name.isprintable():
            raise BadMessage(f"light queue {name!r} has control characters")
    if names and (hidden or columns.count > 1):
        raise BadMessage("only a single message may be in light queues")


def with_places(columns: Columns, places: Sequence[tuple[QueueKey, int]]) -> Columns:
    """A single message with its places in light queues. Raises BadProperties: they do not fit."""
    names = ",".join(name for (name, _), _ in places)
    offsets = ",".join(str(offset) for _, offset in places)
    added = _END.join(
        (
            MULTI_DISPATCH.encode() + _PAIR + names.encode(),
            MULTI_QUEUE_OFFSET.encode() + _PAIR + offsets.encode(),
        )
    )
    text = columns.properties.tobytes().rstrip(_END)
    block = text + _END + added if text else added
    if len(block) + 2 + UNIQ_KEY_BYTES + RECORD_CRC_BYTES > PROPERTIES_BYTES_MAX:
        raise BadProperties(0, f"its properties have {len(block)} bytes with its light queues")
    return Columns.of([columns.bodies.tobytes()], [block])
