"""A node's side of a remoting connection, on a transport in memory."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from duolog._background import Background
from duolog._busypoll import SMALL_BYTES, BusyPoll
from duolog._errors import Throttled

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import ONEWAY, RESPONSE, Command
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, SHORT_BYTES, FrameReader
from duolog_server.compat.remoting.port import connection as module
from duolog_server.compat.remoting.port.connection import Connection, Terms
from duolog_server.compat.remoting.port.dispatcher import Begun, Peer, Served, Stored, tried
from duolog_server.node.net import connection_protocol
from duolog_server.node.net import receive_budget as arriving
from duolog_server.node.net.receive_budget import ReceiveBudget
from duolog_server.store.status import PutMessageStatus
from tests.memory import held_beneath
from tests.node.net.frames.test_connection import Wire as KeepingWire

ECHO, WAIT, REFUSE, BREAK, POLL, STORE = 1, 2, 3, 4, 5, 6
ROOM = 200_000


class Wire(KeepingWire):
    """A transport that keeps what is written, and breaks where a test says so."""

    breaks = False  # at the next write
    writes = 0

    def write(self, data: Any) -> None:
        super().write(data)
        self.writes += 1
        self.closing = self.closing or self.breaks

    def commands(self) -> list[Command]:
        """What was written since the last time."""
        reader, found = FrameReader(FRAME_BYTES_MAX), []
        reader.feed(bytes(self.written))
        self.written = bytearray()
        while (command := reader.next()) is not None:
            found.append(command)
        return found


def answered(number: int, status: PutMessageStatus) -> Command:
    if status is PutMessageStatus.UNKNOWN_ERROR:
        raise ZeroDivisionError("a bug")
    return Command(STORE, number).answer(0, status.value)


class Dispatcher:
    """Serves requests as the test says."""

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[str]] = {}
        self.here: list[str] = []
        self.served: list[int] = []
        self.together: list[int] = []
        self.outcomes: list[asyncio.Future[PutMessageStatus]] = []  # of the next that is stored
        self.full = False
        self.cancelled = 0

    def joined(self, peer: Peer) -> None:
        if self.full:
            raise Throttled("too many connections", 1000)
        self.here.append(peer.name)

    def left(self, peer: Peer) -> None:
        self.here.remove(peer.name)

    def serve(self, peer: Peer, request: Command) -> Begun:
        self.served.append(request.opaque)
        if request.code == ECHO:
            return request.answer(0, body=request.body)
        if request.code == REFUSE:
            raise KeyError("refused")
        if request.code == BREAK:
            raise ZeroDivisionError("a bug")
        if request.code == STORE:
            number = request.opaque
            return Stored(self.outcomes[-1], request.bare(), lambda known: answered(number, known))
        return self._later(request)

    async def _later(self, request: Command) -> Command:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers[request.opaque] = answer
        try:
            return request.answer(0, await answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def serve_each(self, peer: Peer, requests: Sequence[Command]) -> list[Served]:
        self.together.append(len(requests))
        return [tried(self.serve, peer, request) for request in requests]

    def holds(self, request: Command) -> bool:
        return request.code == POLL

    def repeats(self, code: int) -> bool:
        return code == ECHO

    def refusal(self, request: Command, error: Exception) -> Command | None:
        return request.answer(7, "no") if isinstance(error, KeyError) else None


class Side:
    """A connection and what it is made of."""

    def __init__(
        self,
        desk: Dispatcher,
        begin: Any,
        room: ReceiveBudget,
        admits: Callable[[], bool] = lambda: True,
        **more: Any,
    ) -> None:
        self.room = room
        terms = replace(Terms(desk, begin, 1 << 20, 3, room), **more)
        self.connection = Connection(terms, lambda _, begins: admits() or not begins)
        self.wire = Wire()
        self._coming = b""
        self.connection.connection_made(self.wire)

    def arrive(self, data: bytes = b"") -> None:
        """As a transport does: what is not read waits there."""
        self._coming += data
        while self._coming and self.wire.reading and not self.wire.closing:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(self._coming))
            assert count, "there is room where it is read"
            room[:count] = self._coming[:count]
            self._coming = self._coming[count:]
            self.connection.buffer_updated(count)

    async def flow(self, data: bytes) -> None:
        """The same until all of it is read, as far as it is."""
        self.arrive(data)
        while self._coming and not self.wire.closing:
            await asyncio.sleep(0)
            self.arrive()

    def send(self, code: int, number: int, body: bytes = b"", flag: int = 0) -> None:
        self.arrive(Command(code, number, body=body, flag=flag).frame())

    def lose(self) -> None:
        self.connection.connection_lost(None)

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.connection.tick()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns end by what was served in them, however slow the machine is."""
    monkeypatch.setattr(connection_protocol, "TURN_SECONDS", inf)


