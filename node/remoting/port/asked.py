"""What a client was asked and has not answered."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from duolog._errors import Busy

from node.remoting.codec.command import Command

ASKED_MAX = 64  # of one client
_NUMBERS = 0x7FFFFFFF


class Asked:
    """The requests to one client that wait for its answers, by their numbers."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._last = 0

    @contextmanager
    def one(self) -> Iterator[tuple[int, "asyncio.Future[Command]"]]:
        """A request's number, and its answer. Raises Busy where too many wait."""
        if len(self._waiting) >= ASKED_MAX:
            raise Busy(f"the client has not answered {ASKED_MAX} requests")
        self._last = number = (self._last + 1) & _NUMBERS
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            yield number, future
        finally:
            self._waiting.pop(number, None)

    def answered(self, answer: Command) -> None:
        """An answer arrived; one that nobody waits for is left out."""
        future = self._waiting.get(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)

    def end(self) -> None:
        """The client is gone."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the client is gone"))


__all__ = ["ASKED_MAX", "Asked"]
