"""A node's side of a frames connection, on a transport in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from math import inf
from typing import Any

import duolog
import grpc
import pytest
from duolog import _frames as frames
from duolog._background import Background
from duolog._busypoll import SMALL_BYTES, BusyPoll
from duolog._frames import LAST, STREAM_AHEAD, Frame, FrameReader, Kind
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.appending import Appending
from duolog_server.node.net import connection_protocol
from duolog_server.node.net import receive_budget as arriving
from duolog_server.node.net.frames import connection as module
from duolog_server.node.net.frames.connection import Connection, Terms
from duolog_server.node.net.frames.server import numbered
from duolog_server.node.net.methods import Methods
from duolog_server.node.net.receive_budget import ReceiveBudget
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus

KEY = b"k" * 16
PULL, SUBSCRIBE = (frames.NUMBERS[f"/duolog.v1.Messages/{name}"] for name in ("Pull", "Subscribe"))


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.7", 5555)})
        self.written = bytearray()
        self.reading = True
        self.closing = False
        self.aborted = False
        self.unsent = 0  # bytes that the client has not taken, where a test says so

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def take(self) -> list[Frame]:
        """What was written since the last time."""
        reader, found = FrameReader(64 << 20), []
        data, self.written = bytes(self.written), bytearray()
        while data:
            room = reader.room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            reader.received(count)
            while (one := reader.next()) is not None:
                found.append(one._replace(payload=memoryview(bytes(one.payload))))
        return found


class Appends:
    """A node's appends, whose outcomes the test decides on."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes, Host]] = []
        self.outcomes: list[asyncio.Future[PutMessageStatus]] = []
        self.waits = False
        self.answered = 0

    def append(
        self, request: wire.AppendRequest, host: Host, bodies: bytes | memoryview | None = None
    ) -> tuple[wire.AppendReply, asyncio.Future[PutMessageStatus] | None]:
        assert bodies is not None
        self.stored.append((request.id, bytes(bodies), host))
        reply = wire.AppendReply(id=request.id, status=wire.PUT_OK)
        if not self.waits:
            return reply, None
        outcome: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
        self.outcomes.append(outcome)
        return reply, outcome

    def settled(self, reply: wire.AppendReply, status: PutMessageStatus) -> None:
        reply.status = getattr(wire, status.value)

    def note_answered(self) -> None:
        self.answered += 1


class KeyAuthenticator:
    """Admits who names the test's key."""

    def __init__(self, appends: Appends) -> None:
        self.appends = appends
        self.open: list[str] = []
        self.full = False

    def admit(self, key: bytes, host: Host, certificate: str) -> tuple[object, Appending] | None:
        return (None, self.appends) if key == KEY else None

    def joined(self, principal: object, host: Host, peer: str) -> None:
        if self.full:
            raise duolog.Throttled("over the quota of User:alice: connections, 1")
        self.open.append(peer)

    def left(self, principal: object, host: Host, peer: str) -> None:
        self.open.remove(peer)


class Script(stubs.MessagesServicer):
    """What a test has a method do."""

    def __init__(self) -> None:
        self.pull: Callable[[Any, Any], Any] = self._wait
        self.began = 0
        self.cancelled = 0

    async def _wait(self, request: Any, context: Any) -> wire.MessageBatch:
        self.began += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError("nobody waits so long")

    async def Pull(self, request: Any, context: Any) -> Any:
        return await self.pull(request, context)

    async def Subscribe(self, requests: Any, context: Any) -> None:
        async for request in requests:
            for number in range(request.credit_bytes):
                await context.write(wire.MessageBatch(queue_id=number, bodies=b"b"))


