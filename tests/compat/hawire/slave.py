"""A slave of RocketMQ by hand: what its HAClient does with frames, and nothing that it does not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duolog_server.compat.hawire.frames import REPORT, Frame, MasterReader
from tests.node.replicas import WAIT_SECONDS
from tests.until import until


class Copy:
    """The commit log of such a slave."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.start = 0
        self.data = bytearray()

    @property
    def end(self) -> int:
        """Its max offset: 0 while it is empty."""
        return self.start + len(self.data) if self.data else 0

    def take(self, frame: Frame) -> None:
        """Append a frame as RocketMQ does; here, what it would lose silently is an error."""
        assert self.end in (0, frame.offset), f"at {self.end}, was sent {frame.offset}"
        if not frame.data:
            return
        if not self.data:
            assert frame.offset % self.segment_bytes == 0, "its first file begins there"
            self.start = frame.offset
        left = self.segment_bytes - frame.offset % self.segment_bytes
        assert len(frame.data) <= left, "a frame crosses the end of a segment"
        self.data += frame.data


class Slave:
    """One connection of such a slave. frames: that came."""

    def __init__(
        self, copy: Copy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.copy = copy
        self._reader, self._writer = reader, writer
        self.frames: list[Frame] = []
        self.ended = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()

    async def read(self) -> None:
        """Take what comes and say so, until the end."""
        frames = MasterReader()
        try:
            while True:
                await self.reading.wait()
                data = await self._reader.read(1 << 16)
                if not data:
                    break
                for frame in frames.feed(data):
                    self.frames.append(frame)
                    self.copy.take(frame)
                    if frame.data:
                        self.say(self.copy.end)
        except ConnectionError:
            pass
        self.ended.set()

    def say(self, offset: int) -> None:
        """Report an offset."""
        self._writer.write(REPORT.pack(offset))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def has(self, end: int) -> None:
        """Wait until it has the log up to an offset."""
        await until(lambda: self.copy.end == end, f"it ends at {self.copy.end}, not {end}")

    async def is_closed(self) -> None:
        """Wait until the master has ended the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.ended.wait()


@asynccontextmanager
async def connected(port: int, copy: Copy, host: str = "127.0.0.1") -> AsyncIterator[Slave]:
    """A slave that has connected and says nothing yet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    made = Slave(copy, reader, writer)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(made.read())
        try:
            yield made
        finally:
            reading.cancel()
            writer.close()


__all__ = ["Copy", "Slave", "connected"]
