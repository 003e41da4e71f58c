"""Moves as a node stores, loads and keeps to them: against a plain model, over starts and cuts."""

import asyncio
import copy
import json
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from duolog import _errors as sdk
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.ha.moverevents import Reserve, Revoke
from duolog_server.ha.movetarget import records_for
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.engine.log import Log
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.runtime.clocks import Clock
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.errors import BadMessage
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult
from duolog_server.store.metadata import SYSTEM_TOPIC, altered
from duolog_server.store.moves import Guest, Moves, Place
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.status import BrokerRole, PutMessageStatus
from tests.inmemory import directory_in_memory
from tests.node.sealing import sealed
from tests.support import NOW, crash, drain, open_store, options, put, read_all

MASTER = options(broker_role=BrokerRole.SYNC_MASTER)
NAMES = 2
FAR = Place("far", 9)
MOVED = PutMessageStatus.QUEUE_MOVED


class StandingClock:
    """Time does not pass."""

    def wall_ms(self) -> WallMs:
        return NOW

    def mono_ms(self) -> MonoMs:
        return MonoMs(0)


class OwnLog:
    """A node's log that waits for nothing."""

    threads = None

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.times = StoreTimes(cast(Clock, StandingClock()), store)

    def write(self, batch: PutBatch) -> PutResult:
        return self.store.put(batch, NOW)

    def settle(self, *_: object) -> None:
        """It is durable."""

    def pump_soon(self) -> None:
        """`Directory.settle` does."""


class Directory:
    """A node's store and metadata, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.store = open_store(self.path, MASTER)
        self.metadata = MetadataLog(cast(Log, OwnLog(self.store)), LimitsSection())
        self.metadata.refused = lambda: None
        self.metadata.load()
        self.save()

    def settle(self) -> None:
        drain(self.store)
        self.metadata.catch_up()

    def save(self) -> None:
        asyncio.run(self.metadata.save())

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call that waits until its change is applied."""

        async def done() -> Any:
            task = asyncio.ensure_future(call)
            while not task.done():
                await asyncio.sleep(0)
                self.settle()
            return await task

        return asyncio.run(done())

    def note(self, op: str, queue: int, move: str, **more: Any) -> None:
        self.metadata.note({"op": op, "topic": "T", "queue": queue, "move": move, **more})
        self.settle()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Directory]:
    with directory_in_memory(tmp_path) as path:
        made = Directory(path)
        made.run(made.metadata.put_topic(made.metadata.new_topic("T", NAMES, 6)))
        yield made
        if not made.store.closed:
            crash(made.store)


def seal(node: Directory, queue_id: int, move: str = "s") -> int:
    return int(node.run(sealed(node.metadata, "T", queue_id, FAR, move)))


def reserve(node: Directory, move: str) -> int:
    """Reserve a guest, as a target does; its queue id."""
    metadata = node.metadata
    asked = Reserve(move, Place("a", 7), Place("a", 7))
    unused = metadata.unused_queue("T")
    node.run(metadata.change(*records_for(metadata.stored_moves, "T", asked, unused)))
    found = metadata.tables.moves.reserved_by("T", move)
    assert found is not None
    return found[0]


# -- one by one --------------------------------------------------------------------------------


def test_a_seal_is_stored_where_its_queue_ends(node: Directory) -> None:
    put(node.store, [b"a", b"b"], queue_id=1)
    assert seal(node, 1) == 2
    assert seal(node, 1, "again") == 2, "the first one counts"
    assert put(node.store, [b"c"], queue_id=1).moved_to == FAR


