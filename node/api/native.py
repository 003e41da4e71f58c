"""The native API: its services, made from the parts of a node."""

from duolog.wire import duolog_pb2_grpc as stubs

from node.api.admin import AdminService
from node.api.groups import GroupsService
from node.api.messages import MessagesService
from node.broker import Broker
from node.methods import Methods


def native_methods(broker: Broker) -> Methods:
    """The methods of all its services: gRPC, frames and the simulator serve the same ones."""
    methods = Methods()
    server = methods.as_server()
    stubs.add_MessagesServicer_to_server(MessagesService(broker), server)
    stubs.add_GroupsServicer_to_server(GroupsService(broker), server)
    stubs.add_AdminServicer_to_server(AdminService(broker), server)
    return methods
