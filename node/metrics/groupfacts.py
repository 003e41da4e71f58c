"""How far consumer groups are behind, by topic.

Only a node that has the newest offsets tells it: the master. Lite topics, of which one group may
read a million, are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.node.broker import Broker
from duolog_server.node.consuming.offsets import position_of
from duolog_server.node.metrics.rates import Rates
from duolog_server.node.metrics.samples import Samples, Shown, is_system_group, truth
from duolog_server.store.errors import StoreError

Place = tuple[str, str, int]  # group, topic, queue id


@dataclass(slots=True)
class Behind:
    """A group in a topic. Ages are ms; `position`: sum of its offsets in the queues."""

    ready: int = 0
    leased: int = 0
    lag_ms: int = 0
    queueing_ms: int = 0
    position: int = 0


class GroupFacts:
    """Reads the tables of offsets and POP's state.

    The store time of the message that a group is at is read from the log when the group has moved:
    of a stalled group, once.
    """

    def __init__(self, broker: Broker, minute: Rates) -> None:
        self._broker = broker
        self._minute = minute
        self._store = broker.core.store
        self._master: object = None  # the mastership that they are of
        self._times: dict[tuple[Place, int], int] = {}  # store time of the message at an offset

    def read(self, samples: Samples) -> Iterator[None]:
        """Add all of them, in steps."""
        for topic, group, _ in list(self._broker.core.traffic.delivered.table):
            messages, size = self._given(group, topic)
            self._minute.note(("given", topic, group), messages)
            self._minute.note(("given bytes", topic, group), size)
            yield
        try:
            tables = self._broker.admission.group_tables()
        except sdk.NotMaster:
            self._times = {}
            return
        topics = self._broker.metadata.topics
        master = self._broker.replication.master
        known = self._times if self._master is master else {}
        self._master, self._times = master, {}
        pairs: dict[tuple[str, str], None] = {}
        for key in list(tables.offsets):
            if key[0] in topics:
                pairs[key] = None
            yield
        for topic, _, group in self._broker.pop.popped:
            if topic in topics:
                pairs[topic, group] = None
            yield
        members = self._broker.groups.reading(self._broker.times.mono_ms())
        for group, read, _ in members:
            pairs.update(dict.fromkeys((topic, group) for topic in read if topic in topics))
            yield
        for topic, group in pairs:
            behind = Behind()
            for queue_id in self._broker.metadata.tables.readable("", topic):
                self._look(behind, (group, topic, queue_id), known)
                yield
            self._offer(samples, group, topic, behind)

    def _look(self, behind: Behind, place: Place, known: dict[tuple[Place, int], int]) -> None:
        """Add one queue."""
        group, topic, queue_id = place
        low, high = self._store.queue_range(topic, queue_id)
        reached = self._broker.pop.reached(group, topic, queue_id)
        if reached is None:
            committed = self._broker.metadata.tables.committed(group, topic, queue_id)
            if committed < 0:
                committed = position_of(self._broker.core, group, topic, queue_id, committed)
            reached = committed, committed, 0
        position = min(max(low, reached[0]), high)
        following = min(max(low, reached[1]), high)
        leased = reached[2]
        behind.position += position
        behind.ready += high - following
        behind.leased += leased
        if position < high and (leased or following < high):
            behind.lag_ms = max(behind.lag_ms, self._age_ms(place, position, known))
        if following < high:
            behind.queueing_ms = max(behind.queueing_ms, self._age_ms(place, following, known))

    def _age_ms(self, place: Place, offset: int, known: dict[tuple[Place, int], int]) -> int:
        """How long ago a message was stored; 0 where it cannot be read."""
        key = (place, offset)
        stored = self._times.get(key) or known.get(key)
        if stored is None:
            try:
                stored = self._broker.core.positions.store_time(*place[1:], offset)
            except (OSError, StoreError):
                stored = -1
        self._times[key] = stored
        return max(0, self._broker.times.wall_ms() - stored) if stored > 0 else 0

    def _offer(self, samples: Samples, group: str, topic: str, behind: Behind) -> None:
        given = self._given(group, topic)
        traffic = given[0] + behind.ready + behind.leased  # who reads nothing is not left out first
        facts = behind.ready, behind.leased, behind.lag_ms, behind.queueing_ms, behind.position
        samples.offer(traffic, 9, self._show, group, topic, *given, *facts)

    def _show(self, shown: Shown, group: str, topic: str, *facts: int) -> None:
        messages, size, *rest = facts
        behind = Behind(*rest)
        labels = group, topic, truth(topic.startswith(RETRY_PREFIX)), truth(is_system_group(group))
        lag = behind.ready + behind.leased
        shown.add("rocketmq_consumer_lag_messages", lag, *labels)
        shown.add("rocketmq_consumer_ready_messages", behind.ready, *labels)
        shown.add("rocketmq_consumer_inflight_messages", behind.leased, *labels)
        shown.add("rocketmq_consumer_lag_latency", behind.lag_ms, *labels)
        shown.add("rocketmq_consumer_queueing_latency", behind.queueing_ms, *labels)
        rate = self._minute.per_second
        shown.add("rocketmq_consumer_offset", behind.position, topic, group)
        found = rate(("given", topic, group), messages)
        shown.add("rocketmq_consumer_tps", found, topic, group)
        found = rate(("given bytes", topic, group), size)
        shown.add("rocketmq_consumer_message_size", found, topic, group)
        shown.add("rocketmq_group_get_latency_by_storetime", behind.lag_ms, topic, group)

    def _given(self, group: str, topic: str) -> tuple[int, int]:
        """Messages and bytes of a topic that the group got, first attempts and others."""
        table = self._broker.core.traffic.delivered.table
        flows = [flow for again in (False, True) if (flow := table.get((topic, group, again)))]
        return sum(flow.messages for flow in flows), sum(flow.body_bytes for flow in flows)
