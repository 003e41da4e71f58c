"""How fast a broker of RocketMQ copies a log: from a node, from RocketMQ's own master, and from a
program that does nothing but send it, which is the limit.

`python -m bench.rocketmqslave --mebibytes 512 --root DIRECTORY`. Needs Java and Maven. The log is
one segment, because RocketMQ's master sends an empty slave only its newest one; the master is
started with the node's own directory, so that all three send the same bytes.
"""

import argparse
import asyncio
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import duolog.sync

from bench.peers.peer import Server
from bench.peers.rocketmq import RocketMq
from bench.peers.rocketmqbroker import INDEX_ENTRIES, INDEX_SLOTS, RocketmqBroker, name_server
from duolog_server.compat.hawire.frames import HEAD, REPORT
from duolog_server.compat.remoting.calling import Calling, CallRefused, connect
from duolog_server.demo.childnode import ChildNode
from duolog_server.demo.ports import free_endpoint

SEGMENT = 1 << 30
PIECE_BYTES = 256 << 10
BATCH = 1000
BODY_BYTES = 1000
POLL_SECONDS = 0.02
WAIT_SECONDS = 300.0
BROKER_RUNTIME_INFO = 28


def fill(node: ChildNode, mebibytes: int) -> int:
    """Messages of 1 KB; where the log ends."""
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        client.admin.create_topic("T", 8)
        with client.producer() as producer:
            for _ in range((mebibytes << 20) // (BATCH * (BODY_BYTES + 150))):
                producer.send_batch("T", [os.urandom(BODY_BYTES // 2) * 2] * BATCH)
        return client.admin.node_status().max_offset


async def _end_of(broker: Calling) -> int:
    """Where a broker's log ends; 0 for an empty one, of which RocketMQ tells nothing."""
    try:
        answer = await broker.call(BROKER_RUNTIME_INFO)
    except CallRefused:
        return 0
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])


async def copied(address: str, end: int) -> float:
    """Seconds from the first byte to the last one that a broker says that it has."""
    broker = await connect(address)
    until, began, first = time.monotonic() + WAIT_SECONDS, 0.0, 0
    try:
        while time.monotonic() < until:
            has = await _end_of(broker)
            if has and not began:
                began, first = time.monotonic(), has
            if has >= end:
                return (time.monotonic() - began) * end / max(1, end - first)
            await asyncio.sleep(POLL_SECONDS)
    finally:
        broker.close()
    raise SystemExit(f"{address} has not copied {end} bytes within {WAIT_SECONDS:g} s")


def feed(log: Path, end: int, listener: socket.socket) -> None:
    """Be a master that reads a file and sends it in frames, and listens to nothing."""
    peer, _ = listener.accept()
    with peer, log.open("rb") as file:
        peer.recv(REPORT.size)
        at = 0
        while at < end:
            size = min(PIECE_BYTES, end - at)
            peer.sendall(HEAD.pack(at, size))
            at += os.sendfile(peer.fileno(), file.fileno(), at, size)
            assert at % PIECE_BYTES == 0 or at == end, "sendfile sends all, or blocks"
        while peer.recv(1 << 16):
            pass


class Measuring:
    """One run."""

    def __init__(self, root: Path, jars: Path, end: int, stack: ExitStack) -> None:
        self._root, self._jars, self._end, self._stack = root, jars, end, stack

    def start(self, server: Server, address: str) -> None:
        """Start a server, and wait until it listens; it ends with the run."""
        server.start()
        self._stack.callback(server.stop)
        server.wait_listening(address)

    def rate(self, name: str, link: str, names: str, role: Callable[[], None]) -> float:
        """MB/s at which a new slave copies from an address. role: begins what sends there."""
        role()
        slave = RocketmqBroker(self._root / name, self._jars, SEGMENT)
        keys = {"haMasterAddress": link, "haSendHeartbeatInterval": 500}
        server = slave.server("SLAVE", 1, names, **keys)
        self.start(server, f"127.0.0.1:{slave.port}")
        seconds = asyncio.run(copied(f"127.0.0.1:{slave.port}", self._end))
        server.stop()
        shutil.rmtree(slave.store)
        return self._end / seconds / 1e6


def measure(root: Path, jars: Path, mebibytes: int) -> dict[str, float]:
    """The three rates."""
    link = free_endpoint()
    flags = (
        "--set", f"store.mapped_file_size_commit_log={SEGMENT}",
        "--set", f"store.max_hash_slot_num={INDEX_SLOTS}",
        "--set", f"store.max_index_num={INDEX_ENTRIES}",
    )  # fmt: skip
    ours = "--set", f"rocketmq_slaves.listen={link}", "--set", "rocketmq_slaves.allow=127.0.0.1"
    node = ChildNode(root / "data", *flags, *ours)
    with ExitStack() as stack:
        node.start()
        stack.callback(node.stop)
        node.wait_port()
        end = fill(node, mebibytes)
        run = Measuring(root, jars, end, stack)
        names, address = name_server(root / "names", jars)
        run.start(names, address)
        found = {"duolog": run.rate("slave1", link, address, lambda: None)}
        node.stop()
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        feeding = threading.Thread(
            target=feed, args=(root / "data/commitlog/00000000000000000000", end, listener)
        )
        feeding.daemon = True
        bare = f"127.0.0.1:{listener.getsockname()[1]}"
        found["bare"] = run.rate("slave2", bare, address, feeding.start)
        master = RocketmqBroker(root / "master", jars, SEGMENT)
        (root / "data").rename(master.store)
        server = master.server("ASYNC_MASTER", 0, address)
        own = f"127.0.0.1:{master.port}"
        found["rocketmq"] = run.rate("slave3", master.link, address, lambda: run.start(server, own))
    return {"bytes": end, **found}


def main() -> None:
    """Print the rates in MB/s as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=900)
    parser.add_argument("--version", default="4.9.7")
    parser.add_argument("--root", type=Path, default=None)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=words.root) as root:
        print(json.dumps(measure(Path(root), RocketMq(words.version).jars(), words.mebibytes)))


if __name__ == "__main__":
    main()
