"""The copy of a broker's log: what is asked for, and records out of frames cut anywhere."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duolog_server.compat.hawire.frames import Frame
from duolog_server.compat.migration.copying import OVERLAP_BYTES, CannotFollow, LogCopy, OutOfOrder
from duolog_server.store.kernels import scan
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.status import BrokerRole
from tests.compat.migration.master import SEGMENT, copied, written
from tests.support import options

SLAVE = options(broker_role=BrokerRole.SLAVE)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """More than three segments."""
    made = written(tmp_path_factory.mktemp("log"), 120)
    assert len(made) > 3 * SEGMENT
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def copy(store: MessageStore) -> LogCopy:
    """A copy that has asked for the log from its beginning."""
    made = LogCopy(store)
    made.ask(0)
    return made


class opened:
    """A slave's store."""

    def __init__(self, path: Path) -> None:
        self.store = MessageStore(OsDisk(path), SLAVE)

    def __enter__(self) -> MessageStore:
        self.store.start()
        return self.store

    def __exit__(self, *error: object) -> None:
        self.store.shutdown()


def frames(log: bytes, edges: list[int]) -> list[Frame]:
    """A log from offset 1 on, cut at some offsets."""
    places = sorted({1, *(edge for edge in edges if 1 < edge < len(log)), len(log)})
    return [Frame(low, log[low:high]) for low, high in itertools.pairwise(places)]


def test_a_log_that_begins_at_0_is_asked_for_from_1(tmp_path: Path, log: bytes) -> None:
    with opened(tmp_path) as store:
        copy = LogCopy(store)
        assert copy.ask(0) == 1
        copy.take(frames(log, []))
        assert copy.end == len(log)
    assert copied(tmp_path, len(log)) == log


def test_a_frame_may_end_at_any_byte(tmp_path: Path, log: bytes) -> None:
    part = log[:900]
    for edge in range(2, len(part)):
        with opened(tmp_path / str(edge)) as store:
            copy = LogCopy(store)
            copy.ask(0)
            for frame in frames(part, [edge]):
                copy.take([frame])
            assert 0 < copy.end <= len(part), "whole records only"
            assert store.log.get_data(0)[: copy.end].tobytes() == part[: copy.end]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(2, 1 << 16), max_size=20))
def test_frames_may_be_cut_anywhere_over_segments(
    tmp_path_factory: pytest.TempPathFactory, log: bytes, edges: list[int]
) -> None:
    path = tmp_path_factory.mktemp("copy")
    with opened(path) as store:
        copy = LogCopy(store)
        copy.ask(0)
        for frame in frames(log, edges):
            copy.take([frame])
        assert copy.end == len(log)
    assert copied(path, len(log)) == log


def test_a_connection_begins_with_bytes_that_are_here(tmp_path: Path, log: bytes) -> None:
    cut = 2 * SEGMENT + 5000
    with opened(tmp_path) as store:
        copy = LogCopy(store)
        copy.ask(0)
        copy.take([Frame(1, log[1:cut])])
        end = copy.end
        assert 2 * SEGMENT < end <= cut
    with opened(tmp_path) as store:
        copy = LogCopy(store)
        asked = copy.ask(0)
        assert asked == end - OVERLAP_BYTES
        copy.take([Frame(asked, log[asked : asked + 100])])
        copy.take([Frame(asked + 100, log[asked + 100 :])])
        assert copy.end == len(log)
    assert copied(tmp_path, len(log)) == log


def test_what_was_not_whole_is_asked_for_again(copy: LogCopy, log: bytes) -> None:
    copy.take([Frame(1, log[1:50])])
    assert copy.end == 0
    assert copy.ask(0) == 1
    copy.take([Frame(1, log[1:1000])])
    assert copy.end > 0


def test_what_is_asked_for_is_repeated_until_bytes_come(store: MessageStore, log: bytes) -> None:
    copy = LogCopy(store)
    assert copy.ask(0) == copy.report == 1, "0 would be taken for a wish: the last segment alone"
    copy.take([Frame(1, log[1:9000])])
    assert copy.report == copy.end > 8000
    assert copy.ask(0) == copy.report == copy.end - OVERLAP_BYTES
    copy.take([Frame(copy.report, b"")])
    assert copy.report == copy.end


