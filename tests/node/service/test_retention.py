"""Messages that a topic keeps for a shorter time than the log, and messages that were trimmed."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duolog
import numpy as np
import pytest
import structlog
from duolog import QueuePlace, Start
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.service.retention import OldestRecords
from duolog_server.serve.server import Node
from duolog_server.store.clocks import WallMs
from duolog_server.store.consumequeue import BLANK
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.retention import HOUR_MS
from duolog_server.store.status import RunningFlags
from tests.node.election.test_failover import Voters
from tests.node.replicas import WAIT_SECONDS, Group, broker_of, caught_up, client_of
from tests.nodefixtures import StartNode
from tests.until import until

FIRST = QueuePlace("broker-a", 0)


async def filled(client: duolog.Client, count: int = 20, queues: int = 1, **how: Any) -> None:
    await client.admin.create_topic("T", queues, **how)
    async with client.producer() as producer:
        for queue_id in range(queues):
            bodies = [b"%02d" % number for number in range(count)]
            await producer.send_batch("T", bodies, queue_id=queue_id, keys=[["k"]] * count)


async def begins_at(client: duolog.Client, topic: str = "T") -> list[int]:
    return [row.min_offset for row in (await client.admin.topics([topic]))[0].stats]


def older(node: Node, hours: float) -> None:
    """The node's messages are so much older from now on."""
    times = broker_of(node).times
    now = times.age_ms()
    times.age_ms = lambda: WallMs(now + int(hours * HOUR_MS))  # type: ignore[method-assign]


async def check_trimmed(client: duolog.Client, minimum: int = 7, end: int = 20) -> None:
    """What readers see of queue 0, by all ways there are."""
    assert await begins_at(client) == [minimum]
    wanted = [b"%02d" % number for number in range(minimum, end)]
    assert (await client.pull("T", 0, minimum)).body_list() == wanted
    below = await client.pull("T", 0, minimum - 1)
    assert not below.body_list()
    assert below.next_offset == minimum
    assert await client.admin.offset_at_time("T", 0, 0) == minimum
    by_key = await client.admin.find("T", key="k", count=32)
    assert [one.body for one in by_key] == wanted


async def test_what_was_trimmed_is_hidden_from_all_readers_over_a_stop_and_a_kill(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node()
    async with client_of(node) as client:
        await filled(client)
        hidden = (await client.admin.find("T", key="k"))[0]
        told = await client.admin.trim_topic("T", queue=FIRST, offset=7, dry_run=True)
        assert [(one.first, one.min_offset) for one in told] == [(0, 7)]
        assert await begins_at(client) == [0]
        told = await client.admin.trim_topic("T", queue=FIRST, offset=7)
        assert [(one.group, one.queue_id, one.first, one.min_offset) for one in told] == [
            ("broker-a", 0, 0, 7)
        ]
        await check_trimmed(client)
        with pytest.raises(duolog.NoSuchMessage):
            await client.admin.find(message_id=hidden.message_id)
        told = await client.admin.trim_topic("T", queue=FIRST, offset=5)
        assert [(one.first, one.min_offset) for one in told] == [(7, 7)], "it never falls"
        async with client.consumer("late", "T", start=Start.EARLIEST) as consumer:
            first = await consumer.get(timeout=20)
            assert first is not None
            assert first.queue_offset == 7
    await node.stop()
    node = await start_node()
    async with client_of(node) as client:
        await check_trimmed(client)
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "data", killed)
    for name in ("duologMetadata.json", "duologMetadata.json.bak"):
        (killed / "config" / name).unlink()
    node = await start_node(killed)
    async with client_of(node) as client:
        await check_trimmed(client)


@pytest.fixture
async def own(start_node: StartNode) -> AsyncIterator[duolog.Client]:
    """A client of a node without topics."""
    async with client_of(await start_node()) as made:
        yield made


