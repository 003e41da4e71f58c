"""A kill in the middle of a write: the log then ends inside it, and nothing in it is damaged."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.killedwriter import BEFORE, BODIES, CHOSEN, PAGE_AT
from tests.support import open_noisily, read_all


@pytest.mark.parametrize("how", CHOSEN)
def test_what_a_killed_write_leaves_is_its_beginning(tmp_path: Path, how: str) -> None:
    program = [sys.executable, "-m", "tests.store.killedwriter", str(tmp_path), how]
    assert subprocess.run(program, check=False).returncode == -signal.SIGSEGV
    opened = open_noisily(tmp_path, CHOSEN[how])
    store = opened.store
    assert (opened.problems, store.log.corrupt_ranges) == ([], [])
    found = read_all(store, "T", 0)
    assert found == BODIES[: len(found)]
    assert len(found) >= BEFORE
    assert store.log.max_offset <= PAGE_AT + 4096
    store.shutdown()
