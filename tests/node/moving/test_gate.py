"""Consumer groups read a queue that moved: one place to its end, then the next one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import definition, service
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.node.consuming.longpoll import poll
from duolog_server.node.consuming.reading import Selection
from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.serve.server import Node
from duolog_server.store.moves import Guest, Place, guest_record
from tests.compat.grpc.api import Api, close_all, resource
from tests.compat.remoting.client import Remoting, connected, receipts, records
from tests.node.moving.seams import TOPIC, A, B, Seams
from tests.node.replicas import WAIT_SECONDS, Group, broker_of, caught_up, client_of, start_groups
from tests.nodefixtures import StartNode, received
from tests.until import until

pytestmark = pytest.mark.usefixtures("quick_groups")


@pytest.fixture
async def nodes(start_node: StartNode, tmp_path: Path) -> dict[str, Node]:
    return await start_groups(start_node, tmp_path, remoting={"listen": "127.0.0.1:0"})


@pytest.fixture
async def seams(nodes: dict[str, Node]) -> Seams:
    """The one queue of a topic at A, which B has as well."""
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic(TOPIC, 1)
    return Seams(nodes, Place(A, 0))


@pytest.fixture(autouse=True)
async def clients_end_with_their_test(start_node: StartNode) -> AsyncIterator[None]:
    """Before the nodes do."""
    yield
    await close_all()


async def read(consumer: duolog.Consumer, count: int) -> list[bytes]:
    return [(await received(consumer)).body for _ in range(count)]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % k for k in range(first, end)]


async def test_a_consumer_reads_on_behind_the_seam(nodes: dict[str, Node], seams: Seams) -> None:
    await seams.put(*numbered(0, 5))
    await seams.move(B)
    await seams.put(*numbered(5, 9))
    async with (
        client_of(nodes[A]) as client,
        client.consumer("g", TOPIC, commit_interval=0.05) as consumer,
    ):
        assert await read(consumer, 9) == numbered(0, 9)
        await consumer.commit()
    assert seams.committed("g", seams.name) == 5
    await until(lambda: seams.committed("g", seams.at) == 9)


async def test_groups_continue_behind_a_seam_where_all_before_it_was_trimmed(
    nodes: dict[str, Node], seams: Seams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.moving.crossings.SWEEP_SECONDS", 0.05)
    await seams.put(*numbered(0, 5))
    async with client_of(nodes[A]) as client:
        await client.admin.commit("began", {(TOPIC, A, 0): 1})
        await seams.move(B)
        await seams.put(*numbered(5, 9))
        here, there = (duolog.QueuePlace(*place) for place in (seams.name, seams.at))
        with pytest.raises(duolog.BadRequest, match="end at 5"):
            await client.admin.trim_topic(TOPIC, queue=here, offset=6)
        await client.admin.trim_topic(TOPIC, queue=here, offset=4)
        assert not seams.may_read("began", seams.at)
        await client.admin.trim_topic(TOPIC, queue=there, offset=3)
        [trimmed] = await client.admin.trim_topic(TOPIC, queue=there, offset=7)
        assert (trimmed.first, trimmed.min_offset) == (5, 7), "a guest begins at the seam"
        await client.admin.trim_topic(TOPIC, queue=here, offset=5)
        await until(lambda: seams.may_read("began", seams.at))
        for group in ("began", "new"):
            async with client.consumer(group, TOPIC, start=duolog.Start.EARLIEST) as consumer:
                assert await read(consumer, 2) == numbered(7, 9)


async def test_a_group_that_has_not_read_the_first_span_gets_nothing_of_the_next(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """Another one that has goes on."""
    await seams.put(*numbered(0, 3))
    async with client_of(nodes[A]) as client:
        async with client.consumer("ahead", TOPIC) as consumer:
            assert await read(consumer, 3) == numbered(0, 3)
        await seams.move(B)
        await seams.put(*numbered(3, 6))
        await until(lambda: seams.may_read("ahead", seams.at))
        assert not seams.may_read("behind", seams.at)
        async with client.consumer("ahead", TOPIC) as consumer:
            assert await read(consumer, 3) == numbered(3, 6)
        async with client.consumer("behind", TOPIC, commit_interval=1000.0) as consumer:
            assert await read(consumer, 3) == numbered(0, 3)
            assert await consumer.get(1.0) is None, "it has not committed that"
            assert seams.committed("behind", seams.at) == -1
            await consumer.commit()
            assert await read(consumer, 3) == numbered(3, 6)


async def test_a_new_group_crosses_a_span_that_holds_nothing(
    nodes: dict[str, Node], seams: Seams
) -> None:
    await seams.move(B)
    await seams.put(*numbered(0, 3))
    async with client_of(nodes[A]) as client, client.consumer("g", TOPIC) as consumer:
        assert await read(consumer, 3) == numbered(0, 3)


async def test_a_new_group_that_begins_at_the_end_gets_what_comes_from_then_on(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """Behind all places of a queue; one that is set back reads all of them."""
    await seams.put(*numbered(0, 2))
    for group in (B, A):
        await seams.move(group)
        await seams.put(*numbered(2, 4))
    latest = duolog.Start.LATEST
    async with client_of(nodes[A]) as client:
        async with client.consumer("g", TOPIC, start=latest, commit_interval=0.05) as consumer:
            await until(lambda: seams.may_read("g", seams.at))
            await seams.put(b"new")
            assert await read(consumer, 1) == [b"new"]
        assert not seams.broker(A).crossings._begins
        assert not seams.broker(B).crossings._begins
        await client.admin.reset_group("g", TOPIC, duolog.Start.EARLIEST)
        async with client.consumer("g", TOPIC) as consumer:
            assert await read(consumer, 7) == [*numbered(0, 4), *numbered(2, 4), b"new"]


async def test_a_new_group_skips_nothing_where_the_last_place_does_not_tell_its_end(
    nodes: dict[str, Node], seams: Seams, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seams.put(*numbered(0, 2))
    await seams.move(B)
    await seams.put(*numbered(2, 4))
    source = seams.broker(A)
    async with client_of(nodes[A]) as client:
        with monkeypatch.context() as unreachable:
            unreachable.setattr(source.other_groups, "_master_of", lambda group: "")
            await client.admin.put_group("g")
            await source.metadata.begin_at_ends("g", {TOPIC: {0: 2}}, [(TOPIC, 0)])
        async with client.consumer("g", TOPIC, start=duolog.Start.LATEST) as consumer:
            assert await read(consumer, 2) == numbered(2, 4)


async def test_a_group_that_other_members_had_begin_at_the_beginning_skips_nothing(
    nodes: dict[str, Node], seams: Seams
) -> None:
    await seams.put(*numbered(0, 2))
    await seams.move(B)
    await seams.put(*numbered(2, 4))
    metadata = seams.broker(A).metadata
    async with client_of(nodes[A]) as client:
        await client.admin.put_group("g")
        await asyncio.gather(
            metadata.begin_at_ends("g", {TOPIC: {0: 2}}, [(TOPIC, 0)]),
            metadata.begin("g", {TOPIC: {0: 0}}),
        )
        async with client.consumer("g", TOPIC) as consumer:
            assert await read(consumer, 4) == numbered(0, 4)


async def test_a_queue_goes_through_several_places_and_back(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """One that is left empty is crossed as well."""
    await seams.put(*numbered(0, 2))
    for group in (B, A, B):
        await seams.move(group)
    await seams.put(*numbered(2, 4))
    await seams.move(A)
    await seams.put(*numbered(4, 6))
    async with (
        client_of(nodes[A]) as client,
        client.consumer("g", TOPIC, commit_interval=0.05) as consumer,
    ):
        assert await read(consumer, 6) == numbered(0, 6)
    assert seams.at == Place(A, 2)


async def test_groups_read_a_queue_in_order_while_it_moves_under_its_producer(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """One that keeps up, and one that comes later; by the command, and back again."""

    async def send(producer: duolog.Producer, first: int, end: int) -> None:
        for body in numbered(first, end):
            await producer.send(TOPIC, body, queue_id=0, group=A)

    async with client_of(nodes[A]) as client, client.producer() as producer:
        async with client.consumer("ahead", TOPIC, commit_interval=0.05) as ahead:
            sending = asyncio.ensure_future(send(producer, 0, 60))
            found = await read(ahead, 10)
            there = await seams.broker(A).moves.begin(TOPIC, 0, B)
            assert there.to is not None, there.reason
            back = await seams.broker(B).moves.begin(TOPIC, there.to.queue_id, A)
            assert back.to is not None, back.reason
            found += await read(ahead, 50)
            await sending
            assert found == numbered(0, 60)
        async with client.consumer("behind", TOPIC, commit_interval=0.05) as behind:
            assert await read(behind, 60) == numbered(0, 60)


async def test_a_broadcasting_consumer_reads_all_places_in_order(
    nodes: dict[str, Node], seams: Seams, tmp_path: Path
) -> None:
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    how: dict[str, Any] = {
        "mode": "broadcasting",
        "offsets_file": tmp_path / "offsets",
        "commit_interval": 0.05,
    }
    async with client_of(nodes[A]) as client:
        async with client.consumer("g", TOPIC, **how) as consumer:
            assert await read(consumer, 5) == numbered(0, 5)
        await seams.put(*numbered(5, 6))
        async with client.consumer("g", TOPIC, **how) as consumer:
            assert await read(consumer, 1) == numbered(5, 6)
    assert seams.committed("g", seams.at) == -1


async def test_topics_and_groups_are_told_with_their_guests(
    nodes: dict[str, Node], seams: Seams
) -> None:
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with client_of(nodes[B]) as client:
        await client.admin.put_group("g")
        await client.admin.commit("g", {(TOPIC, A, 0): 1})
        (topic,) = (one for one in await client.admin.topics([TOPIC]) if one.group == B)
        assert (topic.queues, [one.queue_id for one in topic.stats]) == (1, [0, 1])
        with pytest.raises(duolog.BadRequest, match="has not come to T/1 yet"):
            await client.admin.commit("g", {(TOPIC, B, 1): 4})
        await client.admin.commit("g", {(TOPIC, A, 0): 3})
        await until(lambda: seams.may_read("g", seams.at))
        await client.admin.commit("g", {(TOPIC, B, 1): 4})
        found = await client.admin.group("g")
        lags = {(row.replica_group, row.queue_id): row.lag_messages for row in found.queues}
        assert lags == {(A, 0): 0, (B, 0): 0, (B, 1): 1}
        assert (await client.pull(TOPIC, 1, 3, group=B)).body_list() == numbered(3, 5)


async def test_a_group_that_comes_to_a_guest_first_begins_in_other_queues_as_it_asks(
    nodes: dict[str, Node], seams: Seams
) -> None:
    async with client_of(nodes[A]) as client:
        async with client.producer() as producer:
            await producer.send(TOPIC, b"old", queue_id=0, group=B)
        await seams.move(B)
        target = seams.broker().metadata
        await target.ensure_group("g")
        place = {"group": "g", "topic": TOPIC, "queue": seams.at.queue_id}
        await target.change({"op": "crossed", **place, "offset": 0, "resets": 0})
        async with client.consumer("g", TOPIC, start=duolog.Start.LATEST) as consumer:
            await seams.put(b"new")
            assert await read(consumer, 1) == [b"new"]
        assert seams.committed("g", Place(B, 0)) == 1


# -- resets ------------------------------------------------------------------------------------


async def test_a_reset_to_before_the_seam_closes_what_is_behind_it(
    nodes: dict[str, Node], seams: Seams
) -> None:
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.move(A)
    await seams.put(*numbered(3, 5))
    async with client_of(nodes[A]) as client:
        async with client.consumer("g", TOPIC, commit_interval=0.05) as consumer:
            assert await read(consumer, 5) == numbered(0, 5)
        await client.admin.reset_group("g", TOPIC, duolog.Start.EARLIEST)
        assert seams.committed("g", seams.name) == 0
        assert [seams.may_read("g", one) for one in (Place(B, 1), seams.at)] == [False, False]
        async with client.consumer("g", TOPIC, commit_interval=0.05) as consumer:
            assert await read(consumer, 5) == numbered(0, 5)
        await client.admin.reset_group("g", TOPIC, duolog.Start.LATEST)
        async with client.consumer("g", TOPIC) as consumer:
            await seams.put(*numbered(5, 6))
            assert await read(consumer, 1) == numbered(5, 6)


async def test_a_reset_waits_for_the_place_that_it_closes(
    nodes: dict[str, Node], seams: Seams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noted: the group reads nothing meanwhile, and the next master goes on with it."""
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    async with client_of(nodes[A]) as client:
        async with client.consumer("g", TOPIC) as consumer:
            assert await read(consumer, 3) == numbered(0, 3)
        await until(lambda: seams.may_read("g", seams.at))
        source = seams.broker(A)
        with monkeypatch.context() as unreachable:
            unreachable.setattr(source.other_groups, "_master_of", lambda group: "")
            with pytest.raises(duolog.Unavailable, match="no master"):
                await source.crossings.reset("g", TOPIC, {0: 1})
            assert not seams.may_read("g", seams.name)
            assert seams.committed("g", seams.name) == 3
        source.crossings.role_changed()
        await until(lambda: seams.committed("g", seams.name) == 1)
        assert seams.may_read("g", seams.name)
        assert not seams.may_read("g", seams.at)


