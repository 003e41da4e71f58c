"""Who sends a request: a user that signed it, or whom the client's certificate names.

Each request is looked at by itself: several users may share a connection. A signature that is there
and wrong counts before any certificate.
"""

import hmac
from typing import Protocol

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.signatures import (
    ACCESS_KEY,
    SIGNATURE,
    access_key_of,
    is_signed,
)
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.identity.access.gate import UNKNOWN, Gate, Principal
from duolog_server.node.identity.access.lockout import Lockout, Login
from duolog_server.node.identity.rights.policies import NAME_MAX

NOBODY = "No accessKey is configured: this node serves signed requests only (ACL 1.0)"


class Callers(Protocol):
    """Recognises them."""

    def recognise(self, peer: Peer, request: Command) -> Principal | None:
        """The user; None where there are none, and the request may be served.

        Raises Unauthenticated, Throttled.
        """


class KeyPair:
    """Without users: one pair of keys, with which everybody signs."""

    def __init__(self, access_key: str, secret_key: str, lockout: Lockout) -> None:
        self._access_key = access_key.encode()
        self._secret = secret_key.encode()
        self._lockout = lockout

    def recognise(self, peer: Peer, request: Command) -> None:
        """See Callers."""
        name = access_key_of(request)
        if not name:
            raise sdk.Unauthenticated(NOBODY)
        known = hmac.compare_digest(name.encode(), self._access_key)
        login = Login(name, peer.host.address, peer.name)
        if not self._lockout.guarded(login, lambda: is_signed(request, self._secret) and known):
            raise _failed(name)


class Users:
    """The users of the node."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def recognise(self, peer: Peer, request: Command) -> Principal:
        """See Callers."""
        source = peer.host.address
        if ACCESS_KEY not in request.fields and SIGNATURE not in request.fields:
            if peer.certificate:
                return self._gate.by_certificate(peer.certificate, source)
            raise sdk.Unauthenticated(NOBODY)
        name = access_key_of(request)
        try:
            login = Login(name, source, peer.name)
            return self._gate.signed(login, lambda secret: is_signed(request, secret))
        except sdk.Unauthenticated:
            raise _failed(name) from None


def _failed(name: str) -> sdk.Unauthenticated:
    return sdk.Unauthenticated(
        f"Check signature failed for accessKey={name[:NAME_MAX]}: {UNKNOWN}, or does not sign"
    )
