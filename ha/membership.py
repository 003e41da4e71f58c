"""Which group a replica belongs to, kept in its directory: config/membership.jsonl.

A registry that was wiped or restored from a backup holds another group, or an older state of this
one: then no node is elected before an operator acts. Data is never given up because the registry
does not know it.

The file is two lines of JSON, each a sector long and written in turn: overwriting needs no room on
a full disk, and a power cut leaves one line intact.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from duolog_server.ha.crc32c import crc32c
from duolog_server.ha.starts import ANY_RUN, Marks, Start
from duolog_server.store.disk import Disk, no_room
from duolog_server.store.errors import BadStoreFile

PATH = "config/membership.jsonl"
LINE_BYTES = 512
LINES = 2


@dataclass(frozen=True, slots=True)
class Membership:
    """group_id: empty for none yet. version: of the newest group state that was seen.

    starts: how often a node was started with this directory. marks: which of these starts the
    registry may have noted (see `ha.starts`).
    """

    group_id: str = ""
    version: int = 0
    starts: int = 0
    marks: Marks = ()


@dataclass(frozen=True, slots=True)
class _Line:
    written: int  # counts the lines ever written
    membership: Membership

    @property
    def crc(self) -> int:
        found = self.membership
        starts = f" {found.starts}" if found.starts else ""  # earlier versions had none
        return crc32c(f"{self.written} {found.group_id} {found.version}{starts}".encode())

    @property
    def marks_crc(self) -> int:
        """CRC of the marks alone: earlier versions check the line without them, and can read it."""
        marks = "".join(f" {mark.number}:{mark.run}" for mark in self.membership.marks)
        return crc32c(f"{self.written}{marks}".encode())

    def to_bytes(self) -> bytes:
        text = json.dumps(
            {
                "written": self.written,
                "groupId": self.membership.group_id,
                "version": self.membership.version,
                "starts": self.membership.starts,
                "marks": [[mark.number, mark.run] for mark in self.membership.marks],
                "crc32c": self.crc,
                "marksCrc32c": self.marks_crc,
            }
        ).encode()
        assert len(text) < LINE_BYTES, "a line is a sector long, and its marks are few"
        return text.ljust(LINE_BYTES - 1) + b"\n"


def save(disk: Disk, membership: Membership) -> None:
    """Write it over the older line, durably: only the first time that needs room on the disk.

    Raises OSError, BadStoreFile.
    """
    newest = _newest(disk)
    if newest is None:
        disk.write(PATH + ".tmp", _Line(0, membership).to_bytes() * LINES)
        disk.rename(PATH + ".tmp", PATH)
        disk.sync_dir("config")
        return
    line = _Line(newest.written + 1, membership)
    at = line.written % LINES * LINE_BYTES
    file = disk.open(PATH, writable=True)
    try:
        file.memory[at : at + LINE_BYTES] = np.frombuffer(line.to_bytes(), np.uint8)
        file.sync()
    finally:
        file.close()


def note(disk: Disk, membership: Membership) -> Membership | None:
    """Save; None if a full disk has no room for the file. Raises OSError, BadStoreFile."""
    try:
        save(disk, membership)
    except OSError as error:
        if not no_room(error):
            raise
        return None
    return membership


def load(disk: Disk) -> Membership:
    """Read the file; of no group if there is none. Raises BadStoreFile."""
    newest = _newest(disk)
    return Membership() if newest is None else newest.membership


def _newest(disk: Disk) -> _Line | None:
    if disk.size(PATH) <= 0:
        return None
    data = disk.read(PATH)
    if len(data) != LINES * LINE_BYTES:
        raise BadStoreFile(PATH, f"{len(data)} bytes, not {LINES * LINE_BYTES}")
    lines = [_parse(data[at : at + LINE_BYTES]) for at in range(0, len(data), LINE_BYTES)]
    whole = [line for line in lines if line is not None]
    if not whole:
        raise BadStoreFile(PATH, "no line of it is whole")
    return max(whole, key=lambda line: line.written)


def _parse(data: bytes) -> _Line | None:
    try:
        value = json.loads(data)
        line = _Line(int(value["written"]), _membership(value))
        if value["crc32c"] != line.crc:
            return None
        if "marks" not in value:
            return _of_an_earlier_version(line)
        return line if value["marksCrc32c"] == line.marks_crc else None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _membership(value: Mapping[str, Any]) -> Membership:
    return Membership(
        str(value["groupId"]),
        int(value["version"]),
        int(value.get("starts", 0)),
        tuple(Start(int(number), str(run)) for number, run in value.get("marks", ())),
    )


def _of_an_earlier_version(line: _Line) -> _Line:
    """Marks for starts that an earlier version only counted: any of them may have been claimed."""
    starts = line.membership.starts
    marks = (Start(starts, ANY_RUN),) if starts else ()
    return replace(line, membership=replace(line.membership, marks=marks))
