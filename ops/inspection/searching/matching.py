"""A text is found in batches.

Rules: a batch's bodies are searched as one buffer, and so are its properties; only what is found is
looked at message by message. Properties that nodes and SDKs set for themselves are not searched.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from duolog import Batch
from duolog._columns import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, RESERVED

SEARCHED = frozenset(("KEYS", "TAGS", "UNIQ_KEY"))  # of the reserved ones
_BETWEEN, _WITHIN = PROPERTY_SEPARATOR.encode(), NAME_VALUE_SEPARATOR.encode()
_HIDDEN = frozenset(name.encode() for name in RESERVED - SEARCHED)


class Needle:
    """A text that is searched for. any_case: whether its case does not matter."""

    def __init__(self, text: str, any_case: bool = False) -> None:
        self._plain = text.encode()
        self._lowers = any_case and text.isascii()
        self._pattern: re.Pattern[bytes] | None = None
        if self._lowers:
            self._plain = self._plain.lower()
        elif any_case:
            self._pattern = re.compile(b"".join(map(_either, text)))

    def within(self, text: bytes) -> bool:
        """Whether a text has it."""
        return self._next(self._ready(text), 0)[0] >= 0

    def rows(self, batch: Batch) -> list[int]:
        """The messages of a batch that have it, in order."""
        bodies = set(self._parts(batch.bodies, batch.body_offsets))
        texts, ends = batch.properties, batch.property_offsets
        for k in self._parts(texts, ends):
            if k not in bodies and self._in_properties(texts[ends[k] : ends[k + 1]]):
                bodies.add(k)
        return sorted(bodies)

    def _ready(self, buffer: bytes) -> bytes:
        return buffer.lower() if self._lowers else buffer

    def _next(self, buffer: bytes, start: int) -> tuple[int, int]:
        """Begin and end of the next match; -1: none."""
        if self._pattern is None:
            at = buffer.find(self._plain, start)
            return at, at + len(self._plain)
        found = self._pattern.search(buffer, start)
        return found.span() if found is not None else (-1, -1)

    def _parts(self, buffer: bytes, offsets: Sequence[int]) -> Iterator[int]:
        """Which parts of a buffer have it."""
        buffer = self._ready(buffer)
        at, end = self._next(buffer, 0)
        while at >= 0:
            k = bisect_right(offsets, at) - 1
            if end <= offsets[k + 1]:
                yield k
            # One that begins in this part and ends in the next one is in neither.
            at, end = self._next(buffer, offsets[k + 1])

    def _in_properties(self, text: bytes) -> bool:
        for pair in text.split(_BETWEEN):
            name, _, value = pair.partition(_WITHIN)
            if name not in _HIDDEN and (self.within(value) or self._in_name(name)):
                return True
        return False

    def _in_name(self, name: bytes) -> bool:
        return name.decode(errors="replace") not in SEARCHED and self.within(name)


def _either(character: str) -> bytes:
    """A pattern of a character in every case."""
    cases = sorted({character, character.lower(), character.upper()})
    return b"(?:" + b"|".join(re.escape(case.encode()) for case in cases) + b")"
