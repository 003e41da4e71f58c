"""The master's side of replication: which bytes each slave gets next, and what is confirmed.

Rules: an acknowledgement counts for the node that sent Hello in this session, never beyond what was
sent to it, and never backwards; replicas are counted by node, not by connection; the confirm offset
is the lowest offset that the required nodes hold, and never falls; a put is answered when the
confirm offset has passed it, in the order of offsets.

The owner passes every event once (`step`) and executes the effects; it requests the next frame when
a stream can be written.
"""

from collections.abc import Callable
from typing import Any

from duolog_server.ha import frames, handshake, identity
from duolog_server.ha.beginnings import STARTED, Beginning
from duolog_server.ha.crc32c import QUICK
from duolog_server.ha.epochs import (
    EPOCH_QUEUE,
    EPOCH_TOPIC,
    NO_EPOCH,
    Epoch,
    EpochEntry,
    barrier_body,
    next_epoch,
)
from duolog_server.ha.frames import (
    Ack,
    BadFrame,
    DamagedFrame,
    Hello,
    Refusal,
    Refuse,
    Reset,
    Truncate,
    Welcome,
)
from duolog_server.ha.groupstate import Replica
from duolog_server.ha.handshake import Stream, Verdict
from duolog_server.ha.localreplica import LocalReplica, was_never_synced
from duolog_server.ha.mandate import Mandate, ReplicaProgress
from duolog_server.ha.masterevents import (
    CONFIRMED,
    Close,
    Disconnected,
    Effect,
    Ended,
    Event,
    Flushed,
    Instructed,
    Received,
    Tick,
)
from duolog_server.ha.options import HaOptions, own_guarantee
from duolog_server.ha.progress import ConnectionState, RateLimit, SlaveRow, SlaveSession
from duolog_server.ha.waiters import GroupTransferService
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.errors import StoreError
from duolog_server.store.kernels.jit import U8
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.status import BrokerRole, PutMessageStatus

SESSIONS_MAX = 64
REFUSALS_MAX = 64
CONFIRM_DELAY_MS = 5  # a moved confirm offset waits so long for log bytes to travel with
_TRANSFER = ConnectionState.TRANSFER


