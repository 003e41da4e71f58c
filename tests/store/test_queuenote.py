"""The note of the queues' ends: the content of its file after each step, and how it is read."""

import errno
import random
from typing import Any

import numpy as np
import pytest

from duolog_server.store import queuenote
from duolog_server.store.consumequeue import ENTRY_BYTES, ConsumeQueue
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuenote import (
    MAGIC,
    PATH,
    ROOM_BYTES,
    Note,
    Noted,
    QueueEnd,
    QueueNotes,
    combined,
    parse,
    parse_row,
    put_block,
    row_of,
)
from duolog_server.store.queues import ConsumeQueues
from sim.disk import SimDisk, SimFile
from tests.known import known
from tests.support import SMALL

END = QueueEnd(0, -1, 60, 300, 20, 100, (1 << 64) - 1)
HEAD_BYTES = 28
ROW_BYTES = 2 + 4 + 7 * 8
FILE = 50 * ENTRY_BYTES


class Disk(SimDisk):
    """A simulated disk that remembers the files it handed out."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), lambda: 0.0)
        self.handed: list[SimFile] = []

    def create(self, path: str, size: int, allocated: int | None = None) -> SimFile:
        self.handed.append(super().create(path, size, allocated))
        return self.handed[-1]

    def open(self, path: str, writable: bool) -> SimFile:
        self.handed.append(super().open(path, writable))
        return self.handed[-1]

    @property
    def mapped(self) -> list[str]:
        """Paths of the files that nobody closed."""
        return [file.path for file in self.handed if len(file.memory)]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def notes(disk: Disk) -> QueueNotes:
    return QueueNotes(disk)


def queue_of(entries: int, topic: str = "T", queue_id: int = 0) -> ConsumeQueue:
    """A queue with entries of records of 100 bytes."""
    queues = ConsumeQueues(SimDisk(random.Random(1), lambda: 0.0), SMALL)
    queue = queues.get_or_make(topic, queue_id)
    rows: I64 = np.zeros((scan.COLUMNS, entries), np.int64)
    rows[scan.QUEUE_OFFSET] = np.arange(entries)
    rows[scan.PHY] = np.arange(entries) * 100
    rows[scan.SIZE] = 100
    queue.put(rows, np.arange(entries, dtype=np.int64), 0)
    return queue


def begun(notes: QueueNotes, position: int, *queues: ConsumeQueue) -> Note:
    note = notes.begin(position, position - 1)
    for queue in queues:
        notes.add(note, queue, [])
    notes.finish(note)
    return note


def note_now(notes: QueueNotes, position: int, *queues: ConsumeQueue) -> list[QueueKey]:
    note = begun(notes, position, *queues)
    note.write()
    return notes.written(note)


def in_file(disk: SimDisk) -> Noted:
    """What a power cut would leave of the note."""
    found = known(parse(disk.inodes(durable=True)[PATH].durable.tobytes()))
    return found[0]


# -- how far a queue reaches -----------------------------------------------------------------------


def test_a_queue_reaches_as_far_as_its_files_do() -> None:
    assert QueueEnd.of(queue_of(0), None) == QueueEnd(0, -1, 0, -1, 0, 0, 0)
    assert QueueEnd.of(queue_of(50), None) == QueueEnd(0, -1, 1000, 5000, 0, 0, 0)
    queue = queue_of(120)
    queue.min_logic_bytes, queue.held_from = 40, 200
    assert QueueEnd.of(queue, None) == QueueEnd(0, 4900, 2400, 12000, 40, 200, 0)
    queue.files.remove(queue.files.files[0])
    assert QueueEnd.of(queue, None)[:2] == (FILE, 9900)


def test_the_last_entry_of_a_first_file_is_read_once() -> None:
    queue = queue_of(60)
    for noted, start, due in ((777, 0, 777), (0, 0, 0), (-1, 0, 4900), (777, FILE, 4900)):
        before = QueueEnd(start, noted, 1100, 5500)
        assert QueueEnd.of(queue, before).first_file_phy == due


def test_the_note_of_a_first_file_is_copied_from_the_previous_row() -> None:
    notes, queue = QueueNotes(Disk()), queue_of(60)
    note_now(notes, 700, queue)
    queue.entry_before = lambda logic_bytes: 777  # type: ignore[method-assign]
    assert begun(notes, 800, queue).ends["T", 0].first_file_phy == 4900


# -- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["T", "%LMQ%$T$one", "\udcff😀"])
def test_a_row_is_read_as_it_was_written(topic: str) -> None:
    row = row_of((topic, 3), END)
    assert len(row) == ROW_BYTES + len(topic.encode(errors="surrogateescape"))
    assert parse_row(b"xx" + row, 2) == ((topic, 3), END, 2 + len(row))


def blocks(*listed: list[bytes], room: int = 0) -> bytes:
    """A file's bytes: blocks at positions 1, 2 and so on."""
    disk = SimDisk(random.Random(1), lambda: 0.0)
    size = 16 + sum(HEAD_BYTES + sum(map(len, rows)) for rows in listed) + room
    file = disk.create("f", size)
    file.memory[: len(MAGIC)] = memoryview(MAGIC)
    at = 16
    for number, rows in enumerate(listed, 1):
        at = put_block(file, at, number, number * 10, rows)
    assert at == size - room
    return file.memory.tobytes()


