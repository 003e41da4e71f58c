"""Pages of the lists of topics and groups, from a node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duolog
import duolog.sync
import pytest
from duolog._connection import Connection
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.api.admin import AdminService
from duolog_server.node.api.pages import PageOfNames, page_of
from duolog_server.node.core.slices import Slices
from duolog_server.ops.inspection.doctor.consumers import ON_DEMAND, diagnose_groups
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.groupproblems import OLD_MS
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import TopicConfig, new_group
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.node.runtime.test_clocks import jumping
from tests.nodefixtures import StartNode
from tests.turns import turns_of
from tests.until import until

PASSWORD = "a password of the test"
MANY = 700
TOPICS = [f"{'Ab'[number % 2]}-{number:03}" for number in range(MANY)]
GROUPS = [f"readers-{number:03}" for number in range(MANY)]
RIGHTS = (
    '{"policies": [{"policyType": "Custom", "entries": ['
    '{"resource": "Topic:A-00*", "actions": ["List"], "decision": "Allow"}, '
    '{"resource": "Group:readers-69*", "actions": ["Get"], "decision": "Allow"}]}]}'
)


@dataclass(slots=True)
class Wanted:
    contains: str = ""
    after: str = ""
    limit: int = 0


def told(page: PageOfNames) -> tuple[list[str], int, str]:
    return list(page.names), page.total, page.next


async def chosen(
    names: list[str], wanted: Wanted, sees: Callable[[str], bool] = lambda name: True
) -> tuple[list[str], int, str]:
    return told(await page_of(names, sees, wanted, Slices()))


async def test_names_are_matched_sorted_and_cut_and_hidden_ones_not_counted() -> None:
    names = ["orders", "Orders-EU", "payments", "%DLQ%orders", "ORDERS"]
    found = ["%DLQ%orders", "ORDERS", "Orders-EU", "orders"]
    assert await chosen(names, Wanted()) == (sorted(names), 5, "")
    assert await chosen(names, Wanted("oRDer")) == (found, 4, "")
    assert await chosen(names, Wanted("order", limit=4)) == (found, 4, "")
    assert await chosen(names, Wanted("order", limit=2)) == (found[:2], 4, "ORDERS")
    assert await chosen(names, Wanted("order", "ORDERS", 2)) == (found[2:], 4, "")
    assert await chosen(names, Wanted("order", "z")) == ([], 4, "")
    assert await chosen(names, Wanted("none")) == ([], 0, "")
    names = ["a1", "a2", "b1", "c1"]
    asked: list[str] = []

    def sees(name: str) -> bool:
        asked.append(name)
        return name != "b1"

    assert await chosen(names, Wanted("1", limit=1), sees) == (["a1"], 2, "a1")
    assert sorted(asked) == ["a1", "b1", "c1"], "only of what matches"


@given(
    st.sets(st.text("abAB", min_size=1, max_size=4), max_size=300),
    st.builds(Wanted, st.text("aB", max_size=2), st.text("abAB", max_size=2), st.integers(0, 300)),
)
async def test_a_page_is_what_the_whole_list_says(names: set[str], wanted: Wanted) -> None:
    matching = [name for name in sorted(names) if wanted.contains.lower() in name.lower()]
    behind = [name for name in matching if name > wanted.after]
    shown = behind[: wanted.limit] if wanted.limit else behind
    following = shown[-1] if len(shown) < len(behind) else ""
    assert await chosen(list(names), wanted) == (shown, len(matching), following)


@pytest.fixture
async def filled(start_node: StartNode, tmp_path: Path) -> Node:
    """A node with many topics and groups, and a user who may see a few of them."""
    node = await start_node(access=access_files(tmp_path, PASSWORD), limits={"topics_max": 10_000})
    async with client_of(node, "root") as client:
        await client.access.create_user("root", PASSWORD, is_super=True)
        await client.access.create_user("few", PASSWORD)
        await client.access.set_rights("few", RIGHTS)
        await client.admin.create_topic("A-000", 2)
        async with client.producer() as producer:
            await producer.send("A-000", b"x", queue_id=1)
        await client.admin.commit("readers-000", {("A-000", "broker-a", 1): 0})
    tables = broker_of(node).metadata.tables
    tables.topics |= {name: TopicConfig(name, 2, 6) for name in TOPICS[1:]}
    tables.groups |= {name: new_group(name) for name in GROUPS[1:]}
    return node


def client_of(node: Node, user: str) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=30, user=user, password=PASSWORD)


def timeless(group: duolog.GroupDescription) -> duolog.GroupDescription:
    """A group without what grows while it is looked at."""
    return replace(group, queues=tuple(replace(queue, lag_ms=0) for queue in group.queues))


@pytest.fixture(params=["frames", "grpc"])
async def root(
    filled: Node, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[duolog.Client]:
    """A client that may do everything, over each transport."""
    monkeypatch.setenv("DUOLOG_TRANSPORT", request.param)
    async with client_of(filled, "root") as client:
        yield client


async def test_pages_of_a_node_are_its_list_and_have_the_lag_of_groups(root: duolog.Client) -> None:
    rows, after = list[duolog.TopicDescription](), ""
    while True:
        page = await root.admin.topics_page(after=after, limit=150)
        assert page.total == MANY
        rows += page.rows
        after = page.next
        if not after:
            break
        assert len(page.rows) == 150
    assert rows == sorted(await root.admin.topics(), key=lambda row: row.topic)
    assert rows[0].stats[1].max_offset == 1
    assert [row.topic for row in rows] == sorted(TOPICS)

    found = await root.admin.topics_page("a-01", after="A-012", limit=3)
    assert [row.topic for row in found.rows] == ["A-014", "A-016", "A-018"]
    assert (found.total, found.next) == (5, "")
    assert (await root.admin.topics_page()).rows == tuple(rows[:100])
    groups = await root.admin.groups_page(limit=2)
    assert [row.group for row in groups.rows] == GROUPS[:2]
    assert (groups.total, groups.next) == (MANY, GROUPS[1])
    assert [(q.topic, q.queue_id, q.lag_messages) for q in groups.rows[0].queues] == [
        ("A-000", 0, 0),
        ("A-000", 1, 1),
    ]
    assert timeless(groups.rows[0]) == timeless(await root.admin.group(GROUPS[0]))
    last = await root.admin.groups_page("READERS-69", after="readers-698", limit=5)
    assert ([row.group for row in last.rows], last.total, last.next) == (["readers-699"], 10, "")
    everything = await root.admin.groups_page(limit=0)
    assert [*map(timeless, everything.rows)] == [*map(timeless, await root.admin.groups())]
    assert (everything.total, everything.next) == (MANY, "")
    page = await root.admin.topics_page("sys_", system=True)
    assert [row.topic for row in page.rows] == ["DUOLOG_SYS_EPOCH", "DUOLOG_SYS_METADATA"]
    assert (await root.admin.topics_page("sys_")).rows == ()
    page = await root.admin.topics_page(system=True, limit=1, after="DUOLOG_SYS_A")
    assert (page.rows[0].topic, page.total) == ("DUOLOG_SYS_EPOCH", MANY + 2)


async def test_rows_are_made_for_the_page_only(
    filled: Node, root: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    fill, add_queues = AdminService._fill, AdminService._add_queues

    async def filling(
        self: AdminService, reply: Any, config: TopicConfig, slices: Any, times: bool
    ) -> None:
        made.append(config.name)
        await fill(self, reply, config, slices, times)

    async def describing(self: AdminService, told: Any, slices: Slices) -> None:
        made.append(told.group.group)
        await add_queues(self, told, slices)

    monkeypatch.setattr(AdminService, "_fill", filling)
    monkeypatch.setattr(AdminService, "_add_queues", describing)
    topics = await root.admin.topics_page("b-", limit=3)
    assert made == [row.topic for row in topics.rows] == ["b-001", "b-003", "b-005"]
    made.clear()
    async with client_of(filled, "few") as client:
        groups = await client.admin.groups_page(limit=3)
    assert made == [row.group for row in groups.rows] == GROUPS[690:693]


async def test_a_user_is_shown_and_told_of_what_it_may_see_only(filled: Node) -> None:
    async with client_of(filled, "few") as client:
        page = await client.admin.topics_page(limit=2)
        assert ([row.topic for row in page.rows], page.total) == (["A-000", "A-002"], 5)
        page = await client.admin.topics_page(limit=2, after=page.next)
        assert ([row.topic for row in page.rows], page.next) == (["A-004", "A-006"], "A-006")
        page = await client.admin.topics_page(limit=2, after=page.next)
        assert ([row.topic for row in page.rows], page.next) == (["A-008"], "")
        hidden = await client.admin.topics_page("b-", system=True)
        assert (hidden.rows, hidden.total, hidden.next) == ((), 0, "")
        groups = await client.admin.groups_page("readers-6", limit=4)
        assert ([row.group for row in groups.rows], groups.total) == (GROUPS[690:694], 10)
    async with client_of(filled, "root") as boss:
        await boss.access.set_rights("few", RIGHTS.replace("A-00", "A-01"))
    async with client_of(filled, "few") as client:
        page = await client.admin.topics_page()
        assert [row.topic for row in page.rows] == [f"A-01{number}" for number in (0, 2, 4, 6, 8)]
        assert page.total == 5


async def test_groups_that_lag_by_young_messages_have_no_problem(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all groups at work do. Of few of them is read when their messages were stored."""
    node = await start_node()
    broker = broker_of(node)
    broker.metadata.topics["T"] = TopicConfig("T", 1, 6)
    await broker.core.log.put_and_wait(PutBatch("T", 0, Columns.of([b"x"] * 5), WallMs(1)))
    await until(lambda: broker.store.queue_range("T", 0)[1] == 5)
    for number in range(9):
        broker.metadata.tables.groups[f"g{number}"] = new_group(f"g{number}")
        broker.metadata.tables.offsets["T", f"g{number}"] = {0: 1 + number % 5}
    with turns_of(monkeypatch, AdminService, "_store_time") as reads:
        async with duolog.Client(f"127.0.0.1:{node.port}", timeout=30) as client:
            young = await client.admin.groups(problems_only=True, old_ms=OLD_MS, stalled_ms=60_000)
            assert (young, len(reads)) == ([], 1)
            jumping(node).jumped = 2 * OLD_MS
            old = await client.admin.groups(problems_only=True, old_ms=OLD_MS, stalled_ms=60_000)
    assert [group.group for group in old] == [f"g{k}" for k in range(9) if k != 4]


