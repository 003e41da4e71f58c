"""Topics and groups that are deleted and made again get nothing of those that were deleted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.node.core.births import since
from duolog_server.node.deferred.delayservice import TIMER_TOPIC
from duolog_server.node.deferred.halfmessages import Half
from duolog_server.node.deferred.transactionservice import DISCARD_TOPIC, Check
from duolog_server.ops.inspection.deadletters.letters import letters_page
from duolog_server.ops.inspection.deadletters.redelivery import Bounds, redeliver
from duolog_server.ops.inspection.doctor.consumers import diagnose_groups
from duolog_server.serve.server import Node
from duolog_server.store.births import Births
from duolog_server.store.clocks import MonoMs
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.metadata import Metadata, Snapshot
from tests.compat.grpc.api import Api
from tests.known import known
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

LEVELS = "3s 4s"
TIMED_SECONDS = 4.0
CHECKED = {"timeout_ms": 4000, "check_interval_ms": 300, "check_max": 5}


def client_of(node: Node) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=10)


async def remade(client: duolog.Client, topic: str = "T") -> None:
    await client.admin.delete_topic(topic)
    await client.admin.create_topic(topic, 1)


async def stored(node: Node, topic: str, count: int) -> None:
    store = broker_of(node).store
    await until(lambda: store.queue_range(topic, 0)[1] >= count, f"{count} in {topic}")


async def popped(api: Api, group: str, count: int) -> list[bytes]:
    """All that a group gets until it has so many, and a little later."""
    bodies: list[bytes] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(bodies) < count:
            bodies += (await api.receive(group)).bodies
    return bodies + (await api.receive(group, poll_ms=100)).bodies


async def consumed(client: duolog.Client, group: str, count: int, **how: Any) -> list[bytes]:
    bodies: list[bytes] = []
    async with client.consumer(group, "T", **how) as consumer:
        while len(bodies) < count:
            bodies.append(known(await consumer.get(WAIT_SECONDS)).body)
        while (message := await consumer.get(0.2)) is not None:
            bodies.append(message.body)
    return bodies


async def leave_all_kinds(node: Node, client: duolog.Client, api: Api) -> duolog.Half:
    """A message waits for T in each way."""
    await client.admin.create_topic("T", 1)
    await client.admin.put_group("pops", retry_times=9)
    async with client.producer() as producer:
        await producer.send("T", b"old", key="k")
        (handle,) = (await api.receive("pops", poll_ms=5000)).handles
        await api.change("pops", handle, 50)
        await stored(node, "%RETRY%pops_T", 1)
        async with client.consumer("sdk", "T") as consumer:
            message = known(await consumer.get(WAIT_SECONDS))
            await consumer.send_back(message, delay_level=1)
            await stored(node, "%RETRY%sdk", 1)  # it is back, and read by nobody
            await consumer.send_back(message, delay_level=2)
        await producer.send("T", b"old", delay_level=2, key="k")
        await producer.send("T", b"old", key="k", delay=TIMED_SECONDS)
    transactions = client.transactions("tx")
    return await transactions.prepare("T", b"old")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_topic_that_is_made_again_gets_nothing_that_waited_for_the_deleted_one(
    start_node: StartNode, tmp_path: Path, restart: bool
) -> None:
    how: Any = {"message_delay_level": LEVELS, "transactions": CHECKED}
    node = await start_node(tmp_path / "data", **how)
    api = Api(node)
    async with client_of(node) as client:
        half = await leave_all_kinds(node, client, api)
        for _ in range(2):
            await remade(client)
        assert not (await client.admin.delayed_page("T")).rows
        assert not (await client.admin.halves_page("T")).rows
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.track_key("T", "k")
        assert await client.admin.find("T", key="k") == []
    if restart:
        await api.close()
        await node.stop()
        node = await start_node(tmp_path / "data", **how)
        api = Api(node)
    async with client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"level", delay_level=2)
        await producer.send("T", b"timed", delay=TIMED_SECONDS)
        with pytest.raises(duolog.UnknownTopic, match="was deleted since"):
            await client.transactions("tx").commit(half)
        broker = broker_of(node)
        for group in (await popped(api, "pops", 2), await consumed(client, "sdk", 2)):
            assert sorted(group) == [b"level", b"timed"]
        await until(lambda: broker.transactions.waiting == 0)
        assert DISCARD_TOPIC not in broker.metadata.topics
        with pytest.raises(duolog.NoSuchMessage):
            await client.transactions("tx").commit(half)
        for topic, queue in ((SCHEDULE_TOPIC, 1), (TIMER_TOPIC, 0)):
            assert broker.store.queue_range(topic, queue)[1] >= 2


async def test_many_half_messages_of_a_deleted_topic_are_told_without_comparing_each_with_all(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request may name 100,000."""
    transactions = broker_of(await start_node()).transactions
    halves = [Half(k, k, "tx", 0, MonoMs(0), "T") for k in range(3)]

    async def known(_: object) -> dict[int, Half]:
        return {half.origin: half for half in halves}

    monkeypatch.setattr(transactions, "_reaching", known)
    monkeypatch.setattr(transactions, "is_too_old", lambda _: True)
    monkeypatch.setattr(Half, "__eq__", lambda *_: pytest.fail("two were compared"))
    with pytest.raises(duolog.UnknownTopic, match="half message 0 was sent"):
        await transactions.end(range(3), True, "tx")


