"""Who is the next master: the order of the candidates, and the heir of one that goes on purpose."""

from ha.groupstate import GroupState, Replica, View
from ha.mandate import Mastership
from ha.syncstate import lives

RANK_MS = 50  # each candidate waits so much longer than the one before it
HEIR_MS = 1000  # the others leave a named heir so much time


def delay_ms(view: View, state: GroupState, me: Replica) -> int:
    """How long to leave the election to candidates that come first."""
    candidates = sorted(
        (replica.node in view.drained, replica)
        for replica in state.sync_state_set
        if replica == me or lives(replica, view.replicas)
    )
    order = [replica for _, replica in candidates]
    delay = order.index(me) * RANK_MS
    if state.heir == me.node:
        return 0
    heir_lives = any(replica.node == state.heir for replica in order)
    return delay + HEIR_MS if heir_lives else delay


def best_heir(view: View, state: GroupState, me: Replica, master: Mastership) -> str:
    """The member that lives, is not drained and holds the most; empty: there is none."""
    live = [
        (master.held_by(replica), replica.node)
        for replica in state.sync_state_set
        if replica != me and replica.node in view.replicas and replica.node not in view.drained
    ]
    return max(live, default=(0, ""))[1]


def refusal(view: View, state: GroupState, me: Replica, target: str) -> str:
    """Why a node may not take over from the master now, empty where it may."""
    heirs = {r.node for r in state.sync_state_set if r != me}
    if target in heirs and target in view.replicas:
        return ""
    return f"{target or 'no node'} cannot take over: in sync are {sorted(heirs) or 'none'}"
