"""Queues that moved: what is put to them goes on to the group that they moved to."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.node.broker import Broker
from duolog_server.node.moving import passing
from duolog_server.serve.server import Node
from duolog_server.store.moves import Place
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import parse_message_id
from tests.compat.grpc.api import Api, message
from tests.compat.remoting.client import LETTERS, connected
from tests.compat.remoting.requests import write_batch
from tests.known import known
from tests.node.api.test_messages import append, append_request
from tests.node.moving.seams import A, B, begin, reserve
from tests.node.replicas import WAIT_SECONDS, broker_of, start_groups
from tests.node.sealing import sealed
from tests.nodefixtures import StartNode
from tests.support import read_all
from tests.until import until

QUEUES = 2


@pytest.fixture
async def nodes(start_node: StartNode, tmp_path: Path) -> dict[str, Node]:
    made = await start_groups(start_node, tmp_path, remoting={"listen": "127.0.0.1:0"})
    async with duolog.Client(f"127.0.0.1:{made[A].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", QUEUES)
    return made


async def seal(source: Broker, to: Place, queue_id: int = 0, move: str = "m") -> int:
    return await sealed(source.metadata, "T", queue_id, to, move)


async def move(source: Broker, target: Broker, queue_id: int = 0, name: str = "m") -> Place:
    to = await reserve(target, Place(source.group, queue_id), name)
    source.passing.hold("T", queue_id)
    await begin(target, to, await seal(source, to, queue_id, name), name)
    source.passing.release("T", queue_id, to)
    return to


def bodies(broker: Broker, queue_id: int) -> list[bytes]:
    return read_all(broker.store, "T", queue_id)


async def test_an_sdks_messages_are_found_where_the_queue_continues(
    nodes: dict[str, Node],
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        first = await producer.send("T", b"0", queue_id=0, group=A)
        to = await move(source, target)
        assert to == Place(B, QUEUES)
        receipt = await producer.send("T", b"1", queue_id=0, group=A)
        assert (receipt.group, receipt.queue_id, receipt.queue_offset) == (A, 0, 1)
        assert receipt.queue_offset == first.queue_offset + 1
        batch = await producer.send_batch("T", [b"2", b"3"], queue_id=0, group=A)
        assert [(one.queue_offset, one.count) for one in batch.parts] == [(2, 2)]
        sent = [producer.send("T", b"%d" % k, queue_id=0, group=A) for k in range(4, 200)]
        receipts = await asyncio.gather(*sent)
        assert [one.queue_offset for one in receipts] == list(range(4, 200))
    assert bodies(source, 0) == [b"0"]
    assert bodies(target, to.queue_id) == [b"%d" % k for k in range(1, 200)]
    assert target.log.counters.messages_in >= 199
    assert source.validate() == target.validate() == ""


async def test_an_sdk_sends_to_where_the_queue_lies_once_it_was_told(
    nodes: dict[str, Node],
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with (
        duolog.Client(f"127.0.0.1:{nodes[B].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"0", queue_id=0, group=A)
        to = await move(source, target)
        passed_on = await producer.send("T", b"1", queue_id=0, group=A)
        await nodes[A].stop()
        straight = await producer.send("T", b"2", queue_id=0, group=A)
        batch = await producer.send_batch("T", [b"3", b"4"], queue_id=0, group=A)
    for told in (passed_on, straight, batch.parts[0]):
        assert (told.group, told.queue_id, Place(*told.place)) == (A, 0, to)
    assert (straight.queue_offset, batch.parts[0].queue_offset) == (2, 3)
    assert bodies(target, to.queue_id) == [b"1", b"2", b"3", b"4"]


async def test_an_sdk_learns_of_a_place_from_the_list_of_topics(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await move(source, target)
    monkeypatch.setattr(source.passing, "pass_on", None)  # nothing is
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        receipts = [await producer.send("T", b"%d" % k) for k in range(4)]
        half = await client.transactions("g").prepare("T", b"half", key="k")
    names = [(A, 0), (A, 1), (B, 0), (B, 1)]
    assert [(one.group, one.queue_id) for one in receipts] == names
    assert [one.place for one in receipts] == [to, *names[1:]]
    assert half.replica_group in (A, B)


async def test_a_queue_that_moved_on_says_so_to_who_asks_the_place_before(
    nodes: dict[str, Node],
) -> None:
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    first = await move(a, b)
    last = await reserve(a, first, "m2", Place(A, 0))
    await begin(a, last, await seal(b, last, first.queue_id, "m2"), "m2")
    b.passing.release("T", first.queue_id, last)
    async with duolog.Client(f"127.0.0.1:{nodes[B].port}") as client:
        asked = wire.ListTopicsRequest(topics=["T"])
        seed = client._router.seed
        listed = await seed.call(
            lambda left: seed.admin.ListTopics(asked, timeout=left), WAIT_SECONDS
        )
    (topic,) = listed.topics
    assert [(one.queue_id, one.sealed) for one in topic.guests] == [(first.queue_id, True)]
    for place in (first, Place(A, 0)):
        async with duolog.Client(f"127.0.0.1:{nodes[place.group].port}") as client:
            reply = await append(client, append_request([b"x"], queue_id=place.queue_id))
        assert (reply.stored_at.group, reply.stored_at.queue_id) == last
    assert bodies(a, last.queue_id) == [b"x"] * 2


async def test_messages_of_rocketmqs_clients_go_on_as_well(nodes: dict[str, Node]) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await move(source, target)
    async with connected(nodes[A]) as client:
        one = await client.send("T", b"0", "UNIQ_KEY\x01k0")
        assert (one.code, one.fields["queueId"], one.fields["queueOffset"]) == (0, "0", "0")
        record = known(target.store.record_at("T", to.queue_id, QueueOffset(0)))
        host, offset = parse_message_id(one.fields["msgId"])
        assert (host.port, offset) == (known(nodes[B].remoting).port, record.physical_offset)
        together = await asyncio.gather(
            *(client.begin_send("T", b"%d" % k, f"UNIQ_KEY\x01k{k}", k % 2) for k in range(1, 41))
        )
        assert [(a.code, int(a.fields["queueId"])) for a in together] == [
            (0, k % 2) for k in range(1, 41)
        ]
    moved = [b"%d" % k for k in range(0, 41, 2)]
    assert bodies(target, to.queue_id) == moved
    assert bodies(source, 0) == []
    assert bodies(source, 1) == [b"%d" % k for k in range(1, 41, 2)]


async def test_a_batch_of_rocketmqs_has_an_id_for_each_message(nodes: dict[str, Node]) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await move(source, target)
    fields = {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 0, "sysFlag": 0, "bornTimestamp": 9, "flag": 0, "properties": "",
        "reconsumeTimes": 0, "batch": "true",
    }  # fmt: skip
    short = {LETTERS[name]: value for name, value in fields.items()}
    body = write_batch([(k, b"%d" % k, b"UNIQ_KEY\x01k%d" % k) for k in range(3)])
    async with connected(nodes[A]) as client:
        answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, short, body)
    assert (answer.code, answer.fields["queueOffset"]) == (0, "0")
    records = [known(target.store.record_at("T", to.queue_id, QueueOffset(k))) for k in range(3)]
    assert [(record.body, record.flag) for record in records] == [(b"%d" % k, k) for k in range(3)]
    ids = [parse_message_id(one)[1] for one in answer.fields["msgId"].split(",")]
    assert ids == [record.physical_offset for record in records]


async def test_a_message_of_rocketmqs_api_is_stored_once(nodes: dict[str, Node]) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    places = [await move(source, target, queue_id, f"m{queue_id}") for queue_id in range(QUEUES)]
    api = Api(nodes[A])
    sent = [message(b"%d" % k, message_group="g") for k in range(5)]
    for _ in range(2):
        for k, one in enumerate(sent):
            reply = await api.send(one)
            assert (reply.status.code, reply.entries[0].offset) == (Code.OK, k)
    await api.close()
    found = [bodies(target, to.queue_id) for to in places]
    assert sorted(found) == [[], [b"%d" % k for k in range(5)]]
    assert bodies(source, 0) == bodies(source, 1) == []


async def restarted(start_node: StartNode, root: Path, old: Node) -> Node:
    """The only node of a group, at the same addresses, once it leads again."""
    await old.stop()
    config = old.config
    made = await start_node(
        root / config.node.group,
        f"127.0.0.1:{old.port}",
        ha={"listen": free_endpoint(), "in_sync_replicas": 1},
        name=config.node.name,
        registry=old._given_registry,
        group=config.node.group,
        broker_role="AUTO",
    )
    await until(lambda: not broker_of(made).admission.refuses())
    await until(lambda: not broker_of(made).replication.may_be_behind())
    return made


async def test_a_restart_of_the_target_loses_doubles_and_reorders_nothing(
    nodes: dict[str, Node], start_node: StartNode, tmp_path: Path
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await move(source, target)
    places = [("T", key) for key in ("k", "l", "m")]
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):

        async def send_all(key: str) -> None:
            for k in range(60):
                body = f"{key}{k}".encode()
                await producer.send("T", body, queue_id=0, group=A, key=key, timeout=WAIT_SECONDS)

        sending = [asyncio.ensure_future(send_all(key)) for _, key in places]
        await until(lambda: len(bodies(target, to.queue_id)) > 10)
        target = broker_of(await restarted(start_node, tmp_path, nodes[B]))
        await asyncio.gather(*sending)
    found = bodies(target, to.queue_id)
    for _, key in places:
        mine = [body for body in found if body.startswith(key.encode())]
        assert mine == [f"{key}{k}".encode() for k in range(60)]
    assert len(found) == 180


async def test_a_message_that_is_sent_again_to_the_next_master_of_the_source_is_stored_once(
    nodes: dict[str, Node], start_node: StartNode, tmp_path: Path
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    places = [await move(source, target, queue_id, f"m{queue_id}") for queue_id in range(QUEUES)]
    api, one = Api(nodes[A]), message(b"x", message_group="g")
    first = await api.send(one)
    await api.close()
    nodes[A] = await restarted(start_node, tmp_path, nodes[A])
    source, api = broker_of(nodes[A]), Api(nodes[A])
    sending = asyncio.ensure_future(api.send(one))
    await until(lambda: source.passing.queues)
    for queue_id, to in enumerate(places):
        source.passing.release("T", queue_id, to)
    again = await sending
    assert (again.status.code, again.entries[0].offset) == (Code.OK, first.entries[0].offset)
    await api.close()
    assert sorted(bodies(target, to.queue_id) for to in places) == [[], [b"x"]]


@pytest.fixture
async def client(nodes: dict[str, Node]) -> AsyncIterator[duolog.Client]:
    async with duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as made:
        yield made


def request(*messages: bytes, sequence: int, **how: Any) -> wire.AppendRequest:
    return append_request(list(messages), producer_id=b"0123456789", sequence=sequence, **how)


async def test_a_reply_names_no_position_of_another_log(
    nodes: dict[str, Node], client: duolog.Client
) -> None:
    """A client would take it for what is confirmed in this one."""
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    stored = await append(client, request(b"0", sequence=0))
    assert stored.count == 1
    to = await move(source, target)
    partly = await append(client, request(b"0", b"1", sequence=0, again=True))
    assert (partly.status, partly.count, partly.epoch_nonce) == (wire.PUT_OK, 0, 0)
    assert [(run.count, run.queue_offset) for run in partly.duplicates] == [(1, 0)]
    assert partly.queue_offset == 1
    host = target.store.store_host
    assert partly.store_host == f"{host.address}:{host.port}"
    again = await append(client, request(b"0", b"1", sequence=0, again=True))
    assert [(run.count, run.queue_id, run.queue_offset) for run in again.duplicates] == [
        (1, 0, 0),
        (1, 0, 1),
    ]
    assert bodies(target, to.queue_id) == [b"1"]


async def test_an_expected_offset_is_that_of_the_queue(
    nodes: dict[str, Node], client: duolog.Client
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with client.producer() as producer:
        await producer.send("T", b"0", queue_id=0, group=A)
        to = await move(source, target)
        with pytest.raises(duolog.OffsetMismatch) as mismatch:
            await producer.send_batch("T", [b"x"], queue_id=0, group=A, expect_offset=0)
        assert mismatch.value.next_offset == 1
        batch = await producer.send_batch("T", [b"1"], queue_id=0, group=A, expect_offset=1)
        assert batch.parts[0].queue_offset == 1
    assert bodies(target, to.queue_id) == [b"1"]


@pytest.mark.parametrize("stays", [False, True])
async def test_what_came_before_the_end_of_a_move_is_stored_in_its_order(
    nodes: dict[str, Node],
    client: duolog.Client,
    stays: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passing, "PUT_SECONDS", WAIT_SECONDS)
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await reserve(target, Place(A, 0))
    async with connected(nodes[A]) as remoting:
        await append(client, request(b"0", sequence=0))
        source.passing.hold("T", 0)
        sends: list[asyncio.Future[Any]] = []
        for k in range(1, 7):
            if k % 2:
                sends.append(remoting.begin_send("T", b"%d" % k))
            else:
                sends.append(
                    asyncio.ensure_future(append(client, request(b"%d" % k, sequence=k, id=k)))
                )
            await until(lambda k=k: source.passing.status()["passing_on"] == k)  # type: ignore[misc]
        before = source.log.counters.messages_in
        if stays:
            source.passing.release("T", 0, None)
        else:
            await begin(target, to, await seal(source, to))
            source.passing.release("T", 0, to)
        await asyncio.gather(*sends)
    if stays:
        await until(lambda: bodies(source, 0) == [b"%d" % k for k in range(7)])
        assert source.log.counters.messages_in == before + 6
    else:
        assert bodies(source, 0) == [b"0"]
        await until(lambda: bodies(target, to.queue_id) == [b"%d" % k for k in range(1, 7)])
        assert source.log.counters.messages_in == before


async def test_a_queue_that_comes_back_is_reached_through_all_its_places(
    nodes: dict[str, Node], client: duolog.Client
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with client.producer() as producer:
        await producer.send("T", b"0", queue_id=0, group=A)
        to = await move(source, target)
        await producer.send("T", b"1", queue_id=0, group=A)
        back = await move(target, source, to.queue_id, "n")
        receipts = [
            await producer.send("T", b"%d" % k, queue_id=0, group=A, key="k") for k in range(2, 9)
        ]
    assert [receipt.queue_offset for receipt in receipts] == list(range(2, 9))
    assert bodies(source, back.queue_id) == [b"%d" % k for k in range(2, 9)]
    assert (bodies(source, 0), bodies(target, to.queue_id)) == ([b"0"], [b"1"])


async def test_appends_over_grpc_are_passed_on_as_well(
    start_node: StartNode, tmp_path: Path
) -> None:
    nodes = await start_groups(start_node, tmp_path, frames_listen="")
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        await client.admin.create_topic("T", QUEUES)
        to = await move(source, target)
        sent = [producer.send("T", b"%d" % k, queue_id=0, group=A) for k in range(50)]
        receipts = await asyncio.gather(*sent)
        assert [one.queue_offset for one in receipts] == list(range(50))
    assert bodies(target, to.queue_id) == [b"%d" % k for k in range(50)]


async def test_a_oneway_message_is_passed_on(nodes: dict[str, Node]) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await move(source, target)
    async with connected(nodes[A]) as remoting:
        fields = {
            "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 9,
            "flag": 0, "properties": "", "reconsumeTimes": 0,
        }  # fmt: skip
        short = {LETTERS[name]: value for name, value in fields.items()}
        remoting.oneway(RequestCode.SEND_MESSAGE_V2, short, b"x")
        await until(lambda: bodies(target, to.queue_id) == [b"x"])


@pytest.mark.parametrize("first", [1, 0])
async def test_a_queue_is_reached_past_a_group_that_has_left(
    nodes: dict[str, Node], client: duolog.Client, first: int
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    between = Place("gone", 3)
    await append(client, request(b"0", sequence=0))
    source.passing.hold("T", 0)
    assert await seal(source, between) == 1
    to = await reserve(target, between, name=Place(A, 0))
    await begin(target, to, first)
    source.passing.release("T", 0, to)
    sending = asyncio.ensure_future(append(client, request(b"1", sequence=1)))
    if first:
        reply = await sending
        assert (reply.queue_offset, Place(reply.stored_at.group, reply.stored_at.queue_id)) == (
            1,
            to,
        )
        assert bodies(target, to.queue_id) == [b"1"]
    else:  # it lies before this one: the row that names it is old
        await until(lambda: source.passing.queues["T", 0].later is None)
        assert bodies(target, to.queue_id) == []
        sending.cancel()
