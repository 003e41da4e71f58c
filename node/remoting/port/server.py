"""The remoting port: connections, what they share, and their clean end."""

import asyncio
from collections.abc import Callable

import structlog
from duolog._background import Background
from duolog._frames import Budget

from node.config import LimitsSection
from node.portconnections import PortConnections
from node.remoting.codec.frames import FRAME_BYTES_MAX
from node.remoting.port.connection import Connection, Terms
from node.remoting.port.desk import Desk

log = structlog.get_logger("duolog.remoting")

WHOLES = 8  # longest frames that all connections may hold while they have not arrived whole
SHORT_CALLS_MAX = 1024  # of one connection, beside those that wait for messages


class RemotingServer:
    """Listens for clients of the remoting protocol.

    Attributes:
        port: where it listens; 0 before.
    """

    def __init__(
        self, desk: Desk, limits: LimitsSection, failed: Callable[[Exception], None]
    ) -> None:
        """failed: is told of a bug in what all connections share."""
        self.port = 0
        self._calls = Background(failed)
        self._ticking = Background(failed)
        self._connections: PortConnections[Connection] = PortConnections(
            limits,
            lambda address, reason: log.warning(
                "remoting: too many connections", address=address, reason=reason
            ),
        )
        self._server: asyncio.Server | None = None
        frame_bytes_max = min(limits.request_bytes_max, FRAME_BYTES_MAX)
        self._terms = Terms(
            desk,
            self._calls.start,
            frame_bytes_max,
            limits.polls_max + SHORT_CALLS_MAX,
            Budget(WHOLES * frame_bytes_max),
        )

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def refused(self) -> int:
        """Connections that were too many."""
        return self._connections.refused

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for long frames that have not arrived whole."""
        return self._terms.budget.taken

    async def start(self, host: str, port: int) -> None:
        """Listen; with port 0 on a free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._terms, self._connections.joined),
            host.strip("[]") or None,
            port,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticking.start(self._connections.tick())

    async def stop(self, grace: float) -> None:
        """Serve no more requests, let those under way end for so many seconds, close."""
        if self._server is not None:
            self._server.close()
        await self._connections.stop(grace, self._calls)
        await self._ticking.stop()


__all__ = ["RemotingServer"]
