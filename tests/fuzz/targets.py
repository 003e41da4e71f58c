"""Fuzz targets: every decoder of bytes from a disk or a connection.

Each target takes bytes and must end: with a value or one of the errors it documents. Anything else
is a bug.
"""

import asyncio
import functools
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from duolog import CorruptBatch, Unauthenticated
from duolog import _frames as client_frames
from duolog._columns import crc32, parse_properties
from duolog._message import Batch
from duolog.wire import duolog_pb2 as wire

from duolog_server.ha import frames, masterevents
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.master import Master
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Connected, Received
from duolog_server.node.metrics.endpoint import REQUEST_BYTES_MAX, Endpoint
from duolog_server.store import jsontext
from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.clocks import MonoMs
from duolog_server.store.columns import Columns
from duolog_server.store.commitlog import read_record
from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.consumequeueext import ConsumeQueueExt
from duolog_server.store.errors import BadMessage, CorruptRecord
from duolog_server.store.kernels import decode, index, queue, scan, text
from duolog_server.store.kernels.jit import EMPTY_I64
from duolog_server.store.metadata import Metadata
from duolog_server.store.openfiles import OpenFiles
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.queuelayout import QueueLayout
from duolog_server.store.record import parse_message_id
from tests.ha.pair import Link, open_master, open_slave, put
from tests.known import known
from tests.node.net.frames.test_connection import KEY, Side, send

# Thousands of inputs make files: beside others, a disk takes 30 ms for each.
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def record(data: bytes) -> None:
    """Scan, single read, search and decode of commit-log bytes."""
    memory = np.frombuffer(data, np.uint8)
    rows = np.empty((scan.COLUMNS, 64), np.int64)
    result = np.zeros(2, np.int64)
    for check in (True, False):
        scan.scan(memory, 0, len(memory), 0, check, EMPTY_I64, rows, result)
        assert 0 <= result[1] <= len(memory)
        n = int(result[0])
        order, starts = np.empty(64, np.int64), np.empty(65, np.int64)
        if n:
            groups = scan.group_rows(memory, rows, n, order, starts)
            assert starts[groups] == n
            runs = np.empty((3, n), np.int64)
            assert scan.sequence_runs(memory, rows, n, runs) <= n
            file = np.zeros(40 + 16 * 4 + 64 * 20, np.uint8)
            index.put_keys(file, 16, 64, memory, rows, n, np.zeros(2, np.int64))
    scan.find_record(memory, 0, len(memory), 0)
    try:
        read_record(memory, 0, len(memory), 0)
    except CorruptRecord:
        pass


def entries(data: bytes) -> None:
    """Queue entries, and the records they pretend to point to."""
    whole = len(data) // 20 * 20
    memory = np.frombuffer(data[:whole], np.uint8).copy()
    state = np.zeros(1, np.int64)
    end = queue.walk_entries(memory, whole, state)
    assert 0 <= end <= whole
    queue.first_entry_from(memory, 0, whole, 1000)
    log = np.frombuffer(data, np.uint8)
    decode.decode(
        memory, 0, whole // 20, 0, log, 0, len(log), EMPTY_I64, 50, True,
        np.empty(4096, np.uint8), np.empty(4096, np.uint8),
        np.empty((decode.OUT_COLUMNS, 50), np.int64), np.zeros(decode.STATE_SIZE, np.int64),
    )  # fmt: skip


def queue_file(data: bytes) -> None:
    """A queue directory with one file of any bytes: load, recover, truncate, read."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        path = Path(directory) / "consumequeue" / "T" / "0"
        path.mkdir(parents=True)
        (path / f"{0:020d}").write_bytes((data + bytes(400))[:400])
        files = OpenFiles(OsDisk(directory))
        found = ConsumeQueue(files, ("T", 0), QueueLayout("consumequeue", 400))
        found.files.load()
        found.recover()
        assert 0 <= found.min_offset <= found.max_offset <= 20
        found.truncate(500)
        found.correct_min_offset(100)
        found.entries(0, 100)
        ext = ConsumeQueueExt(files, ("E", 0), QueueLayout("consumequeue_ext", 400))
        ext.files.roll().memory[:] = np.frombuffer((data + bytes(400))[:400], np.uint8)
        ext.recover()
        found.files.close()
        ext.files.close()


def index_file(data: bytes) -> None:
    """Queries of an index file of any bytes."""
    size = 40 + 16 * 4 + 64 * 20
    memory = np.frombuffer((data + bytes(size))[:size], np.uint8)
    out = np.empty(64, np.int64)
    for hashed in (0, 1, 77, 0x7FFFFFFF):
        assert index.find_key(memory, 16, 64, hashed, 0, 1 << 62, out) <= 64


def columns(data: bytes) -> None:
    """Columns off the wire."""
    cut = [len(data) * k // 4 for k in range(5)]
    parts = [data[a:b] for a, b in itertools.pairwise(cut)]
    try:
        Columns.from_wire(parts[0], parts[1], parts[2], parts[3]).check(64)
    except BadMessage:
        pass


def wire_batch(data: bytes) -> None:
    """A batch as a client reads it."""
    message = wire.MessageBatch()
    try:
        message.ParseFromString(data)
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        return
    try:
        Batch(message)
    except CorruptBatch:
        pass
    message.crc32 = crc32(
        message.bodies, message.body_offsets, message.properties, message.property_offsets
    )
    try:
        batch = Batch(message)
        for number in range(min(batch.count, 10)):
            assert isinstance(batch[number].body, bytes)
            assert isinstance(batch[number].store_time_ms, int)
    except CorruptBatch:
        pass


def texts(data: bytes) -> None:
    """Properties, hashes, message ids."""
    memory = np.frombuffer(data, np.uint8)
    clean = bool(text.properties_clean(memory))
    text.java_hash(memory)
    text.find_well_known(memory, 0, len(data), np.zeros(text.FOUND, np.int64))
    parse_properties(data)
    if clean:
        data.decode()
    try:
        parse_message_id(data.decode("latin-1"))
    except BadMessage:
        pass


def json_table(data: bytes) -> None:
    """Config files and metadata records."""
    try:
        jsontext.loads(data.decode(errors="replace"))
    except ValueError:
        pass
    Metadata().apply(data)


def checkpoint(data: bytes) -> None:
    """A checkpoint file."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        (Path(directory) / "checkpoint").write_bytes((data + bytes(4096))[:4096])
        found = StoreCheckpoint(OsDisk(directory))
        found.load()
        assert found.min_timestamp >= 0
        found.close()


