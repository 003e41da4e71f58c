"""The MessagingService: RocketMQ's clients on this node.

Whatever needs the master is passed on to it where this node is not. A request that is refused is
answered with gRPC status OK and a code, as RocketMQ's own servers do.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import grpc
import structlog
from duolog import _errors as sdk
from duolog._connection import uncancelled

from node import tokens
from node.broker import Broker
from node.deferred.delayservice import RecallHandle
from node.deferred.transactionservice import Check
from node.rocketmq import handles, settings
from node.rocketmq.auth import Authenticator
from node.rocketmq.clients import Client, Clients, Stream
from node.rocketmq.clusterroutes import ClusterRoutes
from node.rocketmq.codes import OK, Refused, overall, status, status_of
from node.rocketmq.forward import (
    Forwarder,
    is_copy,
    is_encrypted,
    is_forwarded,
    peer_of,
    refuse_forwarded,
    via_of,
)
from node.rocketmq.litetopics import LiteTopics
from node.rocketmq.messages import orphaned
from node.rocketmq.names import group_of, resource_of, topic_of
from node.rocketmq.pulling import Puller
from node.rocketmq.receiving import INVISIBLE_MS_MAX, Receiver, filter_of, stale
from node.rocketmq.routes import Routes, spelled_for
from node.rocketmq.sending import Sender
from node.rocketmq.stubs import Code, definition, rpc, service
from node.rocketmq.telemetryrelay import TelemetryRelays
from node.wirecodec import peer_host
from store.errors import StoreError
from store.metadata import Json, new_group

log = structlog.get_logger("duolog.rocketmq")

SEND_SECONDS = 3.0
DEADLINE_MARGIN_SECONDS = 0.3
ENTRIES_MAX = 1024
COMMAND_SECONDS = 2.0
ASKED_MAX = 3  # producers that are tried with one question
_UNREACHED = (TimeoutError, sdk.DuologError, grpc.RpcError, grpc.aio.BaseError, RuntimeError)
_FAILURES = (Refused, sdk.DuologError, StoreError)
Method = Callable[["MessagingService", Any, Any, Client], Awaitable[Any]]
Handler = Callable[["MessagingService", Any, Any], Awaitable[Any]]


def answering(
    reply: Callable[..., Any],
    *,
    master: bool = True,
    place: Callable[[Any], str] = lambda request: "",
) -> Callable[[Method], Handler]:
    """Decorate a unary method: who calls, who is to answer, and errors as codes.

    master: only a master answers. place: the replica group that a request names, if it does.
    """

    def decorate(method: Method) -> Handler:
        @wraps(method)
        async def call(self: "MessagingService", request: Any, context: Any) -> Any:
            try:
                client = self.admit(context)
                others = self.forwarder.other_groups()
                if others and (named := place(request)) in others:
                    return await self.forwarder.unary(method.__name__, request, context, named)
                if master and self.broker.replication.not_master():
                    return await self.forwarder.unary(method.__name__, request, context)
                try:
                    return await method(self, request, context, client)
                except sdk.NotMaster:
                    # Not any more (what was stored meanwhile is known there by its id), or a slave
                    # that does not know yet what was asked for.
                    return await self.forwarder.unary(method.__name__, request, context)
            except _FAILURES as error:
                log.debug("refused", method=method.__name__, reason=str(error)[:300])
                await refuse_forwarded(context, error)
                return reply(status=status_of(error), **_echoed(request, reply))

        return call

    return decorate


def _by_receipt(request: Any) -> str:
    return tokens.replica_group(request.receipt_handle)


def _by_queue(request: Any) -> str:
    return str(request.message_queue.broker.name)


def _echoed(request: Any, reply: Callable[..., Any]) -> dict[str, str]:
    """Clients keep the handle of a ChangeInvisibleDuration answer, whatever its status says."""
    if reply is service.ChangeInvisibleDurationResponse:
        return {"receipt_handle": request.receipt_handle}
    return {}


class MessagingService(rpc.MessagingServiceServicer):  # type: ignore[misc]
    """All RPCs of RocketMQ's clients."""

    def __init__(self, broker: Broker, authenticator: Authenticator) -> None:
        self.broker = broker
        self.forwarder = Forwarder(broker)
        gone = self.forwarder.is_gone
        self.clients = Clients(self._client_gone, broker.pop.way_gone, gone)
        self._lite = LiteTopics(broker)
        self._authenticator = authenticator
        self._sender = Sender(broker)
        self._receiver = Receiver(broker, self._lite)
        self._puller = Puller(broker)
        self._routes = Routes(broker)
        self._cluster = ClusterRoutes(self.forwarder)
        self._relays = TelemetryRelays(self.forwarder)
        self._running: list[asyncio.Task[None]] = []
        self._telling: set[asyncio.Task[None]] = set()
        self.tls_port = 0

    def start(self) -> None:
        """Begin to watch for clients that fall silent, and for another master."""
        self._running = [
            asyncio.ensure_future(self.clients.run()),
            asyncio.ensure_future(self._relays.run()),
        ]
        self.broker.transactions.askers.append(self._ask_producer)
        self.broker.lite.evicted.append(self._tell_evicted)

    async def stop(self) -> None:
        """End that, and the connections to the master."""
        tasks = [*self._telling, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sender.stop()
        await self.forwarder.close()

    def _client_gone(self, client_id: str) -> None:
        self.broker.pop.client_gone(client_id)
        self.broker.lite.client_gone(client_id)

    def admit(self, context: Any) -> Client:
        """Who calls. Raises Refused (UNAUTHORIZED, CLIENT_ID_REQUIRED)."""
        metadata = dict(context.invocation_metadata() or ())
        client_id = metadata.get("x-mq-client-id", "")
        if not client_id:
            raise Refused(Code.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing")
        self._authenticator.check(metadata)
        return self.clients.heard(str(client_id), via_of(context))

    # -- routes, clients -----------------------------------------------------------------------

    @answering(service.QueryRouteResponse, master=False)
    async def QueryRoute(self, request: Any, context: Any, client: Client) -> Any:
        """Queues of a topic, and where they are."""

        def own() -> Any:
            config = self._routes.topic(topic_of(request.topic))
            here = self._here(request, context)
            queues = self._routes.queues(request.topic, config, here)
            return service.QueryRouteResponse(status=OK, message_queues=queues)

        replies = await self._cluster.replies("QueryRoute", request, context, own)
        queues = [queue for reply in replies for queue in reply.message_queues]
        return service.QueryRouteResponse(status=OK, message_queues=queues)

    @answering(service.QueryAssignmentResponse, master=False)
    async def QueryAssignment(self, request: Any, context: Any, client: Client) -> Any:
        """What a push consumer polls."""

        def own() -> Any:
            fifo = self._receiver.is_orderly(group_of(request.group))
            config = self._routes.topic(topic_of(request.topic))
            here = self._here(request, context)
            queues = self._routes.assignments(request.topic, config, here, fifo)
            assignments = [definition.Assignment(message_queue=queue) for queue in queues]
            return service.QueryAssignmentResponse(status=OK, assignments=assignments)

        replies = await self._cluster.replies("QueryAssignment", request, context, own)
        assignments = [assignment for reply in replies for assignment in reply.assignments]
        return service.QueryAssignmentResponse(status=OK, assignments=assignments)

    def _here(self, request: Any, context: Any) -> Any:
        """Endpoints of the group's ports of the kind that the client uses."""
        tls_port = self.tls_port if is_encrypted(context) else 0
        made = self._routes.endpoints(request.endpoints, tls_port)
        return spelled_for(dict(context.invocation_metadata() or ()), made)

    @answering(service.HeartbeatResponse, master=False)
    async def Heartbeat(self, request: Any, context: Any, client: Client) -> Any:
        """A client lives."""
        if request.HasField("group"):
            client.group = group_of(request.group)
        if request.client_type:
            client.kind = request.client_type
        if self.broker.replication.not_master():
            await self.forwarder.tell("Heartbeat", request, context)
        return service.HeartbeatResponse(status=OK)

    @answering(service.NotifyClientTerminationResponse, master=False)
    async def NotifyClientTermination(self, request: Any, context: Any, client: Client) -> Any:
        """A client goes."""
        self.clients.leave(client.client_id)
        if self.broker.replication.not_master():
            await self.forwarder.tell("NotifyClientTermination", request, context)
        return service.NotifyClientTerminationResponse(status=OK)

    async def Telemetry(self, requests: Any, context: Any) -> None:
        """Settings in and out, commands to clients."""
        stream = Stream(context)
        try:
            client = self.admit(context)
        except Refused as refused:
            await stream.write(service.TelemetryCommand(status=status_of(refused)))
            return
        why = self.broker.replication.not_master()
        if why and is_forwarded(context):
            await refuse_forwarded(context, sdk.NotMaster(why))
        client.streams.append(stream)
        relay = None if is_forwarded(context) else self._relays.add(stream, context)
        try:
            async for command in requests:
                self.clients.heard(client.client_id)
                if command.WhichOneof("command") == "settings":
                    await stream.write(await self._settings(command.settings, client))
                    if relay is not None:
                        relay.settings(command)
        except Refused as refused:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, refused.message)
        finally:
            client.streams.remove(stream)
            if relay is not None:
                await self._relays.drop(relay)

    async def _settings(self, asked: Any, client: Client) -> Any:
        client.kind = asked.client_type
        row: Json = {}
        if asked.WhichOneof("pub_sub") == "publishing":
            named = {topic_of(topic) for topic in asked.publishing.topics}
            client.topics |= named & self.broker.metadata.topics.keys()
        elif asked.subscription.HasField("group"):
            client.group = group_of(asked.subscription.group)
            for entry in asked.subscription.subscriptions:
                chosen = filter_of(entry.expression)
                self.broker.filters.register(client.group, topic_of(entry.topic), chosen)
            row = self._group(client.group)
        store = self.broker.store
        body_max = store.options.max_message_size
        command = service.TelemetryCommand(status=OK)
        command.settings.CopyFrom(settings.reply_to(asked, row, store.delays_ms, body_max))
        return command

    def _group(self, name: str) -> Json:
        """A group's row; RocketMQ's defaults if there is none yet."""
        return self.broker.metadata.tables.groups.get(name) or new_group(name)

    # -- sending -------------------------------------------------------------------------------

    @answering(service.SendMessageResponse)
    async def SendMessage(self, request: Any, context: Any, client: Client) -> Any:
        """Store messages of one topic."""
        topics = {topic_of(message.topic) for message in request.messages}
        if len(topics) != 1:
            raise Refused(
                Code.MESSAGE_CORRUPTED, f"the messages of a request belong to {len(topics)} topics"
            )
        topic = topics.pop()
        deadline = asyncio.get_running_loop().time() + _time_left(context, SEND_SECONDS)
        host = peer_host(peer_of(context))
        entries = await self._sender.send(topic, list(request.messages), host, deadline)
        client.topics.add(topic)
        return service.SendMessageResponse(
            status=overall([entry.status for entry in entries]), entries=entries
        )

    @answering(
        service.RecallMessageResponse,
        place=lambda request: tokens.replica_group(request.recall_handle),
    )
    async def RecallMessage(self, request: Any, context: Any, client: Client) -> Any:
        """Call a timed message back before its time."""
        topic = topic_of(request.topic)
        handle = RecallHandle.from_text(request.recall_handle)
        if handle.replica_group != self.broker.config.node.group or handle.topic != topic:
            raise Refused(Code.BAD_REQUEST, "the recall handle belongs to another topic")
        try:
            await self.broker.delays.recall(topic, handle)
        except sdk.NoSuchMessage as error:  # clients take MESSAGE_NOT_FOUND for an empty poll
            raise Refused(Code.NOT_FOUND, str(error)) from None
        return service.RecallMessageResponse(status=OK, message_id=handle.message_id)

    @answering(
        service.EndTransactionResponse,
        place=lambda request: tokens.replica_group(request.transaction_id),
    )
    async def EndTransaction(self, request: Any, context: Any, client: Client) -> Any:
        """Commit or roll back, once; the same decision again is OK, the other one is refused."""
        topic = topic_of(request.topic)
        named = handles.TransactionId.from_text(request.transaction_id)
        if named.replica_group != self.broker.config.node.group or named.topic != topic:
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
                await transactions.end([named.origin], request.resolution == decisions.COMMIT)
        except sdk.NoSuchMessage as error:
            raise Refused(Code.INVALID_TRANSACTION_ID, str(error)) from None
        return service.EndTransactionResponse(status=OK)

    async def _ask_producer(self, check: Check) -> bool:
        """Ask a producer that publishes to a half message's topic; False if there is none."""
        topic = check.record.properties.get("REAL_TOPIC", "")
        for stream in self.clients.producers(topic)[:ASKED_MAX]:
            resource, group = resource_of(topic), self.broker.config.node.group
            command = service.TelemetryCommand(status=OK)
            asked = command.recover_orphaned_transaction_command
            asked.message.CopyFrom(orphaned(check.record, resource))
            asked.transaction_id = handles.TransactionId(group, topic, check.origin).to_text()
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    await uncancelled(stream.write(command))
                return True
            except _UNREACHED as error:
                log.debug("cannot reach a producer for a transaction check", reason=str(error))
        return False

    # -- receiving -----------------------------------------------------------------------------

    async def _passed_on(self, name: str, request: Any, context: Any) -> bool:
        """Answer a stream by the master of the queue's group; False if that is this node."""
        group = _by_queue(request)
        elsewhere = group in self.forwarder.other_groups()
        if not elsewhere and not self.broker.replication.not_master():
            return False
        await self.forwarder.stream(name, request, context, group if elsewhere else "")
        return True

    async def _pass_on_late(
        self, name: str, request: Any, context: Any, error: sdk.NotMaster
    ) -> None:
        """Let the master answer a poll that began here: not the master any more, or not yet."""
        await refuse_forwarded(context, error)
        await self.forwarder.stream(name, request, context)

    async def ReceiveMessage(self, request: Any, context: Any) -> None:
        """Messages with leases, or none when the poll's time is over."""
        try:
            client = self.admit(context)
            if await self._passed_on("ReceiveMessage", request, context):
                return
            left = context.time_remaining()
            try:
                found = await self._receiver.receive(request, client, left, via_of(context))
            except sdk.NotMaster as error:
                await self._pass_on_late("ReceiveMessage", request, context, error)
                return
            code = OK if found else status(Code.MESSAGE_NOT_FOUND, "no new message")
        except _FAILURES as error:
            await refuse_forwarded(context, error)
            found, code = [], status_of(error)
        await self._receiver.write(request, found, code, context.write)

    @answering(
        service.AckMessageResponse,
        place=lambda request: tokens.replica_group(
            request.entries[0].receipt_handle if request.entries else ""
        ),
    )
    async def AckMessage(self, request: Any, context: Any, client: Client) -> Any:
        """Messages are done."""
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

    @answering(service.ChangeInvisibleDurationResponse, place=_by_receipt)
    async def ChangeInvisibleDuration(self, request: Any, context: Any, client: Client) -> Any:
        """Another end of a lease."""
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = request.invisible_duration.ToMilliseconds()
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"an invisible duration of {invisible_ms} ms is outside 0..{INVISIBLE_MS_MAX} ms",
            )
        handle = self._receiver.handle(group, topic, request.receipt_handle)
        changed = self.broker.pop.change_invisible(group, handle, invisible_ms)
        if changed is None:
            raise stale()
        text = handles.to_text(self.broker.config.node.group, changed)
        return service.ChangeInvisibleDurationResponse(status=OK, receipt_handle=text)

    @answering(service.ForwardMessageToDeadLetterQueueResponse, place=_by_receipt)
    async def ForwardMessageToDeadLetterQueue(
        self, request: Any, context: Any, client: Client
    ) -> Any:
        """A consumer gives a message up."""
        group, topic = group_of(request.group), topic_of(request.topic)
        handle = self._receiver.handle(group, topic, request.receipt_handle)
        if not await self.broker.pop.to_dead_letters(group, handle):
            raise stale()
        return service.ForwardMessageToDeadLetterQueueResponse(status=OK)

    # -- lite topics ---------------------------------------------------------------------------

    @answering(service.SyncLiteSubscriptionResponse, master=False)
    async def SyncLiteSubscription(self, request: Any, context: Any, client: Client) -> Any:
        """Which lite topics a client hears: masters look into them, others may become masters."""
        name, reply = "SyncLiteSubscription", service.SyncLiteSubscriptionResponse(status=OK)
        not_master = self.broker.replication.not_master()
        if not_master and is_copy(context):
            self._lite.note(request, client)
            return reply
        if not not_master:
            await self._lite.sync(request, client)
        elif is_forwarded(context):
            raise sdk.NotMaster(not_master)
        else:
            reply = await self.forwarder.unary(name, request, context)
            if reply.status.code == Code.OK:
                self._lite.note(request, client)
        if not is_forwarded(context) and reply.status.code == Code.OK:
            await self.forwarder.copy(name, request, context)
        return reply

    def _tell_evicted(self, client_id: str, lite_topic: str) -> None:
        """Another client hears a lite topic from now on: NotifyUnsubscribeLite."""
        client = self.clients.find(client_id)
        for stream in client.streams if client is not None else ():
            task = asyncio.ensure_future(self._tell(stream, lite_topic))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    @staticmethod
    async def _tell(stream: Stream, lite_topic: str) -> None:
        command = service.TelemetryCommand(status=OK)
        command.notify_unsubscribe_lite_command.lite_topic = lite_topic
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await uncancelled(stream.write(command))
        except _UNREACHED as error:
            log.debug("cannot notify a consumer", reason=str(error))

    # -- pulling -------------------------------------------------------------------------------

    async def PullMessage(self, request: Any, context: Any) -> None:
        """Messages of a queue from an offset on."""
        try:
            self.admit(context)
            if await self._passed_on("PullMessage", request, context):
                return
            try:
                replies = await self._puller.pull(request, context.time_remaining())
            except sdk.NotMaster as error:
                await self._pass_on_late("PullMessage", request, context, error)
                return
        except _FAILURES as error:
            await refuse_forwarded(context, error)
            replies = [service.PullMessageResponse(status=status_of(error))]
        for reply in replies:
            await context.write(reply)

    @answering(service.UpdateOffsetResponse, place=_by_queue)
    async def UpdateOffset(self, request: Any, context: Any, client: Client) -> Any:
        """Commit a group's offset."""
        return await self._puller.update(request)

    @answering(service.GetOffsetResponse, place=_by_queue)
    async def GetOffset(self, request: Any, context: Any, client: Client) -> Any:
        """A group's committed offset."""
        return self._puller.committed(request)

    @answering(service.QueryOffsetResponse, place=_by_queue)
    async def QueryOffset(self, request: Any, context: Any, client: Client) -> Any:
        """An offset by place or time."""
        return self._puller.at(request)


def _time_left(context: Any, default: float) -> float:
    """Seconds until shortly before the call's deadline."""
    left = context.time_remaining()
    return max(0.0, (default if left is None else min(left, 60.0)) - DEADLINE_MARGIN_SECONDS)


__all__ = ["MessagingService"]
