"""Terms of a search, its progress, and how a text is found in batches.

Rules: a batch's bodies are searched as one buffer, and so are its properties; only what is found is
looked at message by message. Properties that nodes and SDKs set for themselves are not searched.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from duolog import BadRequest, Batch
from duolog._columns import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, RESERVED

TEXT_CHARACTERS_MAX = 1024
RESULTS, RESULTS_MAX = 200, 10_000
SECONDS = 120.0
SEARCHED = frozenset(("KEYS", "TAGS", "UNIQ_KEY"))  # of the reserved ones


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a search. Either text or sql is given.

    text: part of a body, of a key or tag, or of a user property; any_case: in any case.
    sql: an SQL92 expression over properties, which nodes evaluate. begin_ms, end_ms: messages that
    were stored from then until then; 0: from the first, until now. newest_first: from the end
    towards the beginning. results_max: it ends when so many are found. seconds: that it may take.
    """

    topic: str
    text: str = ""
    sql: str = ""
    any_case: bool = False
    begin_ms: int = 0
    end_ms: int = 0
    newest_first: bool = True
    results_max: int = RESULTS
    seconds: float = SECONDS

    def check(self) -> None:
        """Raise BadRequest for terms that nothing can be searched by."""
        if not self.topic:
            raise BadRequest("name the topic to search")
        if bool(self.text) == bool(self.sql):
            raise BadRequest("search by a text or by SQL, not by both")
        if len(self.text) > TEXT_CHARACTERS_MAX:
            raise BadRequest(
                f"the text has {len(self.text)} characters; the limit is {TEXT_CHARACTERS_MAX}"
            )
        if self.end_ms and self.end_ms < self.begin_ms:
            raise BadRequest("the search would end before it begins: exchange the two times")
        if not 1 <= self.results_max <= RESULTS_MAX:
            raise BadRequest(
                f"a search finds 1 to {RESULTS_MAX} messages at most, not {self.results_max}"
            )


class End(StrEnum):
    """Why a search is over."""

    WHOLE = "whole"  # all of the range was read
    ENOUGH = "enough"  # as many were found as were asked for
    LATE = "late"  # its time was up
    STOPPED = "stopped"  # its caller ended it


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is.

    scanned, total: messages that were looked at, and that the range has. at_ms: all up to this
    time were looked at, in the search's direction; 0: not known yet. end: None while it runs.
    """

    scanned: int = 0
    total: int = 0
    at_ms: int = 0
    end: End | None = None


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
