"""Which messages a group wants: tags, told by their hashes in the queue and then by their text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from store.kernels import decode
from store.kernels.choose import tagged
from store.kernels.jit import EMPTY_I64, I64, U8
from store.kernels.text import java_hash
from store.reader import MESSAGES_MAX, GetResult

TAGS_MAX = 100


class BadFilter(ValueError):
    """The expression cannot be understood."""


class MessageFilter(Protocol):
    """Tells a queue's messages apart."""

    @property
    def codes(self) -> I64:
        """Hashes of which a queue entry must have one; empty: any."""

    @property
    def at_once(self) -> int:
        """Messages that may be looked at before others have a turn."""

    def chosen(self, result: GetResult) -> GetResult:
        """What is wanted of the messages of a read."""


def _texts(tags: list[str]) -> tuple[U8, I64]:
    """Wanted tags as one blob, and where each one ends."""
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
        """Any of some tags; none, or `*` among them: everything. Raises BadFilter."""
        if len(tags) > TAGS_MAX:
            raise BadFilter(f"{len(tags)} tags, the limit is {TAGS_MAX}")
        if "*" in tags:
            return EVERYTHING
        wanted = sorted(set(tags))
        hashes = [java_hash(np.frombuffer(tag.encode(), np.uint8)) for tag in wanted]
        return TagFilter(tuple(wanted), np.array(hashes, np.int64), _texts(wanted))

    @staticmethod
    def parse(expression: str) -> "TagFilter":
        """Read an expression; `*` or nothing is everything. Raises BadFilter."""
        words = [word.strip() for word in expression.split("||")]
        if expression.strip() in ("", "*"):
            return EVERYTHING
        if not all(words):
            raise BadFilter(f"tag expression {expression!r} has an empty tag")
        return TagFilter.of(words)

    def chosen(self, result: GetResult) -> GetResult:
        """Equal hashes are not equal tags."""
        if not self.tags or not result.count:
            return result
        keep: U8 = np.empty(result.count, np.uint8)
        properties = np.frombuffer(result.properties, np.uint8)
        ends = np.ascontiguousarray(result.table[decode.OUT_PROPERTIES_END])
        tagged(properties, ends, *self.texts, keep)
        return result.chosen(keep)


EVERYTHING = TagFilter((), EMPTY_I64, _texts([]))
