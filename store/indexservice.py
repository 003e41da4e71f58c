"""IndexService: the hash index over UNIQ_KEY and KEYS, a sequence of IndexFiles.

| at | header field | bytes |      | at | entry field | bytes |
|---:|--------------|------:|------|---:|-------------|------:|
| 0 | beginTimestamp | 8 |         | 0 | key hash | 4 |
| 8 | endTimestamp | 8 |           | 4 | physical offset | 8 |
| 16 | beginPhyOffset | 8 |        | 12 | seconds after beginTimestamp | 4 |
| 24 | endPhyOffset | 8 |          | 16 | previous entry of the slot | 4 |
| 32 | hashSlotCount | 4 |
| 36 | indexCount (from 1) | 4 |

Then the slots (4 bytes each), then the entries. Always rebuildable from the log.
Source: Apache RocketMQ 4.9.8, IndexFile and IndexService.
"""

import struct
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from duolog_server.store.clocks import WallMs
from duolog_server.store.directories import INDEX
from duolog_server.store.disk import Disk, DiskFile
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.kernels import index as kernel
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.mappedfile import FlushJob, MappedFile
from duolog_server.store.options import StoreOptions

NAME_DIGITS = 17
DIRECTORY = INDEX
ROOM_ENTRIES = 1 << 18  # entries that get blocks at a time
_HEADER = struct.Struct(">qqqqii")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 40 bytes of an IndexFile."""

    begin_time: int
    end_time: int
    begin_phy: int
    end_phy: int
    slot_count: int
    index_count: int

    @staticmethod
    def read(memory: U8) -> "IndexHeader":
        """Read it out of a file's memory."""
        return IndexHeader(*_HEADER.unpack(memory[: _HEADER.size].tobytes()))


def key_text(topic: str, key: str) -> bytes:
    """The text a key is indexed under."""
    return f"{topic}#{key}".encode()


def key_hash(topic: str, key: str) -> int:
    """The hash a key is indexed under."""
    return int(kernel.key_hash(np.frombuffer(key_text(topic, key), np.uint8)))


class IndexFile:
    """One file of the index."""

    def __init__(self, file: DiskFile, options: StoreOptions) -> None:
        self.file = file
        self.room = 0  # entries that may be written; past them may be holes
        self.options = options
        self.slots = options.max_hash_slot_num
        self.entries = options.max_index_num

    @property
    def header(self) -> IndexHeader:
        """Read the file's header again."""
        return IndexHeader.read(self.file.memory)

    @property
    def index_count(self) -> int:
        """The header's number of entries, with the unused one."""
        at = kernel.INDEX_COUNT_AT
        return int.from_bytes(self.file.memory[at : at + 4].tobytes(), "big")

    @property
    def is_full(self) -> bool:
        """No further key fits."""
        return self.index_count >= self.entries

    def make_room(self) -> None:
        """Before it is written: blocks for its slots and for some more entries, if they have none.

        To write into a hole on a full disk ends the process. Raises OSError.
        """
        count = self.index_count
        if self.room > count:
            return
        room = min(self.entries, count + ROOM_ENTRIES)
        start = self.options.index_bytes(self.room) if self.room else 0
        self.file.allocate(self.options.index_bytes(room), start)
        self.room = room

    def find(self, hashed: int, begin_ms: int, end_ms: int, count: int) -> list[int]:
        """Offsets of records with a key of this hash, newest first."""
        out: I64 = np.empty(count, np.int64)
        found = kernel.find_key(
            self.file.memory, self.slots, self.entries, hashed, begin_ms, end_ms, out
        )
        return [int(offset) for offset in out[: int(found)]]


