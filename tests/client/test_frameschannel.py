"""A connection that speaks frames: who hears of an answer, of an end, of time that ran out."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _frames as frames
from duolog import _frameschannel
from duolog._busypoll import SMALL_BYTES, BusyPoll
from duolog._frames import APART_BYTES, GREETING_BYTES, LAST, STREAM_AHEAD, FrameReader, Kind
from duolog._frameschannel import Disowned, FramesChannel, FramesStream, connect
from duolog.wire import duolog_pb2 as wire

KEY = b"k" * 16
LIMIT = 1 << 18  # of a frame to the node
CALLS = 3
PULL, ROUTE = "/duolog.v1.Messages/Pull", "/duolog.v1.Admin/Route"
SUBSCRIBE = "/duolog.v1.Messages/Subscribe"


class Link(asyncio.Transport):
    """Keeps the frames that are written to it. stops: after so many writes it asks for a pause."""

    def __init__(self, channel: FramesChannel) -> None:
        super().__init__()
        self._channel = channel
        self._reader = FrameReader(1 << 30)
        self.written: list[frames.Frame] = []
        self.writes = 0
        self.stops = 0
        self.limit = 0
        self.closing = self.aborted = False

    def write(self, data: Any) -> None:
        self.writes += 1
        while data:
            room = self._reader.room()
            count = min(len(room), len(data))
            room[:count], data = data[:count], data[count:]
            self._reader.received(count)
            while (found := self._reader.next()) is not None:
                self.written.append(found._replace(payload=memoryview(bytes(found.payload))))
        if self.writes == self.stops:
            self._channel.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limit = high or 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def said(self, since: int = 0) -> list[tuple[int, int]]:
        """Kind and call of what was written."""
        return [(one.kind, one.call) for one in self.written[since:]]


class Poll:
    """Counts what is expected at once, and what came."""

    def __init__(self) -> None:
        self.expected = self.arrived = 0

    def expect(self) -> None:
        self.expected += 1

    def came(self) -> None:
        self.arrived += 1


def begun(work: Any) -> Any:
    """A task whose error may be of no interest."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


