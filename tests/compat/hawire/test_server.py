"""A node that serves slaves of RocketMQ: its port, its role, and what operators see."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import duolog
import pytest
import structlog.testing
from duolog.testing._ports import free_endpoint

from duolog_server.compat.hawire import follower, server
from duolog_server.compat.hawire.frames import REPORT
from duolog_server.compat.hawire.server import SlavesServer
from duolog_server.ha.progress import ConnectionState
from duolog_server.node.replication import masterstream
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from duolog_server.store.mappedfile import MappedFile
from tests.compat.hawire.slave import Copy, Slave, connected
from tests.known import known
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of, log_bytes
from tests.nodefixtures import SMALL_STORE, StartNode
from tests.scraping import scraped
from tests.until import until

pytestmark = pytest.mark.usefixtures("nothing_noted")  # logs are compared byte by byte
SEGMENT = int(SMALL_STORE["mapped_file_size_commit_log"])
METRICS = {"listen": "127.0.0.1:0"}
OURS = {"listen": "127.0.0.1:0", "allow": ["127.0.0.1", "127.0.1.0/24"]}


def port_of(node: Node) -> SlavesServer:
    assert node.rocketmq_slaves is not None
    return node.rocketmq_slaves


async def send(node: Node, count: int = 100, size: int = 1000) -> None:
    address = f"127.0.0.1:{node.port}"
    async with duolog.Client(address, timeout=10) as client, client.producer() as producer:
        for _ in range(count // 50):
            await producer.send_batch("T", [b"x" * size] * 50)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node(rocketmq_slaves=OURS)
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    return made


@pytest.fixture
async def slave(node: Node) -> AsyncIterator[Slave]:
    """One that is empty."""
    async with connected(port_of(node).port, Copy(SEGMENT)) as made:
        yield made


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of seconds pass in tenths."""
    monkeypatch.setattr(server, "HOLD_MS", 200)
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)


async def same(node: Node, slave: Slave) -> None:
    """The slave has all that the node has."""
    end = broker_of(node).store.log.max_offset
    await slave.has(end)
    assert bytes(slave.copy.data) == log_bytes(node)


async def test_a_slave_gets_the_log_and_what_is_stored_later(node: Node, slave: Slave) -> None:
    await send(node, 1500)
    slave.say(0)
    await same(node, slave)
    assert slave.copy.end > SEGMENT
    await send(node, 1500)
    await same(node, slave)
    assert slave.copy.end > 2 * SEGMENT


async def test_the_log_knows_how_many_follow_it(node: Node) -> None:
    log = broker_of(node).log
    async with connected(port_of(node).port, Copy(SEGMENT)):
        await until(lambda: log.followers == 1)
    await until(lambda: log.followers == 0)


async def test_its_reports_may_come_in_parts(node: Node, slave: Slave) -> None:
    for byte in REPORT.pack(0):
        assert slave.frames == []
        slave.write(bytes([byte]))
        await asyncio.sleep(0)
    await same(node, slave)


async def test_status_and_metrics_show_it(start_node: StartNode) -> None:
    node = await start_node(rocketmq_slaves=OURS, metrics=METRICS)
    async with connected(port_of(node).port, Copy(SEGMENT)) as slave:
        slave.say(0)
        await same(node, slave)
        await until(
            lambda: broker_of(node).dialects.rocketmq_slaves()[0].received == slave.copy.end
        )
        async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
            (row,) = (await client.admin.node_status()).replication.rocketmq_slaves
        assert row.address.startswith("127.0.0.1:")
        assert (row.state, row.lag_bytes, row.lag_ms, row.reason) == ("TRANSFER", 0, 0, "")
        assert row.received_offset == broker_of(node).store.log.max_offset
        assert 0 <= broker_of(node).times.wall_ms() - row.since_ms < 60_000
        found = await scraped(known(node.metrics).port)
        assert found.value("duolog_rocketmq_slaves", address="127.0.0.1") == 1
        assert found.value("duolog_rocketmq_slave_lag_bytes", address="127.0.0.1") == 0
        assert found.value("duolog_rocketmq_slave_lag_seconds", address="127.0.0.1") == 0
    await until(lambda: list(broker_of(node).dialects.rocketmq_slaves()) == [])


