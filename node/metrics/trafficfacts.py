"""Messages by topic and group, and half messages, under RocketMQ 5's names."""

from collections.abc import Iterator

from node.broker import Broker
from node.metrics.samples import Samples
from node.metrics.words import is_system_group, truth
from store.metadata import is_reserved_topic


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

    def _received(self, samples: Samples) -> Iterator[None]:
        topics = self._broker.metadata.topics
        for (topic, kind), flow in list(self._traffic.received.table.items()):
            if topic in topics:
                labels = topic, kind, truth(is_reserved_topic(topic))
                bundle = samples.bundle(flow.messages)
                bundle.add("rocketmq_messages_in_total", flow.messages, *labels)
                bundle.add("rocketmq_throughput_in_total", flow.body_bytes, *labels)
            yield

    def _delivered(self, samples: Samples) -> Iterator[None]:
        topics = self._broker.metadata.topics
        for (topic, group, again), flow in list(self._traffic.delivered.table.items()):
            if topic in topics:
                labels = group, topic, truth(again), truth(is_system_group(group))
                bundle = samples.bundle(flow.messages)
                bundle.add("rocketmq_messages_out_total", flow.messages, *labels)
                bundle.add("rocketmq_throughput_out_total", flow.body_bytes, *labels)
            yield

    def _dead(self, samples: Samples) -> Iterator[None]:
        topics = self._broker.metadata.topics
        for (topic, group), flow in list(self._traffic.dead.table.items()):
            if topic in topics:
                labels = group, topic, truth(is_system_group(group))
                bundle = samples.bundle(flow.messages)
                bundle.add("rocketmq_send_to_dlq_messages_total", flow.messages, *labels)
            yield

    def _decided(self, samples: Samples) -> Iterator[None]:
        topics, traffic = self._broker.metadata.topics, self._traffic
        for name, flows in (
            ("rocketmq_commit_messages_total", traffic.committed),
            ("rocketmq_rollback_messages_total", traffic.rolled_back),
        ):
            for topic, flow in list(flows.table.items()):
                if topic in topics:
                    samples.bundle(flow.messages).add(name, flow.messages, topic)
                yield
        for topic, count in self._broker.transactions.waiting_by_topic.items():
            samples.bundle(count).add("rocketmq_half_messages", count, topic)
            yield
