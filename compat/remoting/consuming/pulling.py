"""Pulls: records of a queue as the log has them, or a wait until there are some."""

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any

from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.bodies import EXPRESSION_CHARACTERS_MAX, SQL
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fields import read_header, write_header
from duolog_server.compat.remoting.codec.headers import PullRequest, PullResponse
from duolog_server.compat.remoting.codec.nameserver import MASTER_ID
from duolog_server.compat.remoting.consuming.offsets import Offsets
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.longpoll import poll, within_room
from duolog_server.node.consuming.reading import Selection
from duolog_server.node.filters.sqlfilter import SqlFilter
from duolog_server.node.filters.tagfilter import BadFilter, MessageFilter, TagFilter
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.errors import CorruptRecord
from duolog_server.store.kernels import decode
from duolog_server.store.kernels.jit import I64
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetMessageStatus, GetResult

COMMITS, SUSPENDS, HAS_SUBSCRIPTION = 0x1, 0x2, 0x4  # bits of a pull's flags
BYTES_MAX = 4 << 20  # of bodies in one answer; a single larger message is answered
MESSAGES_MAX = 1024
EXPRESSIONS = 1024  # that are kept as they were parsed
LONG_EXPRESSIONS = 16
SHORT_CHARACTERS = 256

Found = tuple[int, GetResult, int]  # where it was read, what, and bytes that are not taken yet
_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)