# -- masters -----------------------------------------------------------------------------------


async def test_a_crossing_is_told_until_it_is_answered(
    nodes: dict[str, Node], seams: Seams, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    source = seams.broker(A)
    with monkeypatch.context() as unreachable:
        unreachable.setattr(source.other_groups, "_master_of", lambda group: "")
        async with client_of(nodes[A]) as client:
            await client.admin.put_group("g")
            await client.admin.commit("g", {(TOPIC, A, 0): 3})
        await until(lambda: source.crossings.status() == {"group_crossings_pending": 1})
        assert not seams.may_read("g", seams.at)
    await until(lambda: seams.may_read("g", seams.at))
    await until(lambda: not source.crossings.status())
    assert source.validate() == ""


async def test_a_new_group_of_a_deleted_ones_name_has_crossed_nothing(
    nodes: dict[str, Node], seams: Seams
) -> None:
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with client_of(nodes[A]) as client:
        for _ in range(2):
            async with client.consumer("g", TOPIC, commit_interval=0.05) as consumer:
                assert await read(consumer, 5) == numbered(0, 5)
            await client.admin.delete_group("g")
            assert not seams.may_read("g", seams.at)


# -- RocketMQ's clients ------------------------------------------------------------------------


async def beats(remoting: Remoting, model: str = "CLUSTERING", subscribes: bool = True) -> None:
    """Heartbeat of a push consumer that begins at the end, as is RocketMQ's default; or of a
    client that chooses its queues by itself.
    """
    row = {"topic": TOPIC, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    data = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY" if subscribes else "CONSUME_ACTIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [row] if subscribes else [],
    }
    body = json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode()
    assert (await remoting.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS


async def offset_of(remoting: Remoting, queue_id: int) -> int:
    fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": queue_id}
    return int((await remoting.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)).fields["offset"])


async def commit(remoting: Remoting, queue_id: int, offset: int) -> None:
    fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": queue_id, "commitOffset": offset}
    answer = await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == ResponseCode.SUCCESS


async def test_a_client_of_rocketmq_waits_before_a_closed_guest(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """It loses no position there, and commits none."""
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with connected(nodes[A]) as before, connected(nodes[B]) as behind:
        for remoting in (before, behind):
            await beats(remoting)
        route = await behind.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        (data,) = json.loads(route.body)["queueDatas"]
        assert (data["readQueueNums"], data["writeQueueNums"]) == (2, 1)
        assert await offset_of(behind, 1) == 3, "where it begins"
        at_once = await behind.pull("g", TOPIC, 3, queueId=1)
        assert (at_once.code, at_once.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_NOT_FOUND,
            "3",
        )
        await commit(behind, 1, 5)
        assert await offset_of(behind, 1) == 3
        waiting = behind.pull("g", TOPIC, 3, wait_ms=60_000, queueId=1)
        assert await offset_of(before, 0) == 0
        found = await before.pull("g", TOPIC, 0)
        assert [one.body for one in records(found.body)] == numbered(0, 3)
        assert not waiting.done()
        await commit(before, 0, 3)
        found = await waiting
        assert [one.body for one in records(found.body)] == numbered(3, 5)
        await commit(behind, 1, 5)
        await until(lambda: seams.committed("g", seams.at) == 5)
        assert await offset_of(behind, 1) == 5


async def test_a_broadcasting_client_of_rocketmq_has_no_gate(
    nodes: dict[str, Node], seams: Seams
) -> None:
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with connected(nodes[B]) as remoting:
        await beats(remoting, "BROADCASTING")
        found = await remoting.pull("g", TOPIC, 3, queueId=1)
        assert [one.body for one in records(found.body)] == numbered(3, 5)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_a_client_of_rocketmq_that_chooses_its_queues_has_no_gate(
    nodes: dict[str, Node], seams: Seams, code: RequestCode
) -> None:
    """It may keep its offsets elsewhere, and never commit one: nothing would open the gate."""
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with connected(nodes[B]) as remoting:
        await beats(remoting, subscribes=False)
        found = await remoting.ask(code, pull_fields(3))
        assert [one.body for one in records(found.body)] == numbered(3, 5)


def pull_fields(offset: int) -> dict[str, object]:
    """A pull that brings its subscription, from the guest at B."""
    return {
        "consumerGroup": "g",
        "topic": TOPIC,
        "queueId": 1,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 1,
    }


async def test_a_broadcasting_client_of_rocketmq_is_led_to_the_first_message_of_a_guest(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """From 0, where it begins by CONSUME_FROM_FIRST_OFFSET: of PULL_OFFSET_MOVED it keeps nothing,
    and begins at 0 again.
    """
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    async with connected(nodes[B]) as remoting:
        await beats(remoting, "BROADCASTING")
        for _ in range(2):  # without a message, and with some
            led = await remoting.pull("g", TOPIC, 0, queueId=1)
            assert (led.code, led.fields["nextBeginOffset"]) == (
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                "3",
            )
            await seams.put(*numbered(3, 5))


async def test_a_broadcasting_client_of_rocketmq_skips_nothing_of_a_guest_that_it_learns_of_late(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """By default it begins at the end of a queue of which it has no offset."""
    await seams.put(*numbered(0, 3))
    async with connected(nodes[B]) as early, connected(nodes[B]) as late:
        await beats(early, "BROADCASTING")
        await seams.move(B)
        await until_later(broker_of(nodes[B]).times.wall_ms())
        assert await end_of(early) == 3, "of the guest without a message"
        await seams.put(*numbered(3, 5))
        await until_later(broker_of(nodes[B]).times.wall_ms())
        await beats(late, "BROADCASTING")
        assert [await end_of(early), await end_of(late)] == [3, 5]


async def until_later(than_ms: int) -> None:
    """Wait until the wall clock shows a later millisecond."""
    await until(lambda: time.time() * 1000 > than_ms + 2)


async def end_of(remoting: Remoting) -> int:
    """GET_MAX_OFFSET of the guest at B."""
    answer = await remoting.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 1})
    return int(answer.fields["offset"])


async def test_locks_and_assignments_have_guests(nodes: dict[str, Node], seams: Seams) -> None:
    await seams.move(B)
    async with connected(nodes[B]) as remoting:
        await beats(remoting)
        queue = {"topic": TOPIC, "brokerName": B, "queueId": 1}
        body = json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]}).encode()
        locked = await remoting.ask(RequestCode.LOCK_BATCH_MQ, body=body)
        assert json.loads(locked.body)["lockOKMQSet"] == [queue]

        async def assigned() -> list[int]:
            answer = json.loads((await remoting.assignment("c", "g", TOPIC)).body)
            rows = answer["messageQueueAssignments"]
            return sorted(row["messageQueue"]["queueId"] for row in rows)

        assert await assigned() == [0]
        async with client_of(nodes[A]) as client:
            await client.admin.commit("g", {(TOPIC, A, 0): 0})
        await until(lambda: seams.may_read("g", seams.at))
        assert await assigned() == [0, 1]


