"""Master and slave in one process: replication, acknowledgements, refusals."""

import asyncio
import contextlib
import errno
import gc
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
import structlog
from duolog._errors import error_of
from duolog._nodechannel import uncancelled
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire

from duolog_server.ha import frames
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.frames import Ack, Frame, Hello, Refusal, Refuse, Welcome
from duolog_server.ha.master import Master
from duolog_server.ha.progress import ConnectionState
from duolog_server.node.consuming.reading import Selection
from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.node.replication import masterstream, roles, slavestream
from duolog_server.node.replication.outgoing import HA_METHOD
from duolog_server.node.runtime.config import ConfigError, load
from duolog_server.ops.cli.cluster import row_of
from duolog_server.ops.cli.node import problems_of
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.metadata import SYSTEM_TOPIC
from duolog_server.store.osdisk import OsDisk
from tests.certificates import certificates
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import (
    WAIT_SECONDS,
    Elected,
    Group,
    broker_of,
    caught_up,
    following,
    in_sync,
    log_bytes,
    master_of,
    slave_of,
)
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture
def group(start_node: StartNode, tmp_path: Path) -> Group:
    return Group(start_node, tmp_path)


class Peer:
    """Somebody on the replication port, who may say anything."""

    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self.call = call

    async def say(self, *said: Frame | bytes) -> None:
        for one in said:
            await self.call.write(one if isinstance(one, bytes) else frames.encode(one))

    async def receive(self) -> Frame | None:
        """The next frame, None where the master hung up."""
        async with asyncio.timeout(60):
            try:
                data = await uncancelled(self.call.read())
            except (grpc.aio.AioRpcError, duolog.Unavailable):
                return None
        return frames.decode(data) if isinstance(data, bytes) else None


@asynccontextmanager
async def peer(master: Node) -> AsyncIterator[Peer]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ha_port}") as channel:
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        stream = channel.stream_stream(HA_METHOD)
        call = stream()
        yield Peer(call)
        call.cancel()


def hello(cluster: str = "DefaultCluster", node: str = "peer", **changes: Any) -> Hello:
    values: dict[str, Any] = {
        "cluster": cluster, "group": "broker-a", "node": node, "incarnation": 1, "endpoint": "",
        "promised": 0, "min_offset": 0, "end": 0, "durable": 0, "tail_start": 0, "tail_crc": 0,
        "segment_bytes": 1 << 20, "epochs": (), **changes,
    }  # fmt: skip
    return Hello(**values)


# -- what flows ------------------------------------------------------------------------------------


async def test_a_slave_gives_no_offset_again_of_a_queue_that_its_log_has_nothing_of(
    group: Group,
) -> None:
    master = await group.start_master("ASYNC_MASTER")
    broker = broker_of(master)
    async with group.client(master) as client, client.producer() as producer:
        for topic in "AC":
            await client.admin.create_topic(topic, 1)
        await producer.send_batch("A", [b"x"] * 7, queue_id=0)
        while broker.store.segment < 3:
            await producer.send_batch("C", [b"." * 1000] * 200, queue_id=0)
    await until(lambda: broker.store.flushed_offset >= broker.store.segment << 20)
    async with broker.log.file_work.changes:
        later = WallMs(broker.log.times.wall_ms() + 100 * 3_600_000)
        broker.store.retention.round(later, 4, broker.store.dispatcher.reput_from)
    assert broker.store.log.min_offset > 0
    slave = await group.start_slave()
    await caught_up(master, slave)
    store = broker_of(slave).store
    for topic in ("A", "C", SYSTEM_TOPIC):
        assert store.queue_range(topic, 0)[1] == broker.store.queue_range(topic, 0)[1], topic
    await slave.stop()
    slave = await group.start_slave()
    assert broker_of(slave).store.queue_range("A", 0)[1] == 7


async def test_a_slave_holds_the_masters_log_byte_for_byte(group: Group) -> None:
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 4)
        receipt = await producer.send_batch("T", [b"%d" % k for k in range(5000)])
        large = await producer.send_batch("T", [b"x" * 60_000] * 60)
        assert (receipt.status, large.status) == ("PUT_OK", "PUT_OK")
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    assert broker_of(master).store.log.max_offset > 3 << 20, "several segments"
    async with group.client(slave) as reader:
        seen = [
            body for queue in range(4) for body in (await reader.pull("T", queue, 0)).body_list()
        ]
    assert {b"%d" % k for k in range(5000)} <= set(seen)


