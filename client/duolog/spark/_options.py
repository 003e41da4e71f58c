"""What reads and writes are told: options, checked on the driver before anything is asked of a
node."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from duolog._errors import BadRequest

EARLIEST, LATEST = "earliest", "latest"
_BY_NUMBER = {-2: EARLIEST, -1: LATEST}  # as in Spark's Kafka source
_ANY_READ = (
    "endpoints",
    "topic",
    "topics",
    "topicPattern",
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "localReads",
    "tags",
    "timeout",
)
_BATCH_READ = (*_ANY_READ, "endingOffsets", "endingTimestamp", "tier")
_STREAM_READ = (*_ANY_READ, "maxOffsetsPerTrigger", "maxBytesPerTrigger", "group")
_STREAM_WRITE = ("endpoints", "topic", "sinkId", "timeout")
_BATCH_WRITE = (*_STREAM_WRITE, "batchId", "sinkContents", "publisher")
_SPARKS = frozenset(("checkpointlocation",))  # handed on though it is Spark's own

Where = str | int
Offsets = dict[str, dict[str, Where]]  # topic, queue ("3", or "broker-a/3"), offset or a word


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read.

    | option | means |
    |--------|-------|
    | endpoints | HOST:PORT[,HOST:PORT...] of nodes; required |
    | topic, topics, topicPattern | one topic, several with commas, or a regular expression |
    | startingOffsets | earliest, latest, or JSON: {"orders": {"0": 17, "1": -2}}; -2 is earliest, |
    | | -1 latest. A batch read begins at the earliest, a stream at the latest, if not told |
    | startingTimestamp | ms since 1970, of the time messages were stored |
    | minPartitions | long queues are split until there are about so many tasks |
    | failOnDataLoss | true (default): fail where retention or damage took wanted messages |
    | localReads | true (default): a task on a node's machine reads the node's files itself |
    | tags | only messages with one of these tags, with commas |
    | timeout | seconds that nodes may take to answer; 30 |
    | endingOffsets, endingTimestamp | of a batch read, as above; latest if not told |
    | tier | of a batch read: a folder that holds older messages as Parquet |
    | maxOffsetsPerTrigger, maxBytesPerTrigger | of a stream: most of one micro-batch |
    | group | of a stream: a consumer group whose offsets follow what was processed |

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
    timeout: float = 30.0
    max_offsets: int = 0
    max_bytes: int = 0
    group: str = ""
    tier: str = ""
    local_reads: bool = True

    @staticmethod
    def of(options: Mapping[str, str], stream: bool = False) -> "ReadOptions":
        """Read options; their names are not case-sensitive. Raises BadRequest, naming one."""
        given = _Given(options, _STREAM_READ if stream else _BATCH_READ)
        ways = [name for name in ("topic", "topics", "topicPattern") if given.text(name)]
        if len(ways) != 1:
            raise BadRequest("give one of the options 'topic', 'topics' and 'topicPattern'")
        for word in ("starting", "ending"):
            if given.has(f"{word}Offsets") and given.has(f"{word}Timestamp"):
                raise BadRequest(f"give one of '{word}Offsets' and '{word}Timestamp'")
        ending = given.offsets("endingOffsets", LATEST)
        if ending == EARLIEST:
            raise BadRequest("option 'endingOffsets' cannot be 'earliest'")
        if given.has("tier") and (given.has("startingTimestamp") or given.has("endingTimestamp")):
            raise BadRequest("option 'tier': choose by store_time instead of by timestamps")
        return ReadOptions(
            given.endpoints(),
            given.words("topics") or given.words("topic"),
            given.pattern("topicPattern"),
            given.offsets("startingOffsets", LATEST if stream else EARLIEST),
            ending,
            given.number("startingTimestamp"),
            given.number("endingTimestamp"),
            given.number("minPartitions") or 0,
            given.boolean("failOnDataLoss", True),
            given.words("tags"),
            float(given.number("timeout") or 30),
            given.number("maxOffsetsPerTrigger") or 0,
            given.number("maxBytesPerTrigger") or 0,
            given.text("group"),
            given.text("tier"),
            given.boolean("localReads", True),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write.

    | option | means |
    |--------|-------|
    | endpoints | HOST:PORT[,HOST:PORT...] of nodes; required |
    | topic | where rows go that have no column `topic` |
    | sinkId | batches are written once for each number of one of these; a stream's query id, and |
    | | one of its own for each batch write, if not told |
    | batchId | of a batch write: its number; 0 if not told |
    | sinkContents | of a batch write: what the sink sends, in your words. Its first batch settles |
    | | them, and a batch with other words is refused: two jobs cannot share a sink by mistake |
    | publisher | of a batch write: names who publishes, for `Sink.state` |
    | timeout | seconds that nodes may take to answer; 60 |
    """

    endpoints: str
    topic: str = ""
    sink: str = ""
    batch: int = 0
    timeout: float = 60.0
    contents: str = ""
    publisher: str = ""

    @staticmethod
    def of(options: Mapping[str, str], stream: bool = False) -> "WriteOptions":
        """Read options; their names are not case-sensitive. Raises BadRequest, naming one."""
        given = _Given(options, _STREAM_WRITE if stream else _BATCH_WRITE)
        for name in ("batchId", "sinkContents", "publisher"):
            if given.has(name) and not given.has("sinkId"):
                raise BadRequest(f"option {name!r} says something of a 'sinkId': give both")
        return WriteOptions(
            given.endpoints(),
            given.text("topic"),
            given.text("sinkId"),
            given.number("batchId") or 0,
            float(given.number("timeout") or 60),
            given.text("sinkContents"),
            given.text("publisher"),
        )


class _Given:
    """Options by name, whatever the case of its letters."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        """Raises BadRequest for an option that has none of these names."""
        known = {name.lower() for name in names}
        self._values = {name.lower(): value for name, value in options.items()}
        for name in options:
            if name.lower() not in known and name.lower() not in _SPARKS:
                raise BadRequest(f"option {name!r} is none of {', '.join(sorted(names))}")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str:
        return self._values.get(name.lower(), "")

    def endpoints(self) -> str:
        if not self.text("endpoints"):
            raise BadRequest("option 'endpoints' is missing: HOST:PORT[,HOST:PORT...]")
        return self.text("endpoints")

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.text(name).split(",") if word.strip())

    def pattern(self, name: str) -> str:
        try:
            re.compile(self.text(name))
        except re.error as error:
            raise BadRequest(f"option {name!r}: {error}") from None
        return self.text(name)

    def number(self, name: str) -> int | None:
        if not self.has(name):
            return None
        text = self.text(name)
        if not text.strip().isdecimal():
            raise BadRequest(f"option {name!r}: {text!r} is no number of at least 0")
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name).lower() or str(default).lower()
        if text not in ("true", "false"):
            raise BadRequest(f"option {name!r}: {text!r} is neither true nor false")
        return text == "true"

    def offsets(self, name: str, default: str) -> Where | Offsets:
        text = self.text(name) or default
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
