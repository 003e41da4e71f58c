"""Sends: batches of producers are admitted, charged to quotas, stored and counted here.

A protocol decodes what its client sent to a `Send`, and encodes the result. Where messages wait for
their time or for a decision, their batch is stored in a topic of the node instead of its own.
"""

from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.core.throttle import throttled
from duolog_server.node.core.traffic import DELAY, NORMAL, TRANSACTION
from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.deferred.outbox import TOPIC as OUTBOX_TOPIC
from duolog_server.node.deferred.outbox import Outbox
from duolog_server.node.deferred.redirect import is_copy
from duolog_server.node.deferred.transactionservice import TransactionService
from duolog_server.node.engine.log import Outcome
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.moving.deliveries import PassedOn, kept
from duolog_server.node.moving.passing import Passing
from duolog_server.store.errors import BadMessage, RepeatUnknown, StoreError
from duolog_server.store.messagestore import PutBatch, PutResult, Singles, SinglesResult
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import KEPT_FLAGS
from duolog_server.store.status import PutMessageStatus

UNAVAILABLE = PutMessageStatus.SERVICE_NOT_AVAILABLE.value


@dataclass(slots=True)  # not frozen, as what a put makes: see `store.puts`
class Send:
    """A producer's batch, and when its consumers get it.

    Attributes:
        batch: for the queue that its consumers read.
        kind: as which it is counted, where nothing delays it.
        half_of: the producer group that decides on half messages; None for others.
        immunity_seconds: before the first check of half messages; 0: the default.
        delay_level: of RocketMQ's; 0: none.
        deliver_ms: delivery time, wall-clock ms; 0: none.
        copy_of: topic, queue and queue offset of the stored message that a batch of one copies:
            no limit for clients applies to it, and it keeps the flags of its original.
        no_wait: its answer waits neither for the disk nor for slaves.
    """

    batch: PutBatch
    kind: str = NORMAL
    half_of: str | None = None
    immunity_seconds: int = 0
    delay_level: int = 0
    deliver_ms: int = 0
    copy_of: tuple[str, int, QueueOffset] | None = None
    no_wait: bool = False


class Placed(NamedTuple):
    """A checked batch in the queue in which it is stored.

    topic: the one that its consumers read. kind: of its messages, for the counters. again: an
    earlier attempt may have been passed on to where its queue continues. own: of the node itself,
    whose outbox has it if its queue continues elsewhere.
    """

    topic: str
    kind: str
    batch: PutBatch
    no_wait: bool = False
    again: bool = False
    own: bool = False


