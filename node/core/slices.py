"""Long work on the event loop, in slices: others have a turn in between.

A slice is measured, not counted, as a step may wait for the disk. What the work reads may change
between two slices. All calls share the time that there is in a turn (`TurnBudget`).
"""

import heapq
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from math import inf
from time import monotonic
from typing import TypeVar

from duolog_server.node.core.turnbudget import TurnBudget, budget_of_loop

T = TypeVar("T")

SORTED_AT_ONCE = 4096


class Slices:
    """Time slices of one call."""

    def __init__(self, budget: TurnBudget | None = None) -> None:
        """budget: the loop's, if not given."""
        self._budget = budget or budget_of_loop()
        self._seconds = self._budget.seconds if self._budget is not None else monotonic
        self._until = -inf if self._budget is not None else inf

    async def turn(self) -> None:
        """Await before each step: others' turn comes first, once this slice is over."""
        if self._budget is not None and self._seconds() >= self._until:
            self._until = await self._budget.slice(goes_on=self._until != -inf)

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with turns of others between them."""
        for item in items:
            if self._seconds() >= self._until:
                await self.turn()
            yield item

    async def parts(self, items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
        """The items, so many at a time."""
        rest = iter(items)
        while part := list(islice(rest, size)):
            await self.turn()
            yield part

    async def ordered(self, words: Iterable[str]) -> Iterator[str]:
        """The words in order: sorted in runs, which are merged as they are taken."""
        runs = [sorted(part) async for part in self.parts(words, SORTED_AT_ONCE)]
        return heapq.merge(*runs)
