"""Calls that name, or list, very many topics: others have turns meanwhile.

Here each look at the clock ends a slice, so that what is judged is the longest work without a look:
as a share of all the work of the call, which is the same on a slow machine.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import duolog
import grpc
import pytest
from duolog.wire import duolog_pb2 as wire

from duolog_server.ha.epochs import Epoch
from duolog_server.node.api.admin import AdminService
from duolog_server.node.api.native import native_methods
from duolog_server.node.core import turnbudget
from duolog_server.node.core.slices import Slices
from duolog_server.node.identity.access.gate import Principal
from duolog_server.node.identity.quotas.quota import Quota, Subject
from duolog_server.serve.server import Node
from duolog_server.store.metadata import QUEUES_MAX, TopicConfig, new_group
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.turns import turns_of

PASSWORD = "a password of the test"
LIST_TOPICS = "/duolog.v1.Admin/ListTopics"
NAMES, TOPICS, GROUPS, QUOTAS = 5000, 2000, 2000, 3000
SHARE_MAX = 1 / 4
ATTEMPTS = 5  # of which one counts: a machine may stand still for a moment, in any step
RIGHTS = (
    '{"policies": [{"policyType": "Custom", "entries": [{"resource": "Topic:T*", '
    '"actions": ["Get"], "decision": "Allow"}]}]}'
)


class Call:
    """The context of a call by a user."""

    principal = Principal("normal", "", "127.0.0.1")

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)  # its client takes the answer at once

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> NoReturn:
        raise RuntimeError(f"{code.name}: {details}")


@pytest.fixture(autouse=True)
def _every_look_ends_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)


class Turns:
    """CPU seconds of each turn of the loop that is not the test's own."""

    def __init__(self) -> None:
        self.held: list[float] = []

    async def watch(self) -> None:
        """Without an end."""
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.held.append(time.thread_time() - began)

    async def of(self, method: Any, request: Any) -> Any:
        """The reply of a method whose steps are all short, up to the bytes that are sent."""
        shares = list[float]()
        for _ in range(ATTEMPTS):
            await asyncio.sleep(0)
            self.held.clear()
            reply = await method.unary_unary(request, Call())
            method.response_serializer(reply)
            await asyncio.sleep(0)  # the last turn is noted as well, if it is not the only one
            shares.append(max(self.held) / sum(self.held))
            if shares[-1] <= SHARE_MAX:
                return reply
        raise AssertionError(f"a step took {min(shares):.0%} of the work, or more")


@pytest.fixture
async def turns() -> AsyncIterator[Turns]:
    """Of the test's loop."""
    made = Turns()
    gc.collect()
    gc.disable()  # it may stop the loop at any time, and a node runs it seldom
    watching = asyncio.ensure_future(made.watch())
    yield made
    watching.cancel()
    gc.enable()


@pytest.fixture
async def methods(start_node: StartNode, tmp_path: Path) -> Any:
    """Methods of a node with a user who may see the topics that begin with T."""
    node: Node = await start_node(access=access_files(tmp_path, PASSWORD))
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, user="root", password=PASSWORD) as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
        await client.access.create_user("normal", PASSWORD)
        await client.access.set_rights("normal", RIGHTS)
    broker = broker_of(node)
    for number in range(2 * TOPICS):
        name = f"{'TU'[number % 2]}{number}"
        broker.metadata.topics[name] = TopicConfig(name, 1, 6)
    return native_methods(broker, node._access, node._guard).by_path


@pytest.fixture
async def list_topics(methods: Any) -> Any:
    return methods[LIST_TOPICS]


async def test_a_call_that_names_very_many_topics_holds_nobody_up(
    list_topics: Any, turns: Turns
) -> None:
    request = wire.ListTopicsRequest(topics=[f"Tmissing{number}" for number in range(NAMES)])
    reply = await turns.of(list_topics, request)
    assert len(reply.topics) == 0
    request.topics.append("U")
    with pytest.raises(RuntimeError, match="PERMISSION_DENIED"):
        await list_topics.unary_unary(request, Call())


async def test_a_planned_call_that_names_very_many_topics_holds_nobody_up(
    methods: Any, turns: Turns
) -> None:
    planned = wire.ListTopicsRequest(topics=[f"Tmissing{number}" for number in range(NAMES)])
    call = wire.PlannedCall(method="Admin/ListTopics", request=planned.SerializeToString())
    request = wire.WhoAmIRequest(calls=[call])
    who_am_i = methods["/duolog.v1.Access/WhoAmI"]
    assert (await turns.of(who_am_i, request)).denied == b"\0"
    planned.topics.append("U")
    request.calls[0].request = planned.SerializeToString()
    assert (await who_am_i.unary_unary(request, Call())).denied == b"\1"


