"""Choice of the next master: the order of candidates, and the successor in a planned switch.

A master that other nodes cannot reach has no slaves. Rules: nobody hands over to a node that a
node would have to follow and cannot reach; in an election, a node that fewer can reach waits for
those that more can reach, but stands all the same: what nodes found may be over by then.

The order of candidates is a delay and no promise: who is elected is a member of the SyncStateSet
in any order, and a master that most cannot reach hands over (`better_placed`). A bug in it costs
time until somebody leads who has slaves. So tests check it, and the simulator plants none there.
"""

from collections.abc import Collection

from duolog_server.ha.beginnings import Cause
from duolog_server.ha.groupstate import GroupState, Replica, Unreachable, View
from duolog_server.ha.mandate import Mastership
from duolog_server.ha.syncstate import lives

RANK_MS = 50  # each candidate waits so much longer than the previous one
SUCCESSOR_MS = 1000  # the others wait so long for a preferred successor
UNREACHED_MS = 1000  # a candidate that fewer nodes can reach waits so much longer


def delay_ms(view: View, state: GroupState, me: Replica) -> int:
    """How long to wait for candidates that come first."""
    candidates = sorted(
        (replica.node in view.drained, len(view.unreached_by(replica.node)), replica)
        for replica in state.sync_state_set
        if replica == me or lives(replica, view.replicas)
    )
    order = [replica for *_, replica in candidates]
    delay = order.index(me) * RANK_MS
    if state.successor == me.node:
        return 0
    if any(replica.node == state.successor for replica in order):
        delay += SUCCESSOR_MS
    least = min(count for drained, count, _ in candidates if drained is (me.node in view.drained))
    return delay + UNREACHED_MS if len(view.unreached_by(me.node)) > least else delay


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


def renamed(state: GroupState, me: Replica) -> str:
    """What to do where this node has a member's directory under another name; empty: it has none.

    Under that name it may be elected, whereas the group waits for the member under this one.
    """
    known = {replica.incarnation: replica.node for replica in state.sync_state_set}
    name = known.get(me.incarnation, me.node)
    return "" if name == me.node else f"this is the directory of {name}: set node.name to {name}"


def best_successor(view: View, state: GroupState, me: Replica, master: Mastership) -> str:
    """The live, undrained member with the longest log; empty: there is none."""
    live = [(master.held_by(replica), replica.node) for replica in _live(view, state, me)]
    return max(live, default=(0, ""))[1]


def roomy_successor(
    view: View, state: GroupState, me: Replica, master: Mastership, but: Collection[str] = ()
) -> str:
    """The same of those whose disk has room, but of some nodes; empty where none says so."""
    live = [
        (master.held_by(replica), replica.node)
        for replica in _live(view, state, me)
        if view.has_room(replica.node) and master.held_by(replica) and replica.node not in but
    ]
    return max(live, default=(0, ""))[1]


def relievers(view: View, state: GroupState, me: Replica) -> int:
    """How many other members have room on their disks."""
    return sum(view.has_room(replica.node) for replica in _live(view, state, me))


def _live(view: View, state: GroupState, me: Replica) -> list[Replica]:
    """Other members that live, are not drained, and can be followed by all.

    Where there is none: those that most nodes can follow.
    """
    live = [
        replica
        for replica in sorted(state.sync_state_set)
        if replica != me and lives(replica, view.replicas) and replica.node not in view.drained
    ]
    by_all = [replica for replica in live if not _lost(view, me, replica.node)]
    return by_all or [replica for replica in live if _has_most(view, replica.node)]


def _lost(view: View, me: Replica, target: str) -> Unreachable:
    """The nodes that reach this master and cannot reach another one, and what they found."""
    mine = view.unreached_by(me.node)
    return {name: why for name, why in view.unreached_by(target).items() if name not in mine}


def _has_most(view: View, node: str) -> bool:
    """Whether most live nodes could replicate with this one as their master, itself included."""
    live = view.replicas.keys() | {node}
    return 2 * (len(live) - len(view.unreached_by(node))) > len(live)


def better_placed(view: View, state: GroupState, me: Replica, connected: int) -> str:
    """The member to lead in place of a master that most nodes cannot reach; empty: none.

    connected: the other nodes that follow this master now.
    """
    if _has_most(view, me.node) or 2 * (connected + 1) > len(view.replicas):
        return ""
    others = [replica.node for replica in _live(view, state, me) if _has_most(view, replica.node)]
    return min(others, key=lambda node: (len(view.unreached_by(node)), node), default="")


def refusal(view: View, state: GroupState, me: Replica, target: str) -> str:
    """Why a node may not take over from the master now, empty where it may."""
    ready = {r.node for r in state.sync_state_set if r != me and r.node in view.replicas}
    cut_off = {node for node in ready if _lost(view, me, node)}
    cut_off -= {replica.node for replica in _live(view, state, me)}
    if target in cut_off or (not target and cut_off):
        return _cannot_follow(view, me, target or min(cut_off))
    if target in ready:
        return ""
    if not target:
        return "no node can take over: no other replica is alive and in sync"
    others = f"those that are: {', '.join(sorted(ready))}" if ready else "no other replica is"
    return f"{target} cannot take over: it is not alive and in sync; {others}"


def _cannot_follow(view: View, me: Replica, target: str) -> str:
    lost = _lost(view, me, target)
    return (
        f"{target} cannot take over: {' and '.join(lost)} cannot reach its replication address "
        f"{next(iter(lost.values()))}; set ha.advertise of {target} to an address that the other "
        "nodes reach"
    )
