"""Types of the stubs and servicers of node/wire/moves.proto; see tools/proto.py."""

from collections.abc import AsyncIterator, Awaitable, Iterator

import grpc
import grpc.aio

from duolog_server.node.wire import moves_pb2 as wire

class MovesStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Ask: grpc.aio.UnaryUnaryMultiCallable[wire.MoveRequest, wire.MoveReply]
    Deliver: grpc.aio.StreamStreamMultiCallable[wire.Delivery, wire.Delivered]
    Cross: grpc.aio.UnaryUnaryMultiCallable[wire.CrossRequest, wire.CrossReply]

class MovesServicer:
    def Ask(self, request: wire.MoveRequest, context: grpc.aio.ServicerContext[wire.MoveRequest, wire.MoveReply], /) -> Awaitable[wire.MoveReply]: ...
    def Deliver(self, request: AsyncIterator[wire.Delivery], context: grpc.aio.ServicerContext[wire.Delivery, wire.Delivered], /) -> Awaitable[None]: ...
    def Cross(self, request: wire.CrossRequest, context: grpc.aio.ServicerContext[wire.CrossRequest, wire.CrossReply], /) -> Awaitable[wire.CrossReply]: ...

def add_MovesServicer_to_server(
    servicer: MovesServicer, server: grpc.aio.Server
) -> None: ...
