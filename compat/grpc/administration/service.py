"""The Admin service: which method goes where, and which ones are refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duolog import __version__
from grpc.aio import ServicerContext

from duolog_server.compat.grpc.administration.asking import Asking
from duolog_server.compat.grpc.administration.consumers import (
    Consumers,
    joined_connections,
    joined_subscriptions,
    joined_subscriptions_of_clients,
)
from duolog_server.compat.grpc.administration.groups import (
    Groups,
    joined_accumulation,
    joined_spans,
)
from duolog_server.compat.grpc.administration.messages import Messages, identify, joined_messages
from duolog_server.compat.grpc.administration.routes import JsonRoutes, joined_routes
from duolog_server.compat.grpc.administration.serving import Caller, Dispatcher, Place, answering
from duolog_server.compat.grpc.auth import Authenticator
from duolog_server.compat.grpc.protocol.codes import OK, Refused, refused
from duolog_server.compat.grpc.protocol.names import topic_of
from duolog_server.compat.grpc.protocol.stubs import Code, MessageType, admin
from duolog_server.compat.grpc.protocol.stubs import admin_rpc as rpc
from duolog_server.compat.grpc.relay.calls import Call, HeadersOnce
from duolog_server.compat.grpc.relay.clients import Clients, Questions
from duolog_server.compat.grpc.relay.forward import Forwarder
from duolog_server.compat.grpc.sending import TYPES, Sender
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.api.visibility import Sight
from duolog_server.node.broker import Broker
from duolog_server.node.core.growth import Totals

MINUTE = 60.0
LEVELS = "the level is node.log_level in the node's file: edit it and restart the node"
LEAVES = (
    "a subscription ends when its last client leaves; `duolog group delete` and mqadmin's "
    "deleteSubGroup delete a group with its offsets"
)
NOT_ASKED = (
    "clients of gRPC cannot be asked for this; those of the remoting protocol are, by mqadmin's "
    "consumerStatus"
)


class MessagingParts(Protocol):
    """Parts of the service of clients, which both use."""

    broker: Broker
    sender: Sender
    forwarder: Forwarder
    clients: Clients
    questions: Questions

    def call_of(self, context: Call) -> HeadersOnce:
        """A call, with the client's address as far as it can be believed."""


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the service is made of.

    Attributes:
        sight: what the caller of the running call may see.
    """

    messaging: MessagingParts
    verbs: Verbs
    authenticator: Authenticator
    sight: Callable[[], Sight]


class AdminService(rpc.AdminServicer):
    """All RPCs of RocketMQ's Admin service.

    Attributes:
        dispatcher: what its methods begin and end with.
    """

    def __init__(self, parts: AdminParts) -> None:
        messaging = parts.messaging
        self._broker = broker = messaging.broker
        self._sight = parts.sight
        self._groups = Groups(broker, parts.verbs)
        self._messages = Messages(broker, broker.lookups, messaging.sender)
        self._consumers = Consumers(broker)
        self._asking = Asking(broker, messaging.clients, messaging.questions)
        self._routes = JsonRoutes(broker)
        self._call_of = messaging.call_of
        self._totals = Totals(broker.times.mono_ms() / 1000)
        self.dispatcher = Dispatcher(
            broker, messaging.forwarder, parts.authenticator, messaging.call_of
        )

    # -- topics and messages -------------------------------------------------------------------

    @answering(admin.DescribeTopicStatusResponse)
    async def DescribeTopicStatus(
        self, request: admin.DescribeTopicStatusRequest, caller: Caller
    ) -> admin.DescribeTopicStatusResponse:
        """The type of messages that a topic takes; unspecified for all types."""
        await self._broker.log.caught_up()
        found = self._broker.admission.known_topic(topic_of(request.topic))
        kind = TYPES.get(found.message_type, MessageType.MESSAGE_TYPE_UNSPECIFIED)
        return admin.DescribeTopicStatusResponse(status=OK, topic_message_type=kind)

    @answering(admin.GetTopicRouteResponse, join=joined_routes)
    async def GetTopicRoute(
        self, request: admin.GetTopicRouteRequest, caller: Caller
    ) -> admin.GetTopicRouteResponse:
        """The route of a topic as JSON."""
        return await self._routes.route(request)

    @answering(admin.ListMessageResponse, join=joined_messages)
    async def QueryMessage(
        self, request: admin.ListMessageRequest, caller: Caller
    ) -> admin.ListMessageResponse:
        """Messages by id or key."""
        return await self._messages.query(request)

    async def AdminSendMessage(
        self,
        request: admin.AdminSendMessageRequest,
        context: ServicerContext[admin.AdminSendMessageRequest, admin.AdminSendMessageResponse],
    ) -> admin.AdminSendMessageResponse:
        """Store a message. It gets its id here, before any master stores it: one that takes over
        meanwhile recognises it.
        """
        identify(request)
        return await self._send(request, context)

    @answering(admin.AdminSendMessageResponse, Place.ONE)
    async def _send(
        self, request: admin.AdminSendMessageRequest, caller: Caller
    ) -> admin.AdminSendMessageResponse:
        return await self._messages.send(caller, request)

    # -- groups and consumers ------------------------------------------------------------------

    @answering(admin.DescribeGroupAccumulationResponse, join=joined_accumulation)
    async def DescribeGroupAccumulation(
        self, request: admin.DescribeGroupAccumulationRequest, caller: Caller
    ) -> admin.DescribeGroupAccumulationResponse:
        """How far a group is behind."""
        return await self._groups.accumulation(caller, request)

    @answering(admin.QueryTimeSpanResponse, join=joined_spans)
    async def QueryTimeSpan(
        self, request: admin.QueryTimeSpanRequest, caller: Caller
    ) -> admin.QueryTimeSpanResponse:
        """The times of what is in a group's queues."""
        return await self._groups.time_spans(caller, request, self._sight())

    @answering(admin.ResetGroupOffsetResponse)
    async def ResetGroupOffset(
        self, request: admin.ResetGroupOffsetRequest, caller: Caller
    ) -> admin.ResetGroupOffsetResponse:
        """Set a group's offsets to a time."""
        return await self._groups.reset(caller, request)

    @answering(admin.ListConsumerConnectionResponse, join=joined_connections)
    async def ListConsumerConnection(
        self, request: admin.ListConsumerConnectionRequest, caller: Caller
    ) -> admin.ListConsumerConnectionResponse:
        """Connected consumers of a group."""
        return await self._consumers.connections(request)

    @answering(admin.ListSubscriptionResponse, join=joined_subscriptions)
    async def ListSubscription(
        self, request: admin.ListSubscriptionRequest, caller: Caller
    ) -> admin.ListSubscriptionResponse:
        """What groups read."""
        return await self._consumers.subscriptions(request, self._sight())

    @answering(admin.DescribeSubscriptionResponse, join=joined_subscriptions_of_clients)
    async def DescribeSubscription(
        self, request: admin.DescribeSubscriptionRequest, caller: Caller
    ) -> admin.DescribeSubscriptionResponse:
        """What clients read."""
        return await self._consumers.subscriptions_of_clients(request, self._sight())

    @answering(admin.PrintThreadStackTraceResponse, Place.ONE)
    async def PrintThreadStackTrace(
        self, request: admin.PrintThreadStackTraceRequest, caller: Caller
    ) -> admin.PrintThreadStackTraceResponse:
        """Where the threads of a consumer are, as it says."""
        return await self._asking.stack_trace(caller, request)

    @answering(admin.VerifyMessageResponse, Place.ONE)
    async def VerifyMessage(
        self, request: admin.VerifyMessageRequest, caller: Caller
    ) -> admin.VerifyMessageResponse:
        """Whether a consumer can process a message: it does."""
        return await self._asking.verify(caller, request)

    # -- the node ------------------------------------------------------------------------------

    @answering(admin.GetProxyRuntimeStatsResponse, Place.HERE)
    async def GetProxyRuntimeStats(
        self, request: admin.GetProxyRuntimeStatsRequest, caller: Caller
    ) -> admin.GetProxyRuntimeStatsResponse:
        """What passes through the node that is asked, and how many clients it knows."""
        broker = self._broker
        now, counters = broker.times.mono_ms() / 1000, broker.log.counters
        producers, consumers = broker.connected.counts()
        return admin.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=broker.node.name,
            version=__version__,
            in_tps=self._totals.growth("in", counters.messages_in, MINUTE, now).rate,
            out_tps=self._totals.growth("out", broker.core.traffic.messages_out, MINUTE, now).rate,
            connections=len(broker.core.throttle.connections),
            producers=producers,
            consumers=consumers,
        )

    # -- refused -------------------------------------------------------------------------------

    async def ChangeLogLevel(
        self,
        request: admin.ChangeLogLevelRequest,
        context: ServicerContext[admin.ChangeLogLevelRequest, admin.ChangeLogLevelResponse],
    ) -> admin.ChangeLogLevelResponse:
        """Refused. Its reply has no status: the call ends with an error of gRPC."""
        try:
            self.dispatcher.check(self._call_of(context), request)
            raise Refused(Code.UNSUPPORTED, LEVELS)
        except Refused as error:
            return await refused(admin.ChangeLogLevelResponse, request, error, context)

    @answering(admin.DeleteSubscriptionResponse, Place.HERE)
    async def DeleteSubscription(
        self, request: admin.DeleteSubscriptionRequest, caller: Caller
    ) -> admin.DeleteSubscriptionResponse:
        """Refused."""
        raise Refused(Code.UNSUPPORTED, LEAVES)

    @answering(admin.GetConsumerRunningInfoResponse, Place.HERE)
    async def GetConsumerRunningInfo(
        self, request: admin.GetConsumerRunningInfoRequest, caller: Caller
    ) -> admin.GetConsumerRunningInfoResponse:
        """Refused."""
        raise Refused(Code.UNSUPPORTED, NOT_ASKED)
