"""Long work on the event loop, in slices: others have a turn in between.

A slice is measured, not counted, as a step may wait for the disk. What the work reads may change
between two slices.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.004
SORTED_AT_ONCE = 4096


class Slices:
    """Those of one call."""

    def __init__(self, seconds: Callable[[], float] | None = None) -> None:
        """seconds: a clock that does not go back; the loop's, if not given."""
        self._seconds = seconds or asyncio.get_running_loop().time
        self._until = self._seconds() + SLICE_SECONDS

    async def turn(self) -> None:
        """To be awaited between two steps: the others' turn, once this slice is over."""
        if self._seconds() >= self._until:
            await asyncio.sleep(0)
            self._until = self._seconds() + SLICE_SECONDS

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with turns of others between them."""
        for item in items:
            yield item
            if self._seconds() >= self._until:
                await self.turn()

    async def parts(self, items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
        """The items, so many at a time."""
        rest = iter(items)
        while part := list(islice(rest, size)):
            yield part
            await self.turn()

    async def ordered(self, words: Iterable[str]) -> Iterator[str]:
        """The words in order: sorted in runs, which are merged as they are taken."""
        runs = [sorted(part) async for part in self.parts(words, SORTED_AT_ONCE)]
        return heapq.merge(*runs)


__all__ = ["SLICE_SECONDS", "Slices"]
