"""Queues that are sealed, and guests that carry on others: their table, puts and reads."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.dump import check, dump
from duolog_server.store.kernels.encode import FIELD_QUEUE_ID, SINGLES_FIELDS
from duolog_server.store.messagestore import MessageStore, PutResult, Singles
from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata, TopicConfig, changes_of
from duolog_server.store.metadatafiles import TOPICS, MetadataFiles, Snapshots, consumed_of
from duolog_server.store.moves import Guest, Moves, Place, Seal
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.reader import GetMessageStatus
from duolog_server.store.status import BrokerRole, PutMessageStatus
from tests.store.test_retention import clean, written_now
from tests.support import NOW, crash, drain, flush_all, open_store, options, put, put_ok, read_all

MOVED = PutMessageStatus.QUEUE_MOVED
PRODUCER = b"0123456789"
B4, A3 = Place("b", 4), Place("a", 3)
TOPIC = {"op": "topic", "topic": TopicConfig("T", 4).to_json()}
SEAL = {"op": "seal", "topic": "T", "queue": 3, "end": 2, "group": "b", "to": 4, "move": "m"}
GUEST: dict[str, Any] = {
    **{"op": "guest", "topic": "T", "queue": 4, "group": "a", "of": 3},
    **{"from": ["a", 3], "move": "m"},
}
OPEN = {"op": "open", "topic": "T", "queue": 4, "first": 70, "move": "m"}
REVOKE = {"op": "revoke", "topic": "T", "queue": 4, "move": "m"}
DELETE = {"op": "delete_topic", "topic": "T", "floors": {"3": 2, "4": 90}, "birth": 9, "low": 0}
AGAIN = {**TOPIC, "birth": 10, "floors": {}}


def body(change: dict[str, Any]) -> bytes:
    return json.dumps(change, separators=(",", ":")).encode()


def changed(*changes: dict[str, Any], tables: Metadata | None = None) -> Metadata:
    tables = tables or Metadata()
    for change in changes:
        assert tables.apply(body(change)) is not None, change
    return tables


def note(store: MessageStore, *changes: dict[str, Any]) -> PutResult:
    return put(store, [body(change) for change in changes], SYSTEM_TOPIC, accepted=True)


# -- the table ---------------------------------------------------------------------------------


def test_a_seal_and_a_guest_are_what_their_records_say() -> None:
    moves = changed(TOPIC, SEAL, GUEST).moves
    assert moves.seal_of("T", 3) == Seal(2, B4, "m")
    assert moves.guest_of("T", 4) == Guest(A3, A3, "m")
    assert moves.reserved_by("T", "m") == (4, Guest(A3, A3, "m"))
    assert moves.first_of("T", 4) is None
    assert moves.reserved_by("T", "other") is None
    assert changed(OPEN, tables=changed(TOPIC, GUEST)).moves.first_of("T", 4) == 70
    assert (moves.seal_of("T", 4), moves.guest_of("U", 4)) == (None, None)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (OPEN, {**OPEN, "first": 71}),
        (OPEN, REVOKE),
        (REVOKE, OPEN),
        (SEAL, {**SEAL, "end": 3, "move": "n"}),
        (GUEST, {**GUEST, "queue": 5}),
        (GUEST, {**GUEST, "move": "n"}),
        (GUEST, {**OPEN, "move": "n"}),
        (GUEST, {**REVOKE, "queue": 5}),
        (OPEN, GUEST),
    ],
)
def test_the_first_of_two_records_counts(first: dict[str, Any], later: dict[str, Any]) -> None:
    once, twice = changed(TOPIC, GUEST, first), changed(TOPIC, GUEST, first, later, first)
    assert twice.moves == once.moves
    assert twice.topics == once.topics


@pytest.mark.parametrize(
    "change",
    [
        {**SEAL, "end": -1},
        {**SEAL, "to": None},
        {**GUEST, "from": ["a"]},
        {**GUEST, "queue": "x"},
        {**OPEN, "first": []},
        {"op": "revoke", "topic": "T"},
    ],
)
def test_a_record_of_another_shape_changes_nothing(change: dict[str, Any]) -> None:
    tables = changed(TOPIC, GUEST)
    before = tables.moves.copy()
    assert tables.apply(body(change)) is None
    assert tables.moves == before


def test_tables_with_moves_are_those_that_are_written_and_adopted() -> None:
    tables = changed(TOPIC, SEAL, GUEST, OPEN, {**GUEST, "queue": 5, "move": "n"})
    changed({**REVOKE, "queue": 5, "move": "n"}, tables=tables)
    found = Metadata.from_json(json.loads(tables.snapshot().to_bytes()))
    assert (found.moves, found.topics) == (tables.moves, tables.topics)
    slave = Metadata()
    shown = slave.moves
    slave.adopt(tables.snapshot().to_bytes())
    assert slave.moves is shown, "the store's readers keep it"
    assert shown == tables.moves


def test_tables_of_a_topic_that_never_moved_are_written_as_ever() -> None:
    tables = changed(TOPIC)
    expected = (
        b'{"topics":{"T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":4}},"groups":{},"offsets":{},'
        b'"delays":{},"floors":{},"births":{"topics":{},"groups":{}},"done":{},"timers":[0,0],'
        b'"filters":{},"sinks":{},"access":{"users":{},"rights":{}},"quotas":{},"applied":0}'
    )
    assert tables.snapshot().to_bytes() == expected
    assert Metadata.from_json(json.loads(expected)).moves == Moves(), "an older node's"
    changed({**SEAL, "topic": "U"}, DELETE | {"topic": "U"}, tables=tables)
    tables.floors.clear()
    tables.births.topics.clear()
    assert tables.snapshot().to_bytes() == expected, "nor if others moved, and are gone"


def test_a_guest_is_open_to_all_once_its_source_has_left_for_good() -> None:
    tables = changed(TOPIC, GUEST, OPEN)
    assert tables.moves.follows("T", 4)
    assert not tables.may_read("g", "T", 4)
    changed({"op": "gone", "replica_group": "x"}, tables=tables)
    assert not tables.may_read("g", "T", 4), "it came from another one"
    tables.offsets["T", "h"] = {0: 5}
    changed({"op": "gone", "replica_group": "a"}, tables=tables)
    assert tables.may_read("g", "T", 4)
    assert tables.gates == {("T", "h", 4)}, "its members look again"
    again = Moves.from_rows(json.loads(json.dumps(tables.moves.rows())))
    assert (again, again.gone) == (tables.moves, {"a", "x"})
    assert again.copy() == again


def test_a_deleted_topics_moves_are_forgotten() -> None:
    tables = changed(TOPIC, SEAL, GUEST, OPEN, DELETE)
    assert tables.moves == Moves()
    assert tables.floors["T"] == {3: 2, 4: 90}
    # Records of a move that came behind the deletion are not of the topic that is made again.
    changed(SEAL, AGAIN, tables=tables)
    assert (tables.moves, tables.topics["T"]) == (Moves(), TopicConfig("T", 4))


# -- topics ------------------------------------------------------------------------------------


def test_a_guest_is_a_queue_that_is_read_only(tmp_path: Path) -> None:
    reserved = changed(TOPIC, GUEST)
    assert reserved.topics["T"] == TopicConfig("T", 4), "readers do not see it yet"
    tables = changed({**GUEST, "queue": 6, "move": "n"}, OPEN | {"queue": 6, "move": "n"})
    assert changed(TOPIC, tables=tables).topics["T"] == TopicConfig("T", 4, guests=3)
    tables = changed(OPEN, tables=reserved)
    assert tables.topics["T"] == TopicConfig("T", 4, guests=1)
    changed({**TOPIC, "topic": TopicConfig("T", 4, 4).to_json()}, tables=tables)
    assert tables.topics["T"] == TopicConfig("T", 4, 4, guests=1), "also after it was altered"
    disk = OsDisk(tmp_path)
    MetadataFiles(disk).write(tables.snapshot(), -1, WallMs(0))
    text = disk.read(TOPICS)
    assert b'"readQueueNums":5' in text
    assert b'"writeQueueNums":4' in text
    (found, _) = Snapshots.read(disk).found
    assert found.tables.topics == tables.topics
    (change,) = (one for one in changes_of(tables) if one["op"] == "topic")
    assert change["topic"]["readQueueNums"] == 4, "a log may hold it without the guest's records"


@pytest.mark.parametrize(("read", "write"), [(5, 4), (8, 8), (4, 4)])
def test_queues_that_rocketmq_adds_do_not_take_a_guest_for_their_own(read: int, write: int) -> None:
    tables = changed(TOPIC, GUEST, OPEN)
    row = {**tables.topics["T"].to_json(), "readQueueNums": read, "writeQueueNums": write}
    assert TopicConfig.from_json(row, tables.moves) == TopicConfig("T", 4, guests=1)
    assert TopicConfig.from_json(row).queues == max(read, write), "without guests, as ever"


def test_what_a_group_committed_where_a_guest_begins_was_not_consumed_there() -> None:
    offsets = {"op": "offsets", "group": "G", "offsets": {"T": {"4": 70}}}
    crossed = {"op": "crossed", "group": "G", "topic": "T", "queue": 4, "offset": 70, "resets": 0}
    tables = changed(TOPIC, GUEST, OPEN, crossed, offsets)
    assert consumed_of(tables) == {}
    changed({**offsets, "offsets": {"T": {"4": 71}}}, tables=tables)
    assert consumed_of(tables) == {("T", 4): 71}


# -- puts --------------------------------------------------------------------------------------


def test_a_sealed_queue_takes_nothing_from_the_record_on(store: MessageStore) -> None:
    put_ok(store, [b"a", b"b"], queue_id=3)
    assert note(store, SEAL).status is PutMessageStatus.PUT_OK
    end = store.max_offset
    refused = put(store, [b"c"], queue_id=3)
    assert (refused.status, refused.moved_to, refused.count) == (MOVED, B4, 0)
    assert refused.reason == "queue T/3 ends at 2, and continues at b/4"
    expecting = put(store, [b"c"], queue_id=3, expect_offset=QueueOffset(7))
    accepted = put(store, [b"c"], queue_id=3, accepted=True)
    assert expecting.status is accepted.status is MOVED
    assert store.max_offset == end
    put_ok(store, [b"c"], queue_id=2)
    assert read_all(store, queue_id=3) == [b"a", b"b"]


@pytest.mark.parametrize("end", [1, 3])
def test_a_seal_ends_where_its_queue_ends_or_is_refused(store: MessageStore, end: int) -> None:
    put_ok(store, [b"a", b"b"], queue_id=3)
    refused = note(store, {**SEAL, "end": end})
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert refused.reason == f"queue T/3 ends at 2, not at {end}"
    put_ok(store, [b"c"], queue_id=3)
    assert note(store, {**SEAL, "end": 3}).status is PutMessageStatus.PUT_OK
    note(store, {**SEAL, "end": 9})  # the first one counts
    assert put(store, [b"d"], queue_id=3).reason == "queue T/3 ends at 3, and continues at b/4"


def test_what_was_stored_before_the_seal_is_answered_as_at_first(store: MessageStore) -> None:
    def send(*bodies: bytes, sequence: int = 0) -> PutResult:
        return put(store, list(bodies), queue_id=3, producer=PRODUCER, sequence=sequence)

    first = send(b"a", b"b")
    note(store, SEAL)
    again = send(b"a", b"b")
    assert (again.status, again.count) == (PutMessageStatus.PUT_OK, 0)
    assert again.end_offset == first.end_offset
    longer = send(b"a", b"b", b"c")
    assert (longer.status, longer.moved_to, longer.count) == (MOVED, B4, 0)
    (run,) = longer.duplicates
    assert (run.first, run.end, run.queue_id, run.queue_offset) == (0, 2, 3, 0)
    assert longer.end_offset == first.end_offset, "what must be durable before that is told"
    new = send(b"d", sequence=9)
    assert (new.status, new.duplicates) == (MOVED, ())


def test_messages_that_came_at_once_are_all_refused_if_one_queue_has_moved(
    store: MessageStore,
) -> None:
    def singles(*queue_ids: int) -> Singles:
        fields = np.zeros((SINGLES_FIELDS, len(queue_ids)), np.int64)
        fields[FIELD_QUEUE_ID] = queue_ids
        made = Singles("T", Columns.of([b"x"] * len(queue_ids)), fields)
        assert made.queue_ids == list(queue_ids)
        return made

    note(store, {**SEAL, "end": 0})
    end = store.max_offset
    refused = store.put_singles(singles(2, 3, 2), WallMs(NOW))
    assert (refused.status, refused.places) == (MOVED, ())
    assert "continues at b/4" in refused.reason
    assert store.max_offset == end
    assert store.put_singles(singles(2, 1), WallMs(NOW)).queue_offsets == [0, 0]


def test_a_message_with_light_queues_is_refused_and_takes_no_place(store: MessageStore) -> None:
    note(store, {**SEAL, "end": 0})
    light = "%LMQ%$T$x"
    refused = put(store, [b"x"], queue_id=3, light_queues=(light,))
    assert refused.status is MOVED
    assert store.light_names() == []
    assert put_ok(store, [b"x"], queue_id=2, light_queues=(light,)).count == 1


def test_a_guest_takes_messages_once_it_is_open(store: MessageStore) -> None:
    note(store, TOPIC, GUEST)
    refused = put(store, [b"a"], queue_id=4)
    assert (refused.status, refused.moved_to) == (MOVED, None)
    assert refused.reason == "queue T/4 is there for a move, and is not open yet"
    note(store, OPEN)
    assert put_ok(store, [b"a", b"b"], queue_id=4).queue_offset == 70
    assert put_ok(store, [b"c"], queue_id=4).queue_offset == 72
    assert store.queues.disk.list("consumequeue/T/4") == [f"{50 * 20:020d}"]
    assert read_all(store, queue_id=4) == [b"a", b"b", b"c"]
    note(store, {**SEAL, "queue": 4, "end": 73, "group": "a", "to": 9, "move": "n"})
    assert put(store, [b"d"], queue_id=4).moved_to == Place("a", 9), "it moves again"


def test_a_revoked_guest_never_takes_a_message(store: MessageStore) -> None:
    note(store, TOPIC, GUEST, REVOKE, OPEN)
    refused = put(store, [b"a"], queue_id=4)
    assert refused.reason == "queue T/4 is there for a move, and never was opened"


def test_a_topic_that_is_deleted_is_not_sealed_any_more(store: MessageStore) -> None:
    note(store, TOPIC, {**SEAL, "end": 0}, DELETE, AGAIN)
    put_ok(store, [b"a"], queue_id=3)


# -- readers -----------------------------------------------------------------------------------


def opened(store: MessageStore, first: int = 70) -> Metadata:
    """Its tables, after a guest was opened, as the node's metadata keeps them."""
    changes = TOPIC, GUEST, {**OPEN, "first": first}
    note(store, *changes)
    tables = changed(*changes)
    store.keep_to(tables.moves, 3)
    return tables