async def test_a_slave_counts_for_no_put(start_node: StartNode) -> None:
    """A SYNC_MASTER waits for a slave of its own; this one has the log, and is none."""
    node = await start_node(
        rocketmq_slaves=OURS,
        ha={"listen": free_endpoint(), "slave_timeout": 50},
        broker_role="SYNC_MASTER",
    )
    master = known(broker_of(node).replication.master)
    async with connected(port_of(node).port, Copy(SEGMENT)) as slave:
        slave.say(0)
        following = [ConnectionState.TRANSFER]
        await until(lambda: [row.state for row in port_of(node).rows()] == following)
        async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
            with pytest.raises(duolog.DuologError):
                await client.admin.create_topic("T", 1)
        assert (master.in_sync(), master.rows(broker_of(node).times.mono_ms())) == (1, [])
        store = broker_of(node).store
        assert store.confirm_offset < store.log.max_offset
        assert slave.copy.end <= store.confirm_offset, "and gets nothing that is not confirmed"


@pytest.mark.usefixtures("hurried")
async def test_an_address_that_is_not_allowed_gets_nothing(node: Node) -> None:
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            async with connected(port_of(node).port, Copy(SEGMENT), "127.0.0.2") as slave:
                slave.say(0)
                await slave.is_closed()
                assert slave.frames == []
    (row,) = broker_of(node).dialects.rocketmq_slaves()
    assert row.address.startswith("127.0.0.2:")
    assert (row.state, row.reason) == (ConnectionState.SUSPEND, server.NOT_ALLOWED)
    said = [one for one in logged if one["event"] == "a slave of RocketMQ is refused"]
    assert len(said) == 1, "once for an address"


async def test_an_allowed_network(node: Node) -> None:
    async with connected(port_of(node).port, Copy(SEGMENT), "127.0.1.7") as slave:
        slave.say(0)
        await same(node, slave)


async def test_a_refused_connection_is_held_for_a_while(node: Node) -> None:
    """RocketMQ 4's slaves connect again at once after its end."""
    async with connected(port_of(node).port, Copy(SEGMENT), "127.0.0.2") as slave:
        await until(lambda: len(broker_of(node).dialects.rocketmq_slaves()) == 1)
        await asyncio.sleep(0.3)
        assert not slave.ended.is_set()


