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


def wait_promoted(directory: Path, group: str, seconds: float) -> None:
    """Return once a directory is promoted, and nobody else uses it.

    group: of the node that waits; one of another name than the broker's does not wait, as it would
    be refused then. seconds: the longest wait. Raises TimeoutError, StoreError, OSError.
    """
    disk, until = OsDisk(directory), time.monotonic() + seconds
    while not _is_promoted(disk, str(directory), group):
        if time.monotonic() >= until:
            raise TimeoutError(f"{directory} was not promoted within {seconds:g} s")
        time.sleep(LOOK_SECONDS)


def _is_promoted(disk: OsDisk, directory: str, group: str) -> bool:
    following = states.load(disk)
    if following is None:
        return False
    states.check_named(disk, directory, following, group)
    if following.state is not State.PROMOTED:
        return False
    try:
        disk.lock(LOCK)
    except StoreLocked:
        return False
    disk.unlock()
    return True


__all__ = ["wait_promoted"]