@pytest.fixture
def desk() -> Dispatcher:
    return Dispatcher()


@pytest.fixture
async def sides(desk: Dispatcher) -> AsyncIterator[Callable[[], Side]]:
    background, room = Background(), ReceiveBudget(ROOM)
    made: list[Side] = []

    def make() -> Side:
        made.append(Side(desk, background.start, room))
        return made[-1]

    yield make
    for side in made:
        side.lose()
    await background.stop()
    assert room.taken == 0
    assert desk.here == []


@pytest.fixture
def side(sides: Callable[[], Side]) -> Side:
    return sides()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_are_answered_in_the_callback(side: Side) -> None:
    side.send(ECHO, 1, b"a")
    side.send(ECHO, 2, b"b" * 100_000)
    found = side.wire.commands()
    assert [(one.opaque, one.body[:1], one.flag) for one in found] == [
        (1, b"a", RESPONSE),
        (2, b"b", RESPONSE),
    ]


def test_nobody_waits_for_the_answer_of_a_oneway_request(side: Side) -> None:
    side.send(ECHO, 1, flag=ONEWAY)
    side.send(REFUSE, 2, flag=ONEWAY)
    side.send(ECHO, 3, flag=RESPONSE)  # which this node did not ask for
    assert side.wire.commands() == []


async def test_an_answer_may_come_before_those_of_earlier_requests(
    side: Side, desk: Dispatcher
) -> None:
    side.send(WAIT, 1)
    side.send(WAIT, 2)
    await turns()
    desk.answers[2].set_result("second")
    await turns()
    desk.answers[1].set_result("first")
    await turns()
    assert [(one.opaque, one.remark) for one in side.wire.commands()] == [
        (2, "second"),
        (1, "first"),
    ]


async def test_errors_are_answered_and_the_connection_goes_on(side: Side, desk: Dispatcher) -> None:
    side.send(REFUSE, 1)
    side.send(BREAK, 2)
    side.send(WAIT, 3)
    await turns()
    desk.answers[3].set_exception(KeyError("late"))
    await turns()
    side.send(ECHO, 4)
    found = side.wire.commands()
    assert [(one.opaque, one.code) for one in found] == [(1, 7), (2, 1), (3, 7), (4, 0)]
    assert "ZeroDivisionError" in found[1].remark


@pytest.mark.parametrize("code", [ECHO, WAIT])
async def test_an_answer_that_cannot_be_written_ends_this_connection_alone(
    desk: Dispatcher, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failures: list[Exception] = []
    side = Side(desk, Background(failures.append).start, ReceiveBudget(ROOM))
    request = Command(code, 1).frame()
    monkeypatch.setattr(Command, "head", lambda self: "\ud800".encode())
    side.arrive(request)
    await turns()
    if code == WAIT:
        desk.answers[1].set_result("")
        await turns()
    assert side.wire.aborted
    assert (failures, desk.here) == ([], [])
    side.lose()


async def test_too_many_requests_that_wait_are_refused(side: Side, desk: Dispatcher) -> None:
    for number in range(5):
        side.send(WAIT, number)
    assert [(one.opaque, one.code) for one in side.wire.commands()] == [
        (3, ResponseCode.SYSTEM_BUSY),
        (4, ResponseCode.SYSTEM_BUSY),
    ]
    assert desk.served == [0, 1, 2], "nothing is stored of what is refused"
    await turns()
    desk.answers[0].set_result("")
    await turns()
    side.send(WAIT, 9)
    await turns()
    assert 9 in desk.answers


async def test_what_waits_ends_with_its_connection(side: Side, desk: Dispatcher) -> None:
    side.send(WAIT, 1)
    await turns()
    side.lose()
    await turns()
    assert desk.cancelled == 1
    assert desk.here == []
    assert side.wire.commands() == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\r\n",
        struct.pack(">II", 1 << 21, 0),
        struct.pack(">II", 8, 2 << 24 | 4) + b"head",
        struct.pack(">II", 6, 2) + b"[]",
    ],
)
def test_what_is_no_frame_ends_this_connection_alone(
    sides: Callable[[], Side], desk: Dispatcher, data: bytes
) -> None:
    one, other = sides(), sides()
    one.arrive(data)
    assert one.wire.closing
    one.send(ECHO, 1)
    assert one.wire.commands() == []
    other.send(ECHO, 1, b"x")
    assert [found.body for found in other.wire.commands()] == [b"x"]
    assert desk.here == [other.connection.name]


