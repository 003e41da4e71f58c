"""A connection to a replica group: which node it asks, for how long, and which it learns of."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog import _connection
from duolog._connection import AWAY_SECONDS, ENDPOINTS_MAX, Connection, Others, ask_one
from duolog._nodechannel import GrpcChannel
from duolog._runtime import MACHINE
from duolog.wire import duolog_pb2 as wire

from tests.client.test_subscription import grpc_error

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


class Nodes:
    """A connection without frames, whose calls answer in turn, a second of its clock each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *endpoints: str) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.asked: list[tuple[str, float]] = []
        self.answers: list[Any] = []
        usual: Any = SimpleNamespace(uniform=lambda low, high: 1.0)
        self.connection = Connection(endpoints, replace(MACHINE, frames=False, chance=usual))
        monkeypatch.setattr(self.connection, "_learn_soon", lambda: None)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            self.now += seconds

        monkeypatch.setattr(asyncio, "sleep", sleep)

    async def make(self, left: float) -> Any:
        self.asked.append((self.connection.endpoint, round(left, 3)))
        self.now += 1.0
        answer = self.answers.pop(0)
        if isinstance(answer, duolog.DuologError):
            raise grpc_error(answer)
        return answer


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Nodes]:
    return lambda *endpoints: Nodes(monkeypatch, *endpoints)


GONE = duolog.Unavailable("gone")


def away(endpoint: str) -> duolog.DuologError:
    """A slave names the master, which it does not reach."""
    return duolog.NotMaster("ask the master", endpoint, 3, True)


async def test_a_call_asks_one_node_after_the_other_each_for_a_part_of_its_time(
    nodes: Callable[..., Nodes],
) -> None:
    group = nodes(A, B)
    group.connection._add(C)
    group.answers = [GONE, GONE, GONE, 7]
    assert await group.connection.call(group.make, 9.0) == 7
    assert group.asked == [(A, 4.0), (B, 4.0), (C, 4.0), (A, 4.0)]
    assert group.pauses == [0.05, 0.1, 0.2]
    group = nodes(A, B)
    group.answers = [GONE] * 9
    with pytest.raises(duolog.Unavailable, match="gone"):
        await group.connection.call(group.make, 2.5, attempt=2.0)
    assert group.asked == [(A, 2.0), (B, 1.45), (A, 0.35)]


@pytest.mark.parametrize(
    ("others", "asked"),
    [(Others.ALL, [A, B, C]), (Others.GIVEN, [A, B, A]), (Others.NONE, [A])],
)
async def test_a_call_says_which_nodes_it_may_ask(
    nodes: Callable[..., Nodes], others: Others, asked: list[str]
) -> None:
    group = nodes(A, B)
    group.connection._add(C)
    group.answers = [GONE, GONE, 7]
    if others is Others.NONE:
        with pytest.raises(duolog.Unavailable):
            await group.connection.call(group.make, 9.0, others=others)
    else:
        assert await group.connection.call(group.make, 9.0, others=others) == 7
    assert [endpoint for endpoint, _ in group.asked] == asked


@pytest.mark.parametrize("error", [duolog.BadRequest("no"), duolog.Busy("full")])
async def test_a_refusal_is_not_another_nodes_matter(
    nodes: Callable[..., Nodes], error: duolog.DuologError
) -> None:
    group = nodes(A, B)
    group.answers = [error]
    with pytest.raises(type(error)):
        await group.connection.call(group.make, 9.0)
    assert group.pauses == []


async def test_a_time_that_is_over_for_one_node_is_not_for_the_call(
    nodes: Callable[..., Nodes],
) -> None:
    group = nodes(A, B)
    group.answers = [duolog.Timeout("late"), 7]
    assert await group.connection.call(group.make, 9.0) == 7
    group.answers = [duolog.Timeout("late")]
    with pytest.raises(duolog.Timeout, match="late"):
        await group.connection.call(group.make, 1.0)
    with pytest.raises(duolog.Timeout, match=r"no answer from .* within 0 s"):
        await group.connection.call(group.make, 0.0)
    assert len(group.asked) == 3


@pytest.mark.parametrize("patient", [True, False])
async def test_a_master_that_is_away_is_asked_once_from_here_or_waited_for(
    nodes: Callable[..., Nodes], patient: bool
) -> None:
    group = nodes(A, B)
    group.answers = [away(B), GONE, away(B), 7]
    if patient:
        assert await group.connection.call(group.make, 30.0, patient=True) == 7
        assert [left for _, left in group.asked] == [4.0] * 4
    else:
        with pytest.raises(duolog.NotMaster):
            await group.connection.call(group.make, 30.0, patient=False)
        assert group.asked == [(A, 4.0), (B, AWAY_SECONDS), (A, AWAY_SECONDS)]
    nameless = nodes(A, B)
    nameless.answers = [away(""), 7]
    if not patient:
        with pytest.raises(duolog.NotMaster):
            await nameless.connection.call(nameless.make, 30.0, patient=False)
        assert nameless.asked == [(A, 4.0)]


async def test_a_closed_client_makes_no_call(nodes: Callable[..., Nodes]) -> None:
    group = nodes(A)
    await group.connection.close()
    with pytest.raises(duolog.Unavailable, match="the client is closed"):
        await group.connection.call(group.make, 9.0)
    assert group.asked == []


async def test_the_newest_endpoints_are_kept_and_those_that_were_given() -> None:
    connection = Connection((A, B))
    for k in range(ENDPOINTS_MAX):
        connection._add(f"h:{k}")
    connection._add("")
    connection._add("h:63")
    assert connection.endpoints[:3] == (A, B, "h:2")
    assert len(connection.endpoints) == ENDPOINTS_MAX
    assert connection.endpoints[-1] == "h:63"


