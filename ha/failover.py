"""Failover: who is the master, decided with the registry; one machine in every node of a group.

The owner feeds it what the registry and the clock say, and does what it answers. It works by these
rules: the state key changes by transactions that check what they build on; only a member of the
SyncStateSet with its incarnation is elected; a transaction without an answer may be made at any
later time, until another one on the same key is; a master stops at its lease's deadline, by its own
clock; a registry that has forgotten something is not believed; a directory that turns out to be an
older copy goes on as another replica, and a master that lacks what a member of the set knows to be
confirmed is removed by that member.

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

from ha import membership
from ha.groupstate import (
    BadState,
    Discarded,
    GroupState,
    Keys,
    Registration,
    Replica,
    View,
    view_of,
)
from ha.master import Master
from ha.membership import Membership
from ha.registry import Check, Delete, Put, Row, Snapshot, Transaction
from ha.starts import Standing as StartStanding
from ha.starts import Start
from store.clocks import MonoMs
from store.disk import Disk, no_room

RANK_MS = 50  # each candidate waits so much longer than the one before it
HEIR_MS = 1000  # the others leave a named heir so much time
BOOTSTRAP_MS = 200  # an empty node leaves the beginning to one that has a log
PAUSE_MS = 1000  # after a mastership that could not begin
LOOK_MS = 1000  # the registry is read so often even if nothing seems to change
HAND_OVER_MS = 2000  # longest pause of a planned switch
DISCARDED_MAX = 32


class Role(enum.Enum):
    """What this node does in its group now."""

    STANDING = "STANDING"
    FOLLOWING = "FOLLOWING"
    LEADING = "LEADING"


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease was granted, or renewed; it is good until the deadline on this node's clock."""

    lease: int
    deadline_ms: MonoMs


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The registry does not know the lease any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The group's keys, read after the last `Observe` was asked for; None: the read failed."""

    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a transaction: its revision, None if a check failed."""

    number: int
    revision: int | None


@dataclass(frozen=True, slots=True)
class Uncertain:
    """No answer to a transaction: it was made, or may yet be, or never."""

    number: int


@dataclass(frozen=True, slots=True)
class Changed:
    """Something changed in the registry: look."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A membership that was to be noted is on the disk; None: it has no room for it now."""

    membership: Membership | None


@dataclass(frozen=True, slots=True)
class HandOver:
    """An operator wants another node to be the master; empty: any other."""

    target: str
    token: Any


@dataclass(frozen=True, slots=True)
class ElectUnclean:
    """An operator makes this node the master, whatever others may have held. epoch: the last."""

    epoch: int
    token: Any


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The master of an epoch lacks what this node knows to be confirmed."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class FoundOlder:
    """The master refuses this node: it lacks what it has acknowledged."""

    reason: str


Event = (
    Leased
    | LeaseLost
    | Observed
    | Committed
    | Uncertain
    | Changed
    | Tick
    | Noted
    | HandOver
    | ElectUnclean
    | Contradicted
    | FoundOlder
)


# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskLease:
    """Get a lease and keep it renewed; an older one is not renewed any more."""


@dataclass(frozen=True, slots=True)
class DropLease:
    """End a lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class Observe:
    """Read the group's keys, one read at a time."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Send a transaction, once: no answer is Uncertain."""

    number: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Note:
    """Note a membership durably, one at a time, then say `Noted`: until then nothing is decided."""

    membership: Membership


@dataclass(frozen=True, slots=True)
class Lead:
    """Open the epoch as its master, then do what `leads` says; or what `cannot_lead` says."""

    epoch: int
    state: GroupState
    revision: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Have the master advance: a smaller set, or a lease that goes on, may confirm what it holds.

    Otherwise a put would wait for the next acknowledgement, which may be a heartbeat's.
    """


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy this master's log, and accept nothing older than its epoch."""

    master: Registration
    epoch: int