def test_the_last_whole_block_is_in_force() -> None:
    a, b = row_of(("A", 0), END), row_of(("B", 1), END)
    other, gone = row_of(("A", 0), END._replace(end=80)), QueueEnd(queuenote.REMOVED, 0, 0, 0)
    whole = blocks([a, b], [other], [row_of(("B", 1), gone)], room=5)
    assert parse(whole) == (
        Noted(3, 30, {("A", 0): END._replace(end=80)}, True),
        {("A", 0): other},
        len(whole) - 5,
    )
    at = 16 + HEAD_BYTES + len(a + b)
    older = (Noted(1, 10, {("A", 0): END, ("B", 1): END}, True), {("A", 0): a, ("B", 1): b}, at)
    for place in (at, at + 4, at + 12, at + HEAD_BYTES + 3):
        harmed = bytearray(whole)
        harmed[place] ^= 1
        assert parse(bytes(harmed)) == older
    for end in (at, at + HEAD_BYTES - 1, at + HEAD_BYTES, at + HEAD_BYTES + len(other) - 1):
        assert parse(whole[:end]) == older
    assert parse(whole[: at + HEAD_BYTES + len(other)]) != older


def test_a_block_without_rows_that_ends_with_the_file_holds() -> None:
    assert parse(blocks([])) == (Noted(1, 10, {}, True), {}, 16 + HEAD_BYTES)
    assert parse(blocks([])[:-1]) is None


def test_bytes_that_are_not_a_note_are_ignored() -> None:
    whole = blocks([row_of(("A", 0), END)])
    assert parse(whole) is not None
    assert parse(b"x" + whole[1:]) is None
    assert parse(whole[:16]) is None
    cut = bytearray(whole)
    cut[8] = 1
    found = known(parse(bytes(cut)))
    assert not found[0].digests_hold


def test_a_digest_of_directories_is_of_all_and_of_their_order() -> None:
    assert combined([]) == 0
    assert combined([5]) == 5
    assert combined([1, 1]) == 3
    assert combined([2, 1, 1]) == 2 ^ 2 ^ 4
    assert combined([0, 1 << 63]) == 0
    assert combined([1 << 63]) == 1 << 63


# -- the file --------------------------------------------------------------------------------------


def test_the_first_note_makes_the_file_which_is_durable_then(disk: Disk, notes: QueueNotes) -> None:
    assert (notes.load(), notes.unreadable, notes.position) == (None, "", 0)
    assert note_now(notes, 700, queue_of(3), queue_of(4, "U", 2)) == []
    found = in_file(disk)
    assert (found.position, found.index_end, found.digests_hold) == (700, 699, True)
    assert {key: end.end for key, end in found.queues.items()} == {("T", 0): 60, ("U", 2): 80}
    assert disk.inodes(durable=True).keys() == {PATH}
    rows = 2 * (ROW_BYTES + 1)
    assert disk.size(PATH) == 16 + 2 * (HEAD_BYTES + rows) + ROOM_BYTES
    assert disk.mapped == [PATH], "the writer's own is closed"
    assert notes.position == 700
    notes.close()
    assert disk.mapped == []


