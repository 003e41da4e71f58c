"""Jobs in threads: they end before their owners do."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from duolog_server.node.upkeep.threadwork import done_in_thread


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def _fails(error: OSError) -> None:
    raise AssertionError("no job fails here") from error


async def test_a_job_is_waited_for_however_often_its_task_is_cancelled(
    threads: ThreadPoolExecutor,
) -> None:
    """A stop cancels again what has not ended."""
    begun, end = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        end.wait()

    task = asyncio.ensure_future(done_in_thread(threads, job, _fails))
    try:
        while not begun.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
    finally:
        end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
