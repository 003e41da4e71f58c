"""A client of the Admin service, and one request of each of its methods."""

from typing import Any

import grpc

from duolog_server.compat.grpc.protocol.stubs import Code, admin, definition, service
from duolog_server.compat.grpc.protocol.stubs import admin_rpc as rpc
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, resource
from tests.compat.grpc.users import headers

# What a call without a status in its reply ends with.
CODES = {
    grpc.StatusCode.UNAUTHENTICATED: Code.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: Code.FORBIDDEN,
    grpc.StatusCode.UNIMPLEMENTED: Code.UNSUPPORTED,
    grpc.StatusCode.INVALID_ARGUMENT: Code.ILLEGAL_TOPIC,
}


class AdminApi(Api):
    """`api.call(...)` calls its methods, without a client id."""

    def __init__(self, node: Node, **given: str) -> None:
        super().__init__(node, "", **given)
        self.admin = rpc.AdminStub(self.channel)

    async def call(self, name: str, request: Any, timeout: float = 30.0) -> Any:
        return await getattr(self.admin, name)(request, timeout=timeout, metadata=self.metadata)

    async def code(self, name: str, request: Any) -> int:
        """The code of the reply, or that which the error of gRPC stands for."""
        try:
            return int((await self.call(name, request)).status.code)
        except grpc.aio.AioRpcError as error:
            return int(CODES[error.code()])


async def subscribed(api: Api, expression: str = "*", group: str = "g") -> Any:
    """Open a telemetry stream of a consumer of T; ended by its cancel()."""
    entry = definition.SubscriptionEntry(
        topic=resource("T"),
        expression=definition.FilterExpression(type=definition.TAG, expression=expression),
    )
    settings = definition.Settings(
        client_type=definition.PUSH_CONSUMER,
        subscription=definition.Subscription(group=resource(group), subscriptions=[entry]),
        user_agent=definition.UA(hostname="host-1"),
    )
    call = api.stub.Telemetry(metadata=api.metadata, timeout=60)
    await call.write(service.TelemetryCommand(settings=settings))
    reply: Any = await call.read()
    assert reply.status.code == Code.OK
    return call


def as_admin(node: Node, name: str, **given: str) -> AdminApi:
    """A client that signs as a user."""
    return AdminApi(node, **headers(name), **given)


def requests(topic: str = "T", group: str = "g", namespace: str = "") -> dict[str, Any]:
    """One request of each method, by its name."""
    t, g = resource(topic, namespace), resource(group, namespace)
    sent = admin.AdminSendMessageRequest(topic=t, body=b"x", key="k")
    reset = admin.ResetGroupOffsetRequest(group=g, topic=t)
    reset.reset_timestamp.FromMilliseconds(0)
    return {
        "ChangeLogLevel": admin.ChangeLogLevelRequest(level=admin.ChangeLogLevelRequest.DEBUG),
        "DescribeTopicStatus": admin.DescribeTopicStatusRequest(topic=t),
        "ListSubscription": admin.ListSubscriptionRequest(topic=t, group=g),
        "DescribeSubscription": admin.DescribeSubscriptionRequest(topic=t, group=g),
        "DeleteSubscription": admin.DeleteSubscriptionRequest(
            topic=t, group=g, expression=definition.FilterExpression(expression="*")
        ),
        "DescribeGroupAccumulation": admin.DescribeGroupAccumulationRequest(group=g),
        "ListConsumerConnection": admin.ListConsumerConnectionRequest(group=g),
        "ResetGroupOffset": reset,
        "QueryMessage": admin.ListMessageRequest(topic=t, message_key="k"),
        "PrintThreadStackTrace": admin.PrintThreadStackTraceRequest(client_id="c", group=g),
        "VerifyMessage": admin.VerifyMessageRequest(
            client_id="c", group=g, topic=t, message_id="x"
        ),
        "AdminSendMessage": sent,
        "GetConsumerRunningInfo": admin.GetConsumerRunningInfoRequest(group=g, client_id="c"),
        "GetTopicRoute": admin.GetTopicRouteRequest(topic=t),
        "QueryTimeSpan": admin.QueryTimeSpanRequest(group=g, topics=[t]),
        "GetProxyRuntimeStats": admin.GetProxyRuntimeStatsRequest(),
    }
