"""Failover machines of a group on one registry table: every call answered at once, time by hand."""

import contextlib
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from duolog_server.ha import identity, masterevents
from duolog_server.ha.beginnings import Beginning, beginning
from duolog_server.ha.epochs import Epoch, recover_history
from duolog_server.ha.failover import Candidacy, Facts, Failover
from duolog_server.ha.failoverdriver import FailoverDriver
from duolog_server.ha.failoverevents import (
    Answer,
    Changed,
    Commit,
    Committed,
    Contradicted,
    Effect,
    Event,
    Follow,
    FoundOlder,
    Lead,
    Leased,
    LeaseLost,
    Noted,
    Observed,
    Tick,
    Uncertain,
)
from duolog_server.ha.groupstate import FEATURES, GroupState, Keys, Registration, Replica, Unreached
from duolog_server.ha.guarantee import Guarantee
from duolog_server.ha.identity import Identity, LastRun
from duolog_server.ha.localreplica import LocalReplica, Member, unfit
from duolog_server.ha.mandate import Mandate
from duolog_server.ha.master import Master
from duolog_server.ha.membership import Membership, note
from duolog_server.ha.options import HaOptions
from duolog_server.ha.registry import LeaseGone, Put, RegistryTable, Transaction
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Contradicts, OlderCopy
from duolog_server.ha.waiters import Release
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError
from duolog_server.store.status import BrokerRole, PutMessageStatus
from sim.disk import SimDisk
from sim.later import Later, drive
from tests.ha.pair import NOW, Link, new_disk, open_store

TTL_MS = 3000
KEYS = Keys("c", "g")