class Master:
    """Replication of one log, from the side that writes it."""

    def __init__(
        self,
        replica: LocalReplica,
        options: HaOptions,
        snapshot: Callable[[], bytes] = lambda: b"",
        *,
        has_slaves: bool = True,
        mandate: Mandate | None = None,
    ) -> None:
        """Create a master that `open_epoch` starts.

        snapshot: the metadata tables as of now, for a slave that begins or comes back.
        has_slaves: a replication port is open. mandate: of an elected master, whose puts wait for
        the whole SyncStateSet; None if the role is fixed.
        """
        self.mandate = mandate
        self.barrier_end = 0  # earlier masters stored what is below this epoch's own records
        self._has_slaves = has_slaves
        self.store = replica.store
        self.options = options
        self.me = replica.me
        self.identity = replica.identity
        self.history = replica.history
        self.epoch = replica.history.last_epoch
        self.opened = False
        self.sessions: dict[int, SlaveSession] = {}
        self.group_transfer = GroupTransferService(options.slave_timeout)
        self.push2slave_max_offset = 0
        self.refusals: dict[str, tuple[Refuse, int]] = {}
        self.damaged_frames = 0  # received
        self._last_sessions: dict[Replica, SlaveSession] = {}
        self.violations = 0  # connections ended because a peer broke the protocol
        self._snapshot = snapshot
        self._numbers = 0
        sync = self.store.options.broker_role is BrokerRole.SYNC_MASTER
        self.slaves_needed = options.in_sync_replicas - 1 if sync else 0  # where the role is fixed
        # Puts wait for the confirm offset.
        self.promises = mandate is not None or self.slaves_needed > 0
        self.ack_durable = own_guarantee(options, self.store.options).durable_acks

    @property
    def replica(self) -> LocalReplica:
        """The state of this node's replica."""
        return LocalReplica(self.store, self.me, self.identity, self.history)

    @property
    def syncs(self) -> bool:
        """A put waits for this node's disk because its group promises so."""
        return self.mandate is not None and self.mandate.guarantee.sync_flush

    @property
    def _acks_durable(self) -> bool:
        """Whether acks must be durable: as configured, or as the group promises."""
        mandate = self.mandate
        return self.ack_durable or (mandate is not None and mandate.guarantee.durable_acks)

    # -- events --------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: MonoMs) -> list[Effect]:
        """Effects of an event."""
        match event:
            case Received(number, data):
                return self._receive(number, data, now_ms)
            case Flushed():
                return self._advance(now_ms)
            case Instructed(mandate):
                return self._instructed(mandate, now_ms)
            case Disconnected(number):
                self._disconnect(number)
                return []
            case Tick():
                return self._tick(now_ms)
            case Ended():
                return [*self.group_transfer.fail_all()]

    def _instructed(self, mandate: Mandate, now_ms: MonoMs) -> list[Effect]:
        told, self.mandate = self._acks_durable, mandate
        effects = self._advance(now_ms)
        if self._acks_durable != told:  # slaves learn what counts when they connect
            for session in list(self.sessions.values()):
                effects += self._close(session, "the group's guarantee changed: connect again")
        return effects

    # -- the mastership ------------------------------------------------------------------------

    def open_epoch(
        self,
        nonce: int,
        wall_ms: WallMs,
        number: Epoch = NO_EPOCH,
        began: Beginning = STARTED,
    ) -> None:
        """Begin a mastership: the barrier record comes before anything else it writes.

        number: the epoch an election gave; NO_EPOCH: the next one that is known here. began: why,
        for operators.
        Readers see what was confirmed before, and the rest as replicas confirm it.
        Raises OSError or StoreError if the store cannot be written: nothing may be put then and
        no slave connects, until a later call succeeds.
        """
        if self._has_slaves:
            self._cut_torn()
        if self.promises:
            self.store.hide_from(self.store.known_confirmed)
        epoch = number or next_epoch(self.history.last_epoch, self.identity.promised_epoch)
        if epoch <= self.history.last_epoch or epoch < self.identity.promised_epoch:
            raise StoreError(f"epoch {epoch} is not newer than the newest one known here")
        self.identity = identity.promise(self.store.disk, self.identity, epoch)
        # Whatever role this node has later, its readers see no more than was confirmed.
        self.identity = identity.follow(self.store.disk, self.identity, self.promises)
        body = barrier_body(epoch, nonce, self.me.node, began)
        batch = PutBatch(EPOCH_TOPIC, EPOCH_QUEUE, Columns.of([body]), wall_ms, accepted=True)
        result = self.store.put(batch, wall_ms)
        if result.status is not PutMessageStatus.PUT_OK:
            raise StoreError(f"cannot open an epoch: {result.status.value} {result.reason}")
        opened = self.history.open(EpochEntry(epoch, result.physical_offset, nonce))
        assert opened, "a new epoch follows all known ones"
        self.history.save(self.store.disk)
        self.epoch = epoch
        self.barrier_end = result.end_offset
        self.opened = True

    def renew(self, incarnation: int) -> None:
        """Become another replica, durably: this mastership is over."""
        self.identity = identity.renew(self.store.disk, self.identity, incarnation)

    def _cut_torn(self) -> None:
        """Cut where a power cut left a hole among bytes that were never synced.

        Without replicas the records after the hole are kept. Replicas, however, hold other bytes
        there, or none, and a log that diverges from theirs is useless. Other damage is kept for
        repair.
        """
        for found in sorted(self.store.log.corrupt_ranges):
            if was_never_synced(self.store, found):
                self.store.events.problem(
                    f"log cut at {found.start}: the rest was never fully synced"
                )
                self.store.truncate(PhyOffset(found.start))
                self.history.truncate(found.start)
                return

    # -- puts ----------------------------------------------------------------------------------

    def in_sync(self) -> int:
        """Nodes that have the log up to ha_slave_fallbehind_max, this one included."""
        floor = self.store.log.wrote_offset - self.options.ha_slave_fallbehind_max
        nodes = {s.node for s in self._serving() if s.received > floor}
        return 1 + len(nodes)

    def refusal(self) -> str:
        """Why a put may not be stored now, empty if it may (IN_SYNC_REPLICAS_NOT_ENOUGH)."""
        if self.mandate is not None:
            return self._set_too_small(self.mandate)
        if not self.slaves_needed or self.options.min_in_sync_replicas == 1:
            return ""
        found = self.in_sync()
        if found >= self.options.min_in_sync_replicas:
            return ""
        return f"{found} of {self.options.min_in_sync_replicas} required replicas are in sync"

    def _set_too_small(self, mandate: Mandate) -> str:
        if not mandate.opened:
            return "the group has just been formed: no other replica is in sync yet"
        needed = max(self.options.in_sync_replicas, mandate.guarantee.in_sync_replicas)
        progress = self.progress(MonoMs(0))
        found = 1 + sum(1 for replica in mandate.members if replica in progress)
        return "" if found >= needed else f"{found} of {needed} required replicas are in sync"

    def await_slaves(self, end_offset: int, now_ms: MonoMs, token: Any) -> PutMessageStatus | None:
        """The status of a stored put, or None if `token` will be released later."""
        mandate = self.mandate
        if mandate is not None and mandate.required == {mandate.me}:
            self._raise_confirmed(now_ms)  # no acknowledgement will follow
        if not self.promises or end_offset <= self._confirmed():
            return PutMessageStatus.PUT_OK
        if mandate is None and self.in_sync() < self.options.in_sync_replicas:
            return PutMessageStatus.SLAVE_NOT_AVAILABLE
        self.group_transfer.put_request(end_offset, now_ms, token)
        return None

    # -- an elected master ---------------------------------------------------------------------

    def is_over(self, now_ms: MonoMs) -> bool:
        """The lease's deadline has passed: nothing more may be stored or acknowledged."""
        return self.mandate is not None and now_ms >= self.mandate.deadline_ms

    def stopped(self, now_ms: MonoMs) -> str:
        """Why this node refuses puts as a master right now, empty if it accepts them."""
        if self.is_over(now_ms):
            return "its lease expired"
        return self.mandate.paused if self.mandate is not None else ""

    @property
    def epoch_confirmed(self) -> bool:
        """The barrier of this epoch is on all required replicas."""
        return self.opened and self._confirmed() >= self.barrier_end

    def held_by(self, replica: Replica) -> int:
        """Offset that a connected replica has acknowledged, durably if required; 0 for none."""
        reached = self.progress(MonoMs(0)).get(replica)
        return reached.held if reached is not None else 0

    @property
    def log_end(self) -> int:
        """The end of the log."""
        return self.store.log.max_offset

    @property
    def join_floor(self) -> int:
        """The offset that a replica must hold to join the SyncStateSet."""
        return max(self._confirmed(), self.barrier_end)

    @property
    def patience_ms(self) -> int:
        """How long a live member may be disconnected or lag."""
        return self.options.ha_max_time_slave_not_catchup

    def progress(self, now_ms: MonoMs) -> dict[Replica, ReplicaProgress]:
        """The offset of each connected replica, and its lag in time."""
        end = self.store.log.max_offset
        return {
            Replica(s.node, s.incarnation): ReplicaProgress(self._counted(s), s.lag_ms(end, now_ms))
            for s in self._serving()
        }

    def _confirmed(self) -> int:
        return self.store.replicated_offset or 0

    # -- confirm offset ------------------------------------------------------------------------

    def _advance(self, now_ms: MonoMs) -> list[Effect]:
        """Raise the confirm offset as far as the replicas allow, and release its waiters."""
        if not self.promises or not self._raise_confirmed(now_ms):
            return []
        # Answers first, dispatch after.
        return [*self.group_transfer.notify_transfer_some(self._confirmed()), CONFIRMED]

    def _raise_confirmed(self, now_ms: MonoMs) -> bool:
        if self.is_over(now_ms):
            return False
        candidate = self._held_by_enough()
        if candidate <= self._confirmed():
            return False
        self.store.confirm(PhyOffset(candidate))
        return True

    def _held_by_enough(self) -> int:
        """Offset up to which this node and enough others hold the log; 0 if too few do."""
        if self.mandate is not None:
            own = self.store.flushed_offset if self.syncs else self.store.local_offset
            held = self.mandate.held(own, self.progress(MonoMs(0)))
            # Records of earlier epochs are confirmed together with this one's barrier.
            return held if held >= self.barrier_end else 0
        offsets = sorted(self._offsets_by_node().values(), reverse=True)
        if len(offsets) < self.slaves_needed:
            return 0
        return min(self.store.local_offset, offsets[self.slaves_needed - 1])

    def _offsets_by_node(self) -> dict[str, int]:
        """Acknowledged offsets of connected slaves, one row per node."""
        found: dict[str, int] = {}
        for session in self._serving():
            found[session.node] = self._counted(session)
        return found

    def _counted(self, session: SlaveSession) -> int:
        return session.durable if self._acks_durable else session.received

    def _serving(self) -> list[SlaveSession]:
        return [s for s in self.sessions.values() if s.acknowledged]

    def validate(self, now_ms: MonoMs) -> str:
        """The invariant that this master breaks between two events, empty for none.

        All that enough replicas hold is confirmed, and no put waits below the confirm offset:
        nothing else would answer it before the next acknowledgement, and that may be a heartbeat's.
        """
        held = 0 if self.is_over(now_ms) or not self.promises else self._held_by_enough()
        if held > self._confirmed():
            return f"enough replicas hold {held}, only {self._confirmed()} is confirmed"
        first = self.group_transfer.first
        if first is not None and first <= self._confirmed():
            return f"a put up to {first} waits, {self._confirmed()} is confirmed"
        return ""

    # -- connections ---------------------------------------------------------------------------

    def connect(self, now_ms: MonoMs) -> int | None:
        """A peer connected: its session's number; None if there is no room."""
        if len(self.sessions) >= SESSIONS_MAX or not self.opened:
            return None
        self._numbers += 1
        self.sessions[self._numbers] = SlaveSession(
            self._numbers,
            RateLimit(self.options.max_ha_transfer_byte_in_second),
            last_heard_ms=now_ms,
            last_sent_ms=now_ms,
        )
        return self._numbers

    def _disconnect(self, number: int) -> None:
        session = self.sessions.pop(number, None)
        if session is not None:
            session.state = ConnectionState.SHUTDOWN

    def _receive(self, number: int, data: bytes, now_ms: MonoMs) -> list[Effect]:
        session = self.sessions.get(number)
        if session is None:
            return []
        try:
            frame = frames.decode(data)
        except BadFrame as error:
            self.damaged_frames += isinstance(error, DamagedFrame)
            return self._violation(session, f"bad frame: {error}")
        session.last_heard_ms = now_ms
        if isinstance(frame, Ack):
            return self._acknowledged(session, frame, now_ms)
        if isinstance(frame, Hello) and session.state is ConnectionState.HANDSHAKE:
            return self._hello(session, frame, now_ms)
        return self._violation(session, f"{type(frame).__name__} out of order")

    def _violation(self, session: SlaveSession, reason: str) -> list[Effect]:
        self.violations += 1
        return self._close(session, reason)

    def _close(self, session: SlaveSession, reason: str) -> list[Effect]:
        self._disconnect(session.number)
        return [Close(session.number, reason)]

    def _hello(self, session: SlaveSession, hello: Hello, now_ms: MonoMs) -> list[Effect]:
        verdict = handshake.judge(hello, self.replica, self.options.sync_from_last_file)
        verdict = self._older_copy(hello, verdict) or verdict
        match verdict:
            case Refuse(code=code):
                session.state = ConnectionState.SUSPEND
                if code is not Refusal.CLUSTER:  # strangers are not remembered
                    self._remember(hello.node, verdict, now_ms)
                session.outbox.append(frames.encode(verdict))
                return []
            case Truncate() | Reset():
                session.outbox.append(frames.encode(verdict))
                return []
            case Stream(start):
                return self._welcome(session, hello, start, now_ms)

    def _older_copy(self, hello: Hello, verdict: Verdict) -> Refuse | None:
        """Refuse a required replica that lacks bytes it acknowledged: it is no longer that replica.

        All required replicas hold what is confirmed. One that comes back with less has another
        disk than it had, or damage in its log: it must not be elected before it has caught up.
        """
        replica = Replica(hello.node, hello.incarnation)
        if self.mandate is None or replica not in self.mandate.required:
            return None
        match verdict:
            case Stream(keeps) | Truncate(end=keeps) if keeps < self._confirmed():
                pass
            case Reset():
                keeps = 0
            case _:
                return None
        return Refuse(
            self.epoch,
            Refusal.OLDER_COPY,
            f"{replica} is in the SyncStateSet but holds the log only up to {keeps}, "
            f"below the confirm offset {self._confirmed()}: its directory is an older "
            "copy, or its log is damaged",
        )

    def _remember(self, node: str, refuse: Refuse, now_ms: MonoMs) -> None:
        self.refusals.pop(node, None)
        self.refusals[node] = (refuse, now_ms)
        while len(self.refusals) > REFUSALS_MAX:
            del self.refusals[next(iter(self.refusals))]

    def _welcome(
        self, session: SlaveSession, hello: Hello, start: int, now_ms: MonoMs
    ) -> list[Effect]:
        effects: list[Effect] = []
        for other in list(self.sessions.values()):
            if other is not session and other.node == hello.node:
                effects += self._close(other, "the slave has reconnected")
        self.refusals.pop(hello.node, None)
        session.state = _TRANSFER
        session.node, session.endpoint = hello.node, hello.endpoint
        session.incarnation = hello.incarnation
        session.start = session.sent = session.received = start
        session.begins_after(self._last_session(session), self.store.log.max_offset, now_ms)
        session.confirm_sent = self.store.confirm_offset
        session.whole_crc = hello.whole_crc and QUICK
        welcome = Welcome(
            self.epoch,
            start,
            session.confirm_sent,
            self.me.node,
            self.me.endpoint,
            self._acks_durable,
            self.promises,
            self.options.ha_send_heartbeat_interval,
            self.options.ha_housekeeping_interval,
            self.history.entries,
            self._snapshot(),
            session.whole_crc,
        )
        session.outbox.append(frames.encode(welcome))
        return effects

    def _last_session(self, session: SlaveSession) -> SlaveSession | None:
        """The session before this one of the same replica."""
        key = Replica(session.node, session.incarnation)
        last = self._last_sessions.pop(key, None)
        self._last_sessions[key] = session
        while len(self._last_sessions) > REFUSALS_MAX:
            del self._last_sessions[next(iter(self._last_sessions))]
        return last

    def _acknowledged(self, session: SlaveSession, ack: Ack, now_ms: MonoMs) -> list[Effect]:
        wrong = self._wrong(session, ack)
        if wrong:
            return self._violation(session, f"bad acknowledgement: {wrong}")
        session.received, session.durable = ack.received, ack.durable
        session.acknowledged = True
        session.note_lag(self.store.log.max_offset, now_ms)
        self.push2slave_max_offset = max(self.push2slave_max_offset, self._counted(session))
        return self._advance(now_ms)

    def _wrong(self, session: SlaveSession, ack: Ack) -> str:
        """Why an acknowledgement is invalid, empty if it is valid."""
        if session.state is not _TRANSFER:
            return "before the handshake"
        if (ack.node, ack.incarnation) != (session.node, session.incarnation):
            return f"for node {ack.node!r}, this is {session.node!r}"
        if ack.epoch != self.epoch:
            return f"of epoch {ack.epoch}, this is {self.epoch}"
        if not session.received <= ack.received <= session.sent:
            return f"received {ack.received} is outside [{session.received}, {session.sent}]"
        if not session.durable <= ack.durable <= ack.received:
            return f"durable {ack.durable} is outside [{session.durable}, {ack.received}]"
        return ""

    # -- sending -------------------------------------------------------------------------------

    def next_frame(self, number: int, now_ms: MonoMs) -> bytes | None:
        """The next frame to send on a connection, None if there is none now."""
        session = self.sessions.get(number)
        if session is None:
            return None
        if session.outbox:
            session.last_sent_ms = now_ms
            return session.outbox.popleft()
        if session.state is not _TRANSFER:
            return None
        data = self._chunk(session, now_ms)
        confirm = self.store.confirm_offset
        if data is not None:
            frame = frames.chunk_frame(self.epoch, session.sent, confirm, data, session.whole_crc)
            session.sent += len(data)
            session.rate.sent(len(data), now_ms)
        elif self._heartbeat_due(session, confirm) <= now_ms:
            end = self.store.log.max_offset
            frame = frames.encode(frames.Heartbeat(self.epoch, end, confirm, session.sent))
        else:
            return None
        session.confirm_sent = confirm
        session.last_sent_ms = now_ms
        return frame

    def _chunk(self, session: SlaveSession, now_ms: MonoMs) -> U8 | None:
        """The next bytes for a slave, cut at a segment's end; None if it must wait."""
        log = self.store.log
        if session.sent >= log.max_offset:
            return None
        in_flight = session.sent - session.received
        window = self.options.ha_in_flight_max - in_flight
        if window <= 0:
            # A slave acknowledges whole records: one larger than the window must be sent in full.
            window = log.record_bytes(session.received) - in_flight
        size = min(self.options.ha_transfer_batch_size, window)
        if size <= 0 or session.rate.wait_ms(now_ms):
            return None
        data = log.get_data(session.sent)[:size]
        return data if len(data) else None  # retention was faster: see tick

    def _heartbeat_due(self, session: SlaveSession, confirm: int) -> int:
        if confirm > session.confirm_sent:
            return session.last_sent_ms + CONFIRM_DELAY_MS
        return session.last_sent_ms + self.options.ha_send_heartbeat_interval

    def wait_ms(self, number: int, now_ms: MonoMs) -> int:
        """Ms until `next_frame` has a frame, if nothing else happens."""
        session = self.sessions.get(number)
        if session is None or session.state is not _TRANSFER:
            return self.options.ha_send_heartbeat_interval
        wait = max(0, self._heartbeat_due(session, self.store.confirm_offset) - now_ms)
        if session.sent < self.store.log.max_offset:
            limited = session.rate.wait_ms(now_ms)
            if limited:
                wait = min(wait, limited)
        return wait

    # -- time ----------------------------------------------------------------------------------

    def _tick(self, now_ms: MonoMs) -> list[Effect]:
        """Close connections to silent peers, and answer puts whose deadline has passed."""
        effects: list[Effect] = []
        silent_since = now_ms - self.options.ha_housekeeping_interval
        for session in list(self.sessions.values()):
            if session.last_heard_ms < silent_since:
                effects += self._close(session, "heartbeat timeout")
            elif session.state is _TRANSFER and session.sent < self.store.log.min_offset:
                effects += self._close(session, "the segments it still needs were deleted")
            elif session.state is _TRANSFER and self._lacks(session.sent):
                effects += self._close(
                    session, f"this log has no segment for offset {session.sent}: repair it first"
                )
        return [*effects, *self.group_transfer.expire(now_ms)]

    def _lacks(self, offset: int) -> bool:
        """Tell whether a missing segment is what a slave would need next."""
        log = self.store.log
        return log.min_offset <= offset < log.max_offset and log.queue.find(offset) is None

    # -- status --------------------------------------------------------------------------------

    def rows(self, now_ms: MonoMs) -> list[SlaveRow]:
        """The state of the slaves, and of those that were refused lately."""
        end = self.store.log.max_offset
        floor = end - self.options.ha_slave_fallbehind_max
        found = [
            SlaveRow(
                s.node,
                s.endpoint,
                s.state,
                s.sent,
                s.received,
                s.durable,
                end - s.received,
                s.lag_ms(end, now_ms),
                s.acknowledged and s.received > floor,
            )
            for s in self.sessions.values()
            if s.state is _TRANSFER
        ]
        found += [
            SlaveRow(
                node,
                "",
                ConnectionState.SUSPEND,
                0,
                0,
                0,
                0,
                0,
                False,
                f"{refuse.code.name}: {refuse.reason}",
            )
            for node, (refuse, _) in self.refusals.items()
        ]
        return sorted(found, key=lambda row: row.node)

    def read_endpoint(self) -> str:
        """Client address of the slave with the longest log, for lagging readers; empty for none."""
        serving = [s for s in self._serving() if s.endpoint]
        best = max(serving, key=lambda s: s.received, default=None)
        return best.endpoint if best is not None else ""
