"""Put: order of checks, statuses, idempotence, and reads."""

import errno
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store import recovery
from duolog_server.store.columns import Columns
from duolog_server.store.errors import (
    BadMessage,
    CorruptRecord,
    OffsetOutOfRange,
    ProducerForgotten,
    RepeatUnknown,
    SequenceTooOld,
)
from duolog_server.store.idempotence import IdempotenceTable, Run
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import GetMessageStatus, Wanted
from duolog_server.store.record import (
    SENT_PROPERTIES_BYTES_MAX,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
)
from duolog_server.store.status import BrokerRole, FlushDiskType, PutMessageStatus, RunningFlags
from tests.support import (
    NOW,
    FaultDisk,
    crash,
    drain,
    flush_log,
    open_store,
    options,
    put,
    put_ok,
    queue_entries,
    read_all,
)

PRODUCER = b"0123456789"


# -- statuses ----------------------------------------------------------------------------------


def test_a_batch_with_an_expected_offset_is_stored_there_or_nowhere(store: MessageStore) -> None:
    def expecting(offset: int, sequence: int, *bodies: bytes) -> PutResult:
        return put(
            store,
            list(bodies),
            producer=PRODUCER,
            sequence=sequence,
            expect_offset=QueueOffset(offset),
        )

    refused = expecting(1, 0, b"a")
    assert refused.status is PutMessageStatus.QUEUE_OFFSET_MISMATCH
    assert (refused.queue_offset, store.log.max_offset) == (0, 0)
    assert expecting(0, 0, b"a", b"b").queue_offset == 0
    assert expecting(0, 2, b"c").queue_offset == 2  # the queue's next offset
    # A repeat is answered with the first result, whatever the queue got meanwhile.
    put_ok(store, [b"other"])
    again = expecting(0, 0, b"a", b"b")
    assert (again.status, again.count) == (PutMessageStatus.PUT_OK, 0)
    assert expecting(3, 2, b"c").queue_offset == 3


def test_the_rest_of_a_batch_is_expected_behind_what_was_stored_of_it(store: MessageStore) -> None:
    put_ok(store, [b"a"], producer=PRODUCER, sequence=0)
    how: dict[str, Any] = {"producer": PRODUCER, "sequence": 0, "expect_offset": QueueOffset(0)}
    assert put_ok(store, [b"a", b"b"], **how).queue_offset == 1
    put_ok(store, [b"other"])
    longer = put(store, [b"a", b"b", b"c"], **how)
    assert longer.status is PutMessageStatus.QUEUE_OFFSET_MISMATCH
    assert longer.queue_offset == 3


def test_a_put_says_where_the_batch_is(store: MessageStore) -> None:
    first = put_ok(store, [b"a", b"b"])
    second = put_ok(store, [b"c"])
    assert (first.queue_offset, first.physical_offset, first.count) == (0, 0, 2)
    assert (second.queue_offset, second.physical_offset) == (2, first.end_offset)
    assert second.store_time == NOW
    assert read_all(store) == [b"a", b"b", b"c"]


def test_a_slave_and_a_store_that_is_shut_down_take_no_puts(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(broker_role=BrokerRole.SLAVE))
    result = put(store, [b"x"])
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "slave" in result.reason
    store.change_role(BrokerRole.ASYNC_MASTER)
    put_ok(store, [b"x"])
    store.shutdown()
    assert put(store, [b"x"]).status is PutMessageStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    "flag",
    [
        RunningFlags.NOT_WRITEABLE,
        RunningFlags.WRITE_LOGICS_QUEUE_ERROR,
        RunningFlags.DISK_FULL,
    ],
)
def test_every_writeable_flag_refuses_puts_until_cleared(store: MessageStore, flag: int) -> None:
    store.flags.set(flag)
    assert put(store, [b"x"]).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    store.flags.clear(flag)
    put_ok(store, [b"x"])


@pytest.mark.parametrize(
    "how",
    [
        *({"topic": topic} for topic in ("", "x" * 128, "../x", "a/b", "a\0", "ü")),
        *({"queue_id": queue_id} for queue_id in (-1, 65536, 1 << 40)),
        *(
            {"properties": [text]}
            for text in (b"A", b"A\x01", b"\x01v", b"A\x01b\nc", b"A\x01b\x01c", b"A\x01\xff")
        ),
        {"properties": [b"A\0\x01b"]},
        {"producer": b"short"},
        {"producer": PRODUCER, "sequence": -1},
        {"producer": PRODUCER, "sequence": 1 << 48},
        {"flag": 1 << 31},
        {"bodies": [b"a", b"b"], "sysflag": TRANSACTION_PREPARED},
    ],
)
def test_what_the_format_cannot_hold_is_message_illegal(
    store: MessageStore, how: dict[str, Any]
) -> None:
    assert put(store, **{"bodies": [b"x"], **how}).status is PutMessageStatus.MESSAGE_ILLEGAL
    assert store.log.max_offset == 0


