"""ReceiveMessage and acknowledgements (POP), and pulls by offset with the offsets of groups."""

import asyncio
from collections.abc import Awaitable, Callable

from duolog import Start
from duolog import _errors as sdk

from duolog_server.compat.grpc.litetopics import LiteTopics
from duolog_server.compat.grpc.protocol import handles
from duolog_server.compat.grpc.protocol.codes import OK, Refused, status, status_of
from duolog_server.compat.grpc.protocol.messages import delivered, ms_of, pulled
from duolog_server.compat.grpc.protocol.names import group_of, topic_of
from duolog_server.compat.grpc.protocol.settings import RECEIVE_BATCH
from duolog_server.compat.grpc.protocol.stubs import Code, MessageQueue, Status, definition, service
from duolog_server.compat.grpc.relay.clients import Client
from duolog_server.node.consuming.longpoll import poll, within_room
from duolog_server.node.consuming.offsets import offset_at
from duolog_server.node.consuming.reading import Reader, Selection
from duolog_server.node.core.core import Core
from duolog_server.node.filters.sqlfilter import SqlFilter
from duolog_server.node.filters.tagfilter import BadFilter, MessageFilter, TagFilter
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.pop.liteservice import bound_topic
from duolog_server.node.pop.popservice import Handle, Popped, PopRequest, PopService
from duolog_server.node.service.offsets import Offsets
from duolog_server.node.service.receives import Receives
from duolog_server.store.errors import StoreError
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult

INVISIBLE_MS_MIN = 10_000
INVISIBLE_MS_MAX = 12 * 3600 * 1000
HELD_INVISIBLE_MS = 60_000  # given to clients that renew leases themselves
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 5.0, 20.0
POLL_MARGIN_SECONDS = 1.0


def filter_of(expression: definition.FilterExpression) -> MessageFilter:
    """The filter of an expression. Raises Refused (ILLEGAL_FILTER_EXPRESSION)."""
    try:
        if expression.type == definition.FilterType.SQL:
            return SqlFilter.parse(expression.expression)
        return TagFilter.parse(expression.expression)
    except BadFilter as error:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def stale() -> Refused:
    """The answer to a handle without a lease."""
    return Refused(
        Code.INVALID_RECEIPT_HANDLE,
        "the receipt handle has expired, or was acknowledged or replaced",
    )


