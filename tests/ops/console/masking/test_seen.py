"""What a viewer sees of a message, with and without masks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from duolog import BadRequest, FoundMessage

from duolog_server.ops.console.masking.masks import MASK, Masks
from duolog_server.ops.console.masking.seen import BODY_BYTES, BY_POLICY, NOT_UNDERSTOOD, Seeing
from duolog_server.ops.inspection.messages.protobodies import ProtoTypes
from duolog_server.ops.inspection.searching.terms import Needle
from tests.protobufs import ORDER, file_of, order

PLAIN = FoundMessage("T", 0, 0, 0, 0, 0, 0, 0, 0, "", "", b"", {})
SECRET = "4111-secret"


def message(body: bytes, topic: str = "T", **properties: str) -> FoundMessage:
    return replace(PLAIN, topic=topic, body=body, properties=properties)


def seeing(*masks: str, types: tuple[str, ...] = ()) -> Seeing:
    return Seeing(ProtoTypes.of(types), Masks.of(masks))


def test_all_is_shown_without_rules_and_a_hidden_body_in_no_form() -> None:
    seen = Seeing().see(message(b'{"card": 1}', KEYS="k", a="b"))
    assert seen.whole
    assert (seen.line, seen.body.text) == ('{"card": 1}', '{"card": 1}')
    assert seen.properties == {"KEYS": "k", "a": "b"}
    body = json.dumps({"card": SECRET}).encode()
    seen = seeing("T=hidden").see(message(body, KEYS="k", TAGS="t", note=SECRET))
    assert seen.line == ""
    assert seen.body.hidden == BY_POLICY
    assert SECRET not in repr(seen.body)
    assert seen.properties == {"KEYS": "k", "TAGS": "t"}
    assert not seen.has(Needle(SECRET))
    assert not seen.has(Needle("note"))
    assert seen.has(Needle("k"))
    seen = seeing("T=card").see(message(rb'{"\u0063ard": "4111-secret", "x": "\ud800"}'))
    assert SECRET not in seen.line + repr(seen.body)
    seen.line.encode()


@pytest.mark.parametrize(
    "body",
    [
        SECRET.encode(),
        b'{"card": "4111-secret"',
        b'"4111-secret"',
        b"\xff4111-secret",
        b"[" * 3000 + b'{"card": "4111-secret"}' + b"]" * 3000,
        b'{"a": "%s", "card": "4111-secret"}' % (b"x" * BODY_BYTES),
    ],
)
def test_what_cannot_be_masked_is_hidden_as_a_whole(body: bytes) -> None:
    seen = seeing("T=card").see(message(body))
    assert (seen.line, seen.body.hidden) == ("", NOT_UNDERSTOOD)
    assert "secret" not in repr(seen.body)
    assert not seen.has(Needle("secret"))


def test_masked_fields_are_shown_as_such_in_every_form() -> None:
    body = (
        b'{"id": 7, "card": "4111-secret", "a": [{"Card": "4111-secret"}], "card": "4111-secret"}'
    )
    seen = seeing("T=card").see(message(body, card=SECRET, other="o"))
    masked = {"id": 7, "card": MASK, "a": [{"Card": MASK}]}
    assert json.loads(seen.line) == json.loads(seen.body.json) == masked
    assert SECRET not in repr(seen.body)
    assert seen.body.hexadecimal == ""
    assert seen.properties == {"card": MASK, "other": "o"}
    assert not seen.has(Needle(SECRET))
    assert seen.has(Needle('"id":7'))
    assert seen.has(Needle('"id": 7'))


@pytest.mark.parametrize("origin", ["RETRY_TOPIC", "REAL_TOPIC", "DLQ_ORIGIN_TOPIC"])
def test_a_message_that_was_moved_stays_masked(origin: str) -> None:
    seen = seeing("T=hidden").see(message(b"x", "%DLQ%g", **{origin: "T"}))
    assert seen.body.hidden
    assert seen.tells("a = 1")


@pytest.mark.parametrize("topic", ["DUOLOG_SYS_STAGED", "%RETRY%g_T", "SCHEDULE_TOPIC_XXXX"])
def test_what_nodes_keep_is_hidden_where_there_are_masks(topic: str) -> None:
    assert seeing("T=hidden").see(message(b"x", topic)).body.hidden
    assert seeing("T=hidden").see(message(b"x", topic, REAL_TOPIC="U")).body.text == "x"
    assert Seeing().see(message(b"x", topic)).body.text == "x"


def test_what_an_expression_would_tell_is_refused() -> None:
    hides = seeing("T=hidden", "U=card")
    for topic, expression in (("T", "a = 1"), ("U", "a = 1 AND CARD > '4'")):
        with pytest.raises(BadRequest):
            hides.check_sql(topic, expression)
        assert hides.see(message(b"{}", topic)).tells(expression)
    hides.check_sql("U", "a = 1")
    hides.check_sql("V", "card = 1")


@pytest.fixture
def types(tmp_path: Path) -> tuple[str, ...]:
    return (f"T={file_of(tmp_path)}:{ORDER}", "bad=/none:T")


def test_protobuf_is_shown_with_names(types: tuple[str, ...]) -> None:
    shown = seeing(types=types)
    body = order(id=7, card=SECRET).SerializeToString()
    seen = shown.see(message(body))
    assert json.loads(seen.line) == json.loads(seen.body.protobuf) == {"id": 7, "card": SECRET}
    assert (seen.body.type_name, seen.body.wrong) == (ORDER, "")
    seen = shown.see(message(b"\xffhello"))
    assert (seen.line, seen.body.protobuf) == ("\ufffdhello", "")
    assert seen.body.wrong.startswith("the body is not a valid shop.Order")
    seen = shown.see(message(b"x", "bad"))
    assert seen.line == "x"
    assert seen.body.wrong == "cannot read /none: No such file or directory."
    long = order(card="x" * BODY_BYTES).SerializeToString()
    assert "longer than" in shown.see(message(long)).body.wrong
    many = b"\x12\x00" * (BODY_BYTES // 2)
    assert "too long" in shown.see(message(many)).body.wrong
    letter = shown.see(message(body, "%DLQ%g", DLQ_ORIGIN_TOPIC="T"))
    assert letter.body.type_name == ORDER


def test_protobuf_is_masked_with_all_that_has_no_name(types: tuple[str, ...]) -> None:
    hides = seeing("T=card", types=types)
    body = order(id=7, card=SECRET, parent={"card": SECRET}).SerializeToString()
    unknown = b"\x7a\x0b" + SECRET.encode()
    seen = hides.see(message(body + unknown))
    expected = {"id": 7, "card": MASK, "parent": {"card": MASK}, "15": MASK}
    assert json.loads(seen.line) == json.loads(seen.body.protobuf) == expected
    assert SECRET not in repr(seen.body)
    assert not seen.has(Needle(SECRET))
    assert hides.see(message(b'{"card": 1}')).body.hidden, "it is no Protobuf, as it should be"
