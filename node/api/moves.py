"""The Moves service: what masters of other replica groups ask of this one, for queues that move.

No user is asked for: a mark under the key of the nodes takes its place.
"""

from collections.abc import AsyncIterator
from typing import Any

from duolog_server.node.api.calls import Caller, reporting, unary
from duolog_server.node.broker import Broker
from duolog_server.node.moving.movecodec import reply_to_wire, request_of
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.node.wire import moves_pb2_grpc as stubs


class MovesService(stubs.MovesServicer):
    """Checks that a node calls, decodes, calls, encodes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.caught_up = broker.log.caught_up

    def _check(self, method: str, context: Any) -> None:
        """Raise Unauthenticated unless a node calls, NotMaster unless this one leads."""
        broker = self._broker
        headers = dict(context.invocation_metadata() or ())
        broker.other_groups.marks.check(method, broker.group, headers)
        broker.admission.check_master()

    @unary
    async def Ask(self, request: wire.MoveRequest, context: Caller) -> wire.MoveReply:
        """The answer of the target of a move."""
        self._check("Ask", context)
        asked, settings = request_of(request)
        answer = self._broker.move_target.answer(request.topic, asked, settings)
        return reply_to_wire(await answer)

    async def Deliver(self, request: AsyncIterator[wire.Delivery], context: Any) -> None:
        """Store what a place before this one was sent."""
        async with reporting(context):
            self._check("Deliver", context)
            await self._broker.arrivals.serve(request, context)

    @unary
    async def Cross(self, request: wire.CrossRequest, context: Caller) -> wire.CrossReply:
        """A consumer group comes to a place, or goes back from it."""
        self._check("Cross", context)
        return await self._broker.crossings.hear(request)
