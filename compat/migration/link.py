"""A connection to the HA port of a master of RocketMQ, as its slave.

Rules: what was appended is reported at once, and the last report is repeated every 5 s, or the
master closes the connection; a master from which nothing came for 20 s is given up.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from duolog_server.compat.hawire.frames import REPORT, BadStream, Frame, MasterReader
from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.remoting.calling import opened

REPORT_SECONDS = 5.0
SILENCE_SECONDS = 20.0
Take = Callable[[Sequence[Frame]], int]


class MasterLink(asyncio.Protocol):
    """One connection. Use `connect`."""

    def __init__(self, take: Take) -> None:
        """take: called with what arrives; the offset to report. It may raise what ends the link."""
        self._take = take
        self._reader = MasterReader()
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        self.ended: asyncio.Future[None] = loop.create_future()

    def report(self, offset: int) -> None:
        """Say where the copy ends, or where to begin."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(REPORT.pack(offset))

    async def hold(self, offset: Callable[[], int]) -> None:
        """Repeat reports until the link ends. Raises why it ended."""
        loop = asyncio.get_running_loop()
        try:
            while not self.ended.done():
                await asyncio.wait([self.ended], timeout=REPORT_SECONDS)
                if loop.time() - self._heard > SILENCE_SECONDS:
                    raise ConnectionError(f"nothing came from it for {SILENCE_SECONDS:g} s")
                self.report(offset())
            self.ended.result()
        finally:
            self.close()

    def fail(self, reason: str) -> None:
        """End the connection, because it is of no use."""
        self._end(ConnectionError(reason))

    def close(self) -> None:
        """End the connection."""
        self._end(ConnectionError("the connection is closed"))

    def _end(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # it need not be asked for

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._end(ConnectionError(f"the connection broke: {exc}" if exc else "it was closed"))

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.ended.done():
            return
        self._heard = asyncio.get_running_loop().time()
        try:
            frames = self._reader.feed(data)
            if frames:
                self.report(self._take(frames))
        except (BadStream, CannotFollow, OSError) as error:
            self._end(error)


async def connect(address: str, take: Take) -> MasterLink:
    """A connection to HOST:PORT: RocketMQ's HA has neither TLS nor users.

    Raises OSError, TimeoutError.
    """
    return await opened(address, lambda: MasterLink(take))
