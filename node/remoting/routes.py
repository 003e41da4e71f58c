"""Routes: this node answers as a name server of its replica group, and as its broker."""

from duolog import _errors as sdk
from duolog._message import RETRY_PREFIX

from node.broker import Broker
from node.remoting.codec.command import Command
from node.remoting.codec.fields import read_header
from node.remoting.codec.headers import RouteRequest
from node.remoting.codec.routes import (
    MASTER_ID,
    STANDARD_JSON_VERSION,
    BrokerAddresses,
    TopicQueues,
    cluster_info,
    topic_route,
)
from store.metadata import PERM_READ, PERM_WRITE

DEFAULT_TOPIC = "TBW102"  # whose route a producer takes for a topic that its first send creates
PERM_INHERIT = 1


class Routes:
    """Makes them of what this node knows of its group."""

    def __init__(self, broker: Broker, advertised: str) -> None:
        """advertised: HOST:PORT at which clients reach this node's remoting port.

        Other nodes of the group are reached at their hosts, by the same port.
        """
        self._broker = broker
        self._advertised = advertised
        self._port = advertised.rpartition(":")[2]

    def route(self, request: Command) -> Command:
        """GET_ROUTEINFO_BY_TOPIC. Raises UnknownTopic, NotMaster."""
        header = read_header(RouteRequest, request.fields)
        standard = header.accept_standard_json_only or request.version >= STANDARD_JSON_VERSION
        queues = self._queues(header.topic)
        return request.answer(0, body=topic_route(queues, self._addresses(), standard))

    def cluster(self, request: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO."""
        standard = request.version >= STANDARD_JSON_VERSION
        return request.answer(0, body=cluster_info(self._addresses(), standard))

    def _queues(self, topic: str) -> TopicQueues:
        broker = self._broker
        config = broker.metadata.topics.get(topic)
        if config is not None:
            return TopicQueues(broker.group, config.queues, config.perm, config.sysflag)
        if retried_group(broker, topic):
            return TopicQueues(broker.group, 1, PERM_READ | PERM_WRITE)
        if topic == DEFAULT_TOPIC and broker.limits.auto_create_topic:
            perm = PERM_READ | PERM_WRITE | PERM_INHERIT
            return TopicQueues(broker.group, broker.limits.default_topic_queues, perm)
        broker.admission.check_knows()
        raise sdk.UnknownTopic(f"No topic route info in name server for the topic: {topic[:200]}")

    def _addresses(self) -> BrokerAddresses:
        """The nodes of the group: the master, where one is known, and the others."""
        broker = self._broker
        found: dict[int, str] = {}
        master = self.master
        if master:
            found[MASTER_ID] = master
        others = {self._advertised, *map(self._reached_at, self._replicas())} - {master, ""}
        found.update(enumerate(sorted(others), MASTER_ID + 1))
        return BrokerAddresses(broker.node.cluster, broker.group, found)

    @property
    def master(self) -> str:
        """HOST:PORT of the master's remoting port; empty where none is known."""
        if self._broker.replication.not_master():
            return self._reached_at(self._broker.replication.master_endpoint[0])
        return self._advertised

    def _replicas(self) -> list[str]:
        """Client endpoints of the registered nodes of the group."""
        failover = self._broker.failover
        view = failover.routes.get(self._broker.group) if failover else None
        return [one.endpoint for one in view.replicas.values()] if view is not None else []

    def _reached_at(self, endpoint: str) -> str:
        """Where the remoting port of a node is; empty for none."""
        if not endpoint or endpoint == self._broker.advertised:
            return self._advertised if endpoint else ""
        return f"{endpoint.rpartition(':')[0]}:{self._port}"


def retried_group(broker: Broker, topic: str) -> str:
    """The group whose retry topic a name is, before anything had to be delivered again; or none.

    Tools find a group by the route of this topic.
    """
    group = topic.removeprefix(RETRY_PREFIX)
    known = group != topic and broker.metadata.has_group(group)
    return group if known and topic not in broker.metadata.topics else ""


__all__ = ["DEFAULT_TOPIC", "Routes", "retried_group"]