async def test_a_slave_skips_no_message_that_its_master_has(group: Group) -> None:
    """A group would commit beyond them, and never see them."""
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"x" * 60_000] * 60)
    await caught_up(master, slave)
    await slave.stop()
    await master.stop()
    (group.root / "s" / "commitlog" / f"{1 << 20:020d}").unlink()
    slave = await group.start_slave()
    assert broker_of(slave).store.log.corrupt_ranges
    reader, everything = broker_of(slave).reader, Selection(EVERYTHING, 32, 1 << 20)
    read = reader.read(("T", 0), 0, everything)
    while read.next_offset < 16:
        assert read.count == 1
        read = reader.read(("T", 0), read.next_offset, everything)
    with pytest.raises(duolog.NotMaster, match="lacks messages of T/0 between offsets 1"):
        while True:
            read = reader.read(("T", 0), read.next_offset, everything)
    assert 16 <= read.next_offset < 20, "up to the hole it serves"
    master = await group.start_master()
    await caught_up(master, slave)
    async with group.client(slave) as client:
        assert sum([(await client.pull("T", 0, k)).count > 0 for k in range(60)]) == 60


async def test_metadata_reaches_the_slave_through_the_log(group: Group) -> None:
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        for name in ("A", "B", "C"):
            await client.admin.create_topic(name, 2)
        await producer.send_batch("A", [b"old"] * 10)
        await producer.send_batch("B", [b"b"] * 10)
        async with client.consumer("readers", "B") as consumer:
            for _ in range(10):
                assert await consumer.get(WAIT_SECONDS)
            await consumer.commit()
        await client.admin.delete_topic("A")
        await client.admin.delete_topic("C")
        await client.admin.create_topic("A", 3)
        await producer.send("A", b"new", queue_id=0)
    await caught_up(master, slave)
    ours, theirs = broker_of(master).metadata.tables, broker_of(slave).metadata.tables
    assert theirs.snapshot() == ours.snapshot() or (
        theirs.snapshot().to_bytes() == ours.snapshot().to_bytes()
    )
    async with group.client(slave) as reader:
        low, high = broker_of(slave).store.queue_range("A", 0)
        batch = await reader.pull("A", 0, low)
        assert batch.body_list() == [b"new"]
        assert high == low + 1
        offsets = (await reader.admin.group("readers")).queues
        assert sum(queue.committed or 0 for queue in offsets) == 10


