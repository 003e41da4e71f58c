"""The HTTP port of the metrics: `GET /metrics`, one answer per connection.

Rules: few connections, short requests, one deadline for all of a connection, whatever its client
does. A connection whose request has not come is closed for a new one; a scrape ends when its client
is gone. An error of a scrape is logged and answered; it never ends the node. Where the node has
users, one of them asks.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import structlog
from duolog import _errors as sdk
from duolog._background import Background, report, together, without_frames

from duolog_server.node.net.handshakes import Handshakes
from duolog_server.node.net.listener import close, listen
from duolog_server.node.net.networks import plain_address

log = structlog.get_logger("duolog.node")

T = TypeVar("T")

CONNECTIONS_MAX = 16
REQUEST_BYTES_MAX = 8192
DEADLINE_SECONDS = 10.0
SCRAPER_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
PATH = "/metrics"
CHALLENGE = 'WWW-Authenticate: Basic realm="duolog", charset="UTF-8"\r\n'
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
Scrape = Callable[[float], Awaitable[list[bytes]]]  # until a time of the loop's clock
# Of an `Authorization` header and an address: raises Unauthenticated, NoPermission, Busy.
Admit = Callable[[str, str], Awaitable[None]]


class Endpoint:
    """Answers HTTP requests with what `scrape` returns; it raises TimeoutError at its deadline."""

    def __init__(self, scrape: Scrape, content_type: str, admit: Admit | None = None) -> None:
        """admit: None where anybody may ask."""
        self._scrape = scrape
        self._admit = admit
        self._content_type = content_type
        self._connections = Background(report)
        self._open: set[asyncio.StreamWriter] = set()
        self._idle: dict[asyncio.StreamWriter, None] = {}  # whose requests have not come, by age
        self._server: asyncio.Server | None = None
        self._handshakes: Handshakes | None = None
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen; with port 0 on a free one. tls: None for plain text. Raises OSError."""
        made: Callable[[], asyncio.BaseProtocol] = self._connection
        if tls is not None:
            self._handshakes = Handshakes(tls, DEADLINE_SECONDS)
            made = self._handshakes.of(self._connection)
        self._server = await listen(made, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and end running scrapes."""
        if self._server is not None:
            await close(self._server)
        if self._handshakes is not None:
            await self._handshakes.stop()
        await self._connections.stop()

    def _connection(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=REQUEST_BYTES_MAX)
        return asyncio.StreamReaderProtocol(reader, self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            oldest = next(iter(self._idle), writer)
            self._forget(oldest)
            if oldest is writer:
                return
        self._open.add(writer)
        self._idle[writer] = None
        self._connections.start(self._serve(reader, writer))

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        """A connection ends; this does nothing where all was sent."""
        self._open.discard(writer)
        self._idle.pop(writer, None)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                await self._answer(reader, writer, deadline)
                writer.close()
                await _closed(writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            without_frames(error)  # its reader keeps it
        finally:
            self._forget(writer)
            await _closed(writer)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deadline: float
    ) -> None:
        source = plain_address(str((writer.get_extra_info("peername") or ("",))[0]))
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = None
        self._idle.pop(writer, None)
        status, pieces = await _unless_gone(reader, self._reply(head, source, deadline))
        kind = self._content_type if status == 200 else "text/plain; charset=utf-8"
        answer = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
            f"Content-Type: {kind}\r\n"
            f"Content-Length: {sum(map(len, pieces))}\r\n"
            f"{CHALLENGE if status == 401 else ''}Connection: close\r\n\r\n"
        )
        writer.write(answer.encode())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    async def _reply(
        self, head: bytes | None, source: str, deadline: float
    ) -> tuple[int, list[bytes]]:
        """The status and the body. head: None for one that is too long. source: the client's
        address.
        """
        if head is None:
            return 431, [b"the request is too long\n"]
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return 400, [b"not an HTTP request\n"]
        method, target, _ = words
        if target.partition("?")[0] != PATH:
            return 404, [b"the metrics are at /metrics\n"]
        if method != "GET":
            return 405, [b"only GET is allowed\n"]
        try:
            if self._admit is not None:
                await self._admit(_header(head, "Authorization"), source)
            now = asyncio.get_running_loop().time()
            return 200, await self._scrape(min(deadline, now + _patience(head)))
        except sdk.DuologError as error:
            return _STATUS_OF.get(type(error), 503), [f"{error}\n".encode()]
        except TimeoutError:
            return 503, [b"the metrics could not be collected in time\n"]
        except Exception as error:
            log.error("metrics could not be collected", exc_info=error)
            return 500, [b"the metrics could not be collected; see the node's log\n"]


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Wait until a connection is closed, and let go of the frames of the error that ended it: they
    have the connection, of which TLS has 256 KiB, and the connection has the error.
    """
    try:
        await writer.wait_closed()
    except OSError as error:
        without_frames(error)


async def _unless_gone(reader: asyncio.StreamReader, work: Coroutine[object, None, T]) -> T:
    """Await the work. Raises ConnectionResetError, and cancels it, once the client is gone.

    A client that ends its own side of the connection is gone, too: scrapers do neither before they
    have the answer.
    """
    async with together() as tasks:
        working = tasks.create_task(work)
        watching = tasks.create_task(_end_of(reader))
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            raise ConnectionResetError("the client is gone")
        watching.cancel()
    return working.result()


async def _end_of(reader: asyncio.StreamReader) -> None:
    """Wait until nothing more comes; what comes is of no interest."""
    with contextlib.suppress(OSError):
        while await reader.read(REQUEST_BYTES_MAX):
            pass


def _header(head: bytes, wanted: str) -> str:
    """The header of that name; empty without one."""
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == wanted.lower():
            return value.strip()
    return ""


def _patience(head: bytes) -> float:
    """How many seconds the scraper waits, as Prometheus says."""
    try:
        seconds = float(_header(head, SCRAPER_TIMEOUT))
    except ValueError:
        return DEADLINE_SECONDS
    return seconds if 0 < seconds < DEADLINE_SECONDS else DEADLINE_SECONDS


_STATUS_OF: dict[type[sdk.DuologError], int] = {sdk.Unauthenticated: 401, sdk.NoPermission: 403}
