"""A failover machine in each of its roles, and all that may happen to it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.failover import Failover
from duolog_server.ha.failoverevents import (
    Changed,
    Commit,
    Committed,
    Contradicted,
    ElectUnclean,
    Event,
    FoundOlder,
    HandOver,
    Leased,
    LeaseLost,
    Noted,
    Observed,
    Tick,
    Uncertain,
)
from duolog_server.ha.groupstate import GroupState
from duolog_server.ha.registry import Delete, Put, RegistryTable, Transaction
from duolog_server.ha.starts import Start
from duolog_server.store.clocks import MonoMs
from tests.ha.electorate import KEYS, Electorate, Voter
from tests.ha.pair import put
from tests.ha.scenes import Scene
from tests.known import known

STATES = ("STANDING", "FOLLOWING", "LEADING")


@dataclass(slots=True)
class Member:
    """One of three members of a group that is open; from now on its machine is fed by hand.

    STANDING: the master is gone, its lease too, and this member leaves the other one some time.
    """

    group: Electorate
    voter: Voter
    now: int

    @classmethod
    def made(cls, role: str) -> "Member":
        group = Electorate("a", "b", "c")
        group.until(lambda: group.leader is not None and len(group.state.sync_state_set) == 3)
        group.run(50)
        leader = group.led_by
        # The last of those who may be elected: it leaves the others some time.
        voter = leader if role == "LEADING" else _last(group, leader)
        member = cls(group, voter, group.now)
        if role == "STANDING":
            group.kill(leader.name)
            group.table.drop(leader.machine.lease)
            member.step(member.seen())
        assert member.machine.role.value == role, "as the scene begins"
        return member

    @property
    def machine(self) -> Failover:
        return self.voter.machine

    @property
    def table(self) -> RegistryTable:
        return self.group.table

    @property
    def number(self) -> int:
        """Of the transaction that has no answer yet; 0 for none."""
        pending = self.machine._pending
        return pending.number if pending is not None else 0

    def step(self, event: Event, later: int = 0) -> tuple[str, ...]:
        """What the machine says; of a transaction, what for."""
        return self.named(self.machine.step(event, MonoMs(self.now + later)))

    def named(self, effects: Any) -> tuple[str, ...]:
        pending = self.machine._pending
        found = {}
        for effect in effects:
            name = type(effect).__name__
            if isinstance(effect, Commit):
                assert pending is not None, "what was just sent"
                name = f"Commit ({pending.kind.value})"
            found[name] = True
        return tuple(found)

    def seen(self) -> Observed:
        """What a read of the registry shows now."""
        return Observed(self.table.get(KEYS.prefix))

    @property
    def epoch(self) -> int:
        """The last one that the registry knows of."""
        return self.group.state.epoch

    # -- what others do in the registry ------------------------------------------------------------

    def change(self, *changes: Put | Delete) -> None:
        assert self.table.commit(Transaction((), changes)) is not None

    def write(self, **values: Any) -> None:
        """Another state of the group, and nothing else."""
        state: GroupState = replace(self.group.state, **values)
        self.change(Put(KEYS.state, state.to_bytes()))

    def elect(self, voter: Voter) -> None:
        """A voter is the master of the next epoch."""
        state, me = self.group.state, voter.machine.me
        new = state.changed(epoch=state.epoch + 1, master=me.replica, successor="")
        self.change(
            Put(KEYS.state, new.to_bytes()), Put(KEYS.lock, me.to_bytes(), voter.machine.lease)
        )

    def other(self) -> Voter:
        """A voter that lives, and neither this one nor its master."""
        state = self.group.state
        return next(
            voter
            for name, voter in self.group.voters.items()
            if voter is not self.voter and name != state.master.node and name not in self.group.down
        )


def _last(group: Electorate, leader: Voter) -> Voter:
    return group.voters[max(name for name in group.voters if name != leader.name)]


# -- what is read ----------------------------------------------------------------------------------


def nothing(member: Member) -> None:
    """The registry is as it was."""


def nobody_leads(member: Member) -> None:
    if KEYS.lock in member.table.rows:
        member.change(Delete(KEYS.lock))


def nobody_leads_in_a_new_version(member: Member) -> None:
    member.write(version=99)
    nobody_leads(member)


def another_leads(member: Member) -> None:
    member.elect(member.other())


def a_member_leaves(member: Member) -> None:
    gone = member.other().machine.me.replica
    left = member.group.state.sync_state_set - {gone}
    member.write(version=99, sync_state_set=left)


def it_is_elected(member: Member) -> None:
    member.elect(member.voter)


def own_start_is_gone(member: Member) -> None:
    member.change(Delete(KEYS.start(member.machine.me.replica)))


def own_start_is_older(member: Member) -> None:
    key = KEYS.start(member.machine.me.replica)
    member.change(Put(key, Start(99, "another process").to_bytes()))


def registration_is_gone(member: Member) -> None:
    member.change(Delete(KEYS.replica(member.voter.name)))


def registration_is_gone_in_a_new_version(member: Member) -> None:
    member.write(version=99)
    registration_is_gone(member)


def a_member_is_drained(member: Member) -> None:
    member.change(Put(KEYS.drained(member.other().name), b""))


def it_is_drained(member: Member) -> None:
    member.change(Put(KEYS.drained(member.voter.name), b""))


READS: tuple[tuple[str, Callable[[Member], object]], ...] = (
    ("nothing has changed", nothing),
    ("a newer state of the group", lambda member: member.write(version=99)),
    ("no node holds the lock", nobody_leads),
    ("its registration is gone", registration_is_gone),
    ("its start is not in the registry", own_start_is_gone),
    ("its start is older than the registry's", own_start_is_older),
    ("another member is drained", a_member_is_drained),
    ("this node is drained", it_is_drained),
    ("an older version of the group", lambda member: member.write(version=1)),
    ("another group's id", lambda member: member.write(group_id="another")),
    ("no state of the group", lambda member: member.change(Delete(KEYS.state))),
    ("a state that cannot be parsed", lambda member: member.change(Put(KEYS.state, b"?"))),
)
# What is noted before anything follows from it.
NOTES: tuple[tuple[str, Callable[[Member], object]], ...] = (
    ("another node holds the lock", another_leads),
    ("this node holds the lock of a new epoch", it_is_elected),
    ("no node holds the lock", nobody_leads_in_a_new_version),
    ("a member has left the set", a_member_leaves),
    ("its registration is gone", registration_is_gone_in_a_new_version),
)


@dataclass(frozen=True, slots=True)
class Sending:
    """A transaction: what for, what others do before, and the event upon which it is sent."""

    kind: str
    happens: Callable[[Member], object]
    event: Callable[[Member], Event]
    later: int = 0

    def sent(self, role: str) -> Member | None:
        """A member that waits for the answer; None where it sends no such thing in that role."""
        member = Member.made(role)
        self.happens(member)
        said = member.step(self.event(member), self.later)
        return member if said[-1:] == (f"Commit ({self.kind})",) else None


SENDINGS = (
    Sending("register", registration_is_gone, Member.seen),
    Sending("claim the start", own_start_is_gone, Member.seen),
    Sending("elect", nothing, lambda member: Tick(), 500),
    Sending("members", a_member_is_drained, Member.seen),
    Sending("hand over", nothing, lambda member: HandOver(member.other().name, "order")),
    Sending("depose", nothing, lambda member: Contradicted(Epoch(member.epoch), "why")),
)


def scenes() -> Iterator[Scene]:
    """Every event in every role that it can meet."""
    for role in STATES:
        for play in (_of_lease, _of_reads, _of_notes, _of_transactions, _of_time, _of_orders):
            yield from play(role)
    yield from _of_a_start()
    yield from _of_a_mastership()


def _scene(member: Member, name: str, event: Event, later: int = 0) -> Scene:
    role = member.machine.role.value
    said = member.step(event, later)
    return Scene(role, name, said, member.machine.role.value)


def _of_lease(role: str) -> Iterator[Scene]:
    member = Member.made(role)
    lease, deadline = member.machine.lease, MonoMs(member.now + 60_000)
    yield _scene(member, "Leased: renewed", Leased(lease, deadline))
    member = Member.made(role)
    over = member.machine.deadline_ms - member.now
    name = "Leased: renewed at the last moment"
    yield _scene(member, name, Leased(lease, deadline), over)
    member = Member.made(role)
    yield _scene(member, "LeaseLost: its own", LeaseLost(member.machine.lease))
    if member.machine.role.value == role:
        fresh = member.table.grant(3000, member.now)
        yield _scene(member, "Leased: the lease it asked for", Leased(fresh, deadline))
    member = Member.made(role)
    yield _scene(member, "LeaseLost: an older one", LeaseLost(99))


def _of_a_start() -> Iterator[Scene]:
    member = _starting()
    lease = Leased(member.table.grant(3000, member.now), MonoMs(member.now + 60_000))
    yield _scene(member, "Leased: its start is not marked yet", lease)
    yield _scene(member, "Noted: the mark of its start", Noted(member.machine.membership))
    member = _starting()
    own_start_is_older(member)
    member.step(member.seen())
    member.step(lease)  # it is another replica from now on
    yield _scene(member, "Tick: its start is not marked yet", Tick())


def _starting() -> Member:
    """A process that has just begun, and has read the registry."""
    member = Member.made("STANDING")
    name = member.voter.name
    member.group.kill(name)
    member = Member(member.group, member.group.restart(name), member.now)
    member.step(Changed())
    member.step(member.seen())
    return member


def _of_reads(role: str) -> Iterator[Scene]:
    for name, happens in READS:
        member = Member.made(role)
        happens(member)
        yield _scene(member, f"Observed: {name}", member.seen())
    member = Member.made(role)
    member.step(Changed())
    yield _scene(member, "Observed: the read failed", Observed(None))
    member = Member.made(role)
    member.step(Changed())
    yield _scene(member, "Changed: while it reads", Changed())
    yield _scene(member, "Observed: a change came while it read", member.seen())
    yield _scene(Member.made(role), "Changed", Changed())


def _of_notes(role: str) -> Iterator[Scene]:
    for name, happens in NOTES:
        member = Member.made(role)
        happens(member)
        member.step(member.seen())
        yield _scene(member, f"Noted: {name}", Noted(member.machine.membership))
        member = Member.made(role)
        happens(member)
        member.step(member.seen())
        member.step(Changed())
        member.step(Noted(member.machine.membership))
        yield _scene(member, f"Observed: {name}, and that is noted", member.seen())
    member = Member.made(role)
    member.write(version=50)
    member.step(member.seen())
    first = member.machine.membership
    member.write(version=51)
    yield _scene(member, "Observed: a newer state while one is noted", member.seen())
    yield _scene(member, "Noted: a newer state was seen meanwhile", Noted(first))
    member = Member.made(role)
    member.write(version=50)
    member.step(member.seen())
    yield _scene(member, "Noted: the disk has no room", Noted(None))


def _of_transactions(role: str) -> Iterator[Scene]:
    """An answer that can come in this role: the transaction can be sent in it."""
    for sending in SENDINGS:
        for answer in ("made", "refused"):
            member = sending.sent(role)
            if member is not None:
                revision = member.table.revision + 1 if answer == "made" else None
                event = Committed(member.number, revision)
                yield _scene(member, f"Committed: {sending.kind}, {answer}", event)
        member = sending.sent(role)
        if member is not None:
            yield _scene(member, f"Uncertain: {sending.kind}", Uncertain(member.number))
    member = Member.made(role)
    yield _scene(member, "Committed: an older transaction", Committed(0, 1))


def _of_time(role: str) -> Iterator[Scene]:
    yield _scene(Member.made(role), "Tick: at once", Tick())
    yield _scene(Member.made(role), "Tick: its turn to be elected has come", Tick(), 500)
    yield _scene(Member.made(role), "Tick: the registry was not read for a while", Tick(), 1000)
    yield _scene(Member.made(role), "Tick: the lease's deadline has passed", Tick(), 5000)
    member = Member.made(role)
    member.group.cannot_reach(member.other().name, member.voter.name)
    yield _scene(member, "Tick: it cannot reach another node", Tick())
    if role != "LEADING":
        return
    member = _handing_over()
    yield _scene(member, "Tick: the successor still lacks something", Tick(), 10)
    link = known(member.other().link)
    link.pump(member.now)
    yield _scene(member, "Tick: the successor has caught up", Tick(), 20)
    member = _handing_over()
    member.step(Changed(), 1500)
    member.step(member.seen(), 1500)  # not due again when the time is over
    yield _scene(member, "Tick: the successor did not catch up in time", Tick(), 2000)


def _handing_over() -> Member:
    """A master that gives its place to a member that lacks its last record."""
    member = Member.made("LEADING")
    put(member.voter.mastership, b"x")
    member.step(HandOver(member.other().name, "order"))
    return member


def _of_a_mastership() -> Iterator[Scene]:
    """What the owner answers to `Lead`."""
    member = Member.made("LEADING")
    said = member.named(member.machine.leads(member.voter.mastership))
    yield Scene("LEADING", "leads()", said, member.machine.role.value)
    member = Member.made("FOLLOWING")
    it_is_elected(member)
    member.step(member.seen())
    assert member.step(Noted(member.machine.membership)) == ("Lead",)
    said = member.named(member.machine.cannot_lead("why", MonoMs(member.now)))
    yield Scene("LEADING", "cannot_lead()", said, member.machine.role.value)


def _of_orders(role: str) -> Iterator[Scene]:
    member = Member.made(role)
    order = HandOver(member.other().name, "order")
    yield _scene(member, "HandOver: to a member that has everything", order)
    if role == "LEADING":
        yield _scene(_handing_over(), "HandOver: while another one is under way", order)
    yield _scene(Member.made(role), "HandOver: to a stranger", HandOver("x", "order"))
    member = Member.made(role)
    yield _scene(member, "HandOver: to itself", HandOver(member.voter.name, "order"))
    for name, epoch in (("the last epoch", member.machine.last_epoch), ("another epoch", 99)):
        member = Member.made(role)
        order_unclean = ElectUnclean(Epoch(epoch), "order")
        yield _scene(member, f"ElectUnclean: naming {name}", order_unclean)
        yield _scene(member, f"Observed: after ElectUnclean naming {name}", member.seen())
    member = Member.made(role)
    event = Contradicted(Epoch(member.epoch), "why")
    yield _scene(member, "Contradicted: by the master of this epoch", event)
    event = Contradicted(Epoch(member.epoch - 1), "why")
    yield _scene(Member.made(role), "Contradicted: by a master that is gone", event)
    yield _scene(Member.made(role), "FoundOlder", FoundOlder("why"))
