"""Nodes that elect their master, inside the test's process, on a registry in memory."""

import asyncio
import contextlib
import errno
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duolog
import grpc
import grpc.aio
import pytest
import structlog
from duolog._connection import ATTEMPT_SECONDS
from duolog._errors import error_of
from duolog.testing._ports import free_endpoint
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.ha import failoverevents, identity, membership
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import Role
from duolog_server.ha.failoverevents import Changed, Event, Instruct, Tick, Wake
from duolog_server.ha.groupstate import Keys, Registration, Replica, View
from duolog_server.ha.mandate import Mandate
from duolog_server.ha.membership import Membership
from duolog_server.ha.registry import Delete, Grant, Put, RegistryUnavailable, Snapshot, Transaction
from duolog_server.node.api.native import appends_of
from duolog_server.node.api.replicationstatus import replication_status
from duolog_server.node.core import admission
from duolog_server.node.election import failover
from duolog_server.node.election.failover import FailoverService
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.replication import roles
from duolog_server.node.replication.slavestream import ReplicationClient
from duolog_server.node.runtime.config import RegistrySection
from duolog_server.ops.cli.cluster import row_of
from duolog_server.ops.cli.node import problems_of
from duolog_server.ops.inspection.doctor.diagnosis import diagnose
from duolog_server.ops.inspection.survey import look
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.moves import Guest, Place, guest_record
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.record import Host
from tests.node.api.test_messages import append, append_request
from tests.node.replicas import WAIT_SECONDS, broker_of, drained, log_bytes, master_of, slave_of
from tests.nodefixtures import StartNode, received
from tests.until import until

KEYS = Keys("DefaultCluster", "broker-a")
HERE = Host("127.0.0.1", 1)


class Voters:
    """Nodes a, b, c of one group."""

    def __init__(self, start: StartNode, root: Path) -> None:
        self._start = start
        self.root = root
        self.registry = MemoryRegistry()
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str, **how: Any) -> Node:
        self.nodes[name] = await self._start(
            self.root / name,
            ha={"listen": free_endpoint(), **how.pop("ha", {})},
            name=name,
            registry=how.pop("registry", self.registry),
            broker_role="AUTO",
            **how,
        )
        return self.nodes[name]

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop()

    async def start_all(self) -> None:
        for name in "abc":
            await self.start(name)
        await self.whole()

    async def whole(self) -> None:
        """Wait until one leads and all are in its set."""
        await until(
            lambda: (
                self.leader is not None
                and len(self.members()) == len(self.nodes)
                and broker_of(self.leader).replication.refusal() == ""
            )
        )

    @property
    def leader(self) -> Node | None:
        leading = [n for n in self.nodes.values() if broker_of(n).replication.master is not None]
        return leading[0] if len(leading) == 1 else None

    def the_leader(self) -> Node:
        assert self.leader is not None
        return self.leader

    def the_node(self, part: FailoverService) -> Node:
        return next(node for node in self.nodes.values() if node.failover is part)

    def members(self) -> set[str]:
        view = service(self.the_leader()).machine.view
        return {r.node for r in view.state.sync_state_set} if view.state is not None else set()

    def client(self, *names: str, timeout: float = 15.0) -> duolog.Client:
        chosen = [self.nodes[name] for name in names or sorted(self.nodes)]
        return duolog.Client([f"127.0.0.1:{node.port}" for node in chosen], timeout=timeout)


def service(node: Node) -> FailoverService:
    assert node.failover is not None
    return node.failover


@pytest.fixture
async def voters(start_node: StartNode, tmp_path: Path) -> Voters:
    return Voters(start_node, tmp_path)


def name_of(node: Node) -> str:
    return node.config.node.name


async def test_three_nodes_elect_one_and_answer_puts(voters: Voters) -> None:
    await voters.start_all()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        receipt = await producer.send("T", b"x")
    assert receipt.status == "PUT_OK"
    assert receipt.epoch == 1
    store = broker_of(voters.the_leader()).store
    await until(lambda: store.queue_range("T", receipt.queue_id) == (0, 1))
    confirmed = store.confirm_offset  # the node may have stored something of its own since
    for node in voters.nodes.values():
        assert broker_of(node).store.log.max_offset >= confirmed


async def test_a_producer_follows_a_planned_switch_and_stores_once(voters: Voters) -> None:
    await voters.start_all()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        sent: list[bytes] = []
        switching = True

        async def produce() -> None:
            while switching or not sent:
                body = b"%d" % len(sent)
                receipt = await producer.send("T", body)
                assert receipt.queue_offset == len(sent)
                sent.append(body)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(produce())
            for _ in range(3):
                await asyncio.sleep(0.2)
                old = voters.leader
                await client.admin.failover()
                await until(lambda old=old: voters.leader not in (None, old))  # type: ignore[misc]
                await voters.whole()
            switching = False
        stored: list[bytes] = []
        while batch := await client.pull("T", 0, len(stored)):
            stored += batch.body_list()
        assert stored == sent
    await until(lambda: len({log_bytes(node) for node in voters.nodes.values()}) == 1)


async def test_a_freeze_does_not_outlive_another_mastership(voters: Voters) -> None:
    await voters.start_all()
    first = name_of(voters.the_leader())
    other = next(name for name in "abc" if name != first)
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await client.admin.freeze(600)
        for name in (other, first):
            await client.admin.failover(name)
            await until(lambda name=name: voters.leader is voters.nodes[name])  # type: ignore[misc]
            await voters.whole()
        assert not (await client.admin.freeze()).frozen
        assert (await producer.send("T", b"x")).queue_offset == 0


