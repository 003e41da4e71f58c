"""The users of a simulated node: the node's own gate and tables, with a key that all nodes share.

Passwords are hashed as in a node, by scrypt, but with the least cost that it knows.
"""

import base64
import hashlib
from dataclasses import replace

from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.access import Access, access_with
from duolog_server.node.identity.access.secrets import HASH_BYTES, SALT_BYTES, Seal
from duolog_server.node.identity.access.users import User

KEY = bytes(range(32))
FIRST = "first"  # the user that counts while there are no others
COST = 2


class CheapSeal(Seal):
    """Hashes at the least cost; at a real node's, a hash takes 40 ms."""

    def __init__(self, key: bytes, process: str) -> None:
        """process: which salts it draws."""
        super().__init__(key)
        self._process, self._salts = process, 0

    def fresh_salt(self) -> bytes:
        """See Seal."""
        self._salts += 1
        return hashlib.sha256(f"{self._process}:{self._salts}".encode()).digest()[:SALT_BYTES]

    def hash_password(self, user: str, password: str, salt: bytes = b"") -> str:
        """See Seal."""
        digest = hashlib.scrypt(password.encode(), salt=salt, n=COST, r=1, p=1, dklen=HASH_BYTES)
        words = (base64.b64encode(part).decode() for part in (salt, digest))
        return "$".join(("scrypt", str(COST), "1", "1", *words))


def users_of(broker: Broker, process: str) -> Access:
    """What a node with users has. process: tells it from others of the run."""
    access = access_with(
        KEY,
        User(FIRST, is_super=True),
        lambda: broker.metadata.access,
        lambda: not broker.replication.may_be_behind(),
        broker.times.wall_ms,
    )
    access.gate.lockout = broker.lockout
    return replace(access, seal=CheapSeal(KEY, process))
