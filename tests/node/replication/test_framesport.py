"""Frames of replication on a connection of their own: negotiated, refused, broken, not reached."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
from duolog import _frames as wire
from duolog._background import report
from duolog._frames import FrameError, FrameReader, Kind

from duolog_server.ha import frames
from duolog_server.ha.epochs import EPOCHS_MAX, Epoch, EpochEntry
from duolog_server.ha.frames import Welcome
from duolog_server.ha.master import Master
from duolog_server.ha.slave import Slave
from duolog_server.node.identity.access.secrets import read_key
from duolog_server.node.net import connections
from duolog_server.node.replication import framesport, masterstream, slavestream
from duolog_server.node.replication.framesport import (
    FRAMES_METHOD,
    OFFER,
    SWITCH,
    FramesConnection,
    FramesPort,
    connect,
)
from duolog_server.node.replication.keyproof import Opening
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.serve.server import Node
from tests.certificates import certificates
from tests.keyfiles import access_files
from tests.node.replicas import (
    Group,
    broker_of,
    caught_up,
    following,
    in_sync,
    log_bytes,
    master_of,
    slave_of,
)
from tests.node.replication.test_keyproof import proof_of
from tests.node.replication.test_replication import hello
from tests.nodefixtures import StartNode
from tests.until import until

PASSWORD = "a password of the test"


@pytest.fixture
def group(start_node: StartNode, tmp_path: Path) -> Group:
    return Group(start_node, tmp_path)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is made, however busy the machine is."""
    monkeypatch.setattr(framesport, "CONNECT_SECONDS", 20.0)


def connection_of(slave: Node) -> FramesConnection | None:
    """What carries a slave's frames; None: its call does."""
    follower = broker_of(slave).replication.follower
    assert follower is not None
    return follower._connection


def port_of(master: Node) -> FramesPort:
    service = master._replication
    assert service is not None
    assert service.frames is not None
    return service.frames


async def copied(master: Node, slave: Node, **who: Any) -> None:
    """Send what takes many frames, long ones too: the slave has it byte for byte."""
    async with (
        duolog.Client(f"127.0.0.1:{master.port}", timeout=20, **who) as client,
        client.producer() as producer,
    ):
        await client.admin.create_topic("T", 2)
        assert (await producer.send("T", b"x")).status == "PUT_OK"
        await producer.send_batch("T", [bytes(40_000)] * 100)
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)


@pytest.mark.parametrize("how", ["plain", "TLS", "key"])
async def test_frames_go_over_a_connection_of_their_own(
    start_node: StartNode, tmp_path: Path, how: str
) -> None:
    ha: dict[str, Any] = {}
    access = access_files(tmp_path, PASSWORD) if how == "key" else None
    if how == "TLS":
        made = certificates(tmp_path)
        ha = {"tls_ca": made.ca, "tls_cert": made.cert, "tls_key": made.key}
    group = Group(start_node, tmp_path, **ha)
    master = await group.start_master(access=access)
    slave = await group.start_slave(ha=ha, access=access)
    await in_sync(master)
    connection = connection_of(slave)
    assert connection is not None
    who = {"user": "root", "password": PASSWORD} if access else {}
    await copied(master, slave, **who)
    assert connection_of(slave) is connection
    assert port_of(master).connections == 1


@pytest.mark.parametrize("why", ["off", "older", "unreached", "silent", "another"])
async def test_replication_stays_on_grpc_where_frames_are_not_reached(
    start_node: StartNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    why: str,
) -> None:
    group = Group(start_node, tmp_path, **({"frames_listen": ""} if why == "off" else {}))
    master = await group.start_master()
    if why == "older":
        monkeypatch.setattr(slavestream, "FRAMES_METHOD", "/duolog.ha.v1.Replication/Later")
    elif why == "unreached":
        await port_of(master).stop(0.0)
    elif why == "silent":
        monkeypatch.setattr(framesport, "CONNECT_SECONDS", 0.05)
        monkeypatch.setattr(port_of(master), "greeted", lambda *_: None)
    elif why == "another":
        port_of(master).port = master.port
    slave = await group.start_slave()
    await in_sync(master)
    assert connection_of(slave) is None
    await copied(master, slave)
    told = capsys.readouterr().out.count("replicating over gRPC")
    assert told == (0 if why in ("off", "older") else 1)


