"""Types of the stubs and servicers of node/wire/recovery.proto; see tools/proto.py."""

from collections.abc import AsyncIterator, Awaitable, Iterator

import grpc
import grpc.aio

from duolog_server.node.wire import recovery_pb2 as wire

class RecoveryStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Begin: grpc.aio.UnaryUnaryMultiCallable[wire.BeginRequest, wire.BeginReply]
    Recover: grpc.aio.UnaryUnaryMultiCallable[wire.RecoverRequest, wire.RecoverReply]

class RecoveryServicer:
    def Begin(self, request: wire.BeginRequest, context: grpc.aio.ServicerContext[wire.BeginRequest, wire.BeginReply], /) -> Awaitable[wire.BeginReply]: ...
    def Recover(self, request: wire.RecoverRequest, context: grpc.aio.ServicerContext[wire.RecoverRequest, wire.RecoverReply], /) -> Awaitable[wire.RecoverReply]: ...

def add_RecoveryServicer_to_server(
    servicer: RecoveryServicer, server: grpc.aio.Server
) -> None: ...
