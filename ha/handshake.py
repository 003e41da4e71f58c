"""A master's answer to a slave's Hello: where to continue, what to truncate, or a refusal.

| the slave's log | the answer |
|-----------------|------------|
| empty | stream from the first segment (the newest, with sync_from_last_file) |
| a prefix of the master's | stream from its end |
| diverges from the master's at an offset | truncate to that offset, then ask again |
| diverges from it where a blank closes a segment | truncate to the blank, then ask again |
| ends below the master's first byte, same lineage | reset: start anew at the first segment |
| ends inside a record of the master's | refuse: MID_RECORD |
| shares nothing with the master's | refuse: LINEAGE |

The master trusts no claim of a slave that it cannot check: cluster and group must be its own, the
history must be part of its own, and the last bytes must equal those of its own log.
"""

import zlib
from dataclasses import dataclass

from duolog_server.ha.epochs import EpochEntry, common_end
from duolog_server.ha.frames import Hello, Refusal, Refuse, Reset, Truncate
from duolog_server.ha.localreplica import LocalReplica
from duolog_server.store.commitlog import CommitLog

TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Stream:
    """Send log bytes from an offset on."""

    start: int


Verdict = Stream | Truncate | Reset | Refuse


def tail_of(log: CommitLog, end: int) -> tuple[int, int]:
    """Start and CRC-32 of the last bytes before an offset, as far as they lie in one segment.

    The CRC-32 of no bytes is 0, so that an empty log has this one.
    """
    size = log.queue.file_size
    start = max(log.min_offset, end - TAIL_BYTES, (end - 1) - (end - 1) % size)
    return start, tail_crc(log, start, end) or 0


def tail_crc(log: CommitLog, start: int, end: int) -> int | None:
    """CRC-32 of log bytes within one segment; None if they are not all held."""
    mapped = log.queue.find(start)
    if mapped is None or not mapped.start <= start <= end <= mapped.start + mapped.readable:
        return None
    return zlib.crc32(mapped.memory[start - mapped.start : end - mapped.start].data)


def judge(hello: Hello, ours: LocalReplica, sync_from_last_file: bool) -> Verdict:
    """Decide the answer, from the slave's Hello and the master's own log."""
    refusal = _stranger(hello, ours)
    if refusal is not None:
        return refusal
    log = ours.store.log
    epoch, epochs = ours.history.last_epoch, ours.history.entries
    if hello.end == hello.min_offset:
        return Stream(_first_start(log, sync_from_last_file))
    common, shared = common_end(epochs, log.max_offset, hello.epochs, hello.end)
    if common <= hello.min_offset:
        return Refuse(
            epoch,
            Refusal.LINEAGE,
            f"the logs diverge at offset {common}, and the slave's begins at "
            f"{hello.min_offset}: empty its directory to copy this master's log",
        )
    if common < hello.end:
        return Truncate(epoch, common)
    if hello.end < log.min_offset:
        if shared == 0:
            return Refuse(
                epoch,
                Refusal.LINEAGE,
                "the logs have no epoch and no comparable bytes in common: empty the "
                "slave's directory, or connect it to its own master",
            )
        return Reset(epoch, log.min_offset)
    checkable = hello.tail_start >= log.min_offset and hello.end - hello.tail_start <= TAIL_BYTES
    if checkable and tail_crc(log, hello.tail_start, hello.end) != hello.tail_crc:
        parted = _parted_at_blank(hello.end, epochs, log)
        if parted is not None:
            return Truncate(epoch, parted)
        return Refuse(
            epoch,
            Refusal.LINEAGE,
            f"the slave's bytes [{hello.tail_start}, {hello.end}) differ from this master's",
        )
    if not log.is_boundary(hello.end):
        return Refuse(
            epoch, Refusal.MID_RECORD, f"the slave's end {hello.end} lies inside a record"
        )
    return Stream(hello.end)


def _parted_at_blank(end: int, epochs: tuple[EpochEntry, ...], log: CommitLog) -> int | None:
    """Where to truncate a slave's log with other last bytes; None: not because of a blank.

    A mastership whose barrier does not fit into a segment begins with the blank that closes it. The
    history does not show it: the epoch starts at the barrier, but the logs diverge at the blank.
    """
    if end % log.queue.file_size == 0:
        return end  # the slave ends in a blank whose barrier never came: it truncates that
    opens = log.roll_next_file(end)
    if all(entry.start != opens for entry in epochs):
        return None
    blank = log.before_blank(end)
    return blank if blank < end else None


def _stranger(hello: Hello, ours: LocalReplica) -> Refuse | None:
    me, epoch, segment_bytes = ours.me, ours.history.last_epoch, ours.store.log.queue.file_size
    if (hello.cluster, hello.group) != (me.cluster, me.group):
        return Refuse(
            epoch,
            Refusal.CLUSTER,
            f"this is group {me.group!r} of cluster {me.cluster!r}, "
            f"not {hello.group!r} of {hello.cluster!r}",
        )
    if not hello.node or hello.node == me.node:
        return Refuse(
            epoch,
            Refusal.NAME,
            f"the slave has the name of its master, {hello.node!r}: give each node a "
            "name of its own (node.name)",
        )
    if hello.segment_bytes != segment_bytes:
        return Refuse(
            epoch,
            Refusal.SEGMENT_SIZE,
            f"the slave's segments have {hello.segment_bytes} bytes, this master's "
            f"{segment_bytes}: set store.mapped_file_size_commit_log alike",
        )
    if hello.promised > epoch:
        return Refuse(
            epoch,
            Refusal.NEWER_EPOCH,
            f"the slave has seen epoch {hello.promised}, this master's is {epoch}: "
            "if it is the right master, restart it",
        )
    return None


def _first_start(log: CommitLog, sync_from_last_file: bool) -> int:
    last = log.queue.last
    return last.start if sync_from_last_file and last is not None else log.min_offset
