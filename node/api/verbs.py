"""The native API's methods, called for a client of one of RocketMQ's protocols.

So a tool of RocketMQ meets the checks, the guard and the audit log that every other client meets.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import grpc
import grpc.aio
from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.net.methods import Handler
from duolog_server.node.service.topics import Changes
from duolog_server.store.record import Host

PREFIX = "/duolog.v1."
Trailing = Iterable[tuple[str, str]]


class Peer(Protocol):
    """Who asks."""

    @property
    def host(self) -> Host:
        """The client's address and port."""

    def after_answer(self, callback: Callable[[], None], /) -> None:
        """Call this once the client has taken the answer that is made now, or is gone."""


class Verbs:
    """Methods that describe topics and groups. All raise DuologError."""

    def __init__(self, methods: Mapping[str, Handler], changes: Changes) -> None:
        """methods: those of the native API, by path, with what guards and notes them."""
        self._methods = methods
        self.changes = changes

    async def topic(self, peer: Peer, topic: str) -> wire.TopicReply | None:
        """Admin/ListTopics of one; None where it does not exist."""
        reply = await self._call(peer, "Admin/ListTopics", wire.ListTopicsRequest(topics=[topic]))
        return cast(wire.ListTopicsReply, reply).topics[0] if reply.topics else None

    async def group(self, peer: Peer, group: str) -> wire.GroupDescription:
        """Admin/DescribeGroup."""
        reply = await self._call(
            peer, "Admin/DescribeGroup", wire.DescribeGroupRequest(group=group)
        )
        return cast(wire.GroupDescription, reply)

    async def groups(self, peer: Peer, after: str, limit: int) -> wire.ListGroupsReply:
        """Admin/ListGroups, a page of it."""
        request = wire.ListGroupsRequest(after=after, limit=limit)
        return cast(wire.ListGroupsReply, await self._call(peer, "Admin/ListGroups", request))

    async def _call(self, peer: Peer, method: str, request: Any) -> Any:
        return await self._methods[PREFIX + method].unary_unary(request, _Call(peer))


class _Call:
    """The context of a call: who makes it, and how it ends."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._code: grpc.StatusCode | None = None

    def peer(self) -> str:
        """The client's address as gRPC names it."""
        host = self._peer.host
        if ":" in host.address:
            return f"ipv6:%5B{host.address}%5D:{host.port}"
        return f"ipv4:{host.address}:{host.port}"

    @property
    def principal(self) -> Principal | None:
        """Whose request it is; None where the node has no users."""
        return PRINCIPAL.get()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call this once the client has taken the answer, or is gone."""
        self._peer.after_answer(lambda: callback(self))

    def code(self) -> grpc.StatusCode | None:
        """How the call ended, for those who time it; None before."""
        return self._code

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing: Trailing = ()
    ) -> None:
        """End the call. Raises the error that ended it."""
        self._code = code
        nothing = grpc.aio.Metadata()
        raise sdk.error_of(
            grpc.aio.AioRpcError(code, nothing, grpc.aio.Metadata(*trailing), details)
        )