class Voter:
    """One node: its store, its machine, and what the machine said."""

    def __init__(
        self,
        group: "Electorate",
        name: str,
        disk: SimDisk | None = None,
        incarnation: int | None = None,
    ) -> None:
        self.group = group
        self.name = name
        self.disk = disk or new_disk(ord(name))
        self.store = open_store(self.disk, BrokerRole.AUTO)
        fresh = ord(name) if incarnation is None else incarnation
        who = identity.settle(
            self.disk,
            Identity(name, fresh, boot_id="boot"),
            LastRun(log_empty=False, abnormal=False, acks_durable=False),
        )
        me = Member("c", "g", name, f"{name}:1")
        self.slave: Slave | None = Slave(
            LocalReplica(self.store, me, who, recover_history(self.store))
        )
        self.began = Beginning()  # of its last mastership
        self.master: Master | None = None
        self.link: Link | None = None
        self.unfit = ""
        self.full = False  # its disk, as far as puts go
        self.unreachable: dict[str, Unreached] = {}
        self.said: list[Effect] = []
        self.answers: list[str] = []
        self.stopped: list[str] = []  # why its masterships ended
        self.released: list[tuple[object, PutMessageStatus]] = []  # puts that waited
        self.cut_off = False  # from the registry
        self.lose_replies = False
        self.lose_requests = False  # to change anything: no answer comes either
        self.refuse_to_lead = ""
        self.slow = False  # the registry's answers wait in `late`, with what they were worth
        self.late: list[Event] = []
        self.slow_disk = False  # what is to be noted waits in `late_notes`
        self.late_notes: list[Membership] = []
        self.slow_disk_promises: list[Later] | None = None  # those that wait; None: none waits
        self._lease = 0
        self.machine = Failover(
            self.disk,
            Candidacy(
                KEYS,
                Registration(
                    Replica(name, who.incarnation),
                    f"{name}:1",
                    f"{name}:2",
                    () if name in group.older else FEATURES,
                ),
                Guarantee(group.weak.get(name, group.needed)),
                f"{group.fresh_id}-{name}-{next(group.runs)}",
            ),
            Facts(
                lambda: self.unfit or unfit(self.store),
                lambda: self.store.log.max_offset == self.store.log.min_offset,
                lambda: self.store.log.max_offset,
                lambda: self.part.identity.promised_epoch,
                self._renew,
                lambda: self.full or self.store.retention.is_full,
                lambda: not self.full and self.store.retention.has_room,
                lambda: dict(self.unreachable),
                lambda: group.has_moves,
            ),
        )

        self.driver = FailoverDriver(self.machine, self)

    def _renew(self, reason: str) -> int:
        self.part.renew(self.part.identity.incarnation + 1000)
        return self.part.identity.incarnation

    @property
    def part(self) -> Master | Slave:
        part = self.master or self.slave
        assert part is not None
        return part

    @property
    def mastership(self) -> Master:
        """What it leads with; it must lead."""
        assert self.master is not None, f"{self.name} is no master"
        return self.master

    @property
    def state(self) -> GroupState:
        return self.group.state

    def step(self, event: Event) -> None:
        self.driver.step(event)
        assert self.machine.validate() == ""

    # -- what the driver of the machine needs --------------------------------------------------

    def mono_ms(self) -> MonoMs:
        return MonoMs(self.group.now)

    def decided(self, event: Event | None, effects: list[Effect]) -> None:
        self.said += effects

    def ask_lease(self) -> None:
        self._lease = 0

    def drop_lease(self, lease: int) -> None:
        if not self.cut_off:
            self.group.table.drop(lease)

    def observe(self) -> None:
        seen = Observed(None if self.cut_off else self.group.table.get(KEYS.prefix))
        if self.slow:
            self.late.append(seen)
        else:
            self.step(seen)

    def commit(self, number: int, transaction: Transaction) -> None:
        table = self.group.table
        if self.slow:
            self.late.append(Committed(number, table.commit(transaction)))
            return
        if self.lose_requests:
            return
        if self.cut_off:
            self.step(Uncertain(number))
            return
        try:
            revision = table.commit(transaction)
        except LeaseGone:
            self.driver.lease_gone(number)
        else:
            self.step(Uncertain(number) if self.lose_replies else Committed(number, revision))

    def note(self, found: Membership) -> None:
        if self.slow_disk:
            self.late_notes.append(found)
        else:
            self.step(Noted(note(self.disk, found)))

    def wake(self, at_ms: MonoMs) -> None:
        """Time is told anyway."""

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer.error)

    def instruct(self, mandate: Mandate) -> None:
        assert self.master is not None, "only a master is told"
        self._release(self.master.step(masterevents.Instructed(mandate), self.mono_ms()))

    def stop_leading(self, reason: str) -> None:
        self.stopped.append(reason)
        self._become_slave()

    def spawn(self, change: Coroutine[object, None, None]) -> None:
        drive(change)

    async def follow_nobody(self) -> None:
        self._cut_link()

    async def promise(self, epoch: int) -> None:
        if self.slow_disk_promises is not None:
            self.slow_disk_promises.append(Later())
            await self.slow_disk_promises[-1]
        assert self.slave is not None, "masters stand first"
        self.slave.promise(Epoch(epoch))

    def cannot_promise(self, error: OSError) -> None:
        raise error

    def follow(self, effect: Follow) -> None:
        assert self.slave is not None
        leader = self.group.voters[effect.master.replica.node].master
        reached = effect.master.replica.node not in self.unreachable
        self.link = Link(leader, self.slave) if leader is not None and reached else None

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    def lead(self, effect: Lead) -> Master:
        if self.refuse_to_lead:
            raise StoreError(self.refuse_to_lead)
        assert self.slave is not None
        self.store.change_role(BrokerRole.SYNC_MASTER)
        master = Master(
            self.slave.replica,
            HaOptions(in_sync_replicas=self.group.weak.get(self.name, self.group.needed)),
            mandate=effect.mandate,
        )
        followed_ms, now_ms = self.slave.followed_ms, self.mono_ms()
        self.began = beginning(effect.cause, effect.unled_since_ms, followed_ms, now_ms)
        master.open_epoch(effect.epoch, NOW, effect.epoch, self.began)
        self.master, self.slave = master, None
        return master

    def leading(self, effect: Lead) -> None:
        """It is seen at `master`."""

    def cannot_lead(self, effect: Lead, error: OSError | StoreError) -> None:
        """Its machine is told of it."""

    def _release(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Release):
                self.released += [(token, effect.status) for token in effect.tokens]

    def _become_slave(self) -> None:
        self._cut_link()
        if self.master is None:
            return
        master, self.master = self.master, None
        self.store.change_role(BrokerRole.SLAVE)
        self.slave = Slave(master.replica)

    def _cut_link(self) -> None:
        if self.link is not None:
            self.link.master.step(masterevents.Disconnected(self.link.number), MonoMs(0))
        self.link = None

    def renew(self) -> None:
        """What the lease's keeper does."""
        if self.cut_off:
            return
        table, now = self.group.table, self.group.now
        if not self._lease:
            self._lease = table.grant(TTL_MS, now)
        else:
            try:
                table.renew(self._lease, now)
            except LeaseGone:
                gone, self._lease = self._lease, 0
                self.step(LeaseLost(gone))
                return
        self.step(Leased(self._lease, MonoMs(now + TTL_MS - 300)))


