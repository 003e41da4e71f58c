"""One port for the metrics of all shards: `GET /metrics`, by shard, and `GET /health`.

Rules: a shard that does not answer is `duolog_shard_up` 0, never left out; what the shards answer
is held once, and written family by family; one answer is made at a time; a connection has one
deadline. Shards that have users ask who asks: their refusal is the answer.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import structlog

log = structlog.get_logger("duolog.node")

DEADLINE_SECONDS = 10.0
SHARE = 0.8  # of the time, for what the shards answer
SHARD_SECONDS = SHARE * DEADLINE_SECONDS
SCRAPER_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
CONNECTIONS_MAX = 16
HEAD_BYTES_MAX = 8192
TEXT_BYTES_MAX = 32 << 20  # of one shard
LOOPBACK = "127.0.0.1"
KIND = "text/plain; version=0.0.4; charset=utf-8"
UP = "duolog_shard_up"
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    503: "Service Unavailable",
}
_FAMILY = re.compile(rb"^# HELP (\S+) ", re.MULTILINE)
_COMMENTS = re.compile(rb"(?:#[^\n]*\n)*")
_LABELLED = re.compile(rb"^([A-Za-z_:][\w:]*)\{", re.MULTILINE)
_BARE = re.compile(rb"^([A-Za-z_:][\w:]*) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shard answered. status: 0 where it did not."""

    status: int = 0
    text: bytes = b""


def merged(answers: Sequence[Answer]) -> Iterator[bytes]:
    """The metrics of all shards as one text, in pieces: a family is in one place, with its comments
    once, and all its samples have the label `shard`.
    """
    yield f"# HELP {UP} whether a shard answered with its metrics\n# TYPE {UP} gauge\n".encode()
    for shard, answer in enumerate(answers):
        yield f'{UP}{{shard="{shard}"}} {int(answer.status == 200)}\n'.encode()
    families: dict[bytes, list[tuple[int, int, int]]] = {}  # shard, begin and end in its text
    for shard, answer in enumerate(answers):
        if answer.status != 200:
            continue
        heads = list(_FAMILY.finditer(answer.text))
        ends = [head.start() for head in heads[1:]] + [len(answer.text)]
        for head, end in zip(heads, ends, strict=True):
            families.setdefault(head[1], []).append((shard, head.start(), end))
    for places in families.values():
        for nth, (shard, begin, end) in enumerate(places):
            text = answers[shard].text
            comments = _COMMENTS.match(text, begin, end)
            assert comments is not None, "it may be empty"
            if not nth:
                yield comments[0]
            yield _of_shard(text[comments.end() : end], shard)


def _of_shard(samples: bytes, shard: int) -> bytes:
    label = b'shard="%d"' % shard
    return _BARE.sub(rb"\1{%b} " % label, _LABELLED.sub(rb"\1{%b," % label, samples))


async def ask(port: int, authorization: str = "", seconds: float = SHARD_SECONDS) -> Answer:
    """The metrics of a shard, on the loopback; status 0 where it does not answer in time."""
    try:
        async with asyncio.timeout(seconds), _connection(port) as (reader, writer):
            proof = f"Authorization: {authorization}\r\n" if authorization else ""
            patience = f"{SCRAPER_TIMEOUT}: {seconds:.3f}\r\n"
            writer.write(f"GET /metrics HTTP/1.1\r\n{patience}{proof}\r\n".encode("latin-1"))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(header(head, "Content-Length"))
            if length > TEXT_BYTES_MAX:
                log.warning("a shard's metrics are too long", text_bytes=length)
                return Answer()
            return Answer(int(head.split(b" ", 2)[1]), await reader.readexactly(length))
    except (OSError, TimeoutError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError):
        return Answer()


@contextlib.asynccontextmanager
async def _connection(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def header(head: bytes, wanted: str) -> str:
    """The header of that name; empty without one."""
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == wanted.lower():
            return value.strip()
    return ""


class ShardsPort:
    """The port: it answers for all shards."""

    def __init__(self, ports: Sequence[int]) -> None:
        """ports: of the metrics of each shard, on the loopback."""
        self._ports = ports
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._one = asyncio.Lock()  # who merges: so many texts are held at a time
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; with port 0 on a free one. Raises OSError."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and end running answers."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._answer(await reader.readuntil(b"\r\n\r\n"), writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            pass  # the client is gone, or sends nothing that could be answered
        except Exception as error:  # a bug: the shards run on
            log.error("metrics could not be collected", exc_info=error)
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or words[0] != "GET":
            await _reply(writer, 400, "only GET is allowed\n")
            return
        match words[1].partition("?")[0]:
            case "/metrics":
                async with self._one:
                    await self._metrics(head, writer)
            case "/health":
                await self._health(writer)
            case _:
                await _reply(writer, 404, "there are /metrics and /health\n")

    async def _metrics(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        proof, seconds = header(head, "Authorization"), _patience(head)
        answers = await asyncio.gather(*(ask(port, proof, seconds) for port in self._ports))
        for answer in answers:
            if answer.status in (401, 403):
                await _reply(writer, answer.status, answer.text.decode(errors="replace"))
                return
        writer.write(_head(200, f"Content-Type: {KIND}\r\nTransfer-Encoding: chunked\r\n"))
        for piece in filter(None, merged(answers)):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def _health(self, writer: asyncio.StreamWriter) -> None:
        """A shard opens its port of metrics when it serves, and closes it first when it stops."""
        found = await asyncio.gather(*map(_listens, self._ports))
        down = [shard for shard, up in enumerate(found) if not up]
        text = "".join(f"shard {shard} does not answer\n" for shard in down)
        await _reply(writer, 503 if down else 200, text or f"{len(found)} shards answer\n")


def _patience(head: bytes) -> float:
    """How many seconds the shards have to answer: most of those that the scraper waits."""
    try:
        seconds = SHARE * float(header(head, SCRAPER_TIMEOUT))
    except ValueError:
        return SHARD_SECONDS
    return seconds if 0 < seconds < SHARD_SECONDS else SHARD_SECONDS


async def _listens(port: int) -> bool:
    try:
        async with asyncio.timeout(SHARD_SECONDS), _connection(port):
            return True
    except (OSError, TimeoutError):
        return False


def _head(status: int, headers: str) -> bytes:
    challenge = 'WWW-Authenticate: Basic realm="duolog", charset="UTF-8"\r\n'
    return (
        f"HTTP/1.1 {status} {REASONS[status]}\r\n{headers}"
        f"{challenge if status == 401 else ''}Connection: close\r\n\r\n"
    ).encode()


async def _reply(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    headers = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text.encode())}\r\n"
    writer.write(_head(status, headers) + text.encode())
    await writer.drain()
