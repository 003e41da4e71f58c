"""A group is set back to a copy of before a move, the source or the target: it mends itself."""

import asyncio
import shutil
from pathlib import Path

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.ha.registry import Delete, Transaction
from duolog_server.node.broker import Broker
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.serve.server import Node
from duolog_server.store.moves import Place
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

A, B = "broker-a", "broker-b"


class Cluster:
    """Two groups of one node each."""

    def __init__(self, start: StartNode, root: Path) -> None:
        self._start = start
        self._root = root
        self.registry = MemoryRegistry()
        self.nodes: dict[str, Node] = {}
        self._listens = {group: free_endpoint() for group in (A, B)}

    async def start(self, group: str) -> None:
        self.nodes[group] = await self._start(
            self._root / group,
            listen=self._listens[group],
            ha={"listen": free_endpoint(), "in_sync_replicas": 1},
            name=f"of-{group}",
            registry=self.registry,
            group=group,
            broker_role="AUTO",
        )
        await until(self.is_whole)

    def is_whole(self) -> bool:
        brokers = {group: broker_of(node) for group, node in self.nodes.items()}
        return all(
            broker.admission.change() is None
            and all(broker.master_of(group) == one.advertised for group, one in brokers.items())
            for broker in brokers.values()
        )

    def master(self, group: str) -> Broker:
        return broker_of(self.nodes[group])

    async def copy(self, group: str) -> None:
        """Back a group up, and go on with it."""
        await self.nodes.pop(group).stop()
        shutil.copytree(self._root / group, self._root / f"{group}-copy")
        await self.start(group)

    async def set_back(self, group: str) -> None:
        """Restore it, as docs/backup.md says."""
        await self.nodes.pop(group).stop()
        shutil.rmtree(self._root / group)
        (self._root / f"{group}-copy").rename(self._root / group)
        for kept in ("membership.jsonl", "replica.json"):  # which a restore does not bring
            (self._root / group / "config" / kept).unlink()
        prefix = f"/duolog/DefaultCluster/{group}/"
        gone = tuple(Delete(key) for key in self.registry.get(prefix).rows)
        self.registry.commit(Transaction((), gone))
        await self.start(group)


@pytest.fixture
async def cluster(start_node: StartNode, tmp_path: Path) -> Cluster:
    made = Cluster(start_node, tmp_path)
    for group in (A, B):
        await made.start(group)
    metadata = made.master(A).metadata
    await metadata.put_topic(metadata.new_topic("T", 1, 6))
    return made


async def send(client: duolog.Client, *bodies: bytes) -> None:
    async with client.producer() as producer:
        for body in bodies:
            await producer.send("T", body)


async def taken(client: duolog.Client, bodies: set[bytes]) -> list[bytes]:
    """What a consumer group is given, until it has these."""
    found: list[bytes] = []
    async with client.consumer("readers", "T") as consumer:
        async with asyncio.timeout(WAIT_SECONDS):
            while not bodies <= set(found):
                message = await consumer.get(timeout=1)
                if message is not None:
                    found.append(bytes(message.body))
    return found


@pytest.mark.parametrize("group", [A, B])
async def test_a_group_that_was_set_back_to_before_a_move_mends_it(
    cluster: Cluster, group: str
) -> None:
    endpoint = f"127.0.0.1:{cluster.nodes[B if group == A else A].port}"
    async with duolog.Client(endpoint, timeout=WAIT_SECONDS) as client:
        await send(client, b"0", b"1")
        await cluster.copy(group)
        await send(client, b"2")
        assert (await cluster.master(A).moves.begin("T", 0, B)).state == "DONE"
        await send(client, b"3")
        await cluster.set_back(group)
        await send(client, b"4")

        def mended() -> bool:
            seal = cluster.master(A).metadata.tables.moves.seal_of("T", 0)
            if seal is None or cluster.master(A).passing.is_held("T", 0):
                return False
            at = seal.following.queue_id
            return cluster.master(B).metadata.tables.moves.first_of("T", at) == seal.first

        await until(mended)
        seal = cluster.master(A).metadata.tables.moves.seal_of("T", 0)
        assert seal is not None
        assert (seal.end, seal.first) == ((2, 3) if group == A else (3, 3))
        kept = {b"0", b"1", b"4"} | ({b"3"} if group == A else {b"2"})
        async with duolog.Client(endpoint, timeout=WAIT_SECONDS) as new:
            assert sorted(await taken(new, kept)) == sorted(kept)

        async def witnessed() -> bool:
            row = (await cluster.master(A).moves._rows.read_all())["T", Place(A, 0)].row
            return row is not None and row.at == seal.following

        await until(witnessed)
    for node in cluster.nodes.values():
        assert broker_of(node).validate() == ""
