"""The Admin service: topics, groups, quotas, status."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import structlog
from duolog import __version__
from duolog import _errors as sdk
from duolog._machine import place_of
from duolog._message import DEAD_LETTER_PREFIX, RETRY_PREFIX
from duolog._start import start_of
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs
from grpc.aio import ServicerContext

from duolog_server.ha.epochs import EPOCH_TOPIC, Epoch
from duolog_server.ha.progress import ConnectionState
from duolog_server.node.api.calls import (
    Caller,
    Reply,
    Request,
    address_of_caller,
    is_encrypted,
    unary,
)
from duolog_server.node.api.pages import page_of
from duolog_server.node.api.queuemoves import QueueMoves
from duolog_server.node.api.readership import read_pairs
from duolog_server.node.api.replicationstatus import (
    add_routed,
    group_route,
    node_of,
    replication_status,
)
from duolog_server.node.api.tracking import Tracking
from duolog_server.node.api.visibility import Sight
from duolog_server.node.api.waiting.delayed import Delayed
from duolog_server.node.api.waiting.halves import Halves
from duolog_server.node.audit.subjects import shown_of
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.offsets import offset_at, position_of
from duolog_server.node.consuming.subscriptions import ways_of
from duolog_server.node.core.connected import Consumer
from duolog_server.node.core.logbytes import ENTRIES_MAX, Allowance
from duolog_server.node.core.slices import Slices
from duolog_server.node.election.failover import FailoverService
from duolog_server.node.engine.freeze import SECONDS_MAX
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quota import BURST_MS, BadQuota, Limit, Quota, Subject
from duolog_server.node.pop.liteservice import bound_topic, is_exclusive
from duolog_server.node.pop.retrytopics import RETRY_TIMES
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.node.service.groups import GroupSettings, Reset
from duolog_server.node.service.topics import Changes, TopicSettings, Trim
from duolog_server.store.clocks import MonoMs
from duolog_server.store.groupproblems import Patience, disagree, without_queues
from duolog_server.store.grouptopics import dead_letter_topic
from duolog_server.store.lightqueues import is_light
from duolog_server.store.metadata import (
    PERM_READ,
    PERM_WRITE,
    SYSTEM_TOPIC,
    Json,
    TopicConfig,
    is_reserved_topic,
    is_system_topic,
)
from duolog_server.store.names import check_topic
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.queueends import QueueKey

log = structlog.get_logger("duolog.node")

QUOTAS_MAX = 10_000
QUEUES_AT_ONCE = 500  # looked at before the event loop runs other work
OPEN = PERM_READ | PERM_WRITE
SYSTEM_TOPICS = {name: TopicConfig(name, 1, 4) for name in (EPOCH_TOPIC, SYSTEM_TOPIC)}


def change(
    method: Callable[["AdminService", Request, Caller], Awaitable[Reply]],
) -> Callable[["AdminService", Request, ServicerContext[Request, Reply]], Awaitable[Reply]]:
    """Decorate a method that changes tables: it waits a moment until they take changes.

    Before its own checks, which may not be outdated when it stores the change.
    """

    async def patient(self: "AdminService", request: Request, context: Caller) -> Reply:
        await self.until_taken()
        return await method(self, request, context)

    patient.__doc__ = method.__doc__
    return unary(patient)


class AdminService(stubs.AdminServicer):
    """Administration of one node."""

    def __init__(self, broker: Broker, sight: Callable[[], Sight], changes: Changes) -> None:
        """sight: what the caller of the running call may see."""
        self._broker = broker
        self._topics, self._groups = changes.topics, changes.groups
        self._sight = sight
        self._store = broker.core.store
        self._tracking = Tracking(broker)
        self._delayed = Delayed(broker)
        self._halves = Halves(broker)
        self._queue_moves = QueueMoves(broker)
        self._log_bytes = broker.log_bytes
        self.caught_up = broker.log.caught_up
        self.until_taken = broker.admission.until_taken
        self._known_topic = broker.admission.known_topic
        self._quota_turn = asyncio.Lock()  # each change sees the one before it

    # -- topics --------------------------------------------------------------------------------

    @unary
    async def CreateTopic(self, request: wire.TopicRequest, context: Caller) -> wire.TopicReply:
        """Create a topic. Repeating a call is no error; other settings for the same topic are."""
        address, settings = address_of_caller(context), _topic_settings(request)
        return await self._topic(await self._topics.create(address, request.topic, settings))

    @unary
    async def AlterTopic(self, request: wire.TopicRequest, context: Caller) -> wire.TopicReply:
        """Add queues, or change permissions."""
        address, settings = address_of_caller(context), _topic_settings(request)
        return await self._topic(await self._topics.alter(address, request.topic, settings))

    @unary
    async def DeleteTopic(
        self, request: wire.DeleteTopicRequest, context: Caller
    ) -> wire.DeleteTopicReply:
        """Delete a topic, its queues and its groups' offsets."""
        await self._topics.delete(address_of_caller(context), request.topic)
        return wire.DeleteTopicReply()

    @unary
    async def TrimTopic(
        self, request: wire.TrimTopicRequest, context: Caller
    ) -> wire.TrimTopicReply:
        """Hide the oldest messages of queues for good."""
        if request.WhichOneof("before") is None or request.offset < 0 or request.time < 0:
            raise sdk.BadRequest("name what is to be hidden: all before an offset, or a time")
        asked = Trim(
            request.queue_id if request.HasField("queue_id") else None,
            request.offset,
            request.time if request.HasField("time") else None,
            request.dry_run,
        )
        found = await self._topics.trim(address_of_caller(context), request.topic, asked)
        reply = wire.TrimTopicReply(group=self._broker.group)
        for one in found:
            reply.queues.add(queue_id=one.queue_id, first=one.first, min_offset=one.minimum)
        return reply

    @unary
    async def ListTopics(
        self, request: wire.ListTopicsRequest, context: Caller
    ) -> wire.ListTopicsReply:
        """Topics with their queues' ranges, in slices: there may be very many.

        Ranges are read of the topics that are shown only, after the names were chosen. The end of
        the log is that after the last range, so that it covers them all.
        """
        slices = Slices()
        if request.create:
            await self._create_missing(request.topics, slices)
        reply, replication = wire.ListTopicsReply(), self._broker.replication
        while True:
            epoch = replication.history.last_epoch
            await self._add_topics(reply, request, slices)
            if epoch == replication.history.last_epoch:
                break
            reply.Clear()  # the next mastership may have truncated the log meanwhile
        reply.confirm_offset = confirmed = self._broker.log.confirm_offset
        reply.confirm_nonce = replication.nonce_at(PhyOffset(confirmed - 1))
        return reply

    async def _add_topics(
        self, reply: wire.ListTopicsReply, request: wire.ListTopicsRequest, slices: Slices
    ) -> None:
        metadata, allowance = self._broker.metadata, Allowance(slices, ENTRIES_MAX)
        names: Iterable[str] = request.topics
        own: Mapping[str, TopicConfig] = SYSTEM_TOPICS if request.system else {}
        if not request.topics:
            await slices.turn()  # to collect the names is a step
            page = await page_of({*metadata.topics, *own}, self._sight().topic, request, slices)
            names, reply.total, reply.next = page.names, page.total, page.next
        async for name in slices.each(names):
            config = metadata.topics.get(name) or own.get(name)
            if config is not None:
                if request.problems_only and not self._may_be_a_problem(config):
                    continue
                topic = reply.topics.add()
                await self._fill(topic, config, slices, not request.without_times)
                if request.sizes:
                    await self._measure(topic, allowance)
            elif request.topics:
                self._broker.admission.check_knows()

    def _may_be_a_problem(self, config: TopicConfig) -> bool:
        """Whether a topic is closed to consumers or producers, or has dead letters."""
        if config.name.startswith(DEAD_LETTER_PREFIX):
            return self._has_messages(config)
        return config.perm & OPEN != OPEN

    def _has_messages(self, config: TopicConfig) -> bool:
        ranges = (self._store.queue_range(config.name, one) for one in range(config.read_queues))
        return any(low < high for low, high in ranges)

    async def _measure(self, topic: wire.TopicReply, allowance: Allowance) -> None:
        async for queue in allowance.slices.each(topic.stats):
            found = await self._log_bytes.of(topic.topic, queue.queue_id, allowance)
            if found is not None:
                queue.log_bytes = found

    async def _create_missing(self, names: Iterable[str], slices: Slices) -> None:
        """Create topics on their first use by a producer, if the config allows it.

        Raises BadMessage also where it does not, for names that no topic may have, Busy, NotMaster.
        """
        broker = self._broker
        metadata = broker.metadata
        missing = []
        async for name in slices.each(names):
            if name not in metadata.topics:
                check_topic(name)  # or a sender would only learn that it does not exist
                missing.append(name)
        if not missing or not broker.limits.auto_create_topic or metadata.retires():
            return  # another group has it
        broker.admission.check_master()
        broker.admission.check_knows()
        async for name in slices.each(missing):
            if not is_reserved_topic(name):
                broker.admission.check_master()  # still
                metadata.make_if_missing(name, owner=name_of_caller())

    async def _topic(self, config: TopicConfig) -> wire.TopicReply:
        reply = wire.TopicReply()
        await self._fill(reply, config, Slices(), times=True)
        return reply

    async def _fill(
        self, reply: wire.TopicReply, config: TopicConfig, slices: Slices, times: bool
    ) -> None:
        reply.topic = config.name
        reply.queues = config.queues
        reply.perm = config.perm
        reply.group = self._broker.group
        reply.message_type = config.message_type
        reply.lite_ttl_minutes = config.lite_ttl_minutes
        reply.owner = config.owner
        kept_hours = self._broker.core.options.file_reserved_time
        reply.retention_hours = min(config.retention_hours or kept_hours, kept_hours)
        reply.topic_retention_hours = config.retention_hours
        reply.retention_bytes = config.retention_bytes
        moves = self._broker.metadata.moves
        async for queue_id in slices.each(range(config.queues)):
            self._stats(reply.stats.add(), config.name, queue_id, times)
        async for queue_id in slices.each(moves.open_guests(config.name)):
            guest = moves.guest_of(config.name, queue_id)
            if guest is None or guest.first is None:
                continue  # the topic was deleted meanwhile
            # Among all queues as well, for programs that read or count all of them.
            self._stats(reply.stats.add(), config.name, queue_id, times)
            reply.guests.add(
                queue_id=queue_id,
                first=guest.first,
                name_group=guest.name.group,
                name_queue_id=guest.name.queue_id,
                from_group=guest.came_from.group,
                from_queue_id=guest.came_from.queue_id,
                sealed=moves.seal_of(config.name, queue_id) is not None,
            )

    def _stats(self, row: wire.QueueStats, topic: str, queue_id: int, times: bool) -> None:
        low, high = self._store.queue_range(topic, queue_id)
        row.queue_id, row.min_offset, row.max_offset = queue_id, low, high
        if times:
            row.last_store_time = self._store_time(topic, queue_id, high - 1)

    def _store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return max(0, self._broker.core.positions.store_time(topic, queue_id, queue_offset))

    # -- groups --------------------------------------------------------------------------------

    @unary
    async def ListGroups(
        self, request: wire.ListGroupsRequest, context: Caller
    ) -> wire.ListGroupsReply:
        """Groups with their lag, in slices. Only a node that has the newest offsets answers.

        Queues are read of the groups that are shown only, after the names were chosen.
        """
        slices, reply = Slices(), wire.ListGroupsReply()
        await slices.turn()  # to collect the names is a step
        if request.groups:
            names = request.groups
            page = await page_of(names, self._sight().group, wire.ListGroupsRequest(), slices)
        else:
            page = await page_of(self._group_names(), self._sight().group, request, slices)
            reply.total, reply.next = page.total, page.next
        topics = await self._topics_of(page.names, slices)
        consumers = self._consumers_of(topics.keys())
        lags = _Lags(Patience(request.old_ms or -1, request.stalled_ms or -1))
        async for name, read in slices.each(topics.items()):
            if not self._groups.exists(name):  # it may have been deleted meanwhile
                continue
            group = reply.groups.add()
            told = self._tell_group(group, name, read, consumers[name])
            if request.problems_only and await self._is_well(told, lags, slices):
                del reply.groups[-1]
                reply.left_out += 1
            else:
                await self._add_queues(told, slices)
        return reply

    async def _is_well(self, told: "_Told", lags: "_Lags", slices: Slices) -> bool:
        """Whether a group has no problem. Most are consumed to the end: of such queues, no row is
        made, as it is asked of very many.
        """
        group, name = told.group, told.group.group
        dead = self._broker.metadata.topics.get(dead_letter_topic(name))
        if group.holds or (dead is not None and self._has_messages(dead)):
            return False
        counts = {topic: len(queues) for topic, queues in told.queues.items()}
        if disagree(group) or without_queues(group.subscriptions, counts):
            return False
        for topic, queues in told.queues.items():
            row = self._broker.admission.group_tables().offsets.get((topic, name), {})
            async for queue_id in slices.each(queues):
                low, high = self._store.queue_range(topic, queue_id)
                committed = row.get(queue_id, -1)
                behind = (low if committed < 0 else committed) < high
                lost = 0 <= committed < low
                if lost or (behind and self._lags_long(told, (topic, queue_id), lags)):
                    return False
        return True

    def _lags_long(self, told: "_Told", key: QueueKey, lags: "_Lags") -> bool:
        """Whether a lag is a problem. Groups at work lag by what they have not committed yet: of
        most of these queues, only the entry is read, and no file where it is the last one.
        """
        name, (topic, queue_id) = told.group.group, key
        committed = self._broker.admission.group_tables().committed(name, topic, queue_id)
        position = position_of(self._broker.core, name, topic, queue_id, committed)
        known, patience = self._broker.store.queues.get(topic, queue_id), lags.patience
        offset = -1
        if self._stalled_ms(key, name, told.since, stored=1) <= patience.stalled_ms:
            is_last = known is not None and position == known.max_offset - 1
            if known is not None and is_last and known.max_physical_offset > lags.young:
                return False
            entry = self._store.entries(topic, queue_id, position, 1)
            offset = int(entry[0, 0]) if entry.shape[1] else -1
            if offset >= lags.young:
                return False
        queue = wire.GroupQueue()
        self._tell_queue(queue, told, topic, queue_id)
        if offset >= 0 and 0 < queue.lag_ms <= patience.old_ms:
            lags.young = offset
        return patience.is_late(queue) or patience.is_stalled(queue)

    @unary
    async def DescribeGroup(
        self, request: wire.DescribeGroupRequest, context: Caller
    ) -> wire.GroupDescription:
        """One group."""
        self._groups.check_exists(request.group)
        return await self._described(request.group)

    @unary
    async def ResetGroup(
        self, request: wire.ResetGroupRequest, context: Caller
    ) -> wire.OffsetsReply:
        """Set a group's offsets in all queues of a topic."""
        topic = request.topic
        wanted = Reset(
            request.group,
            topic,
            lambda queues: self._places(request, queues),
            shown_of("Admin/ResetGroup", request),
        )
        row = await self._groups.reset(address_of_caller(context), wanted)
        return wire.OffsetsReply(
            offsets=[
                wire.QueueOffset(topic=topic, queue_id=queue, offset=offset)
                for queue, offset in row.items()
            ]
        )

    def _places(self, request: wire.ResetGroupRequest, queues: Sequence[int]) -> dict[int, int]:
        """The queue offsets that a request sets a group to, by queue id. Raises BadRequest."""
        topic, wanted = request.topic, request.offset
        if not request.HasField("offset"):
            at = start_of(request)
            return {queue: offset_at(self._broker.core, topic, queue, at) for queue in queues}
        if wanted < 0:
            raise sdk.BadRequest(f"offset {wanted} is negative")
        ranges = {queue: self._store.queue_range(topic, queue) for queue in queues}
        return {queue: min(max(wanted, low), high) for queue, (low, high) in ranges.items()}

    @unary
    async def PutGroup(
        self, request: wire.PutGroupRequest, context: Caller
    ) -> wire.GroupDescription:
        """Create a group, or alter it."""
        optional = ("orderly", "retry_times", "lite_topic", "lite_exclusive")
        given = {name: getattr(request, name) for name in optional if request.HasField(name)}
        settings = GroupSettings(**given, retry_delays_ms=tuple(request.retry_delays_ms))
        await self._groups.put(address_of_caller(context), request.group, settings)
        return await self._described(request.group)

    @unary
    async def DeleteGroup(
        self, request: wire.DeleteGroupRequest, context: Caller
    ) -> wire.DeleteGroupReply:
        """Delete a group, its offsets and its dead letters."""
        await self._groups.delete(address_of_caller(context), request.group)
        return wire.DeleteGroupReply()

    # -- quotas --------------------------------------------------------------------------------

    @change
    async def PutQuota(self, request: wire.PutQuotaRequest, context: Caller) -> wire.QuotaReply:
        """Set limits of a subject; those that are not named stay."""
        broker = self._broker
        subject = _subject(request.subject)
        async with self._quota_turn:
            broker.admission.check_current()
            await broker.metadata.all_applied()
            rows = broker.metadata.quotas
            try:
                row = rows.get(subject.text)
                known = Quota.from_row(row) if row is not None else Quota(subject)
                quota = known.altered(_limits(request))
            except BadQuota as error:
                raise sdk.BadRequest(str(error)) from None
            if not quota.limits:
                raise sdk.BadRequest(f"{subject.text} would have no limit: delete its quota")
            if row is None and len(rows) >= QUOTAS_MAX:
                raise sdk.Busy(f"the cluster has reached its limit of {QUOTAS_MAX} quotas")
            await broker.metadata.change({"op": "quota", "quota": quota.to_row()})
        log.info("quota set", subject=subject.text, by=name_of_caller(), limits=quota.limits)
        reply = wire.QuotaReply()
        _fill_quota(reply, quota)
        return reply

    @change
    async def DeleteQuota(
        self, request: wire.DeleteQuotaRequest, context: Caller
    ) -> wire.DeleteQuotaReply:
        """Take all limits from a subject."""
        broker = self._broker
        subject = _subject(request.subject)
        async with self._quota_turn:
            broker.admission.check_current()
            await broker.metadata.all_applied()
            if subject.text not in broker.metadata.quotas:
                raise sdk.BadRequest(f"{subject.text} has no quota")
            await broker.metadata.change({"op": "delete_quota", "subject": subject.text})
        log.info("quota deleted", subject=subject.text, by=name_of_caller())
        return wire.DeleteQuotaReply()

    @unary
    async def ListQuotas(
        self, request: wire.ListQuotasRequest, context: Caller
    ) -> wire.ListQuotasReply:
        """All quotas, by subject, in slices. Only a node that has the newest ones answers."""
        self._broker.admission.check_current()
        metadata, slices, reply = self._broker.metadata, Slices(), wire.ListQuotasReply()
        async for name in slices.each(await slices.ordered(list(metadata.quotas))):
            row = metadata.quotas.get(name)
            if row is not None:  # it may have been deleted meanwhile
                _fill_quota(reply.quotas.add(), _stored_quota(row))
        return reply

    # -- parts of replies ----------------------------------------------------------------------

    def _queues(self, topic: str) -> Sequence[int]:
        """The queues of a topic, and its guests; a light queue is one."""
        if topic in self._broker.metadata.topics:
            return self._broker.metadata.readable("", topic)
        return range(is_light(topic) and self._store.queue_range(topic, 0)[1] > 0)

    def _group_names(self) -> set[str]:
        broker = self._broker
        living = broker.groups.names(broker.times.mono_ms())
        return {*broker.admission.group_tables().groups, *living}

    async def _topics_of(self, groups: Iterable[str], slices: Slices) -> dict[str, set[str]]:
        """The topics that each of these groups reads or has read, in the order of the groups."""
        members = self._broker.groups
        found = {name: members.topics(name) async for name in slices.each(groups)}
        if not found:
            return found
        async for part in read_pairs(self._broker, slices):  # one look, for all of the groups
            for topic, group in part:
                if group in found:
                    found[group].add(topic)
        return found

    async def _described(self, name: str) -> wire.GroupDescription:
        slices, reply = Slices(), wire.GroupDescription()
        topics = (await self._topics_of((name,), slices))[name]
        told = self._tell_group(reply, name, topics, self._consumers_of((name,))[name])
        await self._add_queues(told, slices)
        return reply

    def _consumers_of(self, groups: Collection[str]) -> dict[str, list[Consumer]]:
        """Consumers that are connected, by their group: in one look, as it is at all of them."""
        found: dict[str, list[Consumer]] = {name: [] for name in groups}
        for name, consumer in self._broker.connected.consumers(found.keys()):
            found[name].append(consumer)
        return found

    def _tell_group(
        self,
        reply: wire.GroupDescription,
        name: str,
        topics: Iterable[str],
        consumers: Collection[Consumer],
    ) -> "_Told":
        """Tell all of a group but its queues. topics: that it reads, or has read."""
        broker = self._broker
        mono = broker.times.mono_ms()
        row = broker.admission.group_tables().groups.get(name, {})
        reply.group = name
        reply.members = broker.groups.members(name, mono)
        reply.orderly = bool(row.get("consumeMessageOrderly"))
        reply.retry_times = int(row.get("retryMaxTimes", RETRY_TIMES))
        reply.lite_topic = bound_topic(row)
        reply.lite_exclusive = is_exclusive(row)
        _tell_consumers(reply, consumers)
        for held, wait in broker.core.throttle.holds(name):
            reply.holds.add(topic=held, quota=wait.text)
        return _Told(
            reply,
            {topic: queues for topic in sorted(topics) if (queues := self._queues(topic))},
            broker.groups.readers(name, mono),
            broker.groups.not_polled(name),
            _read_since(consumers),
        )

    async def _add_queues(self, told: "_Told", slices: Slices) -> None:
        for topic, queues in told.queues.items():
            async for queue_id in slices.each(queues):
                self._tell_queue(told.group.queues.add(), told, topic, queue_id)

    def _tell_queue(self, reply: wire.GroupQueue, told: "_Told", topic: str, queue_id: int) -> None:
        broker, name = self._broker, told.group.group
        # The tables of now: others' turn may have ended the mastership.
        committed = broker.admission.group_tables().committed(name, topic, queue_id)
        low, high = self._store.queue_range(topic, queue_id)
        position = position_of(broker.core, name, topic, queue_id, committed)
        lag = max(0, high - position)
        stored = self._store_time(topic, queue_id, position) if lag else 0
        reply.topic, reply.queue_id = topic, queue_id
        reply.committed, reply.min_offset, reply.max_offset = committed, low, high
        reply.lag_messages = lag
        reply.lag_ms = max(0, broker.times.wall_ms() - stored) if stored else 0
        reply.member_id = told.readers.get((topic, queue_id), "")
        reply.not_polled = reply.member_id in told.not_polled
        reply.stalled_ms = self._stalled_ms((topic, queue_id), name, told.since, stored)
        reply.replica_group = broker.group

    def _stalled_ms(
        self, key: QueueKey, group: str, since: Mapping[str, MonoMs], stored: int
    ) -> int:
        """For how long a group that reads a queue has committed nothing there.

        since: when consumers began to read each topic. stored: when the next message was, 0: there
        is none.
        """
        topic, queue_id = key
        begun = since.get(topic)
        if begun is None and topic.startswith(RETRY_PREFIX):
            begun = min(since.values(), default=None)  # RocketMQ's clients do not name it
        if not stored or begun is None:
            return 0
        times = self._broker.times
        moved = max(begun, self._broker.metadata.progress.last_ms(group, topic, queue_id))
        return max(0, min(times.mono_ms() - moved, times.wall_ms() - stored))

    @unary
    async def Track(self, request: wire.TrackRequest, context: Caller) -> wire.TrackReply:
        """The state of a message in every group that reads its topic; or the whole way of the
        messages with a key.
        """
        topic = self._known_topic(request.topic)
        if request.key:
            return await self._tracking.with_key(request.topic, request.key)
        if not 0 <= request.queue_id < topic.read_queues:
            raise sdk.BadRequest(f"{request.topic} has queues 0..{topic.read_queues - 1}")
        return await self._tracking.at(request.topic, request.queue_id, request.queue_offset)

    # -- messages that wait --------------------------------------------------------------------

    @unary
    async def ListDelayed(
        self, request: wire.ListDelayedRequest, context: Caller
    ) -> wire.ListDelayedReply:
        """Messages that wait for their time, in slices."""
        if request.topic:
            self._known_topic(request.topic)
        return await self._delayed.page(request, self._sight().topic)

    @unary
    async def RecallDelayed(
        self, request: wire.RecallDelayedRequest, context: Caller
    ) -> wire.RecallDelayedReply:
        """Take back a timed message."""
        await self._delayed.recall(request)
        return wire.RecallDelayedReply()

    @unary
    async def ListHalves(
        self, request: wire.ListHalvesRequest, context: Caller
    ) -> wire.ListHalvesReply:
        """Half messages without a decision, in slices."""
        if request.topic:
            self._known_topic(request.topic)
        return await self._halves.page(request, self._sight().topic)

    @unary
    async def DecideHalf(
        self, request: wire.DecideHalfRequest, context: Caller
    ) -> wire.DecideHalfReply:
        """Decide on a half message."""
        await self._halves.decide(request)
        return wire.DecideHalfReply()

    # -- moves of queues -----------------------------------------------------------------------

    @change
    async def MoveQueue(
        self, request: wire.MoveQueueRequest, context: Caller
    ) -> wire.MoveQueueReply:
        """Move a queue to another replica group, or say how far that is."""
        return await self._queue_moves.move(request)

    @change
    async def AbortMove(
        self, request: wire.AbortMoveRequest, context: Caller
    ) -> wire.AbortMoveReply:
        """End a move before its queue is sealed."""
        return await self._queue_moves.abort(request)

    @unary
    async def ListMoves(
        self, request: wire.ListMovesRequest, context: Caller
    ) -> wire.ListMovesReply:
        """Moves from here, and spans of queues that moved, in slices."""
        return await self._queue_moves.list(request, self._sight().topic)

    # -- status --------------------------------------------------------------------------------

    @unary
    async def NodeStatus(
        self, request: wire.NodeStatusRequest, context: Caller
    ) -> wire.NodeStatusReply:
        """The state of this node."""
        return self._status()

    @unary
    async def ClusterStatus(
        self, request: wire.ClusterStatusRequest, context: Caller
    ) -> wire.ClusterStatusReply:
        """The cluster as this node knows it."""
        mine = self._status()
        down = mine.replication.down  # also one that hangs, on a connection that is still open
        failover = self._broker.failover
        registered = failover.machine.view.replicas if failover is not None else {}
        slaves = (row for row in mine.replication.slaves if row.name not in down)
        others = [node_of(row, mine, registered) for row in slaves]
        slave = self._broker.replication.slave
        following = slave is not None and slave.state is ConnectionState.TRANSFER
        if slave is not None and slave.master_node and (following or not self._elected):
            others.append(
                wire.NodeStatusReply(
                    name=slave.master_node,
                    role="MASTER",
                    listen=slave.master_endpoint,
                    max_offset=slave.master_end,
                    stale=True,
                    replication=wire.ReplicationStatus(
                        group=mine.replication.group, epoch=mine.replication.epoch
                    ),
                )
            )
        reply = wire.ClusterStatusReply(cluster=self._broker.node.cluster, nodes=[mine, *others])
        if failover is not None:
            add_routed(reply, failover.routes)
        return reply

    @unary
    async def Route(self, request: wire.RouteRequest, context: Caller) -> wire.RouteReply:
        """The replica groups of the cluster and their endpoints."""
        broker = self._broker
        node = broker.node
        takes_frames = broker.dialects.frames_secured or not is_encrypted(context)
        reply = wire.RouteReply(
            cluster=node.cluster,
            group=node.group,
            frames_port=broker.dialects.frames_port if takes_frames else 0,
            frames_key=broker.dialects.frames_keys.issue(),
        )
        if broker.failover is None:
            endpoint, epoch = broker.replication.master_endpoint
            master = endpoint if broker.replication.slave is not None else broker.advertised
            group = reply.groups.add(group=node.group, epoch=epoch, master_endpoint=master)
            group.replicas.add(node=node.name, endpoint=broker.advertised, in_sync=True)
            return reply
        for name, view in broker.failover.routes.items():
            reply.groups.append(group_route(name, view))
            if name == node.group:
                self._add_itself(reply.groups[-1])
        return reply

    def _add_itself(self, route: wire.GroupRoute) -> None:
        """Add this node: it can be reached, even if it is not registered."""
        node = self._broker.node
        for row in route.replicas:
            if row.node == node.name:
                row.endpoint = row.endpoint or self._broker.advertised
                return
        route.replicas.add(node=node.name, endpoint=self._broker.advertised)

    @unary
    async def Failover(self, request: wire.FailoverRequest, context: Caller) -> wire.FailoverReply:
        """A planned switch. A mastership that is already over is not ended again."""
        newer = await self._failover().hand_over(request.node, Epoch(request.epoch))
        if newer is None:
            return wire.FailoverReply()
        return wire.FailoverReply(over=True, epoch=newer.epoch, master=newer.master.node)

    @unary
    async def Drain(self, request: wire.DrainRequest, context: Caller) -> wire.DrainReply:
        """Drain a node, or undo that."""
        await self._failover().drain(request.node, request.undo)
        return wire.DrainReply()

    @unary
    async def Forget(self, request: wire.ForgetRequest, context: Caller) -> wire.ForgetReply:
        """Remove a member that is down from its group."""
        await self._failover().forget(request.node)
        return wire.ForgetReply()

    @unary
    async def RetireGroup(
        self, request: wire.RetireGroupRequest, context: Caller
    ) -> wire.RetireGroupReply:
        """Mark a replica group as retiring, or no longer."""
        await self._failover().retire_group(request.replica_group, request.undo)
        return wire.RetireGroupReply()

    @unary
    async def ForgetGroup(
        self, request: wire.ForgetGroupRequest, context: Caller
    ) -> wire.ForgetGroupReply:
        """Remove a replica group that has retired."""
        await self._failover().forget_group(request.replica_group)
        return wire.ForgetGroupReply()

    @unary
    async def Freeze(self, request: wire.FreezeRequest, context: Caller) -> wire.FreezeReply:
        """Store nothing for a while, or store again; how far RocketMQ's slaves are to be."""
        broker, freeze = self._broker, self._broker.freeze
        broker.admission.check_current()
        if not 0 <= request.seconds <= SECONDS_MAX:
            raise sdk.BadRequest(f"{request.seconds} s is outside 0..{SECONDS_MAX} s")
        if request.seconds:
            freeze.begin(request.seconds)
        elif request.HasField("seconds"):
            freeze.end()
        await broker.log.caught_up()
        slaves = {row.host for row in broker.dialects.rocketmq_slaves() if not row.reason}
        return wire.FreezeReply(
            frozen=bool(freeze.reason),
            max_offset=broker.store.max_offset,
            messages_end=await self._messages_end(),
            tables_given=freeze.has_given(len(slaves)),
        )

    async def _messages_end(self) -> int:
        """Where the last record ends that is not the node's own note."""
        store, found = self._broker.store, 0
        for number, (topic, queue_id) in enumerate(store.queue_keys(), 1):
            low, high = store.queue_range(topic, queue_id)
            if low < high and not is_system_topic(topic):
                entry = store.entries(topic, queue_id, high - 1, 1)
                found = max(found, int(entry[0, 0] + entry[1, 0])) if entry.shape[1] else found
            if number % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    @unary
    async def ElectUnclean(
        self, request: wire.ElectUncleanRequest, context: Caller
    ) -> wire.ElectUncleanReply:
        """Make this node the master, even if other nodes hold more."""
        await self._failover().elect_unclean(Epoch(request.epoch))
        return wire.ElectUncleanReply()

    @unary
    async def SetGuarantee(
        self, request: wire.SetGuaranteeRequest, context: Caller
    ) -> wire.SetGuaranteeReply:
        """Set what puts of the group are promised, whichever node leads."""
        now = await self._failover().set_guarantee(request.setting, request.value)
        return wire.SetGuaranteeReply(guarantee=now.settings())

    @property
    def _elected(self) -> bool:
        return self._broker.failover is not None

    def _failover(self) -> FailoverService:
        failover = self._broker.failover
        if failover is None:
            raise sdk.BadRequest("the roles of this group are fixed (broker_role is not AUTO)")
        return failover

    def _status(self) -> wire.NodeStatusReply:
        broker = self._broker
        store, counters, recovered = broker.log.status(), broker.log.counters, broker.recovered
        place = place_of(str(broker.node.data.resolve()))
        expiry = broker.certificates.first()
        return wire.NodeStatusReply(
            name=broker.node.name,
            role=store.role.value,
            version=__version__,
            listen=broker.advertised,
            data=str(broker.node.data),
            start_time=broker.started_ms,
            min_offset=store.min_offset,
            max_offset=store.max_offset,
            flushed_offset=store.flushed_offset,
            confirm_offset=store.confirm_offset,
            dispatch_behind_bytes=store.dispatch_behind_bytes,
            disk_used_ratio=store.disk_used_ratio,
            disk_directory=store.disk_directory,
            flags=store.flags,
            fence_reason=store.fence_reason,
            recovered_abnormally=bool(recovered and recovered.abnormal),
            recovered_from=recovered.scanned_from if recovered else 0,
            recovered_end=recovered.end if recovered else 0,
            messages_in=counters.messages_in,
            messages_out=broker.core.traffic.messages_out,
            parts=broker.status(),
            bytes_in=counters.bytes_in,
            bytes_out=broker.core.traffic.bytes_out,
            flushes=broker.log.group_commit.flushes,
            flushed_messages=broker.log.group_commit.released,
            corrupt_ranges=store.corrupt_ranges,
            refused_records=store.refused_records,
            dispatch_behind_ms_max=int(counters.dispatch_behind_ms_max),
            replication=replication_status(broker),
            wall_ms=broker.times.wall_ms(),
            certificate=str(expiry.file) if expiry else "",
            certificate_until_ms=int(expiry.until.timestamp() * 1000) if expiry else 0,
            cluster=broker.node.cluster,
            settings=broker.settings,
            durations=[
                _durations("append", broker.log.append_seconds),
                _durations("append_wait", broker.core.traffic.wait_seconds),
                _durations("fsync", broker.log.group_commit.sync_seconds),
            ],
            write_holds=broker.core.throttle.refusing(),
            store=wire.LocalStore(
                boot_id=place.boot_id, path=place.path, device=place.device, inode=place.inode
            ),
        )


