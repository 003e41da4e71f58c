"""The waits of polls: for messages of a queue, or a deadline; very many may wait for the same.

Those whose wait is over continue in its order, some in each turn of the event loop: others have
their turns in between.
"""

import asyncio
from collections import deque
from contextvars import Context

from duolog_server.node.engine.arrivals import ArrivalBoard
from duolog_server.node.net.next_tick import NextTick
from duolog_server.store.queueends import QueueKey

AT_ONCE = 32  # polls in a turn: each reads its queue, and answers

_Over = tuple["asyncio.Future[bool]", bool]


class Turns:
    """Resumes polls.

    Attributes:
        context: of their timers, of which each would have a copy of its call's.
    """

    def __init__(self) -> None:
        self.context = Context()
        self._over: deque[_Over] = deque()
        self._left = AT_ONCE  # of this turn
        self._turn = NextTick(self._next)

    def go_on(self, future: "asyncio.Future[bool]", arrived: bool) -> None:
        """Resume in this turn, or in a later one. arrived: the result of the wait."""
        self._over.append((future, arrived))
        self._some()

    def _some(self) -> None:
        while self._over and self._left:
            future, arrived = self._over.popleft()
            if not future.done():  # or it was cancelled meanwhile
                future.set_result(arrived)
                self._left -= 1
        self._turn.plan()

    def _next(self) -> None:
        self._left = AT_ONCE
        if self._over:
            self._some()


class Waiting:
    """One of them."""

    __slots__ = ("_board", "_future", "_has_more", "_is_late", "_key", "_timer", "_turns")

    def __init__(self, board: ArrivalBoard, turns: Turns, key: QueueKey, deadline: float) -> None:
        """deadline: loop time."""
        self._board = board
        self._turns = turns
        self._key = key
        self._has_more = False  # since the queue was looked at
        self._is_late = False
        self._future: asyncio.Future[bool] | None = None
        self._timer = asyncio.get_running_loop().call_at(
            deadline, self._late, context=turns.context
        )
        board.watch(key, self)

    def set(self) -> None:
        """See Watcher."""
        self._has_more = True
        self._go_on()

    def _late(self) -> None:
        self._is_late = True
        self._go_on()

    def _go_on(self) -> None:
        future, self._future = self._future, None
        if future is not None:
            self._turns.go_on(future, self._has_more)

    def look(self) -> None:
        """The queue is looked at now."""
        self._has_more = False

    async def arrived(self) -> bool:
        """Wait until the queue has more than when it was looked at; False at the deadline."""
        if self._has_more or self._is_late:
            return self._has_more
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._future = future
        try:
            return await future
        finally:
            self._future = None

    def end(self) -> None:
        """Wait no more."""
        self._timer.cancel()
        self._board.unwatch(self._key, self)
