"""Requests that wait for the other side's answers, which are known by their numbers.

Rules: every wait has a deadline, and ends with the connection; only so many wait, and so many
bytes.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.command import NUMBER_MAX, Command

WAITING_MAX = 4096


class Answers:
    """Answers that one connection waits for."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Command]] = {}

    def number(self) -> int:
        """The number of the next request."""
        self._number = (self._number + 1) & NUMBER_MAX
        return self._number

    async def of(
        self, request: Command, send: Callable[[Command], None], seconds: float
    ) -> Command:
        """Send a request, and wait for its answer, for so many seconds.

        Raises what `send` does, ConnectionError, TimeoutError.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise ConnectionError(f"{WAITING_MAX} requests wait for answers on this connection")
        answered: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[request.opaque] = answered
        try:
            send(request)
            async with asyncio.timeout(seconds):
                return await answered
        finally:
            del self._waiting[request.opaque]

    def arrived(self, answer: Command) -> None:
        """Pass an answer to its waiter; drop one without a waiter."""
        answered = self._waiting.get(answer.opaque)
        if answered is not None and not answered.done():
            answered.set_result(answer)

    def end(self, why: str) -> None:
        """No more answers come."""
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionError(why))


class Held:
    """Bytes that all of them may have together.

    Attributes:
        bytes: in use.
    """

    def __init__(self, bytes_max: int, full: str) -> None:
        """full: what is said where they are used up."""
        self.bytes = 0
        self._bytes_max = bytes_max
        self._full = full

    @contextmanager
    def request(self, size: int) -> Iterator[None]:
        """A request of so many bytes, as long as it waits. Raises Busy."""
        if self.bytes + size > self._bytes_max:
            raise sdk.Busy(self._full)
        self.bytes += size
        try:
            yield
        finally:
            self.bytes -= size
