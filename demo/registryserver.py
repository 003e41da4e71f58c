"""A registry in memory, served with etcd's API: for the demo and for tests, where no etcd is.

It forgets everything when it ends and has no second member, so nothing that matters may rely on it.
`python -m duolog_server.demo.registryserver HOST:PORT` serves one until SIGTERM or SIGINT.
"""

import signal
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import grpc

from duolog_server.ha.registry import (
    Changes,
    Check,
    Compacted,
    Delete,
    LeaseGone,
    Put,
    Row,
    Snapshot,
    Transaction,
)
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.node.wire import etcd_pb2 as wire
from duolog_server.node.wire import etcd_pb2_grpc as stubs

THREADS = 128  # each open watch holds one, and a node has two
WATCH_SECONDS = 0.5


def _prefix(request: wire.RangeRequest | wire.WatchCreateRequest) -> str:
    """Prefix of a range: only whole prefixes are asked for."""
    return request.key.decode()


class _Kv(stubs.KVServicer):
    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry

    def Range(
        self, request: wire.RangeRequest, context: grpc.ServicerContext
    ) -> wire.RangeResponse:
        """All keys with a prefix."""
        snapshot = self._registry.get(_prefix(request))
        return wire.RangeResponse(header=_header(snapshot), kvs=_rows(snapshot.rows))

    def Txn(self, request: wire.TxnRequest, context: grpc.ServicerContext) -> wire.TxnResponse:
        """Compare modification revisions, put and delete."""
        checks = tuple(Check(c.key.decode(), c.mod_revision) for c in request.compare)
        changes = tuple(_change(operation) for operation in request.success)
        try:
            revision = self._registry.commit(Transaction(checks, changes))
        except LeaseGone:
            context.abort(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        header = wire.ResponseHeader(revision=revision or 0)
        return wire.TxnResponse(header=header, succeeded=revision is not None)


class _Watch(stubs.WatchServicer):
    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry

    def Watch(
        self, requests: Iterator[wire.WatchRequest], context: grpc.ServicerContext
    ) -> Iterator[wire.WatchResponse]:
        """One watch a stream."""
        create = next(requests).create_request
        prefix, after = _prefix(create), create.start_revision - 1
        yield wire.WatchResponse(header=_header(self._registry.get(prefix)), created=True)
        while context.is_active():
            try:
                for found in self._registry.changes(prefix, after, WATCH_SECONDS):
                    after = found.revision
                    yield wire.WatchResponse(header=_header(found), events=_events(found))
            except Compacted:
                yield wire.WatchResponse(canceled=True, compact_revision=after + 1)
                return


class _Lease(stubs.LeaseServicer):
    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry

    def LeaseGrant(
        self, request: wire.LeaseGrantRequest, context: grpc.ServicerContext
    ) -> wire.LeaseGrantResponse:
        """A new lease."""
        granted = self._registry.lease(request.TTL)
        return wire.LeaseGrantResponse(ID=granted.lease, TTL=granted.ttl_seconds)

    def LeaseRevoke(
        self, request: wire.LeaseRevokeRequest, context: grpc.ServicerContext
    ) -> wire.LeaseRevokeResponse:
        """End a lease."""
        self._registry.drop(request.ID)
        return wire.LeaseRevokeResponse()

    def LeaseKeepAlive(
        self, requests: Iterator[wire.LeaseKeepAliveRequest], context: grpc.ServicerContext
    ) -> Iterator[wire.LeaseKeepAliveResponse]:
        """Renew, once for each request."""
        for request in requests:
            try:
                ttl = self._registry.renew(request.ID)
            except LeaseGone:
                ttl = 0
            yield wire.LeaseKeepAliveResponse(ID=request.ID, TTL=ttl)


def _header(found: Snapshot | Changes) -> wire.ResponseHeader:
    return wire.ResponseHeader(revision=found.revision)


def _rows(rows: Mapping[str, Row]) -> list[wire.KeyValue]:
    return [
        wire.KeyValue(
            key=key.encode(),
            value=row.value,
            create_revision=row.create_revision,
            mod_revision=row.mod_revision,
            lease=row.lease,
        )
        for key, row in sorted(rows.items())
    ]


def _events(found: Changes) -> list[wire.Event]:
    """A key that is gone gets the revision of the answer: a later put has a higher one."""
    puts = {key: row for key, row in found.rows.items() if row is not None}
    gone = [key.encode() for key in found.rows.keys() - puts.keys()]
    return [
        *(wire.Event(kv=kv) for kv in _rows(puts)),
        *(
            wire.Event(type=1, kv=wire.KeyValue(key=key, mod_revision=found.revision))
            for key in gone
        ),
    ]


def _change(operation: wire.RequestOp) -> Put | Delete:
    if operation.HasField("request_put"):
        put = operation.request_put
        return Put(put.key.decode(), put.value, put.lease)
    return Delete(operation.request_delete_range.key.decode())


class RegistryServer:
    """The server, on a port of its own."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        """Raises RuntimeError where the address cannot be had."""
        self.registry = MemoryRegistry()
        self._server = grpc.server(ThreadPoolExecutor(THREADS, "duolog-registry-server"))
        stubs.add_KVServicer_to_server(_Kv(self.registry), self._server)
        stubs.add_WatchServicer_to_server(_Watch(self.registry), self._server)
        stubs.add_LeaseServicer_to_server(_Lease(self.registry), self._server)
        port = self._server.add_insecure_port(listen)
        self.endpoint = f"{listen.rpartition(':')[0]}:{port}"

    def start(self) -> None:
        """Serve."""
        self._server.start()

    def stop(self) -> None:
        """Stop; calls in flight end."""
        self._server.stop(0.5).wait(5.0)


def main(listen: str) -> None:
    """Serve until a signal. Raises RuntimeError where the address cannot be had."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = RegistryServer(listen)
    server.start()
    signal.sigwait(ends)
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1])
