"""The native API: its services, made from the parts of a node."""

from duolog.wire import duolog_pb2_grpc as stubs

from node.api.admin import AdminService
from node.api.groups import GroupsService
from node.api.messages import MessagesParts, MessagesService
from node.broker import Broker
from node.methods import Methods


def messages_of(broker: Broker) -> MessagesService:
    """The Messages service."""
    return MessagesService(
        MessagesParts(
            broker.core,
            broker.log,
            broker.limits,
            broker.appends,
            broker.reader,
            broker.publishes,
            broker.transactions,
        )
    )


def groups_of(broker: Broker) -> GroupsService:
    """The Groups service."""
    return GroupsService(broker.core, broker.log, broker.filters, broker.groups, broker.retries)


def native_methods(broker: Broker) -> Methods:
    """The methods of all its services: gRPC, frames and the simulator serve the same ones."""
    methods = Methods()
    server = methods.as_server()
    stubs.add_MessagesServicer_to_server(messages_of(broker), server)
    stubs.add_GroupsServicer_to_server(groups_of(broker), server)
    stubs.add_AdminServicer_to_server(AdminService(broker), server)
    return methods
