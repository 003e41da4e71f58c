"""Which queues are in doubt: their files against the note of their ends, and against the log."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from duolog_server.store.consumequeue import ENTRY_BYTES
from duolog_server.store.consumequeueext import LONG_MIN, CqExtUnit
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64
from duolog_server.store.options import StoreOptions
from duolog_server.store.queuecheck import Comparison, doubtful, faults_of_units
from duolog_server.store.queueends import QueueKey
from duolog_server.store.queuenote import Noted, QueueEnd
from duolog_server.store.queues import ConsumeQueues
from sim.disk import SimDisk
from tests.support import SMALL, options

KEY = ("T", 0)
LIGHT = ("%LMQ%$T", 0)
FILE = 50 * ENTRY_BYTES
Entries = Sequence[tuple[int, ...]]
EXT = options(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=2000)


def rows_of(entries: Entries) -> I64:
    """Row table of (queue offset, record offset, size), or those and a tags code."""
    rows: I64 = np.zeros((scan.COLUMNS, len(entries)), np.int64)
    for number, (queue_offset, phy, size, *code) in enumerate(entries):
        rows[scan.QUEUE_OFFSET, number] = queue_offset
        rows[scan.PHY, number] = phy
        rows[scan.SIZE, number] = size
        rows[scan.TAGS_CODE, number] = code[0] if code else 7
    return rows


def records(first: int, end: int, gap: int = 0) -> list[tuple[int, ...]]:
    """Entries of records of 100 bytes, one after the other; gap: where the first one is later."""
    return [(n, n * 100 + gap, 100) for n in range(first, end)]


def queues_of(*parts: Entries, key: QueueKey = KEY, chosen: StoreOptions = SMALL) -> ConsumeQueues:
    """One queue, with what was put into it, part by part."""
    queues = ConsumeQueues(SimDisk(random.Random(1), lambda: 0.0), chosen)
    queue = queues.get_or_make(*key)
    for part in parts:
        rows = rows_of(part)
        outcome = queue.put(rows, np.arange(rows.shape[1], dtype=np.int64), 0)
        assert not outcome.refused
    return queues


def end_of(entries: int, newest: int | None = None, **how: Any) -> QueueEnd:
    """The note of a queue that began with its first entry."""
    told = {"first_start": 0, "first_file_phy": -1, **how}
    reached = entries * 100 if newest is None else newest
    return QueueEnd(end=entries * ENTRY_BYTES, newest=reached, **told)


def doubt(
    queues: ConsumeQueues,
    end: QueueEnd | None,
    position: int = 12_000,
    log_min: int = 0,
    key: QueueKey = KEY,
) -> str:
    """Why the queue is in doubt, empty where it is not; end: what was noted of it, if anything."""
    noted = Noted(position, 0, {key: end} if end is not None else {})
    found = doubtful(queues, noted, log_min)
    assert found.keys() <= {key}
    return found.get(key, "")


@pytest.mark.parametrize("gap", [0, 700])
def test_a_queue_that_agrees_with_the_note_is_not_in_doubt(gap: int) -> None:
    whole = records(0, 120, gap)
    noted = end_of(120, 12_000 + gap)
    assert doubt(queues_of(whole), noted, 12_000 + gap) == ""
    more = [(n, n * 100 + gap, 100) for n in range(120, 125)]
    assert doubt(queues_of(whole, more), noted, 12_000 + gap) == ""


def test_a_queue_that_ends_earlier_than_was_noted_is_in_doubt() -> None:
    assert "ends at entry 119, but had 120" in doubt(queues_of(records(0, 119)), end_of(120))


def test_a_queue_without_files_is_in_doubt_where_entries_were_noted() -> None:
    assert "120 entries are missing" in doubt(queues_of(), end_of(120))
    nothing = ConsumeQueues(SimDisk(random.Random(1), lambda: 0.0), SMALL)
    assert "120 entries are missing" in doubt(nothing, end_of(120))
    assert doubt(queues_of(), None) == ""
    assert doubt(nothing, QueueEnd(0, -1, 0, -1)) == ""


def test_a_queue_that_is_not_in_the_note_has_newer_records_only() -> None:
    assert doubt(queues_of([(0, 12_000, 100)]), None) == ""
    assert "older" in doubt(queues_of([(0, 11_999, 100)]), None)
    assert "older" in doubt(queues_of([(0, 11_000, 100), (1, 12_000, 100)]), None)


def test_the_last_entry_that_was_noted_names_the_newest_record() -> None:
    queues = queues_of(records(0, 130))
    assert "entry 119 has changed" in doubt(queues, end_of(120, 12_001))
    assert "entry 119 has changed" in doubt(queues, end_of(120, 11_900))


def test_blanks_at_the_noted_end_stand_for_lost_records_and_raise_no_doubt() -> None:
    queues = queues_of(records(0, 118))
    queues.table[KEY].end_at_least(120)
    assert doubt(queues, end_of(120, 11_800)) == ""


def test_entries_put_since_the_note_name_newer_records_in_their_order() -> None:
    begun = records(0, 120)
    older = queues_of(begun, [(120, 12_000, 100), (121, 12_100, 100)])
    assert "from 120 on name older records" in doubt(older, end_of(120), 12_001)
    twice = queues_of(begun, [(n, 12_000 + 100 * (n - 120), 100) for n in range(120, 125)])
    last = twice.table[KEY].files.files[-1]
    at = 122 * ENTRY_BYTES - last.start
    for phy, wrong in ((12_099, True), (12_199, True), (12_200, False), (12_201, True)):
        last.memory[at : at + 8] = np.frombuffer(phy.to_bytes(8, "big"), np.uint8)
        assert ("out of order" in doubt(twice, end_of(120))) == wrong
    for entry in (121, 124):  # the first ones and the last ones are looked at as well
        queues = queues_of(begun, [(n, 12_000 + 100 * (n - 120), 100) for n in range(120, 125)])
        file = queues.table[KEY].files.files[-1]
        at = entry * ENTRY_BYTES - file.start
        file.memory[at : at + 8] = np.frombuffer((12_000).to_bytes(8, "big"), np.uint8)
        assert "out of order" in doubt(queues, end_of(120))


def test_blanks_among_entries_put_since_the_note_are_skipped() -> None:
    queues = queues_of(records(0, 120))
    queues.table[KEY].end_at_least(123)
    rows = rows_of([(123, 12_300, 100)])
    queues.table[KEY].put(rows, np.arange(1, dtype=np.int64), 0)
    assert doubt(queues, end_of(120)) == ""


def test_first_files_may_be_missing_if_retention_deleted_their_records() -> None:
    queues = queues_of(records(50, 120))
    assert doubt(queues, end_of(120), log_min=5000) == ""
    assert "its first file is missing" in doubt(queues, end_of(120), log_min=4999)
    assert doubt(queues, end_of(120, first_start=FILE), log_min=0) == ""


def test_one_first_file_may_be_missing_if_retention_deleted_its_last_record() -> None:
    """The records between that entry and the next one may be of other queues."""
    one_less, two_less = queues_of(records(50, 130)), queues_of(records(100, 130))
    for phy, log_min, due in ((0, 1, True), (4900, 4901, True), (4900, 4900, False)):
        noted = end_of(120, first_file_phy=phy)
        assert (doubt(one_less, noted, log_min=log_min) == "") == due
    assert "first file is missing" in doubt(one_less, end_of(120), log_min=4901)
    noted = end_of(120, first_file_phy=4900)
    assert "first file is missing" in doubt(two_less, noted, log_min=4901)


def test_a_blank_at_the_beginning_does_not_show_which_records_are_gone() -> None:
    queues = queues_of(records(73, 120))
    assert queues.table[KEY].files.min_offset == FILE
    assert "its first file is missing" in doubt(queues, end_of(120))


@pytest.mark.parametrize("entries", [50, 40])
def test_a_queue_may_begin_past_all_that_was_noted_where_the_log_lost_that(entries: int) -> None:
    queues = queues_of([(n, n * 100 + 100, 100) for n in range(50, 60)])
    noted = end_of(entries)
    newest = entries * 100
    assert doubt(queues, noted, 5100, log_min=newest) == ""
    assert "earlier entries are missing" in doubt(queues, noted, 5100, log_min=newest - 1)
    assert "older" in doubt(queues, noted, 5101, log_min=newest)


@pytest.mark.parametrize("begin", [40, 41])
def test_a_light_queue_may_have_begun_again_since_the_note(begin: int) -> None:
    queues = queues_of([(n, n * 100 + 100, 100) for n in range(begin, 60)], key=LIGHT)
    first = begin * 100 + 100
    assert doubt(queues, end_of(40), first, key=LIGHT) == ""
    assert "older" in doubt(queues, end_of(40), first + 1, key=LIGHT)


def test_a_light_queue_that_did_not_start_again_is_checked_like_others() -> None:
    queues = queues_of(records(0, 60), key=LIGHT)
    assert doubt(queues, end_of(60), 6000, key=LIGHT) == ""
    assert "ends at entry 60, but had 61" in doubt(queues, end_of(61), 6100, key=LIGHT)


def test_queues_in_doubt_stay_in_doubt_and_trusted_ones_are_not_checked() -> None:
    queues = queues_of(records(0, 119))
    queues.trusted.add(KEY)
    assert doubt(queues, end_of(120)) == ""
    queues.doubted[KEY] = "a file is missing"
    assert doubt(queues, end_of(120)) == "a file is missing"


def with_units(lost: set[int], count: int = 3) -> ConsumeQueues:
    """A queue whose entries have ext units, but for the lost ones."""
    queues = queues_of(key=KEY, chosen=EXT)
    ext = queues.ext[KEY]
    codes = [LONG_MIN + 1500 if n in lost else ext.put(CqExtUnit(n, n)) for n in range(count)]
    rows = rows_of([(n, n * 100, 100, code) for n, code in enumerate(codes)])
    queues.table[KEY].put(rows, np.arange(count, dtype=np.int64), 0)
    return queues


@pytest.mark.parametrize(("lost", "told"), [(None, ""), (0, "entry 0"), (2, "entry 2"), (1, "")])
def test_the_first_and_the_last_entry_show_whether_ext_units_are_lost(
    lost: int | None, told: str
) -> None:
    queues = with_units({lost} if lost is not None else set())
    found = faults_of_units(queues)
    assert found.keys() == ({KEY} if told else set())
    assert told in found.get(KEY, "")
    assert told in doubt(queues, end_of(3), 300)
    assert bool(told) == bool(doubt(queues, end_of(3), 300))


def test_entries_without_units_raise_no_doubt_where_others_may_have_them() -> None:
    assert faults_of_units(queues_of(records(0, 3), chosen=EXT)) == {}
    assert faults_of_units(queues_of(chosen=EXT)) == {}
    assert doubt(queues_of(records(0, 120), chosen=EXT), end_of(120)) == ""
    missing = queues_of(chosen=EXT)
    del missing.table[KEY]
    assert faults_of_units(missing) == {}


# -- compared with the log -------------------------------------------------------------------------


def differing(queues: ConsumeQueues, *parts: Entries, key: QueueKey = KEY) -> str:
    comparison = Comparison(queues)
    for part in parts:
        comparison.compare(key, rows_of(part))
    return comparison.differing.get(key, "")


def test_entries_that_agree_with_the_log_do_not_differ() -> None:
    queues = queues_of(records(0, 120))
    assert differing(queues, records(0, 70), records(70, 120)) == ""
    assert differing(queues, records(5, 6)) == ""


@pytest.mark.parametrize(
    "rows",
    [
        [(3, 300, 100), (4, 401, 100), (5, 500, 100)],
        [(3, 300, 100), (4, 400, 101), (5, 500, 100)],
        [(3, 300, 100), (5, 500, 100)],
        [(3, 300, 100), (3, 300, 100)],
    ],
)
def test_a_queue_differs_where_one_entry_does(rows: Entries) -> None:
    assert "differ from the log" in differing(queues_of(records(0, 10)), rows)


def test_a_queue_that_ends_before_the_log_does_differs() -> None:
    queues = queues_of(records(0, 10))
    assert differing(queues, records(8, 11)) == "entries 8 to 10 differ from the log"
    nothing = ConsumeQueues(SimDisk(random.Random(1), lambda: 0.0), SMALL)
    assert differing(nothing, records(0, 2)) == "entries 0 to 1 differ from the log"
    assert differing(nothing, records(0, 2), key=LIGHT) != ""


def test_the_first_difference_is_reported() -> None:
    told = differing(queues_of(records(0, 10)), records(10, 12), records(12, 13))
    assert told == "entries 10 to 11 differ from the log"


def test_a_light_queue_that_began_again_is_compared_from_there_on() -> None:
    queues = queues_of([(n, n * 100, 100) for n in range(40, 45)], key=LIGHT)
    before = [(n, n * 100 + 7, 100) for n in range(35, 40)]
    assert differing(queues, before, key=LIGHT) == ""
    assert differing(queues, [*before, *records(40, 45)], key=LIGHT) == ""
    wrong = [(40, 4001, 100), *records(41, 45)]
    assert differing(queues, [*before, *wrong], key=LIGHT) != ""
    assert differing(queues, [(40, 4001, 100)], key=LIGHT) != ""


def test_a_queue_differs_where_the_log_has_records_from_before_its_first_file() -> None:
    assert differing(queues_of(records(50, 60)), records(45, 60)) != ""
