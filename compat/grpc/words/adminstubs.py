"""The stubs of RocketMQ's Admin service. Its messages hold those of Apache's package."""

from duolog_server.compat.grpc.words import stubs  # noqa: F401  first: the package, without its client
from duolog_server.node.wire import rocketmqadmin_pb2 as admin
from duolog_server.node.wire import rocketmqadmin_pb2_grpc as rpc

_SERVICE = admin.DESCRIPTOR.services_by_name["Admin"]
SERVICE_NAME = _SERVICE.full_name
METHODS = dict(_SERVICE.methods_by_name)

__all__ = ["METHODS", "SERVICE_NAME", "admin", "rpc"]
