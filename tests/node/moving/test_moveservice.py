"""A master that moves its queues, to a target that the test plays."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from duolog import _errors as sdk
from duolog.testing._ports import free_endpoint

from duolog_server.ha.groupstate import retired_key
from duolog_server.ha.mover import State, move_id
from duolog_server.ha.moverevents import (
    Commit,
    Nothing,
    Open,
    Refused,
    Request,
    Reserve,
    Revoke,
    Row,
)
from duolog_server.ha.movetarget import records_for, reply_to
from duolog_server.ha.queuerows import row_key, row_to_bytes
from duolog_server.ha.registry import Delete, Put, RegistryUnavailable, Transaction
from duolog_server.node.broker import Broker
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.moving.movecodec import reply_to_wire, request_of
from duolog_server.node.moving.moveservice import Progress
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.metadata import altered, follow_moves
from duolog_server.store.moves import Guest, Moves, Place, guest_record
from duolog_server.store.status import PutMessageStatus, RunningFlags
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.support import NOW
from tests.until import until

A, B = "broker-a", "b"
KEY = row_key("DefaultCluster", "T", Place(A, 0))


class Target:
    """Another group. lost: kinds of requests whose answers are lost; deaf: it gets none at all."""

    def __init__(self) -> None:
        self.moves = Moves()
        self.asked: list[tuple[str, Request]] = []
        self.lost: set[type] = set()
        self.deaf: set[type] = set()
        self.refuses = ""
        self.groups: list[Any] = []
        self.silent: set[str] = set()  # groups

    def holds(self, first: int) -> None:
        """It has queue 4, which continues queue 0 of the source."""
        guest = Guest(Place(A, 0), Place(A, 0), f"{A}-1-1")
        self.moves.apply_guest(guest_record("T", 4, guest))
        self.moves.apply_open({"topic": "T", "queue": 4, "move": guest.move, "first": first})

    async def ask(self, group: str, request: wire.MoveRequest, seconds: float) -> wire.MoveReply:
        asked, settings = request_of(request)
        self.asked.append((group, asked))
        if group in self.silent:
            raise sdk.Unavailable("no master")
        if group != B:
            return reply_to_wire(Nothing())
        if type(asked) in self.deaf:
            raise sdk.Unavailable("no answer")
        if isinstance(asked, Reserve):
            self.groups = [row["groupName"] for row in settings.groups]
            if self.refuses:
                return reply_to_wire(Refused(asked.move, self.refuses))
        reply = reply_to(self.moves, "T", B, asked)
        if reply is None:
            unused = 4 + len(self.moves.guests.get("T", ()))
            for record in records_for(self.moves, "T", asked, unused):
                follow_moves(self.moves, json.dumps(record).encode())
            reply = reply_to(self.moves, "T", B, asked)
        assert reply is not None
        if type(asked) in self.lost:
            raise sdk.Unavailable("the answer was lost")
        return reply_to_wire(reply)

    @property
    def kinds(self) -> list[str]:
        return [type(asked).__name__ for _, asked in self.asked]


class Flaky(MemoryRegistry):
    """A registry that does not answer for rows of queues while it is down."""

    down = False

    def commit(self, transaction: Transaction) -> int | None:
        self._fail([change.key for change in transaction.changes])
        return super().commit(transaction)

    def get(self, prefix: str) -> Any:
        self._fail([prefix])
        return super().get(prefix)

    def _fail(self, keys: list[str]) -> None:
        if self.down and any(key.startswith("/duolog-queues/") for key in keys):
            raise RegistryUnavailable("down")


class Source:
    """A group of one node that moves queues of topic T."""

    def __init__(self, node: Node, registry: Flaky, patch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.registry = registry
        self.target = Target()
        self.masterships = 0
        patch.setattr(self.broker.other_groups, "ask", self.target.ask)
        patch.setattr(self.broker.other_groups, "has_master", lambda group: group in (B, "c"))

    @property
    def broker(self) -> Broker:
        return broker_of(self.node)

    async def ready(self) -> None:
        await until(lambda: self.broker.admission.change() is None)

    async def put(self, *bodies: bytes, queue_id: int = 0) -> PutResult:
        batch = PutBatch("T", queue_id, Columns.of(list(bodies)), NOW, accepted=True)
        return await self.broker.log.put_and_wait(batch)

    def begin(self, queue_id: int = 0, target: str = B) -> "asyncio.Task[Progress]":
        return asyncio.create_task(self.broker.moves.begin("T", queue_id, target))

    def state(self, queue_id: int = 0) -> str:
        found = [one.state for one in self.broker.moves.progress("T") if one.queue_id == queue_id]
        return found[0] if found else ""

    async def reach(self, state: State) -> None:
        await until(lambda: self.state() == state.value, f"{state}")

    async def fail_over(self) -> None:
        """Its mastership ends; it is elected again."""
        service = self.node.failover
        assert service is not None
        before = self.broker.replication.master
        self.registry.drop(service.machine.lease)
        await until(lambda: self.broker.replication.master not in (None, before))
        await self.ready()

    def row(self) -> Row | None:
        found = self.registry.get(KEY).rows.get(KEY)
        if found is None:
            return None
        value = json.loads(found.value)
        places = Place(*value["name"]), Place(*value["at"])
        return Row(*places, value.get("move", ""), value.get("target", ""))

    def says(self, row: Row) -> None:
        """The registry has this row."""
        self.registry.commit(Transaction((), (Put(KEY, row_to_bytes(row)),)))

    def is_held(self, queue_id: int = 0) -> bool:
        return self.broker.moves._passing.is_held("T", queue_id)


@pytest.fixture
async def source(start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    registry = Flaky()
    node = await start_node(
        tmp_path / "a",
        ha={"listen": free_endpoint(), "in_sync_replicas": 1},
        registry=registry,
        group=A,
        broker_role="AUTO",
    )
    made = Source(node, registry, monkeypatch)
    await made.ready()
    metadata = made.broker.metadata
    await metadata.put_topic(metadata.new_topic("T", 8, 6))
    return made


@pytest.fixture
def quick_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are looked at all the time; moves have the time that they need."""
    monkeypatch.setattr("duolog_server.node.moving.moveservice.SCAN_SECONDS", 0.05)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a time does so for a moment."""
    monkeypatch.setattr("duolog_server.node.moving.runningmove.SEAL_SECONDS", 0.1)
    monkeypatch.setattr("duolog_server.node.moving.moveservice.WAIT_SECONDS", 0.05)
    monkeypatch.setattr("duolog_server.node.moving.moveservice.SCAN_SECONDS", 0.05)


async def test_a_move_asks_for_what_the_target_needs(source: Source) -> None:
    metadata = source.broker.metadata
    await metadata.ensure_group("G")
    await metadata.ensure_group("other")
    await metadata.commit("G", {"T": {0: 0}})
    await source.put(b"0", b"1")
    progress = await source.begin()
    assert (progress.state, progress.end, progress.to) == ("DONE", 2, Place(B, 4))
    assert source.target.kinds == ["Reserve", "Open"]
    assert source.target.groups == ["G"]
    assert source.row() == Row(Place(A, 0), Place(B, 4))
    assert progress.pause_ms >= 0
    assert not source.is_held()


@pytest.mark.parametrize("lost", [Reserve, Open])
async def test_an_answer_that_is_lost_is_asked_for_again(source: Source, lost: type) -> None:
    source.target.lost.add(lost)
    task = source.begin()
    await until(lambda: source.target.kinds.count(lost.__name__) > 1)
    assert source.is_held() == (lost is Open)
    source.target.lost.clear()
    assert (await task).state == "DONE"


async def test_a_move_that_is_refused_ends_with_the_reason_and_puts_continue(
    source: Source,
) -> None:
    source.target.refuses = "no room"
    task = source.begin()
    progress = await task
    assert (progress.state, progress.reason) == ("ENDED", "no room")
    assert source.target.kinds == ["Reserve", "Revoke"]
    assert source.row() == Row(Place(A, 0), Place(A, 0))
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK
    source.target.refuses = ""
    assert (await source.begin()).state == "DONE", "it may be tried again"


@pytest.mark.usefixtures("quick")
async def test_a_move_that_cannot_seal_in_time_is_aborted(source: Source) -> None:
    source.target.deaf.add(Reserve)
    await source.begin()
    await source.reach(State.ENDED)
    (progress,) = source.broker.moves.progress()
    assert "was not sealed after 0.1 s: Unavailable: no answer" in progress.reason
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK


@pytest.mark.usefixtures("quick")
async def test_a_move_that_cannot_read_its_row_in_time_is_aborted(source: Source) -> None:
    source.registry.down = True
    await source.begin()
    await source.reach(State.ENDED)
    (progress,) = source.broker.moves.progress()
    assert "after 0.1 s: the registry does not answer: down" in progress.reason
    assert source.target.asked == []


async def test_an_operator_aborts_what_has_not_sealed(source: Source) -> None:
    source.target.deaf.add(Reserve)
    task = source.begin()
    await source.reach(State.RESERVING)
    progress = await source.broker.moves.abort("T", 0)
    assert (progress.state, progress.reason) == ("ENDED", "an operator aborted it")
    assert (await task) == progress
    assert source.row() == Row(Place(A, 0), Place(A, 0))
    with pytest.raises(sdk.BadRequest, match="T/1 does not move"):
        await source.broker.moves.abort("T", 1)


async def test_what_has_sealed_is_not_aborted(source: Source) -> None:
    source.target.deaf.add(Open)
    task = source.begin()
    await source.reach(State.OPENING)
    with pytest.raises(sdk.BadRequest, match="ends at offset 0: its move to b cannot be aborted"):
        await source.broker.moves.abort("T", 0)
    source.target.deaf.clear()
    assert (await task).state == "DONE"


async def test_a_group_that_was_restored_gives_no_move_an_id_that_it_gave_before(
    source: Source,
) -> None:
    """Its epochs begin again where the backup ends; the target remembers what came after."""
    master = source.broker.replication.master
    assert master is not None
    gone = Guest(Place(A, 1), Place(A, 1), move_id(A, master.epoch, 1), 5)
    source.target.moves.guests["T"] = {4: gone}
    done = await source.begin()
    assert (done.state, done.to) == ("DONE", Place(B, 5))


async def test_four_moves_run_at_once_and_others_wait_for_their_turn(source: Source) -> None:
    source.target.deaf.add(Reserve)
    tasks = [source.begin(queue_id) for queue_id in range(6)]
    await until(lambda: source.state(3) == "RESERVING" and source.state(5) == "WAITING")
    assert source.state(4) == "WAITING"
    aborted = await source.broker.moves.abort("T", 5)
    assert (aborted.state, aborted.move) == ("ENDED", "")
    source.target.deaf.clear()
    states = [(await task).state for task in tasks]
    assert states == ["DONE"] * 5 + ["ENDED"]


@pytest.mark.parametrize(
    ("queue_id", "target", "why"),
    [
        (0, A, "lies in group broker-a already"),
        (0, "nowhere", "no replica group 'nowhere' with a master"),
        (8, B, "no queue 8 in group broker-a"),
        (-1, B, "no queue -1"),
    ],
)
async def test_what_cannot_move_is_refused(
    source: Source, queue_id: int, target: str, why: str
) -> None:
    with pytest.raises(sdk.BadRequest, match=why):
        await source.begin(queue_id, target)
    with pytest.raises(sdk.UnknownTopic):
        await source.broker.moves.begin("U", 0, B)


async def test_a_second_move_of_a_queue_is_refused_and_the_same_one_joined(source: Source) -> None:
    source.target.deaf.add(Reserve)
    first, second = source.begin(), source.begin()
    await source.reach(State.RESERVING)
    with pytest.raises(sdk.BadRequest, match="moves to b already"):
        await source.begin(target="c")
    source.target.deaf.clear()
    assert await first == await second
    assert source.target.kinds.count("Open") == 1


async def test_a_seal_that_cannot_be_stored_is_made_where_the_queue_ends_later(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's own messages may come between two attempts."""
    broker, write, refused = source.broker, source.broker.log.write, list[bytes]()
    monkeypatch.setattr("duolog_server.node.moving.runningmove.PAUSE_SECONDS", 0.0)

    def no_room(batch: PutBatch) -> PutResult:
        body = batch.columns.bodies.tobytes()
        if b'"op":"seal"' in body and len(refused) < 3:
            refused.append(body)
            assert write(PutBatch("T", 0, Columns.of([b"own"]), NOW, accepted=True)).count == 1
            return PutResult(PutMessageStatus.CREATE_MAPEDFILE_FAILED, "no room")
        return write(batch)

    monkeypatch.setattr(broker.log, "write", no_room)
    progress = await source.begin()
    assert (progress.state, progress.end, len(refused)) == ("DONE", 3, 3)
    assert source.target.moves.first_of("T", 4) == 3


