"""Requests of a move and their replies, between `ha.moverevents` and the wire."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duolog import _errors as sdk

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
    Unknown,
)
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.metadata import Json
from duolog_server.store.moves import Place


@dataclass(frozen=True, slots=True)
class Settings:
    """What a target makes where it is missing: the topic, as its records have it, and groups."""

    topic: Json
    groups: Sequence[Json] = ()


def request_to_wire(topic: str, request: Request, settings: Settings) -> wire.MoveRequest:
    """A request; only a reservation carries settings."""
    made = wire.MoveRequest(topic=topic)
    match request:
        case Reserve(move, name, came_from):
            made.reserve.CopyFrom(
                wire.Reserve(
                    move=move,
                    name=_to_wire(name),
                    came_from=_to_wire(came_from),
                    topic_settings=json.dumps(settings.topic).encode(),
                    groups=[json.dumps(group).encode() for group in settings.groups],
                )
            )
        case Open(move, first):
            made.open.CopyFrom(wire.Open(move=move, first=first))
        case Revoke(move, name, came_from):
            places = {"name": _to_wire(name), "came_from": _to_wire(came_from)}
            made.revoke.CopyFrom(wire.Revoke(move=move, **places))
        case Ask(name, came_from, named):
            places = {"name": _to_wire(name), "came_from": _to_wire(came_from)}
            made.ask.CopyFrom(wire.Ask(named=_to_wire(named), **places))
    return made


def request_of(request: wire.MoveRequest) -> tuple[Request, Settings]:
    """A request, and the settings that came with it. Raises BadRequest."""
    settings = Settings({})
    match request.WhichOneof("request"):
        case "reserve":
            asked = request.reserve
            found: Reserve | Open | Revoke = Reserve(
                asked.move, _place(asked.name), _place(asked.came_from)
            )
            groups = [_object(group) for group in asked.groups]
            settings = Settings(_object(asked.topic_settings), groups)
        case "open":
            found = Open(request.open.move, request.open.first)
            if found.first < 0:
                raise sdk.BadRequest(f"a queue cannot begin at offset {found.first}")
        case "revoke":
            revoked = request.revoke
            found = Revoke(revoked.move, _place(revoked.name), _place(revoked.came_from))
        case "ask":
            asks = request.ask
            return Ask(_place(asks.name), _place(asks.came_from), _place(asks.named)), settings
        case _:
            raise sdk.BadRequest("the request of a move has no kind that this version knows")
    if not found.move:
        raise sdk.BadRequest("the request of a move does not name it")
    return found, settings


def reply_to_wire(reply: Reply) -> wire.MoveReply:
    """A reply."""
    match reply:
        case Reserved(move, place):
            return wire.MoveReply(reserved=wire.Reserved(move=move, place=_to_wire(place)))
        case Opened(move, place, first):
            opened = wire.Opened(move=move, place=_to_wire(place), first=first)
            return wire.MoveReply(opened=opened)
        case Revoked(move):
            return wire.MoveReply(revoked=wire.Revoked(move=move))
        case Refused(move, reason):
            return wire.MoveReply(refused=wire.Refused(move=move, reason=reason))
        case Unknown(move):
            return wire.MoveReply(unknown=wire.Unknown(move=move))
        case Carries(move, place, first):
            carries = wire.Opened(move=move, place=_to_wire(place), first=first)
            return wire.MoveReply(carries=carries)
        case Nothing():
            return wire.MoveReply(nothing=wire.Nothing())


def reply_of(reply: wire.MoveReply) -> Reply:
    """A reply. Raises BadRequest for one that this version does not know."""
    match reply.WhichOneof("reply"):
        case "reserved":
            return Reserved(reply.reserved.move, _place(reply.reserved.place))
        case "opened":
            opened = reply.opened
            return Opened(opened.move, _place(opened.place), opened.first)
        case "revoked":
            return Revoked(reply.revoked.move)
        case "refused":
            return Refused(reply.refused.move, reply.refused.reason)
        case "unknown":
            return Unknown(reply.unknown.move)
        case "carries":
            carries = reply.carries
            return Carries(carries.move, _place(carries.place), carries.first)
        case "nothing":
            return Nothing()
    raise sdk.BadRequest("the target of a move answers what this version does not know")


def _to_wire(place: Place) -> wire.Place:
    return wire.Place(group=place.group, queue_id=place.queue_id)


def _place(place: wire.Place) -> Place:
    if not place.group:
        raise sdk.BadRequest("a place of a move names no replica group")
    return Place(place.group, place.queue_id)


def _object(data: bytes) -> Json:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise sdk.BadRequest(f"settings that are no JSON: {error}") from None
    if not isinstance(found, dict):
        raise sdk.BadRequest("settings that are no JSON object")
    return found
