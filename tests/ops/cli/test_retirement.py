"""`duolog cluster retire` and `forget-group`, at two replica groups."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint
from typer.testing import CliRunner, Result

from duolog_server.compat.grpc.routes import Routes as GrpcRoutes
from duolog_server.compat.remoting.routes import DEFAULT_TOPIC, default_topics, told_topics
from duolog_server.ha.groupstate import retired_key
from duolog_server.ha.registry import Put, RegistryUnavailable, Transaction
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.ops.cli import main
from duolog_server.ops.inspection.doctor.diagnosis import diagnose
from duolog_server.ops.inspection.survey import look
from duolog_server.serve.server import Node
from tests.node.replicas import WAIT_SECONDS, broker_of, start_groups
from tests.nodefixtures import StartNode, received
from tests.ops.cli.results import told
from tests.until import until

pytestmark = pytest.mark.usefixtures("quick_groups", "quick_scans")

Run = Callable[..., Awaitable[Result]]
A, B = "broker-a", "broker-b"


@pytest.fixture
def quick_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters look for groups that have left at once."""
    monkeypatch.setattr("duolog_server.node.moving.moveservice.SCAN_SECONDS", 0.1)


@pytest.fixture
def run(nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch) -> Run:
    async def ran(*words: str, at: str = A) -> Result:
        given = ["cluster", *words, "-e", f"127.0.0.1:{nodes[at].port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        return await asyncio.to_thread(CliRunner().invoke, main.app, given)

    return ran


def needs_in(found: Result) -> dict[str, dict[str, Any]]:
    return {row["kind"]: row for row in told(found)["needs"]}


async def test_a_group_retires_and_is_forgotten(nodes: dict[str, Node], run: Run) -> None:
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    async with duolog.Client(f"127.0.0.1:{nodes[B].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 2)
        async with client.producer() as producer:
            for k in range(4):
                await producer.send("T", b"%d" % k, queue_id=k % 2, group=A)
        async with client.consumer("g", "T", commit_interval=0.05) as consumer:
            await received(consumer)
        before = await run("retire", A, "--status", "--json")
        assert (before.exit_code, told(before)["retiring"]) == (1, False)
        found = await run("retire", A)
        assert found.exit_code == 1, found.stderr
        assert f"{A} may not be stopped yet: consumer groups, kept messages" in found.stderr
        await until(lambda: a.metadata.retires() and b.views[A].retiring)
        for broker in (a, b):
            assert broker.metadata.retires() == (broker is a)
        with pytest.raises(duolog.BadRequest, match="replica group retires"):
            await client.admin.create_topic("U", 1, groups=[A])
        await client.admin.create_topic("U", 1)
        assert [part.group for part in await client.admin.topics(["U"])] == [B]
        with pytest.raises(duolog.BadRequest, match=f"replica group {A} retires"):
            await client.admin.move_queue("U", 0, A, group=B)
        needs = needs_in(await run("retire", A, "--status", "--json"))
        assert needs["consumer groups"]["what"] == "g"
        assert needs["kept messages"]["count"] == 4
        async with client.consumer("g", "T", commit_interval=0.05) as consumer:
            for _ in range(3):
                await received(consumer)
        spans = (await client.admin.moves("T")).spans
        guests = [one.place.queue_id for one in spans if one.end is None]
        await until(lambda: all(b.metadata.may_read("g", "T", q) for q in guests))
        left = needs_in(await run("retire", A, "--status", "--json"))
        assert left.keys() == {"kept messages"}
        assert left["kept messages"]["until"] > a.times.wall_ms()
        topic = b.metadata.topics["T"]
        assert a.write_queues(a.metadata.topics["T"]) == [], "producers of RocketMQ go elsewhere"
        assert b.write_queues(topic) == [0, 1, *guests]
        refused = await run("forget-group", A, "--yes", at=B)
        assert "live: node-of-broker-a" in refused.stderr, "it may not be removed while it runs"
        await nodes[A].stop()
        assert a.failover is not None
        with pytest.raises(RegistryUnavailable, match="this node stops"):
            await a.failover.read_rows("/")
        await until(lambda: not b.views[A].replicas)
        gone = await run("forget-group", A, "--yes", at=B)
        assert gone.exit_code == 0, gone.stderr
        await until(lambda: A not in b.views and A in b.metadata.moves.gone)
        assert b.write_queues(topic) == [0, 1, *guests]
    async with duolog.Client(f"127.0.0.1:{nodes[B].port}", timeout=WAIT_SECONDS) as client:
        assert A not in str(diagnose(await look(client, [])))


async def test_a_group_that_has_left_keeps_nobody_waiting(nodes: dict[str, Node], run: Run) -> None:
    """Nobody tells the next place any more which consumer groups have come to its beginning."""
    b = broker_of(nodes[B])
    async with duolog.Client(f"127.0.0.1:{nodes[B].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 1, groups=[A])
        assert (await run("retire", A)).exit_code == 0
        async with client.producer() as producer:
            await producer.send("T", b"moved", queue_id=0, group=A)
        await until(lambda: A not in b.views or b.views[A].retiring)
        await nodes[A].stop()
        await until(lambda: not b.views[A].replicas)
        assert not b.metadata.may_read("new", "T", 0)
        assert (await run("forget-group", A, "--yes", at=B)).exit_code == 0
        await until(lambda: b.metadata.may_read("new", "T", 0))
    async with duolog.Client(f"127.0.0.1:{nodes[B].port}", timeout=WAIT_SECONDS) as client:
        async with client.consumer("new", "T") as consumer:
            assert (await received(consumer)).body == b"moved"
        async with client.producer() as producer:
            assert (await producer.send("T", b"next")).queue_offset == 1
        assert (await client.admin.moves("T")).spans[0].came_from is None


async def test_what_does_not_retire_is_not_forgotten(nodes: dict[str, Node], run: Run) -> None:
    found = await run("forget-group", A, "--yes", at=B)
    assert f"{A} does not retire" in found.stderr
    found = await run("retire", "nowhere")
    assert "there is no replica group 'nowhere'" in found.stderr
    found = await run("retire", A, "--status", "--cancel")
    assert found.exit_code == 2
    assert (await run("retire", A)).exit_code == 0, "it has nothing"
    await until(lambda: broker_of(nodes[B]).views[A].retiring)
    found = await run("retire", B)
    assert f"no other replica group stays to take the queues of {B}" in found.stderr
    assert (await run("retire", A, "--cancel")).exit_code == 0
    await until(lambda: not broker_of(nodes[B]).views[A].retiring)


async def test_a_node_of_a_group_that_has_left_ends(start_node: StartNode, tmp_path: Path) -> None:
    """Queues of other groups have names of it, and would be taken for its own."""
    registry = MemoryRegistry()
    registry.commit(Transaction((), (Put(retired_key("DefaultCluster", A), b"{}"),)))
    node = await start_node(
        tmp_path / "again",
        ha={"listen": free_endpoint(), "in_sync_replicas": 1},
        registry=registry,
        group=A,
        broker_role="AUTO",
    )
    await until(broker_of(node).failed.is_set)
    assert f"replica group {A} was retired" in broker_of(node).log.store.fence_reason


async def test_first_uses_make_topics_elsewhere(start_node: StartNode, tmp_path: Path) -> None:
    nodes = await start_groups(start_node, tmp_path, limits={"auto_create_topic": True})
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    async with duolog.Client(f"127.0.0.1:{nodes[B].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.retire_group(A)
        await until(lambda: a.metadata.retires())
        async with client.producer() as producer:
            assert (await producer.send("new", b"x")).group == B
    assert ("new" in a.metadata.topics, "new" in b.metadata.topics) == (False, True)
    assert (DEFAULT_TOPIC in default_topics(a), DEFAULT_TOPIC in default_topics(b)) == (False, True)
    assert told_topics(a)[DEFAULT_TOPIC].perm == 0, "name servers offer it no more"
    with pytest.raises(duolog.UnknownTopic):
        GrpcRoutes(a).topic("newer")
    assert GrpcRoutes(b).topic("newer").queues


async def test_a_plan_empties_groups_that_retire(nodes: dict[str, Node], run: Run) -> None:
    async with duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("only-a", 1, groups=[A])
        await client.admin.retire_group(A)
        await until(lambda: broker_of(nodes[A]).views[A].retiring)
        await client.admin.alter_topic("T", 2)
        with pytest.raises(duolog.BadRequest, match="no replica group that stays has any"):
            await client.admin.alter_topic("only-a", 2)
        listed = await client.admin.topics(["T"])
        assert {part.group: part.queues for part in listed} == {A: 1, B: 2}
    planned = await run("rebalance", "--by", "queues", "--json")
    rows = told(planned)
    assert {(row["topic"], row["queue"], row["to"]) for row in rows} == {
        ("T", f"{A}/0", B),
        ("only-a", f"{A}/0", B),
    }
