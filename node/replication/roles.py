"""Replication in a node: creates the machine of the node's role and executes its effects.

The machines (`ha.master`, `ha.slave`) decide; their effects are executed here with futures, streams
and tasks.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog
from duolog._machine import boot_id

from duolog_server.ha import identity, masterevents
from duolog_server.ha.beginnings import beginning
from duolog_server.ha.epochs import (
    NO_EPOCH,
    Epoch,
    EpochHistory,
    Mastership,
    Masterships,
    holds_what_it_noted,
    recover_history,
)
from duolog_server.ha.failoverevents import Lead
from duolog_server.ha.identity import Identity, LastRun
from duolog_server.ha.localreplica import LocalReplica, Member
from duolog_server.ha.master import Master
from duolog_server.ha.masterevents import Effect
from duolog_server.ha.slave import Slave
from duolog_server.node.engine.log import Log, Outcome
from duolog_server.node.replication.keyproof import KeyProof, Marks
from duolog_server.node.replication.slavestream import Listener, ReplicationClient, Upstream
from duolog_server.node.runtime.config import Config
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.disk import no_room
from duolog_server.store.errors import StoreError
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.recovery import RecoveryReport
from duolog_server.store.status import BrokerRole, PutMessageStatus

log = structlog.get_logger("duolog.ha")

OPEN_AGAIN_MS = 2000
REFUSED_MS = 3000  # for want of replicas, before it is logged: they come and go at elections
Connection = tuple[Master, int]  # a session of one mastership


class Tables(Protocol):
    """The metadata tables, which a master sends to its slaves."""

    def snapshot_bytes(self) -> bytes:
        """The current tables."""

    def adopt_snapshot(self, data: bytes) -> None:
        """Take the master's tables, as of the handshake."""

    def has_applied(self, end: int) -> bool:
        """Whether all changes below a log offset are applied."""


