"""Backups of a store, and what is restored from them."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from duolog_server.store import backup as backups
from duolog_server.store.backup import Wanted, backup, verify
from duolog_server.store.copied import LOCK
from duolog_server.store.errors import BadBackup, BadStoreDirectory, StoreLocked
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata, TopicConfig
from duolog_server.store.metadatafiles import MetadataFiles, SavedEnds, Snapshots
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.osdisk import STAGING, OsDisk
from duolog_server.store.restore import restore
from tests.support import NOW, SMALL, flush_all, open_noisily, open_store, put, read_all

SEGMENT = SMALL.mapped_file_size_commit_log


class Stored:
    """A store that is open, and all bodies that were put into queue 0 of T."""

    def __init__(self, where: Path) -> None:
        self.where, self.bodies = where, list[bytes]()
        self.store = open_store(where)
        self.save_tables(-1)

    def save_tables(self, place: int, topic: str = "T") -> None:
        tables = Metadata(topics={topic: TopicConfig(topic, 1)})
        tables.applied = max(0, place + 1)  # so that a later place is a newer snapshot
        ends = SavedEnds(self.store.dispatched_offset)
        MetadataFiles(OsDisk(self.where)).write(tables.snapshot(), place, NOW, ends)

    def fill(self, count: int, wall_ms: int = NOW) -> None:
        bodies = [
            b"%06d" % k + bytes(400) for k in range(len(self.bodies), len(self.bodies) + count)
        ]
        for body in bodies:
            put(self.store, [body], now=wall_ms)
        self.bodies += bodies

    @property
    def running(self) -> Wanted:
        return Wanted(lambda: self.store.confirm_offset)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    made = Stored(tmp_path / "store")
    made.fill(100)  # three segments and a half
    return made


def restored(made: Path, where: Path, until_ms: int | None = None) -> list[bytes]:
    """Bodies in a restored directory, which opens without complaints."""
    restore(made, where, until_ms, NOW)
    opened = open_noisily(where)
    found = read_all(opened.store)
    assert opened.problems == []
    opened.store.shutdown()
    return found


def test_a_running_store_is_backed_up_to_its_confirm_offset(stored: Stored, tmp_path: Path) -> None:
    confirmed = stored.store.confirm_offset
    stored.fill(50)
    made = backup(stored.where, tmp_path / "b", Wanted(lambda: confirmed))
    assert (made.start, made.end, made.confirmed, made.store_time) == (0, confirmed, confirmed, NOW)
    assert verify(tmp_path / "b") == made
    assert restored(tmp_path / "b", tmp_path / "r") == stored.bodies[:100]


@pytest.mark.parametrize("kill", [False, True])
def test_a_stopped_store_is_backed_up_whole(stored: Stored, tmp_path: Path, kill: bool) -> None:
    if kill:
        stored.store.abandon()
    else:
        stored.store.shutdown()
    backup(stored.where, tmp_path / "b", Wanted())
    assert restored(tmp_path / "b", tmp_path / "r") == stored.bodies


def test_a_segment_that_was_allocated_ahead_is_no_part_of_it(
    stored: Stored, tmp_path: Path
) -> None:
    stored.store.abandon()
    newest = max(path.name for path in (stored.where / "commitlog").iterdir())
    (stored.where / "commitlog" / f"{int(newest) + SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    backup(stored.where, tmp_path / "b", Wanted())
    assert restored(tmp_path / "b", tmp_path / "r") == stored.bodies


def test_a_log_that_ends_with_a_segment_is_backed_up_and_restored(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "store")
    stored.fill(40)
    end = SEGMENT * (stored.store.confirm_offset // SEGMENT)
    made = backup(stored.where, tmp_path / "b", Wanted(lambda: end))
    assert (made.end, "tail" in made.files) == (end, False)
    found = restored(tmp_path / "b", tmp_path / "r")
    assert found == stored.bodies[: len(found)]
    assert found


class Killed(BaseException):
    """The process dies here."""


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, *calls: tuple[object, str]) -> None:
    """Die at a call of some functions."""
    left = [number]

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **how: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return call(*args, **how)

        return counted

    for where, name in calls:
        monkeypatch.setattr(where, name, dying(getattr(where, name)))


def test_a_backup_that_is_killed_anywhere_is_continued(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "b"
    kills = 0
    for number in range(200):
        with monkeypatch.context() as patched:
            killed_at(patched, number, (os, "sendfile"), (os, "fsync"), (Path, "replace"))
            stored.fill(1)
            try:
                backup(stored.where, target, stored.running)
            except Killed:
                kills += 1
                assert not (target / "manifest.json").exists()
                continue
            break
    assert kills >= 10  # each attempt leaves less to do
    assert verify(target).end == stored.store.confirm_offset
    assert restored(target, tmp_path / "r") == stored.bodies


def test_a_continued_backup_copies_no_whole_segment_again(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_at(patched, 3, (os, "sendfile"))
        backup(stored.where, tmp_path / "b", stored.running)
    had = {p.name: p.stat().st_ino for p in (tmp_path / "b" / "log").iterdir() if p.suffix == ""}
    assert len(had) == 2
    backup(stored.where, tmp_path / "b", stored.running)
    assert (
        had.items() <= {p.name: p.stat().st_ino for p in (tmp_path / "b" / "log").iterdir()}.items()
    )


def test_a_backup_is_never_changed_and_never_mixed(stored: Stored, tmp_path: Path) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    with pytest.raises(BadBackup, match="is a whole backup up to"):
        backup(stored.where, tmp_path / "b", stored.running)
    other = Stored(tmp_path / "other")
    other.fill(100, NOW + 1)
    (tmp_path / "b" / "manifest.json").unlink()
    with pytest.raises(BadBackup, match="is of another log than"):
        backup(other.where, tmp_path / "b", other.running)
    with pytest.raises(BadBackup, match="lies within the store"):
        backup(stored.where, stored.where / "b", stored.running)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(BadBackup, match=r"has other files \(letter\)"):
        backup(stored.where, tmp_path / "mine", stored.running)
    with backups.alone(tmp_path / "b"), pytest.raises(StoreLocked):
        backup(stored.where, tmp_path / "b", stored.running)


def in_child(works: Callable[[], bool]) -> bool:
    """What a child process finds: locks of one process do not exclude each other."""
    child = os.fork()
    if not child:
        found = 2
        try:
            found = int(works())
        finally:
            os._exit(found)
    found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert found in (0, 1)
    return bool(found)


def test_backups_share_a_stopped_store_and_no_node_starts_meanwhile(
    stored: Stored, tmp_path: Path
) -> None:
    def starts() -> bool:
        try:
            OsDisk(stored.where).lock(LOCK)
        except StoreLocked:
            return False
        return True

    def held() -> bool:
        with backups.held(stored.where) as stopped:
            return stopped

    stored.store.shutdown()
    (stored.where / LOCK).touch()
    assert in_child(starts)
    with backups.held(stored.where) as stopped:
        assert stopped
        assert in_child(held)
        assert not in_child(starts)


def test_a_disk_that_is_full_is_named(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup(stored.where, tmp_path / "whole", stored.running)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, works in (
        ("sendfile", lambda: backup(stored.where, tmp_path / "b", stored.running)),
        ("sendfile", lambda: restore(tmp_path / "whole", tmp_path / "r", None, NOW)),
        ("fsync", lambda: backup(stored.where, tmp_path / "b", stored.running)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, full)
            with pytest.raises(OSError, match=rf"No space left on device.*{tmp_path}/[br]/"):
                works()


def test_an_offset_of_another_node_is_refused(stored: Stored, tmp_path: Path) -> None:
    end = stored.store.confirm_offset
    for wrong in (Wanted(lambda: end - 1), Wanted(lambda: end + 10 * SEGMENT)):
        with pytest.raises(BadBackup, match=r"no valid record at|no log up to"):
            backup(stored.where, tmp_path / "b", wrong)


def test_damage_is_refused_and_not_backed_up(stored: Stored, tmp_path: Path) -> None:
    with (stored.where / "commitlog" / f"{SEGMENT:020d}").open("r+b") as file:
        file.seek(SEGMENT // 2)
        file.write(b"\xff" * 8)
    with pytest.raises(BadBackup, match="no valid record at"):
        backup(stored.where, tmp_path / "b", stored.running)
    (stored.where / "commitlog" / f"{SEGMENT:020d}").unlink()
    with pytest.raises(BadBackup, match=f"lacks segment {SEGMENT}"):
        backup(stored.where, tmp_path / "c", stored.running)


def test_damage_below_what_a_stopped_store_knows_to_be_confirmed_is_no_end(
    stored: Stored, tmp_path: Path
) -> None:
    stored.store.confirm(stored.store.max_offset)
    last = stored.store.max_offset // SEGMENT * SEGMENT
    stored.store.shutdown()
    with (stored.where / "commitlog" / f"{last:020d}").open("r+b") as file:
        file.seek(1500)
        file.write(b"\xff" * 8)
    with pytest.raises(BadBackup, match=r"has valid records up to .* only"):
        backup(stored.where, tmp_path / "b", Wanted())


def test_segments_that_retention_deletes_meanwhile_are_left_out(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []

    def copy(source: Path, target: Path, size: int) -> None:
        copied.append(source.name)
        if len(copied) == 3:  # the tail and one segment are copied
            for start in (0, SEGMENT):
                (stored.where / "commitlog" / f"{start:020d}").unlink()
        real(source, target, size)

    real = backups.copy
    monkeypatch.setattr(backups, "copy", copy)
    stored.save_tables(stored.store.confirm_offset - 1)
    made = backup(stored.where, tmp_path / "b", stored.running)
    assert made.start == 2 * SEGMENT
    assert verify(tmp_path / "b") == made
    found = restored(tmp_path / "b", tmp_path / "r")
    assert 0 < len(found) < 100
    assert found == stored.bodies[-len(found) :]
    assert open_store(tmp_path / "r").next_offset("T", 0) == 100


def test_damage_to_a_backup_is_seen_and_not_restored(stored: Stored, tmp_path: Path) -> None:
    made = backup(stored.where, tmp_path / "b", stored.running)
    for name in [*made.files, "manifest.json"]:
        copy = tmp_path / "damaged"
        shutil.copytree(tmp_path / "b", copy)
        with (copy / name).open("r+b") as file:
            file.seek(40)
            byte = file.read(1)
            file.seek(40)
            file.write(bytes([byte[0] ^ 1]))
        for use in (verify, lambda path: restore(path, tmp_path / "r", None, NOW)):
            with pytest.raises(BadBackup, match=r"is damaged|cannot be read"):
                use(copy)
        (copy / name).unlink()
        with pytest.raises(BadBackup):
            verify(copy)
        shutil.rmtree(copy)
        shutil.rmtree(tmp_path / "r", ignore_errors=True)


def test_links_are_to_whole_segments_only_and_survive_what_the_node_does(
    stored: Stored, tmp_path: Path
) -> None:
    confirmed = PhyOffset(stored.store.confirm_offset)
    stored.fill(100)
    made = backup(stored.where, tmp_path / "b", Wanted(lambda: confirmed, link=True))
    linked = [name for name in made.files if (tmp_path / "b" / name).stat().st_nlink > 1]
    assert linked == [name for name in made.files if name.startswith("log/")]
    assert len(linked) == 3
    flush_all(stored.store)
    stored.store.truncate(confirmed)  # as a slave that another master follows
    stored.store.reset()
    stored.fill(10)
    assert verify(tmp_path / "b") == made
    assert restored(tmp_path / "b", tmp_path / "r") == stored.bodies[:100]
    assert all((tmp_path / "r" / "commitlog" / p.name).stat().st_nlink == 1
               for p in (tmp_path / "r" / "commitlog").iterdir())  # fmt: skip


def test_a_later_backup_links_the_segments_of_an_earlier_one(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    stored.fill(100)
    copied: list[Path] = []
    real = backups.copy

    def copy(source: Path, target: Path, size: int) -> None:
        copied.append(source)
        real(source, target, size)

    monkeypatch.setattr(backups, "copy", copy)
    wanted = Wanted(lambda: stored.store.confirm_offset, base=tmp_path / "b")
    made = backup(stored.where, tmp_path / "c", wanted)
    assert not {path.name for path in copied} & {f"{k * SEGMENT:020d}" for k in range(3)}
    assert verify(tmp_path / "c") == made
    shutil.rmtree(tmp_path / "b")
    assert restored(tmp_path / "c", tmp_path / "r") == stored.bodies


def test_what_an_earlier_backup_lacks_is_copied_from_the_store(
    stored: Stored, tmp_path: Path
) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    (tmp_path / "b" / backups.path_of(SEGMENT)).unlink()
    wanted = Wanted(stored.running.confirmed, base=tmp_path / "b")
    made = backup(stored.where, tmp_path / "c", wanted)
    assert made.start == 0
    assert verify(tmp_path / "c") == made


@pytest.mark.parametrize("shared", ["segments", "tail"])
def test_an_earlier_backup_of_another_history_is_refused(
    stored: Stored, tmp_path: Path, shared: str
) -> None:
    """A store restored from an older backup parts from the newer one in the middle of a segment."""
    old = backup(stored.where, tmp_path / "old", stored.running)
    stored.fill(30 if shared == "segments" else 5, NOW + 1)
    new = backup(stored.where, tmp_path / "new", stored.running)
    assert (new.end // SEGMENT > old.end // SEGMENT) == (shared == "segments")
    restore(tmp_path / "old", tmp_path / "r", None, NOW)
    other = Stored(tmp_path / "r")
    other.fill(100, NOW + 2)
    with pytest.raises(BadBackup, match="is of another log than"):
        backup(other.where, tmp_path / "b", Wanted(other.running.confirmed, tmp_path / "new"))
    made = backup(other.where, tmp_path / "c", Wanted(other.running.confirmed, tmp_path / "old"))
    assert verify(tmp_path / "c") == made
    assert made.end == other.store.confirm_offset


def test_what_follows_the_blank_record_of_a_segment_does_not_matter(
    stored: Stored, tmp_path: Path
) -> None:
    """It is not written: replicas may have different bytes there."""
    made = backup(stored.where, tmp_path / "b", stored.running)
    newest = made.end // SEGMENT * SEGMENT - SEGMENT
    with (stored.where / "commitlog" / f"{newest:020d}").open("r+b") as file:
        file.seek(SEGMENT - 16)
        assert file.read() == bytes(16)
        file.seek(SEGMENT - 16)
        file.write(b"\xff" * 16)
    stored.fill(1)
    backup(stored.where, tmp_path / "c", Wanted(stored.running.confirmed, base=tmp_path / "b"))
    assert restored(tmp_path / "c", tmp_path / "r") == stored.bodies
    (tmp_path / "b" / "manifest.json").unlink()
    backup(stored.where, tmp_path / "b", stored.running)


def test_an_interrupted_backup_of_another_history_is_refused(
    stored: Stored, tmp_path: Path
) -> None:
    backup(stored.where, tmp_path / "old", stored.running)
    stored.fill(30, NOW + 1)
    backup(stored.where, tmp_path / "new", stored.running)
    (tmp_path / "new" / "manifest.json").unlink()
    restore(tmp_path / "old", tmp_path / "r", None, NOW)
    other = Stored(tmp_path / "r")
    other.fill(100, NOW + 2)
    with pytest.raises(BadBackup, match="is of another log than"):
        backup(other.where, tmp_path / "new", other.running)


# -- up to a time ----------------------------------------------------------------------------------


@pytest.fixture
def hourly(tmp_path: Path) -> Stored:
    """100 messages in each of three hours."""
    made = Stored(tmp_path / "store")
    for hour in range(3):
        made.fill(100, NOW + hour * 3_600_000)
    return made


@pytest.mark.parametrize("hour", range(3))
def test_what_was_stored_after_a_time_is_left_out(
    hourly: Stored, tmp_path: Path, hour: int
) -> None:
    backup(hourly.where, tmp_path / "b", hourly.running)
    until = NOW + hour * 3_600_000 + 5
    assert restored(tmp_path / "b", tmp_path / "r", until) == hourly.bodies[: 100 * (hour + 1)]
    log = tmp_path / "r" / "commitlog"
    assert {path.stat().st_size for path in log.iterdir()} == {SEGMENT}


def test_a_time_before_the_backup_is_refused(hourly: Stored, tmp_path: Path) -> None:
    backup(hourly.where, tmp_path / "b", hourly.running)
    with pytest.raises(BadBackup, match="begins after that time"):
        restore(tmp_path / "b", tmp_path / "r", NOW - 1, NOW)


def test_tables_are_those_of_the_time_or_the_log_has_them(hourly: Stored, tmp_path: Path) -> None:
    """The base has the tables of an earlier time."""
    end = int(hourly.store.confirm_offset)
    until = NOW + 5
    hourly.save_tables(end // 3 + SEGMENT, "second")
    backup(hourly.where, tmp_path / "b", hourly.running)
    with pytest.raises(BadBackup, match=r"has no tables .* from before that time"):
        restore(tmp_path / "b", tmp_path / "r", until, NOW)
    shutil.rmtree(tmp_path / "r")
    hourly.save_tables(100, "first")
    backup(hourly.where, tmp_path / "d", hourly.running)
    hourly.save_tables(end - 100, "third")
    backup(hourly.where, tmp_path / "e", Wanted(hourly.running.confirmed, base=tmp_path / "d"))
    for time_ms, topic in ((until, "first"), (None, "third")):
        restore(tmp_path / "e", tmp_path / "r", time_ms, NOW)
        tables = [one.tables.topics for one in Snapshots.read(OsDisk(tmp_path / "r")).found]
        assert [list(topics) for topics in tables] == [[topic], [topic]]
        shutil.rmtree(tmp_path / "r")


def test_a_base_does_not_hide_newer_tables(hourly: Stored, tmp_path: Path) -> None:
    """The last record of the base's tables was in its log no more, so they are named by its end."""

    def save(place: int, applied: int, topic: str) -> None:
        tables = Metadata(topics={topic: TopicConfig(topic, 1)})
        tables.applied = applied
        MetadataFiles(OsDisk(hourly.where)).write(tables.snapshot(), place, NOW, SavedEnds(0))

    save(-1, 5, "older")
    base = backup(hourly.where, tmp_path / "b", hourly.running)
    hourly.fill(10, NOW + 9_000_000)
    save(base.end - 100, 6, "newer")
    backup(hourly.where, tmp_path / "c", Wanted(hourly.running.confirmed, base=tmp_path / "b"))
    restore(tmp_path / "c", tmp_path / "r", None, NOW)
    tables = [one.tables.topics for one in Snapshots.read(OsDisk(tmp_path / "r")).found]
    assert [list(topics) for topics in tables] == [["newer"], ["newer"]]


