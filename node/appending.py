"""What stores the batches of append requests, as every API that takes them sees it."""

import asyncio
from typing import Protocol

from duolog.wire import duolog_pb2 as wire

from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus

Outcome = asyncio.Future[PutMessageStatus]


class Appending(Protocol):
    """Stores batches, for one caller or for all."""

    def append(
        self, request: wire.AppendRequest, host: Host, bodies: bytes | memoryview | None = None
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """Store a batch: the reply, and what to wait for before it may be sent."""

    def settled(self, reply: wire.AppendReply, status: PutMessageStatus) -> None:
        """What a reply waited for is known."""