async def test_a_trim_is_refused_for_what_has_no_minimum_of_its_own(own: duolog.Client) -> None:
    client, admin = own, own.admin
    await filled(client)
    with pytest.raises(duolog.BadRequest, match="end at 20"):
        await admin.trim_topic("T", queue=FIRST, offset=21)
    with pytest.raises(duolog.BadRequest, match="no queue 3"):
        await admin.trim_topic("T", 1, queue=QueuePlace("broker-a", 3))
    with pytest.raises(duolog.UnknownTopic):
        await admin.trim_topic("absent", 1)
    with pytest.raises(duolog.BadRequest, match="give queue"):
        await admin.trim_topic("T", offset=3)
    with pytest.raises(duolog.BadRequest, match="not both"):
        await admin.trim_topic("T")
    await admin.create_topic("%RETRY%g", 1)
    await admin.create_topic("L", 1, message_type="LITE")
    for topic, why in {
        "%RETRY%g": "redelivery",
        "L": "lite TTL",
        "DUOLOG_SYS_METADATA": "belongs to the system",
    }.items():
        with pytest.raises(duolog.BadRequest, match=why):
            await admin.trim_topic(topic, 1)
    for topic in ("%RETRY%g", "L"):
        with pytest.raises(duolog.BadRequest):
            await admin.alter_topic(topic, retention_hours=1)
    with pytest.raises(duolog.BadRequest, match="kept for 72 h"):
        await admin.alter_topic("T", retention_hours=73)
    with pytest.raises(duolog.BadRequest, match="kept for 72 h"):
        await admin.create_topic("new", 1, retention_hours=73)


async def test_the_retention_of_a_topic_is_shown_and_given_up(client: duolog.Client) -> None:
    admin = client.admin
    made = await admin.create_topic("T2", 1, retention_hours=6, retention_bytes=5000)
    assert (made.retention_hours, made.topic_retention_hours, made.retention_bytes) == (6, 6, 5000)
    with pytest.raises(duolog.TopicExists, match="retention 6 h and 5000 bytes"):
        await admin.create_topic("T2", 1)
    await admin.create_topic("T2", 1, retention_hours=6, retention_bytes=5000)
    await admin.alter_topic("T2", 2)
    [found] = await admin.topics(["T2"])
    assert (found.queues, found.topic_retention_hours, found.retention_bytes) == (2, 6, 5000)
    await admin.alter_topic("T2", retention_hours=0, retention_bytes=0)
    [found] = await admin.topics(["T2"])
    assert (found.retention_hours, found.topic_retention_hours) == (72, 0)
    assert found.retention_bytes == 0


