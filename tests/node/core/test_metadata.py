"""A node's metadata survives damage to any file under config/."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.node.broker import Broker
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata, new_group
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import GetResult, Wanted
from duolog_server.store.status import BrokerRole, PutMessageStatus
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.store.test_metadatafiles import FILES, rocketmqs
from tests.until import until


async def fill(node: Node) -> None:
    """Topics, one of them made a second time, groups and committed offsets."""
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        for name in ("A", "B", "C"):
            await client.admin.create_topic(name, 3)
        await client.admin.delete_topic("B")
        await client.admin.create_topic("B", 2)
        async with client.producer() as producer:
            await producer.send_batch("A", [b"x"] * 20, queue_id=0)
        async with client.consumer("G", "A", start=duolog.Start.EARLIEST) as consumer:
            for _ in range(20):
                await consumer.get(10)


def state_of(node: Node) -> dict[str, Any]:
    return tables_of(broker_of(node).metadata)


def tables_of(metadata: MetadataLog) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metadata.tables.snapshot().to_bytes())
    return found


async def test_a_thread_that_begins_late_replaces_no_newer_snapshot(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = broker_of(node).metadata
    late: list[Callable[[], None]] = []

    async def begins_late(threads: object, work: Callable[[], None], failed: object) -> None:
        late.append(work)

    with monkeypatch.context() as patched:
        patched.setattr("duolog_server.node.core.metadatalog.done_in_thread", begins_late)
        await metadata.change({"op": "quota", "quota": {"subject": "Topic:A", "bytes_in": 7}})
        await metadata.save()
    await metadata.change({"op": "quota", "quota": {"subject": "Topic:A", "bytes_in": 9}})
    await metadata.save()
    snapshot = Path(node.config.node.data, "config", "duologMetadata.json")
    saved = snapshot.read_bytes()
    assert len(late) == 1
    late[0]()
    assert snapshot.read_bytes() == saved


@pytest.mark.parametrize("content", [b"", b"{}", b'{"offsetTable":{}}', None])
async def test_the_node_starts_with_the_same_tables_whichever_file_is_damaged(
    start_node: StartNode, content: bytes | None
) -> None:
    node = await start_node()
    data = Path(node.config.node.data)
    await fill(node)
    before = state_of(node)
    assert before["offsets"]["A@G"]["0"] == 20
    for names in [[name] for name in FILES] + [FILES]:
        await node.stop()
        for name in names:
            if content is None:
                (data / name).unlink()
            else:
                (data / name).write_bytes(content)
        node = await start_node(data=data)
        assert state_of(node) == before, names


async def test_tables_that_rocketmq_wrote_are_in_the_log_from_the_first_start_on(
    start_node: StartNode, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    rocketmqs(data)
    node = await start_node(data=data)
    await fill(node)
    before = state_of(node)
    assert before["topics"]["T"]["readQueueNums"] == 8
    assert before["offsets"]["T@G"] == {"0": 0, "1": 0}  # lowered: T has no messages
    await node.stop()
    shutil.rmtree(data / "config")
    node = await start_node(data=data)
    assert state_of(node) == before


async def test_the_next_master_gives_no_offset_of_a_deleted_topic_again(node: Node) -> None:
    """A slave that was started again has no files of it, and counts from the files it has."""
    store, metadata = broker_of(node).store, broker_of(node).metadata
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"x"] * 7)
        await client.admin.delete_topic("T")
        await client.admin.create_topic("T", 1)
        store.queues.remove_topic("T")
        store.recover_topic_queue_table()
        metadata.promoted()
        assert (await producer.send("T", b"y")).queue_offset == 7


DERIVED = ("consumequeue", "queueends", "index", "checkpoint")


@pytest.mark.parametrize("restored", [False, True])
async def test_tables_and_queue_offsets_outlive_all_derived_files_and_expired_records(
    start_node: StartNode, tmp_path: Path, restored: bool
) -> None:
    """Lost where they are, or commitlog/ and config/ alone are restored from a backup."""
    node = await start_node()
    data = Path(node.config.node.data)
    await fill(node)  # A/0 has 20 messages, all consumed by G
    broker = broker_of(node)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client, client.producer() as producer:
        while broker.store.segment < 3:
            await producer.send_batch("C", [b"." * 1000] * 200, queue_id=0)
    await broker.metadata.save()
    before, end = state_of(node), broker.store.next_offset("C", 0)
    await until(lambda: broker.store.flushed_offset >= broker.store.segment << 20)
    async with broker.log.file_work.changes:
        later = WallMs(broker.log.times.wall_ms() + 100 * 3_600_000)
        cleaned = broker.store.retention.round(later, 4, broker.store.dispatcher.reput_from)
    assert cleaned.segments >= 2
    assert broker.store.log.min_offset > 0
    await node.stop()
    if restored:
        for name in ("commitlog", "config"):
            shutil.copytree(data / name, tmp_path / "restored" / name)
        data = tmp_path / "restored"
    else:
        for name in DERIVED:
            path = data / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    node = await start_node(data=data)
    assert state_of(node) == before
    assert broker_of(node).store.next_offset("C", 0) == end
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        async with client.producer() as producer:
            await producer.send_batch("A", [b"%d" % n for n in range(5)], queue_id=0)
            assert broker_of(node).store.next_offset("A", 0) == 25
        async with client.consumer("G", "A", start=duolog.Start.LATEST) as consumer:
            got = [await consumer.get(10) for _ in range(5)]
    assert [message.body for message in got if message] == [b"%d" % n for n in range(5)]


async def test_tables_that_are_newer_than_the_log_hide_no_message_that_comes(node: Node) -> None:
    """As where an older copy of the log was restored beside the newer config/."""
    await fill(node)  # A/0 has 20 messages, all consumed by G
    broker = broker_of(node)
    tables, reached = broker.metadata.tables, broker.store.next_offset
    ahead = {"0": 23, "1": 2}
    tables._apply_offsets({"group": "G", "offsets": {"A": ahead}, "done": {"A": {"1": [[3, 9]]}}})
    light = {"%LMQ%$here": {"0": 9}, "%LMQ%$gone": {"0": 9}}  # the first has 4 messages
    tables._apply_offsets({"group": "G", "offsets": light})
    broker.store.topic_queue_table["%LMQ%$here", 0] = 4
    tables._apply_delays({"offsets": {"1": 5}})
    tables.changes += 1
    await broker.metadata.save()
    for again in (False, True):  # what was lowered stays so, though the queue is longer then
        loaded = MetadataLog(broker.log, broker.limits)
        loaded.load()
        assert loaded.tables.offsets["A", "G"] == {0: 20, 1: 0, 2: 0}
        assert loaded.tables.delay_offsets[1] == 0
        assert loaded.tables.acknowledged("G", "A", 1) == []
        assert loaded.tables.offsets["%LMQ%$here", "G"] == {0: 4}
        assert loaded.tables.offsets["%LMQ%$gone", "G"] == {0: 9}, "it goes on where it ended"
        if not again:
            broker.metadata.promoted()  # as a slave that becomes the master
            assert tables_of(broker.metadata)["offsets"] == tables_of(loaded)["offsets"]
            async with duolog.Client(f"127.0.0.1:{node.port}") as c, c.producer() as producer:
                await producer.send_batch("A", [b"x"] * 30, queue_id=0)
    assert reached("A", 0) == 50


def hidden(broker: Broker) -> MetadataLog:
    """The tables of a replica that has lost its snapshots, and knows nothing to be confirmed."""
    shutil.rmtree(Path(broker.node.data) / "config")
    broker.store.hide_from(PhyOffset(0))
    metadata = MetadataLog(broker.log, broker.limits)
    metadata.load()
    return metadata


def confirmed(broker: Broker, metadata: MetadataLog) -> dict[str, Any]:
    """The tables once everything can be read."""
    broker.store.confirm(PhyOffset(broker.store.log.max_offset))
    while broker.store.dispatch():
        pass
    metadata.catch_up()
    return tables_of(metadata)


async def test_a_slave_saves_no_tables_that_lack_a_record_of_a_lost_segment(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the segment is there again, it would trust such a snapshot, and skip the record."""
    broker = broker_of(node)
    await fill(node)
    store, lost = broker.store, broker.store.next_offset(SYSTEM_TOPIC, 0)
    await broker.metadata.change({"op": "quota", "quota": {"subject": "Topic:A", "bytes_in": 7}})
    await broker.metadata.change({"op": "delete_group", "group": "none"})
    shutil.rmtree(Path(node.config.node.data) / "config")
    store.change_role(BrokerRole.SLAVE)
    read = store.get

    def get(topic: str, queue_id: int, offset: QueueOffset, wanted: Wanted) -> GetResult:
        if offset >= lost:
            return read(topic, queue_id, QueueOffset(max(lost + 1, offset)), wanted)
        return read(topic, queue_id, offset, Wanted(lost - offset, 1 << 20))

    def loaded() -> MetadataLog:
        found = MetadataLog(broker.log, broker.limits)
        found.load()
        assert found.tables.applied == lost + 2
        return found

    monkeypatch.setattr(store, "get", get)
    lacking = loaded()
    assert not lacking.quotas
    await lacking.save()
    monkeypatch.undo()
    assert loaded().quotas
    lacking.adopt_snapshot(broker.metadata.snapshot_bytes())
    await lacking.save()
    monkeypatch.setattr(store, "get", get)
    assert loaded().quotas


