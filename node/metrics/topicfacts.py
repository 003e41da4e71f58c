"""Topics as rocketmq-exporter shows them: how far they reach, and what comes in a second.

Of a master only: the exporter asks no others.
"""

from collections.abc import Iterator

from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.node.broker import Broker
from duolog_server.node.metrics.rates import Rates
from duolog_server.node.metrics.samples import Samples, Shown
from duolog_server.node.metrics.table import PUT_TIMES
from duolog_server.store.grouptopics import group_of


class TopicFacts:
    """Reads them from the ends of queues, and from the counts of what clients sent."""

    def __init__(self, broker: Broker, minute: Rates) -> None:
        self._broker = broker
        self._minute = minute

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of them, in steps."""
        sent: dict[str, tuple[int, int]] = {}
        for (name, _), flow in list(self._broker.core.traffic.received.table.items()):
            messages, size = sent.get(name, (0, 0))
            sent[name] = messages + flow.messages, size + flow.body_bytes
            yield
        for name, (messages, size) in sent.items():
            self._minute.note(("sent", name), messages)
            self._minute.note(("sent bytes", name), size)
            yield
        if self._broker.replication.master is None:
            return
        moves = self._broker.metadata.tables.moves
        for topic in list(self._broker.metadata.topics.values()):
            end = 0
            for queue_id in range(topic.queues):
                end += self._broker.core.store.queue_range(topic.name, queue_id)[1]
                yield
            for queue_id in moves.open_guests(topic.name):
                high = self._broker.core.store.queue_range(topic.name, queue_id)[1]
                end += high - (moves.first_of(topic.name, queue_id) or 0)  # the rest is elsewhere
                yield
            self._offer(samples, topic.name, end, sent.get(topic.name, (0, 0)))

    def _offer(self, samples: Samples, topic: str, end: int, sent: tuple[int, int]) -> None:
        if topic.startswith(DEAD_LETTER_PREFIX):
            tables = self._broker.metadata.tables
            end -= sum(tables.floors.get(topic, {}).values())  # of a deleted group of the name
            group = group_of(topic, tables.groups)
            samples.one(end, "rocketmq_topic_dlq_offset", end, group)
        elif topic.startswith(RETRY_PREFIX):
            samples.one(end, "rocketmq_topic_retry_offset", end, topic)
        else:
            samples.offer(sent[0], 3, self._show, topic, end, *sent)

    def _show(self, shown: Shown, topic: str, end: int, messages: int, size: int) -> None:
        rate = self._minute.per_second
        shown.add("rocketmq_producer_offset", end, topic)
        shown.add("rocketmq_producer_tps", rate(("sent", topic), messages), topic)
        shown.add("rocketmq_producer_message_size", rate(("sent bytes", topic), size), topic)


# A broker as rocketmq-exporter shows it: what RocketMQ's broker calls its runtime.
RUNTIME = "rocketmq_brokeruntime_"


class RuntimeFacts:
    """Reads them. ten, minute: rates over as many seconds."""

    def __init__(self, broker: Broker, ten: Rates, minute: Rates) -> None:
        self._broker = broker
        self._ten = ten
        self._minute = minute

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of them, in steps."""
        traffic, node = self._broker.core.traffic, samples.node
        received = size = delivered = 0
        for flow in list(traffic.received.table.values()):
            received += flow.messages
            size += flow.body_bytes
            yield
        for flow in list(traffic.delivered.table.values()):
            delivered += flow.messages
            yield
        tps = self._minute.per_second("received", received)
        qps = self._minute.per_second("delivered", delivered)
        if self._broker.replication.master is not None:
            node.add("rocketmq_broker_tps", tps)
            node.add("rocketmq_broker_qps", qps)
        node.add(f"{RUNTIME}put_tps10", self._ten.per_second("received", received))
        node.add(f"{RUNTIME}gettransfered_tps10", self._ten.per_second("delivered", delivered))
        found, missed = traffic.reads_found, traffic.reads_missed
        node.add(f"{RUNTIME}getfound_tps10", self._ten.per_second("found", found))
        node.add(f"{RUNTIME}getmiss_tps10", self._ten.per_second("missed", missed))
        node.add(f"{RUNTIME}gettotal_tps10", self._ten.per_second("read", found + missed))
        node.add(f"{RUNTIME}msg_put_total_today_now", received)
        node.add(f"{RUNTIME}msg_gettotal_today_now", delivered)
        node.add(f"{RUNTIME}put_message_size_total", size)
        node.add(f"{RUNTIME}put_message_average_size", size / received if received else 0)
        self._log(node)
        yield
        self._put_times(node)
        yield

    def _log(self, node: Shown) -> None:
        status = self._broker.log.status()
        node.add(f"{RUNTIME}commitlog_minoffset", status.min_offset)
        node.add(f"{RUNTIME}commitlog_maxoffset", status.max_offset)
        node.add(f"{RUNTIME}dispatch_behind_bytes", status.dispatch_behind_bytes)
        node.add(f"{RUNTIME}commitlog_disk_ratio", status.log_disk_used_ratio)
        node.add(f"{RUNTIME}consumequeue_disk_ratio", status.queues_disk_used_ratio)

    def _put_times(self, node: Shown) -> None:
        histogram = self._broker.log.append_seconds
        rows = list(zip((*histogram.bounds, float("inf")), histogram.counts, strict=True))
        low = 0.0
        for name, _, high in PUT_TIMES:
            count = sum(number for bound, number in rows if low < bound <= high)
            node.add(f"{RUNTIME}pmdt_{name}", count)
            low = high
