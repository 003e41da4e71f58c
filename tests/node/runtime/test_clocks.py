"""A node whose wall clock jumps by hours: durations are not affected."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import duolog
import grpc.aio
import numpy as np
import pytest
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.deferred.delayservice import TOGETHER_MS, DelayService
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.runtime.clocks import SystemClock, wall_ms
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.messagestore import PutBatch
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

HOUR = 3_600_000
LATE_MS = 30_000  # what a machine may be late by: far less than any jump
SESSION_MS = 60_000
JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR, 9000 * HOUR, -9000 * HOUR])
SOON = {
    "flush_interval_commit_log": 100,
    "flush_commit_log_thorough_interval": 200,
    "flush_interval_consume_queue": 100,
    "flush_consume_queue_thorough_interval": 200,
}


class JumpingClock(SystemClock):
    """The machine's clocks, but that the wall clock can be set, and that time can pass at once."""

    jumped = passed = 0

    def wall_ms(self) -> WallMs:
        return WallMs(super().wall_ms() + self.jumped + self.passed)

    def mono_ms(self) -> MonoMs:
        return MonoMs(super().mono_ms() + self.passed)


def jumping(node: Node) -> JumpingClock:
    """Let a running node have a clock that can jump."""
    clock = JumpingClock()
    broker = broker_of(node)
    broker.log.times.clock = clock
    return clock


@JUMPS
async def test_log_queues_and_checkpoint_are_flushed_however_the_clock_jumps(
    start_node: StartNode, jump: int
) -> None:
    node = await start_node(**SOON)
    store, clock = broker_of(node).store, jumping(node)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await asyncio.sleep(0.25)
        clock.jumped = jump
        await asyncio.sleep(0.25)
        await producer.send("T", b"x")
        end = store.log.max_offset
        newest = store.log.last_store_time
        await until(lambda: store.flushed_offset >= end)
        await until(lambda: store.checkpoint.logics_msg_timestamp >= newest)
        assert not store.queues.touched


async def beat(groups: Any, member: str, queues: int) -> int:
    """A member's heartbeat, that reads so many queues; how many it may read."""
    reply: wire.HeartbeatReply = await groups.Heartbeat(
        wire.HeartbeatRequest(
            group="G",
            member_id=member,
            topics=["T"],
            owned=[wire.QueueRef(topic="T", queue_id=k) for k in range(queues)],
            session_ms=SESSION_MS,
        )
    )
    return len(reply.queues)


@JUMPS
async def test_dead_members_lose_their_queues_in_time_and_living_ones_do_not(
    node: Node, client: duolog.Client, jump: int
) -> None:
    clock = jumping(node)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        groups = stubs.GroupsStub(channel)
        assert await beat(groups, "a", 0) == 4
        clock.jumped = jump
        assert await beat(groups, "b", 0) == 0  # a lives, and reads all four
        clock.passed = SESSION_MS + 1  # a says nothing more
        assert await beat(groups, "b", 0) == 4


@JUMPS
async def test_a_level_is_waited_for_however_the_clock_jumps(
    start_node: StartNode, jump: int
) -> None:
    node = await start_node(message_delay_level="1s 2s 1h")
    clock = jumping(node)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        store = broker_of(node).store
        sent = broker_of(node).times.mono_ms()
        await producer.send("T", b"before", delay_level=2)
        await producer.send("T", b"long before", delay_level=3)
        await until(lambda: store.queue_range(SCHEDULE_TOPIC, 1) == (0, 1))
        clock.jumped = jump
        await asyncio.sleep(0.3)
        sent_after = broker_of(node).times.mono_ms()
        await producer.send("T", b"after", delay_level=1)
        delivered = store.queue_range("T", 0) != (0, 0)
        assert not delivered or broker_of(node).times.mono_ms() - sent >= 1990
        took: dict[bytes, int] = {}
        while len(took) < 2:
            for message in await client.pull("T", 0, len(took), wait=1):
                since = sent_after if message.body == b"after" else sent
                took[message.body] = broker_of(node).times.mono_ms() - since
        assert took.keys() == {b"before", b"after"}, "the level of an hour waits on"
        # After a jump back the clock of the store is slow until the other one has caught up.
        longest = 2 if jump < 0 else 1
        assert 1990 <= took[b"before"] < 2000 * longest + LATE_MS
        assert 990 <= took[b"after"] < 1000 * longest + LATE_MS


