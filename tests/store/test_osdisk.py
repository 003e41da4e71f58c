"""The disk port on the operating system: a directory that another process holds."""

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from duolog_server.store.clocks import WallMs
from duolog_server.store.directories import LOG, LOST_FOUND, QUEUES
from duolog_server.store.errors import BadStoreDirectory, StoreLocked
from duolog_server.store.osdisk import STAGING, OsDisk
from duolog_server.store.queues import wipe_tree
from duolog_server.store.status import PutMessageStatus
from tests.otherfilesystem import other_file_system
from tests.support import NOW, flush_log, open_store, put, put_ok


def test_only_the_holder_of_the_lock_removes_files_being_allocated(tmp_path: Path) -> None:
    holder = OsDisk(tmp_path)
    holder.lock("lock")
    staged = tmp_path / STAGING / "7"
    staged.write_bytes(b"")
    OsDisk(tmp_path)  # another node is started here by mistake; its lock is refused later
    assert staged.exists()
    holder.unlock()
    OsDisk(tmp_path).lock("lock")
    assert list((tmp_path / STAGING).iterdir()) == []


def test_a_topic_may_have_the_name_of_a_folder_of_the_stores_own(tmp_path: Path) -> None:
    """Once its records are deleted, only its files tell how far it reached."""
    names = ("rebuilding", "allocating", "index", "commitlog")
    store = open_store(tmp_path)
    for name in names:
        put_ok(store, [b"x"] * 3, name)
    store.shutdown()
    files = sorted((tmp_path / QUEUES).rglob("0*"))
    before = [path.stat().st_ino for path in files]
    store = open_store(tmp_path)
    store.shutdown()
    assert [path.stat().st_ino for path in files] == before


def test_a_directory_is_opened_on_a_disk_that_has_no_inode_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An XFS allocates inodes as they are needed: a killed node's has its files, and no more."""

    def refuse(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    disk = OsDisk(tmp_path)
    disk.lock("lock")
    disk.unlock()


def test_files_are_created_in_a_directory_on_another_file_system(tmp_path: Path) -> None:
    with other_file_system(tmp_path) as elsewhere:
        (tmp_path / "commitlog").symlink_to(elsewhere)
        disk = OsDisk(tmp_path)
        file = disk.create("commitlog/0", 8192)
        assert file.size == 8192
        file.close()
        with pytest.raises(FileExistsError):
            disk.create("commitlog/0", 8192)
        assert [path.name for path in elsewhere.iterdir()] == ["0"]


def test_a_linked_directory_stays_when_its_files_are_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "T" / "0").mkdir(parents=True)
    (elsewhere / "T" / "0" / "0").write_bytes(b"x")
    (elsewhere / LOST_FOUND).mkdir()
    disk = OsDisk(tmp_path / "data", paths={QUEUES: str(elsewhere), LOG: ""})
    assert disk.linked(QUEUES) == str(elsewhere)
    assert disk.list(QUEUES) == disk.look(QUEUES).names == ["T"]
    wipe_tree(disk, QUEUES)
    assert [path.name for path in elsewhere.iterdir()] == [LOST_FOUND]
    assert (tmp_path / "data" / QUEUES).is_symlink()


@pytest.mark.parametrize("again", [False, True])
def test_the_usual_path_may_be_named_and_no_other_one_within(tmp_path: Path, again: bool) -> None:
    """As configurations of RocketMQ do, which name every directory."""
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    if again:
        OsDisk(data).create(f"{LOG}/0", 4096).close()
    for root in (data, tmp_path / "link"):
        disk = OsDisk(root, paths={LOG: f"{data}/{LOG}/", QUEUES: str(tmp_path / "link" / QUEUES)})
        assert not disk.linked(LOG)
        assert not disk.linked(QUEUES)
    for within in (data, data / QUEUES, data / "index", tmp_path / "link" / "config"):
        with pytest.raises(BadStoreDirectory, match=r"cannot lie at .* \(store.path_commit_log\)"):
            OsDisk(data, paths={LOG: str(within)})


def test_a_path_is_refused_where_files_lie_elsewhere_or_are_away(tmp_path: Path) -> None:
    data, one, other = tmp_path / "data", tmp_path / "one", tmp_path / "other"
    OsDisk(data, paths={LOG: str(one)}).create(f"{LOG}/0", 4096).close()
    assert (one / "0").exists()
    OsDisk(data, paths={LOG: str(one)})
    with pytest.raises(BadStoreDirectory, match=r"leads to .*one, but store.path_commit_log"):
        OsDisk(data, paths={LOG: str(other)})
    assert not other.exists()
    with pytest.raises(BadStoreDirectory, match=r"cannot lead to .*: No such file"):
        OsDisk(data, paths={QUEUES: str(tmp_path / "not" / "mounted")})
    (data / "index").mkdir()
    (data / "index" / "1").write_bytes(b"x")
    with pytest.raises(BadStoreDirectory, match=r"has files, but store.path_index is .*mv "):
        OsDisk(data, paths={"index": str(other)})
    (data / "index" / "1").unlink()
    OsDisk(data, paths={"index": str(other)})
    one.rename(tmp_path / "away")
    with pytest.raises(BadStoreDirectory, match=r"leads to .*one, not a directory: mount"):
        OsDisk(data).lock("lock")