def test_later_notes_follow_in_the_file_until_it_is_full(disk: Disk, notes: QueueNotes) -> None:
    note_now(notes, 700, queue_of(3), queue_of(4, "U", 2))
    inode = disk.inodes(durable=True)[PATH]
    assert note_now(notes, 800, queue_of(5)) == []
    assert disk.inodes(durable=True)[PATH] is inode
    assert {key: end.end for key, end in in_file(disk).queues.items()} == {
        ("T", 0): 100, ("U", 2): 80,
    }  # fmt: skip
    disk.create(f"{PATH}.tmp", 5)  # of a process that was killed
    file = known(notes._file)
    notes._end = file.size
    assert note_now(notes, 900, queue_of(6)) == []
    assert disk.inodes(durable=True)[PATH] is not inode
    assert {key: end.end for key, end in in_file(disk).queues.items()} == {
        ("T", 0): 120, ("U", 2): 80,
    }  # fmt: skip
    assert [path for path in disk.mapped if path == PATH] == [PATH], "the older one is closed"
    note_now(notes, 1000, queue_of(7))
    assert in_file(disk).position == 1000


def test_a_note_is_written_where_it_fits_to_the_byte(disk: Disk, notes: QueueNotes) -> None:
    """A character takes four bytes at most."""
    note_now(notes, 700, queue_of(3))
    file = known(notes._file)
    size = HEAD_BYTES + ROW_BYTES + 2 * 4
    notes._end = file.size - size + 1
    assert begun(notes, 800, queue_of(1, "😀😀")).file is None
    notes._end = file.size - size
    note = begun(notes, 800, queue_of(1, "😀😀"))
    note.write()
    assert (note.file, note.end) == (file, file.size)


def test_a_note_is_continued_after_a_restart_and_bytes_after_it_are_cleared(
    disk: Disk, notes: QueueNotes
) -> None:
    note_now(notes, 700, queue_of(3))
    end = notes._end
    notes.close()
    disk.inodes(durable=False)[PATH].seen[end + 9 :] = 7
    again = QueueNotes(disk)
    assert again.load() == in_file(disk)
    assert again.position == 700
    assert not disk.inodes(durable=False)[PATH].seen[end:].any()
    note_now(again, 800, queue_of(4, "U", 2))
    assert in_file(disk).queues.keys() == {("T", 0), ("U", 2)}
    again.removed(("U", 2))
    last = QueueNotes(disk)
    found = known(last.load())
    assert (set(found.queues), found.index_end) == ({("T", 0)}, 799)


def test_a_note_that_cannot_be_opened_is_ignored_and_says_why() -> None:
    disk = Disk()
    note_now(QueueNotes(disk), 700, queue_of(3))
    disk.inodes(durable=False)[PATH].seen[: len(MAGIC)] = 0
    notes = QueueNotes(disk)
    assert (notes.load(), notes.unreadable, notes.position) == (None, "", 0)

    def fails(path: str, writable: bool) -> Any:
        raise OSError(errno.EMFILE, "too many")

    disk.inodes(durable=False)[PATH].seen[: len(MAGIC)] = memoryview(MAGIC)
    disk.open = fails  # type: ignore[method-assign]
    assert (notes.load(), notes.unreadable, notes.position) == (None, "[Errno 24] too many", 0)


@pytest.mark.parametrize("step", ["sync", "sync_dir", "full", "broken"])
@pytest.mark.parametrize("first", [True, False])
def test_a_note_that_failed_is_not_written(
    step: str, first: bool, disk: Disk, notes: QueueNotes
) -> None:
    note_now(notes, 700, queue_of(3), queue_of(3, "U"))
    if first and notes._file is not None:
        notes._end = notes._file.size
    note = begun(notes, 800, queue_of(4), queue_of(4, "U"))
    notes.removed(("U", 0))
    error = OSError(errno.ENOSPC if step == "full" else errno.EIO, "no")

    def fails(*args: object) -> Any:
        raise error

    if step == "sync":
        disk.syncs_to_fail = 1
    elif step == "sync_dir":
        disk.sync_dir = fails  # type: ignore[method-assign,assignment]
    else:
        disk.create = fails  # type: ignore[method-assign,assignment]
    if step == "sync" or (first and step != "full"):
        with pytest.raises(OSError, match=r"simulated|no"):
            note.write()
    else:
        note.write()
    written = not first and step != "sync"
    assert bool(note.end) == written
    assert notes.written(note) == ([] if written else [("T", 0)])
    assert notes.position == (800 if written else 700)


