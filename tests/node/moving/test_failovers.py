"""A queue moves between groups of several nodes, and masters of either end in the middle of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from duolog import _errors as sdk
from duolog.testing._ports import free_endpoint

from duolog_server.ha.master import Master
from duolog_server.ha.registry import RegistryUnavailable, Transaction
from duolog_server.node.broker import Broker
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.moving.othergroups import OtherGroups
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.moves import Place
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.support import NOW, read_all
from tests.until import until

A, B = "broker-a", "broker-b"
# Where a move waits: nothing is answered any more, or what is asked is done and its answer lost.
WAITS = (
    *("row PREPARING", "deaf reserve", "lost reserve", "deaf open", "lost open"),
    "row WITNESSING",
)


class Registry(MemoryRegistry):
    """It does not answer for rows of queues while it is down."""

    down = False

    def commit(self, transaction: Transaction) -> int | None:
        if self.down and any(one.key.startswith("/duolog-queues/") for one in transaction.changes):
            raise RegistryUnavailable("down")
        return super().commit(transaction)


class Cluster:
    """Two groups, each of two nodes that need not both live."""

    def __init__(self, start: StartNode, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._start = start
        self._root = root
        self.registry = Registry()
        self.nodes: dict[str, list[Node]] = {A: [], B: []}
        self.how = ""  # "deaf" or "lost"
        self.kind = ""  # of requests
        self.waited = asyncio.Event()
        ask = OtherGroups.ask
        cluster = self

        async def asked(
            others: OtherGroups, group: str, request: wire.MoveRequest, seconds: float
        ) -> wire.MoveReply:
            meant = cluster.kind == request.WhichOneof("request")
            if meant and cluster.how == "deaf":
                cluster.waited.set()
                raise sdk.Unavailable("no answer")
            reply = await ask(others, group, request, seconds)
            if meant and cluster.how == "lost":
                cluster.waited.set()
                raise sdk.Unavailable("the answer was lost")
            return reply

        patch.setattr(OtherGroups, "ask", asked)

    async def start(self, group: str, name: str) -> Node:
        node = await self._start(
            self._root / group / name,
            ha={"listen": free_endpoint(), "in_sync_replicas": 1},
            name=f"{name}-of-{group}",
            registry=self.registry,
            group=group,
            broker_role="AUTO",
        )
        self.nodes[group].append(node)
        return node

    def leads(self, group: str) -> Node | None:
        found = [
            node
            for node in self.nodes[group]
            if broker_of(node).replication.master is not None
            and broker_of(node).admission.change() is None
        ]
        return found[0] if len(found) == 1 else None

    def master(self, group: str) -> Broker:
        node = self.leads(group)
        assert node is not None
        return broker_of(node)

    async def whole(self) -> None:
        def is_whole() -> bool:
            for group, nodes in self.nodes.items():
                node = self.leads(group)
                if node is None:
                    return False
                master = broker_of(node).replication.master
                if master is None or master.in_sync() < len(nodes):
                    return False
                members = master.mandate.members if master.mandate is not None else ()
                if len(members) < len(nodes):
                    return False
                for other in (one for some in self.nodes.values() for one in some):
                    if broker_of(other).master_of(group) != broker_of(node).advertised:
                        return False
            return True

        await until(is_whole)

    async def end_master(self, group: str) -> None:
        """Stop the master of a group; the other node follows it, and the first one comes back."""
        old = self.leads(group)
        assert old is not None
        self.nodes[group].remove(old)
        await old.stop()
        await until(lambda: self.leads(group) is not None)
        await self.start(group, old.config.node.name.partition("-")[0])
        await self.whole()

    def wait_at(self, what: str) -> None:
        how, _, self.kind = what.partition(" ")
        if how == "row" and self.kind == "PREPARING":
            self.registry.down = True
        self.how = how

    async def waits(self, source: Broker) -> None:
        """Until the move of queue 1 stands where it is to wait."""
        if self.how != "row":
            await self.waited.wait()
            return

        def is_there() -> bool:
            found = source.moves.progress("T")
            if found and found[0].state == "SEALING":
                self.registry.down = True
            return bool(found) and found[0].state == self.kind

        await until(is_there, pause=0.0)

    def answer(self) -> None:
        self.how, self.registry.down = "", False


@pytest.fixture
async def cluster(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    made = Cluster(start_node, tmp_path, monkeypatch)
    for group in (A, B):
        for name in "mn":
            await made.start(group, name)
    await made.whole()
    metadata = made.master(A).metadata
    await metadata.put_topic(metadata.new_topic("T", 2, 6))
    return made


async def put(broker: Broker, queue_id: int, body: bytes) -> bool:
    batch = PutBatch("T", queue_id, Columns.of([body]), NOW, accepted=True)
    result = await broker.log.put_and_wait(batch)
    return result.status is PutMessageStatus.PUT_OK


async def begin(broker: Broker) -> Any:
    """Begin the move of queue 1, for as long as its master lives."""
    try:
        return await broker.moves.begin("T", 1, B)
    except sdk.DuologError as error:
        return error


async def test_a_seal_that_no_other_node_has_is_forgotten_with_its_master(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has begun at the target: the move is revoked, and puts are stored here."""
    source, master = cluster.master(A), cluster.master(A).replication.master
    chunk = Master._chunk

    def none_of_this(machine: Master, *args: Any) -> Any:
        sealing = source.metadata.stored_moves.seals
        return None if machine is master and sealing else chunk(machine, *args)

    assert await put(source, 1, b"0")
    monkeypatch.setattr(Master, "_chunk", none_of_this)
    task = asyncio.create_task(begin(source))
    await until(lambda: source.metadata.stored_moves.seal_of("T", 1) is not None)
    await until(lambda: [one.state for one in source.moves.progress()] == ["SEALING"])
    assert source.metadata.tables.moves.seal_of("T", 1) is None
    assert source.moves._passing.is_held("T", 1)
    await cluster.end_master(A)
    task.cancel()
    source = cluster.master(A)
    assert await put(source, 1, b"1")

    async def revoked() -> bool:
        row = (await source.moves._rows.read_all())["T", Place(A, 1)].row
        return row is not None and not row.move

    await until(revoked)
    assert [
        one.revoked for one in cluster.master(B).metadata.tables.moves.guests["T"].values()
    ] == [True]
    again = await begin(source)
    assert (again.state, again.end) == ("DONE", 2)


