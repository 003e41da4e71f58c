"""The disk port on the operating system: a directory that another process holds."""

from pathlib import Path

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
