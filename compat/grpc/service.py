"""The MessagingService: RocketMQ's clients on this node.

Calls that need the master are forwarded to it. A refused request is answered with gRPC status OK
and a code, as by RocketMQ's own servers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import grpc
import structlog
from duolog import _errors as sdk
from duolog._background import Background
from duolog._nodechannel import uncancelled
from google.protobuf import message as protobuf
from grpc.aio import ServicerContext

from duolog_server.compat.grpc.auth import Authenticator, check_keys
from duolog_server.compat.grpc.consuming import INVISIBLE_MS_MAX, Puller, Receiver, filter_of, stale
from duolog_server.compat.grpc.guard import RocketmqGuard
from duolog_server.compat.grpc.litetopics import LiteTopics
from duolog_server.compat.grpc.protocol import handles, settings
from duolog_server.compat.grpc.protocol.codes import (
    OK,
    Refused,
    overall,
    refusal,
    status,
    status_of,
)
from duolog_server.compat.grpc.protocol.messages import orphaned
from duolog_server.compat.grpc.protocol.names import group_of, resource_of, topic_of
from duolog_server.compat.grpc.protocol.stubs import Code, Endpoints, definition, rpc, service
from duolog_server.compat.grpc.relay.calls import (
    Call,
    HeadersOnce,
    headers_of,
    is_copy,
    is_counted_elsewhere,
    is_encrypted,
    is_forwarded,
    peer_of,
    refuse_forwarded,
    time_left,
    via_of,
)
from duolog_server.compat.grpc.relay.clients import (
    ANSWERS,
    CLIENT_ID_MAX,
    Client,
    Clients,
    Questions,
    Stream,
)
from duolog_server.compat.grpc.relay.forward import Answer, Delivery, Forwarder, Polled, Streamed
from duolog_server.compat.grpc.relay.nodes import Neighbours
from duolog_server.compat.grpc.relay.telemetryrelay import TelemetryRelays
from duolog_server.compat.grpc.routes import Routes, replies_of_groups, spelled_for
from duolog_server.compat.grpc.sending import Sender
from duolog_server.node.broker import Broker, report
from duolog_server.node.core.connected import Read
from duolog_server.node.deferred.delayservice import RecallHandle
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.runtime import tokens
from duolog_server.node.wirecodec import peer_host
from duolog_server.store.errors import StoreError
from duolog_server.store.metadata import Json, new_group

log = structlog.get_logger("duolog.rocketmq")

SEND_SECONDS = 3.0
CALL_SECONDS_MAX = 60.0  # that a call may ask for
ENTRIES_MAX = 1024
WORD_MAX = 64  # characters kept of what a client says about itself
COMMAND_SECONDS = 2.0
ASKED_MAX = 3  # producers tried for one check
_UNREACHED = (TimeoutError, sdk.DuologError, grpc.RpcError, grpc.aio.BaseError, RuntimeError)
_FAILURES = (Refused, sdk.DuologError, StoreError)
Asked = TypeVar("Asked", bound=protobuf.Message)
Made = TypeVar("Made", bound=Answer)
Found = TypeVar("Found")
Method = Callable[["MessagingService", Asked, Call, Client], Awaitable[Made]]
Handler = Callable[["MessagingService", Asked, ServicerContext[Asked, Made]], Awaitable[Made]]


# Fields of requests that name the replica group to ask.
_TOKENS = {
    service.RecallMessageRequest: "recall_handle",
    service.EndTransactionRequest: "transaction_id",
    service.ChangeInvisibleDurationRequest: "receipt_handle",
    service.ForwardMessageToDeadLetterQueueRequest: "receipt_handle",
}


def answering(
    kind: type[Made], *, master: bool = True, reads: bool = True
) -> Callable[[Method[Asked, Made]], Handler[Asked, Made]]:
    """Decorate a unary method: authentication, forwarding, and errors as codes.

    kind: of its replies. master: only a master answers. reads: it sees what other clients were
    answered before it.
    """

    def decorate(method: Method[Asked, Made]) -> Handler[Asked, Made]:
        name = kind.__name__.removesuffix("Response")

        @wraps(method)
        async def call(
            self: "MessagingService", request: Asked, grpc_context: ServicerContext[Asked, Made]
        ) -> Made:
            context = self.call_of(grpc_context)
            try:
                client = await self.admit(context, reads)
                others = self.forwarder.other_groups()
                if others and (named := _place_of(request)) in others:
                    return await self.forwarder.unary(kind, request, context, named)
                if master and self.broker.replication.not_master():
                    return await self.forwarder.unary(kind, request, context)
                try:
                    return await method(self, request, context, client)
                except sdk.NotMaster:
                    # No longer the master (the next one recognises stored messages by their ids),
                    # or a slave that does not have the requested object yet.
                    if is_forwarded(context):
                        raise
                    return await self.forwarder.unary(kind, request, context)
            except _FAILURES as error:
                log.debug("refused", method=name, reason=str(error)[:300])
                await refuse_forwarded(context, error)
                return refusal(kind, request, error)

        return call

    return decorate


def _place_of(request: Any) -> str:
    """The replica group that a request names; empty for none."""
    if "message_queue" in request.DESCRIPTOR.fields_by_name:
        return str(request.message_queue.broker.name)
    if isinstance(request, service.AckMessageRequest):
        return tokens.replica_group(request.entries[0].receipt_handle if request.entries else "")
    token = _TOKENS.get(type(request))
    return tokens.replica_group(getattr(request, token)) if token is not None else ""


class MessagingService(rpc.MessagingServiceServicer):
    """All RPCs of RocketMQ's clients.

    Attributes:
        is_node: whether a peer, as gRPC names it, is a node that may say who a client is.
    """

    def __init__(
        self, broker: Broker, authenticator: Authenticator, guard: RocketmqGuard | None = None
    ) -> None:
        """guard: None without access control."""
        self.broker = broker
        self._guard = guard
        self._neighbours = Neighbours(broker)
        # A guard lets no other calls than those of nodes pass that say so.
        self.is_node = self._neighbours.has if guard is None else lambda peer: True
        self.forwarder = Forwarder(broker, guard.vouch) if guard else Forwarder(broker)
        registration = self.forwarder.registration
        self.clients = Clients(self._client_gone, broker.pop.way_gone, registration)
        self._lite = LiteTopics(broker.core, broker.lite, broker.pop)
        self._authenticator = authenticator
        self.sender = Sender(broker)
        pop, receives = broker.pop, broker.receives
        self._receiver = Receiver(broker.core, pop, receives, self._lite, broker.group)
        self._puller = Puller(broker.core, broker.reader, broker.offsets)
        self._routes = Routes(broker)
        self._relays = TelemetryRelays(self.forwarder)
        self.questions = Questions()
        self._running = Background(broker.give_up)
        self._telling = Background(report)
        self.tls_port = 0

    def start(self) -> None:
        """Start watching for silent clients and for a change of masters."""
        self._running.start(self.clients.run())
        self._running.start(self._relays.run())
        if self._guard is not None:
            self._running.start(self._guard.run())
        else:
            self._running.start(self._neighbours.run())
        self.broker.connected.add(self.clients)
        self.broker.transactions.askers.append(self._ask_producer)
        self.broker.lite.evicted.append(self._tell_evicted)

    async def stop(self) -> None:
        """Stop watching, and close the connections to the master."""
        await self._running.stop()
        await self._telling.stop()
        await self.sender.stop()
        await self.forwarder.close()

    def _client_gone(self, client_id: str) -> None:
        self.broker.pop.client_gone(client_id)
        self.broker.lite.client_gone(client_id)

    def call_of(self, context: Call) -> HeadersOnce:
        """A call, with the client's address as far as it can be believed."""
        return HeadersOnce(context, self.is_node)

    async def admit(self, context: Call, reads: bool = True) -> Client:
        """The client that calls. reads: the call sees what other clients were answered before it.

        Raises Refused (UNAUTHORIZED, CLIENT_ID_REQUIRED).
        """
        metadata = headers_of(context)
        client_id = metadata.get("x-mq-client-id", "")
        if not 0 < len(client_id) <= CLIENT_ID_MAX:
            raise Refused(
                Code.CLIENT_ID_REQUIRED,
                f"the header x-mq-client-id must have 1 to {CLIENT_ID_MAX} characters, it has "
                f"{len(client_id)}",
            )
        check_keys(self._authenticator, context, self.broker.audit, "MessagingService")
        if reads:
            await self.broker.log.caught_up()
        client = self.clients.saw(str(client_id), via_of(context))
        if not client.address:
            client.address = peer_host(peer_of(context)).address
            client.language = str(metadata.get("x-mq-language", ""))[:WORD_MAX]
            client.version = str(metadata.get("x-mq-client-version", ""))[:WORD_MAX]
        return client

    # -- routes, clients -----------------------------------------------------------------------

    @answering(service.QueryRouteResponse, master=False)
    async def QueryRoute(
        self, request: service.QueryRouteRequest, context: Call, client: Client
    ) -> service.QueryRouteResponse:
        """The queues of a topic and their endpoints."""

        def own() -> service.QueryRouteResponse:
            config = self._routes.topic(topic_of(request.topic))
            here = self._here(request, context)
            queues = self._routes.queues(request.topic, config, here)
            return service.QueryRouteResponse(status=OK, message_queues=queues)

        kind = service.QueryRouteResponse
        replies = await replies_of_groups(self.forwarder, kind, request, context, own)
        return kind(status=OK, message_queues=[q for one in replies for q in one.message_queues])

    @answering(service.QueryAssignmentResponse, master=False)
    async def QueryAssignment(
        self, request: service.QueryAssignmentRequest, context: Call, client: Client
    ) -> service.QueryAssignmentResponse:
        """Assignments that a push consumer polls."""

        def own() -> service.QueryAssignmentResponse:
            fifo = self._receiver.is_orderly(group_of(request.group))
            config = self._routes.topic(topic_of(request.topic))
            here = self._here(request, context)
            # Assigned is each queue, where messages are ordered, or the broker as a whole.
            if fifo:
                group = group_of(request.group)
                queues = self._routes.queues(request.topic, config, here, group=group)
            else:
                queues = self._routes.any_queue(request.topic, config, here)
            assignments = [definition.Assignment(message_queue=queue) for queue in queues]
            return service.QueryAssignmentResponse(status=OK, assignments=assignments)

        kind = service.QueryAssignmentResponse
        replies = await replies_of_groups(self.forwarder, kind, request, context, own)
        return kind(status=OK, assignments=[a for one in replies for a in one.assignments])

    def _here(
        self,
        request: service.QueryRouteRequest | service.QueryAssignmentRequest,
        context: Call,
    ) -> Endpoints:
        """Endpoints of the group's nodes, with the kind of port that the client uses."""
        tls_port = self.tls_port if is_encrypted(context) else 0
        made = self._routes.endpoints(request.endpoints, tls_port)
        return spelled_for(headers_of(context), made)

    @answering(service.HeartbeatResponse, master=False)
    async def Heartbeat(
        self, request: service.HeartbeatRequest, context: Call, client: Client
    ) -> service.HeartbeatResponse:
        """Renew a client."""
        if request.HasField("group"):
            client.group = group_of(request.group)
        if request.client_type:
            client.kind = request.client_type
        if self.broker.replication.not_master():
            await self.forwarder.tell(service.HeartbeatResponse, request, context)
        return service.HeartbeatResponse(status=OK)

    @answering(service.NotifyClientTerminationResponse, master=False)
    async def NotifyClientTermination(
        self, request: service.NotifyClientTerminationRequest, context: Call, client: Client
    ) -> service.NotifyClientTerminationResponse:
        """Remove a client."""
        self.clients.leave(client.client_id)
        if self.broker.replication.not_master():
            await self.forwarder.tell(service.NotifyClientTerminationResponse, request, context)
        return service.NotifyClientTerminationResponse(status=OK)

    async def Telemetry(
        self,
        requests: AsyncIterator[service.TelemetryCommand],
        context: ServicerContext[service.TelemetryCommand, service.TelemetryCommand],
    ) -> None:
        """Settings in and out, commands to clients."""
        stream = Stream(context)
        try:
            called = self.call_of(context)
            client = await self.admit(called)
            with self._connected(called):
                await self._telemetry(requests, context, stream, client)
        except (Refused, sdk.Throttled) as refused:
            await stream.write(service.TelemetryCommand(status=status_of(refused)))

    def _connected(self, context: Call) -> AbstractContextManager[None]:
        """While a stream is open: it counts where the client is connected."""
        if is_counted_elsewhere(context):
            return nullcontext()
        return self.broker.core.throttle.joining(who_calls(context), str(context.peer()))

    async def _telemetry(
        self,
        requests: AsyncIterator[service.TelemetryCommand],
        context: ServicerContext[service.TelemetryCommand, service.TelemetryCommand],
        stream: Stream,
        client: Client,
    ) -> None:
        why = self.broker.replication.not_master()
        if why and is_forwarded(context):
            await refuse_forwarded(context, sdk.NotMaster(why))
        client.streams.append(stream)
        relay = None if is_forwarded(context) else self._relays.add(stream, context)
        try:
            async for command in requests:
                self.clients.saw(client.client_id)
                if command.WhichOneof("command") == "settings":
                    await stream.write(await self._settings(command.settings, client))
                    if relay is not None:
                        relay.settings(command)
                elif command.WhichOneof("command") in ANSWERS:
                    self.questions.answered(client, command)
                    if relay is not None:
                        relay.answer(command)
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refused.message)
        finally:
            client.streams.remove(stream)
            if relay is not None:
                await self._relays.drop(relay)

    async def _settings(
        self, asked: definition.Settings, client: Client
    ) -> service.TelemetryCommand:
        client.kind = asked.client_type
        row: Json = {}
        if asked.WhichOneof("pub_sub") == "publishing":
            named = {topic_of(topic) for topic in asked.publishing.topics}
            self.clients.publishes(client, named & self.broker.metadata.topics.keys())
        elif asked.subscription.HasField("group"):
            client.group = group_of(asked.subscription.group)
            reads = []
            for entry in asked.subscription.subscriptions:
                topic, chosen = topic_of(entry.topic), filter_of(entry.expression)
                self.broker.filters.register(client.group, topic, chosen)
                is_sql = entry.expression.type == definition.FilterType.SQL
                reads.append(Read(topic, entry.expression.expression, is_sql))
            client.hostname = asked.user_agent.hostname[:WORD_MAX]
            self.clients.subscribes(client, tuple(reads), self.broker.times.wall_ms())
            row = self._group(client.group)
        delays_ms = self.broker.delays.levels_ms
        body_max = self.broker.core.options.max_message_size
        command = service.TelemetryCommand(status=OK)
        measured = self.broker.measures is not None
        command.settings.CopyFrom(settings.reply_to(asked, row, delays_ms, body_max, measured))
        return command

    def _group(self, name: str) -> Json:
        """The settings of a group; RocketMQ's defaults if it does not exist yet."""
        return self.broker.metadata.tables.groups.get(name) or new_group(name)

    # -- sending -------------------------------------------------------------------------------

    @answering(service.SendMessageResponse, reads=False)
    async def SendMessage(
        self, request: service.SendMessageRequest, context: Call, client: Client
    ) -> service.SendMessageResponse:
        """Store messages of one topic."""
        topics = {topic_of(message.topic) for message in request.messages}
        if len(topics) != 1:
            raise Refused(
                Code.MESSAGE_CORRUPTED, f"the messages of a request belong to {len(topics)} topics"
            )
        topic = topics.pop()
        seconds = time_left(context, SEND_SECONDS, CALL_SECONDS_MAX)
        deadline = asyncio.get_running_loop().time() + seconds
        host = peer_host(peer_of(context))
        entries = await self.sender.send(topic, list(request.messages), host, deadline)
        self.clients.publishes(client, {topic})
        return service.SendMessageResponse(
            status=overall([entry.status for entry in entries]), entries=entries
        )

    @answering(service.RecallMessageResponse)
    async def RecallMessage(
        self, request: service.RecallMessageRequest, context: Call, client: Client
    ) -> service.RecallMessageResponse:
        """Recall a timed message before its time."""
        topic = topic_of(request.topic)
        handle = RecallHandle.from_text(request.recall_handle)
        if handle.replica_group != self.broker.group or handle.topic != topic:
            raise Refused(Code.BAD_REQUEST, "the recall handle belongs to another topic")
        try:
            await self.broker.delays.recall(topic, handle)
        except sdk.NoSuchMessage as error:  # clients treat MESSAGE_NOT_FOUND as an empty poll
            raise Refused(Code.NOT_FOUND, str(error)) from None
        return service.RecallMessageResponse(status=OK, message_id=handle.message_id)

    @answering(service.EndTransactionResponse)
    async def EndTransaction(
        self, request: service.EndTransactionRequest, context: Call, client: Client
    ) -> service.EndTransactionResponse:
        """Commit or roll back. Repeating a decision is OK; the opposite decision is refused."""
        topic = topic_of(request.topic)
        named = handles.TransactionId.from_text(request.transaction_id)
        if named.replica_group != self.broker.group or named.topic != topic:
            raise Refused(Code.INVALID_TRANSACTION_ID, "the transaction belongs to another topic")
        transactions = self.broker.transactions
        decisions = definition.TransactionResolution
        try:
            record = await transactions.find(named.origin)
            names = record and [record.properties.get(key) for key in ("REAL_TOPIC", "UNIQ_KEY")]
            if names and names != [topic, request.message_id]:
                raise Refused(
                    Code.INVALID_TRANSACTION_ID, "the transaction belongs to another message"
                )
            if request.resolution in (decisions.COMMIT, decisions.ROLLBACK):
                commit = request.resolution == decisions.COMMIT
                await transactions.end([named.origin], commit, None)  # its key was proof enough
            else:
                transactions.undecided([named.origin], None)
        except sdk.NoSuchMessage as error:
            raise Refused(Code.INVALID_TRANSACTION_ID, str(error)) from None
        return service.EndTransactionResponse(status=OK)

    async def _ask_producer(self, check: Check) -> bool:
        """Send a check to a producer of a half message's topic; False if there is none."""
        topic = check.record.properties.get("REAL_TOPIC", "")
        streams = sorted(self.clients.producers(topic), key=lambda stream: stream.takes_nothing)
        for stream in streams[:ASKED_MAX]:
            resource, group = resource_of(topic), self.broker.group
            command = service.TelemetryCommand(status=OK)
            asked = command.recover_orphaned_transaction_command
            asked.message.CopyFrom(orphaned(check.record, resource))
            asked.transaction_id = handles.TransactionId(group, topic, check.origin).to_text()
            if await self._tell(stream, command):
                return True
        return False

    # -- receiving -----------------------------------------------------------------------------

    async def _polled(
        self,
        kind: type[Streamed],
        request: Polled,
        context: Delivery[Streamed],
        poll: Callable[[], Awaitable[Found]],
    ) -> Found | None:
        """What a poll finds on the master of the queue's group; None where that is another node,
        which has answered the client.
        """
        group = _place_of(request)
        elsewhere = group in self.forwarder.other_groups()
        if not elsewhere and not self.broker.replication.not_master():
            try:
                return await poll()
            except sdk.NotMaster as error:  # no longer the master, or not yet
                await refuse_forwarded(context, error)
        await self.forwarder.stream(kind, request, context, group if elsewhere else "")
        return None

    async def ReceiveMessage(
        self,
        request: service.ReceiveMessageRequest,
        context: ServicerContext[service.ReceiveMessageRequest, service.ReceiveMessageResponse],
    ) -> None:
        """Messages with leases, or none when the poll times out."""
        untaken, address = self.broker.untaken, ""
        try:
            called = self.call_of(context)
            client = await self.admit(called)
            who = who_calls(called)
            address = who.address
            await untaken.some_room(address)
            untaken.take(address, 0)  # its messages are counted when there are any
            left, via, receive = context.time_remaining, via_of(called), self._receiver.receive
            found = await self._polled(
                service.ReceiveMessageResponse,
                request,
                context,
                lambda: receive(request, client, left(), who, via),
            )
            if found is None:
                return
            code = OK if found else status(Code.MESSAGE_NOT_FOUND, "no new message")
        except _FAILURES as error:
            await refuse_forwarded(context, error)
            found, code = [], status_of(error)
        held = sum(len(popped.body) for popped in found)
        untaken.take(address, held)
        try:
            await self._receiver.write(request, found, code, context.write)
        finally:
            untaken.give(address, held)

    @answering(service.AckMessageResponse)
    async def AckMessage(
        self, request: service.AckMessageRequest, context: Call, client: Client
    ) -> service.AckMessageResponse:
        """Acknowledge messages."""
        group, topic = group_of(request.group), topic_of(request.topic)
        if not 1 <= len(request.entries) <= ENTRIES_MAX:
            raise Refused(
                Code.BAD_REQUEST,
                f"{len(request.entries)} entries in a request, it must be 1 to {ENTRIES_MAX}",
            )
        reply = service.AckMessageResponse()
        for entry in request.entries:
            reply.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=self._receiver.ack(group, topic, entry.receipt_handle),
            )
        reply.status.CopyFrom(overall([entry.status for entry in reply.entries]))
        return reply

    @answering(service.ChangeInvisibleDurationResponse)
    async def ChangeInvisibleDuration(
        self, request: service.ChangeInvisibleDurationRequest, context: Call, client: Client
    ) -> service.ChangeInvisibleDurationResponse:
        """Change the end of a lease."""
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = request.invisible_duration.ToMilliseconds()
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"an invisible duration of {invisible_ms} ms is outside 0..{INVISIBLE_MS_MAX} ms",
            )
        handle = self._receiver.handle(group, topic, request.receipt_handle)
        suspend = request.suspend
        changed = self.broker.pop.change_invisible(group, handle, invisible_ms, suspend=suspend)
        if changed is None:
            raise stale()
        text = handles.to_text(self.broker.group, changed)
        return service.ChangeInvisibleDurationResponse(status=OK, receipt_handle=text)

    @answering(service.ForwardMessageToDeadLetterQueueResponse)
    async def ForwardMessageToDeadLetterQueue(
        self, request: service.ForwardMessageToDeadLetterQueueRequest, context: Call, client: Client
    ) -> service.ForwardMessageToDeadLetterQueueResponse:
        """Give a message up: store it as a dead letter."""
        group, topic = group_of(request.group), topic_of(request.topic)
        handle = self._receiver.handle(group, topic, request.receipt_handle)
        if not await self.broker.pop.to_dead_letters(group, handle):
            raise stale()
        return service.ForwardMessageToDeadLetterQueueResponse(status=OK)

    # -- lite topics ---------------------------------------------------------------------------

    @answering(service.SyncLiteSubscriptionResponse, master=False)
    async def SyncLiteSubscription(
        self, request: service.SyncLiteSubscriptionRequest, context: Call, client: Client
    ) -> service.SyncLiteSubscriptionResponse:
        """A client's lite topics; every node keeps them, as it may become the master."""
        kind = service.SyncLiteSubscriptionResponse
        reply = kind(status=OK)
        not_master = self.broker.replication.not_master()
        if not_master and is_copy(context):
            self._lite.note(request, client)
            return reply
        if not not_master:
            await self._lite.sync(request, client)
        elif is_forwarded(context):
            raise sdk.NotMaster(not_master)
        else:
            reply = await self.forwarder.unary(kind, request, context)
            if reply.status.code == Code.OK:
                self._lite.note(request, client)
        if not is_forwarded(context) and reply.status.code == Code.OK:
            await self.forwarder.copy(kind, request, context)
        return reply

    def _tell_evicted(self, client_id: str, lite_topic: str) -> None:
        """Notify a client that another one took over a lite topic (NotifyUnsubscribeLite)."""
        client = self.clients.find(client_id)
        for stream in client.streams if client is not None else ():
            command = service.TelemetryCommand(status=OK)
            command.notify_unsubscribe_lite_command.lite_topic = lite_topic
            self._telling.start(self._tell(stream, command))

    @staticmethod
    async def _tell(stream: Stream, command: service.TelemetryCommand) -> bool:
        """Send a client a command; whether its stream took it in time."""
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await uncancelled(stream.write(command))
        except _UNREACHED as error:
            log.debug("cannot reach a client", reason=str(error))
            return False
        return True

    # -- pulling -------------------------------------------------------------------------------

    async def PullMessage(
        self,
        request: service.PullMessageRequest,
        context: ServicerContext[service.PullMessageRequest, service.PullMessageResponse],
    ) -> None:
        """Read messages of a queue from an offset on."""
        try:
            called = self.call_of(context)
            await self.admit(called)
            who = who_calls(called)
            pulled = await self._polled(
                service.PullMessageResponse,
                request,
                context,
                lambda: self._puller.pull(request, context.time_remaining(), who),
            )
            if pulled is None:
                return
            replies, held = pulled
        except _FAILURES as error:
            await refuse_forwarded(context, error)
            await context.write(service.PullMessageResponse(status=status_of(error)))
            return
        try:
            for reply in replies:
                await context.write(reply)
        finally:
            self.broker.untaken.give(who.address, held)

    @answering(service.UpdateOffsetResponse)
    async def UpdateOffset(
        self, request: service.UpdateOffsetRequest, context: Call, client: Client
    ) -> service.UpdateOffsetResponse:
        """Commit a group's offset."""
        return await self._puller.update(request)

    @answering(service.GetOffsetResponse)
    async def GetOffset(
        self, request: service.GetOffsetRequest, context: Call, client: Client
    ) -> service.GetOffsetResponse:
        """A group's committed offset."""
        return self._puller.committed(request)

    @answering(service.QueryOffsetResponse)
    async def QueryOffset(
        self, request: service.QueryOffsetRequest, context: Call, client: Client
    ) -> service.QueryOffsetResponse:
        """An offset by place or time."""
        return self._puller.at(request)


def who_calls(context: Call) -> Who:
    """The caller of this task's call, on any node."""
    return Who.at(name_of_caller(), peer_host(peer_of(context)).address)
