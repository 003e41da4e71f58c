"""Recovery: clean stops, kills, cuts and flips at every byte, corrupt middles, hazards by name."""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.dispatch import Dispatcher
from duolog_server.store.errors import BadStoreDirectory, StoreLocked
from duolog_server.store.mappedfile import MappedFile
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.recovery import is_mapped_file_matched_recover
from duolog_server.store.status import PutMessageStatus
from sim.disk import SimDisk
from tests import oracle
from tests.known import known
from tests.support import (
    NOW,
    SMALL,
    Opened,
    crash,
    drain,
    flush_all,
    flush_log,
    flush_queues,
    open_noisily,
    open_store,
    options,
    put,
    put_ok,
    queue_entries,
    read_all,
    sim_disk,
)

HOUR = 3_600_000
OFF = options(message_index_enable=False)
ROOMY = options(mapped_file_size_commit_log=32 << 10)  # a hundred records in one segment
# Of logs that are damaged at each byte, in parts.
RECORDS = 40
PARTS = 4


def fill(store: MessageStore, count: int, queues: int = 2, size: int = 40) -> list[bytes]:
    """Put numbered messages; what was put, in order."""
    bodies = []
    for n in range(count):
        body = b"%06d" % n + b"." * size
        put_ok(
            store, [body], "T", n % queues, properties=[b"KEYS\x01k%d" % n], now=NOW + n,
            producer=b"0123456789", sequence=n,
        )  # fmt: skip
        bodies.append(body)
    return bodies


def by_queue(bodies: list[bytes], queues: int = 2) -> list[list[bytes]]:
    return [bodies[queue::queues] for queue in range(queues)]


def contents(store: MessageStore, queues: int = 2) -> list[list[bytes]]:
    return [read_all(store, "T", queue) for queue in range(queues)]


def check_derived(store: MessageStore) -> None:
    """Every queue entry and every index entry agrees with the record it points to."""
    for queue in store.queues:
        for number, (offset, size, tags) in enumerate(
            queue.entries(queue.min_offset, 1 << 30).T.tolist(), queue.min_offset
        ):
            if size == 0x7FFFFFFF:
                continue
            record = store.log.get_message(offset)
            assert (record.size, record.queue_offset) == (size, number)
            assert (record.topic, record.queue_id) == (queue.topic, queue.queue_id)
            assert record.tags_code == tags
        assert store.topic_queue_table[queue.topic, queue.queue_id] == queue.max_offset


# -- the plain cases ---------------------------------------------------------------------------


def test_a_clean_stop_removes_abort_and_recovers_normally(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "abort").exists()
    bodies = fill(store, 700)
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    again = open_noisily(tmp_path)
    assert not again.report.abnormal
    assert again.report.scanned_from > 0  # only the last three segments
    assert contents(again.store) == by_queue(bodies)
    check_derived(again.store)
    again.store.shutdown()


def test_a_killed_store_recovers_abnormally(store: MessageStore, tmp_path: Path) -> None:
    bodies = fill(store, 300)
    crash(store)
    again = open_noisily(tmp_path)
    assert again.report.abnormal
    assert contents(again.store) == by_queue(bodies)
    check_derived(again.store)
    put_ok(again.store, [b"next"])
    assert read_all(again.store)[-1] == b"next"
    again.store.shutdown()


