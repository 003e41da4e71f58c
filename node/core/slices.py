"""Long work on the event loop, in slices: others have a turn in between.

A slice is measured, not counted, as a step may wait for the disk. What the work reads may change
between two slices. All calls share the time that there is in a turn (`TurnBudget`).
"""

import heapq
from collections.abc import AsyncIterator, Container, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

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


# Messages of very many rows, serialized in slices.
#
# Rule of protobuf: the bytes of a message are those of its fields, one after the other, and a row
# of a repeated field is a field by itself. So they may be made a few rows at a time.
ROWS_MAX = 1000  # of a field; fewer are serialized at once
AT_ONCE = 100
LENGTH_DELIMITED = 2


@lru_cache(4096)
def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


async def serialized(message: Message, slices: Slices) -> bytes:
    """The bytes of a message; it may not change meanwhile."""
    fields = message.ListFields()
    long = [(field, rows) for field, rows in fields if _is_long(field, rows)]
    if not long:
        return message.SerializeToString()
    made = bytearray(_without(message, {field.name for field, _ in long}).SerializeToString())
    for field, rows in long:
        tag = _varint(field.number << 3 | LENGTH_DELIMITED)
        async for part in slices.parts(rows, AT_ONCE):
            for row in part:
                data = row.SerializeToString()
                made += tag + _varint(len(data)) + data
    return bytes(made)


def _is_long(field: FieldDescriptor, rows: Any) -> bool:
    if not field.is_repeated or field.message_type is None or len(rows) <= ROWS_MAX:
        return False
    return not field.message_type.GetOptions().map_entry


def _without(message: Message, long: Container[str]) -> Message:
    """The other fields of a message."""
    made = type(message)()
    for field, value in message.ListFields():
        if field.name in long:
            continue
        if field.is_repeated or field.message_type is not None:
            getattr(made, field.name).MergeFrom(value)
        else:
            setattr(made, field.name, value)
    return made
