"""The registry in etcd (3.4 or newer), through its gRPC API.

Blocking calls, each with a deadline: they are made from threads. A request that fails is repeated
at the next endpoint. A transaction never is: its sender must find out whether it was executed. A
connection lives on after certificates were replaced; once it fails, the next one uses the new ones.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import grpc

from duolog_server.ha.registry import (
    Changes,
    Compacted,
    Delete,
    Grant,
    LeaseGone,
    Put,
    RegistryError,
    RegistryUnavailable,
    Row,
    Snapshot,
    Transaction,
)
from duolog_server.node.runtime.tls import Tls
from duolog_server.node.wire import etcd_pb2 as wire
from duolog_server.node.wire import etcd_pb2_grpc as stubs

T = TypeVar("T")
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A cluster's keys come in one answer: 3 KiB a group, and gRPC's own limit is 4 MiB.
    ("grpc.max_receive_message_length", 256 << 20),
)
# etcd ends the watches of a member that is cut off from the others, which would show no change.
_NEED_LEADER = (("hasleader", "true"),)
_DELETED = 1  # type of an event
# Of a lease, longest wait for one member to renew it: time to ask another one, if there is one, and
# for the only one no longer than the rest of a lease of which a third has passed.
RENEWAL_SHARE, ONLY_SHARE = 1 / 3, 0.55


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys with a prefix."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


class _Endpoint:
    """One member of etcd: its channel and stubs."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.credentials = credentials
        self.calls = 0  # in flight
        self.channel = (
            grpc.insecure_channel(address, _OPTIONS)
            if credentials is None
            else grpc.secure_channel(address, credentials, _OPTIONS)
        )
        self.kv = stubs.KVStub(self.channel)
        self.leases = stubs.LeaseStub(self.channel)
        self.watches = stubs.WatchStub(self.channel)


class _Watch(Protocol):
    """A running call that another thread may cancel."""

    def cancel(self) -> bool:
        """End it."""


