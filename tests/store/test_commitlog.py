"""CommitLog, MappedFileQueue and MappedFile: appending, rolling, finding, truncating."""

import errno
from pathlib import Path

import numpy as np
import pytest

from duolog_server.store.columns import Columns
from duolog_server.store.commitlog import BLANK_BYTES, CommitLog
from duolog_server.store.errors import (
    BadMessage,
    BadStoreDirectory,
    CorruptRecord,
    OffsetOutOfRange,
)
from duolog_server.store.kernels import scan
from duolog_server.store.mappedfilequeue import MappedFileQueue
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.record import RecordHeader
from tests.known import known
from tests.support import Fault, FaultDisk, options

SEGMENT = 16 << 10
HEADER = RecordHeader("T", 0, 1, 2)


def new_log(path: Path, **changes: object) -> CommitLog:
    return CommitLog(OsDisk(path), options(**changes))


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """An empty log."""
    return new_log(tmp_path)


def test_segments_are_named_by_20_digits_of_their_first_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for _ in range(10):
        log.append(Columns.of([b"x" * 4000]), HEADER, 0)
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    assert names == [f"{SEGMENT * n:020d}" for n in range(4)]
    assert all(path.stat().st_size == SEGMENT for path in (tmp_path / "commitlog").iterdir())


def test_min_and_max_offset_and_roll_next_file(log: CommitLog) -> None:
    assert (log.min_offset, log.max_offset) == (0, 0)
    where = log.append(Columns.of([b"a", b"b"]), HEADER, 0)
    assert (log.min_offset, log.max_offset) == (0, where.end)
    assert log.roll_next_file(0) == SEGMENT
    assert log.roll_next_file(SEGMENT) == 2 * SEGMENT


def test_a_record_that_leaves_less_than_8_bytes_goes_to_the_next_segment(tmp_path: Path) -> None:
    log = new_log(tmp_path, enabled_append_prop_crc=False)
    empty = 91 + 1
    log.append(Columns.of([b"x" * (SEGMENT - 2 * empty - BLANK_BYTES - 1)]), HEADER, 0)
    left = SEGMENT - log.max_offset
    assert left == empty + BLANK_BYTES + 1
    log.append(Columns.of([b"y" * 2]), HEADER, 1)  # one byte too many
    first = log.queue.files[0]
    assert first.memory[SEGMENT - left : SEGMENT - left + 8].tobytes() == (
        left.to_bytes(4, "big") + scan.MAGIC_BLANK.to_bytes(4, "big")
    )
    assert not first.memory[SEGMENT - left + 8 :].any()
    assert log.get_message(SEGMENT).body == b"yy"


def test_a_record_that_leaves_exactly_8_bytes_stays(tmp_path: Path) -> None:
    log = new_log(tmp_path, enabled_append_prop_crc=False)
    log.append(Columns.of([b"x" * (SEGMENT - 92 - BLANK_BYTES)]), HEADER, 0)
    assert log.max_offset == SEGMENT - BLANK_BYTES
    assert len(log.queue.files) == 1


def test_a_batch_may_span_segments_and_keeps_its_queue_offsets_dense(log: CommitLog) -> None:
    where = log.append(Columns.of([b"%d" % n * 500 for n in range(60)]), HEADER, 40)
    assert where.end > SEGMENT
    offsets, position = [], 0
    while position < log.max_offset:
        try:
            record = log.get_message(position)
        except CorruptRecord:
            position = log.roll_next_file(position)
            continue
        offsets.append(record.queue_offset)
        position += record.size
    assert offsets == list(range(40, 100))


def test_a_message_larger_than_a_segment_is_refused_and_leaves_no_trace(log: CommitLog) -> None:
    log.append(Columns.of([b"first"]), HEADER, 0)
    end = log.max_offset
    with pytest.raises(BadMessage, match="does not fit"):
        log.append(Columns.of([b"small", b"x" * SEGMENT]), HEADER, 1)
    assert log.max_offset == end
    assert not log.queue.files[0].memory[end:].any()
    log.append(Columns.of([b"second"]), HEADER, 1)
    assert log.get_message(end).body == b"second"


