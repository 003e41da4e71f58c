"""Topics: created, altered, deleted, listed and described."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from duolog import _errors as sdk

from duolog_server.compat.remoting.administration.bodies import QueueRows, dumps, name_list
from duolog_server.compat.remoting.administration.brokers.statistics import Statistics
from duolog_server.compat.remoting.administration.names import topic_names
from duolog_server.compat.remoting.codec.bodies import read_object, read_topics, topic_name
from duolog_server.compat.remoting.codec.command import BadRequest, Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import (
    ClusterRequest,
    CreateTopicRequest,
    GroupRequest,
    TopicRequest,
)
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.routes import retried_group
from duolog_server.node.api.readership import groups_of, topics_of
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.broker import Broker
from duolog_server.node.core.slices import Slices
from duolog_server.node.service.topics import TopicSettings
from duolog_server.store.metadata import (
    LITE_EXPIRATION,
    PERM_READ,
    PERM_WRITE,
    RETENTION_BYTES,
    RETENTION_HOURS,
    is_reserved_topic,
)

MESSAGE_TYPE = "message.type"


class Topics:
    """Serves requests about topics."""

    def __init__(self, broker: Broker, verbs: Verbs, statistics: Statistics, sight: Sight) -> None:
        self._broker = broker
        self._verbs = verbs
        self._changes = verbs.changes.topics
        self._statistics = statistics
        self._sight = sight

    async def put(self, peer: Peer, request: Command) -> Command:
        """UPDATE_AND_CREATE_TOPIC. Raises as Topics.create and Topics.alter, BadRequest."""
        await self._put(peer, read_header(CreateTopicRequest, request.fields))
        return request.answer(0)

    async def put_all(self, peer: Peer, request: Command) -> Command:
        """UPDATE_AND_CREATE_TOPIC_LIST: one after the other, up to the first that is refused.

        Raises as `put`.
        """
        for header in [_header(row) for row in read_topics(request.body)]:
            await self._put(peer, header)
        return request.answer(0)

    async def _put(self, peer: Peer, header: CreateTopicRequest) -> None:
        wanted = _wanted(header)
        await self._broker.log.caught_up()
        known = self._broker.metadata.exists(header.topic)
        put = self._changes.alter if known else self._changes.create
        await put(peer.host.address, header.topic, wanted)

    async def delete(self, peer: Peer, request: Command) -> Command:
        """DELETE_TOPIC_IN_BROKER. Raises as Topics.delete.

        One that does not exist is no error, as in RocketMQ; nor is a slave, as tools ask all
        brokers of a cluster: its topics are those of its master.
        """
        topic = read_header(TopicRequest, request.fields).topic
        replication = self._broker.replication
        if replication.not_master() and replication.master_endpoint[0]:
            return request.answer(0)
        with contextlib.suppress(sdk.UnknownTopic):
            await self._changes.delete(peer.host.address, topic)
        return request.answer(0)

    async def forget(self, request: Command) -> Command:
        """DELETE_TOPIC_IN_NAMESRV: routes go with the topics. Raises BadRequest for one that is."""
        topic = read_header(TopicRequest, request.fields).topic
        await self._broker.log.caught_up()
        if topic in self._broker.metadata.topics and not self._broker.replication.not_master():
            raise BadRequest(
                f"topic {topic[:200]!r} exists, and routes follow from topics: delete the topic"
            )
        return request.answer(0)

    async def stats(self, peer: Peer, request: Command) -> Command:
        """GET_TOPIC_STATS_INFO. Raises as Admin/ListTopics, UnknownTopic."""
        topic = read_header(TopicRequest, request.fields).topic
        rows = QueueRows(self._broker.group)
        found = await self._verbs.topic(peer, topic)
        if found is not None:
            for one in found.stats:
                rows.add(
                    topic,
                    one.queue_id,
                    lastUpdateTimestamp=one.last_store_time,
                    maxOffset=one.max_offset,
                    minOffset=one.min_offset,
                )
        elif retried_group(self._broker, topic):
            rows.add(topic, 0, lastUpdateTimestamp=0, maxOffset=0, minOffset=0)
        else:
            raise sdk.UnknownTopic(f"topic[{topic[:200]}] not exist")
        tps = self._statistics.topic_tps(topic)
        return request.answer(0, body=dumps({"offsetTable": rows.rows, "topicPutTps": tps}))

    async def config(self, request: Command) -> Command:
        """GET_TOPIC_CONFIG. Raises UnknownTopic, NotMaster."""
        topic = read_header(TopicRequest, request.fields).topic
        await self._broker.log.caught_up()
        found = self._broker.metadata.topics.get(topic)
        if found is None:
            self._broker.admission.check_knows()
            raise sdk.UnknownTopic(f"No topic in this broker. topic: {topic[:200]}")
        return request.answer(0, body=dumps(found.to_json()))

    # -- lists ---------------------------------------------------------------------------------

    async def names(self, request: Command) -> Command:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        await self._broker.log.caught_up()
        return await self._list(request, topic_names(self._broker))

    async def of_cluster(self, request: Command) -> Command:
        """GET_TOPICS_BY_CLUSTER: none for another cluster."""
        cluster = read_header(ClusterRequest, request.fields).cluster
        await self._broker.log.caught_up()
        own = cluster == self._broker.node.cluster
        return await self._list(request, topic_names(self._broker) if own else set())

    async def system(self, request: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS: as there, with the names of cluster and broker."""
        await self._broker.log.caught_up()
        own = {self._broker.node.cluster, self._broker.group}
        return await self._list(request, self._reserved() | own)

    async def system_of_broker(self, request: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        await self._broker.log.caught_up()
        return await self._list(request, self._reserved())

    def _reserved(self) -> set[str]:
        return set(filter(is_reserved_topic, self._broker.metadata.topics))

    async def _list(self, request: Command, names: set[str]) -> Command:
        slices = Slices()
        ordered = await slices.ordered(names)
        return request.answer(0, body=await name_list("topicList", ordered, slices))

    async def readers(self, request: Command) -> Command:
        """QUERY_TOPIC_CONSUME_BY_WHO: groups that the caller may see. Raises NotMaster."""
        topic = read_header(TopicRequest, request.fields).topic
        await self._broker.log.caught_up()
        slices = Slices()
        found = await groups_of(self._broker, topic, slices)
        seen = [group async for group in slices.each(sorted(found)) if self._sight.may_see(group)]
        return request.answer(0, body=await name_list("groupList", seen, slices))

    async def read_by(self, request: Command) -> Command:
        """QUERY_TOPICS_BY_CONSUMER: the topics in which a group has offsets. Raises NotMaster."""
        group = read_header(GroupRequest, request.fields).group
        await self._broker.log.caught_up()
        slices = Slices()
        found = await topics_of(self._broker, group, slices)
        return request.answer(0, body=await name_list("topicList", sorted(found), slices))


def _header(row: Mapping[str, object]) -> CreateTopicRequest:
    """A TopicConfig of a list, as a request for it alone. Raises BadRequest."""
    numbers = [
        _number(row, name, default)
        for name, default in (
            ("readQueueNums", 0),
            ("writeQueueNums", 0),
            ("perm", PERM_READ | PERM_WRITE),
            ("topicSysFlag", 0),
        )
    ]
    read, write, perm, flag = numbers
    attributes = read_object(row.get("attributes") or {}, "attributes")
    words = ",".join(f"{name}={value}" for name, value in attributes.items())
    if not words.isprintable():  # which half characters are not, either
        raise BadRequest("attributes of a topic have characters that cannot be shown")
    return CreateTopicRequest(
        topic_name(row),
        read,
        write,
        perm,
        topic_sys_flag=flag,
        order=row.get("order") is True,
        attributes=words,
    )


def _number(row: Mapping[str, object], name: str, default: int) -> int:
    value = row.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"{name} of a topic is no number")
    return value


