"""A node's own guard, and what it stores and gives to callers: a watch looks at each answer."""

from collections.abc import Collection
from typing import Any

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.appends import Appends
from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.appending import Appending, Outcome
from duolog_server.node.identity.access.gate import Gate, Principal
from duolog_server.node.identity.access.guarding import Delivering
from duolog_server.node.identity.access.rules import Facts, Rule
from duolog_server.node.identity.rights.resources import Need
from duolog_server.store.record import Host
from sim.accesswatch import AccessWatch
from sim.node import Node


class WatchedAppends:
    """Appends of one caller, whose answers are looked at."""

    def __init__(
        self, appends: Appending, node: Node, principal: Principal, watch: AccessWatch
    ) -> None:
        self._appends = appends
        self._node = node
        self._principal = principal
        self._watch = watch
        self.settled = appends.settled

    def append(
        self, request: wire.AppendRequest, host: Host, bodies: bytes | memoryview | None = None
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """See Appending."""
        reply, outcome = self._appends.append(request, host, bodies)
        self._watch.appended(self._node, self._principal, request, reply)
        return reply, outcome


class WatchedReplies:
    """The context of a streaming call, whose batches are looked at as they go out."""

    def __init__(self, context: Any, node: Node, principal: Principal, watch: AccessWatch) -> None:
        self._context = context
        self._node = node
        self._principal = principal
        self._watch = watch

    async def write(self, message: Any) -> None:
        """A reply goes out."""
        if isinstance(message, wire.MessageBatch):
            self._watch.given(self._node, self._principal, message.topic)
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class WatchedGuard(MethodGuard):
    """A guard whose answers are looked at."""

    def __init__(self, node: Node, gate: Gate, facts: Facts, watch: AccessWatch) -> None:
        super().__init__(gate, facts)
        self._node = node
        self._watch = watch

    async def _recognise(self, context: Any) -> Principal:
        before = self._watch.said(self._node)
        try:
            principal = await super()._recognise(context)
        except sdk.Unauthenticated:
            self._watch.unrecognised(self._node, context.caller, before)
            raise
        self._watch.recognised(self._node, context.caller, principal)
        return principal

    def check(self, principal: Principal, needs: Collection[Need], method: str = "") -> None:
        """See MethodGuard."""
        try:
            super().check(principal, needs, method)
        except (sdk.Unauthenticated, sdk.NoPermission):
            self._watch.decided(self._node, principal, needs, False)
            raise
        self._watch.decided(self._node, principal, needs, True)

    def _delivering(
        self, context: Any, principal: Principal, rule: Rule, request: Any = None
    ) -> Delivering:
        watched = WatchedReplies(context, self._node, principal, self._watch)
        return super()._delivering(watched, principal, rule, request)

    def appends_of(self, principal: Principal, appends: Appends) -> Appending:
        """See MethodGuard."""
        made = super().appends_of(principal, appends)
        return WatchedAppends(made, self._node, principal, self._watch)
