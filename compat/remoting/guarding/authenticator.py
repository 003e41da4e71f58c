"""What a node asks before it serves requests, as configured."""

from dataclasses import dataclass

from duolog_server.compat.remoting.guarding.callers import KeyPair, Users
from duolog_server.compat.remoting.guarding.guard import RequestGuard
from duolog_server.compat.remoting.guarding.visibility import Sight
from duolog_server.node.broker import Broker
from duolog_server.node.identity.access.access import Access
from duolog_server.node.runtime.config import RocketmqSection
from duolog_server.node.service.guard import Guard


@dataclass(frozen=True, slots=True)
class Authenticator:
    """The guard before requests, and what it and those who serve them know of rights."""

    guard: RequestGuard
    sight: Sight


def authenticator_of(
    broker: Broker, section: RocketmqSection, access: Access | None, guard: Guard | None
) -> Authenticator | None:
    """The authenticator of the remoting port; None where anybody may do everything.

    access, guard: None where there are no users. section: has a pair of keys that all clients sign
    with, or none.
    """
    throttle, audit = broker.core.throttle, broker.audit
    if access is not None and guard is not None:
        users = Users(access.gate)
        return Authenticator(RequestGuard(users, guard, throttle, audit), Sight(guard))
    if section.access_key:
        keys = KeyPair(section.access_key, section.secret_key, broker.lockout)
        return Authenticator(RequestGuard(keys, None, throttle, audit), Sight())
    return None
