"""Options of reads and writes, checked on the driver before anything is asked of a
node."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from duolog._caller import NOBODY, Caller
from duolog._caller import OPTIONS as CALLER
from duolog._errors import BadRequest
from duolog._start import Start

T = TypeVar("T")
ALL_TAGS = "*"
TOLD_CHARACTERS = 200  # of a value that is wrong
NUMBER_MAX = (1 << 63) - 1  # of the wire
TRIGGER_DELAY_SECONDS = 900.0  # as in Spark's Kafka source
_BY_NUMBER = {-2: Start.EARLIEST, -1: Start.LATEST}  # as in Spark's Kafka source
_ANY_READ = (
    "endpoints",
    *CALLER,
    "topic",
    "topics",
    "topicPattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "localReads",
    "tags",
    "timeout",
)
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_BATCH_READ = (*_ANY_READ, *_ENDS, "tier")
_LEAST = ("minOffsetsPerTrigger", "maxTriggerDelay")
_STREAM_READ = (*_ANY_READ, "maxOffsetsPerTrigger", "maxBytesPerTrigger", *_LEAST, "group")
_STREAM_WRITE = ("endpoints", *CALLER, "topic", "sinkId", "timeout")
_BATCH_WRITE = (*_STREAM_WRITE, "batchId", "sinkContents", "publisher")
_ANY = (*_BATCH_READ, *_STREAM_READ, *_BATCH_WRITE)
_SPARKS = frozenset(("checkpointlocation",))  # handed on though it is Spark's own

_QUEUE = re.compile(r"(?:[^/]+/)?(?:0|[1-9][0-9]*)")

Where = Start | int
Offsets = dict[str, dict[str, Where]]  # topic, queue ("3", or "broker-a/3"), an offset or an end
Times = int | dict[str, dict[str, int]]  # ms since 1970, of all queues, or by topic and queue
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_TABLE = '{"topic": {"0": 17}}'


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read.

    | option | means |
    |--------|-------|
    | endpoints | HOST:PORT[,HOST:PORT...] of nodes; required |
    | user, password, passwordFile | who calls, with the password or a file that has it in every |
    | | process; nobody, if not told |
    | tls, tlsCa, tlsCert, tlsKey, tlsPort | connect with TLS: true, or as in `duolog.Tls` |
    | topic, topics, topicPattern | one topic, several with commas, or a regular expression |
    | startingOffsets | earliest, latest, or JSON: {"orders": {"0": 17, "1": -2}}; -2 is earliest, |
    | | -1 latest. A batch read begins at the earliest, a stream at the latest, if not told |
    | startingTimestamp | ms since 1970, of the time messages were stored |
    | startingOffsetsByTimestamp | the same by queue, as JSON: {"orders": {"0": 1700000000000}} |
    | minPartitions | long queues are split until there are about so many tasks |
    | failOnDataLoss | true (default): fail where retention or damage took wanted messages |
    | localReads | true (default): a task on a node's machine reads the node's files itself |
    | tags | only messages with one of these tags, with commas |
    | timeout | seconds that nodes may take to answer; 30 |
    | endingOffsets, endingTimestamp, endingOffsetsByTimestamp | of a batch read, as above; |
    | | latest if not told |
    | tier | of a batch read: a folder that holds older messages as Parquet |
    | maxOffsetsPerTrigger, maxBytesPerTrigger | of a stream: most of one micro-batch; each queue |
    | | with anything waiting gets at least one message, whatever the others have |
    | minOffsetsPerTrigger | of a stream: fewer wait for more, for at most maxTriggerDelay ("90s", |
    | | "15m", the default) since the last micro-batch |
    | group | of a stream: a consumer group whose offsets follow what was processed |

    In the JSON a queue is its id, or `replica group/id` where the topic lies in several groups; it
    names every queue that is read, and no other.
    """

    endpoints: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: Where | Offsets = Start.EARLIEST
    ending: Where | Offsets = Start.LATEST
    starting_ms: Times | None = None
    ending_ms: Times | None = None
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    tags: tuple[str, ...] = ()
    timeout: float = 30.0
    max_offsets: int = 0
    max_bytes: int = 0
    min_offsets: int = 0
    trigger_delay: float = TRIGGER_DELAY_SECONDS
    group: str = ""
    tier: str = ""
    local_reads: bool = True
    caller: Caller = NOBODY

    @staticmethod
    def of(options: Mapping[str, str], stream: bool = False) -> "ReadOptions":
        """Read options; their names are not case-sensitive. Raises BadRequest, naming one."""
        given = _Given(options, _STREAM_READ if stream else _BATCH_READ)
        ways = [given.words("topic"), given.words("topics"), given.text("topicPattern")]
        if sum(map(bool, ways)) != 1:  # names of nothing but commas would mean all topics
            raise BadRequest("give one of the options 'topic', 'topics' and 'topicPattern'")
        for word in ("starting", "ending"):
            names = (f"{word}Offsets", f"{word}Timestamp", f"{word}OffsetsByTimestamp")
            if len(found := [repr(name) for name in names if given.has(name)]) > 1:
                raise BadRequest(f"give one of {' and '.join(found)}")
        starting = given.offsets("startingOffsets", Start.LATEST if stream else Start.EARLIEST)
        ending = given.offsets("endingOffsets", Start.LATEST)
        starting_ms = given.times("starting")
        ending_ms = given.times("ending")
        _check_range(starting, ending, starting_ms, ending_ms)
        if given.has("tier") and (starting_ms is not None or ending_ms is not None):
            raise BadRequest("option 'tier': filter by store_time instead of using timestamps")
        most, least = given.number("maxOffsetsPerTrigger"), given.number("minOffsetsPerTrigger")
        if most and least and least > most:
            raise BadRequest(
                f"option 'minOffsetsPerTrigger' = {least} is above 'maxOffsetsPerTrigger' = {most}"
            )
        if given.has("maxTriggerDelay") and not least:
            raise BadRequest("option 'maxTriggerDelay' needs option 'minOffsetsPerTrigger'")
        return ReadOptions(
            given.endpoints(),
            given.words("topics") or given.words("topic"),
            given.pattern("topicPattern"),
            starting,
            ending,
            starting_ms,
            ending_ms,
            given.number("minPartitions") or 0,
            given.boolean("failOnDataLoss", True),
            () if ALL_TAGS in given.words("tags") else given.words("tags"),
            float(given.number("timeout") or 30),
            most or 0,
            given.number("maxBytesPerTrigger") or 0,
            least or 0,
            given.seconds("maxTriggerDelay", TRIGGER_DELAY_SECONDS),
            given.text("group"),
            given.text("tier"),
            given.boolean("localReads", True),
            Caller.of(given.text),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write.

    | option | means |
    |--------|-------|
    | endpoints | HOST:PORT[,HOST:PORT...] of nodes; required |
    | user, password, passwordFile | who calls, with the password or a file that has it in every |
    | | process; nobody, if not told |
    | tls, tlsCa, tlsCert, tlsKey, tlsPort | connect with TLS: true, or as in `duolog.Tls` |
    | topic | where rows go that have no column `topic` |
    | sinkId | batches are written once for each number of one of these; a stream's query id, and |
    | | one of its own for each batch write, if not told |
    | batchId | of a batch write with a sinkId: its number |
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
    caller: Caller = NOBODY

    @staticmethod
    def of(options: Mapping[str, str], stream: bool = False) -> "WriteOptions":
        """Read options; their names are not case-sensitive. Raises BadRequest, naming one."""
        given = _Given(options, _STREAM_WRITE if stream else _BATCH_WRITE)
        if given.has("sinkId") and not given.text("sinkId"):
            raise BadRequest("option 'sinkId' is empty: give a name, or leave it out")
        for name in ("batchId", "sinkContents", "publisher"):
            if given.has(name) and not given.has("sinkId"):
                raise BadRequest(f"option {name!r} needs option 'sinkId': give both")
        if given.has("sinkId") and not given.has("batchId") and not stream:
            # All writes would have one number, of which only the first is published.
            raise BadRequest(
                "option 'sinkId' needs option 'batchId': give both, a new number for each batch "
                "(of foreachBatch, its own)"
            )
        return WriteOptions(
            given.endpoints(),
            given.text("topic"),
            given.text("sinkId"),
            given.number("batchId") or 0,
            float(given.number("timeout") or 60),
            given.text("sinkContents"),
            given.text("publisher"),
            Caller.of(given.text),
        )


class _Given:
    """Options by name, regardless of case."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        """Raises BadRequest for an option that has none of these names."""
        known = {name.lower() for name in names}
        self._values = {name.lower(): value for name, value in options.items()}
        for name in options:
            if name.lower() not in known and name.lower() not in _SPARKS:
                raise _unknown(name, names)

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
            raise BadRequest(f"option {name!r}: {text!r} is not a number >= 0")
        if len(text.strip()) > len(str(NUMBER_MAX)) or int(text) > NUMBER_MAX:
            raise BadRequest(f"option {name!r}: the number must be at most {NUMBER_MAX}")
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name).lower() or str(default).lower()
        if text not in ("true", "false"):
            raise BadRequest(f"option {name!r}: {text!r} is neither true nor false")
        return text == "true"

    def offsets(self, name: str, default: Start) -> Where | Offsets:
        text = self.text(name) or default
        if text.lower() in list(Start):
            return Start(text.lower())
        return self._table(name, _place, f"neither earliest, latest, nor JSON as {_TABLE}")

    def times(self, word: str) -> Times | None:
        """word: starting or ending."""
        name = f"{word}OffsetsByTimestamp"
        if self.has(name):
            return self._table(name, _time, 'not JSON as {"topic": {"0": 1700000000000}}')
        return self.number(f"{word}Timestamp")

    def _table(self, name: str, value: Callable[[Any], T], shape: str) -> dict[str, dict[str, T]]:
        """JSON by topic and queue. Raises BadRequest, which says what the text is not."""
        text = self.text(name)
        try:
            table = json.loads(text, object_pairs_hook=_once)
            if not isinstance(table, dict) or not all(isinstance(r, dict) for r in table.values()):
                raise ValueError("a table of topics, with a table of queues for each")
            return {
                str(topic): {_queue(queue): value(each) for queue, each in row.items()}
                for topic, row in table.items()
            }
        except (ValueError, RecursionError) as error:
            why = "" if isinstance(error, json.JSONDecodeError) else f" ({error})"
            told = text if len(text) <= TOLD_CHARACTERS else f"{text[:TOLD_CHARACTERS]}..."
            raise BadRequest(f"option {name!r}: {told!r} is {shape}{why}") from None

    def seconds(self, name: str, default: float) -> float:
        """A duration as Spark writes it: 500ms, 90s, 15m, 1h."""
        if not self.has(name):
            return default
        text = self.text(name).strip().lower()
        found = re.fullmatch(r"([0-9]{1,9}) ?(ms|s|m|min|h|d)", text)
        if not found:
            raise BadRequest(f"option {name!r}: {text!r} is not a duration such as 90s or 15m")
        return int(found[1]) * _UNITS[found[2]]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that names nothing twice: of two values only one would count."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} comes twice")
    return made


def _queue(name: str) -> str:
    if not _QUEUE.fullmatch(name):
        raise ValueError(f"{name!r} is not a queue: give its id, or replica group/id")
    return name


def _place(offset: Any) -> Where:
    if type(offset) is not int or not -2 <= offset < 1 << 63:
        raise ValueError(
            f"{offset!r} is not an offset: give a number >= 0, -1 for latest or -2 for earliest"
        )
    return _BY_NUMBER.get(offset, offset)


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{value!r} is not a time: give ms since 1970")
    return value


def _check_range(
    starting: Where | Offsets, ending: Where | Offsets, start_ms: Times | None, end_ms: Times | None
) -> None:
    """Raise BadRequest for an end that lies before its start, as far as no node need be asked."""
    if ending == Start.EARLIEST:
        raise BadRequest("option 'endingOffsets' cannot be 'earliest'")
    if isinstance(start_ms, int) and isinstance(end_ms, int) and start_ms > end_ms:
        raise BadRequest(
            f"option 'startingTimestamp' = {start_ms} is after 'endingTimestamp' = {end_ms}"
        )
    if not isinstance(ending, dict):
        return
    for topic, row in ending.items():
        for queue, end in row.items():
            if end == Start.EARLIEST:
                raise BadRequest(f"option 'endingOffsets': {topic}/{queue} cannot be earliest (-2)")
            start = starting.get(topic, {}).get(queue) if isinstance(starting, dict) else None
            if isinstance(start, int) and isinstance(end, int) and start > end:
                raise past_end(topic, queue, start, end)


def past_end(topic: str, queue: str, start: int, end: int) -> BadRequest:
    """The error for a range that ends before it begins."""
    return BadRequest(
        f"option 'startingOffsets': {topic}/{queue} starts at {start}, after its end at {end}"
    )


def check_load(options: Mapping[str, str], read: bool = False) -> None:
    """Raise BadRequest if options suit neither a read nor a stream, nor, unless it is known to
    be a read, a write: what is wanted is only told later."""
    names = {name.lower() for name in options} - _SPARKS
    ways: list[tuple[tuple[str, ...], Any, bool]] = [
        (_BATCH_READ, ReadOptions, False),
        (_STREAM_READ, ReadOptions, True),
    ]
    if not read:
        ways += [(_BATCH_WRITE, WriteOptions, False), (_STREAM_WRITE, WriteOptions, True)]
    fitting = [way for way in ways if names <= {name.lower() for name in way[0]}]
    if not fitting:
        known = {name.lower(): name for way in ways for name in way[0]}
        for name in options:
            if name.lower() in names - known.keys():
                raise _unknown(name, known.values())
        given = ", ".join(sorted(known[name] for name in names))
        raise BadRequest(f"options {given} cannot be combined: see the tables in docs/spark.md")
    first: BadRequest | None = None
    for _, kind, stream in fitting:
        try:
            kind.of(options, stream)
            return
        except BadRequest as error:
            first = first or error
    assert first is not None
    raise first


def _unknown(name: str, known: Iterable[str]) -> BadRequest:
    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), names, 1)
    elsewhere = name.lower() in {each.lower() for each in _ANY}  # of a stream, say
    hint = f"; did you mean {names[near[0]]!r}?" if near and not elsewhere else ""
    return BadRequest(f"option {name!r} is not one of {', '.join(sorted(names.values()))}{hint}")
