"""A fake's side of remoting connections: it gets each request, and the transport it came by."""

import asyncio
from collections.abc import Callable

from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader


class Served(asyncio.Protocol):
    """One connection, noted where it is made."""

    def __init__(
        self, take: Callable[[asyncio.Transport, Command], None], made: list[asyncio.Transport]
    ) -> None:
        self._take, self._made = take, made
        self._frames = FrameReader(FRAME_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._made.append(transport)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        while (request := self._frames.next()) is not None:
            self._take(self._transport, request)