async def test_long_frames_that_are_not_whole_share_their_memory(sides: Callable[[], Side]) -> None:
    one, other, third, fourth = (sides() for _ in range(4))
    frame = Command(ECHO, 1, body=bytes(100_000)).frame()
    part = SHORT_BYTES + 20_000
    one.arrive(frame[:part])
    other.arrive(frame[:part])
    assert (one.wire.reading, other.wire.reading) == (True, False)
    third.arrive(frame[:SHORT_BYTES])  # it waits, too
    fourth.send(ECHO, 1)  # short ones go on
    assert len(fourth.wire.commands()) == 1
    await one.flow(frame[part:] + frame[:SHORT_BYTES])  # and the next one
    assert len(one.wire.commands()) == 1
    assert (one.wire.reading, other.wire.reading) == (False, True)
    other.arrive(frame[part:])
    assert len(other.wire.commands()) == 1
    third.lose()
    assert one.wire.reading
    one.arrive(frame[SHORT_BYTES:])
    assert len(one.wire.commands()) == 1


async def test_however_many_wait_for_room_nobody_is_refused_and_little_is_kept(
    sides: Callable[[], Side],
) -> None:
    frame = Command(ECHO, 1, body=bytes(150_000)).frame()
    crowd = [sides() for _ in range(100)]
    crowd[0].arrive(frame[:-1])
    for one in crowd[1:]:
        one.arrive(frame * 2)
    assert sum(one.wire.reading for one in crowd) == 1
    assert all(one.connection._reader.held_bytes <= SHORT_BYTES for one in crowd[1:])
    crowd[0].arrive(frame[-1:])
    answered = len(crowd[0].wire.commands())
    while going := [one for one in crowd[1:] if one.wire.reading and one._coming]:
        for one in going:
            one.arrive()
            answered += len(one.wire.commands())
        await asyncio.sleep(0)
    assert answered == 1 + 2 * len(crowd[1:])
    assert not any(one.wire.closing for one in crowd)


async def test_what_came_before_is_served_and_no_more_than_a_short_frame_of_it_waits(
    sides: Callable[[], Side],
) -> None:
    long = Command(ECHO, 2, body=bytes(150_000)).frame()
    one, other, third = (sides() for _ in range(3))
    one.connection.feed(Command(ECHO, 1).frame() + long[:50_000])
    await one.flow(long[50_000:-1])
    other.connection.feed(long[:SHORT_BYTES])
    third.connection.feed(long[: SHORT_BYTES + 1])
    assert [side.wire.closing for side in (one, other, third)] == [False, False, True]
    await one.flow(long[-1:])
    await other.flow(long[SHORT_BYTES:])
    assert [found.opaque for side in (one, other) for found in side.wire.commands()] == [1, 2, 2]


async def test_a_long_frame_that_does_not_go_on_ends_while_another_one_waits(
    sides: Callable[[], Side],
) -> None:
    one, other = sides(), sides()
    frame = Command(ECHO, 1, body=bytes(100_000)).frame()
    one.arrive(frame[:SHORT_BYTES])
    other.arrive(frame[:20_000])
    for _ in range(arriving.GRACE_LOOKS + 1):
        one.room.look()
    assert one.wire.closing
    assert other.wire.reading


async def test_a_long_request_leaves_no_memory_with_its_connection(side: Side) -> None:
    frame = Command(ECHO, 1, flag=ONEWAY, body=bytes(900_000)).frame()
    with held_beneath(__file__) as held:
        for at in range(0, len(frame), 100_000):
            await side.flow(frame[at : at + 100_000])
        memory = held()
    assert memory < 100_000