@pytest.mark.parametrize(
    ("topic", "queue_id", "why"), [("U", 0, "'U' does not exist"), ("T", 2, "T has no queue 2")]
)
def test_only_a_queue_that_is_there_is_sealed(
    node: Directory, topic: str, queue_id: int, why: str
) -> None:
    """Else it would be sealed once the topic is made, or gets more queues."""
    with pytest.raises((sdk.UnknownTopic, BadMessage), match=why):
        node.run(sealed(node.metadata, topic, queue_id, FAR, "s"))
    node.run(node.metadata.put_topic(node.metadata.new_topic("U", 1, 6)))
    node.run(node.metadata.put_topic(altered(node.metadata.topics["T"], 3, 0)))
    assert put(node.store, [b"a"], topic, queue_id=queue_id).status is PutMessageStatus.PUT_OK


def test_a_guest_gets_an_id_that_no_queue_ever_had(node: Directory) -> None:
    assert (reserve(node, "m"), reserve(node, "n"), reserve(node, "m")) == (2, 3, 2)
    node.note("revoke", 3, "n")
    assert reserve(node, "o") == 4, "the id of one that was given up is used up"
    node.note("open", 4, "o", first=1000)
    put(node.store, [b"x"], queue_id=4)
    node.run(node.metadata.delete_topic("T"))
    node.run(node.metadata.put_topic(node.metadata.new_topic("T", NAMES, 6)))
    assert node.metadata.tables.moves.guests == {}
    guest = reserve(node, "p")
    assert guest == 5, "a lower one may begin behind where its move ends"
    node.note("open", guest, "p", first=10)
    assert put(node.store, [b"x"], queue_id=guest).queue_offset == 10


def test_a_guest_that_never_opens_takes_the_last_id(node: Directory) -> None:
    """It hinders neither guests nor own queues, even where there is no topic yet."""
    metadata = node.metadata
    for topic, move, first, last in [
        ("T", "m", 2, 65535),
        ("T", "n", 2, 65534),
        ("U", "m", 0, 65535),
    ]:
        assert metadata.unused_queue(topic) == first
        queue_id = metadata.unused_queue(topic, last=True)
        assert queue_id == last
        asked = Revoke(move, Place("a", 7), Place("a", 7))
        node.run(metadata.change(*records_for(metadata.stored_moves, topic, asked, queue_id)))
    node.run(metadata.put_topic(metadata.new_topic("U", 4, 6)))
    assert (metadata.unused_queue("T"), metadata.unused_queue("U")) == (2, 4)


def test_a_guest_gets_no_id_at_which_a_group_has_an_offset(node: Directory) -> None:
    """As RocketMQ's files have it of a topic that had more queues: it would let the group in."""
    node.run(node.metadata.commit("G", {"T": {4: 0}, "U": {9: 0}}))
    assert reserve(node, "m") == 5


def test_a_topic_with_guests_gets_no_queue_of_their_ids(node: Directory) -> None:
    guest = reserve(node, "m")
    known = node.metadata.topics["T"]
    with pytest.raises(BadMessage, match="cannot have 3 queues: queue 2 is there for a queue of"):
        node.run(node.metadata.put_topic(altered(known, 3, 0)))
    node.run(node.metadata.put_topic(altered(known, 0, 4)))
    node.note("open", guest, "m", first=5)
    topic = node.metadata.topics["T"]
    assert (topic.queues, topic.perm, topic.guests) == (NAMES, 4, 1)
    node.run(node.metadata.put_topic(altered(topic, 0, 6)))
    assert node.metadata.topics["T"] == replace(topic, perm=6)
    end = node.store.next_offset(SYSTEM_TOPIC, 0)
    record = node.store.record_at(SYSTEM_TOPIC, 0, QueueOffset(end - 1))
    assert record is not None
    assert json.loads(record.body)["topic"]["readQueueNums"] == NAMES, "its own, in any log"


def test_a_guests_files_are_no_queue_of_a_topic_that_is_found_by_its_files(node: Directory) -> None:
    reserve(node, "m")
    node.note("open", 2, "m", first=5)
    put(node.store, [b"x"], queue_id=2)
    put(node.store, [b"x"], "U", queue_id=2)
    tables = node.metadata.tables
    tables.complete, node.metadata._missing_after = False, 0  # as of a log without its first half
    node.metadata.catch_up()
    assert (tables.topics["T"].queues, tables.topics["U"].queues) == (NAMES, 3)


