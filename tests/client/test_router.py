"""Changes in every replica group of a cluster."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, cast

import duolog
import pytest
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