class Clock:
    """The loop's time, which stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.now = float(int(loop.time()))  # differences are what they look like
        self._timers: list[asyncio.TimerHandle] = []
        self._call_at = loop.call_at
        monkeypatch.setattr(loop, "time", lambda: self.now)
        monkeypatch.setattr(loop, "call_at", self._noted)

    def _noted(self, when: float, *how: Any, **context: Any) -> asyncio.TimerHandle:
        self._timers.append(self._call_at(when, *how, **context))
        return self._timers[-1]

    @property
    def timers(self) -> int:
        """How many are set."""
        return sum(one.when() > self.now and not one.cancelled() for one in self._timers)

    async def forward(self, seconds: float) -> None:
        self.now += seconds
        await turns()


async def turns() -> None:
    """Every task that can run has run."""
    for _ in range(9):
        await asyncio.sleep(0)


async def result(work: Any) -> Any:
    """What work gives by now."""
    task = begun(work)
    await turns()
    if not task.done():
        task.cancel()
        raise AssertionError("it is not over")
    return task.result()


class Node:
    """The other end of a channel: what it says, and what it hears."""

    def __init__(self) -> None:
        self.poll = Poll()
        self.channel = FramesChannel(cast(BusyPoll, self.poll))
        self.link = Link(self.channel)
        self.channel.connection_made(self.link)

    def say(self, data: bytes) -> None:
        while data:
            room = self.channel.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count], data = data[:count], data[count:]
            self.channel.buffer_updated(count)

    def welcome(self) -> None:
        self.say(frames.welcome(LIMIT, CALLS))

    def reply(self, call: int, message: Any, body: bytes = b"", last: bool = True) -> None:
        data = message.SerializeToString()
        self.say(frames.message_frame(Kind.MESSAGE, call, data, body, LAST if last else 0))

    def end(self, call: int, code: int = 0, details: str = "", **trailing: str) -> None:
        told = wire.CallEnd(details=details, trailing=trailing).SerializeToString()
        self.say(frames.frame(Kind.END, call, payload=told, code=code))

    def appended(self, call: int, offset: int) -> None:
        told = wire.AppendReply(queue_offset=offset).SerializeToString()
        self.say(frames.frame(Kind.APPENDED, call, payload=told))

    # -- what a client begins ----------------------------------------------------------------------

    def append(self, body: bytes = b"body", seconds: float = 60.0) -> Any:
        until = asyncio.get_running_loop().time() + seconds
        request = wire.AppendRequest(topic="T")
        return begun(self.channel.append(request, body, until))

    def pull(self, topic: str = "T", **how: Any) -> Any:
        make = self.channel.unary_unary(
            PULL, wire.PullRequest.SerializeToString, wire.MessageBatch.FromString
        )
        return begun(make(wire.PullRequest(topic=topic), **how))

    def stream(self, **how: Any) -> FramesStream:
        make = self.channel.stream_stream(
            SUBSCRIBE, wire.SubscribeRequest.SerializeToString, wire.MessageBatch.FromString
        )
        return make(**how)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
async def node(clock: Clock) -> AsyncIterator[Node]:
    made = Node()
    made.welcome()
    yield made
    await made.channel.close()


def refusal(error: BaseException | None) -> tuple[grpc.StatusCode, str]:
    """The status that an error of a call tells."""
    assert isinstance(error, grpc.aio.AioRpcError), repr(error)
    return error.code(), str(error.details())


# -- the connection --------------------------------------------------------------------------------


async def test_a_channel_greets_with_the_nodes_key_and_waits_for_its_welcome(clock: Clock) -> None:
    node = Node()
    greeting = begun(node.channel.greet(KEY))
    await turns()
    assert not greeting.done()
    assert frames.read_hello(node.link.written[0]) == (frames.VERSION, KEY)
    node.welcome()
    await result(greeting)
    assert not node.channel.closed
    assert node.channel.error is None
    assert not node.channel.disowned
    assert node.link.limit == _frameschannel.UNWRITTEN_BYTES
    await node.channel.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (frames.goaway("this node stops"), "this node stops"),
        (frames.frame(Kind.PONG), "invalid answer"),
        (b"HTTP/1.1 400 Bad Request\r\n", "frame"),
        (frames.frame(Kind.WELCOME, payload=bytes(GREETING_BYTES + 1)), "the limit is 4096"),
    ],
)
async def test_a_node_that_does_not_welcome_a_client_is_left(
    clock: Clock, answer: bytes, reason: str
) -> None:
    node = Node()
    greeting = begun(node.channel.greet(KEY))
    await turns()
    node.say(answer)
    with pytest.raises(duolog.Unavailable, match=reason):
        await result(greeting)
    assert node.link.aborted
    with pytest.raises(duolog.Unavailable, match=reason):
        await result(node.append())


async def test_a_connection_that_ends_before_its_greeting_is_no_error_of_a_task(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()
    node.channel.connection_lost(None)
    assert "it was closed" in str(node.channel.error)
    del node
    gc.collect()
    assert not caplog.records


async def test_a_node_that_says_nothing_at_all_is_left(clock: Clock) -> None:
    node = Node()
    greeting = begun(node.channel.greet(KEY))
    for _ in range(_frameschannel.SILENT_TICKS - 1):
        await clock.forward(1.0)
    assert not greeting.done()
    await clock.forward(1.0)
    with pytest.raises(duolog.Unavailable, match="does not answer"):
        await result(greeting)


async def test_a_channel_that_is_closed_leaves_no_timer(node: Node, clock: Clock) -> None:
    tasks = [node.append(seconds=5), node.append(seconds=2), node.pull(timeout=1), node.append()]
    await turns()
    assert clock.timers == 2, "one for deadlines, one for a silent node"
    await clock.forward(1.0)
    assert clock.timers == 2
    await node.channel.close()
    await turns()
    assert clock.timers == 0
    assert all(one.done() for one in tasks)


async def test_a_long_message_may_come_once_a_node_has_welcomed(node: Node) -> None:
    pull = node.pull()
    await turns()
    node.reply(1, wire.MessageBatch(topic="T"), bytes(GREETING_BYTES + 1))
    assert len((await result(pull)).bodies) == GREETING_BYTES + 1


async def test_a_greeting_that_nobody_waits_for_any_more_is_taken(clock: Clock) -> None:
    node = Node()
    greeting = begun(node.channel.greet(KEY))
    await turns()
    greeting.cancel()
    await turns()
    node.welcome()
    assert node.channel.error is None
    await node.channel.close()


async def test_a_node_is_pinged_and_left_when_it_says_nothing(node: Node, clock: Clock) -> None:
    waiting = node.append()
    await turns()
    began = len(node.link.written)
    for _ in range(_frameschannel.PING_TICKS - 1):
        await clock.forward(1.0)
    assert node.link.said(began) == []
    await clock.forward(1.0)
    assert node.link.said(began) == [(Kind.PING, 0)]
    node.say(frames.frame(Kind.PONG, number=5))
    for _ in range(_frameschannel.SILENT_TICKS - 1):
        await clock.forward(1.0)
    assert not node.link.closing, "it has answered since"
    assert len(node.link.said(began)) == 1 + 5
    await clock.forward(1.0)
    assert node.link.aborted
    with pytest.raises(duolog.Unavailable, match="does not answer"):
        await result(waiting)
    told = len(node.link.written)
    node.link.closing = False
    await clock.forward(9.0)
    assert len(node.link.written) == told, "nothing looks at it any more"


async def test_a_ping_of_the_node_is_answered(node: Node) -> None:
    node.say(frames.frame(Kind.PING, number=77))
    assert [(one.kind, one.number) for one in node.link.written] == [(Kind.PONG, 77)]


@pytest.mark.parametrize(
    "invalid",
    [
        frames.welcome(LIMIT, CALLS),
        frames.frame(Kind.CANCEL, 1),
        frames.frame(Kind.END, 1, payload=b"\xff"),
        frames.frame(Kind.APPENDED, 1, payload=b"\xff"),
        frames.frame(Kind.MESSAGE, 2, number=9, payload=b"x"),  # a head beyond its end
        frames.HEADER.pack((1 << 31) - 1, Kind.MESSAGE, 0, 0, 2, 0),
    ],
)
async def test_a_frame_that_no_node_may_send_ends_the_connection(
    node: Node, invalid: bytes
) -> None:
    append, pull = node.append(), node.pull()
    await turns()
    node.say(invalid)
    with pytest.raises(duolog.Unavailable, match="the connection to the node ended"):
        await result(append)
    await turns()
    assert refusal(pull.exception())[0] is grpc.StatusCode.UNAVAILABLE
    assert node.link.aborted


async def test_a_broken_connection_fails_all_its_calls_with_its_first_reason(node: Node) -> None:
    first, given_up, pull, stream = node.append(), node.append(), node.pull(), node.stream()
    await turns()
    given_up.cancel()
    assert not node.channel.over.is_set()
    node.channel.connection_lost(ConnectionResetError("reset by peer"))
    node.channel.connection_lost(None)
    assert node.channel.over.is_set()
    await turns()
    assert "reset by peer" in str(node.channel.error)
    with pytest.raises(duolog.Unavailable, match="reset by peer"):
        await result(first)
    assert refusal(pull.exception())[0] is grpc.StatusCode.UNAVAILABLE
    assert "reset by peer" in await result(stream.details())
    with pytest.raises(grpc.aio.AioRpcError, match="reset by peer"):
        await result(stream.read())
    assert given_up.cancelled()
    assert not node.channel.busy
    for late in node.append(), node.pull():
        await turns()
        assert "reset by peer" in str(late.exception())
    with pytest.raises(grpc.aio.AioRpcError, match="reset by peer"):
        node.stream()


async def test_a_closed_client_says_so(node: Node) -> None:
    waiting = node.append()
    await turns()
    await node.channel.close()
    with pytest.raises(duolog.Unavailable, match="the client was closed"):
        await result(waiting)
    assert node.channel.closed


async def test_a_channel_without_a_connection_is_closed(clock: Clock) -> None:
    channel = FramesChannel(cast(BusyPoll, Poll()))
    assert channel.closed
    await channel.close()


# -- a node that takes no more calls ---------------------------------------------------------------


async def test_calls_in_flight_end_well_on_a_connection_that_takes_no_more(node: Node) -> None:
    append, pull = node.append(), node.pull()
    await turns()
    node.say(frames.goaway("this node stops"))
    assert node.channel.over.is_set()
    with pytest.raises(duolog.Unavailable, match="this node stops"):
        await result(node.append())
    late = node.pull()
    await turns()
    assert refusal(late.exception()) == (grpc.StatusCode.UNAVAILABLE, "this node stops")
    with pytest.raises(grpc.aio.AioRpcError, match="this node stops"):
        node.stream()
    node.reply(2, wire.MessageBatch(topic="T"))
    assert (await result(pull)).topic == "T"
    assert not node.link.closing, "an append waits"
    node.appended(1, 10)
    assert node.link.closing
    assert not node.link.aborted, "what was written goes out"
    assert (await result(append)).queue_offset == 10


async def test_the_end_of_a_call_may_be_the_last_of_a_connection(node: Node) -> None:
    pull = node.pull()
    await turns()
    node.say(frames.goaway("this node stops"))
    node.end(1, 5, "no topic T")
    assert node.link.closing
    await turns()
    assert refusal(pull.exception())[1] == "no topic T"
    assert not node.channel.disowned


async def test_a_connection_without_calls_closes_when_it_takes_no_more(node: Node) -> None:
    node.say(frames.goaway("this node stops"))
    assert node.link.closing
    assert not node.link.aborted


@pytest.mark.parametrize("kind", ["append", "pull"])
async def test_a_call_that_is_given_up_may_be_the_last_of_a_connection(
    node: Node, kind: str
) -> None:
    last = getattr(node, kind)()
    await turns()
    node.say(frames.goaway("this node stops"))
    assert not node.link.closing
    last.cancel()
    await turns()
    assert node.link.said()[1:] == ([] if kind == "append" else [(Kind.CANCEL, 1)])
    assert node.link.closing


async def test_a_connection_goes_on_after_the_end_of_a_call(node: Node) -> None:
    append = node.append()
    await turns()
    node.end(1, 14, "no room")
    with pytest.raises(duolog.Unavailable, match="no room"):
        await result(append)
    assert not node.link.closing
    assert not node.channel.over.is_set()


async def test_a_key_that_is_taken_no_more_ends_what_it_began(node: Node) -> None:
    """Only that call was refused: the others were begun while the key was right."""
    refused, other, pull = node.append(), node.append(), node.pull()
    await turns()
    node.end(1, 16, "the user is gone")
    with pytest.raises(Disowned, match="the user is gone"):
        await result(refused)
    assert node.channel.disowned
    assert node.channel.over.is_set()
    node.end(3, 16, "the user is gone")
    await turns()
    code, text = refusal(pull.exception())
    assert (code, text) == (
        grpc.StatusCode.UNAVAILABLE,
        "a new key is needed: the user is gone",
    ), "not who calls is wrong: gRPC tells"
    assert not node.link.closing
    node.appended(2, 9)
    assert (await result(other)).queue_offset == 9


# -- appends ---------------------------------------------------------------------------------------


async def test_appends_are_written_at_once_and_answered_by_number(node: Node) -> None:
    one, two = node.append(b"one"), node.append(b"two")
    await asyncio.sleep(0)
    assert node.link.said() == [(Kind.APPEND, 1), (Kind.APPEND, 2)]
    assert [bytes(found.body) for found in node.link.written] == [b"one", b"two"]
    head = wire.AppendRequest.FromString(bytes(node.link.written[0].head))
    assert head.topic == "T"
    assert node.channel.busy
    node.appended(2, 20)
    node.appended(1, 10)
    assert [(await result(found)).queue_offset for found in (one, two)] == [10, 20]
    assert not node.channel.busy
    node.appended(1, 11)  # a second answer is nobody's
    assert node.channel.error is None


async def test_an_answer_to_an_append_that_was_given_up_is_dropped(node: Node) -> None:
    one, two = node.append(), node.append()
    await turns()
    one.cancel()
    node.appended(1, 10)  # before its task has heard
    node.end(2, 8, "no")
    await turns()
    assert one.cancelled()
    assert isinstance(two.exception(), duolog.DuologError)
    given_up = node.append()
    await turns()
    given_up.cancel()
    node.end(3, 8, "no")
    await turns()
    assert node.channel.error is None


async def test_a_batch_over_the_nodes_limit_is_never_written(node: Node) -> None:
    head = wire.AppendRequest(topic="T").ByteSize()
    fits = node.append(bytes(LIMIT - head))
    await turns()
    assert node.link.said() == [(Kind.APPEND, 1)]
    with pytest.raises(duolog.MessageTooLarge, match=f"{LIMIT + 1} bytes; .* {LIMIT}"):
        await result(node.append(bytes(LIMIT - head + 1)))
    node.appended(1, 10)
    await result(fits)
    assert not node.channel.busy
    assert len(node.link.written) == 1


async def test_appends_whose_time_is_over_fail_one_by_one(node: Node, clock: Clock) -> None:
    later, sooner, last = node.append(seconds=5), node.append(seconds=2), node.append(seconds=9)
    await turns()
    await clock.forward(1.9)
    assert not sooner.done()
    await clock.forward(0.1)
    assert isinstance(sooner.exception(), TimeoutError)
    assert not later.done()
    await clock.forward(3.0)
    assert isinstance(later.exception(), TimeoutError)
    assert not last.done()
    node.appended(3, 10)
    assert (await result(last)).queue_offset == 10
    again = node.append(seconds=1)
    await turns()
    await clock.forward(1.0)
    assert isinstance(again.exception(), TimeoutError)
    assert not node.channel.busy
    assert clock.timers == 1, "no deadline is left to look at"


async def test_time_does_not_run_out_for_an_append_that_is_answered(
    node: Node, clock: Clock
) -> None:
    one, two = node.append(seconds=1), node.append(seconds=1)
    await turns()
    one.cancel()  # in the turn in which its time is over
    clock.now += 1.0
    node.channel._expire()
    await turns()
    assert one.cancelled()
    assert isinstance(two.exception(), TimeoutError)


async def test_numbers_of_calls_in_flight_are_not_used_again(node: Node) -> None:
    first, second, third = node.append(), node.pull(), node.append()
    await turns()
    node.channel._last = _frameschannel.NUMBERS - 1
    more = [node.append(), node.append()]
    await turns()
    assert [call for _, call in node.link.said()] == [1, 2, 3, _frameschannel.NUMBERS, 4]
    for one in (first, second, third, *more):
        one.cancel()


async def test_only_a_small_append_is_likely_to_be_answered_at_once(node: Node) -> None:
    overhead = frames.HEADER_BYTES + wire.AppendRequest(topic="T").ByteSize()
    tasks = [node.append(bytes(SMALL_BYTES - overhead))]
    await turns()
    assert node.poll.expected == 1
    tasks += [node.append(bytes(SMALL_BYTES - overhead + 1)), node.append(bytes(APART_BYTES))]
    node.channel.pause_writing()
    tasks.append(node.append())
    await turns()
    assert node.poll.expected == 1
    node.channel.resume_writing()
    node.appended(1, 10)
    assert node.poll.arrived == 1
    assert [len(found.body) for found in node.link.written[3:]] == [4]
    await node.channel.close()
    await turns()


async def test_long_bodies_are_written_by_themselves(node: Node) -> None:
    body = bytes(range(256)) * (APART_BYTES // 256)
    task = node.append(body)
    await turns()
    assert (node.link.writes, len(node.link.written)) == (2, 1)
    assert bytes(node.link.written[0].body) == body
    assert node.poll.expected == 0, "copies of a batch take their time"
    task.cancel()


# -- a node that takes nothing ---------------------------------------------------------------------


async def test_appends_wait_in_order_while_the_node_takes_nothing(node: Node, clock: Clock) -> None:
    node.channel.pause_writing()
    tasks = [node.append(b"%d" % n, seconds=2 if n == 3 else 60) for n in range(6)]
    await turns()
    tasks[1].cancel()
    await clock.forward(2.0)
    assert isinstance(tasks[3].exception(), TimeoutError)
    assert node.link.written == []
    node.link.stops = 2
    node.channel.resume_writing()
    assert [bytes(found.body) for found in node.link.written] == [b"0", b"2"]
    behind = node.append(b"behind")
    await turns()
    assert len(node.link.written) == 2, "it was asked for another pause"
    node.channel.resume_writing()
    assert [bytes(found.body) for found in node.link.written[2:]] == [b"4", b"5", b"behind"]
    at_once = node.append(b"at once")
    await turns()
    assert bytes(node.link.written[-1].body) == b"at once"
    for one in (*tasks, behind, at_once):
        one.cancel()


async def test_an_append_whose_time_is_over_is_not_written_any_more(
    node: Node, clock: Clock
) -> None:
    node.channel.pause_writing()
    task = node.append(seconds=1)
    await turns()
    clock.now += 1.0
    node.channel._expire()
    node.channel.resume_writing()  # before its task has heard
    assert node.link.written == []
    with pytest.raises(TimeoutError):
        await result(task)
    await turns()


async def test_calls_begin_when_the_node_takes_something_again(node: Node, clock: Clock) -> None:
    stream = node.stream()
    node.channel.pause_writing()
    node.channel.resume_writing()
    node.channel.pause_writing()  # again: who waits then sleeps, too
    told = len(node.link.written)
    late, pull = node.pull(timeout=1), node.pull()
    write = begun(stream.write(wire.SubscribeRequest(group="g")))
    await turns()
    await clock.forward(1.0)
    assert refusal(late.exception())[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(node.link.written) == told
    node.channel.resume_writing()
    await turns()
    assert write.done()
    assert sorted(node.link.said(told)) == [(Kind.CALL, 2), (Kind.MESSAGE, 1)]
    pull.cancel()


async def test_what_waits_for_a_node_hears_of_its_end(node: Node) -> None:
    stream = node.stream()
    node.channel.pause_writing()
    append, pull = node.append(), node.pull()
    write = begun(stream.write(wire.SubscribeRequest(group="g")))
    await turns()
    node.channel.connection_lost(None)
    await turns()
    assert isinstance(append.exception(), duolog.Unavailable)
    assert refusal(pull.exception())[0] is grpc.StatusCode.UNAVAILABLE
    assert isinstance(write.exception(), asyncio.InvalidStateError)
    node.link.closing = False
    node.channel.resume_writing()
    assert node.link.said() == [(Kind.CALL, 1)], "the appends that waited are failed"


async def test_nothing_is_written_to_a_connection_that_closes(node: Node) -> None:
    node.link.closing = True
    node.say(frames.frame(Kind.PING, number=1))
    assert node.link.written == []


# -- calls with one request and one reply ----------------------------------------------------------


async def test_a_call_tells_its_method_its_request_and_the_time_that_is_left(
    node: Node, clock: Clock
) -> None:
    pull = node.pull("U", timeout=2.5)
    await turns()
    found = node.link.written[0]
    assert (found.kind, found.call, found.number) == (Kind.CALL, 1, 2500)
    assert frames.PATHS[found.code] == PULL
    assert wire.PullRequest.FromString(bytes(found.payload)).topic == "U"
    node.reply(1, wire.MessageBatch(topic="U", count=1), b"bodies")
    answer = await result(pull)
    assert (answer.topic, answer.bodies) == ("U", b"bodies")
    tasks = [node.pull(), node.pull(timeout=0.0), node.pull(timeout=1e9)]
    await turns()
    told = [one.number for one in node.link.written[1:] if one.kind == Kind.CALL]
    assert told == [3_600_000, 1, _frameschannel.NUMBERS], "0 is without an end"
    for one in tasks:
        one.cancel()


async def test_a_reply_may_come_before_the_end_of_its_call(node: Node) -> None:
    pull, nothing = node.pull(), node.pull()
    await turns()
    node.reply(1, wire.MessageBatch(topic="T"), last=False)
    await turns()
    assert not pull.done()
    node.end(1)
    assert (await result(pull)).topic == "T"
    node.end(2)
    with pytest.raises(grpc.aio.AioRpcError):
        await result(nothing)


async def test_a_call_that_fails_tells_what_the_node_told(node: Node) -> None:
    pull, strange = node.pull(), node.pull()
    await turns()
    node.end(1, 5, "no topic U", b="2", a="1")
    node.end(2, 999, "what")
    await turns()
    error = pull.exception()
    assert refusal(error) == (grpc.StatusCode.NOT_FOUND, "no topic U")
    assert list(error.trailing_metadata()) == [("a", "1"), ("b", "2")]
    assert refusal(strange.exception()) == (grpc.StatusCode.UNKNOWN, "what")


async def test_a_call_whose_time_is_over_is_taken_back(node: Node, clock: Clock) -> None:
    later, sooner = node.pull(timeout=5), node.pull(timeout=2)
    await turns()
    await clock.forward(2.0)
    assert refusal(sooner.exception())[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not later.done()
    assert node.link.said(2) == [(Kind.CANCEL, 2)]
    node.reply(2, wire.MessageBatch(topic="T"))  # late: nobody waits
    await clock.forward(3.0)
    assert refusal(later.exception())[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert node.link.said(3) == [(Kind.CANCEL, 1)]
    assert node.channel.error is None


async def test_a_call_that_is_cancelled_is_taken_back_once(node: Node) -> None:
    pull = node.pull()
    await turns()
    pull.cancel()
    await turns()
    assert pull.cancelled()
    assert node.link.said(1) == [(Kind.CANCEL, 1)]
    node.end(1)
    node.reply(9, wire.MessageBatch())  # of no call at all
    done = node.pull()
    await turns()
    node.reply(2, wire.MessageBatch(topic="T"))
    done.cancel()  # after its answer
    await turns()
    assert node.link.said(2) == [(Kind.CALL, 2)], "it is over: there is nothing to take back"


async def test_no_more_calls_at_a_time_than_the_node_takes(node: Node) -> None:
    tasks = [node.pull() for _ in range(CALLS)]
    await turns()
    over = node.pull()
    await turns()
    assert refusal(over.exception())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.aio.AioRpcError, match="3 calls are in flight"):
        node.stream()
    assert len(node.link.written) == CALLS
    append = node.append()  # has a bound of its own
    await turns()
    assert node.link.said(CALLS) == [(Kind.APPEND, CALLS + 1)]
    tasks[0].cancel()
    await turns()
    tasks.append(node.pull())
    await turns()
    assert node.link.said()[-1] == (Kind.CALL, CALLS + 2)
    for one in (*tasks, append):
        one.cancel()


async def test_a_request_over_the_nodes_limit_is_no_call(node: Node) -> None:
    empty = wire.PullRequest(topic="x" * 70_000).ByteSize() - 70_000
    fits = node.pull("x" * (LIMIT - empty))
    await turns()
    assert node.link.said() == [(Kind.CALL, 1)]
    for _ in range(CALLS):
        over = node.pull("x" * (LIMIT - empty + 1))
        await turns()
        code, text = refusal(over.exception())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{LIMIT + 1} bytes; the node's limit is {LIMIT}" in text
    stream = node.stream()
    with pytest.raises(grpc.aio.AioRpcError, match="the node's limit"):
        await result(stream.write(wire.SubscribeRequest(group="x" * LIMIT)))
    assert node.link.said(1) == [(Kind.CALL, CALLS + 2)]
    fits.cancel()


# -- streams ---------------------------------------------------------------------------------------


async def test_a_stream_gives_its_messages_in_order_and_then_its_end(node: Node) -> None:
    stream = node.stream()
    assert (node.link.written[0].number, bytes(node.link.written[0].payload)) == (0, b"")
    await result(stream.write(wire.SubscribeRequest(group="g")))
    sent = node.link.written[1]
    assert (sent.kind, sent.call) == (Kind.MESSAGE, 1)
    assert wire.SubscribeRequest.FromString(bytes(sent.head)).group == "g"
    read = begun(stream.read())
    await turns()
    assert not read.done()
    node.reply(1, wire.MessageBatch(queue_id=1), b"one", last=False)
    first = await result(read)
    assert (first.queue_id, first.bodies) == (1, b"one")
    read = begun(stream.read())
    await turns()
    assert not read.done()
    node.reply(1, wire.MessageBatch(queue_id=2), last=False)
    assert (await result(read)).queue_id == 2
    node.reply(1, wire.MessageBatch(queue_id=3), last=False)
    node.reply(1, wire.MessageBatch(queue_id=4))
    assert [(await result(stream.read())).queue_id for _ in range(2)] == [3, 4]
    assert await result(stream.read()) is grpc.aio.EOF
    assert await result(stream.code()) is grpc.StatusCode.OK
    assert not stream.cancel()
    with pytest.raises(asyncio.InvalidStateError, match="the call has ended"):
        await result(stream.write(wire.SubscribeRequest()))
    assert len(node.link.written) == 2


async def test_a_request_may_begin_a_stream(node: Node) -> None:
    make = node.channel.unary_stream(
        ROUTE, wire.RouteRequest.SerializeToString, wire.RouteReply.FromString
    )
    stream = make(wire.RouteRequest(), timeout=0.5)
    assert (node.link.said(), node.link.written[0].number) == ([(Kind.CALL, 1)], 500)
    node.reply(1, wire.RouteReply(group="a"))
    assert (await result(stream.read())).group == "a"
    other = make(wire.RouteRequest(), timeout=0.0)
    assert node.link.written[1].number == 1, "0 is without an end"
    other.cancel()


async def test_who_waits_for_the_end_of_a_stream_hears_of_it(node: Node) -> None:
    stream = node.stream()
    waits = [begun(one()) for one in (stream.code, stream.details)]
    await turns()
    node.reply(1, wire.MessageBatch(), last=False)
    await turns()
    assert not any(one.done() for one in waits), "a message is no end"
    node.end(1, 7, "not yours")
    node.channel.connection_lost(None)  # says nothing new
    assert [await result(one) for one in waits] == [grpc.StatusCode.PERMISSION_DENIED, "not yours"]
    assert (await result(stream.read())).topic == "", "what came before the end"
    with pytest.raises(grpc.aio.AioRpcError, match="not yours"):
        await result(stream.read())


async def test_a_node_is_told_of_the_messages_that_were_taken(node: Node) -> None:
    stream = node.stream()
    half = STREAM_AHEAD // 2
    for _ in range(STREAM_AHEAD):
        node.reply(1, wire.MessageBatch(), last=False)
    for _ in range(half - 1):
        await result(stream.read())
    assert len(node.link.written) == 1
    await result(stream.read())
    assert [(one.kind, one.call, one.number) for one in node.link.written[1:]] == [
        (Kind.MORE, 1, half)
    ]
    for _ in range(half - 1):
        await result(stream.read())
    assert len(node.link.written) == 2
    await result(stream.read())
    assert node.link.written[2].number == half
    for _ in range(half):
        node.reply(1, wire.MessageBatch(), last=False)
    node.end(1)
    for _ in range(half):
        await result(stream.read())
    assert len(node.link.written) == 3, "a call that is over needs none"


async def test_a_node_that_sends_more_than_was_asked_for_is_left(node: Node) -> None:
    node.stream()
    for _ in range(STREAM_AHEAD + 1):
        node.reply(1, wire.MessageBatch(), last=False)
    assert node.channel.error is None
    node.reply(1, wire.MessageBatch(), last=False)
    assert "more messages than were asked for" in str(node.channel.error)


async def test_a_stream_that_its_user_cancels_is_cancelled_for_who_reads(node: Node) -> None:
    stream = node.stream()
    read = begun(stream.read())
    await turns()
    assert stream.cancel()
    assert not stream.cancel()
    await turns()
    assert read.cancelled()
    assert node.link.said(1) == [(Kind.CANCEL, 1)]
    assert await result(stream.code()) is grpc.StatusCode.CANCELLED


async def test_a_stream_ends_when_its_time_is_over(node: Node, clock: Clock) -> None:
    endless, stream = node.stream(), node.stream(timeout=2)
    pull = node.pull(timeout=3)
    await turns()
    assert node.link.written[1].number == 2000
    read = begun(stream.read())
    await clock.forward(1.9)
    assert not read.done()
    await clock.forward(0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await result(stream.read())
    assert refusal(caught.value)[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert node.link.said(3) == [(Kind.CANCEL, 2)]
    await clock.forward(1.0)
    assert pull.done()
    node.reply(1, wire.MessageBatch(topic="T"), last=False)
    assert (await result(endless.read())).topic == "T"


# -- the way to a node -----------------------------------------------------------------------------


class Way:
    """Makes connections to a node, as the loop does. answer: to a greeting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []
        self.links: list[Link] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", self._connect)

    async def _connect(self, make: Any, host: str, port: int, **how: Any) -> tuple[Link, Any]:
        self.asked.append((host, port, how["ssl"], how["server_hostname"]))
        channel = make()
        link = Link(channel)
        channel.connection_made(link)
        self.links.append(link)
        if self.answer:
            room = channel.get_buffer(-1)
            room[: len(self.answer)] = self.answer
            asyncio.get_running_loop().call_soon(channel.buffer_updated, len(self.answer))
        return link, channel


@pytest.mark.parametrize("secured", [True, False])
async def test_a_certificate_must_name_the_host_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    way = Way(monkeypatch, frames.welcome(LIMIT, CALLS))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if secured else None
    channel = await result(connect(("db.example", 8084), KEY, 60.0, context))
    assert way.asked == [("db.example", 8084, context, "db.example" if secured else None)]
    assert not way.links[0].closing
    await channel.close()


async def test_a_node_that_refuses_or_says_nothing_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    way = Way(monkeypatch, frames.goaway("this is another node"))
    with pytest.raises(duolog.Unavailable, match="another node"):
        await result(connect(("db.example", 8084), KEY, 60.0))
    way.answer = b""
    waiting = begun(connect(("db.example", 8084), KEY, 2.0))
    await turns()
    await clock.forward(1.9)
    assert not waiting.done()
    await clock.forward(0.1)
    with pytest.raises(TimeoutError):
        await result(waiting)
    assert [link.aborted for link in way.links] == [True, True]
