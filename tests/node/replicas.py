"""A master and its slaves inside the test's process."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import duolog
from duolog.testing._ports import free_endpoint

from duolog_server.ha.master import Master
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.node.broker import Broker
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.serve.server import Node
from tests.until import until

StartNode = Callable[..., Awaitable[Node]]
# Longest wait for what takes far less: a machine with many guests stands still for seconds.
WAIT_SECONDS = 40.0


def broker_of(node: Node) -> Broker:
    assert node.broker is not None
    return node.broker


def client_of(node: Node) -> duolog.Client:
    """A client of a node that may take long to answer."""
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=WAIT_SECONDS)


def master_of(node: Node) -> Master:
    """The machine of a node that is the master."""
    machine = broker_of(node).replication.master
    assert machine is not None
    return machine


def slave_of(node: Node) -> Slave:
    """The machine of a node that is a slave."""
    machine = broker_of(node).replication.slave
    assert machine is not None
    return machine


async def in_sync(master: Node, count: int = 2) -> None:
    """Wait until so many replicas are in sync."""
    machine = master_of(master)
    await until(lambda: machine.in_sync() == count)


async def drained(client: duolog.Client, node: str) -> None:
    """Drain a node; on a busy machine it hands over later than a call waits for that."""

    async def done() -> bool:
        try:
            await client.admin.drain(node)
        except duolog.Busy:
            return False
        return True

    await until(done, f"{node} is drained", seconds=WAIT_SECONDS)


class Group:
    """A replica group under test."""

    def __init__(self, start: StartNode, root: Path, **ha: Any) -> None:
        self._start = start
        self.root = root
        self.ha = {"listen": free_endpoint(), **ha}
        self.master: Node | None = None

    async def start_master(self, role: str = "SYNC_MASTER", **store: Any) -> Node:
        self.master = await self._start(
            self.root / "m", ha=self.ha, name="m", broker_role=role, **store
        )
        self.ha["listen"] = f"127.0.0.1:{self.master.ha_port}"
        return self.master

    async def start_slave(self, name: str = "s", ha: Any = None, **store: Any) -> Node:
        address = self.ha["listen"]
        return await self._start(
            self.root / name,
            ha={"master": address, "reconnect_interval": 100, **(ha or {})},
            name=name,
            broker_role="SLAVE",
            **store,
        )

    async def start_pair(self, role: str = "SYNC_MASTER", **store: Any) -> tuple[Node, Node]:
        """A master, and a slave `s` that is in sync with it."""
        master = await self.start_master(role, **store)
        slave = await self.start_slave()
        await in_sync(master)
        return master, slave

    def client(self, *nodes: Node) -> duolog.Client:
        return duolog.Client([f"127.0.0.1:{node.port}" for node in nodes], timeout=WAIT_SECONDS)


async def following(slave: Node) -> None:
    """Wait until a slave is in TRANSFER."""
    machine = slave_of(slave)
    await until(lambda: machine.state is ConnectionState.TRANSFER, machine.reason)


async def caught_up(master: Node, slave: Node) -> None:
    """Wait until a slave has, and knows to be confirmed, all that its master has."""
    ours, theirs = broker_of(master).store, broker_of(slave).store
    await until(
        lambda: (
            theirs.log.max_offset == ours.log.max_offset == ours.confirm_offset
            and theirs.confirm_offset == ours.confirm_offset == theirs.dispatcher.reput_from
        )
    )


def log_bytes(node: Node, start: int = 0, end: int | None = None) -> bytes:
    """Bytes of a node's commit log."""
    log = broker_of(node).store.log
    end = log.max_offset if end is None else end
    found = bytearray()
    while start < end:
        piece = log.get_data(start)[: end - start].tobytes()
        assert piece
        found += piece
        start += len(piece)
    return bytes(found)


def knows_route(node: Node, master: Node, replicas: int) -> bool:
    """Whether a node would tell a client who leads its group, and of so many replicas."""
    assert node.failover is not None
    view = node.failover.routes.get(master.config.node.group)
    return (
        view is not None
        and view.master is not None
        and view.master.replica.node == master.config.node.name
        and len(view.replicas) == replicas
    )


class Elected:
    """Nodes a, b, c that elect their master, on a registry in memory."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @staticmethod
    async def start(start: StartNode, root: Path, ha: Any = None, **how: Any) -> "Elected":
        """Start them, and wait until one leads and puts are answered."""
        registry = MemoryRegistry()
        made = Elected(
            [
                await start(
                    root / name,
                    ha={"listen": free_endpoint(), **(ha or {})},
                    name=name,
                    registry=registry,
                    broker_role="AUTO",
                    **how,
                )
                for name in "abc"
            ]
        )
        await until(made.is_whole)
        return made

    def is_whole(self) -> bool:
        """One leads, all are in sync and know it, and nothing keeps it from answering puts."""
        one = self.master
        master = broker_of(one).replication.master if one is not None else None
        return (
            one is not None
            and master is not None
            and master.in_sync() == 3
            and not master.refusal()
            and all(knows_route(node, one, 3) for node in self.nodes)
        )

    @property
    def master(self) -> Node | None:
        """The node that leads, if it is one."""
        leading = [node for node in self.nodes if broker_of(node).replication.master is not None]
        return leading[0] if len(leading) == 1 else None

    def the_master(self) -> Node:
        """The node that leads."""
        assert self.master is not None
        return self.master

    async def switch(self, client: duolog.Client) -> Node:
        """Another node becomes the master."""
        old = self.master
        await client.admin.failover()
        await until(lambda: self.master not in (None, old))
        return self.the_master()

    @property
    def endpoints(self) -> list[str]:
        """Of all of them."""
        return [f"127.0.0.1:{node.port}" for node in self.nodes]


GROUPS = ("broker-a", "broker-b")


async def start_groups(start: StartNode, root: Path, **how: Any) -> dict[str, Node]:
    """Two replica groups of one node each, in one cluster, that know of each other."""
    registry = MemoryRegistry()
    made = {}
    for group in GROUPS:
        made[group] = await start(
            root / group,
            ha={"listen": free_endpoint(), "in_sync_replicas": 1},
            name=f"node-of-{group}",
            registry=registry,
            group=group,
            broker_role="AUTO",
            **how,
        )

    def ready(node: Node) -> bool:
        return (
            node.failover is not None
            and {n for n, view in node.failover.routes.items() if view.master} == set(GROUPS)
            and broker_of(node).replication.master is not None
            and broker_of(node).replication.refusal() == ""
        )

    for node in made.values():
        await until(lambda node=node: ready(node))  # type: ignore[misc]
    return made


def take_checks(node: Node) -> Node:
    """A node whose transaction checks are taken, though no producer that answers is there."""

    async def take(check: object) -> bool:
        return True

    broker_of(node).transactions.askers.append(take)
    return node