class Replication:
    """The node's role in its replica group: owns the master's or the slave's machine."""

    def __init__(self, log_: Log, config: Config, advertised: str, tables: Tables) -> None:
        """advertised: this node's address for clients."""
        self._log = log_
        self._config = config
        self._advertised = advertised
        node = config.node
        self._me = Member(node.cluster, node.group, node.name, advertised)
        self._tables = tables
        self.options = config.ha
        tls = config.ha_tls()
        self._credentials = tls.of_channel().now if tls is not None else None
        self._context = tls.context_of_channel().now if tls is not None else None
        self.proof: KeyProof | None = None  # nodes without a key file prove nothing
        self.master: Master | None = None
        self.slave: Slave | None = None
        self.follower: ReplicationClient | None = None
        self.elected = log_.store.options.broker_role is BrokerRole.AUTO
        self.known_master: Callable[[], tuple[str, int]] = lambda: ("", 0)
        self._masterships = Masterships(log_.store)
        self.refusals = Refusals(self._settled)
        self._tried_ms = MonoMs(0)
        self._refused_since_ms: MonoMs | None = None
        self._refusal_logged = False
        self._senders: dict[Connection, Callable[[], None]] = {}
        self._calls: dict[Connection, asyncio.Future[None]] = {}

    def prove(self, marks: Marks) -> None:
        """Prove to the other nodes of the group that this one has the key, and have them do so."""
        required = self._config.access.node_proof == "required"
        self.proof = KeyProof(marks, self._me, required=required)

    # -- life ----------------------------------------------------------------------------------

    def open(self, report: RecoveryReport, wall_ms: WallMs) -> None:
        """Open after recovery: load the replica's identity; a master opens its epoch.

        Blocks on the disk. Raises OSError, StoreError, BadStoreFile.
        """
        store = self._log.store
        history = recover_history(store)
        held_all = holds_what_it_noted(store, history)
        who = identity.settle(
            store.disk,
            Identity(self._me.node, secrets.randbits(64), boot_id=boot_id()),
            LastRun(
                log_empty=store.log.max_offset == store.log.min_offset,
                abnormal=report.abnormal,
                acks_durable=store.options.sync_flush,
                lacks_confirmed=report.lacks_confirmed or not held_all,
            ),
        )
        store.checkpoint.settle()
        replica = LocalReplica(store, self._me, who, history)
        if store.role is BrokerRole.SLAVE:
            self.slave = Slave(replica)
        else:
            self._open_mastership(replica, wall_ms)

    def _open_mastership(self, replica: LocalReplica, wall_ms: WallMs) -> None:
        self.master = Master(
            replica,
            self.options,
            self._tables.snapshot_bytes,
            has_slaves=bool(self._config.ha.listen),
        )
        self._open_epoch(wall_ms)

    def _open_epoch(self, wall_ms: WallMs) -> None:
        """Begin the mastership. A full disk stops puts, but not readers, and is retried."""
        assert self.master is not None, "a master opens epochs"
        self._tried_ms = self._log.times.mono_ms()
        try:
            self.master.open_epoch(secrets.randbits(64), wall_ms)
        except OSError as error:
            if not no_room(error):
                raise
            log.error("no disk space to open an epoch: puts are refused", reason=error.strerror)
        except StoreError as error:
            log.error("cannot open an epoch: puts are refused", reason=str(error))
        else:
            log.info("mastership", epoch=self.master.epoch, role=self.master.store.role.value)

    # -- changes of role -----------------------------------------------------------------------

    def become_master(self, lead: Lead, wall_ms: WallMs) -> Master:
        """A slave that was elected and does not follow opens its epoch.

        If it raises OSError or StoreError, the node remains a slave.
        """
        store, slave = self._log.store, self.slave
        assert slave is not None, "only a slave is elected"
        store.change_role(BrokerRole.SYNC_MASTER)
        master = Master(
            slave.replica, self.options, self._tables.snapshot_bytes, mandate=lead.mandate
        )
        since_ms, now_ms = lead.unled_since_ms, self.mono_ms()
        began = beginning(lead.cause, since_ms, slave.followed_ms, now_ms)
        try:
            master.open_epoch(secrets.randbits(64), wall_ms, lead.epoch, began)
        except (OSError, StoreError):
            store.change_role(BrokerRole.SLAVE)
            slave.identity = master.identity
            raise
        self.master, self.slave = master, None
        return master

    def become_slave(self) -> None:
        """End a mastership; waiting puts end with an unknown result."""
        master, self.master = self.master, None
        if master is None:
            return
        self.perform(master.step(masterevents.Ended(), self.mono_ms()))
        for call in list(self._calls.values()):
            call.cancel()
        store = self._log.store
        store.change_role(BrokerRole.SLAVE)
        self.slave = Slave(master.replica)

    def mono_ms(self) -> MonoMs:
        """The clock of all events that the machines of replication get."""
        return self._log.times.mono_ms()

    @property
    def history(self) -> EpochHistory:
        """The epochs of this node's log."""
        part = self.master or self.slave
        assert part is not None, "one of both, since `open`"
        return part.history

    def newest_masterships(self) -> list[Mastership]:
        """The newest confirmed masterships, oldest first."""
        return self._masterships.newest(self.history, self._log.store.confirm_offset)

    def nonce_at(self, physical_offset: PhyOffset) -> int:
        """Nonce of the epoch that a log offset lies in."""
        return self.history.entry_at(physical_offset).nonce

    # -- admission ----------------------------------------------------------------------

    @property
    def closed(self) -> str:
        """Why nothing may be put yet, empty if it may."""
        if self.master is None or self.master.opened:
            return ""
        return "no disk space to open an epoch"

    @property
    def waits(self) -> bool:
        """Puts wait for slaves."""
        return self.elected or (self.master is not None and self.master.promises)

    @property
    def syncs(self) -> bool:
        """The group promises that puts are on the master's disk."""
        return self.master is not None and self.master.syncs

    def not_master(self) -> str:
        """Why this node is not the master now, empty if it is."""
        if self.master is None:
            endpoint, _ = self.master_endpoint
            return f"this node is a slave, its master is {endpoint or 'not known'}"
        stopped = self.master.stopped(self._log.times.mono_ms())
        return f"this node is no longer the master: {stopped}" if stopped else ""

    def _settled(self) -> bool:
        """Whether this node takes puts, or names another one that does."""
        if not self.elected:
            return True
        if self.master is not None:
            return not (self.not_master() or self.refusal())
        return self.next_master[0] not in ("", self._advertised)  # its own role may change soon

    @property
    def next_master(self) -> tuple[str, int]:
        """The master, for a refused client: none whose connection to this slave broke."""
        if self.elected and self.follower is not None and self.follower.lost:
            return "", 0
        return self.master_endpoint

    @property
    def master_endpoint(self) -> tuple[str, int]:
        """Client endpoint and epoch of the master, as far as known."""
        if self.elected:
            return self.known_master()
        if self.slave is not None:
            return self.slave.master_endpoint, self.slave.epoch
        return "", 0

    @property
    def masterships(self) -> tuple[Epoch, Epoch]:
        """The epochs of this mastership and of the one before, NO_EPOCH where there is none.

        A mastership that answered a client is in the log of all that follow: its barrier was
        confirmed.
        """
        if self.master is None:
            return NO_EPOCH, NO_EPOCH
        entries = self.master.history.entries
        return self.master.epoch, entries[-2].epoch if len(entries) > 1 else NO_EPOCH

    def may_be_behind(self) -> bool:
        """Whether this node may (still) lack records that its group confirmed."""
        master = self.master
        if master is None:
            return True
        return self.elected and (
            master.is_over(self._log.times.mono_ms())
            or not master.epoch_confirmed
            or not self._tables.has_applied(master.barrier_end)
        )

    # -- puts ----------------------------------------------------------------------------------

    def refusal(self) -> str:
        """Why a put may not be stored now, empty if it may."""
        return self.master.refusal() if self.master is not None else ""

    def appended(self) -> None:
        """The log grew: send."""
        self._wake_senders()

    def _wake_senders(self) -> None:
        for send in self._senders.values():
            send()

    def await_slaves(self, end_offset: PhyOffset) -> Outcome:
        """The future result of a stored put."""
        future: Outcome = asyncio.get_running_loop().create_future()
        assert self.master is not None, "only a master stores puts"
        status = self.master.await_slaves(end_offset, self._log.times.mono_ms(), future)
        if status is not None:
            future.set_result(status)
            self._log.pump_soon()
        return future

    def flushed(self) -> None:
        """The log was synced on this node."""
        self.step(masterevents.Flushed())
        if self.follower is not None:
            self.follower.flushed()

    def step(self, event: masterevents.Event) -> None:
        """Pass an event to the master's machine; does nothing on a slave."""
        if self.master is not None:
            self.perform(self.master.step(event, self._log.times.mono_ms()))

    def follow(self, address: str, listener: Listener | None = None) -> ReplicationClient:
        """Create the client that follows the master at an address.

        listener: notified of what only an election can act on.
        """
        assert self.slave is not None, "only a slave follows"
        self._log.freeze.end()  # its log is no longer the one that the old broker was to copy
        pause_seconds = self.options.reconnect_interval / 1000
        upstream = Upstream(address, self._credentials, self._context, pause_seconds)
        adopt = self._tables.adopt_snapshot
        self.follower = ReplicationClient(self._log, self.slave, upstream, adopt, listener)
        self.follower.proof = self.proof
        return self.follower

    # -- effects -------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        """Execute the effects of the master's machine."""
        masterevents.perform(effects, self)

    def release(self, tokens: Sequence[Outcome], status: PutMessageStatus) -> None:
        """Answer the puts that waited."""
        for future in tokens:
            if not future.done():
                future.set_result(status)

    def confirmed(self) -> None:
        """The confirm offset moved: dispatch, and send it to the slaves that did not acknowledge
        now.
        """
        if self.master is not None and self._log.store.dispatched_offset < self.master.barrier_end:
            self._log.pump_soon()  # until then, this node refuses what it may not know yet
        else:
            self._log.replicated()
        # After the answers of the puts that this releases: it travels with the next log bytes.
        asyncio.get_running_loop().call_soon(self._wake_senders)

    def close(self, session: int, reason: str) -> None:
        """End a connection; those of an earlier mastership have ended with it."""
        if self.master is None:
            return
        log.warning("replication connection closed", session=session, reason=reason)
        call = self._calls.get((self.master, session))
        if call is not None:
            call.cancel()

    def connected(
        self, connection: Connection, send: Callable[[], None], call: "asyncio.Future[None]"
    ) -> None:
        """Register a session: what sends its frames, and the task whose end ends the connection."""
        self._senders[connection] = send
        self._calls[connection] = call

    def disconnected(self, connection: Connection) -> None:
        """Remove a session whose connection is gone."""
        self._senders.pop(connection, None)
        self._calls.pop(connection, None)
        master, number = connection
        master.step(masterevents.Disconnected(number), self.mono_ms())

    def tick(self) -> None:
        """Deadlines and housekeeping of a master."""
        if self.closed and self._log.times.mono_ms() - self._tried_ms > OPEN_AGAIN_MS:
            self._open_epoch(self._log.times.store_ms())
        self.step(masterevents.Tick())
        self._log_refusal()

    def _log_refusal(self) -> None:
        """Log that puts have been refused for a while for want of replicas, and the end of that."""
        reason, now_ms = self.refusal(), self._log.times.mono_ms()
        if not reason:
            if self._refusal_logged and self.master is not None:
                log.info("enough replicas again: puts are taken")
            self._refused_since_ms, self._refusal_logged = None, False
        elif self._refused_since_ms is None:
            self._refused_since_ms = now_ms
        elif not self._refusal_logged and now_ms - self._refused_since_ms >= REFUSED_MS:
            self._refusal_logged = True
            log.error("too few replicas: puts are refused", reason=reason)

    def fail_all(self) -> None:
        """The store is fenced."""
        self.step(masterevents.Ended())


