"""The JSON of bodies, in the dialect of the library that RocketMQ's Java programs use.

Two things in it are no JSON: numbers as keys are not quoted (`{0:12}`), and a map whose keys are
queues has an object for each key (`{{"brokerName":"b","queueId":0,"topic":"t"}:{…}}`). Both are
read and written here; members that are null are not written. Source: fastjson 1.2.
"""

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # of CPython: the end of a text
from typing import NamedTuple

from duolog_server.compat.remoting.codec.command import BadRequest, sound

DEPTH_MAX = 32
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("true|false|null")
_DIGITS_MAX = 400  # of a number: reading more of them takes time that grows with their square


class MessageQueue(NamedTuple):
    """A queue, as a key of a map. Its fields are in the order in which they are written."""

    broker_name: str
    queue_id: int
    topic: str


Key = str | int | MessageQueue
Value = None | bool | int | float | str | list["Value"] | dict[Key, "Value"]


def loads(body: bytes) -> Value:
    """The value in a body. Raises BadRequest."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise BadRequest("a body is not UTF-8") from None
    value, end = _value(text, _SPACE.match(text, 0).end(), 0)  # type: ignore[union-attr]
    if _after(text, end) != len(text):
        raise _bad(text, end, "the end")
    return value


def dumps(value: object) -> bytes:
    """A body with a value; dictionaries may have the keys that `loads` gives."""
    return _written(value).encode()


# -- reading ---------------------------------------------------------------------------------------


def _value(text: str, at: int, depth: int) -> tuple[Value, int]:
    first = text[at : at + 1]
    if first == '"':
        return _string(text, at)
    if first in ("{", "["):
        if depth == DEPTH_MAX:
            raise BadRequest(f"a body in JSON is deeper than {DEPTH_MAX}")
        return (_object if first == "{" else _list)(text, at + 1, depth + 1)
    number = _NUMBER.match(text, at)
    if number is not None:
        return _number(number), number.end()
    word = _WORD.match(text, at)
    if word is None:
        raise _bad(text, at, "a value")
    return _WORDS[word.group()], word.end()


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        found, end = scanstring(text, at + 1, False)
    except ValueError:
        raise _bad(text, at, "a text that ends") from None
    return sound(str(found)), end


def _number(found: "re.Match[str]") -> int | float:
    if found.end() - found.start() > _DIGITS_MAX:
        raise BadRequest("a number in a body in JSON is too long")
    return float(found.group()) if found.group(1) or found.group(2) else int(found.group())


def _list(text: str, at: int, depth: int) -> tuple[list[Value], int]:
    found: list[Value] = []
    at = _after(text, at)
    if text[at : at + 1] == "]":
        return found, at + 1
    while True:
        value, at = _value(text, at, depth)
        found.append(value)
        at = _after(text, at)
        if text[at : at + 1] == "]":
            return found, at + 1
        at = _passed(text, at, ",")


def _object(text: str, at: int, depth: int) -> tuple[dict[Key, Value], int]:
    found: dict[Key, Value] = {}
    at = _after(text, at)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        key, at = _key(text, at, depth)
        found[key], at = _value(text, _passed(text, _after(text, at), ":"), depth)
        at = _after(text, at)
        if text[at : at + 1] == "}":
            return found, at + 1
        at = _passed(text, at, ",")


def _key(text: str, at: int, depth: int) -> tuple[Key, int]:
    key, end = _value(text, at, depth)
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return key, end
    if isinstance(key, dict):
        match key.get("brokerName"), key.get("queueId"), key.get("topic"):
            case str(broker), int(number), str(topic):
                return MessageQueue(broker, number, topic), end
    raise _bad(text, at, "a key: a text, a number or a queue")


def _after(text: str, at: int) -> int:
    """The position of the next character that is not a space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _passed(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise _bad(text, at, repr(sign))
    return _after(text, at + 1)


def _bad(text: str, at: int, wanted: str) -> BadRequest:
    return BadRequest(f"a body is not JSON: {wanted} is missing at {at}: {text[at : at + 40]!r}")


# -- writing ---------------------------------------------------------------------------------------


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        members = (f"{_key_of(key)}:{_written(v)}" for key, v in value.items() if v is not None)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def _key_of(key: object) -> str:
    if isinstance(key, MessageQueue):
        members = {"brokerName": key.broker_name, "queueId": key.queue_id, "topic": key.topic}
        return json.dumps(members, separators=(",", ":"))
    return json.dumps(key)
