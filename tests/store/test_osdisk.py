"""The disk port on the operating system: a directory that another process holds."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from store.osdisk import STAGING, OsDisk


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


def test_files_are_created_in_a_directory_on_another_file_system(tmp_path: Path) -> None:
    own = os.stat(tmp_path).st_dev
    others = [path for path in ("/dev/shm", "/var/tmp") if os.path.isdir(path)]
    others = [path for path in others if os.stat(path).st_dev != own]
    if not others:
        pytest.skip("there is no second file system")
    elsewhere = Path(tempfile.mkdtemp(dir=others[0]))
    try:
        (tmp_path / "commitlog").symlink_to(elsewhere)
        disk = OsDisk(tmp_path)
        file = disk.create("commitlog/0", 8192)
        assert file.size == 8192
        file.close()
        with pytest.raises(FileExistsError):
            disk.create("commitlog/0", 8192)
        assert [path.name for path in elsewhere.iterdir()] == ["0"]
    finally:
        shutil.rmtree(elsewhere)
