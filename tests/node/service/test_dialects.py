"""One broker behind each protocol: an operation asks for the same rights, is charged, counted,
traced and audited alike, whoever decodes it. One that goes past the service fails here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.node.audit.entry import Decision, Entry
from duolog_server.node.broker import Broker
from duolog_server.node.identity.quotas.quota import Kind, Limit
from duolog_server.node.pop.subscriber import Line
from duolog_server.node.traces.recorder import Sighting
from duolog_server.serve.server import Node
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.status import PutMessageStatus
from tests.compat.grpc.api import Api, message
from tests.compat.grpc.users import Users, with_users
from tests.known import known
from tests.node.api.test_quotas import stop_the_clock
from tests.node.replicas import broker_of
from tests.node.service.dialects import BODY, DIALECTS, GROUP, Dialect, client_of, dialect_of
from tests.nodefixtures import StartNode
from tests.until import until

DELAY_SECONDS = 3600
USER, HERE = "operator", "127.0.0.1"


async def filled(node: Node, quota: int = 0, user: str = "") -> Node:
    """With two topics and a group. quota: bytes a second that T takes and gives."""
    async with client_of(node, user) as client:
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("ReadOnly", 1, 4)
        await client.admin.put_group(GROUP)
        if quota:
            await client.admin.put_quota("Topic:T", bytes_in=quota, bytes_out=quota)
    return node


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    limits = {"auto_create_topic": False}
    return await filled(await start_node(remoting={"listen": free_endpoint()}, limits=limits))


@pytest.fixture(params=DIALECTS)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DUOLOG_TRANSPORT", "frames" if request.param == "frames" else "grpc")
    return str(request.param)


@pytest.fixture
async def broker(node: Node) -> Broker:
    return broker_of(node)


@pytest.fixture
async def dialect(node: Node, protocol: str) -> AsyncIterator[Dialect]:
    async with dialect_of(node, protocol) as made:
        yield made


# -- the matrix ------------------------------------------------------------------------------------


@dataclass
class Footprint:
    """What an operation leaves behind in a node.

    Attributes:
        put, out: messages and bytes of bodies that came in and went out.
        received, delivered: the same, by the keys of the metrics.
        charged: to quotas, and asked of them: by whom, the topic and the number of messages.
        traced: what was seen of messages that carry a context: what, topic, group, number.
        noted: in the audit log.
    """

    put: tuple[int, int] = (0, 0)
    out: tuple[int, int] = (0, 0)
    received: dict[Any, int] = field(default_factory=dict)
    delivered: dict[Any, int] = field(default_factory=dict)
    charged: list[tuple[str, str, str, int]] = field(default_factory=list)
    traced: list[tuple[str, str, str, int]] = field(default_factory=list)
    noted: list[tuple[str, str, str, Decision]] = field(default_factory=list)


class Watch:
    """Takes the footprints of operations."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker = broker
        self._charged: list[tuple[str, str, str, int]] = []
        self.entries: list[Entry] = []
        self._seen: list[Sighting] = []
        throttle = broker.core.throttle
        monkeypatch.setattr(known(broker.core.traces), "_note", self._seen.append)
        monkeypatch.setattr(broker.audit, "note", self.entries.append)
        for name in ("put", "sent"):
            monkeypatch.setattr(throttle, name, self._charging(name, getattr(throttle, name)))
        monkeypatch.setattr(throttle, "read", self._asking(throttle.read))

    def _asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(who: Any, topic: str, group: str = "", *, again: bool = False) -> Any:
            one = ("asked", who.user, topic, 0)
            if one not in self._charged:  # a subscription asks before each batch
                self._charged.append(one)
            return ask(who, topic, group, again=again)

        return asked

    def _charging(self, name: str, charge: Callable[..., Any]) -> Callable[..., Any]:
        def charged(who: Any, topic: str, size: int, count: int) -> Any:
            assert size > count * len(BODY)
            if topic == "T":
                assert who.address == HERE
                self._charged.append((name, who.user, topic, count))
            return charge(who, topic, size, count)

        return charged

    async def until_noted(self, entries: int) -> None:
        """A call may be answered before its end is noted."""
        await until(lambda: len(self.entries) >= entries)

    def take(self) -> Footprint:
        """Since the last one."""
        traffic, counters = self._broker.core.traffic, self._broker.log.counters
        found = Footprint(
            (counters.messages_in, counters.bytes_in),
            (traffic.messages_out, traffic.bytes_out),
            {key: flow.messages for key, flow in traffic.received.table.items()},
            {key: flow.messages for key, flow in traffic.delivered.table.items()},
            [*self._charged],
            [(one.what, one.topic, one.group, len(one.queue_offsets)) for one in self._seen],
            [(one.user, one.source, one.resource, one.decision) for one in self.entries],
        )
        counters.messages_in = counters.bytes_in = 0
        traffic.messages_out = traffic.bytes_out = 0
        for table in (traffic.received.table, traffic.delivered.table):
            table.clear()
        for noted in (self._charged, self._seen, self.entries):
            noted.clear()
        return found