def frame(data: bytes) -> None:
    """A frame of the replication stream, as it is and behind a header that is right."""
    for bytes_in in (data, sealed(data)):
        try:
            frames.decode(bytes_in)
        except frames.BadFrame:
            pass


def sealed(data: bytes) -> bytes:
    """Bytes as the body of a frame with a right header: the kind from the first byte."""
    kind, body = (data[0] % 10 if data else 0), data[1:]
    offset = int.from_bytes(body[:3], "big")
    place = (Epoch(1), offset, offset // 2)
    return frames._frame(kind, place, body, whole_crc=len(data) % 2 > 0)  # type: ignore[arg-type]


@functools.cache
def machines() -> tuple[Master, Slave]:
    """A master, and a slave that has all of it."""
    master, slave = open_master(), open_slave()
    put(master, b"one", b"two")
    Link(master, slave).pump()
    return master, slave


def master_hears(data: bytes) -> None:
    """Whatever a peer says to a master moves nothing."""
    master, slave = machines()
    before = master.store.replicated_offset
    for bytes_in in (data, sealed(data)):
        for greeted in (False, True):
            number = known(master.connect(MonoMs(0)))
            if greeted:
                master.step(
                    masterevents.Received(
                        number, frames.encode(replace(slave.hello(), node="fuzz"))
                    ),
                    MonoMs(0),
                )
                master.next_frame(number, MonoMs(0))
            master.step(masterevents.Received(number, bytes_in), MonoMs(0))
            master.step(masterevents.Disconnected(number), MonoMs(0))
    assert master.store.replicated_offset == before


def slave_hears(data: bytes) -> None:
    """Whatever a master says, only whole right records are applied."""
    _, slave = machines()
    end = slave.store.log.max_offset
    chunk = frames.chunk_frame(slave.epoch, end, 0, np.frombuffer(data, np.uint8))
    for bytes_in in (data, sealed(data), chunk):
        for state in (ConnectionState.HANDSHAKE, ConnectionState.TRANSFER):
            slave.step(Connected(), MonoMs(0))
            slave.state = state
            slave.step(Received(bytes_in), MonoMs(0))
    if slave.store.log.max_offset != end:
        assert slave.store.log.is_boundary(slave.store.log.max_offset)
        machines.cache_clear()


def frames_port_hears(data: bytes) -> None:
    """Whatever comes to the port for frames, before and behind a greeting, in pieces or at once."""
    _loop().run_until_complete(_frames_port_hears(data))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


async def _frames_port_hears(data: bytes) -> None:
    for greeting in (b"", client_frames.hello(KEY)):
        for step in (len(data) + len(greeting) or 1, 7):
            side = Side()
            connection, line = side.connect(greets=False)
            whole = greeting + data
            for begin in range(0, len(whole), step):
                if line.closing:
                    break
                send(connection, whole[begin : begin + step])
            await asyncio.sleep(0)
            connection.tick()
            connection.connection_lost(None)
            await side.calls.finish(5)
            assert side.open == set()
            assert side.terms.arriving.taken == 0
            assert greeting or KEY in data or not side.appends.stored


def metrics_port_hears(data: bytes) -> None:
    """A request for metrics; without a user's password there is none."""
    _loop().run_until_complete(_metrics_port_hears(data))


async def _metrics_port_hears(data: bytes) -> None:
    async def refuse(authorization: str, source: str) -> None:
        raise Unauthenticated("nobody")

    async def scrape(deadline: float) -> list[bytes]:
        raise AssertionError("nobody was let in")

    for request in (data + b"\r\n\r\n", b"GET /metrics HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        head = request if len(request) <= REQUEST_BYTES_MAX else None
        status, _ = await Endpoint(scrape, "", refuse)._reply(head, "", 0.0)
        assert status in (400, 401, 404, 405, 431)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "record": record,
    "entries": entries,
    "queue_file": queue_file,
    "index_file": index_file,
    "columns": columns,
    "wire_batch": wire_batch,
    "texts": texts,
    "json_table": json_table,
    "checkpoint": checkpoint,
    "frame": frame,
    "master_hears": master_hears,
    "slave_hears": slave_hears,
    "frames_port_hears": frames_port_hears,
    "metrics_port_hears": metrics_port_hears,
}