@dataclass(frozen=True, slots=True)
class Stand:
    """Lead nobody, follow nobody."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Step with a Tick at this time at the latest."""

    at_ms: MonoMs


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell an operator; empty error: done. unknown: it may be done all the same, now or later."""

    token: Any
    error: str
    unknown: bool = False


Effect = (
    AskLease | DropLease | Observe | Commit | Note | Lead | Advance | Follow | Stand | Wake | Answer
)


class _Kind(enum.Enum):
    REGISTER = "register"
    ELECT = "elect"
    MEMBERS = "members"
    HAND_OVER = "hand over"
    START = "claim the start"
    DEPOSE = "depose"


@dataclass(slots=True)
class _Pending:
    """A transaction that was sent. state: what the state key becomes with it."""

    number: int
    kind: _Kind
    lease: int
    state: GroupState | None = None
    token: Any = None


@dataclass(slots=True)
class _HandingOver:
    target: str
    until_ms: MonoMs
    token: Any


class Failover:
    """The machine. `view` is the group as it was read last."""

    def __init__(
        self,
        disk: Disk,
        keys: Keys,
        me: Registration,
        needed: int,
        fresh_id: str,
        facts: "Facts",
    ) -> None:
        """Counts a start of the directory, durably. Raises BadStoreFile if the node's membership
        cannot be trusted, and OSError.

        needed: replicas a put asks for (in_sync_replicas). fresh_id: random, for a group that
        begins now, and to tell this process from others.
        """
        self.keys = keys
        self.me = me
        self.role = Role.STANDING
        self.reason = "this node does not know the group's state yet"
        self.view = View()
        self.lease = 0
        self.deadline_ms = MonoMs(0)
        known = membership.load(disk)
        self.membership = self._saved = replace(known, starts=known.starts + 1)
        membership.save(disk, self.membership)
        self.older_copy = ""  # why this node is not the replica any more that it was
        self.contradiction = ""  # what this node knows, and the master of its epoch lacks
        self._contradicted_epoch = 0
        self._found_older = ""
        self._start = Start(self.membership.starts, fresh_id)
        self.elections = 0  # won since the start
        self._facts = facts
        self._needed = needed
        self._fresh_id = fresh_id
        self._master: Master | None = None
        self._followed: tuple[Registration, int] | None = None
        self._led_epoch = 0
        self._asked_lease = False
        self._reading = False
        self._read_again = False
        self._looked_ms = MonoMs(-LOOK_MS)
        self._known = False  # anything was read
        self._noting = False
        self._pending: _Pending | None = None
        self._numbers = 0
        self._opportunity: tuple[int, MonoMs] | None = None  # state revision, when to elect
        self._not_before_ms = MonoMs(0)
        self._handing: _HandingOver | None = None
        self._unclean: ElectUnclean | None = None

    @property
    def notice(self) -> str:
        """What an operator should know of this node's directory or its master's; empty: nothing."""
        state = self.view.state
        if self.older_copy and (state is None or self.me.replica not in state.sync_state_set):
            return f"its directory is an older copy; it must catch up first: {self.older_copy}"
        if self.contradiction and state is not None and state.epoch == self._contradicted_epoch:
            return f"its master's directory is an older copy: {self.contradiction}"
        return ""

    @property
    def led_epoch(self) -> int:
        """The epoch this node leads, or led last."""
        return self._led_epoch

    @property
    def last_epoch(self) -> int:
        """The newest epoch this node knows of, though the registry may have forgotten it."""
        state = self.view.state
        return max(state.epoch if state is not None else 0, self._facts.promised_epoch())

    # -- events --------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: MonoMs) -> list[Effect]:
        """What follows from an event. Raises OSError if the disk fails, and BadStoreFile."""
        effects: list[Effect] = []
        match event:
            case Leased(lease, deadline_ms):
                effects += self._leased(lease, deadline_ms, now_ms)
            case LeaseLost(lease) if lease == self.lease:
                effects += self._abandon_lease("the lease was lost", dropped=True)
            case Observed(snapshot):
                effects += self._observed(snapshot, now_ms)
            case Tick() if now_ms - self._looked_ms >= LOOK_MS:
                effects += self._look(now_ms)
            case Committed(number, revision) if self._is_pending(number):
                effects += self._committed(revision, now_ms)
            case Uncertain(number) if self._is_pending(number):
                effects += self._uncertain(now_ms)
            case Changed():
                effects += self._look(now_ms)
            case Noted(noted):
                effects += self._noted(noted)
            case HandOver():
                effects += self._start_hand_over(event, now_ms)
            case ElectUnclean():
                self._unclean = event
                effects += self._look(now_ms)
            case Contradicted(epoch, reason):
                self._contradicted_epoch, self.contradiction = epoch, reason
            case FoundOlder(reason):
                self._found_older = reason
            case _:
                pass
        return effects + self._decide(now_ms)

    def leads(self, master: Master) -> list[Effect]:
        """The mastership has begun."""
        self._master = master
        master.deadline_ms = self.deadline_ms
        if not self._noting:
            self._take_members()
        return [Advance()]  # where it needs nobody's acknowledgement

    def cannot_lead(self, reason: str, now_ms: MonoMs) -> list[Effect]:
        """The mastership could not begin: leave it to another node for a while."""
        self._not_before_ms = MonoMs(now_ms + PAUSE_MS)
        return self._abandon_lease(f"could not lead: {reason}")

    def _is_pending(self, number: int) -> bool:
        return self._pending is not None and self._pending.number == number

    # -- lease ---------------------------------------------------------------------------------

    def _leased(self, lease: int, deadline_ms: MonoMs, now_ms: MonoMs) -> list[Effect]:
        if lease == self.lease:
            self.deadline_ms = max(self.deadline_ms, deadline_ms)
        elif self._asked_lease:
            self.lease, self.deadline_ms, self._asked_lease = lease, deadline_ms, False
        if self._master is None:
            return []
        was_over = self._master.is_over(now_ms)
        self._master.deadline_ms = self.deadline_ms
        return [Advance()] if was_over else []

    def _abandon_lease(self, reason: str, dropped: bool = False) -> list[Effect]:
        """Stop whatever depends on the lease; a new one is asked for by itself."""
        effects: list[Effect] = []
        if self.role is Role.LEADING:
            effects += self._step_down(reason)
        if self.lease and not dropped:
            effects.append(DropLease(self.lease))
        self.lease, self.deadline_ms = 0, MonoMs(0)
        return effects

    # -- reading -------------------------------------------------------------------------------

    def _look(self, now_ms: MonoMs) -> list[Effect]:
        """Read the keys; what is being read now may be too old."""
        if self._reading:
            self._read_again = True
            return []
        self._reading, self._looked_ms = True, now_ms
        return [Observe()]

    def _observed(self, snapshot: Snapshot | None, now_ms: MonoMs) -> list[Effect]:
        self._reading = False
        if snapshot is None:
            return []  # tried again in a while
        if self._read_again:
            self._read_again = False
            return self._look(now_ms)
        try:
            self.view = view_of(snapshot, self.keys)
        except BadState as error:
            return self._distrust_now(str(error))
        self._known = True
        wrong = self._distrust()
        if wrong:
            return self._distrust_now(wrong)
        return self._remember()

    def _distrust(self) -> str:
        """Why the registry cannot be believed, empty if it can."""
        state, known = self.view.state, self.membership
        if not known.group_id:
            return ""
        if state is None:
            return (
                f"the registry has lost group {known.group_id}: restore it, or elect a "
                "master by hand"
            )
        if state.group_id != known.group_id:
            return (
                f"the registry holds group {state.group_id}, this replica belongs to "
                f"{known.group_id}"
            )
        if state.version < known.version:
            return (
                f"the registry fell back to version {state.version} of the group; "
                f"version {known.version} was seen: restore it, or elect a master by "
                "hand"
            )
        return ""

    def _distrust_now(self, reason: str) -> list[Effect]:
        if self.role is Role.LEADING:
            return self._abandon_lease(reason)
        return self._stand(reason)

    def _remember(self) -> list[Effect]:
        """Note the newest state seen, durably: an older one will not be believed.

        Nothing follows from that state before it is noted. Where a full disk has no room for the
        file it is noted in memory, and saved at a later look.
        """
        state = self.view.state
        if state is None:
            return []
        self.membership = Membership(state.group_id, state.version, self._start.number)
        if self._noting:
            return []  # the older one first
        if self.membership == self._saved:
            return self._take_members()
        self._noting = True
        return [Note(self.membership)]

    def _noted(self, noted: Membership | None) -> list[Effect]:
        self._noting = False
        self._saved = noted or self._saved
        if noted is not None and self.membership != noted:
            self._noting = True
            return [Note(self.membership)]  # seen meanwhile
        return self._take_members()

    # -- transactions --------------------------------------------------------------------------

    def _send(self, kind: _Kind, transaction: Transaction, **how: Any) -> list[Effect]:
        self._numbers += 1
        self._pending = _Pending(self._numbers, kind, self.lease, **how)
        return [Commit(self._numbers, transaction)]

    def _committed(self, revision: int | None, now_ms: MonoMs) -> list[Effect]:
        done, self._pending = self._pending, None
        assert done is not None, "asked before"
        if revision is None:
            return [*self._refused(done), *self._look(now_ms)]
        match done.kind:
            case _Kind.REGISTER | _Kind.ELECT | _Kind.START | _Kind.DEPOSE:
                return [*self._say(done.token, ""), *self._look(now_ms)]
            case _Kind.MEMBERS:
                assert done.state is not None, "it changes the state"
                if revision <= self.view.state_revision:
                    return self._look(now_ms)  # a read was faster, and may have seen what followed
                # A read that is under way may show what was before: that would look like a
                # registry that fell back.
                self._read_again = self._read_again or self._reading
                self.view = replace(self.view, state=done.state, state_revision=revision)
                return self._remember()
            case _Kind.HAND_OVER:
                effects = self._step_down("handed over") if self.role is Role.LEADING else []
                return [*effects, *self._say(done.token, ""), *self._look(now_ms)]

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
        return [*effects, *self._look(now_ms)]

    @staticmethod
    def _say(token: Any, error: str, unknown: bool = False) -> list[Effect]:
        return [Answer(token, error, unknown)] if token is not None else []

    def _take_members(self) -> list[Effect]:
        """A master goes by the set that the registry has, once that is noted here."""
        state = self.view.state
        if self._master is None or state is None or not self._is_mine() or self._distrust():
            return []
        sync = self._master.sync_state
        assert sync is not None, "an elected one"
        before = sync.required
        sync.observe(state.sync_state_set, self.view.state_revision)
        self._master.group_open = state.opened
        return [] if before <= sync.required else [Advance()]

    # -- deciding ------------------------------------------------------------------------------

    def _decide(self, now_ms: MonoMs) -> list[Effect]:
        """What to do as things stand."""
        effects: list[Effect] = []
        if self.lease and now_ms >= self.deadline_ms:
            effects += self._abandon_lease("the lease was not renewed in time")
        if not self.lease and not self._asked_lease:
            self._asked_lease = True
            effects.append(AskLease())
        if not self._known or self._pending is not None or self._reading or self._noting:
            return effects
        if self._distrust() and self._unclean is None:
            return effects
        try:
            standing, revision = self._standing()
        except BadState as error:
            return effects + self._distrust_now(str(error))
        proven = standing is StartStanding.CLAIMED and not self._lacks_what_it_acknowledged()
        if self.lease and not proven:
            return effects + self._prove_itself(standing, revision)
        if self._unclean is not None:
            return effects + self._elect_unclean()
        if not proven:
            return effects + self._stand("has no lease in the registry yet")
        if self.lease and not self._is_registered():
            # Also where an older registration was made late, and vanished with an older lease.
            key = self.keys.replica(self.me.replica.node)
            put = Put(key, self.me.to_bytes(), self.lease)
            return effects + self._send(_Kind.REGISTER, Transaction((), (put,)))
        if self.role is Role.LEADING:
            return effects + self._keep_leading(now_ms)
        return effects + self._find_a_master(now_ms)

    def _is_registered(self) -> bool:
        node = self.me.replica.node
        return self.view.leases.get(node) == self.lease and self.view.replicas.get(node) == self.me

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
        if view.lock is None:
            return [*self._stand("the group has no master"), *self._try_election(now_ms)]
        if self._is_mine():
            assert view.state is not None, "it is mine"
            if view.state.epoch <= self._led_epoch:
                return self._abandon_lease("the lock of a mastership that is over")
            self._led_epoch = view.state.epoch
            self.role, self.reason, self._followed = Role.LEADING, "", None
            self.elections += 1
            return [Lead(view.state.epoch, view.state, view.state_revision)]
        if view.holder == self.me.replica and view.lock.lease != self.lease:
            # Of this replica's last process, or of a lease it gave up: nobody else is that replica.
            return [
                *self._stand("waiting for its own older lock to end"),
                DropLease(view.lock.lease),
            ]
        if view.master is None or view.state is None:
            return self._stand("the master is not registered")
        target = (view.master, view.state.epoch)
        if self._may_depose(view.state):
            return self._depose(view.state, view.lock)
        if self.role is Role.FOLLOWING and self._followed == target:
            return []
        self.role, self.reason, self._followed = Role.FOLLOWING, "", target
        return [Follow(*target)]

    def _stand(self, reason: str) -> list[Effect]:
        stood = self.role is Role.STANDING
        self.role, self.reason, self._followed = Role.STANDING, reason, None
        return [] if stood else [Stand(reason)]

    def _step_down(self, reason: str) -> list[Effect]:
        effects = self._end_hand_over(reason)
        self._master = None
        return [*effects, *self._stand(reason)]

    # -- older copies --------------------------------------------------------------------------

    def _standing(self) -> tuple[StartStanding, int]:
        row, revision = self.view.start_of(self.me.replica, self.keys)
        return self._start.against(row), revision

    def _lacks_what_it_acknowledged(self) -> bool:
        """The master has refused this node, which is in the SyncStateSet still."""
        state = self.view.state
        members = state.sync_state_set if state is not None else frozenset()
        if self._found_older and self.me.replica not in members:
            self._found_older = ""  # it does not count as that replica any more
        return bool(self._found_older)

    def _prove_itself(self, standing: StartStanding, revision: int) -> list[Effect]:
        """Nothing else is done before the registry has noted this start of this directory."""
        if self._found_older or standing is StartStanding.OLDER:
            why = self._found_older or (
                f"start {self._start.number} of this directory was claimed by another "
                "process: this directory is an older copy, or a copy of it is running"
            )
            return self._renew(why)
        return self._send(_Kind.START, self._claim(revision))

    def _claim(self, revision: int) -> Transaction:
        """Note this start; rows of incarnations that count nowhere are not needed any more."""
        me, state = self.me.replica, self.view.state
        members = state.sync_state_set if state is not None else frozenset()
        needed = {self.keys.start(replica) for replica in {*members, me}}
        old = (key for key in sorted(self.view.starts) if key.startswith(self.keys.starts(me.node)))
        key = self.keys.start(me)
        return Transaction(
            (Check(key, revision), Check(self.keys.state, self.view.state_revision)),
            (
                Put(key, self._start.to_bytes()),
                *(Delete(row) for row in old if row not in needed),
            ),
        )

    def _renew(self, reason: str) -> list[Effect]:
        """Go on as another replica: one that must catch up before it counts or may be elected."""
        stop = self._abandon_lease if self.role is Role.LEADING else self._stand
        effects = stop(f"this directory is an older copy: {reason}")
        try:
            incarnation = self._facts.renew(reason)
        except OSError as error:
            if not no_room(error):
                raise
            return [
                *effects,
                *self._stand("no disk space to record that this directory is an older copy"),
            ]
        self.older_copy, self._found_older = reason, ""
        self.me = replace(self.me, replica=replace(self.me.replica, incarnation=incarnation))
        return effects

    def _may_depose(self, state: GroupState) -> bool:
        """The master lacks what this node knows, and this node is in the set for sure."""
        return (
            self._contradicted_epoch == state.epoch
            and self.me.replica in state.sync_state_set
            and self.me.replica != state.master
            and bool(self.lease)
        )

    def _depose(self, state: GroupState, lock: Row) -> list[Effect]:
        """Take a master that is an older copy out of the set, and its lock from it.

        Every true member of the set holds all that is confirmed: without this master it still
        consists of such members only, this node among them.
        """
        left = frozenset(r for r in state.sync_state_set if r != state.master)
        new = state.changed(sync_state_set=left, heir=self.me.replica.node)
        checks = (
            Check(self.keys.state, self.view.state_revision),
            Check(self.keys.lock, lock.mod_revision),
        )
        changes = (Put(self.keys.state, new.to_bytes()), Delete(self.keys.lock))
        return self._send(_Kind.DEPOSE, Transaction(checks, changes), state=new)

    # -- election ------------------------------------------------------------------------------

    def _try_election(self, now_ms: MonoMs) -> list[Effect]:
        view, state = self.view, self.view.state
        if not self.lease:
            return []
        if state is None or self._may_begin_again(state):
            delay, new = self._beginning(state)
        elif self.me.replica not in state.sync_state_set:
            self.reason = "not in the SyncStateSet: acknowledged messages may be missing here"
            return []
        elif self._facts.promised_epoch() > state.epoch:
            self.reason = f"epoch {self._facts.promised_epoch()} was seen, the registry's is older"
            return []
        else:
            delay = self._rank(state)
            new = state.changed(epoch=state.epoch + 1, master=self.me.replica, heir="")
        unfit = self._facts.unfit()
        if unfit:
            self.reason = f"not eligible: {unfit}"
            return []
        if self._opportunity is None or self._opportunity[0] != view.state_revision:
            self._opportunity = (view.state_revision, MonoMs(now_ms + delay))
        at_ms = max(self._opportunity[1], self._not_before_ms)
        if now_ms < at_ms:
            return [Wake(at_ms)]
        return self._send(_Kind.ELECT, self._election(new), state=new)

    def _election(self, new: GroupState) -> Transaction:
        """Become the master of an epoch if the state is as it was read and nobody has the lock."""
        mine = Check(self.keys.start(self.me.replica), self._standing()[1])
        checks = (Check(self.keys.state, self.view.state_revision), Check(self.keys.lock, 0), mine)
        lock = Put(self.keys.lock, self.me.to_bytes(), self.lease)
        return Transaction(checks, (Put(self.keys.state, new.to_bytes()), lock))

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
        epoch = max(state.epoch if state is not None else 0, self._facts.promised_epoch()) + 1
        group_id = state.group_id if state is not None else self._fresh_id
        delay = BOOTSTRAP_MS if self._facts.log_empty() else 0
        version = state.version + 1 if state is not None else 1
        return delay, GroupState(group_id, epoch, me, frozenset((me,)), version)

    def _rank(self, state: GroupState) -> int:
        """How long to leave the election to candidates that come first."""
        view, me = self.view, self.me.replica
        candidates = sorted(
            (replica.node in view.drained, replica)
            for replica in state.sync_state_set
            if view.replicas.get(replica.node, self.me).replica == replica or replica == me
        )
        order = [replica for _, replica in candidates]
        delay = order.index(me) * RANK_MS
        if state.heir == me.node:
            return 0
        heir_lives = any(replica.node == state.heir for replica in order)
        return delay + HEIR_MS if heir_lives else delay

    def _elect_unclean(self) -> list[Effect]:
        """An operator's order: this node, whatever others held; what is given up is recorded."""
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
        epoch = last + 1
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
        return self._send(_Kind.ELECT, self._election(new), state=new, token=asked.token)

    # -- leading -------------------------------------------------------------------------------

    def _keep_leading(self, now_ms: MonoMs) -> list[Effect]:
        view, state, master = self.view, self.view.state, self._master
        if state is None or not self._is_mine() or state.epoch != self._led_epoch:
            return self._abandon_lease("another node is the master, or the lock expired")
        if master is None:
            return []  # its epoch is being opened
        if self._handing is not None:
            return self._go_on_handing_over(self._handing, state, master, now_ms)
        heir = self._best_heir(state, master)
        if self.me.replica.node in view.drained and heir and now_ms >= self._not_before_ms:
            self._not_before_ms = MonoMs(now_ms + PAUSE_MS)
            return self._start_hand_over(HandOver(heir, None), now_ms)
        sync = master.sync_state
        assert sync is not None, "an elected master has one"
        wanted = master.wanted_members(view.replicas, view.drained, now_ms)
        if wanted is None and (sync.unsettled or self._opens_alone(master)):
            wanted = sync.members  # whatever is on its way cannot be made any more after this
        if wanted is None:
            return []
        sync.propose(wanted)
        new = state.changed(sync_state_set=wanted, opened=True)
        put = Put(self.keys.state, new.to_bytes())
        return self._send(_Kind.MEMBERS, Transaction(self._mine(), (put,)), state=new)

    def _opens_alone(self, master: Master) -> bool:
        """A group of one replica that asks for no more: it is opened once its log has begun."""
        return not master.group_open and self._needed == 1 and master.epoch_confirmed

    def _mine(self) -> tuple[Check, ...]:
        """The state is as it was read, and the lock is still this mastership's."""
        assert self.view.lock is not None, "a master has the lock"
        return (
            Check(self.keys.state, self.view.state_revision),
            Check(self.keys.lock, self.view.lock.mod_revision),
        )

    # -- hand-over -----------------------------------------------------------------------------

    def _start_hand_over(self, asked: HandOver, now_ms: MonoMs) -> list[Effect]:
        master, state = self._master, self.view.state
        if self.role is not Role.LEADING or master is None or state is None:
            return self._say(asked.token, "this node is not the master")
        if self._handing is not None:
            # Perhaps by the same order, whose asker did not hear the answer.
            return self._say(asked.token, "a hand-over is already in progress", unknown=True)
        target = asked.target or self._best_heir(state, master)
        heirs = {r.node for r in state.sync_state_set if r != self.me.replica}
        if target == self.me.replica.node:
            return self._say(asked.token, "")
        if target not in heirs or target not in self.view.replicas:
            return self._say(
                asked.token,
                f"{target or 'no node'} cannot take over: in sync are {sorted(heirs) or 'none'}",
            )
        self._handing = _HandingOver(target, MonoMs(now_ms + HAND_OVER_MS), asked.token)
        master.pause(f"{target} takes over")
        return []

    def _best_heir(self, state: GroupState, master: Master) -> str:
        live = [
            (master.held_by(replica), replica.node)
            for replica in state.sync_state_set
            if replica != self.me.replica
            and replica.node in self.view.replicas
            and replica.node not in self.view.drained
        ]
        return max(live, default=(0, ""))[1]

    def _go_on_handing_over(
        self, handing: _HandingOver, state: GroupState, master: Master, now_ms: MonoMs
    ) -> list[Effect]:
        """Once the heir has everything, the lock goes, and with it the mastership."""
        heir = next((r for r in state.sync_state_set if r.node == handing.target), None)
        if heir is None or now_ms >= handing.until_ms:
            return self._end_hand_over(f"{handing.target} did not catch up in time")
        if master.held_by(heir) < master.store.log.max_offset:
            return [Wake(MonoMs(now_ms + 5))]
        new = state.changed(heir=handing.target)
        transaction = Transaction(
            self._mine(), (Put(self.keys.state, new.to_bytes()), Delete(self.keys.lock))
        )
        token, handing.token = handing.token, None
        return self._send(_Kind.HAND_OVER, transaction, state=new, token=token)

    def _end_hand_over(self, error: str) -> list[Effect]:
        handing, self._handing = self._handing, None
        if self._master is not None:
            self._master.pause("")
        return self._say(handing.token, error) if handing is not None else []


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine asks of its node.

    unfit: why this node may not lead now (damage in its log, a failed disk), empty if it may.
    renew: give this directory another incarnation, durably, and answer it; the reason is for the
    log. May raise OSError.
    """

    unfit: Callable[[], str]
    log_empty: Callable[[], bool]
    log_end: Callable[[], int]
    promised_epoch: Callable[[], int]
    renew: Callable[[str], int]


__all__ = [
    "Answer",
    "AskLease",
    "Changed",
    "Commit",
    "Committed",
    "Contradicted",
    "DropLease",
    "ElectUnclean",
    "Facts",
    "Failover",
    "Follow",
    "FoundOlder",
    "HandOver",
    "Lead",
    "LeaseLost",
    "Leased",
    "Observe",
    "Observed",
    "Replica",
    "Role",
    "Stand",
    "Tick",
    "Uncertain",
    "Wake",
]
