"""Failover in a node: feeds the machine from registry, lease and clock, and executes its effects.

The machine (`ha.failover`) decides. Registry calls run in threads; roles change one at a time, in
the order in which the machine said so.
"""

import asyncio
import concurrent.futures
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

import structlog
from duolog import _errors as sdk
from duolog._background import Background

from duolog_server.ha import failoverevents, groupchanges, leaving, membership
from duolog_server.ha.epochs import NO_EPOCH, Epoch
from duolog_server.ha.failover import Candidacy, Facts, Failover, Role
from duolog_server.ha.failoverdriver import FailoverDriver
from duolog_server.ha.failoverevents import (
    Answer,
    Changed,
    Committed,
    Effect,
    Event,
    Follow,
    Instruct,
    Lead,
    Leased,
    LeaseLost,
    Noted,
    Observed,
    Tick,
    Uncertain,
)
from duolog_server.ha.groupstate import (
    FEATURES,
    GroupState,
    Keys,
    Registration,
    Replica,
    View,
    retired_key,
)
from duolog_server.ha.guarantee import OPTIONS, REPLICAS, BadGuarantee, Guarantee
from duolog_server.ha.localreplica import unfit
from duolog_server.ha.mandate import Mandate
from duolog_server.ha.master import Master
from duolog_server.ha.masterevents import Instructed
from duolog_server.ha.membership import Membership
from duolog_server.ha.options import own_guarantee
from duolog_server.ha.registry import (
    Check,
    Delete,
    LeaseGone,
    Put,
    Registry,
    RegistryError,
    RegistryUnavailable,
    Row,
    Snapshot,
    Transaction,
)
from duolog_server.node.election.dials import Dials
from duolog_server.node.election.leasekeeper import LeaseKeeper
from duolog_server.node.election.registrywatch import RegistryWatch
from duolog_server.node.engine.log import Log
from duolog_server.node.replication.roles import Replication
from duolog_server.node.runtime.config import NodeSection
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError

log = structlog.get_logger("duolog.ha")

T = TypeVar("T")
TICK_SECONDS = 0.05
WATCH_SECONDS = 5.0
ORDER_SECONDS = 10.0
CHANGE_SECONDS = 2.5  # a change is tried; clients wait ATTEMPT_SECONDS for a node's answer
ROLL_SECONDS = 1.0  # between two looks at who is registered
SILENT_SECONDS = 10.0  # between two looks for members of etcd that are down
AGAIN_SECONDS = 0.5  # before a change without an answer is sent again
JOIN_SECONDS = 2.0
LOOP_STALL_RATIO = 0.5  # share of the lease: an event loop blocked for that long is not healthy


class RetiredName(Exception):
    """The node's group has the name of one that has left the cluster."""


class Roles(Protocol):
    """The role changes of a node, as its election needs them."""

    log: Log
    replication: Replication

    def promote(self, lead: Lead) -> Master:
        """Become the master. If it raises OSError or StoreError, the node remains a slave."""

    def demote(self) -> None:
        """Become a slave."""

    def give_up(self, error: Exception) -> None:
        """End the node."""

    def has_moves(self) -> bool:
        """Whether queues of this group have moved, or are reserved."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that stands for election.

    endpoint: for clients; ha_endpoint: for slaves. ha_port: that it listens at for slaves.
    """

    node: NodeSection
    endpoint: str
    ha_endpoint: str
    lease_seconds: int
    disk_stall_ms: int
    ha_port: int = 0


