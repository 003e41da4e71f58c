"""A MessagingService that does nothing: every send is well, every receive has messages.

python -m bench.stubserver PORT. What a client of RocketMQ reaches against it is the client's limit.
"""

import asyncio
import sys
import uuid
import zlib
from typing import Any

import grpc.aio

from duolog_server.compat.grpc.words import settings
from duolog_server.compat.grpc.words.codes import OK
from duolog_server.compat.grpc.words.stubs import definition, rpc, service
from duolog_server.store.delay import parse_delay_levels
from duolog_server.store.options import DEFAULT_DELAY_LEVELS

BODY = b"." * 100
CHECKSUM = f"{zlib.crc32(BODY):x}".upper()
QUEUES = 4


class Stub(rpc.MessagingServiceServicer):
    """What the client calls, answered at once."""

    def __init__(self, port: int) -> None:
        self._endpoints = definition.Endpoints(scheme=definition.AddressScheme.IPv4)
        self._endpoints.addresses.add(host="127.0.0.1", port=port)
        self._delays = parse_delay_levels(DEFAULT_DELAY_LEVELS)
        self._given = 0

    def _queue(self, topic: Any, number: int) -> Any:
        return definition.MessageQueue(
            topic=topic,
            id=number,
            permission=definition.Permission.READ_WRITE,
            broker=definition.Broker(name="stub", id=0, endpoints=self._endpoints),
            accept_message_types=[definition.MessageType.NORMAL],
        )

    async def QueryRoute(self, request: Any, context: Any) -> Any:
        """Four queues here."""
        queues = [self._queue(request.topic, k) for k in range(QUEUES)]
        return service.QueryRouteResponse(status=OK, message_queues=queues)

    async def QueryAssignment(self, request: Any, context: Any) -> Any:
        """The broker as a whole."""
        assigned = definition.Assignment(message_queue=self._queue(request.topic, -1))
        return service.QueryAssignmentResponse(status=OK, assignments=[assigned])

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        """Well."""
        return service.HeartbeatResponse(status=OK)

    async def NotifyClientTermination(self, request: Any, context: Any) -> Any:
        """Well."""
        return service.NotifyClientTerminationResponse(status=OK)

    async def Telemetry(self, requests: Any, context: Any) -> None:
        """The settings that duolog gives."""
        async for command in requests:
            if command.WhichOneof("command") == "settings":
                reply = service.TelemetryCommand(status=OK)
                told = settings.reply_to(command.settings, {}, self._delays, 4 << 20)
                reply.settings.CopyFrom(told)
                await context.write(reply)

    async def SendMessage(self, request: Any, context: Any) -> Any:
        """As if it were stored."""
        entries = [
            service.SendResultEntry(
                status=OK, message_id=message.system_properties.message_id, offset=0
            )
            for message in request.messages
        ]
        return service.SendMessageResponse(status=OK, entries=entries)

    async def ReceiveMessage(self, request: Any, context: Any) -> None:
        """As many messages as are asked for."""
        now = definition.SystemProperties().born_timestamp
        now.GetCurrentTime()
        for _ in range(request.batch_size):
            self._given += 1
            message = definition.Message(topic=request.message_queue.topic, body=BODY)
            system = message.system_properties
            system.message_id = uuid.uuid4().hex.upper()
            system.receipt_handle = f"handle-{self._given}"
            system.message_type = definition.MessageType.NORMAL
            system.delivery_attempt = 1
            system.born_timestamp.CopyFrom(now)
            system.store_timestamp.CopyFrom(now)
            system.body_encoding = definition.Encoding.IDENTITY
            system.body_digest.type = definition.DigestType.CRC32
            system.body_digest.checksum = CHECKSUM
            await context.write(service.ReceiveMessageResponse(message=message))
        await context.write(service.ReceiveMessageResponse(delivery_timestamp=now))
        await context.write(service.ReceiveMessageResponse(status=OK))

    async def AckMessage(self, request: Any, context: Any) -> Any:
        """Well."""
        entries = [
            service.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=OK
            )
            for entry in request.entries
        ]
        return service.AckMessageResponse(status=OK, entries=entries)


async def serve(port: int) -> None:
    """Until killed."""
    server = grpc.aio.server()
    rpc.add_MessagingServiceServicer_to_server(Stub(port), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
