"""Moves of queues over the API, on real nodes: what refuses them, and what the audit log has."""

import json
from pathlib import Path

import duolog
import pytest

from duolog_server.ha.groupstate import Keys, Member, Registration, Replica
from duolog_server.ha.mover import State
from duolog_server.ha.registry import Delete, Put, Transaction
from tests.node.replicas import GROUPS, broker_of, client_of, start_groups
from tests.nodefixtures import StartNode
from tests.until import until

A, B = GROUPS


async def test_a_node_with_a_fixed_role_moves_nothing(client: duolog.Client) -> None:
    for plan in (True, False):
        with pytest.raises(duolog.BadRequest, match="broker_role is not AUTO"):
            await client.admin.move_queue("T", 0, "broker-b", group="broker-a", plan=plan)
    assert await client.admin.moves() == duolog.QueueMoves()
    with pytest.raises(duolog.UnknownTopic, match="replica group 'x' does not exist"):
        await client.admin.move_queue("T", 0, "broker-b", group="x")


async def test_groups_with_a_member_of_an_older_version_move_nothing(
    start_node: StartNode, tmp_path: Path
) -> None:
    nodes = await start_groups(start_node, tmp_path)
    broker = broker_of(nodes[A])
    assert broker.failover is not None
    registry, key = broker.failover._registry, Keys("DefaultCluster", B).member("older")
    row = Member(Registration(Replica("older", 7), "", ""), 5).to_bytes()
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic("T", 1)
        await client.admin.create_topic("L", 1, message_type="LITE")
        registry.commit(Transaction((), (Put(key, row),)))
        await until(lambda: broker.views[B].lacking("moves") == ["older"])
        with pytest.raises(duolog.BadRequest, match=f"{B} have a version .* moves: older"):
            await client.admin.move_queue("T", 0, B, group=A)
        with pytest.raises(duolog.BadRequest, match=f"nodes of replica group {B} have a version"):
            await client.admin.move_queue("T", 0, A, group=B)
        with pytest.raises(duolog.BadRequest, match="of type LITE"):
            await client.admin.move_queue("L", 0, B, group=A)
        assert await client.admin.moves() == duolog.QueueMoves()
        registry.commit(Transaction((), (Delete(key),)))
        await until(lambda: not broker.views[B].lacking("moves"))
        moved = await client.admin.move_queue("T", 0, B, group=A)
        assert (moved.has_moved, str(moved.to), moved.end) == (True, f"{B}/1", 0)
        again = await client.admin.move_queue("T", 0, B, group=A)
        assert (again.move, again.has_moved) == (moved.move, True), "its answer may be lost"
    assert broker.moves.ended == {State.DONE: 1}


async def test_a_target_without_a_master_is_no_target_for_now(
    start_node: StartNode, tmp_path: Path
) -> None:
    nodes = await start_groups(start_node, tmp_path)
    broker = broker_of(nodes[A])
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic("T", 1)
        await nodes[B].stop()
        await until(lambda: broker.views[B].master is None)
        with pytest.raises(duolog.Busy, match=f"replica group {B} has no master now"):
            await client.admin.move_queue("T", 0, B, group=A)


async def test_a_target_that_does_not_answer_keeps_no_call_waiting(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients give a node 4 s; the move goes on without the call."""

    async def silent(group: str, request: object, seconds: float) -> None:
        raise duolog.Unavailable("no answer")

    nodes = await start_groups(start_node, tmp_path)
    monkeypatch.setattr("duolog_server.node.api.queuemoves.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(broker_of(nodes[A]).other_groups, "ask", silent)
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic("T", 1)
        begun = await client.admin.move_queue("T", 0, B, group=A)
        assert not begun.is_over
        await until(lambda: broker_of(nodes[A]).moves.progress("T")[0].state == "RESERVING")
        aborted = await client.admin.abort_move("T", 0, group=A)
        assert (aborted.move, aborted.state) == (begun.move, "REVOKING")


async def test_the_audit_log_has_moves_and_no_plans(start_node: StartNode, tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    nodes = await start_groups(start_node, tmp_path, audit={"file": str(file)})
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic("T", 1)
        planned = await client.admin.move_queue("T", 0, B, group=A, plan=True)
        assert (planned.state, planned.move, planned.is_over) == ("PLANNED", "", False)
        with pytest.raises(duolog.BadRequest, match="does not move"):
            await client.admin.abort_move("T", 0, group=A)
        await client.admin.moves("T")
        await client.admin.move_queue("T", 0, B, group=A)
        with pytest.raises(duolog.BadRequest, match=f"it moved to {B}/1"):
            await client.admin.move_queue("T", 0, "elsewhere", group=A)
    for node in nodes.values():
        await node.stop()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    told = [row for row in rows if "Move" in row["method"]]
    assert [(row["method"], row["decision"]) for row in told] == [
        ("Admin/AbortMove", "failed"),
        ("Admin/MoveQueue", "allowed"),
        ("Admin/MoveQueue", "failed"),
    ], rows
