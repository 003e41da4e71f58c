"""Keys by which a frames connection begins: one that all clients share, or one for each user.

A client asks for a key over gRPC, where it says who it is, and greets the frames port with it. So
a client that greets is known, and nothing secret of a user travels there.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from duolog._frames import KEY_BYTES

from duolog_server.node.identity.access.gate import PRINCIPAL, Principal

KEYS_MAX = 20_000  # that were handed out and not used
KEY_SECONDS = 60.0


class FramesKeys(Protocol):
    """The keys of a process."""

    def issue(self) -> bytes:
        """A key for the user whose call this is."""

    def take(self, key: bytes) -> tuple[bool, Principal | None]:
        """Whether a connection may begin with it, and whose it is (None: anybody's)."""


class SharedKey:
    """Without users: one key, that names the process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)

    def issue(self) -> bytes:
        """See FramesKeys."""
        return self._key

    def take(self, key: bytes) -> tuple[bool, Principal | None]:
        """See FramesKeys."""
        return key == self._key, None


class UserKeys:
    """With users: each key is for one connection of one user, and is good for a minute."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """seconds: a monotonic clock."""
        self._seconds = seconds
        self._issued: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()

    def issue(self) -> bytes:
        """See FramesKeys."""
        caller = PRINCIPAL.get()
        assert caller is not None, "only users get here"
        now = self._seconds()
        key = secrets.token_bytes(KEY_BYTES)
        self._issued[key] = caller, now + KEY_SECONDS
        while self._issued:
            _, until = next(iter(self._issued.values()))
            if until > now and len(self._issued) <= KEYS_MAX:
                break
            self._issued.popitem(last=False)
        return key

    def take(self, key: bytes) -> tuple[bool, Principal | None]:
        """See FramesKeys."""
        caller, until = self._issued.pop(bytes(key), (None, 0.0))
        if caller is None or until <= self._seconds():
            return False, None
        return True, caller
