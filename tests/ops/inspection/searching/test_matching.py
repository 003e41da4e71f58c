"""A text in batches: what columns find is what a look at each message finds."""

import pytest
from duolog import Batch
from duolog._columns import RESERVED, crc32, pack
from duolog.wire import duolog_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.inspection.searching.terms import SEARCHED, Needle

LETTERS = "aAbB ÄäßK\u212a"


def batch_of(bodies: list[bytes], properties: list[dict[str, str]]) -> Batch:
    """A batch of messages, as a node sends one."""
    texts = ["\x02".join(f"{k}\x01{v}" for k, v in one.items()).encode() for one in properties]
    count = len(bodies)
    body, property_ = pack(bodies), pack(texts)
    return Batch(
        wire.MessageBatch(
            topic="T",
            count=count,
            bodies=body[0],
            body_offsets=body[1],
            properties=property_[0],
            property_offsets=property_[1],
            crc32=crc32(*body, *property_),
            physical_offsets=bytes(8 * count),
            store_times=bytes(8 * count),
            born_times=bytes(8 * count),
            flags=bytes(4 * count),
            sysflags=bytes(4 * count),
            reconsume_times=bytes(4 * count),
        )
    )


words = st.text(LETTERS, max_size=6)


@given(st.lists(st.tuples(words, words), min_size=1, max_size=8), words.filter(bool), st.booleans())
def test_columns_find_what_each_message_has(
    messages: list[tuple[str, str]], text: str, any_case: bool
) -> None:
    properties = [{"note": value} if value else {} for _, value in messages]
    batch = batch_of([body.encode() for body, _ in messages], properties)
    needle = Needle(text, any_case)
    expected = [
        k
        for k, (body, value) in enumerate(messages)
        if needle.within(body.encode())
        or needle.within(value.encode())
        or (value and needle.within(b"note"))
    ]
    assert needle.rows(batch) == expected
    if not any_case:
        assert expected == [
            k for k, (body, value) in enumerate(messages) if text in body or text in value
        ]


@pytest.mark.parametrize(
    ("text", "body", "any_case", "found"),
    [
        ("order", "an ORDER", True, True),
        ("order", "an ORDER", False, False),
        ("ä", "Ä", True, True),
        ("ä", "Ä", False, False),
        ("a.c", "abc", True, False),
        ("é.c", "éxc", True, False),
    ],
)
def test_case_counts_where_it_is_asked_to(
    text: str, body: str, any_case: bool, found: bool
) -> None:
    assert bool(Needle(text, any_case).rows(batch_of([body.encode()], [{}]))) is found


def test_a_text_over_two_messages_and_what_nodes_set_is_not_found() -> None:
    assert Needle("ab").rows(batch_of([b"xa", b"bx", b"", b"ab"], [{}] * 4)) == [3]
    hidden = {name: "needle" for name in RESERVED - SEARCHED}
    batch = batch_of(
        [b""] * 5,
        [hidden, {"KEYS": "a needle"}, {"TAGS": "needle"}, {"needle": "x"}, {"x": "needle"}],
    )
    assert Needle("needle").rows(batch) == [1, 2, 3, 4]
    assert Needle("TAGS").rows(batch) == []
