"""`checkpoint`: the times up to which the files are on disk; one page.

| at | field | meaning |
|---:|-------|---------|
| 0 | physicMsgTimestamp | store time of the newest commit-log record known to be synced |
| 8 | logicsMsgTimestamp | the same for queue entries |
| 16 | indexMsgTimestamp | end time of the newest index file that is full and synced |
| 24 | masterFlushedOffset | on a slave: the master's durable offset |
| 32 | confirmPhyOffset | confirm offset as far as it was on disk; clamped to the log on load |
| 1024 | confirm note | what was confirmed, kept over a SIGKILL: see below |

Big-endian, 8 bytes each (4.x uses the first three). A field never runs ahead of what is synced, and
recovery stays right whatever it holds: it only shortens the work. The note is no part of that: it
keeps a replica from being cut below what it knows to be confirmed.
"""

import errno
import os
import struct
import zlib
from collections.abc import Callable

import numpy as np

from duolog_server.store.disk import Disk, DiskFile, no_room
from duolog_server.store.kernels.jit import EMPTY_U8, U8

FILE_BYTES = 4096
CLOCK_SLACK_MS = 3000
NOTE_AT = 1024
_FIELDS = struct.Struct(">5q")
PATH = "checkpoint"


class StoreCheckpoint:
    """The five fields and their file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: DiskFile | None = None
        self._has_room = False
        self.physic_msg_timestamp = 0
        self.logics_msg_timestamp = 0
        self.index_msg_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_phy_offset = 0
        self._claimed = 0  # the confirm offset as the file has it
        self.note = ConfirmNote()

    def load(self, writable: bool = True) -> None:
        """Read the file; a missing, short or invalid one counts as zeros."""
        size = self._disk.size(PATH)
        if size not in (-1, FILE_BYTES):
            if not writable:
                return
            self._disk.remove(PATH)
            size = -1
        if size == FILE_BYTES:
            self._file = self._disk.open(PATH, writable)
            self._file.cover_holes()
            values = _FIELDS.unpack(self._file.memory[: _FIELDS.size].tobytes())
            values = tuple(value if value >= 0 else 0 for value in values)
            (
                self.physic_msg_timestamp,
                self.logics_msg_timestamp,
                self.index_msg_timestamp,
                self.master_flushed_offset,
                self.confirm_phy_offset,
            ) = values
            self._claimed = self.confirm_phy_offset
        elif writable:
            self._file = self._disk.create(PATH, FILE_BYTES)
            self._file.sync()
            self._disk.sync_dir("")
        if self._file is not None:
            self._has_room = writable and self._allocated(self._file)
            memory = self._file.memory[NOTE_AT:]
            self.note.attach(memory if self._has_room else memory.copy())

    @staticmethod
    def _allocated(file: DiskFile) -> bool:
        """Whether a file can be written: one that was found may have holes, and the disk be full.

        The note waits in memory then.
        """
        try:
            file.allocate(FILE_BYTES)
        except OSError as error:
            if not no_room(error):
                raise
            return False
        return True

    def flush(self, needed: bool = False) -> None:
        """Write the fields and sync them: one sector, so the old or the new content survives.

        The confirm note is synced as well, at least as of the beginning of the call. Where a full
        disk has no room for the file's holes, the old content stays. needed: OSError then, as the
        old content claims too much.
        """
        if self._file is None:
            return
        if not self._has_room:
            if not self._allocated(self._file):
                if needed:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), PATH)
                return
            self._has_room = True
            self.note.move_to(self._file.memory[NOTE_AT:])
        self.note.unsynced = False  # a note made while the sync runs needs another one
        data = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )
        self._file.memory[: _FIELDS.size] = np.frombuffer(data, np.uint8)
        self._file.sync()
        self._claimed = self.confirm_phy_offset

    def settle(self) -> None:
        """After recovery: write a file that claims no more than the log holds.

        Recovery has reported the loss and lowered the field. An unchanged file (perhaps a damaged
        field) would make the next start report it again. Not before the loss is recorded where it
        counts: nothing else tells of it. Raises OSError.
        """
        self.note.write()
        if self.confirm_phy_offset < self._claimed:
            self.flush()

    def claim_at_most(self, confirmed: int, durable: int) -> None:
        """After recovery, before `settle`: this log holds no more of what was confirmed."""
        note = self.note
        if (confirmed, durable) != (note.confirmed, note.durable):
            note.confirmed, note.durable = confirmed, durable
            self.confirm_phy_offset = min(self.confirm_phy_offset, confirmed)

    @property
    def min_timestamp(self) -> int:
        """Time up to which log and queues were synced, minus 3 s for clock steps."""
        oldest = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(0, oldest - CLOCK_SLACK_MS)

    @property
    def min_timestamp_index(self) -> int:
        """The same including the index."""
        return min(self.min_timestamp, self.index_msg_timestamp)

    def close(self) -> None:
        """Unmap."""
        if self._file is not None:
            self.note.detach()
            self._file.close()
            self._file = None


# The confirm note: what a replica knows to be confirmed, kept across a SIGKILL.
#
# | at | field | bytes | |
# |---:|-------|------:|---|
# | 0 | number | 8 | counts the notes ever written; the newest whole one counts |
# | 8 | confirmed | 8 | every byte of this log below this was confirmed to clients |
# | 16 | durable | 8 | the same, and known to be on this node's disk |
# | 24 | boot id | 40 | of the system run the note was written in, padded with zeros |
# | 64 | CRC-32 | 4 | over bytes 0..63 |
# | 68 | start, nonce | 16 | of the mastership of the last confirmed byte; zeros: unknown |
# | 84 | start, nonce | 16 | of that of the last durable byte |
# | 100 | CRC-32 | 4 | over bytes 0..99; a note without it names no mastership |
#
# An offset says what is confirmed in one log only: an older log that is put back beside this file
# may have other bytes there. So the note names who wrote them.
#
# Two slots, a sector each, are written in turn: a process that dies while it writes leaves the
# other one whole. A note is written to mapped memory, which takes two microseconds, and synced
# later with the file: the page cache keeps it if the process is killed. After a crash of the
# system, the note may be older than what was confirmed, and the log may end before it: then it
# claims only what the log still holds without damage.
SLOT_BYTES = 512
SLOTS = 2
_NOTE = struct.Struct(">QQQ40s")
_CRC = struct.Struct(">I")
_WRITERS = struct.Struct(">4Q")
_WRITERS_AT = _NOTE.size + _CRC.size
_BYTES = _WRITERS_AT + _WRITERS.size
BOOT_ID_BYTES = 40
Writer = tuple[int, int]  # a mastership: the log offset of its barrier, its nonce
UNKNOWN_WRITER: Writer = (0, 0)


def _unknown(_: int) -> Writer:
    return UNKNOWN_WRITER


class ConfirmNote:
    """The newest note and its mapped memory. Owned by one thread.

    Attributes:
        wrote: the mastership that wrote the bytes before an offset of this log.
    """

    def __init__(self) -> None:
        self.wrote: Callable[[int], Writer] = _unknown
        self.confirmed = 0
        self.durable = 0
        self.confirmed_by = self.durable_by = UNKNOWN_WRITER
        self.boot_id = b""
        self.unsynced = False  # a note was written since the file was synced
        self._number = 0
        self._memory: U8 = EMPTY_U8

    def attach(self, memory: U8) -> None:
        """Read the newest valid note from the two slots, and write later ones there."""
        self._memory = memory
        self.confirmed = self.durable = self._number = 0
        self.boot_id = b""
        for slot in range(SLOTS):
            data = memory[slot * SLOT_BYTES :][: _BYTES + _CRC.size].tobytes()
            if _CRC.unpack_from(data, _NOTE.size)[0] != zlib.crc32(data[: _NOTE.size]):
                continue
            number, confirmed, durable, boot_id = _NOTE.unpack_from(data)
            if number > self._number:
                self._number, self.confirmed, self.durable = number, confirmed, durable
                self.boot_id = boot_id.rstrip(b"\0")
                self.confirmed_by = self.durable_by = UNKNOWN_WRITER
                if _CRC.unpack_from(data, _BYTES)[0] == zlib.crc32(data[:_BYTES]):
                    writers = _WRITERS.unpack_from(data, _WRITERS_AT)
                    self.confirmed_by, self.durable_by = writers[:2], writers[2:]

    def move_to(self, memory: U8) -> None:
        """Write this and later notes there, beside what was read from it."""
        self._memory = memory
        self._write(self.confirmed, self.durable)

    def detach(self) -> None:
        """The memory is about to be unmapped; the note is kept."""
        self._memory = EMPTY_U8

    def settle(self, boot_id: str, whole_end: int, end: int, abnormal: bool) -> None:
        """After recovery: claim no more than this log holds. `write` has the file say so.

        whole_end: where the first damage of the log begins, or its end. After a crash of the
        system, the lost part of a damaged log may never have been on disk.
        """
        if abnormal and not self.is_of(boot_id):
            end = max(whole_end, min(end, self.durable))
        self.boot_id = _shortened(boot_id)
        self.confirmed, self.durable = min(self.confirmed, end), min(self.durable, end)

    def known(self, boot_id: str, abnormal: bool) -> int:
        """Up to where a log must reach that lost nothing but what a crash of the system takes."""
        return self.durable if abnormal and not self.is_of(boot_id) else self.confirmed

    def write(self) -> None:
        """Write what was settled."""
        self._write(self.confirmed, self.durable)

    def is_of(self, boot_id: str) -> bool:
        """Whether the newest note was written in this run of the system."""
        return self.boot_id == _shortened(boot_id)

    def raise_to(self, confirmed: int, durable: int) -> None:
        """More was confirmed. durable: everything below is on this node's disk."""
        durable = min(confirmed, durable)
        if confirmed > self.confirmed or durable > self.durable:
            self._write(max(confirmed, self.confirmed), max(durable, self.durable))

    def lower_to(self, offset: int) -> bool:
        """Lower the note before a cut of the log; True if it changed and must be synced first."""
        if offset >= self.confirmed:
            return False
        self._write(offset, min(offset, self.durable))
        return True

    def _write(self, confirmed: int, durable: int) -> None:
        self.confirmed, self.durable = confirmed, durable
        self.confirmed_by, self.durable_by = self.wrote(confirmed), self.wrote(durable)
        if not len(self._memory):
            return
        self._number += 1
        data = _NOTE.pack(self._number, confirmed, durable, self.boot_id)
        at = self._number % SLOTS * SLOT_BYTES
        data += _CRC.pack(zlib.crc32(data))
        data += _WRITERS.pack(*self.confirmed_by, *self.durable_by)
        data += _CRC.pack(zlib.crc32(data))
        self._memory[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self.unsynced = True


def _shortened(boot_id: str) -> bytes:
    return boot_id.encode()[:BOOT_ID_BYTES]