def _durations(name: str, found: Histogram) -> wire.Durations:
    return wire.Durations(name=name, bounds=found.bounds, counts=found.counts)


@dataclass(frozen=True, slots=True)
class _Told:
    """A group's description without its queues, and what describes those.

    queues: of each topic. readers: the member that reads a queue. not_polled: members
    that were not asked for messages yet. since: when consumers began to read each topic.
    """

    group: wire.GroupDescription
    queues: Mapping[str, Sequence[int]]
    readers: Mapping[QueueKey, str]
    not_polled: Collection[str]
    since: Mapping[str, MonoMs]


@dataclass(slots=True)
class _Lags:
    """Lags of the groups of a list.

    patience: which are problems. young: log offset of the first message known not to be old; those
    behind it are not, either: messages lie in the log in the order of their times.
    """

    patience: Patience
    young: float = inf


def _topic_settings(request: wire.TopicRequest) -> TopicSettings:
    ttl = request.lite_ttl_minutes if request.HasField("lite_ttl_minutes") else None
    hours = request.retention_hours if request.HasField("retention_hours") else None
    size = request.retention_bytes if request.HasField("retention_bytes") else None
    return TopicSettings(request.queues, request.perm, request.message_type, ttl, hours, size)


def _tell_consumers(reply: wire.GroupDescription, consumers: Collection[Consumer]) -> None:
    clients = [consumer for consumer in consumers if not consumer.of_sdk]
    reply.clients = len(clients)
    reply.client_topics.extend(sorted({read.topic for client in clients for read in client.reads}))
    reply.sharing_clients = sum(client.shares for client in clients)
    for way in ways_of(consumers):
        reply.subscriptions.add(  # `asdict` takes ten times as long
            topic=way.topic,
            expression=way.expression,
            is_sql=way.is_sql,
            members=way.members,
            member_id=way.member_id,
            sharing=way.sharing,
        )


