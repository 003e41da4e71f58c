"""Bodies of requests that make or alter topics and groups: a row of settings for each."""

from collections.abc import Mapping
from typing import Any

from duolog_server.compat.remoting.codec.errors import BadRequest
from duolog_server.compat.remoting.codec.fastjson import Key, Value, loads
from duolog_server.compat.remoting.codec.heartbeats import (
    JSON_BYTES_MAX,
    read_list,
    read_name,
    read_object,
    read_text,
)

ROWS_MAX = 1000  # of one list


def read_topics(body: bytes) -> list[dict[str, Any]]:
    """The TopicConfigs of CreateTopicListRequestBody. Raises BadRequest."""
    found = read_object(read_text(body), "a list of topics")
    rows = read_list(found.get("topicConfigList"), "topicConfigList", ROWS_MAX)
    return [read_object(row, "a topic") for row in rows]


def topic_name(row: Mapping[str, Any]) -> str:
    """The name in a TopicConfig. Raises BadRequest."""
    return read_name(row.get("topicName"), "topicName")


def read_group(body: bytes) -> Mapping[Key, Value]:
    """A SubscriptionGroupConfig. Raises BadRequest."""
    return _group(_read(body))


def read_groups(body: bytes) -> list[Mapping[Key, Value]]:
    """The rows of SubscriptionGroupList. Raises BadRequest."""
    found = _read(body)
    rows = found.get("groupConfigList") if isinstance(found, dict) else None
    if not isinstance(rows, list) or len(rows) > ROWS_MAX:
        raise BadRequest(f"groupConfigList is not a list of at most {ROWS_MAX} groups")
    return [_group(row) for row in rows]


def group_name(row: Mapping[Key, Value]) -> str:
    """The name in a SubscriptionGroupConfig. Raises BadRequest."""
    return read_name(row.get("groupName"), "groupName")


def _read(body: bytes) -> Value:
    if len(body) > JSON_BYTES_MAX:
        raise BadRequest(f"a body of {len(body)} bytes is not a list of groups")
    return loads(body)


def _group(found: Value) -> Mapping[Key, Value]:
    if not isinstance(found, dict):
        raise BadRequest("the settings of a group are not a JSON object")
    return found