async def test_pop_goes_on_behind_the_seam(nodes: dict[str, Node], seams: Seams) -> None:
    """Once all before it is acknowledged."""
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with connected(nodes[A]) as before, connected(nodes[B]) as behind:
        waiting = behind.begin_pop("g", TOPIC, 60_000)
        got = receipts(await before.pop("g", TOPIC), A)
        assert [one.record.body for one in got] == numbered(0, 3)
        for one in got[:2]:
            await before.ack("g", TOPIC, one.extra_info)
        await until(lambda: seams.committed("g", seams.name) == 2)
        assert not waiting.done()
        await before.ack("g", TOPIC, got[2].extra_info)
        got = receipts(await waiting, B)
        assert [one.record.body for one in got] == numbered(3, 5)
        for one in got:
            await behind.ack("g", TOPIC, one.extra_info)
        await until(lambda: seams.committed("g", seams.at) == 5)


async def test_pop_crosses_a_span_that_holds_nothing(nodes: dict[str, Node], seams: Seams) -> None:
    await seams.move(B)
    await seams.put(*numbered(0, 2))
    async with connected(nodes[A]) as before, connected(nodes[B]) as behind:
        waiting = behind.begin_pop("g", TOPIC, 60_000)
        assert receipts(await before.pop("g", TOPIC), A) == []
        got = receipts(await waiting, B)
        assert [one.record.body for one in got] == numbered(0, 2)


