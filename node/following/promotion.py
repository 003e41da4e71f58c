"""Waiting for a promotion: a node that has loaded its program goes on within a moment of it.

Rule: the word PROMOTED comes first, then the end of the cut-over, which releases the directory.
"""

import time
from pathlib import Path

from node.following import state as states
from node.following.state import State
from store.errors import StoreLocked
from store.messagestore import LOCK
from store.osdisk import OsDisk

LOOK_SECONDS = 0.02


def wait_promoted(directory: Path, seconds: float) -> None:
    """Return once a directory is promoted, and nobody else uses it.

    seconds: the longest wait. Raises TimeoutError, StoreError, OSError.
    """
    disk, until = OsDisk(directory), time.monotonic() + seconds
    while not _is_promoted(disk):
        if time.monotonic() >= until:
            raise TimeoutError(f"{directory} was not promoted within {seconds:g} s")
        time.sleep(LOOK_SECONDS)


def _is_promoted(disk: OsDisk) -> bool:
    following = states.load(disk)
    if following is None or following.state is not State.PROMOTED:
        return False
    try:
        disk.lock(LOCK)
    except StoreLocked:
        return False
    disk.unlock()
    return True


__all__ = ["wait_promoted"]
