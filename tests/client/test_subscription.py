"""The stream of batches from a node: what is written, what is read, and what follows a break."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import duolog
import grpc.aio
import pytest
from duolog._connection import Connection
from duolog._errors import trailing_of
from duolog._message import Batch
from duolog._prefetch import Prefetch
from duolog._subscription import Subscription
from duolog.wire import duolog_pb2 as wire

from tests.client.test_prefetch import batch_of

FIRST, SECOND = ("T", 0), ("T", 2)
BUDGET = 80


class Stream:
    """A stream to a node. refuse: the error of its writes. answers: that are there at once."""

    def __init__(self, refuse: Exception | None, answers: list[Any]) -> None:
        self.written: list[wire.SubscribeRequest] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        for answer in answers:
            self.answers.put_nowait(answer)
        self.cancelled = False
        self._refuse = refuse

    async def write(self, request: wire.SubscribeRequest) -> None:
        if self._refuse is not None:
            raise self._refuse
        self.written.append(wire.SubscribeRequest.FromString(request.SerializeToString()))

    async def read(self) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        self.cancelled = True
        self.answers.put_nowait(grpc.aio.EOF)


class Node:
    """A connection whose streams are these. refusals: of the streams to come, None for none."""

    def __init__(self) -> None:
        usual = SimpleNamespace(uniform=lambda low, high: 1.0)
        self.runtime = SimpleNamespace(chance=usual)
        self.messages = self
        self.moves = 7
        self.streams: list[Stream] = []
        self.refusals: list[Exception | None] = []
        self.writes: list[Exception | None] = []
        self.answers: list[Any] = []
        self.rotated: list[tuple[int, str]] = []
        self.settlings = 0

    async def settled(self) -> None:
        self.settlings += 1

    def Subscribe(self) -> Stream:
        if self.refusals and (refusal := self.refusals.pop(0)):
            raise refusal
        self.streams.append(Stream(self.writes.pop(0) if self.writes else None, self.answers))
        return self.streams[-1]

    async def rotate(self, move: int, hint: str) -> None:
        self.rotated.append((move, hint))

    def named(self, error: duolog.DuologError) -> duolog.DuologError:
        error.args = (f"as ann: {error}",)
        return error


class Reader:
    """A subscription with its prefetch. batches: those that were taken."""

    def __init__(self, patience: float = 60.0) -> None:
        self.node = Node()
        self.prefetch = Prefetch(BUDGET)
        self.batches: list[tuple[int, int]] = []
        first = wire.SubscribeRequest(tags=["a"], group="g", batch_bytes=100)
        connection = cast(Connection, self.node)
        self.silences: list[str | None] = []
        self.subscription = Subscription(connection, self.prefetch, first, self._take, patience)

    def _take(self, reply: wire.MessageBatch) -> None:
        if self.prefetch.arrived(Batch(reply, "0"), reply.subscription):
            self.batches.append((reply.queue_id, reply.queue_offset_base))

    def _silent(self, error: duolog.DuologError | None) -> None:
        self.silences.append(None if error is None else str(error))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.subscription.run(lambda: "there:1", self._silent))
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, duolog.DuologError):
                await task


def answer(queue: tuple[str, int], base: int, number: int, count: int = 3) -> wire.MessageBatch:
    reply = batch_of(queue, base, count=count, size=4).wire
    reply.subscription = number
    return reply


def told(request: wire.SubscribeRequest) -> tuple[Any, ...]:
    """What a request says: queues that begin and end, credit, its number."""
    begin = [(one.topic, one.queue_id, one.offset) for one in request.add]
    end = [(one.topic, one.queue_id) for one in request.remove]
    return begin, end, request.credit_bytes, request.subscription


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses pass in one turn of the loop; their lengths."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return pauses


async def turns(count: int) -> None:
    """Turns of the loop, also where `sleep` is another one."""
    for _ in range(count):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future


async def steps(done: Callable[[], object]) -> None:
    """Turns of the loop until something holds; a bounded number of them."""
    for _ in range(100):
        if done():
            return
        await turns(1)
    raise AssertionError("it does not come")


async def test_a_node_is_told_which_queues_begin_and_end_and_of_credit_that_came_back() -> None:
    reader = Reader()
    async with reader.running():
        await turns(3)
        reader.subscription.nudge()
        await turns(3)
        assert not reader.node.streams, "there is nothing to read"
        reader.prefetch.begin({FIRST: 5, SECOND: 6})
        reader.subscription.nudge()
        await steps(lambda: reader.node.streams and reader.node.streams[0].written)
        (stream,) = reader.node.streams
        assert reader.node.settlings == 1
        (first,) = stream.written
        assert (list(first.tags), first.group, first.batch_bytes) == (["a"], "g", 100)
        assert told(first) == ([(*FIRST, 5), (*SECOND, 6)], [], BUDGET, 1)
        stream.answers.put_nowait(answer(FIRST, 5, 1))
        await steps(lambda: reader.batches)
        reader.prefetch.end([FIRST])
        reader.subscription.nudge()
        await steps(lambda: len(stream.written) > 1)
        assert told(stream.written[1]) == ([], [FIRST], 12, 1)
        assert not stream.written[1].group, "what a stream begins with is not said again"
        # It is for a queue that is read no more: nobody takes it, its credit goes back.
        stream.answers.put_nowait(answer(FIRST, 8, 1))
        await steps(lambda: len(stream.written) > 2)
        assert told(stream.written[2]) == ([], [], 12, 1)
        assert reader.batches == [(0, 5)]
        assert not stream.cancelled
    assert stream.cancelled, "a stream ends with its subscription"


async def test_nothing_is_read_while_the_prefetch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    full = True
    monkeypatch.setattr(Prefetch, "full", property(lambda _: full))
    reader.prefetch.begin({FIRST: 5})
    async with reader.running():
        await steps(lambda: reader.node.streams and reader.node.streams[0].written)
        reader.node.streams[0].answers.put_nowait(answer(FIRST, 5, 1))
        await turns(3)
        reader.subscription.nudge()
        await turns(3)
        assert not reader.batches
        full = False
        reader.subscription.nudge()
        await steps(lambda: reader.batches)


UNUSABLE = grpc.aio.UsageError("Channel is closed.")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (grpc.aio.EOF, "as ann: the node ended the subscription"),
        (UNUSABLE, "as ann: Channel is closed."),
        (asyncio.InvalidStateError("done"), "as ann: done"),
        (duolog.Unavailable("gone"), "as ann: gone"),
    ],
)
async def test_a_stream_that_breaks_is_opened_where_the_reader_is(
    broken: Any, why: str, at_once: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader()
    reader.prefetch.begin({FIRST: 5})
    async with reader.running():
        await steps(lambda: reader.node.streams and reader.node.streams[0].written)
        old = reader.node.streams[0]
        old.answers.put_nowait(answer(FIRST, 5, 1))
        await steps(lambda: reader.batches)
        next(reader.prefetch.messages())
        old.answers.put_nowait(broken)
        await steps(lambda: len(reader.node.streams) > 1 and reader.node.streams[1].written)
        assert old.cancelled
        assert reader.node.rotated == [(7, "there:1")]
        assert told(reader.node.streams[1].written[0]) == ([(*FIRST, 6)], [], BUDGET, 2)
        assert reader.node.streams[1].written[0].group == "g"
        assert f"is reopened: {why}" in caplog.text
        new = reader.node.streams[1]
        new.answers.put_nowait(answer(FIRST, 6, 2))
        new.answers.put_nowait(broken)
        await steps(lambda: len(reader.node.streams) > 2)
        assert at_once == [0.05, 0.05], "a batch came in between"


async def test_a_stream_that_cannot_be_opened_or_written_is_tried_again(
    at_once: list[float],
) -> None:
    reader = Reader()
    reader.node.refusals = [UNUSABLE]
    reader.node.writes = [UNUSABLE, None]
    reader.prefetch.begin({FIRST: 5})
    async with reader.running():
        await steps(lambda: len(reader.node.streams) > 1 and reader.node.streams[1].written)
        broken, right = reader.node.streams
        assert (broken.cancelled, right.cancelled) == (True, False)
        assert told(right.written[0])[0] == [(*FIRST, 5)]
    assert len(reader.node.rotated) == 2
    assert at_once == [0.05, 0.1]


@pytest.mark.parametrize("at_once", [False, True])
async def test_what_a_node_refuses_for_good_ends_the_subscription(at_once: bool) -> None:
    reader = Reader()
    reader.prefetch.begin({FIRST: 5})
    refusal = grpc_error(duolog.NoPermission("no"))
    if at_once:  # before anything is written
        reader.node.answers = [refusal]
    async with reader.running() as task:
        if not at_once:
            await steps(lambda: reader.node.streams and reader.node.streams[0].written)
            reader.node.streams[0].answers.put_nowait(refusal)
        with pytest.raises(duolog.NoPermission, match="as ann: no"):
            await task
    assert (len(reader.node.streams), reader.node.rotated) == (1, [])
    assert reader.node.streams[0].cancelled


def grpc_error(error: duolog.DuologError) -> grpc.aio.AioRpcError:
    """An error as a call raises it."""
    fields = grpc.aio.Metadata(*trailing_of(error))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), fields, str(error))


async def test_a_reader_without_queues_takes_no_node_for_silent(at_once: list[float]) -> None:
    reader = Reader(patience=0.0)
    reader.node.refusals = [UNUSABLE] * 3
    reader.prefetch.begin({FIRST: 5})
    async with reader.running():
        await steps(lambda: reader.silences)
        reader.prefetch.end([FIRST])
        await steps(lambda: None in reader.silences)
    assert reader.silences[-1] is None


async def test_a_node_is_silent_once_no_stream_was_open_for_long_and_is_tried_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted from the end of the last one that was open: that the node was told something."""
    reader, now, loop = Reader(patience=3.75), 100.0, asyncio.get_running_loop()
    reader.node.runtime.chance.uniform = lambda low, high: 5.0  # of 0.05, 0.1, 0.2, 0.4 s
    monkeypatch.setattr(loop, "time", lambda: now)
    rotated: list[int] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        rotated.append(len(reader.node.rotated))
        if len(rotated) == 7:
            reader.node.writes = [None]

    monkeypatch.setattr(asyncio, "sleep", sleep)
    reader.node.refusals = [UNUSABLE, UNUSABLE]
    reader.node.writes = [None] + [UNUSABLE] * 30
    reader.prefetch.begin({FIRST: 5})
    async with reader.running() as task:
        await steps(lambda: reader.node.streams and reader.node.streams[0].written)
        assert now == 100.75
        reader.node.streams[0].answers.put_nowait(answer(FIRST, 5, 1))
        await steps(lambda: reader.batches)
        now = 110.0
        reader.node.streams[0].answers.put_nowait(grpc.aio.EOF)
        await steps(lambda: None in reader.silences[2:])
        assert not task.done()
    ended = "as ann: the node ended the subscription"
    assert reader.silences == [None, ended, ended, None], "counted from the end of a stream"
    assert rotated == [1, 2, 3, 4, 5, 6, 7], "another node is chosen at once, called after a pause"
