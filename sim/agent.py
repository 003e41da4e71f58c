"""The election side of a simulated node: lease, registry, roles."""

import contextlib
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, Protocol

from duolog_server.ha import failoverevents, masterevents, membership
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import PAUSE_MS, UNREACHED_MS, Candidacy, Facts, Failover, Role
from duolog_server.ha.failoverdriver import FailoverDriver
from duolog_server.ha.failoverevents import (
    Answer,
    Changed,
    Commit,
    Committed,
    Effect,
    Follow,
    HandOver,
    Lead,
    Leased,
    LeaseLost,
    Noted,
    Observed,
    Tick,
    Uncertain,
)
from duolog_server.ha.groupstate import FEATURES, Registration, Replica, Unreachable, Unreached
from duolog_server.ha.localreplica import unfit
from duolog_server.ha.mandate import Mandate
from duolog_server.ha.master import Master
from duolog_server.ha.membership import Membership
from duolog_server.ha.options import HaOptions, own_guarantee
from duolog_server.ha.registry import LeaseGone, Put, Snapshot, Transaction
from duolog_server.ha.starts import Start
from duolog_server.ha.syncstate import lives
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError
from sim.config import Setup
from sim.etcd import TIMEOUT_MS, SimEtcd
from sim.ghost import Ghost
from sim.later import Later, drive
from sim.network import Network
from sim.watched import Watched
from sim.witness import Violation
from sim.world import World

TTL_MS = 600
MARGIN_MS = 90
RETRY_MS = 60.0
RELIEVED_MS = 2 * PAUSE_MS  # by then a full master hands over, also at its second attempt
DIAL_MS = 150.0
LEFT_MS = 1.6 * UNREACHED_MS  # by then a master that nobody reaches has left
NOWHERE = "nowhere"  # an address that nobody has
_relief = Failover.relief  # as it is, whatever bug is planted
NOTED_MS = 3.0  # longest until a note is begun, and from its end until that is known


class Host(Watched, Protocol):
    """The part of a simulated node that its agent uses."""

    world: World
    ghost: Ghost
    setup: Setup
    chance: Random
    network: Network
    unreachable: bool

    def guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        """An action of this process: dropped after its death, delayed while it is paused."""

    def later(self, delay: float, do: Callable[..., None]) -> None:
        """Run an action after some ms, if the process is still alive."""

    def tell(self, event: masterevents.Event) -> None:
        """Pass an event to the master's machine; does nothing on a slave."""

    def ha_options(self) -> HaOptions:
        """Of replication."""

    def become_master(self, lead: Lead) -> Master:
        """Become the master. Raises OSError or StoreError if the disk prevents it."""

    def become_slave(self) -> None:
        """End the mastership, if there is one."""

    def follow(self, target: str) -> None:
        """Copy another node's log from now on; empty: none."""