async def test_the_last_addresses_that_were_refused_are_shown_for_a_while(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REFUSALS_MAX", 2)
    port, rows = port_of(node), broker_of(node).dialects.rocketmq_slaves
    for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
        async with connected(port.port, Copy(SEGMENT), host):
            await until(lambda host=host: host in [row.host for row in rows()])  # type: ignore[misc]
    assert [row.host for row in rows()] == ["127.0.0.3", "127.0.0.4"]
    last_ms = max(one.last_ms for one in port._refusals.values())
    port._forget(MonoMs(last_ms + server.REFUSED_MS))
    assert "127.0.0.4" in [row.host for row in rows()]
    port._forget(MonoMs(last_ms + server.REFUSED_MS + 1))
    assert rows() == []


async def test_what_is_not_in_memory_is_loaded_before_it_is_sent(
    node: Node, slave: Slave, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, may_load = list[int](), threading.Event()

    def load(mapped: MappedFile, start: int) -> None:
        may_load.wait(WAIT_SECONDS)
        loaded.append(mapped.start + start)

    monkeypatch.setattr(masterstream, "COLD_BYTES", 0)
    monkeypatch.setattr(masterstream, "_load", load)
    await send(node, 1500)
    slave.say(0)
    await until(lambda: [row.state for row in port_of(node).rows()] == [ConnectionState.TRANSFER])
    await turns()
    assert slave.frames == []
    may_load.set()
    await same(node, slave)
    assert loaded[0] == 0


@pytest.mark.usefixtures("hurried")
async def test_strangers_keep_no_slave_out(node: Node) -> None:
    port, writers = port_of(node).port, []
    for _ in range(server.CONNECTIONS_MAX + 8):
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        writers.append(writer)
    async with connected(port, Copy(SEGMENT)) as slave:
        slave.say(0)
        await same(node, slave)
    assert len(broker_of(node).dialects.rocketmq_slaves()) <= 2
    for writer in writers:
        writer.close()


async def test_so_many_slaves_and_no_more(node: Node) -> None:
    async with asyncio.TaskGroup() as tasks:
        opened = [connected(port_of(node).port, Copy(SEGMENT)) for _ in range(17)]
        slaves = [await one.__aenter__() for one in opened]
        await slaves[-1].is_closed()
        for one in slaves[:-1]:
            one.say(0)
            tasks.create_task(same(node, one))
    for made in opened:
        await made.__aexit__(None, None, None)


@pytest.mark.usefixtures("hurried")
async def test_a_slave_that_is_ahead_is_refused_and_shown(node: Node) -> None:
    end = broker_of(node).store.log.max_offset
    for _ in range(2):
        async with connected(port_of(node).port, Copy(SEGMENT)) as slave:
            slave.say(end + 100)
            await slave.is_closed()
            assert slave.frames == []
    (row,) = broker_of(node).dialects.rocketmq_slaves()
    assert row.state is ConnectionState.SUSPEND
    assert f"it ends at {end + 100}, beyond the end of this log" in row.reason
    async with connected(port_of(node).port, Copy(SEGMENT)) as slave:
        slave.say(0)
        await same(node, slave)
        (row,) = broker_of(node).dialects.rocketmq_slaves()
        assert row.state is ConnectionState.TRANSFER, "forgotten once it follows"


@pytest.mark.usefixtures("hurried")
async def test_nonsense_is_refused(node: Node, slave: Slave) -> None:
    slave.say(-5)
    await slave.is_closed()
    assert "at offset -5" in broker_of(node).dialects.rocketmq_slaves()[0].reason


async def test_a_silent_slave_is_let_go(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "HOUSEKEEPING_MS", 300)
    async with connected(port_of(node).port, Copy(SEGMENT)) as slave:
        await slave.is_closed()
        assert slave.frames == []


async def test_a_slave_that_takes_nothing_holds_up_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "HOUSEKEEPING_MS", 10**9)  # it is not let go for its silence
    port = port_of(node).port
    async with connected(port, Copy(SEGMENT)) as slow, connected(port, Copy(SEGMENT)) as slave:
        slow.reading.clear()
        slow.say(0)
        slave.say(0)
        for _ in range(10):
            await send(node, 2000)
        await same(node, slave)
        buffered = [
            one._transport.get_write_buffer_size()
            for one in port_of(node)._open
            if one._transport is not None
        ]
        assert max(buffered) <= server.UNWRITTEN_BYTES + (1 << 20) + 4096
        assert slow.copy.end <= 1 << 16, "one read that was under way"
        slow.reading.set()
        await same(node, slow)


async def test_a_node_that_stops_being_the_master_sends_nothing_more(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "HOUSEKEEPING_MS", 10**9)  # it is not let go for its silence
    elected = await Elected.start(start_node, tmp_path, rocketmq_slaves=OURS)
    old = elected.the_master()
    copy = Copy(SEGMENT)
    async with duolog.Client(elected.endpoints, timeout=40) as client:
        await client.admin.create_topic("T", 1)
        await send(old, 1500)
        async with connected(port_of(old).port, copy) as slave:
            slave.say(0)
            await until(lambda: copy.end > SEGMENT)
            new = await elected.switch(client)
            await slave.is_closed()
            assert port_of(old).rows() == [], "nobody was refused"
            assert copy.end <= broker_of(new).replication.history.entries[-1].start
        store = broker_of(new).store
        async with connected(port_of(new).port, copy) as slave:
            slave.say(copy.end)
            await until(lambda: copy.end == store.confirm_offset == store.log.max_offset)
            assert bytes(copy.data) == log_bytes(new), "the next master goes on where it is"
    async with connected(port_of(old).port, Copy(SEGMENT)) as slave:
        slave.say(copy.end)
        await until(lambda: "is a slave" in "".join(r.reason for r in port_of(old).rows()))


async def test_a_port_in_use_is_told(start_node: StartNode, node: Node) -> None:
    taken = f"127.0.0.1:{port_of(node).port}"
    with pytest.raises(Exception, match=f"cannot listen on {taken}"):
        await start_node(
            data=Path(node.config.node.data).parent / "other",
            rocketmq_slaves={**OURS, "listen": taken},
        )


async def test_a_stopped_node_lets_its_slaves_go(start_node: StartNode, node: Node) -> None:
    async with connected(port_of(node).port, Copy(SEGMENT)) as slave:
        slave.say(0)
        await same(node, slave)
        await node.stop()
        await slave.is_closed()
