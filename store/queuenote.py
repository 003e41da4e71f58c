"""`queueends`: how far each consume queue reached when its files were last synced as a whole.

A side file of this store's own (RocketMQ passes it over). It only detects: a queue whose files do
not show what is noted here is rebuilt from the commit log, and without a valid note all queues are
compared with the log. A queue whose files are untouched since is as noted, and is not looked into.

A note is a block at the end of the file, with the queues that changed since the one before; it is
written after their files were synced. Where there is no room for it, the file is rebuilt, with
all queues, and takes the older one's place. The last valid block says what holds for all.

| at | field | bytes |
|---:|-------|------:|
| 0 | magic `DLGQEND2` | 8 |
| 8 | 1 from before entries are cut until a note tells of it: no digest holds | 1 + 7 |
| 16 | blocks, one after the other; zeros follow the last one | |

| at | field of a block | bytes |
|---:|------------------|------:|
| 0 | CRC-32 of the rest of the block | 4 |
| 4 | rows, and bytes of all rows | 4 + 4 |
| 12 | position: entries of all records below it are in the files | 8 |
| 20 | index end: newest record indexed by then; -1: none, 2^63 - 1: the index was off | 8 |
| 28 | the rows | |

A row: topic length 2, topic, queue id 4, then 8 bytes each: start of the first file (-1: the queue
was removed on purpose), record offset of that file's last entry (-1 for a single file), end of the
entries, end of the newest record, minimum, record offset that no entry from the minimum on is
below, digest of its files (0: not known). Starts, ends and minimum are bytes (20 an entry).
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.disk import Disk, DiskFile, no_room
from duolog_server.store.queueends import QueueKey

PATH = "queueends"
NOT_INDEXED = (1 << 63) - 1  # no index reaches so far: what is missing is looked for in the log
MAGIC = b"DLGQEND2"
ROOM_BYTES = 64 << 10  # of a new file, beside twice what all queues take
REMOVED = -1
_CUT_AT = len(MAGIC)  # whether entries were cut
_BLOCKS_AT = 16
_HEAD = struct.Struct(">IIIqq")
_CRC = struct.Struct(">I")
_NAME = struct.Struct(">H")
_ROW = struct.Struct(">iqqqqqqQ")


class QueueEnd(NamedTuple):
    """A queue's end in the note."""

    first_start: int
    first_file_phy: int
    end: int
    newest: int
    minimum: int = 0
    held_from: int = 0
    digest: int = 0

    @staticmethod
    def of(queue: ConsumeQueue, before: "QueueEnd | None") -> "QueueEnd":
        """How far a queue reaches now; before: what was noted of it last."""
        files = queue.files.files
        start = files[0].start if files else queue.files.max_offset
        last_phy = -1
        if len(files) > 1:
            same = before is not None and before.first_start == start
            last_phy = before.first_file_phy if same and before is not None else -1
            last_phy = last_phy if last_phy >= 0 else queue.entry_before(files[0].end)
        return QueueEnd(
            start,
            last_phy,
            queue.files.max_offset,
            queue.max_physical_offset,
            queue.min_logic_bytes,
            queue.held_from,
        )


@dataclass(frozen=True, slots=True)
class Noted:
    """A note that was read: what the queues' files must show at least."""

    position: int
    index_end: int
    queues: dict[QueueKey, QueueEnd]
    digests_hold: bool = True


