"""The stubs of RocketMQ's API, from Apache's package, without the client that comes with them; and
those of its Admin service.

Importing the package itself would start its logging (it makes directories) and its telemetry.
"""

import importlib.util
import sys
import types


def _without_the_client() -> types.ModuleType | None:
    """Replace the package while its stubs are imported; None if it is imported already."""
    if "rocketmq" in sys.modules:
        return None
    found = importlib.util.find_spec("rocketmq")
    if found is None or found.submodule_search_locations is None:
        raise ImportError("the package rocketmq-python-client is not installed")
    package = types.ModuleType("rocketmq")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["rocketmq"] = package
    return package


_stand_in = _without_the_client()
try:
    from rocketmq.grpc_protocol import definition_pb2 as definition
    from rocketmq.grpc_protocol import service_pb2 as service
    from rocketmq.grpc_protocol import service_pb2_grpc as rpc

    # The Admin service's messages hold those of Apache's package, which comes first.
    from duolog_server.node.wire import rocketmqadmin_pb2 as admin
    from duolog_server.node.wire import rocketmqadmin_pb2_grpc as admin_rpc
finally:
    if _stand_in is not None:
        sys.modules.pop("rocketmq")  # later imports of the package get the real one

_SERVICE = service.DESCRIPTOR.services_by_name["MessagingService"]
SERVICE_NAME = _SERVICE.full_name
METHODS = dict(_SERVICE.methods_by_name)
_ADMIN = admin.DESCRIPTOR.services_by_name["Admin"]
ADMIN_SERVICE_NAME = _ADMIN.full_name
ADMIN_METHODS = dict(_ADMIN.methods_by_name)
Code = definition.Code
Endpoints = definition.Endpoints
Message = definition.Message
MessageQueue = definition.MessageQueue
MessageType = definition.MessageType
Resource = definition.Resource
Status = definition.Status
SystemProperties = definition.SystemProperties

__all__ = [
    "ADMIN_METHODS",
    "ADMIN_SERVICE_NAME",
    "METHODS",
    "SERVICE_NAME",
    "Code",
    "Endpoints",
    "Message",
    "MessageQueue",
    "MessageType",
    "Resource",
    "Status",
    "SystemProperties",
    "admin",
    "admin_rpc",
    "definition",
    "rpc",
    "service",
]
