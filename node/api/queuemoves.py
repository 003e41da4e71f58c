"""Moves of queues, as operators order and see them."""

import asyncio
from collections.abc import Callable

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.ha.mover import Span
from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices
from duolog_server.node.moving.moveservice import Progress
from duolog_server.node.moving.refusals import Source, Wanted, check, joined, last
from duolog_server.store.moves import Place

ANSWER_SECONDS = 2.0  # that a call waits for a move; clients give a node 4 s
PLANNED = "PLANNED"  # a state of moves that have not begun


class QueueMoves:
    """The moves from this node's group, and the spans that it holds, while it is the master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def move(self, request: wire.MoveQueueRequest) -> wire.MoveQueueReply:
        """Begin a move, or say that it could; how far it is after `ANSWER_SECONDS`.

        Raises BadRequest, UnknownTopic, Busy, NotMaster, Unavailable.
        """
        broker, wanted = self._broker, Wanted(request.topic, request.queue_id, request.group)
        broker.admission.check_current()
        config = broker.admission.known_topic(wanted.topic)
        known = broker.moves.progress(wanted.topic)
        found = joined(wanted, known)
        if found is None:
            moves = broker.metadata.moves
            seal = moves.seal_of(wanted.topic, wanted.queue_id)
            if request.plan or seal is None or seal.following.group != wanted.target:
                check(wanted, Source(broker.group, config, moves, broker.views, known))
            if request.plan:
                return wire.MoveQueueReply(move=self._planned(wanted))
        if found is None or not request.plan:
            found = await self._begun(wanted)
        return wire.MoveQueueReply(move=move_of(found, broker.group))

    async def abort(self, request: wire.AbortMoveRequest) -> wire.AbortMoveReply:
        """End a move before its seal; how far that is after `ANSWER_SECONDS`.

        Raises BadRequest, UnknownTopic, Busy, NotMaster, Unavailable.
        """
        broker, topic, queue_id = self._broker, request.topic, request.queue_id
        broker.admission.check_current()
        broker.admission.known_topic(topic)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                found = await broker.moves.abort(topic, queue_id)
        except TimeoutError:
            known = last(topic, queue_id, broker.moves.progress(topic))
            if known is None:
                raise sdk.Unavailable(f"the move of {topic}/{queue_id} is not known yet") from None
            found = known
        return wire.AbortMoveReply(move=move_of(found, broker.group))

    async def list(
        self, request: wire.ListMovesRequest, sees: Callable[[str], bool]
    ) -> wire.ListMovesReply:
        """Moves and spans, in slices. sees: whether the caller may know of a topic.

        Raises NotMaster.
        """
        broker, slices = self._broker, Slices()
        broker.admission.check_current()
        reply = wire.ListMovesReply()
        async for row in slices.each(broker.moves.progress(request.topic)):
            if sees(row.topic):
                reply.moves.append(move_of(row, broker.group))
        tables = broker.metadata.moves
        topics = sorted({*tables.seals, *tables.guests})
        for topic in [request.topic] if request.topic else topics:
            queues = {*tables.seals.get(topic, ()), *tables.guests.get(topic, ())}
            async for queue_id in slices.each(sorted(queues) if sees(topic) else ()):
                self._add_span(reply, topic, queue_id)
        return reply

    async def _begun(self, wanted: Wanted) -> Progress:
        moves = self._broker.moves
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await moves.begin(wanted.topic, wanted.queue_id, wanted.target)
        except TimeoutError:
            found = joined(wanted, moves.progress(wanted.topic))
            if found is None:
                raise sdk.Unavailable(f"the move of {wanted} has not begun yet") from None
            return found

    def _planned(self, wanted: Wanted) -> wire.QueueMove:
        here = Place(self._broker.group, wanted.queue_id)
        span = Span.of(self._broker.metadata.moves, wanted.topic, here)
        return wire.QueueMove(
            topic=wanted.topic,
            state=PLANNED,
            name=_place(span.name),
            source=_place(here),
            target=wanted.target,
            end=-1,
        )

    def _add_span(self, reply: wire.ListMovesReply, topic: str, queue_id: int) -> None:
        broker, moves = self._broker, self._broker.metadata.moves
        seal, guest = moves.seal_of(topic, queue_id), moves.guest_of(topic, queue_id)
        first = guest.first if guest is not None else broker.metadata.floor(topic, queue_id)
        if first is None:
            return  # reserved, or given up: it carries nothing
        here = Place(broker.group, queue_id)
        low, high = broker.core.store.queue_range(topic, queue_id)
        reply.spans.add(
            topic=topic,
            name=_place(guest.name if guest is not None else here),
            place=_place(here),
            first=first,
            end=seal.end if seal is not None else -1,
            came_from=_place(guest.came_from) if guest and moves.follows(topic, queue_id) else None,
            following=_place(seal.following) if seal is not None else None,
            min_offset=low,
            max_offset=high,
            passed_on=broker.passing.passed(topic, queue_id),
        )


def move_of(found: Progress, group: str) -> wire.QueueMove:
    """A move as the API tells it. group: the replica group that it begins in."""
    return wire.QueueMove(
        topic=found.topic,
        move=found.move,
        state=found.state,
        name=_place(found.name),
        source=wire.QueuePlace(group=group, queue_id=found.queue_id),
        target=found.target,
        to=_place(found.to) if found.to is not None else None,
        end=found.end,
        begin_ms=found.began_ms,
        pause_ms=found.pause_ms,
        reason=found.reason,
    )


def _place(place: Place) -> wire.QueuePlace:
    return wire.QueuePlace(group=place.group, queue_id=place.queue_id)