@pytest.mark.parametrize("cut", [False, True])
async def test_no_topic_is_guessed_while_changes_in_the_log_cannot_be_read(
    start_node: StartNode, cut: bool
) -> None:
    node = await start_node()
    await fill(node)
    broker = broker_of(node)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("L", 3, message_type="LITE")
    before = state_of(node)
    await node.stop()
    again = await start_node(
        data=Path(node.config.node.data), broker_role="SLAVE", ha={"master": free_endpoint()}
    )
    broker = broker_of(again)
    metadata = hidden(broker)
    assert {queue.topic for queue in broker.store.queues} >= {"A"}
    assert metadata.topics == {}
    await metadata.save()
    assert broker.store.disk.list("config") == [], "the next start would not look for more topics"
    if not cut:
        assert confirmed(broker, metadata) == before
    else:
        broker.store.truncate(PhyOffset(0))  # no other replica has any of it
        metadata.catch_up()
        assert metadata.topics == {}


async def test_topics_that_no_change_has_made_are_taken_once_all_changes_are_read(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory had another program's queues, so the log never said that it has everything."""
    node = await start_node()
    monkeypatch.setattr(Metadata, "empty", False)
    broker = broker_of(node)
    old = PutBatch("Old", 1, Columns.of([b"x"]), WallMs(1))
    assert broker.store.put(old, WallMs(1)).status is PutMessageStatus.PUT_OK
    await fill(node)
    before = state_of(node)
    assert "Old" not in before["topics"]
    await node.stop()
    again = await start_node(
        data=Path(node.config.node.data), broker_role="SLAVE", ha={"master": free_endpoint()}
    )
    metadata = hidden(broker_of(again))
    assert metadata.topics == {}
    found = confirmed(broker_of(again), metadata)
    assert found["topics"].pop("Old")["readQueueNums"] == 2
    assert found == before


async def test_a_group_made_again_has_no_dead_letters_that_came_after_its_deletion(
    node: Node,
) -> None:
    """A member of the deleted group had a message, and gave it up later."""
    broker = broker_of(node)
    metadata, settings = broker.metadata, new_group("g")
    await metadata.put_group(settings)
    await metadata.delete_group("g")
    metadata.auto_create("%DLQ%g", 1)
    await broker.log.put_and_wait(PutBatch("%DLQ%g", 0, Columns.of([b"late"]), 1))
    await metadata.put_group(settings)
    metadata.auto_create("%DLQ%g", 1)
    await broker.log.put_and_wait(PutBatch("%DLQ%g", 0, Columns.of([b"own"]), 1))
    await metadata.put_group(settings)  # altered: it keeps them
    low, high = broker.store.queue_range("%DLQ%g", 0)
    assert (high - low, high) == (1, 2)