async def test_a_switch_to_a_named_node_and_to_one_that_is_not_there(voters: Voters) -> None:
    await voters.start_all()
    target = next(name for name in "abc" if name != name_of(voters.the_leader()))
    async with voters.client() as client:
        with pytest.raises(duolog.BadRequest, match="cannot take over"):
            await client.admin.failover("z")
        with pytest.raises(duolog.BadRequest, match="epoch 99 has not begun: group broker-a is in"):
            await client.admin.failover(target, epoch=99)  # an error of the master: it is audited
        await client.admin.failover(target)
        await until(lambda: voters.leader is voters.nodes[target])
        await client.admin.failover(target)  # it is


async def test_no_node_takes_over_that_others_cannot_reach(voters: Voters) -> None:
    for name in "ab":
        await voters.start(name)
    await voters.start("c", ha={"advertise": free_endpoint()})  # where nobody listens
    await voters.whole()
    before = name_of(voters.the_leader())
    assert before in "ab", "c began last"
    async with voters.client() as client:
        with pytest.raises(duolog.BadRequest, match=r"c cannot take over: .*ha\.advertise of c"):
            await client.admin.failover("c")
        assert name_of(voters.the_leader()) == before
        await until(lambda: len(service(voters.nodes["c"]).machine.unreached_by) == 2)
        found = {finding.cause: finding for finding in diagnose(await look(client, []))}
        assert found["replication-address"].where == "node c of broker-a"
        assert "a and b cannot reach its replication address" in found["replication-address"].what
        await client.admin.create_topic("T", 1)
        await client.admin.failover()
        await until(lambda: voters.leader is not None and name_of(voters.leader) != before)
        await voters.whole()
        second = name_of(voters.the_leader())
        assert second in "ab"
        await drained(client, second)
        assert name_of(voters.the_leader()) == before
        assert second not in voters.members()
        await client.admin.drain(second, undo=True)
        await voters.whole()
    await voters.stop(before)
    await until(lambda: voters.leader is not None and name_of(voters.leader) == second)


async def test_a_master_that_others_cannot_reach_hands_over_and_goes_on_as_a_slave(
    voters: Voters,
) -> None:
    for name in "ab":
        await voters.start(name)
    cut_off = await voters.start("c", ha={"advertise": free_endpoint()})
    await voters.whole()
    for name in "ab":
        unfit(voters.nodes[name], "a test has c elected")
    with structlog.testing.capture_logs() as logs:
        voters.registry.drop(service(voters.the_leader()).machine.lease)
        await until(lambda: voters.leader is cut_off)
        for name in "ab":
            unfit(voters.nodes[name], "")
        await until(lambda: voters.leader not in (None, cut_off))
        await voters.whole()
    ended = [entry for entry in logs if entry["event"] == "no longer the master"]
    assert any("cannot follow it at" in entry["reason"] for entry in ended)
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        assert (await producer.send("T", b"m")).status == "PUT_OK"


async def test_a_node_that_stops_cleanly_hands_its_lease_back_at_once(voters: Voters) -> None:
    class Generous(MemoryRegistry):
        """Its leases last longer than a test waits."""

        def lease(self, ttl_seconds: int) -> Grant:
            return super().lease(int(2 * WAIT_SECONDS))

    voters.registry = Generous()
    await voters.start_all()
    await voters.stop(name_of(voters.the_leader()))
    await until(lambda: voters.leader is not None)


async def test_a_lease_that_is_revoked_costs_the_mastership_and_nothing_else(
    voters: Voters,
) -> None:
    await voters.start_all()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"before")
        old = voters.the_leader()
        voters.registry.drop(service(old).machine.lease)
        await until(lambda: broker_of(old).replication.master_endpoint[1] > 1)
        receipt = await producer.send("T", b"after")
        assert receipt.queue_offset == 1
        assert receipt.epoch > 1


async def test_without_a_master_slaves_serve_readers_and_puts_wait(voters: Voters) -> None:
    await voters.start_all()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"x")
        await until(
            lambda: all(
                broker_of(n).store.queue_range("T", 0) == (0, 1) for n in voters.nodes.values()
            )
        )
        # A lock that nobody's lease holds: the group has no master for as long as it stands.
        master = voters.the_leader()
        row = voters.registry.get(KEYS.lock).rows[KEYS.lock]
        voters.registry.commit(Transaction((), (Put(KEYS.lock, row.value.replace(b"a", b"z")),)))
        await until(lambda: voters.leader is None)
        assert broker_of(master).replication.slave is not None
        for name in voters.nodes:
            async with voters.client(name) as reader:
                assert (await reader.pull("T", 0, 0)).body_list() == [b"x"]
        waiting = asyncio.ensure_future(producer.send("T", b"y", timeout=20))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        voters.registry.commit(Transaction((), (Delete(KEYS.lock),)))
        assert (await waiting).queue_offset == 1


def unfit(node: Node, why: str) -> None:
    """Keep a node from being elected, or let it again."""
    machine = service(node).machine
    machine._facts = replace(machine._facts, unfit=lambda: why)


async def test_a_put_that_may_wait_is_told_of_the_next_master_as_soon_as_there_is_one(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "PATIENCE_MS", 60_000)
    await voters.start_all()
    leader = voters.the_leader()
    asked, next_one = (node for node in voters.nodes.values() if node is not leader)
    async with voters.client() as client:
        await client.admin.create_topic("T", 1)
    for node in (asked, next_one):
        unfit(node, "not yet")
    await voters.stop(name_of(leader))
    async with duolog.Client(f"127.0.0.1:{asked.port}", timeout=15) as client:
        await until(lambda: service(asked).machine.known_master is None)
        reply = await append(client, append_request([b"x"]))
        assert (reply.status, reply.master) == (wire.NOT_MASTER, "")
        waits = asyncio.ensure_future(append(client, append_request([b"x"], patience_ms=60_000)))
        await until(lambda: broker_of(asked).replication.refusals._waiting or waits.done())
        assert not waits.done()
        unfit(next_one, "")
        service(next_one).step(Tick())
        reply = await waits
    assert reply.status == wire.NOT_MASTER
    assert reply.master == f"127.0.0.1:{next_one.port}"
    assert reply.master_epoch == 2


