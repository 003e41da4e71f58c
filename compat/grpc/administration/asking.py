"""Questions of operators that clients answer: where their threads are, and whether they can process
a message.
"""

from duolog_server.compat.grpc.administration.messages import by_id
from duolog_server.compat.grpc.administration.serving import Caller
from duolog_server.compat.grpc.protocol.codes import OK, Refused
from duolog_server.compat.grpc.protocol.messages import found
from duolog_server.compat.grpc.protocol.names import group_of, topic_of
from duolog_server.compat.grpc.protocol.stubs import Code, Resource, Status, admin, service
from duolog_server.compat.grpc.relay.calls import ANSWER_MARGIN_SECONDS, time_left
from duolog_server.compat.grpc.relay.clients import Client, Clients, Questions
from duolog_server.node.broker import Broker
from duolog_server.node.wirecodec import record_to_wire

ASK_SECONDS = 10.0
TRACE_CHARACTERS_MAX = 1 << 20
REMARK_CHARACTERS_MAX = 500


class Asking:
    """Serves these calls, on the master, to which all clients have a stream."""

    def __init__(self, broker: Broker, clients: Clients, questions: Questions) -> None:
        self._clients = clients
        self._questions = questions
        self._caught_up = broker.log.caught_up
        self._lookups = broker.lookups

    async def stack_trace(
        self, caller: Caller, request: admin.PrintThreadStackTraceRequest
    ) -> admin.PrintThreadStackTraceResponse:
        """PrintThreadStackTrace. Raises Refused, Busy."""
        client = self._client(request.group, request.client_id)
        command = service.TelemetryCommand()
        command.print_thread_stack_trace_command.SetInParent()
        answer = await self._questions.ask(client, command, _seconds(caller))
        trace = answer.thread_stack_trace.thread_stack_trace[:TRACE_CHARACTERS_MAX]
        return admin.PrintThreadStackTraceResponse(status=OK, thread_stack_trace=trace)

    async def verify(
        self, caller: Caller, request: admin.VerifyMessageRequest
    ) -> admin.VerifyMessageResponse:
        """VerifyMessage: the status is the client's. Raises as Lookups, Refused, Busy."""
        client = self._client(request.group, request.client_id)
        await self._caught_up()
        record = by_id(self._lookups, topic_of(request.topic), request.message_id)
        command = service.TelemetryCommand()
        command.verify_message_command.message.CopyFrom(
            found(record_to_wire(record), request.topic)
        )
        answer = await self._questions.ask(client, command, _seconds(caller))
        status = answer.status
        if not status.code:
            raise Refused(
                Code.INTERNAL_SERVER_ERROR,
                f"client {client.client_id} does not say how it ended",
            )
        told = Status(code=status.code, message=status.message[:REMARK_CHARACTERS_MAX])
        return admin.VerifyMessageResponse(status=told)

    def _client(self, group: Resource, client_id: str) -> Client:
        """A consumer of a group. Raises Refused."""
        name, client = group_of(group), self._clients.find(client_id)
        if client is None or client.group != name:
            raise Refused(
                Code.NOT_FOUND,
                f"group {name} has no client {client_id[:400]!r} that is connected by gRPC",
            )
        return client


def _seconds(caller: Caller) -> float:
    """For the answer of a client: it ends before the call does."""
    most = ASK_SECONDS + ANSWER_MARGIN_SECONDS
    return time_left(caller, most, most)
