"""The door of the frames port: who may begin a connection, and what stores what comes over it."""

import asyncio
from typing import Protocol

from duolog.wire import duolog_pb2 as wire

from store.record import Host
from store.status import PutMessageStatus

Outcome = asyncio.Future[PutMessageStatus]


class Appending(Protocol):
    """What a connection uses of the node for its appends."""

    def append(
        self, request: wire.AppendRequest, host: Host, bodies: bytes | memoryview | None = None
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """Store a batch: the reply, and what to wait for before it may be sent."""

    def settled(self, reply: wire.AppendReply, status: PutMessageStatus) -> None:
        """What a reply waited for is known."""


class Door(Protocol):
    """Who may begin."""

    def admit(self, key: bytes, host: Host, certificate: str) -> tuple[object, Appending] | None:
        """Whose connection begins with that key, and what stores its appends; None: nobody's.

        host: of the client. certificate: the common name of its certificate; empty without one.
        """


__all__ = ["Appending", "Door"]
