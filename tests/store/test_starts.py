"""A start: its report, the files it leaves, and the work it defers."""

import errno
import random
import shutil
from pathlib import Path

import pytest

from duolog_server.store import queuenote, recovery
from duolog_server.store.columns import Columns
from duolog_server.store.indexservice import IndexService
from duolog_server.store.messagestore import MessageStore, PutBatch, StoreEvents
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk, OsFile
from duolog_server.store.queuenote import Noted
from duolog_server.store.queues import ConsumeQueues
from duolog_server.store.recovery import RecoveryReport, load_index, load_queues
from duolog_server.store.status import BrokerRole, PutMessageStatus
from sim.disk import SimDisk, SimFile
from tests.known import known
from tests.support import (
    NOW,
    SMALL,
    crash,
    drain,
    flush_all,
    flush_queues,
    open_noisily,
    open_store,
    options,
    put_ok,
    queue_entries,
    read_all,
    sim_disk,
)

SEGMENT = SMALL.mapped_file_size_commit_log
OFF = options(message_index_enable=False)


def fill(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0) -> None:
    """Records of about 1 kB, each with a key: 16 in a segment."""
    for n in range(count):
        put_ok(
            store, [b"%06d" % n + b"." * 900], topic, queue_id,
            properties=[b"KEYS\x01%s%d" % (topic.encode(), n)], now=NOW + 1000 * n,
        )  # fmt: skip