async def test_a_master_is_asked_for_frames_again_after_its_upgrade(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(slavestream, "FRAMES_METHOD", "/duolog.ha.v1.Replication/Later")
        _, slave = await group.start_pair()
        assert connection_of(slave) is None
    follower = broker_of(slave).replication.follower
    assert follower is not None
    assert follower._call is not None
    follower._call.cancel()
    await until(lambda: connection_of(slave) is not None)


@pytest.mark.parametrize("refused", [False, True])
async def test_a_slave_knows_why_a_call_ended_while_it_connected(
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: bool,
) -> None:
    calls: list[slavestream.Call] = []
    line = slavestream.ReplicationClient._line

    async def noted(self: Any, call: slavestream.Call, offer: str) -> framesport.Line:
        calls.append(call)
        return await line(self, call, offer)

    async def slowly(*given: Any) -> FramesConnection:
        await until(calls[-1].done)
        if refused:
            return await connect(*given)
        made, _, _ = connected()
        made.connection_lost(None)
        return made

    monkeypatch.setattr(slavestream.ReplicationClient, "_line", noted)
    monkeypatch.setattr(slavestream, "connect", slowly)
    master = await group.start_master()
    monkeypatch.setattr(broker_of(master).replication, "master", None)
    slave = await group.start_slave()
    await until(lambda: "this node is not the master" in slave_of(slave).reason)
    logged = capsys.readouterr().out
    assert "replicating over gRPC" not in logged
    assert "RPC already finished" not in logged


async def test_the_end_of_either_is_the_end_of_both_and_nothing_is_left(group: Group) -> None:
    master, slave = await group.start_pair()
    replication, port = broker_of(master).replication, port_of(master)
    follower = broker_of(slave).replication.follower
    assert follower is not None

    def end_call() -> None:
        assert follower._call is not None
        follower._call.cancel()

    def end_connection() -> None:
        connection = connection_of(slave)
        assert connection is not None
        connection.abort()

    def end_session() -> None:
        (call,) = replication._calls.values()
        call.cancel()

    for end in (end_call, end_connection, end_session) * 3:
        before = connection_of(slave)
        end()

        def again(before: object = before) -> bool:
            return connection_of(slave) not in (None, before)

        await until(again)
        await following(slave)
        await in_sync(master)
        await until(lambda: port.connections == len(port._offers) == 1)
        assert len(replication._senders) == len(replication._calls) == 1
    await copied(master, slave)


async def test_a_slave_takes_at_once_only_what_waits_for_no_flush(group: Group) -> None:
    _, slave = await group.start_pair()
    await following(slave)
    follower, epoch = broker_of(slave).replication.follower, slave_of(slave).epoch
    assert follower is not None
    assert not follower._take_now(frames.encode(frames.Truncate(epoch, 0)))
    follower._closing = "it ends"
    assert not follower._take_now(frames.encode(frames.Heartbeat(epoch, 0, 0, 0)))


# -- strangers -------------------------------------------------------------------------------------


@asynccontextmanager
async def offered(master: Node, headers: Any = None) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """A call to a master, and the headers of its answer."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{master.ha_port}") as channel:
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        stream = channel.stream_stream(FRAMES_METHOD)
        call = stream(metadata=headers)
        async with asyncio.timeout(20):
            yield call, dict(await call.initial_metadata())
        call.cancel()


async def test_only_who_was_offered_a_connection_gets_one_and_no_second(group: Group) -> None:
    master = await group.start_master()
    port = port_of(master)
    async with offered(master) as (call, headers):
        offer = headers[OFFER]
        connection = await connect("127.0.0.1", offer, None)
        number, _, key = offer.partition(" ")
        for other in (offer, f"{number} {'0' * len(key)}", number):
            with pytest.raises(ConnectionError):
                await connect("127.0.0.1", other, None)
        for unreadable in ("", f"x {key}", f"0 {key}", f"65536 {key}", f"{number} xy"):
            with pytest.raises(FrameError):
                await connect("127.0.0.1", unreadable, None)
        await call.write(SWITCH)
        await connection.write(frames.encode(hello()))
        answer = await connection.read()
        assert answer is not None
        assert isinstance(frames.decode(answer), Welcome)
        await connection.write(b"nonsense")
        while await connection.read() is not None:
            pass
        assert await call.read() is grpc.aio.EOF
    await until(lambda: not (port.connections or port._offers or master_of(master).sessions))


async def test_a_slave_that_says_it_connected_and_did_not_is_told_so(group: Group) -> None:
    master = await group.start_master()
    async with offered(master) as (call, _):
        await call.write(SWITCH)
        with pytest.raises(grpc.aio.AioRpcError, match="made no connection"):
            await call.read()
    assert not broker_of(master).failed.is_set()


async def keyed_master(start_node: StartNode, tmp_path: Path) -> tuple[Node, Opening]:
    """A master with a key, and the opening of a slave that has it too."""
    access = access_files(tmp_path, PASSWORD)
    master = await Group(start_node, tmp_path).start_master(access=access)
    return master, proof_of(read_key(Path(access["key_file"]))).opening()


@pytest.mark.parametrize("later", [False, True])
async def test_over_the_connection_too_a_slave_has_the_name_that_it_proved(
    start_node: StartNode, tmp_path: Path, later: bool
) -> None:
    master, opening = await keyed_master(start_node, tmp_path)
    async with offered(master, opening.headers) as (call, headers):
        first = opening.first_message(headers)
        assert first is not None
        connection = await connect("127.0.0.1", headers[OFFER], None)
        await call.write(first)
        await call.write(SWITCH)
        if later:
            await connection.write(frames.encode(hello(node="peer")))
            assert await connection.read()
        await connection.write(frames.encode(hello(node="another")))
        with pytest.raises(grpc.aio.AioRpcError, match="only 'peer' was proved as its name"):
            await call.read()
        while await connection.read() is not None:
            pass
    assert not master_of(master).sessions


@pytest.mark.parametrize("heard", ["nothing", "the slave"])
async def test_where_nothing_follows_a_welcome_the_next_call_carries_the_frames(
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    heard: str,
) -> None:
    async def vanishes(self: FramesConnection, frame: bytes) -> None:
        pass

    lossy = framesport._Served if heard == "the slave" else FramesConnection
    monkeypatch.setattr(lossy, "write", vanishes)
    monkeypatch.setattr(masterstream, "HELLO_SECONDS", 0.2)
    monkeypatch.setattr(slavestream, "TICK_SECONDS", 0.02)
    master = await group.start_master()
    with monkeypatch.context() as short:
        if heard == "the slave":  # the master's own deadline is one of silent slaves
            made = Slave.__init__

            def impatient(self: Slave, *given: Any) -> None:
                made(self, *given)
                self._housekeeping_ms = 200

            short.setattr(Slave, "__init__", impatient)
        slave = await group.start_slave()
    await in_sync(master)
    assert connection_of(slave) is None
    await copied(master, slave)
    assert "nothing came over it" in capsys.readouterr().out


async def test_a_master_that_does_not_lead_yet_costs_a_slave_no_connection(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await group.start_master()
    replication = broker_of(master).replication
    leading, replication.master = replication.master, None
    slave = await group.start_slave()
    machine = slave_of(slave)
    await until(lambda: "this node is not the master" in machine.reason)
    replication.master = leading
    await in_sync(master)
    assert connection_of(slave) is not None


async def test_over_tls_connections_that_ended_are_no_longer_counted(
    start_node: StartNode, tmp_path: Path
) -> None:
    made = certificates(tmp_path)
    ha: dict[str, Any] = {"tls_ca": made.ca, "tls_cert": made.cert, "tls_key": made.key}
    master = await Group(start_node, tmp_path, **ha).start_master()
    port, context = port_of(master), made.context_of_channel().now()
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=context)
        await until(lambda: port.connections == 1)
        writer.transport.abort()
        await until(lambda: port.connections == 0)
    assert not port._connections._of_address
    assert not port._strangers


async def test_strangers_that_only_connect_keep_no_slave_out(group: Group) -> None:
    master = await group.start_master()
    port = port_of(master)
    port._strangers_max = 4
    port._connections._limits = port._connections._limits.model_copy(update={"connections_max": 8})
    strangers = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(20)]
    slave = await group.start_slave()
    await in_sync(master)
    assert connection_of(slave) is not None
    await until(lambda: port.connections <= 5)
    assert len(port._strangers) <= 4
    for _, writer in strangers:
        writer.transport.abort()
    await until(lambda: port.connections == 1)
    assert not port._strangers
    await copied(master, slave)


def test_the_port_leaves_the_store_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = LimitsSection(connections_max=3500)
    monkeypatch.setattr(framesport, "slaves_that_fit", lambda wanted: min(wanted, 64))
    port = FramesPort(limits, report)
    assert port._connections._limits.connections_max == 64


async def test_a_slave_that_proved_nothing_is_not_read_and_no_slave_sends_long_frames(
    start_node: StartNode, tmp_path: Path
) -> None:
    master, opening = await keyed_master(start_node, tmp_path)
    longest = frames.HELLO_BYTES_MAX
    async with offered(master, opening.headers) as (call, headers):
        first = opening.first_message(headers)
        assert first is not None
        connection = await connect("127.0.0.1", headers[OFFER], None)
        (offer,) = port_of(master)._offers.values()
        served = offer.connection
        assert served is not None
        assert served._transport is not None
        assert not served._transport.is_reading()
        await call.write(first)
        await call.write(SWITCH)
        await connection.write(bytes(longest + 1))
        with pytest.raises(grpc.aio.AioRpcError, match=f"the limit is {longest}"):
            await call.read()
    assert longest > len(
        frames.encode(hello(epochs=tuple([EpochEntry(Epoch(1), 0, 0)] * EPOCHS_MAX)))
    )


async def test_a_connection_that_its_slave_gave_up_is_ended(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(framesport, "HELD_TICKS", 1)
    master = await group.start_master()
    async with offered(master) as (_, headers):
        connection = await connect("127.0.0.1", headers[OFFER], None)
        assert await connection.read() is None  # the master does not read, and hears of no end
        await until(lambda: port_of(master).connections == 0)


async def test_who_does_not_greet_is_sent_away(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(framesport, "GREETING_TICKS", 1)
    master = await group.start_master()
    port = port_of(master)
    for said in (b"", b"\0" * 100, wire.HEADER.pack(1 << 20, Kind.HELLO, 0, 0, 0, 0)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        writer.close()
    monkeypatch.setattr(framesport, "GREETING_TICKS", 5000)
    slave = await group.start_slave()
    await in_sync(master)
    await until(lambda: port.connections == 1)
    assert connection_of(slave) is not None


# -- one end ---------------------------------------------------------------------------------------


class Socket(asyncio.Transport):
    """What a connection was told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is kept here."""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return "abort" in self.said

    def pause_reading(self) -> None:
        self.said.append("pause")

    def resume_reading(self) -> None:
        self.said.append("resume")

    def abort(self) -> None:
        self.said.append("abort")


def connected() -> tuple[FramesConnection, Socket, Callable[[bytes], None]]:
    """A connection that has greeted, its socket, and what gives it bytes."""
    connection, socket = FramesConnection(lambda *_: None, 1 << 20), Socket()
    connection.connection_made(socket)

    def arrives(data: bytes) -> None:
        while data:
            room = connection.get_buffer(len(data))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            connection.buffer_updated(size)

    arrives(wire.hello(bytes(wire.KEY_BYTES)))
    return connection, socket, arrives


def framed(*found: bytes) -> bytes:
    return b"".join(wire.message_frame(Kind.MESSAGE, 0, b"", one) for one in found)


async def test_frames_are_taken_at_once_or_read_in_their_order() -> None:
    connection, socket, arrives = connected()
    taken: list[bytes] = []
    busy = True

    def take(frame: bytes) -> bool:
        if not busy and frame != b"cut":
            taken.append(frame)
        return not busy and frame != b"cut"

    connection.take = take
    arrives(framed(b"1", b"2"))  # nobody reads yet
    assert socket.said == ["pause"]
    assert [await connection.read(), await connection.read()] == [b"1", b"2"]
    assert socket.said == ["pause", "resume"]
    busy = False
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    arrives(framed(b"3", bytes(100_000), b"cut", b"4"))  # what follows a cut waits for its end
    assert taken == [b"3", bytes(100_000)]
    assert await reading == b"cut"
    assert await connection.read() == b"4"
    assert taken == [b"3", bytes(100_000)]
    connection.connection_lost(None)
    assert await connection.read() is None


async def test_a_fault_of_who_takes_frames_reaches_who_reads() -> None:
    connection, socket, arrives = connected()

    def take(frame: bytes) -> bool:
        raise KeyError("a fault")

    connection.take = take
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    arrives(framed(b"1"))
    with pytest.raises(KeyError):
        await reading
    assert socket.said == ["abort"]


@pytest.mark.parametrize("said", [wire.frame(Kind.PING), b"\xff" * 16])
async def test_what_is_no_frame_of_replication_ends_the_connection(said: bytes) -> None:
    connection, socket, arrives = connected()
    arrives(said)
    assert socket.said == ["abort"]
    with pytest.raises(ConnectionError, match="on the connection for frames: "):
        await connection.read()


async def test_a_write_waits_while_the_other_end_takes_nothing_and_fails_at_the_end() -> None:
    connection, socket, _ = connected()
    await connection.write(b"1")
    connection.pause_writing()
    waiting = asyncio.create_task(connection.write(bytes(100_000)))
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.resume_writing()
    await waiting
    reader = FrameReader(1 << 20, len(socket.written) + 1)
    reader.room()[: len(socket.written)] = socket.written
    reader.received(len(socket.written))
    found = [bytes(one.payload) for one in iter(reader.next, None)]
    assert found == [b"1", bytes(100_000)]
    connection.pause_writing()
    waiting = asyncio.create_task(connection.write(b"2"))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await waiting  # nobody is left to wait for
    with pytest.raises(ConnectionError):
        await connection.write(b"3")


async def test_a_fault_of_a_master_that_hears_a_slave_ends_the_node(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await group.start_pair()
    assert connection_of(slave) is not None

    def broken(self: Master, *_: object) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(Master, "_acknowledged", broken)
    async with group.client(master) as client:
        with contextlib.suppress(duolog.DuologError):
            await client.admin.create_topic("T", 1)
        await until(broker_of(master).failed.is_set)
    assert slave_of(slave).resets == 0
