"""A store of many queues: what each of them costs on the disk and in open files."""

import errno
import itertools
import os
import random
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store import osdisk, queueflushes, queuenote, queues
from duolog_server.store.columns import Columns
from duolog_server.store.dispatch import NEW_QUEUES_MAX
from duolog_server.store.flush import QueuesFlush
from duolog_server.store.mappedfile import CHUNK, PAGE
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.openfiles import LazyFile, OpenFiles
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.queueflushes import at_once
from duolog_server.store.queuenote import Noted, parse
from duolog_server.store.status import PutMessageStatus, RunningFlags
from sim.disk import SimDisk
from tests.known import known
from tests.support import (
    NOW,
    SMALL,
    crash,
    drain,
    flush_log,
    flush_queues,
    open_noisily,
    open_store,
    options,
    put_ok,
    read_all,
)

WIDE = options(mapped_file_size_consume_queue=20 * 300_000, mapped_file_size_commit_log=4 << 20)


def started(
    path: Path, boot_id: str = "", chosen: StoreOptions = WIDE, mapped_max: int | None = None
) -> MessageStore:
    """A store on the operating system's disk, with so many mapped files."""
    disk = OsDisk(path)
    if mapped_max is not None:
        disk.mapped_max = mapped_max
    return open_store(disk, chosen, boot_id=boot_id)


def open_count(store: MessageStore) -> int:
    """How many queue files are mapped."""
    files = [mapped.file for queue in store.queues for mapped in queue.files.files]
    return sum(isinstance(file, LazyFile) and file.is_open for file in files)


def blocks(path: Path) -> int:
    """Bytes that a file takes on the disk."""
    return path.stat().st_blocks * 512