class EtcdRegistry:
    """`ha.registry.Registry` on etcd. Safe to use from several threads."""

    def __init__(
        self, endpoints: tuple[str, ...], timeout_seconds: float, tls: Tls | None = None
    ) -> None:
        """timeout_seconds: of one request to one endpoint. Raises BadCertificate."""
        self._credentials = tls.of_channel().now if tls is not None else lambda: None
        credentials = self._credentials()
        self._endpoints = [_Endpoint(endpoint, credentials) for endpoint in endpoints]
        self._left: list[_Endpoint] = []  # those of older certificates that have calls in flight
        self._timeout = timeout_seconds
        self._renewal_timeout = timeout_seconds
        self._current = 0
        self._lock = threading.Condition()
        self._under_way = 0
        self._watches: set[_Watch] = set()
        self._closed = False

    # -- the port -------------------------------------------------------------------------

    def lease(self, ttl_seconds: int) -> Grant:
        """A new lease. A lease whose answer was lost expires by itself.

        etcd grants at least one and a half of its election timeout, in whole seconds.
        """

        def grant(endpoint: _Endpoint) -> Grant:
            request = wire.LeaseGrantRequest(TTL=ttl_seconds)
            reply = endpoint.leases.LeaseGrant(request, timeout=self._timeout)
            return Grant(int(reply.ID), int(reply.TTL))

        granted = self._anywhere(grant)
        share = RENEWAL_SHARE if len(self._endpoints) > 1 else ONLY_SHARE
        self._renewal_timeout = min(self._timeout, granted.ttl_seconds * share)
        return granted

    def renew(self, lease: int) -> int:
        """Renew; the ttl in seconds."""

        def keep(endpoint: _Endpoint) -> int:
            request = wire.LeaseKeepAliveRequest(ID=lease)
            call = endpoint.leases.LeaseKeepAlive(iter([request]), timeout=self._renewal_timeout)
            try:
                return int(next(call).TTL)
            except StopIteration:
                raise RegistryUnavailable("etcd ended the stream of a renewal") from None
            finally:
                call.cancel()

        ttl = self._anywhere(keep)
        if ttl <= 0:
            raise LeaseGone(f"lease {lease:x} is gone")
        return ttl

    def commit(self, transaction: Transaction) -> int | None:
        """Make the changes; the new revision, or None if a check failed."""
        request = wire.TxnRequest(
            compare=[
                wire.Compare(
                    result=wire.Compare.EQUAL,
                    target=wire.Compare.MOD,
                    key=check.key.encode(),
                    mod_revision=check.mod_revision,
                )
                for check in transaction.checks
            ],
            success=[_operation(change) for change in transaction.changes],
        )
        with self._call() as endpoint:
            reply = endpoint.kv.Txn(request, timeout=self._timeout)
        return int(reply.header.revision) if reply.succeeded else None

    def get(self, prefix: str) -> Snapshot:
        """All keys with a prefix, linearizable."""

        def read(endpoint: _Endpoint) -> wire.RangeResponse:
            request = wire.RangeRequest(key=prefix.encode(), range_end=prefix_end(prefix))
            return endpoint.kv.Range(request, timeout=self._timeout)

        reply = self._anywhere(read)
        rows = {_key(kv): _row(kv) for kv in reply.kvs}
        return Snapshot(int(reply.header.revision), rows)

    def changes(
        self, prefix: str, after_revision: int, timeout_seconds: float
    ) -> Iterator[Changes]:
        """All changes after a revision, as etcd sends them."""
        create = wire.WatchCreateRequest(
            key=prefix.encode(), range_end=prefix_end(prefix), start_revision=after_revision + 1
        )
        with self._call() as endpoint:
            yield from self._watch(endpoint, create, timeout_seconds)

    def _watch(
        self, endpoint: _Endpoint, create: wire.WatchCreateRequest, timeout_seconds: float
    ) -> Iterator[Changes]:
        open_requests = _OpenRequests(wire.WatchRequest(create_request=create))
        call = endpoint.watches.Watch(
            iter(open_requests), timeout=timeout_seconds, metadata=_NEED_LEADER
        )
        with self._lock:
            self._watches.add(call)
            if self._closed:
                call.cancel()
        try:
            for reply in call:
                behind = reply.created and reply.header.revision < create.start_revision - 1
                if behind or reply.compact_revision:
                    raise Compacted(f"etcd cannot tell what changed since {create.start_revision}")
                if reply.canceled:
                    raise RegistryUnavailable(f"etcd ended a watch: {reply.cancel_reason}")
                if reply.events:
                    yield _changes(reply)
        except grpc.RpcError as failure:
            # etcd may notice the deadline first, which it reports with another code.
            if (
                failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                or "deadline exceeded" in str(failure.details()).lower()
            ):
                return
            raise
        finally:
            with self._lock:
                self._watches.discard(call)
            open_requests.end()
            call.cancel()
        raise RegistryUnavailable("etcd ended the stream of a watch")

    def drop(self, lease: int) -> None:
        """End a lease now."""

        def revoke(endpoint: _Endpoint) -> None:
            request = wire.LeaseRevokeRequest(ID=lease)
            endpoint.leases.LeaseRevoke(request, timeout=self._timeout)

        with contextlib.suppress(LeaseGone):
            self._anywhere(revoke)

    def silent(self) -> dict[str, str]:
        """Members that do not answer what `etcdctl endpoint health` asks, and why.

        One that lost its quorum does not, either; one that denies the key does.
        """
        found = {}
        addresses = [endpoint.address for endpoint in self._endpoints]
        for at, address in enumerate(addresses if len(addresses) > 1 else ()):
            try:
                with self._call(at) as endpoint:
                    self._ask_health(endpoint)
            except RegistryError as error:
                found[address] = str(error).removeprefix(f"etcd at {address}: ")
        return found

    def _ask_health(self, endpoint: _Endpoint) -> None:
        try:
            endpoint.kv.Range(wire.RangeRequest(key=b"health"), timeout=self._timeout)
        except grpc.RpcError as failure:
            if failure.code() is not grpc.StatusCode.PERMISSION_DENIED:
                raise

    def close(self) -> None:
        """Cancel watches, wait for other calls (bounded), then close the connections.

        gRPC crashes the process if a channel is closed while a call begins.
        """
        with self._lock:
            self._closed = True
            for call in self._watches:
                call.cancel()
            if not self._lock.wait_for(lambda: not self._under_way, 2 * self._timeout):
                return  # the connections end with the process
            endpoints = [*self._endpoints, *self._left]
        for endpoint in endpoints:
            endpoint.channel.close()

    # -- endpoints -----------------------------------------------------------------------------

    def _anywhere(self, work: Callable[[_Endpoint], T]) -> T:
        """Send an idempotent request to the first endpoint that answers."""
        deadline = time.monotonic() + self._timeout * 2
        problem: RegistryUnavailable | None = None
        for _ in self._endpoints:
            try:
                with self._call() as endpoint:
                    return work(endpoint)
            except RegistryUnavailable as error:
                problem = error
            if time.monotonic() >= deadline:
                break
        assert problem is not None, "there are endpoints"
        raise problem

    @contextlib.contextmanager
    def _call(self, at: int | None = None) -> Iterator[_Endpoint]:
        """The current endpoint, or a named one; maps its errors to those of the port, and rotates
        from the current one to the next.

        Raises RegistryUnavailable, LeaseGone.
        """
        with self._lock:
            if self._closed:
                raise RegistryUnavailable("the connection to the registry is closed")
            self._under_way += 1
            at = self._current if at is None else at
            endpoint = self._endpoints[at]
            endpoint.calls += 1
        try:
            yield endpoint
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.NOT_FOUND:  # no other object is named by id
                raise LeaseGone(str(failure.details())) from None
            self._renew(at, endpoint)
            self._rotate(at)
            details = f"{failure.code().name}: {failure.details()}"
            raise RegistryUnavailable(f"etcd at {endpoint.address}: {details}") from None
        except RegistryUnavailable:
            self._rotate(at)
            raise
        finally:
            with self._lock:
                self._under_way -= 1
                endpoint.calls -= 1
                self._close_left()
                self._lock.notify_all()

    def _renew(self, at: int, failed: _Endpoint) -> None:
        """Replace an endpoint that failed, if there are newer certificates than it has."""
        credentials = self._credentials()
        with self._lock:
            if self._endpoints[at] is failed and failed.credentials is not credentials:
                self._endpoints[at] = _Endpoint(failed.address, credentials)
                self._left.append(failed)

    def _close_left(self) -> None:
        """Close what was replaced and has no calls. gRPC crashes if a call begins meanwhile."""
        if self._closed:
            return
        for endpoint in [one for one in self._left if not one.calls]:
            self._left.remove(endpoint)
            endpoint.channel.close()

    def _rotate(self, failed: int) -> None:
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._endpoints)


