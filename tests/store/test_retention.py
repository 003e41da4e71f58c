"""Retention: hours, ratios, batches, what must never be removed."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from duolog_server.store import osdisk
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.errors import BadStoreDirectory, OtherFileSize
from duolog_server.store.messagestore import MessageStore, PutBatch
from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata, TopicConfig
from duolog_server.store.metadatafiles import MetadataFiles, SavedEnds
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.retention import DiskUse
from duolog_server.store.status import BrokerRole, PutMessageStatus, RunningFlags
from tests.support import (
    NOW,
    SMALL,
    crash,
    flush_all,
    flush_log,
    open_store,
    options,
    put,
    put_ok,
    read_all,
)

HOUR = 3_600_000


class FullDisk(OsDisk):
    """A disk that says how full it is."""

    ratio = 0.1

    def used_ratio(self, name: str = "") -> float:
        return self.ratio


def filled(path: Path, ratio: float = 0.1, messages: int = 300, **how: object) -> MessageStore:
    """A store of many segments, all written at NOW, all flushed."""
    disk = FullDisk(path)
    disk.ratio = ratio
    store = open_store(disk or path, options(**how))
    for n in range(messages):
        put_ok(store, [b"%d" % n * 100], properties=[b"KEYS\x01k%d" % n])
    flush_log(store)
    written_now(store)
    return store


def written_now(store: MessageStore, but: int = 0) -> None:
    """All segments but the last ones were written at NOW."""
    assert isinstance(store.disk, OsDisk)
    for mapped in store.log.queue.files[: len(store.log.queue.files) - but]:
        os.utime(store.disk.root / mapped.file.path, (NOW / 1000, NOW / 1000))


def clean(store: MessageStore, hours_later: float, hour: int = 12) -> int:
    """One round so many hours after NOW."""
    now = WallMs(NOW + int(hours_later * HOUR))
    found = store.retention.round(now, hour, store.dispatcher.reput_from)
    return found.segments


def test_expired_segments_go_at_the_hour_and_only_then(tmp_path: Path) -> None:
    store = filled(tmp_path)
    segments = len(store.log.queue.files)
    assert segments > 4
    assert clean(store, 100, hour=5) == 0
    assert clean(store, 71.9, hour=4) == 0
    assert clean(store, 72, hour=4) == segments - 1
    assert len(store.log.queue.files) == 1
    assert clean(store, 1000, hour=4) == 0  # never the last one


def test_several_hours_may_be_named_and_by_hand_it_happens_at_any(tmp_path: Path) -> None:
    store = filled(tmp_path, delete_when="02;04; 13")
    assert clean(store, 73, hour=3) == 0
    assert clean(store, 73, hour=13) > 0
    store = filled(tmp_path / "by hand")
    store.retention.trigger()
    assert store.retention.manual_rounds == 20
    assert clean(store, 73) > 0


def test_over_75_percent_expired_segments_go_at_any_hour(tmp_path: Path) -> None:
    store = filled(tmp_path, ratio=0.76)
    assert clean(store, 10) == 0
    assert clean(store, 73) > 0
    assert not store.flags.has(RunningFlags.DISK_FULL)


def test_over_85_percent_unexpired_segments_go_too_where_allowed(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", ratio=0.86)
    assert clean(store, 1) > 0
    crash(store)
    store = filled(tmp_path / "b", ratio=0.86, clean_file_forcibly_enable=False)
    assert clean(store, 1) == 0


@pytest.mark.parametrize(
    ("own", "others", "rocketmqs_rule", "deleted"),
    [(50, 49, False, True), (49, 50, False, False), (1, 98, False, False), (1, 98, True, True)],
)
def test_unexpired_segments_are_not_deleted_for_others_files(
    tmp_path: Path, own: int, others: int, rocketmqs_rule: bool, deleted: bool
) -> None:
    store = filled(tmp_path, ratio=0.99, clean_file_forcibly_for_others=rocketmqs_rule)
    retention = store.retention
    assert retention.wants_use is not rocketmqs_rule
    retention.use = DiskUse(own + others, own) if retention.wants_use else None
    assert bool(clean(store, 1)) is deleted
    assert store.flags.has(RunningFlags.DISK_FULL)
    assert clean(store, 73) > 0  # retention goes on


@pytest.mark.parametrize(
    ("ratio", "relieved", "deleted"), [(0.91, True, False), (0.91, False, True), (0.86, True, True)]
)
def test_a_full_node_that_others_relieve_keeps_unexpired_segments(
    tmp_path: Path, ratio: float, relieved: bool, deleted: bool
) -> None:
    store = filled(tmp_path, ratio=ratio)
    store.retention.relieved = lambda: relieved
    assert bool(clean(store, 1)) is deleted
    assert not store.retention.has_room


def test_a_put_that_finds_no_room_makes_a_node_full_until_the_disk_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, messages=1)
    told: list[str] = []
    store.events.full = told.append
    assert store.retention.has_room

    def refuse(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(OsDisk, "create", refuse)
    batch = PutBatch("T", 0, Columns.of([b"x" * 4000]), NOW)
    for _ in range(2):
        while store.put(batch, NOW).status.name == "PUT_OK":
            pass
        assert store.retention.is_full
        assert not store.retention.has_room
        store.retention.check_space()
        assert store.retention.has_room
    assert len(told) == 1, "it is told once while puts find no room"
    assert "no room for a file of commitlog" in told[0]
    store.retention.check_space()
    assert told[1:] == [""]


def test_whose_files_fill_a_disk_is_asked_only_where_it_decides(tmp_path: Path) -> None:
    for n, (ratio, forcibly, asks) in enumerate(
        ((0.85, True, 0), (0.86, True, 1), (0.86, False, 0))
    ):
        store = filled(tmp_path / f"{n}", ratio, 1, clean_file_forcibly_enable=forcibly)
        assert store.retention.wants_use == asks


def test_segments_that_had_not_expired_are_named(tmp_path: Path) -> None:
    store = filled(tmp_path, ratio=0.86)
    oldest = store.log.queue.files[0].file.path
    expired = tmp_path / oldest
    os.utime(expired, (NOW / 1000 - 80 * 3600, NOW / 1000 - 80 * 3600))
    names = [mapped.file.path for mapped in store.log.queue.files[:-1]]
    found = store.retention.round(WallMs(NOW), 12, store.dispatcher.reput_from)
    assert found.segments == 2  # one that had not expired, and more as the disk stays too full
    assert list(found.unexpired) == names[1:2]
    assert found.more


def test_deleting_an_expired_segment_is_not_a_forced_deletion(tmp_path: Path) -> None:
    store = filled(tmp_path, ratio=0.86)
    found = store.retention.round(WallMs(NOW + 73 * HOUR), 12, store.dispatcher.reput_from)
    assert found.segments > 0
    assert found.unexpired == ()


@pytest.mark.parametrize(
    ("blocks", "free", "available", "expected"),
    [
        (1000, 370, 320, 630 / 950),  # five per cent are reserved for root
        (1000, 1000, 950, 0.0),
        (1000, 50, 0, 1.0),
        (1000, 0, 0, 1.0),
        (0, 0, 0, 0.0),
    ],
)
def test_the_used_share_is_the_one_that_df_tells(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    free: int,
    available: int,
    expected: float,
) -> None:
    found = SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert OsDisk(tmp_path).used_ratio() == pytest.approx(expected)


def test_the_used_share_of_this_disk_is_that_of_df(tmp_path: Path) -> None:
    line = subprocess.run(
        ["df", "--output=pcent", tmp_path], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    assert OsDisk(tmp_path).used_ratio() * 100 == pytest.approx(int(line.rstrip("%")), abs=1.1)


def test_used_bytes_equal_the_size_of_the_directory(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    before = disk.used_bytes()[1]
    disk.create("commitlog/1", 1 << 20).close()
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    used, own = disk.used_bytes()
    assert 1 << 20 <= own - before < 2 << 20
    assert used >= own


def test_a_file_that_did_not_fit_is_no_full_disk(tmp_path: Path) -> None:
    store = filled(tmp_path, ratio=0.02)
    clean(store, 1)
    store.flags.set(RunningFlags.DISK_FULL)  # as queues and index do
    reason = put(store, [b"x"]).reason
    assert reason.endswith("(the file system of commitlog is 2% full, and a new file did not fit)")


def test_over_90_percent_puts_are_refused_until_it_falls(tmp_path: Path) -> None:
    store = filled(tmp_path, ratio=0.91, clean_file_forcibly_enable=False)
    told: list[str] = []
    store.events.full = told.append
    clean(store, 1)
    clean(store, 1)
    assert store.flags.names() == ["DISK_FULL"]
    assert len(told) == 1, "it is told once"
    assert told[0].endswith("is 91% full")
    assert put(store, [b"x"]).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert read_all(store)
    assert isinstance(store.disk, FullDisk)
    store.disk.ratio = 0.89
    clean(store, 1)
    assert told[1:] == [""]
    put_ok(store, [b"x"])


def test_at_most_ten_segments_go_in_a_round_oldest_first(tmp_path: Path) -> None:
    store = filled(tmp_path, messages=1000)
    before = [mapped.start for mapped in store.log.queue.files]
    assert len(before) > 15
    assert clean(store, 73, hour=4) == 10
    assert [mapped.start for mapped in store.log.queue.files] == before[10:]


def test_the_first_unexpired_segment_ends_the_round(tmp_path: Path) -> None:
    store = filled(tmp_path)
    third = store.log.queue.files[2]
    later = NOW / 1000 + 3600
    os.utime(tmp_path / third.file.path, (later, later))
    assert clean(store, 72, hour=4) == 2


@pytest.mark.parametrize("behind", ["dispatch", "flush"])
def test_segments_not_yet_dispatched_or_flushed_are_kept(tmp_path: Path, behind: str) -> None:
    store = filled(tmp_path)
    dispatched = store.dispatcher.reput_from
    if behind == "flush":
        store.log.queue.flushed_where = 100
    else:
        dispatched = 100
    found = store.retention.round(WallMs(NOW + 100 * HOUR), 4, dispatched)
    assert found.segments == 0


def test_queues_and_index_follow_and_their_minimum_moves(tmp_path: Path) -> None:
    store = filled(tmp_path, max_index_num=50)
    index_files = len(store.index.files)
    clean(store, 73, hour=4)
    low, high = store.queue_range("T", 0)
    assert 0 < low < high == 300
    assert len(read_all(store)) == high - low
    assert store.get("T", 0, low).table[1].tolist()[0] >= store.log.min_offset
    assert len(store.index.files) < index_files
    assert store.lookups.by_key("T", "k0") == []
    assert len(store.lookups.by_key("T", "k299")) == 1
    store.shutdown()
    again = open_store(tmp_path, options(max_index_num=50))
    assert again.queue_range("T", 0) == (low, high)
    assert put_ok(again, [b"next"]).queue_offset == high


def test_a_queue_all_of_whose_messages_are_gone_keeps_its_offsets(tmp_path: Path) -> None:
    store = filled(tmp_path, messages=20)
    for _ in range(300):
        put_ok(store, [b"x" * 300], "U")
    flush_log(store)
    written_now(store)
    clean(store, 73, hour=4)
    assert store.queue_range("T", 0) == (20, 20)
    store.shutdown()
    again = open_store(tmp_path, SMALL)
    assert again.queue_range("T", 0) == (20, 20)
    assert put_ok(again, [b"x"]).queue_offset == 20
    assert read_all(again) == [b"x"]
    crash(again)
    again = open_store(tmp_path, SMALL)
    assert read_all(again) == [b"x"]
    assert again.queue_range("T", 0) == (20, 21)


def test_removed_files_are_unlinked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osdisk, "UNLINKED_AT_ONCE_BYTES", 1000)
    store = filled(tmp_path)
    aside = tmp_path / osdisk.STAGING
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", lambda *how, **more: pytest.fail("unlinked at once"))
        removed = clean(store, 73, hour=4)
    assert removed > 3
    assert len(list((tmp_path / "commitlog").iterdir())) == len(store.log.queue.files) == 1
    kept = len(list(aside.iterdir()))
    assert kept >= removed
    store.disk.reclaim()
    assert list(aside.iterdir()) == []
    for queue in list(store.queues):
        store.queues.remove_topic(queue.topic)
    assert list(aside.iterdir())
    crash(store)
    OsDisk(tmp_path)  # a process that died before it was done
    assert list(aside.iterdir()) == []


def test_on_a_full_disk_removed_files_are_unlinked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osdisk, "UNLINKED_AT_ONCE_BYTES", 1000)
    disk = OsDisk(tmp_path)
    disk.create("old", 4096).close()
    disk.remove("old")
    allocate = os.posix_fallocate

    def full(descriptor: int, start: int, size: int) -> None:
        if any(path.name.startswith("removed") for path in (tmp_path / osdisk.STAGING).iterdir()):
            raise OSError(errno.ENOSPC, "no room")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    disk.create("new", 4096).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["allocating", "new"]


def test_a_disk_that_is_too_full_loses_one_unexpired_segment_at_a_time(tmp_path: Path) -> None:
    store = filled(tmp_path, ratio=0.86)
    assert isinstance(store.disk, FullDisk)
    for ratio, segments in ((0.86, 1), (0.5, 0)):
        store.disk.ratio = ratio
        found = store.retention.round(WallMs(NOW + HOUR), 12, store.dispatcher.reput_from)
        assert (found.segments, found.more) == (segments, bool(segments))


def expired(path: Path, saved: bool) -> MessageStore:
    """A store whose queues A/0 and the metadata's have no record left, with a snapshot or not."""
    store = open_store(path)
    for topic in ("A", SYSTEM_TOPIC):
        put_ok(store, [b"x"] * 7, topic=topic)
    for n in range(300):
        put_ok(store, [b"%d" % n * 100], topic="B")
    flush_log(store)
    if saved:
        files, ends = MetadataFiles(store.disk), SavedEnds(store.dispatched_offset)
        store.ends_to_save(ends, store.queue_keys())
        files.write(Metadata().snapshot(), -1, NOW, ends, store.segment)
    written_now(store)
    assert clean(store, 100, hour=4) > 0
    return store