class Sends:
    """Stores what producers send."""

    def __init__(
        self,
        core: Core,
        passing: Passing,
        delays: DelayService,
        transactions: TransactionService,
        outbox: Outbox,
    ) -> None:
        self._core = core
        self._passing = passing
        self._outbox = outbox
        self._delays = delays
        self._transactions = transactions

    def send(
        self, send: Send, user: str | None, *, admitted: bool = False
    ) -> tuple[PutResult, Outcome | None]:
        """Store a batch in a topic that is made if it is missing. See `put`.

        user: the caller; empty where there are no users; None for a batch that was checked, and
        charged to quotas, before. admitted: `Admission.closed` was asked just now. Raises the
        errors of `Admission.writable_topic`, `place` and `charge`.
        """
        batch = send.batch
        self._core.admission.writable_topic(batch.topic, user or "", queue_id=batch.queue_id)
        placed = self.place(send)
        if user is None:
            placed = placed._replace(own=True)
            placed.batch.waited_in += (OUTBOX_TOPIC,)
        elif self._core.throttle.on:
            self.charge(Who.at(user, batch.born_host.address), batch)
        return self.put(placed, admitted=admitted)

    def charge(self, who: Who, batch: PutBatch) -> None:
        """Charge the messages of a batch to quotas; last, as what is refused uses nothing.

        Raises Throttled.
        """
        if self._core.throttle.on:
            columns = batch.columns
            size = len(columns.bodies) + len(columns.properties)
            self.charge_bytes(who, batch.topic, size, columns.count)

    def charge_bytes(self, who: Who, topic: str, size: int, count: int) -> None:
        """As `charge`, by the bytes and the number of the messages."""
        throttle = self._core.throttle
        if throttle.on:
            wait = throttle.put(who, topic, size, count)
            if wait is not None:
                raise throttled(wait)

    def place(self, send: Send) -> Placed:
        """The batch to store: in its own queue, or in the one where it waits.

        Raises BadMessage, BadRequest; NotMaster where this master may lack the original of a copy.
        """
        batch, kind = send.batch, send.kind
        if send.copy_of is not None:
            batch = self._as_copy(batch, *send.copy_of)
        topic = batch.topic
        if send.half_of is not None:
            kind = TRANSACTION
            batch = self._transactions.half(batch, send.half_of, send.immunity_seconds)
        elif send.delay_level:
            kind = DELAY
            batch = self._delays.at_level(batch, send.delay_level)
        elif send.deliver_ms:
            kind = DELAY
            batch = self._delays.at_time(batch, send.deliver_ms, self._core.times.wall_ms())
        if batch.expect_offset is not None and batch.topic != topic:
            raise BadMessage("a delayed or half message cannot have an expected queue offset")
        return Placed(topic, kind, batch, send.no_wait)

    def _as_copy(self, batch: PutBatch, topic: str, queue_id: int, offset: QueueOffset) -> PutBatch:
        """A batch as the copy that it claims to be. Raises BadMessage if it is not one."""
        self._core.admission.check_knows()
        try:
            record = self._core.store.record_at(topic, queue_id, offset)
        except StoreError:  # damaged, or deleted meanwhile
            record = None
        if record is None or not is_copy(batch.columns, record):
            raise BadMessage(
                f"the message is not a copy of message {offset} of queue {queue_id} of topic "
                f"{topic[:200]!r}, as this node has it"
            )
        return replace(batch, accepted=True, sysflag=record.sysflag & KEPT_FLAGS)

    def put(self, placed: Placed, *, admitted: bool = False) -> tuple[PutResult, Outcome | None]:
        """Store a placed batch, unless puts are refused now: the result, and the future that its
        answer waits for (None: nothing).

        The caller answers, and then calls `Log.answered` or `Log.pump_soon`. Raises BadMessage,
        RepeatUnknown.
        """
        result, waiting = self.attempt(placed, admitted=admitted)
        self.count_refusal(result)
        return result, waiting

    def attempt(
        self, placed: Placed, *, admitted: bool = False
    ) -> tuple[PutResult, Outcome | None]:
        """As `put`, for a batch that is tried again if it is refused: a refusal is not counted.

        The result is a `PassedOn` where the queue continues elsewhere, or may: what it says is
        known with its outcome.
        """
        core, batch, held = self._core, placed.batch, self._passing.queues
        refused = None if admitted else core.admission.refused_put()
        if held and refused is None and not placed.own and (batch.topic, batch.queue_id) in held:
            return self._passed_on(placed)
        write = core.log.write
        result = refused or (self._outbox.stored(batch, write) if placed.own else write(batch))
        if result.status is not PutMessageStatus.PUT_OK:
            if result.moved_to is not None:
                return self._passed_on(placed)
            return result, None
        self._count(placed, result.count)
        return result, self._watched(core.log.settle(result.end_offset, placed.no_wait))

    def _count(self, placed: Placed, count: int) -> None:
        """Count messages that were stored here."""
        core, batch = self._core, placed.batch
        if count:
            core.log.count_in(count, len(batch.columns.bodies))
            core.traffic.receive(placed.topic, placed.kind, count, batch.columns)
            if placed.kind == DELAY:
                self._delays.count(placed.topic, batch, count)

    def _passed_on(self, placed: Placed) -> tuple[PutResult, Outcome | None]:
        placed = placed._replace(batch=kept(placed.batch))
        result, waiting = self._passing.pass_on(placed.batch, placed.again, placed.no_wait)
        if waiting is not None:
            waiting.add_done_callback(lambda _: self._count_here(placed, result))
        else:
            self._count_here(placed, result)
        return result, self._watched(waiting)

    def _count_here(self, placed: Placed, result: PutResult) -> None:
        """The group that stores a batch counts it: this one, if the queue did not move at last."""
        if isinstance(result, PassedOn) and result.store_host is None:
            self._count(placed, result.count)

    def put_singles(self, singles: Singles) -> tuple[SinglesResult, Outcome | None]:
        """As `put`, for messages of one topic that arrived together, none of them delayed.

        Where one of their queues is held, or moved, nothing is stored.
        """
        core, columns, held = self._core, singles.columns, self._passing.queues
        if held and any((singles.topic, queue_id) in held for queue_id in singles.queue_ids):
            return SinglesResult(PutMessageStatus.QUEUE_MOVED), None
        result, waiting = core.log.put_singles(singles)
        if result.places:
            core.traffic.receive(singles.topic, NORMAL, columns.count, columns)
        return result, self._watched(waiting)

    def count_refusal(self, result: PutResult) -> None:
        """Count a batch that was not stored; one that was stored counts nothing."""
        if result.status is not PutMessageStatus.PUT_OK:
            self.failed(result.status.value)

    def failed(self, status: str) -> None:
        """Count a batch that is not stored, or not known to be safe, by its status."""
        self._core.traffic.failures.add(status, 1)

    def refused(self, error: Exception) -> None:
        """Count a batch that is refused with an error."""
        self.failed(status_of(error))

    def _watched(self, waiting: Outcome | None) -> Outcome | None:
        if waiting is not None:
            waiting.add_done_callback(partial(self._waited, perf_counter()))
        return waiting

    def _waited(self, began: float, outcome: Outcome) -> None:
        if outcome.cancelled():
            return
        self._core.traffic.wait_seconds.observe(perf_counter() - began)
        status = outcome.result()
        if status is not PutMessageStatus.PUT_OK:
            self.failed(status.value)


# The status of a refused batch, by its error: the first that fits.
_STATUS: tuple[tuple[type[Exception], str], ...] = (
    (sdk.NotMaster, "NOT_MASTER"),
    (sdk.NoPermission, "NO_PERMISSION"),
    (sdk.UnknownTopic, "TOPIC_NOT_EXIST"),
    (sdk.Throttled, "THROTTLED"),
    (sdk.BadRequest, "MESSAGE_ILLEGAL"),
    (RepeatUnknown, "SEQUENCE_TOO_OLD"),
)


def status_of(error: Exception) -> str:
    """The status of a batch that is refused with an error: RocketMQ's where it has one."""
    if isinstance(error, BadMessage):
        return error.status.value
    return next((name for kind, name in _STATUS if isinstance(error, kind)), UNAVAILABLE)
