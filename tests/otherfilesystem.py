"""A directory on another file system, for tests of stores whose directories lie on several."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def other_file_system(than: Path) -> Iterator[Path]:
    """A directory on another one than a path, removed at the end; skips where there is none."""
    own = os.stat(than).st_dev
    others = [path for path in ("/dev/shm", "/var/tmp") if os.path.isdir(path)]
    others = [path for path in others if os.stat(path).st_dev != own]
    if not others:
        pytest.skip("there is no second file system")
    made = Path(tempfile.mkdtemp(dir=others[0]))
    try:
        yield made
    finally:
        shutil.rmtree(made)
