"""Queue offsets that recovery reserves at a queue's end, for records that the log has lost.

A master must not assign them again, so blank entries reserve them. A log that is truncated before
its damage gets the lost records from another node, whose entries then need these places.
"""

from collections.abc import Iterable

import numpy as np

from duolog_server.store.commitlog import CorruptRange
from duolog_server.store.consumequeue import BLANK, ENTRIES_AT_ONCE, ENTRY_BYTES, ConsumeQueue
from duolog_server.store.queues import ConsumeQueues


def drop_floors(queues: ConsumeQueues, corrupt: Iterable[CorruptRange], offset: int) -> None:
    """Before the log is cut at an offset: drop what stands for damage that is cut with it.

    corrupt: the known damage of the log. If some of it stays, it is unknown which damage an
    entry stands for: all of them stay.
    """
    starts = [found.start for found in corrupt]
    if not starts or min(starts) < offset:
        return
    queues.ends.entries_go()
    for key, queue in queues.table.items():
        if _drop_last_blanks(queue):
            queues.changed.add(key)


def _drop_last_blanks(queue: ConsumeQueue) -> bool:
    """Cut the blank entries that a queue ends in; False if there are none."""
    first, end = queue.files.min_offset // ENTRY_BYTES, _after_last_record(queue)
    if end == queue.max_offset:
        return False
    if end == first:
        queue.destroy()  # it begins again with its first record
        return True
    queue.files.truncate(end * ENTRY_BYTES)
    last = queue.files.last
    if last is not None and last.start == end * ENTRY_BYTES:
        queue.files.remove(last)
    queue.min_logic_bytes = min(queue.min_logic_bytes, queue.files.max_offset)
    return True


def _after_last_record(queue: ConsumeQueue) -> int:
    """Queue offset after the last entry that is not blank."""
    first, end = queue.files.min_offset // ENTRY_BYTES, int(queue.max_offset)
    while end > first:
        at = max(first, end - ENTRIES_AT_ONCE)
        real = np.flatnonzero(queue.entries(at, end - at)[1] != BLANK)
        if len(real):
            return at + int(real[-1]) + 1
        end = at
    return first
