"""The Messages service: append stream, pull with long polling, subscriptions, lookups."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import structlog
from duolog import _errors as sdk
from duolog._background import together
from duolog.wire import duolog_pb2 as wire
from duolog.wire import duolog_pb2_grpc as stubs
from grpc.aio import ServicerContext

from duolog_server.node.api.calls import Caller, Replies, reporting, unary
from duolog_server.node.appending import Appending
from duolog_server.node.consuming.longpoll import NOTHING_NEW, check_place, poll, within_room
from duolog_server.node.consuming.reading import Reader, Selection
from duolog_server.node.core.core import Core
from duolog_server.node.core.ports import Answers
from duolog_server.node.core.throttle import LOOK_AGAIN_SECONDS
from duolog_server.node.deferred.transactionservice import HALF_WORDS, Check, TransactionService
from duolog_server.node.engine.log import Outcome
from duolog_server.node.filters.sqlfilter import wanted
from duolog_server.node.filters.tagfilter import EVERYTHING, MessageFilter
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.node.service.lookups import Lookups
from duolog_server.node.service.publishservice import PublishService
from duolog_server.node.wirecodec import batch_to_wire, peer_host, record_to_wire
from duolog_server.store.errors import StoreError
from duolog_server.store.kernels import decode
from duolog_server.store.metadata import check_group
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import GetResult

log = structlog.get_logger("duolog.node")

QUEUES_PER_SUBSCRIPTION_MAX = 4096
CREDIT_MAX = 256 << 20
SCANNED_AT_ONCE = 100  # empty queues scanned before the event loop runs other work
HALVES_MAX = 100_000
CHECKERS_MAX = 10_000
CHECK_SECONDS = 0.5  # in which a producer takes a check
CHECK_PAUSE_SECONDS = 1.0
Appended = ServicerContext[wire.AppendRequest, wire.AppendReply]
# Replies in their order, and what each waits for; None after the last one.
Unanswered = asyncio.Queue[tuple[wire.AppendReply, Outcome | None] | None]


@dataclass(frozen=True, slots=True)
class MessagesParts:
    """The parts of a node that store and read messages for this service."""

    core: Core
    log: Answers
    limits: LimitsSection
    appends_of_call: Callable[[], Appending]
    reader: Reader
    publishes: PublishService
    transactions: TransactionService

    def reader_of(self, context: Caller) -> Who | None:
        """Whose quotas are asked before messages are sent in a call; None where there are none."""
        return who_calls(context) if self.core.throttle.on else None

    def connected(self, context: Caller) -> AbstractContextManager[None]:
        """While a stream is open. Raises Throttled where its caller has too many connections."""
        return self.core.throttle.joining(who_calls(context), context.peer())


def who_calls(context: Caller) -> Who:
    """Who makes the call that runs in this task."""
    return Who.at(name_of_caller(), peer_host(context.peer()).address)


class MessagesService(stubs.MessagesServicer):
    """Stores messages and reads them."""

    def __init__(self, parts: MessagesParts) -> None:
        self._parts = parts
        self._admission = parts.core.admission
        self._lookups = Lookups(parts.core)
        self.caught_up = parts.log.caught_up
        self._checkers: list[_Checker] = []
        self._turn = 0
        parts.transactions.askers.append(self._ask)

    # -- append --------------------------------------------------------------------------------

    async def Append(
        self,
        requests: AsyncIterator[wire.AppendRequest],
        context: ServicerContext[wire.AppendRequest, wire.AppendReply],
    ) -> None:
        """Store batches as they come; replies in the order of the requests."""
        throttle, who, peer = self._parts.core.throttle, who_calls(context), context.peer()
        async with reporting(context):  # of this alone: other errors leave it open what is stored
            throttle.joined(who, peer)
        try:
            await self._append(requests, context)
        finally:
            throttle.left(who, peer)

    async def _append(self, requests: AsyncIterator[wire.AppendRequest], context: Appended) -> None:
        host = peer_host(context.peer())
        log, appends = self._parts.log, self._parts.appends_of_call()
        if not log.waits:
            async for request in requests:
                reply, known = appends.append(request, host)
                if known is not None:  # another group stores it
                    appends.settled(reply, await known)
                try:
                    await context.write(reply)
                finally:
                    log.pump_soon()  # after the reply was sent
            return
        unanswered: Unanswered = asyncio.Queue(self._parts.limits.append_in_flight_max)
        async with together() as tasks:
            tasks.create_task(self._answer(unanswered, appends, context))
            async for request in requests:
                await unanswered.put(appends.append(request, host))
            await unanswered.put(None)

    @staticmethod
    async def _answer(
        unanswered: Unanswered, appends: Appending, replies: Replies[wire.AppendReply]
    ) -> None:
        """Write each reply once its outcome is known."""
        while (item := await unanswered.get()) is not None:
            reply, durable = item
            if durable is not None:
                appends.settled(reply, await durable)
            await replies.write(reply)

    # -- pull ----------------------------------------------------------------------------------

    @unary
    async def Pull(self, request: wire.PullRequest, context: Caller) -> wire.MessageBatch:
        """Read one batch; wait for messages if there are none yet."""
        reader, limits = self._parts.reader, self._parts.limits
        topic = self._admission.readable_queue(request.topic, request.queue_id)
        key = (request.topic, request.queue_id)
        check_place(key, topic.read_queues, request.queue_offset)
        chosen = wanted(request.tags, request.sql)
        count = min(request.max_messages or limits.pull_messages_max, limits.pull_messages_max)
        size = min(request.max_bytes or limits.pull_bytes_max, limits.pull_bytes_max)
        now = asyncio.get_running_loop().time()
        deadline = now + min(request.wait_ms, limits.poll_ms_max) / 1000
        offset, result = await self._read(
            context,
            key,
            Selection(chosen, count, size, who=self._parts.reader_of(context)),
            lambda selection: poll(reader, key, request.queue_offset, selection, deadline),
        )
        reader.delivered(key, "", result)
        columns = frozenset(request.columns)
        reply = batch_to_wire(key, offset, result, columns=columns)
        if result.count:
            newest = int(result.table[decode.OUT_PHY, -1])
            reply.suggest_endpoint = reader.suggested_endpoint(newest)
        return reply

    async def _read(
        self,
        context: Caller,
        key: QueueKey,
        selection: Selection,
        read: Callable[[Selection], Awaitable[tuple[int, GetResult]]],
    ) -> tuple[int, GetResult]:
        """A read that counts as not taken until its call is over. Raises Busy."""
        reader, address = self._parts.reader, who_calls(context).address
        offset, result, size = await within_room(reader, address, key, selection, read)
        context.add_done_callback(lambda _: reader.untaken.give(address, size))
        return offset, result

    # -- subscribe -----------------------------------------------------------------------------

    async def Subscribe(
        self,
        requests: AsyncIterator[wire.SubscribeRequest],
        context: ServicerContext[wire.SubscribeRequest, wire.MessageBatch],
    ) -> None:
        """Send batches of the subscribed queues as long as there is credit."""
        async with reporting(context):
            subscription = _Subscription(self._parts, context, who_calls(context))
            try:
                with self._parts.connected(context):
                    async with together() as tasks:
                        tasks.create_task(subscription.take_requests(requests))
                        await subscription.send_batches()
            finally:
                subscription.close()

    # -- sinks ---------------------------------------------------------------------------------

    @unary
    async def Stage(self, request: wire.StageRequest, context: Caller) -> wire.StageReply:
        """Store a batch for a sink; it stays invisible."""
        host, user = peer_host(context.peer()), name_of_caller()
        staged = await self._parts.publishes.stage(request.sink, request.batch, host, user)
        return wire.StageReply(staged=staged)

    @unary
    async def Publish(self, request: wire.PublishRequest, context: Caller) -> wire.PublishReply:
        """Make staged batches visible; reply when they are."""
        publishes = self._parts.publishes
        before = await publishes.publish(
            request.sink,
            request.batch,
            list(request.staged),
            request.contents,
            request.publisher,
        )
        return wire.PublishReply(before=before)

    @unary
    async def SinkState(
        self, request: wire.SinkStateRequest, context: Caller
    ) -> wire.SinkStateReply:
        """The last batch that a sink published."""
        return self._parts.publishes.state(request.sink)

    # -- transactions --------------------------------------------------------------------------

    @unary
    async def EndTransactions(
        self, request: wire.EndTransactionsRequest, context: Caller
    ) -> wire.EndTransactionsReply:
        """Commit half messages, or roll them back."""
        named = len(request.halves) + len(request.undecided)
        if not request.group or named > HALVES_MAX:
            raise sdk.BadRequest(
                f"name the producer group, and at most {HALVES_MAX} half messages per call"
            )
        transactions = self._parts.transactions
        await transactions.end(request.halves, request.commit, request.group)
        transactions.undecided(request.undecided, request.group)
        return wire.EndTransactionsReply()

    async def TransactionChecks(
        self,
        request: wire.TransactionChecksRequest,
        context: ServicerContext[wire.TransactionChecksRequest, wire.TransactionCheck],
    ) -> None:
        """Send checks to a producer while its stream is open and this node is the master."""
        async with reporting(context):
            self._admission.check_master()
            if len(self._checkers) >= CHECKERS_MAX:
                raise sdk.Busy(f"{CHECKERS_MAX} producers already wait for transaction checks")
            checker = _Checker(request.group)
            self._checkers.append(checker)
            try:
                with self._parts.connected(context):
                    await self._send_checks(checker, context)
            finally:
                self._checkers.remove(checker)

    async def _send_checks(
        self, checker: "_Checker", checks: Replies[wire.TransactionCheck]
    ) -> None:
        while True:
            given = await checker.next()
            self._admission.check_master()
            if given is not None:
                check, taken = given
                await checks.write(_check_to_wire(check))
                if not taken.done():
                    taken.set_result(None)

    async def _ask(self, check: Check) -> bool:
        """Send a check to one of the group's producers, in turn."""
        asked = [checker for checker in self._checkers if checker.group == check.group]
        if not asked:
            return False
        self._turn += 1
        turn = self._turn % len(asked)
        for checker in asked[turn:] + asked[:turn]:
            if await checker.give(check):
                return True
        return False

    # -- lookups -------------------------------------------------------------------------------

    @unary
    async def Find(self, request: wire.FindRequest, context: Caller) -> wire.FindReply:
        """Messages by id, unique key, or key and time."""
        if request.message_id:
            records = [self._lookups.by_id(request.message_id)]
        elif request.unique_key:
            records = [self._lookups.by_unique_key(request.topic, request.unique_key)]
        else:
            times = request.begin_time, request.end_time
            records = self._lookups.by_key(request.topic, request.key, request.max, *times)
        return wire.FindReply(messages=[record_to_wire(record) for record in records])


