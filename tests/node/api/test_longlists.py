"""Calls that name, or list, very many topics: others have turns meanwhile."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import duolog
import grpc
import pytest
from duolog._connection import Connection
from duolog.wire import duolog_pb2 as wire

from ha.epochs import Epoch
from node.access.gate import Principal
from node.api.admin import QUOTAS_MAX, AdminService
from node.api.native import native_methods
from node.core import slices
from node.core.slices import Slices
from node.quotas.quota import Quota, Subject
from node.server import Node
from store.metadata import TopicConfig, new_group
from tests.keyfiles import access_files
from tests.node.conftest import StartNode
from tests.node.replicas import broker_of

PASSWORD = "a password of the test"
NAMES = 200_000
HELD_SECONDS_MAX = 0.010
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


@pytest.fixture
async def list_topics(start_node: StartNode, tmp_path: Path) -> Callable[..., Awaitable[Any]]:
    """Calls ListTopics of a node with a user who may see the topics that begin with T."""
    node: Node = await start_node(access=access_files(tmp_path, PASSWORD))
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, user="root", password=PASSWORD) as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
        await client.access.create_user("normal", PASSWORD)
        await client.access.set_rights("normal", RIGHTS)
    broker = broker_of(node)
    for number in range(20_000):
        name = f"{'TU'[number % 2]}{number}"
        broker.metadata.topics[name] = TopicConfig(name, 1, 6)
    methods = native_methods(broker, node._access, node._guard).by_path

    async def call(request: wire.ListTopicsRequest) -> Any:
        method = methods["/duolog.v1.Admin/ListTopics"].unary_unary
        return await method(request, Call())

    return call


@pytest.fixture
async def held() -> AsyncIterator[list[float]]:
    """CPU seconds of each turn of the loop that is not the test's own."""
    found: list[float] = []
    gc.collect()
    gc.disable()  # it may stop the loop at any time, and a node runs it seldom

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            found.append(time.thread_time() - began)

    watching = asyncio.ensure_future(watch())
    yield found
    watching.cancel()
    gc.enable()


async def test_a_call_that_names_very_many_topics_holds_nobody_up(
    list_topics: Callable[..., Awaitable[Any]], held: list[float]
) -> None:
    request = wire.ListTopicsRequest(topics=[f"Tmissing{number}" for number in range(NAMES)])
    await asyncio.sleep(0)
    held.clear()
    began = time.thread_time()
    reply = await list_topics(request)
    assert len(reply.topics) == 0
    assert time.thread_time() - began > 10 * HELD_SECONDS_MAX, "too short to tell anything"
    await _check(held)
    request.topics.append("U")
    with pytest.raises(RuntimeError, match="PERMISSION_DENIED"):
        await list_topics(request)


async def test_a_list_of_very_many_topics_holds_nobody_up(
    list_topics: Callable[..., Awaitable[Any]], held: list[float]
) -> None:
    reply = await list_topics(wire.ListTopicsRequest())
    names = [row.topic for row in reply.topics]
    assert len(names) == 10_000
    assert names == sorted(names)
    assert all(name.startswith("T") and len(row.stats) == 1
               for name, row in zip(names, reply.topics, strict=True))  # fmt: skip
    await _check(held)


async def test_a_page_of_very_many_topics_holds_nobody_up(
    list_topics: Callable[..., Awaitable[Any]], held: list[float]
) -> None:
    reply = await list_topics(wire.ListTopicsRequest(contains="7", after="T9", limit=3))
    found = sorted(f"T{number}" for number in range(0, 20_000, 2) if "7" in str(number))
    assert [row.topic for row in reply.topics] == [name for name in found if name > "T9"][:3]
    assert reply.total == len(found)
    await _check(held)


async def test_a_list_of_very_many_groups_holds_nobody_up(
    start_node: StartNode, held: list[float]
) -> None:
    node = await start_node()
    broker = broker_of(node)
    broker.metadata.topics["T"] = TopicConfig("T", 2, 6)
    tables, names = broker.metadata.tables, [f"g{number}" for number in range(5000)]
    tables.groups.update((name, new_group(name)) for name in names)
    tables.offsets.update((("T", name), {1: 0}) for name in names)
    tables.offsets.update((("gone", f"other{number}"), {0: 0}) for number in range(50_000))
    list_groups = native_methods(broker, None, None).by_path["/duolog.v1.Admin/ListGroups"]
    await asyncio.sleep(0)
    held.clear()
    reply = await list_groups.unary_unary(wire.ListGroupsRequest(), Call())
    assert [row.group for row in reply.groups] == sorted(names)
    assert all([queue.committed for queue in row.queues] == [-1, 0] for row in reply.groups)
    await _check(held)
    held.clear()
    reply = await list_groups.unary_unary(wire.ListGroupsRequest(limit=1, after="g3"), Call())
    assert [row.group for row in reply.groups] == ["g30"]
    assert reply.total == 5000
    await _check(held)


async def test_a_list_of_very_many_quotas_holds_nobody_up(
    start_node: StartNode, held: list[float]
) -> None:
    node = await start_node()
    broker = broker_of(node)
    names = [f"User:{number}" for number in range(QUOTAS_MAX)]
    broker.metadata._tables.quotas.update(
        (name, Quota(Subject.parse(name), bytes_in=1).to_row()) for name in names
    )
    list_quotas = native_methods(broker, None, None).by_path["/duolog.v1.Admin/ListQuotas"]
    await asyncio.sleep(0)
    held.clear()
    reply = await list_quotas.unary_unary(wire.ListQuotasRequest(), Call())
    assert [row.subject for row in reply.quotas] == sorted(names)
    await _check(held)


async def test_a_list_during_which_the_mastership_changes_is_made_anew(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next mastership may have truncated the log, and with it what was told first."""
    node = await start_node()
    broker = broker_of(node)
    for name in ("A", "B"):
        broker.metadata.topics[name] = TopicConfig(name, 1, 6)
    fill, filled = AdminService._fill, []

    def noting(self: AdminService, reply: wire.TopicReply, config: TopicConfig) -> None:
        fill(self, reply, config)
        filled.append(config.name)
        if len(filled) == 1:
            history = broker.replication.history
            last = history.entries[-1]
            history.entries = (*history.entries, replace(last, epoch=Epoch(last.epoch + 1)))

    monkeypatch.setattr(AdminService, "_fill", noting)
    connection = Connection((f"127.0.0.1:{node.port}",))
    reply = await connection.admin.ListTopics(wire.ListTopicsRequest())
    assert [row.topic for row in reply.topics] == ["A", "B"]
    assert filled == ["A", "B", "A", "B"]
    await connection.close()


async def _check(held: list[float]) -> None:
    """A few turns may be longer: on a machine under load, the same work takes longer."""
    await asyncio.sleep(0)  # the last turn is noted as well, if it is not the only one
    longer = sorted(seconds for seconds in held if seconds > HELD_SECONDS_MAX)
    assert len(longer) <= len(held) // 50, longer
    assert not longer or longer[-1] < 5 * HELD_SECONDS_MAX


async def test_slices_end_by_time_and_keep_what_they_get(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def seconds() -> float:
        nonlocal now
        now += slices.SLICE_SECONDS / 2
        return now

    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(other())
    made = Slices(seconds)
    assert [one async for one in made.each(range(10))] == list(range(10))
    assert turns >= 3
    assert [part async for part in made.parts(range(5), 2)] == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr(slices, "SORTED_AT_ONCE", 3)
    words = ["d", "a", "c", "b", "a", "e", "z", "y"]
    assert list(await made.ordered(words)) == sorted(words)
    watching.cancel()
