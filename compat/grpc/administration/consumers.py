"""Consumers that are connected, and what groups read."""

from collections.abc import Iterable, Iterator

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.compat.grpc.protocol.codes import OK, Refused
from duolog_server.compat.grpc.protocol.names import group_of, resource_of, topic_of
from duolog_server.compat.grpc.protocol.stubs import Code, admin, definition
from duolog_server.node.api.readership import groups_of, topics_of
from duolog_server.node.api.visibility import Sight
from duolog_server.node.broker import Broker
from duolog_server.node.core.connected import Consumer, Read
from duolog_server.node.core.slices import Slices
from duolog_server.node.pop.liteservice import bound_topic
from duolog_server.store.lightqueues import is_light
from duolog_server.store.metadata import is_reserved_topic

ROWS_MAX = 10_000  # of an answer
Expression = definition.FilterExpression
OfSubscription = admin.ListSubscriptionRequest | admin.DescribeSubscriptionRequest
Clients = dict[str, list[Consumer]]  # by group


class Consumers:
    """Tells of them, on the master of this replica group, which all clients call."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def connections(
        self, request: admin.ListConsumerConnectionRequest
    ) -> admin.ListConsumerConnectionResponse:
        """ListConsumerConnection: those that read the topic, if one is named. Raises Refused."""
        if request.HasField("liteTopic"):
            raise Refused(
                Code.UNSUPPORTED, "subscribers of one lite topic are not listed: name the topic"
            )
        group = group_of(request.group)
        topic = topic_of(request.topic) if request.HasField("topic") else ""
        await self._known_group(group)
        reply, slices = admin.ListConsumerConnectionResponse(status=OK), Slices()
        async for client in slices.each(self._clients([group])[group]):
            if not topic or any(read.topic == topic for read in client.reads):
                reply.client_info.append(self._info(group, client))
        return reply

    async def subscriptions(
        self, request: admin.ListSubscriptionRequest, sight: Sight
    ) -> admin.ListSubscriptionResponse:
        """ListSubscription. Raises Refused, UnknownGroup, UnknownTopic, NotMaster."""
        pairs, clients = await self._pairs(request, sight, connected=False)
        reply, slices = admin.ListSubscriptionResponse(status=OK), Slices()
        async for group, topic in slices.each(pairs):
            reply.subscription_info.append(self._subscription(group, topic, clients[group]))
        return reply

    async def subscriptions_of_clients(
        self, request: admin.DescribeSubscriptionRequest, sight: Sight
    ) -> admin.DescribeSubscriptionResponse:
        """DescribeSubscription. Raises Refused, UnknownGroup, UnknownTopic, NotMaster."""
        pairs, clients = await self._pairs(request, sight, connected=True)
        reply, slices = admin.DescribeSubscriptionResponse(status=OK), Slices()
        async for group, topic in slices.each(pairs):
            whole = self._subscription(group, topic, clients[group])
            async for client in slices.each(clients[group]):
                for read in client.reads:
                    if read.topic == topic:
                        row = reply.client_subscription_info.add()
                        row.client_info.CopyFrom(self._info(group, client))
                        row.subscription_info.CopyFrom(whole)
                        _tell(row.subscription_info, client, read)
                if len(reply.client_subscription_info) > ROWS_MAX:
                    raise _too_many()
        return reply

    # -- what there is -------------------------------------------------------------------------

    async def _pairs(
        self, request: OfSubscription, sight: Sight, *, connected: bool
    ) -> tuple[list[tuple[str, str]], Clients]:
        """Groups with the topics that they read, or have read, and the clients of these groups.

        connected: only what clients read that are connected.
        """
        await self._broker.log.caught_up()
        topic = topic_of(request.topic) if request.HasField("topic") else ""
        if topic and topic not in self._broker.metadata.topics:
            self._broker.admission.check_knows()
            raise sdk.UnknownTopic(f"topic {topic!r} does not exist")
        slices = Slices()
        if request.HasField("group"):
            group = group_of(request.group)
            await self._known_group(group)
            clients = self._clients([group])
            topics = {read.topic for client in clients[group] for read in client.reads}
            if not connected:
                topics |= await topics_of(self._broker, group, slices)
            pairs = [(group, one) for one in sorted(topics) if topic in ("", one) and _shown(one)]
        elif topic:
            found = sorted(await groups_of(self._broker, topic, slices))
            pairs = [(group, topic) async for group in slices.each(found) if sight.group(group)]
            clients = self._clients(group for group, _ in pairs)
        else:
            raise Refused(Code.BAD_REQUEST, "name a topic, a group, or both")
        if len(pairs) > ROWS_MAX:
            raise _too_many()
        return pairs, clients

    def _clients(self, groups: Iterable[str]) -> Clients:
        made: Clients = {group: [] for group in groups}
        for group, client in self._broker.connected.consumers(made.keys()):
            made[group].append(client)
        return made

    async def _known_group(self, group: str) -> None:
        """Raise UnknownGroup, NotMaster."""
        await self._broker.log.caught_up()
        known = self._broker.admission.group_tables().groups
        if group not in known and not any(self._broker.connected.consumers([group])):
            raise sdk.UnknownGroup(f"group {group!r} does not exist")

    # -- parts of replies ----------------------------------------------------------------------

    def _model(self, group: str, clients: Iterable[Consumer]) -> admin.MessageModel:
        row = self._broker.metadata.tables.groups.get(group, {})
        if bound_topic(row):
            return admin.LITE_SELECTIVE
        broadcasting = any(client.broadcasting for client in clients)
        return admin.BROADCASTING if broadcasting else admin.CLUSTERING

    def _info(self, group: str, client: Consumer) -> admin.ClientInfo:
        return admin.ClientInfo(
            client_id=client.client_id,
            version=client.version,
            language=client.language,
            hostname=client.hostname,
            egress_ip=client.address,
            message_model=self._model(group, (client,)),
        )

    def _subscription(
        self, group: str, topic: str, clients: list[Consumer]
    ) -> admin.SubscriptionInfo:
        """What a group reads of a topic: as the client says that told of it last."""
        made = admin.SubscriptionInfo(
            group=resource_of(group),
            topic=resource_of(topic),
            message_model=self._model(group, clients),
            subscription_consistency=True,
        )
        told = sorted(_told(topic, clients), key=lambda pair: pair[0].told_ms)
        for client, read in told:
            made.online = True
            _tell(made, client, read)
        known = {(read.expression, read.is_sql) for _, read in told}
        made.subscription_consistency = len(known) <= 1
        if not told and (row := self._broker.metadata.tables.filters.get(topic, {}).get(group)):
            made.expression.type = definition.FilterType.SQL
            made.expression.expression = str(row.get("expression", ""))
        return made


def _told(topic: str, clients: Iterable[Consumer]) -> Iterator[tuple[Consumer, Read]]:
    return ((client, read) for client in clients for read in client.reads if read.topic == topic)


def _tell(made: admin.SubscriptionInfo, client: Consumer, read: Read) -> None:
    """What one client says."""
    if read.expression:
        kind = definition.FilterType.SQL if read.is_sql else definition.FilterType.TAG
        made.expression.CopyFrom(Expression(type=kind, expression=read.expression))
    if client.told_ms:
        made.last_update_timestamp.FromMilliseconds(client.told_ms)


def _shown(topic: str) -> bool:
    """Not the topics of retries, which a group reads because of the others."""
    return not (is_light(topic) or topic.startswith(RETRY_PREFIX) or is_reserved_topic(topic))


def _too_many() -> Refused:
    return Refused(
        Code.BAD_REQUEST, f"the answer has more than {ROWS_MAX} rows: name a group and a topic"
    )


def joined_connections(
    replies: Iterable[admin.ListConsumerConnectionResponse],
) -> admin.ListConsumerConnectionResponse:
    """A Join: each client once."""
    rows = {row.client_id: row for reply in replies for row in reply.client_info}
    return admin.ListConsumerConnectionResponse(status=OK, client_info=rows.values())


def joined_subscriptions(
    replies: Iterable[admin.ListSubscriptionResponse],
) -> admin.ListSubscriptionResponse:
    """A Join: each group and topic once, online if anywhere."""
    rows: dict[tuple[str, ...], admin.SubscriptionInfo] = {}
    for reply in replies:
        for row in reply.subscription_info:
            known = rows.setdefault(_pair(row), row)
            known.online = known.online or row.online
            consistent = known.subscription_consistency and row.subscription_consistency
            known.subscription_consistency = consistent
            if not known.HasField("expression") and row.HasField("expression"):
                known.expression.CopyFrom(row.expression)
    return admin.ListSubscriptionResponse(status=OK, subscription_info=rows.values())


def joined_subscriptions_of_clients(
    replies: Iterable[admin.DescribeSubscriptionResponse],
) -> admin.DescribeSubscriptionResponse:
    """A Join: each client's subscription to a topic once."""
    rows = {
        (row.client_info.client_id, *_pair(row.subscription_info)): row
        for reply in replies
        for row in reply.client_subscription_info
    }
    return admin.DescribeSubscriptionResponse(status=OK, client_subscription_info=rows.values())


def _pair(row: admin.SubscriptionInfo) -> tuple[str, ...]:
    group, topic = row.group, row.topic
    return group.resource_namespace, group.name, topic.resource_namespace, topic.name
