"""Older copies: is this node's directory the newest of itself, and is that of its master?

A directory that was restored from a backup, or copied, has the incarnation that it always had. It
gives itself away by the number of its start, which the registry has seen before, or by lacking
what it has acknowledged; a master's gives itself away by lacking what was confirmed.
"""

from ha.epochs import Epoch
from ha.groupstate import GroupState, Keys, Replica, View
from ha.starts import Claim, Start


class Provenance:
    """What is known of both directories."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.older_copy = ""  # why this node is not the replica any more that it was
        self.contradiction = ""  # what this node knows, and the master of its epoch lacks
        self._contradicted_epoch = 0
        self._refused = ""

    def notice(self, state: GroupState | None, me: Replica) -> str:
        """What an operator should know; empty: nothing."""
        if self.older_copy and (state is None or me not in state.sync_state_set):
            return f"its directory is an older copy; it must catch up first: {self.older_copy}"
        if self.contradiction and state is not None and state.epoch == self._contradicted_epoch:
            return f"its master's directory is an older copy: {self.contradiction}"
        return ""

    # -- this node's own -----------------------------------------------------------------------

    def refused(self, reason: str) -> None:
        """The master refuses this node: it lacks what it has acknowledged."""
        self._refused = reason

    def claim(self, view: View, me: Replica, keys: Keys) -> Claim:
        """This start beside the newest one that the registry has seen. Raises BadState."""
        row, _ = view.start_of(me, keys)
        return self.start.against(row)

    def lacks_what_it_acknowledged(self, state: GroupState | None, me: Replica) -> bool:
        """The master has refused this node, which is in the SyncStateSet still."""
        members = state.sync_state_set if state is not None else frozenset()
        if self._refused and me not in members:
            self._refused = ""  # it does not count as that replica any more
        return bool(self._refused)

    def why_older(self, claim: Claim) -> str:
        """Why this directory is an older copy; empty: nothing says so."""
        if self._refused or claim is not Claim.OLDER:
            return self._refused
        return (
            f"start {self.start.number} of this directory was claimed by another process: this "
            "directory is an older copy, or a copy of it is running"
        )

    def renewed(self, reason: str) -> None:
        """The node goes on as another replica, of which nothing is known."""
        self.older_copy, self._refused = reason, ""

    # -- the master's --------------------------------------------------------------------------

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks what this node knows to be confirmed."""
        self._contradicted_epoch, self.contradiction = epoch, reason

    def may_depose(self, state: GroupState, me: Replica) -> bool:
        """The master lacks what this node knows, and this node is in the set for sure."""
        return (
            self._contradicted_epoch == state.epoch
            and me in state.sync_state_set
            and me != state.master
        )