class Side:
    """A connection to a node, and what the test is to it."""

    def __init__(self) -> None:
        self.calls = Background()
        self.appends = Appends()
        self.script = Script()
        self.open: set[Connection] = set()
        methods = Methods()
        stubs.add_MessagesServicer_to_server(self.script, methods.as_server())
        self.authenticator = KeyAuthenticator(self.appends)
        self.terms = Terms(
            self.authenticator,
            numbered(methods.by_path),
            self.appends.note_answered,
            self.calls.start,
            1 << 20,
            4,
            8,
            ReceiveBudget(8 << 20),
            BusyPoll(0),
        )

    def connect(self, greets: bool = True, **changes: Any) -> tuple[Connection, Wire]:
        made, line = Connection(replace(self.terms, **changes), self._joined), Wire()
        made.connection_made(line)
        if greets:
            send(made, frames.hello(KEY))
            (found,) = line.take()
            assert frames.read_welcome(found).version == frames.VERSION
        return made, line

    def _joined(self, connection: Connection, begins: bool) -> bool:
        (self.open.add if begins else self.open.discard)(connection)
        return True


def send(connection: Connection, data: bytes) -> None:
    """Have bytes arrive, as many at a time as there is room for."""
    while data:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        connection.buffer_updated(count)


def an_append(number: int, bodies: bytes = b"body") -> bytes:
    head = wire.AppendRequest(id=number).SerializeToString()
    return frames.message_frame(Kind.APPEND, number, head, bodies)


def a_pull(number: int, milliseconds: int = 10_000) -> bytes:
    data = wire.PullRequest(topic="T").SerializeToString()
    return frames.frame(Kind.CALL, number, milliseconds, data, PULL)


def end_of(found: Frame) -> tuple[int, str]:
    assert found.kind == Kind.END
    return found.code, wire.CallEnd.FromString(bytes(found.payload)).details


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns end by what was handled in them, however slow the machine is."""
    monkeypatch.setattr(connection_protocol, "TURN_SECONDS", inf)


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    made = Side()
    yield made
    await made.calls.stop()


async def test_others_have_their_turn_between_many_calls_that_arrive_at_once(side: Side) -> None:
    connection, line = side.connect()
    count = 2 * module.FRAMES_AT_ONCE + 5
    send(connection, b"".join(frames.frame(Kind.PING, number=n) for n in range(count)))
    answered = []
    for most in (module.FRAMES_AT_ONCE, module.FRAMES_AT_ONCE, 5):
        found = [frame.number for frame in line.take()]
        assert len(found) == most
        answered += found
        assert line.reading == (most == 5)
        await asyncio.sleep(0)
    assert answered == list(range(count))


async def test_appends_that_arrive_at_once_are_all_stored_at_once(side: Side) -> None:
    connection, line = side.connect()
    count = 2 * module.FRAMES_AT_ONCE + 5
    send(connection, b"".join(an_append(number, b"b") for number in range(count)))
    assert [frame.call for frame in line.take()] == list(range(count))
    assert line.reading


async def test_nothing_is_read_or_written_where_the_client_takes_nothing(side: Side) -> None:
    connection, line = side.connect()
    line.closing = True
    connection.go("the node is stopping")
    assert line.take() == []
    connection, line = side.connect()
    connection.pause_writing()
    assert not line.reading
    send(connection, an_append(1))
    assert side.appends.stored == []
    connection.resume_writing()
    assert line.reading
    assert len(side.appends.stored) == 1


# -- appends -------------------------------------------------------------------------------


async def test_appends_are_answered_in_their_turn_and_the_next_is_looked_for(side: Side) -> None:
    connection, line = side.connect()
    send(connection, an_append(1) + an_append(2, b"x" * 100_000))
    assert [frame.call for frame in line.take()] == [1, 2]
    host = Host("10.0.0.7", 5555)
    assert side.appends.stored == [(1, b"body", host), (2, b"x" * 100_000, host)]
    assert side.appends.answered == 2
    assert not side.calls.busy
    busy_poll = Watched()
    connection, _ = side.connect(busy_poll=busy_poll)
    send(connection, an_append(1))
    assert busy_poll.told == ["came", "expect"]
    send(connection, an_append(2, b"x" * SMALL_BYTES))  # a batch
    assert busy_poll.told == ["came", "expect", "came"]
    side.appends.waits = True
    send(connection, an_append(3))  # nothing comes before its answer
    assert busy_poll.told == ["came", "expect", "came", "came"]


class Watched(BusyPoll):
    """Notes what it is told."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        super().__init__(0)
        self.told: list[str] = []

    def expect(self) -> None:
        self.told.append("expect")

    def came(self) -> None:
        self.told.append("came")


