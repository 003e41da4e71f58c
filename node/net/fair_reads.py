"""How much is read of a port's connections in a turn of the event loop, all of them together.

Rules: once a turn's time is used up, a connection whose bytes arrive waits, unless they are few,
and so does one that has had its share and has more. Each kind waits in a line of its own, and the
two lines have their turns alternately: a client that sends little does not wait for those who send
without an end. What a connection sent at once is not parted for others: it is served together.
Calls that wait begin a few in a turn: each continues in the next, where it reads a queue or more.
"""

from collections import deque
from collections.abc import Callable

from duolog_server.node.net.next_tick import NextTick

SECONDS = 0.0005  # of a turn, in which connections begin to be read; and the share of each
CALLS = 4  # that begin in a turn

_GoOn = Callable[[], None]


class FairReads:
    """The turns of all connections of a port."""

    def __init__(self) -> None:
        self._spent, self._calls = 0.0, 0  # seconds of this turn, and calls that began
        self._arrived: deque[_GoOn] = deque()
        self._going_on: deque[_GoOn] = deque()
        # The line that had the last turn, and the one that has the next.
        self._lines = self._going_on, self._arrived
        self._turn = NextTick(self._next)

    @property
    def has_time(self) -> bool:
        """Whether another connection may be read in this turn."""
        return self._spent < SECONDS

    @property
    def has_calls(self) -> bool:
        """Whether more calls may begin in this turn."""
        return self._calls < CALLS

    def took(self, seconds: float) -> None:
        """A connection was read for so long.

        Short readings of a few turns are counted as those of one: each new turn that is planned
        takes time as well.
        """
        self._spent += seconds
        if self._spent > SECONDS / 2:
            self._turn.plan()

    def began(self) -> None:
        """A call began."""
        self._calls += 1
        self._turn.plan()

    def begin(self, read: _GoOn) -> None:
        """Call this in a later turn: bytes arrived when there was no time."""
        self._arrived.append(read)
        self._turn.plan()

    def go_on(self, read: _GoOn) -> None:
        """Call this in a later turn: the connection has had its share of this one."""
        self._going_on.append(read)
        self._turn.plan()

    def _next(self) -> None:
        self._spent, self._calls = 0.0, 0
        # A call that continues again does so in a later turn.
        left = len(self._arrived) + len(self._going_on)
        try:
            while left and self.has_time and self.has_calls:
                other, line = self._lines
                self._lines = line, other
                if line:
                    left -= 1
                    line.popleft()()
        finally:  # one that fails does not keep the others from their turn
            if self._arrived or self._going_on:
                self._turn.plan()
