"""Routes as RocketMQ's JSON, of the nodes' remoting ports."""

import json
from collections.abc import Iterable

from duolog_server.compat.grpc.protocol.codes import OK, Refused
from duolog_server.compat.grpc.protocol.names import topic_of
from duolog_server.compat.grpc.protocol.stubs import Code, admin
from duolog_server.node.broker import Broker

REMOTING = "remoting"


class JsonRoutes:
    """Serves GetTopicRoute."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def route(self, request: admin.GetTopicRouteRequest) -> admin.GetTopicRouteResponse:
        """As the name server's answer. Raises UnknownTopic, NotMaster, Refused."""
        topic, protocol = topic_of(request.topic), request.protocol_type.lower()
        if protocol not in ("", REMOTING):
            raise Refused(
                Code.UNSUPPORTED,
                f"there is no JSON of routes for protocol {request.protocol_type[:64]!r}: clients "
                "of gRPC call MessagingService/QueryRoute",
            )
        route = self._broker.dialects.remoting_route
        if route is None:
            raise Refused(
                Code.UNSUPPORTED,
                "this node has no port for the remoting protocol (remoting.listen), and so no "
                "routes of it",
            )
        await self._broker.log.caught_up()
        return admin.GetTopicRouteResponse(status=OK, topic_route_data=route(topic).decode())


def joined_routes(replies: Iterable[admin.GetTopicRouteResponse]) -> admin.GetTopicRouteResponse:
    """A Join: the brokers and queues of all."""
    first, *others = [json.loads(reply.topic_route_data) for reply in replies]
    for other in others:
        for part in ("brokerDatas", "queueDatas"):
            first[part] += other[part]
    text = json.dumps(first, separators=(",", ":"))
    return admin.GetTopicRouteResponse(status=OK, topic_route_data=text)