@pytest.mark.parametrize("lost", [("consumequeue", "queueends"), ("consumequeue",), ("queueends",)])
def test_queue_offsets_survive_lost_queue_files_though_the_records_are_deleted(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    crash(expired(tmp_path, saved=True))
    for name in lost:
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    store = open_store(tmp_path)
    for topic, end in (("A", 7), (SYSTEM_TOPIC, 7), ("B", 300)):
        assert store.next_offset(topic, 0) == end
        assert store.queue_range(topic, 0)[1] == end
    assert store.queue_range("A", 0)[0] == 7
    assert put_ok(store, [b"y"], topic="A").queue_offset == 7


def test_a_start_that_would_give_queue_offsets_again_is_refused(tmp_path: Path) -> None:
    crash(expired(tmp_path, saved=False))
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "queueends").unlink(missing_ok=True)
    with pytest.raises(BadStoreDirectory, match="queue_offsets_from_log_alone"):
        open_store(tmp_path)
    store = open_store(tmp_path, options(queue_offsets_from_log_alone=True))
    assert store.next_offset("A", 0) == 0
    assert store.next_offset("B", 0) == 300


@pytest.mark.parametrize("end", [crash, MessageStore.shutdown])
@pytest.mark.parametrize(
    "derived", [("consumequeue", "queueends"), ("consumequeue",), "all but the log"]
)
def test_an_older_log_is_served_whole_beside_newer_queues_and_their_note(
    tmp_path: Path, derived: tuple[str, ...] | str, end: Callable[[MessageStore], None]
) -> None:
    """Queue files that the older log needs are deleted in the newer copy, with records or topics.

    E has no record in the older log; D was deleted after it was copied. F and G keep their files,
    and only begin later; G got nothing more.
    """
    store = open_store(tmp_path / "new")
    put_ok(store, [b"e"] * 5, topic="E")
    for n in range(300):
        put_ok(store, [b"%d" % n * 100])
    for topic in "DFG":
        put_ok(store, [topic.lower().encode()] * 3, topic=topic)
    flush_all(store)
    written_now(store, but=3)
    assert clean(store, 100, hour=4) > 0
    first = store.queue_range("T", 0)[0]
    assert 0 < first < 295
    shutil.copytree(tmp_path / "new", tmp_path / "old", ignore=shutil.ignore_patterns("lock"))
    store.remove_topic("D")
    put_ok(store, [b"e"] * 5, topic="E")
    for n in range(300, 500):
        put_ok(store, [b"%d" % n * 100])
    put_ok(store, [b"later"], topic="F")
    flush_all(store)
    written_now(store)
    assert clean(store, 100, hour=4) > 0
    flush_all(store)
    assert store.queue_range("T", 0)[0] > 350
    assert store.queue_range("F", 0)[0] == store.queue_range("G", 0)[0] == 3
    put_ok(store, [b"later"], topic="F")
    store.queues.note_all()
    flush_all(store)  # notes that both begin later
    end(store)
    restored = tmp_path / ("new" if isinstance(derived, str) else "old")
    for name in ("commitlog",) if isinstance(derived, str) else derived:
        old, new = restored / name, tmp_path / ("old" if isinstance(derived, str) else "new") / name
        shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(new, old) if new.is_dir() else shutil.copy2(new, old)
    for _ in range(2):
        store = open_store(restored)
        assert store.queue_range("T", 0) == (first, 300)
        assert read_all(store)[-1] == b"299" * 100
        assert store.next_offset("T", 0) == 300
        for topic in "DFG":
            assert store.queue_range(topic, 0) == (0, 3)
            assert read_all(store, topic) == [topic.lower().encode()] * 3
        assert store.next_offset("E", 0) == 5
        end(store)
    store = open_store(restored)
    assert put_ok(store, [b"new"]).queue_offset == 300