async def test_the_next_master_has_all_metadata_after_any_changes(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await Elected.start(start_node, tmp_path)
    chance = random.Random(11)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        admin = client.admin
        made: list[str] = []

        async def change(number: int) -> None:
            topic = chance.choice(made) if made else ""
            kinds = ["create", "create", "alter", "delete", "group", "commit", "quota"]
            kind = chance.choice(kinds)
            if kind == "create" or not topic:
                made.append(f"T{number}")
                await admin.create_topic(made[-1], chance.randint(1, 5), chance.choice([4, 6]))
            elif kind == "alter":
                await admin.alter_topic(topic, queues=6 + number)
            elif kind == "delete":
                made.remove(topic)
                await admin.delete_topic(topic)
            elif kind == "group":
                await admin.put_group(f"G{number % 7}", retry_times=chance.randint(1, 9))
            elif kind == "quota":
                await admin.put_quota(f"User:{number % 3}", bytes_in=chance.randint(1, 9))
            else:
                place = (topic, "broker-a", 0)
                await admin.commit(f"G{number % 7}", {place: 0})

        for turn in range(3):
            for number in range(30):
                await change(100 * turn + number)
            old = group.the_master()
            wanted = tables_of(old)
            new = await group.switch(client)
            await until(partial(knows, new))
            assert tables_of(new) == wanted
            assert broker_of(new).core.throttle.quotas.count == len(wanted["quotas"]) > 0
            await until(group.is_whole)


async def test_the_next_master_denies_nothing_that_it_does_not_know_yet(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await Elected.start(start_node, tmp_path)
    async with (
        duolog.Client(group.endpoints, timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        await client.admin.create_topic("Grows", 1)
        master = group.the_master()
        for node in group.nodes:
            if node is not master:  # they store what follows, and look at it later
                monkeypatch.setattr(broker_of(node).store, "dispatch", lambda: False)
        await client.admin.create_topic("T", 3)
        await client.admin.put_group("G", retry_times=3)
        await client.admin.alter_topic("Grows", queues=2)
        await group.switch(client)
        sends = [
            asyncio.ensure_future(producer.send("T", b"x", queue_id=2)),
            asyncio.ensure_future(producer.send("Grows", b"x", queue_id=1)),
        ]
        again = asyncio.ensure_future(client.admin.create_topic("T", 1))
        raised = asyncio.ensure_future(client.admin.put_group("G", orderly=True))
        altered = asyncio.ensure_future(client.admin.alter_topic("T", queues=4))
        await asyncio.sleep(0.3)
        assert not any(work.done() for work in (*sends, raised, altered))
        monkeypatch.undo()
        assert [(await work).status for work in sends] == ["PUT_OK", "PUT_OK"]
        with pytest.raises(duolog.TopicExists):
            await again
        assert (await altered).queues == 4
        assert (await raised).retry_times == 3


def knows(node: Node) -> bool:
    return not broker_of(node).replication.may_be_behind()


def tables_of(node: Node) -> Any:
    """Topics, groups and offsets; the number of records that made them may differ."""
    tables = json.loads(broker_of(node).metadata.tables.snapshot().to_bytes())
    del tables["applied"]
    return tables


async def test_a_slave_that_never_saw_the_first_segments_still_has_the_metadata(
    group: Group,
) -> None:
    master = await group.start_master(role="ASYNC_MASTER")
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("Early", 7)
        await client.admin.create_topic("T", 4)
        await producer.send_batch("T", [b"x" * 60_000] * 60)
    log = broker_of(master).store.log
    async with broker_of(master).log.no_flush():
        log.queue.remove(log.queue.files[0])
    slave = await group.start_slave()
    await caught_up(master, slave)
    assert broker_of(slave).store.log.min_offset == log.min_offset > 0
    assert broker_of(slave).metadata.topics["Early"].queues == 7
    assert log_bytes(slave, log.min_offset) == log_bytes(master, log.min_offset)


async def test_a_slave_behind_what_its_master_keeps_begins_there_and_says_so(group: Group) -> None:
    master = await group.start_master(role="ASYNC_MASTER")
    slave = await group.start_slave()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await caught_up(master, slave)
        await slave.stop()
        await producer.send_batch("T", [bytes(60_000)] * 60)
    log = broker_of(master).store.log
    async with broker_of(master).log.no_flush():
        log.queue.remove(log.queue.files[0])
    with structlog.testing.capture_logs() as logged:
        slave = await group.start_slave()
        await caught_up(master, slave)
    assert broker_of(slave).store.log.min_offset == log.min_offset > 0
    (line,) = [one for one in logged if one["event"] == "log cut to follow the master"]
    assert (line["truncated_bytes"], line["resets"]) == (0, 1)


async def test_a_restarted_slave_goes_on_where_it_was(group: Group) -> None:
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"1"] * 100)
        await caught_up(master, slave)
        await slave.stop()
        await in_sync(master, 1)
        with pytest.raises(duolog.SlaveNotAvailable):
            await producer.send("T", b"2")
        slave = await group.start_slave()
        await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    machine = slave_of(slave)
    assert (machine.truncated_bytes, machine.resets) == (0, 0)


async def test_roles_can_be_swapped_by_hand(group: Group, start_node: StartNode) -> None:
    """A clean switch: the slave becomes the master, the master its slave; nothing is lost."""
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"%d" % k for k in range(100)])
    await caught_up(master, slave)
    await slave.stop()
    await in_sync(master, 1)
    async with group.client(master) as client, client.producer(accept_weak=True) as producer:
        late = await producer.send("T", b"stored on the old master alone")
    assert late.status == "SLAVE_NOT_AVAILABLE"
    await master.stop()
    new = await start_node(
        group.root / "s", ha={"listen": free_endpoint()}, name="s", broker_role="SYNC_MASTER"
    )
    old = await start_node(
        group.root / "m",
        ha={"master": f"127.0.0.1:{new.ha_port}"},
        name="m",
        broker_role="SLAVE",
    )
    await caught_up(new, old)
    assert slave_of(old).truncated_bytes > 0, "what nobody else had is cut off"
    assert log_bytes(old) == log_bytes(new)
    async with group.client(new) as client:
        async with client.producer() as producer:
            receipt = await producer.send("T", b"100")
        assert (receipt.status, receipt.queue_offset) == ("PUT_OK", 100)
        batch = await client.pull("T", 0, 0)
        assert batch.body_list() == [b"%d" % k for k in range(101)]