def test_a_segment_that_cannot_be_created_undoes_the_whole_batch(tmp_path: Path) -> None:
    disk = FaultDisk(tmp_path, number=errno.ENOSPC)
    log = CommitLog(disk, options())
    log.append(Columns.of([b"first"]), HEADER, 0)
    end = log.max_offset
    disk.fail_at = disk.calls + 2  # the batch needs three segments; the second new one fails
    with pytest.raises(Fault):
        log.append(Columns.of([b"x" * 900] * 40), HEADER, 1)
    assert log.max_offset == end
    assert not log.queue.files[0].memory[end:].any()
    where = log.append(Columns.of([b"x" * 900] * 40), HEADER, 1)
    assert where.start == end
    assert log.get_message(end).queue_offset == 1


def test_two_concurrent_writers_fail_an_assertion(log: CommitLog) -> None:
    log._appending = True
    with pytest.raises(AssertionError, match="one writer"):
        log.append(Columns.of([b"x"]), HEADER, 0)


def test_get_data_ends_with_the_segment(log: CommitLog) -> None:
    log.append(Columns.of([b"x" * 4000] * 5), HEADER, 0)
    assert len(log.get_data(0)) == SEGMENT
    assert len(log.get_data(SEGMENT)) == log.max_offset - SEGMENT
    assert len(log.get_data(log.max_offset)) == 0
    assert len(log.get_data(1 << 40)) == 0


@pytest.mark.parametrize("offset", [-1, 1 << 62])
def test_offsets_outside_the_log_are_refused(log: CommitLog, offset: int) -> None:
    log.append(Columns.of([b"x"]), HEADER, 0)
    with pytest.raises(OffsetOutOfRange):
        log.get_message(offset)


def test_raw_bytes_are_appended_where_the_log_ends_and_nowhere_else(tmp_path: Path) -> None:
    master = new_log(tmp_path / "master")
    master.append(Columns.of([b"x" * 3000] * 9), HEADER, 0)
    slave = new_log(tmp_path / "slave")
    for mapped in master.queue.files:
        data = mapped.memory[: mapped.wrote]
        for at in range(0, len(data), 1000):
            slave.append_data(mapped.start + at, data[at : at + 1000])
    assert slave.max_offset == master.max_offset
    for a, b in zip(master.queue.files, slave.queue.files, strict=True):
        assert np.array_equal(a.memory, b.memory)
    with pytest.raises(OffsetOutOfRange):
        slave.append_data(5, np.zeros(3, np.uint8))


def test_an_empty_slave_starts_at_the_segment_its_first_bytes_fall_in(log: CommitLog) -> None:
    log.append_data(3 * SEGMENT + 100, np.ones(50, np.uint8))
    assert log.queue.files[0].start == 3 * SEGMENT
    assert log.max_offset == 3 * SEGMENT + 150
    with pytest.raises(BadMessage, match="cross"):
        log.append_data(3 * SEGMENT + 150, np.ones(SEGMENT, np.uint8))


