"""Forwarding of calls to the master, of this replica group or another: any node takes any call.

A call is forwarded once. A node that receives a forwarded call and is not the master ends it with
FAILED_PRECONDITION. The forwarding node then retries until it knows the new master or the call's
deadline passes. It also retries if the master cannot be reached: a message that was stored already
is recognised by its id. So a change of masters, planned or not, delays calls but does not fail
them.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar

import grpc
import grpc.aio
from duolog import _errors as sdk
from duolog._background import Background, Joint
from duolog._nodechannel import uncancelled
from google.protobuf import message as protobuf

from duolog_server.compat.grpc.protocol.stubs import (
    ADMIN_METHODS,
    METHODS,
    SERVICE_NAME,
    Status,
    admin,
    rpc,
    service,
)
from duolog_server.compat.grpc.relay.calls import (
    COPY,
    FORWARDED,
    METHOD,
    PEER,
    PLAIN,
    TLS,
    USER,
    VIA,
    Call,
    Header,
    is_encrypted,
    is_forwarded,
    peer_of,
)
from duolog_server.node.api.calls import Replies
from duolog_server.node.broker import Broker, report
from duolog_server.node.runtime import tokens
from duolog_server.node.runtime.tls import Options

COPY_SECONDS = 1.0
PAUSE_SECONDS = 0.05
UNARY_SECONDS = 3.0
STREAM_SECONDS = 30.0
MARGIN_SECONDS = 0.2
GIVEN_BACK_MS = 1000  # until messages that a disconnected client did not get are visible
BYTES_MAX = 64 << 20
TELEMETRY = f"/{SERVICE_NAME}/Telemetry"
_KEPT = ("x-mq-", "authorization", USER)
# A repeated call fails if the answer of the first was lost, or has its message stored again.
_ONCE = (service.RecallMessageResponse, admin.AdminSendMessageResponse)
_PATHS = {
    method.output_type.full_name: f"/{method.containing_service.full_name}/{method.name}"
    for method in (*METHODS.values(), *ADMIN_METHODS.values())
}
_OPTIONS: Options = [
    ("grpc.max_receive_message_length", BYTES_MAX),
    ("grpc.max_send_message_length", BYTES_MAX),
    # A master that restarts is reached at once, however long it was away.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Nodes limit the calls of a connection: those of more clients take another one.
    ("grpc.service_config", '{"connectionScaling": {"maxConnectionsPerSubchannel": 32}}'),
    ("grpc.max_connections_per_subchannel_cap", 32),
]


class Answer(Protocol):
    """The reply of a unary method: all have a status."""

    @property
    def status(self) -> Status:
        """The status."""

    def ByteSize(self) -> int:
        """The message's size."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self:
        """Read."""


Reply = TypeVar("Reply", bound=Answer)
Polled = TypeVar("Polled", service.ReceiveMessageRequest, service.PullMessageRequest)
Written = TypeVar("Written", contravariant=True)
Streamed = TypeVar("Streamed", service.ReceiveMessageResponse, service.PullMessageResponse)


class Delivery(Call, Replies[Written], Protocol[Written]):
    """A call that is answered with a stream."""


Delivering = grpc.aio.UnaryStreamCall[protobuf.Message, Streamed]
_Place = tuple[str, grpc.ChannelCredentials | None]  # an endpoint, and how it is called
Telemetry = grpc.aio.StreamStreamCall[service.TelemetryCommand, service.TelemetryCommand]
Metadata = list[Header]
Vouch = Callable[[Iterable[Header]], Metadata]


def _path_of(kind: Any) -> str:
    """The method to which a class of replies belongs."""
    return _PATHS[kind.DESCRIPTOR.full_name]


def _bytes_of(request: protobuf.Message) -> bytes:
    return request.SerializeToString()


