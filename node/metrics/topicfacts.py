"""Topics as rocketmq-exporter shows them: how far they reach, and what comes in a second.

Of a master only: the exporter asks no others.
"""

from collections.abc import Iterator

from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX

from duolog_server.node.broker import Broker
from duolog_server.node.metrics.rates import Rates
from duolog_server.node.metrics.samples import Samples
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
        for topic in list(self._broker.metadata.topics.values()):
            end = 0
            for queue_id in range(topic.queues):
                end += self._broker.core.store.queue_range(topic.name, queue_id)[1]
                yield
            self._add(samples, topic.name, end, sent.get(topic.name, (0, 0)))

    def _add(self, samples: Samples, topic: str, end: int, sent: tuple[int, int]) -> None:
        messages, size = sent
        if topic.startswith(DEAD_LETTER_PREFIX):
            tables = self._broker.metadata.tables
            end -= sum(tables.floors.get(topic, {}).values())  # of a deleted group of the name
            group = group_of(topic, tables.groups)
            samples.bundle(end).add("rocketmq_topic_dlq_offset", end, group)
        elif topic.startswith(RETRY_PREFIX):
            samples.bundle(end).add("rocketmq_topic_retry_offset", end, topic)
        else:
            bundle = samples.bundle(messages)
            rate = self._minute.per_second
            bundle.add("rocketmq_producer_offset", end, topic)
            bundle.add("rocketmq_producer_tps", rate(("sent", topic), messages), topic)
            size_rate = rate(("sent bytes", topic), size)
            bundle.add("rocketmq_producer_message_size", size_rate, topic)
