"""The spans of queues that moved, as the masters of all groups have them, and what holds of them.

M1: one place of a name takes puts. M2: each span begins where the one before it ends. M3: nothing
is stored behind a seal. M5: each message that was acknowledged is there once, where its receipt
says. M6: what a producer sent under a key, one behind the other, lies in that order. M8: the group
was given all of it, as it is stored. M9: delayed messages are there once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog_server.node.deferred import outbox
from duolog_server.store.moves import Guest, Moves, Place
from sim import servicechecks
from sim.clients import read_all
from sim.movehistory import GROUP, QUEUES, TOPIC, MoveHistory, Sent
from sim.node import Node
from sim.witness import Violation

SPANS_MAX = 1000
Where = tuple[Place, Place, int]  # name, place and offset of a message
Lying = Mapping[bytes, Sequence[Where]]


@dataclass(frozen=True, slots=True)
class Span:
    """A place that carries a part of a name. end: None for the one that takes puts."""

    place: Place
    first: int
    end: int | None


def moves_of(node: Node) -> Moves:
    """The seals and guests that a node knows of."""
    assert node.services is not None, "a run with services"
    return node.services.broker.metadata.tables.moves


def names(groups: Sequence[str]) -> list[Place]:
    """The queues that the topic was made with."""
    return [Place(group, queue_id) for group in groups for queue_id in range(QUEUES)]


def chain(masters: Mapping[str, Node], name: Place) -> list[Span]:
    """The spans of a name, in their order. Raises Violation where they do not fit together."""
    found: list[Span] = []
    at, before = name, None
    while True:
        moves = moves_of(masters[at.group])
        seal, guest = moves.seal_of(TOPIC, at.queue_id), moves.guest_of(TOPIC, at.queue_id)
        first = _first(name, at, before, guest)
        found.append(Span(at, first, None if seal is None else seal.end))
        if seal is None:
            return found
        if len(found) > SPANS_MAX:
            raise Violation(f"M2: the spans of {name} lead in a circle")
        at, before = seal.following, found[-1]


def _first(name: Place, at: Place, before: Span | None, guest: Guest | None) -> int:
    if before is None:
        return 0
    if guest is None or guest.first is None:
        raise Violation(f"M1: {before.place} is sealed, and {at} of {name} is {guest}")
    told = guest.name, guest.came_from, guest.first
    if told != (name, before.place, before.end):
        raise Violation(f"M2: {at} says {guest}, and continues {before} of {name}")
    return guest.first


def others_take_puts(masters: Mapping[str, Node], chains: Mapping[Place, list[Span]]) -> str:
    """An open guest that is in no chain; empty for none: M1."""
    known = {span.place for spans in chains.values() for span in spans}
    for group, node in masters.items():
        for queue_id, guest in moves_of(node).guests.get(TOPIC, {}).items():
            if guest.first is not None and Place(group, queue_id) not in known:
                return f"M1: {Place(group, queue_id)} is {guest}, and no seal leads there"
    return ""


def unfinished(masters: Mapping[str, Node], history: MoveHistory) -> str:
    """The work that is still pending, empty for none."""
    if history.under_way:
        return f"{history.under_way} programs still send or move"
    for node in masters.values():
        assert node.services is not None, "a run with services"
        broker = node.services.broker
        if why := servicechecks.unfinished(node):
            return why
        waiting = {name: count for name, count in broker.status().items() if name in PENDING}
        if any(waiting.values()):
            return f"{node.name} has {waiting}"
        high = node.store.queue_range(outbox.TOPIC, outbox.QUEUE)[1]
        if max(0, broker.metadata.tables.committed(outbox.GROUP, outbox.TOPIC, 0)) < high:
            return f"the outbox of {node.name} may have messages up to {high}"
    for name in names(list(masters)):
        for span in chain(masters, name):
            node = masters[span.place.group]
            assert node.services is not None, "a run with services"
            queue_id = span.place.queue_id
            end = node.store.queue_range(TOPIC, queue_id)[1] if span.end is None else span.end
            tables = node.services.broker.metadata.tables
            committed = tables.committed(GROUP, TOPIC, queue_id)
            if committed < end and (end > span.first or span.end is None):
                return f"{GROUP} has committed {committed} of {span} {end}"
    return ""


PENDING = ("outbox_waiting", "moves_under_way", "passing_on")


def final(masters: Mapping[str, Node], history: MoveHistory) -> dict[str, int]:
    """All checks, after everything was done; what was seen. Raises Violation."""
    chains = {name: chain(masters, name) for name in names(list(masters))}
    wrong = others_take_puts(masters, chains)
    if wrong:
        raise Violation(wrong)
    places: dict[bytes, list[Where]] = {}
    for name, spans in chains.items():
        for span in spans:
            for offset, body in _stored(masters[span.place.group], span):
                places.setdefault(body, []).append((name, span.place, offset))
                given = history.given.get(span.place, {}).get(offset)
                if given != body:
                    raise Violation(f"M8: {span} {offset} is {body!r}; the group got {given!r}")
    check_once(history, places)
    check_order(history.sent, places)
    return {"spans": sum(len(spans) for spans in chains.values())}


def _stored(node: Node, span: Span) -> list[tuple[int, bytes]]:
    """The messages of a span: all its offsets, and none behind its end: M2, M3."""
    found = read_all(node, (TOPIC, span.place.queue_id), span.first)
    offsets = [offset for offset, _ in found]
    if offsets != [*range(span.first, span.first + len(offsets))]:
        raise Violation(f"M2: {span} holds the offsets {offsets[:3]}..{offsets[-3:]}")
    if span.end is not None and span.first + len(offsets) != span.end:
        raise Violation(f"M3: {span} holds {len(offsets)} messages")
    return found


def check_once(history: MoveHistory, places: Lying) -> None:
    """M5, M9: what was answered is there, once, where its receipt says; what was refused is not."""
    unknown = dict(places)
    for one in history.sent:
        at = unknown.pop(one.body, [])
        least, most = int(one.outcome == "ok"), int(one.outcome != "refused")
        rule = "M9" if one.delayed else "M5"
        if not least <= len(at) <= most:
            raise Violation(f"{rule}: {one} is at {at}")
        if one.place is not None and one.place not in at[0][:2]:
            raise Violation(f"{rule}: {one} is at {at}")
        if one.place is not None and at[0][2] != one.offset:
            raise Violation(f"{rule}: {one} is at {at}")
    if unknown:
        raise Violation(f"M5: nobody sent {sorted(unknown)[:3]}")


def check_order(sent: Sequence[Sent], places: Lying) -> None:
    """M6: what a producer sent under a key lies in one name, in the order in which it was sent."""
    last: dict[str, tuple[Place, int, Sent]] = {}
    for one in sorted((one for one in sent if one.key), key=lambda one: one.turn):
        if one.body not in places:
            continue
        name, _, offset = places[one.body][0]
        before = last.get(one.key)
        if before is not None and (before[0] != name or before[1] > offset):
            raise Violation(f"M6: {one} is at {name} {offset}, after {before}")
        last[one.key] = name, offset, one
