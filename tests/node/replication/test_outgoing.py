"""Frames are written in the turn that made them, one at a time, without blocking the caller."""

import asyncio
from collections import deque

from duolog_server.ha import frames
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.frames import Hello
from duolog_server.node.replication.outgoing import Outgoing, Unsent
from tests.node.replication.test_replication import hello


class Stream:
    """Takes frames as gRPC does: each write ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.writes: deque[asyncio.Future[None]] = deque()

    async def write(self, frame: bytes) -> None:
        assert not self.writes, "one write at a time"
        self.begun.append(frame)
        under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes.append(under_way)
        try:
            await under_way
        finally:
            self.writes.popleft()


class Scene:
    def __init__(self) -> None:
        self.stream = Stream()
        self.frames: deque[bytes] = deque()
        self.errors: list[Exception] = []
        self.outgoing = Outgoing(self.stream.write, self._next, self.errors.append)

    def _next(self) -> bytes | None:
        return self.frames.popleft() if self.frames else None

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.outgoing.wake()

    async def written(self, error: BaseException | None = None) -> None:
        """gRPC says that the write under way has ended."""
        if error is None:
            self.stream.writes[0].set_result(None)
        else:
            self.stream.writes[0].set_exception(error)
        await asyncio.sleep(0)


async def test_frames_are_written_at_once_or_when_a_write_ends() -> None:
    scene = Scene()
    scene.send(b"1")
    assert scene.stream.begun == [b"1"]
    scene = Scene()
    for frame in (b"1", b"2", b"3"):
        scene.send(frame)
    assert scene.stream.begun == [b"1"]
    await scene.written()
    assert scene.stream.begun == [b"1", b"2"]
    await scene.written()
    await scene.written()
    assert scene.stream.begun == [b"1", b"2", b"3"]
    scene.send(b"4")
    assert scene.stream.begun[-1] == b"4"
    begun: list[bytes] = []

    async def write(frame: bytes) -> None:
        begun.append(frame)

    waiting = deque([b"1", b"2"])
    Outgoing(write, lambda: waiting.popleft() if waiting else None, lambda error: None).wake()
    assert begun == [b"1", b"2"]


async def test_a_broken_stream_and_an_error_in_a_frame_are_reported_once() -> None:
    scene = Scene()
    scene.send(b"1")
    await scene.written(ConnectionError("gone"))
    assert [str(error) for error in scene.errors] == ["gone"]
    scene.send(b"2")
    assert scene.stream.begun == [b"1"]
    assert len(scene.errors) == 1
    scene = Scene()
    scene.send(b"1")
    await scene.written(asyncio.CancelledError())
    assert isinstance(scene.errors[0], ConnectionError)
    # The caller is a put: it does not fail because one slave's connection does.
    errors: list[Exception] = []

    def fail() -> bytes:
        raise ValueError("no frame")

    Outgoing(Stream().write, fail, errors.append).wake()
    assert [type(error) for error in errors] == [ValueError]


async def test_the_end_waits_for_the_write_in_flight_and_sends_nothing_more() -> None:
    scene = Scene()
    scene.send(b"1")
    scene.send(b"2")
    finished = asyncio.create_task(scene.outgoing.finish(10))
    await asyncio.sleep(0)
    assert not finished.done()
    await scene.written()
    await finished
    assert scene.stream.begun == [b"1"]
    assert not scene.errors
    scene = Scene()
    scene.send(b"1")
    scene.outgoing.stop()
    await scene.written(ConnectionError("gone"))
    assert not scene.errors


def test_acknowledgements_that_wait_become_one_and_overtake_nothing() -> None:
    tail = frames.ack_tail("s", 1)
    greeting = frames.encode(hello())
    unsent = Unsent()
    unsent.add(frames.ack_frame(Epoch(1), 100, 0, tail))
    unsent.add(greeting)
    for received in (200, 300, 400):
        unsent.add(frames.ack_frame(Epoch(1), received, 0, tail))
    assert len(unsent) == 3
    taken = [frames.decode(unsent.take() or b"") for _ in range(3)]
    assert [type(frame).__name__ for frame in taken] == ["Ack", "Hello", "Ack"]
    assert isinstance(taken[1], Hello)
    assert getattr(taken[2], "received", 0) == 400
    assert unsent.take() is None
