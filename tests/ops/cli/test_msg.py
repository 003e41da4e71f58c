"""`duolog msg send --lines-json`: lines that are messages, and lines that are none."""

import json
from typing import Any

import pytest
import typer

from duolog_server.ops.cli.msg import _message

COMMON: dict[str, Any] = {
    "key": None, "keys": [], "tags": "all", "queue_id": 3, "properties": {}, "delay": None,
}  # fmt: skip


def sent(**fields: object) -> tuple[bytes, dict[str, Any]]:
    return _message(json.dumps(fields), COMMON, True)


def test_what_a_line_names_counts_and_what_it_does_not_is_as_the_options_say() -> None:
    assert sent(body="x") == (b"x", COMMON)
    named = {"key": "k", "keys": "a b", "tags": "t", "queue_id": 0, "delay": 1.5}
    want = {**COMMON, **named, "keys": ["a", "b"], "properties": {"p": "q"}}
    assert sent(body_base64="/w==", properties={"p": "q"}, **named) == (b"\xff", want)


def test_a_line_that_was_read_can_be_sent_again() -> None:
    """As `msg get --json` prints it."""
    read = {
        "topic": "T", "queue_id": 1, "queue_offset": 5, "physical_offset": 7, "store_time": 1,
        "born_time": 1, "unique_key": "00", "tags": "", "keys": "", "properties": {}, "body": "x",
    }  # fmt: skip
    assert sent(**read) == (b"x", {**COMMON, "queue_id": 1})
    assert sent(**{**read, "body": ""}) == (b"", {**COMMON, "queue_id": 1})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "Expecting value"),
        ("[1]", "line '[1]' is not a message: it is not a JSON object"),
        ('{"key": "k"}', 'it must have one of "body" and "body_base64"'),
        ('{"body": "x", "body_base64": "eA=="}', 'it must have one of "body"'),
        ('{"body": {"a": null}}', '"body" must be a string; an object is sent as the text'),
        ('{"body": 5}', '"body" must be a string'),
        ('{"body_base64": "no base64!"}', "is not a message"),
        ('{"body_base64": 5}', '"body_base64" must be a string'),
        ('{"body": "x", "tag": "t"}', 'unknown field "tag"; known are body, body_base64, key'),
        ('{"body": "x", "queue_id": "a"}', '"queue_id" must be an integer'),
        ('{"body": "x", "queue_id": true}', '"queue_id" must be an integer'),
        ('{"body": "x", "queue_id": -1}', '"queue_id" must be 0 to'),
        ('{"body": "x", "delay": "1"}', '"delay" must be a number of seconds'),
        ('{"body": "x", "properties": 5}', '"properties" must be an object'),
        ('{"body": "x", "properties": {"a": 5}}', "must be strings"),
        ('{"body": "x", "keys": [1]}', "must be strings"),
    ],
)
def test_a_line_that_is_no_message_is_refused_with_the_reason(
    line: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        _message(line, COMMON, True)
    assert ended.value.exit_code == 1
    assert reason in capsys.readouterr().err