@pytest.mark.parametrize("ends", [A, B, A + B])
@pytest.mark.parametrize("at", WAITS)
async def test_a_move_ends_well_though_a_master_ends_in_the_middle(
    cluster: Cluster, at: str, ends: str
) -> None:
    """At one place the queue takes puts afterwards, and every message is there once, in order."""
    for k in range(3):
        assert await put(cluster.master(A), 1, b"%d" % k)
    cluster.wait_at(at)
    source = cluster.master(A)
    task = asyncio.create_task(begin(source))
    await cluster.waits(source)
    for group in (A, B):
        if group in ends:
            await cluster.end_master(group)
    cluster.answer()

    async def moved() -> bool:
        progress = await begin(cluster.master(A))
        return getattr(progress, "state", "") == "DONE"

    await until(moved)
    task.cancel()
    source, target = cluster.master(A), cluster.master(B)
    seal = source.metadata.tables.moves.seal_of("T", 1)
    assert seal is not None
    assert seal.end == 3
    guests = target.metadata.tables.moves.guests["T"]
    opened = {
        queue_id: guest.first for queue_id, guest in guests.items() if guest.first is not None
    }
    assert opened == {seal.following.queue_id: 3}
    assert all(guest.first is not None or guest.revoked for guest in guests.values())
    assert not await put(source, 1, b"late")
    assert await put(target, seal.following.queue_id, b"3")
    await source.log.caught_up()
    await target.log.caught_up()
    assert read_all(source.store, "T", 1) == [b"0", b"1", b"2"]
    assert target.store.queue_range("T", seal.following.queue_id) == (3, 4)
    rows = await source.moves._rows.read_all()
    found = rows["T", Place(A, 1)].row
    assert found is not None
    assert (found.at, found.move) == (seal.following, "")
    for group in (A, B):
        assert cluster.master(group).validate() == ""
