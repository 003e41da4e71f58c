"""The confirm note: what a replica knows to be confirmed, kept across a SIGKILL.

| at | field | bytes | |
|---:|-------|------:|---|
| 0 | number | 8 | counts the notes ever written; the newest whole one counts |
| 8 | confirmed | 8 | every byte of this log below this was confirmed to clients |
| 16 | durable | 8 | the same, and known to be on this node's disk |
| 24 | boot id | 40 | of the system run the note was written in, padded with zeros |
| 64 | CRC-32 | 4 | over bytes 0..63 |

Two slots, a sector each, are written in turn: a process that dies while it writes leaves the other
one whole. A note is written to mapped memory, which takes two microseconds, and synced later with
the file: the page cache keeps it if the process is killed. After a crash of the system, the note
may be older than what was confirmed, and the log may end before it: then it claims only what the
log still holds without damage.
"""

import struct
import zlib

import numpy as np

from duolog_server.store.kernels.jit import EMPTY_U8, U8

SLOT_BYTES = 512
SLOTS = 2
_NOTE = struct.Struct(">QQQ40s")
_CRC = struct.Struct(">I")
_BYTES = _NOTE.size + _CRC.size
BOOT_ID_BYTES = 40


class ConfirmNote:
    """The newest note and its mapped memory. Owned by one thread."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.durable = 0
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
            data = memory[slot * SLOT_BYTES :][:_BYTES].tobytes()
            if _CRC.unpack_from(data, _NOTE.size)[0] != zlib.crc32(data[: _NOTE.size]):
                continue
            number, confirmed, durable, boot_id = _NOTE.unpack_from(data)
            if number > self._number:
                self._number, self.confirmed, self.durable = number, confirmed, durable
                self.boot_id = boot_id.rstrip(b"\0")

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
        if not len(self._memory):
            return
        self._number += 1
        data = _NOTE.pack(self._number, confirmed, durable, self.boot_id)
        at = self._number % SLOTS * SLOT_BYTES
        data += _CRC.pack(zlib.crc32(data))
        self._memory[at : at + _BYTES] = np.frombuffer(data, np.uint8)
        self.unsynced = True


def _shortened(boot_id: str) -> bytes:
    return boot_id.encode()[:BOOT_ID_BYTES]