def _read_since(consumers: Collection[Consumer]) -> Mapping[str, MonoMs]:
    """Since when each topic has had a consumer without a pause, monotonic."""
    found: dict[str, MonoMs] = {}
    for consumer in consumers:
        for read in consumer.reads:
            found[read.topic] = min(found.get(read.topic, consumer.since_ms), consumer.since_ms)
    return found


def _subject(text: str) -> Subject:
    """What a request names. Raises BadRequest."""
    try:
        return Subject.parse(text)
    except BadQuota as error:
        raise sdk.BadRequest(str(error)) from None


def _limits(request: wire.PutQuotaRequest) -> dict[str, int]:
    """The limits that a request sets, by name."""
    found = {one.value: getattr(request, one.value) for one in Limit if request.HasField(one.value)}
    if request.HasField("burst_ms"):
        found["burst_ms"] = request.burst_ms or BURST_MS
    return found


def _stored_quota(row: Json) -> Quota:
    """Of the tables. Raises Unavailable."""
    try:
        return Quota.from_row(row)
    except BadQuota as error:  # written by a newer version
        raise sdk.Unavailable(f"this node cannot read a quota: {error}") from None


def _fill_quota(reply: wire.QuotaReply, quota: Quota) -> None:
    reply.subject = quota.subject.text
    reply.burst_ms = quota.burst_ms
    for name, value in quota.limits.items():
        setattr(reply, name, value)
