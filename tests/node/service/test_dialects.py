"""One broker behind each protocol: the same calls leave the same counters, whoever decodes them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import definition, service
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.demo.ports import free_endpoint
from duolog_server.node.broker import Broker
from duolog_server.node.identity.quotas.quota import Kind, Limit
from duolog_server.serve.server import Node
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.status import PutMessageStatus
from tests.compat.grpc.api import Api, message, resource
from tests.compat.remoting.client import Remoting, connected, records
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

BODY = b"x" * 10
DELAY_SECONDS = 3600


@dataclass
class Dialect:
    """A client of one protocol. send: topic, seconds of delay. pull: group; messages of queue 0.

    commit: of the group `known` in T; topic, queue, offset; whether that was taken.
    """

    broker: Broker
    send: Callable[[str, int], Awaitable[object]]
    pull: Callable[[str], Awaitable[int]]
    commit: Callable[[str, int, int], Awaitable[bool]]
    pop: Callable[[str], Awaitable[int]] | None = None


def native(broker: Broker, client: duolog.Client) -> Dialect:
    async def send(topic: str, delay: int) -> None:
        due = broker.times.wall_ms() + 1000 * delay if delay else 0
        await append(client, append_request([BODY], topic=topic, deliver_time=due))

    async def pull(group: str) -> int:
        return (await client.pull("T", 0, 0)).count

    async def commit(topic: str, queue: int, offset: int) -> bool:
        try:
            await client.admin.commit("known", {(topic, broker.group, queue): offset})
        except duolog.DuologError:
            return False
        return True

    return Dialect(broker, send, pull, commit)


def rocketmq(broker: Broker, api: Api) -> Dialect:
    async def send(topic: str, delay: int) -> None:
        made = message(BODY, topic)
        if delay:
            due = broker.times.wall_ms() + 1000 * delay
            made.system_properties.delivery_timestamp.FromMilliseconds(due)
        await api.send(made)

    async def pull(group: str) -> int:
        request = service.PullMessageRequest(
            group=resource(group),
            message_queue=definition.MessageQueue(topic=resource("T"), id=0),
            batch_size=32,
            filter_expression=definition.FilterExpression(expression="*"),
        )
        call = api.stub.PullMessage(request, timeout=10, metadata=api.metadata)
        return sum([reply.WhichOneof("content") == "message" async for reply in call])

    async def commit(topic: str, queue: int, offset: int) -> bool:
        where = definition.MessageQueue(topic=resource(topic), id=queue)
        update = service.UpdateOffsetRequest(
            group=resource("known"), message_queue=where, offset=offset
        )
        return bool((await api.call("UpdateOffset", update)).status.code == 20000)

    async def pop(group: str) -> int:
        return len((await api.receive(group)).messages)

    return Dialect(broker, send, pull, commit, pop)


def remoting(broker: Broker, client: Remoting) -> Dialect:
    async def send(topic: str, delay: int) -> None:
        await client.send(topic, BODY, f"TIMER_DELAY_SEC\x01{delay}" if delay else "")

    async def pull(group: str) -> int:
        await client.beat("member", group, "T")
        return len(records((await client.pull(group, "T", 0)).body))

    async def commit(topic: str, queue: int, offset: int) -> bool:
        place = {"consumerGroup": "known", "topic": topic, "queueId": queue}
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        return (await client.ask(code, {**place, "commitOffset": offset})).code == 0

    return Dialect(broker, send, pull, commit)


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    limits = {"auto_create_topic": False}
    made = await start_node(remoting={"listen": free_endpoint()}, limits=limits)
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("ReadOnly", 1, 4)
        await client.admin.put_group("known")
    return made


@pytest.fixture(params=["native", "rocketmq", "remoting"])
async def dialect(node: Node, request: pytest.FixtureRequest) -> AsyncIterator[Dialect]:
    broker, api = broker_of(node), Api(node)
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        connected(node) as one,
    ):
        made = {
            "native": lambda: native(broker, client),
            "rocketmq": lambda: rocketmq(broker, api),
            "remoting": lambda: remoting(broker, one),
        }
        yield made[request.param]()
    await api.close()


async def test_sends_are_counted_by_their_kind(dialect: Dialect) -> None:
    broker = dialect.broker
    for _ in range(3):
        await dialect.send("T", 0)
    await dialect.send("T", DELAY_SECONDS)
    traffic, counters = broker.core.traffic, broker.log.counters
    counted = {
        key: (flow.messages, flow.body_bytes) for key, flow in traffic.received.table.items()
    }
    assert counted == {("T", "normal"): (3, 30), ("T", "delay"): (1, 10)}
    assert traffic.timed.table["T"].messages == 1
    assert (counters.messages_in, counters.bytes_in) == (4, 40)
    assert not traffic.failures.table


async def test_refused_sends_are_counted_by_their_reason(dialect: Dialect) -> None:
    failures = dialect.broker.core.traffic.failures
    await dialect.send("ReadOnly", 0)
    await dialect.send("Unknown", 0)
    await dialect.send("T", 400 * 86_400)
    assert set(failures.table) == {"NO_PERMISSION", "TOPIC_NOT_EXIST", "MESSAGE_ILLEGAL"}


async def test_a_send_that_the_store_refuses_is_counted_once_however_often_it_is_tried(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, api = broker_of(node), Api(node)
    failures, write = broker.core.traffic.failures.table, broker.log.write
    refusals = [PutMessageStatus.SERVICE_NOT_AVAILABLE] * 3

    def refusing(batch: PutBatch) -> PutResult:
        return PutResult(refusals.pop(), "") if refusals else write(batch)

    monkeypatch.setattr(broker.log, "write", refusing)
    assert (await api.send(message(BODY, "T"))).status.code == 20000
    assert not refusals
    assert not failures
    refusals += [PutMessageStatus.MESSAGE_ILLEGAL, *[PutMessageStatus.SERVICE_NOT_AVAILABLE] * 2]
    await api.send(message(BODY, "T"))
    assert {status: flow.messages for status, flow in failures.items()} == {"MESSAGE_ILLEGAL": 1}
    await api.close()


async def test_sends_over_a_quota_are_counted_and_not_stored(node: Node, dialect: Dialect) -> None:
    broker = dialect.broker
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_quota("client:127.0.0.1", messages_in=1)
    for _ in range(4):
        await dialect.send("T", 0)
    over = 4 - broker.store.next_offset("T", 0)
    assert 0 < over < 4
    assert broker.core.throttle.refused[Kind.CLIENT, Limit.MESSAGES_IN] == over
    assert broker.core.traffic.failures.table["THROTTLED"].messages == over


async def test_reads_are_counted_and_invented_groups_are_not_kept(dialect: Dialect) -> None:
    for _ in range(3):
        await dialect.send("T", 0)
    traffic = dialect.broker.core.traffic
    assert await dialect.pull("invented") == 3
    assert (traffic.messages_out, traffic.bytes_out) == (3, 30)
    kept = {group for _, group, _ in traffic.delivered.table}
    assert kept <= {"", *dialect.broker.metadata.tables.groups}
    if dialect.pop is not None:
        assert await dialect.pop("known") == 3
        assert (traffic.messages_out, traffic.bytes_out) == (6, 60)


async def test_offsets_are_committed_and_what_is_no_place_is_refused(dialect: Dialect) -> None:
    for topic, queue, offset in (("Unknown", 0, 1), ("T", 1, 1), ("T", -1, 1), ("T", 0, -1)):
        assert not await dialect.commit(topic, queue, offset), (topic, queue, offset)
    tables = dialect.broker.metadata.tables
    assert tables.committed("known", "T", 0) == -1
    assert await dialect.commit("T", 0, 7)
    await until(lambda: tables.committed("known", "T", 0) == 7)
