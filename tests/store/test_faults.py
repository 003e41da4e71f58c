"""Every file operation failing at its n-th call: no wrong acknowledgement, no loss, no hang."""

import errno
from pathlib import Path

import pytest

from duolog_server.store.messagestore import MessageStore
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.status import FlushDiskType, PutMessageStatus
from tests.known import known
from tests.support import (
    NOW,
    SMALL,
    Fault,
    FaultDisk,
    crash,
    drain,
    open_store,
    options,
    put,
    read_all,
)

SYNC = options(flush_disk_type=FlushDiskType.SYNC_FLUSH, max_index_num=60)


class Session:
    """Work on a store as a node does it: an acknowledgement only after a successful sync."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.acknowledged: list[bytes] = []
        self.sent: list[bytes] = []
        self.refused: list[bytes] = []

    def work(self, messages: int) -> None:
        """Put, sync, acknowledge; a failed sync fences the store for good."""
        for number in range(messages):
            body = b"%d" % len(self.sent) * 120
            self.sent.append(body)
            result = put(self.store, [body], properties=[b"KEYS\x01k%d" % number], now=NOW + number)
            if result.status is not PutMessageStatus.PUT_OK:
                self.refused.append(body)
                continue
            if number % 3 == 2:
                self.sync()

    def sync(self) -> None:
        """Group commit."""
        pending = [body for body in self.sent if body not in self.acknowledged]
        job = self.store.log.queue.flush_job(0)
        try:
            if job is not None:
                job.run()
        except OSError as error:
            self.store.fence(str(error))
            return
        if job is not None:
            self.store.commit_log_flushed(job)
        if not self.store.fence_reason:
            self.acknowledged += [body for body in pending if body not in self.refused]
        drain(self.store)

    def flush_derived(self) -> None:
        """Sync queues and checkpoint, as the node does every second."""
        job = self.store.queues_flush_job(0)
        try:
            if job is not None:
                job.run()
                self.store.queues_flushed(job, True)
            self.store.checkpoint.flush()
        except OSError as error:
            self.store.fence(str(error))


def run_once(path: Path, disk: OsDisk) -> tuple[Session | None, bool]:
    """A whole life of a store; the session and whether it ended without an error."""
    try:
        store = open_store(disk, SYNC)
    except OSError:
        disk.unlock()
        return None, False
    session = Session(store)
    session.work(60)
    session.sync()
    session.flush_derived()
    clean = not session.store.fence_reason
    try:
        store.shutdown()
    except OSError:
        clean = False
    return session, clean


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("stay_broken", [False, True])
def test_a_failure_of_any_file_operation_loses_nothing_acknowledged(
    tmp_path: Path, number: int, stay_broken: bool
) -> None:
    fail_at, untouched = 0, False
    while not untouched:
        fail_at += 1
        path = tmp_path / str(fail_at)
        disk = FaultDisk(path, fail_at, number, stay_broken)
        session, _ = run_once(path, disk)
        untouched = not disk.failed
        again = open_store(path, SYNC)
        found = read_all(again)
        if session is not None:
            assert [body for body in session.acknowledged if body not in found] == []
            assert [body for body in session.refused if body in found] == []
            assert len(found) == len(set(found))
        crash(again)
        if fail_at > 400:
            pytest.fail("the number of file operations does not end")
    assert fail_at > 15


def test_after_a_failed_sync_nothing_is_acknowledged_ever_again(tmp_path: Path) -> None:
    for fail_at in range(1, 60):
        path = tmp_path / str(fail_at)
        disk = FaultDisk(path)
        store = open_store(disk, SYNC)
        session = Session(store)
        session.work(30)
        session.sync()
        disk.calls, disk.fail_at = 0, fail_at
        before = list(session.acknowledged)
        session.work(30)
        session.sync()
        if "sync" in disk.failed:
            assert store.fence_reason
            new = [body for body in session.acknowledged if body not in before]
            refused = put(store, [b"after"])
            assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            session.sync()
            assert [body for body in session.acknowledged if body not in before] == new
        crash(store)


def test_a_store_that_cannot_start_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path, SMALL)
    session = Session(store)
    session.work(30)
    store.shutdown()
    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    for fail_at in range(1, 12):
        disk = FaultDisk(tmp_path, fail_at)
        try:
            crash(open_store(disk))
        except Fault:
            disk.unlock()
        assert (tmp_path / "commitlog" / f"{0:020d}").read_bytes() == log
    again = open_store(tmp_path, SMALL)
    assert read_all(again) == session.sent


def test_a_failed_sync_leaves_the_flushed_offset_where_it_was(tmp_path: Path) -> None:
    disk = FaultDisk(tmp_path)
    store = open_store(disk, SYNC)
    put(store, [b"x"])
    job = known(store.log.queue.flush_job(0))
    disk.calls, disk.fail_at = 0, 1
    with pytest.raises(Fault):
        job.run()
    assert store.flushed_offset == 0
    assert read_all(store) == []