def test_the_body_limit_is_exact(store: MessageStore) -> None:
    limit = store.options.max_message_size
    put_ok(store, [b"x" * limit])
    end = store.log.max_offset
    result = put(store, [b"ok", b"x" * (limit + 1)])
    assert result.status is PutMessageStatus.MESSAGE_TOO_LARGE
    assert "exceeds the limit" in result.reason
    assert put(store, [b"x" * 10 * limit]).status is PutMessageStatus.MESSAGE_TOO_LARGE
    assert store.log.max_offset == end


def test_properties_over_the_limit_are_a_status_of_their_own(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(mapped_file_size_commit_log=1 << 17))
    room = SENT_PROPERTIES_BYTES_MAX
    put_ok(store, [b"x"], properties=[b"A\x01" + b"v" * (room - 2)], producer=PRODUCER)
    result = put(store, [b"x"], properties=[b"A\x01" + b"v" * (room - 1)])
    assert result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    record = store.get_message(PhyOffset(0))
    assert len(record.properties["A"]) == room - 2
    assert record.properties["UNIQ_KEY"]


def test_what_was_accepted_before_is_held_to_the_format_alone(tmp_path: Path) -> None:
    store = open_store(
        tmp_path, options(mapped_file_size_commit_log=1 << 17, enabled_append_prop_crc=True)
    )
    limit = store.options.max_message_size

    def again(text: bytes, body: bytes = b"x", **how: Any) -> PutResult:
        columns = Columns.of([body], [text])
        return store.put(PutBatch("T", 0, columns, NOW, accepted=True, **how), NOW)

    ok, too_large = PutMessageStatus.PUT_OK, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    assert again(b"A\x01tab\there", b"x" * (limit + 1)).status is ok  # as RocketMQ stores it
    full = again(b"A\x01" + b"v" * (32767 - 2))
    assert full.status is ok
    assert len(store.get_message(full.physical_offset).properties["A"]) == 32765
    assert "__CRC32#" not in store.get_message(full.physical_offset).properties  # no room
    assert again(b"A\x01" + b"v" * (32768 - 2)).status is too_large
    assert again(b"A\x01" + b"v" * (32767 - 44), producer=PRODUCER).status is ok
    assert again(b"A\x01" + b"v" * (32767 - 43), producer=PRODUCER).status is too_large
    room = again(b"A\x01" + b"v" * (32767 - 23))
    assert "__CRC32#" in store.get_message(room.physical_offset).properties


def test_prepared_messages_have_queue_offset_zero_and_no_entry(store: MessageStore) -> None:
    put_ok(store, [b"a"])
    prepared = put_ok(store, [b"half"], sysflag=TRANSACTION_PREPARED)
    committed = put_ok(store, [b"b"], sysflag=TRANSACTION_COMMIT)
    assert store.get_message(prepared.physical_offset).queue_offset == 0
    assert committed.queue_offset == 1
    assert read_all(store) == [b"a", b"b"]


def test_no_room_for_the_next_segment_is_create_mapedfile_failed(tmp_path: Path) -> None:
    disk = FaultDisk(tmp_path, number=errno.ENOSPC)
    store = open_store(disk)
    put_ok(store, [b"x" * 4000] * 3)
    disk.fail_at = disk.calls + 1
    result = put(store, [b"x" * 4000])
    assert result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED
    assert put_ok(store, [b"again"]).queue_offset == 3


def test_store_times_never_step_back(store: MessageStore) -> None:
    put_ok(store, [b"a"], now=NOW + 5000)
    assert put_ok(store, [b"b"], now=NOW).store_time == NOW + 5000


def test_an_exception_inside_an_append_leaves_the_next_put_possible(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ok(store, [b"a"])
    monkeypatch.setattr(store.log, "_append", lambda *a: (_ for _ in ()).throw(ValueError("bug")))
    with pytest.raises(ValueError, match="bug"):
        put(store, [b"b"])
    monkeypatch.undo()
    assert put_ok(store, [b"c"]).queue_offset == 1
    assert read_all(store) == [b"a", b"c"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5000), st.integers(1, 4))))
