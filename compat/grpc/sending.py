"""SendMessage: stores single messages of RocketMQ's clients, each of them once.

Clients send a message again under the same id if an answer takes too long. If it is still being
stored, the repeat waits for it; if it was stored, it is answered with the first result. A node that
became the master recently also looks up the id in the index.
"""

import asyncio
import time
import zlib
from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache

import structlog
from duolog import _errors as sdk
from duolog._background import Background, report

from duolog_server.compat.grpc.protocol.codes import Refused, put_status
from duolog_server.compat.grpc.protocol.handles import TransactionId
from duolog_server.compat.grpc.protocol.messages import (
    DELAY,
    FIFO,
    LITE,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Sent,
    sent,
)
from duolog_server.compat.grpc.protocol.stubs import Code, Message, MessageType, service
from duolog_server.node.broker import Broker
from duolog_server.node.deferred.delayservice import DELAY_MS_MAX, TIMER_TOPIC, RecallHandle
from duolog_server.node.deferred.transactionservice import HALF_TOPIC
from duolog_server.node.engine.log import Outcome
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.moving.deliveries import PassedOn
from duolog_server.node.service.receives import size_of
from duolog_server.node.service.sends import Placed, Send
from duolog_server.store.errors import StoreError
from duolog_server.store.messagestore import PutResult
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.rocketmq")

REMEMBERED_MAX = 100_000
REMEMBERED_SECONDS = 600.0
AFTER_FAILOVER_SECONDS = 120.0
PAUSE_SECONDS = 0.05
MESSAGES_MAX = 1024
# Temporary: during a failover, or while replicas are away.
_SOON = (
    PutMessageStatus.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
)
_UNSURE = (
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)
# Of a topic without a type. Older clients fail on a route with a type that they do not know.
ACCEPTED = (NORMAL, FIFO, DELAY, TRANSACTION)
_KINDS = {kind: MessageType.Name(kind).lower() for kind in (*ACCEPTED, LITE, PRIORITY)}
TYPES = {MessageType.Name(kind): kind for kind in (*ACCEPTED, LITE, PRIORITY)}


_Stored = tuple[PutResult, Outcome | None]
# When it was stored (monotonic), queue offset, end offset, status and reason. Plain values in
# tuples: the garbage collector need not follow a hundred thousand of them. A negative end offset:
# it was passed on, and may be stored there.
_Remembered = tuple[float, int, int, str, str]


def accepted_types(config: TopicConfig) -> list[MessageType]:
    """The message types that a topic accepts: its own, or all.

    A table written by RocketMQ may name MIXED or a newer type: that means all.
    """
    kind = TYPES.get(config.message_type)
    return list(ACCEPTED) if kind is None else [kind]


@lru_cache
def _taken(message_type: str) -> frozenset[MessageType]:
    """The message types that are stored in a topic with this type (or none)."""
    kind = TYPES.get(message_type)
    return frozenset((*ACCEPTED, PRIORITY) if kind is None else (kind,))


def queue_of(message: Sent, config: TopicConfig, turn: int) -> int:
    """Choose a queue: by message group or lite topic, by priority, or round robin."""
    if message.kind == FIFO:
        return zlib.crc32(message.message_group.encode()) % config.queues
    if message.kind == LITE:
        return zlib.crc32(message.lite_topic.encode()) % config.queues
    if message.kind == PRIORITY:
        return min(message.priority, config.queues - 1)
    return turn % config.queues


def _not_awaited(error: Exception) -> None:
    """Log an error that no waiting call raises, because its client disconnected."""
    if isinstance(error, sdk.DuologError | StoreError):
        log.debug("a message was not stored", reason=str(error))
    else:
        report(error)


