"""Stretches that a second thread scans ahead."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from duolog_server.store import scanahead
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.dispatch import Dispatcher
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import EMPTY_I64, I64
from duolog_server.store.messagestore import MessageStore, PutBatch, StoreEvents
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.recovery import RecoveryReport
from duolog_server.store.scanahead import ScanAhead, Scanned, Stretch, scan_stretch
from tests.known import known
from tests.support import open_store, options

ROWS = 40  # of the tables in these tests: a store of some hundred messages is many stretches


@pytest.fixture(autouse=True)
def _short_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanahead, "ROWS_MAX", ROWS)
    monkeypatch.setattr("duolog_server.store.dispatch.ROWS_MAX", ROWS)


def killed(directory: Path, messages: int = 700) -> Path:
    """A directory whose process was killed: two queues, several segments, a torn tail."""
    chosen = options(mapped_file_size_commit_log=64 << 10)
    store = open_store(directory, chosen)
    for number in range(0, messages, 10):
        columns = Columns.of([b"body %d" % (number + k) for k in range(10)])
        batch = PutBatch(
            "topic", number // 10 % 2, columns, 1000, producer=b"bench-----", sequence=number
        )
        store.put(batch, WallMs(1000))
        while store.dispatch():
            pass
    end = store.log.max_offset
    store.abandon()
    segment = sorted((directory / "commitlog").iterdir())[-1]
    with segment.open("r+b") as file:
        file.seek(end - int(segment.name) - 3)
        file.write(b"???")
    return directory


def recovered(directory: Path, lend: scanahead.Lend | None) -> tuple[RecoveryReport, bytes, str]:
    """Recover a directory: the report, all entries of its queues, and what was told."""
    told: list[str] = []
    chosen = options(mapped_file_size_commit_log=64 << 10)
    store = MessageStore(OsDisk(directory), chosen, StoreEvents(problem=told.append))
    store.lend = lend
    report = store.start()
    entries = [queue.entries(0, 1 << 20) for _, queue in sorted(store.queues.table.items())]
    store.abandon()
    return report, b"".join(table.tobytes() for table in entries), "\n".join(told)


@pytest.mark.parametrize("lost", [(), ("consumequeue", "index", "queueends")])
def test_recovery_finds_the_same_with_two_threads(tmp_path: Path, lost: tuple[str, ...]) -> None:
    one, two, three = killed(tmp_path / "one"), tmp_path / "two", tmp_path / "three"
    for name in lost:
        path = one / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for copy in (two, three):
        shutil.copytree(one, copy)
    threads: set[int] = set()

    def submit(work: Callable[[], Scanned]) -> Future[Scanned]:
        def run() -> Scanned:
            threads.add(threading.get_ident())
            return work()

        return pool.submit(run)

    with ThreadPoolExecutor(1) as pool:
        beside = recovered(two, submit)
    assert beside == recovered(three, None)
    assert threads, "it was used"
    assert threading.get_ident() not in threads
    assert beside[0].bytes_cut > 0


def test_a_damaged_record_is_found_in_a_stretch_that_was_scanned_ahead(tmp_path: Path) -> None:
    one, two, three = killed(tmp_path / "one"), tmp_path / "two", tmp_path / "three"
    segment = sorted((one / "commitlog").iterdir())[0]
    data = bytearray(segment.read_bytes())
    at = data.index(b"body 333")
    data[at : at + 8] = b"BODY 333"
    segment.write_bytes(data)
    for copy in (two, three):
        shutil.copytree(one, copy)
    with ThreadPoolExecutor(1) as pool:
        beside = recovered(two, pool.submit)
    assert beside == recovered(three, None)
    assert beside[0].corrupt_ranges == 1


class Later:
    """Lends a thread that works only when its result is asked for, and counts."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def lend(self, work: Callable[[], Scanned]) -> "Lent":
        self.begun += 1
        return Lent(self, work)


class Lent:
    """One call of `Later`."""

    def __init__(self, owner: Later, work: Callable[[], Scanned]) -> None:
        self.owner, self.work = owner, work

    def result(self) -> Scanned:
        self.owner.ended += 1
        return self.work()


def opened(directory: Path) -> MessageStore:
    return open_store(directory, options(mapped_file_size_commit_log=64 << 10))


def test_only_the_exact_stretch_is_used(tmp_path: Path) -> None:
    store = opened(killed(tmp_path / "data"))
    mapped = store.log.queue.files[0]
    stretch = Stretch(mapped, 0, mapped.readable, True)
    tables: list[I64] = [np.empty((scan.COLUMNS, ROWS), np.int64) for _ in range(2)]
    later = Later()
    ahead = ScanAhead(later.lend, EMPTY_I64)
    assert ahead.take(stretch, tables[0]) is None, "none was begun"
    for other in (
        Stretch(mapped, 0, mapped.readable, False),
        Stretch(mapped, 0, mapped.readable - 1, True),
        Stretch(store.log.queue.files[1], 0, mapped.readable, True),
    ):
        ahead.begin(other)
        assert ahead.take(stretch, tables[0]) is None
    ahead.begin(stretch)
    taken = known(ahead.take(stretch, tables[0]))
    found, rows = taken
    assert found == scan_stretch(stretch, EMPTY_I64, tables[1])
    filled = [column for column in range(scan.COLUMNS) if column != scan.GROUP]  # by grouping
    count = found[1]
    assert count == ROWS
    assert (rows[filled, :count] == tables[1][filled, :count]).all()
    assert later.begun == later.ended == 4
    store.abandon()


def test_no_scan_outlives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the log's memory, which is unmapped when the store closes its files."""
    directory = killed(tmp_path / "data")
    later = Later()
    steps = 0
    put = Dispatcher._put

    def failing(self: Dispatcher, *arguments: object) -> int:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise OSError("broken")
        return put(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Dispatcher, "_put", failing)
    store = MessageStore(OsDisk(directory), options(mapped_file_size_commit_log=64 << 10))
    store.lend = later.lend
    with pytest.raises(OSError, match="broken"):
        store.start()
    assert later.begun >= 3
    assert later.ended == later.begun