class NoInode(OsDisk):
    """A full disk that has no inode for another file."""

    def create(self, path: str, size: int, allocated: int | None = None) -> OsFile:
        raise OSError(errno.ENOSPC, "no inode", path)

    def write(self, path: str, data: bytes) -> None:
        if self.size(path) < 0:
            raise OSError(errno.ENOSPC, "no inode", path)
        super().write(path, data)


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_starts_on_a_disk_without_an_inode_left(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    drain(store)
    store.shutdown() if clean else crash(store)
    for _ in range(2):
        store = open_store(NoInode(tmp_path))
        assert len(read_all(store)) == 3
        assert (tmp_path / "abort").exists()
        store.shutdown()
        assert (tmp_path / "abort").exists() is not clean  # a killed one's index is not complete


def test_a_queue_that_a_start_made_again_without_room_to_note_is_no_damage(tmp_path: Path) -> None:
    """Its topic was deleted, and the note has no row of it: nothing could repair it."""
    store = open_store(tmp_path)
    fill(store, 3)
    fill(store, 2, "G")
    flush_all(store)
    shutil.copytree(tmp_path / "consumequeue" / "G", tmp_path / "made again")
    store.remove_topic("G")
    fill(store, 3)
    flush_all(store)
    crash(store)
    (tmp_path / "made again").rename(tmp_path / "consumequeue" / "G")
    opened = open_noisily(NoInode(tmp_path))
    assert not [text for text in opened.problems if "rebuilt" in text]
    assert len(read_all(opened.store)) == 6
    assert len(read_all(opened.store, "G")) == 2


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def last_record_cut(path: Path, store: MessageStore) -> tuple[int, int]:
    """A killed store loses the second half of its last record; where it began, and what is left."""
    start = queue_entries(store)[-1][0]
    end = store.log.max_offset
    crash(store)
    file = path / "commitlog" / f"{start - start % SEGMENT:020d}"
    data = bytearray(file.read_bytes())
    data[(start + end) // 2 % SEGMENT :] = bytes(SEGMENT - (start + end) // 2 % SEGMENT)
    file.write_bytes(data)
    return start, (start + end) // 2 - start


def note_of(path: Path) -> Noted:
    found = known(queuenote.parse((path / "queueends").read_bytes()))
    return found[0]


# -- what it says ----------------------------------------------------------------------------------


def test_a_start_in_a_new_directory_reports_nothing(tmp_path: Path) -> None:
    opened = open_noisily(tmp_path)
    assert opened.report == RecoveryReport(False, 0, 0, 0, False, 0, 0)
    assert opened.problems == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_without_a_log_drops_and_reports_derived_files(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    end = store.log.max_offset
    store.shutdown() if clean else crash(store)
    shutil.rmtree(tmp_path / "commitlog")
    opened = open_noisily(tmp_path)
    assert opened.report == RecoveryReport(not clean, 0, 0, 0, False, 0, 0, clean)
    assert [text for text in opened.problems if f"[0, {end}) are lost" in text] == opened.problems
    assert len(opened.problems) == 1
    assert (opened.store.queues.table, opened.store.index.files) == ({}, [])


@pytest.mark.parametrize("clean", [True, False])
def test_an_older_log_lacks_what_was_confirmed_until_recorded(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    flush_all(store)
    shutil.copytree(tmp_path / "commitlog", tmp_path / "older")
    fill(store, 5)
    store.confirm(store.log.max_offset)
    store.shutdown() if clean else crash(store)
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "older").rename(tmp_path / "commitlog")
    for recorded in (False, True):  # a start may be killed before it has recorded the loss
        opened = open_noisily(tmp_path)
        assert opened.report.lacks_confirmed
        if recorded:
            opened.store.checkpoint.settle()
        crash(opened.store)
    opened = open_noisily(tmp_path)
    assert not opened.report.lacks_confirmed


def test_the_report_names_the_truncated_bytes(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 20)
    put_ok(store, [b"." * 900], producer=b"0123456789", sequence=1)
    put_ok(store, [b"." * 900], now=NOW + 99_000)
    start, left = last_record_cut(tmp_path, store)
    opened = open_noisily(tmp_path)
    assert start > SEGMENT
    assert opened.report == RecoveryReport(True, 0, start, left, False, 0, 1)
    assert not any(segments(tmp_path)[-1].read_bytes()[start % SEGMENT :]), "it is cleared"
    log = opened.store.log
    assert (log.max_offset, opened.store.flushed_offset) == (start, start)
    assert log.last_store_time == NOW + 19_000, "of the newest record that is left"
    opened.store.shutdown()
    opened = open_noisily(tmp_path)
    assert opened.report == RecoveryReport(False, 0, start, 0, False, 0, 1)


def test_nothing_is_cut_behind_a_log_that_ends_with_its_segment(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 20)
    crash(store)
    segments(tmp_path)[-1].unlink()
    opened = open_noisily(tmp_path)
    assert (opened.report.end, opened.report.bytes_cut) == (SEGMENT, 0)
    assert put_ok(opened.store, [b"next"]).physical_offset == SEGMENT


@pytest.mark.parametrize("known_by", ["queues", "note", "checkpoint"])
def test_records_lost_by_the_log_are_told_whoever_knows_them(tmp_path: Path, known_by: str) -> None:
    store = open_store(tmp_path, OFF)
    fill(store, 20)
    end = store.log.max_offset
    if known_by == "note":
        flush_queues(store)
    if known_by == "checkpoint":
        store.checkpoint.confirm_phy_offset = end
        store.checkpoint.flush()
    start, _ = last_record_cut(tmp_path, store)
    if known_by != "queues":
        shutil.rmtree(tmp_path / "consumequeue")
    opened = open_noisily(tmp_path, OFF)
    told = f"the commit log ends at {start}, but records up to {end} were dispatched or"
    assert [told in text for text in opened.problems].count(True) == 1
    opened.store.checkpoint.settle()
    crash(opened.store)
    assert open_noisily(tmp_path, OFF).problems == [], "once"


def test_entries_lost_with_a_segment_do_not_rebuild_a_queue_twice(tmp_path: Path) -> None:
    """The queue is rebuilt up to the hole, and continues after it."""
    store = open_store(tmp_path)
    put_ok(store, [b"x"], "U", 0)
    fill(store, 90)
    store.shutdown()
    names = segments(tmp_path)
    names[-4].unlink()
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    opened = open_noisily(tmp_path)
    assert opened.report.scanned_from == int(names[-3].name)
    assert opened.report.corrupt_ranges == 1
    assert opened.report.rebuilt_queues
    hole, queue = opened.problems
    assert f"[{int(names[-4].name)}, {int(names[-3].name)}) is missing" in hole
    assert "queue T/0 is rebuilt from the commit log: all files of 90 entries are missing" in queue
    assert opened.store.queue_range("T", 0) == (0, 90)


def test_records_refused_while_queues_were_rebuilt_are_not_relied_on(tmp_path: Path) -> None:
    chosen = options(enabled_append_prop_crc=False)
    store = open_store(tmp_path, chosen)
    put_ok(store, [b"a", b"b"])
    start = queue_entries(store)[-1][0]
    put_ok(store, [b"c"])
    store.log.queue.files[0].memory[start + 27] ^= 0x40  # a queue offset that no CRC covers
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    opened = open_noisily(tmp_path, chosen)
    assert any("queue offset 65" in text for text in opened.problems)
    assert opened.store.dispatcher.refused == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_begins_with_the_segment_that_the_note_ends_in(tmp_path: Path, clean: bool) -> None:
    """Later records are dispatched again, whatever the checkpoint covers."""
    store = open_store(tmp_path, OFF)
    fill(store, 40)
    flush_all(store)
    note, position = (tmp_path / "queueends").read_bytes(), store.log.max_offset
    fill(store, 60)
    flush_all(store)
    store.checkpoint.physic_msg_timestamp = store.checkpoint.logics_msg_timestamp = 1 << 60
    store.checkpoint.flush()
    store.shutdown() if clean else crash(store)
    (tmp_path / "queueends").write_bytes(note)
    opened = open_noisily(tmp_path, OFF)
    assert opened.report.scanned_from == position // SEGMENT * SEGMENT > SEGMENT
    assert opened.store.queue_range("T", 0) == (0, 100)
    assert opened.problems == []


@pytest.mark.parametrize(("far", "place"), [(recovery.REMEMBERED_BYTES, 2), (2 * SEGMENT, 3)])
def test_producers_are_remembered_for_ten_minutes_unless_those_hold_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: int, place: int
) -> None:
    """Starting with the segment in which older ones end; producers before it may be forgotten."""
    monkeypatch.setattr(recovery, "REMEMBERED_BYTES", far)
    store = open_store(tmp_path, OFF)
    for n in range(8 * 15):  # two minutes and a half in each segment
        put_ok(store, [b"." * 900], producer=b"%010d" % n, sequence=1, now=NOW + 10_000 * n)
    store.shutdown()
    assert len(segments(tmp_path)) == 8
    opened = open_noisily(tmp_path, OFF)
    assert opened.report.scanned_from == 5 * SEGMENT
    assert opened.report.producers == (8 - place) * 15
    assert opened.store.idempotence.horizon == place * SEGMENT


@pytest.mark.parametrize("left", [12, 13])
def test_keys_in_a_file_of_the_index_that_reached_past_the_log_are_found(
    tmp_path: Path, left: int
) -> None:
    """Seven keys in a file: the second one also has keys of records that are gone."""
    chosen = options(max_index_num=8)
    store = open_store(tmp_path, chosen)
    for n in range(20):
        put_ok(store, [b"."], properties=[b"KEYS\x01k%d" % n])
    store.checkpoint.index_msg_timestamp = 1 << 60
    store.checkpoint.flush()
    end = queue_entries(store)[left][0]
    crash(store)
    harm(segments(tmp_path)[0], end, bytes(SEGMENT - end))
    opened = open_noisily(tmp_path, chosen)
    assert opened.report.end == end
    put_ok(opened.store, [b"."], properties=[b"KEYS\x01k%d" % left])
    found = [len(opened.store.lookups.by_key("T", f"k{n}")) for n in range(20)]
    assert found == [1] * (left + 1) + [0] * (19 - left), "the first that was lost is there again"


def test_progress_is_reported_up_to_the_total_of_each_part(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 90)
    store.shutdown()
    segments(tmp_path)[0].unlink()
    (tmp_path / "queueends").unlink()
    (tmp_path / "index").rename(tmp_path / "gone")
    told: list[tuple[int, int]] = []
    events = StoreEvents(progress=lambda done, total: told.append((done, total)))
    again = MessageStore(OsDisk(tmp_path), SMALL, events)
    report = again.start()
    assert all(0 <= done <= total for done, total in told)
    first, end = report.scanned_from, report.end
    assert first > SEGMENT
    whole = (first - SEGMENT, first - SEGMENT)
    assert told[:2] == [(SEGMENT, first - SEGMENT), whole], "compared"
    assert told[2:4] == [(SEGMENT, first - SEGMENT), whole], "indexed"
    assert told[-1] == (end - first, 3 * SEGMENT), "the last segment may hold records throughout"
    assert again.take_arrivals() == [], "nobody waits for what was found"


def test_a_dropped_index_file_is_reported(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 30)
    store.shutdown()
    (file,) = (tmp_path / "index").iterdir()
    harm(file, 40, b"\x7f" * 4 * SMALL.max_hash_slot_num)
    opened = open_noisily(tmp_path)
    told = "the index is rebuilt from the commit log from here on: index/"
    assert [text.startswith(told) for text in opened.problems] == [True]
    assert all(len(opened.store.lookups.by_key("T", f"T{n}")) == 1 for n in range(30))
    opened.store.shutdown()
    opened = open_noisily(tmp_path)
    assert opened.problems == []


def test_an_index_that_is_off_is_not_checked(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 30)
    store.shutdown()
    (file,) = (tmp_path / "index").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    opened = open_noisily(tmp_path, OFF)
    assert opened.problems == []


def test_a_queue_that_begins_where_the_log_does_lacks_nothing(tmp_path: Path) -> None:
    """Retention deleted earlier records, and all queues are rebuilt."""
    store = open_store(tmp_path)
    fill(store, 90)
    store.shutdown()
    segments(tmp_path)[0].unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    opened = open_noisily(tmp_path)
    assert opened.problems == []
    assert (opened.report.scanned_from, opened.report.rebuilt_queues) == (SEGMENT, True)
    assert opened.store.queue_range("T", 0) == (15, 90)


def test_a_queue_whose_records_were_all_truncated_is_reported_missing_once(tmp_path: Path) -> None:
    store = open_store(tmp_path, OFF)
    fill(store, 20)
    put_ok(store, [b"." * 900], "U")
    flush_queues(store)
    end = queue_entries(store, "U")[0][0]
    crash(store)
    data = segments(tmp_path)[-1].read_bytes()
    segments(tmp_path)[-1].write_bytes(data[: end % SEGMENT].ljust(SEGMENT, b"\0"))
    shutil.rmtree(tmp_path / "consumequeue" / "U")
    opened = open_noisily(tmp_path, OFF)
    assert any("queue U/0 is rebuilt" in text for text in opened.problems)
    crash(opened.store)
    opened = open_noisily(tmp_path, OFF)
    assert opened.problems == []


def test_an_entry_of_a_damaged_record_is_compared_too(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 90)
    start, size, _ = queue_entries(store)[3]
    store.shutdown()
    harm(segments(tmp_path)[0], start + 200, b"x")
    harm(tmp_path / "consumequeue/T/0" / f"{0:020d}", 3 * 20 + 11, bytes([size % 256 ^ 1]))
    (tmp_path / "queueends").unlink()
    opened = open_noisily(tmp_path)
    assert [text.partition(": ")[0] for text in opened.problems] == [
        "queue T/0 is rebuilt from the commit log",
    ]


def half_noted(path: Path, chosen: StoreOptions) -> list[int]:
    """A clean stop, and a note from before the log was cut; where the forty records start."""
    store = open_store(path, chosen)
    for n in range(10):
        put_ok(store, [b"."], properties=[b"KEYS\x01k%d" % n])
    end = store.log.max_offset
    put_ok(store, [b"x"] * 20, "T")
    position = store.log.max_offset
    store.shutdown()
    note = (path / "queueends").read_bytes()
    store = open_store(path, chosen)
    store.truncate(end)
    for n in range(10, 40):
        put_ok(store, [b"longer than before"], properties=[b"KEYS\x01k%d" % n])
    starts = [entry[0] for entry in queue_entries(store)]
    assert position not in starts
    assert starts[16] < position < starts[30]
    store.shutdown()
    (path / "queueends").write_bytes(note)
    return starts


def test_a_note_that_ends_inside_a_record_does_not_lose_it(tmp_path: Path) -> None:
    """The note is older than the truncation of the log: it shows neither damage nor a lost key."""
    chosen = options(mapped_file_size_commit_log=1 << 16, max_index_num=8)
    starts = half_noted(tmp_path, chosen)
    _, _, third, *_ = sorted((tmp_path / "index").iterdir())
    harm(third, 40, b"\x7f" * 4 * SMALL.max_hash_slot_num)
    opened = open_noisily(tmp_path, chosen)
    assert [text.partition("rebuilt")[0] for text in opened.problems] == [
        "the index is ", "queue T/0 is ",
    ]  # fmt: skip
    assert opened.report.corrupt_ranges == 0
    assert [entry[0] for entry in queue_entries(opened.store)] == starts
    assert all(len(opened.store.lookups.by_key("T", f"k{n}")) == 1 for n in range(40))
    assert note_of(tmp_path).position == opened.store.log.max_offset


@pytest.mark.parametrize("place", [3, 36])
def test_a_partial_record_hides_neither_damage_nor_a_gap(tmp_path: Path, place: int) -> None:
    chosen = options(mapped_file_size_commit_log=1 << 16, enabled_append_prop_crc=False)
    starts = half_noted(tmp_path, chosen)
    log = segments(tmp_path)[0]
    if place == 3:
        harm(log, starts[3] + 60, b"x" * 40)
        due = f"commit log [{starts[3]}, {starts[4]}) holds no valid record"
    else:
        harm(log, starts[36] + 27, bytes([37]))  # a queue offset that no CRC covers
        due = f"record at {starts[36]} has queue offset 37 in T/0"
    opened = open_noisily(tmp_path, chosen)
    told = [text for text in opened.problems if "queue T/0 is rebuilt" not in text]
    assert [text.startswith(due) for text in told[:1]] == [True], told
    assert opened.report.corrupt_ranges == (place == 3)


def test_a_note_that_ends_in_a_lost_segment_is_not_one_of_half_a_record(tmp_path: Path) -> None:
    store = open_store(tmp_path, OFF)
    fill(store, 50)
    flush_queues(store)
    lost = store.log.max_offset // SEGMENT * SEGMENT
    fill(store, 40)
    crash(store)
    (tmp_path / "commitlog" / f"{lost:020d}").unlink()
    opened = open_noisily(tmp_path, OFF)
    assert [f"[{lost}, {lost + SEGMENT}) is missing" in text for text in opened.problems] == [True]
    assert (opened.report.scanned_from, opened.report.corrupt_ranges) == (0, 1)
    assert opened.store.queue_range("T", 0) == (0, 90)


def harm(file: Path, at: int, data: bytes) -> None:
    """Store bytes into a file."""
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


# -- what it leaves on the disk --------------------------------------------------------------------


def unsynced(disk: SimDisk, below: str) -> list[str]:
    """Files that a power cut would take away or change."""
    seen, durable = disk.inodes(durable=False), disk.inodes(durable=True)
    return [
        path
        for path, inode in seen.items()
        if path.startswith(below)
        and (durable.get(path) is not inode or (inode.seen != inode.durable).any())
    ]


def new_disk() -> SimDisk:
    disk = SimDisk(random.Random(3), lambda: 0.0)
    disk.mapped_max = 100
    return disk


@pytest.mark.parametrize("noted", [True, False])
def test_bytes_left_in_the_page_cache_by_a_kill_are_durable_before_any_reader(noted: bool) -> None:
    disk = sim_disk()
    fill(open_store(disk, OFF), 40)
    assert len(unsynced(disk, "commitlog")) == 3
    disk.kill()
    if not noted:
        disk.remove("queueends")
    again = open_store(disk, OFF)
    assert unsynced(disk, "commitlog") == []
    if noted:
        flush_queues(again)
    assert unsynced(disk, "consumequeue") == []


def test_names_of_segments_are_durable_before_those_are_served_though_nothing_is_cut() -> None:
    disk = sim_disk()
    fill(open_store(disk, OFF), 20)
    disk.kill()
    disk.remove(f"commitlog/{SEGMENT:020d}")
    directories: list[str] = []
    sync_dir = disk.sync_dir

    def note(path: str) -> None:
        directories.append(path)
        sync_dir(path)

    disk.sync_dir = note  # type: ignore[method-assign]
    assert open_store(disk, OFF).log.max_offset == SEGMENT
    assert "commitlog" in directories


@pytest.mark.parametrize("how", ["doubted", "late", "rebuilt"])
def test_a_log_is_made_durable_before_queues_are_rebuilt_from_it(disk: SimDisk, how: str) -> None:
    """A clean stop synced it, but whoever removed the queues may have copied the log as well."""
    store = open_store(disk, OFF)
    put_ok(store, [b"x"], "U", 0)
    fill(store, 90)
    store.shutdown()
    if how == "rebuilt":
        disk.remove("queueends")
        for path in [path for path in disk.inodes(durable=False) if path.startswith("consume")]:
            disk.remove(path)
    else:
        disk.remove("consumequeue/T/0/" + "0" * 20)
        if how == "late":
            disk.remove("consumequeue/T/0/" + "1000".zfill(20))
            disk.remove("queueends")
    syncs = count_syncs(disk, "commitlog")
    again = open_store(disk, OFF)
    assert syncs
    assert again.queue_range("T", 0) == (0, 90)


def count_syncs(disk: SimDisk, below: str) -> list[str]:
    """A list that gets the path of each file below that is synced from now on."""
    inodes = {id(inode): path for path, inode in disk.inodes(durable=False).items()}
    found: list[str] = []
    strike = disk.strike_sync

    def note(inode: object) -> None:
        path = inodes.get(id(inode), "")
        if path and path.startswith(below):
            found.append(path)
        strike(inode)  # type: ignore[arg-type]

    disk.strike_sync = note  # type: ignore[method-assign]
    return found


def test_a_clean_start_syncs_nothing_of_the_log(disk: SimDisk) -> None:
    store = open_store(disk, OFF)
    fill(store, 90)
    store.shutdown()
    syncs = count_syncs(disk, "")
    open_store(disk, OFF)
    assert syncs == []


@pytest.mark.parametrize("harm", ["none", "cut", "rebuilt"])
def test_a_note_that_claims_too_much_is_rewritten_at_once(tmp_path: Path, harm: str) -> None:
    store = open_store(tmp_path, OFF)
    fill(store, 20)
    flush_queues(store)
    before, end = (tmp_path / "queueends").read_bytes(), store.log.max_offset
    if harm == "cut":
        end = PhyOffset(last_record_cut(tmp_path, store)[0])
    crash(store)
    if harm == "rebuilt":
        shutil.rmtree(tmp_path / "consumequeue")
    opened = open_noisily(tmp_path, OFF)
    after = (tmp_path / "queueends").read_bytes()
    assert (after == before) == (harm == "none")
    assert note_of(tmp_path).position == end
    assert note_of(tmp_path).queues["T", 0].end == len(queue_entries(opened.store)) * 20
    crash(opened.store)
    again = open_store(tmp_path, OFF)
    assert again.queues.trusted == {("T", 0)}


def test_a_queue_file_that_was_copied_in_is_synced_by_the_next_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 20)
    store.shutdown()
    file = tmp_path / "consumequeue/T/0" / f"{0:020d}"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data)
    store = open_store(tmp_path)
    job = known(store.queues_flush_job(0))
    assert [mapped.file.path for mapped, _ in job.files] == [f"consumequeue/T/0/{0:020d}"]


