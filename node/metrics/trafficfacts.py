"""Messages by topic and group, half and timed messages, and calls, under RocketMQ 5's names."""

from collections.abc import Iterator

from duolog_server.node.broker import Broker
from duolog_server.node.core.traffic import SIZE_BOUNDS
from duolog_server.node.metrics.nodefacts import STORAGE
from duolog_server.node.metrics.samples import Samples, Shown, is_system_group, truth
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.store.metadata import is_reserved_topic

AT_ONCE = 1000
RECEIVED_SERIES = 2 + len(SIZE_BOUNDS) + 3  # of a topic and a kind of messages
BOUNDS_SECONDS = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)  # of RocketMQ's snapshot of timers


class TrafficFacts:
    """Reads them; those of topics that do not exist any more are not shown."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._traffic = broker.core.traffic

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of them, in steps."""
        yield from self._received(samples)
        yield from self._delivered(samples)
        yield from self._dead(samples)
        yield from self._decided(samples)
        yield from self._halves(samples)
        yield from self._timers(samples)
        yield from self._calls(samples)

    def _received(self, samples: Samples) -> Iterator[None]:
        topics, show = self._broker.metadata.topics, self._show_received
        for key, flow in list(self._traffic.received.table.items()):
            if key[0] in topics:
                samples.offer(flow.messages, RECEIVED_SERIES, show, *key)
            yield

    def _show_received(self, shown: Shown, topic: str, kind: str) -> None:
        flow = self._traffic.received.table.get((topic, kind))
        if flow is not None:
            labels = topic, kind, truth(is_reserved_topic(topic))
            shown.add("rocketmq_messages_in_total", flow.messages, *labels)
            shown.add("rocketmq_throughput_in_total", flow.body_bytes, *labels)
            sizes = Histogram(SIZE_BOUNDS)
            sizes.counts, sizes.sum = flow.sizes, flow.body_bytes
            shown.add("rocketmq_message_size", sizes, *labels)

    def _delivered(self, samples: Samples) -> Iterator[None]:
        topics, show = self._broker.metadata.topics, self._show_delivered
        for key, flow in list(self._traffic.delivered.table.items()):
            if key[0] in topics:
                samples.offer(flow.messages, 2, show, *key)
            yield

    def _show_delivered(self, shown: Shown, topic: str, group: str, again: bool) -> None:
        flow = self._traffic.delivered.table.get((topic, group, again))
        if flow is not None:
            labels = group, topic, truth(again), truth(is_system_group(group))
            shown.add("rocketmq_messages_out_total", flow.messages, *labels)
            shown.add("rocketmq_throughput_out_total", flow.body_bytes, *labels)

    def _dead(self, samples: Samples) -> Iterator[None]:
        topics, name = self._broker.metadata.topics, "rocketmq_send_to_dlq_messages_total"
        for (topic, group), flow in list(self._traffic.dead.table.items()):
            if topic in topics:
                labels = group, topic, truth(is_system_group(group))
                samples.one(flow.messages, name, flow.messages, *labels)
            yield

    def _decided(self, samples: Samples) -> Iterator[None]:
        topics, traffic = self._broker.metadata.topics, self._traffic
        for name, flows in (
            ("rocketmq_commit_messages_total", traffic.committed),
            ("rocketmq_rollback_messages_total", traffic.rolled_back),
        ):
            for topic, flow in list(flows.table.items()):
                if topic in topics:
                    samples.one(flow.messages, name, flow.messages, topic)
                yield
        for topic, ages in list(traffic.finished.items()):
            if topic in topics:
                samples.one(sum(ages.counts), "rocketmq_finish_message_latency", ages, topic)
            yield

    def _halves(self, samples: Samples) -> Iterator[None]:
        transactions, now = self._broker.transactions, self._broker.times.store_ms()
        first: dict[str, int] = {}
        for number, half in enumerate(transactions.pending()):
            first[half.topic] = min(first.get(half.topic, now), half.stored_ms)
            if number % AT_ONCE == 0:
                yield
        for topic, count in transactions.waiting_by_topic.items():
            age = max(0, now - first.get(topic, now)) / 1000
            samples.offer(count, 2, _show_halves, topic, count, age)
            yield

    def _timers(self, samples: Samples) -> Iterator[None]:
        topics = self._broker.metadata.topics
        for name, flows in (("enqueue", self._traffic.timed), ("dequeue", self._traffic.timed_out)):
            for topic, flow in list(flows.table.items()):
                if topic in topics:
                    total = f"rocketmq_timer_{name}_total"
                    samples.one(flow.messages, total, flow.messages, topic, *STORAGE)
                yield
        if self._broker.replication.master is None:
            return
        delays, now, node = self._broker.delays, self._broker.times.wall_ms(), samples.node
        overdue = delays.overdue_ms(now)
        node.add("duolog_timer_overdue_seconds", overdue / 1000)
        node.add("rocketmq_timer_dequeue_latency", overdue, *STORAGE)
        node.add("rocketmq_timer_enqueue_lag", delays.unread, *STORAGE)
        yield
        before, *later = delays.waiting_until([now, *(now + 1000 * one for one in BOUNDS_SECONDS)])
        node.add("rocketmq_timer_dequeue_lag", before, *STORAGE)
        for bound, until in zip(BOUNDS_SECONDS, later, strict=True):
            node.add("rocketmq_timer_message_snapshot", until - before, str(bound), *STORAGE)
            before = until
        yield

    def _calls(self, samples: Samples) -> Iterator[None]:
        for (method, code, waits), times in list(self._traffic.calls.table.items()):
            labels = method, code, truth(waits)
            samples.one(sum(times.counts), "duolog_call_seconds", times, *labels)
            yield
        for (request, code, waits, result), times in list(self._traffic.rpcs.table.items()):
            rpc = "grpc", request, code, truth(waits), result
            samples.one(sum(times.counts), "rocketmq_rpc_latency", times, *rpc)
            yield


def _show_halves(shown: Shown, topic: str, count: int, age: float) -> None:
    shown.add("rocketmq_half_messages", count, topic)
    shown.add("duolog_half_message_age_seconds", age, topic)
