"""A slave's dispatch places the records that were described as they arrived, and no others."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.store.dispatch import ArrivedRows
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.scanahead import Stretch, scan_stretch
from duolog_server.store.status import BrokerRole
from duolog_server.store.wholerecords import WholeRecords
from tests.known import known
from tests.support import crash, open_store, options, put_ok, queue_entries, read_all

SLAVE = options(broker_role=BrokerRole.SLAVE)
SEGMENT = SLAVE.mapped_file_size_commit_log


def _master(path: Path, count: int = 60) -> MessageStore:
    """A log of some segments, with tags, keys, sequences, delays and light queues."""
    store, chance = open_store(path), random.Random(3)
    for k in range(count):
        bodies = [b"%d-" % k + b"." * chance.randint(0, 300) for _ in range(chance.randint(1, 3))]
        words = b"TAGS\1tag%d\2KEYS\1key%d other\2" % (k % 3, k)
        delayed = k % 7 == 0
        put_ok(
            store,
            bodies,
            "SCHEDULE_TOPIC_XXXX" if delayed else "TU"[k % 2],
            k % 3,
            properties=[words + (b"DELAY\1%d\2" % (1 + k % 5) if delayed else b"")] * len(bodies),
            producer=b"p" * 10 if k % 4 else b"",
            sequence=10 * k,
        )
        if k % 9 == 0:
            put_ok(store, [b"light"], "T", 0, light_queues=("%LMQ%$T$a", "%LMQ%$T$b"))
    return store


def _arrive(slave: MessageStore, records: WholeRecords, data: bytes) -> int:
    """Append what whole records bytes begin with, and their rows; how many bytes."""
    start, piece = slave.log.max_offset, np.frombuffer(data, np.uint8)
    whole = records.find(start, piece, lambda rows: None)
    assert whole.wrong is None
    if whole.size:
        slave.append_replica(start, piece[: whole.size], whole.store_time, whole.rows)
    return whole.size


def _bytes_of(store: MessageStore, start: int) -> bytes:
    return store.log.get_data(start).tobytes()


def _derived(path: Path) -> dict[str, bytes]:
    """Queues and index, without the index's names, which are times."""
    files = {str(p.relative_to(path)): p for p in path.rglob("*") if p.is_file()}
    queues = {name: p.read_bytes() for name, p in files.items() if name.startswith("consumeq")}
    index = sorted(name for name in files if name.startswith("index/"))
    return queues | {f"index {k}": files[name].read_bytes() for k, name in enumerate(index)}


def _dispatch_all(store: MessageStore) -> None:
    for _ in range(1000):
        if not store.dispatch():
            return
    pytest.fail("dispatch does not end")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    store = _master(tmp_path_factory.mktemp("master"))
    yield store
    crash(store)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30))