def test_a_guest_without_messages_is_empty_where_it_begins(store: MessageStore) -> None:
    opened(store)
    assert store.queue_range("T", 4) == (70, 70)
    assert store.next_offset("T", 4) == 70
    assert store.offset_at_time("T", 4, 0) == store.offset_in_log("T", 4, store.min_offset) == 70
    for offset, status in (
        (0, GetMessageStatus.OFFSET_TOO_SMALL),
        (69, GetMessageStatus.OFFSET_TOO_SMALL),
        (70, GetMessageStatus.OFFSET_OVERFLOW_ONE),
        (71, GetMessageStatus.OFFSET_OVERFLOW_BADLY),
    ):
        found = store.get("T", 4, QueueOffset(offset))
        assert (found.status, found.next_offset) == (status, 70), offset
        assert (found.min_offset, found.max_offset) == (70, 70)
    assert store.queue_range("T", 5) == (0, 0)
    put_ok(store, [b"a"], queue_id=4)
    assert store.queue_range("T", 4) == (70, 71)
    assert store.get("T", 4, QueueOffset(3)).next_offset == 70


def test_a_guest_whose_messages_are_hidden_again_begins_where_it_did(store: MessageStore) -> None:
    opened(store)
    before = store.max_offset
    put_ok(store, [b"a"], queue_id=4)
    store.hide_from(before)
    assert store.queue_range("T", 4) == (70, 70)
    assert store.next_offset("T", 4) == 71
    assert store.get("T", 4, QueueOffset(71)).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    store.confirm_by_itself()
    drain(store)
    assert read_all(store, queue_id=4) == [b"a"]