def test_queue_offsets_are_dense_whatever_fails_between(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int, int]]
) -> None:
    store = open_store(tmp_path_factory.mktemp("dense"))
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number, (queue, size, count) in enumerate(puts):
        body = b"%d:" % number + b"x" * size
        result = put(store, [body] * count, "T", queue)
        if result.status is PutMessageStatus.PUT_OK:
            assert result.queue_offset == len(expected[queue])
            expected[queue] += [body] * count
        else:
            assert len(body) > store.options.max_message_size
    for queue, bodies in expected.items():
        assert read_all(store, "T", queue) == bodies


# -- confirm -----------------------------------------------------------------------------------


def test_under_sync_flush_nothing_is_read_before_it_is_on_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    result = put_ok(store, [b"x"])
    assert read_all(store) == []
    with pytest.raises(OffsetOutOfRange):
        store.get_message(result.physical_offset)
    flush_log(store)
    drain(store)
    assert read_all(store) == [b"x"]
    assert store.checkpoint.physic_msg_timestamp == NOW


# -- idempotence -------------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_its_first_result(store: MessageStore) -> None:
    first = put_ok(store, [b"a", b"b"], producer=PRODUCER, sequence=5)
    end = store.log.max_offset
    again = put_ok(store, [b"a", b"b"], producer=PRODUCER, sequence=5)
    assert again.count == 0
    assert again.duplicates == (Run(5, 7, "T", 0, first.queue_offset),)
    assert again.end_offset == end
    assert store.log.max_offset == end
    other = put_ok(store, [b"a", b"b"], producer=b"other12345", sequence=5)
    assert other.count == 2


def test_a_batch_whose_start_is_stored_is_stored_from_there_on(store: MessageStore) -> None:
    put_ok(store, [b"a", b"b"], producer=PRODUCER, sequence=0)
    rest = put_ok(store, [b"a", b"b", b"c"], producer=PRODUCER, sequence=0)
    assert (rest.count, rest.queue_offset) == (1, 2)
    assert rest.duplicates == (Run(0, 2, "T", 0, 0),)
    assert read_all(store) == [b"a", b"b", b"c"]
    assert store.get_message(rest.physical_offset).properties["UNIQ_KEY"].endswith("02")


def test_a_batch_whose_end_alone_is_stored_is_refused(store: MessageStore) -> None:
    put_ok(store, [b"c"], producer=PRODUCER, sequence=2)
    result = put(store, [b"a", b"b", b"c"], producer=PRODUCER, sequence=0)
    assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert read_all(store) == [b"c"]


def test_a_sequence_older_than_the_window_is_not_guessed(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(producer_window=4))
    for n in range(10):  # alternating queues: every put is a run of its own
        put_ok(store, [b"x"], "T", n % 2, producer=PRODUCER, sequence=n)
    with pytest.raises(SequenceTooOld):
        put(store, [b"x"], producer=PRODUCER, sequence=1)
    assert put_ok(store, [b"x"], "T", 1, producer=PRODUCER, sequence=9).count == 0


@pytest.mark.parametrize("restart", [True, False])
def test_sequences_used_in_another_topic_are_not_used_up(tmp_path: Path, restart: bool) -> None:
    """Readers know the producer ids of what they read; elsewhere, these keep nothing out."""
    store = open_store(tmp_path)
    put_ok(store, [b"1"], "T", producer=PRODUCER, sequence=0)
    put_ok(store, [b"x", b"y"], "Other", producer=PRODUCER, sequence=1)
    put_ok(store, [b"z"], "Other", producer=PRODUCER, sequence=4)
    if restart:
        store.shutdown()
        store = open_store(tmp_path)
    result = put_ok(store, [b"2", b"3", b"4", b"5"], "T", producer=PRODUCER, sequence=1)
    assert (result.count, result.duplicates) == (4, ())
    again = put_ok(store, [b"2", b"3", b"4", b"5"], "T", producer=PRODUCER, sequence=1)
    assert (again.count, [run.topic for run in again.duplicates]) == (0, ["T"])
    assert read_all(store, "T", 0) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("clean", [True, False])