async def test_a_topic_that_cannot_expire_yet_hinders_no_other_one(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    retention = broker_of(node).retention
    async with client_of(node) as client:
        await client.admin.create_topic("A", 1, retention_hours=6)
        await filled(client, retention_hours=6)
        await until(lambda: broker_of(node).store.queue_range("T", 0) == (0, 20))
        older(node, 6.1)
        expired = retention._expired

        async def some(config: Any, slices: Any) -> dict[int, int]:
            if config.name == "A":
                raise duolog.Busy("not now")
            return await expired(config, slices)

        monkeypatch.setattr(retention, "_expired", some)
        await retention.round()
        assert await begins_at(client) == [20]


@pytest.mark.parametrize("change", ["alter", "alter later", "make anew"])
async def test_a_topic_that_changed_while_a_round_counted_does_not_expire_by_what_was(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    node = await start_node()
    metadata, retention = broker_of(node).metadata, broker_of(node).retention
    async with client_of(node) as client:
        await filled(client, retention_hours=6)
        await until(lambda: broker_of(node).store.queue_range("T", 0) == (0, 20))
        older(node, 7)
        expired, applied = retention._expired, asyncio.Event()
        altering: list[asyncio.Task[Any]] = []

        async def changed(config: Any, slices: Any) -> dict[int, int]:
            monkeypatch.undo()
            row = await expired(config, slices)
            if change == "alter":
                await client.admin.alter_topic("T", retention_hours=8)
            elif change == "alter later":  # it is stored, and readers do not see it yet
                config = replace(config, retention_hours=8)
                altering.append(asyncio.ensure_future(metadata.put_topic(config)))
                altering[0].add_done_callback(lambda _: applied.set())
                await asyncio.sleep(0)
                assert not applied.is_set()
            else:
                await client.admin.delete_topic("T")
                await filled(client, retention_hours=8)
                await until(lambda: broker_of(node).store.queue_range("T", 0) == (20, 40))
                row = {0: 40}
            return row

        monkeypatch.setattr(retention, "_expired", changed)
        await retention.round()
        await asyncio.gather(*altering)
        assert await begins_at(client) == [20 if change == "make anew" else 0]
        await retention.round()
        assert await begins_at(client) == [20 if change == "make anew" else 0]
        older(node, 2)
        await retention.round()
        assert await begins_at(client) == [40 if change == "make anew" else 20]


async def test_a_topic_whose_files_cannot_be_read_hinders_no_other_one_and_is_reported_once(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    broker = broker_of(node)
    retention, store_time = broker.retention, broker.store.store_time
    async with client_of(node) as client:
        await filled(client, retention_hours=6)
        await client.admin.create_topic("A", 1, retention_hours=6)
        async with client.producer() as producer:
            await producer.send("A", b"a")
        await until(lambda: broker.store.queue_range("A", 0) == (0, 1))
        older(node, 7)

        def broken(topic: str, queue_id: int, queue_offset: int) -> int:
            if topic == "A":
                raise OSError(errno.EIO, "Input/output error")
            return store_time(topic, queue_id, queue_offset)

        with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
            patch.setattr(broker.store, "store_time", broken)
            for _ in range(2):
                await retention.round()
        assert await begins_at(client) == [20]
        assert await begins_at(client, "A") == [0]
        [told] = [row for row in logs if row["event"] == "messages of topics do not expire yet"]
        assert (told["topics"], told["count"]) == (["A"], 1)
        assert "Input/output error" in told["reason"]
        assert retention.status() == {"topics_not_expiring": 1}
        with structlog.testing.capture_logs() as logs:
            await retention.round()
        assert await begins_at(client, "A") == [1]
        assert retention.status() == {}
        assert [row["event"] for row in logs] == ["messages of topics expire again"]


async def test_a_full_disk_is_why_topics_do_not_expire(start_node: StartNode) -> None:
    node = await start_node()
    broker = broker_of(node)
    async with client_of(node) as client:
        await filled(client, retention_hours=6)
        await until(lambda: broker.store.queue_range("T", 0) == (0, 20))
        older(node, 7)
        broker.store.flags.set(RunningFlags.DISK_FULL)
        with structlog.testing.capture_logs() as logs:
            await broker.retention.round()
        broker.store.flags.clear(RunningFlags.DISK_FULL)
        [told] = [row for row in logs if row["event"] == "messages of topics do not expire yet"]
        assert told["topics"] == ["T"]
        assert "full" in told["reason"]
        assert broker.retention.status() == {"topics_not_expiring": 1}
        await broker.retention.round()
        assert await begins_at(client) == [20]


async def test_messages_that_are_older_than_their_topics_retention_expire(
    start_node: StartNode,
) -> None:
    node = await start_node()
    retention = broker_of(node).retention
    async with client_of(node) as client, client.producer() as producer:
        await filled(client, queues=2, retention_hours=6)
        await client.admin.create_topic("other", 1)
        await producer.send("other", b"kept")
        older(node, 5.9)
        await retention.round()
        assert await begins_at(client) == [0, 0]
        older(node, 6.1)
        applied = broker_of(node).metadata.tables.applied
        await retention.round()
        assert await begins_at(client) == [20, 20]
        assert broker_of(node).metadata.tables.applied == applied + 1, "one record for all queues"
        await retention.round()
        assert broker_of(node).metadata.tables.applied == applied + 1
        assert await begins_at(client, "other") == [0]
        receipt = await producer.send("T", b"next", queue_id=1)
        assert (await client.pull("T", 1, receipt.queue_offset)).body_list() == [b"next"]


async def test_the_oldest_messages_of_a_topic_expire_where_it_keeps_so_many_bytes(
    start_node: StartNode,
) -> None:
    node = await start_node()
    async with client_of(node) as client:
        await filled(client, queues=2)
        [part] = await client.admin.topics(["T"], sizes=True)
        of_queue, other = (row.log_bytes or 0 for row in part.stats)
        await client.admin.alter_topic("T", retention_bytes=other + of_queue // 2)
        await broker_of(node).retention.round()
        first, second = await begins_at(client)
        assert (first, second) == (10, 0), "those of queue 0 were stored first"
        await client.admin.alter_topic("T", retention_bytes=1)
        await broker_of(node).retention.round()
        assert await begins_at(client) == [20, 20]


async def test_no_more_expires_where_messages_are_hidden_while_their_bytes_are_counted(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes are counted already, and would have to come from other messages."""
    node = await start_node()
    retention = broker_of(node).retention
    async with client_of(node) as client:
        await filled(client, queues=2)
        [part] = await client.admin.topics(["T"], sizes=True)
        of_queue, other = (row.log_bytes or 0 for row in part.stats)
        await client.admin.alter_topic("T", retention_bytes=other + of_queue // 2)
        count = retention._log_bytes.of

        async def trimmed(topic: str, queue_id: int, allowance: Any) -> int | None:
            found = await count(topic, queue_id, allowance)
            if queue_id == 0:
                await client.admin.trim_topic("T", queue=FIRST, offset=15)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(retention._log_bytes, "of", trimmed)
            await retention.round()
        assert await begins_at(client) == [15, 0]
        await retention.round()
        assert await begins_at(client) == [15, 0]


async def test_a_slave_hides_the_same_and_goes_on_with_that(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = Group(start_node, tmp_path)
    master, slave = await group.start_pair()
    async with group.client(master) as client:
        await filled(client)
        await client.admin.trim_topic("T", queue=FIRST, offset=7)
    await caught_up(master, slave)
    store = broker_of(slave).store
    await until(lambda: store.queue_range("T", 0) == (7, 20))
    later = await group.start_slave("later")
    await caught_up(master, later)
    await until(lambda: broker_of(later).store.queue_range("T", 0) == (7, 20))
    await slave.stop()
    slave = await group.start_slave()
    assert broker_of(slave).store.queue_range("T", 0) == (7, 20)


async def test_the_next_master_hides_the_same(start_node: StartNode, tmp_path: Path) -> None:
    voters = Voters(start_node, tmp_path)
    await voters.start_all()
    async with voters.client(timeout=WAIT_SECONDS) as client, client.producer() as producer:
        await filled(client)
        await client.admin.trim_topic("T", queue=FIRST, offset=7)
        former = voters.the_leader()
        await client.admin.failover()
        await until(lambda: voters.leader not in (None, former), "another node leads")
        await check_trimmed(client)
        receipt = await producer.send("T", b"20")
        assert receipt.queue_offset == 20
    stores = [broker_of(node).store for node in voters.nodes.values()]
    await until(lambda: {one.queue_range("T", 0) for one in stores} == {(7, 21)})


async def test_queue_files_of_hidden_messages_are_deleted_once_the_note_tells_of_that(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node()
    async with client_of(node) as client:
        await filled(client, 2500)
        await client.admin.trim_topic("T", queue=FIRST, offset=2200)
    broker = broker_of(node)
    files = tmp_path / "data" / "consumequeue" / "T" / "0"
    broker.store.queues.ends._rows.pop(("T", 0), None)
    assert broker.store.queues.delete_hidden() == 0, "a kill would make them missed"
    await node.stop()  # which notes the ends of all queues
    node = await start_node()
    broker = broker_of(node)
    assert broker.store.queues.delete_hidden() == 2
    broker.store.disk.reclaim()
    assert sorted(path.name for path in files.iterdir()) == [f"{40_000:020}"]
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    node = await start_node(tmp_path / "killed")
    recovered = broker_of(node).recovered
    assert recovered is not None
    assert not recovered.rebuilt_queues
    assert broker_of(node).store.queue_range("T", 0) == (2200, 2500)


async def test_a_queue_file_that_cannot_be_removed_hinders_no_other_one(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    async with client_of(node) as client:
        await filled(client, 1200, queues=2)
        for queue_id in range(2):
            place = QueuePlace("broker-a", queue_id)
            await client.admin.trim_topic("T", queue=place, offset=1100)
    await node.stop()  # which notes the ends of all queues
    broker = broker_of(await start_node())
    queues, cleaner = broker.store.queues, broker.log._cleaner
    unlink = os.unlink

    def refused(path: Any, **how: Any) -> None:
        if "/T/0/" in str(path):
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, **how)

    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(os, "unlink", refused)
        for _ in range(2):
            await cleaner._clean_once()
    assert [one.queue_id for one in queues if one.has_hidden_files] == [0]
    assert [(row["event"], row["reason"]) for row in logs] == [
        ("cannot remove queue files of hidden messages", "T/0: Input/output error")
    ]
    await cleaner._clean_once()
    assert not any(one.has_hidden_files for one in queues)


async def test_a_deleted_topic_takes_its_minimums_with_it(own: duolog.Client) -> None:
    client = own
    await filled(client)
    await client.admin.trim_topic("T", queue=FIRST, offset=7)
    await client.admin.delete_topic("T")
    await client.admin.create_topic("T", 1)
    async with client.producer() as producer:
        receipt = await producer.send("T", b"new")
    assert (await client.pull("T", 0, receipt.queue_offset)).body_list() == [b"new"]


async def test_what_cannot_be_stored_is_for_the_next_round(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    broker = broker_of(node)
    async with client_of(node) as client:
        await filled(client, retention_hours=1)
        older(node, 2)

        async def full(*changes: Any) -> None:
            raise duolog.Busy("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(broker.metadata, "change", full)
            await broker.retention.round()
        assert await begins_at(client) == [0]
        await broker.retention.round()
        assert await begins_at(client) == [20]


async def test_a_worker_goes_on_behind_messages_that_were_trimmed_while_it_had_them(
    own: duolog.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(own, 4)
    handled: list[bytes] = []
    async with own.consumer("g", "T", commit_interval=0.05) as consumer:

        async def handle(message: duolog.Message) -> None:
            handled.append(message.body)
            if message.queue_offset == 0:
                await own.admin.trim_topic("T", queue=FIRST, offset=2)
                raise RuntimeError("this one failed")
            if message.queue_offset == 3:
                consumer.stop()

        await consumer.run(handle)
    assert handled == [b"00", b"01", b"02", b"03"]
    assert "is not retried, as it is gone: T/0 has no message at 0: it has those from 2" in (
        caplog.text
    )
    [row] = (await own.admin.group("g")).queues
    assert (row.topic, row.committed) == ("T", 4)


async def test_a_message_that_the_master_cannot_read_yet_is_not_gone(
    own: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave may have shown it, while a full disk keeps the master's queues behind its log."""
    await filled(own, 4)
    async with own.consumer("g", "T") as consumer:
        message = await consumer.get(timeout=WAIT_SECONDS)
        assert message is not None
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "queue_range", lambda *_: (0, 0))
            patch.setattr(MessageStore, "record_at", lambda *_: None)
            with pytest.raises(duolog.Busy, match="T/0 0 cannot be read here yet"):
                await consumer.send_back(message)
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "record_at", lambda *_: None)
            with pytest.raises(duolog.CorruptBatch, match="T/0 0 is damaged on the master"):
                await consumer.send_back(message)
        assert await consumer.send_back(message) == "%RETRY%g"


# -- the oldest records of several queues ----------------------------------------------------------

SIZES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 50), st.booleans()), min_size=1, max_size=60
)