async def test_a_list_of_very_many_topics_holds_nobody_up(list_topics: Any, turns: Turns) -> None:
    reply = await turns.of(list_topics, wire.ListTopicsRequest())
    names = [row.topic for row in reply.topics]
    assert len(names) == TOPICS
    assert names == sorted(names)
    assert all(name.startswith("T") and len(row.stats) == 1
               for name, row in zip(names, reply.topics, strict=True))  # fmt: skip


async def test_a_page_of_very_many_topics_holds_nobody_up(list_topics: Any, turns: Turns) -> None:
    request = wire.ListTopicsRequest(contains="7", after="T9", limit=3)
    reply = await turns.of(list_topics, request)
    found = sorted(f"T{number}" for number in range(0, 2 * TOPICS, 2) if "7" in str(number))
    assert [row.topic for row in reply.topics] == [name for name in found if name > "T9"][:3]
    assert reply.total == len(found)


async def test_topics_of_very_many_queues_hold_nobody_up(
    start_node: StartNode, turns: Turns
) -> None:
    broker = broker_of(await start_node())
    for name in ("A", "B"):
        broker.metadata.topics[name] = TopicConfig(name, QUEUES_MAX, 6)
        broker.metadata.tables.offsets[(name, "g")] = {1: 0}
    methods = native_methods(broker, None, None).by_path
    reply = await turns.of(methods[LIST_TOPICS], wire.ListTopicsRequest(sizes=True))
    assert [len(row.stats) for row in reply.topics] == [QUEUES_MAX] * 2
    broker.metadata.tables.groups["g"] = new_group("g")
    describe = methods["/duolog.v1.Admin/DescribeGroup"]
    group = await turns.of(describe, wire.DescribeGroupRequest(group="g"))
    assert len(group.queues) == 2 * QUEUES_MAX


async def test_many_lists_at_once_have_one_step_in_a_turn(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(await start_node())
    broker.metadata.topics["T"] = TopicConfig("T", 20, 6)
    method = native_methods(broker, None, None).by_path[LIST_TOPICS]
    request = wire.ListTopicsRequest(topics=["T"])
    with turns_of(monkeypatch, AdminService, "_store_time") as steps:
        await asyncio.gather(*(method.unary_unary(request, Call()) for _ in range(50)))
    assert len(steps) == len(set(steps)) == 50 * 20


async def test_lists_of_very_many_groups_and_quotas_hold_nobody_up(
    start_node: StartNode, turns: Turns
) -> None:
    broker = broker_of(await start_node())
    broker.metadata.topics["T"] = TopicConfig("T", 2, 6)
    tables, names = broker.metadata.tables, [f"g{number}" for number in range(GROUPS)]
    tables.groups.update((name, new_group(name)) for name in names)
    tables.offsets.update((("T", name), {1: 0}) for name in names)
    tables.offsets.update((("gone", f"other{number}"), {0: 0}) for number in range(50_000))
    list_groups = native_methods(broker, None, None).by_path["/duolog.v1.Admin/ListGroups"]
    reply = await turns.of(list_groups, wire.ListGroupsRequest())
    assert [row.group for row in reply.groups] == sorted(names)
    assert all([queue.committed for queue in row.queues] == [-1, 0] for row in reply.groups)
    reply = await turns.of(list_groups, wire.ListGroupsRequest(limit=1, after="g3"))
    assert [row.group for row in reply.groups] == ["g30"]
    assert reply.total == GROUPS
    names = [f"User:{number}" for number in range(QUOTAS)]
    broker.metadata.tables.quotas.update(
        (name, Quota(Subject.parse(name), bytes_in=1).to_row()) for name in names
    )
    list_quotas = native_methods(broker, None, None).by_path["/duolog.v1.Admin/ListQuotas"]
    reply = await turns.of(list_quotas, wire.ListQuotasRequest())
    assert [row.subject for row in reply.quotas] == sorted(names)


async def test_a_list_during_which_the_mastership_changes_is_made_anew(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next mastership may have truncated the log, and with it what was told first."""
    broker = broker_of(await start_node())
    for name in ("A", "B"):
        broker.metadata.topics[name] = TopicConfig(name, 1, 6)
    fill, filled = AdminService._fill, []

    async def noting(
        self: AdminService, reply: wire.TopicReply, config: TopicConfig, slices: Slices, times: bool
    ) -> None:
        await fill(self, reply, config, slices, times)
        filled.append(config.name)
        if len(filled) == 1:
            history = broker.replication.history
            last = history.entries[-1]
            history.entries = (*history.entries, replace(last, epoch=Epoch(last.epoch + 1)))

    monkeypatch.setattr(AdminService, "_fill", noting)
    list_topics = native_methods(broker, None, None).by_path[LIST_TOPICS]
    reply = await list_topics.unary_unary(wire.ListTopicsRequest(), Call())
    assert [row.topic for row in reply.topics] == ["A", "B"]
    assert filled == ["A", "B", "A", "B"]
