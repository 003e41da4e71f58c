"""The state of the broker, in the words that RocketMQ's tools and its exporter parse.

What this node has no value for is 0, or left out where they do without it.
"""

from collections.abc import Iterator

from duolog import __version__

from duolog_server.compat.remoting.administration.bodies import dumps
from duolog_server.compat.remoting.administration.brokers.statistics import Statistics
from duolog_server.compat.remoting.codec.command import VERSION, VERSION_NAME, Command
from duolog_server.node.broker import Broker
from duolog_server.node.engine.storestatus import StoreStatus
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.store.directories import LOG, FileSystem, file_system_of

UNITS = "KMGTPE"
# Upper bounds of the time that a put took, seconds; RocketMQ's buckets.
BUCKETS = (
    ("[<=0ms]", 0.001),
    ("[0~10ms]", 0.010),
    ("[10~50ms]", 0.050),
    ("[50~100ms]", 0.100),
    ("[100~200ms]", 0.200),
    ("[200~500ms]", 0.500),
    ("[500ms~1s]", 1.0),
    ("[1~2s]", 2.0),
    ("[2~3s]", 3.0),
    ("[3~4s]", 4.0),
    ("[4~5s]", 5.0),
    ("[5~10s]", 10.0),
    ("[10s~]", float("inf")),
)
# Queues of thread pools, which a node does not have, and times that it does not measure.
_ZEROS = (
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "pageCacheLockTimeMills",
    "putMessageEntireTimeMax",
    "remainTransientStoreBufferNumbs",
    "timerCongestNum",
    *(
        f"{pool}ThreadPoolQueue{what}"
        for pool in ("send", "pull", "litePull", "query")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    ),
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
)


class Runtime:
    """Serves GET_BROKER_RUNTIME_INFO."""

    def __init__(self, broker: Broker, statistics: Statistics) -> None:
        self._broker = broker
        self._statistics = statistics

    def info(self, request: Command) -> Command:
        """The table, all of whose values are texts."""
        rows = dict.fromkeys(_ZEROS, "0")
        for part in (self._node(), self._store(), self._messages(), self._delays()):
            rows.update((name, str(value)) for name, value in part)
        return request.answer(0, body=dumps({"table": dict(sorted(rows.items()))}))

    def _node(self) -> Iterator[tuple[str, object]]:
        broker = self._broker
        yield "bootTimestamp", broker.started_ms
        yield "brokerActive", str(not broker.replication.not_master()).lower()
        yield "brokerVersion", VERSION
        yield "brokerVersionDesc", VERSION_NAME
        yield "duologVersion", __version__
        yield "runtime", _lasting(broker.times.wall_ms() - broker.started_ms)
        yield "startAcceptSendRequestTimeStamp", broker.started_ms

    def _store(self) -> Iterator[tuple[str, object]]:
        found: StoreStatus = self._broker.log.status()
        yield "commitLogDirCapacity", _capacity(file_system_of(self._broker.node.data, LOG))
        yield "commitLogDiskRatio", found.log_disk_used_ratio
        yield "commitLogMaxOffset", found.max_offset
        yield "commitLogMinOffset", found.min_offset
        yield "consumeQueueDiskRatio", found.queues_disk_used_ratio
        yield "dispatchBehindBytes", found.dispatch_behind_bytes
        yield "earliestMessageTimeStamp", self._first_time(found.min_offset)
        yield "remainHowManyDataToFlush", readable(max(0, found.max_offset - found.flushed_offset))

    def _first_time(self, offset: int) -> int:
        """When the first record of the log was stored; 0 in an empty one."""
        store = self._broker.store
        return store.log.store_time_at(offset) if store.max_offset > offset else 0

    def _messages(self) -> Iterator[tuple[str, object]]:
        counters, traffic = self._broker.log.counters, self._broker.core.traffic
        put, got = self._statistics.passed
        rates = self._statistics.rates
        yield "msgGetTotalTodayMorning", self._statistics.morning[1]
        yield "msgGetTotalTodayNow", got
        yield "msgGetTotalYesterdayMorning", self._statistics.morning_before[1]
        yield "msgPutTotalTodayMorning", self._statistics.morning[0]
        yield "msgPutTotalTodayNow", put
        yield "msgPutTotalYesterdayMorning", self._statistics.morning_before[0]
        yield "getFoundTps", rates("found", traffic.reads_found)
        yield "getMissTps", rates("missed", traffic.reads_missed)
        yield "getTotalTps", rates("reads", traffic.reads_found + traffic.reads_missed)
        for name in ("getTransferedTps", "getTransferredTps"):  # 4.9's spelling, and that of 5
            yield name, rates(name, got)
        yield "putTps", rates("put", put)
        yield "putMessageAverageSize", counters.bytes_in / put if put else 0.0
        yield "putMessageDistributeTime", distribution(traffic.wait_seconds)
        failed = (flow.messages for flow in traffic.failures.table.values())
        yield "putMessageFailedTimes", sum(failed)
        yield "putMessageSizeTotal", counters.bytes_in
        yield "putMessageTimesTotal", put

    def _delays(self) -> Iterator[tuple[str, object]]:
        delays, times = self._broker.delays, self._broker.times
        for level in range(1, len(self._broker.store.delays_ms) + 1):
            first, end = delays.undelivered(level)
            yield f"scheduleMessageOffset_{level}", f"{first},{end}"
        yield "timerOffsetBehind", delays.unread
        yield "timerReadBehind", delays.overdue_ms(times.wall_ms()) // 1000
        traffic = self._broker.core.traffic
        timed = sum(flow.messages for flow in traffic.timed.table.values())
        out = sum(flow.messages for flow in traffic.timed_out.table.values())
        yield "timerEnqueueTps", self._statistics.rates("timed", timed).split()[0]
        yield "timerDequeueTps", self._statistics.rates("timed out", out).split()[0]


def _capacity(found: FileSystem) -> str:
    total, free = readable(found.total_bytes), readable(found.free_bytes)
    return f"Total : {total}, Free : {free}."


def _lasting(ms: int) -> str:
    seconds = max(0, ms) // 1000
    minutes, hours = seconds // 60, seconds // 3600
    return (
        f"[ {hours // 24} days, {hours % 24} hours, {minutes % 60} minutes, "
        f"{seconds % 60} seconds ]"
    )


def readable(size: int) -> str:
    """A number of bytes as RocketMQ's tools read it: 1536 is `1.5 KiB`."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(UNITS))
    return f"{size / (1 << 10 * power):.1f} {UNITS[power - 1]}iB"


def distribution(times: Histogram) -> str:
    """How many batches waited how long, each counted by the upper bound of its time."""
    counts = dict.fromkeys((name for name, _ in BUCKETS), 0)
    for bound, count in zip((*times.bounds, float("inf")), times.counts, strict=True):
        counts[next(name for name, upper in BUCKETS if bound <= upper)] += count
    return " ".join(f"{name}:{count}" for name, count in counts.items())
