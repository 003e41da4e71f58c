"""The scheduler: virtual time, chance from one seed, and a hash of everything that happened."""

import hashlib
import heapq
import random
from collections.abc import Callable


class World:
    """A heap of things to do. Time is in ms; nothing here looks at a clock or a true random."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self.trace: list[str] | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def chance(self, concern: str) -> random.Random:
        """A stream of its own for each concern: one more draw in one shifts no other."""
        return random.Random(f"{self.seed}:{concern}")

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Do something at a time."""
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, do))

    def after(self, delay: float, do: Callable[[], None]) -> None:
        """Do something after some ms."""
        self.at(self.now + delay, do)

    def note(self, text: str) -> None:
        """What happened becomes part of the trace, and of its hash."""
        self._hash.update(text.encode())
        if self.trace is not None:
            self.trace.append(f"{self.now:10.3f} {text}")

    def run_until(self, end: float, each: Callable[[], None]) -> None:
        """Run all that is due up to a time; `each` is called after every event."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, do = heapq.heappop(heap)
            self.events += 1
            do()
            each()
        self.now = end

    @property
    def digest(self) -> str:
        """Hash of the trace so far."""
        return self._hash.hexdigest()
