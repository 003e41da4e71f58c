"""The Groups service: membership, committed offsets, offsets by time."""

from collections.abc import Mapping, Sequence

from duolog import _errors as sdk
from duolog._start import end_of, start_of
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.api.calls import Caller, unary
from duolog_server.node.consuming.allocation import Queue, Wish, check_strategy
from duolog_server.node.consuming.groups import GroupCoordinator, Heartbeat
from duolog_server.node.consuming.offsets import begin, offset_at
from duolog_server.node.core.core import Core
from duolog_server.node.core.ports import Answers
from duolog_server.node.filters.consumerfilters import ConsumerFilters
from duolog_server.node.filters.sqlfilter import wanted
from duolog_server.node.pop.retrytopics import RetryTopics
from duolog_server.node.service.offsets import QUEUES_MAX, Offsets
from duolog_server.store.errors import CorruptRecord
from duolog_server.store.grouptopics import group_retry_topic
from duolog_server.store.metadata import check_group
from duolog_server.store.offsets import QueueOffset

ROOMS_MAX, ROOM_CHARACTERS_MAX = 16, 255
EXPRESSION_CHARACTERS_MAX = 1000  # of tags, which are kept to be compared and shown


class GroupsService(stubs.GroupsServicer):
    """Consumer groups."""

    def __init__(
        self,
        core: Core,
        log: Answers,
        filters: ConsumerFilters,
        groups: GroupCoordinator,
        retries: RetryTopics,
    ) -> None:
        self._offsets = Offsets(core, groups)
        self._core = core
        self._admission = core.admission
        self._metadata = core.metadata
        self._filters = filters
        self._groups = groups
        self._retries = retries
        self.caught_up = log.caught_up

    @unary
    async def Heartbeat(
        self, request: wire.HeartbeatRequest, context: Caller
    ) -> wire.HeartbeatReply:
        """Renew a member; the reply names its queues."""
        self._admission.check_current()
        check_group(request.group)
        if not request.member_id or len(request.member_id) > 255 or not request.topics:
            raise sdk.BadRequest(
                "a member needs an id of 1 to 255 characters and at least one topic"
            )
        for topic in request.topics:
            self._admission.readable_topic(topic)
        chosen = wanted((), request.sql)
        await self._metadata.ensure_group(request.group)
        for topic in request.topics:
            self._filters.register(request.group, topic, chosen)
        retried = group_retry_topic(request.group)
        own = set(request.topics)
        if retried in self._metadata.topics:
            own.add(retried)
        topics = {*own, *self._groups.topics(request.group)}
        readable = {topic: self._metadata.readable(request.group, topic) for topic in topics}
        strategy = check_strategy(request.strategy)
        wish = Wish(strategy, _rooms(request.rooms), _queues(request.wanted, readable))
        # Nothing is waited for from here on: the mastership may change meanwhile.
        epoch, before = self._admission.masterships()
        assignment = self._groups.heartbeat(
            request.group,
            request.member_id,
            Heartbeat(
                tuple(sorted(own)),
                _queues(request.owned, readable),
                request.session_ms,
                wish,
                outdated=0 < request.epoch < before,
                not_polled=request.not_polled,
                expression=request.sql or request.tags[:EXPRESSION_CHARACTERS_MAX],
                is_sql=bool(request.sql),
            ),
            readable,
            self._core.times.mono_ms(),
        )
        if assignment is None:
            raise sdk.Busy(f"group {request.group} has reached its limit of members")
        return wire.HeartbeatReply(
            generation=assignment.generation,
            queues=[wire.QueueRef(topic=t, queue_id=q) for t, q in assignment.queues],
            members=assignment.members,
            pending=assignment.pending,
            foreign=[wire.QueueRef(topic=t, queue_id=q) for t, q in assignment.foreign],
            epoch=epoch,
        )

    @unary
    async def Leave(self, request: wire.LeaveRequest, context: Caller) -> wire.LeaveReply:
        """Remove a member."""
        self._groups.leave(request.group, request.member_id)
        return wire.LeaveReply()

    @unary
    async def Commit(self, request: wire.CommitRequest, context: Caller) -> wire.CommitReply:
        """Commit offsets, unless a queue has gone to another member.

        What a member commits in a queue that its group may not read yet changes nothing.
        """
        queues = {(one.topic, one.queue_id): one.offset for one in request.offsets}
        for topic, queue_id in () if request.member_id else queues:
            if not self._metadata.may_read(request.group, topic, queue_id):
                raise sdk.BadRequest(
                    f"group {request.group[:255]!r} has not come to {topic}/{queue_id} yet: it "
                    "reads what is before the seam first"
                )
        await self._offsets.commit(request.group, queues, request.member_id, request.forward)
        return wire.CommitReply()

    @unary
    async def Offsets(self, request: wire.OffsetsRequest, context: Caller) -> wire.OffsetsReply:
        """Committed offsets, -1 for none. Only a node that has the newest offsets answers.

        begin: where there are none, the group begins.
        """
        if request.begin:
            await self._begin(request)
        tables = self._admission.group_tables()
        return wire.OffsetsReply(
            offsets=[
                wire.QueueOffset(
                    topic=ref.topic,
                    queue_id=ref.queue_id,
                    offset=tables.committed(request.group, ref.topic, ref.queue_id),
                )
                for ref in request.queues[:QUEUES_MAX]
            ]
        )

    async def _begin(self, request: wire.OffsetsRequest) -> None:
        self._admission.check_current()
        check_group(request.group)
        start = end_of(request.begin)
        topics = dict.fromkeys(ref.topic for ref in request.queues[:QUEUES_MAX])
        for topic in topics:
            self._admission.readable_topic(topic)
        await self._metadata.ensure_group(request.group)
        await begin(self._core, request.group, topics, lambda topic, queue: start)

    @unary
    async def SendBack(self, request: wire.SendBackRequest, context: Caller) -> wire.SendBackReply:
        """Deliver a message again later, or make it a dead letter."""
        self._admission.check_current()
        check_group(request.group)
        self._admission.readable_topic(request.topic)
        await self._metadata.ensure_group(request.group)
        key, store = (request.topic, request.queue_id), self._core.store
        try:
            record = store.record_at(*key, QueueOffset(request.queue_offset))
        except CorruptRecord:
            record = None
        if record is None:  # it may have been read from a slave
            low, high = store.queue_range(*key)
            message = f"the message at {request.topic}/{request.queue_id} {request.queue_offset}"
            if low <= request.queue_offset < high:
                raise sdk.CorruptBatch(f"{message} is damaged on the master")
            if high <= request.queue_offset < store.next_offset(*key):
                raise sdk.Busy(f"{message} cannot be read here yet")
            raise sdk.NoSuchMessage(
                f"{request.topic}/{request.queue_id} has no message at {request.queue_offset}: it "
                f"has those from {low} to {high}"
            )
        return wire.SendBackReply(
            topic=await self._retries.send_back(
                request.group, record, request.delay_level, request.max_attempts
            )
        )

    @unary
    async def OffsetAtTime(
        self, request: wire.OffsetAtTimeRequest, context: Caller
    ) -> wire.OffsetAtTimeReply:
        """First message stored at or after a time, or an end of the queue."""
        self._offsets.check_place((request.topic, request.queue_id))
        return wire.OffsetAtTimeReply(
            queue_offset=offset_at(self._core, request.topic, request.queue_id, start_of(request))
        )

    @unary
    async def OffsetAtSize(
        self, request: wire.OffsetAtSizeRequest, context: Caller
    ) -> wire.OffsetAtTimeReply:
        """The offset up to which the records have at most that many bytes."""
        self._offsets.check_place((request.topic, request.queue_id), request.queue_offset)
        return wire.OffsetAtTimeReply(
            queue_offset=self._core.positions.offset_at_size(
                request.topic, request.queue_id, QueueOffset(request.queue_offset), request.bytes
            )
        )


def _queues(
    refs: Sequence[wire.QueueRef], readable: Mapping[str, Sequence[int]]
) -> frozenset[Queue]:
    """Names that exist: members are remembered, and what they name must have an end."""
    known = {topic: frozenset(queues) for topic, queues in readable.items()}
    named = ((ref.topic, ref.queue_id) for ref in refs[:QUEUES_MAX])
    return frozenset(queue for queue in named if queue[1] in known.get(queue[0], ()))


def _rooms(rooms: Sequence[str]) -> tuple[str, ...]:
    """Raise BadRequest."""
    if len(rooms) > ROOMS_MAX or any(len(room) > ROOM_CHARACTERS_MAX for room in rooms):
        raise sdk.BadRequest(
            f"a member names at most {ROOMS_MAX} rooms, of {ROOM_CHARACTERS_MAX} characters each"
        )
    return tuple(rooms)
