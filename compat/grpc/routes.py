"""Routes for clients: a topic's queues, and endpoints that clients can reach."""

import ipaddress
from collections.abc import Mapping

from duolog import _errors as sdk

from duolog_server.compat.grpc.sending import accepted_types
from duolog_server.compat.grpc.words.stubs import Endpoints, MessageQueue, Resource, definition
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.store.metadata import PERM_READ, PERM_WRITE, TopicConfig

_PERMISSIONS = {
    PERM_READ: definition.Permission.READ,
    PERM_WRITE: definition.Permission.WRITE,
    PERM_READ | PERM_WRITE: definition.Permission.READ_WRITE,
}
ANY_QUEUE = -1
Headers = Mapping[str, str | bytes]
_JOINING_VERSIONS = frozenset(f"1.0.{k}" for k in range(9))  # of the Node.js client


def endpoints_of(endpoints: list[str]) -> Endpoints:
    """Convert HOST:PORT texts, the preferred one first, to Endpoints.

    IP addresses are combined with others of the same version. A name stands alone: clients accept
    several addresses of one server only if they are IP addresses.
    """
    made = Endpoints()
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        host = host.strip("[]")
        scheme = _scheme_of(host)
        if not made.addresses:
            made.scheme = scheme
        elif scheme != made.scheme or scheme == definition.AddressScheme.DOMAIN_NAME:
            continue
        made.addresses.add(host=host, port=int(port))
    return made


def _scheme_of(host: str) -> definition.AddressScheme:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return definition.DOMAIN_NAME
    return definition.IPv4 if version == 4 else definition.IPv6


def spelled_for(headers: Headers, endpoints: Endpoints) -> Endpoints:
    """Adapt Endpoints to a client.

    Apache's Node.js client up to 1.0.8 joins addresses with commas for gRPC, which accepts a list
    of addresses only if it begins with `ipv4:` or `ipv6:`.
    """
    if len(endpoints.addresses) < 2 or headers.get("x-mq-language") != "HTTP":
        return endpoints
    if headers.get("x-mq-client-version") not in _JOINING_VERSIONS:
        return endpoints
    made = Endpoints()
    made.CopyFrom(endpoints)
    ipv4 = made.scheme == definition.AddressScheme.IPv4
    if not ipv4:
        for address in made.addresses:
            address.host = f"[{address.host}]"
    made.addresses[0].host = f"{'ipv4' if ipv4 else 'ipv6'}:{made.addresses[0].host}"
    return made


class Routes:
    """Makes routes of this node's replica group, wherever its master is."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic(self, name: str) -> TopicConfig:
        """A topic. Raises UnknownTopic, NotMaster if a slave may not know it yet."""
        config = self._broker.metadata.topics.get(name)
        if config is None:
            if self._broker.limits.auto_create_topic and not self._broker.replication.not_master():
                return self._broker.metadata.auto_create(name, owner=name_of_caller())
            self._broker.admission.check_knows()
            raise sdk.UnknownTopic(f"topic {name!r} does not exist")
        return config

    def endpoints(self, asked: Endpoints, tls_port: int) -> Endpoints:
        """Addresses of the group's nodes, the master's first: each of them takes any call.

        A client that knows them all continues with another one when its node dies. If the group has
        only one node, its address is the one that the client used, which may be a name or a mapped
        port. tls_port: of clients that use TLS, the same on all nodes; 0: the plain port.
        """
        broker = self._broker
        alone = broker.failover is None and not broker.replication.not_master()
        if alone and len(asked.addresses) == 1:
            return asked
        found = [broker.advertised]
        if broker.replication.not_master():
            found.insert(0, broker.replication.master_endpoint[0])
        found += self._replicas()
        if tls_port:
            found = [f"{end.rpartition(':')[0]}:{tls_port}" if end else "" for end in found]
        return endpoints_of([end for end in dict.fromkeys(found) if end])

    def _replicas(self) -> list[str]:
        """Addresses of the registered nodes of the group, in a stable order."""
        failover = self._broker.failover
        view = failover.routes.get(self._broker.group) if failover else None
        if view is None:
            return []
        return sorted(replica.endpoint for replica in view.replicas.values() if replica.endpoint)

    def queue(
        self, resource: Resource, config: TopicConfig, queue_id: int, here: Endpoints
    ) -> MessageQueue:
        """One MessageQueue."""
        broker = self._broker
        return MessageQueue(
            topic=resource,
            id=queue_id,
            permission=_PERMISSIONS.get(config.perm, definition.Permission.NONE),
            broker=definition.Broker(name=broker.group, id=0, endpoints=here),
            accept_message_types=accepted_types(config),
        )

    def queues(
        self, resource: Resource, config: TopicConfig, here: Endpoints
    ) -> list[MessageQueue]:
        """All queues of a topic, in a stable order."""
        return [self.queue(resource, config, k, here) for k in range(config.queues)]

    def assignments(
        self, resource: Resource, config: TopicConfig, here: Endpoints, fifo: bool
    ) -> list[MessageQueue]:
        """Assignments of a push consumer: each queue (if ordered), or the broker as a whole."""
        numbers = range(config.queues) if fifo else [ANY_QUEUE]
        return [self.queue(resource, config, number, here) for number in numbers]