@pytest.mark.parametrize("offset", [0, 3])
def test_after_a_kill_every_entry_is_rewritten_including_the_first(
    store: MessageStore, tmp_path: Path, offset: int
) -> None:
    fill(store, 20)
    crash(store)
    file = tmp_path / "consumequeue/T/0" / f"{0:020d}"
    before = file.read_bytes()
    harm(file, offset * 20 + 10, b"xx")
    (tmp_path / "queueends").unlink()
    opened = open_noisily(tmp_path)
    assert file.read_bytes() == before
    assert opened.problems == []


def test_offsets_of_lost_records_are_those_that_were_given_whatever_a_file_shows(
    store: MessageStore, tmp_path: Path
) -> None:
    fill(store, 60)
    lost = queue_entries(store)[-1][0] // SEGMENT * SEGMENT
    fill(store, 90, "U")
    store.shutdown()
    for start in range(0, lost + SEGMENT, SEGMENT):
        if start:
            (tmp_path / "commitlog" / f"{start:020d}").unlink()
    file = tmp_path / "consumequeue/T/0" / f"{0:020d}"
    file.write_bytes(bytes(len(file.read_bytes())))
    opened = open_noisily(tmp_path)
    assert opened.store.queue_range("T", 0)[1] == 60


# -- a full disk -----------------------------------------------------------------------------------


