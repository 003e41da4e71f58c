"""What a simulated node of an elected group does beside replication: lease, registry, roles."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ha import failoverevents, membership
from ha.failover import Facts, Failover, Role
from ha.failoverevents import (
    Answer,
    AskLease,
    Changed,
    Commit,
    Committed,
    DropLease,
    Follow,
    HandOver,
    Instruct,
    Lead,
    Leased,
    LeaseLost,
    Note,
    Noted,
    Observe,
    Observed,
    Stand,
    Tick,
    Uncertain,
    Wake,
)
from ha.groupstate import Registration, Replica
from ha.masterevents import Instructed
from ha.membership import Membership
from ha.registry import LeaseGone, Put, Snapshot, Transaction
from sim.etcd import TIMEOUT_MS, SimEtcd
from sim.witness import Violation
from store.clocks import MonoMs
from store.disk import no_room
from store.errors import StoreError

if TYPE_CHECKING:
    from sim.node import Node

TTL_MS = 600
MARGIN_MS = 90
RETRY_MS = 60.0
NOTED_MS = 3.0  # longest until a note is begun, and from its end until that is heard


class Agent:
    """Feeds a node's failover machine and does what it says."""

    def __init__(self, node: "Node", etcd: SimEtcd, incarnation: int, fresh_id: str) -> None:
        self.node = node
        self.etcd = etcd
        replica = Replica(node.name, incarnation)
        self.machine = Failover(
            node.disk,
            etcd.keys,
            Registration(replica, f"{node.name}:1", node.name),
            node.setup.in_sync,
            fresh_id,
            Facts(
                self._unfit,
                lambda: node.store.log.max_offset == node.store.log.min_offset,
                lambda: node.store.log.max_offset,
                lambda: (node.master or node.slave).identity.promised_epoch,  # type: ignore[union-attr]
                self._renew,
            ),
        )
        self._chance = node.world.chance(f"agent:{node.name}:{node.boot}")
        self._role: Lead | Follow | Stand | None = None  # the newest that is not taken yet
        self._changing = False
        self._no_room = False  # for what was to be noted last
        self._lease = 0
        self._last_lease = 0
        self._deadline_ms = MonoMs(0)
        self._calls = 0
        etcd.watch(node.name, node.guarded(lambda: self.step(Changed())))
        node.later(1.0, self._tick)

    def _unfit(self) -> str:
        store = self.node.store
        if not store.flags.writeable:
            return ", ".join(store.flags.names())
        return "damaged" if store.log.corrupt_ranges else ""

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
        self.node.later(25.0, self._tick)

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
        for effect in self.machine.step(event, self.node.mono()):
            self._do(effect)

    def _do(self, effect: failoverevents.Effect) -> None:
        node = self.node
        if isinstance(effect, Commit | Lead | Follow) and not self._no_room:
            node.ghost.witness.decides(node, self.machine.membership.version)
        match effect:
            case AskLease():
                self._ask_lease()
            case DropLease(lease):
                if lease == self._lease:
                    self._lease = 0
                self.etcd.call(node.name, lambda table: table.drop(lease), lambda _: None)
            case Observe():
                prefix = self.etcd.keys.prefix
                self._ask(
                    lambda reply: self.etcd.call(node.name, lambda table: table.get(prefix), reply),
                    self._observed,
                    Observed(None),
                )
            case Commit(number, transaction):
                self._leases_are_own(transaction)
                self._ask(
                    lambda reply: self.etcd.commit(node.name, transaction, reply),
                    lambda result: self._committed(number, result),
                    Uncertain(number),
                )
            case Note(found):
                self._note(found)
            case Instruct(mandate):
                node.tell(Instructed(mandate))
            case Lead() | Follow() | Stand():
                if isinstance(effect, Stand):
                    node.world.note(f"{node.name} stands: {effect.reason}")
                    node.become_slave()  # at once, whatever role comes next and whenever
                self._role = effect
                if not self._changing:
                    self._change_role()
            case Wake(at_ms):
                node.later(max(0.5, at_ms - node.mono()), lambda: self.step(Tick()))
            case Answer(_, error):
                node.world.note(f"{node.name} answers: {error or 'done'}")
                node.ghost.mark("order_failed" if error else "order_done")

    def _note(self, found: Membership) -> None:
        """In a thread of the node: begins and ends some time later, and may end unheard."""
        node = self.node

        def write() -> None:
            noted = membership.note(node.disk, found)
            self._no_room = noted is None
            node.later(self._chance.uniform(0, NOTED_MS), lambda: self.step(Noted(noted)))

        node.later(self._chance.uniform(0, NOTED_MS), write)

    def _leases_are_own(self, transaction: Transaction) -> None:
        """What vanishes with an older lease would be missed later."""
        for change in transaction.changes:
            if isinstance(change, Put) and change.lease not in (0, self._last_lease):
                raise Violation(
                    f"{self.node.name} binds {change.key} to lease {change.lease}, "
                    f"its own is {self._last_lease}"
                )

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
            self.step(LeaseLost(self.machine.lease))
            self.step(Committed(number, None))
        else:
            self.step(Committed(number, result))

    # -- lease ---------------------------------------------------------------------------------

    def _ask_lease(self) -> None:
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
                self._ask_lease()

        self._lease = 0
        self.etcd.call(
            self.node.name, lambda table: table.grant(TTL_MS, now.now), self.node.guarded(granted)
        )
        self.node.later(TIMEOUT_MS + RETRY_MS, again)

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

    def _change_role(self) -> None:
        """To the newest one that was asked for; one after the other."""
        effect, self._role = self._role, None
        self._changing = effect is not None
        if effect is None:
            return
        self.node.follow("")
        match effect:
            case Lead(epoch):
                self._promise(epoch, lambda error: self._lead(effect, error))
            case Follow(_, epoch):
                self._promise(epoch, lambda error: self._follow(effect, error))
            case Stand():
                self._change_role()

    def _promise(self, epoch: int, then: Callable[[OSError | None], None]) -> None:
        """In a thread of the node, as a note of the group's state; then the role is taken."""
        node, slave = self.node, self.node.slave
        assert slave is not None, "masters stand before they follow, slaves are elected"

        def write() -> None:
            failure = None
            try:
                slave.promise(epoch)
            except OSError as error:
                if not no_room(error):
                    raise
                failure = error
            else:
                node.ghost.witness.promises(node, epoch)
                if slave.identity.promised_epoch < epoch:
                    raise Violation(f"{node.name} takes a role in {epoch}, and does not promise it")
            node.later(self._chance.uniform(0, NOTED_MS), lambda: taken(failure))

        def taken(failure: OSError | None) -> None:
            then(failure)
            self._change_role()

        node.later(self._chance.uniform(0, NOTED_MS), write)

    def _follow(self, effect: Follow, failure: OSError | None) -> None:
        node = self.node
        if failure is not None:
            node.ghost.mark("no_room_to_promise")  # the handshake asks for it again
        node.world.note(f"{node.name} follows {effect.master.replica.node} in epoch {effect.epoch}")
        node.follow(effect.master.replica.node)

    def _lead(self, effect: Lead, failure: OSError | None) -> None:
        node = self.node
        try:
            if failure is not None:
                raise failure
            if self.machine.role is not Role.LEADING or self.machine.led_epoch != effect.epoch:
                return  # over before it began
            node.become_master(effect)
        except (OSError, StoreError) as error:
            node.world.note(f"{node.name} cannot lead: {error}")
            node.become_slave()
            for more in self.machine.cannot_lead(str(error), node.mono()):
                self._do(more)
            return
        assert node.master is not None, "it is one"
        for more in self.machine.leads(node.master):
            self._do(more)
        node.ghost.leads(node, effect.epoch)

    def hand_over(self, target: str) -> None:
        """An operator's order."""
        self.step(HandOver(target, "order"))
