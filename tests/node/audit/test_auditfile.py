"""The file of the audit log: whole lines, bounded, for nobody else to read."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.node.audit.auditfile import AuditFile


def files_of(path: Path) -> list[Path]:
    """The files, the oldest first."""
    found = path.parent.glob(f"{path.name}*")
    return sorted(found, key=lambda one: -int(one.suffix[1:]) if one.suffix[1:].isdecimal() else 1)


def write(file: AuditFile, lines: list[bytes]) -> None:
    while lines:
        lines = lines[file.write(lines) :]


def lines_of(path: Path) -> list[bytes]:
    return b"".join(one.read_bytes() for one in files_of(path)).splitlines()


@settings(max_examples=50, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(1, 300), max_size=9), max_size=15),
    reopened=st.sets(st.integers(0, 14)),
)
def test_lines_are_in_their_order_and_no_file_is_too_long(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], reopened: set[int]
) -> None:
    path = tmp_path_factory.mktemp("a") / "audit.log"
    file, written = AuditFile(path, 500, 1000), []
    for number, sizes in enumerate(batches):
        lines = [b"%d:%d:" % (number, k) + b"x" * size for k, size in enumerate(sizes)]
        write(file, lines)
        written += lines
        if number in reopened:
            file.close()
            file = AuditFile(path, 500, 1000)
    file.close()
    assert lines_of(path) == written
    assert all(one.stat().st_size <= 500 for one in files_of(path))


def test_so_many_files_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for files_max in (3, 1):
        file = AuditFile(path, 10, files_max)
        for number in range(10):
            write(file, [b"line %d" % number])
        file.close()
        kept = [b"line %d" % number for number in range(10 - files_max, 10)]
        assert lines_of(path) == kept
        assert len(files_of(path)) == files_max
        for one in files_of(path):
            one.unlink()
    assert not files_of(path)


def test_a_long_line_has_its_own_file_and_a_torn_one_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 10, 5)
    write(file, [b"a", b"x" * 100, b"b"])
    file.close()
    assert [one.read_bytes() for one in files_of(path)] == [b"a\n", b"x" * 100 + b"\n", b"b\n"]
    path = tmp_path / "torn.log"
    for torn in (b"whole\nto", b"to", b"", b"whole\n"):
        path.write_bytes(torn)
        file = AuditFile(path, 1000, 2)
        write(file, [b"next"])
        file.close()
        whole = [b"whole"] if b"\n" in torn else []
        assert lines_of(path) == [*whole, b"next"]
    path = tmp_path / "new" / "audit.log"
    file = AuditFile(path, 1000, 2)
    write(file, [b"x"])
    file.close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_what_a_failed_write_left_is_not_there_and_it_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 1000, 2)
    write(file, [b"first"])
    real, calls = os.write, []

    def full(fd: int, data: memoryview) -> int:
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data[:3])

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, fails, full if fails == "write" else broken)
        with pytest.raises(OSError, match=r"device|error"):
            write(file, [b"second", b"third"])
    assert path.read_bytes() == b"first\n"
    write(file, [b"second", b"third"])
    file.close()
    assert lines_of(path) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("created", [True, False])
def test_a_file_that_was_moved_or_deleted_is_begun_anew(tmp_path: Path, created: bool) -> None:
    path, moved = tmp_path / "audit.log", tmp_path / "moved"
    file = AuditFile(path, 1000, 2)
    write(file, [b"first"])
    path.rename(moved)
    if created:
        path.touch(0o600)  # as logrotate does
    write(file, [b"second"])
    path.unlink()
    write(file, [b"third"])
    file.close()
    assert moved.read_bytes() == b"first\n"
    assert path.read_bytes() == b"third\n"


def test_a_failed_write_brings_nothing_back_that_somebody_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 1000, 2)
    write(file, [b"x" * 100])
    os.truncate(path, 0)

    def full(fd: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="device"):
            write(file, [b"second"])
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("make", "why"), [(Path.mkdir, "directory"), (os.mkfifo, "it is no regular file")]
)
def test_what_is_no_file_is_an_error_and_blocks_nothing(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    path = tmp_path / "audit.log"
    make(path)
    file = AuditFile(path, 1000, 2)
    with pytest.raises(OSError, match=why):
        write(file, [b"x"])
    file.close()
