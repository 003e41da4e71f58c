"""Pulls by offset and offsets of groups, for RocketMQ's pull consumers."""

import asyncio

from duolog import Start
from duolog import _errors as sdk

from duolog_server.compat.grpc.receiving import filter_of
from duolog_server.compat.grpc.words.codes import OK, Refused, status
from duolog_server.compat.grpc.words.messages import pulled
from duolog_server.compat.grpc.words.names import group_of, topic_of
from duolog_server.compat.grpc.words.settings import RECEIVE_BATCH
from duolog_server.compat.grpc.words.stubs import Code, MessageQueue, definition, service
from duolog_server.compat.grpc.words.times import ms_of
from duolog_server.node.consuming.longpoll import check_place, poll, within_room
from duolog_server.node.consuming.offsets import offset_at
from duolog_server.node.consuming.reading import Reader, Selection
from duolog_server.node.core.core import Core
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult

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

    def __init__(self, core: Core, reader: Reader) -> None:
        self._core = core
        self._reader = reader

    def _place(self, queue: MessageQueue, offset: int = 0) -> tuple[str, int]:
        topic = topic_of(queue.topic)
        key = (topic, queue.id)
        check_place(key, self._core.admission.readable_queue(topic, queue.id).queues, offset)
        return key

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
        group_of(request.group)
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
        selection = Selection(chosen, count, BYTES_MAX, who=asked)
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
        topic, queue_id = self._place(request.message_queue)
        await self._core.metadata.ensure_group(group)
        await self._core.metadata.commit(group, {topic: {queue_id: request.offset}})
        return service.UpdateOffsetResponse(status=OK)

    def committed(self, request: service.GetOffsetRequest) -> service.GetOffsetResponse:
        """A group's offset."""
        group = group_of(request.group)
        topic, queue_id = self._place(request.message_queue)
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
