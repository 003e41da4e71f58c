"""What every method of the Admin service begins and ends with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, Generic, Protocol, TypeVar

import structlog
from google.protobuf import message as protobuf
from grpc.aio import ServicerContext

from duolog_server.compat.grpc.administration.cluster import (
    FAILURES,
    Join,
    WholeCluster,
    the_first,
)
from duolog_server.compat.grpc.auth import Authenticator, check_keys
from duolog_server.compat.grpc.protocol.codes import Refused, refusal
from duolog_server.compat.grpc.protocol.stubs import ADMIN_SERVICE_NAME as SERVICE_NAME
from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.compat.grpc.relay.calls import Call, HeadersOnce, peer_of, refuse_forwarded
from duolog_server.compat.grpc.relay.forward import Answer, Forwarder
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.wirecodec import peer_host
from duolog_server.store.record import Host

log = structlog.get_logger("duolog.rocketmq")

Asked = TypeVar("Asked", bound=protobuf.Message)
Made = TypeVar("Made", bound=Answer)


class Place(Enum):
    """Where a call is answered: by all replica groups, by the first that knows its topic, or by the
    node that is asked.
    """

    ALL = 1
    ONE = 2
    HERE = 3


@dataclass(frozen=True, slots=True)
class How(Generic[Made]):
    """Where a call is answered, and how the answers of several groups become one."""

    place: Place
    join: Join[Made]


class Caller:
    """Who makes a call, as the native methods see it."""

    def __init__(self, context: Call, on_end: Callable[[Callable[[Any], None]], None]) -> None:
        """on_end: have this called, with the call, once it has ended."""
        self._on_end = on_end
        self.host: Host = peer_host(peer_of(context))
        self.time_remaining = context.time_remaining

    def after_answer(self, callback: Callable[[], None]) -> None:
        """See Peer."""
        self._on_end(lambda _: callback())

    @property
    def who(self) -> Who:
        """For quotas."""
        return Who.at(name_of_caller(), self.host.address)


class Dispatcher:
    """Checks a call, has it answered in its place, and counts the answer until it is taken."""

    def __init__(
        self,
        broker: Broker,
        forwarder: Forwarder,
        authenticator: Authenticator,
        call_of: Callable[[Call], HeadersOnce],
    ) -> None:
        self._broker = broker
        self._call_of = call_of
        self._untaken = broker.untaken
        self._authenticator = authenticator
        self._cluster = WholeCluster(broker, forwarder)

    def check(self, context: Call, request: Any) -> None:
        """Raise Refused for a call without the keys that it needs, or for another cluster."""
        check_keys(self._authenticator, context, self._broker.audit, SERVICE_NAME)
        deployment, cluster = getattr(request, "deployment_name", ""), self._broker.node.cluster
        if deployment not in ("", cluster):
            raise Refused(
                Code.NOT_FOUND,
                f"there is no deployment {deployment[:255]!r} here: this node serves cluster "
                f"{cluster!r} (node.cluster)",
            )

    async def answer(
        self,
        kind: type[Made],
        request: Asked,
        grpc_context: ServicerContext[Asked, Made],
        serve: Callable[[Caller], Awaitable[Made]],
        how: How[Made],
    ) -> Made:
        """The reply of a method; a failure is a reply with a code, as in RocketMQ's proxy."""
        context = self._call_of(grpc_context)
        on_end: Any = grpc_context.add_done_callback
        caller = Caller(context, on_end)
        address = caller.who.address
        try:
            self.check(context, request)
            await self._untaken.some_room(address)
            reply = await self._in_place(kind, request, context, lambda: serve(caller), how)
        except FAILURES as error:
            log.debug("refused", method=kind.__name__, reason=str(error)[:300])
            await refuse_forwarded(context, error)
            return refusal(kind, request, error)
        size = reply.ByteSize()
        self._untaken.take(address, size)
        caller.after_answer(lambda: self._untaken.give(address, size))
        return reply

    async def _in_place(
        self,
        kind: type[Made],
        request: Asked,
        context: Call,
        own: Callable[[], Awaitable[Made]],
        how: How[Made],
    ) -> Made:
        if how.place is Place.HERE:
            return await own()
        if how.place is Place.ONE:
            return await self._cluster.of_one(kind, request, context, own)
        return await self._cluster.answer(kind, request, context, own, how.join)


class Serving(Protocol):
    """The service."""

    @property
    def dispatcher(self) -> Dispatcher:
        """What its methods begin and end with."""


Service = TypeVar("Service", bound=Serving)
Method = Callable[[Service, Asked, Caller], Awaitable[Made]]
Handler = Callable[[Service, Asked, ServicerContext[Asked, Made]], Awaitable[Made]]


def answering(
    kind: type[Made], place: Place = Place.ALL, join: Join[Made] = the_first
) -> Callable[[Method[Service, Asked, Made]], Handler[Service, Asked, Made]]:
    """Decorate a method. kind: of its replies. join: makes one of those of several groups."""
    how = How(place, join)

    def decorate(method: Method[Service, Asked, Made]) -> Handler[Service, Asked, Made]:
        @wraps(method)
        async def call(
            self: Service, request: Asked, context: ServicerContext[Asked, Made]
        ) -> Made:
            return await self.dispatcher.answer(
                kind, request, context, lambda caller: method(self, request, caller), how
            )

        return call

    return decorate