# -- what is promised ------------------------------------------------------------------------------


async def test_a_put_waits_for_a_slow_slave_and_times_out(group: Group) -> None:
    master = await group.start_master()
    machine = master_of(master)
    async with group.client(master) as client, peer(master) as slow:
        await slow.say(hello())
        welcome = await slow.receive()
        assert isinstance(welcome, Welcome)
        await slow.say(Ack(welcome.epoch, 0, 0, "peer", 1))
        await in_sync(master)
        creating = asyncio.ensure_future(client.admin.create_topic("T", 1))
        end = machine.store.log.max_offset
        await until(lambda: machine.store.log.max_offset > end)
        end = machine.store.log.max_offset
        await until(lambda: machine.sessions[1].sent == end)
        assert not creating.done()
        await slow.say(Ack(welcome.epoch, end, 0, "peer", 1))
        await creating
        machine.group_transfer._timeout_ms = 300
        sent = append_request([b"x"], producer_id=b"producer01")
        reply = await append(client, sent)
        assert reply.status == wire.FLUSH_SLAVE_TIMEOUT
        assert reply.count == 1, "it is stored"
        sent.again = True
        reply = await append(client, sent)
        assert (reply.status, len(reply.duplicates)) == (wire.FLUSH_SLAVE_TIMEOUT, 1), "it waits"
        assert broker_of(master).store.queue_range("T", 0) == (0, 0), "and shown to nobody"
        reply = await append(client, append_request([b"y"], no_wait=True))
        assert reply.status == wire.PUT_OK, "WAIT=false"
        await slow.say(Ack(welcome.epoch, machine.store.log.max_offset, 0, "peer", 1))
        await until(lambda: broker_of(master).store.queue_range("T", 0) == (0, 2))


async def test_too_few_replicas_are_logged_once_and_their_end(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "REFUSED_MS", 0)
    group.ha |= {"min_in_sync_replicas": 2}
    with structlog.testing.capture_logs() as lines:

        def events(word: str) -> list[str]:
            return [line["event"] for line in lines if word in line["event"]]

        master = await group.start_master()
        await until(lambda: bool(events("too few replicas")))
        assert not events("enough replicas")
        await group.start_slave()
        await in_sync(master)
        await until(lambda: bool(events("enough replicas")))
    assert len(events("enough replicas") + events("too few replicas")) == 2


@pytest.mark.usefixtures("nothing_noted")
async def test_with_too_few_replicas_in_sync_nothing_is_stored(group: Group) -> None:
    group.ha |= {"min_in_sync_replicas": 2}
    master = await group.start_master()
    async with group.client(master) as client:
        with pytest.raises(duolog.Busy, match="SLAVE_NOT_AVAILABLE"):
            await client.admin.create_topic("T", 1)
        before = broker_of(master).store.log.max_offset
        reply = await append(client, append_request([b"x"]))
        assert reply.status == wire.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert broker_of(master).store.log.max_offset == before
        (problem,) = problems_of(await client.admin.node_status())
        assert problem == f"puts are refused: {reply.reason}"
        await group.start_slave()
        await in_sync(master)
        await client.admin.create_topic("T", 1)
        assert (await append(client, append_request([b"x"]))).status == wire.PUT_OK
        assert problems_of(await client.admin.node_status()) == []


async def test_under_sync_flush_the_slaves_disk_counts_and_one_that_fails_ends(
    group: Group,
) -> None:
    master, slave = await group.start_pair(flush_disk_type="SYNC_FLUSH")
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        assert (await producer.send("T", b"x")).status == "PUT_OK"
        stored = broker_of(master).store.log.max_offset
        assert broker_of(slave).store.flushed_offset == stored
        assert broker_of(master).store.flushed_offset == stored
        file = broker_of(slave).store.log.queue.files[-1].file

        def broken() -> None:
            raise OSError(5, "no")

        file.sync = broken  # type: ignore[method-assign]
        reply = await append(client, append_request([b"x"]))
        assert reply.status == wire.FLUSH_SLAVE_TIMEOUT
    await until(broker_of(slave).failed.is_set)
    sessions = master_of(master).sessions.values()
    assert all(s.durable < reply.physical_offset + 1 for s in sessions)


