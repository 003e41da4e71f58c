"""Identity of this machine: whether a node's directory is the one found here."""

import os
from pathlib import Path

from duolog._descriptions import LocalStore

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Id of this boot of the system; empty if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def place_of(directory: str) -> LocalStore:
    """Which directory a path leads to on this machine; empty if there is none."""
    try:
        found = os.stat(directory)
    except OSError:
        return LocalStore()
    return LocalStore(boot_id=boot_id(), path=directory, device=found.st_dev, inode=found.st_ino)
