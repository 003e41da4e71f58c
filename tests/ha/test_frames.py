from dataclasses import replace

import crcmod.predefined
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ha import frames
from duolog_server.ha.crc32c import QUICK, SHORT_BYTES, crc32c
from duolog_server.ha.epochs import EPOCHS_MAX, Epoch, EpochEntry
from duolog_server.ha.frames import (
    Ack,
    BadFrame,
    Chunk,
    Frame,
    Heartbeat,
    Hello,
    Refusal,
    Refuse,
    Reset,
    Truncate,
    Welcome,
)

EPOCHS = (EpochEntry(Epoch(1), 0, 5), EpochEntry(Epoch(4), 900, 1 << 63))
EXAMPLES: list[Frame] = [
    Hello("c", "g", "s", 9, "s:1", Epoch(4), 0, 1000, 900, 500, 77, 1 << 30, EPOCHS),
    Welcome(Epoch(4), 1000, 950, "m", "m:1", True, False, 5000, 20_000, EPOCHS, b'{"a":1}'),
    Truncate(Epoch(4), 500),
    Reset(Epoch(4), 0),
    Refuse(Epoch(4), Refusal.LINEAGE, "no common past: é"),
    Chunk(Epoch(4), 1000, 950, np.arange(200, dtype=np.uint8)),
    Heartbeat(Epoch(4), 2000, 950, 1500),
    Ack(Epoch(4), 1500, 1000, "s", 1 << 63),
]


def same(a: Frame, b: Frame) -> bool:
    if isinstance(a, Chunk) and isinstance(b, Chunk):
        return (a.epoch, a.offset, a.confirm, a.data.tobytes(), a.whole_crc) == (
            (b.epoch, b.offset, b.confirm, b.data.tobytes(), b.whole_crc)
        )
    return a == b


@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: type(frame).__name__)
def test_frames_round_trip(frame: Frame) -> None:
    assert same(frames.decode(frames.encode(frame)), frame)


@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: type(frame).__name__)
def test_a_frame_cut_at_any_byte_is_refused(frame: Frame) -> None:
    data = frames.encode(frame)
    for size in range(len(data)):
        with pytest.raises(BadFrame):
            frames.decode(data[:size])
    with pytest.raises(BadFrame):
        frames.decode(data + b"\0")


@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: type(frame).__name__)
def test_a_flip_of_any_bit_is_detected(frame: Frame) -> None:
    data = frames.encode(frame)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            frames.decode(bytes(flipped))


def test_the_crc_of_a_large_chunk_is_that_of_its_bytes_in_one_piece() -> None:
    """Two implementations, by size: a third one checks both."""
    oracle = crcmod.predefined.mkCrcFun("crc-32c")
    assert crc32c(b"123456789") == 0xE3069283
    assert QUICK, "a server installs isal, which has it"
    rows = np.random.default_rng(7).integers(0, 256, 70_000, np.uint8)
    for size in (0, 1, SHORT_BYTES - 1, SHORT_BYTES, SHORT_BYTES + 3, len(rows) - 1):
        for data in (rows[1 : size + 1], rows[1 : size + 1].tobytes()):
            assert crc32c(data, crc32c(b"head")) == oracle(b"head" + rows[1 : size + 1].tobytes())
        frame = frames.chunk_frame(Epoch(4), 0, 0, rows[:size])
        head, crc, body = frame[:36], frame[36:40], frame[40:]
        assert int.from_bytes(crc, "big") == oracle(head + body)


def test_what_release_0_1_0_sends_and_reads_are_the_bytes_it_knows() -> None:
    """Without the flag a chunk's CRC ends with its header, and no frame has a flag."""
    data = np.arange(200, dtype=np.uint8)
    chunk = frames.chunk_frame(Epoch(4), 1000, 950, data, whole_crc=False)
    assert chunk[6:8] == b"\0\0"
    assert int.from_bytes(chunk[36:40], "big") == crc32c(chunk[:36])
    found = frames.decode(chunk)
    assert isinstance(found, Chunk)
    assert not found.whole_crc
    for frame in EXAMPLES[:2]:
        assert isinstance(frame, Hello | Welcome)
        asks = frames.encode(replace(frame, whole_crc=True))
        assert asks[6:8] == b"\0\1"
        assert frames.encode(frame)[40:] == asks[40:], "the flag is all that differs"
        assert frames.decode(asks) == replace(frame, whole_crc=True)


