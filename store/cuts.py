"""Cuts: before records are truncated, everything derived from them is removed.

Rules: the checkpoint never covers truncated records, nor those that take their place; it is on disk
before anything is removed; a cut that a full disk interrupted is repeated and completed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.commitlog import CommitLog, CorruptRange
from duolog_server.store.consumequeue import BLANK, ENTRIES_AT_ONCE, ENTRY_BYTES, ConsumeQueue
from duolog_server.store.dispatch import Dispatcher
from duolog_server.store.indexservice import IndexService
from duolog_server.store.queueflushes import QueueFlushes
from duolog_server.store.queues import ConsumeQueues


@dataclass(frozen=True, slots=True)
class Cuts:
    """The parts of a store that contain records or data derived from them."""

    log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    dispatcher: Dispatcher
    checkpoint: StoreCheckpoint
    flushes: QueueFlushes

    def hide_from(self, offset: int) -> None:
        """Drop the queues' entries of records that stay in the log; they are dispatched again."""
        # The index may stay ahead: its entries are used only below the confirm offset.
        self._cut_queues(offset)
        self.dispatcher.back_to(offset)

    def truncate(self, offset: int) -> None:
        """Drop the records from an offset on, durably, and all that was derived from them."""
        self._cut_log_times(offset)
        drop_floors(self.queues, self.log.corrupt_ranges, offset)
        self._cut_queues(offset)
        if self.index.end_offset >= offset:
            self.index.truncate(offset)
            self.dispatcher.index_again(offset)
        self.dispatcher.back_to(offset)
        self.log.queue.truncate(offset)
        self.log.corrupt_ranges = [r for r in self.log.corrupt_ranges if r.end <= offset]

    def forget_confirmed(self, offset: int) -> None:
        """Lower the confirm note before a cut, as other bytes may replace confirmed ones.

        Durable when it returns: otherwise a power cut could restore a claim to bytes that are gone.
        """
        checkpoint = self.checkpoint
        lowered = checkpoint.confirm_phy_offset > offset
        checkpoint.confirm_phy_offset = min(checkpoint.confirm_phy_offset, offset)
        if checkpoint.note.lower_to(offset) or lowered:
            checkpoint.flush(needed=True)

    def _cut_queues(self, offset: int) -> None:
        """Cut the queues' entries, which the checkpoint may have told recovery to rely on."""
        trusted = self._time_before(offset)
        # The next flush covers what is dispatched then, not what was cut.
        self.dispatcher.store_time = min(self.dispatcher.store_time, trusted)
        if self.checkpoint.logics_msg_timestamp > trusted:
            self.checkpoint.logics_msg_timestamp = trusted
            self.checkpoint.flush()
        note_under_way = self.queues.ends.entries_go()
        self.queues.truncate(offset)
        if not note_under_way and self.queues.ends.position > offset:
            self.flushes.note(offset)

    def _time_before(self, offset: int) -> int:
        """A store time that nothing stored at or after an offset will be before.

        That of the first record of the segment before it: what comes in the place of records that
        are cut may have earlier times than those, by the clock of another node.
        """
        mapped = self.log.queue.find(offset - 1)
        return max(0, self.log.store_time_at(mapped.start)) if mapped is not None else 0

    def _cut_log_times(self, offset: int) -> None:
        """Limit what the checkpoint says of the log, now and after the next flush, to an offset."""
        trusted = self._time_before(offset)
        for mapped in self.log.queue.files:
            if mapped.end >= offset:
                mapped.store_time = min(mapped.store_time, trusted)
        checkpoint = self.checkpoint
        checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, trusted)
        checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, max(0, trusted - 1))
        checkpoint.flush(needed=True)

    def reset(self) -> None:
        """Remove everything: the log will start again at another offset.

        First the checkpoint on disk is cleared: the new log may have earlier times, by the clock of
        another node. Raises OSError.
        """
        checkpoint = self.checkpoint
        checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 0
        checkpoint.index_msg_timestamp = 0
        self.dispatcher.store_time = 0  # which the next flush records
        self.forget_confirmed(0)
        checkpoint.flush(needed=True)
        self.queues.ends.forget()
        self.queues.destroy_logics()
        self.index.drop_from(0)
        self.log.queue.destroy()
        self.log.queue.disk_sync_names()
        self.log.corrupt_ranges.clear()
        self.dispatcher.back_to(0)


# Queue offsets that recovery reserves at a queue's end, for records that the log has lost.
#
# A master must not assign them again, so blank entries reserve them. A log that is truncated before
# its damage gets the lost records from another node, whose entries then need these places.
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
