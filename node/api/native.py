"""The native API: its services, made from the parts of a node."""

from collections.abc import Collection
from dataclasses import dataclass

from duolog.wire import duolog_pb2_grpc as stubs

from duolog_server.node.api.access import AccessService
from duolog_server.node.api.admin import AdminService
from duolog_server.node.api.append_access import appends_of_call
from duolog_server.node.api.appends import Appends
from duolog_server.node.api.groups import GroupsService
from duolog_server.node.api.guard import MethodGuard
from duolog_server.node.api.longanswers import counted_methods
from duolog_server.node.api.messages import MessagesParts, MessagesService
from duolog_server.node.api.moves import MovesService
from duolog_server.node.api.replicationstatus import group_route
from duolog_server.node.api.visibility import Sights
from duolog_server.node.audit.auditing import Auditing
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.access import Access
from duolog_server.node.identity.access.guarding import GuardedMethods
from duolog_server.node.net.methods import Methods
from duolog_server.node.service.groups import Groups
from duolog_server.node.service.guard import Guard
from duolog_server.node.service.operatorchanges import OperatorChanges
from duolog_server.node.service.topics import Changes, Topics
from duolog_server.node.wire import moves_pb2_grpc


def appends_of(broker: Broker) -> Appends:
    """What stores the batches of append requests."""
    return Appends(broker.admission, broker.replication, broker.sends, broker.store.store_host)


def messages_of(broker: Broker, guard: MethodGuard | None = None) -> MessagesService:
    """The Messages service."""
    return MessagesService(
        MessagesParts(
            broker.core,
            broker.log,
            broker.limits,
            appends_of_call(appends_of(broker), guard),
            broker.reader,
            broker.publishes,
            broker.transactions,
        )
    )


def groups_of(broker: Broker) -> GroupsService:
    """The Groups service."""
    return GroupsService(broker.core, broker.log, broker.filters, broker.groups, broker.retries)


def changes_of(broker: Broker, guard: Guard | None) -> Changes:
    """The changes that operators make. guard: None where there are no users."""
    operator_changes = OperatorChanges(broker.log.caught_up, broker.admission, guard, broker.audit)
    groups = Groups(broker.core, operator_changes, broker.pop, broker.crossings, broker.members)
    return Changes(Topics(broker.core, operator_changes), groups)


def _other_groups(broker: Broker) -> dict[str, list[str]]:
    """Endpoints of the nodes of the cluster's other replica groups."""
    failover, own = broker.failover, broker.node.group
    routes = failover.routes if failover is not None else {}
    return {
        name: [row.endpoint for row in group_route(name, view).replicas if row.endpoint]
        for name, view in routes.items()
        if name != own
    }


def _recovery(broker: Broker, access: Access, users: AccessService) -> Methods:
    """The Recovery service: no guard is before it, as it asks for the key itself."""
    from duolog_server.node.api.recovery import RecoveryService
    from duolog_server.node.identity.access.recovery import (
        Place,  # nodes without users need none of this
    )
    from duolog_server.node.wire import recovery_pb2_grpc

    node, methods = broker.node, Methods()
    if broker.audit is not None:
        methods = GuardedMethods(Auditing(broker.audit, None))
    place = Place(node.cluster, node.group, node.name)
    service = RecoveryService(users, access.recovery, place, lambda: _other_groups(broker))
    recovery_pb2_grpc.add_RecoveryServicer_to_server(service, methods.as_server())
    return methods


def moves_methods(broker: Broker) -> Methods:
    """The Moves service: no guard is before it, as it asks for a mark of a node itself."""
    methods = Methods()
    moves_pb2_grpc.add_MovesServicer_to_server(MovesService(broker), methods.as_server())
    return methods


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the rules of methods know of a node."""

    broker: Broker

    @property
    def cluster(self) -> str:
        """The name of its cluster."""
        return self.broker.node.cluster

    def has_group(self, name: str) -> bool:
        """Whether a consumer group exists."""
        return self.broker.metadata.has_group(name)

    @property
    def groups(self) -> Collection[str]:
        """The consumer groups."""
        return self.broker.metadata.group_names

    def has_topic(self, name: str) -> bool:
        """Whether a topic exists."""
        return name in self.broker.metadata.topics

    def check_knows(self) -> None:
        """Raise NotMaster if the node may lack the newest changes of users."""
        self.broker.admission.check_knows()


def guard_of(broker: Broker, access: Access | None) -> MethodGuard | None:
    """The guard of a node; None where there are no users."""
    if access is None:
        return None
    made = MethodGuard(access.gate, NodeFacts(broker), broker.audit)
    made.viewers = access.viewers
    return made


def native_methods(
    broker: Broker, access: Access | None = None, guard: MethodGuard | None = None
) -> Methods:
    """The methods of all its services: gRPC, frames and the simulator serve the same ones.

    access, guard: None where there are no users, and nobody is asked who it is.
    """
    wraps = Auditing(broker.audit, guard) if broker.audit is not None else guard
    methods = GuardedMethods(wraps) if wraps is not None else Methods()
    server = methods.as_server()
    stubs.add_MessagesServicer_to_server(messages_of(broker, guard), server)
    stubs.add_GroupsServicer_to_server(groups_of(broker), server)
    admin = AdminService(broker, Sights(guard), changes_of(broker, guard))
    stubs.add_AdminServicer_to_server(admin, server)
    access_service = AccessService(broker.core, broker.log, access, guard)
    stubs.add_AccessServicer_to_server(access_service, server)
    if access is not None:
        methods.generic += _recovery(broker, access, access_service).generic
    return counted_methods(methods, broker.untaken)
