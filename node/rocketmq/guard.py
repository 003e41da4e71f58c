"""The guard before RocketMQ's API, on a node with users.

It recognises the caller of each method, asks the gate, and gives the service a call whose headers
are true: without what was signed, and with the user's name, which also begins the client's id, so
that nobody acts as another user's client. Another node of the cluster has recognised the caller of
what it forwards; its word counts if it bears the cluster's mark.

As elsewhere, what was allowed when a call began may have been forbidden since: streams look again
at each reply, and a telemetry stream ends when its user, or the right to its topics, is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import quote, unquote

import structlog
from duolog import _errors as sdk
from duolog._background import together

from node.access.access import Access
from node.access.gate import PRINCIPAL, Gate, Principal
from node.access.guarding import Delivering, GuardedMethods, with_method
from node.access.resources import Need
from node.access.rules import Facts, Needs, Rule
from node.api.native import NodeFacts
from node.broker import Broker
from node.config import AccessSection, ConfigError
from node.methods import Handler, Methods
from node.rocketmq.auth import Dates, Signatures
from node.rocketmq.relay.calls import CLIENT_ID, OWN, PEER, USER, Header
from node.rocketmq.relay.marks import Marks
from node.rocketmq.rights import RULES
from node.rocketmq.words.codes import Refused, refusal, status_of
from node.rocketmq.words.stubs import METHODS, SERVICE_NAME, rpc, service
from node.wirecodec import peer_host

log = structlog.get_logger("duolog.rocketmq")

WATCH_SECONDS = 1.0
Headers = dict[str, str | bytes]
Reply = TypeVar("Reply")
_REFUSED = (sdk.Unauthenticated, sdk.NoPermission, Refused)


class Recognises(Protocol):
    """Knows users by what they sign."""

    def principal(self, headers: Headers, source: str) -> Principal:
        """The user that signed a call. Raises Unauthenticated."""


class Known(Delivering):
    """A client's call whose headers are true."""

    def __init__(self, context: Any, headers: Headers, check: Callable[[Any], None]) -> None:
        super().__init__(context, check)
        self._headers = tuple(headers.items())

    def invocation_metadata(self) -> tuple[Header, ...]:
        """The headers."""
        return self._headers


class Session:
    """A telemetry stream: what its last settings need, and its end."""

    def __init__(self, gate: Gate, principal: Principal) -> None:
        self._gate = gate
        self._principal = principal
        self._needs: tuple[Need, ...] = ()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, needs: Needs) -> None:
        """Note what new settings need. Raises Unauthenticated or NoPermission."""
        self._needs = tuple(needs) or self._needs
        self.check()

    def check(self, more: Needs = ()) -> None:
        """Raise Unauthenticated or NoPermission if the stream may not go on, or not have more."""
        self._gate.check(self._principal, (*self._needs, *more))

    def end_if_refused(self) -> None:
        """End the stream if it may not go on."""
        try:
            self.check()
        except (sdk.Unauthenticated, sdk.NoPermission) as error:
            if not self._over.done():
                self._over.set_exception(error)

    async def over(self) -> None:
        """Wait for the end of the stream; raises why it ends."""
        await self._over


