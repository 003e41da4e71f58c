"""The way of a message, as a node tells it, and to whom."""

import json
from pathlib import Path

import duolog
import pytest
from duolog import _columns

from duolog_server.node.api import readership, tracking
from duolog_server.node.api.tracking import Tracking
from duolog_server.node.core import turnbudget
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TRACE_TOPIC
from tests.compat.grpc.api import Api
from tests.keyfiles import access_files
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode, received
from tests.turns import turns_of

PASSWORD = "a password of the test"


async def _way(client: duolog.Client, key: str) -> duolog.TrackedMessage:
    (found,) = await client.admin.track_key("T", key)
    return found


async def test_a_delayed_message_is_found_before_and_after_its_time(client: duolog.Client) -> None:
    async with client.producer() as producer:
        receipt = await producer.send("T", b"x", key="k", delay=2.0)
        await producer.send("T", b"y", key="k", delay_level=18)
    first, second = await client.admin.track_key("T", "k")
    waiting = first if first.unique_key == receipt.unique_key else second
    assert [step.kind for step in waiting.steps] == ["DELAYED"]
    assert waiting.steps[0].deliver_time_ms is not None
    assert waiting.groups == ()
    async with client.consumer("g", "T") as consumer:
        assert await consumer.get(10) is not None
    found = await _way(client, receipt.unique_key)
    assert [step.kind for step in found.steps] == ["DELAYED", "STORED"]
    assert found.steps[1].topic == "T"
    assert found.steps[1].store_time_ms >= waiting.steps[0].deliver_time_ms
    assert [(track.group, track.state) for track in found.groups] == [("g", "CONSUMED")]


async def test_a_transaction_shows_its_half_message(client: duolog.Client) -> None:
    async with client.transactions("pg") as transactions:
        half = await transactions.prepare("T", b"x")
        assert [step.kind for step in (await _way(client, half.unique_key)).steps] == ["HALF"]
        await transactions.commit(half)
    found = await _way(client, half.unique_key)
    assert [step.kind for step in found.steps] == ["HALF", "STORED"]


async def test_messages_for_other_topics_are_not_told(client: duolog.Client) -> None:
    await client.admin.create_topic("other", 1)
    async with client.producer() as producer, client.transactions("pg") as transactions:
        await producer.send("other", b"x", key="k", delay=60)
        await producer.send("other", b"x", key="k", delay_level=18)
        await transactions.prepare("other", b"x", key="k")
    with pytest.raises(duolog.NoSuchMessage):
        await client.admin.track_key("T", "k")
    assert len(await client.admin.track_key("other", "k")) == 3


async def test_the_first_message_that_a_group_pops_is_in_flight(
    client: duolog.Client, producer: duolog.Producer, node: Node
) -> None:
    api = Api(node)
    receipt = await producer.send("T", b"x")
    received = await api.receive("g")
    (track,) = (await _way(client, receipt.unique_key)).groups
    assert (track.group, track.state) == ("g", "IN_FLIGHT")
    await api.ack("g", *received.handles)
    (track,) = (await _way(client, receipt.unique_key)).groups
    assert (track.group, track.state) == ("g", "CONSUMED")
    await api.close()


async def test_so_many_messages_of_a_key_are_told(
    client: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "MESSAGES_MAX", 2)
    await producer.send_batch("T", [b"x"] * 3, keys=[["k"]] * 3)
    assert len(await client.admin.track_key("T", "k")) == 2


