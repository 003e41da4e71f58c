"""The file that says which group a node belongs to, byte by byte."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duolog_server.ha import membership
from duolog_server.ha.crc32c import crc32c
from duolog_server.ha.membership import LINE_BYTES, LINES, PATH, Membership
from duolog_server.ha.starts import ANY_RUN, Marks, Start
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.osdisk import OsDisk
from tests.ha.pair import new_disk
from tests.support import Fault, FaultDisk


def line(written: int, group: str, version: int, crc: int, **more: Any) -> bytes:
    row = {"written": written, "groupId": group, "version": version, **more, "crc32c": crc}
    if "marks" in more:
        pairs = "".join(f" {number}:{run}" for number, run in more["marks"])
        row["marksCrc32c"] = crc32c(f"{written}{pairs}".encode())
    return json.dumps(row).encode().ljust(LINE_BYTES - 1) + b"\n"


def lay(path: Path, data: bytes) -> OsDisk:
    (path / "config").mkdir(exist_ok=True)
    (path / PATH).write_bytes(data)
    return OsDisk(path)


def test_the_line_with_the_highest_number_counts(tmp_path: Path) -> None:
    lines = [
        line(8, "g", 5, crc32c(b"8 g 5 2"), starts=2, marks=[]),
        line(7, "g", 4, crc32c(b"7 g 4 2"), starts=2, marks=[]),
    ]
    for both in (lines, lines[::-1]):
        assert membership.load(lay(tmp_path, b"".join(both))) == Membership("g", 5, 2)


def test_a_line_of_an_earlier_version_counts_no_starts(tmp_path: Path) -> None:
    disk = lay(tmp_path, line(3, "g", 9, crc32c(b"3 g 9")) * LINES)
    assert membership.load(disk) == Membership("g", 9, 0)
    membership.save(disk, Membership("g", 9, 1))
    assert membership.load(disk) == Membership("g", 9, 1)
    assert (tmp_path / PATH).read_bytes()[:LINE_BYTES] == line(
        4, "g", 9, crc32c(b"4 g 9 1"), starts=1, marks=[]
    )


def test_starts_that_an_earlier_version_counted_are_all_marked(tmp_path: Path) -> None:
    disk = lay(tmp_path, line(3, "g", 9, crc32c(b"3 g 9 4"), starts=4) * LINES)
    old = Membership("g", 9, 4, (Start(4, ANY_RUN),))
    assert membership.load(disk) == old
    membership.save(disk, replace(old, starts=5))
    assert membership.load(disk) == replace(old, starts=5), "and no others, once it is written anew"


def test_marks_are_kept_and_vouched_for(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    (tmp_path / "config").mkdir()
    marked = Membership("g", 9, 4, (Start(2, "r2"), Start(4, "r4")))
    membership.save(disk, marked)
    assert membership.load(disk) == marked
    # What earlier versions check of a line does not cover the marks: they can read it.
    written = line(0, "g", 9, crc32c(b"0 g 9 4"), starts=4, marks=[[2, "r2"], [4, "r4"]])
    assert (tmp_path / PATH).read_bytes() == written * LINES
    with pytest.raises(BadStoreFile, match="no line of it is whole"):
        membership.load(lay(tmp_path, written.replace(b"r2", b"r3") * LINES))


def test_the_most_marks_that_there_may_be_fit_into_a_line(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    (tmp_path / "config").mkdir()
    marks: Marks = ()
    for number in range(9_999_000, 9_999_100):
        marks = Start(number, f"{number:016x}").marked(None, marks)
    most = Membership("f" * 16, 1 << 31, 1 << 31, marks)
    membership.save(disk, most)
    membership.save(disk, most)
    assert membership.load(disk) == most


def test_lines_are_written_in_turn(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    (tmp_path / "config").mkdir()
    numbers = []
    for version in range(4):
        membership.save(disk, Membership("g", version, 1))
        data = (tmp_path / PATH).read_bytes()
        numbers.append(
            [json.loads(data[at : at + LINE_BYTES])["written"] for at in (0, LINE_BYTES)]
        )
    assert numbers == [[0, 0], [0, 1], [2, 1], [2, 3]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x" * (LINES * LINE_BYTES), "no line of it is whole"),
        (b"x", f"1 bytes, not {LINES * LINE_BYTES}"),
        (line(1, "g", 1, 7) * LINES, "no line of it is whole"),
        (b"[]".ljust(LINE_BYTES) * LINES, "no line of it is whole"),
    ],
)
def test_a_file_that_cannot_be_trusted_says_why(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(BadStoreFile, match=words):
        membership.load(lay(tmp_path, data))


def test_an_empty_file_counts_as_missing(tmp_path: Path) -> None:
    """A full disk may have had room for its name only."""
    assert membership.load(lay(tmp_path, b"")) == Membership()
    assert membership.load(OsDisk(tmp_path / "elsewhere")) == Membership()


def test_the_first_line_and_its_name_survive_a_power_cut() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        membership.save(disk, Membership("g", 3, 1))
        disk.power_cut()
        assert membership.load(disk) == Membership("g", 3, 1)
        membership.save(disk, Membership("g", 4, 1))
        disk.power_cut()
        assert membership.load(disk) == Membership("g", 4, 1)


def test_a_note_is_not_made_without_room_and_fails_where_the_disk_does(tmp_path: Path) -> None:
    for number, raised in ((errno.ENOSPC, False), (errno.EIO, True)):
        disk = FaultDisk(tmp_path / str(number), 1, number)
        if raised:
            with pytest.raises(Fault):
                membership.note(disk, Membership("g", 1, 1))
        else:
            assert membership.note(disk, Membership("g", 1, 1)) is None
        assert membership.note(disk, Membership("g", 1, 1)) == Membership("g", 1, 1)