def filter_of(kind: str, expression: str) -> MessageFilter:
    """The filter of a subscription. Raises Refused (SUBSCRIPTION_PARSE_FAILED)."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"an expression has {len(expression)} characters, the limit is "
            f"{EXPRESSION_CHARACTERS_MAX}",
        )
    return (_short if len(expression) <= SHORT_CHARACTERS else _long)(kind, expression)


def _parsed(kind: str, expression: str) -> MessageFilter:
    try:
        return SqlFilter.parse(expression) if kind == SQL else TagFilter.parse(expression)
    except BadFilter as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


_short, _long = lru_cache(EXPRESSIONS)(_parsed), lru_cache(LONG_EXPRESSIONS)(_parsed)


class Pulling:
    """Reads queues for consumers."""

    def __init__(self, broker: Broker, members: Members, offsets: Offsets) -> None:
        self._broker = broker
        self._core = broker.core
        self._members = members
        self._offsets = offsets

    async def pull(self, peer: Peer, request: Command) -> Command:
        """PULL_MESSAGE, LITE_PULL_MESSAGE. Raises what refusals know."""
        header = read_header(PullRequest, request.fields)
        await self._broker.log.caught_up()
        place, start = (header.topic, header.queue_id), header.queue_offset
        key = self._broker.offsets.check_place(place, max(0, start))
        chosen = self._filter(peer, header)
        if header.max_msg_nums < 0:
            raise BadRequest(f"the field maxMsgNums is {header.max_msg_nums}")
        row = self._core.metadata.tables.groups.get(header.consumer_group, {})
        if not row.get("consumeEnable", True):
            raise sdk.NoPermission(f"group {header.consumer_group!r} may not consume")
        if header.sys_flag & COMMITS and header.commit_offset >= 0:
            with contextlib.suppress(sdk.NotMaster):
                self._offsets.commit(header.consumer_group, key, header.commit_offset)
        if header.queue_offset < 0:
            return self._moved(request, key)
        lite = request.code == RequestCode.LITE_PULL_MESSAGE
        await self._offsets.begin_at(peer, header.consumer_group, key, header.queue_offset, lite)
        who = Who.at(name_of_caller(), peer.host.address)
        reader = self._broker.reader
        seconds = self._wait_seconds(header)
        deadline = asyncio.get_running_loop().time() + seconds
        is_held = bool(seconds) and not header.sys_flag & HAS_SUBSCRIPTION
        if is_held:  # it may have been replaced since
            chosen = self._filter(peer, header)
        reading = within_room(
            reader,
            who.address,
            key,
            self._selection(peer, header, chosen, who),
            lambda narrowed: poll(reader, key, start, narrowed, deadline),
        )
        found = await (self._unless_replaced(peer, header, reading) if is_held else reading)
        if found is None:
            return self._nothing(request, header)
        held = found[2]
        try:
            return self._answer(peer, request, header, found)
        finally:
            peer.after_answer(lambda: reader.untaken.give(who.address, held))

    async def _unless_replaced(
        self, peer: Peer, header: PullRequest, reading: Coroutine[Any, Any, Found]
    ) -> Found | None:
        """What a pull finds; None where its client's subscription is replaced meanwhile.

        Messages that the one before did not select may be of the new one.
        """
        is_replaced = False
        try:
            async with asyncio.timeout(None) as until:

                def replaced() -> None:
                    nonlocal is_replaced
                    if not is_replaced:
                        is_replaced = True
                        until.reschedule(0)

                group, topic = header.consumer_group, header.topic
                with self._members.held(peer, group, topic, replaced):
                    found = await reading
        except TimeoutError:
            if is_replaced:
                return None
            raise
        if not is_replaced:
            return found
        self._broker.reader.untaken.give(peer.host.address, found[2])  # it had come just before
        return None

    def _nothing(self, request: Command, header: PullRequest) -> Command:
        """The answer to a pull that begins again at the same place."""
        low, high = self._core.store.queue_range(header.topic, header.queue_id)
        fields = write_header(PullResponse(MASTER_ID, header.queue_offset, low, high))
        remark = "the client's subscription was replaced"
        return request.answer(ResponseCode.PULL_NOT_FOUND, remark, fields)

    def _filter(self, peer: Peer, header: PullRequest) -> MessageFilter:
        """The client's filter, from the request itself or from its last heartbeat."""
        if header.sys_flag & HAS_SUBSCRIPTION:
            return filter_of(header.expression_type.upper(), header.subscription)
        found = self._members.subscription(peer, header.consumer_group, header.topic)
        if found is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the client is not a member of group {header.consumer_group[:255]!r} that reads "
                f"{header.topic}: its heartbeat has not arrived, or not on this connection",
            )
        if found.version < header.sub_version:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription {header.sub_version} to {header.topic} is newer than the "
                f"client's last heartbeat ({found.version})",
            )
        return filter_of(found.kind, found.expression)

    def _wait_seconds(self, header: PullRequest) -> float:
        if not header.sys_flag & SUSPENDS:
            return 0.0
        most = self._broker.limits.poll_ms_max
        return max(0, min(header.suspend_timeout_millis, most)) / 1000

    def _selection(
        self, peer: Peer, header: PullRequest, chosen: MessageFilter, who: Who
    ) -> Selection:
        count = max(1, min(header.max_msg_nums, MESSAGES_MAX))
        size = min(BYTES_MAX, self._broker.limits.pull_bytes_max)
        if header.max_msg_bytes > 0:
            size = min(size, header.max_msg_bytes)
        asked = who if self._core.throttle.on else None
        group = header.consumer_group
        if self._core.metadata.tables.moves.guests and not self._shares(peer, group, header.topic):
            group = ""
        return Selection(chosen, count, size, group, asked)

    def _shares(self, peer: Peer, group: str, topic: str) -> bool:
        """Whether a client reads for its group; others keep their offsets, and read all queues.

        A program that chooses its queues by itself (`assign`, `DefaultMQPullConsumer`) subscribes
        to nothing, and may never commit.
        """
        member = self._members.consumer(peer, group)
        if member is None or member.broadcasting:
            return False
        return self._members.subscription(peer, group, topic) is not None

    def _moved(self, request: Command, key: QueueKey) -> Command:
        """The answer to an offset before all: where the queue begins."""
        low, high = self._core.store.queue_range(*key)
        fields = write_header(PullResponse(MASTER_ID, low, low, high))
        too_small = GetMessageStatus.OFFSET_TOO_SMALL
        return request.answer(_CODES[too_small], too_small.value, fields)

    def _answer(self, peer: Peer, request: Command, header: PullRequest, found: Found) -> Command:
        offset, result, _ = found
        code, following = _CODES[result.status], int(result.next_offset)
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL and (
            self._broadcasts(peer, header.consumer_group) or self._is_before_guest(header, offset)
        ):
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        if code is ResponseCode.PULL_NOT_FOUND:
            following = max(offset, following)
            if result.status in _EMPTY and offset:  # the client is ahead of a queue that is empty
                code, following = ResponseCode.PULL_OFFSET_MOVED, 0
        fields = write_header(
            PullResponse(MASTER_ID, following, result.min_offset, result.max_offset)
        )
        remark = result.status.value
        if code is not ResponseCode.SUCCESS:
            return request.answer(code, remark, fields)
        table = result.table
        log = self._broker.store.log
        body = records_at(log, table[decode.OUT_PHY], table[decode.OUT_SIZE])
        self._broker.reader.delivered(
            (header.topic, header.queue_id), header.consumer_group, result
        )
        return request.answer(code, remark, fields, body)

    def _broadcasts(self, peer: Peer, group: str) -> bool:
        """Whether a client keeps its offsets in a file of its own.

        One of RocketMQ 4 that gets PULL_OFFSET_MOVED gives the queue up without writing the offset
        that came with it, and begins with the one in its file again and again. With
        PULL_RETRY_IMMEDIATELY, it continues at the offset that comes with it.
        """
        member = self._members.consumer(peer, group)
        return member is not None and member.broadcasting

    def _is_before_guest(self, header: PullRequest, offset: int) -> bool:
        """Whether an offset lies before the first one that a queue had here: nothing is lost."""
        first = self._core.metadata.tables.moves.first_of(header.topic, header.queue_id)
        return first is not None and offset < first


def records_at(log: CommitLog, starts: I64, sizes: I64) -> bytes:
    """Records as they lie in the log; those side by side are copied at once.

    Called in the turn in which they were read: nothing of the log is removed in between. Raises
    CorruptRecord.
    """
    begins = [0, *((starts[1:] != starts[:-1] + sizes[:-1]).nonzero()[0] + 1).tolist()]
    ends = [*begins[1:], len(starts)]
    parts: list[memoryview] = []
    for first, end in zip(begins, ends, strict=True) if len(starts) else ():
        at, size = int(starts[first]), int(sizes[first:end].sum())
        while size:
            part = log.get_data(at)[:size]
            if not len(part):
                raise CorruptRecord(at, "its segment is gone")
            parts.append(part.data)
            at, size = at + len(part), size - len(part)
    return b"".join(parts)
