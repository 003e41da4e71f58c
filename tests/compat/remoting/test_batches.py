"""Bodies of batches: the kernels agree with their plain twin, and refuse what is broken."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting import batches
from duolog_server.compat.remoting.batches import count_of, read_batch, with_property
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.store.columns import Columns
from tests import oracle
from tests.compat.remoting.requests import write_batch

UNSAID = (b"WAIT", b"RETRY_TOPIC")
NAMES = st.sampled_from(
    [b"WAIT", b"RETRY_TOPIC", b"DELAY", b"TIMER_DELAY_MS", b"K", b"WAI", b"WAITS", b""]
)
VALUES = st.sampled_from([b"", b"0", b"false", b"3", b"true", b"00", b"a\x01b"])
PAIRS = st.one_of(
    st.builds(lambda name, value: name + b"\x01" + value, NAMES, VALUES), st.just(b""), NAMES
)
TEXTS = st.one_of(st.binary(max_size=60), st.lists(PAIRS, max_size=5).map(b"\x02".join))
FLAGS = st.integers(-(1 << 31), (1 << 31) - 1)
MESSAGES = st.tuples(FLAGS, st.binary(max_size=60), TEXTS)
ONE = (0, b"one", b"K\x01v")


@given(st.lists(MESSAGES, min_size=1, max_size=5), st.sampled_from([(), UNSAID]))
def test_a_batch_is_read_as_it_was_written(
    messages: list[tuple[int, bytes, bytes]], unsaid: tuple[bytes, ...]
) -> None:
    found = read_batch(write_batch(messages), unsaid)
    texts = [oracle.said_properties(text, unsaid) for _, _, text in messages]
    columns = found.columns
    assert columns.count == len(messages)
    assert found.flags.tolist() == [flag for flag, _, _ in messages]
    assert _parts(columns.bodies.tobytes(), columns.body_offsets.tolist()) == [
        body for _, body, _ in messages
    ]
    assert _parts(columns.properties.tobytes(), columns.property_offsets.tolist()) == texts
    assert found.waiting == sum(map(oracle.is_for_later, texts))


def _parts(blob: bytes, offsets: list[int]) -> list[bytes]:
    assert offsets[-1] == len(blob)
    return [blob[low:high] for low, high in pairwise(offsets)]


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_messages_get_one_more_property(texts: list[bytes]) -> None:
    columns = with_property(Columns.of([b"b"] * len(texts), texts), b"A\x01b")
    found = _parts(columns.properties.tobytes(), columns.property_offsets.tolist())
    assert found == [b"A\x01b\x02" + text for text in texts]
    assert _parts(columns.bodies.tobytes(), columns.body_offsets.tolist()) == [b"b"] * len(texts)


def test_a_batch_cut_at_any_byte_is_refused() -> None:
    whole = write_batch([ONE, (1, b"", b"")])
    first = len(write_batch([ONE]))
    for cut in range(len(whole)):
        if cut != first:
            with pytest.raises(BadRequest):
                read_batch(whole[:cut])


@given(st.binary(max_size=120))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    try:
        count = count_of(data)
    except BadRequest:
        with pytest.raises(BadRequest):
            read_batch(data)
    else:
        assert read_batch(data).columns.count == count


@given(st.data(), st.integers(0, 255))
def test_a_batch_with_any_byte_changed_is_read_or_refused(draw: st.DataObject, value: int) -> None:
    data = bytearray(write_batch([ONE, (1, b"two", b"")]))
    data[draw.draw(st.integers(0, len(data) - 1))] = value
    try:
        found = read_batch(bytes(data))
    except BadRequest:
        return
    assert 1 <= found.columns.count <= 2
    assert len(found.columns.bodies) + len(found.columns.properties) <= len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a batch has no messages"),
        (write_batch([ONE]) + b"abc", "a batch ends within a message: 3 bytes are left"),
        (write_batch([ONE])[:-1], "a message of a batch has 28 bytes, 27 are left"),
        (write_batch([ONE]).replace(b"\0\0\0\x03one", b"\0\0\0\x09one"),
         "a message of 28 bytes in a batch has a body of 9"),
        (write_batch([ONE]).replace(b"\0\x03K", b"\0\x02K"),
         "a message of 28 bytes in a batch has 2 of properties"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_batch(data)
    assert str(refused.value) == reason


def test_a_batch_of_too_many_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_MESSAGES_MAX", 2)
    assert count_of(write_batch([ONE] * 2)) == 2
    with pytest.raises(BadRequest, match="a batch has more than 2 messages"):
        read_batch(write_batch([ONE] * 3))
