"""Bytes to every port of a node, from peers that nobody knows: `ports.py [SECONDS [SEED]]`.

To the remoting port a user sends as well, who signs requests that are damaged.

The node has users, and runs in this process. Each input is a connection of its own: a valid
beginning of any of the ports' protocols, damaged, cut, repeated or put behind another one, in
pieces. Meanwhile a user sends and reads as before, and the event loop may not stand still.
Afterwards the node must answer, and may have kept no more than a few MiB, none of the connections
and none of the tasks that served them; its log has no error and few lines.
"""

import asyncio
import contextlib
import gc
import logging
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duolog
import structlog
from duolog import _frames as frames
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire

from duolog_server.ha import frames as ha_frames
from duolog_server.node.replication.outgoing import HA_METHOD
from duolog_server.node.runtime.config import Config
from duolog_server.node.runtime.logs import RateLimiter, configure_logging
from duolog_server.serve.server import Node
from tests import http2bytes as h2
from tests.fuzz import remoting
from tests.ha.test_frames import EXAMPLES
from tests.keyfiles import access_files
from tests.known import known
from tests.node.replicas import broker_of
from tests.until import slowness, until

READ_SECONDS = 0.002
PASSWORD = "of the fuzzed node"
CONNECT_SECONDS = 5.0
AT_ONCE = 16
STILL_SECONDS_MAX = 0.5
INPUTS_MIN, CALLS_MIN = 50, 20  # for each port; of the user beside
LATE_SECONDS_MAX = 60.0  # that a slow machine may take for them, beyond the time of a run
GROWTH_MIB_MAX = 48.0
LEFT_SECONDS_MAX = 90.0  # until deadlines and handshakes of silent peers have ended
LENGTH_MAX = 1 << 16
SMALL_STORE = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 1000,
    "max_index_num": 20_000,
}
PATHS = (
    b"/duolog.v1.Messages/Append",
    b"/duolog.v1.Messages/Pull",
    b"/duolog.v1.Messages/Subscribe",
    b"/duolog.v1.Groups/Heartbeat",
    b"/duolog.v1.Admin/Route",
    b"/duolog.v1.Access/PutUser",
    b"/apache.rocketmq.v2.MessagingService/Telemetry",
    b"/apache.rocketmq.v2.MessagingService/SendMessage",
    b"/apache.rocketmq.v2.MessagingService/ReceiveMessage",
    b"/grpc.health.v1.Health/Watch",
    b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    HA_METHOD.encode(),
    b"/none/none",
)


def _call(path: bytes, stream: int, request: bytes, *more: bytes) -> bytes:
    return h2.begin(stream, h2.call_block(path, *more)) + h2.message(stream, request, h2.END_STREAM)


def beginnings() -> list[bytes]:
    """Valid inputs of each port."""
    greeting = h2.greeting() + h2.frame(h2.SETTINGS, h2.ACK, 0)
    pull = wire.PullRequest(topic="T", wait_ms=1).SerializeToString()
    authorization = h2.field(b"authorization", b"Basic YWxpY2U6eA==")
    signed = h2.field(
        b"authorization",
        b"MQv2-HMAC-SHA1 Credential=a, SignedHeaders=x-mq-date-time, Signature=00",
    )
    who = h2.field(b"x-mq-client-id", b"c") + h2.field(b"x-mq-date-time", b"20250101T000000Z")
    calls = [greeting + _call(path, 1, pull, more) for path in PATHS for more in (b"", who)]
    calls += [greeting + _call(path, 1, pull, authorization) for path in PATHS[:6]]
    calls += [greeting + _call(path, 1, pull, who, signed) for path in PATHS[6:9]]
    of_frames = [
        frames.hello(bytes(16)),
        frames.hello(bytes(16)) + frames.frame(frames.Kind.CALL, 1, 100, pull, 2),
        frames.frame(frames.Kind.PING),
        frames.message_frame(frames.Kind.APPEND, 1, b"\x08\x01", b"body"),
    ]
    slaves = [
        greeting
        + h2.begin(1, h2.call_block(HA_METHOD.encode()))
        + h2.message(1, ha_frames.encode(one))
        for one in EXAMPLES
    ]
    http = [
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YWxpY2U6eA==\r\n\r\n",
        b"POST / HTTP/1.0\r\n\r\n",
    ]
    tls = [b"\x16\x03\x01\x00\x2e\x01\x00\x00\x2a\x03\x03" + bytes(40)]
    return [*calls, *of_frames, *slaves, *http, *tls, *remoting.beginnings()]


