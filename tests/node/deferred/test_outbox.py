"""The outbox: what the node stores for queues that moved is passed on, in order and once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import duolog
import pytest
from duolog._columns import pack

from duolog_server.node.broker import Broker
from duolog_server.node.deferred import outbox
from duolog_server.node.deferred.outbox import QUEUE, TOPIC, Outbox
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.moves import Place
from duolog_server.store.record import TRANSACTION_COMMIT, decode_properties
from duolog_server.store.status import PutMessageStatus
from tests.node.deferred.test_decisions import prepare
from tests.node.deferred.test_delays import client_of, wait_for
from tests.node.deferred.test_publishing import NOTHING, stage, stored
from tests.node.replicas import broker_of
from tests.node.sealing import sealed
from tests.nodefixtures import StartNode
from tests.until import until

OTHER = Place("b", 4)
OK = PutMessageStatus.PUT_OK


@dataclass
class Other:
    """The place that follows: stores what it does not have, by unique key."""

    held: bool = False
    fails: bool = False
    offered: int = 0
    bodies: list[bytes] = field(default_factory=list)
    properties: list[dict[str, str]] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)

    def is_held(self, topic: str, queue_id: int) -> bool:
        return self.held and (topic, queue_id) == ("T", 0)

    async def deliver(self, batch: PutBatch, to: Place) -> PutResult:
        assert (batch.topic, batch.queue_id, to) == ("T", 0, OTHER)
        self.offered += batch.columns.count
        await asyncio.sleep(0)
        if self.fails:
            return PutResult(PutMessageStatus.UNKNOWN_ERROR, "nobody is there")
        columns = batch.columns
        texts = [columns.properties.tobytes(), columns.bodies.tobytes()]
        offsets = [columns.property_offsets.tolist(), columns.body_offsets.tolist()]
        assert batch.fields is not None
        for k in range(columns.count):
            block, body = (
                text[ends[k] : ends[k + 1]] for text, ends in zip(texts, offsets, strict=True)
            )
            properties = decode_properties(block.decode())
            if properties["UNIQ_KEY"] in [one["UNIQ_KEY"] for one in self.properties]:
                continue
            self.bodies.append(body)
            self.properties.append(properties)
            self.flags.append(int(batch.fields[1, k]))
        return PutResult(OK)


@dataclass
class World:
    broker: Broker
    client: duolog.Client
    other: Other

    async def seal(self) -> None:
        await sealed(self.broker.metadata, "T", 0, OTHER, "m")

    @property
    def outbox(self) -> Outbox:
        return self.broker.outbox

    def waiting(self) -> int:
        return self.outbox.status()["outbox_waiting"]

    def put(self, *bodies: bytes, topic: str = "T") -> PutResult:
        """As the node stores what is due."""
        columns = Columns.of(list(bodies), [b"UNIQ_KEY\x01" + body for body in bodies])
        batch = PutBatch(topic, 0, columns, 1, accepted=True)
        return self.outbox.stored(batch, self.broker.log.write_now)

    async def passed(self, *bodies: bytes) -> None:
        """Wait until the other place has these, and nothing waits."""
        await until(lambda: self.other.bodies == [*bodies] and not self.waiting())
        assert self.outbox.validate() == ""


StartWorld = Callable[..., Awaitable[World]]


@pytest.fixture
async def start_world(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> StartWorld:
    monkeypatch.setattr(outbox, "NOTE_SECONDS", 0)
    monkeypatch.setattr(outbox, "AGAIN_MS", 20)

    async def start(**settings: object) -> World:
        node = await start_node(message_delay_level="1s 2s 1h", **settings)
        world = World(broker_of(node), await client_of(node), Other())
        world.outbox._passing = world.other
        return world

    return start


@pytest.fixture
async def world(start_world: StartWorld) -> World:
    return await start_world()


@pytest.mark.parametrize("how", [{"delay_level": 1}, {"delay": 0.05}])
async def test_a_delayed_message_is_passed_on_unchanged(
    world: World, how: dict[str, float]
) -> None:
    async with world.client.producer() as producer:
        receipt = await producer.send("T", b"x", properties={"color": "blue"}, **how)  # type: ignore[arg-type]
        await world.seal()
        await world.passed(b"x")
        (properties,) = world.other.properties
        assert (properties["UNIQ_KEY"], properties["color"]) == (receipt.unique_key, "blue")
        assert not {"REAL_TOPIC", "REAL_QID", "DELAY", "TIMER_OUT_MS"} & {*properties}
        assert world.other.flags == [0]


async def test_a_half_message_that_is_committed_is_passed_on(world: World) -> None:
    (origin,) = prepare(world.broker)
    await world.seal()
    await world.broker.transactions.end([origin], True, "g")
    await world.passed(b"0")
    assert world.other.flags == [TRANSACTION_COMMIT]
    assert world.other.properties[0]["TRAN_MSG"] == "true"
    await world.broker.transactions.end([origin], True, "g")
    with pytest.raises(duolog.NoSuchMessage, match="was committed"):
        await world.broker.transactions.end([origin], False, "g")


async def test_the_parts_of_a_sink_are_passed_on_in_order(world: World) -> None:
    sink = await world.client.sink("s")
    staged = [await stage(sink, b"%d" % k) for k in range(5)]
    assert await sink.publish(0, staged[:2]) is False
    await world.seal()
    assert await sink.publish(1, staged[2:]) is False
    assert await sink.publish(1, staged[2:]) is True
    await world.passed(b"2", b"3", b"4")
    assert await stored(world.client) == [b"0", b"1"]


@pytest.mark.parametrize("index", [True, False])
async def test_a_part_that_was_put_here_without_its_note_is_not_put_again(
    start_world: StartWorld, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    world = await start_world(producers_max=2, message_index_enable=index)
    service = world.broker.publishes
    await world.client.admin.create_topic("Else", 1)
    await world.seal()
    world.other.held = True
    sink = await world.client.sink("s")
    staged = [await sink.stage("T", 0, pack([b"%d" % k, b"%d." % k]), NOTHING, 1) for k in range(3)]
    put, left = service._put, [1, 1]

    async def interrupted(*args: object) -> object:
        if not left:
            raise duolog.Busy("the node stands still here")
        left.pop()
        return await put(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(service, "_put", interrupted)
        patch.setattr(world.broker.metadata, "note", lambda change: None)
        publishing = asyncio.create_task(sink.publish(0, staged))
        await until(lambda: not left and world.waiting() == 4)
        for number in range(5):  # the first ones are forgotten
            async with world.client.producer() as producer:
                await producer.send("Else", b"%d" % number)
    await publishing
    world.other.held = False
    await world.passed(b"0", b"0.", b"1", b"1.", b"2", b"2.")


async def test_what_was_held_is_stored_here_if_the_queue_does_not_move(world: World) -> None:
    world.other.held = True
    assert world.put(b"1", b"2").status is OK
    await until(lambda: world.waiting() == 2)
    assert await stored(world.client) == []
    world.other.held = False
    world.put(b"3")  # behind what waits, whether it is stored here or there
    assert [one.body for one in await wait_for(world.client, 3)] == [b"1", b"2", b"3"]
    await until(lambda: not world.waiting())
    end = world.broker.store.next_offset(TOPIC, QUEUE)
    world.put(b"4")
    assert (world.waiting(), world.broker.store.next_offset(TOPIC, QUEUE)) == (0, end)
    assert world.other.offered == 0


async def test_what_cannot_be_passed_on_is_tried_again_and_holds_up_no_other_queue(
    world: World,
) -> None:
    await world.client.admin.create_topic("U", 1)
    other, world.other.fails = world.other, True
    await world.seal()
    world.put(b"1")
    await until(lambda: other.offered > 1)
    await sealed(world.broker.metadata, "U", 0, Place("c", 1), "m")
    world.outbox._passing = Elsewhere(other)
    world.put(b"u", topic="U")
    world.put(b"2")
    await until(lambda: world.outbox._passing.bodies == [b"u"])  # type: ignore[attr-defined]
    assert world.waiting() == 2
    other.fails = False
    await world.passed(b"1", b"2")


class Elsewhere(Other):
    """Another place beside one."""

    def __init__(self, other: Other) -> None:
        super().__init__()
        self._other = other

    async def deliver(self, batch: PutBatch, to: Place) -> PutResult:
        if to == OTHER:
            return await self._other.deliver(batch, to)
        self.bodies.append(batch.columns.bodies.tobytes())
        return PutResult(OK)


async def test_the_next_master_passes_on_again_what_is_not_noted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(world.broker.metadata, "note", lambda change: None)
        await world.seal()
        world.put(b"1", b"2")
        await world.passed(b"1", b"2")
        offered = world.other.offered
        world.outbox.role_changed()
        assert world.put(b"3").status is OK
        await world.passed(b"1", b"2", b"3")
        assert world.other.offered == offered + 3
    await until(lambda: world.broker.metadata.tables.committed(outbox.GROUP, TOPIC, 0) == 3)
    offered = world.other.offered
    world.outbox.role_changed()
    await until(lambda: world.outbox._waiting is not None)
    assert (world.outbox.status(), world.other.offered) == ({"outbox_waiting": 0}, offered)


async def test_the_next_master_stores_nothing_twice_in_a_queue_that_did_not_move(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.broker.metadata, "note", lambda change: None)
    world.other.held = True
    world.put(b"1", b"2")
    world.other.held = False
    await wait_for(world.client, 2)
    world.outbox.role_changed()
    world.put(b"3")
    await until(lambda: world.broker.store.queue_range("T", 0)[1] >= 3 and not world.waiting())
    assert await stored(world.client) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("how", [{"delay_level": 1}, {"delay": 0.05}])
async def test_a_delivery_that_was_put_here_without_its_note_is_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, how: dict[str, float]
) -> None:
    await world.seal()
    broker, delays = world.broker, world.broker.delays
    with monkeypatch.context() as patch:
        patch.setattr(broker.metadata, "note", lambda change: None)
        patch.setattr(delays, "_note_done", lambda timers, offsets: timers.done(offsets))
        async with world.client.producer() as producer:
            await producer.send("T", b"x", **how)  # type: ignore[arg-type]
        await world.passed(b"x")
    end = broker.store.next_offset(TOPIC, QUEUE)
    delays.role_changed()
    async with world.client.producer() as producer:
        await producer.send("T", b"y", **how)  # type: ignore[arg-type]
    await world.passed(b"x", b"y")
    assert broker.store.next_offset(TOPIC, QUEUE) == end + 1


async def test_what_is_older_than_its_topic_is_dropped(world: World) -> None:
    await world.seal()
    world.other.held = True
    world.put(b"old")
    await until(lambda: world.waiting() == 1)
    await world.client.admin.delete_topic("T")
    await world.client.admin.create_topic("T", 1)
    world.put(b"new")
    world.other.held = False
    assert [one.body for one in await wait_for(world.client, 1)] == [b"new"]
    assert world.other.bodies == []


async def test_what_waits_for_long_is_stored_again_and_keeps_its_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.seal()
    world.other.held = True
    world.put(b"1", b"2")
    await until(lambda: world.waiting() == 2)
    store = world.broker.store
    monkeypatch.setattr(
        store, "store_time", lambda topic, queue, offset: 0 if offset < 2 else 1 << 60
    )
    monkeypatch.setattr(outbox, "ROLL_EVERY_SECONDS", 0)
    await until(lambda: world.outbox._waiting is not None and world.outbox._waiting.low == 2)
    world.put(b"3")
    await until(lambda: world.waiting() == 3)
    assert store.next_offset(TOPIC, QUEUE) == 5
    world.outbox.role_changed()
    world.other.held = False
    await world.passed(b"1", b"2", b"3")
    assert all("MOVED_ORIGIN" not in one for one in world.other.properties)


async def test_what_was_stored_here_before_the_seal_is_not_passed_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.broker.metadata, "note", lambda change: None)
    world.other.held = True
    world.put(b"1")
    world.other.held = False
    await wait_for(world.client, 1)
    await until(lambda: not world.waiting())
    await world.seal()
    world.outbox.role_changed()
    world.put(b"2")
    await world.passed(b"2")
    assert await stored(world.client) == [b"1"]