async def test_a_half_message_whose_topic_is_made_again_while_its_producer_is_asked_is_dropped(
    start_node: StartNode,
) -> None:
    """The check stores it again, behind the birth of the topic that follows."""
    node = await start_node(transactions=CHECKED)
    transactions = broker_of(node).transactions
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        half = await client.transactions("tx").prepare("T", b"old")
        asked: list[int] = []

        async def ask(check: Check) -> bool:
            asked.append(check.origin)
            await remade(client)
            return True

        transactions.askers.append(ask)
        await until(lambda: bool(asked) and not transactions.waiting, "it is dropped")
        assert len(asked) == 1
        with pytest.raises(duolog.NoSuchMessage):
            await client.transactions("tx").commit(half)
        assert broker_of(node).store.queue_range("T", 0)[1] == 0


async def test_a_group_that_is_made_again_gets_no_retries_of_the_deleted_one(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "data", message_delay_level="1s")
    api = Api(node)
    async with client_of(node) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"old")
        for group in ("sdk", "pops"):
            await client.admin.put_group(group, retry_times=9)
        async with client.consumer("sdk", "T") as consumer:
            for _ in range(2):  # once more when it came back
                message = known(await consumer.get(WAIT_SECONDS))
                await consumer.send_back(message)
        (handle,) = (await api.receive("pops", poll_ms=5000)).handles
        await api.change("pops", handle, 50)
        await stored(node, "%RETRY%pops_T", 1)
        (handle,) = (await api.receive("pops", poll_ms=5000)).handles
        for group in ("sdk", "pops"):
            await client.admin.delete_group(group)
        assert (await api.ack("pops", handle)).entries[0].status.code != 20000
        await producer.send("T", b"new")
        # Two of T for a new group, and none of before.
        assert await popped(api, "pops", 2) == [b"old", b"new"]
        assert await consumed(client, "sdk", 2) == [b"old", b"new"]
        await client.admin.delete_group("sdk")
        latest = duolog.Start.LATEST
        async with client.consumer("sdk", "T", start=latest) as consumer:
            assert await consumer.get(0.3) is None
        assert sum(queue.lag_messages for queue in (await client.admin.group("sdk")).queues) == 0
        for topic in ("T", "%RETRY%sdk"):
            await client.admin.reset_group("sdk", topic)
        assert await consumed(client, "sdk", 2) == [b"old", b"new"]
        await stored(node, "%RETRY%sdk", 1)  # what was on its way is not delivered either


async def dead_letters(client: duolog.Client, group: str) -> list[bytes]:
    try:
        page = await letters_page(client, group)
    except duolog.UnknownTopic:
        return []
    assert page.total == len(page.letters)
    return [letter.body for letter in page.letters]


