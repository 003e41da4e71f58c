"""A kill in the middle of a write: the log then ends inside it, and nothing in it is damaged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.killedwriter import APPEND, BEFORE, BODIES, CHOSEN, COMMIT, KEPT, SEGMENT, segment
from tests.support import open_noisily, read_all


@pytest.mark.parametrize("how", [APPEND, COMMIT])
def test_what_a_killed_write_leaves_is_its_beginning(tmp_path: Path, how: str) -> None:
    program = [sys.executable, "-m", "tests.store.killedwriter", str(tmp_path), how]
    killed = subprocess.run(program, check=False)
    assert killed.returncode == -signal.SIGBUS
    os.truncate(segment(tmp_path), SEGMENT)
    opened = open_noisily(tmp_path, CHOSEN[how])
    store = opened.store
    assert (opened.problems, store.log.corrupt_ranges) == ([], [])
    found = read_all(store, "T", 0)
    assert found == BODIES[: len(found)]
    assert len(found) >= BEFORE
    assert store.log.max_offset <= KEPT
    store.shutdown()
