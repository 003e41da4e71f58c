"""The broker: creates, starts and stops the parts of a node."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from duolog import _errors as sdk
from duolog._background import Background

from duolog_server.ha.failoverevents import Lead
from duolog_server.ha.groupstate import View
from duolog_server.ha.leaving import retires, write_queues
from duolog_server.ha.master import Master
from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.consuming.groups import NO_GRACE, GroupCoordinator, MemberTable
from duolog_server.node.consuming.reading import Reader
from duolog_server.node.core.admission import Admission
from duolog_server.node.core.clientmeasures import ClientMeasures
from duolog_server.node.core.connected import Connected
from duolog_server.node.core.core import Core
from duolog_server.node.core.logbytes import LogBytes
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.core.rocketmqslave import RocketmqSlave
from duolog_server.node.core.throttle import Throttle
from duolog_server.node.core.traffic import Traffic
from duolog_server.node.core.untaken import Untaken
from duolog_server.node.core.waitingcalls import WaitingCalls
from duolog_server.node.deferred.delayservice import DelayService
from duolog_server.node.deferred.outbox import Outbox
from duolog_server.node.deferred.transactionservice import TransactionService
from duolog_server.node.election.failover import FailoverService
from duolog_server.node.engine.log import Log
from duolog_server.node.engine.part import Part
from duolog_server.node.engine.queueremoval import QueueRemoval
from duolog_server.node.filters.consumerfilters import ConsumerFilters
from duolog_server.node.identity.access.frameskeys import FramesKeys, SharedKey
from duolog_server.node.identity.access.lockout import Lockout, Login
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.policies import NAME_MAX
from duolog_server.node.moving.arrivals import Arrivals
from duolog_server.node.moving.crossings import Crossings
from duolog_server.node.moving.moveservice import Links, MoveService
from duolog_server.node.moving.othergroups import NodeMarks, OtherGroups
from duolog_server.node.moving.passing import Here, Passing
from duolog_server.node.moving.queuerows import QueueRows
from duolog_server.node.moving.target import MoveTarget
from duolog_server.node.pop.liteservice import LiteService
from duolog_server.node.pop.popservice import PopService
from duolog_server.node.pop.retrytopics import RetryTopics
from duolog_server.node.replication.roles import Replication
from duolog_server.node.runtime.cautions import cautions, certificate_files
from duolog_server.node.runtime.certificates import Expiries
from duolog_server.node.runtime.clocks import Clock, SystemClock
from duolog_server.node.runtime.config import Config
from duolog_server.node.runtime.sharedsettings import shared_settings
from duolog_server.node.runtime.tls import Peers
from duolog_server.node.service.lookups import Lookups
from duolog_server.node.service.offsets import Offsets
from duolog_server.node.service.publishservice import PublishService
from duolog_server.node.service.receives import Receives
from duolog_server.node.service.retention import TopicRetention
from duolog_server.node.service.sends import Sends
from duolog_server.node.traces.recorder import Recorder, Standing
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreFenced
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.record import Host
from duolog_server.store.recovery import RecoveryReport

log = structlog.get_logger("duolog.node")

EXIT_FENCED = 74  # EX_IOERR
DISK_PERCENTS = 75, 85  # the default limits of a disk: see `Broker.status`


def report(error: Exception) -> None:
    """Log an error of background work; the node continues."""
    log.error("background task failed", exc_info=error)


@dataclass(slots=True)
class Dialects:
    """Facts about the node's protocols, set by the server of each protocol."""

    frames_port: int = 0  # 0: it accepts no frames
    frames_secured: bool = False  # or with TLS only
    frames_keys: FramesKeys = field(default_factory=SharedKey)
    # Members of a group by RocketMQ's remoting protocol.
    remoting_members: Callable[[str], int] = field(default=lambda group: 0)
    # Routes of topics as its JSON, for its clients; None where nothing serves them.
    remoting_route: Callable[[str], bytes] | None = None
    # Where its clients look a message up by its id.
    remoting_host: Host | None = None
    # Slaves of RocketMQ that copy the log.
    rocketmq_slaves: Callable[[], Sequence[RocketmqSlave]] = tuple
    # Name servers of RocketMQ, and those that do not know this node as it is.
    name_servers: Callable[[], dict[str, int]] = dict


