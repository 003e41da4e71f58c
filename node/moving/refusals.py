"""Which moves of queues may begin: the rules that an operator meets.

Pure; what a target's log and the registry add is found when the move runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.ha.groupstate import MOVES, View
from duolog_server.ha.guarantee import Guarantee
from duolog_server.ha.mover import State
from duolog_server.node.moving.moveservice import Progress
from duolog_server.store.metadata import LITE, TopicConfig, is_nodes_topic
from duolog_server.store.moves import Moves


@dataclass(frozen=True, slots=True)
class Wanted:
    """A move that is asked for. target: the replica group."""

    topic: str
    queue_id: int
    target: str

    def __str__(self) -> str:
        """The queue, for people."""
        return f"{self.topic}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class Source:
    """What the master of the queue goes by.

    views: of all replica groups; none where roles are fixed. known: moves that the master knows.
    """

    group: str
    config: TopicConfig
    moves: Moves
    views: Mapping[str, View]
    known: Sequence[Progress]


def joined(wanted: Wanted, known: Sequence[Progress]) -> Progress | None:
    """The move that is asked for, if it has begun, or was done, under this mastership."""
    found = last(wanted.topic, wanted.queue_id, known)
    if found is None or found.state == State.ENDED.value or found.target != wanted.target:
        return None
    return found


def check(wanted: Wanted, source: Source) -> None:
    """Raise unless a move may begin: BadRequest, and Busy for what passes."""
    if not source.views:
        raise sdk.BadRequest(
            "the roles of this replica group are fixed (broker_role is not AUTO): queues move "
            "between groups that elect their masters"
        )
    _check_queue(wanted, source)
    _check_target(wanted, source)


def _check_queue(wanted: Wanted, source: Source) -> None:
    topic, queue_id, config = wanted.topic, wanted.queue_id, source.config
    if is_nodes_topic(topic):
        raise sdk.BadRequest(
            f"topic {topic!r} belongs to the nodes (system topics, retries, dead letters): "
            "its queues stay where they are"
        )
    if config.message_type == LITE:
        raise sdk.BadRequest(f"topic {topic!r} is of type LITE: its queues cannot move")
    guest = source.moves.guest_of(topic, queue_id)
    if not 0 <= queue_id < config.queues and guest is None:
        guests = sorted(
            q for q, one in source.moves.guests.get(topic, {}).items() if one.first is not None
        )
        more = f", and {', '.join(map(str, guests))}, which moved here" if guests else ""
        raise sdk.BadRequest(
            f"there is no queue {wanted} in replica group {source.group}: the topic has queues "
            f"0 to {config.queues - 1} there{more}"
        )
    seal, running = source.moves.seal_of(topic, queue_id), last(topic, queue_id, source.known)
    if seal is not None:
        to = seal.following
        raise sdk.BadRequest(
            f"queue {wanted} of {source.group} ends at offset {seal.end}: it moved to {to}, and "
            f"replica group {to.group} takes its messages. Move {to} from there"
        )
    if guest is not None and guest.first is None:
        raise sdk.BadRequest(
            f"queue {wanted} of {source.group} is there for a move from "
            f"{guest.came_from} that {'was given up' if guest.revoked else 'has begun'}"
            ": it takes no messages"
        )
    if running is not None and running.state not in (State.ENDED.value, State.DONE.value):
        raise sdk.Busy(
            f"queue {wanted} moves to {running.target} already (move {running.move}, "
            f"{running.state}): wait until that is over, or abort it"
        )


def _check_target(wanted: Wanted, source: Source) -> None:
    here, there = source.group, wanted.target
    if there == here:
        raise sdk.BadRequest(f"queue {wanted} is in replica group {here} already")
    view = source.views.get(there)
    if view is None:
        others = ", ".join(sorted(source.views.keys() - {here})) or "none"
        raise sdk.BadRequest(
            f"there is no replica group {there!r}; other groups of this cluster: {others}"
        )
    if view.retiring:
        raise sdk.BadRequest(f"replica group {there} retires: it takes no queues")
    for group in (here, there):
        if older := source.views[group].lacking(MOVES) if group in source.views else []:
            raise sdk.BadRequest(
                f"nodes of replica group {group} have a version that knows no moves: "
                f"{', '.join(older)}. Upgrade and start them; forget those that are gone for good "
                "(duolog cluster forget)"
            )
    if view.guarantee is not None and here in source.views:
        _check_guarantee(source.views[here].guarantee, view.guarantee, (here, there))
    if view.master is None:
        raise sdk.Busy(
            f"replica group {there} has no master now: nothing can move there until it has one"
        )


def _check_guarantee(ours: Guarantee | None, theirs: Guarantee, groups: tuple[str, str]) -> None:
    """What was acknowledged here must not be acknowledged for less there."""
    weaker = theirs.weaker_than(ours) if ours is not None else []
    if ours is None or not weaker:
        return
    wanted, found = ours.settings(), theirs.settings()
    told = ", ".join(f"{name} {found[name]} instead of {wanted[name]}" for name in weaker)
    raise sdk.BadRequest(
        f"replica group {groups[1]} promises less of what it acknowledges than {groups[0]}: "
        f"{told}. Raise it first: duolog cluster set-guarantee, at a node of {groups[1]}"
    )


def last(topic: str, queue_id: int, known: Sequence[Progress]) -> Progress | None:
    """The last move of a queue."""
    of_queue = [one for one in known if (one.topic, one.queue_id) == (topic, queue_id)]
    return max(of_queue, key=lambda one: one.began_ms, default=None)