async def test_rocketmq_5_reads_guests_and_sends_to_none(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """A group in order is assigned a guest once it may read it."""
    await seams.put(*numbered(0, 3))
    await seams.move(B)
    await seams.put(*numbered(3, 5))
    async with client_of(nodes[A]) as client:
        await client.admin.put_group("g", orderly=True)
    before, behind = Api(nodes[A]), Api(nodes[B])
    route = await before.route(TOPIC)
    permissions = {(one.broker.name, one.id): one.permission for one in route.message_queues}
    both, read_only = definition.Permission.READ_WRITE, definition.Permission.READ
    assert permissions == {(A, 0): both, (B, 0): both, (B, 1): read_only}

    async def assigned() -> list[tuple[str, int]]:
        request = service.QueryAssignmentRequest(topic=resource(TOPIC), group=resource("g"))
        reply = await before.call("QueryAssignment", request)
        queues = [one.message_queue for one in reply.assignments]
        return sorted((one.broker.name, one.id) for one in queues)

    assert await assigned() == [(A, 0), (B, 0)]
    guest = definition.MessageQueue(topic=resource(TOPIC), id=1)
    asked = service.GetOffsetRequest(group=resource("g"), message_queue=guest)
    assert (await behind.call("GetOffset", asked)).offset == 3, "where it will begin"
    assert (await behind.receive("g", queue_id=1)).bodies == []
    received = await before.receive("g", queue_id=0)
    assert received.bodies == numbered(0, 3)
    await before.ack("g", *received.handles)
    await until(lambda: seams.may_read("g", seams.at))
    assert await assigned() == [(A, 0), (B, 0), (B, 1)]
    received = await behind.receive("g", queue_id=1)
    assert received.bodies == numbered(3, 5)
    await behind.ack("g", *received.handles)
    await until(lambda: seams.committed("g", seams.at) == 5)


# -- slaves ------------------------------------------------------------------------------------


async def test_a_slave_keeps_to_the_gate(start_node: StartNode, tmp_path: Path) -> None:
    """By the tables that it copies: a subscription there goes on once its group comes."""
    group = Group(start_node, tmp_path)
    master, slave = await group.start_pair()
    async with group.client(master) as client:
        await client.admin.create_topic(TOPIC, 1)
    metadata = broker_of(master).metadata
    place = Place("elsewhere", 0)
    await metadata.change(guest_record(TOPIC, 1, Guest(place, place, "m")))
    await metadata.change({"op": "open", "topic": TOPIC, "queue": 1, "first": 7, "move": "m"})
    seams = Seams({"here": master}, Place("here", 1))
    await seams.put(*numbered(7, 9))
    await caught_up(master, slave)
    reader = broker_of(slave).reader

    def found(name: str) -> list[bytes]:
        result = reader.read((TOPIC, 1), 7, Selection(EVERYTHING, 32, 1 << 20, name))
        return [body for _, body, _ in result.rows()]

    assert (found("g"), found("")) == ([], numbered(7, 9))
    polled = asyncio.ensure_future(
        poll(
            reader,
            (TOPIC, 1),
            7,
            Selection(EVERYTHING, 32, 1 << 20, "g"),
            asyncio.get_running_loop().time() + WAIT_SECONDS,
        )
    )
    await asyncio.sleep(0)
    crossed = {"op": "crossed", "topic": TOPIC, "queue": 1, "group": "g", "offset": 7, "resets": 0}
    await metadata.change(crossed)
    assert (await polled)[1].count == 2
    assert found("h") == []