def test_a_queue_takes_disk_space_for_its_entries_only(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("entries", [1, 409, 819, 1638])
def test_a_start_reads_no_hole_which_would_take_room_on_a_tmpfs(entries: int) -> None:
    """If no room is left, reading a hole kills the process, as writing to it does."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs here")
    wide = replace(WIDE, enable_consume_queue_ext=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name)
        store = open_store(path, wide)
        put_ok(store, [b"m"] * entries)
        store.shutdown()
        files = sorted(path.glob("consumequeue*/*/*/*"))
        assert len(files) == 2
        for file in files:
            os.utime(file)  # so that it is looked into
        taken = [blocks(file) for file in files]
        again = open_store(path, wide)
        assert [blocks(file) for file in files] == taken
        assert len(read_all(again)) == entries
        crash(again)


def test_entries_whose_records_a_power_cut_took_do_not_stay_in_the_file(tmp_path: Path) -> None:
    """Other records are stored in their place: a reader of the files would trust the entries."""
    store = started(tmp_path, "a", SMALL)
    put_ok(store, [b"1", b"2", b"3"], "T", 0)
    flush_queues(store)
    end = store.log.max_offset
    put_ok(store, [b"4", b"5"], "T", 0)
    crash(store)
    log = tmp_path / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:end].ljust(SMALL.mapped_file_size_commit_log, b"\0"))
    store = started(tmp_path, "b", SMALL)
    assert store.queue_range("T", 0) == (0, 3)
    put_ok(store, [b"x"] * 5, "U", 0)
    store.shutdown()
    entries = (tmp_path / "consumequeue/T/0" / f"{0:020d}").read_bytes()
    assert not any(entries[60:])


@pytest.mark.parametrize("units_stay_on", [True, False])
def test_nothing_is_left_of_a_topic_that_is_removed(tmp_path: Path, units_stay_on: bool) -> None:
    store = open_store(tmp_path, replace(WIDE, enable_consume_queue_ext=True))
    put_ok(store, [b"m"], "T", 0)
    put_ok(store, [b"m"], "Old", 0)
    if not units_stay_on:
        store.shutdown()
        store = open_store(tmp_path, WIDE)
    store.queues.remove_topic("Old")
    assert sorted(path.name for path in tmp_path.glob("consumequeue*/*")) == ["T", "T"]


def test_a_queue_that_begins_late_has_room_for_the_blanks_before_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    queue = store.queues.get_or_make("T", 0)
    queue.end_at_least(10_000)
    file = tmp_path / f"consumequeue/T/0/{0:020d}"
    assert 200_000 <= blocks(file) <= 400_000 + PAGE
    assert (queue.min_offset, queue.max_offset) == (10_000, 10_000)


@pytest.mark.parametrize("entries", [1, 150, 204, 205, 3000])
def test_a_full_disk_stops_a_queue_and_nothing_is_stored_without_any_room(entries: int) -> None:
    """The simulated disk reports every byte stored beyond the allocated part of a file."""
    disk = SimDisk(random.Random(1), lambda: 0.0)
    disk.mapped_max = 64
    store = open_store(disk, WIDE)
    put_ok(store, [b"%d" % n for n in range(entries)])
    disk.full = True
    batch = PutBatch("T", 0, Columns.of([b"%d" % n for n in range(entries, 9000)]), NOW)
    assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    while store.dispatch():
        pass
    assert store.flags.has(RunningFlags.DISK_FULL)
    flush_queues(store)  # what was stored can be synced
    disk.full = False
    drain(store)
    assert read_all(store) == [b"%d" % n for n in range(9000)]
    store.retention.check_space()
    assert not store.flags.has(RunningFlags.DISK_FULL)


def test_stores_past_the_allocated_blocks_of_a_simulated_file_are_detected() -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    file = disk.create("f", 8192, 4096)
    file.memory[4096] = 1
    with pytest.raises(AssertionError, match="past the allocated part"):
        file.sync()
    file.allocate(4097)
    file.sync()


def test_few_files_are_open_and_all_queues_can_be_read(tmp_path: Path) -> None:
    store = started(tmp_path, mapped_max=40)
    for round_ in range(3):
        for number in range(60):
            put_ok(store, [b"%d" % round_], "T", number)
        flush_queues(store)
    for number in range(60):
        assert read_all(store, "T", number) == [b"0", b"1", b"2"]
    assert open_count(store) <= 40


def test_a_file_with_bytes_that_are_not_synced_stays_open(tmp_path: Path) -> None:
    store = started(tmp_path, mapped_max=20)
    for number in range(30):
        put_ok(store, [b"m"], "T", number)
    assert open_count(store) == 30
    batch = PutBatch("T", 30, Columns.of([b"m"]), NOW)
    store.put(batch, NOW)
    assert not store.dispatch(), "it waits for a flush"
    assert store.flags.writeable
    assert store.queues.is_crowded
    assert all(read_all(store, "T", number) == [b"m"] for number in range(30))
    work = QueuesFlush(store, 2)  # a round that else syncs full pages only
    at_once(work.gather())
    work.sync()
    assert work.settle()
    drain(store)
    assert store.flags.writeable
    assert read_all(store, "T", 30) == [b"m"]


def test_recovery_syncs_files_it_wrote_when_too_many_are_open(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    for number in range(200):
        put_ok(store, [b"m"], "T", number)
    crash(store)
    (tmp_path / "queueends").unlink()
    again = started(tmp_path, mapped_max=10)
    assert all(read_all(again, "T", number) == [b"m"] for number in range(200))
    assert open_count(again) <= 15


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


def test_the_limit_of_mapped_files_follows_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for system, mapped in [(3000, 1000), (65_530, 20_000), (1 << 20, 20_000)]:
        monkeypatch.setattr(osdisk, "mappings_max", lambda system=system: system)
        assert OsDisk(tmp_path).mapped_max == mapped


def test_queues_take_no_descriptors(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        put_ok(store, [b"m"], "T", number)
    assert open_count(store) == 200
    assert len(os.listdir("/proc/self/fd")) < before + 100  # of one each; other threads have some


def test_allocated_room_does_not_raise_the_limit_of_open_files(tmp_path: Path) -> None:
    """All files have a page with room already: the second round allocates no block."""
    store = started(tmp_path, mapped_max=20)
    for round_ in range(2):
        for number in range(200):
            batch = PutBatch("T", number, Columns.of([b"%d" % round_]), NOW)
            assert store.put(batch, NOW).status.name == "PUT_OK"
            while store.dispatcher.behind_bytes():
                if not store.dispatch():
                    assert open_count(store) <= 30
                    flush_queues(store)
    assert open_count(store) <= 30
    assert all(read_all(store, "T", number) == [b"0", b"1"] for number in range(200))


def test_a_clean_stop_has_all_entries_where_files_wait_for_a_sync(tmp_path: Path) -> None:
    store = started(tmp_path, "", replace(WIDE, enable_consume_queue_ext=True), 20)
    for number in range(100):
        batch = PutBatch("T", number, Columns.of([b"m"]), NOW)
        assert store.put(batch, NOW).status.name == "PUT_OK"
    while store.dispatch():
        pass
    assert store.dispatcher.behind_bytes()
    assert store.flags.writeable
    store.shutdown()
    again = open_store(tmp_path, replace(WIDE, enable_consume_queue_ext=True))
    assert all(read_all(again, "T", number) == [b"m"] for number in range(100))


def test_a_file_that_cannot_grow_keeps_what_it_has(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    store = open_store(disk, WIDE)
    put_ok(store, [b"%d" % n for n in range(204)])
    mapped = store.queues.table["T", 0].files.files[0]

    def refuse(end: int, start: int = 0) -> None:
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


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """A killed store of 20 queues, all of them noted."""
    store = started(tmp_path)
    for number in range(20):
        put_ok(store, [b"%d" % number], "T", number)
    flush_queues(store)
    crash(store)
    return tmp_path


def test_queues_that_nobody_touched_are_not_opened_at_the_start(noted: Path) -> None:
    store = started(noted)
    assert len(store.queues.trusted) == 20
    assert open_count(store) == 0
    assert store.queues_flush_job(0) is None, "nothing is to be synced or noted"
    assert [read_all(store, "T", number) for number in range(20)] == [
        [b"%d" % number] for number in range(20)
    ]
    put_ok(store, [b"more"], "T", 7)
    crash(store)
    again = started(noted)
    assert len(again.queues.trusted) == 19
    assert read_all(again, "T", 7) == [b"7", b"more"]


def test_after_a_power_cut_all_queues_are_checked(noted: Path) -> None:
    store = started(noted, "another boot")
    assert not store.queues.trusted


@pytest.mark.parametrize("harm", ["byte", "copy", "extra", "lost", "short"])
def test_a_queue_whose_files_were_touched_is_checked(noted: Path, harm: str) -> None:
    file = noted / f"consumequeue/T/5/{0:020d}"
    if harm == "byte":
        with file.open("r+b") as opened:
            opened.write(bytes(20))
    elif harm == "copy":
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data)
    elif harm == "extra":
        (file.parent / f"{20 * 300_000:020d}").write_bytes(bytes(20 * 300_000))
    elif harm == "lost":
        file.unlink()
    else:
        with file.open("r+b") as opened:
            opened.truncate(40)
    store = started(noted)
    assert ("T", 5) not in store.queues.trusted
    assert len(store.queues.trusted) == 19
    assert [read_all(store, "T", number) for number in range(20)] == [
        [b"%d" % number] for number in range(20)
    ]
    assert put_ok(store, [b"next"], "T", 5).queue_offset == 1


def test_stale_entries_past_a_noted_end_are_gone_once_something_is_put(noted: Path) -> None:
    """As on a tmpfs, or after a lost change time: the file seems unchanged."""
    file = noted / f"consumequeue/T/3/{0:020d}"
    before = OsDisk.look

    def unmoved(disk: OsDisk, path: str) -> Any:
        found = before(disk, path)
        return replace(found, digest=1) if path.endswith("T/3") else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OsDisk, "look", unmoved)
        store = started(noted)
        put_ok(store, [b"x"], "T", 3)
        flush_queues(store)  # notes the digest
        crash(store)
        with file.open("r+b") as opened:
            opened.seek(40)
            opened.write(struct.pack(">qiq", 1 << 40, 100, 0) * 3)
        again = started(noted)
        assert ("T", 3) in again.queues.trusted
        put_ok(again, [b"y"], "T", 3)
        crash(again)
    assert file.read_bytes()[60:200] == bytes(140)
    last = started(noted)
    assert read_all(last, "T", 3) == [b"3", b"x", b"y"]


def test_a_torn_block_leaves_the_previous_note_valid(noted: Path) -> None:
    note = noted / "queueends"
    whole = note.read_bytes()
    store = started(noted)
    put_ok(store, [b"more"], "T", 0)
    flush_queues(store)
    crash(store)
    changed = bytearray(note.read_bytes())
    end = max(at for at in range(len(whole)) if whole[at])
    assert parse(bytes(changed))[0].position > parse(whole)[0].position  # type: ignore[index]
    changed[end + 30] ^= 1
    note.write_bytes(bytes(changed))
    again = started(noted)
    assert read_all(again, "T", 0) == [b"0", b"more"]
    assert not note.read_bytes()[end + 200 :].strip(b"\0"), "what followed is cleared"


def test_a_note_that_cannot_be_read_is_told(noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = OsDisk.read

    def refuse(disk: OsDisk, path: str) -> bytes:
        if path == queuenote.PATH:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return read(disk, path)

    monkeypatch.setattr(OsDisk, "read", refuse)
    opened = open_noisily(noted, WIDE)
    told = "all queues are compared with the commit log: [Errno 13] Permission denied: 'queueends'"
    assert opened.problems == [told]
    assert all(read_all(opened.store, "T", n) == [b"%d" % n] for n in range(20))


def test_a_full_note_is_rewritten_with_the_same_content(tmp_path: Path) -> None:
    store = started(tmp_path)
    sizes = set()
    for round_ in range(400):
        for number in range(20):
            put_ok(store, [b"m"], f"a_topic_with_a_long_name_{number}", round_ % 3)
        flush_queues(store)
        sizes.add((tmp_path / "queueends").stat().st_size)
    store.queues.remove_topic("a_topic_with_a_long_name_0")
    assert 1 < len(sizes) < 20
    crash(store)
    found = known(parse((tmp_path / "queueends").read_bytes()))
    assert len(found[0].queues) == 19 * 3
    again = started(tmp_path)
    assert len(again.queues.trusted) == 19 * 3


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic_are_at_worst_a_missing_note(data: bytes) -> None:
    found = parse(b"DLGQEND2" + data)
    assert found is None or isinstance(found[0], Noted)


@pytest.mark.parametrize("when", ["before it is written", "after"])
def test_a_note_that_entries_were_cut_under_vouches_for_no_file(tmp_path: Path, when: str) -> None:
    """The process is killed before the owner learns that the note was written."""
    store = started(tmp_path)
    put_ok(store, [b"%d" % n for n in range(10)])
    end = put_ok(store, [b"%d" % n for n in range(10, 20)]).physical_offset
    job = known(store.queues_flush_job(0))
    if when == "after":
        job.run()
    store.truncate(end)
    if when != "after":
        job.run()
    crash(store)
    again = started(tmp_path)
    assert not again.queues.trusted
    assert read_all(again) == [b"%d" % n for n in range(10)]
    assert put_ok(again, [b"next"]).queue_offset == 10


def test_a_note_that_entries_were_cut_under_is_corrected(tmp_path: Path) -> None:
    store = started(tmp_path)
    put_ok(store, [b"%d" % n for n in range(10)])
    end = put_ok(store, [b"%d" % n for n in range(10, 20)]).physical_offset
    job = known(store.queues_flush_job(0))
    store.truncate(end)
    job.run()
    put_ok(store, [b"later"])  # not synced when the note is corrected
    store.queues_flushed(job, True)
    assert store.queues.ends.position == store.log.max_offset
    assert not store.queues.touched, "what the note tells of is synced"
    crash(store)
    again = started(tmp_path)
    assert again.queues.trusted == {("T", 0)}
    assert read_all(again) == [*(b"%d" % n for n in range(10)), b"later"]


def test_a_step_makes_few_queues_and_all_are_made_in_the_end(tmp_path: Path) -> None:
    store = open_store(tmp_path, WIDE)
    for number in range(300):
        names = tuple(f"%LMQ%$T{number}${k}" for k in range(0 if number % 3 else number % 40))
        batch = PutBatch(f"T{number}", 0, Columns.of([b"m"]), NOW, light_queues=names)
        assert store.put(batch, NOW).status.name == "PUT_OK"
        for queue_id in range(2):
            batch = PutBatch("T", queue_id, Columns.of([b"m"]), NOW)
            assert store.put(batch, NOW).status.name == "PUT_OK"
    steps, made = 0, 0
    while store.dispatch():
        steps += 1
        new, made = len(store.queues.table) - made, len(store.queues.table)
        assert new <= 2 * NEW_QUEUES_MAX + 40, "one message may be in many light queues"
    assert store.dispatcher.behind_bytes() == 0
    assert steps > 300 // NEW_QUEUES_MAX
    for number in range(300):
        assert read_all(store, f"T{number}") == [b"m"]
        for k in range(0 if number % 3 else number % 40):
            assert read_all(store, f"%LMQ%$T{number}${k}") == [b"m"]
    assert read_all(store, "T", 0) == read_all(store, "T", 1) == [b"m"] * 300
    store.shutdown()
    again = open_store(tmp_path, WIDE)
    assert read_all(again, "T", 1) == [b"m"] * 300


@pytest.mark.parametrize("steps", [0, 1, 5, 10, 15, 100])
def test_a_stop_during_a_flush_completes_the_note_of_that_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    for module in (queueflushes, queues):
        monkeypatch.setattr(module, "QUEUES_AT_ONCE", 1)
    store = started(tmp_path)
    for number in range(10):
        put_ok(store, [b"m"], "T", number)
    work = QueuesFlush(store, 0)
    for _ in itertools.islice(work.gather(), steps):
        pass
    work.sync()  # and nobody comes back to take its word
    put_ok(store, [b"m"], "T", 0)
    store.shutdown()
    again = started(tmp_path)
    assert len(again.queues.trusted) == 10
    assert open_count(again) == 0


@given(seed=st.integers(0, 1 << 32))
@settings(deadline=None, max_examples=60)
def test_entries_put_between_steps_of_a_flush_are_noted_only_if_they_are_synced(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk(random.Random(seed), lambda: 0.0)
    disk.mapped_max = 1000
    store = open_store(disk)
    sent: dict[int, list[bytes]] = {}

    def put_some() -> None:
        for _ in range(chance.randrange(4)):
            queue_id, body = chance.randrange(8), b"%d" % len(sent)
            put_ok(store, [body], "T", queue_id)
            sent.setdefault(queue_id, []).append(body)

    with pytest.MonkeyPatch.context() as patch:
        for module in (queueflushes, queues):
            patch.setattr(module, "QUEUES_AT_ONCE", 1)
        for _ in range(chance.randrange(1, 5)):
            put_some()
            work = QueuesFlush(store, chance.choice((0, 0, 1)))
            for _ in work.gather():
                put_some()
            flush_log(store)
            work.sync()
            put_some()
            if chance.random() < 0.8 and work.settle():
                store.checkpoint.flush()
    ends = {key: end for key, end in store.topic_queue_table.items() if key[0] == "T"}
    job = store.log.queue.flush_job(0)
    if job is not None:
        job.run()
    disk.power_cut()
    again = MessageStore(disk, SMALL)
    told: list[str] = []
    again.events.problem = told.append
    again.start()
    assert told == [], "the note told of more than was synced"
    assert {key: end for key, end in again.topic_queue_table.items() if key[0] == "T"} == ends
    for queue_id, bodies in sent.items():
        assert read_all(again, "T", queue_id) == bodies


def test_a_stretch_interrupted_by_a_full_disk_shows_nothing_unconfirmed() -> None:
    """One queue had room for its entries, the next one had none."""
    disk = SimDisk(random.Random(1), lambda: 0.0)
    disk.mapped_max = 1000
    store = open_store(disk, WIDE)
    put_ok(store, [b"old"])
    confirmed = store.confirm_offset
    for queue_id in (0, 1):
        batch = PutBatch("T", queue_id, Columns.of([b"new"]), NOW)
        assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    disk.full = True
    assert not store.dispatch()
    assert read_all(store) == [b"old", b"new"]
    store.hide_from(confirmed)
    assert read_all(store) == [b"old"]
    disk.full = False
    store.retention.check_space()
    store.confirm(store.log.max_offset)
    drain(store)
    assert (read_all(store), read_all(store, "T", 1)) == ([b"old", b"new"], [b"new"])


@pytest.mark.parametrize("cleanly", [True, False])
def test_a_start_on_a_full_disk_serves_existing_messages(cleanly: bool) -> None:
    disk = SimDisk(random.Random(1), lambda: 0.0)
    disk.mapped_max = 1000
    store = open_store(disk, WIDE)
    put_ok(store, [b"%d" % n for n in range(150)])
    disk.full = True
    bodies = [b"%d" % n for n in range(150, 450)]
    for queue_id, some in ((0, bodies), (1, [b"a"])):
        batch = PutBatch("T", queue_id, Columns.of(some), NOW)
        assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    assert not store.dispatch()
    if cleanly:
        store.shutdown()
    else:
        crash(store)
    again = open_store(disk, WIDE)
    assert again.flags.has(RunningFlags.DISK_FULL)
    assert read_all(again)[:150] == [b"%d" % n for n in range(150)]
    batch = PutBatch("T", 0, Columns.of([b"no"]), NOW)
    assert again.put(batch, NOW).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    disk.full = False
    again.retention.check_space()
    put_ok(again, [b"last"])
    put_ok(again, [b"b"], "T", 1)
    assert read_all(again) == [b"%d" % n for n in range(450)] + [b"last"]
    assert read_all(again, "T", 1) == [b"a", b"b"]