class Electorate:
    """A group of voters and the clock."""

    def __init__(
        self,
        *names: str,
        needed: int = 2,
        fresh_id: str = "id",
        weak: Mapping[str, int] | None = None,
    ) -> None:
        """weak: nodes whose own settings ask for another number of replicas than `needed`."""
        self.weak = dict(weak or {})
        self.fresh_id = fresh_id
        self.runs = itertools.count()
        self.needed = needed
        self.older: set[str] = set()  # nodes whose version knows no features
        self.has_moves = False
        self.now = 1_000_000
        self.table = RegistryTable()
        self.voters: dict[str, Voter] = {}
        self.down: set[str] = set()
        for name in names:
            self.voters[name] = Voter(self, name)

    @property
    def state(self) -> GroupState:
        return GroupState.from_bytes(self.table.rows[KEYS.state].value)

    @property
    def leader(self) -> Voter | None:
        found = [v for n, v in self.voters.items() if v.master is not None and n not in self.down]
        return max(found, key=lambda v: v.master.epoch if v.master else 0, default=None)

    @property
    def led_by(self) -> Voter:
        """The leader; somebody must lead."""
        assert self.leader is not None, "nobody leads"
        return self.leader

    def others(self, voter: Voter) -> list[Voter]:
        """All but one, in the order in which they may be elected."""
        return [self.voters[name] for name in sorted(self.voters) if name != voter.name]

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        """Write a row of the registry."""
        self.table.commit(Transaction((), (Put(key, value, lease),)))

    def run(self, ms: int) -> None:
        """Let time pass: leases, clocks, replication."""
        until = self.now + ms
        while self.now < until:
            self.now += 25
            self.table.expire(self.now)
            for name, voter in self.voters.items():
                if name in self.down:
                    continue
                if self.now % 500 == 0:
                    voter.renew()
                voter.step(Changed())
                voter.step(Tick())
                self._replicate(voter)

    def _replicate(self, voter: Voter) -> None:
        if voter.master is not None:
            voter.master.step(masterevents.Tick(), MonoMs(self.now))
        link = voter.link
        if link is None or voter.slave is None:
            if voter.slave is not None and voter.machine.role.value == "FOLLOWING":
                leader = self.leader
                if leader is None or leader.name in voter.unreachable:
                    return
                if leader.master is not None:
                    voter.link = Link(leader.master, voter.slave, self.now)
            return
        if link.closed:
            voter.link = None
            return
        link.pump(self.now)
        for told in link.told:
            match told:
                case Contradicts(epoch, reason):
                    voter.step(Contradicted(epoch, reason))
                case OlderCopy(reason):
                    voter.step(FoundOlder(reason))
        link.told.clear()

    def until(self, holds: Callable[[], bool], ms: int = 20_000) -> None:
        for _ in range(ms // 25):
            if holds():
                return
            self.run(25)
        machines = {name: voter.machine for name, voter in self.voters.items()}
        raise AssertionError([(name, m.role, m.reason) for name, m in machines.items()])

    def cannot_reach(self, name: str, *readers: str, address: str = "") -> None:
        """Some nodes, or all others, find that a node's replication address takes no connection."""
        for voter in self.voters.values():
            if voter.name in readers or (not readers and voter.name != name):
                voter.unreachable[name] = Unreached(address or f"{name}:2", "Connection refused")

    def kill(self, *names: str) -> None:
        for name in names:
            self.down.add(name)
            voter = self.voters[name]
            voter.disk.kill()
            voter._cut_link()
            for other in self.voters.values():
                if other.link is not None and other.link.master is voter.master:
                    other.link = None

    def restart(
        self, name: str, disk: SimDisk | None = None, incarnation: int | None = None
    ) -> Voter:
        self.down.discard(name)
        self.voters[name] = Voter(self, name, disk or self.voters[name].disk, incarnation)
        return self.voters[name]


def written(voter: Voter) -> list[GroupState]:
    """States of the group that a voter sent to the registry."""
    changes = [
        change
        for said in voter.said
        if isinstance(said, Commit)
        for change in said.transaction.changes
    ]
    return [
        GroupState.from_bytes(change.value)
        for change in changes
        if isinstance(change, Put) and change.key == KEYS.state
    ]


def names(state: GroupState) -> set[str]:
    """Who is in the SyncStateSet."""
    return {replica.node for replica in state.sync_state_set}
