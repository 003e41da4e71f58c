"""The door of the frames port: who may begin a connection, and what stores what comes over it."""

from typing import Protocol

from duolog_server.node.appending import Appending
from duolog_server.store.record import Host


class Authenticator(Protocol):
    """Who may begin."""

    def admit(self, key: bytes, host: Host, certificate: str) -> tuple[object, Appending] | None:
        """Whose connection begins with that key, and what stores its appends; None: nobody's.

        host: of the client. certificate: the common name of its certificate; empty without one.
        """

    def joined(self, principal: object, host: Host, peer: str) -> None:
        """A connection that was admitted begins. Raises Throttled where there are too many.

        peer: the client's address and port, as gRPC names it.
        """

    def left(self, principal: object, host: Host, peer: str) -> None:
        """It ended."""
