"""The way of a message: where it waited and was stored, and what each group did with it.

All of it follows from the log: copies of a message, in the topics of delays, transactions, retries
and dead letters, have the same unique key.
"""

from collections.abc import Collection, Iterator

from duolog import _errors as sdk
from duolog._tracecontext import TRACEPARENT
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.readership import read_pairs
from duolog_server.node.broker import Broker
from duolog_server.node.core.births import is_too_old
from duolog_server.node.core.slices import Slices
from duolog_server.node.deferred.delayservice import TIMER_TOPIC
from duolog_server.node.deferred.transactionservice import HALF_TOPIC
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic, retry_topic
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.places import places_of
from duolog_server.store.record import Record

MESSAGES_MAX = 32
TIME_DIGITS_MAX = 18  # of a time in ms that fits the answer
_WAITING = {
    HALF_TOPIC: wire.HALF,
    SCHEDULE_TOPIC: wire.DELAYED,
    TIMER_TOPIC: wire.DELAYED,
}
_DELAYS = (SCHEDULE_TOPIC, TIMER_TOPIC)


class Tracking:
    """Finds what became of messages, on the node that has them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.core.store
        self._lookups = broker.core.store.lookups

    async def at(self, topic: str, queue_id: int, queue_offset: int) -> wire.TrackReply:
        """The state in every group of the message at a place. Raises NoSuchMessage, BadRequest."""
        self._broker.admission.check_index()  # finds copies in retry and dead-letter topics
        record = self._store.record_at(topic, queue_id, QueueOffset(queue_offset))
        if record is None:
            raise sdk.NoSuchMessage(f"{topic}/{queue_id} has no message at this offset")
        place = topic, queue_id, queue_offset
        return wire.TrackReply(groups=await self._groups(record, place, Slices()))

    async def with_key(self, topic: str, key: str) -> wire.TrackReply:
        """The way of messages that were sent to a topic with a key, also of those that wait.

        Raises NoSuchMessage, BadRequest.
        """
        self._broker.admission.check_index()
        copies: dict[str, list[Record]] = {}
        for record in self._copies(topic, key):
            unique = record.properties.get("UNIQ_KEY", "")
            name = unique or f"{record.topic}/{record.queue_id}@{record.queue_offset}"
            copies.setdefault(name, []).append(record)
        if not copies:
            raise sdk.NoSuchMessage(f"{topic} has no message with the key {key!r}")
        reply, slices = wire.TrackReply(), Slices()
        for records in list(copies.values())[:MESSAGES_MAX]:
            reply.messages.append(await self._message(topic, records, slices))
        return reply

    def _copies(self, topic: str, key: str) -> Iterator[Record]:
        """Records of messages that were sent to a topic, those that waited first."""
        for waited_in in _WAITING:
            for record in self._lookups.by_key(waited_in, key):
                if self._waits_for(record, (topic,)):
                    yield record
        yield from self._lookups.by_key(topic, key)

    async def _message(
        self, topic: str, records: list[Record], slices: Slices
    ) -> wire.TrackedMessage:
        first = records[0]
        made = wire.TrackedMessage(
            unique_key=first.properties.get("UNIQ_KEY", ""),
            born_time=first.born_time,
            born_host=f"{first.born_host.address}:{first.born_host.port}",
            traceparent=first.properties.get(TRACEPARENT, ""),
        )
        for record in sorted(records, key=lambda record: record.physical_offset):
            made.steps.append(_step(record))
        stored = next((record for record in records if record.topic == topic), None)
        if stored is not None:
            place = (stored.topic, stored.queue_id, stored.queue_offset)
            made.groups.extend(await self._groups(stored, place, slices))
        return made

    # -- groups --------------------------------------------------------------------------------

    async def _groups(
        self, record: Record, where: tuple[str, int, int], slices: Slices
    ) -> list[wire.MessageTrack]:
        """What each group that reads it did with a message at a place."""
        broker = self._broker
        unique = record.properties.get("UNIQ_KEY", "")
        readers = broker.groups.readers_of(where[0], broker.times.mono_ms())
        places = places_of(record)
        groups: dict[str, set[str]] = {place[0]: set() for place in places}
        async for part in read_pairs(broker, slices, popped=True):
            for topic, group in part:
                if topic in groups:
                    groups[topic].add(group)
        found = []
        for place in places:
            named = groups[place[0]] | (readers if place == where else set())
            async for group in slices.each(sorted(named)):
                found.append(self._track(group, place, unique))  # several searches of the index
        return found

    def _track(self, group: str, where: tuple[str, int, int], unique: str) -> wire.MessageTrack:
        """The state in one group."""
        made = wire.MessageTrack(group=group)
        copy = self._newest_copy(group, where[0], unique) if unique else None
        if copy is None:
            done = self._broker.pop.has_done(group, *where)
            made.state = wire.CONSUMED if done else wire.IN_FLIGHT if done is None else wire.WAITING
            return made
        made.attempts = copy.reconsume_times
        made.copy_topic, made.copy_queue_id = copy.topic, copy.queue_id
        made.copy_queue_offset, made.copy_store_time = copy.queue_offset, copy.store_time
        if copy.topic == dead_letter_topic(group):
            made.state = wire.DEAD_LETTER
        elif copy.topic not in _DELAYS and self._broker.pop.has_done(
            group, copy.topic, copy.queue_id, copy.queue_offset
        ):
            made.state = wire.CONSUMED
        else:
            made.state = wire.RETRY
        return made

    def _waits_for(self, record: Record, topics: Collection[str], group: str = "") -> bool:
        """Whether a record waits for one of these topics, and not for one that was deleted.

        group: whose retries it is among.
        """
        topic = record.properties.get("REAL_TOPIC", "")
        births = self._broker.metadata.births
        return topic in topics and not is_too_old(births, record, topic, group)

    def _newest_copy(self, group: str, topic: str, unique: str) -> Record | None:
        """The newest copy that was stored for another attempt, or as a dead letter."""
        dead = self._lookups.by_unique_key(dead_letter_topic(group), unique)
        if dead is not None:
            return dead
        again = {retry_topic(group, topic), group_retry_topic(group)}
        births = self._broker.metadata.births
        copies = [
            one
            for name in again
            for one in self._lookups.all_by_unique_key(name, unique)
            if not is_too_old(births, one, name, group)
        ]
        for name in _DELAYS:
            for one in self._lookups.all_by_unique_key(name, unique):
                if self._waits_for(one, again, group):
                    copies.append(one)
        return max(copies, key=lambda one: one.physical_offset, default=None)


def _step(record: Record) -> wire.TrackStep:
    made = wire.TrackStep(
        kind=_WAITING.get(record.topic, wire.STORED),
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        store_time=record.store_time,
    )
    when = record.properties.get("TIMER_OUT_MS", "")
    if record.topic == TIMER_TOPIC and when.isdecimal() and len(when) <= TIME_DIGITS_MAX:
        made.deliver_time = int(when)
    return made