# Refused puts that are answered later: once it is known which node takes them.
#
# While a group changes its master, a client that is refused at once guesses when to ask again, and
# finds the next master late. So it may have a refusal wait: it is sent as soon as this node knows
# who takes puts.
#
# Rules: nothing of the put is kept; a refusal waits no longer than its client allows, and than
# PATIENCE_MS; it does not wait where this node knows better already; only so many wait.
PATIENCE_MS = 2000
WAITING_MAX = 4096

Told = asyncio.Future[PutMessageStatus]


class Refusals:
    """Refusals of one node that wait."""

    def __init__(self, settled: Callable[[], bool]) -> None:
        """settled: this node takes puts, or knows which one does."""
        self._settled = settled
        self._waiting: dict[Told, asyncio.TimerHandle] = {}
        self._ended = False

    def told_later(self, patience_ms: int) -> Told | None:
        """The future that a refusal waits for; None: it is sent now."""
        if patience_ms <= 0 or self._ended or len(self._waiting) >= WAITING_MAX or self._settled():
            return None
        loop = asyncio.get_running_loop()
        told: Told = loop.create_future()
        seconds = min(patience_ms, PATIENCE_MS) / 1000
        self._waiting[told] = loop.call_later(seconds, self._tell, told)
        return told

    def release_if_settled(self) -> None:
        """Something changed that may settle who takes puts."""
        if self._waiting and self._settled():
            self._tell_all()

    def end(self) -> None:
        """The node stops: nothing waits any more."""
        self._ended = True
        self._tell_all()

    def _tell_all(self) -> None:
        for told in list(self._waiting):
            self._tell(told)

    def _tell(self, told: Told) -> None:
        self._waiting.pop(told).cancel()
        if not told.done():
            told.set_result(PutMessageStatus.SERVICE_NOT_AVAILABLE)