async def test_groups_are_listed_by_name_where_they_exist_and_may_be_seen(
    filled: Node, root: duolog.Client
) -> None:
    asked = [GROUPS[695], "unknown", GROUPS[3], GROUPS[695]]
    assert [row.group for row in await root.admin.groups(asked)] == [GROUPS[3], GROUPS[695]]
    assert await root.admin.groups(["unknown"]) == []
    assert [row.group for row in await root.admin.groups(problems_only=True)] == [GROUPS[0]]
    found = await root.admin.groups([GROUPS[0], GROUPS[3]], problems_only=True)
    assert [row.group for row in found] == [GROUPS[0]]
    connection: Connection = root._router.seed
    reply = await connection.admin.ListGroups(
        wire.ListGroupsRequest(groups=asked, contains="none", after="z", limit=1)
    )
    assert [row.group for row in reply.groups] == [GROUPS[3], GROUPS[695]]
    assert not reply.HasField("total")
    async with client_of(filled, "few") as client:
        assert [row.group for row in await client.admin.groups(asked)] == [GROUPS[695]]


async def test_a_group_that_is_deleted_meanwhile_is_left_out(
    filled: Node, root: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics_of = AdminService._topics_of

    async def deleting(self: AdminService, groups: Any, slices: Slices) -> dict[str, set[str]]:
        found = await topics_of(self, groups, slices)
        broker_of(filled).metadata.tables.groups.pop(GROUPS[1], None)
        return found

    monkeypatch.setattr(AdminService, "_topics_of", deleting)
    page = await root.admin.groups_page(limit=3)
    assert [row.group for row in page.rows] == [GROUPS[0], GROUPS[2]]
    assert page.next == GROUPS[2]


async def test_named_topics_are_no_page(filled: Node) -> None:
    async with client_of(filled, "root") as client:
        connection: Connection = client._router.seed
        reply = await connection.admin.ListTopics(
            wire.ListTopicsRequest(topics=["b-001", "A-000"], contains="x", after="z", limit=1)
        )
    assert [row.topic for row in reply.topics] == ["b-001", "A-000"]
    assert not reply.HasField("total")


async def test_the_synchronous_client_has_pages(filled: Node) -> None:
    def ask() -> tuple[duolog.Page[Any], duolog.Page[Any]]:
        endpoint = f"127.0.0.1:{filled.port}"
        with duolog.sync.Client(endpoint, user="root", password=PASSWORD) as client:
            return (
                client.admin.topics_page("A-", after="A-000", limit=1),
                client.admin.groups_page("readers", after="readers-000", limit=1),
            )

    topics, groups = await asyncio.to_thread(ask)
    assert ([row.topic for row in topics.rows], topics.next) == (["A-002"], "A-002")
    assert ([row.group for row in groups.rows], groups.total) == (["readers-001"], MANY)


async def found_by(client: duolog.Client, problems_only: bool) -> set[tuple[str, str]]:
    """Cause and place of what the doctor finds in the lists of groups and topics."""
    groups = await client.admin.groups(problems_only=problems_only)
    topics = await client.admin.topics(problems_only=problems_only)
    return {(one.cause, one.where) for one in diagnose_groups(groups, topics, ON_DEMAND)}


async def test_lists_of_problems_leave_out_what_is_well_and_read_no_times_of_it(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    broker = broker_of(node)
    topics = {"T": 6, "closed": 4, "silent": 2, "%DLQ%buried": 6, "%DLQ%well": 6}
    for name, perm in topics.items():
        broker.metadata.topics[name] = TopicConfig(name, 2, perm)
    for name in ("T", "%DLQ%buried"):
        await broker.core.log.put_and_wait(PutBatch(name, 1, Columns.of([b"x"] * 5), WallMs(1)))
    await until(lambda: broker.store.queue_range("%DLQ%buried", 1)[1] == 5)
    offsets = {"well": 5, "behind": 4, "buried": 5, "late": 0}
    tables = broker.metadata.tables
    for name, offset in offsets.items():
        tables.groups[name] = new_group(name)
        tables.offsets["T", name] = {1: offset}
    timed = list[str]()
    store_time = AdminService._store_time

    def noting(self: AdminService, topic: str, queue_id: int, queue_offset: int) -> int:
        timed.append(topic)
        return store_time(self, topic, queue_id, queue_offset)

    monkeypatch.setattr(AdminService, "_store_time", noting)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        found = await client.admin.topics(problems_only=True)
        assert [topic.topic for topic in found] == ["%DLQ%buried", "closed", "silent"]
        assert set(timed) == {"%DLQ%buried", "closed", "silent"}
        timed.clear()
        page = await client.admin.topics_page("t", limit=0, times=False)
        assert [topic.stats[1].max_offset for topic in page.rows if topic.topic == "T"] == [5]
        assert {row.last_store_time_ms for topic in page.rows for row in topic.stats} == {None}
        assert timed == []
        page = await client.admin.topics_page("t")
        assert {row.last_store_time_ms for row in page.rows[0].stats} != {None}
        groups = await client.admin.groups(problems_only=True)
        assert [group.group for group in groups] == ["behind", "buried", "late"]
        found_first = await found_by(client, problems_only=True)
        assert found_first == await found_by(client, problems_only=False)
        assert len(await client.admin.groups()) == len(offsets)
        tables.offsets["T", "late"] = {1: 5}
        queue = broker.store.queues.get("T", 1)
        assert queue is not None
        queue.min_logic_bytes = queue.files.max_offset
        tables.offsets["T", "behind"] = {1: 5}
        tables.offsets["T", "lost"] = {1: 2}
        tables.groups["lost"] = new_group("lost")
        groups = await client.admin.groups(problems_only=True)
        assert [group.group for group in groups] == ["buried", "lost"]
        beat = wire.HeartbeatRequest(group="well", topics=["T"], session_ms=60_000)
        # Two queues: the first two agree, the third has none, and the fourth reads other messages.
        for members, tags, told in (
            (2, "*", False),
            (3, "*", True),
            (2, "*", False),
            (2, "a", True),
        ):
            for number in range(4):
                broker.groups.leave("well", f"m{number}")
            for number in range(members):
                beat.member_id, beat.tags = f"m{number}", tags if number else "*"
                await client._router.seed.groups.Heartbeat(beat, timeout=10)
            groups = await client.admin.groups(problems_only=True)
            assert ("well" in [group.group for group in groups]) == told, (members, tags)
            told_now = await found_by(client, problems_only=True)
            assert told_now == await found_by(client, problems_only=False) != found_first
