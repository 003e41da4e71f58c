"""Failover: who is the master, decided with the registry; one machine in every node of a group.

The owner passes it events from the registry and the clock, and executes the effects it returns. It
works by these rules: the state key changes only by transactions that check the state they build
on; only a member of the SyncStateSet with its incarnation is elected; a transaction without an
answer may be applied at any later time, until another one on the same key is; a master stops at
its lease's deadline, by its own clock; a registry that has lost a change is not trusted; a
directory that turns out to lack bytes that it acknowledged continues as another replica, and a
master that lacks bytes that a member of the set knows to be confirmed is deposed by that member.

| role | means | leaves it by |
|------|-------|--------------|
| STANDING | nobody to follow | a master's lock → FOLLOWING, its own → LEADING |
| FOLLOWING | another node holds the lock | that lock changes |
| LEADING | its own lock, its own epoch | lock or lease lost, deadline, hand-over |
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from duolog_server.ha import succession
from duolog_server.ha.beginnings import Cause
from duolog_server.ha.epochs import NO_EPOCH, Epoch, next_epoch
from duolog_server.ha.failoverevents import (
    Answer,
    AskLease,
    Changed,
    Commit,
    Committed,
    Contradicted,
    DropLease,
    Effect,
    ElectUnclean,
    Event,
    Follow,
    FoundOlder,
    HandOver,
    Instruct,
    Lead,
    Leased,
    LeaseLost,
    Noted,
    Observed,
    Stand,
    Tick,
    Uncertain,
    Wake,
)
from duolog_server.ha.groupchanges import GroupChanges
from duolog_server.ha.groupstate import (
    MOVES,
    BadState,
    Discarded,
    GroupState,
    Keys,
    Registration,
    Replica,
    Unreachable,
    Unreached,
    View,
)
from duolog_server.ha.guarantee import Guarantee
from duolog_server.ha.knowngroup import KnownGroup, NotBelieved
from duolog_server.ha.mandate import Mandate, Mastership
from duolog_server.ha.membership import Membership
from duolog_server.ha.provenance import Provenance
from duolog_server.ha.registry import Check, Delete, Put, Snapshot, Transaction
from duolog_server.ha.starts import Claim, Start
from duolog_server.ha.syncstate import Seen, SyncState, lives
from duolog_server.store.clocks import MonoMs
from duolog_server.store.disk import Disk, no_room

BOOTSTRAP_MS = 200  # an empty node waits so long for one that has a log to start the group
PAUSE_MS = 1000  # after a mastership that could not begin
HAND_OVER_MS = 2000  # longest pause of a planned switch
STANDSTILL_SHARE = 0.5  # of a master's patience: without an event for so long, it stalled
STANDSTILL_MIN_MS = 200  # several turns of its clock, which must not pass for a standstill
FULL_PAUSE_MS = 30_000  # nobody hands over for a full disk to who led and gave up before that
UNREACHED_MS = 2000  # a master that others cannot reach for so long hands over to one they can
UNREACHED_PAUSE_MS = 30_000  # and does not do so again for so long
DISCARDED_MAX = 32


class Role(enum.Enum):
    """This node's role in its group."""

    STANDING = "STANDING"
    FOLLOWING = "FOLLOWING"
    LEADING = "LEADING"


class _Kind(enum.Enum):
    REGISTER = "register"
    ELECT = "elect"
    MEMBERS = "members"
    PROMISE = "promise"
    HAND_OVER = "hand over"
    START = "claim the start"
    DEPOSE = "depose"
    TELL = "tell the room and the reach"


@dataclass(slots=True)
class _Pending:
    """A transaction that was sent.

    state: what the state key becomes with it. reason: why this mastership ends with it.
    """

    number: int
    kind: _Kind
    lease: int
    state: GroupState | None = None
    token: Any = None
    reason: str = "handed over"


@dataclass(slots=True)
class _HandingOver:
    target: str
    until_ms: MonoMs
    token: Any


