"""A name server that keeps its tables as RocketMQ's does: who has which id, and topics."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import ONEWAY, RESPONSE, Command
from duolog_server.compat.remoting.codec.messages import body_crc
from tests.compat.remoting.served import Served
from tests.until import until


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
        self.looks = 0  # at routes
        self.address = ""

    def take(self, transport: asyncio.Transport, request: Command) -> None:
        answer = self.answer(request)
        if answer is not None:
            transport.write(answer.frame())

    def answer(self, request: Command) -> Command | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self.looks += 1
            return None if self.silent else self.route(request)
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

    def route(self, request: Command) -> Command:
        """As RocketMQ 4.9 writes it."""
        if not self.ids or request.fields["topic"] not in self.topics:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        rows = ",".join(f'{number}:"{address}"' for number, address in self.ids.items())
        other = '{"brokerAddrs":{0:"10.0.0.9:1"},"brokerName":"other"}'
        text = f'{{"brokerDatas":[{other},{{"brokerAddrs":{{{rows}}},"brokerName":"broker-a"}}]}}'
        return request.answer(0, body=text.encode())

    def end_broker(self, number: int) -> None:
        """As a broker of RocketMQ does with the same name and id, wherever it is."""
        self.ids.pop(number, None)

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


@asynccontextmanager
async def name_server(
    address: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None
) -> AsyncIterator[NameServerFake]:
    """One that listens."""
    made = NameServerFake()
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Served(made.take, made.connections), host, int(port), ssl=tls
    )
    made.address = f"{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.drop()


# -- nonsense --------------------------------------------------------------------------------------

LOOK = Command(RequestCode.GET_BROKER_CONFIG, 1).frame()
NONSENSE: dict[str, Callable[[Command], bytes]] = {
    "no frame": lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "TLS": lambda request: b"\x16\x03\x01" + bytes(40),
    "half a frame": lambda request: request.answer(0, "x" * 1000).frame()[:500],
    "a frame without end": lambda request: b"\0\xff\xff\xff\0\0\0\x10" + bytes(1 << 16),
    "no JSON": lambda request: b"\0\0\0\x0c\0\0\0\x08" + b"[" * 8,
    "another's answer": lambda request: replace(request.answer(0), opaque=-7).frame(),
    "no answer": lambda request: replace(request, flag=ONEWAY).frame() + request.frame(),
    "a long refusal": lambda request: request.answer(1, "\0no" * 50_000).frame(),
    "an unknown code": lambda request: request.answer(-(1 << 31)).frame(),
    "questions": lambda request: LOOK * 5000,
    "many answers": lambda request: Command(0, 99, flag=RESPONSE).frame() * 5000,
    "nothing": lambda request: b"",
}


class NonsenseFake:
    """A name server that answers nonsense.

    Attributes:
        requests: that came; connections: that were ever made.
    """

    def __init__(self, answer: Callable[[Command], bytes]) -> None:
        self.answer = answer
        self.requests = 0
        self.connections: list[asyncio.Transport] = []
        self.address = ""

    def take(self, transport: asyncio.Transport, request: Command) -> None:
        self.requests += 1
        transport.write(self.answer(request))

    @property
    def open(self) -> int:
        """How many connections are."""
        return sum(not one.is_closing() for one in self.connections)


@asynccontextmanager
async def nonsense(answer: Callable[[Command], bytes]) -> AsyncIterator[NonsenseFake]:
    """One that listens; at the end it waits until its connections are closed."""
    made = NonsenseFake(answer)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Served(made.take, made.connections), "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made
        await until(lambda: not made.open)
