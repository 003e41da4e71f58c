"""Waiters for offsets: ordered by offset, each with a deadline.

A waiter is released as soon as its own offset is reached, whatever arrived before it: a request
that stalls delays no request that is ready.
"""

import heapq
import itertools
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from duolog_server.store.clocks import MonoMs
from duolog_server.store.status import PutMessageStatus

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


# GroupTransferService: the puts that wait until enough slaves have them.
#
# They wait in the order of their offsets and are released together as the confirm offset passes
# them; a put whose deadline has passed gets an answer that says so, and delays no other (see
# `ha.waiters`).
@dataclass(frozen=True, slots=True)
class Release:
    """Answer these puts."""

    tokens: list[Any]
    status: PutMessageStatus


class GroupTransferService:
    """Waiting puts; a token identifies a put to its owner, who answers it."""

    def __init__(self, slave_timeout_ms: int) -> None:
        self._timeout_ms = slave_timeout_ms
        self._waiting: OffsetWaiters[Any] = OffsetWaiters()

    def __len__(self) -> int:
        """Puts that wait."""
        return len(self._waiting)

    @property
    def first(self) -> int | None:
        """The lowest end offset of the waiting puts; None if no put waits."""
        return self._waiting.first

    def put_request(self, end_offset: int, now_ms: MonoMs, token: Any) -> None:
        """Wait until the confirm offset reaches a put's end, or slave_timeout is over."""
        self._waiting.add(end_offset, now_ms + self._timeout_ms, token)

    def notify_transfer_some(self, confirm_offset: int) -> list[Release]:
        """The confirm offset moved."""
        return _release(self._waiting.release(confirm_offset), PutMessageStatus.PUT_OK)

    def expire(self, now_ms: MonoMs) -> list[Release]:
        """Time has passed."""
        return _release(self._waiting.expire(now_ms), PutMessageStatus.FLUSH_SLAVE_TIMEOUT)

    def fail_all(self) -> list[Release]:
        """The store is fenced: the outcome of the puts is unknown."""
        return _release(self._waiting.drain(), PutMessageStatus.UNKNOWN_ERROR)


def _release(tokens: list[Any], status: PutMessageStatus) -> list[Release]:
    return [Release(tokens, status)] if tokens else []
