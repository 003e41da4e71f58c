"""Nodes take over, are drained, and come back."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from duolog import BadRequest, GroupRoute, Unavailable
from duolog._admin import Admin
from duolog._client import runtime_of
from duolog._router import Router

from duolog_server.ops.console.actions.asking import Field, Question, confirmed, whole_number
from duolog_server.ops.console.view.addresses import CLUSTER
from duolog_server.ops.console.view.formatting import command
from duolog_server.ops.console.view.visits import Action, Done, Shown, Visit

ORDER_SECONDS = 10.0
EPOCH_MAX = (1 << 63) - 1


async def _group_of(visit: Visit) -> GroupRoute:
    """The replica group of the node. Raises BadRequest for an unknown node."""
    wanted, node = visit.path["group"], visit.path["node"]
    route = await visit.client.admin.route()
    for group in route.groups:
        if group.group == wanted and any(replica.node == node for replica in group.replicas):
            return group
    raise BadRequest(f"replica group {wanted} has no elected node {node}")


@asynccontextmanager
async def _master(visit: Visit, group: GroupRoute) -> AsyncIterator[Admin]:
    """Calls of a group's master. Raises Unavailable where it has none."""
    if not group.master_endpoint:
        raise Unavailable(f"replica group {group.group} has no master now")
    router = Router((group.master_endpoint,), runtime_of(visit.client))
    try:
        yield Admin(router, ORDER_SECONDS)
    finally:
        await router.close()


async def _ask_switch(visit: Visit) -> Shown:
    group, node = await _group_of(visit), visit.path["node"]
    if node == group.master:
        raise BadRequest(f"{node} is the master of {group.group} already")
    leads = f"{group.master} leads epoch {group.epoch}. " if group.master else ""
    return Question(
        f"Make {node} the master",
        f"{leads}{node} takes over; sends pause for some milliseconds, and no message is lost.",
        "Switch",
        (Field("epoch", "", str(group.epoch), hidden=True),),
        type_to_confirm=node,
        command=command("cluster", "failover", node),
    ).shown()


async def _switch(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    confirmed(form, node)
    epoch = whole_number(form, "epoch", 1, EPOCH_MAX)  # that the form was shown of
    async with _master(visit, group) as admin:
        await admin.failover(node, epoch=epoch)
    return Done(f"{node} is taking over.", CLUSTER)


async def _ask_drain(visit: Visit) -> Shown:
    group, node = await _group_of(visit), visit.path["node"]
    left = [one.node for one in group.replicas if one.in_sync and one.node != node]
    hands = " It leads, and hands over first." if node == group.master else ""
    alone = " No other node is in sync: messages would have a single copy." if len(left) < 2 else ""
    return Question(
        f"Drain {node}",
        f"{node} can no longer be elected, and no send waits for it.{hands}{alone}",
        "Drain",
        type_to_confirm=node,
        danger=bool(alone),
        command=command("cluster", "drain", node),
    ).shown()


async def _drain(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    confirmed(form, node)
    async with _master(visit, group) as admin:
        await admin.drain(node)
    return Done(f"{node} is drained.", CLUSTER)


async def _ask_undrain(visit: Visit) -> Shown:
    node = visit.path["node"]
    await _group_of(visit)
    return Question(
        f"Bring {node} back",
        f"{node} can be elected again, and sends wait for it once it is in sync.",
        "Bring back",
        command=command("cluster", "undrain", node),
    ).shown()


async def _undrain(visit: Visit, form: Mapping[str, str]) -> Done:
    group, node = await _group_of(visit), visit.path["node"]
    async with _master(visit, group) as admin:
        await admin.drain(node, undo=True)
    return Done(f"{node} is no longer drained.", CLUSTER)


SWITCH, DRAIN, UNDRAIN = (
    Action(_ask_switch, _switch),
    Action(_ask_drain, _drain),
    Action(_ask_undrain, _undrain),
)
