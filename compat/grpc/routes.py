"""Routes for clients: a topic's queues in all replica groups, and endpoints that clients reach."""

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import replace

from duolog import _errors as sdk
from google.protobuf import message as protobuf

from duolog_server.compat.grpc.protocol.codes import Refused
from duolog_server.compat.grpc.protocol.stubs import (
    Code,
    Endpoints,
    MessageQueue,
    Resource,
    definition,
)
from duolog_server.compat.grpc.relay.calls import Call, is_forwarded
from duolog_server.compat.grpc.relay.forward import Answer, Forwarder, Reply
from duolog_server.compat.grpc.sending import accepted_types
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.gate import name_of_caller
from duolog_server.store.metadata import PERM_READ, PERM_WRITE, TopicConfig

_PERMISSIONS = {
    PERM_READ: definition.Permission.READ,
    PERM_WRITE: definition.Permission.WRITE,
    PERM_READ | PERM_WRITE: definition.Permission.READ_WRITE,
}
ANY_QUEUE = -1
OTHERS_SECONDS = 1.0  # in which another group answers
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
            broker = self._broker
            makes = broker.limits.auto_create_topic and not broker.metadata.retires()
            if makes and not broker.replication.not_master():
                return broker.metadata.auto_create(name, owner=name_of_caller())
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
        found += broker.endpoints()
        if tls_port:
            found = [f"{end.rpartition(':')[0]}:{tls_port}" if end else "" for end in found]
        return endpoints_of([end for end in dict.fromkeys(found) if end])

    def queues(
        self, resource: Resource, config: TopicConfig, here: Endpoints, *, group: str = ""
    ) -> list[MessageQueue]:
        """The queues of a topic, in a stable order; guests are there to be read alone.

        group: a consumer group, for those that it may read; empty: all.
        """
        numbers = self._broker.metadata.readable(group, config.name)
        written = set(self._broker.write_queues(config))
        read = replace(config, perm=config.perm & PERM_READ)
        return [
            self._queue(resource, config if number in written else read, here, number)
            for number in numbers
        ]

    def any_queue(
        self, resource: Resource, config: TopicConfig, here: Endpoints
    ) -> list[MessageQueue]:
        """The broker as a whole, for groups that get any message of any queue."""
        return [self._queue(resource, config, here, ANY_QUEUE)]

    def _queue(
        self, resource: Resource, config: TopicConfig, here: Endpoints, number: int
    ) -> MessageQueue:
        return MessageQueue(
            topic=resource,
            id=number,
            permission=_PERMISSIONS.get(config.perm, definition.Permission.NONE),
            broker=definition.Broker(name=self._broker.group, id=0, endpoints=here),
            accept_message_types=accepted_types(config),
        )


async def replies_of_groups(
    forwarder: Forwarder,
    kind: type[Reply],
    request: protobuf.Message,
    context: Call,
    own: Callable[[], Reply],
) -> list[Reply]:
    """The replies of the groups that know a topic; this one first. own: makes its reply.

    A topic may have queues in several replica groups. A group that does not answer in time is left
    out, like one without nodes. Raises Refused or sdk errors if no group knows it.
    """

    async def mine() -> Reply:
        try:
            return own()
        except sdk.NotMaster:  # a slave that does not have the topic yet
            return await forwarder.unary(kind, request, context)

    work = [mine()]
    if not is_forwarded(context):
        work += [
            forwarder.unary(kind, request, context, group, OTHERS_SECONDS)
            for group in forwarder.other_groups()
        ]
    answers = await asyncio.gather(*work, return_exceptions=True)
    replies = []
    for answer in answers:
        if isinstance(answer, BaseException):
            if not isinstance(answer, sdk.DuologError | Refused):
                raise answer
        elif answer.status.code == Code.OK:
            replies.append(answer)
    if replies:
        return replies
    # A group that did not answer may hold the topic: it is unknown only if all groups say so.
    first = next((answer for answer in answers if not _is_unknown(answer)), answers[0])
    if isinstance(first, BaseException):
        raise first
    raise Refused(first.status.code, first.status.message)


def _is_unknown(answer: Answer | BaseException) -> bool:
    """Tell whether a group answered that it has no such topic."""
    if isinstance(answer, BaseException):
        return isinstance(answer, sdk.UnknownTopic)
    return bool(answer.status.code == Code.TOPIC_NOT_FOUND)