def full(disk: SimDisk) -> MessageStore:
    """Killed on a full disk, with entries that found no room."""
    store = open_store(disk, OFF)
    for queue_id in range(3):
        put_ok(store, [b"%d" % n for n in range(50)], "T", queue_id)
    flush_all(store)
    for _ in range(50, 70):
        for queue_id in range(3):
            batch = PutBatch("T", queue_id, Columns.of([b"." * 300]), NOW)
            assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    disk.full = True
    drain(store)
    disk.kill()
    return store


def test_on_a_full_disk_no_queue_offset_is_given_again(disk: SimDisk) -> None:
    full(disk)
    store = open_store(disk, OFF)
    assert [store.topic_queue_table["T", queue_id] for queue_id in range(3)] == [70] * 3


@pytest.mark.parametrize("harm", ["queue", "log", "other error"])
def test_damage_is_repaired_before_serving(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    full(disk)
    if harm == "queue":
        disk.remove("consumequeue/T/1/" + "0" * 20)
    elif harm == "log":
        disk.inodes(durable=False)["commitlog/" + "0" * 20].seen[8000:8200] = 7
        disk.remove("queueends")
    else:

        def fails(*args: object) -> None:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(disk, "check_room", fails)
    with pytest.raises(OSError, match="full disk" if harm != "other error" else "broken"):
        open_store(disk, OFF)


# -- files that cannot be right --------------------------------------------------------------------


def test_queues_that_cannot_be_loaded_are_removed_and_reported(tmp_path: Path) -> None:
    units = options(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=2000)
    store = open_store(tmp_path, units)
    put_ok(store, [b"a", b"b"])
    store.shutdown()
    (tmp_path / "consumequeue" / "U").mkdir()
    (tmp_path / "consumequeue" / "U" / "none").mkdir()
    queues, told = ConsumeQueues(OsDisk(tmp_path), units), list[str]()
    assert not load_queues(queues, True, told.append)
    assert [text.startswith("consume queues will be rebuilt") for text in told] == [True]
    assert (queues.table, queues.ext) == ({}, {})
    assert queues.ends._file is None
    opened = open_noisily(tmp_path, units)
    assert not (tmp_path / "consumequeue" / "U").exists()
    assert read_all(opened.store) == [b"a", b"b"]


def test_an_index_that_cannot_be_loaded_is_removed_and_reported(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store.shutdown()
    (tmp_path / "index" / "name").write_bytes(b"")
    index, told = IndexService(OsDisk(tmp_path), SMALL), list[str]()
    load_index(index, None, told.append)
    assert [text.startswith("the index will be rebuilt") for text in told] == [True]
    assert index.files == []
    assert not list((tmp_path / "index").iterdir())
    opened = open_noisily(tmp_path)
    assert len(opened.store.lookups.by_key("T", "T1")) == 1


def test_files_that_cannot_be_loaded_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sim_disk()
    fill(open_store(disk), 60)
    disk.write("consumequeue/U/none", b"")
    disk.write("index/none", b"")
    handed: list[SimFile] = []
    opens = disk.open

    def opened(path: str, writable: bool) -> SimFile:
        handed.append(opens(path, writable))
        return handed[-1]

    monkeypatch.setattr(disk, "open", opened)
    assert not load_queues(ConsumeQueues(disk, SMALL), False, lambda text: None)
    load_index(IndexService(disk, SMALL), None, lambda text: None)
    assert {file.path.partition("/")[0] for file in handed} >= {"consumequeue", "index"}
    assert [file.path for file in handed if len(file.memory)] == []


def test_intact_queues_and_index_are_loaded_and_nothing_is_reported(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store.shutdown()
    told: list[str] = []
    assert load_queues(ConsumeQueues(OsDisk(tmp_path), SMALL), True, told.append)
    index = IndexService(OsDisk(tmp_path), SMALL)
    load_index(index, None, told.append)
    assert len(index.files) == 1
    assert told == []


@pytest.mark.parametrize("cleanly", [True, False])
def test_keys_that_lay_in_a_dropped_index_file_are_found_though_their_record_had_others_before(
    tmp_path: Path, cleanly: bool
) -> None:
    """The previous file ends with the same record, which is indexed only in part."""
    few = options(max_index_num=8)
    store = open_store(tmp_path, few)
    for n in range(6):
        put_ok(store, [b"x"], properties=[b"KEYS\x01k%d" % n])
    put_ok(store, [b"y"], properties=[b"KEYS\x01a b c"])
    assert [file.header.end_phy for file in store.index.files] == [store.index.newest] * 2
    flush_all(store)
    if cleanly:
        store.shutdown()
    else:
        crash(store)
    last = max((tmp_path / "index").iterdir())
    data = bytearray(last.read_bytes())
    data[36:40] = (7).to_bytes(4, "big")  # more entries than it has
    last.write_bytes(bytes(data))
    again = open_store(tmp_path, few)
    assert [len(again.lookups.by_key("T", key)) for key in "abc"] == [1, 1, 1]


@pytest.mark.parametrize("role", [BrokerRole.SLAVE, BrokerRole.SYNC_MASTER])
def test_a_stop_is_clean_even_if_records_at_the_end_are_not_confirmed(
    store: MessageStore, tmp_path: Path, role: BrokerRole
) -> None:
    """Otherwise no replica of a group that is stopped under load would count after a reboot."""
    fill(store, 10)
    drain(store)
    confirmed = queue_entries(store)[6][0]
    store.hide_from(PhyOffset(confirmed))
    fill(store, 5)
    store.change_role(role)
    end = store.log.max_offset
    store.shutdown()
    again = open_noisily(tmp_path)
    assert (again.report.abnormal, again.problems) == (False, [])
    assert again.store.log.max_offset == end
    again.store.hide_from(PhyOffset(confirmed))
    assert len(read_all(again.store)) == 6, "what is not confirmed stays hidden"