class Agent:
    """Feeds a node's failover machine and executes its effects."""

    def __init__(self, node: Host, etcd: SimEtcd, incarnation: int, fresh_id: str) -> None:
        self.node = node
        self.etcd = etcd
        replica = Replica(node.name, incarnation)
        self.machine = Failover(
            node.disk,
            Candidacy(
                etcd.keys,
                Registration(
                    replica,
                    f"{node.name}:1",
                    NOWHERE if node.unreachable else node.name,
                    FEATURES,
                ),
                own_guarantee(node.ha_options(), node.store.options),
                fresh_id,
            ),
            Facts(
                lambda: unfit(node.store),
                lambda: node.store.log.max_offset == node.store.log.min_offset,
                lambda: node.store.log.max_offset,
                lambda: (node.master or node.slave).identity.promised_epoch,  # type: ignore[union-attr]
                self._renew,
                lambda: node.store.retention.is_full,
                lambda: node.store.retention.has_room,
                lambda: self._unreachable,
            ),
        )
        self._chance = node.world.chance(f"agent:{node.name}:{node.boot}")
        self._driver = FailoverDriver(self.machine, self)
        self._full_since_ms: MonoMs | None = None  # a master that another one could relieve
        self._unreachable: Unreachable = {}  # as it dialled the others last
        self._unreached_since_ms: MonoMs | None = None  # a master that no other node reaches
        self._taken_over_by = ""
        self._no_room = False  # for what was to be noted last
        self._lease = 0
        self._last_lease = 0
        self._deadline_ms = MonoMs(0)
        self._calls = 0
        etcd.watch(node.name, node.guarded(lambda: self.step(Changed())))
        node.later(1.0, self._tick)
        node.later(DIAL_MS, self._dial)

    def _renew(self, reason: str) -> int:
        node = self.node
        part = node.master or node.slave
        assert part is not None, "one of both"
        incarnation = node.chance.getrandbits(64)
        part.renew(incarnation)
        node.incarnation = incarnation
        node.world.note(f"{node.name} is an older copy: {reason}")
        node.ghost.mark("found_older")
        return incarnation

    def _tick(self) -> None:
        self.step(Tick())
        self._look_at_a_full_master()
        self._look_at_an_unreachable_master()
        self.node.later(25.0, self._tick)

    def _dial(self) -> None:
        """Dial the replication addresses of the others."""
        node, rows = self.node, self.machine.view.replicas
        found = {name: row.ha_endpoint for name, row in rows.items() if name != node.name}
        self._unreachable = {
            name: Unreached(address, "refused")
            for name, address in found.items()
            if address not in node.peers
            or not node.peers[address].up
            or node.network.is_cut(node.name, address)
        }
        node.later(DIAL_MS, self._dial)

    def _look_at_an_unreachable_master(self) -> None:
        """Where a member can be followed, a master that nobody can reach leaves to it, once."""
        machine, now, node = self.machine, self.mono_ms(), self.node
        since, self._unreached_since_ms = self._unreached_since_ms, None
        view, state = machine.view, machine.view.state
        if not node.unreachable or machine.role is not Role.LEADING or machine.elections > 1:
            return
        others = view.replicas.keys() - {node.name}
        reached = [name for name in others if not view.unreached_by(name)]
        members = {r.node for r in state.sync_state_set if lives(r, view.replicas)} if state else ()
        if view.unreached_by(node.name).keys() < others or not {*reached} & {*members}:
            return
        self._unreached_since_ms = now if since is None else since
        if now - self._unreached_since_ms > LEFT_MS:
            raise Violation(f"{node.name} leads, nobody can follow it, {reached} could lead")

    def _look_at_a_full_master(self) -> None:
        """Where a member with room has the whole log, a master that stores nothing hands over."""
        machine, now = self.machine, self.mono_ms()
        since, self._full_since_ms = self._full_since_ms, None
        master, state = self.node.master, machine.view.state
        if machine.role is not Role.LEADING or master is None or state is None:
            return
        target = _relief(machine, now) if self.node.store.retention.is_full else ""
        held = [master.held_by(r) for r in state.sync_state_set if r.node == target]
        if not held or held[0] < master.log_end:
            return
        self._full_since_ms = now if since is None else since
        if now - self._full_since_ms > RELIEVED_MS:
            raise Violation(f"{self.node.name} leads with a full disk, {target} has room")

    @property
    def registered(self) -> bool:
        """The registry names this node, and will for as long as the lease that it renews."""
        row = self.etcd.table.rows.get(self.etcd.keys.replica(self.node.name))
        return row is not None and bool(self._lease) and row.lease == self._lease

    @property
    def deadline_ms(self) -> MonoMs:
        """Of the lease that the last mastership stood on, by this node's clock."""
        return self._deadline_ms

    def step(self, event: failoverevents.Event) -> None:
        """Feed the machine."""
        self._driver.step(event)

    # -- what the driver of the machine needs --------------------------------------------------

    def mono_ms(self) -> MonoMs:
        """The clock of leases and pauses."""
        return self.node.mono()

    def decided(self, event: failoverevents.Event | None, effects: list[Effect]) -> None:
        """What the machine answered: nothing is decided on what the disk does not have.

        And no master that others can follow hands over to one that they cannot.
        """
        machine, node = self.machine, self.node
        before, target = self._taken_over_by, machine.taken_over_by
        self._taken_over_by = target
        lost = target and not before and node.peers[target].unreachable and not node.unreachable
        if lost and set(machine.view.unreached_by(target)) - {node.name}:
            raise Violation(f"{node.name} hands over to {target}, and others cannot reach that one")
        if not self._no_room and any(isinstance(e, Commit | Lead | Follow) for e in effects):
            self.node.ghost.witness.decides(self.node, self.machine.membership.version)

    def ask_lease(self) -> None:
        """Get a lease and keep it renewed."""
        self._calls += 1
        call, sent = self._calls, self.node.mono()
        now = self.node.world

        def granted(lease: int) -> None:
            if call != self._calls or self._lease:
                return
            self._lease = lease
            self._take(lease, sent)
            self.node.later(TTL_MS / 3, self._renew_loop(lease))

        def again() -> None:
            if call == self._calls and not self._lease:
                self.ask_lease()

        self._lease = 0
        self.etcd.call(
            self.node.name, lambda table: table.grant(TTL_MS, now.now), self.node.guarded(granted)
        )
        self.node.later(TIMEOUT_MS + RETRY_MS, again)

    def drop_lease(self, lease: int) -> None:
        """End a lease."""
        if lease == self._lease:
            self._lease = 0
        self.etcd.call(self.node.name, lambda table: table.drop(lease), lambda _: None)

    def observe(self) -> None:
        """Read the group's keys."""
        name, prefix = self.node.name, self.etcd.keys.prefix
        self._ask(
            lambda reply: self.etcd.call(name, lambda table: table.get(prefix), reply),
            self._observed,
            Observed(None),
        )

    def commit(self, number: int, transaction: Transaction) -> None:
        """Send a transaction."""
        self._leases_are_own(transaction)
        self._starts_are_marked(transaction)
        self._ask(
            lambda reply: self.etcd.commit(self.node.name, transaction, reply),
            lambda result: self._committed(number, result),
            Uncertain(number),
        )

    def note(self, found: Membership) -> None:
        """In a thread of the node: begins and ends some time later, maybe too late for anybody."""
        node = self.node

        def write() -> None:
            noted = membership.note(node.disk, found)
            self._no_room = noted is None
            node.later(self._chance.uniform(0, NOTED_MS), lambda: self.step(Noted(noted)))

        node.later(self._chance.uniform(0, NOTED_MS), write)

    def wake(self, at_ms: MonoMs) -> None:
        """Step with a `Tick` at this time at the latest."""
        self.node.later(max(0.5, at_ms - self.node.mono()), lambda: self.step(Tick()))

    def answer(self, answer: Answer) -> None:
        """Tell an operator."""
        self.node.world.note(f"{self.node.name} answers: {answer.error or 'done'}")
        self.node.ghost.mark("order_failed" if answer.error else "order_done")

    def instruct(self, mandate: Mandate) -> None:
        """Tell the master."""
        self.node.tell(masterevents.Instructed(mandate))

    def stop_leading(self, reason: str) -> None:
        """A mastership is over from this moment on."""
        self.node.world.note(f"{self.node.name} stands: {reason}")
        self.node.become_slave()

    def _leases_are_own(self, transaction: Transaction) -> None:
        """What vanishes with an older lease would be missed later."""
        for change in transaction.changes:
            if isinstance(change, Put) and change.lease not in (0, self._last_lease):
                raise Violation(
                    f"{self.node.name} binds {change.key} to lease {change.lease}, "
                    f"its own is {self._last_lease}"
                )

    def _starts_are_marked(self, transaction: Transaction) -> None:
        key = self.etcd.keys.start(Replica(self.node.name, self.node.incarnation))
        for change in transaction.changes:
            if isinstance(change, Put) and change.key == key:
                start = Start.from_bytes(change.value)
                self.node.ghost.witness.claims(self.node, start.number, start.run)

    def _ask(self, send: Any, answered: Any, nothing: failoverevents.Event) -> None:
        """A call with a deadline: whichever of answer and deadline comes first counts."""
        open_ = [True]

        def reply(result: Any) -> None:
            if open_[0]:
                open_[0] = False
                answered(result)

        def give_up() -> None:
            if open_[0]:
                open_[0] = False
                self.node.ghost.mark("registry_timeout")
                self.step(nothing)

        send(self.node.guarded(reply))
        self.node.later(TIMEOUT_MS, give_up)

    def _observed(self, result: Snapshot) -> None:
        self.step(Observed(result))

    def _committed(self, number: int, result: Any) -> None:
        if isinstance(result, LeaseGone):
            self._driver.lease_gone(number)
        else:
            self.step(Committed(number, result))

    # -- lease ---------------------------------------------------------------------------------

    def _take(self, lease: int, sent: MonoMs) -> None:
        deadline_ms = MonoMs(sent + TTL_MS - MARGIN_MS)
        if lease != self._last_lease:
            self._last_lease, self._deadline_ms = lease, MonoMs(0)
        self._deadline_ms = max(self._deadline_ms, deadline_ms)
        self.step(Leased(lease, deadline_ms))

    def _renew_loop(self, lease: int) -> Any:
        def renew() -> None:
            if lease != self._lease:
                return
            sent = self.node.mono()
            world = self.node.world

            def renewed(result: Any) -> None:
                if lease != self._lease:
                    return
                if isinstance(result, LeaseGone):
                    self._lease = 0
                    self.step(LeaseLost(lease))
                else:
                    self._take(lease, sent)

            self.etcd.call(
                self.node.name,
                lambda table: table.renew(lease, world.now),
                self.node.guarded(renewed),
            )
            self.node.later(TTL_MS / 3, renew)

        return renew

    # -- roles ---------------------------------------------------------------------------------

    def spawn(self, change: Coroutine[object, None, None]) -> None:
        """Run a change of roles; with the process it ends, wherever it stands."""
        drive(change)

    async def follow_nobody(self) -> None:
        """End the stream from a master, if there is one."""
        self.node.follow("")

    async def promise(self, epoch: Epoch) -> None:
        """In a thread of the node, as a note of the group's state. Raises OSError."""
        node, slave, done = self.node, self.node.slave, Later()
        assert slave is not None, "a master stands before it follows, and only a slave is elected"

        def write() -> None:
            failure = None
            try:
                slave.promise(epoch)
            except OSError as error:
                failure = error
            else:
                node.ghost.witness.promises(node, epoch)
                if slave.identity.promised_epoch < epoch:
                    raise Violation(f"{node.name} takes a role in {epoch}, and does not promise it")
            node.later(self._chance.uniform(0, NOTED_MS), lambda: done.end(failure))

        node.later(self._chance.uniform(0, NOTED_MS), write)
        await done

    def cannot_promise(self, error: OSError) -> None:
        """The disk has no room for a promise."""
        self.node.ghost.mark("no_room_to_promise")

    def follow(self, effect: Follow) -> None:
        """Begin to copy a master's log."""
        node, target = self.node, effect.master.replica.node
        node.world.note(f"{node.name} follows {target} in epoch {effect.epoch}")
        node.follow(effect.master.ha_endpoint)

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        """A sync under way counts for nothing once the log was cut: see `Node.become_master`."""
        return contextlib.nullcontext()

    def lead(self, effect: Lead) -> Master:
        """Open the epoch. After StoreError, or OSError for want of room, the node is a slave."""
        try:
            return self.node.become_master(effect)
        except (OSError, StoreError):
            self.node.become_slave()
            raise

    def leading(self, effect: Lead) -> None:
        """The mastership has begun."""
        self.node.ghost.leads(self.node, effect.epoch)

    def cannot_lead(self, effect: Lead, error: OSError | StoreError) -> None:
        """The mastership could not begin."""
        self.node.world.note(f"{self.node.name} cannot lead: {error}")

    def hand_over(self, target: str) -> None:
        """An operator's order."""
        self.step(HandOver(target, "order"))
