"""`checkpoint`: the times up to which the files are on disk; one page.

| at | field | meaning |
|---:|-------|---------|
| 0 | physicMsgTimestamp | store time of the newest commit-log record known to be synced |
| 8 | logicsMsgTimestamp | the same for queue entries |
| 16 | indexMsgTimestamp | end time of the newest index file that is full and synced |
| 24 | masterFlushedOffset | on a slave: the master's durable offset |
| 32 | confirmPhyOffset | confirm offset as far as it was on disk; clamped to the log on load |
| 1024 | confirm note | what was confirmed, kept over a SIGKILL: see `store.confirmnote` |

Big-endian, 8 bytes each (4.x uses the first three). A field never runs ahead of what is synced, and
recovery stays right whatever it holds: it only shortens the work. The note is no part of that: it
keeps a replica from being cut below what it knows to be confirmed.
"""

import errno
import os
import struct

import numpy as np

from duolog_server.store.confirmnote import ConfirmNote
from duolog_server.store.disk import Disk, DiskFile, no_room

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