def test_nothing_is_read_while_the_client_takes_no_answers(side: Side) -> None:
    taken: list[int] = []
    side.connection.when_taken(lambda: taken.append(0))
    side.connection.pause_writing()
    assert not side.wire.reading
    side.send(ECHO, 1)
    side.connection.tell(Command(40))
    side.connection.when_taken(lambda: taken.append(1))
    assert side.wire.commands() == []
    assert taken == [0]
    side.connection.resume_writing()
    assert side.wire.reading
    assert taken == [0, 1]
    side.arrive()
    assert [one.opaque for one in side.wire.commands()] == [1]


def test_what_waits_to_be_taken_is_let_go_with_the_connection(side: Side) -> None:
    taken: list[int] = []
    side.connection.pause_writing()
    side.connection.when_taken(lambda: taken.append(1))
    side.lose()
    assert taken == [1]


async def test_others_have_their_turn_between_many_requests_that_arrive_at_once(side: Side) -> None:
    count = 2 * module.REQUESTS_AT_ONCE + 5
    frames = [Command(ECHO, number).frame() for number in range(count)]
    side.arrive(b"".join(frames))
    answered = []
    for most in (module.REQUESTS_AT_ONCE, module.REQUESTS_AT_ONCE, 5):
        found = [one.opaque for one in side.wire.commands()]
        assert len(found) == most
        answered += found
        assert side.wire.reading == (most == 5)
        await asyncio.sleep(0)
    assert answered == list(range(count))
    assert side.wire.commands() == []


async def test_others_have_their_turn_after_a_request_that_takes_long(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_protocol, "TURN_SECONDS", 0.0)
    side.arrive(Command(ECHO, 1).frame() * 3)
    for _ in range(3):
        assert len(side.wire.commands()) == 1
        await asyncio.sleep(0)
    assert side.wire.reading


async def test_nothing_is_served_to_a_client_that_went_while_it_waited_for_its_turn(
    side: Side, desk: Dispatcher
) -> None:
    here, there = socket.socketpair()
    with here, there:
        side.wire._extra["socket"] = here  # type: ignore[attr-defined]
        side.arrive(Command(ECHO, 1).frame() * (module.REQUESTS_AT_ONCE + 1))
        assert len(desk.served) == module.REQUESTS_AT_ONCE
        here.send(b"never read")
        there.close()  # which says so: there is what it never read
        await turns()
    assert len(desk.served) == module.REQUESTS_AT_ONCE
    assert side.wire.aborted


async def test_what_waits_for_its_turn_ends_with_its_connection(side: Side) -> None:
    side.arrive(Command(ECHO, 1, body=bytes(1000)).frame() * 40)
    side.wire.commands()
    side.lose()
    await turns()
    assert side.wire.commands() == []


async def test_a_client_that_takes_no_answers_is_served_no_more_in_its_turn(side: Side) -> None:
    side.arrive(Command(ECHO, 1).frame() * (module.REQUESTS_AT_ONCE + 1))
    side.wire.commands()
    side.connection.pause_writing()
    await turns()
    assert side.wire.commands() == []
    assert not side.wire.reading
    side.connection.resume_writing()
    assert len(side.wire.commands()) == 1
    assert side.wire.reading


async def test_nothing_is_written_to_a_connection_that_broke(side: Side) -> None:
    side.wire.breaks = True
    large = Command(ECHO, 1, body=bytes(module.SMALL_BYTES + 1))
    await side.flow(large.frame() * 3 + Command(ECHO, 2).frame())
    assert len(side.wire.commands()) == 1


async def test_small_answers_of_a_turn_are_written_together_and_in_order(side: Side) -> None:
    frames = [Command(ECHO, number, body=b"x").frame() for number in range(5)]
    large = Command(ECHO, 5, body=bytes(module.SMALL_BYTES + 1)).frame()
    await side.flow(b"".join((*frames, large, *frames)))
    numbers = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    assert [one.opaque for one in side.wire.commands()] == numbers
    assert side.wire.writes == 4, "five, the large one's header and body, and five"


async def test_answers_that_waited_for_the_same_are_written_together(
    side: Side, desk: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "repeats", lambda code: code == WAIT)
    for number in range(3):
        side.send(WAIT, number)
    await turns()
    for number in range(3):
        desk.answers[number].set_result("")
    await turns()
    assert [one.opaque for one in side.wire.commands()] == [0, 1, 2]
    assert side.wire.writes == 1
    side.send(WAIT, 3)
    await turns()
    desk.answers[3].set_result("")
    await turns()
    assert [one.opaque for one in side.wire.commands()] == [3]
    side.send(ECHO, 5)
    assert [one.opaque for one in side.wire.commands()] == [5], "nothing is held back any more"


