"""Bodies of messages, as a page shows them."""

import pytest

from duolog_server.ops.console.masking.seen import BODY_BYTES, JSON_CHARACTERS, body_of


def test_json_has_a_value_a_line_and_does_not_fill_the_page() -> None:
    assert body_of(b'{"a": [1]}').json == '{\n  "a": [\n    1\n  ]\n}'
    text = rb'{"a": "\ud800"}'
    body = body_of(text)
    assert (body.json, body.text) == ("", text.decode())
    depth = 200
    text = b"[" * depth + b",".join([b"0"] * 25_000) + b"]" * depth
    assert len(text) < BODY_BYTES
    assert len(body_of(text).json) <= JSON_CHARACTERS
    assert body_of(b"[" * depth + b"0" + b"]" * depth).json


@pytest.mark.parametrize("text", [b'{"a": ', b"[" * 30_000, b"[" + b"9" * 5000 + b"]"])
def test_what_is_no_json_is_text(text: bytes) -> None:
    body = body_of(text)
    assert (body.json, body.text) == ("", text.decode())