async def test_changes_wait_until_a_new_group_takes_them(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "CHANGE_PATIENCE_MS", 50)
    await voters.start("a")
    await until(lambda: voters.leader is not None)
    waiting = broker_of(voters.the_leader()).replication.refusals._waiting
    async with voters.client("a") as client:
        for change in (client.admin.create_topic("T", 1), client.admin.put_group("G")):
            with pytest.raises(duolog.Busy, match="just been formed"):
                await change
    monkeypatch.setattr(admission, "CHANGE_PATIENCE_MS", 60_000)
    monkeypatch.setattr(roles, "PATIENCE_MS", 60_000)
    async with voters.client("a", timeout=60) as client:
        changes: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(client.admin.create_topic("T", queues)) for queues in (1, 1, 2)
        ]
        changes.append(asyncio.ensure_future(client.admin.put_group("G", retry_times=3)))
        await until(lambda: len(waiting) == 4)
        assert not any(change.done() for change in changes)
        await voters.start("b")
        assert [(await change).queues for change in changes[:2]] == [1, 1]
        with pytest.raises(duolog.TopicExists):  # checked when the change is stored
            await changes[2]
        assert (await changes[3]).retry_times == 3
    assert not waiting


async def test_a_put_may_wait_at_a_node_that_knows_of_itself_only(voters: Voters) -> None:
    """The registry names it as the master, which it is no longer, or not yet."""
    await voters.start_all()
    leader = voters.the_leader()
    slave = next(node for node in voters.nodes.values() if node is not leader)
    replication = broker_of(slave).replication
    replication.known_master = lambda: (broker_of(slave).advertised, 1)
    _, waits = appends_of(broker_of(slave)).append(append_request([b"x"], patience_ms=60_000), HERE)
    assert waits is not None
    assert not waits.done()
    replication.known_master = lambda: (broker_of(leader).advertised, 1)
    replication.refusals.release_if_settled()
    assert waits.done()


