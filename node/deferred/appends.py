"""Append requests: a batch is stored in its queue, or where it waits for its delivery."""

from dataclasses import replace
from functools import partial
from time import perf_counter

import structlog
from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from node.core.core import Core
from node.core.traffic import DELAY, NORMAL, TRANSACTION
from node.deferred.delayservice import DelayService
from node.deferred.redirect import is_copy
from node.deferred.transactionservice import TransactionService
from node.engine.log import Outcome
from node.quotas.quotas import Who
from node.replication.roles import Replication
from node.wirecodec import PUT_STATUS
from store.columns import Columns
from store.errors import BadMessage, RepeatUnknown, StoreError
from store.messagestore import PutBatch, PutResult
from store.offsets import QueueOffset
from store.record import KEPT_FLAGS, Host
from store.status import PutMessageStatus

log = structlog.get_logger("duolog.node")

_EXPECTED_REFUSALS = (wire.NOT_MASTER, wire.IN_SYNC_REPLICAS_NOT_ENOUGH)
_FREQUENT_REFUSALS = (*_EXPECTED_REFUSALS, wire.THROTTLED)


def count_of(request: wire.AppendRequest) -> int:
    """The messages of a batch, whose columns are not checked yet."""
    return max(1, len(request.body_offsets) // 4 - 1)


class Appends:
    """Stores the batches of append requests and makes the replies."""

    def __init__(
        self,
        core: Core,
        replication: Replication,
        delays: DelayService,
        transactions: TransactionService,
        store_host: Host,
    ) -> None:
        """store_host: the address that message ids carry."""
        self._core = core
        self._throttle = core.throttle
        self._store_host = f"{store_host.address}:{store_host.port}"
        self._replication = replication
        self._delays = delays
        self._transactions = transactions

    def append(
        self,
        request: wire.AppendRequest,
        host: Host,
        bodies: bytes | memoryview | None = None,
        user: str | None = "",
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """Store a batch; the reply, and the future that it must wait for (None: nothing).

        bodies: if they are not in the request; they are not kept. user: whose it is; empty where
        there are no users; None for a batch that was checked, and let in by quotas, before. See
        `settled`.
        """
        if bodies is None:
            bodies = request.bodies
        reply = wire.AppendReply(id=request.id)
        refusal = self._core.admission.put(request, bodies)
        if refusal is not None:
            self._reject(reply, request, refusal.status, refusal.reason)
            if refusal.status not in _EXPECTED_REFUSALS:
                return reply, None
            return reply, self._replication.refusals.told_later(request.patience_ms)
        topic, kind = request.topic, NORMAL
        try:
            self._core.metadata.make_if_missing(topic, user or "")
        except sdk.Throttled as error:
            return self._reject(reply, request, wire.THROTTLED, str(error)), None
        except sdk.DuologError as error:
            return self._reject(reply, request, wire.SERVICE_NOT_AVAILABLE, str(error)), None
        if self._throttle.on and user is not None:  # last: what is refused uses nothing
            size = len(bodies) + len(request.properties)
            who = Who.at(user, host.address)
            wait = self._throttle.put(who, topic, size, count_of(request))
            if wait is not None:
                reply.retry_after_ms = wait.ms
                return self._reject(reply, request, wire.THROTTLED, wait.text), None
        if request.HasField("copied_from") and self._replication.may_be_behind():
            reason = "this new master has not yet read all messages of the last one: try again"
            return self._reject(reply, request, wire.NOT_MASTER, reason), None
        try:
            batch = PutBatch(
                topic,
                request.queue_id,
                Columns.from_wire(
                    bodies,
                    request.body_offsets,
                    request.properties,
                    request.property_offsets,
                ),
                request.born_time,
                host,
                request.flag,
                producer=request.producer_id,
                sequence=request.sequence,
                repeat_of=self._repeat_of(request),
                accepted=user is None,
            )
            if request.HasField("copied_from"):
                batch = self._as_copy(batch, request)
            if request.transaction_group:
                kind = TRANSACTION
                group, seconds = request.transaction_group, request.immunity_seconds
                batch = self._transactions.half(batch, group, seconds)
            elif request.delay_level:
                kind = DELAY
                batch = self._delays.at_level(batch, request.delay_level)
            elif request.deliver_time:
                kind = DELAY
                batch = self._delays.at_time(
                    batch, request.deliver_time, self._core.times.wall_ms()
                )
            result = self._core.log.write(batch)
        except BadMessage as error:
            return self._reject(reply, request, PUT_STATUS[error.status], error.reason), None
        except sdk.BadRequest as error:
            return self._reject(reply, request, wire.MESSAGE_ILLEGAL, str(error)), None
        except RepeatUnknown as error:
            return self._reject(reply, request, wire.SEQUENCE_TOO_OLD, str(error)), None
        if result.status is not PutMessageStatus.PUT_OK:
            status: wire.PutStatus = PUT_STATUS[result.status]
            return self._reject(reply, request, status, result.reason), None
        if result.count:
            self._core.log.count_in(result.count, len(bodies))
            self._core.traffic.receive(topic, kind, result.count, batch.columns)
            if kind is DELAY:
                self._delays.count(topic, batch, result.count)
        self._fill(reply, result)
        waiting = self._core.log.settle(result.end_offset, request.no_wait)
        if waiting is not None:
            waiting.add_done_callback(partial(self._waited, perf_counter()))
        return reply, waiting

    def _waited(self, began: float, outcome: Outcome) -> None:
        """What a batch waited for is known."""
        if not outcome.cancelled():
            self._core.traffic.wait_seconds.observe(perf_counter() - began)

    def settled(self, reply: wire.AppendReply, status: PutMessageStatus) -> None:
        """Set the status of a reply that waited; a refusal that did names who takes puts now."""
        if reply.status in _EXPECTED_REFUSALS:
            reply.master, reply.master_epoch = self._replication.next_master
        else:
            reply.status = PUT_STATUS[status]
            if status is not PutMessageStatus.PUT_OK:
                self._core.traffic.failures.add(status.value, 1)

    def _as_copy(self, batch: PutBatch, request: wire.AppendRequest) -> PutBatch:
        """A batch as the copy that it says it is: accepted before, and with the flags of its
        original's sender. Raises BadMessage for what is none.
        """
        place = request.copied_from
        try:
            record = self._core.store.record_at(
                place.topic, place.queue_id, QueueOffset(place.offset)
            )
        except StoreError:  # damaged, or deleted meanwhile
            record = None
        if record is None or request.transaction_group or not is_copy(batch.columns, record):
            raise BadMessage(
                f"it is no copy of the message {place.offset} that this node has of queue "
                f"{place.queue_id} of topic {place.topic[:200]!r}"
            )
        return replace(batch, accepted=True, sysflag=record.sysflag & KEPT_FLAGS)

    def _repeat_of(self, request: wire.AppendRequest) -> int | None:
        """The log offset above which the first attempt of a repeat lies; None for a first attempt.

        What the client knew to be confirmed may have been given up since, by an unclean election or
        a power cut of all replicas. In today's log, the first attempt may then lie below that
        offset.
        """
        if not request.again:
            return None
        return self._replication.history.held_from(request.known_end, request.known_nonce)

    def _reject(
        self,
        reply: wire.AppendReply,
        request: wire.AppendRequest,
        status: wire.PutStatus,
        reason: str,
    ) -> wire.AppendReply:
        # Clients that wait for a master retry often: not worth a log entry.
        tell = log.debug if status in _FREQUENT_REFUSALS else log.warning
        tell(
            "append refused",
            topic=request.topic[:200],
            queue_id=request.queue_id,
            status=wire.PutStatus.Name(status),
            reason=reason,
        )
        self._core.traffic.failures.add(wire.PutStatus.Name(status), 1)
        reply.status = status
        reply.reason = reason
        if status == wire.NOT_MASTER:
            reply.master, reply.master_epoch = self._replication.next_master
        return reply

    def _fill(self, reply: wire.AppendReply, result: PutResult) -> None:
        reply.status = wire.PUT_OK
        reply.count = result.count
        reply.queue_offset = result.queue_offset
        reply.physical_offset = result.physical_offset
        reply.store_time = result.store_time
        if result.count:
            reply.epoch_nonce = self._replication.nonce_at(result.physical_offset)
        if self._replication.master is not None:
            reply.master_epoch = self._replication.master.epoch
        reply.store_host = self._store_host
        for run in result.duplicates:
            reply.duplicates.add(
                count=run.end - run.first,
                topic=run.topic,
                queue_id=run.queue_id,
                queue_offset=run.queue_offset,
            )
