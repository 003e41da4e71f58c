"""The console served over HTTP, on sockets that are open already."""

import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from duolog_server.node.net.handshakes import Handshakes
from duolog_server.node.net.listener import ACCEPTED_AT_ONCE, queue
from duolog_server.ops.console.http.connections import CONNECTIONS_MAX, Connection
from duolog_server.ops.console.http.security import App

TASKS_MAX = 2 * CONNECTIONS_MAX  # running answers, also of clients that left
HEADER_BYTES_MAX = 32 << 10
IDLE_SECONDS = 15
STOP_SECONDS = 2


class Server(uvicorn.Server):
    """Ends when its owner stops it, not by the signals of its process."""

    def __init__(self, app: App, context: ssl.SSLContext | None = None) -> None:
        """context: None for plain text."""
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            backlog=ACCEPTED_AT_ONCE,
            log_config=None,
            log_level="error",  # anybody can send invalid requests
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=TASKS_MAX,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        config.load()
        self._handshakes = Handshakes(context) if context is not None else None
        if self._handshakes is not None:
            made = self._handshakes.of(Connection)
            config.http_protocol_class = made  # type: ignore[assignment]
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        queue(sockets or ())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cancel running requests."""
        if self._handshakes is not None:
            for server in self.servers:
                server.close()  # so that no further one begins
            await self._handshakes.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the program."""
        yield

    def end(self) -> None:
        """Let `serve` return soon."""
        self.should_exit = True