def test_the_table_is_rebuilt_from_the_log(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    for n in range(20):
        put_ok(store, [b"%d" % n] * 3, "T", n % 3, producer=PRODUCER, sequence=3 * n)
    store.shutdown() if clean else crash(store)
    store = open_store(tmp_path)
    for n in range(20):
        again = put_ok(store, [b"%d" % n] * 3, "T", n % 3, producer=PRODUCER, sequence=3 * n)
        assert again.count == 0
        assert again.duplicates[0].queue_offset == 3 * (n // 3)
    assert put_ok(store, [b"new"], producer=PRODUCER, sequence=60).count == 1


def producer(number: int) -> bytes:
    return b"producer%02d" % number


def test_a_repeat_of_a_forgotten_producer_is_never_stored_again(tmp_path: Path) -> None:
    store = open_store(tmp_path, options(producers_max=3))
    first = put_ok(store, [b"a"], producer=producer(0), sequence=0, repeat_of=0)
    known_end = first.physical_offset
    for number in range(1, 4):
        put_ok(store, [b"x"], producer=producer(number), sequence=0)
    end = store.log.max_offset
    for repeat_of in (0, known_end):
        with pytest.raises(ProducerForgotten, match="find the message by its key"):
            put(store, [b"a"], producer=producer(0), sequence=0, repeat_of=repeat_of)
    assert store.log.max_offset == end
    # What was first sent later than what is forgotten was stored is known not to be stored.
    assert put_ok(store, [b"b"], producer=producer(0), sequence=1, repeat_of=end).count == 1
    # Nobody but the producer says that it sends again.
    assert put_ok(store, [b"c"], producer=producer(9), sequence=7).count == 1


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_remembers_how_far_back_it_read(
    tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "REMEMBERED_BYTES", 0)
    store = open_store(tmp_path)
    put_ok(store, [b"old"], producer=producer(0), sequence=0, repeat_of=0)
    for n in range(300):
        put_ok(store, [b"x" * 300], producer=producer(1), sequence=n)
    for job in (store.log.queue.flush_job(0), store.queues_flush_job(0)):
        assert job is not None
        job.run()
    later = NOW + 3_600_000
    end = put_ok(store, [b"new"], producer=producer(2), sequence=0, now=later).physical_offset
    store.shutdown()
    if not clean:
        (tmp_path / "abort").write_bytes(b"")
    store = open_store(tmp_path)
    horizon = store.idempotence.horizon
    assert (0 < horizon < end) or not clean
    if horizon:
        with pytest.raises(RepeatUnknown):
            put(store, [b"old"], producer=producer(0), sequence=0, repeat_of=0)
    assert put_ok(store, [b"new"], producer=producer(2), sequence=0, repeat_of=0).count == 0
    assert put_ok(store, [b"b"], producer=producer(0), sequence=1, repeat_of=end).count == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "send", "lost", "repeat", "repeat", "restart", "kill"]),
            st.integers(0, 5),
        ),
        max_size=40,
    )
)
@settings(max_examples=150)
def test_no_sequence_is_stored_twice_however_many_producers_come_and_go(
    steps: list[tuple[str, int]],
) -> None:
    """Producers send, lose answers, repeat what they sent at any time, while the store restarts."""
    few = options(producers_max=2, producer_window=2, mapped_file_size_commit_log=4 << 10)
    with (
        TemporaryDirectory(dir="/dev/shm") as path,
        mock.patch.object(recovery, "REMEMBERED_BYTES", 0),
    ):
        store = open_store(Path(path), few)
        sequences: Counter[int] = Counter()
        sent: dict[int, list[tuple[int, int]]] = {}  # sequence, end that was known before
        for step, number in steps:
            match step:
                case "send" | "lost":
                    end = store.confirm_offset
                    sent.setdefault(number, []).append((sequences[number], end))
                    if step == "send":
                        body = b"%d-%d" % (number, sequences[number])
                        put_ok(
                            store,
                            [body],
                            "T",
                            number % 2,
                            producer=producer(number),
                            sequence=sequences[number],
                        )
                    sequences[number] += 1
                case "repeat":
                    for sequence, stored_to in sent.get(number, [])[-3:]:
                        body = b"%d-%d" % (number, sequence)
                        how: dict[str, Any] = {"producer": producer(number), "sequence": sequence}
                        try:
                            put_ok(store, [body], "T", number % 2, repeat_of=stored_to, **how)
                        except ProducerForgotten:
                            assert stored_to < store.idempotence.horizon
                        except SequenceTooOld:  # of this producer, newer ones are stored
                            assert sequence < sequences[number] - 1
                case "restart":
                    store.shutdown()
                    store = open_store(Path(path), few)
                case "kill":
                    crash(store)
                    store = open_store(Path(path), few)
        bodies = [*read_all(store, "T", 0), *read_all(store, "T", 1)]
        assert len(bodies) == len(set(bodies))
        crash(store)


