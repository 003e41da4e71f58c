"""The frames port: connections, what they share, and their clean end."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog
from duolog._busypoll import busy_poll
from duolog._frames import NUMBERS

from duolog_server.node.net.frames.connection import Authenticator, Connection, Terms
from duolog_server.node.net.methods import Handler
from duolog_server.node.net.port_server import SHORT_CALLS_MAX, PortServer
from duolog_server.node.runtime.config import LimitsSection

log = structlog.get_logger("duolog.node")

# No call: as a stream, it would wait for MORE, which comes behind requests that it does not take.
APPEND = "/duolog.v1.Messages/Append"


def numbered(methods: Mapping[str, Handler]) -> dict[int, Handler]:
    """The methods of the native API by their numbers in frames."""
    return {NUMBERS[path]: method for path, method in methods.items() if path != APPEND}


class FramesServer(PortServer[Connection]):
    """Listens for clients that speak frames."""

    def __init__(
        self,
        authenticator: Authenticator,
        answered: Callable[[], None],
        limits: LimitsSection,
        failed: Callable[[Exception], None],
        methods: Mapping[str, Handler],
    ) -> None:
        """authenticator, answered: see Terms. failed: called with a bug in a call. methods: those
        of the native API, by their paths.
        """
        super().__init__(
            limits,
            failed,
            lambda address, reason: log.warning(
                "frames: too many connections", address=address, reason=reason
            ),
        )
        self._terms = Terms(
            authenticator,
            numbered(methods),
            answered,
            self._calls.start,
            limits.request_bytes_max,
            limits.append_in_flight_max,
            limits.polls_max + SHORT_CALLS_MAX,
            self._arriving,
            busy_poll(0),
        )

    async def start(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, busy_poll_us: int = 0
    ) -> None:
        """Listen; with port 0 on a free one. tls: None for plain text. Raises OSError.

        busy_poll_us: how long to look for the request after an answer; see NodeSection.
        """
        self._terms = replace(self._terms, busy_poll=busy_poll(busy_poll_us))
        await self._serve_secured(self._connection, host, port, tls)

    def _connection(self) -> Connection:
        return Connection(self._terms, self._connections.joined)
