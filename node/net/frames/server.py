"""The frames port: connections, what they share, and their clean end."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog
from duolog._background import Background
from duolog._busypoll import busy_poll
from duolog._frames import NUMBERS

from duolog_server.node.net.accept_limiter import Listening, listen
from duolog_server.node.net.connections import PortConnections
from duolog_server.node.net.frames.authenticator import Door
from duolog_server.node.net.frames.connection import Connection, Terms
from duolog_server.node.net.handshakes import Handshakes
from duolog_server.node.net.methods import Handler
from duolog_server.node.net.receive_budget import Arriving
from duolog_server.node.runtime.config import LimitsSection

log = structlog.get_logger("duolog.node")

SHUTDOWN_SECONDS = 2.0  # of TLS
SHORT_CALLS_MAX = 1024  # of one connection, beside those that wait for messages
# No call: as a stream, it would wait for MORE, which comes behind requests that it does not take.
APPEND = "/duolog.v1.Messages/Append"


def numbered(methods: Mapping[str, Handler]) -> dict[int, Handler]:
    """The methods of the native API by their numbers in frames."""
    return {NUMBERS[path]: method for path, method in methods.items() if path != APPEND}


class FramesServer:
    """Listens for clients that speak frames.

    Attributes:
        port: where it listens; 0 before.
    """

    def __init__(
        self,
        door: Door,
        answered: Callable[[], None],
        limits: LimitsSection,
        failed: Callable[[Exception], None],
        methods: Mapping[str, Handler],
    ) -> None:
        """door, answered: see Terms. failed: is told of a bug in a call. methods: those of the
        native API, by their paths.
        """
        self.port = 0
        self._calls = Background(failed)
        self._ticking = Background(failed)
        self._connections: PortConnections[Connection] = PortConnections(
            limits,
            lambda address, reason: log.warning(
                "frames: too many connections", address=address, reason=reason
            ),
        )
        self._server: Listening | None = None
        self._handshakes: Handshakes | None = None
        self._terms = Terms(
            door,
            numbered(methods),
            answered,
            self._calls.start,
            limits.request_bytes_max,
            limits.append_in_flight_max,
            limits.polls_max + SHORT_CALLS_MAX,
            Arriving(limits.arriving_bytes_max),
            busy_poll(0),
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
        """Bytes of the room for long frames that have not arrived whole."""
        return self._terms.arriving.taken

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, busy_poll_us: int = 0
    ) -> None:
        """Listen; with port 0 on a free one. tls: None for plain text. Raises OSError.

        busy_poll_us: how long to look for the request after an answer; see NodeSection.
        """
        self._terms = replace(self._terms, busy_poll=busy_poll(busy_poll_us))
        made: Callable[[], asyncio.BaseProtocol] = self._connection
        if tls is not None:
            self._handshakes = Handshakes(tls, SHUTDOWN_SECONDS)
            made = self._handshakes.of(self._connection)
        self._server = await listen(made, host, port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticking.start(self._connections.tick())

    def _connection(self) -> Connection:
        return Connection(self._terms, self._connections.joined)

    async def stop(self, grace: float) -> None:
        """Take no more calls, let those under way end for so many seconds, close."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            await self._handshakes.stop()
        await self._connections.stop(grace, self._calls)
        await self._ticking.stop()


__all__ = ["FramesServer"]