def test_queues_and_index_are_those_that_a_scan_makes(
    master: MessageStore, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    path, chance = tmp_path_factory.mktemp("stores"), random.Random(seed)
    slaves = [open_store(path / name, SLAVE) for name in ("told", "scans")]
    records = WholeRecords(SLAVE)
    for slave in slaves:
        while (start := slave.log.max_offset) < master.log.max_offset:
            piece = _bytes_of(master, start)[: chance.choice([700, 3000, SEGMENT])]
            if _arrive(slave, records, piece) and chance.random() < 0.7:
                if slave is slaves[1]:
                    slave.dispatcher.arrived.forget()
                slave.hide_from(PhyOffset(chance.choice(_boundaries(slave))))
                slave.dispatch()
        slave.confirm_by_itself()
        if slave is slaves[1]:
            slave.dispatcher.arrived.forget()
        _dispatch_all(slave)
        assert slave.dispatched_offset == master.log.max_offset
        assert not len(slave.dispatcher.arrived)
        slave.shutdown()
    assert _derived(path / "told") == _derived(path / "scans")


def _boundaries(store: MessageStore) -> list[int]:
    """Where records end at or behind the place of dispatch."""
    found, end = [], int(store.log.max_offset)
    at = int(store.dispatched_offset)
    while at < end:
        at += store.log.record_bytes(at)
        found.append(at)
    return found or [end]


def test_known_records_are_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = _master(tmp_path / "master", 6)
    slave = open_store(tmp_path / "slave", SLAVE)
    _arrive(slave, WholeRecords(SLAVE), _bytes_of(master, 0))
    monkeypatch.setattr("duolog_server.store.dispatch.scan_stretch", None)
    slave.dispatch()
    assert slave.dispatched_offset == master.log.max_offset
    assert queue_entries(slave) == queue_entries(master)
    assert read_all(slave, "U", 1) == read_all(master, "U", 1)


def test_bytes_that_replace_others_are_scanned(tmp_path: Path) -> None:
    """What was cut off before it was dispatched is not placed for what came after it."""
    masters = [open_store(tmp_path / name) for name in ("old", "new")]
    for queue_id, master in enumerate(masters, 1):
        put_ok(master, [b"common"])
        put_ok(master, [b"x" * 100], "T", queue_id)
    slave, records = open_store(tmp_path / "slave", SLAVE), WholeRecords(SLAVE)
    common = masters[0].log.record_bytes(0)
    slave.hide_from(PhyOffset(0))
    assert _arrive(slave, records, _bytes_of(masters[0], 0)) > common
    slave.truncate(PhyOffset(common))
    data = np.frombuffer(_bytes_of(masters[1], common), np.uint8)
    slave.append_replica(PhyOffset(common), data, masters[1].log.last_store_time)
    slave.confirm_by_itself()
    _dispatch_all(slave)
    for queue_id in range(3):
        assert queue_entries(slave, "T", queue_id) == queue_entries(masters[1], "T", queue_id)
    for store in (*masters, slave):
        crash(store)


class _Described:
    """A log's first segment, and the rows of its records as they lie in it."""

    def __init__(self, store: MessageStore) -> None:
        self.mapped = store.log.queue.files[0]
        self.rows: I64 = np.empty((scan.COLUMNS, 8184), np.int64)
        stretch = Stretch(self.mapped, 0, self.mapped.readable, True)
        _, n, self.end = scan_stretch(stretch, store.delays_ms, self.rows)
        self.rows = self.rows[:, :n]

    def offset(self, row: int) -> int:
        """Where a record begins; behind the last one, where that ends."""
        return int(self.rows[scan.PHY, row]) if row < self.rows.shape[1] else self.end

    def as_arrived(self, first: int, end: int) -> I64:
        """Rows of records that arrived in one piece."""
        rows = self.rows[:, first:end].copy()
        for column in scan.POSITIONS:
            rows[column] -= self.offset(first)
        return rows

    def stretch(self, first: int, end: int) -> Stretch:
        """From one record to another."""
        return Stretch(self.mapped, self.offset(first), self.offset(end), False)


@pytest.fixture
def described(tmp_path: Path) -> _Described:
    store = _master(tmp_path / "master", 12)
    found = _Described(store)
    crash(store)
    assert found.rows.shape[1] > 15
    return found


def _free() -> I64:
    return np.empty((scan.COLUMNS, 8184), np.int64)


def test_rows_are_taken_once_and_as_a_scan_gives_them(described: _Described) -> None:
    arrived = ArrivedRows()
    arrived.add(described.offset(2), 0, described.as_arrived(2, 5))
    arrived.add(described.offset(5), 0, described.as_arrived(5, 9))
    taken = known(arrived.take(described.stretch(2, 12), _free()))
    found, rows = taken
    assert found == (scan.SCAN_END, 7, described.offset(9))
    assert np.array_equal(rows[:, :7], described.rows[:, 2:9])
    assert arrived.take(described.stretch(9, 12), _free()) is None


def test_rows_beyond_the_end_are_left_for_the_next_time(described: _Described) -> None:
    arrived = ArrivedRows()
    arrived.add(0, 0, described.as_arrived(0, 6))
    first = known(arrived.take(described.stretch(0, 4), _free()))
    assert first[0] == (scan.SCAN_END, 4, described.offset(4))
    arrived.add(described.offset(6), 0, described.as_arrived(6, 8))
    second = known(arrived.take(described.stretch(4, 8), first[1]))
    assert second[0] == (scan.SCAN_END, 4, described.offset(8))
    assert np.array_equal(second[1][:, :4], described.rows[:, 4:8])


@pytest.mark.parametrize("asked", [(0, 5), (3, 5)], ids=["before", "inside"])
def test_rows_that_do_not_begin_where_dispatch_is_are_given_up(
    described: _Described, asked: tuple[int, int]
) -> None:
    arrived = ArrivedRows()
    arrived.add(described.offset(2), 0, described.as_arrived(2, 5))
    assert arrived.take(described.stretch(*asked), _free()) is None
    assert len(arrived) == 0
    assert arrived.take(described.stretch(2, 5), _free()) is None


def test_rows_of_another_segment_are_given_up(described: _Described) -> None:
    """Positions are relative to a segment, and offsets alone do not tell which."""
    arrived = ArrivedRows()
    arrived.add(described.offset(2), -SEGMENT, described.as_arrived(2, 5))
    assert arrived.take(described.stretch(2, 5), _free()) is None


def test_a_stretch_that_ends_within_a_record_has_no_rows(described: _Described) -> None:
    arrived = ArrivedRows()
    arrived.add(0, 0, described.as_arrived(0, 5))
    cut = described.stretch(0, 1)._replace(end=described.offset(1) - 1)
    assert arrived.take(cut, _free()) is None


def test_only_rows_that_continue_the_others_are_kept(described: _Described) -> None:
    arrived = ArrivedRows()
    arrived.add(0, 0, described.as_arrived(0, 2))
    arrived.add(described.offset(3), 0, described.as_arrived(3, 5))
    arrived.add(described.offset(2), -SEGMENT, described.as_arrived(2, 3))
    taken = known(arrived.take(described.stretch(0, 5), _free()))
    assert taken[0][1] == 2


def test_a_full_table_keeps_what_it_has(
    described: _Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.store.dispatch.ROWS_MAX", 5)
    arrived = ArrivedRows()
    for first, end in ((0, 3), (3, 6), (3, 5), (5, 6)):
        arrived.add(described.offset(first), 0, described.as_arrived(first, end))
    assert len(arrived) == 5


def test_a_table_of_another_size_is_not_exchanged(described: _Described) -> None:
    """Dispatch has a small one while there are many queues to be made."""
    arrived = ArrivedRows()
    arrived.add(0, 0, described.as_arrived(0, 5))
    assert arrived.take(described.stretch(0, 5), _free()[:, :504].copy()) is None
    assert len(arrived) == 0
