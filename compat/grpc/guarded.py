"""The methods of RocketMQ's API with the guard before them.

A refusal is a reply with a status, as in RocketMQ's proxy; a telemetry stream ends after it. As for
the native API, a call that may take long is looked at again before each of its replies, and a node
that may lack the newest users does not refuse: it lets the master decide.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import structlog
from duolog import _errors as sdk
from duolog._background import together
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from duolog_server.compat.grpc.guard import Headers, RocketmqGuard, Session
from duolog_server.compat.grpc.protocol.codes import Refused, refusal, refused
from duolog_server.compat.grpc.protocol.stubs import Code, service
from duolog_server.compat.grpc.relay.calls import Header, refuse_forwarded
from duolog_server.compat.grpc.relay.forward import Forwarder
from duolog_server.node.audit.subjects import resource_of
from duolog_server.node.identity.access.gate import PRINCIPAL, Principal
from duolog_server.node.identity.access.guarding import Delivering, GuardedMethods, with_method
from duolog_server.node.identity.access.rules import Rule
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.identity.rights.resources import Need
from duolog_server.node.net.methods import Handler, Methods
from duolog_server.node.runtime.config import ConfigError
from duolog_server.node.service.guard import DENIED
from duolog_server.node.wirecodec import peer_host

log = structlog.get_logger("duolog.rocketmq")

# How long a telemetry stream waits for a node to know its user; the master cannot answer for it.
PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 0.05
_FAILURES = (sdk.DuologError, Refused)
Found = TypeVar("Found")


class Known(Delivering):
    """A client's call whose headers are true."""

    def __init__(self, context: Any, headers: Headers, check: Callable[[Any], None]) -> None:
        super().__init__(context, check)
        self._headers = tuple(headers.items())

    def invocation_metadata(self) -> tuple[Header, ...]:
        """The headers."""
        return self._headers


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that may begin."""

    principal: Principal
    headers: Headers
    needs: tuple[Need, ...]


@dataclass(frozen=True, slots=True)
class Api:
    """A service of RocketMQ's, and what its methods ask for.

    Attributes:
        name: its full name.
        shown: its name in the audit log.
    """

    name: str
    shown: str
    methods: Mapping[str, MethodDescriptor]
    rules: Mapping[str, Rule]


class Wrapping:
    """Wraps methods of a service, so that each is served to those only who may call it."""

    def __init__(self, api: Api, guard: RocketmqGuard, forwarder: Forwarder) -> None:
        self._api = api
        self._guard = guard
        self._forwarder = forwarder

    def _note(self, name: str, request: Any, context: Any, error: Exception) -> None:
        """Note a call that was denied. Of headers, nothing counts before they are believed."""
        if isinstance(error, DENIED) or getattr(error, "code", None) == Code.UNAUTHORIZED:
            who = PRINCIPAL.get() or Who.at("", peer_host(str(context.peer())).address)
            resource = resource_of(name, request) if request is not None else ""
            self._guard.core.denied(who, f"{self._api.shown}/{name}", resource, error)

    def wrap(self, path: str, handler: Handler) -> Handler:
        """A method with its rule before it. Raises KeyError where it has none."""
        name = path.rpartition("/")[2]
        rule = self._api.rules[name]
        kind = GetMessageClass(self._api.methods[name].output_type)
        if handler.request_streaming:
            return with_method(handler, self._telemetry(handler, rule))
        made = self._streamed if handler.response_streaming else self._unary
        return with_method(handler, made(handler, name, kind))

    async def _admit(self, name: str, request: Any, context: Any) -> Admitted | None:
        """Let a call of a method begin; None where another node must decide, as this one may only
        not know the caller yet. Raises DENIED, Refused.

        Ends a call that another node forwarded: it retries.
        """
        core = self._guard.core
        try:
            with core.final():
                principal, headers = self._guard.recognise(context, name)
            PRINCIPAL.set(principal)
            needs = tuple(self._api.rules[name].needs(request, core.facts))
            await core.check_all(principal, needs)
        except sdk.NotMaster as error:
            await refuse_forwarded(context, error)
            return None
        return Admitted(principal, headers, needs)

    def _unary(self, handler: Handler, name: str, kind: Any) -> Any:
        async def call(request: Any, context: Any) -> Any:
            try:
                admitted = await self._admit(name, request, context)
                if admitted is None:
                    return await self._forwarder.unary(kind, request, context)
            except _FAILURES as error:
                self._note(name, request, context, error)
                _log(error)
                return await refused(kind, request, error, context)
            return await handler.unary_unary(request, Known(context, admitted.headers, _unchecked))

        return call

    def _streamed(self, handler: Handler, name: str, kind: Any) -> Any:
        async def call(request: Any, context: Any) -> None:
            try:
                admitted = await self._admit(name, request, context)
                if admitted is None:
                    await self._forwarder.stream(kind, request, context)
                    return

                def check(reply: Any) -> None:
                    self._guard.core.check_known(admitted.principal, admitted.needs)

                await handler.unary_stream(request, Known(context, admitted.headers, check))
            except _FAILURES as error:
                self._note(name, request, context, error)
                _log(error)
                await context.write(refusal(kind, request, error))

        return call

    def _telemetry(self, handler: Handler, rule: Rule) -> Any:
        async def call(commands: AsyncIterator[Any], context: Any) -> None:
            try:
                principal, headers = await self._patiently(
                    context, lambda: self._guard.recognise(context, "Telemetry")
                )
                PRINCIPAL.set(principal)
                session = self._guard.begin(principal)
                try:
                    known = self._known(context, headers, session, rule)
                    checked = self._checked(commands, context, session, rule)
                    await _until_over(handler.stream_stream(checked, known), session)
                finally:
                    self._guard.end(session)
            except (*DENIED, sdk.Throttled, Refused) as error:
                self._note("Telemetry", None, context, error)
                _log(error)
                reply = refusal(service.TelemetryCommand, service.TelemetryCommand(), error)
                await context.write(reply)

        return call

    def _known(self, context: Any, headers: Headers, session: Session, rule: Rule) -> Known:
        delivers = rule.delivers
        assert delivers is not None, "commands have rules"

        def check(command: Any) -> None:
            try:
                needs = delivers(command, self._guard.facts)
            except Refused as error:  # of a message whose topic has no name at this API
                raise sdk.NoPermission(error.message) from None
            session.check(needs)

        return Known(context, headers, check)

    async def _checked(
        self, commands: AsyncIterator[Any], context: Any, session: Session, rule: Rule
    ) -> AsyncIterator[Any]:
        async for command in commands:
            needs = tuple(rule.needs(command, self._guard.facts))
            await self._patiently(context, partial(session.settle, needs))
            yield command

    async def _patiently(self, context: Any, ask: Callable[[], Found]) -> Found:
        """Ask until the node knows the answer, a moment at most. Raises DENIED, Refused."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SECONDS
        while loop.time() < until:
            try:
                with self._guard.core.final():
                    return ask()
            except sdk.NotMaster as error:
                await refuse_forwarded(context, error)
            await asyncio.sleep(PAUSE_SECONDS)
        return ask()


