"""Filters by tags: first by their hashes in the queue entries, then by their text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from duolog_server.store.kernels import decode
from duolog_server.store.kernels.choose import tagged
from duolog_server.store.kernels.jit import EMPTY_I64, I64, U8
from duolog_server.store.kernels.text import java_hash
from duolog_server.store.reader import MESSAGES_MAX, GetResult

TAGS_MAX = 100


class BadFilter(ValueError):
    """The expression is invalid."""


class MessageFilter(Protocol):
    """Selects messages of a queue."""

    @property
    def codes(self) -> I64:
        """Hashes, one of which a queue entry must have; empty: any."""

    @property
    def at_once(self) -> int:
        """The number of messages to examine before other work runs."""

    def chosen(self, result: GetResult) -> GetResult:
        """The selected messages of a read."""


def _texts(tags: list[str]) -> tuple[U8, I64]:
    """The wanted tags as one blob, and the end of each."""
    encoded = [tag.encode() for tag in tags]
    blob = np.frombuffer(b"".join(encoded), np.uint8)
    return blob, np.cumsum([len(tag) for tag in encoded], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """`A || B`: exact and case-sensitive; no tags: everything."""

    tags: tuple[str, ...]
    codes: I64
    texts: tuple[U8, I64]
    at_once: int = MESSAGES_MAX

    @staticmethod
    def of(tags: Sequence[str]) -> "TagFilter":
        """A filter for any of these tags; everything without tags or with `*`. Raises BadFilter."""
        found = TagFilter._any_of(tags)
        return EVERYTHING if "*" in tags else found

    @staticmethod
    def _any_of(tags: Sequence[str]) -> "TagFilter":
        if len(tags) > TAGS_MAX:
            raise BadFilter(f"{len(tags)} tags, the limit is {TAGS_MAX}")
        wanted = sorted(set(tags))
        hashes = [java_hash(np.frombuffer(tag.encode(), np.uint8)) for tag in wanted]
        return TagFilter(tuple(wanted), np.array(hashes, np.int64), _texts(wanted))

    @staticmethod
    def parse(expression: str) -> "TagFilter":
        """Read an expression; `*` or nothing is everything. Raises BadFilter.

        As in RocketMQ, `*` beside other tags is a tag of this name, and empty ones do not count.
        """
        if expression.strip() in ("", "*"):
            return EVERYTHING
        words = [word for part in expression.split("||") if (word := part.strip())]
        if not words:
            raise BadFilter(f"tag expression {expression!r} has no tag")
        return TagFilter._any_of(words)

    def chosen(self, result: GetResult) -> GetResult:
        """Compare the texts: tags with equal hashes may differ."""
        if not self.tags or not result.count:
            return result
        keep: U8 = np.empty(result.count, np.uint8)
        properties = np.frombuffer(result.properties, np.uint8)
        ends = np.ascontiguousarray(result.table[decode.OUT_PROPERTIES_END])
        tagged(properties, ends, *self.texts, keep)
        return result.chosen(keep)


EVERYTHING = TagFilter((), EMPTY_I64, _texts([]))