class Failover:
    """The machine."""

    def __init__(
        self,
        disk: Disk,
        candidacy: "Candidacy",
        facts: "Facts",
    ) -> None:
        """Counts a start of the directory, durably. Raises BadStoreFile where the node's membership
        cannot be trusted, and OSError.
        """
        self.group = KnownGroup(disk, candidacy.keys)
        self.me = candidacy.me
        self.role = Role.STANDING
        self.reason = "this node does not know the group's state yet"
        self.lease = 0
        self.deadline_ms = MonoMs(0)
        self.provenance = Provenance(Start(self.membership.starts, candidacy.fresh_id))
        self.elections = 0  # won since the start
        self._facts = facts
        self._own = candidacy.own
        self._fresh_id = candidacy.fresh_id
        self._master: Mastership | None = None  # to read: what changes in it is an Instruct
        self._sync: SyncState | None = None  # of the mastership that was won last
        self._instructed: Mandate | None = None  # the last mandate given to the master
        self._followed: tuple[Registration, int] | None = None
        self.led_epoch = NO_EPOCH  # that this node leads, or led last
        self._led = False  # some node led when the registry was read last
        self._unled_since_ms: MonoMs | None = None
        self._cause = Cause.STARTED  # of the election that this node tried last
        self._asked_lease = False
        self._pending: _Pending | None = None
        self._numbers = 0
        self._opportunity: tuple[int, MonoMs] | None = None  # state revision, when to elect
        self._not_before_ms = MonoMs(0)
        self._stepped_ms = MonoMs(0)
        self._awake_ms = MonoMs(0)  # since when it has not stalled
        self._handing: _HandingOver | None = None
        self._unclean: ElectUnclean | None = None
        self._led_until_ms: dict[str, MonoMs] = {}  # nodes that gave up a mastership, and live
        self._unreached_since_ms: MonoMs | None = None  # this master, by most others
        self._stays_until_ms = MonoMs(0)  # though most others cannot reach it

    @property
    def view(self) -> View:
        """The group as it was read last."""
        return self.group.view

    @property
    def unreachable(self) -> Unreachable:
        """The nodes that this one cannot reach at their replication addresses."""
        return self._facts.unreachable()

    @property
    def unreached_by(self) -> dict[str, Unreached]:
        """The live nodes that cannot reach this one at its replication address, and why."""
        return self.view.unreached_by(self.me.replica.node)

    @property
    def barred(self) -> list[str]:
        """Nodes that neither count for puts nor lead, as queues of the group have moved: their
        version would store messages in those again.
        """
        if not self._facts.has_moves():
            return []
        return [node for node in self.view.lacking(MOVES) if node != self.me.replica.node]

    @property
    def _sight(self) -> View:
        """The group as it was read last, with what this node has found since."""
        view, me, found = self.view, self.me.replica.node, self._facts.unreachable()
        if barred := self.barred:
            view = replace(view, drained=view.drained.union(barred))
        if found == view.reach.get(me, {}):
            return view
        return replace(view, reach={**view.reach, me: found})

    @property
    def known_master(self) -> Registration | None:
        """The master as far as this node knows; None if no node holds the lock, or this
        one does and does not lead.
        """
        if self.role is Role.LEADING:
            return self.me
        return None if self.view.holder == self.me.replica else self.view.master

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of puts while this node leads: the stronger of the group's guarantee and
        what its own settings ask for.
        """
        return self._own.joined(self.view.guarantee)

    @property
    def weaker(self) -> list[str]:
        """The settings of this node that ask for less than the group promises; others go by it."""
        promised = self.view.guarantee
        return self._own.weaker_than(promised) if promised is not None else []

    @property
    def membership(self) -> Membership:
        """The newest state of the group that was ever seen."""
        return self.group.membership

    @property
    def notice(self) -> str:
        """A problem of this node's directory or its master's, for operators; empty: none."""
        return self.provenance.notice(self.view.state, self.me.replica)

    @property
    def stranded(self) -> str:
        """Why no node is elected before an operator acts; empty: elections are possible."""
        view, state = self.view, self.view.state
        if state is None or not state.opened or view.lock is not None:
            return ""
        if not succession.nobody_left(view, state):
            return ""
        lost = ", ".join(sorted(replica.node for replica in state.sync_state_set))
        return (
            f"no replica of the SyncStateSet is left: {lost} came back with an empty disk, with an "
            "older copy of it, with a damaged log, or after a loss of power. Elect the node that "
            "holds the most by hand: `cluster elect --unclean`"
        )

    @property
    def last_epoch(self) -> Epoch:
        """The newest epoch this node knows of, even if the registry has lost it."""
        state = self.view.state
        return max(state.epoch if state is not None else NO_EPOCH, self._facts.promised_epoch())

    @property
    def is_relieved(self) -> bool:
        """Others have room for what this node cannot store: its disk need not be cleared for that.

        Of a master, somebody takes over; without a slave, enough other members are left.
        """
        state, me = self.view.state, self.me.replica
        if state is None:
            return False
        if self.role is not Role.LEADING:
            return succession.relievers(self.view, state, me) >= self.guarantee.in_sync_replicas
        master = self._master
        return master is not None and bool(
            succession.roomy_successor(self._sight, state, me, master)
        )

    def relief(self, now_ms: MonoMs) -> str:
        """The member to which a master whose disk is full hands over now; empty: none.

        To who gave up a mastership a moment ago, possibly for its own disk, it waits a while: so
        those with little room do not give it to each other after every few messages.
        """
        state, master = self.view.state, self._master
        if state is None or master is None or now_ms < self._not_before_ms:
            return ""
        led = {name for name, at in self._led_until_ms.items() if now_ms < at + FULL_PAUSE_MS}
        return succession.roomy_successor(self._sight, state, self.me.replica, master, led)

    @property
    def taken_over_by(self) -> str:
        """The node that takes over, while this master hands over; empty: none."""
        return self._handing.target if self._handing is not None else ""

    # -- events --------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: MonoMs) -> list[Effect]:
        """Effects of an event. Raises OSError where the disk fails, and BadStoreFile."""
        effects: list[Effect] = []
        self._notice_standstill(now_ms)
        match event:
            case Leased(lease, deadline_ms):
                self._leased(lease, deadline_ms)
            case LeaseLost(lease) if lease == self.lease:
                effects += self._abandon_lease("the lease was lost", dropped=True)
            case Observed(snapshot):
                effects += self._observed(snapshot, now_ms)
            case Tick():
                effects += self.group.tick(now_ms)
            case Committed(number, revision) if self._is_pending(number):
                effects += self._committed(revision, now_ms)
            case Uncertain(number) if self._is_pending(number):
                effects += self._uncertain(now_ms)
            case Changed():
                effects += self.group.read(now_ms)
            case Noted(noted):
                effects += self.group.noted(noted)
            case HandOver():
                effects += self._start_hand_over(event, now_ms)
            case ElectUnclean():
                self._unclean = event
                effects += self.group.read(now_ms)
            case Contradicted(epoch, reason):
                self.provenance.contradicted(epoch, reason)
            case FoundOlder(reason):
                self.provenance.refused(reason)
            case _:
                pass
        self._take_members()
        effects += self._decide(now_ms)
        return [*self._instruct(), *effects]  # a proposed member is required before it is proposed

    def validate(self) -> str:
        """The invariant that this machine breaks between two events, empty for none.

        Only who leads has a master and hands over, and it gave the master all its instructions;
        only who follows has somebody to follow; a lease is not asked for while there is one.
        """
        leading = self.role is Role.LEADING
        if self._master is not None and not leading:
            return f"{self.role.value} with a mastership"
        if self._handing is not None and not leading:
            return f"{self.role.value} while it hands over to {self._handing.target}"
        if leading and not self.lease:
            return "LEADING without a lease"
        if (self._followed is not None) != (self.role is Role.FOLLOWING):
            return f"{self.role.value}, and follows {self._followed}"
        if self.lease and self._asked_lease:
            return "asks for a lease beside the one it has"
        if self._instruct_anew():
            return "the master does not know its mandate"
        return ""

    def leads(self, master: Mastership) -> list[Effect]:
        """The mastership has begun."""
        self._master, self._instructed = master, None
        return self._instruct()

    def cannot_lead(self, reason: str, now_ms: MonoMs) -> list[Effect]:
        """The mastership could not begin: give other nodes a chance for a while."""
        self._not_before_ms = MonoMs(now_ms + PAUSE_MS)
        return self._abandon_lease(f"could not lead: {reason}")

    def _notice_standstill(self, now_ms: MonoMs) -> None:
        """A master that stalled has not read what members did meanwhile: they do not lag."""
        stood_ms, self._stepped_ms = now_ms - self._stepped_ms, now_ms
        if self._master is None:
            return
        if stood_ms > max(self._master.patience_ms * STANDSTILL_SHARE, STANDSTILL_MIN_MS):
            self._awake_ms = now_ms

    def _is_pending(self, number: int) -> bool:
        return self._pending is not None and self._pending.number == number

    # -- lease ---------------------------------------------------------------------------------

    def _leased(self, lease: int, deadline_ms: MonoMs) -> None:
        if lease == self.lease:
            self.deadline_ms = max(self.deadline_ms, deadline_ms)
        elif self._asked_lease:
            self.lease, self.deadline_ms, self._asked_lease = lease, deadline_ms, False

    def _abandon_lease(self, reason: str, dropped: bool = False) -> list[Effect]:
        """Stop everything that depends on the lease; a new one is requested automatically."""
        effects: list[Effect] = []
        if self.role is Role.LEADING:
            effects += self._step_down(reason)
        if self.lease and not dropped:
            effects.append(DropLease(self.lease))
        self.lease, self.deadline_ms = 0, MonoMs(0)
        return effects

    # -- reading -------------------------------------------------------------------------------

    def _observed(self, snapshot: Snapshot | None, now_ms: MonoMs) -> list[Effect]:
        before = self.view.state
        try:
            effects = self.group.observed(snapshot, now_ms)
        except NotBelieved as error:
            return self._distrust_now(str(error))
        self._note_last_master(before, now_ms)
        return effects

    def _note_last_master(self, before: GroupState | None, now_ms: MonoMs) -> None:
        """One whose lease has ended gave up nothing."""
        state, last = self.view.state, before.master if before is not None else None
        led = last is not None and state is not None and last != state.master
        if last is not None and led and lives(last, self.view.replicas):
            self._led_until_ms[last.node] = now_ms

    def _distrust_now(self, reason: str) -> list[Effect]:
        if self.role is Role.LEADING:
            return self._abandon_lease(reason)
        return self._stand(reason)

    # -- transactions --------------------------------------------------------------------------

    def promise(self, guarantee: Guarantee) -> Transaction | None:
        """The transaction for an operator's guarantee; None if this node no longer leads."""
        return self._changes.promise(guarantee) if self._is_mine() else None

    def change_rows(
        self, known: tuple[Check, ...], rows: tuple[Put | Delete, ...]
    ) -> Transaction | None:
        """The transaction for rows of queues that move; None if this node no longer leads."""
        return self._changes.change_rows(known, rows) if self._is_mine() else None

    @property
    def _changes(self) -> GroupChanges:
        return GroupChanges(self.group.keys, self.view, self.me, self.lease)

    def _send(self, kind: _Kind, transaction: Transaction, **how: Any) -> list[Effect]:
        self._numbers += 1
        self._pending = _Pending(self._numbers, kind, self.lease, **how)
        return [Commit(self._numbers, transaction)]

    def _committed(self, revision: int | None, now_ms: MonoMs) -> list[Effect]:
        done, self._pending = self._pending, None
        assert done is not None, "asked before"
        if revision is None:
            return [*self._refused(done), *self.group.read(now_ms)]
        match done.kind:
            case (
                _Kind.REGISTER
                | _Kind.ELECT
                | _Kind.START
                | _Kind.DEPOSE
                | _Kind.PROMISE
                | _Kind.TELL
            ):
                return [*self._say(done.token, ""), *self.group.read(now_ms)]
            case _Kind.MEMBERS:
                assert done.state is not None, "it changes the state"
                return self.group.changed(done.state, revision, now_ms)
            case _Kind.HAND_OVER:
                effects = self._step_down(done.reason) if self.role is Role.LEADING else []
                return [*effects, *self._say(done.token, ""), *self.group.read(now_ms)]

    def _refused(self, done: _Pending) -> list[Effect]:
        if done.kind is _Kind.HAND_OVER:
            self._end_hand_over("")
        return self._say(done.token, "the group's state changed during the call: try again")

    def _uncertain(self, now_ms: MonoMs) -> list[Effect]:
        lost, self._pending = self._pending, None
        assert lost is not None, "asked before"
        effects: list[Effect] = []
        if lost.kind is _Kind.HAND_OVER and self.role is Role.LEADING:
            effects += self._abandon_lease("a hand-over may have been made")
        effects += self._say(lost.token, "the registry did not answer in time", unknown=True)
        return [*effects, *self.group.read(now_ms)]

    @staticmethod
    def _say(token: Any, error: str, unknown: bool = False) -> list[Effect]:
        return [Answer(token, error, unknown)] if token is not None else []

    # -- the mandate ---------------------------------------------------------------------------

    def _take_members(self) -> None:
        """Give the master the set that the registry has, once that is saved here."""
        state = self.view.state
        believed = not self.group.noting and not self.group.distrust()
        if self._master is None or state is None or not believed or not self._is_mine():
            return
        assert self._sync is not None, "of an elected master"
        self._sync.observe(state.sync_state_set, self.view.state_revision, state.opened)

    def _mandate(self, sync: SyncState) -> Mandate:
        paused = f"{self._handing.target} takes over" if self._handing is not None else ""
        paused = paused or self._pause_for_barred(sync)
        return Mandate(
            sync.me,
            sync.members,
            sync.required,
            self.deadline_ms,
            sync.opened,
            paused,
            self.guarantee,
        )

    def _pause_for_barred(self, sync: SyncState) -> str:
        """Why no put is stored until barred members have left, where puts require them; or empty:
        what the others cannot confirm is not to be confirmed by one replica less.
        """
        counted, barred = sync.required, self.barred
        left = [replica for replica in counted if replica.node not in barred]
        if len(left) == len(counted) or len(left) >= self.guarantee.in_sync_replicas:
            return ""
        return f"{', '.join(barred)} must be upgraded: queues have moved, which its version ignores"

    def _instruct_anew(self) -> Mandate | None:
        """The mandate to give the master now; None if it has it already."""
        if self._master is None or self._sync is None:
            return None
        mandate = self._mandate(self._sync)
        return None if mandate == self._instructed else mandate

    def _instruct(self) -> list[Effect]:
        mandate = self._instruct_anew()
        if mandate is None:
            return []
        self._instructed = mandate
        return [Instruct(mandate)]

    # -- deciding ------------------------------------------------------------------------------

    def _decide(self, now_ms: MonoMs) -> list[Effect]:
        """Decide from the current state and time."""
        effects: list[Effect] = []
        if self.lease and now_ms >= self.deadline_ms:
            effects += self._abandon_lease("the lease was not renewed in time")
        if not self.lease and not self._asked_lease:
            self._asked_lease = True
            effects.append(AskLease())
        if not self.group.settled or self._pending is not None:
            return effects
        if self.group.distrust() and self._unclean is None:
            return effects
        try:
            claim = self.provenance.claim(self.group, self.me.replica)
        except BadState as error:
            return effects + self._distrust_now(str(error))
        proven = self._is_proven(claim)
        if self.lease and not proven:
            return effects + self._prove_itself(claim)
        if self._unclean is not None:
            return effects + self._elect_unclean()
        if not proven:
            return effects + self._stand("has no lease in the registry yet")
        if self.lease and not self._is_registered():
            taken = self._name_taken()
            if taken:
                return effects + self._stand(taken)
            # Also if an older registration was applied late, and expired with an older lease.
            return effects + self._send(_Kind.REGISTER, self._changes.register(*self._told()))
        if self.lease and self._told() != self._read_told():
            return effects + self._send(_Kind.TELL, self._changes.tell(*self._told()))
        if self.role is Role.LEADING:
            return effects + self._keep_leading(now_ms)
        return effects + self._find_a_master(now_ms)

    def _is_registered(self) -> bool:
        node = self.me.replica.node
        return self.view.leases.get(node) == self.lease and self.view.replicas.get(node) == self.me

    def _told(self) -> tuple[bool, Unreachable]:
        """This node's report: whether its disk has room, and the nodes that it cannot reach."""
        return self._facts.has_room(), self._facts.unreachable()

    def _read_told(self) -> tuple[bool, Unreachable]:
        """The same as the registry has it."""
        node = self.me.replica.node
        return self.view.has_room(node), self.view.reach.get(node, {})

    def _name_taken(self) -> str:
        """Another live process with this node's name; empty: none that blocks this one.

        If each wrote over the other's registration, they would drive each other out of the set for
        as long as both run. What is registered at this node's addresses is its last process.
        """
        node = self.me.replica.node
        other = self.view.replicas.get(node)
        if self.role is Role.LEADING or other is None or self.view.leases[node] == self.lease:
            return ""
        here = (self.me.endpoint, self.me.ha_endpoint)
        if other.replica == self.me.replica or (other.endpoint, other.ha_endpoint) == here:
            return ""
        return f"another process is registered as node {node!r}, at {other.endpoint}"

    def _is_mine(self) -> bool:
        """The lock is this lease's, and the state says that this replica is the master."""
        view = self.view
        return (
            view.lock is not None
            and view.state is not None
            and bool(self.lease)
            and view.lock.lease == self.lease
            and view.state.master == self.me.replica
        )

    def _find_a_master(self, now_ms: MonoMs) -> list[Effect]:
        view = self.view
        self._notice_master(view.lock is not None and view.holder != self.me.replica, now_ms)
        if view.lock is None:
            return [*self._stand("the group has no master"), *self._try_election(now_ms)]
        if self._is_mine():
            assert view.state is not None, "it is mine"
            if view.state.epoch <= self.led_epoch:
                return self._abandon_lease("the lock of a mastership that is over")
            self.led_epoch = view.state.epoch
            self.role, self.reason, self._followed = Role.LEADING, "", None
            self.elections += 1
            members, opened = view.state.sync_state_set, view.state.opened
            self._sync = SyncState(self.me.replica, members, view.state_revision, opened)
            mandate, since_ms = self._mandate(self._sync), self._unled_since_ms
            self._notice_master(True, now_ms)
            return [Lead(view.state.epoch, mandate, self._cause, since_ms)]
        if view.holder == self.me.replica and view.lock.lease != self.lease:
            # Of this replica's last process, or of a lease it gave up: no other node holds it.
            return [
                *self._stand("waiting for its own older lock to end"),
                DropLease(view.lock.lease),
            ]
        if view.master is None or view.state is None:
            return self._stand("the master is not registered")
        target = (view.master, view.state.epoch)
        if self.lease and self.provenance.may_depose(view.state, self.me.replica):
            return self._depose(view.state)
        if self.role is Role.FOLLOWING and self._followed == target:
            return []
        self.role, self.reason, self._followed = Role.FOLLOWING, "", target
        return [Follow(*target)]

    def _notice_master(self, led: bool, now_ms: MonoMs) -> None:
        """Note since when the group has no master, if this node has seen the last master."""
        if led:
            self._unled_since_ms = None
        elif self._led:
            self._unled_since_ms = now_ms
        self._led = led

    def _stand(self, reason: str) -> list[Effect]:
        stood = self.role is Role.STANDING
        self.role, self.reason, self._followed = Role.STANDING, reason, None
        return [] if stood else [Stand(reason)]

    def _step_down(self, reason: str) -> list[Effect]:
        effects = self._end_hand_over(reason)
        self._master = None
        return [*effects, *self._stand(reason)]

    # -- older copies --------------------------------------------------------------------------

    def _is_proven(self, claim: Claim) -> bool:
        """The registry has recorded this start, and there is no sign of an older copy."""
        return claim is Claim.CLAIMED and not self.provenance.lacks_what_it_acknowledged

    def _prove_itself(self, claim: Claim) -> list[Effect]:
        """Claim this start: nothing else is done before the registry has recorded it."""
        why, start = self.provenance.why_older(claim), self.provenance.start
        if why:
            return self._renew(why)
        if not self.group.is_marked(start):
            row, _ = self.view.start_of(self.me.replica, self.group.keys)
            return self.group.mark(start, row)
        return self._send(_Kind.START, self._changes.claim(start))

    def _renew(self, reason: str) -> list[Effect]:
        """Continue as another replica, which must catch up before it counts or may be elected."""
        stop = self._abandon_lease if self.role is Role.LEADING else self._stand
        effects = stop(f"this directory lacks what it has acknowledged: {reason}")
        try:
            incarnation = self._facts.renew(reason)
        except OSError as error:
            if not no_room(error):
                raise
            return [
                *effects,
                *self._stand("no disk space to record that this directory is another replica now"),
            ]
        self.provenance.renewed(reason)
        self.me = replace(self.me, replica=replace(self.me.replica, incarnation=incarnation))
        return effects

    def _depose(self, state: GroupState) -> list[Effect]:
        """Remove a master that is an older copy from the set, and delete its lock.

        Every true member of the set holds all that is confirmed: without this master it still
        consists of such members only, this node among them.
        """
        left = frozenset(r for r in state.sync_state_set if r != state.master)
        new = state.changed(sync_state_set=left, successor=self.me.replica.node)
        return self._send(_Kind.DEPOSE, self._changes.depose(new), state=new)

    # -- election ------------------------------------------------------------------------------

    def _try_election(self, now_ms: MonoMs) -> list[Effect]:
        view, state = self.view, self.view.state
        if not self.lease:
            return []
        if state is None or self._may_begin_again(state):
            delay, new = self._beginning(state)
            cause = Cause.STARTED
        elif self.me.replica not in state.sync_state_set:
            outside = "not in the SyncStateSet: acknowledged messages may be missing here"
            renamed = succession.renamed(state, self.me.replica)
            self.reason = "; ".join(filter(None, (outside, renamed, self.stranded)))
            return []
        elif self._facts.promised_epoch() > state.epoch:
            self.reason = f"epoch {self._facts.promised_epoch()} was seen, the registry's is older"
            return []
        else:
            delay = succession.delay_ms(self._sight, state, self.me.replica)
            new = state.changed(epoch=next_epoch(state.epoch), master=self.me.replica, successor="")
            cause = succession.cause(state)
        unfit = self._facts.unfit()
        if unfit:
            self.reason = f"not eligible: {unfit}"
            return []
        if self._opportunity is None or self._opportunity[0] != view.state_revision:
            self._opportunity = (view.state_revision, MonoMs(now_ms + delay))
        at_ms = max(self._opportunity[1], self._not_before_ms)
        if now_ms < at_ms:
            return [Wake(at_ms)]
        self._cause = cause
        return self._send(_Kind.ELECT, self._changes.elect(new), state=new)

    def _may_begin_again(self, state: GroupState) -> bool:
        """A group in which nothing was ever acknowledged, and whose first node is empty again."""
        return (
            not state.opened
            and state.master.node == self.me.replica.node
            and self.me.replica not in state.sync_state_set
            and self._facts.log_empty()
        )

    def _beginning(self, state: GroupState | None) -> tuple[int, GroupState]:
        me = self.me.replica
        epoch = next_epoch(self.last_epoch)
        group_id = state.group_id if state is not None else self._fresh_id
        delay = BOOTSTRAP_MS if self._facts.log_empty() else 0
        version = state.version + 1 if state is not None else 1
        return delay, GroupState(group_id, epoch, me, frozenset((me,)), version)

    def _elect_unclean(self) -> list[Effect]:
        """An operator's order: elect this node even with less log than others; record it."""
        asked, self._unclean = self._unclean, None
        assert asked is not None, "asked before"
        state = self.view.state
        last = self.last_epoch
        if asked.epoch != last:
            return self._say(
                asked.token, f"the last epoch is {last}, not {asked.epoch}: see `cluster status`"
            )
        if self.view.lock is not None:
            return self._say(asked.token, "the group has a master")
        if not self.lease:
            return self._say(asked.token, "this node has no lease in the registry yet: try again")
        me = self.me.replica
        epoch = next_epoch(last)
        given_up = sorted(str(r) for r in (state.sync_state_set if state else ()) if r != me)
        row = Discarded(epoch, me.node, self._facts.log_end(), tuple(given_up))
        version = max(self.membership.version, state.version if state is not None else 0) + 1
        new = GroupState(
            self.membership.group_id or self._fresh_id,
            epoch,
            me,
            frozenset((me,)),
            version,
            True,
            discarded=(*(state.discarded if state is not None else ()), row)[-DISCARDED_MAX:],
        )
        self._cause = Cause.UNCLEAN
        elect = self._changes.elect(new, self.view.guarantee)
        return self._send(_Kind.ELECT, elect, state=new, token=asked.token)

    # -- leading -------------------------------------------------------------------------------

    def _keep_leading(self, now_ms: MonoMs) -> list[Effect]:
        view, state, master = self._sight, self.view.state, self._master
        if state is None or not self._is_mine() or state.epoch != self.led_epoch:
            return self._abandon_lease("another node is the master, or the lock expired")
        if master is None:
            return []  # its epoch is being opened
        if self._handing is not None:
            return self._go_on_handing_over(self._handing, state, master, now_ms)
        instead = self._better_placed(view, state, master, now_ms)
        if instead:
            return self._leave_to(instead, state, now_ms)
        successor = succession.best_successor(view, state, self.me.replica, master)
        if self.me.replica.node in view.drained and successor and now_ms >= self._not_before_ms:
            self._not_before_ms = MonoMs(now_ms + PAUSE_MS)
            return self._start_hand_over(HandOver(successor, None), now_ms)
        roomy = self.relief(now_ms) if self._facts.is_full() else ""
        if roomy:
            self._not_before_ms = MonoMs(now_ms + PAUSE_MS)
            return self._start_hand_over(HandOver(roomy, None), now_ms)
        sync = self._sync
        assert sync is not None, "of an elected master"
        seen = Seen(
            self.guarantee.in_sync_replicas,
            master.join_floor,
            master.patience_ms,
            master.progress(now_ms),
            view.replicas,
            view.drained,
            self._awake_ms,
            [r.node for r in sync.members if self._leaves_in_any_case(r, master)],
        )
        wanted = sync.wanted(seen, now_ms)
        if wanted is None and (sync.unsettled or self._opens_alone(sync, master)):
            wanted = sync.members  # after this, no change in flight can be applied any more
        if wanted is None:
            return self._record_guarantee(sync)
        sync.propose(wanted)
        new = state.changed(sync_state_set=wanted, opened=True)
        return self._send(_Kind.MEMBERS, self._changes.set_members(new), state=new)

    def _leaves_in_any_case(self, member: Replica, master: Mastership) -> bool:
        return member.node in self.barred and master.held_by(member) >= master.log_end

    def _opens_alone(self, sync: SyncState, master: Mastership) -> bool:
        """A group that requires one replica only: it is opened once its log has begun."""
        alone = self.guarantee.in_sync_replicas == 1
        return not sync.opened and alone and master.epoch_confirmed

    def _record_guarantee(self, sync: SyncState) -> list[Effect]:
        """Record this master's guarantee for the group, unless an operator set one.

        Not before the set is large enough for it: nothing was acknowledged by it yet.
        """
        view = self.view
        known = view.guarantee or self._own
        new = known if known.by_operator else known.joined(self._own)
        recorded = bool(view.guarantee_revision) and new == known
        if recorded or not sync.opened or len(sync.members) < new.in_sync_replicas:
            return []
        return self._send(_Kind.PROMISE, self._changes.promise(new))

    # -- a master that others cannot reach -------------------------------------------------------

    def _better_placed(
        self, view: View, state: GroupState, master: Mastership, now_ms: MonoMs
    ) -> str:
        """The member to leave this mastership to, as most nodes have not been able to follow it for
        a while and could follow that one; empty: none.
        """
        instead = ""
        if self.unreached_by and now_ms >= self._stays_until_ms:
            connected = len({replica.node for replica in master.progress(now_ms)})
            instead = succession.better_placed(view, state, self.me.replica, connected)
        if not instead:
            self._unreached_since_ms = None
            return ""
        since_ms = self._unreached_since_ms = self._unreached_since_ms or now_ms
        return instead if now_ms - since_ms >= UNREACHED_MS else ""

    def _leave_to(self, member: str, state: GroupState, now_ms: MonoMs) -> list[Effect]:
        """Release the lock for a member that does not follow.

        Every member of the set holds what was confirmed; what this master stored since then, it
        has not acknowledged, as that member was required.
        """
        self._stays_until_ms = MonoMs(now_ms + UNREACHED_PAUSE_MS)
        new = state.changed(successor=member)
        names, one = " and ".join(self.unreached_by), next(iter(self.unreached_by.values()))
        reason = f"{names} cannot follow it at {one}, and could follow {member}"
        return self._send(_Kind.HAND_OVER, self._changes.hand_over(new), state=new, reason=reason)

    # -- hand-over -----------------------------------------------------------------------------

    def _start_hand_over(self, asked: HandOver, now_ms: MonoMs) -> list[Effect]:
        master, state = self._master, self.view.state
        if self.role is not Role.LEADING or master is None or state is None:
            return self._say(asked.token, "this node is not the master")
        if self._handing is not None:
            # Possibly the same order again, whose answer was lost.
            return self._say(asked.token, "a hand-over is already in progress", unknown=True)
        me = self.me.replica
        sight = self._sight
        target = asked.target or succession.best_successor(sight, state, me, master)
        if target == me.node:
            return self._say(asked.token, "")
        refused = succession.refusal(sight, state, me, target)
        if refused:
            return self._say(asked.token, refused)
        self._handing = _HandingOver(target, MonoMs(now_ms + HAND_OVER_MS), asked.token)
        return []

    def _go_on_handing_over(
        self, handing: _HandingOver, state: GroupState, master: Mastership, now_ms: MonoMs
    ) -> list[Effect]:
        """Release the lock, and end the mastership, once the successor has the whole log."""
        successor = next((r for r in state.sync_state_set if r.node == handing.target), None)
        if successor is None or now_ms >= handing.until_ms:
            return self._end_hand_over(f"{handing.target} did not catch up in time")
        if master.held_by(successor) < master.log_end:
            return [Wake(MonoMs(now_ms + 5))]
        new = state.changed(successor=handing.target)
        token, handing.token = handing.token, None
        return self._send(_Kind.HAND_OVER, self._changes.hand_over(new), state=new, token=token)

    def _end_hand_over(self, error: str) -> list[Effect]:
        handing, self._handing = self._handing, None
        return self._say(handing.token, error) if handing is not None else []


@dataclass(frozen=True, slots=True)
class Candidacy:
    """A candidate of an election.

    own: what a put waits for by this node's own settings. fresh_id: random, for a group that begins
    now, and to tell this process from others.
    """

    keys: Keys
    me: Registration
    own: Guarantee
    fresh_id: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that the machine needs from its node.

    unfit: why this node may not lead now (damage in its log, a failed disk), empty where it may.
    renew: give this directory another incarnation, durably, and answer it; the reason is for the
    log. May raise OSError. is_full: its disk takes no puts. has_room: its disk is far from that.
    unreachable: the registered nodes whose replication addresses it could not connect to last.
    has_moves: queues of the group have moved, or are reserved.
    """

    unfit: Callable[[], str]
    log_empty: Callable[[], bool]
    log_end: Callable[[], int]
    promised_epoch: Callable[[], Epoch]
    renew: Callable[[str], int]
    is_full: Callable[[], bool] = lambda: False
    has_room: Callable[[], bool] = lambda: True
    unreachable: Callable[[], Unreachable] = dict
    has_moves: Callable[[], bool] = lambda: False
