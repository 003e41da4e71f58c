"""RocketMQ's replication protocol: its bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.hawire.frames import (
    HEAD,
    REPORT,
    BadStream,
    Frame,
    MasterReader,
    SlaveReader,
)

FRAMES = st.lists(st.builds(Frame, st.integers(0, 1 << 40), st.binary(max_size=40)), max_size=8)


def _cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(one % (len(data) + 1) for one in at), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 1 << 16), max_size=8))
def test_frames_arrive_however_they_are_cut(frames: list[Frame], at: list[int]) -> None:
    sent = b"".join(HEAD.pack(one.offset, len(one.data)) + one.data for one in frames)
    reader = MasterReader()
    assert [one for piece in _cut(sent, at) for one in reader.feed(piece)] == frames


@given(st.lists(st.integers(0, 1 << 60), min_size=1), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_the_last_word_of_a_slave_counts(offsets: list[int], at: list[int]) -> None:
    reader = SlaveReader()
    said = [reader.feed(piece) for piece in _cut(b"".join(map(REPORT.pack, offsets)), at)]
    assert [one for one in said if one is not None][-1] == offsets[-1]


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, 1 << 30)])
def test_what_no_master_sends_is_refused(offset: int, size: int) -> None:
    with pytest.raises(BadStream):
        MasterReader().feed(HEAD.pack(offset, size))


def test_no_slave_is_before_the_beginning() -> None:
    with pytest.raises(BadStream):
        SlaveReader().feed(REPORT.pack(-1))