def test_a_directory_that_two_stores_link_to_has_one_user(tmp_path: Path) -> None:
    disks = [OsDisk(tmp_path / name, paths={LOG: str(tmp_path / "log")}) for name in "ab"]
    disks[0].lock("lock")
    with pytest.raises(StoreLocked, match=r"/log is held"):
        disks[1].lock("lock")
    disks[0].unlock()
    disks[1].lock("lock")
    disks[1].unlock()


def test_a_store_whose_log_is_not_mounted_is_not_begun_anew(tmp_path: Path) -> None:
    paths = {LOG: str(tmp_path / "log"), QUEUES: str(tmp_path / "queues")}
    store = open_store(OsDisk(tmp_path / "data", paths=paths))
    put_ok(store, [b"x"] * 7)
    store.shutdown()
    (tmp_path / "log").rename(tmp_path / "away")
    (tmp_path / "log").mkdir()
    with pytest.raises(BadStoreDirectory, match=r"log: is empty, though .* mount"):
        open_store(tmp_path / "data")
    (tmp_path / "log").rmdir()
    (tmp_path / "away").rename(tmp_path / "log")
    store = open_store(tmp_path / "data")
    assert store.next_offset("T", 0) == 7
    store.shutdown()


class Fills(OsDisk):
    """Whose directories lie on file systems that are filled by so much."""

    used: dict[str, float]

    def used_ratio(self, name: str = "") -> float:
        return self.used[name] if name else max(self.used.values())

    def fullest(self) -> str:
        return max(self.used, key=lambda name: self.used[name])


@pytest.mark.parametrize("full", [QUEUES, "index"])
def test_a_full_disk_of_queues_refuses_puts_and_deletes_nothing(tmp_path: Path, full: str) -> None:
    disk = Fills(tmp_path / "data", paths={full: str(tmp_path / "elsewhere")})
    disk.used = {LOG: 0.1, QUEUES: 0.1, "index": 0.1}
    store = open_store(disk)
    for _ in range(10):
        put_ok(store, [b"x" * 1000] * 10)
    flush_log(store)
    disk.used[full] = 0.95
    soon, late = WallMs(NOW + 3_600_000), WallMs(time.time_ns() // 10**6 + 400 * 3_600_000)
    cleaned = store.retention.round(soon, 12, store.dispatcher.reput_from)
    assert (cleaned.segments, store.retention.wants_use) == (0, False)
    refused = put(store, [b"x"])
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert f"DISK_FULL (the file system of {tmp_path}/elsewhere is 95% full)" in refused.reason
    disk.used[LOG] = 0.9
    assert store.retention.round(soon, 12, store.dispatcher.reput_from).segments == 1
    disk.used[LOG] = 0.1
    assert store.retention.round(late, 12, store.dispatcher.reput_from).segments > 1
    disk.used[full] = 0.2
    store.retention.check_space()
    put_ok(store, [b"x"])
    store.shutdown()


def test_the_fullest_file_system_counts_and_the_logs_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: dict[int, int] = {}

    def statvfs(path: Path) -> SimpleNamespace:
        left = free[os.stat(path).st_dev]
        return SimpleNamespace(f_blocks=100, f_bfree=left, f_bavail=left, f_frsize=4096)

    with other_file_system(tmp_path) as elsewhere:
        own = os.stat(tmp_path).st_dev
        free.update({own: 60, os.stat(elsewhere).st_dev: 30})
        disk = OsDisk(tmp_path / "data", paths={LOG: str(elsewhere)})
        disk.create(f"{LOG}/0", 8192).close()
        disk.create("index/0", 8192).close()
        monkeypatch.setattr(os, "statvfs", statvfs)
        assert (disk.used_ratio(), disk.fullest()) == (0.7, LOG)
        assert (disk.used_ratio(LOG), disk.used_ratio("index")) == (0.7, 0.4)
        assert disk.used_bytes() == (70 * 4096, 8192)
        free[own] = 20
        assert (disk.used_ratio(), disk.fullest()) == (0.8, "index")


def test_a_part_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "allocating").write_text("")
    with pytest.raises(BadStoreDirectory, match=f"^{tmp_path}/allocating: not writable"):
        OsDisk(tmp_path)
