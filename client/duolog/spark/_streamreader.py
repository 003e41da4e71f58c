"""A streaming read: offsets of all queues, how far a micro-batch goes, and what tasks fetch."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from duolog import sync
from duolog._caller import NOBODY
from duolog._descriptions import QueueStats
from duolog._errors import BadRequest, Retryable, UnknownTopic
from duolog._start import Start
from duolog.spark._fetch import fetch
from duolog.spark._oneline import one_line
from duolog.spark._options import ReadOptions, past_end
from duolog.spark._plan import Planner, Queue, QueueRange, Ranges, lost, queues_of, shared

Places = dict[Queue, int]
BEHIND_PAUSE_SECONDS = 0.5
BEGAN = ""  # no topic: the start of the first micro-batch


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows queues by their offsets.

    Spark compares offsets as text: they are written by one function, in one order. A queue that is
    new enters the offsets at its first message, so every range that is ever planned is in them:
    the first micro-batch's end has its start with it, as Spark does not keep that one and asks
    again where the stream begins if the first micro-batch is repeated. A stream that finds nothing
    has an empty first micro-batch, so that its checkpoint knows where it began.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """schema: some of the columns."""
        self._options = options
        self._schema = schema
        self._client: sync.Client | None = None
        self._caller = options.caller
        self._stats: dict[Queue, QueueStats] = {}
        self._guests: set[Queue] = set()  # of those, queues that moved there
        self._target: Places | None = None
        self._initial: Places | None = None  # where the stream begins, if it does so in this run
        self._committed: Places = {}
        self._batch_at = float("-inf")  # monotonic; when the last one with messages was planned

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks, which have their own client."""
        return {**self.__dict__, "_client": None, "_caller": NOBODY, "_stats": {}}

    # -- on the driver -------------------------------------------------------------------------

    @property
    def _asked(self) -> sync.Client:
        """The client, another one where the file with the password has changed."""
        options = self._options
        caller = options.caller.with_password()
        if self._client is None or caller != self._caller:
            self.stop()
            self._client = caller.client(options.endpoints, options.timeout)
            self._caller = caller
        return self._client

    def _refresh(self) -> None:
        """Ask for the queues and their ranges. Raises UnknownTopic, Unavailable.

        A careless reader (failOnDataLoss = false) continues without topics that are gone, also
        where it knows them from its checkpoint alone; what was known of the last one stays.
        """
        planner = Planner(self._asked, self._options)
        try:
            topics = planner.topics()
        except UnknownTopic:
            if self._options.fail_on_data_loss:
                raise
            if len(self._options.topics) < 2:
                return
            topics = planner.topics_left()
        self._stats = queues_of(topics)
        own = {(topic.topic, topic.group): topic.queues for topic in topics}
        self._guests = {q for q in self._stats if q.queue_id >= own[q.topic, q.group]}

    @one_line
    def initialOffset(self) -> dict[str, Any]:
        """The start offset of a new stream. Raises UnknownTopic, BadRequest, DataLoss."""
        planner = Planner(self._asked, self._options)
        queues = queues_of(planner.topics())
        planner.check_names(queues)
        places = {}
        for queue, stats in queues.items():
            start = planner.starting(queue, stats, Start.LATEST)
            if start < stats.min_offset:
                lost(self._options, queue, start, stats.min_offset)
            if start > stats.max_offset and self._options.fail_on_data_loss:
                raise past_end(queue.topic, queue.name, start, stats.max_offset)
            places[queue] = min(max(start, stats.min_offset), stats.max_offset)
        self._initial = places
        return written(places)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The read limit of the options."""
        if self._options.max_offsets:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: later messages are left for another one."""
        self._refresh()
        self._target = {queue: stats.max_offset for queue, stats in self._stats.items()}

    @one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes.

        Spark asks when everything before start is processed, and after the last micro-batch, too:
        that is when the group's offsets are committed.
        """
        before = read_places(start)
        self._refresh()
        self._commit(before)
        after = {**before, **self._fallen_back(before)}
        wanted: Places = {}
        for queue, stats in self._stats.items():
            if queue not in before:
                if self._target is None or queue in self._target:
                    after[queue] = stats.min_offset
                continue
            end = stats.max_offset
            if self._target is not None:
                end = min(end, self._target.get(queue, 0))
            first = max(before[queue], stats.min_offset)
            if end > first:
                wanted[queue] = end - first
        if self._too_few(sum(wanted.values())):
            wanted = {}
        if not isinstance(limit, ReadAllAvailable):
            wanted = self._limited(before, wanted)
        for queue, count in wanted.items():
            after[queue] = max(before[queue], self._stats[queue].min_offset) + count
        begins = before == self._initial and BEGAN not in start
        if after == before and not begins:
            return start  # the same text
        if wanted:
            self._batch_at = time.monotonic()
        made = written(after)
        if begins:
            made[BEGAN] = written(before)
        return made

    def _too_few(self, count: int) -> bool:
        """Whether messages wait for more. A run that ends with what there is waits for nothing."""
        if self._target is not None or count >= self._options.min_offsets:
            return False
        return time.monotonic() - self._batch_at < self._options.trigger_delay

    def _fallen_back(self, before: Places) -> Places:
        """Where queues end that end before what was read of them: a node came back with an older
        copy of its log, or with none. Raises DataLoss.

        What was read was confirmed, so the log is another one where the master keeps saying so.
        Others that answer may just be behind, and so may a master be that was elected just now.
        """
        behind = {q for q, place in before.items() if self._end(q, place) < place}
        if not behind:
            return {}
        planner = Planner(self._asked, self._options)
        deadline = time.monotonic() + self._options.timeout
        while True:
            ends = planner.ends_on_masters(behind)
            behind = {queue for queue in behind if ends.get(queue, before[queue]) < before[queue]}
            if not behind or time.monotonic() >= deadline:
                break
            time.sleep(BEHIND_PAUSE_SECONDS)
        for queue in sorted(behind):
            lost(self._options, queue, ends[queue], before[queue])
        return {queue: ends[queue] for queue in behind}

    def _end(self, queue: Queue, default: int) -> int:
        return self._stats[queue].max_offset if queue in self._stats else default

    def _limited(self, before: Places, wanted: Places) -> Places:
        """So many messages of each queue that the limits hold, each its share of the whole."""
        if self._options.max_offsets:
            wanted = shares(wanted, self._options.max_offsets)
        total, size = sum(wanted.values()), self._options.max_bytes
        if not size:
            return wanted
        for queue, count in list(wanted.items()):
            first = max(before[queue], self._stats[queue].min_offset)
            end = self._asked.admin.offset_at_size(
                queue.topic,
                queue.queue_id,
                first,
                max(1, size * count // total),
                group=queue.group,
            )
            wanted[queue] = min(count, max(1, end - first))
        return wanted

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of all queues: how far behind the stream is."""
        if not self._stats:
            self._refresh()
        return written({queue: stats.max_offset for queue, stats in self._stats.items()})

    @one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges between two offsets. Raises DataLoss."""
        before = read_places(end.get(BEGAN, start))
        if not self._stats:
            self._refresh()
        ranges = []
        for queue, until in sorted(read_places(end).items()):
            first = before.get(queue, until)
            low = self._stats[queue].min_offset if queue in self._stats else first
            if first < min(low, until):
                lost(self._options, queue, first, min(low, until))
                first = min(low, until)
            if first < until:
                ranges.append(QueueRange(queue, first, until))
        return shared(ranges, self._options.min_partitions)

    def _commit(self, places: Places) -> None:
        """Say in the group how far the stream is; what cannot be said now is said the next time.

        Of queues that are there: the offsets of a deleted topic went with it.
        """
        places = {queue: place for queue, place in places.items() if queue in self._stats}
        if not self._options.group or places.items() <= self._committed.items():
            return
        with contextlib.suppress(Retryable, UnknownTopic):  # deleted in the meantime
            self._say({queue: at for queue, at in places.items() if queue not in self._guests})
            for queue in sorted(places.keys() & self._guests):
                with contextlib.suppress(BadRequest):  # the group has not come there yet
                    self._say({queue: places[queue]})

    def _say(self, places: Places) -> None:
        if not places:
            return
        self._asked.admin.commit(
            self._options.group,
            {(q.topic, q.group, q.queue_id): offset for q, offset in places.items()},
            forward=bool(self._committed),  # only the first may go back, as an operator's does
        )
        known = {queue: at for queue, at in self._committed.items() if queue in self._stats}
        self._committed = {**known, **places}

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's own: it never comes for the last micro-batch, see `latestOffset`."""

    def stop(self) -> None:
        """Let go of the nodes."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # -- in tasks ------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's ranges as record batches."""
        if isinstance(partition, Ranges):  # else Spark's own: there is nothing to read
            yield from fetch(self._options, self._schema, partition.parts)


