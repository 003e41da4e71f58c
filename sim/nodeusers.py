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

    def fresh_salt(self) -> bytes:
        """None: what is not told is drawn from the words."""
        return b""

    def hash_password(self, user: str, password: str, salt: bytes = b"") -> str:
        """See Seal; the salt is drawn from the same words."""
        salt = salt or hashlib.sha256(f"{user}:{password}".encode()).digest()[:SALT_BYTES]
        digest = hashlib.scrypt(password.encode(), salt=salt, n=COST, r=1, p=1, dklen=HASH_BYTES)
        words = (base64.b64encode(part).decode() for part in (salt, digest))
        return "$".join(("scrypt", str(COST), "1", "1", *words))


def users_of(broker: Broker) -> Access:
    """What a node with users has."""
    access = access_with(
        KEY,
        User(FIRST, is_super=True),
        lambda: broker.metadata.access,
        lambda: not broker.replication.may_be_behind(),
        broker.times.wall_ms,
    )
    return replace(access, seal=CheapSeal(KEY))