@pytest.mark.parametrize("known_by", ["commits", "delays", "older note", "whole files"])
def test_a_start_that_lost_one_of_several_queues_is_refused(tmp_path: Path, known_by: str) -> None:
    """Nothing but a group's offset, say, tells of a queue without a record in the log."""
    topic = SCHEDULE_TOPIC if known_by == "delays" else "A"
    store = open_store(tmp_path)
    put_ok(store, [b"x"] * (57 if known_by == "whole files" else 7), topic=topic)
    flush_log(store)
    files, tables = MetadataFiles(store.disk), Metadata()
    tables.topics["A"] = TopicConfig("A")
    ends = SavedEnds(-1)
    if known_by == "delays":
        tables.delay_offsets[1] = QueueOffset(5)
    elif known_by == "older note":
        ends = SavedEnds(1, {"A": {"0": [5, 1]}})
    else:
        tables.offsets["A", "G"] = {0: QueueOffset(55 if known_by == "whole files" else 5)}
    files.write(tables.snapshot(), -1, NOW, ends)
    for n in range(300):
        put_ok(store, [b"%d" % n * 100], topic="B")
    flush_log(store)
    written_now(store)
    assert clean(store, 100, hour=4) > 0
    crash(store)
    (tmp_path / "queueends").unlink(missing_ok=True)
    lost = tmp_path / "consumequeue" / topic / "0"
    if known_by == "whole files":
        (lost / f"{1000:020}").unlink()
    else:
        shutil.rmtree(lost)
    with pytest.raises(BadStoreDirectory, match=f"{topic}/0: lacks files.*from_log_alone"):
        open_store(tmp_path)
    store = open_store(tmp_path, options(queue_offsets_from_log_alone=True))
    assert store.next_offset(topic, 0) == (55 if known_by == "whole files" else 5)
    assert store.next_offset("B", 0) == 300


