"""A name server that keeps its tables as RocketMQ's does: who has which id, and topics."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from node.remoting.codec.codes import RequestCode, ResponseCode
from node.remoting.codec.command import Command
from node.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from node.remoting.codec.registrations import body_crc


class NameServerFake:
    """RouteInfoManager, for one broker name.

    Attributes:
        ids: addresses by broker id.
        silent: it takes requests, and answers none.
    """

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self.versions: dict[str, tuple[int, int, int]] = {}
        self.topics: dict[str, dict[str, Any]] = {}
        self.requests: list[Command] = []
        self.connections: list[asyncio.Transport] = []
        self.silent = False
        self.address = ""

    def answer(self, request: Command) -> Command | None:
        self.requests.append(request)
        if self.silent:
            return None
        number, address = int(request.fields["brokerId"]), request.fields["brokerAddr"]
        if request.code == RequestCode.UNREGISTER_BROKER:
            self.versions.pop(address, None)
            self.ids.pop(number, None)  # whoever has it
            return request.answer(0)
        if int(request.fields["bodyCrc32"]) != body_crc(request.body):
            return request.answer(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        self._register(number, address, request.body)
        return request.answer(0)

    def _register(self, number: int, address: str, body: bytes) -> None:
        wrapper = json.loads(body)["topicConfigSerializeWrapper"]
        told = wrapper["dataVersion"]
        version = (told["stateVersion"], told["timestamp"], told["counter"])
        for known, where in list(self.ids.items()):
            if where == address and known != number:
                del self.ids[known]
        first = number not in self.ids
        self.ids[number] = address
        if number == 0 and (first or self.versions.get(address) != version):
            self.topics.update(wrapper["topicConfigTable"])
        self.versions[address] = version

    def count(self, code: RequestCode) -> int:
        return sum(one.code == code for one in self.requests)

    def drop(self) -> None:
        """End all connections."""
        for transport in self.connections:
            transport.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, names: NameServerFake) -> None:
        self.names, self.frames = names, FrameReader(FRAME_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.names.connections.append(transport)

    def data_received(self, data: bytes) -> None:
        self.frames.feed(data)
        while (request := self.frames.next()) is not None:
            answer = self.names.answer(request)
            if answer is not None:
                self.transport.write(answer.frame())


@asynccontextmanager
async def name_server(
    address: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None
) -> AsyncIterator[NameServerFake]:
    """One that listens."""
    made = NameServerFake()
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(made), host, int(port), ssl=tls)
    made.address = f"{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.drop()
