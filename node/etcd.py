"""The registry in etcd (3.4 or newer), through its gRPC API.

Blocking calls, each with a deadline: they are made from threads. A request that fails goes to
the next endpoint; a transaction never: whoever sent it must find out what became of it.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from ha.registry import (
    Delete,
    LeaseGone,
    Put,
    RegistryUnavailable,
    Row,
    Snapshot,
    Transaction,
)
from node.wire import etcd_pb2 as wire
from node.wire import etcd_pb2_grpc as stubs

T = TypeVar("T")
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
LEASE_NOT_FOUND = "lease not found"


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Files of TLS: the authority that signed etcd's certificate, and our own, if etcd asks."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> Any:
        """Channel credentials. Raises OSError where a file cannot be read."""
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(),
            self.key.read_bytes() if self.key else None,
            self.cert.read_bytes() if self.cert else None,
        )


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys with a prefix."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


class EtcdRegistry:
    """`ha.registry.Registry` on etcd. Safe to use from several threads."""

    def __init__(
        self, endpoints: tuple[str, ...], timeout_seconds: float, tls: EtcdTls | None = None
    ) -> None:
        """timeout_seconds: of one request to one endpoint."""
        credentials = tls.credentials() if tls is not None else None
        self._channels = [
            grpc.insecure_channel(endpoint, _OPTIONS)
            if credentials is None
            else grpc.secure_channel(endpoint, credentials, _OPTIONS)
            for endpoint in endpoints
        ]
        self._endpoints = endpoints
        self._timeout = timeout_seconds
        self._current = 0
        self._lock = threading.Lock()

    # -- the six verbs -------------------------------------------------------------------------

    def lease(self, ttl_seconds: int) -> int:
        """A new lease. One that was granted and not answered ends by itself."""

        def grant(channel: grpc.Channel) -> int:
            request = wire.LeaseGrantRequest(TTL=ttl_seconds)
            return int(stubs.LeaseStub(channel).LeaseGrant(request, timeout=self._timeout).ID)

        return self._anywhere(grant)

    def renew(self, lease: int) -> int:
        """Renew; the ttl in seconds."""

        def keep(channel: grpc.Channel) -> int:
            request = wire.LeaseKeepAliveRequest(ID=lease)
            call = stubs.LeaseStub(channel).LeaseKeepAlive(iter([request]), timeout=self._timeout)
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
        """Make the changes; the new revision, or None where a check failed."""
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
        with self._lock:
            at = self._current
        try:
            reply = stubs.KVStub(self._channels[at]).Txn(request, timeout=self._timeout)
        except grpc.RpcError as failure:
            if LEASE_NOT_FOUND in str(failure.details()):
                raise LeaseGone(str(failure.details())) from None
            self._rotate(at)
            raise self._unavailable(failure, at) from None
        return int(reply.header.revision) if reply.succeeded else None

    def get(self, prefix: str) -> Snapshot:
        """All keys with a prefix, linearizable."""

        def read(channel: grpc.Channel) -> Any:
            request = wire.RangeRequest(key=prefix.encode(), range_end=prefix_end(prefix))
            return stubs.KVStub(channel).Range(request, timeout=self._timeout)

        reply = self._anywhere(read)
        rows = {
            kv.key.decode(errors="replace"): Row(
                kv.value, kv.create_revision, kv.mod_revision, kv.lease
            )
            for kv in reply.kvs
        }
        return Snapshot(int(reply.header.revision), rows)

    def watch(self, prefix: str, after_revision: int, timeout_seconds: float) -> bool:
        """Wait for a change after a revision; True also where etcd cannot tell any more."""
        create = wire.WatchCreateRequest(
            key=prefix.encode(), range_end=prefix_end(prefix), start_revision=after_revision + 1
        )
        with self._lock:
            at = self._current
        open_requests = _OpenRequests(wire.WatchRequest(create_request=create))
        call = stubs.WatchStub(self._channels[at]).Watch(
            iter(open_requests), timeout=timeout_seconds
        )
        try:
            for reply in call:
                if reply.events or reply.canceled or reply.compact_revision:
                    return True
        except grpc.RpcError as failure:
            # etcd may notice the deadline first, and has no code for that.
            if (
                failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                or "deadline exceeded" in str(failure.details()).lower()
            ):
                return False
            self._rotate(at)
            raise self._unavailable(failure, at) from None
        finally:
            open_requests.end()
            call.cancel()
        return True

    def drop(self, lease: int) -> None:
        """End a lease now."""

        def revoke(channel: grpc.Channel) -> None:
            request = wire.LeaseRevokeRequest(ID=lease)
            stubs.LeaseStub(channel).LeaseRevoke(request, timeout=self._timeout)

        with contextlib.suppress(LeaseGone):
            self._anywhere(revoke)

    def close(self) -> None:
        """Let go of the connections; calls under way fail."""
        for channel in self._channels:
            channel.close()

    # -- endpoints -----------------------------------------------------------------------------

    def _anywhere(self, work: Callable[[grpc.Channel], T]) -> T:
        """Do something that may be done twice, at the first endpoint that answers."""
        deadline = time.monotonic() + self._timeout * 2
        problem: RegistryUnavailable | None = None
        for _ in self._channels:
            with self._lock:
                at = self._current
            try:
                return work(self._channels[at])
            except grpc.RpcError as failure:
                if LEASE_NOT_FOUND in str(failure.details()):
                    raise LeaseGone(str(failure.details())) from None
                problem = self._unavailable(failure, at)
            except RegistryUnavailable as error:
                problem = error
            except ValueError as error:  # the channel was closed
                raise RegistryUnavailable(str(error)) from None
            self._rotate(at)
            if time.monotonic() >= deadline:
                break
        assert problem is not None, "there are endpoints"
        raise problem

    def _rotate(self, failed: int) -> None:
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._channels)

    def _unavailable(self, failure: Any, at: int) -> RegistryUnavailable:
        details = f"{failure.code().name}: {failure.details()}"
        return RegistryUnavailable(f"etcd at {self._endpoints[at]}: {details}")


class _OpenRequests:
    """A request stream of one request that stays open: etcd ends a watch with its stream."""

    def __init__(self, first: Any) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._queue.put(first)

    def __iter__(self) -> Iterator[Any]:
        """The request, then nothing until the end."""
        while (request := self._queue.get()) is not None:
            yield request

    def end(self) -> None:
        """No more."""
        self._queue.put(None)


def _operation(change: Put | Delete) -> Any:
    if isinstance(change, Delete):
        return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=change.key.encode()))
    return wire.RequestOp(
        request_put=wire.PutRequest(key=change.key.encode(), value=change.value, lease=change.lease)
    )