class IndexService:
    """All index files, oldest first."""

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self.disk = disk
        self.options = options
        self.files: list[IndexFile] = []
        self._flushed = 0  # files that are full and synced

    def load(self, trusted_until_ms: int | None, writable: bool = True) -> None:
        """Open the files.

        trusted_until_ms: None after a clean stop. After a crash, the checkpoint's
        indexMsgTimestamp: files that were not full and synced by then are removed; they are
        rebuilt from the log.
        """
        for name in self.disk.list(DIRECTORY):
            path = f"{DIRECTORY}/{name}"
            if not (len(name) == NAME_DIGITS and name.isdecimal()):
                raise BadStoreDirectory(path, "is not an index file (its name must have 17 digits)")
            size = self.disk.size(path)
            if size != self.options.index_file_bytes:
                raise BadStoreDirectory(
                    path,
                    f"has {size} bytes, but the configured index file size is "
                    f"{self.options.index_file_bytes}",
                )
            file = self.disk.open(path, writable)
            file.cover_holes()
            self.files.append(IndexFile(file, self.options))
        if trusted_until_ms is not None:
            self._distrust(trusted_until_ms)
        self._flushed = sum(1 for file in self.files if file.is_full)

    def _distrust(self, until_ms: int) -> None:
        kept = 0
        for file in self.files:
            header = file.header
            sound = file.is_full and header.index_count == self.options.max_index_num
            # Two files may end in one ms; only the first of them is known to be synced then.
            first_of_its_time = kept == 0 or self.files[kept - 1].header.end_time < until_ms
            if not (sound and header.end_time <= until_ms and first_of_its_time):
                break
            kept += 1
        self.drop_from(kept)

    def drop_from(self, index: int) -> None:
        """Remove files from a position on."""
        for file in reversed(self.files[index:]):
            self.disk.remove(file.file.path)
            file.file.close()
        del self.files[index:]
        self._flushed = min(self._flushed, index)

    @property
    def end_offset(self) -> int:
        """Offset of the newest record indexed, 0 for none."""
        return self.files[-1].header.end_phy if self.files else 0

    @property
    def newest(self) -> int:
        """Offset of the newest record indexed, -1 for none."""
        return self.files[-1].header.end_phy if self.files else -1

    def truncate(self, physical_offset: int) -> None:
        """Drop every file that indexes a record at or after an offset; the log can rebuild them."""
        keep = 0
        for file in self.files:
            if file.header.end_phy >= physical_offset and file.header.index_count > 1:
                break
            keep += 1
        self.drop_from(keep)

    def put(self, data: U8, rows: I64, end: int) -> None:
        """Index the keys of rows [0, end). OSError on a full disk: the rows may be put again."""
        state: I64 = np.zeros(2, np.int64)
        while True:
            file = self._writable(WallMs(int(rows[scan.STORE_TIME, int(state[0])]) if end else 0))
            code = kernel.put_keys(file.file.memory, file.slots, file.room, data, rows, end, state)
            if code == kernel.INDEX_OK:
                return

    def _writable(self, store_ms: WallMs) -> IndexFile:
        if self.files and not self.files[-1].is_full:
            self.files[-1].make_room()
            return self.files[-1]
        previous = self.files[-1].header if self.files else None
        path = f"{DIRECTORY}/{self._name(store_ms)}"
        room = min(self.options.max_index_num, ROOM_ENTRIES)
        size, blocks = self.options.index_file_bytes, self.options.index_bytes(room)
        made = self.disk.create(path, size, blocks)
        begin = _HEADER.pack(0, 0, 0, 0, 0, 1)
        if previous is not None:
            begin = _HEADER.pack(
                previous.end_time, previous.end_time, previous.end_phy, previous.end_phy, 0, 1
            )
        made.memory[: _HEADER.size] = np.frombuffer(begin, np.uint8)
        self.files.append(IndexFile(made, self.options))
        self.files[-1].room = room
        return self.files[-1]

    def _name(self, store_ms: WallMs) -> str:
        """yyyyMMddHHmmssSSS in local time, later than the newest existing name."""
        newest = self.files[-1].file.path.rpartition("/")[2] if self.files else ""
        while True:
            stamp = datetime.fromtimestamp(store_ms // 1000).astimezone()
            name = f"{stamp:%Y%m%d%H%M%S}{store_ms % 1000:03d}"
            if name > newest:
                return name
            store_ms = WallMs(store_ms + 1)

    def find(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Offsets, newest first, of records that may carry a key; at most count.

        Hashes may clash: the caller compares the records' own topic and keys.
        """
        hashed = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files):
            header = file.header
            if header.index_count > 1 and header.begin_time <= end_ms:
                found += file.find(hashed, begin_ms, end_ms, count - len(found))
            if len(found) >= count or header.begin_time < begin_ms:
                break
        return found

    def flush_full_job(self) -> FlushJob | None:
        """Sync the oldest file that is full and not synced yet."""
        if self._flushed >= len(self.files) or not self.files[self._flushed].is_full:
            return None
        return self._job([self.files[self._flushed]])

    def flush_all_job(self) -> FlushJob | None:
        """Sync every file that may hold unsynced entries, at a clean stop."""
        files = self.files[self._flushed :]
        return self._job(files) if files else None

    def _job(self, files: list[IndexFile]) -> FlushJob:
        mapped = [(MappedFile(file.file, 0), 0) for file in files]
        header = files[-1].header
        return FlushJob(self.disk, mapped, ["", DIRECTORY], header.end_phy, header.end_time)

    @property
    def flushed_end_time(self) -> int:
        """End time of the newest file that is full and synced, 0 for none."""
        return self.files[self._flushed - 1].header.end_time if self._flushed else 0

    def flushed_all(self) -> None:
        """Note that the job of `flush_all_job` succeeded."""
        self._flushed = sum(1 for file in self.files if file.is_full)

    def flushed_full(self) -> None:
        """Note that the job of `flush_full_job` succeeded."""
        self._flushed += 1

    def delete_before(self, physical_offset: int) -> int:
        """Remove files, never the last, that only index records below an offset; how many."""
        removed = 0
        while len(self.files) > 1 and self.files[0].header.end_phy < physical_offset:
            first = self.files.pop(0)
            self.disk.remove(first.file.path)
            first.file.close()
            self._flushed = max(0, self._flushed - 1)
            removed += 1
        return removed

    def wipe(self) -> None:
        """Remove every file of the index directory."""
        for name in self.disk.list(DIRECTORY):
            self.disk.remove(f"{DIRECTORY}/{name}")

    def close(self) -> None:
        """Unmap everything."""
        for file in self.files:
            file.file.close()
        self.files = []
