"""Checks that a queue's files contain what they must, before anything is put into them.

With a note of the queues' ends (`store.queuenote`) the cost is a few reads a queue and what was put
since; without one, every record of the log is compared with its entry, once.
"""

from dataclasses import dataclass, field

import numpy as np

from duolog_server.store.consumequeue import BLANK, ENTRY_BYTES, ConsumeQueue
from duolog_server.store.consumequeueext import ConsumeQueueExt, is_ext_address
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuenote import Noted, QueueEnd
from duolog_server.store.queues import ConsumeQueues

NOTHING = QueueEnd(0, -1, 0, -1)
OLDER = "name older records"
ENTRIES_AT_ONCE = 8184  # a table of them stays in the processor's cache


def doubtful(queues: ConsumeQueues, noted: Noted, log_min: int) -> dict[QueueKey, str]:
    """Queues whose files do not match the note, and why; only those changed since are checked."""
    found = dict(queues.doubted)
    for key in {*noted.queues, *queues.table} - found.keys() - queues.trusted:
        end = noted.queues.get(key, NOTHING)
        why = _fault(queues.table.get(key), end, noted.position, log_min)
        why = why or _fault_of_units(queues.table.get(key), queues.ext.get(key))
        if why:
            found[key] = why
    return found


def _fault(queue: ConsumeQueue | None, end: QueueEnd, position: int, log_min: int) -> str:
    """The problem of a queue's files, empty for none."""
    if end.end == end.first_start == 0:
        return _disorder(queue, 0, position) if queue is not None else ""
    if queue is None or not queue.files.files:
        return f"all files of {end.end // ENTRY_BYTES} entries are missing"
    low, high = queue.files.min_offset, queue.files.max_offset
    if queue.begins_again and low >= end.end:
        return _disorder(queue, low, position)  # it began again after the note
    if high < end.end:
        return (
            f"ends at entry {high // ENTRY_BYTES}, but had {end.end // ENTRY_BYTES} entries before"
        )
    if low >= end.end:
        if end.newest <= log_min:
            return _disorder(queue, low, position)
        return f"begins at entry {low // ENTRY_BYTES}: earlier entries are missing"
    oldest, bytes_of_it = queue.entries(low // ENTRY_BYTES, 1)[:2, 0].tolist()
    none_lost = bytes_of_it != BLANK and oldest <= log_min  # those before it name records deleted
    if low > max(end.first_start, end.minimum) and not (
        none_lost
        or (low == end.first_start + queue.files.file_size and 0 <= end.first_file_phy < log_min)
    ):
        return f"begins at entry {low // ENTRY_BYTES}: its first file is missing"
    offset, size = queue.entries(end.end // ENTRY_BYTES - 1, 1)[:2, 0].tolist()
    if size != BLANK and offset + size != end.newest:
        return f"entry {end.end // ENTRY_BYTES - 1} has changed"
    return _disorder(queue, end.end, position)


def _disorder(queue: ConsumeQueue, start: int, position: int) -> str:
    """The first error in the entries that were put after a note."""
    first = at = start // ENTRY_BYTES
    before: int | None = None  # where the record of the entry before ends
    while (table := queue.entries(at, ENTRIES_AT_ONCE)).shape[1]:
        at += table.shape[1]
        offsets, sizes = table[:2, table[1] != BLANK]
        if not len(offsets):
            continue
        if before is None and int(offsets[0]) < position:
            return f"entries from {first} on {OLDER}"
        ends = offsets + sizes
        late = before is not None and int(offsets[0]) < before
        if late or (offsets[1:] < ends[:-1]).any():
            return f"entries from {first} on are out of order"
        before = int(ends[-1])
    return ""


def faults_of_units(queues: ConsumeQueues) -> dict[QueueKey, str]:
    """Queues whose first or last entry has lost its ext unit, and which."""
    faults = {key: _fault_of_units(queues.table.get(key), ext) for key, ext in queues.ext.items()}
    return {key: why for key, why in faults.items() if why}


def _fault_of_units(queue: ConsumeQueue | None, ext: ConsumeQueueExt | None) -> str:
    """Whether the first and the last entry still have their ext units."""
    if queue is None or ext is None:
        return ""
    for queue_offset in (queue.min_offset, queue.max_offset - 1):
        for code in queue.entries(queue_offset, 1)[2].tolist() if queue_offset >= 0 else []:
            if is_ext_address(code) and ext.get(code) is None:
                return f"the extension unit of entry {queue_offset} is missing"
    return ""


@dataclass(slots=True)
class Comparison:
    """Compares records of the log with their queue entries."""

    queues: ConsumeQueues
    differing: dict[QueueKey, str] = field(default_factory=dict)

    def compare(self, key: QueueKey, rows: I64) -> None:
        """Compare rows of one queue."""
        if key in self.differing:
            return
        queue = self.queues.table.get(key)
        if queue is not None and queue.begins_again:
            rows = rows[:, rows[scan.QUEUE_OFFSET] * ENTRY_BYTES >= queue.files.min_offset]
            if not rows.shape[1]:
                return  # of a time before it began again
        offsets = rows[scan.QUEUE_OFFSET]
        low, count = int(offsets[0]), int(offsets[-1] - offsets[0]) + 1
        same = False
        if queue is not None and (np.diff(offsets) == 1).all():
            table = queue.entries(low, count)
            same = table.shape[1] == count and bool(
                (table[:2] == rows[[scan.PHY, scan.SIZE]]).all()
            )
        if not same:
            self.differing[key] = f"entries {low} to {low + count - 1} differ from the log"
