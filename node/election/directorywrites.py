"""Small files of a node's directory, written in threads: the event loop waits for no disk."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DirectoryWrites:
    """The writes in progress, and when they began."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._begun: dict[Future[Any], float] = {}  # by the monotonic clock, in seconds

    def begin(self, write: Callable[P, T], *args: P.args, **how: P.kwargs) -> "Future[T]":
        """Begin a write."""
        begun = time.monotonic()
        work = self._threads.submit(write, *args, **how)
        self._begun[work] = begun
        work.add_done_callback(self._begun.pop)
        return work

    def under_way_seconds(self) -> float:
        """For how long the oldest write has been running, 0 for none; callable in any thread."""
        begun = list(self._begun.values())
        return time.monotonic() - min(begun) if begun else 0.0

    async def ended(self, seconds: float) -> None:
        """Wait until no write is running, at most for this long."""
        await asyncio.get_running_loop().run_in_executor(None, wait, list(self._begun), seconds)
