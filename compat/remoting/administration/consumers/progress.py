"""How far consumer groups are in the topics that they read."""

from collections.abc import Sequence
from functools import partial

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.compat.remoting.administration.bodies import QueueRows, dumps
from duolog_server.compat.remoting.administration.brokers.statistics import Statistics
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fastjson import Value
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX
from duolog_server.compat.remoting.codec.headers import (
    BrokerConsumeStatsRequest,
    CloneOffsetRequest,
    ConsumeStatsRequest,
    GroupTopicRequest,
)
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.node.api.readership import topics_of
from duolog_server.node.api.timespans import time_span
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices
from duolog_server.node.service.groups import Reset

GROUPS_AT_ONCE = 200  # of one page


class Progress:
    """Tells the offsets of groups, and copies them."""

    def __init__(
        self, broker: Broker, members: Members, verbs: Verbs, statistics: Statistics
    ) -> None:
        self._broker = broker
        self._members = members
        self._verbs = verbs
        self._statistics = statistics

    async def of_group(self, peer: Peer, request: Command) -> Command:
        """GET_CONSUME_STATS. Raises as Admin/DescribeGroup, UnknownTopic."""
        header = read_header(ConsumeStatsRequest, request.fields)
        group = await self._verbs.group(peer, header.consumer_group)
        rows = QueueRows(self._broker.group)
        topics = self._shown(group, header.topic)
        for one in group.queues:
            if one.topic in topics:
                self._add(rows, one)
        if header.topic and not len(rows):
            await self._add_unread(rows, peer, header.topic)
        tps = sum(self._statistics.group_tps(group.group, topic) for topic in topics)
        return request.answer(0, body=dumps({"consumeTps": tps, "offsetTable": rows.rows}))

    def _shown(self, group: wire.GroupDescription, topic: str = "") -> set[str]:
        """The topics to show: of a group with members, those that these read."""
        reads = self._members.reads(group.group)
        found = {one.topic for one in group.queues if topic in ("", one.topic)}
        return found & reads.keys() if reads else found

    def _add(self, rows: QueueRows, one: wire.GroupQueue) -> None:
        """Add a queue. Messages that were deleted before the group read them do not wait for it."""
        committed = max(0, one.committed)
        stored = 0
        if committed:
            times = self._broker.core.positions
            stored = max(0, times.store_time(one.topic, one.queue_id, committed - 1))
        rows.add(
            one.topic,
            one.queue_id,
            brokerOffset=one.max_offset,
            consumerOffset=one.max_offset - one.lag_messages,
            lastTimestamp=stored,
            pullOffset=one.max_offset - one.lag_messages,
        )

    async def _add_unread(self, rows: QueueRows, peer: Peer, topic: str) -> None:
        """A topic that the group has not read: all of it waits."""
        found = await self._verbs.topic(peer, topic)
        if found is None:
            raise sdk.UnknownTopic(f"topic[{topic[:200]}] not exist")
        for one in found.stats:
            rows.add(
                topic,
                one.queue_id,
                brokerOffset=one.max_offset,
                consumerOffset=0,
                lastTimestamp=0,
                pullOffset=0,
            )

    async def of_all(self, peer: Peer, request: Command) -> Command:
        """GET_BROKER_CONSUME_STATS, a page of groups after the other.

        Raises as Admin/ListGroups, BadRequest where they do not fit a frame.
        """
        ordered = read_header(BrokerConsumeStatsRequest, request.fields).is_order
        parts: list[bytes] = []
        size = total = 0
        slices, after = Slices(), ""
        while True:
            page = await self._verbs.groups(peer, after, GROUPS_AT_ONCE)
            async for group in slices.each(page.groups):
                text, behind = self._group_text(group, ordered)
                parts.append(text)
                size += len(text) + 1
                total += behind
                if size > FRAME_BYTES_MAX:
                    raise BadRequest(
                        f"the groups of this node do not fit a frame of {FRAME_BYTES_MAX} bytes: "
                        "ask for one group after the other (consumerProgress -g)"
                    )
            after = page.next
            if not after:
                break
        body = b'{"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":0}'
        return request.answer(0, body=body % (b",".join(parts), total))

    def _group_text(self, group: wire.GroupDescription, ordered: bool) -> tuple[bytes, int]:
        """A row of ConsumeStatsList, and how many messages the group is behind."""
        topics: dict[str, QueueRows] = {
            topic: QueueRows(self._broker.group)
            for topic in sorted(self._shown(group))
            if not ordered or self._is_ordered(topic)
        }
        behind = 0
        for one in group.queues:
            if one.topic in topics:
                self._add(topics[one.topic], one)
                behind += one.lag_messages
        stats = [
            {
                "consumeTps": self._statistics.group_tps(group.group, topic),
                "offsetTable": rows.rows,
            }
            for topic, rows in topics.items()
        ]
        return dumps({group.group: stats}), behind

    def _is_ordered(self, topic: str) -> bool:
        config = self._broker.metadata.topics.get(topic)
        return config is not None and config.order

    async def time_spans(self, peer: Peer, request: Command) -> Command:
        """QUERY_CONSUME_TIME_SPAN: wall-clock ms. Raises as Admin/ListTopics, UnknownTopic."""
        header = read_header(GroupTopicRequest, request.fields)
        found = await self._verbs.topic(peer, header.topic)
        if found is None:
            raise sdk.UnknownTopic(f"topic[{header.topic[:200]}] not exist")
        tables = self._broker.admission.group_tables()
        rows = [
            self._span(
                header.topic, one, tables.committed(header.group, header.topic, one.queue_id)
            )
            for one in found.stats
        ]
        return request.answer(0, body=dumps({"consumeTimeSpanSet": rows}))

    def _span(self, topic: str, one: wire.QueueStats, committed: int) -> dict[str, Value]:
        span = time_span(self._broker.core, topic, one, committed)
        return {
            "consumeTimeStamp": span.consumed_ms,
            "delayTime": span.delay_ms,
            "maxTimeStamp": span.last_ms,
            "messageQueue": {
                "brokerName": self._broker.group,
                "queueId": one.queue_id,
                "topic": topic,
            },
            "minTimeStamp": span.first_ms,
        }

    async def clone(self, peer: Peer, request: Command) -> Command:
        """CLONE_GROUP_OFFSET: a group gets the offsets of another. Raises as Groups.reset."""
        header = read_header(CloneOffsetRequest, request.fields)
        await self._broker.log.caught_up()
        source, topics = header.src_group, {header.topic}
        if not header.topic:
            topics = await topics_of(self._broker, source, Slices())
        known = sorted(topics & self._broker.metadata.topics.keys())
        copied = {topic: row for topic in known if (row := self._committed(source, topic))}
        if not copied:
            raise BadRequest(f"group {source[:255]!r} has no offsets to copy")
        shown = {"of": source}
        for topic, row in copied.items():
            reset = Reset(header.dest_group, topic, partial(_all_of, row), shown)
            await self._verbs.changes.groups.reset(peer.host.address, reset)
        return request.answer(0)

    def _committed(self, group: str, topic: str) -> dict[int, int]:
        table = self._broker.admission.group_tables().offsets.get((topic, group), {})
        queues = self._broker.metadata.topics[topic].queues
        return {queue: offset for queue, offset in sorted(table.items()) if queue < queues}


def _all_of(row: dict[int, int], queues: Sequence[int]) -> dict[int, int]:
    return row
