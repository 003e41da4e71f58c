"""Signatures of requests, against values that were computed apart from the code."""

from dataclasses import replace

import pytest

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.signatures import (
    ACCESS_KEY,
    SIGNATURE,
    access_key_of,
    is_signed,
    signed,
    signed_content,
)

# printf 'alicepTOPIC4body' | openssl dgst -sha1 -hmac secret -binary | base64
WANTED = "QL5OREqIPC8NI9poP0moe7SMfCQ="
SEND = Command(
    RequestCode.SEND_MESSAGE_V2,
    opaque=7,
    fields={"d": "4", "b": "TOPIC", "a": "p", ACCESS_KEY: "alice"},
    body=b"body",
)


def test_it_covers_the_values_in_the_order_of_the_names_and_the_body() -> None:
    assert signed_content(SEND) == b"alicepTOPIC4body"
    made = signed(replace(SEND, fields={"d": "4", "b": "TOPIC", "a": "p"}), "alice", "secret")
    assert made.fields == {**SEND.fields, SIGNATURE: WANTED}
    assert (access_key_of(made), made.body, made.opaque) == ("alice", b"body", 7)
    assert signed_content(made) == signed_content(SEND), "the signature is not part of it"


@pytest.mark.parametrize("version", [398, 399, 400, 401, 453])
def test_older_clients_do_not_sign_the_flag_of_a_query(version: int) -> None:
    fields = {"topic": "T", "_UNIQUE_KEY_QUERY": "true", ACCESS_KEY: "alice"}
    query = Command(RequestCode.QUERY_MESSAGE, fields=fields, version=version)
    assert signed_content(query) == (b"aliceT" if version <= 399 else b"alicetrueT")


def test_a_token_and_whatever_else_is_there_is_signed() -> None:
    fields = {ACCESS_KEY: "alice", "SecurityToken": "token", "é": "ü", "zone": ""}
    assert signed_content(Command(34, fields=fields, body=b"{}")) == "alicetokenü{}".encode()
    assert signed_content(Command(34, body=b"\xff")) == b"\xff"


@pytest.mark.parametrize(
    "other",
    [
        {"a": "q"},
        {"more": "x"},
        {ACCESS_KEY: "bob"},
        {SIGNATURE: WANTED.lower()},
        {SIGNATURE: WANTED + "="},
        {SIGNATURE: WANTED[:-1]},
        {SIGNATURE: ""},
        {SIGNATURE: "é" * 1000},
        {SIGNATURE: "x" * 100_000},
    ],
)
def test_a_request_that_was_changed_is_not_signed(other: dict[str, str]) -> None:
    made = signed(SEND, "alice", "secret")
    assert is_signed(made, b"secret")
    assert not is_signed(made, b"Secret")
    assert not is_signed(made, b"")
    assert not is_signed(replace(made, body=b"Body"), b"secret")
    assert not is_signed(replace(made, fields={**made.fields, **other}), b"secret")
    without = {name: text for name, text in made.fields.items() if name != SIGNATURE}
    assert not is_signed(replace(made, fields=without), b"secret")
