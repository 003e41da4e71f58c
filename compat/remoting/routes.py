"""Routes: this node answers as a name server of its replica group, and as its broker."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import RouteRequest
from duolog_server.compat.remoting.codec.nameserver import (
    MASTER_ID,
    STANDARD_JSON_VERSION,
    BrokerAddresses,
    TopicQueues,
    cluster_info,
    topic_route,
)
from duolog_server.compat.remoting.port.dispatcher import Begun
from duolog_server.node.broker import Broker
from duolog_server.node.engine.log import Outcome
from duolog_server.store.grouptopics import group_of
from duolog_server.store.metadata import PERM_READ, PERM_WRITE, TopicConfig

DEFAULT_TOPIC = "TBW102"  # whose route a producer takes for a topic that its first send creates
PERM_INHERIT = 1
PATIENCE_MS = 2000  # of a route while the group is changing its master; clients wait for 3 s
GONE_SECONDS = 2.0  # after its lease: a master that the registry still names then is there


def reply_topic(cluster: str) -> str:
    """The topic that replies to requests are sent to."""
    return f"{cluster}_REPLY_TOPIC"


def default_topics(broker: Broker) -> dict[str, tuple[int, int]]:
    """Topics that have a route without being made: queues and perm."""
    found = {reply_topic(broker.node.cluster): (1, PERM_READ | PERM_WRITE)}
    if broker.limits.auto_create_topic and not broker.metadata.retires():
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        found[DEFAULT_TOPIC] = broker.limits.default_topic_queues, perm
    return found


def told_topics(broker: Broker) -> Mapping[str, TopicConfig]:
    """All topics as routes show them to producers, where queues of groups that leave have moved or
    are to move; the tables where there are none.
    """
    topics, moves = broker.metadata.topics, broker.metadata.moves
    retires = broker.metadata.retires()
    touched = {*moves.guests, *moves.seals} if moves.guests or retires else ()
    told = {name: as_told(broker, topics[name]) for name in touched if name in topics}
    if retires:
        told.setdefault(DEFAULT_TOPIC, TopicConfig(DEFAULT_TOPIC, 0, 0))
    return {**topics, **told} if told else topics


def as_told(broker: Broker, topic: TopicConfig) -> TopicConfig:
    """A topic with the queues that producers may send to, which RocketMQ's route counts from 0."""
    written = set(broker.write_queues(topic))
    count = next(number for number in range(len(written) + 1) if number not in written)
    return replace(topic, queues=count, guests=topic.read_queues - count)


class Routes:
    """Makes them of what this node knows of its group.

    A route without a master has a producer ask again with its next message. One with a master that
    is gone it would keep for 30 s: while a group changes its master, a route waits for the next one
    for a moment, and then has none.
    """

    def __init__(self, broker: Broker, advertised: str) -> None:
        """advertised: HOST:PORT at which clients reach this node's remoting port.

        Other nodes of the group are reached at their hosts, by the same port.
        """
        self._broker = broker
        self._advertised = advertised
        self._port = advertised.rpartition(":")[2]

    def route(self, request: Command) -> Begun:
        """GET_ROUTEINFO_BY_TOPIC. Raises UnknownTopic, NotMaster."""
        replication = self._broker.replication
        told = replication.refusals.told_later(PATIENCE_MS) if replication.not_master() else None
        return self._route(request) if told is None else self._when_told(request, told)

    async def _when_told(self, request: Command, told: Outcome) -> Command:
        await asyncio.shield(told)  # also where this client goes
        return self._route(request)

    def _route(self, request: Command) -> Command:
        header = read_header(RouteRequest, request.fields)
        standard = header.accept_standard_json_only or request.version >= STANDARD_JSON_VERSION
        queues = self._queues(header.topic)
        return request.answer(0, body=topic_route(queues, self._addresses(), standard))

    def of(self, topic: str) -> bytes:
        """The route of a topic, as standard JSON. Raises UnknownTopic, NotMaster."""
        return topic_route(self._queues(topic), self._addresses(), standard=True)

    def cluster(self, request: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO."""
        return request.answer(0, body=cluster_info(self._addresses()))

    def _queues(self, topic: str) -> TopicQueues:
        broker = self._broker
        config = broker.metadata.topics.get(topic)
        if config is not None:
            config = as_told(broker, config)
            settings = config.perm, config.sysflag, config.guests
            return TopicQueues(broker.group, config.queues, *settings)
        if retried_group(broker, topic):
            return TopicQueues(broker.group, 1, PERM_READ | PERM_WRITE)
        if (unmade := default_topics(broker).get(topic)) is not None:
            return TopicQueues(broker.group, *unmade)
        broker.admission.check_knows()
        raise sdk.UnknownTopic(f"No topic route info in name server for the topic: {topic[:200]}")

    def _addresses(self) -> BrokerAddresses:
        """The nodes of the group: the master, where one is known, and the others."""
        broker = self._broker
        found: dict[int, str] = {}
        master = self._living_master() if broker.replication.not_master() else self._advertised
        if master:
            found[MASTER_ID] = master
        others = {self._advertised, *map(self._reached_at, self._broker.endpoints())} - {master, ""}
        found.update(enumerate(sorted(others), MASTER_ID + 1))
        return BrokerAddresses(broker.node.cluster, broker.group, found)

    @property
    def master(self) -> str:
        """HOST:PORT of the master's remoting port; empty where none is known."""
        if self._broker.replication.not_master():
            return self._reached_at(self._broker.replication.master_endpoint[0])
        return self._advertised

    def _living_master(self) -> str:
        """The address of another node that is the master; empty if none is known to live."""
        replication, failover = self._broker.replication, self._broker.failover
        follower = replication.follower
        if failover is not None and follower is not None and follower.lost:
            gone_seconds = failover.lease_seconds + GONE_SECONDS
            if follower.away_seconds < gone_seconds:
                return ""
        return self._others(replication.master_endpoint[0])

    def master_elsewhere(self) -> str:
        """The master's address, if it is another node and takes requests."""
        replication = self._broker.replication
        return self._others(replication.next_master[0]) if replication.not_master() else ""

    def _others(self, endpoint: str) -> str:
        """The address of another node's port; empty for none, and for this node."""
        found = self._reached_at(endpoint)
        return "" if found == self._advertised else found

    def _reached_at(self, endpoint: str) -> str:
        """The address of a node's remoting port; empty for none."""
        if not endpoint or endpoint == self._broker.advertised:
            return self._advertised if endpoint else ""
        return f"{endpoint.rpartition(':')[0]}:{self._port}"


def retried_group(broker: Broker, topic: str) -> str:
    """The group whose retry topic a name is, before anything had to be delivered again; or none.

    Tools find a group by the route of this topic.
    """
    groups = broker.metadata.tables.groups
    group = group_of(topic, groups) if topic.startswith(RETRY_PREFIX) else ""
    return group if group in groups and topic not in broker.metadata.topics else ""
