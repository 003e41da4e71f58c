"""ConsumeQueue and ConsumeQueueExt."""

from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.consumequeue import ENTRY_BYTES, ConsumeQueue
from duolog_server.store.consumequeueext import LONG_MIN, ConsumeQueueExt, CqExtUnit, is_ext_address
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.openfiles import OpenFiles
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.queuelayout import QueueLayout
from duolog_server.store.reader import Wanted
from tests.support import (
    NOW,
    crash,
    open_store,
    options,
    put_ok,
    queue_entries,
    read_all,
)

FILE = 50 * ENTRY_BYTES


def new_queue(path: Path) -> ConsumeQueue:
    return ConsumeQueue(OpenFiles(OsDisk(path)), ("T", 0), QueueLayout("consumequeue", FILE))


Queue = TypeVar("Queue", ConsumeQueue, ConsumeQueueExt)


def recovered(before: Queue, again: Queue) -> Queue:
    """A queue's files closed, and opened and recovered by another object."""
    before.files.close()
    again.files.load()
    again.recover()
    return again


def rows_of(entries: list[tuple[int, int, int, int]]) -> tuple[I64, I64]:
    """Row table of (queue offset, physical offset, size, tags code)."""
    rows = np.zeros((scan.COLUMNS, len(entries)), np.int64)
    for k, (queue_offset, phy, size, tags) in enumerate(entries):
        rows[scan.QUEUE_OFFSET, k] = queue_offset
        rows[scan.PHY, k] = phy
        rows[scan.SIZE, k] = size
        rows[scan.TAGS_CODE, k] = tags
    return rows, np.arange(len(entries), dtype=np.int64)


def put(queue: ConsumeQueue, entries: list[tuple[int, int, int, int]], missing: int = 0) -> object:
    rows, order = rows_of(entries)
    return queue.put(rows, order, missing)


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    """An empty queue."""
    return new_queue(tmp_path)


