"""Scrapes: read the node's state on the event loop in small steps, and write it in a thread.

One at a time: others wait for their turn, up to their deadline. Between two, the node has a rest of
some times what the last one took: who only asks for metrics does not keep it from its work.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from duolog_server.node.metrics.exposition import Exposition, Overdue
from duolog_server.node.metrics.samples import Samples

STEP_SECONDS = 0.001  # longest time that the loop reads without a pause
RESTS = 4  # times what a scrape took
REST_SECONDS_MAX = 1.0
WRITE_SECONDS = 0.5  # left for sending the answer

Facts = Callable[[Samples], Iterator[None]]  # adds samples; may be interrupted where it yields


class Scrapes:
    """Makes the text of a node's metrics. facts: read on the loop. late: read in the thread."""

    def __init__(
        self,
        facts: Facts,
        late: Callable[[Samples], None],
        exposition: Exposition,
        series_max: int,
    ) -> None:
        self._facts = facts
        self._late = late
        self._exposition = exposition
        self._series_max = series_max
        self._turn = asyncio.Lock()
        self._rests_until = 0.0  # loop time
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duolog-metrics")

    async def text(self, deadline: float) -> list[bytes]:
        """The metrics as of now, in pieces. deadline: loop time. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        deadline -= WRITE_SECONDS
        async with asyncio.timeout_at(deadline), self._turn:
            await asyncio.sleep(self._rests_until - loop.time())
            began = loop.time()
            try:
                return await self._made(deadline)
            finally:
                rest = min(REST_SECONDS_MAX, RESTS * (loop.time() - began))
                self._rests_until = loop.time() + rest

    async def _made(self, deadline: float) -> list[bytes]:
        loop, samples = asyncio.get_running_loop(), Samples()
        until = loop.time() + STEP_SECONDS
        for _ in self._facts(samples):
            if loop.time() >= until:
                await asyncio.sleep(0)
                until = loop.time() + STEP_SECONDS
        abandoned = threading.Event()
        try:
            return await loop.run_in_executor(
                self._thread, self._write, samples, deadline, abandoned
            )
        finally:
            abandoned.set()  # where nobody waits for the text, the thread ends

    def _write(self, samples: Samples, deadline: float, abandoned: threading.Event) -> list[bytes]:
        """Write it, in the thread. asyncio's clock is the monotonic one. Raises TimeoutError."""
        self._late(samples)
        left_out, count = samples.over(self._series_max)
        samples.node.add("duolog_metrics_series_dropped", count)
        try:
            return self._exposition.text(samples.taken(left_out), deadline, abandoned)
        except Overdue:
            raise TimeoutError from None

    def stop(self) -> None:
        """End what the thread writes: the process cannot end before it."""
        self._exposition.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)
