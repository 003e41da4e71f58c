"""How many bytes of the log the messages of a queue take: the sizes in its entries, summed up.

Rules: an entry is read once while it lies in the queue, and one call reads ENTRIES_MAX at most, in
slices: what it did not get to, the next one does. Entries are counted in chunks, so that retention,
which raises the minimum and may have removed the files below it, costs the first chunk alone. A
queue that ends before what was counted, or begins with another record, is counted anew, and so are
all of them with another mastership, which may have replaced records.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from duolog_server.node.core.ports import Reads
from duolog_server.node.core.slices import Slices
from duolog_server.store.consumequeue import BLANK
from duolog_server.store.queueends import QueueKey

CHUNK = 65_536  # entries whose sum is kept
AT_ONCE = 8192  # entries that are read in one step
ENTRIES_MAX = 1 << 20  # that are read for one call: 20 MiB of queue files
QUEUES_MAX = 65_536  # whose counts are kept


@dataclass(slots=True)
class Allowance:
    """The entries that one call may read, in its slices. left: entries."""

    slices: Slices
    left: int


@dataclass(slots=True)
class _Chunk:
    """Entries [begin, end) of a chunk that were counted, and the bytes of their records."""

    begin: int
    end: int
    bytes: int = 0


@dataclass(slots=True)
class _Counted:
    """Counted bytes of a queue. low: its minimum. first: log offset of the record there, -1: not
    known. chunks: by number.
    """

    low: int
    first: int
    chunks: dict[int, _Chunk] = field(default_factory=dict)


class LogBytes:
    """Log bytes of a node's queues."""

    def __init__(self, queues: Reads, mastership: Callable[[], int]) -> None:
        """mastership: a number that changes with it."""
        self._queues = queues
        self._mastership = mastership
        self._of = -1
        self._counted: OrderedDict[QueueKey, _Counted] = OrderedDict()  # the newest look last

    async def of(self, topic: str, queue_id: int, allowance: Allowance) -> int | None:
        """The bytes of a queue's records; None where the call may not read that many entries."""
        key = (topic, queue_id)
        while (chunk := self._unfinished(key)) is not None:
            if not self._read(key, chunk, allowance):
                return None
            await allowance.slices.turn()  # the queue may be another one afterwards
        return sum(chunk.bytes for chunk in self._counted[key].chunks.values())

    def _unfinished(self, key: QueueKey) -> tuple[_Chunk, int] | None:
        """The first chunk with entries that were not counted, and how many; None: there is none."""
        low, high = self._queues.queue_range(*key)
        chunks = self._known(key, low).chunks
        first, end = low // CHUNK, -(-high // CHUNK)
        for number in [number for number in chunks if not first <= number < end]:
            del chunks[number]
        for number in range(first, end):
            begin, until = max(low, number * CHUNK), min(high, (number + 1) * CHUNK)
            chunk = chunks.get(number)
            if chunk is None or chunk.begin != begin or chunk.end > until:
                chunk = chunks[number] = _Chunk(begin, begin)
            if chunk.end < until:
                return chunk, until - chunk.end
        return None

    def _known(self, key: QueueKey, low: int) -> _Counted:
        """The counted bytes of a queue, if it is the same one."""
        if self._of != self._mastership():
            self._of = self._mastership()
            self._counted.clear()
        first = self._queues.entries(*key, low, 1)
        record = int(first[0, 0]) if first.shape[1] else -1
        known = self._counted.get(key)
        if known is None or low < known.low or (low == known.low and record != known.first):
            known = self._counted[key] = _Counted(low, record)
            if len(self._counted) > QUEUES_MAX:
                self._counted.popitem(last=False)
        known.low, known.first = low, record
        self._counted.move_to_end(key)
        return known

    def _read(self, key: QueueKey, found: tuple[_Chunk, int], allowance: Allowance) -> bool:
        """Count some entries; False where there are none, or the call has read enough."""
        chunk, missing = found
        wanted = min(missing, AT_ONCE, allowance.left)
        if not wanted:
            return False
        sizes = self._queues.entries(*key, chunk.end, wanted)[1]
        chunk.bytes += int(sizes[sizes != BLANK].sum())
        chunk.end += len(sizes)
        allowance.left -= len(sizes)
        return bool(len(sizes))
