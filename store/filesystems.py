"""The file systems that the directories of a store lie on, and how full each is."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duolog_server.store import lightqueues
from duolog_server.store.directories import INDEX, LOG, QUEUES

# The log first: where others lie on its file system, deleting segments makes room for them.
_PLACES = (LOG, QUEUES, "consumequeue_ext", lightqueues.ROOT, INDEX)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """One of them. name: the first of the store's directories on it."""

    name: str
    device: int
    total_bytes: int
    used_bytes: int
    free_bytes: int  # for this user: blocks reserved for root are neither used nor free

    @property
    def used_ratio(self) -> float:
        """The used ratio that df shows."""
        usable = self.used_bytes + self.free_bytes
        return self.used_bytes / usable if usable else 0.0


def file_system_of(root: Path, name: str) -> FileSystem:
    """The file system of a directory of the store. Raises OSError."""
    place = root / name
    try:
        device = os.stat(place).st_dev
    except FileNotFoundError:  # nothing was stored there yet
        place, device = root, os.stat(root).st_dev
    found = os.statvfs(place)
    used, size = found.f_blocks - found.f_bfree, found.f_frsize
    return FileSystem(name, device, found.f_blocks * size, used * size, found.f_bavail * size)


def file_systems(root: Path) -> Iterator[FileSystem]:
    """Each once. Raises OSError."""
    devices: set[int] = set()
    for name in _PLACES:
        found = file_system_of(root, name)
        if found.device not in devices and (name == LOG or (root / name).exists()):
            devices.add(found.device)
            yield found


def fullest(root: Path) -> FileSystem:
    """The fullest of them. Raises OSError."""
    return max(file_systems(root), key=lambda one: one.used_ratio)
