"""Types of the stubs and servicers of node/wire/etcd.proto; see tools/proto.py."""

from collections.abc import AsyncIterator, Awaitable, Iterator

import grpc
import grpc.aio

from duolog_server.node.wire import etcd_pb2 as wire

class KVStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Range: grpc.UnaryUnaryMultiCallable[wire.RangeRequest, wire.RangeResponse]
    Txn: grpc.UnaryUnaryMultiCallable[wire.TxnRequest, wire.TxnResponse]

class KVServicer:
    def Range(self, request: wire.RangeRequest, context: grpc.ServicerContext, /) -> wire.RangeResponse: ...
    def Txn(self, request: wire.TxnRequest, context: grpc.ServicerContext, /) -> wire.TxnResponse: ...

def add_KVServicer_to_server(
    servicer: KVServicer, server: grpc.Server
) -> None: ...

class WatchStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Watch: grpc.StreamStreamMultiCallable[wire.WatchRequest, wire.WatchResponse]

class WatchServicer:
    def Watch(self, request: Iterator[wire.WatchRequest], context: grpc.ServicerContext, /) -> Iterator[wire.WatchResponse]: ...

def add_WatchServicer_to_server(
    servicer: WatchServicer, server: grpc.Server
) -> None: ...

class LeaseStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    LeaseGrant: grpc.UnaryUnaryMultiCallable[wire.LeaseGrantRequest, wire.LeaseGrantResponse]
    LeaseRevoke: grpc.UnaryUnaryMultiCallable[wire.LeaseRevokeRequest, wire.LeaseRevokeResponse]
    LeaseKeepAlive: grpc.StreamStreamMultiCallable[wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse]

class LeaseServicer:
    def LeaseGrant(self, request: wire.LeaseGrantRequest, context: grpc.ServicerContext, /) -> wire.LeaseGrantResponse: ...
    def LeaseRevoke(self, request: wire.LeaseRevokeRequest, context: grpc.ServicerContext, /) -> wire.LeaseRevokeResponse: ...
    def LeaseKeepAlive(self, request: Iterator[wire.LeaseKeepAliveRequest], context: grpc.ServicerContext, /) -> Iterator[wire.LeaseKeepAliveResponse]: ...

def add_LeaseServicer_to_server(
    servicer: LeaseServicer, server: grpc.Server
) -> None: ...