def test_a_log_may_begin_at_a_later_segment(tmp_path: Path, log: bytes) -> None:
    with opened(tmp_path) as store:
        copy = LogCopy(store)
        assert copy.ask(SEGMENT) == SEGMENT
        copy.take([Frame(SEGMENT, log[SEGMENT:])])
        assert (store.log.min_offset, copy.end) == (SEGMENT, len(log))
    with (
        opened(tmp_path / "other") as store,
        pytest.raises(CannotFollow, match="not the start of a segment"),
    ):
        LogCopy(store).ask(SEGMENT + 1)


def test_a_frame_elsewhere_ends_the_connection(copy: LogCopy, log: bytes) -> None:
    for wrong in (0, 2, 4096):
        with pytest.raises(OutOfOrder, match="expected from 1"):
            copy.take([Frame(wrong, log[wrong:5000])])
    copy.take([Frame(1, b""), Frame(1, log[1:5000])])
    with pytest.raises(OutOfOrder):
        copy.take([Frame(4000, b"")])


def test_another_log_is_never_appended(copy: LogCopy, log: bytes) -> None:
    copy.take([Frame(1, log[1:9000])])
    end = copy.end
    asked = copy.ask(0)
    other = bytearray(log)
    other[end - 10] ^= 1
    with pytest.raises(CannotFollow, match=f"at offset {end - 10}"):
        copy.take([Frame(asked, bytes(other[asked:]))])
    assert copy.end == end


@pytest.mark.parametrize("at", [5, 30, 95])
def test_a_damaged_record_is_not_appended(copy: LogCopy, log: bytes, at: int) -> None:
    copy.take([Frame(1, log[1:3000])])
    start = copy.end
    damaged = bytearray(log)
    damaged[start + at] ^= 0x55
    assert copy.ask(0) == 1
    with pytest.raises(CannotFollow, match=f"no valid record at offset {start}"):
        copy.take([Frame(1, bytes(damaged[1:9000]))])
    assert copy.end == start


def test_the_records_of_batch_consume_queues_are_refused(store: MessageStore, log: bytes) -> None:
    batches = bytearray(log)
    batches[39] |= 0x80  # the last byte of the first record's system flags
    copy = LogCopy(store)
    copy.ask(0)
    with pytest.raises(CannotFollow, match="record at offset 0 is of a batch consume queue"):
        copy.take([Frame(1, bytes(batches[1:9000]))])
    assert copy.end == 0


def test_a_record_that_no_segment_holds_is_told_before_it_is_whole(
    copy: LogCopy, store: MessageStore
) -> None:
    size = SEGMENT - 8  # as much as a segment may hold
    head = size.to_bytes(4, "big") + scan.MAGIC_V1.to_bytes(4, "big") + bytes(80)
    copy.take([Frame(1, head[1:])])
    assert copy.end == 0, "the rest is awaited"
    copy = LogCopy(store)
    copy.ask(0)
    head = (SEGMENT + 1).to_bytes(4, "big") + head[4:]
    with pytest.raises(CannotFollow, match="no valid record at offset 0"):
        copy.take([Frame(1, head[1:])])


def test_what_the_broker_has_deleted_is_not_asked_for(copy: LogCopy, log: bytes) -> None:
    """A master that is asked for it sends signs of life, and no byte."""
    copy.take([Frame(1, log[1 : 2 * SEGMENT])])
    assert copy.end == 2 * SEGMENT
    assert copy.ask(2 * SEGMENT) == 2 * SEGMENT
    assert not copy.is_compared, "nothing is left that both have: a sign of life is waited for"
    copy.take([Frame(2 * SEGMENT, b"")])
    assert copy.is_compared
    copy.take([Frame(2 * SEGMENT, log[2 * SEGMENT :])])
    assert copy.end == len(log)


def test_a_connection_has_shown_nothing_before_all_that_both_have_was_compared(
    copy: LogCopy, log: bytes
) -> None:
    copy.take([Frame(1, log[1:9000])])
    asked = copy.ask(0)
    assert not copy.is_compared
    copy.take([Frame(asked, log[asked : copy.end - 1])])
    assert not copy.is_compared
    copy.take([Frame(copy.end - 1, log[copy.end - 1 : copy.end])])
    assert copy.is_compared
