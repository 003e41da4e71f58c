"""One client of RocketMQ's API, with its stubs, and messages for it."""

import uuid
from typing import Any, Never
from weakref import WeakSet

import grpc
import grpc.aio

from duolog_server.compat.grpc.protocol.stubs import definition, rpc, service
from duolog_server.serve.server import Node

QUEUES = 2
SHORT_POLL_MS = 500
CALL_SECONDS = 30.0
OPENED: "WeakSet[Api]" = WeakSet()


class Api:
    """One client of the API: `api.SendMessage(...)` with its id in the headers."""

    def __init__(self, node: Node, client_id: str = "test@1", **headers: str) -> None:
        self.node = node
        self.channel = self.dial(f"127.0.0.1:{node.port}")
        self.stub = rpc.MessagingServiceStub(self.channel)
        self.metadata = [(name.replace("_", "-"), value) for name, value in headers.items()]
        if client_id:
            self.metadata.append(("x-mq-client-id", client_id))
        OPENED.add(self)

    def dial(self, endpoint: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(endpoint)

    async def close(self) -> None:
        await self.channel.close()

    async def call(self, name: str, request: Any, timeout: float = CALL_SECONDS) -> Any:
        return await getattr(self.stub, name)(request, timeout=timeout, metadata=self.metadata)

    async def route(self, topic: str, namespace: str = "") -> Any:
        return await self.call(
            "QueryRoute", service.QueryRouteRequest(topic=resource(topic, namespace))
        )

    async def send(self, *messages: Any) -> Any:
        return await self.call("SendMessage", service.SendMessageRequest(messages=messages))

    async def receive(
        self,
        group: str,
        topic: str = "T",
        *,
        count: int = 32,
        invisible_ms: int = 30_000,
        expression: str = "*",
        kind: definition.FilterType = definition.FilterType.TAG,
        held: bool = False,
        poll_ms: int | None = None,
        queue_id: int = -1,
        attempt_id: str = "",
        timeout: float | None = None,
        namespace: str = "",
    ) -> "Received":
        """Messages that are there, or come within a short poll.

        timeout: seconds of the call, which waits for a message nearly as long. Without it, the
        answer has time enough, however slow the machine is.
        """
        if poll_ms is None and timeout is None:
            poll_ms = SHORT_POLL_MS
        request = service.ReceiveMessageRequest(
            group=resource(group, namespace),
            message_queue=definition.MessageQueue(topic=resource(topic, namespace), id=queue_id),
            filter_expression=definition.FilterExpression(type=kind, expression=expression),
            batch_size=count,
            auto_renew=held,
        )
        if not held:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        if poll_ms is not None:
            request.long_polling_timeout.FromMilliseconds(poll_ms)
        if attempt_id:
            request.attempt_id = attempt_id
        received = Received()
        call = self.stub.ReceiveMessage(
            request, timeout=timeout or CALL_SECONDS, metadata=self.metadata
        )
        async for reply in call:
            received.take(reply)
        return received

    async def ack(self, group: str, *handles: str, topic: str = "T", namespace: str = "") -> Any:
        entries = [service.AckMessageEntry(message_id="x", receipt_handle=h) for h in handles]
        return await self.call(
            "AckMessage",
            service.AckMessageRequest(
                group=resource(group, namespace), topic=resource(topic, namespace), entries=entries
            ),
        )

    async def change(
        self, group: str, handle: str, ms: int, topic: str = "T", *, suspend: bool = False
    ) -> Any:
        request = service.ChangeInvisibleDurationRequest(
            group=resource(group), topic=resource(topic), receipt_handle=handle, suspend=suspend
        )
        request.invisible_duration.FromMilliseconds(ms)
        return await self.call("ChangeInvisibleDuration", request)


async def close_all() -> None:
    """Close the clients that a test opened."""
    for api in list(OPENED):
        await api.close()
    OPENED.clear()


class LocalCall:
    """A client's call that no network brought."""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("x-mq-client-id", "test@1")]

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def time_remaining(self) -> float:
        return 5.0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        raise AssertionError(details)


class Received:
    """The parts of a ReceiveMessage answer."""

    def __init__(self) -> None:
        self.statuses: list[Any] = []
        self.messages: list[Any] = []
        self.delivered = 0

    def take(self, reply: Any) -> None:
        match reply.WhichOneof("content"):
            case "status":
                self.statuses.append(reply.status)
            case "message":
                self.messages.append(reply.message)
            case "delivery_timestamp":
                self.delivered += 1

    @property
    def code(self) -> int:
        (status,) = self.statuses
        return int(status.code)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def handles(self) -> list[str]:
        return [message.system_properties.receipt_handle for message in self.messages]


def resource(name: str, namespace: str = "") -> Any:
    return definition.Resource(name=name, resource_namespace=namespace)


def message(body: bytes = b"x", topic: str = "T", *, namespace: str = "", **system: Any) -> Any:
    """A message; keyword arguments are system properties, `properties` the user's."""
    made = definition.Message(
        topic=resource(topic, namespace), body=body, user_properties=system.pop("properties", {})
    )
    system.setdefault("message_id", f"01{uuid.uuid4().hex.upper()}")
    properties = made.system_properties
    properties.born_timestamp.GetCurrentTime()
    properties.born_host = "host"
    for name, value in system.items():
        if name == "keys":
            properties.keys.extend(value)
        elif name == "delivery_ms":
            properties.delivery_timestamp.FromMilliseconds(value)
        elif name == "digest":
            properties.body_digest.type, properties.body_digest.checksum = value
        else:
            setattr(properties, name, value)
    return made