def damaged(chance: random.Random, seeds: list[bytes]) -> bytes:
    """An input: mostly one that is valid but for a few bytes."""
    data = bytearray(chance.choice(seeds))
    if chance.random() < 0.2:
        data += chance.choice(seeds)[chance.choice((0, len(h2.PREFACE))) :]
    for _ in range(chance.choice((0, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if data:
                data[at % len(data)] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 20)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 20))
            case 3:
                del data[at:]
            case 4:
                lengths = (0, 1, 0x7FFFFFFF, 0xFFFFFFFF, chance.getrandbits(32))
                data[at : at + 4] = struct.pack("<I", chance.choice(lengths))
            case _:
                data[at:at] = data[at : at + 200] * chance.randrange(1, 50)
    return bytes(data[:LENGTH_MAX])


@dataclass(slots=True)
class Result:
    """What a run was."""

    inputs: dict[str, int] = field(default_factory=dict)
    still_seconds: float = 0.0
    grown_mib: float = 0.0
    calls: int = 0  # of a user
    call_seconds: float = 0.0  # the longest of them
    log_lines: int = 0


def rss_mib() -> float:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("RssAnon")).split()[1]) / 1024


def say(port: int, data: bytes, cuts: list[int]) -> None:
    """One connection, with what it says in pieces."""
    with contextlib.suppress(OSError), socket.socket() as made:
        made.settimeout(CONNECT_SECONDS)
        made.connect(("127.0.0.1", port))
        made.settimeout(READ_SECONDS)
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            made.sendall(data[begin:end])
            with contextlib.suppress(TimeoutError):
                if not made.recv(1 << 16):
                    return


class Neighbour:
    """A user who sends and reads while the ports are attacked. Each of its calls must succeed."""

    def __init__(self, node: Node) -> None:
        self.client = duolog.Client(f"127.0.0.1:{node.port}", user="root", password=PASSWORD)
        self.calls = 0
        self.longest = 0.0

    async def begin(self) -> None:
        """Make what it uses."""
        await self.client.access.create_user("root", PASSWORD, is_super=True)
        await self.client.admin.create_topic("before", 1)
        await remoting.begin(self.client)

    async def run(self) -> None:
        """Call, until cancelled."""
        async with self.client.producer() as producer:
            while True:
                before = time.monotonic()
                receipt = await producer.send("before", b"%d" % self.calls)
                batch = await self.client.pull("before", 0, receipt.queue_offset)
                assert batch.body_list()[0] == b"%d" % self.calls
                self.longest = max(self.longest, time.monotonic() - before)
                self.calls += 1
                await asyncio.sleep(0.02)


class Stands:
    """The longest time that the event loop did not go on, in time of its thread: what other
    processes take from it is not the node's.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.thread_time() - before)


class Told:
    """Counts the lines of the log in the place of writing them, and keeps those of errors."""

    def __init__(self) -> None:
        self.lines = 0
        self.errors: list[str] = []

    def __call__(self, logger: object, method: str, line: structlog.typing.EventDict) -> str:
        """Raises DropEvent."""
        self.lines += 1
        if method in ("error", "exception", "critical"):
            self.errors.append(str(line))
        raise structlog.DropEvent


@contextlib.contextmanager
def telling() -> Iterator[Told]:
    """What the node logs meanwhile, within the limits of its log."""
    told, before = Told(), structlog.get_config()
    at_info = structlog.make_filtering_bound_logger(logging.INFO)
    structlog.configure(processors=[RateLimiter(), told], wrapper_class=at_info)
    try:
        yield told
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def collected_apart() -> Iterator[None]:
    """The collector looks at what comes meanwhile, and not at all that other tests left."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def fuzz(seconds: float, seed: int) -> Result:
    """All ports for so long. Raises AssertionError where the node does not serve others as before,
    or anything is left afterwards.
    """
    with (
        telling() as told,
        collected_apart(),
        tempfile.TemporaryDirectory(prefix="duolog-fuzz-") as directory,
    ):
        node = Node(_config(Path(directory)))
        await node.start()
        idle = len(asyncio.all_tasks())
        stands, neighbour = Stands(), Neighbour(node)
        await neighbour.begin()
        beside = [asyncio.ensure_future(one.run()) for one in (stands, neighbour)]
        try:
            result = await _all_ports(node, stands, neighbour, seconds, random.Random(seed))
            assert not beside[1].done(), f"a user's call failed: {beside[1].exception()}"
            result.calls, result.call_seconds = neighbour.calls, neighbour.longest
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await neighbour.client.close()
        try:
            await _nothing_left(node, idle)
        finally:
            await node.stop()
        result.log_lines = told.lines
        assert not told.errors, told.errors[0]
        return result


