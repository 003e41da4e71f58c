"""What the target of a move does on a request of its source: answers by its tables, or stores.

The tables are those of the confirmed log. So a request that they do not answer yet is stored as
records, and answered by the tables once these are confirmed: whatever came in between, in whatever
order, every request of a move gets answers that agree, from every master of the target. Only what
its tables lack may a former master not say (`is_absence`).
"""

from duolog_server.ha.mover import Span
from duolog_server.ha.moverevents import (
    Ask,
    Carries,
    Nothing,
    Open,
    Opened,
    Refused,
    Reply,
    Request,
    Reserve,
    Reserved,
    Revoke,
    Revoked,
    Row,
    Unknown,
)
from duolog_server.store.moves import Guest, Json, Moves, Place, guest_record


def reply_to(moves: Moves, topic: str, group: str, request: Request) -> Reply | None:
    """The answer of this group by its confirmed tables; None: `records_for` are to be stored."""
    if isinstance(request, Ask):
        begun = _begun(moves, topic, group, request.came_from)
        return begun or _undecided(moves, topic, group, request)
    found = moves.reserved_by(topic, request.move)
    if isinstance(request, Open):
        if found is None:
            return Unknown(request.move)
        came_from = found[1].came_from
    else:
        came_from = request.came_from
    begun = _begun(moves, topic, group, came_from)
    if begun is not None and isinstance(request, Revoke):
        return begun
    if found is None:
        return begun
    queue_id, guest = found
    if guest.revoked:
        return Revoked(guest.move)
    if isinstance(request, Reserve):
        return Reserved(guest.move, Place(group, queue_id))
    return begun


def is_absence(reply: Reply) -> bool:
    """Whether an answer says what the tables lack, which a former master cannot know.

    It is sent only once a record that was stored after the request arrived is confirmed: else the
    source takes puts again, though the next master has opened its queue here.
    """
    return isinstance(reply, Nothing | Carries | Refused | Unknown)


def note(topic: str) -> Json:
    """A record that changes nothing, as every move has an id: what is stored to be confirmed."""
    return {"op": "revoke", "topic": topic, "queue": 0, "move": ""}


def records_for(moves: Moves, topic: str, request: Request, next_id: int) -> list[Json]:
    """The records that make an answer. next_id: a queue id of the topic that was never used."""
    assert not isinstance(request, Ask)
    move, found = request.move, moves.reserved_by(topic, request.move)
    queue_id = next_id if found is None else found[0]
    decided: Json = {"topic": topic, "queue": queue_id, "move": move}
    match request:
        case Reserve(_, name, came_from):
            return [guest_record(topic, queue_id, Guest(name, came_from, move))]
        case Open(_, first):
            return [{"op": "open", **decided, "first": first}]
        case Revoke(_, name, came_from):
            # A reservation that is still on the way finds the id of its move used.
            burnt = [] if found else [guest_record(topic, queue_id, Guest(name, came_from, move))]
            return [*burnt, {"op": "revoke", **decided}]


def row_of(moves: Moves, topic: str, at: Place) -> Row | None:
    """What this group's log knows of a queue, for a registry that lost its row; None: nothing."""
    seal, guest = moves.seal_of(topic, at.queue_id), moves.guest_of(topic, at.queue_id)
    if seal is not None:
        return Row(Span.of(moves, topic, at).name, at, seal.move, seal.following.group)
    if guest is None or guest.revoked:
        return None
    if guest.first is not None:
        return Row(guest.name, at)
    return Row(guest.name, guest.came_from, guest.move, at.group)


def to_publish(moves: Moves, topic: str, at: Place, row: Row | None) -> Row | None:
    """What the row of a queue should become, as the registry lost it or has not heard; or None.

    A row may be older than the logs by several moves, and nothing tells its age: so each place
    replaces only a row of the place before it.
    """
    known, guest = row_of(moves, topic, at), moves.guest_of(topic, at.queue_id)
    if known is None or row is None or guest is None:
        return known if row is None else None
    if guest.first is not None:
        return known if row.at == guest.came_from else None
    # It names a move until the target has revoked it; this one lost it.
    return known if row == Row(guest.name, guest.came_from) else None


def _begun(moves: Moves, topic: str, group: str, came_from: Place) -> Opened | None:
    found = moves.begun_from(topic, came_from)
    if found is None:
        return None
    queue_id, guest = found
    assert guest.first is not None, "it has begun"
    return Opened(guest.move, Place(group, queue_id), guest.first)


def _undecided(moves: Moves, topic: str, group: str, asked: Ask) -> Reserved | Carries | Nothing:
    for queue_id, guest in moves.guests.get(topic, {}).items():
        if guest.came_from == asked.came_from and not guest.revoked:
            return Reserved(guest.move, Place(group, queue_id))
    named = asked.named
    there = moves.guest_of(topic, named.queue_id) if named.group == group else None
    if there is None or there.name != asked.name or moves.closed(topic, named.queue_id) is not None:
        return Nothing()
    assert there.first is not None, "it is open"
    return Carries(there.move, named, there.first)
