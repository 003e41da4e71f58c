"""The directories of a store that may lie on other file systems: its log, its queues, its index.

A link in the store's own directory leads to such a directory. So it has one path for everything
that opens it: the node, tools that are given the store's directory, backups, older versions,
RocketMQ.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duolog_server.store import lightqueues
from duolog_server.store.errors import BadStoreDirectory

LOG = "commitlog"
QUEUES = "consumequeue"
INDEX = "index"
MOVABLE = (LOG, QUEUES, INDEX)
LOST_FOUND = "lost+found"  # of a file system itself, where a directory is its root


def lead(root: Path, name: str, target: str) -> None:
    """Link a directory of the store to another path. Raises BadStoreDirectory.

    Files are never moved, and no directory is made where one was: its file system may be away.
    A target may be where the directory is anyway, as RocketMQ's configurations name it.
    """
    place, wanted = root / name, Path(target)
    home, real = os.path.realpath(root), os.path.realpath(wanted)
    try:
        if place.is_symlink():
            if os.path.realpath(place) != real:
                raise BadStoreDirectory(
                    str(place),
                    f"leads to {os.path.realpath(place)}, but {option_of(name)} is {target}. Stop "
                    f"the node, move the files, remove the link {place}, and start again",
                )
            return
        if real == os.path.join(home, name):
            return
        if f"{real}/".startswith(f"{home}/"):
            raise BadStoreDirectory(
                str(place),
                f"cannot lie at {target} ({option_of(name)}), which is within {root}: leave the "
                "option empty, or name a directory elsewhere",
            )
        if place.exists():
            if wanted.exists() and os.path.samefile(place, wanted):
                return
            if any(path.name != LOST_FOUND for path in place.iterdir()):
                raise BadStoreDirectory(
                    str(place),
                    f"has files, but {option_of(name)} is {target}. Stop the node, move the files "
                    f"there (mv {place}/* {target}/), and start again",
                )
            place.rmdir()
        wanted.mkdir(mode=0o700, exist_ok=True)
        place.symlink_to(wanted, target_is_directory=True)
    except OSError as error:
        reason = f"cannot lead to {target} ({option_of(name)}): {error.strerror or error}"
        raise BadStoreDirectory(str(place), reason) from error


def linked(root: Path, name: str) -> str:
    """The target of a directory of the store that is a link; otherwise empty.

    Raises BadStoreDirectory if there is nothing.
    """
    place = root / name
    if not place.is_symlink():
        return ""
    found = os.path.realpath(place)
    if not os.path.isdir(found):
        raise BadStoreDirectory(
            str(place),
            f"leads to {found}, not a directory: mount its file system, or remove the link "
            "if its files are lost",
        )
    return found


def option_of(name: str) -> str:
    """The option that moves a directory."""
    return {
        LOG: "store.path_commit_log",
        QUEUES: "store.path_consume_queue",
        INDEX: "store.path_index",
    }[name]


# The file systems that the directories of a store lie on, and how full each is.
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
