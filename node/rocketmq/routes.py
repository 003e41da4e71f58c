"""Where clients are sent: a topic's queues, and endpoints that they can reach."""

import ipaddress
from typing import Any

from duolog import _errors as sdk

from node.broker import Broker
from node.rocketmq.sending import accepted_types
from node.rocketmq.stubs import definition
from store.metadata import PERM_READ, PERM_WRITE, TopicConfig

_PERMISSIONS = {
    PERM_READ: definition.Permission.READ,
    PERM_WRITE: definition.Permission.WRITE,
    PERM_READ | PERM_WRITE: definition.Permission.READ_WRITE,
}
ANY_QUEUE = -1


def endpoints_of(endpoint: str) -> Any:
    """HOST:PORT as Endpoints."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    try:
        version = ipaddress.ip_address(host).version
        scheme = definition.AddressScheme.IPv4 if version == 4 else definition.AddressScheme.IPv6
    except ValueError:
        scheme = definition.AddressScheme.DOMAIN_NAME
    made = definition.Endpoints(scheme=scheme)
    made.addresses.add(host=host, port=int(port))
    return made


class Routes:
    """Answers with this node's replica group, wherever its master is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic(self, name: str) -> TopicConfig:
        """A topic. Raises UnknownTopic, NotMaster where a slave may not know it yet."""
        config = self._broker.metadata.topics.get(name)
        if config is None:
            if self._broker.limits.auto_create_topic and not self._broker.replication.not_master():
                return self._broker.metadata.auto_create(name)
            self._broker.check_knows()
            raise sdk.UnknownTopic(f"topic {name!r} does not exist")
        return config

    def endpoints(self, asked: Any, tls_port: int) -> Any:
        """The master's address; the client's own way in where that is this node's.

        tls_port: of the client's kind of port, the same on all nodes; 0: the plain one.
        """
        broker = self._broker
        alone = broker.failover is None and not broker.replication.not_master()
        if alone and len(asked.addresses) == 1:
            return asked  # a node behind a mapped port or a name is reached by what reached it
        endpoint = broker.advertised
        if broker.replication.not_master():
            endpoint = broker.replication.master_endpoint[0] or endpoint
        if tls_port:
            endpoint = f"{endpoint.rpartition(':')[0]}:{tls_port}"
        return endpoints_of(endpoint)

    def queue(self, resource: Any, config: TopicConfig, queue_id: int, here: Any) -> Any:
        """One MessageQueue."""
        broker = self._broker
        return definition.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=_PERMISSIONS.get(config.perm, definition.Permission.NONE),
            broker=definition.Broker(name=broker.config.node.group, id=0, endpoints=here),
            accept_message_types=accepted_types(config),
        )

    def queues(self, resource: Any, config: TopicConfig, here: Any) -> list[Any]:
        """All queues of a topic, in a stable order."""
        return [self.queue(resource, config, k, here) for k in range(config.queues)]

    def assignments(self, resource: Any, config: TopicConfig, here: Any, fifo: bool) -> list[Any]:
        """What a push consumer polls: each queue in order, or the broker as a whole."""
        numbers = range(config.queues) if fifo else [ANY_QUEUE]
        return [self.queue(resource, config, number, here) for number in numbers]
