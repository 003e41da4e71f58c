"""Marks by which the nodes of a cluster know what one of them said.

A mark is an HMAC-SHA256 under a key derived from the one that the nodes share. It covers words in
their order; who does not have the key file can make none.
"""

import hashlib
import hmac
from collections.abc import Iterable

from duolog_server.node.identity.access.secrets import derived


class Vouching:
    """Makes and checks marks."""

    def __init__(self, key: bytes, purpose: bytes) -> None:
        """key: of the key file. purpose: a mark for one is none for another."""
        self._key = derived(key, purpose)

    def mark(self, words: Iterable[str]) -> str:
        """The mark of some words, in hexadecimal."""
        made = hmac.new(self._key, digestmod=hashlib.sha256)
        for word in words:
            data = word.encode()
            made.update(len(data).to_bytes(4, "big") + data)
        return made.hexdigest()

    def is_mark(self, given: str, words: Iterable[str]) -> bool:
        """Whether that is the mark of these words."""
        return hmac.compare_digest(given.encode(), self.mark(words).encode())