def test_abort_stays_when_dispatch_is_behind_at_the_stop(
    store: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 5)
    monkeypatch.setattr(Dispatcher, "step", lambda *a, **k: False)
    put(store, [b"not dispatched"])
    store.shutdown()
    monkeypatch.undo()
    assert (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert read_all(again)[-1] == b"not dispatched"
    again.shutdown()


def test_an_empty_commit_log_destroys_the_queues(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 5)
    store.shutdown()
    shutil.rmtree(tmp_path / "commitlog")
    again = open_store(tmp_path)
    assert again.queues.table == {}
    assert put_ok(again, [b"x"]).queue_offset == 0
    again.shutdown()


def test_a_second_process_is_locked_out(tmp_path: Path) -> None:
    import subprocess
    import sys

    store = open_store(tmp_path)
    code = (
        "import sys; from tests.support import open_store\n"
        "from duolog_server.store.errors import StoreLocked\n"
        "from pathlib import Path\n"
        "try: open_store(Path(sys.argv[1]))\n"
        "except StoreLocked as error: print('locked', error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("locked")
    assert (tmp_path / "lock").read_bytes() == b"lock"
    crash(store)
    assert StoreLocked("x").path == "x"


def test_wrong_segment_sizes_stop_the_start_and_change_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    store.shutdown()
    before = sorted((p, p.stat().st_size) for p in tmp_path.rglob("*") if p.is_file())
    with pytest.raises(BadStoreDirectory, match="16384"):
        open_store(tmp_path, options(mapped_file_size_commit_log=8192))
    assert sorted((p, p.stat().st_size) for p in tmp_path.rglob("*") if p.is_file()) == before
    crash(open_store(tmp_path))


# -- where abnormal recovery starts ------------------------------------------------------------


def _matched(
    tmp_path: Path, magic: int, store_time: int, v6: bool = False, safe: bool = False
) -> bool:
    disk = OsDisk(tmp_path)
    file = disk.create("x", 4096)
    data = bytearray(4096)
    struct.pack_into(">I", data, 4, magic)
    struct.pack_into(">I", data, 36, 0x10 if v6 else 0)
    struct.pack_into(">q", data, 68 if v6 else 56, store_time)
    file.memory[:] = np.frombuffer(bytes(data), np.uint8)
    checkpoint = StoreCheckpoint(disk)
    checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 13_000
    checkpoint.index_msg_timestamp = 5_000
    return is_mapped_file_matched_recover(
        MappedFile(file, 0), checkpoint, options(message_index_safe=safe)
    )


@pytest.mark.parametrize(
    ("magic", "store_time", "v6", "safe", "expected"),
    [
        (0xDAA320A7, 10_000, False, False, True),
        (0xDAA320A7, 10_001, False, False, False),
        (0xDAA320A7, 10_000, True, False, True),
        (0xDAA320AB, 10_000, False, False, True),
        (0xCBD43194, 10_000, False, False, False),
        (0, 0, False, False, False),
        (0xDAA320A7, 0, False, False, False),
        (0xDAA320A7, 10_000, False, True, False),
        (0xDAA320A7, 5_000, False, True, True),
    ],
)
def test_a_start_file_matches_as_in_rocketmqs_recovery(
    tmp_path: Path, magic: int, store_time: int, v6: bool, safe: bool, expected: bool
) -> None:
    assert _matched(tmp_path, magic, store_time, v6, safe) is expected


@pytest.mark.parametrize("safe", [False, True])
def test_a_checkpoint_shortens_a_recovery_and_decides_nothing(tmp_path: Path, safe: bool) -> None:
    store = open_store(tmp_path, options(message_index_safe=safe))
    bodies = fill(store, 900)
    flush_log(store)
    flush_queues(store)
    store.checkpoint.physic_msg_timestamp = NOW + 800 + 3000
    store.checkpoint.logics_msg_timestamp = NOW + 800 + 3000
    store.checkpoint.flush()
    crash(store)
    again = open_noisily(tmp_path, options(message_index_safe=safe))
    assert (again.report.scanned_from > 0) is not safe  # the index was never synced
    assert contents(again.store) == by_queue(bodies)
    assert again.store.lookups.by_key("T", "k3")[0].body == bodies[3]
    again.store.shutdown()


def test_a_checkpoint_that_lies_ahead_loses_nothing(store: MessageStore, tmp_path: Path) -> None:
    bodies = fill(store, 900)
    store.checkpoint.physic_msg_timestamp = store.checkpoint.logics_msg_timestamp = 1 << 60
    store.checkpoint.index_msg_timestamp = 1 << 60
    store.checkpoint.flush()
    queue = store.queues.table["T", 0]
    queue.files.files[0].memory[200:] = 0  # entries the checkpoint calls synced, and are not
    for mapped in queue.files.files[1:]:
        mapped.memory[:] = 0
    crash(store)
    again = open_store(tmp_path)
    assert contents(again) == by_queue(bodies)
    check_derived(again)
    again.shutdown()


def test_the_end_of_one_segment_is_dispatched_when_the_next_is_the_start(tmp_path: Path) -> None:
    for flushed in range(0, 400, 37):
        path = tmp_path / str(flushed)
        store = open_store(path)
        bodies = fill(store, 400, queues=1)
        store.checkpoint.physic_msg_timestamp = NOW + flushed + 3000
        store.checkpoint.logics_msg_timestamp = NOW + flushed + 3000
        store.checkpoint.flush()
        # Entries after the flushed ones never reached the disk.
        for mapped in store.queues.table["T", 0].files.files:
            first = mapped.start // 20
            mapped.memory[max(0, flushed + 1 - first) * 20 :] = 0
        crash(store)
        again = open_store(path)
        assert contents(again, 1) == [bodies]
        check_derived(again)
        crash(again)


# -- damage ------------------------------------------------------------------------------------


def _crashed(path: Path, count: int) -> tuple[list[bytes], int]:
    """A crashed store of `count` messages in one queue; bodies and the log's end."""
    store = open_store(path, ROOMY)
    bodies = fill(store, count, queues=1, size=3)
    end = store.log.max_offset
    crash(store)
    return bodies, end


def _starts(path: Path, end: int) -> list[int]:
    """Where each record starts."""
    data = (path / "commitlog" / f"{0:020d}").read_bytes()
    starts, position = [], 0
    while position < end:
        starts.append(position)
        parsed = known(oracle.parse_record(data, position, position))
        position += parsed.size
    return starts


def _reopened(path: Path, copy: Path, edit: object) -> Opened:
    """Copy a crashed store, edit its log's bytes, open it."""
    shutil.copytree(path, copy)
    file = copy / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    edit(data)  # type: ignore[operator]
    file.write_bytes(bytes(data))
    return open_noisily(copy, ROOMY)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.long
def test_a_log_cut_at_every_byte_of_its_last_records_keeps_all_before(
    tmp_path: Path, part: int
) -> None:
    source = tmp_path / "source"
    bodies, end = _crashed(source, RECORDS)
    starts = [*_starts(source, end), end]
    for at in range(starts[part * RECORDS // PARTS], starts[(part + 1) * RECORDS // PARTS]):

        def cut(data: bytearray, at: int = at) -> None:
            data[at:] = bytes(len(data) - at)

        copy = tmp_path / "copy"
        opened = _reopened(source, copy, cut)
        whole = sum(1 for start in starts[1:] if start <= at)
        assert read_all(opened.store) == bodies[:whole]
        assert opened.store.log.max_offset == starts[whole]
        assert put_ok(opened.store, [b"after"]).queue_offset == whole
        check_derived(opened.store)
        crash(opened.store)
        shutil.rmtree(copy)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.long
def test_a_flip_of_any_byte_loses_that_record_at_most_and_is_reported(
    tmp_path: Path, part: int
) -> None:
    source = tmp_path / "source"
    bodies, end = _crashed(source, RECORDS)
    starts = [*_starts(source, end), end]
    for at in range(starts[part * RECORDS // PARTS], starts[(part + 1) * RECORDS // PARTS]):

        def flip(data: bytearray, at: int = at) -> None:
            data[at] ^= 1 << (at % 8)

        hit = sum(1 for start in starts[1:] if start <= at)
        copy = tmp_path / "copy"
        opened = _reopened(source, copy, flip)
        found = read_all(opened.store)
        spared = bodies[:hit] + bodies[hit + 1 :]
        if hit == len(bodies) - 1 and found != bodies:
            assert found == bodies[:-1]  # the last record: a torn tail, cut
        elif found != bodies:  # (equal where the flip hit the seal's own name)
            assert found == spared
            assert opened.problems
            assert opened.store.log.corrupt_ranges
        assert opened.store.log.max_offset in (end, starts[-2])
        put_ok(opened.store, [b"after"])
        assert read_all(opened.store)[-1] == b"after"
        check_derived(opened.store)
        crash(opened.store)
        shutil.rmtree(copy)


def test_a_corrupt_middle_is_kept_reported_and_skipped_at_every_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    bodies = fill(store, 300)
    end = store.log.max_offset
    store.log.queue.files[0].memory[3000:4000] = 0xAA
    crash(store)
    for _ in range(3):
        opened = open_noisily(tmp_path)
        assert opened.store.log.max_offset == end
        assert any("no valid record" in problem for problem in opened.problems)
        lost = 300 - sum(map(len, contents(opened.store)))
        assert 0 < lost < 20
        assert contents(opened.store)[0][-1] == bodies[298]
        check_derived(opened.store)
        crash(opened.store)
    assert bytes(np.fromfile(tmp_path / "commitlog" / f"{0:020d}", np.uint8)[3000:4000]) == (
        b"\xaa" * 1000
    )


def test_a_whole_segment_of_garbage_in_the_middle_does_not_cut_what_follows(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 500)
    segments = len(store.log.queue.files)
    assert segments >= 4
    store.log.queue.files[1].memory[:] = 0x55
    end = store.log.max_offset
    crash(store)
    opened = open_noisily(tmp_path)
    assert opened.store.log.max_offset == end
    assert len(opened.store.log.queue.files) == segments
    check_derived(opened.store)


def test_a_torn_tail_never_comes_back(store: MessageStore, tmp_path: Path) -> None:
    """Stale but valid records after the cut must not be read by a later recovery."""
    bodies = fill(store, 60, queues=1)
    starts = [entry[0] for entry in queue_entries(store)]
    crash(store)
    # The log is cut by hand at record 30 as a truncation would: queue and log both end there.
    store = open_store(tmp_path)
    store.log.queue.truncate(starts[30])
    store.queues.truncate(starts[30])
    crash(store)
    store = open_store(tmp_path)
    assert contents(store, 1) == [bodies[:30]]
    put_ok(store, [b"s"])  # shorter than what was there
    crash(store)
    store = open_store(tmp_path)
    assert contents(store, 1) == [[*bodies[:30], b"s"]]


def test_crash_append_other_data_crash_leaves_no_wrong_queue_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 50)
    end = store.log.max_offset
    crash(store)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[end - 400 :] = bytes(len(data) - end + 400)
    file.write_bytes(bytes(data))
    store = open_store(tmp_path)
    for n in range(20):
        put_ok(store, [b"other %d" % n * 3], "U", n % 3)
    crash(store)
    store = open_store(tmp_path)
    check_derived(store)


def test_blank_bytes_of_a_full_segment_are_not_a_gap(tmp_path: Path) -> None:
    opened = open_noisily(tmp_path)
    bodies = fill(opened.store, 400)
    crash(opened.store)
    opened = open_noisily(tmp_path)
    assert opened.problems == []
    assert contents(opened.store) == by_queue(bodies)


def test_a_preallocated_segment_is_not_data_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    bodies = fill(store, 20)
    end = store.log.max_offset
    store.log.queue.ahead = store.log.queue.create(store.log.queue.next_start())
    store.log.queue.ahead = None
    crash(store)
    store = open_store(tmp_path)
    assert store.log.max_offset == end
    assert contents(store) == by_queue(bodies)
    assert len(store.log.queue.files) == 1
    bodies = fill(store, 200)


# -- derived files -----------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [0, 1, 19, 20, 999, 1001])
def test_queue_files_of_other_sizes_are_rebuilt(tmp_path: Path, size: int, clean: bool) -> None:
    store = open_store(tmp_path)
    bodies = fill(store, 160)
    store.shutdown() if clean else crash(store)
    last = sorted((tmp_path / "consumequeue/T/0").iterdir())[-1]
    last.write_bytes(bytes(size))
    store = open_store(tmp_path)
    assert contents(store) == by_queue(bodies)
    check_derived(store)
    store.shutdown()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("messages", [160, 1600])  # of two segments; of many
def test_missing_queues_are_rebuilt(tmp_path: Path, clean: bool, messages: int) -> None:
    store = open_store(tmp_path)
    bodies = fill(store, messages)
    store.shutdown() if clean else crash(store)
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "1")
    store = open_store(tmp_path)
    assert contents(store) == by_queue(bodies)
    store.shutdown()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert contents(store) == by_queue(bodies)
    check_derived(store)
    store.shutdown()


def test_queues_that_reach_past_the_log_are_truncated(store: MessageStore, tmp_path: Path) -> None:
    bodies = fill(store, 70)
    store.shutdown()
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    starts = _starts(tmp_path, 10_000)
    data[starts[40] :] = bytes(len(data) - starts[40])
    file.write_bytes(bytes(data))
    store = open_store(tmp_path)
    assert contents(store) == by_queue(bodies[:40])
    check_derived(store)
    store.shutdown()


def test_delay_levels_are_known_before_recovery_dispatches(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, [b"x"], "SCHEDULE_TOPIC_XXXX", 2, properties=[b"DELAY\x013\x02TAGS\x01A"])
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert queue_entries(store, "SCHEDULE_TOPIC_XXXX", 2)[0][2] == NOW + 10_000


def test_recovery_may_be_killed_at_any_step_and_started_again(
    store: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = fill(store, 200)
    crash(store)
    for steps in range(0, 12):
        interrupted = MessageStore(OsDisk(tmp_path), SMALL)
        left = [steps]
        step = Dispatcher.step

        def limited(self: Dispatcher, *args: Any, left: list[int] = left, step: Any = step) -> Any:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return step(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "step", limited)
            try:
                interrupted.start()
                crash(interrupted)
            except KeyboardInterrupt:
                pass
    store = open_store(tmp_path)
    assert contents(store) == by_queue(bodies)
    check_derived(store)


def test_unsealed_logs_of_rocketmq_keep_all_but_the_suspect_record(tmp_path: Path) -> None:
    """No CRC covers a flipped queue offset: the record is refused, its neighbours are not."""
    store = open_store(tmp_path, options(enabled_append_prop_crc=False))
    bodies = fill(store, 60, queues=1)
    starts = [entry[0] for entry in queue_entries(store)]
    store.log.queue.files[0].memory[starts[20] + 27] ^= 0x40  # queue offset 20 becomes 84
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    opened = open_noisily(tmp_path, options(enabled_append_prop_crc=False))
    assert read_all(opened.store) == bodies[:20] + bodies[21:]
    assert any("queue offset 84" in problem for problem in opened.problems)
    assert opened.store.queue_range("T", 0) == (0, 60)


# -- any history -------------------------------------------------------------------------------

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
        st.tuples(st.just("stop"), st.just(0), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(_steps)
def test_whatever_happens_between_puts_all_messages_are_there_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("history")
    store = open_store(path)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    number = 0
    for what, queue, count in steps:
        if what == "put":
            bodies = [b"%d" % (number + k) * 20 for k in range(count)]
            number += count
            result = put(store, bodies, "T", queue, now=NOW + number)
            assert result.status is PutMessageStatus.PUT_OK
            assert result.queue_offset == len(expected[queue])
            expected[queue] += bodies
        elif what == "flush":
            for job in (store.log.queue.flush_job(0), store.queues_flush_job(0)):
                if job is not None:
                    job.run()
                    job.done()
            store.checkpoint.physic_msg_timestamp = store.log.last_store_time
            store.checkpoint.logics_msg_timestamp = store.dispatcher.store_time
            store.checkpoint.flush()
        else:
            crash(store) if what == "crash" else store.shutdown()
            store = open_store(path)
    drain(store)
    for queue, bodies in expected.items():
        assert read_all(store, "T", queue) == bodies
    check_derived(store)


def test_queue_entries_found_after_a_kill_survive_a_power_cut(disk: SimDisk) -> None:
    """They were in the page cache only but counted as synced, so the checkpoint was wrong."""
    first = open_store(disk, OFF)
    total = 0
    while len(first.log.queue.files) < 3:
        put_ok(first, [b"x" * 200] * 5, now=NOW + total)
        total += 5
    disk.kill()
    second = open_store(disk, OFF)
    later = NOW + 100_000
    while len(second.log.queue.files) < 6:
        put_ok(second, [b"y" * 200] * 5, now=later + total)
        total += 5
    flush_all(second)
    put_ok(second, [b"z"], now=later + 200_000)
    flush_all(second)
    disk.power_cut()
    third = open_store(disk, OFF)
    assert third.queue_range("T", 0) == (0, total + 1)


def test_cut_queues_are_not_relied_on_by_a_checkpoint_from_before(disk: SimDisk) -> None:
    """Hidden entries are removed from the queues; recovery must add them again from the log."""
    store = open_store(disk, OFF)
    ends = []
    for k in range(60):
        ends.append(put_ok(store, [b"x" * 900], now=NOW + 10_000 * k).end_offset)
    flush_all(store)
    disk.kill()
    again = open_store(disk, OFF)
    again.hide_from(ends[10])
    again.replicated_offset = again.log.max_offset
    drain(again)
    disk.power_cut()
    last = open_store(disk, OFF)
    assert last.queue_range("T", 0) == (0, 60)


def test_entries_of_a_cut_log_begin_again_where_the_log_does(disk: SimDisk) -> None:
    store = open_store(disk, OFF)
    ends = [put_ok(store, [b"%d" % k * 50]).end_offset for k in range(20)]
    store.truncate(ends[4])
    assert store.queue_range("T", 0) == (0, 5)
    assert store.log.next_valid(store.log.max_offset) is None, "nothing valid behind the cut"
    assert put_ok(store, [b"new"]).queue_offset == 5
    store.reset()
    assert (store.log.min_offset, store.log.max_offset) == (0, 0)
    assert store.queue_range("T", 0) == (0, 0)


def test_a_batch_that_begins_a_segment_is_answered_with_its_records_offset(disk: SimDisk) -> None:
    store = open_store(disk)
    for k in range(40):
        result = put_ok(store, [b"x" * 1100])
        assert store.get_message(result.physical_offset).queue_offset == k


def test_a_message_lost_by_truncation_is_stored_when_sent_again() -> None:
    """The sequence of a truncated record is not stored: answering OK would lose the message."""
    store = open_store(sim_disk(), OFF)
    how = {"producer": b"p" * 10}
    kept = put_ok(store, [b"a", b"b"], sequence=0, **how)
    put_ok(store, [b"c", b"d"], sequence=2, **how)
    store.truncate(kept.end_offset)
    assert put_ok(store, [b"a", b"b"], sequence=0, **how).count == 0
    again = put_ok(store, [b"c", b"d"], sequence=2, **how)
    assert (again.count, again.queue_offset) == (2, 2)
    assert read_all(store) == [b"a", b"b", b"c", b"d"]


def test_blanks_at_the_end_of_a_queue_file_do_not_survive_a_cut() -> None:
    """The record after them was in the next file and is truncated: the queue ends before them."""
    store = open_store(sim_disk(), OFF)
    ends = [put_ok(store, [b"%d" % k * 20]).end_offset for k in range(60)]  # 50 entries a file
    queue = known(store.queues.get("T", 0))
    for mapped in queue.files.files[:1]:
        mapped.memory[45 * 20 : 50 * 20] = np.frombuffer(
            (bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)) * 5, np.uint8
        )
    store.truncate(ends[49])
    assert store.queue_range("T", 0) == (0, 45)


@pytest.mark.parametrize("clean", [True, False])
def test_a_producers_repeat_is_known_whatever_came_after_it(tmp_path: Path, clean: bool) -> None:
    """Recovery begins near the log's end; sequences are searched further back."""
    store = open_store(tmp_path)
    first = put(store, [b"once"], producer=b"p" * 10, sequence=5)
    fill(store, 400, size=1000)
    assert len(store.log.queue.files) > 4
    if clean:
        store.shutdown()
    else:
        flush_all(store)
        crash(store)
    again = open_store(tmp_path)
    repeated = put(again, [b"once"], producer=b"p" * 10, sequence=5)
    assert repeated.count == 0
    (run,) = repeated.duplicates
    assert run.queue_offset == first.queue_offset
    again.shutdown()


def replicated(target: MessageStore, source: MessageStore) -> None:
    """Append what another log has beyond this one's end, segment by segment, and dispatch it."""
    while target.log.max_offset < source.log.max_offset:
        start = target.log.max_offset
        data = source.log.get_data(start)
        target.append_replica(start, data, source.log.last_store_time)
    drain(target)


def test_a_checkpoint_vouches_for_nothing_that_came_after_a_cut_by_older_clocks() -> None:
    """The truncated records had later times: the next master's clock is an hour behind."""
    disk = sim_disk()
    store, other = open_store(disk, OFF), open_store(sim_disk(), OFF)
    ends = []
    for k in range(40):
        ends.append(put_ok(store, [b"x" * 900], now=NOW + (0 if k < 10 else HOUR)).end_offset)
        if k < 10:
            put_ok(other, [b"x" * 900], now=NOW)
    flush_all(store)
    store.truncate(ends[9])
    for k in range(60):  # each in a queue of its own: no gap tells what is missing
        put_ok(other, [b"y" * 900], "U", k, now=NOW + 1000 * k)
        if k == 5:
            replicated(store, other)
            flush_all(store)
    replicated(store, other)
    log_job = known(store.log.queue.flush_job(0))
    log_job.run()  # the log is on disk, the queues' newest entries are not
    disk.power_cut()
    again = open_store(disk, OFF)
    assert [again.queue_range("U", k) for k in range(60)] == [(0, 1)] * 60
    assert again.queue_range("T", 0) == (0, 10)


@pytest.mark.parametrize("end", ["kill", "power_cut"])
def test_a_checkpoint_vouches_for_nothing_that_came_after_a_reset(disk: SimDisk, end: str) -> None:
    """The abandoned log had later times than the one that replaces it."""
    store, other = open_store(disk), open_store(sim_disk())
    for _ in range(40):
        put_ok(store, [b"x" * 900], now=NOW + HOUR)
    flush_all(store)
    store.reset()
    checkpoint = StoreCheckpoint(disk)
    checkpoint.load(writable=False)
    times = "physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"
    assert [getattr(checkpoint, name) for name in times] == [0, 0, 0]
    for k in range(60):  # each in a queue of its own: no gap tells what is missing
        put_ok(other, [b"y" * 900], "U", k, now=NOW + 1000 * k)
        if k == 5:
            replicated(store, other)
            flush_all(store)
    assert store.checkpoint.logics_msg_timestamp < NOW + HOUR
    replicated(store, other)
    log_job = known(store.log.queue.flush_job(0))
    log_job.run()  # the log is on disk, the queues' newest entries are not
    getattr(disk, end)()
    again = open_store(disk)
    assert [again.queue_range("U", k) for k in range(60)] == [(0, 1)] * 60