async def _until_over(serving: Any, session: Session) -> None:
    """Serve a stream until it ends, or its session is over. Raises why the session is over."""
    async with together() as tasks:
        over = tasks.create_task(session.over())
        await serving
        over.cancel()


def _unchecked(reply: Any) -> None:
    """A unary method writes nothing."""


def _log(error: Exception) -> None:
    tell = log.debug if isinstance(error, sdk.Throttled) else log.warning  # as the native API does
    tell("call refused", kind=type(error).__name__, reason=str(error)[:500])


@dataclass(slots=True)
class _Called:
    """A call by which a method is looked up."""

    method: str
    invocation_metadata: tuple[Header, ...] = ()


def guarded_methods(api: Api, plain: Methods, wrapping: Wrapping) -> Methods:
    """The methods of a service, guarded. Raises ConfigError where one of them has no rule.

    plain: with this service alone.
    """
    if without := sorted(api.methods.keys() - api.rules.keys()):
        raise ConfigError(
            f"RocketMQ's stubs have methods that this version has no access rule for "
            f"({', '.join(without)}): install the version of rocketmq-python-client that the "
            "extra `rocketmq` names, or set rocketmq.enable = false"
        )
    guarded = GuardedMethods(wrapping)
    (found,) = plain.generic
    handlers = {
        name: cast(Handler, found.service(_Called(f"/{api.name}/{name}"))) for name in api.methods
    }
    guarded.add_registered_method_handlers(api.name, handlers)
    return guarded