def shares(wanted: Places, most: int) -> Places:
    """So many of what is wanted of each queue that it is most in all, each its share of the whole.

    Every queue gets at least one, even where that is more than most in all: none starves beside
    longer ones.
    """
    total = sum(wanted.values())
    if total <= most:
        return wanted
    found = {queue: max(1, count * most // total) for queue, count in wanted.items()}
    over = sum(found.values()) - most
    for queue in sorted(found, key=lambda q: -wanted[q]):  # the longest give and take
        change = max(1 - found[queue], -over) if over > 0 else min(-over, 1)
        found[queue] += change
        over += change
    return found


def written(places: Places) -> dict[str, Any]:
    """Offsets as Spark keeps them: {"topic": {"replica group/queue": offset}}, sorted."""
    found: dict[str, Any] = {}
    for queue, offset in sorted(places.items()):
        found.setdefault(queue.topic, {})[f"{queue.group}/{queue.queue_id}"] = int(offset)
    return found


def read_places(offsets: dict[str, Any] | str) -> Places:
    """Parse `written`'s output."""
    table = json.loads(offsets) if isinstance(offsets, str) else offsets
    places = {}
    for topic, row in table.items():
        if topic == BEGAN:
            continue
        for name, offset in row.items():
            group, _, queue_id = name.rpartition("/")
            places[Queue(topic, group, int(queue_id))] = int(offset)
    return places


def behind_latest(progress: Any) -> dict[str, float]:
    """How many messages each queue's reader is behind, of a query's progress.

    progress: a `StreamingQueryProgress`, or its dictionary. Returns the keys that Spark's Kafka
    source has in its metrics: minOffsetsBehindLatest, avgOffsetsBehindLatest,
    maxOffsetsBehindLatest; and their total, offsetsBehindLatest.
    """
    table = progress if isinstance(progress, dict) else json.loads(progress.json)
    behind = []
    for source in table["sources"]:
        if source.get("latestOffset") and source.get("endOffset"):
            ends = read_places(source["endOffset"])
            latest = read_places(source["latestOffset"])
            behind += [max(0, offset - ends.get(queue, 0)) for queue, offset in latest.items()]
    total = float(sum(behind))
    return {
        "minOffsetsBehindLatest": float(min(behind, default=0)),
        "avgOffsetsBehindLatest": total / len(behind) if behind else 0.0,
        "maxOffsetsBehindLatest": float(max(behind, default=0)),
        "offsetsBehindLatest": total,
    }
