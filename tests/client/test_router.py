"""The replica groups of a cluster: which there are, and changes in every one of them."""

from collections.abc import Awaitable, Callable
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog import _router
from duolog._access import Access
from duolog._admin import Admin
from duolog._connection import Connection
from duolog._router import Router
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
    monkeypatch.setattr(_router.asyncio, "get_running_loop", lambda: loop)
    await router._ask(1.0)
    assert (router.unreachable(), router._fresh_until) == (["b"], now + 0.5)
    await router._ask(1.0)
    assert (router.unreachable(), router._fresh_until) == ([], now + 30.0)
    await router._ask(1.0)
    assert sorted(router._connections) == ["a", "b"], "what was known is better than nothing"
    assert router._connections["a"].endpoints == ("h:1",)


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