@dataclass(frozen=True)
class Operation:
    """An operation, and what it is to leave behind.

    Attributes:
        do: executes it, with what `prepare` returned.
        needs: rights, each of which it needs.
        about: the resource in the entry of the audit log if it is denied.
        native: the same, of the native API, whose requests name a group of producers.
        hidden: by protocols that answer as if it did not exist what the caller has no right to.
    """

    do: Callable[[Any, Any], Awaitable[Any]]
    needs: tuple[str, ...]
    leaves: Footprint
    about: str = "Topic:T"
    native: tuple[tuple[str, ...], str] | None = None
    prepare: Callable[[Any], Awaitable[Any]] | None = None
    hidden: tuple[str, ...] = ()


def stored(kind: str, count: int = 1, place: str = "T") -> Footprint:
    return Footprint(
        put=(count, count * len(BODY)),
        received={("T", kind): count},
        charged=[("put", USER, "T", count)],
        traced=[("store", place, "", count)],
    )


READ = Footprint(
    out=(1, len(BODY)),
    delivered={("T", GROUP, False): 1},
    charged=[("asked", USER, "T", 0), ("sent", USER, "T", 1)],
    traced=[("deliver", "T", GROUP, 1)],
)


async def received(one: Any) -> Any:
    """A receipt handle of a new message."""
    await one.send()
    return await one.receive()


PUB, SUB, MEMBER = "Pub Topic:T", "Sub Topic:T", f"Sub Group:{GROUP}"
PRODUCER = "Pub Group:p"
OPERATIONS = {  # in this order: the topic has one message when it is read
    "pull": Operation(lambda one, _: one.pull(), (SUB, MEMBER), READ),
    "receive": Operation(lambda one, _: one.receive(), (SUB, MEMBER), READ),
    "send": Operation(lambda one, _: one.send(), (PUB,), stored("normal")),
    "batch": Operation(lambda one, _: one.send(count=3), (PUB,), stored("normal", 3)),
    "delayed": Operation(
        lambda one, _: one.send(delay=DELAY_SECONDS),
        (PUB,),
        stored("delay", place="rmq_sys_wheel_timer"),
    ),
    "half": Operation(
        lambda one, _: one.half(),
        (PUB,),
        stored("transaction", place="RMQ_SYS_TRANS_HALF_TOPIC"),
        native=((PRODUCER, PUB), "Topic:T"),
    ),
    "decide": Operation(
        lambda one, half: one.decide(half),
        (PUB,),
        Footprint(put=(2, 0), traced=[("store", "T", "", 1)]),  # with a note of the decision
        native=((PRODUCER,), "Group:p"),
        prepare=lambda one: one.half(),
        hidden=("remoting",),
    ),
    "ack": Operation(
        lambda one, handles: one.ack(handles),
        (SUB, MEMBER),
        Footprint(),
        prepare=received,
    ),
    "change": Operation(
        lambda one, handles: one.change(handles),
        (SUB, MEMBER),
        Footprint(),
        prepare=received,
    ),
    "commit": Operation(
        lambda one, _: one.commit(), (SUB, MEMBER), Footprint(), about=f"Group:{GROUP}"
    ),
    "query": Operation(lambda one, _: one.query(), (SUB,), Footprint()),
}
ALL = (PUB, SUB, MEMBER, PRODUCER)


@pytest.fixture
async def guarded(start_node: StartNode, tmp_path: Path) -> Node:
    """With users, whose quotas are far away."""
    node = await start_node(
        access=with_users(tmp_path),
        remoting={"listen": free_endpoint()},
        audit={"file": tmp_path / "audit.log"},
        traces={"endpoint": f"http://{free_endpoint()}"},
    )
    await Users(node).new("root", super=True)
    await Users(node).new(USER, *ALL)
    return await filled(node, 1 << 40, "root")