def test_runs_that_continue_each_other_are_one(tmp_path: Path) -> None:
    table = IdempotenceTable(2, 10)
    for n in range(1000):
        table.add(PRODUCER, Run(n, n + 1, "T", 0, 100 + n), n)
    assert table.stored_prefix(PRODUCER, ["T"], 3, 5) == [Run(3, 8, "T", 0, 103)]
    assert table.stored_prefix(PRODUCER, ["T"], 998, 5) == [Run(998, 1000, "T", 0, 1098)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=40), st.integers(0, 35))
def test_the_table_knows_what_was_stored_in_any_order(
    runs: list[tuple[int, int]], asked: int
) -> None:
    """Beside a set of all sequences; each is stored at its own queue offset."""
    table, stored = IdempotenceTable(100, 10), set[int]()
    for first, count in runs:
        known = sum(run.end - run.first for run in _prefix(table, first, count))
        assert stored.issuperset(range(first, first + known))
        assert known == count or first + known not in stored
        left = range(first + known, first + count)
        later = bool(left) and table.overlaps_later(PRODUCER, ["T"], left.start, len(left))
        assert later == (not stored.isdisjoint(left))
        if not known and not later:  # as puts do: what overlaps is refused
            table.add(PRODUCER, Run(first, first + count, "T", 0, 1000 + first), 1)
            stored.update(range(first, first + count))
    found = _prefix(table, asked, 1)
    assert found == ([Run(asked, asked + 1, "T", 0, 1000 + asked)] if asked in stored else [])


def _prefix(table: IdempotenceTable, first: int, count: int) -> list[Run]:
    return table.stored_prefix(PRODUCER, ["T"], first, count)


def test_sequences_below_the_highest_are_not_taken_for_new_after_a_cut() -> None:
    table = IdempotenceTable(2, 10)
    for n in (10, 20, 30):
        table.add(PRODUCER, Run(n, n + 1, "T", 0, n), n)
    table.cut({})
    with pytest.raises(SequenceTooOld):
        table.stored_prefix(PRODUCER, ["T"], 5, 1)
    assert table.stored_prefix(PRODUCER, ["T"], 20, 1) == []


# -- reading -----------------------------------------------------------------------------------


def test_an_offset_that_awaits_the_masters_disk_is_one_past_the_end(tmp_path: Path) -> None:
    """A slave may be faster than its master's disk, and show messages that this does not yet."""
    store = open_store(tmp_path, options(flush_disk_type=FlushDiskType.SYNC_FLUSH))
    put_ok(store, [b"a"])
    flush_log(store)
    drain(store)
    put_ok(store, [b"b", b"c"])
    for asked in (1, 2, 3):
        assert store.get("T", 0, QueueOffset(asked)).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    assert store.get("T", 0, QueueOffset(4)).status is GetMessageStatus.OFFSET_OVERFLOW_BADLY


def test_reads_answer_with_rocketmqs_statuses(store: MessageStore) -> None:
    assert store.get("no", 0, QueueOffset(0)).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    put_ok(store, [b"a", b"b"])
    assert store.get("T", 0, QueueOffset(0)).status is GetMessageStatus.FOUND
    assert store.get("T", 0, QueueOffset(2)).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
    badly = store.get("T", 0, QueueOffset(3))
    assert (badly.status, badly.next_offset) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 2)
    assert store.get("T", 0, QueueOffset(-1)).status is GetMessageStatus.OFFSET_TOO_SMALL
    missing = store.get("T", 0, QueueOffset(0), Wanted(tags_codes=np.array([99], np.int64)))
    assert (missing.status, missing.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 2)


def test_a_read_keeps_to_its_limits_but_gives_at_least_one(store: MessageStore) -> None:
    put_ok(store, [b"x" * 100] * 20)
    assert store.get("T", 0, QueueOffset(0), Wanted(messages_max=3)).count == 3
    assert store.get("T", 0, QueueOffset(0), Wanted(bytes_max=350)).count == 3
    assert store.get("T", 0, QueueOffset(0), Wanted(bytes_max=1)).count == 1
    assert store.get("T", 0, QueueOffset(19), Wanted(10**9, 10**9)).count == 1