async def give_up(client: duolog.Client, group: str, body: bytes, key: str) -> None:
    """A group is made, gets a message, and gives it up."""
    async with client.producer() as producer, client.consumer(group, "T") as consumer:
        await producer.send("T", body, key=key)
        async for message in consumer:
            if message.body == body:
                await consumer.send_back(message, delay_level=-1)
                return


@pytest.mark.parametrize("group", ["g", "g" * 248])
async def test_a_group_that_is_made_again_has_no_dead_letters_of_the_deleted_one(
    start_node: StartNode, tmp_path: Path, group: str
) -> None:
    node = await start_node(tmp_path / "data")
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        await give_up(client, group, b"old", "k1")
        assert await dead_letters(client, group) == [b"old"]
        await client.admin.delete_group(group)
        assert await dead_letters(client, group) == []
        await client.admin.put_group(group)
        assert await dead_letters(client, group) == []
        states = [one.groups for one in await client.admin.track_key("T", "k1")]
        assert [[found.state for found in groups] for groups in states] in ([[]], [["waiting"]])
        await give_up(client, group, b"new", "k2")
        assert await dead_letters(client, group) == [b"new"]
        bounds = Bounds(10, 5.0)
        assert (await redeliver(client, group, bounds)).sent == 1
        groups, topics = await client.admin.groups(), await client.admin.topics(system=True)
        (found,) = [one for one in diagnose_groups(groups, topics) if one.cause == "dead-letters"]
        assert (found.where, found.what[-3:]) == (f"consumer group {group}", ": 1")
    await node.stop()
    node = await start_node(tmp_path / "data")
    async with client_of(node) as client:
        assert await dead_letters(client, group) == [b"new"]


def test_births_are_those_of_the_last_deletion_and_forgotten_with_the_log() -> None:
    tables = Metadata()
    births = tables.births
    tables.apply(b'{"op":"topic","topic":{"topicName":"T"}}')
    assert (births.topics, births.newest) == ({}, 0)
    tables.apply(b'{"op":"delete_topic","topic":"T","birth":70,"low":0}')
    tables.apply(b'{"op":"topic","topic":{"topicName":"T"}}')  # by a node of version 0.1.0
    assert since(births, "T", "") == 70
    tables.apply(b'{"op":"delete_group","group":"g","birth":80,"low":0}')
    tables.apply(b'{"op":"group","group":{"groupName":"g"},"birth":90}')
    assert [since(births, name, "T") for name in ("T", "%RETRY%g", "%RETRY%h", "$T$x", "U")] == [
        70,
        90,
        70,
        0,
        0,
    ]
    assert since(births, "%RETRY%g_T", "T", "g") == 90
    tables.apply(b'{"op":"group","group":{"groupName":"h_T"},"birth":85}')
    assert since(births, "%RETRY%h_T", "T") == 85, "what members of h_T sent back"
    assert since(births, "%RETRY%h_T", "T", "h") == 70, "what group h gets again of topic T"
    del births.groups["h_T"]
    value = tables.snapshot().tables()
    assert Metadata.from_json(value).births == births
    del value["births"]  # as a node of version 0.1.0 leaves it
    tables.adopt(json.dumps(value).encode())
    assert births.newest == 90
    tables.apply(b'{"op":"delete_topic","topic":"U","birth":95,"low":80}')
    assert births == Births({"U": 95}, {"g": 90}, 95)
    assert births.keep_within(92)
    assert births == Births({"U": 92}, {"g": 90}, 92)
    assert not births.keep_within(92)


async def test_births_are_found_in_the_log_where_a_snapshot_has_none(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(tmp_path / "data")
    async with client_of(node) as client:
        await client.admin.create_topic("T", 1)
        await remade(client)
        await client.admin.put_group("g")
        await client.admin.delete_group("g")
    births = broker_of(node).metadata.tables.births.rows()
    assert births["topics"].keys() == {"T"}
    assert births["groups"].keys() == {"g"}
    tables = Snapshot.tables

    def older(snapshot: Snapshot) -> dict[str, Any]:
        return {name: row for name, row in tables(snapshot).items() if name != "births"}

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "tables", older)
        await node.stop()
    node = await start_node(tmp_path / "data")
    assert broker_of(node).metadata.tables.births.rows() == births
