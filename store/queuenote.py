"""`queueends`: how far each consume queue reached when its files were last synced as a whole.

A side file of this store's own (RocketMQ passes it over). It only detects: a queue whose files do
not show what is noted here is rebuilt from the commit log, and without a valid note all queues are
compared with the log. It is replaced atomically after the queues' files were synced.

| at | field | bytes |
|---:|-------|------:|
| 0 | magic `DLGQEND1` | 8 |
| 8 | CRC-32 of bytes [12, flags) | 4 |
| 12 | position: entries of all records below it are in the files | 8 |
| 20 | index end: newest record indexed by then; -1: none, 2^63 - 1: the index was off | 8 |
| 28 | rows, and bytes of all rows | 4 + 4 |
| 36 | the rows, then the flags: a byte a row, 1 once that queue was removed on purpose | |

A row: topic length 2, topic, queue id 4, start of the first file 8, record offset of that file's
last entry 8 (-1 for a single file), end of the entries 8, end of the newest record 8. Starts and
ends of entries are bytes (20 an entry).
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from store.consumequeue import ConsumeQueue
from store.disk import Disk, DiskFile, no_room

PATH = "queueends"
NOT_INDEXED = (1 << 63) - 1  # no index reaches so far: what is missing is looked for in the log
MAGIC = b"DLGQEND1"
_HEAD = struct.Struct(">8sIqqii")
_CRC_FROM = 12
_NAME = struct.Struct(">H")
_ROW = struct.Struct(">iqqqq")
QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """What is noted of one queue."""

    first_start: int
    first_file_phy: int
    end: int
    newest: int

    @staticmethod
    def of(queue: ConsumeQueue) -> "QueueEnd":
        """How far a queue reaches now."""
        files = queue.files.files
        start = files[0].start if files else queue.files.max_offset
        last_phy = queue.entry_before(files[0].end) if len(files) > 1 else -1
        return QueueEnd(start, last_phy, queue.files.max_offset, queue.max_physical_offset)


@dataclass(frozen=True, slots=True)
class Noted:
    """A note that was read: what the queues' files must show at least."""

    position: int
    index_end: int
    queues: dict[QueueKey, QueueEnd]


@dataclass(slots=True)
class Note:
    """A note that is about to be written; `write` may run in any thread."""

    disk: Disk
    position: int
    index_end: int
    keys: list[QueueKey]
    rows: list[bytes]
    bytes_written: int = 0  # 0: not written, the older note stays

    def write(self) -> None:
        """Replace the file. A full disk keeps the older note, which is true as well."""
        body = b"".join(self.rows)
        head = _HEAD.pack(MAGIC, 0, self.position, self.index_end, len(self.rows), len(body))
        crc = zlib.crc32(body, zlib.crc32(head[_CRC_FROM:]))
        data = head[:8] + struct.pack(">I", crc) + head[_CRC_FROM:] + body + bytes(len(self.rows))
        try:
            self.disk.write(f"{PATH}.tmp", data)
            self.disk.rename(f"{PATH}.tmp", PATH)
            self.disk.sync_dir("")
            self.bytes_written = len(data)
        except OSError as error:
            if not no_room(error):
                raise


class QueueNotes:
    """Keeps the note: rows of queues that did not change are not made anew."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._rows: dict[QueueKey, bytes] = {}
        self._file: DiskFile | None = None
        self._flags: dict[QueueKey, int] = {}  # where each noted queue's flag is in the file
        self.position = 0  # of the newest note; 0: there is none

    def load(self) -> Noted | None:
        """Read the note; None where there is none, or it is damaged."""
        if self._disk.size(PATH) < _HEAD.size:
            return None
        data = self._disk.read(PATH)
        found = parse(data)
        if found is not None:
            self._map(list(found.queues), len(data))
            self.position = found.position
            gone = {key for key, at in self._flags.items() if data[at]}
            return Noted(
                found.position,
                found.index_end,
                {key: row for key, row in found.queues.items() if key not in gone},
            )
        return None

    def note(self, changed: Iterable[ConsumeQueue], position: int, index_end: int) -> Note:
        """A note for now. changed: queues that moved since the last one."""
        for queue in changed:
            end = QueueEnd.of(queue)
            topic = queue.topic.encode(errors="surrogateescape")
            self._rows[queue.topic, queue.queue_id] = (
                _NAME.pack(len(topic))
                + topic
                + _ROW.pack(
                    queue.queue_id, end.first_start, end.first_file_phy, end.end, end.newest
                )
            )
        rows = self._rows
        return Note(self._disk, position, index_end, list(rows), list(rows.values()))

    def written(self, note: Note) -> None:
        """Take a note's word after `write`; called where the store is owned."""
        if note.bytes_written:
            self._map(note.keys, note.bytes_written)
            self.position = note.position
            for key in note.keys:
                if key not in self._rows:
                    self.removed(key)  # while it was being written

    def _map(self, keys: list[QueueKey], size: int) -> None:
        """Keep the file at hand: flags are set in it as queues are removed."""
        if self._file is not None:
            self._file.close()
        self._file = self._disk.open(PATH, True)
        first = size - len(keys)
        self._flags = {key: first + number for number, key in enumerate(keys)}

    def removed(self, key: QueueKey) -> None:
        """A queue is about to be removed on purpose: its files are not missed after a kill."""
        self._rows.pop(key, None)
        at = self._flags.pop(key, None)
        if at is not None and self._file is not None:
            self._file.memory[at] = 1

    def forget(self) -> None:
        """Remove the note: nothing is known of the queues any more."""
        self.close()
        self._rows.clear()
        self._flags.clear()
        self.position = 0
        if self._disk.size(PATH) >= 0:
            self._disk.remove(PATH)
            self._disk.sync_dir("")

    def close(self) -> None:
        """Unmap."""
        if self._file is not None:
            self._file.close()
            self._file = None


def parse(data: bytes) -> Noted | None:
    """What a note says, or None where it is none."""
    if len(data) < _HEAD.size:
        return None
    magic, crc, position, index_end, count, size = _HEAD.unpack_from(data)
    if magic != MAGIC or count < 0 or size < 0 or len(data) != _HEAD.size + size + count:
        return None
    if zlib.crc32(data[_CRC_FROM : _HEAD.size + size]) != crc:
        return None
    queues: dict[QueueKey, QueueEnd] = {}
    at = _HEAD.size
    for _ in range(count):
        (length,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        topic = data[at : at + length].decode(errors="surrogateescape")
        queue_id, *numbers = _ROW.unpack_from(data, at + length)
        at += length + _ROW.size
        queues[topic, queue_id] = QueueEnd(*numbers)
    return Noted(position, index_end, queues)