async def _nothing_left(node: Node, idle: int) -> None:
    """Wait until no connection and no task is left."""
    assert node._frames is not None
    ports = node._frames, known(node.remoting)

    def nothing() -> bool:
        left = [one.connections for one in ports if one.connections]
        return not left and len(asyncio.all_tasks()) <= idle

    await until(nothing, seconds=LEFT_SECONDS_MAX, pause=0.05)


def _config(directory: Path) -> Config:
    return Config.model_validate(
        {
            "node": {"data": directory / "data", "listen": free_endpoint(), "name": "fuzzed"},
            "access": access_files(directory, PASSWORD),
            "metrics": {"listen": free_endpoint()},
            "remoting": {"listen": free_endpoint()},
            "ha": {"listen": free_endpoint()},
            "store": {**SMALL_STORE, "broker_role": "ASYNC_MASTER"},
        }
    )


async def _all_ports(
    node: Node, stands: Stands, neighbour: Neighbour, seconds: float, chance: random.Random
) -> Result:
    ports = {
        "gRPC": node.port,
        "frames": broker_of(node).dialects.frames_port,
        "replication": node.ha_port,
        "metrics": known(node.metrics).port,
        "remoting": known(node.remoting).port,
    }
    seeds, result = beginnings(), Result(dict.fromkeys(ports, 0))
    requests = remoting.requests()
    before, end = 0.0, time.monotonic() + seconds

    def goes_on() -> bool:
        late = time.monotonic() - end
        enough = min(result.inputs.values()) >= INPUTS_MIN and neighbour.calls >= CALLS_MIN
        return late < 0 or (not enough and late < LATE_SECONDS_MAX * slowness())

    while goes_on():
        batch = []
        for name, port in ports.items():
            for _ in range(AT_ONCE // len(ports)):
                if name == "remoting" and chance.random() < 0.5:
                    data = remoting.signed_frames(chance, requests)
                else:
                    data = damaged(chance, seeds)
                cuts = sorted(
                    chance.sample(range(len(data) + 1), min(len(data), chance.randrange(3)))
                )
                batch.append(asyncio.to_thread(say, port, data, cuts))
                result.inputs[name] += 1
        await asyncio.gather(*batch)
        if not before and sum(result.inputs.values()) >= 500:
            stands.longest, before = 0.0, rss_mib()  # what is loaded at the first use is there
    result.still_seconds = stands.longest
    gc.collect()
    result.grown_mib = rss_mib() - before if before else 0.0
    assert not broker_of(node).failed.is_set(), "the node gave up"
    assert broker_of(node).validate() == ""
    async with duolog.Client(f"127.0.0.1:{node.port}", user="root", password=PASSWORD) as client:
        await client.admin.create_topic("after", 1)
    return result


def main() -> None:
    """The long mode: as long as one says."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"ports for {seconds:.0f} s from seed {seed}", flush=True)
    configure_logging("critical", False)
    result = asyncio.run(fuzz(seconds, seed))
    print(result)
    assert result.still_seconds <= STILL_SECONDS_MAX
    assert result.grown_mib <= GROWTH_MIB_MAX


if __name__ == "__main__":
    main()
