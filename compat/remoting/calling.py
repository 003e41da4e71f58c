"""A connection to a broker or a name server of RocketMQ, as their clients have it.

Rules: every call has a deadline; an answer is known by its number; what the other side asks by
itself is not answered. A connection that broke is not mended: connect again. Errors name the
address, and never a secret.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from duolog_server.compat.remoting.answers import Answers
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import BadFrame, Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from duolog_server.compat.remoting.codec.signatures import signed

CONNECT_SECONDS = 3.0
CALL_SECONDS = 5.0
Sign = Callable[[Command], Command]
P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True, slots=True)
class Access:
    """Calls of brokers and name servers: credentials, connections, errors.

    sign: adds to a request what says who sends it. tls: the context of a connection that begins;
    None: without TLS. tls_name: the name in their certificates; empty: the host of the address.
    """

    sign: Sign | None = None
    tls: Callable[[], ssl.SSLContext] | None = None
    tls_name: str = ""


ANYBODY = Access()


def signing(access_key: str, secret_key: str) -> Sign:
    """Signs as RocketMQ's ACL has it. What it is printed as shows no key."""

    def sign(request: Command) -> Command:
        return signed(request, access_key, secret_key)

    return sign


class BadAddress(OSError):
    """The text is not an address."""


class CallRefused(Exception):
    """The other side answered that it did not do what was asked.

    Attributes:
        code: the response's.
        is_denial: the caller lacks the right, or is not authenticated.
    """

    def __init__(self, address: str, code: int, remark: str) -> None:
        """remark: what the other side says of it."""
        super().__init__(f"{address}: code {code}: {remark[:1000] or 'without a remark'}")
        self.code = code
        # RocketMQ 4 answers with its general code.
        self.is_denial = code == ResponseCode.NO_PERMISSION or "AclException" in remark


class Calling(asyncio.Protocol):
    """Calls to one broker or name server. Use `connect`."""

    def __init__(self, address: str, sign: Sign | None) -> None:
        """address: for errors. sign: see `Access`."""
        self._address = address
        self._sign = sign
        # The answer to a batch has an id of each of its messages in its header.
        self._frames = FrameReader(FRAME_BYTES_MAX, header_bytes_max=FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._answers = Answers()
        self._ended = ""  # why

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._transport is not None and not self._ended

    async def call(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        seconds: float = CALL_SECONDS,
    ) -> Command:
        """Ask, and wait for the answer, for so many seconds.

        Raises CallRefused for an answer other than SUCCESS, ConnectionError, TimeoutError.
        """
        request = self._request(code, fields, body)
        try:
            answer = await self._answers.of(request, self._write, seconds)
        except TimeoutError:
            raise TimeoutError(
                f"{self._address} did not answer request {code} within {seconds:g} s"
            ) from None
        if answer.code:
            raise CallRefused(self._address, answer.code, answer.remark)
        return answer

    async def pass_on(self, request: Command, seconds: float) -> Command:
        """Send another's request as it is, but for its number; its answer.

        Raises ConnectionError, TimeoutError.
        """
        return await self._answers.of(self._renumbered(request), self._write, seconds)

    def pass_on_oneway(self, request: Command) -> None:
        """The same for a oneway request. Raises ConnectionError."""
        self._write(self._renumbered(request))

    def _renumbered(self, request: Command) -> Command:
        return replace(request, opaque=self._answers.number())

    @property
    def unsent_bytes(self) -> int:
        """Bytes of requests that the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """End the connection, and every call that waits."""
        self._end("the connection is closed")

    def _request(self, code: int, fields: Mapping[str, str] | None, body: bytes) -> Command:
        request = Command(code, self._answers.number(), fields or {}, body)
        return request if self._sign is None else self._sign(request)

    def _write(self, request: Command) -> None:
        if self._transport is None or self._ended:
            raise ConnectionError(self._ended or "not connected")
        self._transport.write(request.frame())

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why = f"{self._address}: {why}"
        if self._transport is not None:
            self._transport.abort()
        self._answers.end(why)

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        why = f"the connection broke: {exc}" if exc else "the other side closed the connection"
        self._end(why)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            self._frames.feed(data)
            while (command := self._frames.next()) is not None:
                if command.is_response:
                    self._answers.arrived(command)
        except BadFrame as error:
            self._end(f"received an invalid frame: {error}")


def place_of(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises BadAddress."""
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) < 6
    if not (host and is_number and 0 < int(port) < 1 << 16):
        raise BadAddress(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


async def opened(address: str, made: Callable[[], P], access: Access = ANYBODY) -> P:
    """A connection to HOST:PORT, served by what is made.

    Raises OSError, TimeoutError, BadAddress.
    """
    host, port = place_of(address)
    loop = asyncio.get_running_loop()
    try:
        tls = None if access.tls is None else access.tls()
        name = None if tls is None else access.tls_name or host
        async with asyncio.timeout(CONNECT_SECONDS):
            begun = loop.create_connection(made, host, port, ssl=tls, server_hostname=name)
            return (await begun)[1]
    except TimeoutError:
        raise TimeoutError(f"{address} did not answer within {CONNECT_SECONDS:g} s") from None
    except OSError as error:
        raise ConnectionError(f"{address} cannot be reached: {error}") from error
    except ValueError as error:  # UnicodeError is one
        raise BadAddress(f"{address!r} names no host: {error}") from error


async def connect(address: str, access: Access = ANYBODY) -> Calling:
    """Calls to HOST:PORT. Raises as `opened`."""
    return await opened(address, lambda: Calling(address, access.sign), access)
