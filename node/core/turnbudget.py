"""The budget of long work in a turn of the event loop: one for all calls together.

Rules: however many long calls run, a turn has about one slice of their work, and while
any wait, the next turn has none: what arrived during a slice waits for that one alone. A call for
which nothing is left waits in a line. Calls that begin wait in a line of their own, and the two
lines have their slices alternately: a short call does not wait until each of the long ones has had
one.
"""

import asyncio
import time
from asyncio import AbstractEventLoop, Future
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from weakref import WeakKeyDictionary

from duolog_server.node.net.next_tick import NextTick

SLICE_SECONDS = 0.001
BEGIN_AT_ONCE = 32  # calls that begin, at most, which share a slice


class _Line:
    """Calls that wait for a slice, in their order. at_once: how many may share one."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: OrderedDict[object, Future[None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, left: Callable[[], float | None]) -> float:
        """Wait for a slice; returns its end. left: the end for a woken call; None where
        those before it have used all of it: it keeps its place.
        """
        loop, place = asyncio.get_running_loop(), object()
        try:
            while True:
                self._waiting[place] = called = loop.create_future()
                await called
                until = left()
                if until is not None:
                    return until
        finally:
            del self._waiting[place]

    def call(self) -> None:
        """Wake the waiters at its head: they continue in the next turn."""
        for called in islice(self._waiting.values(), self._at_once):
            if not called.done():
                called.set_result(None)


class TurnBudget:
    """The budget of an event loop."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """seconds: a clock that does not go back."""
        self.seconds = seconds
        self._until: float | None = None  # None: this turn has had no slice
        self._begin, self._go_on = _Line(BEGIN_AT_ONCE), _Line(1)
        self._next, self._after = self._begin, self._go_on  # whose slice it is
        self._turn = NextTick(self._tick)

    async def slice(self, goes_on: bool) -> float:
        """Wait for a slice; until when it lasts. goes_on: the call has had one."""
        until = None if self._begin or self._go_on else self._left()
        if until is not None:
            return until
        self._turn.plan()
        return await (self._go_on if goes_on else self._begin).wait(self._left)

    def _left(self) -> float | None:
        """The end of this turn's slice; None if it is over."""
        if self._until is None:
            self._until = self.seconds() + SLICE_SECONDS
            self._turn.plan()
        elif self.seconds() >= self._until:
            return None
        return self._until

    def _tick(self) -> None:
        """The slice of this turn is over; if it had none, the next turn has one.

        Woken waiters continue before the tick of that turn.
        """
        had_none, self._until = self._until is None, None
        if had_none:
            if not self._next:
                self._next, self._after = self._after, self._next
            self._next.call()
            self._next, self._after = self._after, self._next
        if self._begin or self._go_on:
            self._turn.plan()


_BUDGETS: WeakKeyDictionary[AbstractEventLoop, TurnBudget | None] = WeakKeyDictionary()


def budget_of_loop() -> TurnBudget | None:
    """The running loop's budget; None where time does not pass during its turns."""
    loop = asyncio.get_running_loop()
    try:
        return _BUDGETS[loop]
    except KeyError:
        budget = _BUDGETS[loop] = TurnBudget()
        return budget


def without_budget(loop: AbstractEventLoop) -> None:
    """A loop of the simulator: no time goes by while it works."""
    _BUDGETS[loop] = None
