"""The replica groups of a cluster: which there are, and changes in every one of them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog._access import Access
from duolog._admin import Admin
from duolog._connection import Connection
from duolog._router import Router
from duolog._runtime import MACHINE
from duolog.wire import duolog_pb2 as wire


class Answering:
    """A connection with a group that answers each call alike."""

    def __init__(self, error: duolog.DuologError | None = None) -> None:
        self._error = error
        self.calls = 0

    async def call(self, make: object, timeout: float, **how: object) -> wire.QuotaReply:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return wire.QuotaReply()


def router_of(**groups: Answering | None) -> Router:
    """Of a cluster with these groups; None: no node of it can be reached."""
    made = Router(("127.0.0.1:1",))
    made._routes = {name: wire.GroupRoute(group=name) for name in groups}
    made._connections = {
        name: cast(Connection, one) for name, one in groups.items() if one is not None
    }
    made._fresh_until = inf
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda router: Access(router, 1.0).delete_user("alice"),
        lambda router: Access(router, 1.0).set_rights("alice", "{}"),
        lambda router: Admin(router, 1.0).put_quota("User:alice", bytes_in=1),
        lambda router: Admin(router, 1.0).delete_quota("User:alice"),
    ],
)
async def test_users_and_quotas_are_changed_nowhere_while_a_group_cannot_be_reached(
    change: Callable[[Router], Awaitable[Any]],
) -> None:
    """That group would go by the old ones once its nodes are back."""
    reached = Answering()
    with pytest.raises(duolog.Unavailable, match="no node of replica group 'b'"):
        await change(router_of(a=reached, b=None))
    assert not reached.calls


async def test_a_quota_is_deleted_where_only_some_groups_have_it() -> None:
    """A group that joined later has none."""
    none = duolog.BadRequest("User:alice has no quota")
    await Admin(router_of(a=Answering(), b=Answering(none)), 1.0).delete_quota("User:alice")
    with pytest.raises(duolog.BadRequest, match="has no quota"):
        await Admin(router_of(a=Answering(none), b=Answering(none)), 1.0).delete_quota("User:alice")


def route(**endpoints: str) -> wire.RouteReply:
    """What a node says of these groups, each of one node; "": it has no address now."""
    groups = [
        wire.GroupRoute(group=name, replicas=[wire.ReplicaRoute(endpoint=endpoint)])
        for name, endpoint in endpoints.items()
    ]
    return wire.RouteReply(groups=groups)


class Seed:
    """A connection that tells of groups, or fails."""

    endpoint = "127.0.0.1:1"

    def __init__(self, *answers: wire.RouteReply | duolog.DuologError) -> None:
        self.answers = list(answers)
        self.admin = self

    async def call(self, make: Callable[[float], Awaitable[Any]], timeout: float) -> Any:
        return await make(timeout)

    async def Route(self, request: object, timeout: float) -> wire.RouteReply:
        answer = self.answers.pop(0)
        if isinstance(answer, duolog.DuologError):
            raise answer
        return answer


async def test_groups_are_asked_for_again_soon_while_one_has_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    loop = SimpleNamespace(time=lambda: now)
    router = Router(("127.0.0.1:1",))
    seed = Seed(route(a="h:1", b=""), route(a="h:1", b="h:2"), duolog.Unavailable("no node"))
    router._seed = cast(Connection, seed)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    await router._ask(1.0)
    assert (router.unreachable(), router._fresh_until) == (["b"], now + 0.5)
    await router._ask(1.0)
    assert (router.unreachable(), router._fresh_until) == ([], now + 30.0)
    await router._ask(1.0)
    assert sorted(router._connections) == ["a", "b"], "what was known is better than nothing"
    assert router._connections["a"].endpoints == ("h:1",)


async def test_a_group_that_retired_and_is_no_more_is_forgotten() -> None:
    """One that is merely not named may come back."""
    first = route(a="h:1", b="h:2", c="h:3")
    first.groups[0].retiring = True
    router = Router(("127.0.0.1:1",))
    router._seed = cast(Connection, Seed(first, first, route(b="h:2")))
    assert await router.groups(1.0) == ["a", "b", "c"]
    assert await router.staying(1.0) == ["b", "c"]
    await router._ask(1.0)
    assert await router.groups(1.0) == ["b", "c"]
    with pytest.raises(duolog.UnknownTopic, match="replica group 'a' does not exist"):
        router.connection("a")


async def test_the_seed_is_the_connection_of_an_only_group() -> None:
    router = Router(("127.0.0.1:1",))
    seed = router._seed = cast(
        Connection, Seed(route(a=""), duolog.Unavailable("x"), route(a="h:1"))
    )
    with pytest.raises(duolog.Unavailable, match="does not know the address of any node yet"):
        await router._ask(1.0)
    with pytest.raises(duolog.Unavailable, match="x"):
        await router._ask(1.0)
    assert router._fresh_until == 0.0
    await router._ask(1.0)
    assert router._connections == {"a": seed}
    assert not router.has_choice


class Ask:
    """Takes the place of a router's question for groups."""

    def __init__(self, router: Router) -> None:
        self.timeouts: list[float] = []
        self._router = router
        router._ask = self  # type: ignore[method-assign]

    async def __call__(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        self._router._fresh_until = inf
        self._router._connections["b"] = cast(Connection, Answering())


async def test_groups_are_asked_for_once_they_are_old_and_where_one_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router, loop = router_of(a=Answering()), asyncio.get_running_loop()
    ask = Ask(router)
    assert await router.groups(7.0) == ["a"]
    await router.reach("a", 7.0)
    assert ask.timeouts == [], "what is known is fresh"
    monkeypatch.setattr(loop, "time", lambda: 100.0)
    router._fresh_until = 100.0
    assert await router.groups(7.0) == ["a", "b"]
    assert ask.timeouts == [7.0]
    del router._connections["b"]
    assert await router.reach("b", 5.0) is router.connection("b")
    assert ask.timeouts == [7.0, 5.0], "a new group may be there any time"
    with pytest.raises(duolog.UnknownTopic, match="'c' does not exist"):
        await router.reach("c", 5.0)
    router._fresh_until = 0.0
    await router.groups(-1.0)
    assert ask.timeouts[-1] == 0.001
    router.note_fork()
    with pytest.raises(duolog.WrongProcess):
        await router.groups(1.0)


def nodes(**in_sync: bool) -> wire.GroupRoute:
    """A group whose master is `m`, and its other nodes."""
    replicas = [wire.ReplicaRoute(endpoint="m:1", in_sync=True), wire.ReplicaRoute(node="gone")]
    replicas += [wire.ReplicaRoute(endpoint=f"{n}:1", in_sync=on) for n, on in in_sync.items()]
    return wire.GroupRoute(group="a", master_endpoint="m:1", replicas=replicas)


class Backwards(random.Random):
    """Turns what it shuffles round."""

    def shuffle(self, rows: Any) -> None:
        rows.reverse()


async def test_readers_prefer_slaves_that_are_in_sync_and_spread_over_them() -> None:
    router = Router(("127.0.0.1:1",), replace(MACHINE, chance=Backwards()))
    router._routes["a"] = nodes(s=True, late=False, t=True)
    router._connections["a"] = Connection(("t:1", "m:1", "known:1"))
    slaves = router.slaves("a")
    assert slaves.endpoints == ("t:1", "s:1", "late:1", "m:1", "known:1")
    assert router.slaves("a") is slaves, "one for all readers"
    assert router.replicas("a") == ["m:1", "s:1", "late:1", "t:1"]
    router._connections["a"].endpoint = "m:1"
    first, second = router.reading("a"), router.reading("a")
    assert first is not second
    assert first.endpoints == ("m:1", "t:1", "known:1"), "the node that answers comes first"


async def test_a_client_asks_for_the_nodes_of_a_group_that_it_does_not_know_yet() -> None:
    async with duolog.Client("127.0.0.1:1") as client:

        async def ask(timeout: float) -> None:
            client._router._routes["a"] = nodes(s=True)
            client._router._connections["a"] = Connection(("m:1",))
            client._router._fresh_until = inf

        client._router._ask = ask  # type: ignore[method-assign]
        assert await client.replicas("a") == ["m:1", "s:1"]


async def test_a_router_closes_all_its_connections_in_its_own_process() -> None:
    router = Router(("127.0.0.1:1",))
    router._routes["a"] = nodes(s=True)
    router._connections["a"] = Connection(("m:1",))
    every = router._seed, router._connections["a"], router.slaves("a")
    stopped: list[bool] = []

    async def stop() -> None:
        stopped.append(True)

    router._asking.stop = stop  # type: ignore[method-assign]
    router.forked = True
    await router.close()
    assert not any(connection._closed for connection in every)
    router.forked = False
    await router.close()
    assert (stopped, [connection._closed for connection in every]) == ([True], [True] * 3)


async def test_an_error_that_some_groups_may_answer_with_is_the_only_one_excused() -> None:
    refused, failed = duolog.BadRequest("none here"), duolog.Unavailable("no node")
    router = router_of(a=Answering(), b=Answering(refused), c=Answering(failed))

    async def ask(groups: list[str], but: type[duolog.DuologError] | None) -> int:
        async def make(connection: Connection, left: float) -> None:
            raise AssertionError("the connection answers")

        return len(await router.everywhere(make, 1.0, but=but, groups=groups))

    assert await ask(["a", "b"], duolog.BadRequest) == 1
    for groups, but, error in (
        (["a", "b"], None, refused),
        (["a", "c"], duolog.BadRequest, failed),
        (["b"], duolog.BadRequest, refused),
    ):
        with pytest.raises(type(error)):
            await ask(groups, but)
    assert router.has_choice
    assert router_of(a=Answering(), b=Answering()).has_choice