class Guard:
    """Wraps methods, so that each is served to those only who may call it."""

    def __init__(self, gate: Gate, facts: Facts, users: Recognises, marks: Marks) -> None:
        self._gate = gate
        self._facts = facts
        self._users = users
        self._marks = marks
        self._sessions: set[Session] = set()

    def vouch(self, headers: Iterable[Header]) -> list[Header]:
        """Headers of a call that this node forwards, with the mark of the cluster."""
        return self._marks.added(headers)

    async def run(self) -> None:
        """End the telemetry streams of users whose rights are gone, until cancelled."""
        seen = -1
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if seen != (seen := self._gate.version):
                for session in list(self._sessions):
                    session.end_if_refused()

    # -- who -----------------------------------------------------------------------------------

    def _recognise(self, context: Any) -> tuple[Principal, Headers]:
        """Who calls, and headers for the service. Raises Unauthenticated."""
        headers = dict(context.invocation_metadata() or ())
        if any(name.startswith(OWN) for name in headers):
            return self._forwarded(headers)
        host = peer_host(context.peer())
        principal = self._users.principal(headers, host.address)
        headers.pop("authorization", None)
        headers[USER] = user = quote(principal.name, safe="")
        if client_id := headers.get(CLIENT_ID):
            headers[CLIENT_ID] = f"{user}/{client_id!s}"
        return principal, headers

    def _forwarded(self, headers: Headers) -> tuple[Principal, Headers]:
        """The same for what another node recognised."""
        self._marks.check(headers)
        source = peer_host(str(headers.get(PEER, "")))
        principal = self._gate.principal(unquote(str(headers.get(USER, ""))), source.address)
        return principal, headers

    # -- what ----------------------------------------------------------------------------------

    def wrap(self, path: str, handler: Handler) -> Handler:
        """A method with its rule before it. Raises KeyError where it has none."""
        name = path.rpartition("/")[2]
        rule = RULES[name]
        kind = getattr(service, METHODS[name].output_type.name)

        async def unary(request: Any, context: Any) -> Any:
            try:
                principal, headers = self._recognise(context)
                self._gate.check(principal, rule.needs(request, self._facts))
            except _REFUSED as error:
                return _refused(error, refusal(kind, request, error))
            PRINCIPAL.set(principal)
            return await handler.unary_unary(request, Known(context, headers, _unchecked))

        async def streamed(request: Any, context: Any) -> None:
            try:
                principal, headers = self._recognise(context)
                needs = tuple(rule.needs(request, self._facts))
                self._gate.check(principal, needs)
                PRINCIPAL.set(principal)
                known = Known(context, headers, lambda _: self._gate.check(principal, needs))
                await handler.unary_stream(request, known)
            except _REFUSED as error:
                await context.write(_refused(error, refusal(kind, request, error)))

        async def telemetry(commands: AsyncIterator[Any], context: Any) -> None:
            try:
                await self._telemetry(handler, rule, commands, context)
            except _REFUSED as error:
                await context.write(_refused(error, kind(status=status_of(error))))

        if handler.request_streaming:
            return with_method(handler, telemetry)
        return with_method(handler, streamed if handler.response_streaming else unary)

    async def _telemetry(
        self, handler: Handler, rule: Rule, commands: AsyncIterator[Any], context: Any
    ) -> None:
        principal, headers = self._recognise(context)
        session = Session(self._gate, principal)
        session.check()
        PRINCIPAL.set(principal)
        delivers = rule.delivers
        assert delivers is not None, "commands have rules"

        async def checked() -> AsyncIterator[Any]:
            async for command in commands:
                session.settle(rule.needs(command, self._facts))
                yield command

        known = Known(context, headers, lambda sent: session.check(delivers(sent, self._facts)))
        self._sessions.add(session)
        try:
            async with together() as tasks:
                over = tasks.create_task(session.over())
                await handler.stream_stream(checked(), known)
                over.cancel()
        finally:
            self._sessions.discard(session)


def _unchecked(reply: Any) -> None:
    """A unary method writes nothing."""


def _refused(error: Exception, reply: Reply) -> Reply:
    """Log the refusal that a reply tells."""
    log.warning("call refused", kind=type(error).__name__, reason=str(error)[:500])
    return reply


def guard_of(broker: Broker, access: Access, section: AccessSection) -> Guard:
    """The guard of a node with users."""
    wall_ms, seconds = broker.times.wall_ms, section.date_window_seconds
    signatures = Signatures(access.gate, Dates(seconds, section.zones(), wall_ms))
    return Guard(
        access.gate, NodeFacts(broker), signatures, Marks(access.vouching, seconds, wall_ms)
    )


@dataclass(slots=True)
class _Called:
    """A call by which a method is looked up."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()


def guarded_methods(servicer: rpc.MessagingServiceServicer, guard: Guard) -> Methods:
    """The methods of the service, guarded. Raises ConfigError where one of them has no rule."""
    if without := sorted(METHODS.keys() - RULES.keys()):
        raise ConfigError(
            f"RocketMQ's stubs have methods that this version has no access rule for "
            f"({', '.join(without)}): install the version of rocketmq-python-client that the "
            "extra `rocketmq` names, or set rocketmq.enable = false"
        )
    plain, guarded = Methods(), GuardedMethods(guard)
    rpc.add_MessagingServiceServicer_to_server(servicer, plain.as_server())
    (found,) = plain.generic
    handlers = {
        name: cast(Handler, found.service(_Called(f"/{SERVICE_NAME}/{name}"))) for name in METHODS
    }
    guarded.add_registered_method_handlers(SERVICE_NAME, handlers)
    return guarded


__all__ = ["Guard", "guard_of", "guarded_methods"]