class _Checker:
    """One producer that receives checks."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._checks: asyncio.Queue[_Given] = asyncio.Queue(1)
        self._last: asyncio.Future[None] | None = None

    async def give(self, check: Check) -> bool:
        """Whether its stream took a check; at once where it has not taken the one before."""
        if self._last is not None and not self._last.done():
            return False
        taken = self._last = asyncio.get_running_loop().create_future()
        self._checks.put_nowait((check, taken))
        await asyncio.wait([taken], timeout=CHECK_SECONDS)
        return taken.done()

    async def next(self) -> "_Given | None":
        """The next check, or None after a timeout."""
        try:
            async with asyncio.timeout(CHECK_PAUSE_SECONDS):
                return await self._checks.get()
        except TimeoutError:
            return None


_Given = tuple[Check, asyncio.Future[None]]  # the latter is done once the stream took it


def _check_to_wire(check: Check) -> wire.TransactionCheck:
    found = record_to_wire(check.record)
    return wire.TransactionCheck(
        topic=check.record.properties.get("REAL_TOPIC", ""),
        half=check.origin,
        body=found.body,
        properties={k: v for k, v in found.properties.items() if k not in HALF_WORDS},
        born_time=found.born_time,
    )


class _Cursor:
    """The position of a subscription in one queue; notified when the queue gets messages."""

    __slots__ = ("_subscription", "key", "number", "offset")

    def __init__(
        self, subscription: "_Subscription", key: QueueKey, offset: int, number: int
    ) -> None:
        self._subscription = subscription
        self.key = key
        self.offset = offset
        self.number = number

    def set(self) -> None:
        """The queue may have something."""
        self._subscription.notify(self.key)


class _Subscription:
    """One Subscribe call: cursors, credit, and the queues that may have messages.

    The work is proportional to the number of queues with messages, not to the number of watched
    queues.
    """

    def __init__(self, parts: MessagesParts, batches: Replies[wire.MessageBatch], who: Who) -> None:
        self._parts = parts
        self._who = who
        self._throttle = parts.core.throttle
        self._delayed: dict[QueueKey, asyncio.TimerHandle] = {}  # by a quota
        self._board = parts.core.board
        self._batches = batches
        self._cursors: dict[QueueKey, _Cursor] = {}
        self._credit = 0
        self._wanted: MessageFilter = EVERYTHING
        self._group = ""
        self._shares = True  # with other members of the group
        self._batch_bytes = 512 << 10
        self._ready: dict[QueueKey, None] = {}  # may have messages, in order of service
        self._wake = asyncio.Event()
        self._ended = False  # the client's half of the stream
        self._refused: Exception | None = None  # because of an invalid request

    def notify(self, key: QueueKey) -> None:
        """A queue may have something."""
        self._ready[key] = None
        self._wake.set()

    async def take_requests(self, requests: AsyncIterator[wire.SubscribeRequest]) -> None:
        """Follow the client's requests until it closes its half of the stream.

        An error is raised by `send_batches`, so that no batch is cut off in the middle.
        """
        try:
            await self._take_requests(requests)
        except Exception as error:
            self._refused = error
        finally:
            self._ended = True
            self._wake.set()

    async def _take_requests(self, requests: AsyncIterator[wire.SubscribeRequest]) -> None:
        first = True
        async for request in requests:
            if first:
                self._wanted = wanted(request.tags, request.sql)
                if request.group:
                    check_group(request.group)
                    self._group = request.group
                    self._shares = not request.broadcasting
                if request.batch_bytes:
                    limit = self._parts.limits.pull_bytes_max
                    self._batch_bytes = max(1, min(request.batch_bytes, limit))
                first = False
            self._credit = min(CREDIT_MAX, self._credit + request.credit_bytes)
            for ref in request.remove:
                self._remove((ref.topic, ref.queue_id))
            if request.add:
                await self._parts.log.caught_up()
            for number, begin in enumerate(request.add, 1):
                self._add(begin, request.subscription)
                if number % SCANNED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._wake.set()

    def _add(self, begin: wire.QueueOffset, number: int) -> None:
        topic = self._parts.core.admission.readable_queue(begin.topic, begin.queue_id)
        key = (begin.topic, begin.queue_id)
        check_place(key, topic.read_queues, begin.offset)
        cursor = self._cursors.get(key)
        if cursor is None:
            if len(self._cursors) >= QUEUES_PER_SUBSCRIPTION_MAX:
                raise sdk.BadRequest(
                    f"more than {QUEUES_PER_SUBSCRIPTION_MAX} queues in one subscription"
                )
            if len(self._board) >= self._parts.limits.polls_max:
                raise sdk.Busy("too many calls already wait for messages (limits.polls_max)")
            cursor = self._cursors[key] = _Cursor(self, key, begin.offset, number)
            self._board.watch(key, cursor)
        cursor.offset, cursor.number = begin.offset, number
        self.notify(key)

    def _remove(self, key: QueueKey) -> None:
        self._ready.pop(key, None)
        delayed = self._delayed.pop(key, None)
        if delayed is not None:
            delayed.cancel()
        cursor = self._cursors.pop(key, None)
        if cursor is not None:
            self._board.unwatch(key, cursor)

    def close(self) -> None:
        """Stop watching."""
        for key in list(self._cursors):
            self._remove(key)

    async def send_batches(self) -> None:
        """Send batches as credit allows, until the client closes its half of the stream.

        Raises the error of a refused request.
        """
        while True:
            self._wake.clear()
            if self._refused is not None:
                raise self._refused
            if self._ended:
                return
            scanned = 0
            while self._ready and self._credit > 0:
                key = next(iter(self._ready))
                del self._ready[key]
                if await self._send_from(key):
                    self._ready[key] = None  # served again after the other queues
                    break
                scanned += 1
                if scanned % SCANNED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            else:
                await self._wake.wait()

    def _delay(self, key: QueueKey) -> bool:
        """Whether a queue waits for a quota; it is looked at again when it may be read."""
        before = self._delayed.pop(key, None)
        wait = self._throttle.read(self._who, key[0], self._group, again=before is not None)
        if before is not None:
            before.cancel()
        if wait is None:
            return False
        seconds = min(wait.ms / 1000, LOOK_AGAIN_SECONDS)
        loop = asyncio.get_running_loop()
        self._delayed[key] = loop.call_later(seconds, self.notify, key)
        return True

    async def _send_from(self, key: QueueKey) -> bool:
        """Send one batch of one queue; False if there is nothing to send now."""
        cursor = self._cursors.get(key)
        if cursor is None or (self._throttle.on and self._delay(key)):
            return False
        size = min(self._batch_bytes, max(1, self._credit))
        count = self._parts.limits.pull_messages_max
        group = self._group if self._shares else ""
        selection = Selection(self._wanted, count, size, group)
        reader, address = self._parts.reader, self._who.address
        if self._throttle.on:
            selection = reader.share(self._who, key[0], selection)

        async def read(narrowed: Selection) -> tuple[int, GetResult]:
            return cursor.offset, reader.read(key, cursor.offset, narrowed)

        try:
            _, result, held = await within_room(reader, address, key, selection, read)
        except StoreError as error:
            raise sdk.Unavailable(str(error)) from error
        try:
            return await self._send(key, cursor, result)
        finally:
            reader.untaken.give(address, held)

    async def _send(self, key: QueueKey, cursor: _Cursor, result: GetResult) -> bool:
        """Send what was read, unless it is nothing, or the queue was left while it waited."""
        nothing = result.status in NOTHING_NEW and cursor.offset <= result.max_offset
        if nothing or self._cursors.get(key) is not cursor:
            return False
        batch = batch_to_wire(key, cursor.offset, result, cursor.number)
        if result.count:
            newest = int(result.table[decode.OUT_PHY, -1])
            batch.suggest_endpoint = self._parts.reader.suggested_endpoint(newest)
            if self._throttle.on:
                self._parts.reader.sent(self._who, key[0], result)
        cursor.offset = result.next_offset
        self._credit -= len(result.bodies)
        self._cursors[key] = self._cursors.pop(key)  # the other queues come first
        self._parts.reader.delivered(key, self._group, result)
        await self._batches.write(batch)
        return True