class FailoverService:
    """Runs one node's failover machine."""

    def __init__(self, roles: Roles, registry: Registry, candidate: Candidate) -> None:
        """Create it after recovery.

        The registry is closed with the service. Raises BadStoreFile.
        """
        node, log_, replication = candidate.node, roles.log, roles.replication
        slave = replication.slave
        assert slave is not None, "a node that may be elected starts as a slave"
        self._roles = roles
        self._log = log_
        self._replication = replication
        self._registry = registry
        self._endpoint = candidate.endpoint
        self.lease_asked_seconds = candidate.lease_seconds
        self._disk_stall_seconds = candidate.disk_stall_ms / 1000
        self._keys = Keys(node.cluster, node.group)
        replica = Replica(node.name, slave.identity.incarnation)
        self._dials = Dials(candidate.ha_port, self._others)
        self.machine = Failover(
            log_.store.disk,
            Candidacy(
                self._keys,
                Registration(replica, candidate.endpoint, candidate.ha_endpoint, FEATURES),
                own_guarantee(replication.options, log_.store.options),
                secrets.token_hex(8),
            ),
            Facts(
                lambda: unfit(log_.store),
                self._log_empty,
                lambda: log_.store.log.max_offset,
                self._promised,
                self._renew,
                lambda: log_.store.retention.is_full,
                lambda: log_.store.retention.has_room,
                lambda: self._dials.unreachable,
                roles.has_moves,
            ),
        )
        log_.store.retention.relieved = lambda: self.machine.is_relieved
        self._relieved_by = ""  # as it was logged
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="duolog-registry")
        # Elections do not wait for what moves read and write.
        self._row_threads = ThreadPoolExecutor(1, thread_name_prefix="duolog-rows")
        self._keeper = LeaseKeeper(
            registry, candidate.lease_seconds, self._unhealthy, self._granted, self._lost
        )
        self._watchers = [
            threading.Thread(target=self._guarded, args=(watch,), name=name, daemon=True)
            for name, watch in (
                ("duolog-watch", self._watch),
                ("duolog-routes", self._watch_groups),
            )
        ]
        self._ended = threading.Event()
        self._driver = FailoverDriver(self.machine, self)
        self._tasks: asyncio.TaskGroup | None = None  # while it runs
        self._background = Background(roles.give_up)
        self._follower: asyncio.Task[None] | None = None
        self._writes = DirectoryWrites(log_.threads)
        self._promising: Future[None] | None = None
        self._beat = time.monotonic()
        self._wake: asyncio.TimerHandle | None = None
        self._unread = ""  # why the registry could not be read last
        self._told: Mandate | None = None  # the last one that is in the log, without its deadline
        self._stranded = ""  # as it was logged
        self._weaker: list[str] = []  # as it was logged
        self._unreached_by: list[str] = []  # as it was logged
        self._barred: list[str] = []  # as it was logged
        self._reads: list[asyncio.Future[None]] = []  # of who waits for the next reading
        self.routes: dict[str, View] = {}
        self.registry_silent: dict[str, str] = {}  # members of etcd that do not answer, and why
        replication.known_master = self._known_master

    @property
    def lease_seconds(self) -> int:
        """How long the registry grants leases: what this node goes by."""
        return self._keeper.ttl_seconds

    @property
    def unread_reason(self) -> str:
        """Why what this node knows of its group is old; empty where it could read the registry."""
        if not self._unread:
            return ""
        return f"the registry does not answer ({self._unread}): see whether etcd runs"

    @property
    def renewal_ms_max(self) -> int:
        """How long the slowest of the last renewals took."""
        return self._keeper.renewal_ms_max

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start; the node's ports must be open."""
        # First: events of the threads may start work in it.
        self._background.start(self._run())
        self._keeper.start()
        for watcher in self._watchers:
            watcher.start()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._dials.run())
                self._tasks.create_task(self._call_rolls())
                self._tasks.create_task(self._check_name())
                self._tasks.create_task(self._look_for_silent_members())
                self.step(Changed())
                await self._tick()
        finally:
            self._ended.set()  # from here on, events start no work

    async def stop(self) -> None:
        """End the lease, so that another node takes over at once. The wait is bounded."""
        self._ended.set()
        self._replication.refusals.end()
        if self._wake is not None:
            self._wake.cancel()
        await self._background.stop()
        self._dials.close()
        self._replication.follower = None
        await self._writes.ended(JOIN_SECONDS)
        self._replication.become_slave()  # nothing is acknowledged from here on
        await self._loop.run_in_executor(None, self._keeper.stop)
        self._registry.close()  # ends the watch
        joins = (
            self._loop.run_in_executor(None, watcher.join, JOIN_SECONDS)
            for watcher in self._watchers
        )
        await asyncio.gather(*joins)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._row_threads.shutdown(wait=False, cancel_futures=True)

    # -- questions of the machine -----------------------------------------------------------------

    def _others(self) -> dict[str, str]:
        """The replication addresses of the group's other nodes."""
        machine = self.machine
        return {
            name: row.ha_endpoint
            for name, row in machine.view.replicas.items()
            if name != machine.me.replica.node
        }

    def _log_empty(self) -> bool:
        commit_log = self._log.store.log
        return commit_log.max_offset == commit_log.min_offset

    def _promised(self) -> Epoch:
        part = self._replication.master or self._replication.slave
        assert part is not None, "one of both"
        return part.identity.promised_epoch

    def _renew(self, reason: str) -> int:
        """Another incarnation for this directory: it lacks what it has acknowledged."""
        part = self._replication.master or self._replication.slave
        assert part is not None, "one of both"
        incarnation = secrets.randbits(64)
        if self._promising is not None:
            # It writes the same file. This is rare, and a loop that stalls is seen.
            concurrent.futures.wait([self._promising])
        part.renew(incarnation)
        log.error(
            "this node's directory lacks what it has acknowledged: "
            "it does not count until it has caught up",
            reason=reason,
            incarnation=f"{incarnation:016x}",
        )
        return incarnation

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The replication stream shows that the master lacks confirmed records."""
        log.error(
            "the master's directory is an older copy: refused to truncate",
            epoch=epoch,
            reason=reason,
        )
        self.step(failoverevents.Contradicted(epoch, reason))

    def older_copy(self, reason: str) -> None:
        """The replication stream shows that this node lacks what it has acknowledged."""
        self.step(failoverevents.FoundOlder(reason))

    def lost_master(self) -> None:
        """The master's connection broke: the registry may know why. Only it decides."""
        self.step(Changed())

    def _known_master(self) -> tuple[str, int]:
        master, state = self.machine.known_master, self.machine.view.state
        return (master.endpoint, state.epoch) if master and state else ("", 0)

    def _unhealthy(self) -> str:
        """Why this node should lose its lease; called in the thread of the lease."""
        now = time.monotonic()
        if now - self._beat > self.lease_seconds * LOOP_STALL_RATIO:
            return f"the event loop has been blocked for {now - self._beat:.1f} s"
        syncing = self._log.group_commit.syncing_since
        if syncing and now - syncing > self._disk_stall_seconds:
            return f"a disk sync has been running for {now - syncing:.1f} s"
        writing = self._writes.under_way_seconds()
        if writing > self._disk_stall_seconds:
            return f"a write of the group's state has been running for {writing:.1f} s"
        return self._log.store.fence_reason

    # -- events --------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Pass an event to the machine.

        The lease's renewals come first: after a standstill of the loop, others may be in front.
        """
        lease, deadline_ms = self._keeper.current
        if lease == self.machine.lease != 0 and deadline_ms > self.machine.deadline_ms:
            self._feed(self._driver.step, Leased(lease, deadline_ms))
        self._feed(self._driver.step, event)
        self._replication.refusals.release_if_settled()
        stranded = self.machine.stranded
        if stranded and not self._stranded:
            log.error("the group needs an operator", reason=stranded)
        self._stranded = stranded
        successor = self.machine.taken_over_by if self._log.store.retention.is_full else ""
        if successor and successor != self._relieved_by:
            log.warning("the disk is full: a node with room takes over", master=successor)
        self._relieved_by = successor
        self._tell_weaker()
        self._tell_unreached()
        self._tell_barred()

    def _tell_unreached(self) -> None:
        """Log once that others could not follow this node, if it led."""
        found, told = self.machine.unreached_by, self._unreached_by
        self._unreached_by = list(found)
        if set(found) - set(told):
            log.error(
                "other nodes cannot reach this node's replication address",
                address=self.machine.me.ha_endpoint,
                reasons={name: one.reason for name, one in found.items()},
                hint="set ha.advertise to an address that they reach: they could not follow it",
            )

    def _tell_barred(self) -> None:
        """Log once which nodes this master keeps out of the SyncStateSet."""
        barred = self.machine.barred if self.machine.role is Role.LEADING else []
        found, self._barred = sorted(set(barred) - set(self._barred)), barred
        if found:
            log.error(
                "nodes of a version without moves are kept out of the SyncStateSet",
                nodes=found,
                hint="upgrade them: they would store messages in queues that have moved",
            )

    def _tell_weaker(self) -> None:
        """Log once that settings of this node ask for less than its group promises."""
        weaker, told = self.machine.weaker, self._weaker
        self._weaker = weaker
        if weaker and weaker != told:
            promised = self.machine.view.guarantee
            assert promised is not None, "it is weaker than that"
            log.warning(
                "settings of this node are weaker than its group's guarantee, which counts",
                settings=[OPTIONS[name] for name in weaker],
                guarantee=promised.settings(),
            )

    def _feed(self, tell: Callable[[T], None], what: T) -> None:
        """Pass an event to the machine; an error ends the node, as its state cannot be trusted."""
        if self._ended.is_set():
            return
        try:
            tell(what)
        except Exception as error:
            self._roles.give_up(error)

    def _post(self, event: Event) -> None:
        """Pass an event from a thread."""
        self._from_thread(self.step, event)

    def _from_thread(self, call: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, what)

    def _granted(self, lease: int, deadline_ms: MonoMs) -> None:
        self._post(Leased(lease, deadline_ms))

    def _lost(self, lease: int) -> None:
        self._post(LeaseLost(lease))

    async def _tick(self) -> None:
        while True:
            self._beat = time.monotonic()
            self.step(Tick())
            await asyncio.sleep(TICK_SECONDS)

    async def _call_rolls(self) -> None:
        """Record in the registry which members live, for as long as the node runs.

        No decision depends on it: it is not of the machine.
        """
        commit = self._registry.commit
        while True:
            await asyncio.sleep(ROLL_SECONDS)
            wall_ms = self._log.times.wall_ms()
            found = groupchanges.call_roll(self._keys, self.machine.view, wall_ms)
            if found is None:
                continue
            try:
                await self._loop.run_in_executor(self._threads, commit, found)
            except RegistryError as error:
                log.debug("cannot record the members", reason=str(error))

    async def _check_name(self) -> None:
        """End the node if its group has the name of one that has left: queues still have that."""
        key = retired_key(self._keys.cluster, self._keys.group)
        while True:
            try:
                found = await self.read_rows(key)
            except RegistryError as error:
                log.debug("cannot read which groups have left", reason=str(error))
                await asyncio.sleep(ROLL_SECONDS)
                continue
            if key in found.rows:
                raise RetiredName(
                    f"replica group {self._keys.group} was retired and forgotten, and queues of "
                    "other groups still have its name: set node.group to another one"
                )
            return

    async def _look_for_silent_members(self) -> None:
        """Find members of etcd that are down before one more is: nothing else notices the first."""
        while True:
            silent = await self._loop.run_in_executor(None, self._registry.silent)
            for address in sorted(silent.keys() - self.registry_silent.keys()):
                reason = silent[address]
                log.warning("a member of etcd does not answer", address=address, reason=reason)
            self.registry_silent = silent
            await asyncio.sleep(SILENT_SECONDS)

    def _guarded(self, watch: Callable[[], None]) -> None:
        """Run a watch in its thread; an error of this program ends the node."""
        try:
            watch()
        except Exception as error:
            self._from_thread(self._roles.give_up, error)

    def _watch(self) -> None:
        """Watch the node's own group: reports that something changed, not what."""
        rows: Mapping[str, Row] = {}
        while not self._ended.is_set():
            try:
                snapshot = self._registry.get(self._keys.prefix)
                if snapshot.rows != rows:
                    rows = snapshot.rows
                    self._post(Changed())
                for _ in self._registry.changes(
                    self._keys.prefix, snapshot.revision, WATCH_SECONDS
                ):
                    if self._ended.is_set():
                        return
                    self._post(Changed())
            except RegistryError as error:
                log.debug("cannot watch the registry", reason=str(error))
                self._ended.wait(0.2)

    def _watch_groups(self) -> None:
        RegistryWatch(
            self._registry, self._keys.cluster, partial(self._from_thread, self._learn_routes)
        ).run(self._ended)

    def _learn_routes(self, routes: dict[str, View]) -> None:
        self.routes = routes

    # -- the port of the failover driver --------------------------------------------------

    def mono_ms(self) -> MonoMs:
        """The clock of leases and pauses."""
        return self._log.times.mono_ms()

    def decided(self, event: Event | None, effects: list[Effect]) -> None:
        """Log the effects of an event; a mandate with only a new deadline is not logged."""
        told = [effect.mandate for effect in effects if isinstance(effect, Instruct)]
        if told:
            before, self._told = self._told, replace(told[-1], deadline_ms=MonoMs(0))
            if len(told) == len(effects) and self._told == before:
                return
        log.debug(
            "failover",
            on=type(event).__name__ if event is not None else "mastership",
            does=[type(effect).__name__ for effect in effects],
        )

    def ask_lease(self) -> None:
        """Get a lease and keep it renewed."""
        self._keeper.ask()

    def drop_lease(self, lease: int) -> None:
        """End a lease."""
        self._keeper.drop(lease)

    def observe(self) -> None:
        """Read the group's keys."""
        self._call(lambda: self._registry.get(self._keys.prefix), self._observed)

    def commit(self, number: int, transaction: Transaction) -> None:
        """Send a transaction."""
        self._call(
            lambda: self._registry.commit(transaction), lambda work: self._committed(number, work)
        )

    def _call(self, work: Callable[[], T], done: Callable[["asyncio.Future[T]"], None]) -> None:
        future = self._loop.run_in_executor(self._threads, work)
        future.add_done_callback(done)

    def _observed(self, work: "asyncio.Future[Snapshot]") -> None:
        if work.cancelled():
            return
        try:
            snapshot: Snapshot | None = work.result()
        except RegistryError as error:
            log.warning("cannot read the registry", reason=str(error))
            snapshot, self._unread = None, str(error)
        except Exception as error:
            self._roles.give_up(error)
            return
        else:
            self._unread = ""
        self.step(Observed(snapshot))
        if snapshot is not None and self.machine.group.is_read:
            for read in self._reads:
                if not read.done():
                    read.set_result(None)
            self._reads.clear()

    def _committed(self, number: int, work: "asyncio.Future[int | None]") -> None:
        if work.cancelled():
            return
        try:
            revision = work.result()
        except LeaseGone:
            self._feed(self._driver.lease_gone, number)
        except RegistryError as error:
            log.warning("the registry did not answer a change", reason=str(error))
            self.step(Uncertain(number))
        except Exception as error:
            self._roles.give_up(error)
        else:
            self.step(Committed(number, revision))

    def note(self, found: Membership) -> None:
        """Write a membership durably."""
        work = self._writes.begin(membership.note, self._log.store.disk, found)
        asyncio.wrap_future(work).add_done_callback(self._noted)

    def _noted(self, work: "asyncio.Future[Membership | None]") -> None:
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            self.step(Noted(work.result()))
        elif isinstance(error, Exception):
            self._roles.give_up(error)

    def wake(self, at_ms: MonoMs) -> None:
        """Send a `Tick` at this time at the latest."""
        if self._wake is not None:
            self._wake.cancel()
        delay = max(0.0, (at_ms - self._log.times.mono_ms()) / 1000)
        self._wake = self._loop.call_later(delay, self.step, Tick())

    def answer(self, answer: Answer) -> None:
        """Answer an operator's request."""
        if not answer.token.done():
            answer.token.set_result(answer)

    def instruct(self, mandate: Mandate) -> None:
        """Pass a mandate to the master."""
        self._replication.step(Instructed(mandate))

    def stop_leading(self, reason: str) -> None:
        """End the mastership now."""
        if self._replication.master is not None:
            log.warning("no longer the master", reason=reason)
            self._roles.demote()

    # -- roles ---------------------------------------------------------------------------------

    def spawn(self, change: Coroutine[object, None, None]) -> None:
        """Run a change of roles."""
        assert self._tasks is not None, "started"
        self._tasks.create_task(change)

    async def follow_nobody(self) -> None:
        """End the stream from a master, if there is one."""
        task, self._follower = self._follower, None
        self._replication.follower = None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def promise(self, epoch: Epoch) -> None:
        """Promise an epoch durably, while the slave does not follow. Raises OSError."""
        slave = self._replication.slave
        assert slave is not None, "a master stands before it follows, and only a slave is elected"
        self._promising = self._writes.begin(slave.promise, epoch)
        await asyncio.wrap_future(self._promising)

    def cannot_promise(self, error: OSError) -> None:
        """Note that a promise found no disk space: the master's handshake asks for it again."""
        log.warning("no disk space to record the epoch", reason=error.strerror)

    def follow(self, effect: Follow) -> None:
        """Begin to copy a master's log."""
        assert self._tasks is not None, "started"
        log.info(
            "following",
            master=effect.master.replica.node,
            address=effect.master.ha_endpoint,
            epoch=effect.epoch,
        )
        client = self._replication.follow(effect.master.ha_endpoint, self)
        self._follower = self._tasks.create_task(client.run())

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        """A lock held while the log may be truncated: no sync runs meanwhile."""
        return self._log.no_flush()

    def lead(self, effect: Lead) -> Master:
        """Open the epoch. After StoreError, or OSError for want of room, the node is a slave."""
        return self._roles.promote(effect)

    def leading(self, effect: Lead) -> None:
        """The mastership has begun."""
        self._log.group_commit.nudge()  # the barrier
        members = sorted(map(str, effect.mandate.members))
        log.info("elected", epoch=effect.epoch, members=members)

    def cannot_lead(self, effect: Lead, error: OSError | StoreError) -> None:
        """The mastership could not begin."""
        log.error("elected, but cannot lead", epoch=effect.epoch, reason=str(error))

    # -- requests of operators ---------------------------------------------------------------------

    async def hand_over(self, target: str, epoch: Epoch = NO_EPOCH) -> GroupState | None:
        """Make another node the master. Raises as `set_guarantee`.

        epoch: the mastership to end, 0 for the current one. If it is already over, nothing is done,
        and the group's state is returned.
        """
        state = self.machine.view.state
        known = state.epoch if state is not None else 0
        if 0 < epoch < known:
            return state
        if epoch > known and self.machine.role is Role.LEADING:  # no later one can have begun
            raise sdk.BadRequest(
                f"epoch {epoch} has not begun: group {self._keys.group} is in epoch {known}; see "
                "`cluster status`"
            )
        if epoch > known:
            raise sdk.NotMaster("this node is not the master", *self._known_master())
        self._check_leads()
        await self._dials.round()  # what was found a moment ago may be over
        self._check_leads()
        await self._order(lambda token: failoverevents.HandOver(target, token))
        return None

    def _check_leads(self) -> None:
        """Raise NotMaster unless this node leads."""
        if self.machine.role is not Role.LEADING:
            why = "this node is not the master"
            if self._unread:
                why = (
                    f"the registry does not answer ({self._unread}): group {self._keys.group} has "
                    "no master until it does, and nothing was changed; see whether etcd runs"
                )
            raise sdk.NotMaster(why, *self._known_master())

    async def set_guarantee(self, setting: str, value: str) -> Guarantee:
        """Set what puts of the group are promised; this master goes by it when that returns.

        Raises NotMaster, BadRequest, ResultUnknown.
        """
        self._check_leads()
        view, names = self.machine.view, sorted({replica.node for replica in self._members()})
        try:
            new = (view.guarantee or self.machine.guarantee).altered(setting, value)
        except BadGuarantee as error:
            raise sdk.BadRequest(str(error)) from None
        if new.in_sync_replicas > len(names):
            raise sdk.BadRequest(
                f"{REPLICAS} cannot be {new.in_sync_replicas}: group {self._keys.group} has "
                f"{len(names)} nodes ({', '.join(names)}), and would acknowledge no put; start "
                "more nodes first"
            )
        promise = self.machine.promise(new)
        made = await self._change(promise) if promise is not None else None
        await self._read_again()
        # A change whose answer was lost has changed what its repetition checks.
        if made is None and self.machine.view.guarantee != new:
            raise sdk.BadRequest("the group changed during the call: try again")
        log.info("the group's guarantee was set by an operator", guarantee=new.settings())
        return new

    async def _read_again(self) -> None:
        """Read the group for the machine, with all changes before. Raises ResultUnknown."""
        read = self._next_read()
        self.step(Changed())
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                await read
        except TimeoutError:
            raise sdk.ResultUnknown(
                f"the registry could not be read within {ORDER_SECONDS:g} s after the change: see "
                "`cluster status`, or repeat the command"
            ) from None

    def _next_read(self) -> "asyncio.Future[None]":
        read: asyncio.Future[None] = self._loop.create_future()
        self._reads.append(read)
        return read

    async def _change(self, transaction: Transaction) -> int | None:
        """Make a change of an operator; None where a check failed. Raises ResultUnknown.

        A change without an answer is sent again, as it may have been made: so it may be repeated.
        """
        until, commit = self._loop.time() + CHANGE_SECONDS, self._registry.commit
        while True:
            try:
                return await self._loop.run_in_executor(self._threads, commit, transaction)
            except RegistryUnavailable as error:
                if self._loop.time() + AGAIN_SECONDS >= until:
                    raise sdk.ResultUnknown(
                        f"the registry did not answer a change, which may be made or may yet be: "
                        f"{error}; see `cluster status`, or repeat the command"
                    ) from None
            await asyncio.sleep(AGAIN_SECONDS)

    async def elect_unclean(self, epoch: Epoch) -> None:
        """Make this node the master, even if other nodes hold more.

        Raises BadRequest, ResultUnknown.
        """
        await self._order(lambda token: failoverevents.ElectUnclean(epoch, token))

    async def _order(self, event: Callable[["asyncio.Future[Answer]"], Event]) -> None:
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self.step(event(answered))
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                answer = await answered
        except TimeoutError:
            raise sdk.ResultUnknown(
                f"no answer from the group within {ORDER_SECONDS:g} s: see `cluster status`"
            ) from None
        if answer.unknown:
            raise sdk.ResultUnknown(answer.error)
        if answer.error:
            raise sdk.BadRequest(answer.error)

    async def drain(self, node: str, undo: bool) -> None:
        """Drain a node, or undo that. When this returns, a drained node may be stopped: it neither
        leads, nor does a put wait for it.

        Raises BadRequest, ResultUnknown, and Busy where it is marked and cannot be stopped yet.
        """
        key, until = self._keys.drained(node), self._loop.time() + CHANGE_SECONDS
        if undo:
            await self._change(Transaction((), (Delete(key),)))
            return
        self._check_known(node)
        await self._change(Transaction((), (Put(key, b"{}"),)))
        read, still = self._next_read(), "not known to have handed over"
        self.step(Changed())
        try:
            async with asyncio.timeout_at(until):
                await read
                while still := self._still(node):
                    await self._next_read()
        except TimeoutError:
            raise sdk.Busy(
                f"{node} is marked as drained and is still {still}: stop it only when "
                "`cluster status` shows that other nodes have taken over, or undrain it"
            ) from None

    def _still(self, node: str) -> str:
        """What a drained node still is, so that it cannot be stopped yet; empty if it can."""
        state = self.machine.view.state
        if state is not None and state.master.node == node:
            return "the master"
        members = state.sync_state_set if state is not None else ()
        return "in the SyncStateSet" if any(one.node == node for one in members) else ""

    async def forget(self, node: str) -> None:
        """Remove a member that is down. Raises BadRequest, ResultUnknown."""
        self._check_known(node)
        view = self.machine.view
        alive = view.replicas.get(node)
        if alive is not None:
            raise sdk.BadRequest(
                f"cannot forget {node}: it is alive at {alive.endpoint}; stop it first"
            )
        if view.state is not None and node in {r.node for r in view.state.sync_state_set}:
            raise sdk.BadRequest(
                f"cannot forget {node}: it is in the SyncStateSet, and may hold acknowledged "
                "messages that no other node has; start other nodes until it has left the set "
                f"(`cluster status`), or lower {REPLICAS} (`cluster set`) and "
                f"{OPTIONS[REPLICAS]} of the nodes"
            )
        if await self._change(groupchanges.forget(self._keys, view, node)) is None:
            raise sdk.BadRequest(f"cannot forget {node}: the group changed meanwhile; try again")
        await self._read_again()

    async def retire_group(self, group: str, undo: bool) -> None:
        """Mark a group of the cluster as retiring, or no longer. Raises BadRequest, ResultUnknown.

        Masters go by it as soon as they have read it.
        """
        if refused := leaving.refused(group, self.routes, undo):
            raise sdk.BadRequest(refused)
        await self._change(groupchanges.retire(Keys(self._keys.cluster, group), undo))
        log.info("a replica group was marked", replica_group=group, retiring=not undo)

    async def forget_group(self, group: str) -> None:
        """Remove a group that has retired. Raises BadRequest, Unavailable, ResultUnknown."""
        if refused := leaving.not_forgettable(group, self.routes, self._keys.group):
            raise sdk.BadRequest(refused)
        keys = Keys(self._keys.cluster, group)
        try:
            rows = (await self.read_rows(keys.prefix)).rows
        except RegistryError as error:
            raise sdk.Unavailable(f"the registry does not answer: {error}") from None
        made = None
        if keys.retiring in rows:
            nodes = self.routes[group].nodes
            made = await self._change(groupchanges.forget_group(keys, rows, nodes))
        if made is None:
            raise sdk.BadRequest(f"cannot forget {group}: it changed meanwhile; try again")
        log.info("a replica group that has retired was forgotten", replica_group=group)

    def _check_known(self, node: str) -> None:
        """Raise BadRequest unless a node belongs to the group."""
        known = self.machine.view.nodes
        if node not in known:
            raise sdk.BadRequest(
                f"node {node!r} is not in group {self._keys.group}; its nodes: "
                f"{', '.join(sorted(known))}"
            )

    def _members(self) -> set[Replica]:
        view = self.machine.view
        state = view.state.sync_state_set if view.state is not None else frozenset()
        return {*state, *(row.replica for row in view.replicas.values())}

    # -- rows of queues that move ------------------------------------------------------------------

    async def read_rows(self, prefix: str) -> Snapshot:
        """Read rows of the registry. Raises RegistryUnavailable."""
        self._check_runs()
        return await self._loop.run_in_executor(self._row_threads, self._registry.get, prefix)

    async def change_rows(
        self, known: tuple[Check, ...], rows: tuple[Put | Delete, ...]
    ) -> int | None:
        """Change rows of the registry as the master; the revision, None where a check failed.

        Raises NotMaster, and RegistryUnavailable: they may be changed, or may yet be.
        """
        transaction = self.machine.change_rows(known, rows)
        if transaction is None:
            raise sdk.NotMaster("this node is not the master", *self._known_master())
        self._check_runs()
        commit = self._registry.commit
        return await self._loop.run_in_executor(self._row_threads, commit, transaction)

    def _check_runs(self) -> None:
        if self._ended.is_set():  # its threads are gone
            raise RegistryUnavailable("this node stops")


# Small files of a node's directory, written in threads: the event loop waits for no disk.
P = ParamSpec("P")


class DirectoryWrites:
    """The writes in progress, and when they began."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._begun: dict[Future[Any], float] = {}  # by the monotonic clock, in seconds

    def begin(self, write: Callable[P, T], *args: P.args, **how: P.kwargs) -> "Future[T]":
        """Begin a write."""
        begun = time.monotonic()
        work = self._threads.submit(write, *args, **how)
        self._begun[work] = begun
        work.add_done_callback(self._begun.pop)
        return work

    def under_way_seconds(self) -> float:
        """For how long the oldest write has been running, 0 for none; callable in any thread."""
        begun = list(self._begun.values())
        return time.monotonic() - min(begun) if begun else 0.0

    async def ended(self, seconds: float) -> None:
        """Wait until no write is running, at most for this long."""
        await asyncio.get_running_loop().run_in_executor(None, wait, list(self._begun), seconds)
