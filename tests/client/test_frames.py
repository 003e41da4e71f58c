"""Frames: split anywhere they are reassembled, and invalid bytes are a typed error."""

import mmap
import struct
import sys
from pathlib import Path

import duolog
import pytest
from duolog import _frames as frames
from duolog._connection import Connection
from duolog._frames import BASE_BYTES, Frame, FrameError, FrameReader, Kind
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import held_beneath

LIMIT = 4 << 20
Told = tuple[int, int, int, int, int, bytes]


def feed(reader: FrameReader, data: bytes, steps: list[int]) -> list[Told]:
    """Have bytes arrive in pieces of these sizes; the frames in them."""
    found: list[Told] = []
    at, turn = 0, 0
    while at < len(data):
        room = reader.room()
        count = min(len(room), len(data) - at, max(1, steps[turn % len(steps)]))
        room[:count] = data[at : at + count]
        at, turn = at + count, turn + 1
        reader.received(count)
        while (one := reader.next()) is not None:
            found.append((*one[:5], bytes(one.payload)))
    return found


payloads = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 3 * BASE_BYTES).map(lambda size: b"x" * size),
    st.integers(BASE_BYTES - 40, BASE_BYTES + 40).map(lambda size: b"y" * size),
    st.just(b"z" * (frames.AT_ONCE_BYTES + 70_000)),
)
numbers = st.integers(0, (1 << 32) - 1)


@given(
    st.lists(st.tuples(st.sampled_from(Kind), numbers, numbers, payloads), max_size=8),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=6),
)
def test_frames_split_anywhere_are_reassembled(
    sent: list[tuple[Kind, int, int, bytes]], steps: list[int]
) -> None:
    reader = FrameReader(LIMIT)
    data = b"".join(frames.frame(kind, call, number, body) for kind, call, number, body in sent)
    steps = [max(step, len(data) // 2000) for step in steps]
    found = feed(reader, data, steps)
    assert found == [(kind, 0, 0, call, number, body) for kind, call, number, body in sent]
    assert not reader.in_the_middle
    assert reader.whole == 0


@given(st.binary(min_size=1, max_size=300), st.integers(1, 50))
def test_garbage_is_a_frame_error_or_half_a_frame(data: bytes, step: int) -> None:
    reader = FrameReader(1000)
    try:
        for one in feed(reader, data, [step]):
            found = Frame(*one[:5], memoryview(one[5]))
            assert len(found.payload) <= 1000
            if found.number <= len(found.payload):
                assert bytes(found.head) + bytes(found.body) == found.payload
            else:
                with pytest.raises(FrameError):
                    _ = found.head
    except FrameError:
        return


def test_a_frame_over_the_limit_is_refused_by_its_header() -> None:
    reader = FrameReader(1000)
    with pytest.raises(FrameError, match="1001 bytes; the limit is 1000"):
        feed(reader, struct.pack("<IBBHII", 1001, Kind.CALL, 0, 2, 1, 0), [16])


@pytest.mark.parametrize("size", [frames.AT_ONCE_BYTES - 100, 32 << 20])
def test_a_long_frame_takes_memory_once_it_is_read_on(size: int) -> None:
    half = struct.pack("<IBBHII", size, Kind.APPEND, 0, 0, 1, 10)
    reader = FrameReader(64 << 20)
    with held_beneath(__file__) as held:
        reader.received(0)
        room = reader.room()
        room[: len(half)] = half
        reader.received(len(half))
        assert reader.next() is None
        assert reader.whole == frames.HEADER_BYTES + size
        memory = held()
    assert memory < 10_000
    assert len(reader.room()) == size


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process, as Linux tells it")
def test_a_very_long_frame_takes_no_more_memory_than_came_of_it() -> None:
    def anonymous() -> int:
        text = Path("/proc/self/status").read_text()
        return int(text.partition("RssAnon:")[2].split()[0]) << 10

    reader, piece = FrameReader(64 << 20), b"y" * (1 << 20)
    feed(reader, struct.pack("<IBBHII", 60 << 20, Kind.APPEND, 0, 0, 1, 10), [100])
    before = anonymous()
    for _ in range(8):
        feed(reader, piece, [1 << 20])
    assert anonymous() - before < 30 << 20  # other threads take some, too; the frame would be 60


def test_greetings_of_the_two_sides_are_not_the_same() -> None:
    def only(data: bytes) -> Frame:
        reader = FrameReader(frames.GREETING_BYTES)
        room = reader.room()
        room[: len(data)] = data
        reader.received(len(data))
        found = reader.next()
        assert found is not None
        return found

    key = bytes(range(16))
    assert frames.read_hello(only(frames.hello(key))) == (frames.VERSION, key)
    assert frames.read_welcome(only(frames.welcome(7, 8))) == (frames.VERSION, 7, 8)
    # An echo of what one side said is no answer of the other one.
    mirrored = frames.frame(Kind.WELCOME, payload=bytes(only(frames.hello(key)).payload))
    with pytest.raises(FrameError):
        frames.read_welcome(only(mirrored))
    mirrored = frames.frame(Kind.HELLO, payload=bytes(only(frames.welcome(7, 8)).payload) + key)
    with pytest.raises(FrameError):
        frames.read_hello(only(mirrored))
    with pytest.raises(FrameError, match="gone for good"):
        frames.read_welcome(only(frames.goaway("gone for good")))


def test_methods_have_numbers_and_transports_names(monkeypatch: pytest.MonkeyPatch) -> None:
    services = wire.DESCRIPTOR.services_by_name.values()
    methods = {f"/{one.full_name}/{method.name}" for one in services for method in one.methods}
    assert methods == set(frames.NUMBERS)
    assert len(frames.NUMBERS) == len(frames.METHODS) - 1
    assert frames.NUMBERS["/duolog.v1.Messages/Pull"] == 2  # they are for ever
    assert frames.NUMBERS["/duolog.v1.Admin/ElectUnclean"] == 32
    monkeypatch.setenv("DUOLOG_TRANSPORT", "GRPC")
    with pytest.raises(duolog.BadRequest, match="DUOLOG_TRANSPORT is 'GRPC'; use frames or grpc"):
        Connection(("127.0.0.1:1",))


@pytest.mark.parametrize("kind", [Kind.WELCOME, Kind.HELLO])
@pytest.mark.parametrize("cut", [0, 1])
def test_an_answer_to_the_greeting_has_its_kind_and_its_length(kind: Kind, cut: int) -> None:
    (found,) = feed(FrameReader(LIMIT), frames.welcome(LIMIT, 9), [100])
    payload = found[5][: len(found[5]) - cut]
    answer = Frame(kind, 0, 0, 0, 0, memoryview(payload))
    if kind is Kind.WELCOME and not cut:
        assert frames.read_welcome(answer).calls_max == 9
        return
    with pytest.raises(FrameError, match="invalid answer"):
        frames.read_welcome(answer)


@pytest.mark.skipif(sys.platform == "win32", reason="its memory is always taken at once")
def test_memory_of_a_very_long_frame_is_taken_as_it_is_filled() -> None:
    for more, kind in ((0, bytearray), (1, mmap.mmap)):
        memory = frames.frame_memory(frames.AT_ONCE_BYTES + more)
        assert (type(memory.obj), len(memory)) == (kind, frames.AT_ONCE_BYTES + more)
