"""Real brokers of RocketMQ copy a node's log as slaves, and go on without it as masters."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duolog.sync
import pytest

from bench.peers.peer import Server
from bench.peers.rocketmqbroker import RocketmqBroker, digests, name_server
from duolog_server.compat.migration.rocketmqbroker import OldBroker
from tests.compat.remoting.replicas.sections import slaves
from tests.conformance.brokers import end_server, jars_of
from tests.conformance.conftest import SMALL
from tests.conformance.languages import outcome
from tests.conformance.test_remoting import classic
from tests.process.support import NodeProcess, run_cli
from tests.until import wait_until

pytestmark = [pytest.mark.process, pytest.mark.long]

SEGMENT = 1 << 20
QUEUES = 4
WAIT_SECONDS = 180.0


def start_node(data: Path) -> tuple[NodeProcess, str]:
    """A node with small segments, and the address of its remoting port."""
    how = slaves()
    flags = [f"{section}.{key}" for section in how for key in how[section]]
    values = [value for section in how.values() for value in section.values()]
    words = [
        word
        for flag, value in zip(flags, values, strict=True)
        for word in ("--set", f"{flag}={';'.join(value) if isinstance(value, list) else value}")
    ]
    size = ("--set", f"store.mapped_file_size_commit_log={SEGMENT}")
    small = ("--set", f"store.max_message_size={SEGMENT // 2}")
    node = NodeProcess(data, *SMALL, *size, *small, *words)
    node.start()
    return node, how["remoting"]["listen"]


class Producing(threading.Thread):
    """Sends messages of all sizes until it is told to stop; a send is repeated until it is
    acknowledged.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self._endpoint = endpoint
        self._enough = threading.Event()
        self.acknowledged: list[str] = []
        self.failed = ""

    def run(self) -> None:
        try:
            with (
                duolog.sync.Client(self._endpoint, timeout=60) as client,
                client.producer() as producer,
            ):
                while not self._enough.is_set():
                    self._send(producer)
                    time.sleep(0.05)
        except Exception as error:  # told by the test
            self.failed = repr(error)

    def _send(self, producer: duolog.sync.Producer) -> None:
        number = len(self.acknowledged)
        names = [f"m{number + k:06d}" for k in range(20)]
        filler = "x" * (number * 7 % 2500)
        producer.send_batch("T", [f"{name} {filler}".encode() for name in names])
        self.acknowledged += names

    def end(self) -> list[str]:
        """Send no more; what was acknowledged."""
        self._enough.set()
        self.join(90)
        assert not self.failed
        assert not self.is_alive(), "a send does not end"
        return self.acknowledged


def copy_row(node: NodeProcess) -> Any:
    """The broker that copies the node's log, as its status shows it; None for nobody."""
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        rows = client.admin.node_status().replication.rocketmq_slaves
    assert len(rows) <= 1, rows
    return rows[0] if rows else None


def end_of(node: NodeProcess) -> int:
    """Where its log ends."""
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        return client.admin.node_status().max_offset


def is_near(node: NodeProcess) -> bool:
    """Whether a broker follows closely."""
    row = copy_row(node)
    return row is not None and row.state == "TRANSFER" and row.lag_bytes < SEGMENT


def wait_near(node: NodeProcess, slave: Server, what: str) -> None:
    """Until this broker follows closely; one that ended by itself never will."""
    wait_until(lambda: is_near(node) or not slave.running, what, seconds=WAIT_SECONDS)
    assert slave.running, f"{what}: it ended by itself"


def has_all(node: NodeProcess) -> bool:
    """Whether a broker has all that the node has."""
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        status = client.admin.node_status()
    rows = status.replication.rocketmq_slaves
    return [row.received_offset for row in rows] == [status.max_offset]


def remove_empty_files(broker: RocketmqBroker) -> None:
    """As its operators do: RocketMQ 4.9 ends at once, without a word, where it was killed between
    creating a file of its store and giving it its size.
    """
    for path in broker.store.glob("**/*"):
        if path.name.isdecimal() and path.is_file() and not path.stat().st_size:
            path.unlink()


def make_tables(node: NodeProcess) -> None:
    """Topics, a group, and an offset that it committed."""
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        client.admin.create_topic("T", QUEUES)
        client.admin.create_topic("Empty", 1)
        client.admin.put_group("committed", retry_times=3)
        with client.producer() as producer:
            producer.send_batch("Empty", [b"a", b"b"])
        client.admin.reset_group("committed", "Empty", offset=1)


def tables_have_come(broker: RocketmqBroker) -> bool:
    topics = broker.table("topics.json").get("topicConfigTable", {})
    groups = broker.table("subscriptionGroup.json").get("subscriptionGroupTable", {})
    offsets = broker.table("consumerOffset.json").get("offsetTable", {})
    return (
        topics.get("T", {}).get("writeQueueNums") == QUEUES
        and groups.get("committed", {}).get("retryMaxTimes") == 3
        and offsets.get("Empty@committed") == {"0": 1}
        and (broker.store / "config" / "delayOffset.json").exists()
    )


def wait_for_all(node: NodeProcess, broker: RocketmqBroker) -> None:
    """Until the slave has the log and the tables."""
    wait_until(lambda: has_all(node), "the slave has everything", seconds=WAIT_SECONDS)
    wait_until(
        lambda: tables_have_come(broker),
        "topics, groups and offsets have come",
        seconds=WAIT_SECONDS,
    )


def assert_same_log(node: NodeProcess, broker: RocketmqBroker, end: int) -> int:
    """Every full segment has the same bytes in both; how many there are."""
    ours, theirs = (digests(root / "commitlog") for root in (node.data, broker.store))
    full = [name for name in ours if int(name) + SEGMENT <= end]
    assert {name: ours[name] for name in full} == {name: theirs.get(name) for name in full}
    return len(full)