def test_a_segment_allocated_ahead_is_used_and_an_unused_one_removed(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    assert log.allocation_wanted() is None
    log.append(Columns.of([b"x" * 4000] * 3), HEADER, 0)
    assert log.allocation_wanted() == SEGMENT
    log.queue.ahead = ahead = log.queue.create(SEGMENT)
    assert log.allocation_wanted() is None
    log.append(Columns.of([b"x" * 4000] * 2), HEADER, 3)
    assert log.queue.last is ahead
    log.append(Columns.of([b"x" * 4000]), HEADER, 5)
    log.queue.ahead = log.queue.create(2 * SEGMENT)
    log.queue.close()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2


def test_truncate_zeroes_the_tail_and_removes_later_segments(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    ends = [log.append(Columns.of([b"x" * 3000]), HEADER, n).end for n in range(12)]
    log.queue.truncate(ends[1])
    assert log.max_offset == ends[1]
    assert len(log.queue.files) == 1
    assert not log.queue.files[0].memory[ends[1] :].any()
    assert len(list((tmp_path / "commitlog").iterdir())) == 1


def test_a_truncation_reports_no_bytes_that_no_sync_has_reached(log: CommitLog) -> None:
    ends = [log.append(Columns.of([b"x" * 3000]), HEADER, n).end for n in range(12)]
    first = log.queue.files[0]
    assert ends[8] > first.end
    log.queue.truncate(ends[8])
    assert log.queue.flushed_where == first.flushed == 0
    job = known(log.queue.flush_job(0))
    assert [mapped for mapped, _ in job.files] == log.queue.files
    assert job.end == ends[8]
    job.run()
    log.queue.flushed(job)
    log.queue.truncate(ends[7])
    assert log.queue.flushed_where == ends[7]
    assert log.queue.flush_job(0) is None


def test_the_store_whose_first_segment_is_not_zero_flushes_and_finds(tmp_path: Path) -> None:
    queue = MappedFileQueue(OsDisk(tmp_path), "commitlog", 4096)
    queue.roll(10 * 4096 + 5).wrote = 100
    job = known(queue.flush_job(0))
    job.run()
    queue.flushed(job)
    assert queue.flushed_where == 10 * 4096 + 100
    assert queue.find(10 * 4096 + 7) is queue.files[0]
    assert queue.find(9 * 4096) is None
    assert queue.find(11 * 4096) is None


def test_flush_waits_for_enough_pages_unless_the_minimum_is_zero(tmp_path: Path) -> None:
    queue = MappedFileQueue(OsDisk(tmp_path), "q", 10 * 4096)
    mapped = queue.roll()
    mapped.wrote = 3 * 4096
    assert queue.flush_job(4) is None
    assert queue.flush_job(3) is not None
    mapped.wrote = 1
    assert queue.flush_job(1) is None
    assert queue.flush_job(0) is not None


def test_a_segment_missing_in_the_middle_does_not_hide_the_others(tmp_path: Path) -> None:
    queue = MappedFileQueue(OsDisk(tmp_path), "q", 4096)
    for _ in range(4):
        queue.roll().wrote = 4096
    queue.remove(queue.files[1])
    assert queue.find(100) is queue.files[0]
    assert queue.find(4096) is None
    assert queue.find(3 * 4096) is queue.files[2]


@pytest.mark.parametrize(
    ("name", "size"),
    [("00000000000000000000", 100), ("notanumber", 4096), ("1", 4096), (f"{77:020d}", 4096)],
)
def test_files_of_wrong_names_and_sizes_stop_the_load(tmp_path: Path, name: str, size: int) -> None:
    directory = tmp_path / "commitlog"
    directory.mkdir()
    (directory / name).write_bytes(bytes(size))
    queue = MappedFileQueue(OsDisk(tmp_path), "commitlog", 4096)
    with pytest.raises(BadStoreDirectory, match=name):
        queue.load()
    assert (directory / name).stat().st_size == size


def test_an_empty_last_file_is_dropped_at_load(tmp_path: Path) -> None:
    directory = tmp_path / "commitlog"
    directory.mkdir()
    (directory / f"{0:020d}").write_bytes(bytes(4096))
    (directory / f"{4096:020d}").write_bytes(b"")
    queue = MappedFileQueue(OsDisk(tmp_path), "commitlog", 4096)
    queue.load()
    assert len(queue.files) == 1
    assert not (directory / f"{4096:020d}").exists()


def test_the_transient_pool_shows_appends_only_after_commit(tmp_path: Path) -> None:
    log = new_log(tmp_path, transient_store_pool_enable=True, transient_store_pool_size=2)
    where = log.append(Columns.of([b"pooled"]), HEADER, 0)
    assert log.max_offset == 0
    assert log.wrote_offset == where.end
    assert log.queue.flush_job(0) is None
    log.commit()
    assert log.max_offset == where.end
    assert log.get_message(0).body == b"pooled"
    assert log.queue.flush_job(0) is not None


def test_the_transient_pool_gives_buffers_back_and_does_without_when_empty(tmp_path: Path) -> None:
    log = new_log(tmp_path, transient_store_pool_enable=True, transient_store_pool_size=1)
    for n in range(30):
        log.append(Columns.of([b"x" * 2000]), HEADER, n)
        if n % 7 == 6:
            log.commit()
    log.commit()
    bodies = []
    position = 0
    while position < log.max_offset:
        try:
            record = log.get_message(position)
            bodies.append(record.body)
            position += record.size
        except CorruptRecord:
            position = log.roll_next_file(position)
    assert len(bodies) == 30
