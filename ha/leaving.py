"""Replica groups that leave the cluster: retiring ones, and those that are no more.

RocketMQ's producers send to the queues that a route names, and know nothing of moves. Their routes
change only where a group leaves, as they do where a broker of RocketMQ leaves.

Pure.
"""

from collections.abc import Mapping

from duolog_server.ha.groupstate import RETIREMENT, View
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.moves import Moves

Views = Mapping[str, View]  # of all replica groups, by name; none where roles are fixed


def retires(views: Views, group: str) -> bool:
    """Whether a group retires."""
    view = views.get(group)
    return view is not None and view.retiring


def leaves(views: Views, group: str) -> bool:
    """Whether a group retires, or is no more."""
    return bool(views) and (group not in views or retires(views, group))


def write_queues(topic: TopicConfig, moves: Moves, views: Views, here: str) -> list[int]:
    """The queues of a group that routes offer to RocketMQ's producers.

    Its own; where it leaves, until all of them have moved. Of guests those whose names lie in a
    group that leaves: nobody else takes what is sent to these. here: the group.
    """
    own, guests = range(topic.queues), moves.guests.get(topic.name, {})
    found = [q for q in moves.open_guests(topic.name) if leaves(views, guests[q].name.group)]
    if not retires(views, here):
        return [*own, *found]
    sealed = moves.seals.get(topic.name, {})
    found = [q for q in found if q not in sealed]
    return found if all(q in sealed for q in own) else [*own, *found]


def refused(group: str, views: Views, undo: bool) -> str:
    """Why a group may not be marked as retiring, or no longer be; empty if it may."""
    if group not in views:
        return f"there is no replica group {group!r}; groups of this cluster: {_names(views)}"
    if undo:
        return ""
    if all(view.retiring for name, view in views.items() if name != group):
        return f"no other replica group stays to take the queues of {group}"
    for name, view in sorted(views.items()):
        if older := view.lacking(RETIREMENT):
            return (
                f"nodes of replica group {name} have a version that knows no groups that retire: "
                f"{', '.join(older)}. Upgrade and start them; forget those that are gone for good "
                "(duolog cluster forget)"
            )
    return ""


def not_forgettable(group: str, views: Views, asked: str) -> str:
    """Why a group may not be removed, empty if it may. asked: the group of the node that is."""
    view = views.get(group)
    if view is None:
        return f"there is no replica group {group!r}; groups of this cluster: {_names(views)}"
    if group == asked:
        return f"ask a node of another replica group than {group}"
    if not view.retiring:
        return f"{group} does not retire: duolog cluster retire {group}"
    if view.replicas:
        alive = ", ".join(sorted(view.replicas))
        return f"nodes of {group} live: {alive}; stop them first, or wait until their leases end"
    return ""


def _names(views: Views) -> str:
    return ", ".join(sorted(views)) or "none"