class Broker:
    """A node's parts; the gRPC services call them."""

    group_grace_ms = 4000  # after a change of masters: members first report the queues they read

    def __init__(self, config: Config, store: MessageStore, clock: Clock | None = None) -> None:
        """store: not started. clock: defaults to the machine's."""
        self._config = config
        self._unsafe = len(cautions(config))
        self.settings = shared_settings(config)  # that other nodes of the group should have, too
        self.certificates = Expiries(certificate_files(config))
        self.node = config.node
        self.limits = config.limits
        host = store.store_host
        self.advertised = config.node.advertise or host.endpoint
        self.store = store
        self.log = Log(self.store, clock or SystemClock(), self._disk_failed, self.give_up)
        self.times = self.log.times
        self.metadata = MetadataLog(self.log, config.limits)
        self.replication = Replication(self.log, config, self.advertised, self.metadata)
        self.group = config.node.group
        self.failover: FailoverService | None = None  # only for a node that can be elected
        self.peers = Peers(config.tls.files_of_peers if config.tls.only else None)
        marks = NodeMarks(None, self.times.wall_ms)
        self.other_groups = OtherGroups(self.master_of, self.peers.open, marks)
        self.dialects = Dialects()
        self.role_changed: list[Callable[[], None]] = []  # called after a change of roles
        self.freeze = self.log.freeze
        self.admission = Admission(
            self.store, self.replication, self.metadata, config.limits, self.freeze
        )
        self.log.connect(self.replication, self.admission.refused_put)
        self.metadata.refused = self.admission.change
        self.metadata.retires = lambda: retires(self.views, self.group)
        self.background = Background(self.give_up)
        if config.traces.endpoint:
            self.log.traces = Recorder(self._standing)
        self.started_ms = self.times.wall_ms()
        self.spans: Callable[[], dict[str, int]] | None = None  # counts them, if any are exported
        self.measures: ClientMeasures | None = None  # where clients push them
        if config.rocketmq.client_metrics:
            self.measures = ClientMeasures(self.times.mono_ms, self.times.wall_ms)
        self.recovered: RecoveryReport | None = None
        self.recovery_seconds = 0.0
        self.failed = asyncio.Event()
        self.core = Core(
            self.log,
            self.store,
            self.store,
            self.store,
            self.store.options,
            self.times,
            self.log.board,
            self.metadata,
            self.admission,
            Traffic(),
            Throttle(self.metadata, self.times),
            self.log.traces,
        )
        self._make_services(config, self.core)
        self._connect_parts()

    def _make_services(self, config: Config, core: Core) -> None:
        """Create the services that use the core."""
        self.removal = QueueRemoval(self.log.file_work, self.background.start, self.metadata.exists)
        self.filters = ConsumerFilters(core, self.store.calculate_filter_bits)
        groups, start = self.other_groups, self.background.start
        here = Here(self._source, lambda: self.metadata.stored_moves)
        self.passing = Passing(self.log, self.admission, groups, here, start)
        self.arrivals = Arrivals(
            core, self.passing, self.store.store_host, lambda: self.dialects.remoting_host
        )
        self.outbox = Outbox(core, self.passing)
        self.delays = DelayService(core, self.store.delays_ms, self.outbox)
        self.transactions = TransactionService(core, config.transactions, self.outbox)
        self.sends = Sends(core, self.passing, self.delays, self.transactions, self.outbox)
        self.publishes = PublishService(core, self.sends, self.replication, self.outbox)
        self.retries = RetryTopics(core, self.delays)
        self.waiting_calls = WaitingCalls(config.limits.polls_max)
        limits, calls = config.limits, self.waiting_calls
        self.untaken = Untaken(limits.answers_bytes_max, limits.pull_bytes_max, calls)
        self.reader = Reader(core, self.replication, self.filters, self.waiting_calls, self.untaken)
        self.pop = PopService(core, self.filters, self.retries, self.waiting_calls)
        self.receives = Receives(core, self.pop)
        self.lite = LiteService(core, self.pop, self.removal)
        self.groups = GroupCoordinator(NO_GRACE, config.node.group)
        self.offsets = Offsets(core, self.groups)
        self.lookups = Lookups(core)
        rows = QueueRows(config.node.cluster, lambda: self.failover)
        links = Links(self.group, lambda: self.views, self.other_groups, rows, self.passing)
        self.moves = MoveService(core, self.replication, links, self.give_up)
        self.move_target = MoveTarget(core, self.group)
        self.log_bytes = LogBytes(core.store, lambda: self.replication.history.last_epoch)
        self.retention = TopicRetention(core, self.log_bytes)
        self.connected = Connected()
        self.connected.add(MemberTable(self.groups, self.times))
        self.crossings = Crossings(core, self.other_groups)
        self.parts: tuple[Part, ...] = (
            self.pop,
            self.crossings,
            self.lite,
            self.delays,
            self.transactions,
            self.publishes,
            self.outbox,
            self.passing,
            self.moves,
            self.retention,
        )
        audit = config.audit
        self.audit: AuditLog | None = None
        if audit.file is not None or audit.topic:
            self.audit = AuditLog(audit, config.node.name, core)
            self.parts += (self.audit,)
        self.lockout = Lockout(self.times.mono_ms)  # for all protocols
        self.lockout.locked.append(self._locked_out)

    def _locked_out(self, login: Login) -> None:
        """A user is locked out at an address from now on."""
        name = login.user[:NAME_MAX]
        log.warning("too many logins failed", user=name, address=login.address)
        if self.audit is not None:  # as a stranger's: nobody has proved to be that user
            error = sdk.Throttled("too many logins failed: locked out at this address")
            self.audit.denied(Who.at("", login.address), "Login", f"User:{name}", error)

    def _connect_parts(self) -> None:
        """Subscribe parts to the events of other parts."""
        self.pop.returned = self.lite.notify
        self.role_changed.append(self.arrivals.end)
        self.passing.lost.append(lambda queue: self.moves.lost(*queue))
        self.crossings.lost.append(lambda queue: self.moves.lost(*queue))
        self.metadata.light_queues_forgotten.append(self.lite.gone)
        self.metadata.topic_deleted.append(self.pop.topic_deleted)
        self.metadata.queues_deleted += [self.removal.remove, self.lite.topic_deleted]
        self.metadata.group_deleted.append(self.pop.group_deleted)
        self.metadata.gates_changed.append(self.pop.gates_changed)
        self.log.dispatched += [lambda keys: self.metadata.catch_up(), self.lite.arrived]

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> RecoveryReport:
        """Recover, then start the parts.

        Raises BadStoreFile and the errors of `MessageStore.start`.
        """
        loop = asyncio.get_running_loop()
        began = self.times.mono_ms()
        self.recovered = found = await self.log.recover()
        self.recovery_seconds = (self.times.mono_ms() - began) / 1000
        try:
            await loop.run_in_executor(
                self.log.threads, self.replication.open, found, self.times.store_ms()
            )
            self.metadata.load()
            await self.metadata.save()
            self.filters.start()
        except BaseException:
            self.store.shutdown()
            raise
        work = [*self.log.work, self._snapshot_loop, *(part.run for part in self.parts)]
        if self.replication.slave is not None and not self.replication.elected:
            address: str = self._config.ha.master
            work.append(self.replication.follow(address).run)
        for task in work:
            self.background.start(task())
        if self.replication.master is not None and self.store.options.sync_flush:
            self.log.group_commit.nudge()  # the barrier
        self.log.pump_soon()
        if not self.store.options.message_index_enable:
            log.warning(
                "the message index is disabled",
                effect="messages cannot be found by key; after a failover, delayed messages "
                "and transactions may be delivered twice, and repeated sends of "
                "RocketMQ's clients may be stored twice",
            )
        log.info(
            "recovered",
            abnormal=found.abnormal,
            scanned_from=found.scanned_from,
            end=found.end,
            bytes_cut=found.bytes_cut,
            corrupt_ranges=found.corrupt_ranges,
            rebuilt_queues=found.rebuilt_queues,
        )
        return found

    @property
    def views(self) -> Mapping[str, View]:
        """The cluster's replica groups as the registry shows them; none where roles are fixed."""
        return self.failover.routes if self.failover is not None else {}

    def write_queues(self, topic: TopicConfig) -> list[int]:
        """The queues here that routes offer to RocketMQ's producers: see `ha.leaving`."""
        return write_queues(topic, self.metadata.moves, self.views, self.group)

    def master_of(self, group: str) -> str:
        """The endpoint of another group's master for clients; empty if it has none now."""
        view = self.views.get(group)
        return view.master.endpoint if view is not None and view.master is not None else ""

    def endpoints(self) -> list[str]:
        """Endpoints of the registered nodes of this node's group, in a stable order."""
        view = self.views.get(self.group)
        rows = view.replicas.values() if view is not None else ()
        return sorted(row.endpoint for row in rows if row.endpoint)

    def members(self, group: str) -> int:
        """Members that a group has now, by frames, gRPC and the remoting protocol."""
        here = self.groups.members(group, self.times.mono_ms())
        return here + self.dialects.remoting_members(group)

    def status(self) -> dict[str, int]:
        """What the parts hold now, as numbers for an operator."""
        found = {name: count for part in self.parts for name, count in part.status().items()}
        if self.spans is not None:
            found.update(self.spans())
        found.update(self.dialects.name_servers())
        if locked := self.lockout.locked_out:
            found["logins_locked_out"] = locked
        options = self.core.options
        forced = options.disk_space_clean_forcibly_ratio * options.clean_file_forcibly_enable
        if (options.disk_max_used_space_ratio, forced) != DISK_PERCENTS:
            found.update(
                disk_clean_percent=options.disk_max_used_space_ratio, disk_force_percent=forced
            )
        use = self.store.retention.use
        if use is not None:
            found.update(disk_store_bytes=use.own, disk_others_bytes=use.others)
        return {**found, "unsafe_settings": self._unsafe} if self._unsafe else found

    def validate(self) -> str:
        """The first violated invariant of the services between two events; empty if all hold.

        Called by the simulator and the tests, never by a running node.
        """
        commit, board = self.log.group_commit, self.log.board
        found: list[tuple[object, str]] = [(part, part.validate()) for part in self.parts]
        connections = self.core.throttle.connections
        asked = (self.metadata, commit, board, self.untaken, connections)
        found += [(one, one.validate()) for one in asked]
        found.append((self.groups, self.groups.validate(self.times.mono_ms())))
        return next((f"{type(one).__name__}: {wrong}" for one, wrong in found if wrong), "")

    def has_moves(self) -> bool:
        """Whether queues of this group have moved, or are reserved."""
        moves = self.metadata.stored_moves
        return bool(moves.seals or moves.guests)

    def give_up(self, error: Exception) -> None:
        """After an unexpected error of background work: fence the node; its process ends."""
        report(error)
        while isinstance(error, ExceptionGroup):  # from a service with several tasks
            error = error.exceptions[0]
        self._fence(f"{type(error).__name__}: {error}")

    async def stop(self) -> None:
        """Stop the parts, make everything durable, close the store."""
        await self.background.stop(None)  # all writers have ended before their files are closed
        await self.other_groups.close()
        if self.audit is not None:
            await self.audit.close()
        async with self.log.file_work.changes:
            if not self.store.fence_reason:
                self.metadata.catch_up()
                await self.metadata.save()
            await self.log.close()

    async def _snapshot_loop(self) -> None:
        while True:
            await asyncio.sleep(self.limits.snapshot_interval_ms / 1000)
            await self.metadata.save()

    def _disk_failed(self, error: OSError) -> None:
        self._fence(f"sync failed: {error.strerror or error}")

    def _fence(self, reason: str) -> None:
        """After a failed sync or a bug: acknowledge nothing more, and let the process end."""
        self.log.fence(reason)
        self.replication.fail_all()
        self.metadata.fail_all(StoreFenced(reason))
        self.failed.set()

    # -- roles ---------------------------------------------------------------------------------

    def _source(self) -> tuple[str, int]:
        """Of what is passed on: this group, and the epoch of its mastership."""
        return self.group, self.replication.masterships[0]

    def _standing(self) -> Standing:
        master = self.replication.master
        return Standing(self.store.role.value, 0 if master is None else master.epoch)

    def promote(self, lead: Lead) -> Master:
        """Become the master of an epoch.

        After StoreError, or OSError for want of room, the node remains a slave.
        """
        master = self.replication.become_master(lead, self.times.store_ms())
        self.leads()
        return master

    def leads(self) -> None:
        """A mastership has begun: discard all state that is not in the log."""
        self.metadata.promoted()
        self._role_changed(MonoMs(self.times.mono_ms() + self.group_grace_ms))

    def demote(self) -> None:
        """Stop being the master: pending calls end with an unknown result."""
        self.replication.become_slave()
        self.follows()

    def follows(self) -> None:
        """A mastership is over."""
        self.metadata.fail_all(sdk.Unavailable("the master changed during the call"))
        self._role_changed(NO_GRACE)

    def _role_changed(self, grace_until: MonoMs) -> None:
        self.groups.begin_again(grace_until)
        for part in self.parts:
            part.role_changed()
        for tell in self.role_changed:
            tell()
        self.log.pump_soon()
