"""Locks by name, each of which is there as long as a call wants it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Turn:
    """A lock, and the number of calls that want it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: int = 0


class KeyedLocks:
    """One call at a time has the lock of a name."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        """Have the lock of a name; wait for those that want it already."""
        turn = self._turns.setdefault(name, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[name]

    def __len__(self) -> int:
        """How many locks there are."""
        return len(self._turns)

    def unwanted(self) -> list[str]:
        """The names of locks that no call wants; none, between two events."""
        return [name for name, turn in self._turns.items() if turn.wanted <= 0]