async def test_no_level_is_shorter_for_what_is_stored_while_nothing_can_be_delivered(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(message_delay_level="1s")
    broker, clock = broker_of(node), jumping(node)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        clock.jumped = -HOUR  # store times run at half speed from here
        await until(lambda: broker.times.store_ms() > broker.times.wall_ms())
        with monkeypatch.context() as changed:
            changed.setattr(broker.admission, "may_store", lambda: False)
            await asyncio.sleep(0.6)
            sent = broker.times.mono_ms()
            await producer.send("T", b"x", delay_level=1)
            clock.jumped = 0  # they catch up by the 0.3 s that they have lost, in one step
        assert (await client.pull("T", 0, 0, wait=10)).count == 1
        assert broker.times.mono_ms() - sent >= 990


class PausingClock(SystemClock):
    """Clocks that stand still but for a pause before one of the next readings of the second one."""

    def __init__(self) -> None:
        self.wall, self.mono, self.pauses = HOUR, 0, list[int]()

    def wall_ms(self) -> WallMs:
        return WallMs(self.wall + self.mono)

    def mono_ms(self) -> MonoMs:
        self.mono += self.pauses.pop(0) if self.pauses else 0
        return MonoMs(self.mono)


@pytest.mark.parametrize("pauses", [[0, 10], [0, 0, 10], [0, 10] * 20])
@pytest.mark.parametrize("stored", [True, False])
def test_no_level_is_shorter_for_a_pause_between_two_readings(
    pauses: list[int], stored: bool
) -> None:
    clock = PausingClock()
    store = cast(Any, SimpleNamespace(log=SimpleNamespace(last_store_time=0)))
    times = StoreTimes(clock, store)
    delays = DelayService(
        cast(Any, SimpleNamespace(times=times)), np.array([1000]), cast(Any, None)
    )
    batch = PutBatch("T", 0, Columns.of([b"x"]), WallMs(0), accepted=True)
    delays.at_level(batch, 1)
    clock.wall -= HOUR  # store times run at half speed from here
    clock.mono += 600
    clock.pauses = [*pauses] if stored else []
    delays.at_level(batch, 1)
    clock.pauses = []
    stored_ms = times.store_ms()
    clock.wall += HOUR  # they catch up
    clock.pauses = [] if stored else [*pauses]
    sent, now_ms = clock.mono, delays._store_ms()
    due = delays._forward_steps.corrected(np.array([stored_ms + 1000]), 1000)
    assert int(due[0]) - now_ms >= 1000 - (clock.mono - sent) - TOGETHER_MS


async def test_a_start_with_a_clock_far_ahead_ages_nothing(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"x")
    newest = broker_of(node).store.log.last_store_time
    await node.stop()
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: WallMs(wall_ms() + 9000 * HOUR))
    again = await start_node(data=str(node.config.node.data))
    assert broker_of(again).times.age_ms() - newest < HOUR


@JUMPS
async def test_open_transactions_are_asked_about_in_time(start_node: StartNode, jump: int) -> None:
    node = await start_node(transactions={"timeout_ms": 1000, "check_interval_ms": 1000})
    clock, broker = jumping(node), broker_of(node)
    asked: list[int] = []

    async def ask(check: Check) -> bool:
        asked.append(broker.times.mono_ms())
        return True

    broker.transactions.askers.append(ask)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        columns = Columns.of([b"x"], [b"REAL_TOPIC\x01T\x02REAL_QID\x010"])
        batch = PutBatch("T", 0, columns, broker.times.wall_ms())
        sent = broker.times.mono_ms()
        await broker.log.put_and_wait(broker.transactions.half(batch, "P"))
        await until(lambda: broker.transactions.waiting == 1)
        clock.jumped = jump
        await until(lambda: len(asked) == 2)
        assert asked[0] - sent >= 990
        assert 990 <= asked[1] - asked[0] < 1000 + LATE_MS


async def test_a_jump_forward_lets_nothing_expire_at_once(node: Node) -> None:
    broker, clock = broker_of(node), jumping(node)
    before = broker.log.times.age_ms()
    clock.jumped = 100 * HOUR
    assert broker.log.times.age_ms() - before < HOUR
    assert broker.times.store_ms() - before >= 100 * HOUR
    clock.jumped = 0
    assert broker.log.times.age_ms() - before < HOUR
    clock.jumped = -100 * HOUR
    assert broker.log.times.age_ms() < before
    assert broker.times.store_ms() - before >= 100 * HOUR, "store times never go back"
