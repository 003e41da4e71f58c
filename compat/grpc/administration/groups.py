"""Consumer groups: how far they are behind, the times of what they read, and setting them back."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.grpc.protocol.codes import OK, Refused
from duolog_server.compat.grpc.protocol.messages import ms_of
from duolog_server.compat.grpc.protocol.names import (
    check_lite_topic,
    group_of,
    resource_of,
    topic_of,
)
from duolog_server.compat.grpc.protocol.stubs import Code, MessageQueue, Resource, admin, definition
from duolog_server.node.api.timespans import time_span
from duolog_server.node.api.verbs import Peer, Verbs
from duolog_server.node.api.visibility import Sight
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.offsets import offset_at
from duolog_server.node.core.slices import Slices
from duolog_server.node.service.groups import Reset
from duolog_server.store.lightqueues import is_light, lite_queue

TOPICS_MAX = 1000  # that a request names
Accumulation = admin.DescribeGroupAccumulationResponse.GroupAccumulation


class Groups:
    """Serves calls about groups, on the master of this replica group."""

    def __init__(self, broker: Broker, verbs: Verbs) -> None:
        self._broker = broker
        self._verbs = verbs

    async def accumulation(
        self, peer: Peer, request: admin.DescribeGroupAccumulationRequest
    ) -> admin.DescribeGroupAccumulationResponse:
        """DescribeGroupAccumulation. Raises as Admin/DescribeGroup, Refused."""
        topics = named(request.topics)
        told = _told_as(topics)
        lite = self._lite_queues(request, topics)
        found = await self._verbs.group(peer, group_of(request.group))
        reply, slices = admin.DescribeGroupAccumulationResponse(status=OK), Slices()
        async for queue in slices.each(found.queues):
            one = self._of(found.group, queue)
            add(reply.accumulation, one)
            if queue.topic in topics:
                add(reply.topic_accumulation[told[queue.topic]], one)
            elif queue.topic in lite:
                add(reply.lite_topic_accumulation[request.lite_topic], one)
        return reply

    @staticmethod
    def _lite_queues(
        request: admin.DescribeGroupAccumulationRequest, topics: Collection[str]
    ) -> set[str]:
        if not request.HasField("lite_topic"):
            return set()
        check_lite_topic(request.lite_topic)
        if not topics:
            raise Refused(Code.BAD_REQUEST, "name the topic of the lite topic (topics)")
        return {lite_queue(topic, request.lite_topic) for topic in topics}

    def _of(self, group: str, queue: wire.GroupQueue) -> Accumulation:
        """One queue. Where messages are leased, those that were done beyond them do not count."""
        reached = self._broker.pop.reached(group, queue.topic, queue.queue_id)
        inflight, ready = 0, queue.lag_messages
        if reached is not None:
            _, following, inflight = reached
            ready = max(0, queue.max_offset - max(queue.min_offset, following))
        made = Accumulation(
            inflight_messages=inflight, ready_messages=ready, accumulation=inflight + ready
        )
        made.deliver_delay_time.FromMilliseconds(queue.lag_ms)
        if queue.committed > 0:
            times = self._broker.core.positions
            stored = times.store_time(queue.topic, queue.queue_id, queue.committed - 1)
            made.last_consume_timestamp = max(0, stored)
        return made

    async def time_spans(
        self, peer: Peer, request: admin.QueryTimeSpanRequest, sight: Sight
    ) -> admin.QueryTimeSpanResponse:
        """QueryTimeSpan: of the topics that are named, or of all that the group has read and the
        caller may see.

        Raises as Admin/DescribeGroup and Admin/ListTopics, Refused.
        """
        group = group_of(request.group)
        topics, slices = named(request.topics), Slices()
        is_named = bool(topics)
        if not is_named:
            topics = await self._topics_read(peer, group, sight, slices)
        reply = admin.QueryTimeSpanResponse(status=OK)
        async for name, resource in slices.each(topics.items()):
            topic = await self._verbs.topic(peer, name)
            if topic is None and is_named:
                raise sdk.UnknownTopic(f"topic {name[:255]!r} does not exist")
            if topic is None:  # it was deleted meanwhile
                continue
            async for queue in slices.each(topic.stats):
                # The tables of now: others' turn may have ended the mastership.
                tables = self._broker.admission.group_tables()
                committed = tables.committed(group, name, queue.queue_id)
                span = time_span(self._broker.core, name, queue, committed)
                reply.queue_time_span_list.add(
                    message_queue=MessageQueue(
                        topic=resource,
                        id=queue.queue_id,
                        broker=definition.Broker(name=self._broker.group),
                    ),
                    min_timestamp=span.first_ms,
                    max_timestamp=span.last_ms,
                    consume_timestamp=span.consumed_ms,
                    delay_time_ms=span.delay_ms,
                )
        return reply

    async def _topics_read(
        self, peer: Peer, group: str, sight: Sight, slices: Slices
    ) -> dict[str, Resource]:
        found = await self._verbs.group(peer, group)
        names = dict.fromkeys([queue.topic async for queue in slices.each(found.queues)])
        return {
            name: resource_of(name)
            async for name in slices.each(names)
            if not is_light(name) and sight.topic(name)
        }

    async def reset(
        self, peer: Peer, request: admin.ResetGroupOffsetRequest
    ) -> admin.ResetGroupOffsetResponse:
        """ResetGroupOffset. Raises as Admin/ResetGroup, Refused."""
        group, topic = group_of(request.group), topic_of(request.topic)
        if not request.HasField("reset_timestamp"):
            raise Refused(Code.BAD_REQUEST, "say where the group continues (reset_timestamp)")
        time_ms, core = ms_of(request.reset_timestamp, "reset_timestamp"), self._broker.core
        if time_ms < 0:
            raise sdk.BadRequest(f"time is {time_ms} ms; it must not be negative")

        def place(queues: Sequence[int]) -> dict[int, int]:
            return {queue: offset_at(core, topic, queue, time_ms) for queue in queues}

        wanted = Reset(group, topic, place, {"time": time_ms})
        await self._verbs.changes.groups.reset(peer.host.address, wanted)
        return admin.ResetGroupOffsetResponse(status=OK)


def named(topics: Collection[Resource]) -> dict[str, Resource]:
    """The topics that a request names, by their names here. Raises Refused, also for too many."""
    if len(topics) > TOPICS_MAX:
        raise Refused(
            Code.BAD_REQUEST,
            f"the request names {len(topics)} topics, it must be {TOPICS_MAX} at most",
        )
    return {topic_of(topic): topic for topic in topics}


def _told_as(topics: Mapping[str, Resource]) -> dict[str, str]:
    """The names of topics in an answer that has none for a namespace: as the request has them, or
    with the namespace where two have the same one.
    """
    times = Counter(resource.name for resource in topics.values())
    return {
        topic: resource.name if times[resource.name] == 1 else topic
        for topic, resource in topics.items()
    }


def add(total: Accumulation, more: Accumulation) -> None:
    """Count another queue, or replica group, into a total."""
    total.inflight_messages += more.inflight_messages
    total.ready_messages += more.ready_messages
    total.accumulation += more.accumulation
    total.last_consume_timestamp = max(total.last_consume_timestamp, more.last_consume_timestamp)
    if more.deliver_delay_time.ToMilliseconds() >= total.deliver_delay_time.ToMilliseconds():
        total.deliver_delay_time.CopyFrom(more.deliver_delay_time)


def joined_accumulation(
    replies: Iterable[admin.DescribeGroupAccumulationResponse],
) -> admin.DescribeGroupAccumulationResponse:
    """A Join: sums."""
    total = admin.DescribeGroupAccumulationResponse(status=OK)
    for reply in replies:
        add(total.accumulation, reply.accumulation)
        for name, one in reply.topic_accumulation.items():
            add(total.topic_accumulation[name], one)
        for name, one in reply.lite_topic_accumulation.items():
            add(total.lite_topic_accumulation[name], one)
    return total


def joined_spans(replies: Iterable[admin.QueryTimeSpanResponse]) -> admin.QueryTimeSpanResponse:
    """A Join: the queues of all."""
    rows = [row for reply in replies for row in reply.queue_time_span_list]
    return admin.QueryTimeSpanResponse(status=OK, queue_time_span_list=rows)
