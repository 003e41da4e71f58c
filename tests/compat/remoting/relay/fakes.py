"""A master that requests are passed on to, and what a relay has around it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.relay import Relay
from duolog_server.node.core.throttle import Throttle
from duolog_server.node.identity.quotas.quota import Kind, Limit, Subject
from duolog_server.node.identity.quotas.quotas import Wait, Who
from tests.compat.remoting.served import Served
from tests.compat.remoting.test_members import Client

SEND = RequestCode.SEND_MESSAGE_V2
SENDER = Client("sender")


class MasterFake:
    """Takes requests, and answers those with a body: that it is not the master, for `no`.

    Attributes:
        later: requests with the body `later`, which `answer_later` answers.
        connections: that were ever made.
    """

    def __init__(self) -> None:
        self.address = ""
        self.taken: list[Command] = []
        self.later: list[tuple[asyncio.Transport, Command]] = []
        self.connections: list[asyncio.Transport] = []

    def take(self, transport: asyncio.Transport, request: Command) -> None:
        self.taken.append(request)
        if request.body == b"end":
            transport.abort()
        elif request.body == b"nonsense":
            transport.write(b"\xff" * 100)
        elif request.body == b"later":
            self.later.append((transport, request))
        elif request.body and not request.is_oneway:
            code = 14 if request.body == b"no" else 0
            transport.write(request.answer(code, "r", {"k": "v"}, b"body").frame())

    def answer_later(self) -> None:
        for transport, request in self.later:
            transport.write(request.answer(0).frame())


@asynccontextmanager
async def master() -> AsyncIterator[MasterFake]:
    """One that listens."""
    made = MasterFake()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Served(made.take, made.connections), "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for transport in made.connections:
            transport.abort()


class Quotas:
    """A throttle: lets so many messages pass of each address.

    Attributes:
        passed: what did: the address, bytes and messages.
    """

    def __init__(self, messages: int = 0) -> None:
        self.on = messages > 0
        self._left = messages
        self.passed: list[tuple[Who, int, int]] = []

    def put(self, who: Who, topic: str, size: int, count: int) -> Wait | None:
        assert self.on
        if count > self._left:
            return Wait(1000, Subject(Kind.CLIENT, who.address), Limit.MESSAGES_IN, 1)
        self._left -= count
        self.passed.append((who, size, count))
        return None


def relay_to(found: Callable[[], str], quotas: Quotas | None = None) -> Relay:
    """A relay to the master that is found."""
    return Relay(found, cast(Throttle, quotas or Quotas()), FRAME_BYTES_MAX)


def request(body: bytes = b"x", opaque: int = 77, **more: Any) -> Command:
    """A send to topic T."""
    return Command(SEND, opaque, {"b": "T"}, body, **more)
