"""A store of many queues: what each of them costs on the disk and in open files."""

import errno
import random
import resource
from pathlib import Path

import pytest

from sim.disk import SimDisk
from store.columns import Columns
from store.mappedfile import CHUNK, PAGE
from store.messagestore import MessageStore, PutBatch
from store.openfiles import LazyFile, OpenFiles
from store.options import StoreOptions
from store.osdisk import OsDisk
from store.status import PutMessageStatus, RunningFlags
from tests.support import NOW, crash, drain, open_store, options, put_ok, read_all

WIDE = options(mapped_file_size_consume_queue=20 * 300_000, mapped_file_size_commit_log=4 << 20)


def open_count(store: MessageStore) -> int:
    """How many queue files are mapped."""
    files = [mapped.file for queue in store.queues for mapped in queue.files.files]
    return sum(isinstance(file, LazyFile) and file.is_open for file in files)


def blocks(path: Path) -> int:
    """Bytes that a file takes on the disk."""
    return path.stat().st_blocks * 512


def test_a_queue_takes_room_for_what_is_in_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    for number in range(40):
        put_ok(store, [b"m"], f"T{number}", number)
    files = sorted(tmp_path.glob("consumequeue/*/*/*"))
    assert len(files) == 40
    assert {path.stat().st_size for path in files} == {20 * 300_000}, "as RocketMQ wants them"
    assert {blocks(path) for path in files} == {PAGE}
    for _ in range(9):
        put_ok(store, [b"%d" % n for n in range(1000)], "T0", 0)
    assert 9001 * 20 <= blocks(tmp_path / f"consumequeue/T0/0/{0:020d}") <= 9001 * 20 * 2 + CHUNK
    store.shutdown()
    again = open_store(tmp_path, WIDE)
    put_ok(again, [b"%d" % n for n in range(1000)], "T0", 0)
    assert read_all(again, "T0") == [b"m"] + [b"%d" % n for _ in range(10) for n in range(1000)]
    crash(again)


def test_a_queue_that_begins_late_has_room_for_the_blanks_before_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    queue = store.queues.get_or_make("T", 0)
    queue.end_at_least(10_000)
    file = tmp_path / f"consumequeue/T/0/{0:020d}"
    assert 200_000 <= blocks(file) <= 400_000 + PAGE
    assert (queue.min_offset, queue.max_offset) == (10_000, 10_000)
    crash(store)


@pytest.mark.parametrize("entries", [1, 150, 204, 205, 3000])
def test_a_full_disk_stops_a_queue_and_nothing_is_stored_where_there_is_no_room(
    entries: int,
) -> None:
    """The simulated disk tells of every byte stored past the part of a file that has blocks."""
    disk = SimDisk(random.Random(1), lambda: 0.0)
    disk.mapped_max = 64
    store = MessageStore(disk, WIDE)
    store.start()
    put_ok(store, [b"%d" % n for n in range(entries)])
    disk.full = True
    batch = PutBatch("T", 0, Columns.of([b"%d" % n for n in range(entries, 9000)]), NOW)
    assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    while store.dispatch():
        pass
    assert store.flags.has(RunningFlags.DISK_FULL)
    job = store.queues_flush_job(0)
    assert job is not None
    job.run()  # what was stored can be synced
    store.queues_flushed(job, True)
    disk.full = False
    drain(store)
    assert read_all(store) == [b"%d" % n for n in range(9000)]
    store.retention.check_space()
    assert not store.flags.has(RunningFlags.DISK_FULL)
    crash(store)


def test_what_is_stored_past_the_blocks_of_a_simulated_file_is_seen() -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    file = disk.create("f", 8192, 4096)
    file.memory[4096] = 1
    with pytest.raises(AssertionError, match="past the allocated part"):
        file.sync()
    file.allocate(4097)
    file.sync()


def test_few_files_are_open_and_all_queues_can_be_read(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.mapped_max = 40
    store = MessageStore(disk, WIDE)
    store.start()
    for round_ in range(3):
        for number in range(60):
            put_ok(store, [b"%d" % round_], "T", number)
        job = store.queues_flush_job(0)
        assert job is not None
        job.run()
        store.queues_flushed(job, True)
    for number in range(60):
        assert read_all(store, "T", number) == [b"0", b"1", b"2"]
    assert open_count(store) <= 40
    crash(store)


def test_a_file_with_bytes_that_are_not_synced_stays_open(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.mapped_max = 20
    store = MessageStore(disk, WIDE)
    store.start()
    for number in range(30):
        put_ok(store, [b"m"], "T", number)
    assert open_count(store) == 30
    batch = PutBatch("T", 30, Columns.of([b"m"]), NOW)
    store.put(batch, NOW)
    assert not store.dispatch(), "no descriptor is left for it"
    assert store.flags.names() == ["WRITE_LOGICS_QUEUE_ERROR"]
    assert store.queues.is_crowded
    assert all(read_all(store, "T", number) == [b"m"] for number in range(30))
    job = store.queues_flush_job(2)  # a round that else syncs full pages only
    assert job is not None
    job.run()
    store.queues_flushed(job, False)
    drain(store)
    assert store.flags.writeable
    assert read_all(store, "T", 30) == [b"m"]
    crash(store)


def test_recovery_syncs_what_it_made_where_too_many_files_would_be_open(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    for number in range(200):
        put_ok(store, [b"m"], "T", number)
    crash(store)
    (tmp_path / "queueends").unlink()
    disk = OsDisk(tmp_path)
    disk.mapped_max = 10
    again = MessageStore(disk, WIDE)
    again.start()
    assert all(read_all(again, "T", number) == [b"m"] for number in range(200))
    assert open_count(again) <= 15
    crash(again)


def test_a_reader_keeps_the_bytes_of_a_file_that_was_closed(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.mapped_max = 1
    files = OpenFiles(disk)
    for name in "ab":
        disk.create(name, PAGE).close()
    one, other = (files.file(name, PAGE, True) for name in "ab")
    one.is_clean = other.is_clean = lambda: True
    memory = one.memory
    memory[0] = 7
    one.used = False
    assert other.memory[0] == 0
    assert (one.is_open, other.is_open) == (False, True)
    assert memory[0] == 7
    assert one.memory[0] == 7, "opened again"


def test_as_many_files_as_the_process_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for soft, mapped in [(1024, 256), (20_000, 5000), (resource.RLIM_INFINITY, 8192)]:
        monkeypatch.setattr(resource, "getrlimit", lambda kind, soft=soft: (soft, soft))
        assert OsDisk(tmp_path).mapped_max == mapped


def test_a_file_that_cannot_grow_keeps_what_it_has(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    store = MessageStore(disk, StoreOptions())
    store.start()
    put_ok(store, [b"%d" % n for n in range(204)])
    mapped = store.queues.table["T", 0].files.files[0]

    def refuse(end: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    mapped.file.allocate = refuse  # type: ignore[method-assign]
    now = NOW
    assert store.put(PutBatch("T", 0, Columns.of([b"204"]), now), now).status.name == "PUT_OK"
    assert not store.dispatch()
    assert store.flags.has(RunningFlags.DISK_FULL)
    assert len(read_all(store)) == 204
    del mapped.file.allocate
    drain(store)
    assert read_all(store)[-1] == b"204"
    crash(store)
