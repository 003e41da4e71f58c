"""What a process does while it stands still: nothing, and later everything in the order it came."""

from collections import deque
from collections.abc import Callable

from sim.world import World


class Standstill:
    """Whether a process stands still, and what waits for it to go on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._until = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def begin(self, lasts: float) -> None:
        """The process stands still, for some ms from now on."""
        self._until = self._world.now + lasts
        self._world.at(self._until, self._go_on)

    def end(self) -> None:
        """The process goes on at once."""
        self._until = 0.0
        self._go_on()

    @property
    def on(self) -> bool:
        """Whether the process stands still."""
        return self._world.now < self._until

    def defers(self, do: Callable[[], None]) -> bool:
        """Whether the process stands still; then this is done once it goes on."""
        if self.on:
            self._waiting.append(do)
        return self.on

    def _go_on(self) -> None:
        """Each is an event of its own, as it would have been."""
        if self.on:
            return  # it was told to stand still for longer
        while self._waiting:
            self._world.after(0.0, self._waiting.popleft())
