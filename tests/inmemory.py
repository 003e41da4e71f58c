"""Directories in memory, for tests of a store in which no disk takes part.

Such a test opens a store hundreds of times, and waits for a disk two thirds of its time. Where
there is no such directory, or no room, it has one on disk.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 30  # containers often have 64 MiB


@contextmanager
def directory_in_memory(on_disk: Path) -> Iterator[Path]:
    """An empty directory, removed at the end."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        yield on_disk
        return
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize < ROOM_BYTES:
        yield on_disk
        return
    made = Path(tempfile.mkdtemp(prefix="duolog-test-", dir=MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)