async def test_calls_go_on_to_one_node_of_those_that_may_be_asked() -> None:
    connection = Connection((A, B))
    let_go: list[str] = []

    async def noted() -> None:
        let_go.append(connection.endpoint)

    connection._let_go = noted  # type: ignore[method-assign]
    await connection.rotate(0)
    assert (connection.endpoint, connection.moves) == (B, 1)
    await connection.rotate(0)
    await connection.rotate(0, C, 5)
    assert (connection.endpoint, connection.moves) == (B, 1), "another call moved meanwhile"
    await connection.rotate(1, C, 5)
    assert (connection.endpoint, connection.epoch, connection.endpoints) == (C, 5, (A, B, C))
    await connection.rotate(2, A, 4)
    assert (connection.endpoint, connection.epoch) == (A, 5), "a hint of the past is the next one"
    await connection.rotate(3, A, 5)
    assert connection.endpoint == B, "who is asked already is not asked again"
    connection.endpoint = C
    await connection._rotate_among([A, B], connection.moves)
    assert connection.endpoint == A
    assert let_go == [B, C, A, B, A]
    alone = Connection((A,))
    alone._let_go = noted  # type: ignore[method-assign]
    await alone.rotate(0)
    assert (alone.moves, len(let_go)) == (0, 5)


class Channel:
    """A channel with calls until it is told otherwise."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.closed = False
        self.in_use = self.busy = False
        self.unary_unary = self.unary_stream = self.stream_stream = lambda *how, **more: None
        self.ends = asyncio.Event()

    async def unused(self) -> None:
        await self.ends.wait()

    idle = unused

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("meanwhile", ["", "used", "another", "broken"])
async def test_grpc_is_left_where_frames_are_there(meanwhile: str) -> None:
    connection = Connection((A,))
    grpc, frames = Channel(), Channel()
    await connection._leave_grpc()  # there is none
    connection._grpc, connection._frames = cast(Any, grpc), cast(Any, frames)
    connection._stubs = cast(Any, (grpc, None))
    leaving = asyncio.create_task(connection._leave_grpc())
    await asyncio.sleep(0)
    match meanwhile:
        case "used":
            grpc.in_use = True
        case "another":
            connection._grpc = cast(Any, Channel())
        case "broken":
            connection._frames = None
    grpc.ends.set()
    await leaving
    assert grpc.closed is (meanwhile == "")
    assert (connection._stubs is None) is (meanwhile == "")


async def test_a_connection_that_goes_elsewhere_closes_all_its_channels() -> None:
    connection = Connection((A, B))
    grpc, frames, leaving = Channel(), Channel(), Channel()
    connection._grpc, connection._frames = cast(Any, grpc), cast(Any, frames)
    connection._leaving = [cast(Any, leaving)]

    async def follow() -> None:
        await asyncio.Event().wait()

    following = connection._following = asyncio.create_task(follow())
    assert connection.admin is connection.admin
    await connection.rotate(0)
    assert all(channel.closed for channel in (grpc, frames, leaving))
    assert (connection._grpc, connection._frames, connection._leaving) == (None, None, [])
    assert connection._stubs is None
    assert cast(Any, connection)._following is None
    with pytest.raises(asyncio.CancelledError):
        await following


async def test_calls_take_frames_while_they_are_well() -> None:
    connection: Any = Connection((A,))
    grpc, frames = Channel(), Channel()
    connection._grpc = grpc
    assert connection.channel is grpc
    connection._frames = frames
    assert connection.channel is frames
    stubs = connection.messages, connection.groups, connection.admin, connection.access
    assert (connection.messages, connection.groups) == stubs[:2]
    frames.error = GONE
    assert connection.channel is grpc
    assert connection.messages is not stubs[0]


@pytest.mark.parametrize(
    ("answer", "learnt", "known"),
    [
        (
            wire.RouteReply(
                group="a",
                groups=[
                    wire.GroupRoute(group="a", replicas=[wire.ReplicaRoute(endpoint=B)]),
                    wire.GroupRoute(group="b", replicas=[wire.ReplicaRoute(endpoint=C)]),
                ],
            ),
            True,
            (A, B),
        ),
        (duolog.NoPermission("no"), True, (A,)),
        (GONE, False, (A,)),
    ],
)
async def test_a_node_tells_of_the_others_of_its_group(
    answer: Any, learnt: bool, known: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin:
        async def Route(self, request: object, timeout: float) -> wire.RouteReply:
            assert timeout == _connection.LEARN_SECONDS
            if isinstance(answer, duolog.DuologError):
                raise grpc_error(answer)
            return cast(wire.RouteReply, answer)

    monkeypatch.setattr(_connection, "_admin", lambda channel: Admin())
    connection = Connection((A,))
    route = await connection._learn(cast(GrpcChannel, Channel()))
    assert (route is not None, connection.endpoints) == (learnt, known)
    assert not isinstance(answer, duolog.NoPermission) or route == wire.RouteReply()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(GONE, False), (duolog.NoPermission("no"), True), (duolog.BadRequest("no"), False)],
)
async def test_one_node_is_asked_and_no_other(
    error: duolog.DuologError, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Connection] = []
    close = Connection.close

    async def closed(connection: Connection) -> None:
        made.append(connection)
        await close(connection)

    async def make(stub: object, left: float) -> bool:
        raise grpc_error(error)

    monkeypatch.setattr(Connection, "_learn_soon", lambda connection: None)
    monkeypatch.setattr(Connection, "close", closed)
    if raised:
        with pytest.raises(type(error)):
            await ask_one(A, make, 5.0)
    else:
        assert await ask_one(A, make, 5.0) is None
    assert [connection.endpoints for connection in made] == [(A,)]
    assert not made[0]._speaks_frames
