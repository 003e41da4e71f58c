"""Calls to a broker of RocketMQ that is followed: what it is, and what it keeps beside its log.

Rules: one connection, made by the first call that needs it, and anew after it broke; a broker is
changed by `change` alone. Bodies are checked before anything is taken from them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from duolog_server.compat.remoting.calling import ANYBODY, Access, Calling, CallRefused, connect
from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.errors import BadRequest

BODY_SECONDS = 20.0  # for the tables of a large cluster
BEGINNING_SECONDS = 3.0  # in which a broker that has just begun cannot answer everything
AGAIN_SECONDS = 0.25
OFFSET_MAX = (1 << 63) - 1


class BadAnswer(ConnectionError):
    """A broker answered something else than a broker of RocketMQ does."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a broker stands: log offsets [first, end), and its version as it writes it.

    putting_ms: for how long a put has held the lock of its log now; others may wait for it.
    """

    first: int
    end: int
    version: str
    putting_ms: int = 0


class OldBroker:
    """One broker."""

    def __init__(self, address: str, access: Access = ANYBODY) -> None:
        """address: HOST:PORT."""
        self.address = address
        self._access = access
        self._calling: Calling | None = None
        self._connecting = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """Raises CallRefused, OSError, TimeoutError, as all calls do."""
        body = await self._figures()
        match _parsed(body, self.address):
            case {"table": dict() as table}:
                first = _offset(table.get("commitLogMinOffset"), self.address)
                end = _offset(table.get("commitLogMaxOffset"), self.address)
                if first <= end:
                    version = str(table.get("brokerVersionDesc", ""))
                    putting = _offset(table.get("pageCacheLockTimeMills", 0), self.address)
                    return Runtime(first, end, version, putting)
        raise BadAnswer(f"{self.address} does not report where its log begins and ends")

    async def _figures(self) -> bytes:
        """The broker's runtime info; empty before its first measurement."""
        until = asyncio.get_running_loop().time() + BEGINNING_SECONDS
        while True:
            try:
                return await self._body(RequestCode.GET_BROKER_RUNTIME_INFO)
            except CallRefused as refused:
                now = asyncio.get_running_loop().time()
                if refused.code != ResponseCode.SYSTEM_ERROR or now >= until:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def settings(self) -> dict[str, str]:
        """The broker's configuration, by RocketMQ's names."""
        body = await self._body(RequestCode.GET_BROKER_CONFIG)
        rows = (line.partition("=") for line in body.decode(errors="replace").splitlines())
        return {key.strip(): value.strip() for key, separator, value in rows if separator}

    async def table(self, code: RequestCode) -> bytes:
        """A table as it writes it."""
        return await self._body(code)

    async def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next message of a queue."""
        calling = await self._connected()
        fields = {"topic": topic, "queueId": str(queue_id)}
        answer = await calling.call(RequestCode.GET_MAX_OFFSET, fields)
        return _offset(answer.fields.get("offset"), self.address)

    async def change(self, settings: Mapping[str, str]) -> None:
        """Change settings while it runs; it writes them into its configuration file as well."""
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        calling = await self._connected()
        await calling.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())

    def close(self) -> None:
        """End the connection."""
        if self._calling is not None:
            self._calling.close()

    async def _body(self, code: RequestCode) -> bytes:
        calling = await self._connected()
        return (await calling.call(code, seconds=BODY_SECONDS)).body

    async def _connected(self) -> Calling:
        async with self._connecting:
            if self._calling is None or not self._calling.is_open:
                self._calling = await connect(self.address, self._access)
            return self._calling


def _parsed(body: bytes, address: str) -> fastjson.Value:
    try:
        return fastjson.loads(body)
    except BadRequest as error:
        raise BadAnswer(f"{address}: {error}") from None


def _offset(value: object, address: str) -> int:
    """An offset of a log; a broker without a log says -1."""
    try:
        offset = max(0, int(str(value)))
    except ValueError:
        offset = OFFSET_MAX + 1
    if offset > OFFSET_MAX:
        raise BadAnswer(f"{address} says {str(value)[:80]!r} where an offset is expected")
    return offset