class Receiver:
    """Delivers messages and handles their acknowledgements."""

    def __init__(
        self,
        core: Core,
        pop: PopService,
        receives: Receives,
        lite: LiteTopics,
        replica_group: str,
    ) -> None:
        self._core = core
        self._pop = pop
        self._receives = receives
        self._lite = lite
        self._replica_group = replica_group

    def is_orderly(self, group: str) -> bool:
        """Whether a group gets the messages of a queue one after the other."""
        row = self._core.admission.group_tables().groups.get(group, {})
        return bool(row.get("consumeMessageOrderly")) and not bound_topic(row)

    async def receive(
        self,
        request: service.ReceiveMessageRequest,
        client: Client,
        left: float | None,
        who: Who,
        via: str = "",
    ) -> list[Popped]:
        """Messages, as soon as there are any, and who asks is not over a quota.

        left: seconds until the deadline of the call. via: the node that forwarded it. Raises
        Refused, sdk errors.
        """
        group, topic = group_of(request.group), topic_of(request.message_queue.topic)
        queue_id = request.message_queue.id if self.is_orderly(group) else -1
        config = self._core.admission.readable_queue(topic, queue_id)
        if request.batch_size < 1:
            raise Refused(Code.BAD_REQUEST, f"batch size {request.batch_size} is below 1")
        if queue_id >= config.read_queues:
            raise Refused(Code.BAD_REQUEST, f"{topic} has queues 0..{config.read_queues - 1}")
        subscriber = self._lite.subscriber(client, group, topic)
        wanted = PopRequest(
            group,
            topic,
            queue_id,
            min(request.batch_size, RECEIVE_BATCH),
            _invisible_ms(request),
            client.client_id,
            filter_of(request.filter_expression),
            request.auto_renew,
            request.attempt_id,
            subscriber,
            via,
        )
        deadline = asyncio.get_running_loop().time() + _poll_seconds(request, left)
        client.group = group
        return await self._receives.receive(wanted, deadline, who)

    async def write(
        self,
        request: service.ReceiveMessageRequest,
        found: list[Popped],
        code: Status,
        write: Callable[[service.ReceiveMessageResponse], Awaitable[None]],
    ) -> None:
        """Write the status, the messages and the delivery time (which Python's client needs)."""
        topic = request.message_queue.topic
        unsent = [popped.handle for popped in found]
        try:
            await write(service.ReceiveMessageResponse(status=code))
            for popped in found:
                text = handles.to_text(self._replica_group, popped.handle)
                message = delivered(popped, topic, text)
                await write(service.ReceiveMessageResponse(message=message))
                unsent.pop(0)
            last = service.ReceiveMessageResponse()
            last.delivery_timestamp.GetCurrentTime()
            await write(last)
        finally:
            for handle in unsent:
                self._pop.give_back(group_of(request.group), handle)

    def ack(self, group: str, topic: str, text: str) -> Status:
        """The status of one acknowledgement."""
        try:
            if not self._pop.ack(group, self.handle(group, topic, text)):
                raise stale()
        except (Refused, sdk.DuologError, StoreError) as error:
            return status_of(error)
        return OK

    def handle(self, group: str, topic: str, text: str) -> Handle:
        """Parse a handle and check its group and topic. Raises Refused."""
        replica_group, handle = handles.from_text(text)
        here = replica_group == self._replica_group
        if not here or not self._pop.belongs(group, topic, handle):
            raise stale()
        return handle


def _invisible_ms(request: service.ReceiveMessageRequest) -> int:
    if request.auto_renew or not request.HasField("invisible_duration"):
        return HELD_INVISIBLE_MS
    invisible = int(request.invisible_duration.ToMilliseconds())
    if not INVISIBLE_MS_MIN <= invisible <= INVISIBLE_MS_MAX:
        raise Refused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {invisible} ms is outside "
            f"{INVISIBLE_MS_MIN}..{INVISIBLE_MS_MAX} ms",
        )
    return invisible


