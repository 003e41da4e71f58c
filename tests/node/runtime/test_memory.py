"""What the kernel says of this process's memory."""

import mmap
import os
import subprocess
import sys

from duolog_server.node.runtime.memory import OwnMemory
from tests.until import wait_until

BYTES = 64 << 20


def taken_and_given_back() -> None:
    """Raises AssertionError. Nothing else may take memory meanwhile."""
    memory = OwnMemory()
    before = memory.read()
    with mmap.mmap(-1, BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        taken[:] = bytes(BYTES)
        assert memory.read() >= before + BYTES // 2
    assert memory.read() < before + BYTES // 2
    memory.close()


def test_memory_that_is_taken_and_given_back_is_seen() -> None:
    words = [sys.executable, "-c", f"import {__name__} as it; it.taken_and_given_back()"]
    subprocess.run(words, check=True)


def test_it_keeps_one_descriptor_and_leaves_none() -> None:
    memory = OwnMemory()

    def kept_one_and_left_none() -> bool:
        """Whether this time; threads of other tests may open and close some meanwhile."""
        before = set(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert memory.read() > 0
        kept = len(os.listdir("/proc/self/fd")) - len(before)
        memory.close()
        return kept == 1 and set(os.listdir("/proc/self/fd")) == before

    wait_until(kept_one_and_left_none)
    assert memory.read() > 0, "it can be read again"
    memory.close()
