"""RocketMQ's services on a node's port, each guarded where there are users."""

from collections.abc import Mapping

from duolog_server.compat.grpc.administration.rules import RULES as ADMIN_RULES
from duolog_server.compat.grpc.administration.service import AdminParts, AdminService
from duolog_server.compat.grpc.auth import Authenticator
from duolog_server.compat.grpc.guard import RocketmqGuard
from duolog_server.compat.grpc.guarded import Api, Wrapping, guarded_methods
from duolog_server.compat.grpc.rules import RULES
from duolog_server.compat.grpc.service import MessagingService
from duolog_server.compat.grpc.words import adminstubs, stubs
from duolog_server.node.api.guard import Guard
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.api.visibility import Sights
from duolog_server.node.net.methods import Handler, Methods

MESSAGING = Api(stubs.SERVICE_NAME, "MessagingService", stubs.METHODS, RULES)
ADMIN = Api(adminstubs.SERVICE_NAME, adminstubs.SERVICE_NAME, adminstubs.METHODS, ADMIN_RULES)
SERVICE_NAMES = (MESSAGING.name, ADMIN.name)


def messaging_methods(messaging: MessagingService, guard: RocketmqGuard | None) -> Methods:
    """The methods of clients. guard: None without access control.

    Raises ConfigError for stubs with a method that has no rule.
    """
    plain = Methods()
    stubs.rpc.add_MessagingServiceServicer_to_server(messaging, plain.as_server())
    return _guarded(MESSAGING, plain, messaging, guard)


def admin_methods(
    messaging: MessagingService,
    native: Mapping[str, Handler],
    authenticator: Authenticator,
    guard: RocketmqGuard | None,
    native_guard: Guard | None,
) -> Methods:
    """The methods of administration.

    native: the native API's, by path. guard, native_guard: None where there are no users.
    """
    verbs, plain = Verbs(native, messaging.broker.audit), Methods()
    parts = AdminParts(messaging, verbs, authenticator, Sights(native_guard))
    adminstubs.rpc.add_AdminServicer_to_server(AdminService(parts), plain.as_server())
    return _guarded(ADMIN, plain, messaging, guard)


def _guarded(
    api: Api, plain: Methods, messaging: MessagingService, guard: RocketmqGuard | None
) -> Methods:
    if guard is None:
        return plain
    wrapping = Wrapping(api, guard, messaging.forwarder, messaging.broker.audit)
    return guarded_methods(api, plain, wrapping)