async def test_an_operation_asks_for_rights_and_leaves_traces_as_in_each_protocol(
    guarded: Node, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, broker = Users(guarded), broker_of(guarded)
    async with dialect_of(guarded, protocol, USER) as dialect:
        watch = Watch(broker, monkeypatch)
        assert await dialect.send()
        await until(lambda: len(broker.store.lookups.by_key("T", "k")) == 1)
        for name, operation in OPERATIONS.items():
            if not hasattr(dialect, name):
                continue
            needs, about = operation.needs, operation.about
            if operation.native and protocol in ("gRPC", "frames"):
                needs, about = operation.native
            prepared = await operation.prepare(dialect) if operation.prepare else None
            for need in needs:
                await users.may(USER, *(other for other in ALL if other != need))
                watch.take()
                assert not await operation.do(dialect, prepared), (name, need)
                denied = [(USER, HERE, about, Decision.DENIED)]
                noted = [] if protocol in operation.hidden else denied
                await watch.until_noted(len(noted))
                assert watch.take() == Footprint(noted=noted), (name, need)
            await users.may(USER, *ALL)
            watch.take()
            assert await operation.do(dialect, prepared), name
            assert watch.take() == operation.leaves, name


# -- sends -----------------------------------------------------------------------------------------


async def test_sends_that_wait_for_their_time_are_counted_as_timed(
    broker: Broker, dialect: Dialect
) -> None:
    await dialect.send()
    await dialect.send(delay=DELAY_SECONDS)
    traffic = broker.core.traffic
    assert traffic.timed.table["T"].messages == 1
    assert not traffic.failures.table


async def test_refused_sends_are_counted_by_their_reason(broker: Broker, dialect: Dialect) -> None:
    for topic, delay in (("ReadOnly", 0), ("Unknown", 0), ("T", 400 * 86_400)):
        assert not await dialect.send(topic, delay)
    reasons = {"NO_PERMISSION", "TOPIC_NOT_EXIST", "MESSAGE_ILLEGAL"}
    assert set(broker.core.traffic.failures.table) == reasons


async def test_a_send_that_the_store_refuses_is_counted_once_however_often_it_is_tried(
    node: Node, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(node)
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


# -- quotas ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["send", "half", "batch"])
async def test_sends_over_a_quota_are_counted_and_not_stored(
    node: Node, broker: Broker, dialect: Dialect, operation: str
) -> None:
    await limited(node, messages_in=1)
    sent = [await OPERATIONS[operation].do(dialect, None) for _ in range(4)]
    refused = sent.count(False) + sent.count(None)
    assert 0 < refused < 4
    traffic, throttle = broker.core.traffic, broker.core.throttle
    counted = [(flow.messages, key) for key, flow in traffic.received.table.items()]
    count = 3 if operation == "batch" else 1
    kind = "transaction" if operation == "half" else "normal"
    assert counted == [((4 - refused) * count, ("T", kind))]
    assert throttle.refused[Kind.CLIENT, Limit.MESSAGES_IN] == refused
    assert traffic.failures.table["THROTTLED"].messages == refused


async def test_of_consumers_that_wait_together_a_quota_stops_those_after_the_first(
    node: Node, broker: Broker
) -> None:
    """As of pulls: the first one that gets something may use the quota up."""
    await limited(node, messages_out=1)
    stop_the_clock(node)
    api = Api(node)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(api.receive(GROUP, poll_ms=3000)) for _ in range(4)]
        line = broker.pop._lines.setdefault((GROUP, "T"), Line())
        await until(lambda: len(line.waiting) == len(waiting))
        await api.send(*[message(BODY, "T") for _ in waiting])
    await api.close()
    assert sorted(len(one.result().messages) for one in waiting) == [0, 0, 0, 1]


async def limited(node: Node, **limits: int) -> None:
    """Give this address a quota."""
    async with client_of(node) as client:
        await client.admin.put_quota(f"client:{HERE}", **limits)


# -- reads and offsets -----------------------------------------------------------------------------


async def test_invented_groups_are_not_kept(broker: Broker, dialect: Dialect) -> None:
    for _ in range(3):
        await dialect.send()
    traffic = broker.core.traffic
    assert await dialect.pull("invented") == 3
    assert (traffic.messages_out, traffic.bytes_out) == (3, 30)
    kept = {group for _, group, _ in traffic.delivered.table}
    assert kept <= {"", *broker.metadata.tables.groups}


async def test_offsets_are_committed_and_what_is_no_place_is_refused(
    broker: Broker, dialect: Dialect
) -> None:
    for topic, queue, offset in (("Unknown", 0, 1), ("T", 1, 1), ("T", -1, 1), ("T", 0, -1)):
        assert not await dialect.commit(topic, queue, offset), (topic, queue, offset)
    tables = broker.metadata.tables
    assert tables.committed(GROUP, "T", 0) == -1
    assert await dialect.commit("T", 0, 7)
    await until(lambda: tables.committed(GROUP, "T", 0) == 7)
