"""The guard before the native API: recognises the caller of each method, and asks the gate.

Over gRPC a caller says in each call who it is, or its certificate does; over frames the connection
began with a key of a user. What was allowed when a call began may have been forbidden since:
streams look again at each message, and whatever waited looks again before it answers. A node that
may lack the newest users and rights does not say no: it names its master, which knows.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from duolog import _errors as sdk
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.appends import Appends
from duolog_server.node.api.calls import certificate_name, reporting
from duolog_server.node.api.rules import RULES, SEES_CLUSTER, append_needs
from duolog_server.node.appending import Appending, Outcome
from duolog_server.node.audit.auditing import APPEND
from duolog_server.node.identity.access.gate import PRINCIPAL, VIEWER_ADDRESS, Principal, basic
from duolog_server.node.identity.access.guarding import Delivering, with_method
from duolog_server.node.identity.access.rules import Rule
from duolog_server.node.identity.access.vouching import VIEWER, Viewers
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.net.methods import Handler
from duolog_server.node.service.guard import DENIED, Guard
from duolog_server.node.wirecodec import peer_host
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus

BEGINS_SECONDS = 2.0  # that a stream which is refused may take for its first request


class GuardedAppends:
    """Appends of one caller: a batch that it may not store is refused, and the stream continues."""

    def __init__(self, appends: Appends, guard: Guard, principal: Principal) -> None:
        self._appends = appends
        self._guard = guard
        self._principal = principal

    def append(
        self, request: wire.AppendRequest, host: Host, bodies: bytes | memoryview | None = None
    ) -> tuple[wire.AppendReply, Outcome | None]:
        """See Appending."""
        try:
            self._guard.check(self._principal, append_needs(request, self._guard.facts))
        except DENIED as error:
            self._guard.denied(self._principal, APPEND, f"Topic:{request.topic}", error)
            reply = wire.AppendReply(id=request.id, status=wire.NO_PERMISSION, reason=str(error))
            return reply, None
        except sdk.NotMaster as error:
            reply = wire.AppendReply(id=request.id, status=wire.NOT_MASTER, reason=str(error))
            reply.master, reply.master_epoch = error.endpoint, error.epoch
            return reply, None
        return self._appends.append(request, host, bodies, self._principal.name)

    def settled(self, reply: wire.AppendReply, status: PutMessageStatus) -> None:
        """See Appending."""
        self._appends.settled(reply, status)


class MethodGuard(Guard):
    """Wraps methods, so that each is served to those only who may call it.

    Attributes:
        viewers: for whom consoles call; None: it takes no word for that.
    """

    viewers: Viewers | None = None

    async def _recognise(self, context: Any) -> Principal:
        """Who calls. Raises Unauthenticated, Busy."""
        VIEWER_ADDRESS.set("")
        found: Principal | None = getattr(context, "principal", None)  # of a frames connection
        if found is not None:
            return found
        headers = {key: str(value) for key, value in context.invocation_metadata() or ()}
        given = headers.get("authorization", "")
        peer = str(context.peer())
        source = peer_host(peer).address
        named = "" if given else certificate_name(context)
        with self.final():
            if named:
                return self._gate.by_certificate(named, source)
            viewer = self._viewer(given, headers)
            if not viewer:
                return await self._gate.by_password(given, source, peer)
            # Its logins count as the viewer's; a console may call for many over one connection.
            found = await self._gate.by_password(given, viewer, f"{peer} {viewer}")
            return replace(found, via=source)

    def _viewer(self, authorization: str, headers: Mapping[str, str]) -> str:
        """The viewer for whom a console calls; empty: there is none. Raises Unauthenticated."""
        if VIEWER not in headers or self.viewers is None:
            return ""
        name, _ = basic(authorization)
        viewer = self.viewers.address(name, headers)
        VIEWER_ADDRESS.set(viewer)
        return viewer

    async def admit_status(self, authorization: str, source: str) -> None:
        """Raise Unauthenticated, NoPermission or Busy unless a user may see how the cluster is.

        For ports without methods, whose callers go to no other node. source: address of the caller.
        """
        who: Principal | Who = Who.at("", source)
        try:
            who = principal = await self._gate.by_password(authorization, source)
            self.check_known(principal, SEES_CLUSTER.needs(None, self.facts))
        except DENIED as error:
            self.denied(who, "GET /metrics", "", error)
            raise

    def _check(self, principal: Principal, rule: Rule, request: Any) -> None:
        self.check(principal, tuple(rule.needs(request, self.facts)))

    def appends_of(self, principal: Principal, appends: Appends) -> Appending:
        """What stores the batches of a caller."""
        return GuardedAppends(appends, self, principal)

    async def _checked(
        self, principal: Principal, rule: Rule, requests: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        async for request in requests:
            self._check(principal, rule, request)
            yield request

    def _delivering(
        self, context: Any, principal: Principal, rule: Rule, request: Any = None
    ) -> Delivering:
        """request: that all of the messages answer; None where there are several."""

        def check(message: Any) -> None:
            if request is not None:
                self._check(principal, rule, request)
            if rule.delivers is not None:
                self.check(principal, tuple(rule.delivers(message, self.facts)))

        return Delivering(context, check)

    def wrap(self, path: str, handler: Handler) -> Handler:
        """A method with its rule before it. Raises KeyError where it has none."""
        rule = RULES[path]

        async def unary(request: Any, context: Any) -> Any:
            async with reporting(context):
                principal = await self._recognise(context)
                PRINCIPAL.set(principal)
                await self.check_all(principal, rule.needs(request, self.facts))
            reply = await handler.unary_unary(request, context)
            async with reporting(context):
                if rule.again:
                    self._check(principal, rule, request)
                await rule.trim(reply, self.allows(principal), self.facts)
            return reply

        async def streamed(request: Any, context: Any) -> None:
            async with reporting(context):
                principal = await self._recognise(context)
                PRINCIPAL.set(principal)
                self._check(principal, rule, request)
                delivering = self._delivering(context, principal, rule, request)
                await handler.unary_stream(request, delivering)

        async def both(requests: AsyncIterator[Any], context: Any) -> None:
            async with reporting(context):
                try:
                    principal = await self._recognise(context)
                except sdk.DuologError:
                    await _begun(requests)
                    raise
                PRINCIPAL.set(principal)
                if not rule.each_answered:
                    requests = self._checked(principal, rule, requests)
                await handler.stream_stream(requests, self._delivering(context, principal, rule))

        if handler.request_streaming:
            return with_method(handler, both)
        return with_method(handler, streamed if handler.response_streaming else unary)


async def _begun(requests: AsyncIterator[Any]) -> None:
    """Wait for the first request: a client that has not sent it may not see why its call ends."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(BEGINS_SECONDS):
            await anext(requests)