class Forwarder:
    """Keeps the channels to the current masters."""

    def __init__(self, broker: Broker, vouch: Vouch = list) -> None:
        """vouch: adds to the headers of a call what makes other nodes believe them."""
        self._broker = broker
        self._vouch = vouch
        self._start = secrets.token_hex(8)  # tells this process from the one before
        self._channels: dict[str, tuple[_Place, grpc.aio.Channel]] = {}  # by replica group
        self._peers: dict[_Place, grpc.aio.Channel] = {}
        self._background = Background(report)  # background work for disconnected clients
        self._draining: set[grpc.aio.Call] = set()  # calls of disconnected clients
        self._waiting: Joint[str, None] = Joint()  # waits for a master, by replica group

    async def close(self) -> None:
        """Close the connections."""
        await self._waiting.stop()
        for channel in [*(known for _, known in self._channels.values()), *self._peers.values()]:
            await channel.close()
        await self._background.stop()

    def other_groups(self) -> list[str]:
        """The other replica groups of the cluster."""
        return sorted(self._broker.views.keys() - {self._broker.group})

    def _master(self, group: str) -> str:
        """The endpoint of a group's master; empty if it is not known."""
        if group == self._broker.group or self._broker.failover is None:
            return self._broker.replication.master_endpoint[0]
        view = self._broker.views.get(group)
        return view.master.endpoint if view is not None and view.master is not None else ""

    async def _reached(self, context: Call, deadline: float, group: str) -> grpc.aio.Channel:
        """The channel to a master. Raises NotMaster if there is none in time."""
        loop = asyncio.get_running_loop()
        group = group or self._broker.group
        if is_forwarded(context):
            raise sdk.NotMaster(
                "the call was forwarded to this node, which is not the master either"
            )
        while not (endpoint := self._master(group)):
            if loop.time() + PAUSE_SECONDS >= deadline:
                raise sdk.NotMaster(f"group {group} has no master now")
            await asyncio.sleep(PAUSE_SECONDS)
        return self._channel(group, endpoint)

    def _channel(self, group: str, endpoint: str) -> grpc.aio.Channel:
        """The channel to a group's master; one of an older master, or with older certificates, is
        closed.
        """
        place = endpoint, self._broker.peers.credentials()
        known = self._channels.get(group)
        if known is None or known[0] != place:
            if known is not None:
                self._background.start(known[1].close(grace=STREAM_SECONDS))
            channel = self._broker.peers.open(endpoint, _OPTIONS)
            known = self._channels[group] = (place, channel)
        return known[1]

    def registration(self, way: str) -> int:
        """The lease of the registration that a way's node has in this group; 0 for none: no calls
        come through it.
        """
        view = self._broker.views.get(self._broker.group)
        return 0 if view is None else view.leases.get(way.partition("/")[0], 0)

    def master_elsewhere(self) -> str:
        """The endpoint of this group's master; empty if it is this node, or not known."""
        replication = self._broker.replication
        return replication.master_endpoint[0] if replication.not_master() else ""

    def telemetry(self, endpoint: str, context: Call) -> Telemetry:
        """Open a telemetry stream for the same client to the master."""
        stub = rpc.MessagingServiceStub(self._channel(self._broker.group, endpoint))
        return stub.Telemetry(metadata=self._metadata(context, TELEMETRY))

    def _metadata(self, context: Call, path: str, *more: Header) -> Metadata:
        """The headers of a call that is forwarded. path: of its method."""
        kept = [
            (name, value)
            for name, value in context.invocation_metadata() or ()
            if name.startswith(_KEPT)
        ]
        how = TLS if is_encrypted(context) else PLAIN
        method = path.rpartition("/")[2]
        peer, via = (PEER, peer_of(context)), (VIA, f"{self._broker.node.name}/{self._start}")
        said = ((FORWARDED, how), peer, via, (METHOD, method), *more)
        return self._vouch([*kept, *said])

    @staticmethod
    def _seconds(context: Call, default: float) -> float:
        left = context.time_remaining()
        return max(0.05, (default if left is None else min(left, 120.0)) - MARGIN_SECONDS)

    async def unary(
        self,
        kind: type[Reply],
        request: protobuf.Message,
        context: Call,
        group: str = "",
        seconds: float = 120.0,
    ) -> Reply:
        """Forward a unary call. kind: of the reply. group: another replica group; seconds: limit.

        Raises NotMaster, Unavailable.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(self._seconds(context, UNARY_SECONDS), seconds)
        while True:
            channel = await self._reached(context, until, group)
            method = channel.unary_unary(_path_of(kind), _bytes_of, kind.FromString)
            left = until - loop.time()
            metadata = self._metadata(context, _path_of(kind))
            try:
                return await uncancelled(method(request, timeout=left, metadata=metadata))
            except grpc.aio.AioRpcError as failure:
                await self._pause_or_raise(failure, until, group, again=kind not in _ONCE)

    async def _pause_or_raise(
        self, failure: grpc.aio.AioRpcError, until: float, group: str, *, again: bool
    ) -> None:
        """Return when the call should be retried.

        again: also if the connection failed, so that the call may have been executed. Raises
        Unavailable or NotMaster if a retry makes no sense, or there is no time for it.
        """
        left = until - asyncio.get_running_loop().time() - PAUSE_SECONDS
        if failure.code() is grpc.StatusCode.FAILED_PRECONDITION:
            if left <= 0:
                raise sdk.NotMaster(
                    f"the group has no master now ({failure.details()}): try again"
                ) from None
            await asyncio.sleep(PAUSE_SECONDS)
            return
        unreached = failure.code() is grpc.StatusCode.UNAVAILABLE
        if not (again and unreached and left > 0 and await self._master_comes(group, left)):
            raise sdk.Unavailable(f"the master does not answer: {failure.details()}") from None

    async def _master_comes(self, group: str, seconds: float) -> bool:
        """Wait until a master of a group can be reached; False if none can in that time.

        All calls that wait for the same group share one task. Raises Unavailable.
        """
        group = group or self._broker.group
        try:
            async with asyncio.timeout(seconds):
                await self._waiting.call(group, lambda: self._until_reached(group))
        except TimeoutError:
            return False
        return True

    async def _until_reached(self, group: str) -> None:
        """Wait until the group's master accepts a connection; bounded by the time of a stream."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STREAM_SECONDS):
                while True:
                    await asyncio.sleep(PAUSE_SECONDS)
                    if self._is_here(group):
                        return
                    endpoint = self._master(group)
                    if not endpoint:
                        continue
                    channel = self._channel(group, endpoint)
                    if channel.get_state(True) is grpc.ChannelConnectivity.READY:
                        return

    def _is_here(self, group: str) -> bool:
        """Whether this node itself is the group's master now."""
        broker = self._broker
        return group == broker.group and not broker.replication.not_master()

    async def tell(self, kind: type[Answer], request: protobuf.Message, context: Call) -> None:
        """Send the master a copy of a call, if it can be reached at once."""
        with contextlib.suppress(sdk.DuologError):
            await self.unary(kind, request, context, seconds=COPY_SECONDS)

    def _others(self) -> list[str]:
        """The endpoints of the cluster's other nodes, as far as known."""
        views = self._broker.views.values()
        found = {replica.endpoint for view in views for replica in view.replicas.values()}
        return sorted(found - {self._broker.advertised, ""})

    async def copy(self, kind: type[Answer], request: protobuf.Message, context: Call) -> None:
        """Send a copy of a call to all other nodes that can be reached at once."""
        credentials = self._broker.peers.credentials()
        others = [(endpoint, credentials) for endpoint in self._others()]
        for gone in set(self._peers) - set(others):
            channel = self._peers.pop(gone, None)
            if channel is not None:  # or another call removed it first
                await channel.close()
        await asyncio.gather(*(self._copy_to(place, kind, request, context) for place in others))

    async def _copy_to(
        self, place: _Place, kind: type[Answer], request: protobuf.Message, context: Call
    ) -> None:
        channel = self._peers.get(place)
        if channel is None:
            channel = self._peers[place] = self._broker.peers.open(place[0])
        method = channel.unary_unary(_path_of(kind), _bytes_of, kind.FromString)
        metadata = self._metadata(context, _path_of(kind), (COPY, "1"))
        with contextlib.suppress(grpc.aio.AioRpcError, sdk.DuologError):
            await uncancelled(method(request, timeout=COPY_SECONDS, metadata=metadata))

    async def stream(
        self,
        kind: type[Streamed],
        request: Polled,
        context: Delivery[Streamed],
        group: str = "",
    ) -> None:
        """Forward a call that is answered with a stream. kind: of the replies.

        Raises NotMaster, Unavailable.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds(context, STREAM_SECONDS)
        while True:
            channel = await self._reached(context, until, group)
            method = channel.unary_stream(_path_of(kind), _bytes_of, kind.FromString)
            left = until - loop.time()
            metadata = self._metadata(context, _path_of(kind))
            call = method(request, timeout=left, metadata=metadata)
            begun = False
            try:
                async for reply in call:
                    begun = True
                    try:
                        await context.write(reply)
                    except BaseException:
                        self._give_back(request, context, call, reply)
                        raise
                return
            except grpc.aio.AioRpcError as failure:
                await self._pause_or_raise(failure, until, group, again=not begun)
            finally:
                if call not in self._draining:
                    call.cancel()

    def _give_back(
        self, request: Polled, context: Call, call: Delivering[Streamed], reply: Streamed
    ) -> None:
        """End the leases of messages that were in transit to a client that disconnected.

        The master has sent all of them, so to the master they are delivered, but nobody will
        acknowledge them.
        """
        self._draining.add(call)
        metadata = self._metadata(context, _path_of(service.ChangeInvisibleDurationResponse))
        work = self._background.start(self._end_leases(request, metadata, call, reply))
        work.add_done_callback(lambda _: self._draining.discard(call))

    async def _end_leases(
        self, request: Polled, metadata: Metadata, call: Delivering[Streamed], reply: Streamed
    ) -> None:
        """End the leases of the messages that a call still returns, and of the last one read."""
        with contextlib.suppress(grpc.RpcError, sdk.DuologError, TimeoutError):
            async with asyncio.timeout(STREAM_SECONDS):
                await self._end_lease(request, metadata, reply)
                async for following in call:
                    await self._end_lease(request, metadata, following)
        call.cancel()

    async def _end_lease(self, request: Polled, metadata: Metadata, reply: Streamed) -> None:
        handle = reply.message.system_properties.receipt_handle
        if not handle:
            return
        change = service.ChangeInvisibleDurationRequest(
            group=request.group, topic=request.message_queue.topic, receipt_handle=handle
        )
        change.invisible_duration.FromMilliseconds(GIVEN_BACK_MS)
        group = tokens.replica_group(handle) or self._broker.group
        endpoint = self._master(group)
        if endpoint:
            stub = rpc.MessagingServiceStub(self._channel(group, endpoint))
            done = stub.ChangeInvisibleDuration(change, timeout=UNARY_SECONDS, metadata=metadata)
            await uncancelled(done)