def test_an_entry_is_offset_size_and_tags_code_in_20_bytes(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    put(queue, [(0, 0, 0x9C, 2598919)])
    data = (tmp_path / "consumequeue/T/0" / f"{0:020d}").read_bytes()[:20]
    assert data.hex() == "00000000000000000000009c000000000027a807"


def test_a_queue_that_starts_late_is_blank_before_its_first_entry(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    put(queue, [(73, 1000, 100, 5)])
    assert (queue.min_offset, queue.max_offset) == (73, 74)
    file = tmp_path / "consumequeue/T/0" / f"{50 * 20:020d}"
    blank = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    assert file.read_bytes()[: 23 * 20] == blank * 23
    assert queue.entries(73, 5).T.tolist() == [[1000, 100, 5]]


def test_entries_put_again_change_nothing(queue: ConsumeQueue) -> None:
    entries = [(n, n * 100, 100, n) for n in range(120)]
    put(queue, entries)
    before = [mapped.memory.tobytes() for mapped in queue.files.files]
    put(queue, entries[30:])
    assert [mapped.memory.tobytes() for mapped in queue.files.files] == before
    assert queue.max_offset == 120


def test_an_entry_past_the_end_is_refused_and_the_next_right_one_taken(queue: ConsumeQueue) -> None:
    outcome = put(queue, [(0, 0, 100, 0), (64, 100, 100, 0), (2, 200, 100, 0), (3, 300, 100, 0)])
    assert outcome.refused == [1]  # type: ignore[attr-defined]
    assert queue.entries(0, 9).T.tolist() == [
        [0, 100, 0],
        [0, 0x7FFFFFFF, 0],
        [200, 100, 0],
        [300, 100, 0],
    ]


def test_a_gap_of_lost_records_is_filled_with_blanks(queue: ConsumeQueue) -> None:
    put(queue, [(0, 0, 100, 0)])
    put(queue, [(60, 9000, 100, 0)], missing=70)
    assert queue.max_offset == 61
    assert queue.entries(59, 2).T.tolist() == [[0, 0x7FFFFFFF, 0], [9000, 100, 0]]


def test_min_offset_follows_what_the_log_still_holds(queue: ConsumeQueue) -> None:
    put(queue, [(n, n * 100, 100, 0) for n in range(120)])
    queue.correct_min_offset(2550)
    assert queue.min_offset == 26
    queue.correct_min_offset(9900)
    assert queue.min_offset == 99
    queue.correct_min_offset(1 << 40)  # everything is gone: not a stale minimum
    assert queue.min_offset == queue.max_offset == 120


def test_files_below_the_logs_minimum_are_removed_but_never_the_last(queue: ConsumeQueue) -> None:
    put(queue, [(n, n * 100, 100, 0) for n in range(120)])
    assert queue.delete_before(5000) == 1
    assert queue.min_offset == 50
    assert queue.delete_before(1 << 40) == 1
    assert queue.max_offset == 120
    assert len(queue.files.files) == 1


@given(entries=st.integers(0, 130), at=st.integers(0, 14_000))
def test_truncate_keeps_exactly_the_entries_below(
    tmp_path_factory: pytest.TempPathFactory, entries: int, at: int
) -> None:
    queue = new_queue(tmp_path_factory.mktemp("queue"))
    put(queue, [(n, n * 100, 100, n) for n in range(entries)])
    queue.truncate(at)
    kept = min(entries, -(-at // 100))
    assert queue.max_offset == kept
    assert queue.entries(0, 1000).T.tolist() == [[n * 100, 100, n] for n in range(kept)]
    assert queue.max_physical_offset == (kept * 100 if kept else -1)
    put(queue, [(n, n * 100, 100, n) for n in range(kept, entries)])
    assert queue.max_offset == entries


@pytest.mark.parametrize("at", [0, 1, 2500, 4999, 5000])
@pytest.mark.parametrize("blanks", [0, 1, 60])
def test_a_cut_reaches_past_newest_files_that_name_no_record(
    queue: ConsumeQueue, at: int, blanks: int
) -> None:
    """blanks: 0 for an empty file, whose entries were never written.

    Entries of records that are gone would be taken for those of the records in their place.
    """
    full = [(n, n * 100, 100, n) for n in range(50)]
    put(queue, full)
    if blanks:
        queue.end_at_least(50 + blanks)
    else:
        queue.files.roll()
    assert len(queue.files.files) >= 2
    queue.truncate(at)
    kept = -(-at // 100)
    assert queue.max_offset == (50 + blanks if kept == 50 else kept)
    assert queue.max_physical_offset == (kept * 100 if kept else -1)
    put(queue, [(n, n * 100 + 7, 90, n) for n in range(kept, 50)])
    assert queue.entries(kept, 50)[0].tolist()[: 50 - kept] == [
        n * 100 + 7 for n in range(kept, 50)
    ]


@pytest.mark.parametrize("written", [0, 1, 49, 50, 51, 100, 101, 230])
def test_recover_finds_how_far_the_files_are_written(tmp_path: Path, written: int) -> None:
    queue = new_queue(tmp_path)
    put(queue, [(n, n * 100, 100, n) for n in range(written)])
    if not written:
        queue.files.roll()
    again = recovered(queue, new_queue(tmp_path))
    assert (again.min_offset, again.max_offset) == (0, written)
    assert again.max_physical_offset == (written * 100 if written else -1)


def test_a_queue_of_blanks_only_survives_recovery(queue: ConsumeQueue, tmp_path: Path) -> None:
    put(queue, [(30, 100, 100, 0)])
    queue.truncate(0)
    again = recovered(queue, new_queue(tmp_path))
    again.correct_min_offset(0)
    assert again.max_physical_offset == -1
    assert again.min_offset == again.max_offset


def test_offsets_are_found_by_time(store: MessageStore) -> None:
    for n in range(120):
        put_ok(store, [b"%d" % n], now=NOW + 10 * n)
    assert store.offset_at_time("T", 0, 0) == 0
    assert store.offset_at_time("T", 0, NOW + 500) == 50
    assert store.offset_at_time("T", 0, NOW + 501) == 51
    assert store.offset_at_time("T", 0, NOW + 10**6) == 120
    assert store.offset_at_time("T", 9, NOW) == 0


def test_tags_code_is_the_hash_of_tags_and_delivery_time_in_the_delay_topic(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_ok(store, [b"x"], properties=[b"TAGS\x01TagA"])
    put_ok(store, [b"x"], properties=[b"KEYS\x01k"])
    put_ok(
        store, [b"x"], "SCHEDULE_TOPIC_XXXX", 2,
        properties=[b"REAL_TOPIC\x01T\x02DELAY\x013\x02TAGS\x01TagA"],
    )  # fmt: skip
    put_ok(store, [b"x"], "SCHEDULE_TOPIC_XXXX", 17, properties=[b"DELAY\x0199"])
    assert [entry[2] for entry in queue_entries(store)] == [2598919, 0]
    assert queue_entries(store, "SCHEDULE_TOPIC_XXXX", 2)[0][2] == NOW + 10_000
    assert queue_entries(store, "SCHEDULE_TOPIC_XXXX", 17)[0][2] == NOW + 7_200_000


# -- ext ---------------------------------------------------------------------------------------


def new_ext(path: Path, file_bytes: int) -> ConsumeQueueExt:
    layout = QueueLayout("consumequeue_ext", file_bytes)
    return ConsumeQueueExt(OpenFiles(OsDisk(path)), ("T", 0), layout)


def test_ext_units_are_found_by_address_across_files(tmp_path: Path) -> None:
    ext = new_ext(tmp_path, 256)
    units = [CqExtUnit(n, NOW + n, b"\xff" * (n % 5)) for n in range(100)]
    addresses = [ext.put(unit) for unit in units]
    assert all(is_ext_address(address) for address in addresses)
    assert addresses[0] == LONG_MIN
    assert [ext.get(address) for address in addresses] == units
    assert ext.get(5) is None
    assert ext.get(LONG_MIN + 10**9) is None
    assert not is_ext_address(-(1 << 31))
    again = recovered(ext, new_ext(tmp_path, 256))
    assert [again.get(address) for address in addresses] == units
    again.delete_before(addresses[20])
    assert again.get(addresses[0]) is None
    assert again.get(addresses[30]) == units[30]


def test_an_oversized_unit_has_no_address(tmp_path: Path) -> None:
    ext = new_ext(tmp_path, 48 << 20)
    assert ext.put(CqExtUnit(1, 2, bytes(40_000))) == 0


def test_a_store_with_ext_units_filters_by_tag_and_survives_a_crash(tmp_path: Path) -> None:
    chosen = options(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=512)
    store = open_store(tmp_path, chosen)
    for n in range(60):
        tag = b"TAGS\x01" + (b"TagA" if n % 3 else b"TagB")
        put_ok(store, [b"%d" % n], properties=[tag])
    assert all(is_ext_address(entry[2]) for entry in queue_entries(store))
    crash(store)
    store = open_store(tmp_path, chosen)
    assert len(read_all(store)) == 60
    wanted = np.array([2598920], np.int64)
    found, offset = [], 0
    while offset < 60:
        result = store.get("T", 0, QueueOffset(offset), Wanted(tags_codes=wanted))
        found += result.table[0].tolist()
        offset = result.next_offset
    assert found == list(range(0, 60, 3))


def test_a_light_queue_without_entries_begins_again_anywhere(tmp_path: Path) -> None:
    """A power cut lost its entries; the next one may be from another master's log, and lower."""

    def opened() -> ConsumeQueue:
        layout = QueueLayout("lightqueue", FILE, begins_again=True)
        return ConsumeQueue(OpenFiles(OsDisk(tmp_path)), ("L", 0), layout)

    before = opened()
    put(before, [(7867, 1000, 100, 5)])
    (file,) = before.files.files
    file.memory[:] = 0
    queue = recovered(before, opened())
    queue.truncate(0)
    put(queue, [(2724, 500, 100, 5)])
    assert (queue.min_offset, queue.max_offset) == (2724, 2725)
