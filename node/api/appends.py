"""Append requests of the native API, by gRPC or frames: sends, and their results as replies."""

import asyncio

import structlog
from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.core.admission import Admission
from duolog_server.node.engine.log import Outcome
from duolog_server.node.moving.deliveries import UNKNOWN, PassedOn
from duolog_server.node.replication.roles import Replication
from duolog_server.node.service.requests import is_whole, send_of
from duolog_server.node.service.sends import Sends, status_of
from duolog_server.node.wirecodec import PUT_STATUS
from duolog_server.store.errors import BadMessage, RepeatUnknown
from duolog_server.store.messagestore import PutResult
from duolog_server.store.queueends import QueueKey
from duolog_server.store.record import Host
from duolog_server.store.status import WEAK, PutMessageStatus

log = structlog.get_logger("duolog.node")

_EXPECTED_REFUSALS = (wire.NOT_MASTER, wire.IN_SYNC_REPLICAS_NOT_ENOUGH)
_FREQUENT_REFUSALS = (*_EXPECTED_REFUSALS, wire.THROTTLED, wire.QUEUE_OFFSET_MISMATCH)


class Appends:
    """Stores the batches of append requests and makes the replies."""

    def __init__(
        self, admission: Admission, replication: Replication, sends: Sends, store_host: Host
    ) -> None:
        """store_host: the address that message ids carry."""
        self._admission = admission
        self._store_host = _named(store_host)
        self._replication = replication
        self._sends = sends

    def append(
        self,
        request: wire.AppendRequest,
        host: Host,
        bodies: bytes | memoryview | None = None,
        user: str = "",
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """Store a batch; the reply, and the future that it must wait for (None: nothing).

        bodies: if they are not in the request; they are not kept. user: whose it is; empty where
        there are no users. See `settled`.
        """
        if bodies is None:
            bodies = request.bodies
        reply = wire.AppendReply(id=request.id)
        closed = self._admission.closed()
        if closed is not None:
            status = wire.NOT_MASTER if closed.not_master else PUT_STATUS[closed.status]
            return self._reject(reply, request, status, closed.reason)
        if not is_whole(request, bodies):
            reason = "the batch's CRC does not match its bytes"
            return self._reject(reply, request, wire.CORRUPT_BATCH, reason)
        try:
            result, waiting = self._sends.send(
                send_of(request, host, bodies, self._repeat_of(request)), user, admitted=True
            )
        except (sdk.DuologError, BadMessage, RepeatUnknown) as error:
            if isinstance(error, sdk.Throttled):
                reply.retry_after_ms = error.retry_after_ms
            named: wire.PutStatus = getattr(wire.PutStatus, status_of(error))
            return self._reject(reply, request, named, str(error))
        key = request.topic, request.queue_id
        if waiting is not None and isinstance(result, PassedOn):
            return reply, self._when_known(reply, key, result, waiting)
        self._tell(reply, key, result)
        return reply, waiting

    def _when_known(
        self, reply: wire.AppendReply, key: QueueKey, result: PassedOn, waiting: Outcome
    ) -> Outcome:
        """The outcome of a batch that is passed on, after the reply tells what became of it."""
        told: Outcome = asyncio.get_running_loop().create_future()

        def known(_: Outcome) -> None:
            self._tell(reply, key, result)
            if not told.done():
                told.set_result(UNKNOWN if reply.status == wire.UNKNOWN_ERROR else result.status)

        waiting.add_done_callback(known)
        return told

    def _tell(self, reply: wire.AppendReply, key: QueueKey, result: PutResult) -> None:
        if result.status is PutMessageStatus.PUT_OK or result.status in WEAK:
            self._fill(reply, result)
            return
        reply.queue_offset = result.queue_offset  # where another was expected
        status = PUT_STATUS[result.status]
        if result.duplicates:  # of a moved queue: so part of the batch is stored
            status = wire.UNKNOWN_ERROR
        self._say_refused(reply, key, status, result.reason)

    def _repeat_of(self, request: wire.AppendRequest) -> int | None:
        """The log offset above which the first attempt of a repeat lies; None for a first attempt.

        What the client knew to be confirmed may have been given up since, by an unclean election or
        a power cut of all replicas. In today's log, the first attempt may then lie below that
        offset.
        """
        if not request.again:
            return None
        return self._replication.history.held_from(request.known_end, request.known_nonce)

    def settled(self, reply: wire.AppendReply, status: PutMessageStatus) -> None:
        """Set the status of a reply that waited; a refusal that did names who takes puts now."""
        if reply.status in _EXPECTED_REFUSALS:
            reply.master, reply.master_epoch = self._replication.next_master
        else:
            reply.status = PUT_STATUS[status]

    def _reject(
        self,
        reply: wire.AppendReply,
        request: wire.AppendRequest,
        status: wire.PutStatus,
        reason: str,
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """Count and answer a refusal; where the next master may take the batch, wait for that."""
        self._sends.failed(wire.PutStatus.Name(status))
        self._say_refused(reply, (request.topic, request.queue_id), status, reason)
        if status in _EXPECTED_REFUSALS:
            return reply, self._replication.refusals.told_later(request.patience_ms)
        return reply, None

    def _say_refused(
        self,
        reply: wire.AppendReply,
        key: QueueKey,
        status: wire.PutStatus,
        reason: str,
    ) -> None:
        # Clients that wait for a master retry often: not worth a log entry.
        tell = log.debug if status in _FREQUENT_REFUSALS else log.warning
        tell(
            "append refused",
            topic=key[0][:200],
            queue_id=key[1],
            status=wire.PutStatus.Name(status),
            reason=reason,
        )
        reply.status, reply.reason = status, reason
        if status == wire.NOT_MASTER:
            reply.master, reply.master_epoch = self._replication.next_master

    def _fill(self, reply: wire.AppendReply, result: PutResult) -> None:
        reply.status = wire.PUT_OK
        reply.queue_offset = result.queue_offset
        reply.physical_offset = result.physical_offset
        reply.store_time = result.store_time
        reply.store_host = self._store_host
        if isinstance(result, PassedOn) and result.stored_at is not None:
            reply.stored_at.group, reply.stored_at.queue_id = result.stored_at
        if isinstance(result, PassedOn) and result.store_host is not None:
            reply.store_host = _named(result.store_host)  # no count: this log has none of them
        elif result.count:
            reply.count = result.count
            reply.epoch_nonce = self._replication.nonce_at(result.physical_offset)
        if self._replication.master is not None:
            reply.master_epoch = self._replication.master.epoch
        for run in result.duplicates:
            reply.duplicates.add(
                count=run.end - run.first,
                topic=run.topic,
                queue_id=run.queue_id,
                queue_offset=run.queue_offset,
            )


def _named(host: Host) -> str:
    return f"{host.address}:{host.port}"