async def test_another_attempt_is_told_until_its_end(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    receipt = await producer.send("T", b"x", properties={"traceparent": "none"})

    async def track() -> duolog.GroupTrack:
        (track,) = (await _way(client, receipt.unique_key)).groups
        return track

    async with client.consumer("g", "T", commit_interval=0.05) as consumer:
        message = await received(consumer)
        await consumer.send_back(message, delay_level=1)
        waiting = await track()
        assert (waiting.state, waiting.attempts) == ("RETRY", 1)
        assert await consumer.get(20) is not None
        stored = await track()
        assert (stored.state, stored.copy) == ("RETRY", ("%RETRY%g", 0, 0))
        assert await consumer.get(0) is None
        await consumer.commit()
        assert (await track()).state == "CONSUMED"
    assert (await _way(client, receipt.unique_key)).traceparent == "none"
    receipt = await producer.send("T", b"x")
    async with client.consumer("g", "T") as consumer:
        message = await received(consumer)
        await consumer.send_back(message, delay_level=-1)
    (dead,) = (await _way(client, receipt.unique_key)).groups
    assert dead.state == "DEAD_LETTER"
    assert dead.copy == ("%DLQ%g", 0, 0)
    with pytest.raises(duolog.NoSuchMessage):
        await client.admin.track_key("T", "none")
    with pytest.raises(duolog.UnknownTopic):
        await client.admin.track_key("none", "none")


@pytest.mark.parametrize("told", ["9" * 25, "\u0663", "soon"])
async def test_a_time_that_a_sender_forges_ends_no_answer(
    client: duolog.Client, producer: duolog.Producer, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setattr(_columns, "RESERVED", frozenset())
    forged = {"TIMER_OUT_MS": told}
    receipt = await producer.send("T", b"x", properties=forged, delay_level=5)
    (step,) = (await _way(client, receipt.unique_key)).steps
    assert (step.kind, step.deliver_time_ms) == ("DELAYED", None)


async def test_others_have_their_turn_while_the_ways_of_messages_are_searched(
    client: duolog.Client, producer: duolog.Producer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await producer.send_batch("T", [b"x"] * 3, keys=[["k"]] * 3)
    for group in ("a", "b"):
        async with client.consumer(group, "T") as consumer:
            assert await consumer.get_batch(10) is not None
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(readership, "OFFSETS_AT_ONCE", 2)
    offsets = broker_of(node).metadata.tables.offsets
    offsets.update((("gone", f"other{number}"), {0: 0}) for number in range(100))
    with turns_of(monkeypatch, Tracking, "_track") as searched:
        found = await client.admin.track_key("T", "k")
    assert sum(len(message.groups) for message in found) == len(set(searched)) == 6
    assert searched[-1] - searched[0] > 2 * 100 / 2, "offsets are looked at for each message"


async def test_clients_may_tell_what_they_did(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.create_topic(TRACE_TOPIC, 1)
    await producer.send(TRACE_TOPIC, b"Pub\x01", key="k")
    with pytest.raises(duolog.DuologError):
        await producer.send("RMQ_SYS_TRANS_HALF_TOPIC", b"x", queue_id=0)
    assert len(await client.admin.find(TRACE_TOPIC, key="k")) == 1


async def _user(node: Node, name: str, *entries: str) -> duolog.Client:
    """A client of a new user with rights such as `Topic:T Sub`."""
    endpoint = f"127.0.0.1:{node.port}"
    rows = [
        {"resource": resource, "actions": [action], "decision": "Allow"}
        for resource, action in (entry.split(" ") for entry in entries)
    ]
    rights = json.dumps({"policies": [{"policyType": "Custom", "entries": rows}]})
    async with duolog.Client(endpoint, user="root", password=PASSWORD) as root:
        await root.access.create_user(name, PASSWORD)
        await root.access.set_rights(name, rights)
    return duolog.Client(endpoint, user=name, password=PASSWORD)


async def test_who_reads_a_topic_learns_nothing_of_other_groups_and_topics(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(access=access_files(tmp_path, PASSWORD))
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, user="root", password=PASSWORD) as root:
        await root.access.create_user("root", PASSWORD, is_super=True)
        for topic in ("T", "other", TRACE_TOPIC):
            await root.admin.create_topic(topic, 1)
        async with root.producer() as producer:
            for topic in ("T", "other", TRACE_TOPIC):
                await producer.send(topic, b"x", key="k")
        for group in ("mine", "others"):
            async with root.consumer(group, "T") as consumer:
                assert await consumer.get(10) is not None
        (all_of_it,) = await root.admin.track_key("T", "k")
        assert [track.group for track in all_of_it.groups] == ["mine", "others"]
        assert len(await root.admin.find(TRACE_TOPIC, key="k")) == 1
    reader = await _user(
        node, "reader", "Topic:T Sub", "Group:mine Sub", f"Topic:{TRACE_TOPIC} Sub"
    )
    async with reader:
        (mine,) = await reader.admin.track_key("T", "k")
        assert [track.group for track in mine.groups] == ["mine"]
        with pytest.raises(duolog.NoPermission):
            await reader.admin.track_key("other", "k")
        with pytest.raises(duolog.NoPermission):
            await reader.admin.find(TRACE_TOPIC, key="k")
    async with await _user(node, "lister", "Topic:T List") as lister:
        with pytest.raises(duolog.NoPermission):
            await lister.admin.track_key("T", "k")
    teller = await _user(node, "teller", f"Topic:{TRACE_TOPIC} Pub")
    async with teller, teller.producer() as producer:
        await producer.send(TRACE_TOPIC, b"x")
    assert broker_of(node).core.traffic.received.table[TRACE_TOPIC, "normal"].messages == 2
