"""What a read is told: options, checked on the driver before anything is asked of a node."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duolog._errors import BadRequest

EARLIEST, LATEST = "earliest", "latest"
_BY_NUMBER = {-2: EARLIEST, -1: LATEST}  # as in Spark's Kafka source
_NAMES = {
    "endpoints": "endpoints",
    "topic": "topic",
    "topics": "topics",
    "topicpattern": "topicPattern",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "startingtimestamp": "startingTimestamp",
    "endingtimestamp": "endingTimestamp",
    "minpartitions": "minPartitions",
    "failondataloss": "failOnDataLoss",
    "tags": "tags",
    "timeout": "timeout",
}

Where = str | int
Offsets = dict[str, dict[str, Where]]  # topic, queue ("3", or "broker-a/3"), offset or a word


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a batch read.

    | option | means |
    |--------|-------|
    | endpoints | HOST:PORT[,HOST:PORT...] of nodes; required |
    | topic, topics, topicPattern | one topic, several with commas, or a regular expression |
    | startingOffsets | earliest (default), latest, or JSON: {"orders": {"0": 17, "1": -2}} |
    | endingOffsets | latest (default), or JSON as above; -2 is earliest, -1 is latest |
    | startingTimestamp, endingTimestamp | ms since 1970, of the time messages were stored |
    | minPartitions | long queues are split until there are about so many tasks |
    | failOnDataLoss | true (default): fail where retention or damage took wanted messages |
    | tags | only messages with one of these tags, with commas |
    | timeout | seconds that nodes may take to answer; 30 |

    In the JSON a queue is its id, or `replica group/id` where the topic lies in several groups.
    """

    endpoints: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: Where | Offsets = EARLIEST
    ending: Where | Offsets = LATEST
    starting_ms: int | None = None
    ending_ms: int | None = None
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    tags: tuple[str, ...] = ()
    timeout: float = field(default=30.0)

    @staticmethod
    def of(options: Mapping[str, str]) -> "ReadOptions":
        """Read options; their names are not case-sensitive. Raises BadRequest, naming one."""
        given = {name.lower(): value for name, value in options.items()}
        for name in options:
            if name.lower() not in _NAMES:
                raise BadRequest(f"option {name!r} is none of {', '.join(sorted(_NAMES.values()))}")
        if not given.get("endpoints"):
            raise BadRequest("option 'endpoints' is missing: HOST:PORT[,HOST:PORT...]")
        ways = [name for name in ("topic", "topics", "topicpattern") if given.get(name)]
        if len(ways) != 1:
            raise BadRequest("give one of the options 'topic', 'topics' and 'topicPattern'")
        for word in ("starting", "ending"):
            if f"{word}offsets" in given and f"{word}timestamp" in given:
                raise BadRequest(f"give one of '{word}Offsets' and '{word}Timestamp'")
        starting = _offsets("startingOffsets", given.get("startingoffsets", EARLIEST))
        ending = _offsets("endingOffsets", given.get("endingoffsets", LATEST))
        if ending == EARLIEST:
            raise BadRequest("option 'endingOffsets' cannot be 'earliest'")
        return ReadOptions(
            given["endpoints"],
            _list(given.get("topics") or given.get("topic", "")),
            _pattern(given.get("topicpattern", "")),
            starting,
            ending,
            _number("startingTimestamp", given.get("startingtimestamp")),
            _number("endingTimestamp", given.get("endingtimestamp")),
            _number("minPartitions", given.get("minpartitions")) or 0,
            _boolean("failOnDataLoss", given.get("failondataloss", "true")),
            _list(given.get("tags", "")),
            float(_number("timeout", given.get("timeout")) or 30),
        )


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadRequest(f"option 'topicPattern': {error}") from None
    return text


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise BadRequest(f"option {name!r}: {text!r} is no number of at least 0")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadRequest(f"option {name!r}: {text!r} is neither true nor false")
    return text.lower() == "true"


def _offsets(name: str, text: str) -> Where | Offsets:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        table = json.loads(text)
        if not isinstance(table, dict) or not all(isinstance(r, dict) for r in table.values()):
            raise ValueError(text)
        return {
            str(topic): {str(queue): _place(offset) for queue, offset in row.items()}
            for topic, row in table.items()
        }
    except ValueError:
        raise BadRequest(
            f"option {name!r}: {text!r} is neither earliest, latest, nor JSON as "
            '{"topic": {"0": 17}}'
        ) from None


def _place(offset: Any) -> Where:
    if type(offset) is not int or offset < -2:
        raise ValueError(offset)
    return _BY_NUMBER.get(offset, offset)
