"""Which messages a group wants: tags, told by their hashes in the queue and then by their text."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from store.kernels.jit import EMPTY_I64, I64
from store.kernels.text import java_hash

TAGS_MAX = 100


class BadFilter(ValueError):
    """The expression cannot be understood."""


class MessageFilter(Protocol):
    """Tells a queue's messages apart."""

    @property
    def codes(self) -> I64:
        """Hashes of which a queue entry must have one; empty: any."""

    def matches(self, properties: dict[str, str]) -> bool:
        """Whether a message is wanted."""


def tags_codes(tags: list[str]) -> I64:
    """Hashes of wanted tags, as queue entries carry them; empty for all messages."""
    if not tags or "*" in tags:
        return EMPTY_I64
    hashes = [java_hash(np.frombuffer(tag.encode(), np.uint8)) for tag in tags]
    return np.array(hashes, np.int64)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """`A || B`: exact and case-sensitive; no tags: everything."""

    tags: frozenset[str]
    codes: I64

    @staticmethod
    def parse(expression: str) -> "TagFilter":
        """Read an expression; `*` or nothing is everything. Raises BadFilter."""
        words = [word.strip() for word in expression.split("||")]
        if expression.strip() in ("", "*"):
            return EVERYTHING
        if not all(words):
            raise BadFilter(f"tag expression {expression!r} has an empty tag")
        if len(words) > TAGS_MAX:
            raise BadFilter(f"{len(words)} tags, the limit is {TAGS_MAX}")
        if "*" in words:
            return EVERYTHING
        return TagFilter(frozenset(words), tags_codes(words))

    def matches(self, properties: dict[str, str]) -> bool:
        """Equal hashes are not equal tags."""
        return not self.tags or properties.get("TAGS") in self.tags


EVERYTHING = TagFilter(frozenset(), EMPTY_I64)
