"""The flush schedule, and what a flush makes durable."""

import shutil
from pathlib import Path

import pytest

from duolog_server.store.clocks import MonoMs
from duolog_server.store.delay import parse_delay_levels
from duolog_server.store.flush import FlushSchedule, Interval
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from tests.known import known
from tests.support import NOW, crash, drain, flush_log, open_store, options, put_ok, read_all


def test_flushes_are_due_every_interval_and_thorough_ones_periodically() -> None:
    interval = Interval(500, 10_000, 4)
    due = {time: interval.due(MonoMs(time)) for time in range(1000, 22_000, 100)}
    times = [time for time, pages in due.items() if pages is not None]
    assert times == list(range(1000, 22_000, 500))
    assert [time for time in times if due[time] == 0] == [1000, 11_000, 21_000]
    assert due[1500] == 4


def test_the_schedule_has_rocketmqs_numbers() -> None:
    schedule = FlushSchedule.of(StoreOptions())
    assert (schedule.commit_log.interval_ms, schedule.commit_log.thorough_ms) == (500, 10_000)
    assert (schedule.queues.interval_ms, schedule.queues.thorough_ms) == (1000, 60_000)
    assert (schedule.commit_log.least_pages, schedule.queues.least_pages) == (4, 2)
    assert schedule.pool.interval_ms == 200


def test_a_job_covers_what_was_appended_before_it_and_nothing_after(store: MessageStore) -> None:
    first = put_ok(store, [b"a"])
    job = store.log.queue.flush_job(0)
    put_ok(store, [b"b"])
    assert job is not None
    job.run()
    store.commit_log_flushed(job)
    assert store.flushed_offset == first.end_offset < store.log.max_offset


def test_a_flush_spans_segments(store: MessageStore) -> None:
    for _ in range(20):
        put_ok(store, [b"x" * 3000])
    job = known(store.log.queue.flush_job(0))
    assert len(job.files) == len(store.log.queue.files)
    assert job.directories == ["", "commitlog"]
    job.run()
    store.commit_log_flushed(job)
    assert store.flushed_offset == store.log.max_offset
    assert store.log.queue.flush_job(0) is None


def test_the_checkpoint_never_runs_ahead_of_what_was_synced(store: MessageStore) -> None:
    put_ok(store, [b"a"], now=NOW)
    log_job, queue_job = store.log.queue.flush_job(0), store.queues_flush_job(0)
    put_ok(store, [b"b"], now=NOW + 50_000)
    drain(store)
    assert log_job is not None
    assert queue_job is not None
    log_job.run()
    queue_job.run()
    store.commit_log_flushed(log_job)
    store.queues_flushed(queue_job, thorough=True)
    assert store.checkpoint.physic_msg_timestamp == NOW
    assert store.checkpoint.logics_msg_timestamp == NOW


def test_delay_levels_are_parsed_and_wrong_ones_named() -> None:
    levels = parse_delay_levels(StoreOptions().message_delay_level)
    assert len(levels) == 18
    assert (levels[0], levels[4], levels[17]) == (1000, 60_000, 7_200_000)
    assert parse_delay_levels("2d")[0] == 172_800_000
    for text in ("1x", "s", "1.5s", "-1s"):
        with pytest.raises(ValueError, match="delay level"):
            parse_delay_levels(text)


def test_a_flush_makes_every_name_on_the_way_to_a_new_segment_durable(tmp_path: Path) -> None:
    """A power cut loses names that no fsync of their directory covered, and all below them."""
    synced: list[str] = []

    class Watched(OsDisk):
        def sync_dir(self, path: str) -> None:
            super().sync_dir(path)
            synced.append(path)

    store = open_store(Watched(tmp_path))
    put_ok(store, [b"x"])
    synced.clear()
    log_job, queue_job = store.log.queue.flush_job(0), store.queues_flush_job(0)
    assert log_job is not None
    log_job.run()
    assert set(synced) >= {"", "commitlog"}  # the log alone decides what is acknowledged
    assert queue_job is not None
    queue_job.run()
    assert set(synced) >= {"", "consumequeue", "consumequeue/T", "consumequeue/T/0"}


@pytest.mark.parametrize("pool", [False, True])
def test_flushed_bytes_are_in_the_file_with_and_without_a_pool(tmp_path: Path, pool: bool) -> None:
    chosen = options(transient_store_pool_enable=pool, transient_store_pool_size=2)
    store = open_store(tmp_path, chosen)
    for k in range(40):
        put_ok(store, [b"%02d" % k * 700])
        if k % 9 == 8:
            store.log.commit()
            flush_log(store)
            (tmp_path / "copy").mkdir(exist_ok=True)
            copy = tmp_path / f"copy/{k}"
            shutil.copytree(tmp_path / "commitlog", copy / "commitlog")
            reopened = open_store(copy, options())
            assert reopened.log.max_offset == store.flushed_offset == store.log.wrote_offset
            assert read_all(reopened) == [b"%02d" % n * 700 for n in range(k + 1)]
            crash(reopened)
