"""Requests that wait begin a few in each turn of the event loop, over all connections of a port.

Each that began goes on in the next turn, where it reads a queue or more; so however many of them
arrive, on however many connections, others have their turns in between. Connections that have more
of them go on one after the other.
"""

import asyncio
from collections import deque
from collections.abc import Callable

AT_ONCE = 4


class Beginnings:
    """Those of a port."""

    def __init__(self) -> None:
        self._left = AT_ONCE  # of this turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_planned = False  # the next turn

    @property
    def are_over(self) -> bool:
        """Whether no more should begin in this turn."""
        return self._left <= 0

    def count(self) -> None:
        """One began."""
        self._left -= 1
        self._plan()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call this in a later turn, after those that wait already."""
        self._waiting.append(go_on)
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_planned, self._left = False, AT_ONCE
        try:
            for _ in range(len(self._waiting)):
                if self.are_over:
                    break
                self._waiting.popleft()()
        finally:  # one that fails does not keep the others from their turn
            if self._waiting:
                self._plan()


__all__ = ["Beginnings"]
