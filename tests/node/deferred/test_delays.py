"""Delayed messages: levels and times, over restarts and failovers; recall."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duolog
import numpy as np
import pytest

from duolog_server.node.deferred.delayservice import (
    DELAY_MS_MAX,
    DONE_TOPIC,
    TIMER_TOPIC,
    RecallHandle,
)
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

LEVELS = {"message_delay_level": "1s 2s 1h"}


async def all_of(client: duolog.Client, topic: str, queues: int) -> list[duolog.Message]:
    found = []
    for queue_id in range(queues):
        found += list(await client.pull(topic, queue_id, 0))
    return found


async def wait_for(client: duolog.Client, count: int, queues: int = 1) -> list[duolog.Message]:
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found := await all_of(client, "T", queues)) < count:
            await asyncio.sleep(0.01)
    return found


async def client_of(node: Node, queues: int = 1) -> duolog.Client:
    client = duolog.Client(f"127.0.0.1:{node.port}", timeout=10)
    await client.admin.create_topic("T", queues)
    return client


async def test_a_timed_message_is_delivered_unchanged_at_its_time(node: Node) -> None:
    async with await client_of(node, 4) as client, client.producer() as producer:
        sent_ms = time.time() * 1000
        receipt = await producer.send(
            "T", b"x", key="k", tags="A", properties={"color": "blue"}, delay=1.5, queue_id=3
        )
        answered_ms = time.time() * 1000
        early = await all_of(client, "T", 4)
        assert early == [] or time.time() * 1000 - sent_ms >= 1500
        (found,) = await wait_for(client, 1, 4)
        assert 1500 <= found.store_time_ms - sent_ms + 1 < 10_000
        assert found.queue_id == 3
        assert (found.body, found.tags) == (b"x", "A")
        properties = dict(found.properties)
        assert properties.pop("UNIQ_KEY") == receipt.unique_key
        properties.pop("__CRC32#", None)
        told_ms = int(properties.pop("TIMER_DELIVER_MS")) - 1500
        assert sent_ms - 1 <= told_ms <= answered_ms + 10  # rounded up
        assert properties == {"KEYS": "k", "TAGS": "A", "color": "blue"}
        assert found.born_time_ms <= answered_ms
        assert len(await client.admin.find("T", key="k")) == 1


async def test_levels_keep_their_order_and_their_time(start_node: StartNode) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        sent_ms = time.time() * 1000
        bodies = [b"%d" % k for k in range(200)]
        await producer.send_batch("T", bodies, delay_level=1)
        await producer.send("T", b"later", delay_level=3)
        found = await wait_for(client, 200)
        assert [one.body for one in found] == bodies
        assert all(1000 <= one.store_time_ms - sent_ms + 1 < 10_000 for one in found)
        assert "DELAY" not in found[0].properties
        tables = broker_of(node).metadata.tables
        await until(lambda: tables.delay_offsets == {1: 200})
        await asyncio.sleep(0.3)
        assert len(await all_of(client, "T", 1)) == 200  # the later one waits


async def test_a_level_beyond_the_last_is_the_last_and_bad_ones_are_refused(
    start_node: StartNode,
) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"x", delay_level=18)
        await broker_of(node).log.caught_up()
        assert broker_of(node).store.queue_range(SCHEDULE_TOPIC, 2) == (0, 1)
        with pytest.raises(duolog.BadRequest, match=r"a delay of .* exceeds the limit"):
            await producer.send("T", b"x", delay=DELAY_MS_MAX / 1000 + 60)
        with pytest.raises(duolog.UnknownTopic):
            await producer.send("Nowhere", b"x", delay=1.0)
        await producer.send("T", b"past", deliver_at=1_500_000_000_000)
        (found,) = await wait_for(client, 1)
        assert found.body == b"past"


async def test_retried_sends_of_delayed_messages_are_stored_once(node: Node) -> None:
    async with await client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"x", delay=0.3)
        producer._sender._sequence -= 1  # as a try whose answer was lost
        again = await producer.send("T", b"x", delay=0.3)
        assert again.duplicate
        await wait_for(client, 1)
        await asyncio.sleep(0.3)
        assert len(await all_of(client, "T", 1)) == 1
    async with await client_of(node) as client, client.producer() as producer:
        at = int(time.time() * 1000) + 200
        await producer.send("T", b"x", deliver_at=at)
        await wait_for(client, 1)
        producer._sender._sequence -= 1
        assert (await producer.send("T", b"x", deliver_at=at)).duplicate
        assert len(await all_of(client, "T", 1)) == 1


async def test_pending_messages_survive_a_restart_and_delivered_ones_are_not_repeated(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "d", **LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        for k in range(20):
            await producer.send("T", b"soon%d" % k, delay=0.1)
            await producer.send("T", b"late%d" % k, delay=3.0 + k / 100)
        await producer.send("T", b"level", delay_level=2)
        await wait_for(client, 20)
    broker_of(node).delays._note_progress(broker_of(node).delays._timers)  # type: ignore[arg-type]
    await node.stop()
    node = await start_node(tmp_path / "d", **LEVELS)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        found = await wait_for(client, 41)
        bodies = [one.body for one in found]
        assert len(set(bodies)) == 41
        late = [body for body in bodies if body.startswith(b"late")]
        assert late == [b"late%d" % k for k in range(20)]
        await until(lambda: broker_of(node).delays.waiting == 0)
        _, stored = broker_of(node).store.queue_range(TIMER_TOPIC, 0)
        assert 20 <= stored <= 40, "late ones once; the others where they came before their time"


async def test_a_new_master_delivers_pending_messages_once(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await Elected.start(start_node, tmp_path, **LEVELS)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            for k in range(30):
                await producer.send("T", b"timed%d" % k, delay=0.05 * k)
                await producer.send("T", b"level%d" % k, delay_level=1 + k % 2)
        await asyncio.sleep(0.3)
        await group.switch(client)
        found = await wait_for(client, 60)
        await asyncio.sleep(0.3)
        bodies = [one.body for one in await all_of(client, "T", 1)]
        assert len(bodies) == len(set(bodies)) == len(found) == 60
    # Slaves know what their master delivered.
    await until(lambda: len({broker_of(n).store.log.max_offset for n in group.nodes}) == 1)


async def test_a_recalled_message_stays_recalled_while_the_recall_awaits_the_replicas(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records noted meanwhile do not make a later read start after the record of the recall."""
    broker = broker_of(node)
    delays, put = broker.delays, broker.log.put
    gate: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
    async with await client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"another that waits", delay=3600)
        receipt = await producer.send("T", b"x", delay=3600)
        monkeypatch.setattr(broker.log, "put", lambda batch: (put(batch)[0], gate))
        handle = RecallHandle(broker.group, "T", 1, receipt.unique_key)
        recalling = asyncio.create_task(delays.recall("T", handle))
        await until(lambda: broker.store.queue_range(DONE_TOPIC, 0)[1] == 1)
        delays._note_progress(await delays._opened())
        await until(lambda: broker.metadata.has_applied(broker.store.log.max_offset))
        delays.role_changed()
        await delays._opened()
        assert delays.waiting == 1
        gate.set_result(PutMessageStatus.PUT_OK)
        await recalling
        assert broker.validate() == ""


