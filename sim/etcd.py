"""The simulated etcd: a linearizable map behind a network that loses requests and replies.

Injected: an outage (no quorum; a new leader then extends all leases, as etcd's does), slowness
(a request is made long after its sender gave up), a lease that dies early, watches that lag or are
lost, a backup that is restored, a wipe.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from duolog_server.ha.epochs import NO_EPOCH, Epoch
from duolog_server.ha.groupstate import GroupState, Keys
from duolog_server.ha.guarantee import Guarantee
from duolog_server.ha.registry import LeaseGone, Put, RegistryTable, Row, Transaction
from sim.network import Network
from sim.witness import Violation
from sim.world import World

NAME = "etcd"
TIMEOUT_MS = 250.0
WATCH_MS = 4.0
Reply = Callable[[Any], None]


@dataclass(slots=True)
class _Backup:
    version: int
    rows: dict[str, Row]


class SimEtcd:
    """One etcd cluster, seen as one. `truth` is the newest state of the group there ever was."""

    def __init__(self, world: World, network: Network, keys: Keys) -> None:
        self.world = world
        self.network = network
        self.keys = keys
        self.table = RegistryTable()
        self.truth: GroupState | None = None
        self.on_truth: Callable[[], None] = lambda: None  # the group's state changed
        self.siblings: list[SimEtcd] = []  # the same etcd, as other groups see it
        self.restored = False
        self.watch_lag = 0.0
        self._down_until = 0.0
        self._slow_until = 0.0
        self._chance = world.chance("etcd")
        self._watchers: dict[str, Callable[[], None]] = {}
        self._calls = 0
        self._on_way: dict[int, Transaction] = {}
        self._by_hand = False
        self._backups: list[_Backup] = []
        self._newest: _Backup | None = None

    # -- calls ---------------------------------------------------------------------------------

    def call(
        self,
        source: str,
        work: Callable[[RegistryTable], Any],
        reply: Reply,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        """A request of a node; `reply` gets what it returned, or nothing ever comes back.

        gone: called where the request was lost on its way, and will never be made.
        """

        def arrive() -> None:
            if self.world.now < self._down_until:
                if self._chance.random() < 0.5:
                    gone()
                    return
                self.world.at(self._down_until + self._chance.uniform(0, 50), arrive)
                return
            if self.world.now < self._slow_until:
                delay = self._chance.uniform(10, 600)
                self.world.after(delay, perform)
                return
            perform()

        def perform() -> None:
            before = self.table.revision
            self.table.expire(self.world.now)
            try:
                result = work(self.table)
            except LeaseGone as error:
                result = error
            if self.table.revision != before:
                self._all_changed()
            self.network.call(NAME, source, lambda: reply(result))

        if not self.network.call(source, NAME, arrive):
            gone()

    def commit(self, source: str, transaction: Transaction, reply: Reply) -> None:
        """A transaction; until it is made or lost it may be made at any time."""
        self._must_be_checked(source, transaction)
        self._calls += 1
        number = self._calls

        def gone() -> None:
            self._on_way.pop(number, None)

        def make(table: RegistryTable) -> int | None:
            gone()
            return table.commit(transaction)

        self._on_way[number] = transaction
        self.call(source, make, reply, gone)

    def _must_be_checked(self, source: str, transaction: Transaction) -> None:
        """The state key changes by transactions that check what they build on, and the lock."""
        changed = {change.key for change in transaction.changes}
        checked = {check.key for check in transaction.checks}
        if changed & {self.keys.state, self.keys.lock} and not checked >= {
            self.keys.state,
            self.keys.lock,
        }:
            raise Violation(f"{source} writes {sorted(changed)}, and checks {sorted(checked)} only")

    def promised(self, replicas: int) -> bool:
        """The group promises that so many replicas hold a put."""
        row = self.table.rows.get(self.keys.guarantee)
        return row is not None and Guarantee.from_bytes(row.value).in_sync_replicas >= replicas

    def possible_states(self) -> list[GroupState]:
        """What the registry has, or may have without anybody doing any more."""
        found = [self.truth] if self.truth is not None else []
        rows = self.table.rows
        for transaction in self._on_way.values():
            revisions = ((rows.get(c.key), c.mod_revision) for c in transaction.checks)
            if all((row.mod_revision if row else 0) == wanted for row, wanted in revisions):
                found += [
                    GroupState.from_bytes(change.value)
                    for change in transaction.changes
                    if isinstance(change, Put) and change.key == self.keys.state
                ]
        return found

    def watch(self, source: str, changed: Callable[[], None]) -> None:
        """Be told of changes, as far as the network lets it."""
        self._watchers[source] = changed

    def expire(self) -> None:
        """Leases end by themselves, but for an outage."""
        if self.world.now >= self._down_until:
            before = self.table.revision
            self.table.expire(self.world.now)
            if self.table.revision != before:
                self._all_changed()
        self.world.after(20.0, self.expire)

    def share(self, other: "SimEtcd") -> None:
        """Be the same etcd as another group's."""
        self.table = other.table
        self.siblings.append(other)
        other.siblings.append(self)

    def _all_changed(self) -> None:
        for etcd in (self, *self.siblings):
            etcd._changed()

    def _changed(self) -> None:
        row = self.table.rows.get(self.keys.state)
        if row is not None and self._by_hand and self.truth is not None:
            state = GroupState.from_bytes(row.value)
            if state.group_id == self.truth.group_id and state.version > self.truth.version:
                self.restored = self._by_hand = False
        if row is not None and not self.restored:
            state = GroupState.from_bytes(row.value)
            if self.truth is None or state.version > self.truth.version:
                self.truth = state
                self._newest = _Backup(state.version, dict(self.table.rows))
                self._backups.append(self._newest)
                self.on_truth()
            elif self._newest is not None and state.version == self.truth.version:
                self._newest.rows = dict(self.table.rows)  # another key changed
        for name, changed in self._watchers.items():
            delay = WATCH_MS + self._chance.uniform(0, 2) + self.watch_lag
            self.world.after(delay, self._notifier(name, changed))

    def _notifier(self, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        def tell() -> None:
            self.network.call(NAME, name, changed)

        return tell

    # -- faults --------------------------------------------------------------------------------

    def outage(self, lasts: float) -> None:
        """No quorum; afterwards every lease has its whole time again."""
        until = self.world.now + lasts
        self._down_until = max(self._down_until, until)
        for lease, (ttl, _) in self.table.leases.items():
            self.table.leases[lease] = (ttl, self._down_until + ttl)

    def slow(self, lasts: float) -> None:
        """Requests are made much later."""
        self._slow_until = self.world.now + lasts

    def heal(self) -> None:
        """Everything works."""
        self._down_until = self._slow_until = self.watch_lag = 0.0

    def revoke_lock(self) -> bool:
        """The master's lease dies early."""
        row = self.table.rows.get(self.keys.lock)
        if row is None:
            return False
        self.table.drop(row.lease)
        self._all_changed()
        return True

    def restore(self, below_version: int) -> bool:
        """An old backup takes the place of everything; only one that every node can tell is old."""
        usable = [backup for backup in self._backups if backup.version < below_version]
        if not usable or self.restored:
            return False
        self.restored = True
        self._replace(self._chance.choice(usable))
        return True

    def wipe(self) -> bool:
        """Every key of the group is gone."""
        if self.restored or self.truth is None:
            return False
        self.restored = True
        self._replace(_Backup(0, {}))
        return True

    def elect_by_hand(self) -> Epoch:
        """An operator is about to elect a node by its own memory; the registry's last epoch."""
        self._by_hand = True
        row = self.table.rows.get(self.keys.state)
        return GroupState.from_bytes(row.value).epoch if row is not None else NO_EPOCH

    def restore_newest(self) -> None:
        """The operator has found the right backup."""
        if self.restored and self._newest is not None:
            self.restored = self._by_hand = False
            self._replace(self._newest)

    def _replace(self, backup: _Backup) -> None:
        # Leases are in a backup, too; their holders are long gone or will renew others.
        lost = {self.keys.lock}
        self.table.rows = {
            key: row for key, row in backup.rows.items() if key not in lost and row.lease == 0
        }
        self.table.leases.clear()
        self.table.revision += 1
        self._changed()
