"""Writes of small files in threads: how long they take is known, and a stop waits for them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from duolog_server.node.election.failover import DirectoryWrites


async def test_the_oldest_write_that_is_under_way_tells_the_time() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        writes = DirectoryWrites(threads)
        assert writes.under_way_seconds() == 0
        slow = writes.begin(go_on.wait, 10)
        assert writes.begin(int, "7").result() == 7
        await writes.ended(0.01)
        assert writes.under_way_seconds() >= 0.01
        go_on.set()
        await writes.ended(10)
        assert slow.result() is True
    assert writes.under_way_seconds() == 0


async def test_a_failed_write_is_no_longer_under_way() -> None:
    with ThreadPoolExecutor(1) as threads:
        writes = DirectoryWrites(threads)
        failed = writes.begin(int, "x")
        await writes.ended(10)
        with pytest.raises(ValueError, match="'x'"):
            failed.result()
    assert writes.under_way_seconds() == 0
