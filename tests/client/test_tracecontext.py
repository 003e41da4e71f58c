"""W3C trace context in properties."""

import pytest
from duolog._columns import parse_properties
from duolog._tracecontext import MARK, TraceContext, context_in, context_of
from hypothesis import given
from hypothesis import strategies as st

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_contexts = st.builds(
    TraceContext,
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.integers(0, 255),
    st.sampled_from(["", "congo=t61rcWkgMzE", "a=1,b=2"]),
)


@given(_contexts, st.sampled_from([b"", b"TAGS\x01t", b"TAGS\x01t\x02", b"xtraceparent\x01no"]))
def test_a_context_is_read_from_the_text_that_it_was_added_to(
    context: TraceContext, text: bytes
) -> None:
    whole = context.added_to(text)
    assert MARK in whole
    assert context_in(whole) == context
    assert b"\x02\x02" not in whole
    assert parse_properties(text).items() <= parse_properties(whole).items()


def test_what_does_not_fit_or_ends_alike_is_no_context_and_later_versions_are() -> None:
    assert context_in(b"my_traceparent\x01" + PARENT.encode()) is None
    text = b"k\x01" + b"v" * 31_700
    assert TraceContext(1, 2).added_to(text) == text
    text = b"traceparent\x01" + PARENT.encode() + b"\x02tracestate\x01a="
    found = context_in(text + b"b" * 510)
    assert found is not None
    assert found.state == "a=" + "b" * 510
    assert context_in(text + b"b" * 511) == context_of(PARENT)
    assert context_of("cc" + PARENT[2:] + "-more") == context_of(PARENT)


@pytest.mark.parametrize(
    "value",
    [
        "",
        PARENT[:-1],
        PARENT + "-more",
        PARENT.upper(),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        "ff" + PARENT[2:],
        PARENT.replace("-01", "-0x"),
        "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_what_is_not_valid_is_no_context(value: str) -> None:
    assert context_of(value) is None


@given(st.binary(max_size=80))
def test_any_text_can_be_searched(text: bytes) -> None:
    context_in(text)
    context_in(MARK + text)
