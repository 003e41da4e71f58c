"""Shared by many tests: small stores, and a disk that fails on demand."""

import errno
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.disk import Disk
from duolog_server.store.flush import QueuesFlush
from duolog_server.store.messagestore import MessageStore, PutBatch, PutResult, StoreEvents
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk, OsFile
from duolog_server.store.queueflushes import at_once
from duolog_server.store.recovery import RecoveryReport
from duolog_server.store.status import PutMessageStatus
from sim.disk import SimDisk

SMALL = StoreOptions(
    mapped_file_size_commit_log=16 << 10,
    mapped_file_size_consume_queue=20 * 50,
    max_hash_slot_num=50,
    max_index_num=200,
    max_message_size=4 << 10,
)
NOW = WallMs(1_700_000_000_000)


def options(**changes: Any) -> StoreOptions:
    """Small options, with changes."""
    return replace(SMALL, **changes)


@dataclass
class Opened:
    """A store, its complaints and what its start reports."""

    store: MessageStore
    problems: list[str]
    report: RecoveryReport


OPENED: WeakSet[MessageStore] = WeakSet()


def open_store(where: Path | Disk, chosen: StoreOptions = SMALL, boot_id: str = "") -> MessageStore:
    """Open (and recover) a store."""
    disk = OsDisk(where) if isinstance(where, Path) else where
    store = MessageStore(disk, chosen, boot_id=boot_id)
    OPENED.add(store)
    store.start()
    return store


def open_noisily(where: Path | Disk, chosen: StoreOptions = SMALL) -> Opened:
    """Open a store and keep its complaints."""
    problems: list[str] = []
    disk = OsDisk(where) if isinstance(where, Path) else where
    store = MessageStore(disk, chosen, StoreEvents(problem=problems.append))
    OPENED.add(store)
    return Opened(store, problems, store.start())


def crash_what_is_open() -> None:
    """Let go of each store that a test opened and left open."""
    for store in list(OPENED):
        if not store.closed:
            crash(store)
    OPENED.clear()


def sim_disk(seed: int = 3) -> SimDisk:
    """A disk in memory whose mappings are few, as a kernel's may be."""
    disk = SimDisk(random.Random(seed), lambda: 0.0)
    disk.mapped_max = 100
    return disk


def put(
    store: MessageStore,
    bodies: list[bytes],
    topic: str = "T",
    queue_id: int = 0,
    *,
    properties: list[bytes] | None = None,
    now: int = NOW,
    **how: Any,
) -> PutResult:
    """Put a batch and dispatch it."""
    result = store.put(
        PutBatch(topic, queue_id, Columns.of(bodies, properties), now, **how), WallMs(now)
    )
    drain(store)
    return result


def put_ok(store: MessageStore, bodies: list[bytes], *args: Any, **how: Any) -> PutResult:
    """Put a batch that must be stored."""
    result = put(store, bodies, *args, **how)
    assert result.status is PutMessageStatus.PUT_OK, result
    return result


def drain(store: MessageStore) -> None:
    """Dispatch everything."""
    while store.dispatch():
        pass


def flush_log(store: MessageStore) -> None:
    """Group commit."""
    job = store.log.queue.flush_job(0)
    if job is not None:
        job.run()
        store.commit_log_flushed(job)


def flush_queues(store: MessageStore) -> None:
    """Sync and note all queues."""
    job = store.queues_flush_job(0)
    if job is not None:
        job.run()
        store.queues_flushed(job, True)


def flush_all(store: MessageStore) -> None:
    """A thorough round of all flushes, as a node makes one every minute."""
    flush_log(store)
    work = QueuesFlush(store, 0)
    at_once(work.gather())
    work.sync()
    work.settle()
    store.note_confirmed()
    store.checkpoint.flush()


def crash(store: MessageStore) -> None:
    """Let go of a store as SIGKILL does: what is in the page cache stays, nothing is flushed."""
    store.abandon()


def read_all(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Bodies of a queue from its minimum on."""
    bodies: list[bytes] = []
    offset, high = store.queue_range(topic, queue_id)
    while offset < high:
        result = store.get(topic, queue_id, offset)
        ends = [0, *result.table[7].tolist()]
        bodies += [result.bodies[a:b] for a, b in itertools.pairwise(ends)]
        assert result.next_offset > offset
        offset = result.next_offset
    return bodies


def queue_entries(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[list[int]]:
    """Entries of a queue as [offset, size, tags code]."""
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return []
    return queue.entries(queue.min_offset, 1 << 30).T.tolist()  # type: ignore[no-any-return]


class Fault(OSError):
    """The error a FaultDisk raises, to tell it from a real one."""


class _FaultFile(OsFile):
    """A file whose sync may fail."""

    strike: Callable[[str], None]

    def sync(self) -> None:
        self.strike("sync")
        super().sync()


class FaultDisk(OsDisk):
    """The operating system's disk, whose n-th call fails (and, if asked, every one after it)."""

    def __init__(
        self, root: Path, fail_at: int = 0, number: int = errno.EIO, stay_broken: bool = False
    ) -> None:
        self.calls = 0
        self.fail_at = fail_at
        self.number = number
        self.stay_broken = stay_broken
        self.failed: list[str] = []
        super().__init__(root)

    def strike(self, what: str) -> None:
        """Count a call; fail it where it is the one."""
        self.calls += 1
        due = self.calls == self.fail_at or (self.stay_broken and 0 < self.fail_at < self.calls)
        if due:
            self.failed.append(what)
            raise Fault(self.number, f"injected at call {self.calls}", what)

    def _wrap(self, file: OsFile) -> OsFile:
        file.__class__ = _FaultFile
        assert isinstance(file, _FaultFile)
        file.strike = self.strike
        return file

    def create(self, path: str, size: int, allocated: int | None = None) -> OsFile:
        self.strike(f"create {path}")
        return self._wrap(super().create(path, size, allocated))

    def open(self, path: str, writable: bool) -> OsFile:
        self.strike(f"open {path}")
        return self._wrap(super().open(path, writable))

    def read(self, path: str) -> bytes:
        self.strike(f"read {path}")
        return super().read(path)

    def write(self, path: str, data: bytes) -> None:
        self.strike(f"write {path}")
        if self.fail_at and self.number == errno.ENOSPC and self.calls + 1 == self.fail_at:
            # A short write: part of the bytes arrive, then the disk is full.
            super().write(path, data[: len(data) // 2])
            self.strike(f"short write {path}")
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self.strike(f"rename {source}")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.strike(f"remove {path}")
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self.strike(f"sync_dir {path}")
        super().sync_dir(path)