async def test_a_slave_whose_masters_connection_breaks_asks_the_registry_at_once(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    leader = voters.the_leader()
    slave = next(node for node in voters.nodes.values() if node is not leader)
    one = service(slave)
    await until(lambda: broker_of(slave).replication.follower is not None)
    follower = broker_of(slave).replication.follower
    assert follower is not None
    assert not follower.lost
    seen: list[str] = []
    lost_master = FailoverService.lost_master

    def lost(self: FailoverService) -> None:
        if self is one:
            assert follower.lost
            assert broker_of(slave).replication.next_master == ("", 0), "nobody is sent there"
            reply, waits = appends_of(broker_of(slave)).append(append_request([b"x"]), HERE)
            assert (reply.status, reply.master, waits) == (wire.NOT_MASTER, "", None)
            seen.append("lost")
        lost_master(self)

    monkeypatch.setattr(FailoverService, "lost_master", lost)
    read = one.machine.group.read

    def reads(now_ms: MonoMs) -> Any:
        seen.append("read")
        return read(now_ms)

    monkeypatch.setattr(one.machine.group, "read", reads)
    master = master_of(leader)
    for number, session in list(master.sessions.items()):
        if session.node == name_of(slave):
            broker_of(leader).replication.close(number, "test")
    await until(lambda: "lost" in seen)
    at = seen.index("lost")
    assert seen[at : at + 2] == ["lost", "read"]
    await until(lambda: not follower.lost)
    assert voters.the_leader() is leader, "the registry says that nothing happened"


async def test_a_renewal_counts_before_what_happened_in_a_standstill(voters: Voters) -> None:
    await voters.start_all()
    one = service(voters.the_leader())
    now = one.mono_ms()
    lease = one.machine.lease
    one.machine.deadline_ms = MonoMs(now - 1)  # as the machine knows it
    one._keeper.current = (lease, MonoMs(now + 1500))
    one.step(Changed())
    assert one.machine.role is Role.LEADING
    assert one.machine.lease == lease


async def test_a_drained_node_hands_over_leaves_and_comes_back(voters: Voters) -> None:
    await voters.start_all()
    old = name_of(voters.the_leader())
    async with voters.client() as client:
        await drained(client, old)  # when it returns, the node may be stopped
        assert name_of(voters.the_leader()) != old
        assert old not in voters.members()
        with pytest.raises(duolog.BadRequest, match="node 'z' is not in group broker-a; "):
            await client.admin.drain("z")

        async def left() -> bool:  # each node learns of it in its own time
            (group,) = (await client.admin.route()).groups
            (row,) = (row for row in group.replicas if row.node == old)
            return row.drained and not row.in_sync

        await until(left, seconds=WAIT_SECONDS)
        await client.admin.drain(old, undo=True)
        await until(lambda: voters.leader is not None and old in voters.members())


async def test_a_node_without_moves_is_kept_out_of_sync_once_queues_have_moved(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    master = broker_of(voters.the_leader())
    newer, older = sorted(set("abc") - {master.node.name})
    await voters.stop(older)
    with monkeypatch.context() as version:
        version.setattr(failover, "FEATURES", ())
        await voters.start(older)
    await voters.whole()  # no queue has moved
    await master.metadata.put_topic(TopicConfig("T", 1))
    guest = Guest(Place("b", 0), Place("b", 0), "b-1-1")
    with structlog.testing.capture_logs() as logs:
        await master.metadata.change(guest_record("T", 1, guest))
        await until(lambda: voters.members() == {master.node.name, newer})
        await until(lambda: any(one.get("nodes") == [older] for one in logs))
    async with voters.client() as client:
        found = diagnose(await look(client, []))
    named = [one for one in found if one.where.startswith(f"node {older} ")]
    assert ("error", "not-in-sync") in [(one.severity, one.cause) for one in named]


async def test_every_node_answers_for_the_whole_cluster(voters: Voters) -> None:
    await voters.start_all()
    other = await voters._start(
        voters.root / "x",
        ha={"listen": free_endpoint(), "in_sync_replicas": 1},
        name="x",
        registry=voters.registry,
        group="broker-b",
        broker_role="AUTO",
    )
    await until(lambda: broker_of(other).replication.master is not None)
    for node in (*voters.nodes.values(), other):
        async with duolog.Client(f"127.0.0.1:{node.port}") as client:

            async def complete(client: duolog.Client = client) -> bool:
                route = await client.admin.route()
                rows = {group.group: group for group in route.groups}
                return (
                    set(rows) == {"broker-a", "broker-b"}
                    and voters.leader is not None  # a standstill costs a lease
                    and rows["broker-a"].master == name_of(voters.leader)
                    and rows["broker-b"].master == "x"
                    and len(rows["broker-a"].replicas) == 3
                )

            await until(lambda: complete())
            status = await client.admin.cluster_status()
            assert {row.name for row in status.nodes} == {"a", "b", "c", "x"}
            assert not any(row.stale for row in status.nodes)


async def test_a_member_that_is_gone_is_down_in_every_view_until_it_is_forgotten(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "ROLL_SECONDS", 0.02)
    await voters.start_all()
    gone = next(name for name in "abc" if name != name_of(voters.the_leader()))
    endpoint = f"127.0.0.1:{voters.nodes[gone].port}"
    async with voters.client() as client:
        with pytest.raises(duolog.BadRequest, match=f"cannot forget {gone}: it is alive at"):
            await client.admin.forget(gone)
    before_ms = time.time_ns() // 1_000_000
    await voters.stop(gone)
    nodes = voters.nodes.values()
    await until(lambda: all(service(n).routes["broker-a"].down.get(gone) for n in nodes))
    for name in sorted(voters.nodes):  # each node learns of it in its own time
        async with voters.client(name) as client:

            async def noted(client: duolog.Client = client) -> bool:
                return bool((await client.admin.node_status()).replication.down.get(gone))

            await until(noted)
            seen = await look(client, ())
            (row,) = (node for node in seen.nodes if node.name == gone)
            assert (row.role, row.listen) == ("DOWN", endpoint)
            assert before_ms - 1000 <= row.down_since_ms <= time.time_ns() // 1_000_000
            assert str(row_of("c", row)["reason"]).startswith("since 20")
            (told,) = (one for one in diagnose(seen) if one.cause == "node-down")
            assert f"it does not answer at {endpoint}, and is down since 20" in told.what

    async def has_left() -> bool:
        return gone not in voters.members()

    await until(has_left)
    since_ms = row.down_since_ms
    for name in list(voters.nodes):  # it is not forgotten with those that saw it
        await voters.stop(name)
    for name in "abc":
        if name != gone:
            await voters.start(name)
    await voters.whole()
    async with voters.client() as client:
        assert (await client.admin.node_status()).replication.down == {gone: since_ms}
        await client.admin.forget(gone)
        with pytest.raises(duolog.BadRequest, match=f"node '{gone}' is not in group"):
            await client.admin.forget(gone)
        await until(lambda: all(not service(n).routes["broker-a"].down for n in nodes))
        (group,) = (await client.admin.route()).groups
        assert gone not in {replica.node for replica in group.replicas}
    await voters.start(gone)
    await voters.whole()


async def test_a_group_of_one_opens_itself_tells_its_lease_and_ends_on_odd_answers(
    voters: Voters,
) -> None:
    class Odd(MemoryRegistry):
        odd = False

        def get(self, prefix: str) -> Any:
            if self.odd and prefix == KEYS.prefix:
                raise TypeError("odd")
            return super().get(prefix)

        def lease(self, ttl_seconds: int) -> Grant:
            return super().lease(ttl_seconds + 2)

    registry = Odd()
    node = await voters.start("a", ha={"in_sync_replicas": 1}, registry=registry)
    await until(lambda: broker_of(node).replication.refusal() == "" and voters.leader is node)
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        assert (await producer.send("T", b"x")).status == "PUT_OK"
        part = (await client.admin.node_status()).replication
    asked = node.config.registry.lease_seconds
    assert (part.lease_asked_seconds, part.lease_seconds) == (asked, asked + 2)
    registry.odd = True
    await until(broker_of(node).failed.is_set)
    assert "odd" in broker_of(node).store.fence_reason


async def test_a_mandate_with_only_a_later_deadline_is_not_a_change(voters: Voters) -> None:
    node = await voters.start("a", ha={"in_sync_replicas": 1})
    me = Replica("a", 1)
    mandate = Mandate(me, frozenset({me}), frozenset({me}), MonoMs(10))
    longer = replace(mandate, deadline_ms=MonoMs(20))
    paused = replace(longer, paused="b takes over")
    answers: list[list[failoverevents.Effect]] = [
        [Instruct(mandate)],
        [Instruct(longer)],
        [Instruct(longer), Wake(MonoMs(30))],
        [Instruct(paused)],
        [Instruct(paused)],
    ]
    told = []
    for effects in answers:
        with structlog.testing.capture_logs() as logs:
            service(node).decided(Tick(), effects)
        told.append([entry["does"] for entry in logs])
    assert told == [[["Instruct"]], [], [["Instruct", "Wake"]], [["Instruct"]], []]


async def test_a_deposed_master_answers_waiting_puts_with_unknown(voters: Voters) -> None:
    await voters.start_all()
    master = voters.the_leader()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"x")
    broker = broker_of(master)
    waiting = broker.replication.await_slaves(PhyOffset(broker.store.log.max_offset + 1000))
    voters.registry.drop(service(master).machine.lease)
    assert (await waiting).value == "UNKNOWN_ERROR"
    await until(lambda: voters.leader is not None)


def lose_answers(monkeypatch: pytest.MonkeyPatch, lost: int) -> list[int]:
    """Have so many orders carried out, and their answers lost; the epochs they named."""
    hand_over = FailoverService.hand_over
    asked: list[int] = []

    async def losing(self: FailoverService, target: str, epoch: int = 0) -> Any:
        try:
            found = await hand_over(self, target, Epoch(epoch))
        except duolog.NotMaster:
            raise
        asked.append(epoch)
        if len(asked) <= lost:
            raise duolog.Unavailable("the connection broke")
        return found

    monkeypatch.setattr(FailoverService, "hand_over", losing)
    return asked


async def test_a_switch_whose_answer_is_lost_is_made_once_or_of_unknown_outcome(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    before = voters.the_leader()
    asked = lose_answers(monkeypatch, 1)
    async with voters.client() as client:
        await client.admin.failover()
        await until(lambda: voters.leader not in (None, before))
        await voters.whole()
        assert service(voters.the_leader()).machine.last_epoch == 2
        assert asked == [1, 1]
        # An order of one's own that names its epoch may be given again as well.
        leader = name_of(voters.the_leader())
        await client.admin.failover(leader, epoch=1)
        with pytest.raises(duolog.BadRequest, match=r"epoch 1 is over: . leads epoch 2"):
            await client.admin.failover(name_of(before), epoch=1)
    assert service(voters.the_leader()).machine.last_epoch == 2
    await voters.whole()
    lose_answers(monkeypatch, 1000)
    async with voters.client(timeout=2.0) as client:
        with pytest.raises(duolog.ResultUnknown, match="away from epoch 2 may or may not happen"):
            await client.admin.failover()
    await until(
        lambda: voters.leader is not None and service(voters.leader).machine.last_epoch == 3
    )


async def test_the_event_loop_waits_for_no_note_of_the_group(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for a promise."""
    await voters.start_all()
    promise = identity.promise
    slow_ones: list[threading.Thread] = []

    def slow_promise(disk: Any, who: identity.Identity, epoch: int) -> identity.Identity:
        if epoch > who.promised_epoch:
            slow_ones.append(threading.current_thread())
            time.sleep(0.3)
        return promise(disk, who, Epoch(epoch))

    monkeypatch.setattr(identity, "promise", slow_promise)
    async with voters.client() as client:
        await client.admin.failover()
    await until(lambda: voters.leader is not None and len(slow_ones) >= 3)
    assert threading.main_thread() not in slow_ones
    await voters.whole()
    leader = voters.the_leader()
    async with voters.client() as client:
        await client.admin.create_topic("T", 1)
    go_on, save = threading.Event(), membership.save
    writers: set[threading.Thread] = set()

    def slow(disk: Any, found: Membership) -> None:
        writers.add(threading.current_thread())
        if disk is broker_of(leader).store.disk:
            go_on.wait(10)
        save(disk, found)

    monkeypatch.setattr(membership, "save", slow)
    monkeypatch.setattr(service(leader), "_disk_stall_seconds", 0.2)
    try:
        gone = next(name for name in "abc" if voters.nodes[name] is not leader)
        await voters.stop(gone)  # the state changes: it is noted
        async with voters.client(name_of(leader)) as client, client.producer() as producer:
            await until(lambda: service(leader)._writes.under_way_seconds() > 0)
            await client.admin.node_status()
            await until(lambda: "a write of the group's state" in service(leader)._unhealthy())
            go_on.set()
            await until(lambda: service(leader)._unhealthy() == "")
            await until(lambda: voters.leader is not None and len(voters.members()) == 2)
            assert (await producer.send("T", b"x", timeout=15)).status == "PUT_OK"
    finally:
        go_on.set()
    assert threading.main_thread() not in writers


async def test_an_unclean_election_is_an_explicit_order(voters: Voters) -> None:
    await voters.start_all()
    master = name_of(voters.the_leader())
    others = [name for name in "abc" if name != master]
    lagging = others[0]
    await voters.stop(lagging)
    await until(lambda: voters.leader is not None and lagging not in voters.members())
    for name in (master, others[1]):
        await voters.stop(name)
    back = await voters.start(lagging)
    await until(lambda: "SyncStateSet" in service(back).machine.reason)
    async with voters.client() as client:
        with pytest.raises(duolog.BadRequest, match="epoch"):
            await client.admin.elect_unclean(99)
        state = service(back).machine.view.state
        assert state is not None
        await client.admin.elect_unclean(state.epoch)
        await until(lambda: voters.leader is back)
        status = await client.admin.node_status()
        assert lagging in status.replication.discarded[0]
        assert master in status.replication.discarded[0]


async def test_a_group_that_lost_all_its_disks_alerts_operators_in_log_and_status(
    voters: Voters, capsys: pytest.CaptureFixture[str]
) -> None:
    await voters.start_all()
    for name in "abc":
        await voters.stop(name)
        shutil.rmtree(voters.root / name)
    for name in "abc":
        await voters.start(name)
    await until(lambda: all(service(node).machine.stranded for node in voters.nodes.values()))
    await until(lambda: service(voters.nodes["b"]).machine.reason.endswith("--unclean`"))
    told = [row for row in capsys.readouterr().out.split("\n") if "needs an operator" in row]
    assert len(told) == 3, "once in each node's log"
    assert "came back with an empty disk" in told[0]
    async with voters.client("b") as client:
        status = (await client.admin.node_status()).replication
        assert "cluster elect --unclean" in status.reason
        await client.admin.elect_unclean(status.epoch)
    await voters.whole()
    assert voters.leader is voters.nodes["b"]


async def test_a_registry_that_lost_the_group_is_a_problem_of_every_node_and_is_mended_by_hand(
    voters: Voters,
) -> None:
    await voters.start_all()
    for epoch in (2, 3):
        async with voters.client() as client:
            before = voters.the_leader()
            await client.admin.failover()
            await until(lambda: voters.leader not in (None, before))  # noqa: B023
        await voters.whole()
        assert service(voters.the_leader()).machine.last_epoch == epoch
    async with voters.client() as client:
        assert [problems_of(await client.admin.node_status())] == [[]]
    rows = voters.registry.get("").rows
    voters.registry.commit(Transaction((), tuple(Delete(key) for key in rows)))
    await until(lambda: voters.leader is None)
    await until(
        lambda: all("has lost group" in service(n).machine.reason for n in voters.nodes.values())
    )
    for name in "abc":
        async with voters.client(name) as client:
            told = "knows no master of its group: the registry has lost group"

            # its stream from the last master may end later
            async def has_told(client: duolog.Client = client, told: str = told) -> bool:
                return told in " ".join(problems_of(await client.admin.node_status()))

            await until(has_told)
    async with voters.client("a") as client:
        status = await client.admin.cluster_status()
        shown = [row_of(status.cluster, node) for node in status.nodes]
        assert "a" in {row["node"] for row in shown}
        assert {row["epoch"] for row in shown} == {3}
        assert all("lost group" in str(row["reason"]) for row in shown)
        assert "SERVING" not in {row["state"] for row in shown}
        with pytest.raises(duolog.BadRequest, match="the last epoch is 3, not 0"):
            await client.admin.elect_unclean(0)
        await client.admin.elect_unclean(3)
        await voters.whole()
        assert service(voters.nodes["a"]).machine.last_epoch == 4


async def test_orders_to_a_group_with_fixed_roles_are_refused(client: duolog.Client) -> None:
    for asked in (client.admin.failover(), client.admin.drain("x")):
        with pytest.raises(duolog.BadRequest, match="fixed"):
            await asked
    route = await client.admin.route()
    assert [group.group for group in route.groups] == ["broker-a"]


@pytest.mark.usefixtures("quick_groups")
async def test_consumers_go_on_from_committed_offsets_under_the_next_master(voters: Voters) -> None:
    await voters.start_all()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 2)
        await producer.send_batch("T", [b"%d" % k for k in range(100)])
        seen: list[bytes] = []
        async with client.consumer("g", "T", commit_interval=0.1) as consumer:
            while len(seen) < 60:
                message = await received(consumer)
                seen.append(message.body)
            await consumer.commit()
            await client.admin.failover()
            while len(set(seen)) < 100:
                message = await received(consumer)
                seen.append(message.body)
        assert len(seen) == len(set(seen)) == 100


async def test_a_node_whose_machine_fails_ends_and_another_one_leads(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    master = voters.the_leader()

    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(service(master).machine, "step", broken)
    await until(broker_of(master).failed.is_set)
    assert "a bug" in broker_of(master).store.fence_reason


async def test_a_slave_without_room_for_its_promise_follows_when_there_is_room(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    old = voters.the_leader()
    others = [node for node in voters.nodes.values() if node is not old]
    tried: list[int] = []

    def full(_: Any, epoch: int) -> None:
        tried.append(epoch)
        if len(tried) <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    for node in others:
        monkeypatch.setattr(type(slave_of(node)), "promise", full)
    await voters.stop(name_of(old))
    await voters.whole()
    assert tried
    assert not any(broker_of(node).failed.is_set() for node in others)


async def test_a_master_with_a_full_disk_hands_over_and_keeps_its_messages(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    old = voters.the_leader()
    store = broker_of(old).store
    async with voters.client() as client, client.producer(timeout=WAIT_SECONDS) as producer:
        await client.admin.create_topic("T", 1)
        await producer.send("T", b"before")
        monkeypatch.setattr(store.disk, "used_ratio", lambda *_: 0.95)
        with structlog.testing.capture_logs() as lines:
            store.retention.check_space()
            assert store.retention.is_full
            receipt = await producer.send("T", b"after")
        assert (receipt.status, receipt.queue_offset, receipt.epoch) == ("PUT_OK", 1, 2)
    assert voters.leader not in (None, old)
    assert any("a node with room takes over" in line["event"] for line in lines)
    await until(lambda: store.retention.relieved())


async def test_no_thread_is_left_of_a_node_that_was_stopped(voters: Voters) -> None:
    await voters.start_all()
    await voters.stop(name_of(voters.the_leader()))
    await voters.whole()
    for name in list(voters.nodes):
        await voters.stop(name)
    left = {thread.name for thread in threading.enumerate()}
    assert not {"duolog-watch", "duolog-lease"} & left


def test_the_roles_are_those_of_the_wire() -> None:
    text = wire.DESCRIPTOR.message_types_by_name["ReplicationStatus"].fields_by_name["role"]
    assert text is not None
    assert {role.value for role in Role} == {"STANDING", "FOLLOWING", "LEADING"}


async def test_a_node_that_knows_no_route_yet_does_not_hide_topics(
    start_node: StartNode, tmp_path: Path
) -> None:
    """As right after its start, while it has not heard of the registry."""

    class Silent(MemoryRegistry):
        def get(self, prefix: str) -> Any:
            raise RegistryUnavailable("no answer")

    knows = await start_node(tmp_path / "a")
    async with duolog.Client(f"127.0.0.1:{knows.port}") as client:
        await client.admin.create_topic("T", 1)
    new = await start_node(
        tmp_path / "b",
        name="b",
        registry=Silent(),
        broker_role="AUTO",
        ha={"listen": free_endpoint()},
    )
    async with duolog.Client([f"127.0.0.1:{node.port}" for node in (new, knows)]) as client:
        assert [topic.topic for topic in await client.admin.topics(["T"])] == ["T"]
        async with client.producer() as producer:
            await producer.send("T", b"")
    async with duolog.Client(f"127.0.0.1:{new.port}", timeout=1) as client:
        with pytest.raises(duolog.Retryable):
            await client.admin.topics(["T"])


async def test_a_client_finds_topics_while_no_node_is_registered(voters: Voters) -> None:
    """As when all registrations have expired."""
    await voters.start_all()
    async with voters.client() as client:
        await client.admin.create_topic("T", 1)
    for node in voters.nodes.values():
        part = service(node)
        part._learn_routes = lambda routes: None  # type: ignore[method-assign]
        part.routes = {name: replace(view, replicas={}) for name, view in part.routes.items()}
    for name in "abc":
        async with voters.client(name) as client:
            assert [topic.topic for topic in await client.admin.topics(["T"])] == ["T"]
            if name == name_of(voters.the_leader()):
                async with client.producer() as producer:
                    await producer.send("T", b"")
                    with pytest.raises(duolog.UnknownTopic):
                        await producer.send("nope", b"", timeout=15.0)


async def test_changes_of_other_groups_are_routes_and_no_events_of_an_election(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()
    part = service(voters.the_leader())
    posted: list[Event] = []
    post = part._post

    def noted(event: Event) -> None:
        posted.append(event)
        post(event)

    monkeypatch.setattr(part, "_post", noted)
    keys = Keys(part._keys.cluster, "another")
    for number in range(50):
        row = Registration(Replica(f"n{number}", 1), "", "")
        voters.registry.commit(Transaction((), (Put(keys.replica(f"n{number}"), row.to_bytes()),)))
    await until(lambda: len(part.routes.get("another", View()).replicas) == 50)
    # The group's own changes are few: its nodes record who belongs to it.
    assert sum(isinstance(event, Changed) for event in posted) < 10


@pytest.mark.usefixtures("quick_groups")
async def test_no_read_of_a_group_is_answered_by_a_node_that_may_lack_commits(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slave, and on a new master whose first record is not confirmed yet."""
    await voters.start_all()
    leader = voters.the_leader()
    async with voters.client() as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        receipt = await producer.send("T", b"x")
        async with client.consumer("g", "T") as consumer:
            assert await consumer.get(WAIT_SECONDS) is not None
        assert [group.group for group in await client.admin.groups()] == ["g"]

    async def refused(node: Node) -> None:
        asked = f"127.0.0.1:{node.port}"
        async with grpc.aio.insecure_channel(asked) as channel:
            groups = stubs.GroupsStub(channel)
            admin = stubs.AdminStub(channel)
            queue = wire.QueueRef(topic="T", queue_id=0)
            messages = stubs.MessagesStub(channel)
            added = wire.QueueOffset(topic="T", queue_id=7)  # that another node may know of
            subscription = messages.Subscribe(iter([wire.SubscribeRequest(add=[added])]))
            reads: list[Any] = [
                messages.Pull(wire.PullRequest(topic="T", queue_id=7)),
                subscription.read(),
                groups.OffsetAtTime(wire.OffsetAtTimeRequest(topic="T", queue_id=7, time=0)),
                groups.Offsets(wire.OffsetsRequest(group="g", queues=[queue])),
                groups.Offsets(wire.OffsetsRequest(group="unheard of", queues=[queue])),
                groups.Heartbeat(wire.HeartbeatRequest(group="g", member_id="m", topics=["T"])),
                groups.SendBack(wire.SendBackRequest(group="g", topic="T")),
                admin.ListGroups(wire.ListGroupsRequest()),
                admin.DescribeGroup(wire.DescribeGroupRequest(group="g")),
                admin.DescribeGroup(wire.DescribeGroupRequest(group="unheard of")),
                admin.DeleteGroup(wire.DeleteGroupRequest(group="unheard of")),
                admin.PutGroup(wire.PutGroupRequest(group="g", retry_times=3)),
                admin.Track(
                    wire.TrackRequest(topic="T", queue_id=0, queue_offset=receipt.queue_offset)
                ),
            ]
            for read in reads:
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await read
                assert isinstance(error_of(failure.value), duolog.NotMaster), failure.value

    (slave, *_) = (node for node in voters.nodes.values() if node is not leader)
    await refused(slave)
    master = master_of(leader)
    monkeypatch.setattr(type(master), "epoch_confirmed", False)
    assert not broker_of(leader).admission.may_store()
    await refused(leader)


def test_services_read_groups_through_the_one_gate() -> None:
    """A service that took the tables themselves might answer from old ones."""
    apis = [list(Path(room).glob("*.py")) for room in ("compat/grpc", "node/api")]
    assert all(len(files) > 4 for files in apis)
    answering = [file for files in apis for file in files]
    for file in answering:
        found = re.findall(r".*metadata\.tables.*", file.read_text())
        allowed = {"service.py": 1}.get(file.name, 0)  # the settings that clients are told
        assert len(found) == allowed, (file, found)


async def test_an_error_in_following_the_master_ends_a_node(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    await voters.start_all()

    async def broken(self: ReplicationClient) -> None:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(ReplicationClient, "run", broken)
    old = voters.the_leader()
    async with voters.client() as client:
        with contextlib.suppress(duolog.DuologError):
            await client.admin.failover()
    others = [node for node in voters.nodes.values() if node is not old]
    await until(lambda: any(broker_of(node).failed.is_set() for node in (old, *others)))
    ended = next(node for node in (old, *others) if broker_of(node).failed.is_set())
    assert broker_of(ended).store.fence_reason == "RuntimeError: nobody expected this"
    service(ended).step(failoverevents.Changed())  # what comes late begins nothing


async def test_no_node_lowers_what_its_group_promises(voters: Voters) -> None:
    """One node asks for one replica: it waits for two all the same, and operators are told."""
    for name in "ab":
        await voters.start(name)
    await voters.whole()
    with structlog.testing.capture_logs() as logs:
        weak = await voters.start("c", ha={"in_sync_replicas": 1})
        await voters.whole()
        await until(lambda: any("weaker than its group's" in entry["event"] for entry in logs))
    async with voters.client() as client:
        seen = await look(client, [])
        found = {finding.cause: finding for finding in diagnose(seen)}
        assert "ha.in_sync_replicas (2 on a b, 1 on c)" in found["settings-differ"].what
        assert "ha.in_sync_replicas = 1 (the group: 2)" in found["weaker-guarantee"].what
        await client.admin.failover("c")
        await until(lambda: voters.leader is weak)
        await voters.whole()
        await client.admin.create_topic("T", 1)
        with pytest.raises(duolog.BadRequest, match="has 3 nodes"):
            await client.admin.set_guarantee("in-sync-replicas", "4")
        with pytest.raises(duolog.BadRequest, match="has no setting 'x'"):
            await client.admin.set_guarantee("x", "4")
        for name in "ab":
            await voters.stop(name)
        await until(lambda: broker_of(weak).replication.refusal() != "")
        async with voters.client(timeout=1.0) as alone, alone.producer() as producer:
            with pytest.raises(duolog.DuologError):
                await producer.send("T", b"m")
            now = await alone.admin.set_guarantee("in-sync-replicas", "1")
            assert now["in-sync-replicas"] == "1"
            await until(lambda: broker_of(weak).replication.refusal() == "")
            assert (await producer.send("T", b"m")).status == "PUT_OK"


class Silent(MemoryRegistry):
    """Answers of so many changes by operators get `lost`."""

    lost = 0.0
    deaf = False  # nothing is changed either
    down = False

    def get(self, prefix: str) -> Snapshot:
        if self.down:
            raise RegistryUnavailable("no answer from etcd")
        return super().get(prefix)

    def lease(self, ttl_seconds: int) -> Grant:
        if self.down:
            raise RegistryUnavailable("no answer from etcd")
        return super().lease(ttl_seconds)

    def commit(self, transaction: Transaction) -> int | None:
        ours = any(change.key in MARKS for change in transaction.changes)
        done = None if ours and self.deaf else super().commit(transaction)
        if ours and self.lost:
            self.lost -= 1
            raise RegistryUnavailable("no answer")
        return done


MARKS = (KEYS.guarantee, KEYS.drained("a"), KEYS.drained("b"))


async def test_a_change_by_an_operator_whose_answer_was_lost_is_repeated_or_unknown(
    voters: Voters, monkeypatch: pytest.MonkeyPatch
) -> None:
    voters.registry = registry = Silent()
    for name in "ab":
        await voters.start(name)
    await voters.whole()

    def view() -> View:
        return service(voters.the_leader()).machine.view

    await until(lambda: view().guarantee is not None)
    other = min(set("ab") - {name_of(voters.the_leader())})
    async with voters.client(name_of(voters.the_leader())) as client:
        registry.lost = 1
        assert (await client.admin.set_guarantee("in-sync-replicas", "1"))[
            "in-sync-replicas"
        ] == "1"
        registry.lost = 1
        with pytest.raises(duolog.Busy, match=f"{other} is marked as drained and is still in the "):
            await client.admin.drain(other)  # its own configuration requires both
        assert other in view().drained
        last_ms = RegistrySection().request_timeout_ms
        assert failover.CHANGE_SECONDS + last_ms / 1000 < ATTEMPT_SECONDS, "a client hears of it"
        monkeypatch.setattr(failover, "CHANGE_SECONDS", 0.0)
        registry.lost, registry.deaf = float("inf"), True
        with pytest.raises(duolog.ResultUnknown, match="may be made or may yet be"):
            await client.admin.set_guarantee("ack", "durable")
        with pytest.raises(duolog.ResultUnknown):
            await client.admin.drain(other, undo=True)
        registry.down = True
        part = service(voters.the_leader())
        part._lost(part.machine.lease)
        await until(lambda: part.machine.role is not Role.LEADING)
    async with voters.client(timeout=1.0) as client:
        await until(lambda: all(service(one)._unread for one in voters.nodes.values()))
        with pytest.raises(duolog.NotMaster, match="the registry does not answer"):
            await client.admin.set_guarantee("ack", "durable")
        with pytest.raises(duolog.NotMaster, match="see whether etcd runs"):
            await client.admin.failover(other)
        part.machine.reason = "waiting for its own older lock to end"  # as it was read before
        # Also of a slave whose master is gone.
        told = [broker_of(node) for node in voters.nodes.values()]
        await until(lambda: all("whether etcd runs" in replication_status(b).reason for b in told))


async def test_a_group_that_promises_synced_puts_does_so_on_every_master(voters: Voters) -> None:
    for name in "ab":
        await voters.start(name)
    await voters.whole()
    async with voters.client() as client, client.producer() as producer:
        now = await client.admin.set_guarantee("flush-disk-type", "SYNC_FLUSH")
        assert now == {
            "in-sync-replicas": "2",
            "flush-disk-type": "SYNC_FLUSH",
            "ack": "durable",
        }
        await client.admin.create_topic("T", 1)
        for target in ("a", "b"):
            await client.admin.failover(target)
            await until(lambda: voters.leader is not None and name_of(voters.leader) == target)  # noqa: B023
            await voters.whole()
            sent = await producer.send("T", b"m")
            assert sent.status == "PUT_OK"
            for node in voters.nodes.values():
                store = broker_of(node).store
                end = broker_of(voters.the_leader()).store.confirm_offset
                assert store.flushed_offset >= end, "on both disks when it is answered"