async def test_waiting_appends_are_answered_in_the_order_of_their_requests(side: Side) -> None:
    connection, line = side.connect()
    side.appends.waits = True
    send(connection, an_append(1) + an_append(2))
    side.appends.waits = False
    send(connection, an_append(3))
    assert line.take() == []
    first, second = side.appends.outcomes
    second.set_result(PutMessageStatus.PUT_OK)
    await asyncio.sleep(0)
    assert line.take() == []
    first.set_result(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
    await asyncio.sleep(0)
    found = line.take()
    assert [frame.call for frame in found] == [1, 2, 3]
    replies = [wire.AppendReply.FromString(bytes(frame.payload)) for frame in found]
    assert [reply.status for reply in replies] == [
        wire.FLUSH_SLAVE_TIMEOUT,
        wire.PUT_OK,
        wire.PUT_OK,
    ]


async def test_reading_pauses_at_the_limit_of_unanswered_requests(side: Side) -> None:
    connection, line = side.connect()
    side.appends.waits = True
    send(connection, b"".join(map(an_append, range(1, 7))))  # in one piece
    assert len(side.appends.stored) == 4
    assert not line.reading
    side.appends.outcomes[0].set_result(PutMessageStatus.PUT_OK)
    await asyncio.sleep(0)
    assert len(side.appends.stored) == 5  # what was here already goes on
    assert not line.reading
    for outcome in side.appends.outcomes[1:]:
        outcome.set_result(PutMessageStatus.PUT_OK)
    await asyncio.sleep(0)
    assert len(side.appends.stored) == 6
    assert line.reading


async def test_a_cancelled_append_closes_the_connection(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, line = side.connect()
    side.appends.waits = True
    send(connection, an_append(1))
    side.appends.outcomes[0].cancel()
    await asyncio.sleep(0)
    assert line.closing
    connection.connection_lost(None)
    assert side.open == set()


# -- calls -------------------------------------------------------------------------------


async def test_a_call_started_and_cancelled_in_one_packet_leaves_no_state(side: Side) -> None:
    connection, line = side.connect()
    for number in range(1, 30):  # more than may be under way at a time
        send(connection, a_pull(number) + frames.frame(Kind.CANCEL, number))
        while not line.reading:
            await asyncio.sleep(0)
    assert not connection.busy
    await side.calls.finish(5)
    assert side.script.began == 0
    assert line.take() == []
    send(connection, a_pull(1))  # its number may be used again
    await asyncio.sleep(0)
    assert side.script.began == 1


async def test_an_abandoned_call_does_not_answer_a_later_call_with_its_number(side: Side) -> None:
    async def clean_up(request: Any, context: Any) -> Any:
        side.script.began += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await context.abort(grpc.StatusCode.ABORTED, "of the first call")

    side.script.pull = clean_up
    connection, line = side.connect()
    send(connection, a_pull(1))
    await asyncio.sleep(0)
    send(connection, frames.frame(Kind.CANCEL, 1) + a_pull(1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert side.script.began == 2
    assert line.take() == []
    assert connection.busy


async def test_a_cancelled_call_ends_at_the_node(side: Side) -> None:
    connection, line = side.connect()
    send(connection, a_pull(1))
    await asyncio.sleep(0)
    send(connection, frames.frame(Kind.CANCEL, 1))
    await side.calls.finish(5)
    assert (side.script.began, side.script.cancelled) == (1, 1)
    assert not connection.busy
    assert line.take() == []


async def test_the_end_of_a_connection_ends_its_calls(side: Side) -> None:
    connection, _ = side.connect()
    send(connection, a_pull(1) + a_pull(2))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await side.calls.finish(5)
    assert side.script.cancelled == 2
    assert side.open == set()


async def test_a_call_needs_a_deadline_and_ends_with_it(side: Side) -> None:
    connection, line = side.connect()
    send(connection, a_pull(1, 10))
    await side.calls.finish(5)
    assert end_of(line.take()[0]) == (
        grpc.StatusCode.DEADLINE_EXCEEDED.value[0],
        "Deadline Exceeded",
    )
    assert not connection.busy
    connection, line = side.connect()
    send(connection, a_pull(1, 0))
    assert end_of(line.take()[0])[0] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert not connection.busy
    connection, line = side.connect()
    code = frames.NUMBERS["/duolog.v1.Messages/Append"]
    send(connection, frames.frame(Kind.CALL, 1, 0, b"", code))
    assert end_of(line.take()[0])[0] == grpc.StatusCode.UNIMPLEMENTED.value[0]
    assert not connection.busy


async def test_calls_under_way_are_bounded_and_a_number_is_used_once(side: Side) -> None:
    connection, line = side.connect()
    send(connection, b"".join(map(a_pull, range(1, 10))))
    await asyncio.sleep(0)
    (refused,) = line.take()
    assert refused.call == 9
    assert end_of(refused)[0] == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    send(connection, a_pull(3))
    assert line.closing


async def test_an_unknown_method_a_bad_request_and_a_fault_end_their_call_alone(side: Side) -> None:
    connection, line = side.connect()

    async def fails(request: Any, context: Any) -> Any:
        raise ZeroDivisionError("a bug")

    side.script.pull = fails
    send(connection, frames.frame(Kind.CALL, 1, 100, b"", 999))
    send(connection, frames.frame(Kind.CALL, 2, 100, b"\xff\xff\xff", PULL))
    send(connection, a_pull(3))
    await side.calls.finish(5)
    codes = {found.call: end_of(found)[0] for found in line.take()}
    assert codes == {
        1: grpc.StatusCode.UNIMPLEMENTED.value[0],
        2: grpc.StatusCode.INTERNAL.value[0],
        3: grpc.StatusCode.UNKNOWN.value[0],
    }
    assert not line.closing


async def test_bodies_of_an_answer_travel_behind_it_up_to_the_limit(side: Side) -> None:
    connection, line = side.connect()

    async def large(request: Any, context: Any) -> Any:
        return wire.MessageBatch(bodies=bytes(2 << 20))

    side.script.pull = large
    send(connection, a_pull(1))
    await side.calls.finish(5)
    assert end_of(line.take()[0])[0] == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    connection, line = side.connect()

    async def batch(request: Any, context: Any) -> Any:
        assert context.peer() == "ipv4:10.0.0.7:5555"
        return wire.MessageBatch(topic=request.topic, bodies=b"all of them")

    side.script.pull = batch
    send(connection, a_pull(1))
    await side.calls.finish(5)
    (found,) = line.take()
    assert found.flags == LAST
    assert wire.MessageBatch.FromString(bytes(found.head)) == wire.MessageBatch(topic="T")
    assert bytes(found.body) == b"all of them"


async def test_a_stream_is_not_written_further_ahead_than_its_reader_grants(side: Side) -> None:
    connection, line = side.connect()
    wanted = 3 * STREAM_AHEAD
    request = wire.SubscribeRequest(credit_bytes=wanted).SerializeToString()
    send(connection, frames.frame(Kind.CALL, 1, 0, b"", SUBSCRIBE))
    send(connection, frames.message_frame(Kind.MESSAGE, 1, request))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(line.take()) == STREAM_AHEAD
    send(connection, frames.frame(Kind.MORE, 1, 40))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(line.take()) == 40
    send(connection, frames.frame(Kind.MORE, 1, STREAM_AHEAD + 1))  # more than were sent
    assert line.closing


async def test_unconsumed_requests_pause_reading_and_use_bounded_memory(side: Side) -> None:
    connection, line = side.connect()
    request = wire.SubscribeRequest(credit_bytes=1).SerializeToString()
    send(connection, frames.frame(Kind.CALL, 1, 0, b"", SUBSCRIBE))
    send(connection, 100 * frames.message_frame(Kind.MESSAGE, 1, request))
    assert not line.reading
    taken = 0
    for _ in range(300):
        await asyncio.sleep(0)
        count = len(line.take())
        taken += count
        if count:
            send(connection, frames.frame(Kind.MORE, 1, count)) if line.reading else None
    assert taken >= STREAM_AHEAD
    assert line.reading
    connection, line = side.connect()
    send(connection, frames.frame(Kind.CALL, 1, 0, b"", SUBSCRIBE))
    large = wire.SubscribeRequest(sql="x" * (600 << 10)).SerializeToString()
    send(connection, 2 * frames.message_frame(Kind.MESSAGE, 1, large))
    assert not line.reading
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.reading


async def test_no_reply_is_encoded_while_the_client_reads_none(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, line = side.connect()
    made = 0

    async def pull(request: Any, context: Any) -> wire.MessageBatch:
        nonlocal made
        made += 1
        return wire.MessageBatch(bodies=b"b" * 1000)

    def write(data: Any) -> None:
        line.written += data
        connection.pause_writing()  # as the transport does, once it is full

    monkeypatch.setattr(line, "write", write)
    side.script.pull = pull
    send(connection, b"".join(map(a_pull, range(1, 6))))
    for _ in range(5):
        await asyncio.sleep(0)
    assert made == len(line.take()) == 1
    for more in range(2, 6):
        connection.resume_writing()
        for _ in range(5):
            await asyncio.sleep(0)
        assert made == more
        assert len(line.take()) == 1


# -- what breaks the rules ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),  # TLS
        frames.hello(b"another process!"),
        frames.welcome(1, 1),
        an_append(1),
        a_pull(1),
        frames.frame(Kind.HELLO, payload=bytes(5000)),
    ],
)
async def test_a_connection_without_a_greeting_gets_an_error_and_is_closed(
    side: Side, data: bytes
) -> None:
    other, _ = side.connect()
    connection, line = side.connect(greets=False)
    send(connection, data)
    assert line.closing
    assert [found.kind for found in line.take()] == [Kind.GOAWAY]
    connection.connection_lost(None)
    assert side.open == {other}
    assert side.appends.stored == []


@pytest.mark.parametrize(
    "data",
    [
        frames.frame(99),
        frames.frame(Kind.WELCOME),
        frames.frame(Kind.APPENDED, 1),
        frames.frame(Kind.APPEND, 1, 5, b"four"),  # its head is longer than it is
        frames.frame(Kind.APPEND, 1, 3, b"\xff\xff\xff"),
        frames.HEADER.pack(2 << 20, Kind.APPEND, 0, 0, 1, 0),
        a_pull(1) + frames.frame(Kind.MESSAGE, 1),  # it has its request
    ],
)
async def test_an_unexpected_frame_closes_only_its_own_connection(side: Side, data: bytes) -> None:
    other, quiet = side.connect()
    connection, line = side.connect()
    send(connection, data)
    assert line.closing
    assert not quiet.closing
    send(other, an_append(1))
    assert len(quiet.take()) == 1


async def test_silent_connections_and_partial_frames_time_out(side: Side) -> None:
    _, never_greets = side.connect(greets=False)
    half, halved = side.connect()
    silent, line = side.connect()
    send(half, an_append(1)[:20])
    for _ in range(module.GREETING_TICKS + 1):
        for one in list(side.open):
            one.tick()
    assert never_greets.closing
    pings = [found for found in line.take() if found.kind == Kind.PING]
    assert pings
    for _ in range(arriving.STALLED_TICKS + module.SILENT_TICKS):
        if half in side.open:
            send(half, an_append(1)[20:21]) if not halved.closing else None
            half.tick()
        silent.tick()
    assert halved.closing
    assert line.aborted


async def test_a_long_frame_waits_unread_until_there_is_room_for_it(side: Side) -> None:
    side.terms = replace(side.terms, arriving=ReceiveBudget(200_000))
    (one, first), (other, second), (third, _) = (side.connect() for _ in range(3))
    long = an_append(1, b"x" * 100_000)
    send(one, long[:50_000])
    send(other, long[:100])
    assert (first.reading, second.reading) == (True, False)
    send(third, an_append(7))  # short ones need none
    send(one, long[50_000:])
    assert [found.call for found in first.take()] == [1]
    assert second.reading
    send(other, long[100:])
    assert [found.call for found in second.take()] == [1]
    assert side.terms.arriving.taken == 0
    side.terms = replace(side.terms, arriving=ReceiveBudget(200_000))
    (one, first), (other, second) = side.connect(), side.connect()
    long = an_append(1, b"x" * 100_000)
    send(one, long[:50_000])
    send(other, long[:100])
    for _ in range(arriving.GRACE_LOOKS + 13):  # it goes on until the first one
        side.terms.arriving.look()
    assert first.closing
    assert second.reading
    other.connection_lost(None)
    assert side.terms.arriving.taken == 0


async def test_a_client_may_read_slowly_but_not_nothing(side: Side) -> None:
    connection, line = side.connect()
    line.unsent = 5 << 20
    connection.pause_writing()
    for _ in range(5 * module.SILENT_TICKS):
        line.unsent -= 1000
        connection.tick()
    assert not line.aborted
    for _ in range(module.SILENT_TICKS + 1):  # then it takes nothing any more
        connection.tick()
    assert line.aborted
    connection.connection_lost(None)
    connection, line = side.connect()
    line.unsent = 1000
    send(connection, frames.frame(Kind.END, 1))
    assert line.closing
    assert side.open == {connection}  # it counts as long as it is there
    connection.tick()
    assert line.aborted
    connection.connection_lost(None)
    assert side.open == set()


async def test_pings_are_answered_and_their_answers_keep_a_connection(side: Side) -> None:
    connection, line = side.connect()
    for _ in range(5 * module.SILENT_TICKS):
        connection.tick()
        for found in line.take():
            assert found.kind == Kind.PING
            send(connection, frames.frame(Kind.PONG, number=found.number))
    assert not line.closing
    connection, line = side.connect()
    send(connection, frames.frame(Kind.PING, number=7))
    assert [(found.kind, found.number) for found in line.take()] == [(Kind.PONG, 7)]


async def test_a_stopping_node_refuses_new_calls_and_finishes_those_under_way(side: Side) -> None:
    connection, line = side.connect()
    side.appends.waits = True
    send(connection, an_append(1))
    connection.go("the node is stopping")
    send(connection, an_append(2) + a_pull(3))
    kinds = [(found.kind, found.call) for found in line.take()]
    assert kinds == [(Kind.GOAWAY, 0), (Kind.END, 2), (Kind.END, 3)]
    assert connection.busy
    side.appends.outcomes[0].set_result(PutMessageStatus.PUT_OK)
    await asyncio.sleep(0)
    assert [(found.kind, found.call) for found in line.take()] == [(Kind.APPENDED, 1)]
    assert not connection.busy


async def test_a_connection_joins_once_leaves_once_and_is_held_to_its_quota(side: Side) -> None:
    connection, _ = side.connect()
    assert side.authenticator.open == ["ipv4:10.0.0.7:5555"]
    connection.connection_lost(None)
    connection.abort()
    assert side.authenticator.open == []
    ungreeted, _ = side.connect(greets=False)
    ungreeted.connection_lost(None)
    assert side.authenticator.open == []
    side.authenticator.full = True
    connection, line = side.connect(greets=False)
    send(connection, frames.hello(KEY))
    (goaway,) = line.take()
    assert goaway.kind == Kind.GOAWAY
    assert "over the quota of User:alice: connections, 1" in frames.text_of(goaway)
    assert line.closing
    connection.connection_lost(None)
    assert side.authenticator.open == []