def test_a_log_that_has_all_tables_is_restored_up_to_any_time(tmp_path: Path) -> None:
    stored = Stored(tmp_path / "store")
    change = {"op": "topic", "topic": TopicConfig("T", 1).to_json(), "complete": True}
    put(stored.store, [json.dumps(change).encode()], SYSTEM_TOPIC)
    stored.fill(50)
    stored.fill(1, NOW + 9)
    stored.save_tables(int(stored.store.confirm_offset) - 1)
    backup(stored.where, tmp_path / "b", stored.running)
    restore(tmp_path / "b", tmp_path / "r", NOW, NOW)
    assert Snapshots.read(OsDisk(tmp_path / "r")).found == [], "they are built from the log"
    opened = open_noisily(tmp_path / "r")
    assert read_all(opened.store) == stored.bodies[:50]


# -- restoring -------------------------------------------------------------------------------------


def test_a_restore_that_is_killed_anywhere_is_continued(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    kills = 0
    for number in range(200):
        with monkeypatch.context() as patched:
            killed_at(
                patched, number, (os, "sendfile"), (os, "fsync"), (Path, "replace"),
                (os, "replace"), (shutil, "rmtree"),
            )  # fmt: skip
            try:
                restore(tmp_path / "b", tmp_path / "r", None, NOW)
            except Killed:
                kills += 1
                continue
            break
    assert kills > 10
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == [
        "checkpoint",
        "commitlog",
        "config",
    ]
    opened = open_noisily(tmp_path / "r")
    assert (read_all(opened.store), opened.problems) == (stored.bodies, [])


def test_no_node_starts_where_a_restore_has_not_ended(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would begin anew there, and the end of the restore would remove what it has stored."""
    where, kills = tmp_path / "r", 0
    backup(stored.where, tmp_path / "b", stored.running)
    for number in range(200):
        with monkeypatch.context() as patched:
            killed_at(patched, number, (os, "fsync"), (Path, "replace"), (shutil, "rmtree"))
            try:
                restore(tmp_path / "b", where, None, NOW)
                break
            except Killed:
                kills += 1
        before = sorted(path.name for path in where.iterdir())
        with pytest.raises(BadStoreDirectory, match="a restore of a backup into this directory"):
            open_store(where)
        assert {path.name for path in where.iterdir()} <= {*before, LOCK, STAGING}
    assert kills > 10
    assert read_all(open_store(where)) == stored.bodies


def test_nothing_is_restored_where_a_node_runs(stored: Stored, tmp_path: Path) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    where = tmp_path / "r"
    where.mkdir()
    node = OsDisk(where)
    node.lock(LOCK)  # it has made nothing else yet

    def is_refused() -> bool:
        try:
            restore(tmp_path / "b", where, None, NOW)
        except StoreLocked:
            return True
        return False

    assert in_child(is_refused)
    node.unlock()
    restore(tmp_path / "b", where, None, NOW)
    assert read_all(open_store(where)) == stored.bodies


def test_nothing_is_restored_over_other_files(stored: Stored, tmp_path: Path) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    with pytest.raises(BadBackup, match="is not empty"):
        restore(tmp_path / "b", stored.where, None, NOW)
    restore(tmp_path / "b", tmp_path / "r", None, NOW)
    with pytest.raises(BadBackup, match="is not empty"):
        restore(tmp_path / "b", tmp_path / "r", None, NOW)
    with pytest.raises(BadBackup, match="no whole backup"):
        restore(stored.where, tmp_path / "s", None, NOW)


def test_the_roots_of_new_file_systems_count_as_empty(stored: Stored, tmp_path: Path) -> None:
    for root in ("b", "r"):
        (tmp_path / root / "lost+found").mkdir(parents=True)
    backup(stored.where, tmp_path / "b", stored.running)
    assert restored(tmp_path / "b", tmp_path / "r") == stored.bodies


def test_a_restored_store_knows_what_is_confirmed_and_is_no_known_replica(
    stored: Stored, tmp_path: Path
) -> None:
    (stored.where / "config" / "replica.json").write_text("{}")
    (stored.where / "config" / "membership.jsonl").write_text("{}")
    (stored.where / "config" / "epochs.json").write_text('{"epochs":[]}')
    made = backup(stored.where, tmp_path / "b", stored.running)
    restore(tmp_path / "b", tmp_path / "r", None, NOW)
    config = {path.name for path in (tmp_path / "r" / "config").iterdir()}
    assert "epochs.json" in config
    assert not {"replica.json", "membership.jsonl"} & config, "its caller makes another replica"
    opened = open_store(tmp_path / "r")
    assert opened.known_confirmed == made.end


def test_an_unconfirmed_tail_of_a_stopped_store_is_kept_and_not_called_confirmed(
    stored: Stored, tmp_path: Path
) -> None:
    store: MessageStore = stored.store
    confirmed = store.max_offset
    store.confirm(confirmed)
    stored.fill(5)
    end = store.max_offset
    store.abandon()
    made = backup(stored.where, tmp_path / "b", Wanted())
    assert (made.confirmed, made.end) == (confirmed, end)
    restore(tmp_path / "b", tmp_path / "r", None, NOW)
    assert open_store(tmp_path / "r").known_confirmed == confirmed


def test_a_manifest_of_another_format_is_refused(stored: Stored, tmp_path: Path) -> None:
    backup(stored.where, tmp_path / "b", stored.running)
    path = tmp_path / "b" / "manifest.json"
    value = json.loads(path.read_bytes())
    value.pop("crc32")
    value["format"] = 2
    path.write_text(json.dumps({**value, "crc32": backups._crc(value)}))
    with pytest.raises(BadBackup, match="format 2, this version reads 1"):
        restore(tmp_path / "b", tmp_path / "r", None, NOW)


def test_a_store_without_tables_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, [b"x"])
    with pytest.raises(BadBackup, match=r"has no tables .*start its node once"):
        backup(tmp_path / "store", tmp_path / "b", Wanted(lambda: store.confirm_offset))
