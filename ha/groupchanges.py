"""A node's transactions on its group in the registry; each checks the state it builds on.

| change | builds on |
|--------|-----------|
| register, tell | nothing: what a node tells of itself is its own |
| claim | its start and the state as they were read |
| elect | the state as it was read, no lock, its own start |
| set_members, hand_over | the state as it was read, and the lock of this very mastership |
| promise | the same, and the guarantee as it was read |
| change_rows | the same, and the rows of queues as they were read |
| call_roll, forget | the members' records as they were read; that a forgotten one does not live |
| retire | nothing |
| forget_group | that it retires, and that none of its nodes lives |
| depose | the state and the lock as they were read |
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from duolog_server.ha.groupstate import (
    GroupState,
    Keys,
    Member,
    Registration,
    Unreachable,
    View,
    reach_to_bytes,
    retired_key,
)
from duolog_server.ha.guarantee import Guarantee
from duolog_server.ha.registry import Check, Delete, Put, Row, Transaction
from duolog_server.ha.starts import Start


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The changes that one node may make, as it has read the group."""

    keys: Keys
    view: View
    me: Registration
    lease: int

    def register(self, has_room: bool, unreachable: Unreachable) -> Transaction:
        """Say that this node lives, and where, and what else it tells."""
        node = self.me.replica.node
        here = Put(self.keys.replica(node), self.me.to_bytes(), self.lease)
        member = Put(self.keys.member(node), Member(self.me).to_bytes())
        return Transaction((), (here, member, *self.tell(has_room, unreachable).changes))

    def tell(self, has_room: bool, unreachable: Unreachable) -> Transaction:
        """Report this node's free disk space and the nodes that it cannot reach, while it lives."""
        node = self.me.replica.node
        room, reach = self.keys.room(node), self.keys.reach(node)
        found = reach_to_bytes(unreachable)
        return Transaction(
            (),
            (
                Put(room, b"{}", self.lease) if has_room else Delete(room),
                Put(reach, found, self.lease) if unreachable else Delete(reach),
            ),
        )

    def claim(self, start: Start) -> Transaction:
        """Record this start, and remove entries of incarnations that are no longer in use."""
        me, state = self.me.replica, self.view.state
        members = state.sync_state_set if state is not None else frozenset()
        needed = {self.keys.start(replica) for replica in {*members, me}}
        old = (key for key in sorted(self.view.starts) if key.startswith(self.keys.starts(me.node)))
        return Transaction(
            (self._own_start(), self._state()),
            (
                Put(self.keys.start(me), start.to_bytes()),
                *(Delete(row) for row in old if row not in needed),
            ),
        )

    def elect(self, new: GroupState, kept: Guarantee | None = None) -> Transaction:
        """Become the master of an epoch if the state is as it was read and no node has the lock.

        kept: what puts were promised, for a registry that may have lost it.
        """
        checks = (self._state(), Check(self.keys.lock, 0), self._own_start())
        lock = Put(self.keys.lock, self.me.to_bytes(), self.lease)
        promise = (Put(self.keys.guarantee, kept.to_bytes()),) if kept is not None else ()
        return Transaction(checks, (Put(self.keys.state, new.to_bytes()), lock, *promise))

    def set_members(self, new: GroupState) -> Transaction:
        """Change the SyncStateSet, as the master."""
        return Transaction(self._mastership(), (Put(self.keys.state, new.to_bytes()),))

    def hand_over(self, new: GroupState) -> Transaction:
        """Name the preferred successor and release the lock, as the master."""
        changes = (Put(self.keys.state, new.to_bytes()), Delete(self.keys.lock))
        return Transaction(self._mastership(), changes)

    def promise(self, guarantee: Guarantee) -> Transaction:
        """Record what puts of the group are promised, as the master.

        It is a version of the state as well: a backup from before is then known for one.
        """
        assert self.view.state is not None, "a master has read the group's state"
        known = Check(self.keys.guarantee, self.view.guarantee_revision)
        change = Put(self.keys.guarantee, guarantee.to_bytes())
        state = Put(self.keys.state, self.view.state.changed().to_bytes())
        return Transaction((*self._mastership(), known), (change, state))

    def change_rows(self, known: tuple[Check, ...], rows: tuple[Put | Delete, ...]) -> Transaction:
        """Change what the registry says of queues that move, as the master."""
        return Transaction((*self._mastership(), *known), rows)

    def depose(self, new: GroupState) -> Transaction:
        """Remove the lock of a master that the new state no longer names."""
        changes = (Put(self.keys.state, new.to_bytes()), Delete(self.keys.lock))
        return Transaction((self._state(), self._lock()), changes)

    def _state(self) -> Check:
        return Check(self.keys.state, self.view.state_revision)

    def _lock(self) -> Check:
        assert self.view.lock is not None, "only a locked group has a master to depose"
        return Check(self.keys.lock, self.view.lock.mod_revision)

    def _own_start(self) -> Check:
        _, revision = self.view.start_of(self.me.replica, self.keys)
        return Check(self.keys.start(self.me.replica), revision)

    def _mastership(self) -> tuple[Check, ...]:
        """The state is as it was read, and the lock is still this mastership's."""
        return (self._state(), self._lock())


def call_roll(keys: Keys, view: View, wall_ms: int) -> Transaction | None:
    """Record since when a member is not registered, and nodes of v0.1.0; None: nothing is new.

    Any node may do it: of several that do at once, one succeeds.
    """
    checks: list[Check] = []
    changes: list[Put | Delete] = []
    for node in sorted(view.replicas.keys() | view.members.keys()):
        row, known = view.replicas.get(node), view.members.get(node)
        if row is not None:
            now = Member(row)
        else:
            assert known is not None, "of one of both"
            now = known if known.down_since_ms else replace(known, down_since_ms=wall_ms)
        if now != known:
            checks.append(Check(keys.member(node), known.revision if known is not None else 0))
            changes.append(Put(keys.member(node), now.to_bytes()))
    return Transaction(tuple(checks), tuple(changes)) if changes else None


def forget(keys: Keys, view: View, node: str) -> Transaction:
    """Remove a member that does not live and that puts do not wait for.

    Its starts stay: by them, an older copy of its directory is known for one.
    """
    checks = (Check(keys.replica(node), 0), Check(keys.state, view.state_revision))
    return Transaction(checks, (Delete(keys.member(node)), Delete(keys.drained(node))))


def retire(keys: Keys, undo: bool) -> Transaction:
    """Mark a group as retiring, or no longer. Any node of the cluster may do it."""
    return Transaction((), (Delete(keys.retiring) if undo else Put(keys.retiring, b"{}"),))


def forget_group(keys: Keys, rows: Mapping[str, Row], nodes: Iterable[str]) -> Transaction:
    """Remove all keys of a group, and note that it is no more. rows: its keys; nodes: its members.

    None of its nodes may have come back since, nor the mark be gone.
    """
    alive = (Check(keys.replica(node), 0) for node in sorted(nodes))
    mark = Check(keys.retiring, rows[keys.retiring].mod_revision)
    note = Put(retired_key(keys.cluster, keys.group), b"{}")
    return Transaction((mark, *alive), (*map(Delete, sorted(rows)), note))