def _wanted(header: CreateTopicRequest) -> TopicSettings:
    """What a request asks for. Raises BadRequest for what a topic here cannot be."""
    if header.read_queue_nums != header.write_queue_nums:
        raise BadRequest(
            f"readQueueNums is {header.read_queue_nums} and writeQueueNums "
            f"{header.write_queue_nums}: a topic here has one number of queues"
        )
    if not 0 < header.read_queue_nums < 1 << 16:
        raise BadRequest(f"readQueueNums is {header.read_queue_nums}, which is no number of queues")
    if not 0 < header.perm < 1 << 8:
        raise BadRequest(f"perm is {header.perm}; READ is 4, WRITE is 2")
    if header.order:
        raise BadRequest(
            "order=true needs an order configuration in name servers, which this node does not "
            "have: queues keep their order anyway; for FIFO groups set message.type=FIFO"
        )
    if header.topic_sys_flag:
        raise BadRequest("topicSysFlag is set: units (-u, -s) are not supported")
    wanted = TopicSettings(header.read_queue_nums, header.perm)
    for name, value in _attributes(header.attributes):
        if name == MESSAGE_TYPE:
            wanted = replace(wanted, message_type=value)
        elif name == LITE_EXPIRATION and value.isdecimal() and len(value) < 10:
            wanted = replace(wanted, lite_ttl_minutes=int(value))
        elif name == RETENTION_HOURS and value.isdecimal() and len(value) < 10:
            wanted = replace(wanted, retention_hours=int(value))
        elif name == RETENTION_BYTES and value.isdecimal() and len(value) < 19:
            wanted = replace(wanted, retention_bytes=int(value))
        else:
            raise BadRequest(
                f"the attribute {name[:80]}={value[:80]} is not supported; {MESSAGE_TYPE}, "
                f"{LITE_EXPIRATION} (minutes), {RETENTION_HOURS} and {RETENTION_BYTES} are"
            )
    return wanted


def _attributes(text: str) -> list[tuple[str, str]]:
    """Raises BadRequest for others than `+name=value`."""
    found = []
    for word in filter(None, text.split(",")):
        name, sign, value = word.partition("=")
        if not word.startswith("+") or not sign:
            raise BadRequest(f"the attribute {word[:80]!r} is not of the form +name=value")
        found.append((name[1:], value))
    return found