class Sender:
    """Stores messages of clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._core = broker.core
        self._sends = broker.sends
        self._known: OrderedDict[str, _Remembered] = OrderedDict()
        self._turn = 0
        self._role: tuple[str, int] = ("", -1)
        self._role_since = time.monotonic()
        self._older: set[str] = set()  # topics that had messages at the change of roles
        self._older_end = 0  # end of the log at that moment
        self._background = Background(_not_awaited)
        self._storing: dict[str, asyncio.Task[PutResult]] = {}

    async def stop(self) -> None:
        """Cancel work whose result is not needed."""
        await self._background.stop()

    async def send(
        self, topic: str, messages: list[Message], host: Host, deadline: float
    ) -> list[service.SendResultEntry]:
        """Store messages; one entry per message, in order. deadline: loop time.

        Raises Refused, sdk errors.
        """
        try:
            return await self._sent(topic, messages, host, deadline)
        except Refused:
            self._sends.failed(PutMessageStatus.MESSAGE_ILLEGAL.value)
            raise
        except (sdk.DuologError, StoreError) as error:
            self._sends.refused(error)
            raise

    async def _sent(
        self, topic: str, messages: list[Message], host: Host, deadline: float
    ) -> list[service.SendResultEntry]:
        if not 1 <= len(messages) <= MESSAGES_MAX:
            raise Refused(
                Code.MESSAGE_CORRUPTED,
                f"{len(messages)} messages in a request, it must be 1 to {MESSAGES_MAX}",
            )
        body_max = self._core.options.max_message_size
        checked = [sent(message, body_max) for message in messages]
        config = self._writable(topic, checked)
        self._charge(topic, checked, host)
        self._turn += 1
        turn = self._turn
        work = [
            self._send_one(topic, message, queue_of(message, config, turn), host, deadline)
            for message in checked
        ]
        return [await work[0]] if len(work) == 1 else list(await asyncio.gather(*work))

    def _charge(self, topic: str, messages: list[Sent], host: Host) -> None:
        """Raise Throttled where a request is over a quota: none of its messages is stored."""
        who = Who.at(name_of_caller(), host.address)
        size = sum(size_of(message.body, message.properties) for message in messages)
        self._sends.charge_bytes(who, topic, size, len(messages))

    def _writable(self, topic: str, messages: list[Sent]) -> TopicConfig:
        """The topic, if it accepts these messages."""
        config = self._core.admission.writable_topic(topic, name_of_caller())
        kinds = {message.kind for message in messages}
        groups = {message.message_group for message in messages}
        if len(kinds) > 1 or len(groups) > 1:
            raise Refused(
                Code.MESSAGE_CORRUPTED,
                "all messages of a request must have the same type and message group",
            )
        latest = max(message.deliver_ms for message in messages)
        if latest and latest > self._core.times.wall_ms() + DELAY_MS_MAX:
            raise Refused(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is more than {DELAY_MS_MAX} ms from now",
            )
        if not kinds <= _taken(config.message_type):
            self._core.admission.check_knows()
            name = MessageType.Name(kinds.pop())
            raise Refused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic!r} does not accept {name} messages",
            )
        return config

    async def _send_one(
        self, topic: str, message: Sent, queue_id: int, host: Host, deadline: float
    ) -> service.SendResultEntry:
        result = await self._stored(topic, message, queue_id, host, deadline)
        entry = service.SendResultEntry(
            status=put_status(result.status, result.reason),
            message_id=message.message_id,
            offset=result.queue_offset,
        )
        group = self._broker.group
        if message.kind == TRANSACTION and result.queue_offset >= 0:
            entry.transaction_id = TransactionId(group, topic, result.queue_offset).to_text()
        elif (
            message.deliver_ms
            and message.deliver_ms > self._core.times.wall_ms()
            and result.queue_offset >= 0
        ):
            handle = RecallHandle(group, topic, result.queue_offset, message.message_id)
            entry.recall_handle = handle.to_text()
        return entry

    async def _stored(
        self, topic: str, message: Sent, queue_id: int, host: Host, deadline: float
    ) -> PutResult:
        """The result of the first attempt, or of storing the message now."""
        self._forget_old()
        key = f"{topic}\n{message.message_id}"
        known = self._known.get(key)
        again = known is not None and known[2] < 0
        if known is not None and not again:
            _, queue_offset, end_offset, status, reason = known
            result = PutResult(
                PutMessageStatus(status),
                reason,
                queue_offset=QueueOffset(queue_offset),
                end_offset=PhyOffset(end_offset),
            )
            return await self._settled(result) if result.status in _UNSURE else result
        storing = self._storing.get(key)
        if storing is not None:
            return await asyncio.shield(storing)
        placed = self._sends.place(self._send(topic, message, queue_id, host))
        placed = placed._replace(again=again)
        result, waiting = self._put_once(topic, message, placed)
        if waiting is None and result.status not in _SOON:
            self._sends.count_refusal(result)
            self._remember(key, result)
            return result
        # Continues without the client, which finds the result when it repeats the call.
        stored = self._background.start(
            self._put(topic, message, placed, (result, waiting), deadline)
        )
        self._storing[key] = stored
        stored.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(stored)

    def _ended(self, key: str, done: asyncio.Task[PutResult]) -> None:
        self._storing.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            self._remember(key, done.result())

    def _remember(self, key: str, result: PutResult) -> None:
        """Remember the result; a message that was not stored is a first attempt the next time."""
        where = result.queue_offset, result.end_offset
        if isinstance(result, PassedOn) and result.is_doubtful:
            where = QueueOffset(-1), PhyOffset(-1)  # a repeat is passed on as well, and compared
        elif result.queue_offset < 0:
            return
        self._known[key] = (time.monotonic(), *where, result.status.value, result.reason)

    def _send(self, topic: str, message: Sent, queue_id: int, host: Host) -> Send:
        kind = _KINDS[message.kind]
        if message.kind == DELAY and message.deliver_ms <= self._core.times.wall_ms():
            # Its time has passed, which consumers can see.
            words = {**message.properties, "TIMER_DELIVER_MS": str(message.deliver_ms)}
            return Send(replace(message, properties=words).batch(topic, queue_id, host), kind)
        return Send(
            message.batch(topic, queue_id, host),
            kind,
            half_of=topic if message.kind == TRANSACTION else None,
            immunity_seconds=message.recovery_seconds,
            deliver_ms=message.deliver_ms if message.kind == DELAY else 0,
        )

    def _put_once(self, topic: str, message: Sent, placed: Placed) -> _Stored:
        """Store a message unless it was stored before.

        Not before the messages of the last master are known: they must be confirmed and indexed.
        """
        if self._core.admission.refuses():
            return self._broker.log.put(placed.batch)  # which gives the reason
        admission = self._core.admission
        unknown = admission.unknown_repeat(0)
        is_young = unknown is None and self._is_after_failover()
        if is_young:
            unknown = admission.unknown_repeat(self._older_end)
        if unknown is not None:
            return unknown, None
        if is_young:
            placed = placed._replace(again=True)
            before = self._before_failover(topic, message.message_id)
            if before is not None:
                return before, None
        result, waiting = self._sends.attempt(placed)
        self._broker.log.stored(waiting)
        return result, waiting

    async def _put(
        self, topic: str, message: Sent, placed: Placed, begun: _Stored, deadline: float
    ) -> PutResult:
        """Store a message durably; retry while the group has no master, or too few replicas."""
        loop = asyncio.get_running_loop()
        while True:
            result, waiting = begun
            if waiting is not None:
                result = replace(result, status=await waiting)
            if result.status is PutMessageStatus.UNKNOWN_ERROR:
                self._core.admission.check_master()  # the next master knows what was stored
            if result.status not in _SOON or loop.time() + PAUSE_SECONDS >= deadline:
                if waiting is None:  # what was waited for is counted already
                    self._sends.count_refusal(result)
                return result
            self._core.admission.check_master()  # another node may have become the master
            await asyncio.sleep(PAUSE_SECONDS)
            begun = self._put_once(topic, message, placed)

    async def _settled(self, result: PutResult) -> PutResult:
        """Update the result of a message that was stored but not confirmed: it may be by now."""
        waiting = self._broker.log.settle(result.end_offset)
        status = PutMessageStatus.PUT_OK if waiting is None else await waiting
        return replace(result, status=status)

    def _is_after_failover(self) -> bool:
        """Whether clients may repeat messages stored by an earlier master or process."""
        now = time.monotonic()
        role = self._broker.replication.master_endpoint
        if role != self._role:
            self._role, self._role_since = role, now
            self._older = self._core.queues.topics_with_messages()
            self._older_end = self._core.store.max_offset
        return now - self._role_since <= AFTER_FAILOVER_SECONDS

    def _before_failover(self, topic: str, message_id: str) -> PutResult | None:
        """The result of an earlier attempt, from the index."""
        places = [name for name in (topic, TIMER_TOPIC, HALF_TOPIC) if name in self._older]
        found = (self._core.store.lookups.by_unique_key(name, message_id) for name in places)
        record = next((record for record in found if record is not None), None)
        if record is None or record.properties.get("REAL_TOPIC", topic) != topic:
            return None
        return PutResult(
            PutMessageStatus.PUT_OK,
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            end_offset=PhyOffset(record.physical_offset + record.size),
        )

    def _forget_old(self) -> None:
        before = time.monotonic() - REMEMBERED_SECONDS
        while self._known:
            oldest = next(iter(self._known.values()))
            if oldest[0] >= before and len(self._known) <= REMEMBERED_MAX:
                return
            self._known.popitem(last=False)
