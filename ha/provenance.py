"""Older copies: is this node's directory the newest of itself, and is that of its master?

A directory that was restored from a backup, or copied, has its old incarnation. It is recognised by
not containing the start that the registry has recorded, or by lacking bytes that it acknowledged; a
master's directory is recognised by lacking confirmed bytes.
"""

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.groupstate import GroupState, Replica
from duolog_server.ha.knowngroup import KnownGroup
from duolog_server.ha.starts import Claim, Start


class Provenance:
    """Facts about both directories."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.older_copy = ""  # why this node is no longer the replica that it was
        self.contradiction = ""  # what this node knows, and the master of its epoch lacks
        self._contradicted_epoch = 0
        self._refused = ""

    def notice(self, state: GroupState | None, me: Replica) -> str:
        """A problem to report to operators; empty: none."""
        if self.older_copy and (state is None or me not in state.sync_state_set):
            return (
                f"its directory lacks what it has acknowledged; it must catch up: {self.older_copy}"
            )
        if self.contradiction and state is not None and state.epoch == self._contradicted_epoch:
            return f"its master's directory is an older copy: {self.contradiction}"
        return ""

    # -- this node's own -----------------------------------------------------------------------

    def refused(self, reason: str) -> None:
        """Note lost acknowledged bytes: its master says so, or its log is damaged."""
        self._refused = reason

    def claim(self, group: KnownGroup, me: Replica) -> Claim:
        """Compare this start with the newest one in the registry. Raises BadState."""
        row, _ = group.view.start_of(me, group.keys)
        return self.start.against(row, group.membership.marks)

    @property
    def lacks_what_it_acknowledged(self) -> bool:
        """Note that this node is no longer the replica in the (next) SyncStateSet."""
        return bool(self._refused)

    def why_older(self, claim: Claim) -> str:
        """Why this directory is an older copy; empty: no sign of it."""
        if self._refused or claim is not Claim.OLDER:
            return self._refused
        return (
            f"the registry has noted a start that this directory (start {self.start.number}) knows "
            "nothing of: this directory is an older copy, or a copy of it is running"
        )

    def renewed(self, reason: str) -> None:
        """The node continues as another replica, of which nothing is known."""
        self.older_copy, self._refused = reason, ""

    # -- the master's --------------------------------------------------------------------------

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks bytes that this node knows to be confirmed."""
        self._contradicted_epoch, self.contradiction = epoch, reason

    def may_depose(self, state: GroupState, me: Replica) -> bool:
        """The master lacks bytes that this node knows, and this node is certainly in the set."""
        return (
            self._contradicted_epoch == state.epoch
            and me in state.sync_state_set
            and me != state.master
        )