def test_blank_entries_before_a_guest_stay_hidden_after_a_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    tables = opened(store)
    put_ok(store, [b"a"] * 3, queue_id=4)
    for n in range(300):
        put_ok(store, [b"%d" % n * 100])
    store.shutdown()
    (tmp_path / "queueends").unlink()
    store = open_store(tmp_path)
    assert store.queues.table["T", 4].min_offset == 50, "where its first file begins"
    store.keep_to(tables.moves, 3)
    assert store.queue_range("T", 4) == (70, 73)


@pytest.mark.parametrize("lost", ["", "consumequeue/T/4", "consumequeue"])
def test_a_guest_whose_records_expired_ends_where_it_ended(tmp_path: Path, lost: str) -> None:
    store = open_store(tmp_path / "master")
    tables = opened(store)
    put_ok(store, [b"a"] * 3, queue_id=4)
    for n in range(300):
        put_ok(store, [b"%d" % n * 100])
    flush_all(store)
    written_now(store)
    assert clean(store, 100, hour=4) > 0
    assert store.queue_range("T", 4) == (73, 73)
    slave = open_store(tmp_path / "slave", options(broker_role=BrokerRole.SLAVE))
    slave.reserve(store.expired_ends())
    slave.keep_to(tables.moves, 0)
    assert slave.queue_range("T", 4) == (73, 73), "also of a slave that joins later"
    crash(store)
    if lost:
        shutil.rmtree(tmp_path / "master" / lost)
    store = open_store(tmp_path / "master")
    store.drop_unbegun("T", 4, 70)
    store.keep_to(tables.moves, 3)
    assert store.queue_range("T", 4) == (73, 73)
    assert put_ok(store, [b"b"], queue_id=4).queue_offset == 73
    assert read_all(store, queue_id=4) == [b"b"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_slave_that_joins_late_has_what_its_log_has_of_a_guest(tmp_path: Path, lost: int) -> None:
    store = open_store(tmp_path / "master")
    tables = opened(store)
    starts = [put_ok(store, [b"%d" % k], queue_id=4).physical_offset for k in range(3)]
    slave = open_store(tmp_path / "slave", options(broker_role=BrokerRole.SLAVE))
    slave.keep_to(tables.moves, 0)
    assert slave.queue_range("T", 4) == (70, 70)
    data = store.log.queue.files[0].memory[starts[lost] : store.max_offset]
    slave.append_replica(starts[lost], data, NOW)
    drain(slave)
    assert slave.queue_range("T", 4) == (70 + lost, 73)
    assert read_all(slave, queue_id=4) == [b"0", b"1", b"2"][lost:]
    assert slave.dispatcher.refused == 0
    crash(slave)


# -- roles and starts --------------------------------------------------------------------------


def test_a_new_master_keeps_to_records_that_it_cannot_read_yet(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(broker_role=BrokerRole.SYNC_MASTER))
    put_ok(store, [b"a", b"b"], queue_id=3)
    note(store, TOPIC)
    confirmed = store.max_offset
    store.confirm(confirmed)
    note(store, SEAL, GUEST, OPEN)
    store.change_role(BrokerRole.SLAVE)
    store.puts.moves = Moves()  # as of a node that was a slave all the time
    store.change_role(BrokerRole.SYNC_MASTER)
    assert store.dispatched_offset == confirmed
    store.keep_to(Moves(), 1)
    assert put(store, [b"c"], queue_id=3).status is MOVED
    assert put_ok(store, [b"c"], queue_id=4).queue_offset == 70


def test_a_file_without_the_first_entry_of_a_guest_is_dropped(tmp_path: Path) -> None:
    """As a kill leaves it, where the record did not reach the disk."""
    store = open_store(tmp_path)
    opened(store)
    queue = store.queues.get_or_make("T", 4)
    queue.files.roll(70 * 20)
    crash(store)
    store = open_store(tmp_path)
    assert store.next_offset("T", 4) == 50
    store.drop_unbegun("T", 4, 70)
    store.keep_to(changed(TOPIC, GUEST, OPEN).moves, 3)
    assert put_ok(store, [b"a"], queue_id=4).queue_offset == 70
    assert store.queue_range("T", 4) == (70, 71)
    assert store.dispatcher.refused == 0


def test_a_directory_with_guests_is_found_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    opened(store)
    note(store, {**SEAL, "end": 0}, {**GUEST, "queue": 5, "move": "n"})
    put_ok(store, [b"a"] * 60, queue_id=4)
    store.shutdown()
    found = check(OsDisk(tmp_path, read_only=True), options())
    assert found["problems"] == []
    assert dump(OsDisk(tmp_path, read_only=True), options(), [])["queues"]["T/4"]["min"] == 70
