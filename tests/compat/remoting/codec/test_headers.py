"""Fields of requests: all of them, one missing, one wrong, one more than is known."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.codec.fields import Field, fields_of, read_header, write_header
from duolog_server.compat.remoting.codec.headers import (
    SHORT_NAMES,
    PullResponse,
    SendRequest,
    read_send,
)
from tests.compat.remoting.requests import REQUESTS

KINDS = sorted({*REQUESTS.values(), PullResponse}, key=str)
FIELDS = [(kind, field) for kind in KINDS for field in fields_of(kind)]


def right(field: Field) -> str:
    return {0: "text", 1: "true", 32: "7", 64: "1099511627776"}[field.bits]


def whole(kind: type) -> dict[str, str]:
    return {field.name: right(field) for field in fields_of(kind)}


@st.composite
def headers(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(KINDS))
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.bits == 0:
            values[field.attribute] = draw(st.text(min_size=1, max_size=20))
        elif field.bits == 1:
            values[field.attribute] = draw(st.booleans())
        else:
            limit = 1 << field.bits - 1
            values[field.attribute] = draw(st.integers(-limit, limit - 1))
    return kind(**values)


@given(headers())
def test_a_header_is_read_as_it_was_written(header: Any) -> None:
    assert read_header(type(header), write_header(header)) == header


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_may_be_missing_only_where_it_has_a_default(kind: type, field: Field) -> None:
    texts = whole(kind)
    del texts[field.name]
    if field.required:
        with pytest.raises(BadRequest, match=f"field {field.name} is missing"):
            read_header(kind, texts)
    else:
        read_header(kind, texts)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
@pytest.mark.parametrize(
    "text", ["x", "1.5", " 1", "0x1", "١", str(1 << 63), "9" * 20, "9" * 5000, "--1"]
)
def test_a_number_that_is_none_or_too_large_is_refused(kind: type, field: Field, text: str) -> None:
    texts = {**whole(kind), field.name: text}
    if field.bits < 2:
        read_header(kind, texts)
        return
    with pytest.raises(BadRequest, match=field.name):
        read_header(kind, texts)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
@given(text=st.text(max_size=30))
def test_any_text_in_a_field_is_read_or_refused(kind: type, field: Field, text: str) -> None:
    try:
        read_header(kind, {**whole(kind), field.name: text})
    except BadRequest:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_fields_are_left_out(kind: type) -> None:
    texts = whole(kind)
    assert read_header(kind, {**texts, "bname": "broker-a", "zz": "1"}) == read_header(kind, texts)


def test_every_served_code_has_a_header() -> None:
    sent_alone = {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    }
    assert set(REQUESTS) == set(RequestCode) - sent_alone


def test_the_short_names_are_those_of_the_long_form() -> None:
    long = whole(SendRequest)
    letters = {name: letter for letter, name in SHORT_NAMES.items()}
    short = {letters[name]: text for name, text in long.items()}
    code = RequestCode.SEND_MESSAGE_V2
    assert read_send(code, short) == read_send(RequestCode.SEND_MESSAGE, long)
    assert set(SHORT_NAMES.values()) == {*long, "brokerName"}


def test_names_on_the_wire_are_those_of_rocketmq() -> None:
    names = {field.name for field in fields_of(REQUESTS[RequestCode.PULL_MESSAGE])}
    assert {"consumerGroup", "queueOffset", "maxMsgNums", "suspendTimeoutMillis"} <= names
    unregister = {field.name for field in fields_of(REQUESTS[RequestCode.UNREGISTER_CLIENT])}
    assert unregister == {"clientID", "producerGroup", "consumerGroup"}