async def test_tables_contain_no_delivery_that_the_log_may_still_lose(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that took the tables at its handshake may be elected without the message."""
    node = await start_node(**LEVELS)
    broker = broker_of(node)
    async with await client_of(node) as client, client.producer() as producer:
        monkeypatch.setattr("duolog_server.node.deferred.delayservice.NOTE_SECONDS", 0.1)
        with monkeypatch.context() as refused:
            refused.setattr(broker.metadata, "note", lambda change: None)
            await producer.send("T", b"x", delay_level=1)
            await wait_for(client, 1)
            assert json.loads(broker.metadata.snapshot_bytes())["delays"] == {}
            await asyncio.sleep(0.2)
            assert len(await all_of(client, "T", 1)) == 1
        await until(lambda: broker.metadata.tables.delay_offsets == {1: 1})


async def test_deleting_a_topic_drops_its_delayed_messages(node: Node) -> None:
    async with await client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"x", delay=0.3)
        await client.admin.delete_topic("T")
        await until(lambda: broker_of(node).store.queue_range(DONE_TOPIC, 0) == (0, 1))
        await until(lambda: broker_of(node).delays.waiting == 0)


async def test_long_delayed_messages_are_stored_again_before_retention_deletes_them(
    node: Node,
) -> None:
    broker = broker_of(node)
    async with await client_of(node) as client, client.producer() as producer:
        await producer.send("T", b"x", delay=100.0)
        await until(lambda: broker.delays.waiting == 1)
        timers = broker.delays._timers
        assert timers is not None
        half = broker.store.options.file_reserved_time * 3_600_000 // 2
        await broker.delays._roll(timers, WallMs(broker.times.wall_ms() + half - 60_000))
        assert broker.store.topic_queue_table[TIMER_TOPIC, 0] == 1
        await broker.delays._roll(timers, WallMs(broker.times.wall_ms() + half + 1000))
        await until(lambda: broker.store.queue_range(TIMER_TOPIC, 0) == (0, 2))
        await until(lambda: broker.delays.waiting == 1 and timers.low == 1)
        before, after = (broker.store.queues.get(TIMER_TOPIC, 0).entries(k, 1) for k in (0, 1))  # type: ignore[union-attr]
        assert np.array_equal(before[2], after[2])  # the same time


async def test_an_undeliverable_message_blocks_no_other(start_node: StartNode) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        broker = broker_of(node)
        now = broker.times.wall_ms()
        for properties in (
            b"REAL_TOPIC\x01T\x02REAL_QID\x0170000\x02DELAY\x011",  # no queue has that number
            b"REAL_QID\x010\x02DELAY\x011",  # it never said where it wanted to go
            b"REAL_TOPIC\x01a/b\x02REAL_QID\x010\x02DELAY\x011",
        ):
            columns = Columns.of([b"x"], [properties])
            broker.store.put(PutBatch(SCHEDULE_TOPIC, 0, columns, now), now)
        await producer.send("T", b"after", delay_level=1)
        (found,) = await wait_for(client, 1)
        assert found.body == b"after"
        await until(lambda: broker.metadata.tables.delay_offsets == {1: 4})


async def test_a_delivery_that_fails_midway_is_not_repeated_endlessly(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        await client.admin.create_topic("U", 1)
        for k in range(10):  # two real queues: each stretch is two batches
            await producer.send("TU"[k % 2], b"%d" % k, delay_level=1)
            await producer.send("TU"[k % 2], b"%d" % (10 + k), delay=1.0)
        store = broker_of(node).store
        put, failing = store.put, [True]

        def flaky(batch: PutBatch, now: WallMs) -> PutResult:
            if batch.topic == "U" and failing[0]:
                return PutResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED, "no room")
            return put(batch, now)

        monkeypatch.setattr(store, "put", flaky)
        await wait_for(client, 1)
        await asyncio.sleep(1.5)  # many tries
        failing[0] = False
        async with asyncio.timeout(WAIT_SECONDS):
            while (await client.pull("U", 0, 0)).count < 10:
                await asyncio.sleep(0.02)
        found = await wait_for(client, 10)
        assert {one.body for one in found} == {b"%d" % k for k in range(0, 20, 2)}
        assert len(found) <= 25  # one stretch of each kind was begun more than once, not more


async def test_a_message_that_the_last_master_delivered_without_a_note_is_not_delivered_again(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the log was truncated between the copies and their note; other attempts still come."""
    node = await start_node(tmp_path / "d", **LEVELS)
    broker = broker_of(node)
    async with await client_of(node) as client, client.producer() as producer:
        monkeypatch.setattr(broker.metadata, "note", lambda change: None)
        monkeypatch.setattr(
            broker.delays, "_note_done", lambda timers, offsets: timers.done(offsets)
        )
        await producer.send_batch("T", [b"level%d" % k for k in range(5)], delay_level=1)
        for k in range(5):
            await producer.send("T", b"time%d" % k, delay=0.3)
        first = await wait_for(client, 10)
        # Another attempt of a message that was delivered before: it waits under the same key.
        known = first[0]
        again = Columns.of(
            [known.body],
            [
                f"UNIQ_KEY\x01{known.unique_key}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02DELAY\x012".encode()
            ],
        )
        now = broker.times.wall_ms()
        assert broker.store.put(PutBatch(SCHEDULE_TOPIC, 1, again, now), now).status is (
            PutMessageStatus.PUT_OK
        )
    await node.stop()
    monkeypatch.undo()
    await start_node(tmp_path / "d", listen=f"127.0.0.1:{node.port}", **LEVELS)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await wait_for(client, 11)
        await asyncio.sleep(0.5)
        found = sorted(one.body for one in await all_of(client, "T", 1))
    assert found == sorted([one.body for one in first] + [known.body])


async def test_due_messages_wait_while_nothing_can_be_stored(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(**LEVELS)
    async with await client_of(node) as client, client.producer() as producer:
        store = broker_of(node).store
        put, tries = store.put, []

        def full(batch: PutBatch, now: WallMs) -> PutResult:
            if batch.topic == "T":
                tries.append(now)
                return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "no room")
            return put(batch, now)

        monkeypatch.setattr(store, "put", full)
        for k in range(20):
            await producer.send("T", b"%d" % k, delay_level=1)
            await producer.send("T", b"%d" % (20 + k), delay=3.0)  # late ones are not taken
        await until(lambda: len(tries) >= 20)  # RocketMQ gave up after four of them
        assert await all_of(client, "T", 1) == []
        monkeypatch.undo()
        found = await wait_for(client, 40)
        assert sorted(int(message.body) for message in found) == list(range(40))
        await asyncio.sleep(0.5)
        assert len(await all_of(client, "T", 1)) == 40


async def test_a_message_after_a_damaged_due_one_is_delivered_once_at_its_own_time(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(message_delay_level="2s 4s")
    async with await client_of(node) as client, client.producer() as producer:
        store = broker_of(node).store
        began = broker_of(node).times.mono_ms()
        with nothing_delivered(node, monkeypatch):
            await producer.send("T", b"time 0", delay=2.0)
            await producer.send("T", b"level 0", delay_level=1)
            damage(store.log, b"time 0")
            damage(store.log, b"level 0")
        await asyncio.sleep(1.2)
        await producer.send("T", b"time 1", delay=2.0)
        await producer.send("T", b"level 1", delay_level=1)
        found = await wait_for(client, 1)
        assert broker_of(node).times.mono_ms() - began >= 3100
        await until(lambda: broker_of(node).metadata.tables.delay_offsets == {1: 2})
        await until(lambda: broker_of(node).delays.waiting == 0)
        found = await wait_for(client, 2)
        assert sorted(message.body for message in found) == [b"level 1", b"time 1"]


async def test_a_damaged_service_record_affects_no_other_record(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(**LEVELS, transactions={"timeout_ms": 1500, "check_interval_ms": 1500})
    async with await client_of(node) as client, client.producer() as producer:
        asked: list[bytes] = []

        async def commit(message: duolog.UndecidedMessage) -> bool:
            asked.append(message.body)
            return True

        async with client.transactions("orders", commit) as transactions:
            with nothing_delivered(node, monkeypatch):
                for k in range(3):
                    await producer.send("T", b"level %d" % k, delay_level=2)
                    await producer.send("T", b"time %d" % k, delay=2.0)
                    await transactions.prepare("T", b"half %d" % k)
                store = broker_of(node).store
                for kind in (b"level 1", b"time 1", b"half 1"):
                    damage(store.log, kind)
            found = await wait_for(client, 6)
        assert sorted(message.body for message in found) == sorted(
            b"%s %d" % (kind, k) for kind in (b"level", b"time", b"half") for k in (0, 2)
        )
        assert sorted(asked) == [b"half 0", b"half 2"]
        assert (await producer.send("T", b"after")).status == "PUT_OK"


@contextmanager
def nothing_delivered(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is due waits, for what is done to it here."""
    with monkeypatch.context() as held:
        held.setattr(broker_of(node).admission, "may_store", lambda: False)
        yield


def damage(log: CommitLog, body: bytes) -> None:
    """Change a byte of a body where it lies."""
    for mapped in log.queue.files:
        at = bytes(mapped.memory[: mapped.readable]).find(body)
        if at >= 0:
            mapped.memory[at] ^= 1
            return
    raise AssertionError(f"{body!r} is not in the log")