def test_reads_cross_segments_and_queue_files(store: MessageStore) -> None:
    bodies = [b"%d" % n * 100 for n in range(400)]
    for body in bodies:
        put_ok(store, [body])
    assert len(store.log.queue.files) > 3
    assert len(store.queues.table["T", 0].files.files) > 3
    assert store.get("T", 0, QueueOffset(0), Wanted(1000, 1 << 20)).count == 400
    assert read_all(store) == bodies


def test_reading_by_tag_gives_exactly_the_matching_ones(store: MessageStore) -> None:
    for n in range(100):
        put_ok(store, [b"%d" % n], properties=[b"TAGS\x01T%d" % (n % 7)])
    wanted = np.array([2652, 2652 + 3], np.int64)  # T0 and T3
    found, offset = [], 0
    while offset < 100:
        result = store.get("T", 0, QueueOffset(offset), Wanted(5, 1 << 20, wanted))
        found += result.table[0].tolist()
        offset = result.next_offset
    assert found == [n for n in range(100) if n % 7 in (0, 3)]


def test_a_record_damaged_at_rest_is_reported_and_skipped(store: MessageStore) -> None:
    results = [put_ok(store, [b"%d" % n * 50]) for n in range(5)]
    store.log.queue.files[0].memory[results[2].physical_offset + 95] ^= 1
    first = store.get("T", 0, QueueOffset(0))
    assert first.table[0].tolist() == [0, 1, 3, 4]
    assert (first.lost, first.next_offset) == (1, 5)
    with pytest.raises(CorruptRecord):
        store.get_message(results[2].physical_offset)
    only = store.get("T", 0, QueueOffset(2), Wanted(messages_max=1))
    assert only.table[0].tolist() == [3]


def test_an_id_is_checked_and_its_offset_never_trusted(store: MessageStore) -> None:
    put_ok(store, [b"a" * 50])
    second = put_ok(store, [b"b"])
    record = store.get_message(second.physical_offset)
    assert store.lookups.by_id(record.message_id).body == b"b"
    inside = record.message_id[:-16] + f"{second.physical_offset - 9:016X}"
    with pytest.raises(CorruptRecord):
        store.lookups.by_id(inside)
    with pytest.raises(OffsetOutOfRange):
        store.lookups.by_id(record.message_id[:-16] + f"{1 << 62:016X}")
    with pytest.raises(OffsetOutOfRange):
        store.lookups.by_id(record.message_id[:-16] + "F" * 16)
    with pytest.raises(BadMessage):
        store.lookups.by_id("nonsense")


def test_columns_need_offsets_of_whole_numbers(store: MessageStore) -> None:
    for offsets in (b"", b"\0" * 4, b"\0" * 7):
        with pytest.raises(BadMessage):
            Columns.from_wire(b"", offsets, b"", b"")
    with pytest.raises(BadMessage):
        Columns.from_wire(b"", bytes(8), b"", bytes(12))


def test_dispatch_stops_at_a_full_disk_and_continues_later(tmp_path: Path) -> None:
    disk = FaultDisk(tmp_path, number=errno.ENOSPC)
    store = open_store(disk)
    batch = PutBatch("T", 0, Columns.of([b"x"]), NOW)
    assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    disk.fail_at = disk.calls + 1
    assert store.dispatch() is False
    assert store.flags.has(RunningFlags.DISK_FULL)
    assert queue_entries(store) == []
    drain(store)
    assert len(queue_entries(store)) == 1


def test_dispatch_takes_no_other_error_for_a_full_disk(tmp_path: Path) -> None:
    disk = FaultDisk(tmp_path, number=errno.EMFILE)
    store = open_store(disk)
    told: list[str] = []
    store.events.problem = told.append
    batch = PutBatch("T", 0, Columns.of([b"x"]), NOW)
    assert store.put(batch, NOW).status is PutMessageStatus.PUT_OK
    disk.fail_at, disk.stay_broken = disk.calls + 1, True
    assert store.dispatch() is False
    assert store.dispatch() is False
    assert store.flags.names() == ["WRITE_LOGICS_QUEUE_ERROR"]
    assert len(told) == 1
    assert "injected" in told[0]
    refused = store.put(batch, NOW)
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "WRITE_LOGICS_QUEUE_ERROR" in refused.reason
    disk.fail_at = 0
    drain(store)
    assert store.flags.names() == []
    assert len(queue_entries(store)) == 1