async def test_puts_are_told_that_the_disk_is_full_and_do_not_wait_for_the_seal(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, attempts = source.broker, list[bool]()
    write, flags = broker.log.write, broker.store.flags
    monkeypatch.setattr("duolog_server.node.moving.runningmove.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("duolog_server.node.moving.runningmove.PAUSE_SECONDS_MAX", 0.0)

    def full(batch: PutBatch) -> PutResult:
        if b'"op":"seal"' in batch.columns.bodies.tobytes():
            attempts.append(source.is_held())
            if len(attempts) == 1:
                flags.set(RunningFlags.DISK_FULL)
        return write(batch)

    monkeypatch.setattr(broker.log, "write", full)
    task = source.begin()
    await until(lambda: len(attempts) > 2)
    assert all(attempts), "no put comes between the end and the seal"
    refused = await source.put(b"x")
    assert "DISK_FULL" in refused.reason
    assert not source.is_held()
    flags.clear(RunningFlags.DISK_FULL)
    assert (await task).state == "DONE"


async def test_puts_wait_while_no_change_is_taken(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.moving.runningmove.SEAL_SECONDS", 8.0)
    metadata = source.broker.metadata
    taken = metadata.refused
    source.target.lost.add(Reserve)
    task = source.begin()
    await source.reach(State.RESERVING)
    metadata.refused = lambda: sdk.Busy("too few replicas")
    source.target.lost.clear()
    await source.reach(State.SEALING)
    assert source.is_held()
    assert (await task).state in ("SEALING", "REVOKING", "ENDED")
    await source.reach(State.ENDED)
    assert "Busy: too few replicas" in source.broker.moves.progress()[0].reason
    metadata.refused = taken
    assert (await source.put(b"y")).status is PutMessageStatus.PUT_OK
    assert (await source.begin()).state == "DONE"


async def test_a_guest_that_the_target_lost_before_it_began_is_reserved_anew(
    source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    await source.put(b"0")
    source.target.deaf.add(Open)
    task = source.begin()
    await source.reach(State.OPENING)
    source.target.moves = Moves()
    source.target.refuses = "it takes no queues now"
    source.target.deaf.clear()
    await source.reach(State.RENEWING)
    await until(lambda: "takes no queues now" in source.broker.moves.progress()[0].reason)
    assert source.is_held()
    source.target.refuses = ""
    progress = await task
    assert (progress.state, progress.end, progress.to) == ("DONE", 1, Place(B, 4))
    assert progress.move.endswith(".1")
    assert source.row() == Row(Place(A, 0), Place(B, 4))
    assert capsys.readouterr().out.count("a queue that had moved is sealed again") == 1


async def test_a_guest_that_the_target_lost_since_is_reserved_anew(source: Source) -> None:
    await source.put(b"0")
    assert (await source.begin()).state == "DONE"
    source.target.moves = Moves()
    other = Guest(Place("c", 1), Place("c", 1), "c-1-1")
    source.target.moves.apply_guest(guest_record("T", 4, other))
    source.broker.moves.lost("T", 0)
    assert source.is_held()
    await until(lambda: source.state() == "DONE" and not source.is_held())
    seal = source.broker.metadata.tables.moves.seal_of("T", 0)
    assert seal is not None
    assert (seal.end, seal.first, seal.following) == (1, 1, Place(B, 5))
    await until(lambda: source.row() == Row(Place(A, 0), Place(B, 5)))


@pytest.mark.usefixtures("quick_scans")
async def test_a_sealed_queue_of_which_no_row_tells_is_asked_about(source: Source) -> None:
    assert (await source.begin()).state == "DONE"
    source.target.moves = Moves()
    source.registry.commit(Transaction((), (Delete(KEY),)))
    await until(lambda: source.row() == Row(Place(A, 0), Place(B, 4)))
    assert source.target.kinds[-3:] == ["Open", "Reserve", "Open"]


async def test_only_the_master_of_this_mastership_writes_rows(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, service = source.broker.moves._rows, source.node.failover
    assert service is not None
    commit = Commit(Row(Place(A, 0), Place(A, 0)), 0)
    lock = service._keys.lock
    taken = source.registry.get(lock).rows[lock]
    source.registry.commit(Transaction((), (Put(lock, taken.value, taken.lease),)))  # anew
    with pytest.raises(sdk.Unavailable, match="the state of the group changed meanwhile"):
        await rows.commit("T", commit)
    assert source.row() is None
    monkeypatch.setattr(type(service.machine), "_is_mine", lambda _: False)
    with pytest.raises(sdk.NotMaster):
        await rows.commit("T", commit)


# -- failovers of the source -----------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["Reserve deaf", "Reserve lost"])
async def test_a_later_master_revokes_what_was_not_sealed(source: Source, kept: str) -> None:
    kinds = source.target.deaf if kept.endswith("deaf") else source.target.lost
    kinds.add(Reserve)
    task = source.begin()
    await source.reach(State.RESERVING)
    await until(lambda: source.target.kinds)
    await source.fail_over()
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK, "puts do not wait"
    await until(lambda: source.row() == Row(Place(A, 0), Place(A, 0)))
    task.cancel()
    kinds.clear()
    again = await source.begin()
    assert (again.state, again.end) == ("DONE", 1)
    assert [guest.revoked for guest in source.target.moves.guests["T"].values()] == [True, False]


async def test_a_call_ends_with_the_mastership_that_it_waits_for(source: Source) -> None:
    source.target.deaf.add(Open)
    task = source.begin()
    await source.reach(State.OPENING)
    await source.fail_over()
    with pytest.raises((sdk.Unavailable, sdk.NotMaster)):
        await task
    again = source.begin()
    source.target.deaf.clear()
    progress = await again
    assert (progress.state, progress.to) == ("DONE", Place(B, 4))


async def test_calls_that_wait_for_the_end_of_a_move_begin_one_new_move(source: Source) -> None:
    source.target.deaf |= {Reserve, Revoke}
    first = source.begin()
    await source.reach(State.RESERVING)
    abort = asyncio.create_task(source.broker.moves.abort("T", 0))
    await source.reach(State.REVOKING)
    later = [source.begin() for _ in range(3)]
    await until(lambda: source.target.kinds.count("Revoke") > 1)
    source.target.deaf.clear()
    assert (await first).state == (await abort).state == "ENDED"
    assert [(await one).state for one in later] == ["DONE"] * 3
    assert len(source.target.moves.guests["T"]) == 2


@pytest.mark.parametrize("kept", ["deaf", "lost"])
async def test_a_later_master_opens_what_was_sealed(source: Source, kept: str) -> None:
    await source.put(b"0")
    kinds: set[type] = getattr(source.target, kept)
    kinds.add(Open)
    task = source.begin()
    await source.reach(State.OPENING)
    await until(lambda: "Open" in source.target.kinds)
    await source.fail_over()
    task.cancel()
    assert source.is_held(), "from the first moment on"
    await source.reach(State.OPENING)
    kinds.clear()
    await source.reach(State.DONE)
    assert source.row() == Row(Place(A, 0), Place(B, 4))
    assert source.target.moves.first_of("T", 4) == 1
    assert not source.is_held()


async def test_puts_continue_though_the_registry_does_not_answer(source: Source) -> None:
    """Neither the end of a move nor a later master waits for it."""
    source.target.deaf.add(Open)
    task = source.begin()
    await source.reach(State.OPENING)
    source.registry.down = True
    source.target.deaf.clear()
    await source.reach(State.WITNESSING)
    assert not source.is_held()
    task.cancel()
    await source.fail_over()
    await source.reach(State.WITNESSING)
    assert not source.is_held()
    source.registry.down = False
    await source.reach(State.DONE)
    assert source.row() == Row(Place(A, 0), Place(B, 4))


async def test_a_queue_that_moved_long_ago_is_passed_on_by_a_later_master(source: Source) -> None:
    assert (await source.begin()).state == "DONE"
    asked = len(source.target.asked)
    await source.fail_over()
    await until(lambda: not source.is_held())
    assert len(source.target.asked) == asked, "the row says where"
    assert source.broker.moves.progress() == []
    progress = await source.begin()
    assert (progress.state, progress.to) == ("DONE", Place(B, 4))


async def test_a_row_that_the_registry_lost_is_written_by_a_later_master(source: Source) -> None:
    assert (await source.begin()).state == "DONE"
    source.registry.commit(Transaction((), (Delete(KEY),)))
    await source.fail_over()
    await until(lambda: source.row() == Row(Place(A, 0), Place(B, 4)))


@pytest.mark.usefixtures("quick_scans")
async def test_an_older_row_than_that_of_a_place_that_moved_on_is_written_anew(
    source: Source,
) -> None:
    """A registry restored from an old backup: each place replaces the row of the one before it."""
    metadata, born = source.broker.metadata, Place(B, 0)
    guest = metadata.unused_queue("T")
    await metadata.change(guest_record("T", guest, Guest(born, born, "b-1-1")))
    opened = {"op": "open", "topic": "T", "queue": guest, "move": "b-1-1", "first": 0}
    await metadata.change(opened)
    task = source.begin(guest)
    await until(lambda: source.state(guest) == "DONE")
    await task
    key = row_key("DefaultCluster", "T", born)
    source.registry.commit(Transaction((), (Put(key, row_to_bytes(Row(born, born))),)))
    await until(lambda: Place(*json.loads(source.registry.get(key).rows[key].value)["at"]) != born)


@pytest.mark.usefixtures("quick")
async def test_a_row_that_cannot_be_read_keeps_a_queue_from_moving(source: Source) -> None:
    source.registry.commit(Transaction((), (Put(KEY, b"["),)))
    await source.begin()
    await source.reach(State.ENDED)
    assert f"cannot read {KEY}" in source.broker.moves.progress()[0].reason
    await source.fail_over()
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK


@pytest.mark.usefixtures("quick")
async def test_a_row_that_names_a_move_that_only_it_knows_is_cleared(source: Source) -> None:
    row = Row(Place(A, 0), Place(A, 0), f"{A}-0-1", B)
    source.registry.commit(Transaction((), (Put(KEY, row_to_bytes(row)),)))
    await until(lambda: source.row() == Row(Place(A, 0), Place(A, 0)))
    assert source.target.kinds == ["Revoke"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("first", [1, 3])
async def test_a_seal_that_the_log_lost_is_made_again_where_the_queue_ends_now(
    source: Source, first: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source.target.holds(first)
    source.broker.moves._groups = lambda: (A, B, "c")
    await source.put(b"0", b"1")
    source.target.silent.add("c")
    source.says(Row(Place(A, 0), Place(B, 4)))
    await source.reach(State.DONE)
    seal = source.broker.metadata.tables.moves.seal_of("T", 0)
    assert seal is not None
    assert (seal.end, seal.first, seal.following) == (2, first, Place(B, 4))
    out = capsys.readouterr().out
    assert out.count("the log lacks that a queue moved") == 1
    assert out.count("a queue that had moved is sealed again") == 1


@pytest.mark.usefixtures("quick")
async def test_puts_wait_until_every_group_has_said_that_nothing_came_from_a_queue(
    source: Source,
) -> None:
    source.broker.moves._groups = lambda: (A, B, "c")
    source.target.silent.add("c")
    source.says(Row(Place(A, 0), Place(B, 4)))
    await source.reach(State.ASKING)
    await until(lambda: source.target.kinds.count("Ask") > 4)
    assert source.is_held()
    source.target.silent.clear()
    await until(lambda: source.row() == Row(Place(A, 0), Place(A, 0)))
    assert not source.is_held()
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK


@pytest.mark.usefixtures("quick")
async def test_a_group_that_the_registry_does_not_show_is_waited_for(source: Source) -> None:
    source.says(Row(Place(A, 0), Place(B, 4)))
    await source.reach(State.ASKING)
    await until(lambda: "does not show group b" in source.broker.moves.progress()[0].reason)
    assert source.target.asked == []


# -- topics that are deleted -----------------------------------------------------------------------


async def remade(source: Source) -> None:
    """T is deleted, and made again."""
    metadata = source.broker.metadata
    await metadata.delete_topic("T")
    await metadata.put_topic(metadata.new_topic("T", 8, 6))


@pytest.mark.parametrize("state", [State.RESERVING, State.OPENING])
@pytest.mark.parametrize("again", [False, True])
async def test_a_move_ends_when_its_topic_is_deleted(
    source: Source, state: State, again: bool
) -> None:
    await source.put(b"x")
    source.target.deaf.add(Reserve if state is State.RESERVING else Open)
    task = source.begin()
    await source.reach(state)
    await (remade(source) if again else source.broker.metadata.delete_topic("T"))
    progress = await task
    assert (progress.state, progress.reason) == ("ENDED", "the topic was deleted")
    await until(lambda: source.row() is None)
    assert not source.is_held()
    source.target.deaf.clear()
    if again:
        assert (await source.put(b"new")).status is PutMessageStatus.PUT_OK
        assert (await source.begin()).state == "DONE"


async def test_a_topic_that_is_made_again_has_none_of_the_moves_of_the_former_one(
    source: Source,
) -> None:
    assert (await source.begin()).state == "DONE"
    await remade(source)
    assert (await source.put(b"new")).status is PutMessageStatus.PUT_OK
    await source.fail_over()
    assert (await source.put(b"new")).status is PutMessageStatus.PUT_OK
    assert not source.is_held()


async def test_a_move_whose_target_had_begun_ends_when_its_topic_is_deleted(
    source: Source,
) -> None:
    source.target.lost.add(Open)
    task = source.begin()
    await source.reach(State.OPENING)
    await until(lambda: source.target.moves.first_of("T", 4) is not None)
    await source.broker.metadata.delete_topic("T")
    assert (await task).reason == "the topic was deleted"
    await until(lambda: source.row() is None)


async def test_a_row_is_removed_though_the_mastership_seemed_to_end(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The election says so before the node hears of it, and another one may follow."""
    rows, asked = source.broker.moves._rows, []
    remove = rows.remove

    async def refused_once(topic: str, name: Place, revision: int) -> None:
        asked.append(topic)
        if len(asked) == 1:
            raise sdk.NotMaster("this node is not the master")
        await remove(topic, name, revision)

    monkeypatch.setattr(rows, "remove", refused_once)
    source.target.deaf.add(Reserve)
    task = source.begin()
    await source.reach(State.RESERVING)
    await source.broker.metadata.delete_topic("T")
    assert (await task).reason == "the topic was deleted"
    await until(lambda: source.row() is None)


async def test_more_queues_of_the_topic_do_not_disturb_a_move(source: Source) -> None:
    source.target.deaf.add(Reserve)
    task = source.begin()
    await source.reach(State.RESERVING)
    metadata = source.broker.metadata
    await metadata.put_topic(altered(metadata.topics["T"], 16, 0))
    source.target.deaf.clear()
    assert (await task).state == "DONE"
    assert metadata.topics["T"].queues == 16


def without_master(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has none, and is not there to answer."""
    monkeypatch.setattr(source.broker.other_groups, "has_master", lambda group: group == "c")
    source.target.silent.add(B)


@pytest.mark.usefixtures("quick_scans")
async def test_puts_go_past_a_target_without_a_master_once_the_row_names_a_later_place(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await source.begin()).state == "DONE"
    later = Place("c", 5)
    source.says(Row(Place(A, 0), later))
    await until(lambda: source.broker.passing.queues["T", 0].later == later)
    without_master(source, monkeypatch)
    await source.fail_over()
    await until(lambda: not source.is_held())
    assert source.broker.passing.queues["T", 0].later == later


@pytest.mark.usefixtures("quick_scans")
async def test_a_group_that_has_left_is_noted_where_queues_moved_there(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await source.begin()).state == "DONE"
    for group in (B, "c"):  # to which it may have moved on
        key = retired_key("DefaultCluster", group)
        source.registry.commit(Transaction((), (Put(key, b"{}"),)))
    await until(lambda: source.broker.metadata.tables.moves.gone == {B, "c"})


@pytest.mark.usefixtures("quick")
async def test_a_move_that_waits_for_a_group_that_has_left_to_revoke_it_ends(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.target.deaf |= {Reserve, Revoke}
    await source.begin()
    await source.reach(State.REVOKING)
    source.registry.commit(Transaction((), (Put(retired_key("DefaultCluster", B), b"{}"),)))
    await source.reach(State.ENDED)
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK
    assert (await source.begin(target="c")).target == "c"


@pytest.mark.usefixtures("quick")
async def test_nobody_is_asked_who_has_left(source: Source) -> None:
    """The row names a place of a group that has left: what that had is gone with it."""
    source.registry.commit(Transaction((), (Put(retired_key("DefaultCluster", "d"), b"{}"),)))
    source.says(Row(Place(A, 0), Place("d", 5)))
    await source.fail_over()
    await until(lambda: not source.is_held() and source.row() == Row(Place(A, 0), Place(A, 0)))
    assert (await source.put(b"x")).status is PutMessageStatus.PUT_OK


async def test_a_move_that_has_ended_with_its_topic_is_counted_once(source: Source) -> None:
    """A new master finds the row of a move; the topic is deleted before its log is confirmed."""
    service = source.broker.moves
    source.target.deaf.add(Revoke)
    source.says(Row(Place(A, 0), Place("c", 5)))
    source.target.silent.add("c")
    await source.fail_over()
    await source.reach(State.ASKING)
    await source.broker.metadata.delete_topic("T")
    (move,) = service._moves.values()
    service._settle(move)
    assert service.ended[State.ENDED] == 1


@pytest.mark.usefixtures("quick_scans")
async def test_a_topic_that_is_made_again_moves_though_its_row_names_a_group_that_has_left(
    source: Source,
) -> None:
    metadata = source.broker.metadata
    assert (await source.begin()).state == "DONE"
    await metadata.delete_topic("T")
    await metadata.put_topic(metadata.new_topic("T", 8, 6))
    source.says(Row(Place(A, 0), Place("d", 4)))
    ended = await source.begin()
    assert (ended.state, ended.reason) == ("ENDED", "it is at d/4 by the registry: try again")
    assert source.row() is not None  # it may yet be of that group
    source.registry.commit(Transaction((), (Put(retired_key("DefaultCluster", "d"), b"{}"),)))
    await until(lambda: source.row() is None)
    await source.begin()
    await source.reach(State.DONE)
