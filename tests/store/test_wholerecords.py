"""Whole records out of the bytes of another log, however they are cut, and what is none."""

import numpy as np
import pytest

from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.wholerecords import WholeRecords, Wrong, claimed_size, record_bytes_max
from tests.support import SMALL, open_store, options, put_ok

SEGMENT = SMALL.mapped_file_size_commit_log
START = 3 * SEGMENT


def _nothing(rows: I64) -> None:
    """Look at no record."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> U8:
    """The bytes of a log of two segments."""
    path = tmp_path_factory.mktemp("log")
    store = open_store(path, options())
    while store.max_offset < SEGMENT + 2000:
        put_ok(store, [b"x" * (int(store.max_offset) * 37 % 900)])
    end = store.max_offset
    store.shutdown()
    files = sorted((path / "commitlog").iterdir())
    return np.frombuffer(b"".join(file.read_bytes() for file in files)[:end], np.uint8)


def _ends(log: U8) -> list[int]:
    """Where the records of the first segment end."""
    ends, at = [], 0
    while at < SEGMENT:
        at += claimed_size(log, at) or SEGMENT
        ends.append(at)
    return ends


def test_only_whole_records_count_wherever_bytes_end(log: U8) -> None:
    records, ends = WholeRecords(SMALL), _ends(log)[:3]
    for cut in range(ends[-1] + 1):
        found = records.find(0, log[:cut], _nothing)
        assert (found.size, found.wrong) == (max([0, *(end for end in ends if end <= cut)]), None)


def test_a_segment_ends_with_its_blank_and_nothing_beyond_it_counts(log: U8) -> None:
    records, ends = WholeRecords(SMALL), _ends(log)
    assert ends[-1] == SEGMENT
    for cut in (ends[-2] + 8, SEGMENT - 1):
        assert records.find(0, log[:cut], _nothing).size == ends[-2]
    for cut in (SEGMENT, SEGMENT + 50, len(log)):
        assert records.find(0, log[:cut], _nothing).size == SEGMENT


def test_each_record_is_shown_once(log: U8, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.store.wholerecords.ROWS_MAX", 2)
    shown: list[int] = []
    found = WholeRecords(SMALL).find(0, log, lambda rows: shown.extend(rows[scan.PHY]))
    assert shown == [0, *_ends(log)[:-2]]
    assert found.store_time > 0


@pytest.mark.parametrize("at", [0, 1, 5, 30, 95])
def test_what_is_damaged_is_told_with_the_place_before_it(log: U8, at: int) -> None:
    ends = _ends(log)
    damaged = log.copy()
    damaged[ends[1] + at] ^= 0x55
    found = WholeRecords(SMALL).find(0, damaged, _nothing)
    assert found.size == ends[1]
    assert found.wrong is not None


def test_records_of_another_place_are_none(log: U8) -> None:
    found = WholeRecords(SMALL).find(START, log, _nothing)
    assert found.size == 0
    assert found.wrong is not None
    assert found.wrong.reason == "names another offset"


@pytest.mark.parametrize("segment", [SEGMENT, 1 << 30])
def test_a_record_is_waited_for_as_long_as_its_size_may_be_true(segment: int) -> None:
    chosen = options(mapped_file_size_commit_log=segment)
    limit = record_bytes_max(chosen)
    largest = min(segment - 8, limit)
    for size, wrong in (
        (largest, None),
        (largest + 1, Wrong("cut short", largest + 1, largest == limit)),
    ):
        head = size.to_bytes(4, "big") + scan.MAGIC_V1.to_bytes(4, "big")
        data = np.frombuffer(head, np.uint8)
        found = WholeRecords(chosen).find(0, data, _nothing)
        assert (found.size, found.wrong) == (0, wrong)
    assert WholeRecords(chosen).find(0, data[:7], _nothing).wrong is None


@pytest.mark.parametrize("left", [-100, 100])
def test_a_blank_ends_where_its_segment_does(log: U8, left: int) -> None:
    end = _ends(log)[-2]
    wrong = log.copy()
    size = SEGMENT - end - left
    wrong[end : end + 4] = np.frombuffer(size.to_bytes(4, "big"), np.uint8)
    for cut in (end + 8, SEGMENT):
        found = WholeRecords(SMALL).find(0, wrong[:cut], _nothing)
        assert found.size == end
        assert found.wrong is not None