class Queues:
    """The entries of queues whose records lie behind each other in a log."""

    def __init__(self, records: list[tuple[int, int, bool]]) -> None:
        self.rows: dict[int, list[tuple[int, int]]] = {}
        at = 0
        for queue_id, size, lost in records:
            self.rows.setdefault(queue_id, []).append((0, BLANK) if lost else (at, size))
            at += size

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, len(self.rows.get(queue_id, ()))

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> Any:
        rows = self.rows[queue_id][offset : offset + count]
        return np.array([[at, size, 0] for at, size in rows], np.int64).reshape(-1, 3).T


@given(SIZES, st.integers(1, 400), st.sampled_from([1, 2, 64]))
def test_the_oldest_records_go_and_no_more_of_them_than_have_to(
    records: list[tuple[int, int, bool]], excess: int, least: int
) -> None:
    queues: Any = Queues(records)
    with pytest.MonkeyPatch.context() as patch:
        module = "duolog_server.node.service.retention."
        patch.setattr(module + "QUEUE_ENTRIES_LEAST", least)
        patch.setattr(module + "ENTRIES_AT_ONCE", 1)
        oldest = OldestRecords.of(queues, "T", range(4))
        left, before = excess, dict(oldest.offsets)
        while left > 0:
            passed, entries = oldest.pass_by(queues, left)
            if not entries:
                break
            assert any(oldest.offsets[one] > offset for one, offset in before.items())
            assert all(oldest.offsets[one] >= offset for one, offset in before.items())
            left, before = left - passed, dict(oldest.offsets)
    gone = [r for one, end in oldest.offsets.items() for r in queues.rows[one][:end]]
    kept = [r for one, end in oldest.offsets.items() for r in queues.rows[one][end:]]
    gone, kept = ([row for row in rows if row[1] != BLANK] for rows in (gone, kept))
    assert not gone or not kept or max(gone) < min(kept), "in whichever queue they are"
    size = sum(size for _, size in gone)
    assert size == excess - left
    assert left <= 0 or not kept
    assert not gone or size - max(gone)[1] < excess


def test_queues_whose_files_are_gone_meanwhile_end_the_search() -> None:
    class Gone(Queues):
        def entries(self, topic: str, queue_id: int, offset: int, count: int) -> Any:
            return np.empty((3, 0), np.int64)

    queues: Any = Gone([(0, 10, False)])
    assert OldestRecords.of(queues, "T", [0]).pass_by(queues, 5) == (0, 0)