def _poll_seconds(request: service.ReceiveMessageRequest, left: float | None) -> float:
    """How long a receive waits: as requested, within RocketMQ's limits and the call's deadline."""
    asked = POLL_SECONDS_MAX
    if request.HasField("long_polling_timeout"):
        asked = request.long_polling_timeout.ToMilliseconds() / 1000
        if asked < 0:
            raise Refused(Code.ILLEGAL_POLLING_TIME, f"a polling time of {asked} s is negative")
    elif left is not None:
        asked = left - POLL_MARGIN_SECONDS
    asked = min(max(asked, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
    return max(0.0, asked if left is None else min(asked, left - POLL_MARGIN_SECONDS))


BYTES_MAX = 4 << 20
WAIT_SECONDS_MAX = 20.0
MARGIN_SECONDS = 0.3
_OUT_OF_RANGE = (GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY)
_STARTS = {
    definition.QueryOffsetPolicy.BEGINNING: Start.EARLIEST,
    definition.QueryOffsetPolicy.END: Start.LATEST,
}


class Puller:
    """Reads queues without leases."""

    def __init__(self, core: Core, reader: Reader, offsets: Offsets) -> None:
        self._core = core
        self._reader = reader
        self._offsets = offsets

    def _place(self, queue: MessageQueue, offset: int = 0) -> tuple[str, int]:
        return self._offsets.check_place((topic_of(queue.topic), queue.id), offset)

    async def pull(
        self,
        request: service.PullMessageRequest,
        left: float | None,
        who: Who,
    ) -> tuple[list[service.PullMessageResponse], int]:
        """The replies of the stream: status, messages, next offset; and the bytes that they count
        for until they are taken. left: seconds.

        Raises Throttled where who asks is over a quota until the end of the poll.
        """
        group = group_of(request.group)
        if request.offset < 0:
            raise Refused(Code.ILLEGAL_OFFSET, f"offset {request.offset} is negative")
        if request.batch_size < 1:
            raise Refused(Code.BAD_REQUEST, f"batch size {request.batch_size} is below 1")
        key = self._place(request.message_queue, request.offset)
        chosen = filter_of(request.filter_expression)
        wait = request.long_polling_timeout.ToMilliseconds() / 1000
        if wait < 0:
            raise Refused(Code.ILLEGAL_POLLING_TIME, f"a polling time of {wait} s is negative")
        wait = min(wait, WAIT_SECONDS_MAX, WAIT_SECONDS_MAX if left is None else left)
        deadline = asyncio.get_running_loop().time() + max(0.0, wait - MARGIN_SECONDS)
        count = min(request.batch_size, RECEIVE_BATCH)
        asked = who if self._core.throttle.on else None
        selection = Selection(chosen, count, BYTES_MAX, group, asked)
        _, result, held = await within_room(
            self._reader,
            who.address,
            key,
            selection,
            lambda narrowed: poll(self._reader, key, request.offset, narrowed, deadline),
        )
        try:
            return self._replies(request, key, result), held
        except BaseException:
            self._reader.untaken.give(who.address, held)
            raise

    def _replies(
        self, request: service.PullMessageRequest, key: QueueKey, result: GetResult
    ) -> list[service.PullMessageResponse]:
        going_on = service.PullMessageResponse(next_offset=result.next_offset)
        if result.status in _OUT_OF_RANGE:
            bounds = f"{result.min_offset} to {result.max_offset}"
            code = status(Code.ILLEGAL_OFFSET, f"offset {request.offset} is outside {bounds}")
            return [service.PullMessageResponse(status=code), going_on]
        if not result.count:
            code = status(Code.MESSAGE_NOT_FOUND, "no new message")
            going_on.next_offset = max(result.next_offset, request.offset)
            return [service.PullMessageResponse(status=code), going_on]
        group = group_of(request.group)
        self._reader.delivered(key, group, result)
        host = self._core.store.born_host
        topic = request.message_queue.topic
        messages = [
            service.PullMessageResponse(
                message=pulled(key[1], row, host(PhyOffset(row[0][1])), topic)
            )
            for row in result.rows()
        ]
        return [service.PullMessageResponse(status=OK), *messages, going_on]

    async def update(self, request: service.UpdateOffsetRequest) -> service.UpdateOffsetResponse:
        """Commit a group's offset."""
        group = group_of(request.group)
        if request.offset < 0:
            raise Refused(Code.ILLEGAL_OFFSET, f"offset {request.offset} is negative")
        key = self._place(request.message_queue)
        await self._offsets.commit(group, {key: request.offset})
        return service.UpdateOffsetResponse(status=OK)

    def committed(self, request: service.GetOffsetRequest) -> service.GetOffsetResponse:
        """A group's offset."""
        group = group_of(request.group)
        topic, queue_id = self._place(request.message_queue)
        offset = self._offsets.waits_at(group, (topic, queue_id))
        if offset is None:
            offset = self._core.admission.group_tables().committed(group, topic, queue_id)
        if offset < 0:
            raise Refused(Code.OFFSET_NOT_FOUND, f"{group} has no offset in {topic}/{queue_id}")
        return service.GetOffsetResponse(status=OK, offset=offset)

    def at(self, request: service.QueryOffsetRequest) -> service.QueryOffsetResponse:
        """The first offset, the last one, or the one at a time."""
        topic, queue_id = self._place(request.message_queue)
        at: Start | int | None = _STARTS.get(request.query_offset_policy)
        if at is None:
            if not request.HasField("timestamp"):
                raise sdk.BadRequest("an offset policy of TIMESTAMP needs a timestamp")
            at = max(0, ms_of(request.timestamp, "timestamp"))
        offset = offset_at(self._core, topic, queue_id, at)
        return service.QueryOffsetResponse(status=OK, offset=offset)