def new_outcome(desk: Dispatcher) -> "asyncio.Future[PutMessageStatus]":
    desk.outcomes.append(asyncio.get_running_loop().create_future())
    return desk.outcomes[-1]


async def test_what_is_stored_is_answered_together_when_that_is_known(
    side: Side, desk: Dispatcher
) -> None:
    first = new_outcome(desk)
    side.arrive(Command(STORE, 1).frame() + Command(STORE, 2).frame())
    second = new_outcome(desk)
    side.send(STORE, 3)
    assert side.connection.busy
    side.send(STORE, 4)
    assert [(one.opaque, one.code) for one in side.wire.commands()] == [
        (4, ResponseCode.SYSTEM_BUSY)
    ]
    writes = side.wire.writes
    first.set_result(PutMessageStatus.PUT_OK)
    second.set_result(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
    await turns()
    assert [(one.opaque, one.remark) for one in side.wire.commands()] == [
        (1, "PUT_OK"),
        (2, "PUT_OK"),
        (3, "FLUSH_SLAVE_TIMEOUT"),
    ]
    assert side.wire.writes == writes + 1
    assert not side.connection.busy
    third = new_outcome(desk)
    side.send(STORE, 5)
    side.send(STORE, 6, flag=ONEWAY)
    third.set_result(PutMessageStatus.PUT_OK)
    await turns()
    side.send(ECHO, 7)
    assert [one.opaque for one in side.wire.commands()] == [5, 7]


async def test_an_outcome_outlives_who_waits_for_it(
    sides: Callable[[], Side], desk: Dispatcher
) -> None:
    outcome, one, other, third = new_outcome(desk), sides(), sides(), sides()
    for side in (one, other, third):
        side.send(STORE, 1)
    one.lose()
    other.connection.end_calls()
    assert not other.connection.busy
    outcome.set_result(PutMessageStatus.PUT_OK)
    await turns()
    assert [len(side.wire.commands()) for side in (one, other, third)] == [0, 0, 1]
    new_outcome(desk).cancel()
    third.send(STORE, 2)
    await turns()
    assert third.wire.commands() == []
    assert not third.connection.busy
    new_outcome(desk).set_result(PutMessageStatus.UNKNOWN_ERROR)
    third.send(STORE, 3)
    await turns()
    (found,) = third.wire.commands()
    assert (found.opaque, found.code) == (3, ResponseCode.SYSTEM_ERROR)
    new_outcome(desk).set_exception(RuntimeError("a bug"))
    third.arrive(Command(STORE, 4).frame() + Command(STORE, 5).frame())
    await turns()
    assert [(one.opaque, one.code, one.remark) for one in third.wire.commands()] == [
        (number, ResponseCode.SYSTEM_ERROR, "RuntimeError: a bug") for number in (4, 5)
    ]


async def test_an_answer_that_is_a_frame_is_written_with_the_others(
    side: Side, desk: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frames(_: Peer, requests: Sequence[Command]) -> list[bytes]:
        return [one.answer(0).frame() for one in requests]

    monkeypatch.setattr(desk, "serve_each", frames)
    commands = [Command(ECHO, 1), Command(ECHO, 2, flag=ONEWAY), Command(REFUSE, 3)]
    side.arrive(b"".join(one.frame() for one in commands))
    assert [(one.opaque, one.code) for one in side.wire.commands()] == [(1, 0), (3, 7)]
    assert side.wire.writes == 1


async def test_requests_that_repeat_are_served_together(side: Side, desk: Dispatcher) -> None:
    codes = (ECHO, ECHO, ECHO, REFUSE, ECHO, WAIT, ECHO, ECHO)
    side.arrive(b"".join(Command(code, n).frame() for n, code in enumerate(codes)))
    assert desk.together == [3, 1, 2]
    assert desk.served == list(range(len(codes)))
    found = [(one.opaque, one.code) for one in side.wire.commands()]
    assert found == [(0, 0), (1, 0), (2, 0), (3, 7), (4, 0), (6, 0), (7, 0)]
    assert side.wire.writes == 1
    side.arrive(Command(ECHO, 8).frame() * 2 + b"\xff" * 16)
    assert desk.together == [3, 1, 2, 2], "before the frame that is none"
    assert [one.opaque for one in side.wire.commands()] == [8, 8]


def test_what_was_answered_before_a_broken_frame_is_written(side: Side) -> None:
    side.arrive(Command(ECHO, 1).frame() + b"\xff" * 16)
    assert [one.opaque for one in side.wire.commands()] == [1]
    assert side.wire.closing


def test_a_client_that_takes_nothing_for_long_is_let_go(side: Side) -> None:
    side.wire.unsent = 1 << 20
    side.connection.pause_writing()
    side.ticks(module.UNTAKEN_TICKS)
    side.wire.unsent -= 1  # a little, and on it goes
    side.ticks(module.UNTAKEN_TICKS)
    assert not side.wire.aborted
    side.ticks(2)
    assert side.wire.aborted


def test_a_silent_client_is_let_go(side: Side) -> None:
    side.ticks(module.IDLE_TICKS)
    side.send(ECHO, 1)
    side.ticks(module.IDLE_TICKS)
    assert not side.wire.aborted
    side.ticks(1)
    assert side.wire.aborted


def test_a_frame_that_does_not_go_on_is_refused(side: Side) -> None:
    frame = Command(ECHO, 1, body=bytes(100)).frame()
    side.arrive(frame[:50])
    side.ticks(arriving.STALLED_TICKS)
    assert not side.wire.closing
    side.ticks(2)
    assert side.wire.closing


async def test_many_that_wait_end_in_several_turns(desk: Dispatcher) -> None:
    background, count = Background(), module.ENDS_AT_ONCE + 1
    side = Side(desk, background.start, ReceiveBudget(ROOM), calls_max=count)
    side.arrive(b"".join(Command(WAIT, number).frame() for number in range(count)))
    while len(desk.answers) < count:
        await asyncio.sleep(0)
    side.lose()
    await asyncio.sleep(0)
    assert desk.cancelled == module.ENDS_AT_ONCE
    await turns()
    assert desk.cancelled == count
    await background.stop()


class Watched(BusyPoll):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.told: list[str] = []

    def came(self) -> None:
        self.told.append("came")

    def expect(self) -> None:
        self.told.append("expect")


async def test_the_next_message_is_looked_for_after_one_that_came_alone(desk: Dispatcher) -> None:
    background, watched = Background(), Watched()
    side = Side(desk, background.start, ReceiveBudget(ROOM), busy_poll=watched)
    side.send(ECHO, 1)
    assert watched.told == ["came", "expect"]
    side.send(REFUSE, 2)  # of which no more is expected
    side.send(WAIT, 3)
    side.send(ECHO, 4, bytes(SMALL_BYTES))
    assert watched.told == ["came", "expect", "came", "came", "came"]
    side.lose()
    await background.stop()


async def test_the_end_waits_for_what_stores_and_not_for_polls(
    side: Side, desk: Dispatcher
) -> None:
    side.send(POLL, 1)
    side.send(WAIT, 2)
    await turns()
    side.connection.go("the node is stopping")
    await turns()
    assert desk.cancelled == 1
    assert side.connection.busy
    side.send(ECHO, 3)
    desk.answers[2].set_result("done")
    await turns()
    assert not side.connection.busy
    assert [(one.opaque, one.code) for one in side.wire.commands()] == [
        (3, ResponseCode.SERVICE_NOT_AVAILABLE),
        (2, 0),
    ]


async def test_a_connection_may_be_refused(desk: Dispatcher) -> None:
    refused = Side(desk, Background().start, ReceiveBudget(100), lambda: False)
    assert refused.wire.aborted
    refused.lose()
    desk.full = True
    over = Side(desk, Background().start, ReceiveBudget(100))
    assert over.wire.aborted
    over.lose()
    assert desk.here == []


def test_headers_of_another_form_are_answered_in_it(side: Side) -> None:
    from duolog_server.compat.remoting.codec.command import Serialization

    request = replace(Command(ECHO, 6), serialization=Serialization.ROCKETMQ)
    side.arrive(request.frame())
    (found,) = side.wire.commands()
    assert (found.opaque, found.serialization) == (6, Serialization.ROCKETMQ)