def hash_of(names: list[str]) -> str:
    return hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()


def end(node: NodeProcess) -> None:
    if node.running:
        node.stop()


@pytest.fixture(scope="module")
def of_five(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[NodeProcess, RocketmqBroker, Server]]:
    """A node with messages, and a slave of RocketMQ 5 that has begun to copy them."""
    root, jars = tmp_path_factory.mktemp("five"), jars_of("5.3.3")
    with ExitStack() as stack:
        node, remoting = start_node(root / "data")
        stack.callback(end, node)
        make_tables(node)
        with duolog.sync.Client(node.endpoint, timeout=60) as client, client.producer() as producer:
            for number in range(40):
                producer.send_batch("T", [b"x" * (number * 100 + 1)] * 20)
        broker = RocketmqBroker(root / "broker", jars, SEGMENT)
        slave = broker.server("SLAVE", 1, remoting)
        stack.callback(end_server, slave)
        slave.start()
        yield node, broker, slave


@pytest.mark.usefixtures("of_five")  # which asks for tables a minute after its start
def test_a_slave_follows_through_kills_and_becomes_a_master(tmp_path: Path) -> None:
    jars = jars_of("4.9.7")
    with ExitStack() as stack:
        node, remoting = start_node(tmp_path / "data")
        stack.callback(end, node)
        make_tables(node)
        broker = RocketmqBroker(tmp_path / "broker", jars, SEGMENT)

        def start_slave() -> Server:
            remove_empty_files(broker)
            # Its first report comes after one interval: with 5 s, each kill would take so long.
            made = broker.server("SLAVE", 1, remoting, haSendHeartbeatInterval=500)
            stack.callback(end_server, made)
            made.start()
            return made

        slave = start_slave()
        producing = Producing(node.endpoint)
        producing.start()
        wait_near(node, slave, "the slave follows")
        for _ in range(2):
            slave.kill()
            slave = start_slave()
            wait_near(node, slave, "the slave follows after its kill")
            node.kill()
            node.start()
            wait_near(node, slave, "the slave follows after the node's kill")
        acknowledged = producing.end()
        wait_for_all(node, broker)
        last = end_of(node)
        assert node.stop() == 0
        slave.stop()
        assert assert_same_log(node, broker, last) >= 3

        address = lead(broker, tmp_path, stack)
        words = classic(tmp_path, "ReadAll.java", "4.9.7")
        found = outcome(*words, address, "T", "readers", str(len(acknowledged)))
        assert found["different"] == len(set(acknowledged)) == len(acknowledged)
        assert (found["came"], found["hash"]) == (found["different"], hash_of(acknowledged))


def lead(broker: RocketmqBroker, root: Path, stack: ExitStack) -> str:
    """Start the broker as a master of RocketMQ; the address of its name server."""
    names, address = name_server(root / "names", broker.jars)
    master = broker.server("ASYNC_MASTER", 0, address)
    for server, listens in ((names, address), (master, f"127.0.0.1:{broker.port}")):
        stack.callback(end_server, server)
        server.start()
        server.wait_listening(listens)
    return address


def delivered(broker: RocketmqBroker) -> int:
    """How many messages the broker has in the queues of D."""

    async def ends() -> int:
        old = OldBroker(f"127.0.0.1:{broker.port}")
        try:
            return sum([await old.queue_end("D", queue) for queue in range(QUEUES)])
        finally:
            old.close()

    return asyncio.run(ends())


def test_delayed_messages_come_once_on_the_way_back(tmp_path: Path) -> None:
    """Those that the node delivers after the broker's last look at its tables."""
    jars = jars_of("4.9.7")
    with ExitStack() as stack:
        node, remoting = start_node(tmp_path / "data")
        stack.callback(end, node)
        make_tables(node)
        broker = RocketmqBroker(tmp_path / "broker", jars, SEGMENT)
        slave = broker.server("SLAVE", 1, remoting, haSendHeartbeatInterval=500)
        stack.callback(end_server, slave)
        slave.start()
        with duolog.sync.Client(node.endpoint, timeout=60) as client, client.producer() as producer:
            client.admin.create_topic("D", QUEUES)
            wait_for_all(node, broker)
            for number in range(10):
                producer.send("D", b"%d" % number, delay_level=1)
            for number in range(5):
                producer.send("D", b"late %d" % number, delay_level=4)  # 30 s: delivered there
            wait_until(
                lambda: sum(row.max_offset for row in client.admin.topics(["D"])[0].stats) == 10,
                "the node delivers ten of them",
                seconds=WAIT_SECONDS,
            )
        words = ("--broker", f"127.0.0.1:{broker.port}", "--endpoints", node.endpoint)
        done = run_cli("migrate", "rollback", *words, "--freeze", "600", timeout=WAIT_SECONDS)
        assert done.returncode == 0, done.stderr
        assert "the old broker has everything" in done.stderr
        assert node.stop() == 0
        slave.stop()
        lead(broker, tmp_path, stack)
        wait_until(lambda: delivered(broker) >= 15, "the others come", seconds=WAIT_SECONDS)
        assert delivered(broker) == 15


def test_a_slave_of_rocketmq_5_copies_the_same_bytes(
    of_five: tuple[NodeProcess, RocketmqBroker, Server],
) -> None:
    node, broker, slave = of_five
    wait_for_all(node, broker)
    last = end_of(node)
    assert node.stop() == 0
    slave.kill()  # what it wrote is in its files
    assert assert_same_log(node, broker, last) >= 1
