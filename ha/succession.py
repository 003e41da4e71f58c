"""Who is the next master: the order of candidates, and the successor in a planned switch."""

from ha.beginnings import Cause
from ha.groupstate import GroupState, Replica, View
from ha.mandate import Mastership
from ha.syncstate import lives

RANK_MS = 50  # each candidate waits so much longer than the previous one
SUCCESSOR_MS = 1000  # the others wait so long for a preferred successor


def delay_ms(view: View, state: GroupState, me: Replica) -> int:
    """How long to wait for candidates that come first."""
    candidates = sorted(
        (replica.node in view.drained, replica)
        for replica in state.sync_state_set
        if replica == me or lives(replica, view.replicas)
    )
    order = [replica for _, replica in candidates]
    delay = order.index(me) * RANK_MS
    if state.successor == me.node:
        return 0
    successor_lives = any(replica.node == state.successor for replica in order)
    return delay + SUCCESSOR_MS if successor_lives else delay


def cause(state: GroupState) -> Cause:
    """Why there is an election in an open group."""
    if state.master not in state.sync_state_set:
        return Cause.DEPOSED
    return Cause.HANDED_OVER if state.successor else Cause.LEASE_ENDED


def nobody_left(view: View, state: GroupState) -> bool:
    """Whether every member's node is back as another replica: no member can be elected again."""
    found = [view.replicas.get(replica.node) for replica in state.sync_state_set]
    return all(row is not None for row in found) and not any(
        lives(replica, view.replicas) for replica in state.sync_state_set
    )


def best_successor(view: View, state: GroupState, me: Replica, master: Mastership) -> str:
    """The live, undrained member with the longest log; empty: there is none."""
    live = [(master.held_by(replica), replica.node) for replica in _live(view, state, me)]
    return max(live, default=(0, ""))[1]


def roomy_successor(view: View, state: GroupState, me: Replica, master: Mastership) -> str:
    """The same of those whose disk has room; empty where none says so."""
    live = [
        (master.held_by(replica), replica.node)
        for replica in _live(view, state, me)
        if view.has_room(replica.node) and master.held_by(replica)
    ]
    return max(live, default=(0, ""))[1]


def relievers(view: View, state: GroupState, me: Replica) -> int:
    """How many other members have room on their disks."""
    return sum(view.has_room(replica.node) for replica in _live(view, state, me))


def _live(view: View, state: GroupState, me: Replica) -> list[Replica]:
    """Other members that live and are not drained."""
    return [
        replica
        for replica in sorted(state.sync_state_set)
        if replica != me and lives(replica, view.replicas) and replica.node not in view.drained
    ]


def refusal(view: View, state: GroupState, me: Replica, target: str) -> str:
    """Why a node may not take over from the master now, empty where it may."""
    ready = {r.node for r in state.sync_state_set if r != me and r.node in view.replicas}
    if target in ready:
        return ""
    if not target:
        return "no node can take over: no other replica is alive and in sync"
    others = f"those that are: {', '.join(sorted(ready))}" if ready else "no other replica is"
    return f"{target} cannot take over: it is not alive and in sync; {others}"