class _OpenRequests:
    """A request stream of one request that stays open: etcd ends a watch with its stream."""

    def __init__(self, first: wire.WatchRequest) -> None:
        self._queue: queue.SimpleQueue[wire.WatchRequest | None] = queue.SimpleQueue()
        self._queue.put(first)

    def __iter__(self) -> Iterator[wire.WatchRequest]:
        """The request, then nothing until the end."""
        while (request := self._queue.get()) is not None:
            yield request

    def end(self) -> None:
        """End the stream."""
        self._queue.put(None)


def _key(kv: wire.KeyValue) -> str:
    return kv.key.decode(errors="replace")


def _row(kv: wire.KeyValue) -> Row:
    return Row(kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _changes(reply: wire.WatchResponse) -> Changes:
    """The changes of an answer; its header may be of a later revision, of which more follows."""
    rows = {
        _key(event.kv): None if event.type == _DELETED else _row(event.kv) for event in reply.events
    }
    return Changes(max(event.kv.mod_revision for event in reply.events), rows)


def _operation(change: Put | Delete) -> wire.RequestOp:
    if isinstance(change, Delete):
        return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=change.key.encode()))
    return wire.RequestOp(
        request_put=wire.PutRequest(key=change.key.encode(), value=change.value, lease=change.lease)
    )