def sealed(kind: int, body: bytes, offset: int = 0, confirm: int = 0, epoch: int = 1) -> bytes:
    """A frame with a right CRC around any body."""
    head = frames._HEAD.pack(
        frames.MAGIC, frames.VERSION, kind, 0, epoch, offset, confirm, len(body)
    )
    covered = head if kind == frames.Kind.CHUNK else head + body
    return head + frames._CRC.pack(crc32c(covered)) + body


@given(
    st.integers(0, 12),
    st.binary(max_size=200),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
def test_any_body_behind_a_right_crc_is_a_frame_or_refused(
    kind: int, body: bytes, offset: int, confirm: int
) -> None:
    try:
        frames.decode(sealed(kind, body, offset, confirm))
    except BadFrame:
        pass


@given(st.integers(0, 7), st.data())
def test_a_damaged_body_behind_a_right_crc_is_a_frame_or_refused(
    which: int, data: st.DataObject
) -> None:
    whole = frames.encode(EXAMPLES[which])
    body = bytearray(whole[frames.HEADER_BYTES :])
    if body:
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
        del body[data.draw(st.integers(0, len(body))) :]
    try:
        frames.decode(sealed(whole[5], bytes(body), 100, 50))
    except BadFrame:
        pass


@pytest.mark.parametrize(
    ("frame", "kind", "numbers"),
    [
        (EXAMPLES[0], 1, (4, 1000, 900, 102)),
        (EXAMPLES[1], 2, (4, 1000, 950, 81)),
        (EXAMPLES[2], 3, (4, 500, 0, 0)),
        (EXAMPLES[3], 4, (4, 0, 0, 0)),
        (EXAMPLES[4], 5, (4, Refusal.LINEAGE, 0, 20)),
        (EXAMPLES[5], 6, (4, 1000, 950, 200)),
        (EXAMPLES[6], 7, (4, 2000, 950, 8)),
        (EXAMPLES[7], 8, (4, 1500, 1000, 11)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_frame_begins_with_these_bytes(
    frame: Frame, kind: int, numbers: tuple[int, int, int, int]
) -> None:
    """The bytes of frames are fixed: changing one of them makes another version of the protocol."""
    epoch, offset, confirm, size = numbers
    head = b"DLHA" + bytes((1, kind, 0, isinstance(frame, Chunk)))
    head += b"".join(number.to_bytes(8, "big") for number in (epoch, offset, confirm))
    assert frames.encode(frame)[:36] == head + size.to_bytes(4, "big")


@pytest.mark.parametrize("at", [0, 4], ids=["magic", "version"])
def test_another_protocol_or_version_is_refused_though_its_crc_is_right(at: int) -> None:
    data = bytearray(frames.encode(Reset(Epoch(4), 0)))
    data[at] += 1
    data[frames._HEAD.size : frames.HEADER_BYTES] = frames._CRC.pack(
        crc32c(bytes(data[: frames._HEAD.size]))
    )
    with pytest.raises(BadFrame, match="unknown protocol or version"):
        frames.decode(bytes(data))


def hello(low: int, tail: int, end: int, durable: int, *epochs: EpochEntry) -> bytes:
    return frames.encode(
        Hello("c", "g", "s", 9, "s:1", Epoch(4), low, end, durable, tail, 77, 1 << 30, epochs)
    )


@pytest.mark.parametrize(
    "offsets", [(0, 0, 0, 0), (5, 5, 5, 5), (0, 500, 1000, 1000), (0, 0, 1000, 0)]
)
def test_a_hello_may_go_to_the_edges(offsets: tuple[int, int, int, int]) -> None:
    found = frames.decode(hello(*offsets))
    assert isinstance(found, Hello)
    assert (found.min_offset, found.tail_start, found.end, found.durable) == offsets


@pytest.mark.parametrize(
    ("offsets", "epochs"),
    [
        ((-1, 0, 10, 10), ()),
        ((6, 5, 10, 10), ()),
        ((0, 11, 10, 10), ()),
        ((0, 5, 10, 11), ()),
        ((0, 5, 10, 10), (EpochEntry(Epoch(1), 10, 1),)),
        ((0, 5, 10, 10), (EpochEntry(Epoch(0), 0, 1),)),
        ((0, 5, 10, 10), (EpochEntry(Epoch(1), -1, 1),)),
        ((0, 5, 10, 10), (EpochEntry(Epoch(2), 0, 1), EpochEntry(Epoch(2), 5, 1))),
        ((0, 5, 10, 10), (EpochEntry(Epoch(1), 5, 1), EpochEntry(Epoch(2), 5, 1))),
    ],
)
def test_a_hello_that_contradicts_itself_is_refused(
    offsets: tuple[int, int, int, int], epochs: tuple[EpochEntry, ...]
) -> None:
    with pytest.raises(BadFrame):
        frames.decode(hello(*offsets, *epochs))


def test_the_length_of_a_text_is_limited() -> None:
    most = Refuse(Epoch(4), Refusal.LINEAGE, "x")
    data = frames.encode(most)[frames.HEADER_BYTES :]
    assert data == b"\0\x01x"
    for size, fits in ((frames.TEXT_BYTES_MAX, True), (frames.TEXT_BYTES_MAX + 1, False)):
        body = size.to_bytes(2, "big") + b"x" * size
        frame = sealed(frames.Kind.REFUSE, body, Refusal.LINEAGE)
        if fits:
            assert frames.decode(frame) == Refuse(Epoch(1), Refusal.LINEAGE, "x" * size)
        else:
            with pytest.raises(BadFrame, match=f"a text of {size} bytes"):
                frames.decode(frame)


def test_the_length_of_a_body_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BODY_BYTES_MAX", 300)
    for size in (300, 301):
        chunk = Chunk(Epoch(4), 1000, 950, np.zeros(size, np.uint8))
        if size == 300:
            assert same(frames.decode(frames.encode(chunk)), chunk)
        else:
            with pytest.raises(BadFrame, match="size does not match"):
                frames.decode(frames.encode(chunk))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (sealed(frames.Kind.TRUNCATE, b"", offset=-1), "a negative offset"),
        (sealed(frames.Kind.TRUNCATE, b"", confirm=-1), "a negative offset"),
        (sealed(frames.Kind.TRUNCATE, b"x"), "bytes after its end"),
        (sealed(frames.Kind.HEARTBEAT, b"x" * 7), "body is cut short"),
        (sealed(frames.Kind.REFUSE, b"\0\1\xff", Refusal.LINEAGE), "a text is not valid UTF-8"),
        (sealed(frames.Kind.REFUSE, b"\0\1x", 99), "refusal 99"),
        (sealed(9, b""), "kind 9"),
        (
            sealed(frames.Kind.WELCOME, bytes(14) + (EPOCHS_MAX + 1).to_bytes(4, "big")),
            f"{EPOCHS_MAX + 1} epochs",
        ),
        (
            sealed(frames.Kind.WELCOME, bytes(14) + EPOCHS_MAX.to_bytes(4, "big")),
            "body is cut short",
        ),
    ],
)
def test_a_frame_that_is_refused_says_why(frame: bytes, words: str) -> None:
    with pytest.raises(BadFrame, match=words):
        frames.decode(frame)


def test_an_empty_log_may_have_an_epoch_that_begins_it_and_no_later_one() -> None:
    first = frames.decode(hello(0, 0, 0, 0, EpochEntry(Epoch(1), 0, 1)))
    assert isinstance(first, Hello)
    assert first.epochs == (EpochEntry(Epoch(1), 0, 1),)
    with pytest.raises(BadFrame, match="at or after the log's end"):
        frames.decode(hello(0, 0, 0, 0, EpochEntry(Epoch(1), 1, 1)))


def test_a_reason_is_cut_at_a_thousand_characters() -> None:
    found = frames.decode(frames.encode(Refuse(Epoch(4), Refusal.LINEAGE, "x" * 1500)))
    assert found == Refuse(Epoch(4), Refusal.LINEAGE, "x" * 1000)