def test_queue_files_of_another_configured_size_are_kept_and_an_error(tmp_path: Path) -> None:
    crash(expired(tmp_path, saved=True))
    other = options(mapped_file_size_consume_queue=20 * 70)
    before = sorted((p, p.stat().st_size) for p in (tmp_path / "consumequeue").rglob("*"))
    for note in (True, False):
        if not note:
            (tmp_path / "queueends").unlink(missing_ok=True)
        with pytest.raises(OtherFileSize, match=r"consumequeue/A/0/0+: has 1000 .* 1400") as raised:
            open_store(tmp_path, other)
        assert "mapped_file_size_consume_queue=1000" in str(raised.value)
    assert sorted((p, p.stat().st_size) for p in (tmp_path / "consumequeue").rglob("*")) == before
    (tmp_path / "consumequeue").rename(tmp_path / "away")
    store = open_store(tmp_path, other)
    for topic, end in (("A", 7), (SYSTEM_TOPIC, 7), ("B", 300)):
        assert store.next_offset(topic, 0) == end
    crash(store)
    crash(open_store(tmp_path, other))


@pytest.mark.parametrize("harm", ["cut", "stray"])
def test_damaged_queue_files_stay_where_nothing_else_knows_the_ends(
    tmp_path: Path, harm: str
) -> None:
    crash(expired(tmp_path, saved=False))
    (tmp_path / "queueends").unlink(missing_ok=True)
    file = tmp_path / "consumequeue" / "A" / "0" / f"{0:020}"
    if harm == "cut":
        os.truncate(file, 500)
    else:
        (tmp_path / "consumequeue" / "A" / "stray").mkdir()
    with pytest.raises(BadStoreDirectory, match="queue_offsets_from_log_alone"):
        open_store(tmp_path)
    assert file.exists()


def test_a_backup_without_queue_ends_is_refused_in_a_node_that_may_follow(tmp_path: Path) -> None:
    """Version 0.1.0 saved no ends; a backup of commitlog/ and config/ holds no checkpoint."""
    store = expired(tmp_path, saved=False)
    tables = Metadata()
    tables.applied = QueueOffset(7)
    MetadataFiles(store.disk).write(tables.snapshot(), -1, NOW)
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    for name in ("queueends", "checkpoint"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(BadStoreDirectory, match="queue_offsets_from_log_alone"):
        open_store(tmp_path, options(broker_role=BrokerRole.AUTO))
