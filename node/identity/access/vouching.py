"""Marks by which the nodes of a cluster know what one of them said.

A mark is an HMAC-SHA256 under a key derived from the one that the nodes share. It covers words in
their order; who does not have the key file can make none.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from duolog import _errors as sdk

from duolog_server.node.identity.access.secrets import derived
from duolog_server.node.net.networks import plain_address

VIEWER, VIEWER_MARK = "duolog-viewer", "duolog-viewer-mark"
CONSOLE = b"duolog console v1"


class Vouching:
    """Makes and checks marks."""

    def __init__(self, key: bytes, purpose: bytes = b"") -> None:
        """key: of the key file. purpose: a mark for one is none for another; empty: that is a key
        which was made for one.
        """
        self._key = derived(key, purpose) if purpose else key

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


class Viewers:
    """Addresses of viewers, in calls that the console makes for them.

    A mark covers the address and the user that calls. It gives no right: a call that names a viewer
    needs the rights of both, the viewer's address and that of the console.
    """

    def __init__(self, vouching: Vouching) -> None:
        self._vouching = vouching

    def told(self, user: str, address: str) -> list[tuple[str, str]]:
        """What a call of a user tells of its viewer."""
        mark = self._vouching.mark((user, address))
        return [(VIEWER, address), (VIEWER_MARK, mark)]

    def address(self, user: str, headers: Mapping[str, str]) -> str:
        """The viewer's address that a call names; empty: none.

        Raises Unauthenticated where nobody with the key vouches for it.
        """
        given = headers.get(VIEWER)
        if given is None:
            return ""
        if not self._vouching.is_mark(headers.get(VIEWER_MARK, ""), (user, given)):
            raise sdk.Unauthenticated(
                f"only a console of this cluster may name the address of its viewer ({VIEWER}): if "
                "one did, give it the access.key_file of the nodes"
            )
        try:
            return plain_address(str(ip_address(given.partition("%")[0])))
        except ValueError:
            raise sdk.Unauthenticated(f"{VIEWER} {given[:100]!r} is not an IP address") from None
