"""This machine: what tells whether a directory that a node names is the one found here."""

import os
from pathlib import Path

from duolog._descriptions import LocalStore

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What tells two runs of this system apart; empty if the system does not say."""
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
