"""Waiters for offsets: ordered by offset, each with a deadline.

A waiter is released as soon as its own offset is reached, whatever arrived before it: a request
that stalls delays no request that is ready.
"""

import heapq
import itertools
from typing import Generic, TypeVar

T = TypeVar("T")


class OffsetWaiters(Generic[T]):
    """Tokens in the order of their offsets."""

    def __init__(self) -> None:
        self._by_offset: list[tuple[int, int]] = []  # offset, number
        self._by_deadline: list[tuple[float, int]] = []
        self._tokens: dict[int, T] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Waiters."""
        return len(self._tokens)

    @property
    def first(self) -> int | None:
        """The lowest offset that is waited for; None if there is no waiter."""
        while self._by_offset and self._by_offset[0][1] not in self._tokens:
            heapq.heappop(self._by_offset)  # its deadline had passed
        return self._by_offset[0][0] if self._by_offset else None

    def add(self, offset: int, deadline: float, token: T) -> None:
        """Wait for an offset, until a deadline (any clock, always the same one)."""
        number = next(self._numbers)
        self._tokens[number] = token
        heapq.heappush(self._by_offset, (offset, number))
        heapq.heappush(self._by_deadline, (deadline, number))

    def release(self, offset: int) -> list[T]:
        """Tokens whose offset is reached, in the order of their offsets."""
        found = []
        while self._by_offset and self._by_offset[0][0] <= offset:
            _, number = heapq.heappop(self._by_offset)
            token = self._tokens.pop(number, None)
            if token is not None:
                found.append(token)
        return found

    def expire(self, now: float) -> list[T]:
        """Tokens whose deadline has passed, the longest waiting first."""
        found = []
        while self._by_deadline and self._by_deadline[0][0] <= now:
            _, number = heapq.heappop(self._by_deadline)
            token = self._tokens.pop(number, None)
            if token is not None:
                found.append(token)
        self._tidy()
        return found

    def drain(self) -> list[T]:
        """Remove and return all tokens."""
        found = list(self._tokens.values())
        self._tokens.clear()
        return found

    def _tidy(self) -> None:
        """Drop heap entries of removed waiters once they are the majority."""
        if len(self._by_offset) > 64 + 2 * len(self._tokens):
            self._by_offset = [row for row in self._by_offset if row[1] in self._tokens]
            heapq.heapify(self._by_offset)