def test_a_slave_hides_what_lies_before_a_guest_that_its_master_tells_of(node: Directory) -> None:
    reserve(node, "m")
    node.note("open", 2, "m", first=70)
    put(node.store, [b"x"], queue_id=2)
    tables = node.metadata.snapshot_bytes()
    node.store.queues.table["T", 2].forget_minimum()  # as after a start without tables
    node.metadata.adopt_snapshot(tables)
    assert node.store.queue_range("T", 2) == (70, 71)


def test_a_file_without_entries_does_not_move_where_a_guest_begins(node: Directory) -> None:
    """As a kill leaves it where the record of its first entry did not reach the disk."""
    reserve(node, "m")
    node.note("open", 2, "m", first=70)
    node.store.queues.get_or_make("T", 2).files.roll(70 * 20)
    crash(node.store)
    node.open()
    assert put(node.store, [b"new"], queue_id=2).queue_offset == 70
    assert read_all(node.store, queue_id=2) == [b"new"]
    assert node.store.dispatcher.refused == 0


@pytest.mark.parametrize("messages", [0, 3])
@pytest.mark.parametrize("lost", ["", "config", "consumequeue", "consumequeue/T/2"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_guest_begins_where_it_did_after_a_start(
    node: Directory, messages: int, lost: str, killed: bool
) -> None:
    reserve(node, "m")
    node.note("open", 2, "m", first=70)
    bodies = [b"%d" % k for k in range(messages)]
    if bodies:
        assert put(node.store, bodies, queue_id=2).queue_offset == 70
    node.save()
    if killed:
        crash(node.store)
    else:
        node.store.shutdown()
    if lost:
        shutil.rmtree(node.path / lost, ignore_errors=True)
    node.open()
    assert node.store.queue_range("T", 2) == (70, 70 + messages)
    assert put(node.store, [b"new"], queue_id=2).queue_offset == 70 + messages
    assert read_all(node.store, queue_id=2) == [*bodies, b"new"]
    assert node.store.dispatcher.refused == 0


# -- any order ---------------------------------------------------------------------------------


@dataclass
class Queue:
    """A queue as it must be. first: None for one that is closed, and has nothing."""

    first: int | None = 0
    bodies: list[bytes] = field(default_factory=list)
    move: str = ""
    sealed: bool = False
    revoked: bool = False

    @property
    def end(self) -> int:
        return (self.first or 0) + len(self.bodies)


Model = dict[int, Queue]
KINDS = (
    *("put", "put", "seal", "reserve", "open", "open", "revoke", "promote"),
    *("stop", "kill", "cut", "lose queue", "lose queues", "lose config"),
)
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(1, 90))


class Run:
    """A node beside its model, and what both were at each end of the log."""

    def __init__(self, path: Path) -> None:
        self.node = Directory(path)
        metadata = self.node.metadata
        self.node.run(metadata.put_topic(metadata.new_topic("T", NAMES, 6)))
        self.model: Model = {queue_id: Queue() for queue_id in range(NAMES)}
        self.moves = 0
        self.were: list[tuple[int, Model]] = []
        self.remember()

    def remember(self) -> None:
        self.were.append((self.node.store.max_offset, copy.deepcopy(self.model)))

    def one(self, which: int) -> tuple[int, Queue]:
        queue_id = sorted(self.model)[which % len(self.model)]
        return queue_id, self.model[queue_id]

    def step(self, kind: str, which: int, number: int) -> None:
        node, (queue_id, queue) = self.node, self.one(which)
        if kind == "put":
            bodies = [b"%d-%d" % (queue_id, queue.end + k) for k in range(number % 60 + 1)]
            result = put(node.store, bodies, queue_id=queue_id)
            if queue.sealed or queue.first is None:
                assert result.status is MOVED
                return
            assert result.queue_offset == queue.end
            queue.bodies += bodies
        elif kind == "seal" and queue.first is None and not queue.sealed:
            with pytest.raises(sdk.NotMaster, match="is there for a move"):
                seal(node, queue_id)
        elif kind == "seal":
            end = node.store.next_offset("T", queue_id)
            assert end == queue.end
            assert seal(node, queue_id) == end
            queue.sealed = True
        elif kind == "reserve":
            self.moves += 1
            move = f"m{self.moves}"
            guest = reserve(node, move)
            assert guest not in self.model
            self.model[guest] = Queue(None, move=move)
        elif kind in ("open", "revoke") and queue.move:
            node.note(kind, queue_id, queue.move, **({"first": number} if kind == "open" else {}))
            if queue.first is None and not queue.revoked:
                queue.first = number if kind == "open" else None
                queue.revoked = kind == "revoke"
        elif kind == "promote":
            self.promote()
        elif kind == "cut":
            self.cut(number)
        elif kind in ("stop", "kill") or kind.startswith("lose"):
            self.restart(kind, queue_id)

    def promote(self) -> None:
        """It was a slave, whose readers saw nothing yet."""
        store = self.node.store
        store.change_role(BrokerRole.SLAVE)
        store.puts.moves = Moves()
        store.hide_from(store.min_offset)
        store.change_role(BrokerRole.SYNC_MASTER)
        self.node.metadata.promoted()
        self.check_closed()
        for queue_id, queue in self.model.items():
            assert store.next_offset("T", queue_id) == queue.end
        store.confirm_by_itself()
        self.node.settle()

    def cut(self, number: int) -> None:
        """The newest records never reached the disk."""
        end, self.model = self.were[-min(len(self.were), number % 4 + 1)]
        self.model = copy.deepcopy(self.model)
        self.were = [one for one in self.were if one[0] <= end]
        crash(self.node.store)
        store = open_store(self.node.path, MASTER)
        store.truncate(PhyOffset(end))
        crash(store)
        self.node.open()

    def restart(self, kind: str, queue_id: int) -> None:
        if kind == "kill":
            crash(self.node.store)
        else:
            self.node.store.shutdown()
        lost = {"lose config": "config", "lose queues": "consumequeue"}
        lost["lose queue"] = f"consumequeue/T/{queue_id}"
        if kind in lost:
            shutil.rmtree(self.node.path / lost[kind], ignore_errors=True)
        self.node.open()

    def check_closed(self) -> None:
        store, end = self.node.store, self.node.store.max_offset
        for queue_id, queue in self.model.items():
            if queue.sealed or queue.first is None:
                refused = put(store, [b"never"], queue_id=queue_id)
                assert refused.status is MOVED
                assert refused.moved_to == (FAR if queue.sealed else None)
        assert store.max_offset == end

    def check(self) -> None:
        store, tables = self.node.store, self.node.metadata.tables
        self.check_closed()
        for queue_id, queue in self.model.items():
            first = queue.first or 0
            assert store.queue_range("T", queue_id) == (first, queue.end)
            assert read_all(store, queue_id=queue_id) == queue.bodies
            assert store.next_offset("T", queue_id) == queue.end
            sealed = tables.moves.seal_of("T", queue_id)
            assert (sealed.end if sealed else None) == (queue.end if queue.sealed else None)
            guest = tables.moves.guest_of("T", queue_id)
            places = Place("a", 7), Place("a", 7)
            assert guest == (
                Guest(*places, queue.move, queue.first, queue.revoked) if queue.move else None
            )
        assert tables.topics["T"].queues == NAMES
        assert tables.moves == store.puts.moves == store.moves
        assert store.dispatcher.refused == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, max_size=14))
def test_any_order_of_moves_puts_cuts_and_starts_is_that_of_a_plain_model(
    steps: list[tuple[str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as on_disk, directory_in_memory(Path(on_disk)) as path:
        run = Run(path)
        try:
            for step in steps:
                run.step(*step)
                run.check()
                run.remember()
        finally:
            crash(run.node.store)