@dataclass(slots=True)
class Note:
    """A note that is about to be written; `write` may run in any thread."""

    disk: Disk
    position: int
    index_end: int
    ends: dict[QueueKey, QueueEnd] = field(default_factory=dict)
    directories: dict[QueueKey, list[str]] = field(default_factory=dict)  # of the files of each
    size_max: int = _HEAD.size
    file: DiskFile | None = None  # that has room after `at`
    at: int = 0
    others: dict[QueueKey, bytes] | None = None  # rows of all queues, to rewrite the file
    rows: dict[QueueKey, bytes] = field(default_factory=dict)
    end: int = 0  # of the blocks, once it is written; 0: not written, the older note stays
    overtaken: bool = False  # entries were cut since it was made: digests may be of shorter files

    def write(self) -> None:
        """Write and sync it. A full disk keeps the older note, which is true as well."""
        for key, reached in self.ends.items():
            digest = digest_of(self.disk, self.directories[key])
            self.rows[key] = row_of(key, reached._replace(digest=digest))
        # Entries that are cut from here on change the files, and the digests are theirs no more.
        if self.overtaken:
            self.rows = {key: row_of(key, reached) for key, reached in self.ends.items()}
        if self.file is None:
            self._make_anew()
            return
        end = put_block(self.file, self.at, self.position, self.index_end, self.rows.values())
        self.file.sync()
        self.end = end

    def _make_anew(self) -> None:
        rows = list({**(self.others or {}), **self.rows}.values())
        size = _BLOCKS_AT + 2 * (_HEAD.size + sum(map(len, rows))) + ROOM_BYTES
        made = f"{PATH}.tmp"
        try:
            self.disk.remove(made)
            file = self.disk.create(made, size)
        except OSError as error:
            if not no_room(error):
                raise
            return
        file.memory[: len(MAGIC)] = memoryview(MAGIC)
        end = put_block(file, _BLOCKS_AT, self.position, self.index_end, rows)
        file.sync()
        file.close()
        self.disk.rename(made, PATH)
        self.disk.sync_dir("")
        self.end = end


class QueueNotes:
    """Keeps the note: only what changed is written."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._rows: dict[QueueKey, bytes] = {}  # as they are in the file
        self._file: DiskFile | None = None  # None where there is none that could be written
        self._end = 0  # of the blocks
        self._index_end = -1
        self._under_way: Note | None = None
        self._removed: list[QueueKey] = []  # while a note is written
        self.position = 0  # of the newest note; 0: there is none
        self.unreadable = ""  # why the file could not be read

    def load(self) -> Noted | None:
        """Read the note; None if there is none, it is damaged, or cannot be opened."""
        try:
            if self._disk.size(PATH) <= _BLOCKS_AT:
                return None
            found = parse(self._disk.read(PATH))
            if found is None:
                return None
            self._file = self._disk.open(PATH, True)
        except OSError as error:  # queues are not wrong for that
            self.unreadable = str(error)
            return None
        noted, self._rows, self._end = found
        try:
            self._file.allocate(self._file.size)  # a copy may have holes, which a full disk keeps
        except OSError as error:
            if not no_room(error):
                raise
            self._close_file()  # the next note is written anew, once there is room
        else:
            after = self._file.memory[self._end :]
            if after.any():
                after[:] = 0  # of a block that was never synced: another one will lie there
        self.position, self._index_end = noted.position, noted.index_end
        return noted

    def begin(self, position: int, index_end: int) -> Note:
        """A note for now; `add` every queue that moved since the last one, then `finish` it."""
        self._under_way = Note(self._disk, position, index_end)
        return self._under_way

    def add(self, note: Note, queue: ConsumeQueue, directories: list[str]) -> None:
        """Note how far a queue reaches, now or later than the note's position was taken."""
        key = (queue.topic, queue.queue_id)
        before = self._rows.get(key)
        note.ends[key] = QueueEnd.of(queue, parse_row(before, 0)[1] if before else None)
        note.directories[key] = directories
        note.size_max += _NAME.size + _ROW.size + 4 * len(queue.topic)

    def minimum_of(self, key: QueueKey) -> int:
        """The minimum of a queue in the file, in bytes."""
        row = self._rows.get(key)
        return parse_row(row, 0)[1].minimum if row is not None else 0

    def finish(self, note: Note) -> None:
        """Find where it is written: by `write`, once everything it tells of is synced."""
        note.file, note.at = self._file, self._end
        if note.file is None or note.at + note.size_max > note.file.size:
            note.file, note.others = None, dict(self._rows)

    def written(self, note: Note) -> list[QueueKey]:
        """Take a note's word after `write`; called where the store is owned.

        Queues that it could not note, which have to be in the next one.
        """
        self._under_way = None
        removed, self._removed = self._removed, []
        if not note.end:
            return [key for key in note.ends if key not in removed]
        self._rows.update(note.rows)
        self.position, self._index_end, self._end = note.position, note.index_end, note.end
        if note.file is None:
            self._close_file()
            self._file = self._disk.open(PATH, True)
        if self._file is not None:
            self._file.memory[_CUT_AT] = note.overtaken
        for key in removed:
            self.removed(key)
        return []

    def entries_go(self) -> bool:
        """Before entries are cut: what is noted may say too much; whether a note is being written.

        The change times of files would tell it too, but for those of a tmpfs.
        """
        if self._file is not None:
            self._file.memory[_CUT_AT] = 1
        else:
            self._drop_file()  # which has no room for the mark
        if self._under_way is None:
            return False
        self._under_way.overtaken = True
        return True

    def removed(self, key: QueueKey) -> None:
        """A queue is about to be removed on purpose: its files are not missed after a kill."""
        if self._under_way is not None:
            self._removed.append(key)
            return
        if self._rows.pop(key, None) is None:
            return
        if self._file is None:
            self._drop_file()
            return
        row = row_of(key, QueueEnd(REMOVED, 0, 0, 0))
        if self._end + _HEAD.size + len(row) > self._file.size:
            note = self.begin(self.position, self._index_end)
            note.size_max += len(row)  # there is room for a head, perhaps, and that is not enough
            self.finish(note)
            note.write()
            self.written(note)
            return
        self._end = put_block(self._file, self._end, self.position, self._index_end, [row])

    def forget(self) -> None:
        """Remove the note: nothing is known of the queues any more."""
        self.close()
        self._rows.clear()
        self.position = self._end = 0
        self._drop_file()

    def _drop_file(self) -> None:
        if self._disk.size(PATH) >= 0:
            self._disk.remove(PATH)
            self._disk.sync_dir("")

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Unmap."""
        self._close_file()


def digest_of(disk: Disk, directories: Iterable[str]) -> int:
    """A value that stays the same while a queue's files are not changed; 0 without files."""
    return combined(disk.look(directory).digest for directory in directories)