async def test_a_slave_with_a_full_disk_says_so_and_goes_on_when_there_is_room(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.start_pair("ASYNC_MASTER")
    store = broker_of(slave).store
    full = True
    create = store.disk.create

    def maybe(path: str, size: int, *told: int) -> Any:
        if full and path.startswith("commitlog"):
            raise OSError(28, "No space left on device")
        return create(path, size)

    monkeypatch.setattr(store.disk, "create", maybe)
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"x" * 60_000] * 60)
        await until(lambda: "No space" in slave_of(slave).reason)
        full = False
        await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)


async def test_a_node_that_starts_on_a_full_disk_serves_readers_and_writers_when_there_is_room(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        await append(client, append_request([b"before"]))
    await node.stop()
    write, full = OsDisk.write, True

    def maybe(self: OsDisk, path: str, data: bytes) -> None:
        if full and path.startswith("config/"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, data)

    monkeypatch.setattr(OsDisk, "write", maybe)
    monkeypatch.setattr("duolog_server.node.replication.roles.OPEN_AGAIN_MS", 100)
    node = await start_node()
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        assert (await client.pull("T", 0, 0)).body_list() == [b"before"]
        reply = await append(client, append_request([b"x"]))
        assert (reply.status, reply.count) == (wire.SERVICE_NOT_AVAILABLE, 0)
        with pytest.raises(duolog.Busy):
            await client.admin.create_topic("U", 1)
        full = False
        await until(lambda: not broker_of(node).replication.closed)
        assert (await append(client, append_request([b"after"]))).status == wire.PUT_OK


# -- reading from slaves ---------------------------------------------------------------------------


async def test_a_slave_takes_no_writes_names_its_master_and_waits_for_offsets(group: Group) -> None:
    master, slave = await group.start_pair("ASYNC_MASTER")
    async with group.client(slave) as client:
        reply = await append(client, append_request([b"x"]))
        assert reply.status == wire.NOT_MASTER
        assert reply.master == f"127.0.0.1:{master.port}"
        with pytest.raises(grpc.RpcError) as refused:
            await client._router.seed.admin.CreateTopic(wire.TopicRequest(topic="T", queues=1))
        error = error_of(refused.value)
        assert isinstance(error, duolog.NotMaster)
        assert error.endpoint == f"127.0.0.1:{master.port}"
        # The SDK goes where it is sent.
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            await producer.send("T", b"x")
    await caught_up(master, slave)
    async with group.client(slave) as reader:
        request = wire.PullRequest(topic="T", queue_id=0, queue_offset=5)
        pulled = await reader._router.seed.messages.Pull(request)
        assert (pulled.status, pulled.next_offset) == (wire.NO_NEW_MESSAGE, 5)
    async with group.client(master) as reader:
        pulled = await reader._router.seed.messages.Pull(request)
        assert (pulled.status, pulled.next_offset) == (wire.OFFSET_TOO_LARGE, 1)


async def test_a_client_that_knows_a_slave_finds_the_master(group: Group) -> None:
    master, slave = await group.start_pair()
    async with group.client(master) as client:
        await client.admin.create_topic("T", 1)
    await caught_up(master, slave)
    for number, known in enumerate([(slave, master), (slave,)]):
        async with group.client(*known) as client, client.producer() as producer:
            assert (await producer.send("T", b"x")).status == "PUT_OK"
        await broker_of(master).log.caught_up()  # before a read
        assert broker_of(master).store.queue_range("T", 0) == (0, number + 1)


async def test_slave_read_enable_false_sends_readers_away(group: Group) -> None:
    master = await group.start_master(role="ASYNC_MASTER")
    slave = await group.start_slave(ha={"slave_read_enable": False})
    async with group.client(master) as client:
        await client.admin.create_topic("T", 1)
    await caught_up(master, slave)
    async with group.client(slave) as reader:
        with pytest.raises(grpc.RpcError) as refused:
            request = wire.PullRequest(topic="T", queue_id=0, queue_offset=0)
            await reader._router.seed.messages.Pull(request)
        assert isinstance(error_of(refused.value), duolog.NotMaster)
        assert (await reader.pull("T", 0, 0)).count == 0  # by the master


async def test_lagging_readers_are_redirected_to_a_slave(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send_batch("T", [b"x" * 1000] * 100)
        await until(lambda: broker_of(master).store.queue_range("T", 0)[1] == 100)
        request = wire.PullRequest(topic="T", queue_id=0, queue_offset=0, max_messages=10)
        near = await client._router.seed.messages.Pull(request)
        assert near.suggest_endpoint == ""
        monkeypatch.setattr(broker_of(master).reader, "_in_memory_bytes", 1000)
        far = await client._router.seed.messages.Pull(request)
        assert far.suggest_endpoint == f"127.0.0.1:{slave.port}"


async def test_status_tells_offsets_lag_and_state(group: Group) -> None:
    master, slave = await group.start_pair()
    async with group.client(master) as client:
        await client.admin.create_topic("T", 1)
        await caught_up(master, slave)
        reply = await client.admin.cluster_status()
    ours, theirs = reply.nodes
    assert (ours.role, theirs.role) == ("SYNC_MASTER", "SLAVE")
    assert ours.replication.in_sync_replicas == 2
    assert ours.replication.push2slave_max_offset == ours.max_offset == ours.confirm_offset
    assert theirs.replication.state == "TRANSFER"
    assert (theirs.max_offset, theirs.replication.lag_bytes) == (ours.max_offset, 0)
    assert theirs.listen == f"127.0.0.1:{slave.port}"
    async with group.client(slave) as client:
        mine, its_master = (await client.admin.cluster_status()).nodes
    assert (mine.role, mine.replication.state) == ("SLAVE", "TRANSFER")
    assert (its_master.name, its_master.stale) == ("m", False)
    assert its_master.confirm_offset == ours.confirm_offset
    # What nobody can be asked about is told as such.
    await master.stop()
    async with group.client(slave) as client:
        rows = [row_of("c", node) for node in (await client.admin.cluster_status()).nodes]
    assert [row["node"] for row in rows if row["confirm_offset"] is None] == ["m"]


# -- the port --------------------------------------------------------------------------------------


async def test_the_port_refuses_unknown_clusters_and_ends_silent_streams(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await group.start_master()
    machine = master_of(master)
    async with peer(master) as stranger:
        await stranger.say(hello(cluster="other"))
        answer = await stranger.receive()
        assert isinstance(answer, Refuse)
        assert answer.code is Refusal.CLUSTER
    assert machine.rows(MonoMs(0)) == []
    assert machine.in_sync() == 1
    monkeypatch.setattr(masterstream, "HELLO_SECONDS", 0.05)
    async with peer(master) as one:
        assert await one.receive() is None
        assert await one.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: not machine.sessions)


async def test_a_peer_without_a_certificate_of_the_group_is_rejected(
    start_node: StartNode, tmp_path: Path
) -> None:
    def files(name: str) -> dict[str, Path]:
        (tmp_path / name).mkdir()
        made = certificates(tmp_path / name)
        assert made.cert is not None
        assert made.key is not None
        return {"tls_ca": made.ca, "tls_cert": made.cert, "tls_key": made.key}

    ours, others = files("ours"), files("others")
    group = Group(start_node, tmp_path, **ours)
    master = await group.start_master()
    slave = await group.start_slave(ha=ours)
    await in_sync(master)
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        assert (await producer.send("T", b"x")).status == "PUT_OK"
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    for name, strange in (("plain", None), ("other", others)):
        stranger = await group.start_slave(name, ha=strange)
        machine = slave_of(stranger)
        await until(lambda machine=machine: machine.reason != "")  # type: ignore[misc]
        assert machine.state is not ConnectionState.TRANSFER
        assert broker_of(stranger).store.log.max_offset == 0
    async with peer(master) as someone:  # without TLS
        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError, duolog.DuologError
        ):
            await someone.say(hello())
        assert await someone.receive() is None
    assert [row.node for row in master_of(master).rows(MonoMs(0))] == ["s"]


async def test_nonsense_on_the_port_ends_that_connection_and_nothing_else(group: Group) -> None:
    master, slave = await group.start_pair()
    machine = master_of(master)
    await caught_up(master, slave)
    before = machine.store.replicated_offset
    good = frames.encode(hello())
    nonsense: list[list[Frame | bytes]] = [
        [b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [os.urandom(500)],
        [good[:-1]],
        [good, Ack(Epoch(1), 1 << 40, 0, "peer", 1)],
        [good, Ack(Epoch(1), 0, 0, "s", 1)],
        [good, good],
        [Ack(Epoch(1), 0, 0, "peer", 1)],
        [frames.encode(Refuse(Epoch(1), Refusal.NAME, "no"))],
    ]
    for said in nonsense:
        async with peer(master) as stranger:
            await stranger.say(*said)
            while await stranger.receive() is not None:
                pass
    assert machine.violations >= len(nonsense) - 1
    assert machine.store.replicated_offset == before
    await in_sync(master)
    async with group.client(master) as client:
        await client.admin.create_topic("T", 1)
        assert (await append(client, append_request([b"x"]))).status == wire.PUT_OK
    await caught_up(master, slave)


async def test_a_thousand_reconnects_leave_nothing_behind(group: Group) -> None:
    master = await group.start_master()
    machine = master_of(master)

    def standing() -> tuple[int, int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count("\n")
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), maps

    async def visit(count: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ha_port}") as channel:
            for number in range(count):
                one = Peer(channel.stream_stream(HA_METHOD)())
                await one.say(hello(node=f"n{number % 7}"))
                assert isinstance(await one.receive(), Welcome)
                one.call.cancel()
        await until(lambda: not machine.sessions)

    await visit(50)
    before = standing()
    await visit(1000)
    # Of each visit, something would be left; gRPC starts threads when the machine is busy.
    await until(lambda: standing()[0] <= before[0] + 50 and standing()[1] <= before[1])
    assert standing()[2] <= before[2] + 200
    replication = broker_of(master).replication
    assert not replication._senders
    assert not replication._calls


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"store": {"broker_role": "SLAVE"}}, "ha.master"),
        ({"store": {"broker_role": "SYNC_MASTER"}}, "ha.listen"),
        ({"ha": {"in_sync_replicas": 1, "min_in_sync_replicas": 2}}, "min_in_sync_replicas"),
        ({"ha": {"ha_transfer_batch_size": 2 << 20}}, "ha_transfer_batch_size"),
        ({"ha": {"tls_ca": "ca.pem"}}, "tls_key must be set together"),
        (
            {"ha": dict.fromkeys(("tls_ca", "tls_cert", "tls_key"), "/none.pem")},
            "cannot read /none.pem",
        ),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(tree: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(flags=tree)


async def test_every_slave_learns_at_once_what_another_ones_acknowledgement_confirmed(
    start_node: StartNode, tmp_path: Path
) -> None:
    rare = {"ha_send_heartbeat_interval": 600_000, "ha_housekeeping_interval": 1_800_000}
    group = await Elected.start(start_node, tmp_path, ha=rare)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        await client.admin.create_topic("T", 1)
        for k in range(20):
            async with client.producer() as producer:
                await producer.send("T", b"%d" % k)
            end = broker_of(group.the_master()).store.confirm_offset
            await until(
                lambda end=end: (  # type: ignore[misc]
                    min(broker_of(node).store.confirm_offset for node in group.nodes) >= end
                )
            )


async def test_a_slave_whose_fixed_master_is_dead_says_so_soon_and_names_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slavestream, "AWAY_SECONDS", 0.3)
    master, slave = await group.start_pair()
    await following(slave)
    async with group.client(slave) as client:
        assert await client.admin.groups() == []  # its master says so
    await master.stop()
    async with asyncio.timeout(15), group.client(slave) as client:  # far less than the client's
        for asked in (client.admin.groups(), client.admin.group("G")):
            with pytest.raises(duolog.NotMaster, match=r"master m at .* not been reached .*fixed"):
                await asked


async def test_a_fault_in_a_slaves_stream_ends_the_master_and_a_broken_one_does_not(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, _ = await group.start_pair()
    assert not broker_of(master).failed.is_set()

    def broken(self: Master, number: int, now_ms: int) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(Master, "next_frame", broken)
    await until(broker_of(master).failed.is_set)
    assert broker_of(master).store.fence_reason == "RuntimeError: nobody expected this"