# -- what changes while a note is under way --------------------------------------------------------


def test_entries_that_go_leave_no_digest_until_the_next_note(disk: Disk, notes: QueueNotes) -> None:
    assert not notes.entries_go()
    note_now(notes, 700, queue_of(3))
    assert not notes.entries_go()
    assert not parse(disk.read(PATH))[0].digests_hold  # type: ignore[index]
    note_now(notes, 800, queue_of(3))
    assert parse(disk.read(PATH))[0].digests_hold  # type: ignore[index]
    note = begun(notes, 900, queue_of(3))
    assert notes.entries_go()
    note.write()
    notes.written(note)
    assert not parse(disk.read(PATH))[0].digests_hold  # type: ignore[index]
    assert not notes.entries_go()


@pytest.mark.parametrize("overtaken", [True, False])
def test_a_row_has_the_digest_of_the_files_unless_entries_went_meanwhile(
    overtaken: bool, disk: Disk, notes: QueueNotes
) -> None:
    disk.write("a/f", b"some")
    note = notes.begin(700, -1)
    notes.add(note, queue_of(3), ["a"])
    notes.finish(note)
    if overtaken:
        notes.entries_go()
    note.write()
    notes.written(note)
    digest = in_file(disk).queues["T", 0].digest
    assert digest == (0 if overtaken else disk.look("a").digest)


def test_a_queue_that_is_removed_is_in_no_note_after(disk: Disk, notes: QueueNotes) -> None:
    notes.removed(("T", 0))  # before there is a file
    note_now(notes, 700, queue_of(3), queue_of(3, "U"), queue_of(3, "V"))
    end = notes._end
    notes.removed(("W", 0))
    assert notes._end == end, "nobody knows it"
    notes.removed(("U", 0))
    assert parse(disk.read(PATH))[0].queues.keys() == {("T", 0), ("V", 0)}  # type: ignore[index]
    note = begun(notes, 800, queue_of(4))
    notes.removed(("V", 0))
    note.write()
    assert in_file(disk).queues.keys() == {("T", 0), ("V", 0)}
    notes.written(note)
    assert parse(disk.read(PATH))[0].queues.keys() == {("T", 0)}  # type: ignore[index]


@pytest.mark.parametrize("short", [0, 1, HEAD_BYTES])
def test_a_removed_queue_rewrites_the_file_if_its_row_has_no_room(
    short: int, disk: Disk, notes: QueueNotes
) -> None:
    note_now(notes, 700, queue_of(3), queue_of(3, "U"))
    file = known(notes._file)
    inode = disk.inodes(durable=True)[PATH]
    put_block(file, notes._end, 700, 699, [b""] * 0)  # so that blocks follow one another
    start = notes._end
    notes._end = file.size - HEAD_BYTES - ROW_BYTES - 1 + short
    notes.removed(("U", 0))
    if short:
        assert disk.inodes(durable=True)[PATH] is not inode
        assert in_file(disk).queues.keys() == {("T", 0)}
        assert (in_file(disk).position, in_file(disk).index_end) == (700, 699)
        note = begun(notes, 800, queue_of(4))
        assert note.file not in (None, file), "the new file has room"
        note.write()
        assert in_file(disk).position == 800
    else:
        assert notes._end == file.size > start
        assert parse_row(file.memory.tobytes(), file.size - ROW_BYTES - 1)[0] == ("U", 0)


def test_a_note_that_is_forgotten_says_nothing_of_any_queue(disk: Disk, notes: QueueNotes) -> None:
    note_now(notes, 700, queue_of(3))
    notes.forget()
    assert notes.position == 0
    assert (disk.mapped, disk.inodes(durable=True)) == ([], {})
    notes.forget()
    note_now(notes, 0, queue_of(0, "U"))
    assert in_file(disk).queues.keys() == {("U", 0)}
    notes.close()
    disk.write(PATH, b"")
    QueueNotes(disk).forget()
    assert disk.size(PATH) == -1