def combined(digests: Iterable[int]) -> int:
    """One digest of several directories: units of a queue lie in one of their own."""
    found = 0
    for number, digest in enumerate(digests):
        found ^= digest << number
    return found & ((1 << 64) - 1)


def row_of(key: QueueKey, end: QueueEnd) -> bytes:
    """A row as it is in the file."""
    topic = key[0].encode(errors="surrogateescape")
    return _NAME.pack(len(topic)) + topic + _ROW.pack(key[1], *end)


def parse_row(data: bytes, at: int) -> tuple[QueueKey, QueueEnd, int]:
    """The row at a position, and where the next one is."""
    (length,) = _NAME.unpack_from(data, at)
    at += _NAME.size
    topic = data[at : at + length].decode(errors="surrogateescape")
    at += length
    queue_id, *numbers = _ROW.unpack_from(data, at)
    return (topic, queue_id), QueueEnd(*numbers), at + _ROW.size


def put_block(file: DiskFile, at: int, position: int, index_end: int, rows: Iterable[bytes]) -> int:
    """Store a block in a file that has room for it; where it ends."""
    listed = list(rows)
    body = b"".join(listed)
    head = _HEAD.pack(0, len(listed), len(body), position, index_end)
    data = head[_CRC.size :] + body
    data = _CRC.pack(zlib.crc32(data)) + data
    file.memory[at : at + len(data)] = memoryview(data)
    return at + len(data)


def parse(data: bytes) -> tuple[Noted, dict[QueueKey, bytes], int] | None:
    """Parse the blocks: the row of each queue, and their end; None if there is none."""
    if data[: len(MAGIC)] != MAGIC:
        return None
    at = _BLOCKS_AT
    rows: dict[QueueKey, bytes] = {}
    queues: dict[QueueKey, QueueEnd] = {}
    noted = None
    while at + _HEAD.size <= len(data):
        crc, count, size, position, index_end = _HEAD.unpack_from(data, at)
        row, end = at + _HEAD.size, at + _HEAD.size + size
        if end > len(data) or zlib.crc32(memoryview(data)[at + _CRC.size : end]) != crc:
            break
        for _ in range(count):
            try:
                key, noted_end, after = parse_row(data, row)
            except struct.error:  # never written by this code: its CRC is valid
                return None
            if noted_end.first_start == REMOVED:
                rows.pop(key, None)
                queues.pop(key, None)
            else:
                rows[key], queues[key] = data[row:after], noted_end
            row = after
        noted = Noted(position, index_end, queues, not data[_CUT_AT])
        at = end
    return (noted, rows, at) if noted is not None else None
