"""A node inside the test's process, and a client for it."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.ha.registry import Registry
from duolog_server.node.identity.access import lockout
from duolog_server.node.identity.access.secrets import HASH_BYTES
from duolog_server.node.runtime.config import Config
from duolog_server.serve.server import Node
from tests.node.replicas import start_groups
from tests.until import WAIT_SECONDS, slowness

SMALL_STORE = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 1000,
    "max_index_num": 20_000,
    "max_message_size": 64 << 10,
}

__all__ = [
    "bare_client",
    "cheap_passwords",
    "client",
    "many_failures",
    "node",
    "nodes",
    "nothing_noted",
    "patient_clients",
    "producer",
    "quick_groups",
    "short_polls",
    "single",
    "start_node",
]

PATIENT_SECONDS = 10.0  # shorter timeouts are those that tests wait for
StartNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def start_node(tmp_path: Path) -> AsyncIterator[StartNode]:
    """Start nodes; those still running are stopped at the end."""
    running: list[Node] = []

    async def start(
        data: Path | None = None,
        listen: str = "",
        limits: Any = None,
        rocketmq: Any = None,
        metrics: Any = None,
        traces: Any = None,
        access: Any = None,
        audit: Any = None,
        transactions: Any = None,
        ha: Any = None,
        name: str = "test",
        registry: Registry | None = None,
        group: str = "broker-a",
        cluster: str = "DefaultCluster",
        frames_listen: str = "auto",
        tls: Any = None,
        remoting: Any = None,
        rocketmq_slaves: Any = None,
        **store: Any,
    ) -> Node:
        config = Config.model_validate(
            {
                "node": {
                    "data": data or tmp_path / "data",
                    "listen": listen or free_endpoint(),
                    "name": name,
                    "group": group,
                    "cluster": cluster,
                    "frames_listen": frames_listen,
                },
                "registry": {"endpoints": "127.0.0.1:1" if registry is not None else ""},
                "tls": tls or {},
                "limits": limits or {},
                "rocketmq": rocketmq or {},
                "remoting": remoting or {},
                "rocketmq_slaves": rocketmq_slaves or {},
                "metrics": metrics or {},
                "traces": traces or {},
                "access": access or {},
                "audit": audit or {},
                "transactions": transactions or {},
                "ha": ha or {},
                "store": {**SMALL_STORE, **store},
            }
        )
        node = Node(config, registry)
        await node.start()
        running.append(node)
        return node

    yield start
    for node in running:
        if node.broker is not None and not node.broker.store.closed:
            wrong = node.broker.validate()
            await node.stop()
            assert wrong == ""


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's clients may wait for messages for less than the least time that they get."""
    monkeypatch.setattr("duolog_server.compat.grpc.consuming.POLL_SECONDS_MIN", 0.0)


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of passwords cost next to nothing; a node's take 50 ms each, on purpose."""

    def scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
        return hashlib.scrypt(password.encode(), salt=salt, n=2, r=r, p=p, dklen=HASH_BYTES)

    monkeypatch.setattr("duolog_server.node.identity.access.secrets._scrypt", scrypt)


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts of clients that no test waits for grow with the load, as those of `until` do."""
    made = duolog.Client.__init__

    def init(client: duolog.Client, *where: Any, timeout: float = 10.0, **how: Any) -> None:
        if timeout >= PATIENT_SECONDS:  # no longer than a test waits otherwise
            timeout = max(timeout, min(timeout * slowness(), WAIT_SECONDS))
        made(client, *where, timeout=timeout, **how)

    monkeypatch.setattr(duolog.Client, "__init__", init)


@pytest.fixture
def nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has nothing to do stores nothing, however long the test takes."""
    monkeypatch.setattr("duolog_server.node.deferred.delayservice.NOTE_SECONDS", 3600.0)
    monkeypatch.setattr("duolog_server.node.deferred.transactionservice.SAVE_SECONDS", 3600.0)


@pytest.fixture
async def nodes(start_node: StartNode, tmp_path: Path) -> dict[str, Node]:
    """A node of each of two replica groups, by its group."""
    return await start_groups(start_node, tmp_path)


@pytest.fixture
def quick_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of groups are heard ten times as often, and a new master waits as much less for them.

    For tests in which no other member could be overtaken: a machine may stand still for longer.
    """
    monkeypatch.setattr("duolog._groupreader.HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr("duolog_server.node.broker.Broker.group_grace_ms", 400)


@pytest.fixture
def many_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is locked out, however many of its passwords and signatures are wrong."""
    monkeypatch.setattr(lockout, "FREE", 10_000)


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    """A node with small files."""
    return await start_node()


@pytest.fixture
async def bare_client(node: Node) -> AsyncIterator[duolog.Client]:
    """A client of it."""
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=20) as made:
        yield made


@pytest.fixture
async def client(bare_client: duolog.Client) -> duolog.Client:
    """The same, and a topic `T` with 4 queues."""
    await bare_client.admin.create_topic("T", 4)
    return bare_client


@pytest.fixture
async def producer(bare_client: duolog.Client) -> AsyncIterator[duolog.Producer]:
    """A producer of it."""
    async with bare_client.producer() as made:
        yield made


@pytest.fixture
async def single(bare_client: duolog.Client) -> duolog.Client:
    """The same, and a topic `T` with one queue."""
    await bare_client.admin.create_topic("T", 1)
    return bare_client


async def received(consumer: duolog.Consumer) -> duolog.Message:
    """The next message of a consumer, within a time in which one comes."""
    message = await consumer.get(20)
    assert message is not None
    return message
