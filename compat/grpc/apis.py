"""RocketMQ's services on a node's port: guarded where there are users, measured where metrics are.

Measured is how long each call took, and with which code it was answered. Telemetry streams last as
long as their clients like, and are not measured.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from duolog_server.compat.grpc.administration.rules import RULES as ADMIN_RULES
from duolog_server.compat.grpc.administration.service import AdminParts, AdminService
from duolog_server.compat.grpc.auth import Authenticator
from duolog_server.compat.grpc.guard import RocketmqGuard
from duolog_server.compat.grpc.guarded import Api, Wrapping, guarded_methods
from duolog_server.compat.grpc.protocol import stubs
from duolog_server.compat.grpc.protocol.stubs import SERVICE_NAME, Code
from duolog_server.compat.grpc.rules import RULES
from duolog_server.compat.grpc.service import MessagingService
from duolog_server.node.api.verbs import Verbs
from duolog_server.node.api.visibility import Sights
from duolog_server.node.core.traffic import CallTimes, timed
from duolog_server.node.identity.access.guarding import Delivering, with_method
from duolog_server.node.net.methods import Handler, Methods

MESSAGING = Api(stubs.SERVICE_NAME, "MessagingService", stubs.METHODS, RULES)
ADMIN = Api(stubs.ADMIN_SERVICE_NAME, stubs.ADMIN_SERVICE_NAME, stubs.ADMIN_METHODS, ADMIN_RULES)
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
    verbs: Verbs,
    authenticator: Authenticator,
    guard: RocketmqGuard | None,
) -> Methods:
    """The methods of administration. guard: None where there are no users."""
    plain = Methods()
    parts = AdminParts(
        messaging, verbs, authenticator, Sights(guard.core if guard is not None else None)
    )
    stubs.admin_rpc.add_AdminServicer_to_server(AdminService(parts), plain.as_server())
    return _guarded(ADMIN, plain, messaging, guard)


def _guarded(
    api: Api, plain: Methods, messaging: MessagingService, guard: RocketmqGuard | None
) -> Methods:
    if guard is None:
        return plain
    return guarded_methods(api, plain, Wrapping(api, guard, messaging.forwarder))


Key = tuple[str, str, bool, str]  # request code, response code, long polling, result
WAITING = ("ReceiveMessage", "PullMessage")
_NAMES: dict[int, str] = {code: name.lower() for name, code in Code.items()}
SUCCESS, CANCELLED, FAILED = "success", "cancelled", "process_request_failed"


class _Timing:
    """Measures the calls of one method."""

    def __init__(self, name: str, handler: Handler, times: CallTimes[Key]) -> None:
        self._name = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        self._waits = name in WAITING
        self._handler = handler
        self._times = times

    async def unary(self, request: Any, context: Any) -> Any:
        """A call with one reply."""
        with self._measured() as codes:
            reply = await self._handler.unary_unary(request, context)
            codes.append(_name(reply))
            return reply

    async def streamed(self, request: Any, context: Any) -> None:
        """A call with many replies, up to the last one."""
        with self._measured() as codes:

            def look(reply: Any) -> None:
                if reply.HasField("status"):
                    codes[:] = (_name(reply),)

            await self._handler.unary_stream(request, Delivering(context, look))

    @contextmanager
    def _measured(self) -> Iterator[list[str]]:
        """Note how long a call takes. It appends its code, of the last reply that has a status."""
        began, codes, result = perf_counter(), list[str](), FAILED
        try:
            yield codes
            result = SUCCESS
        except asyncio.CancelledError:
            result = CANCELLED
            raise
        finally:
            key = (self._name, codes[0] if codes else "", self._waits, result)
            self._times.note(key, 1000 * (perf_counter() - began))


def _name(reply: Any) -> str:
    """The code of a reply, as a label; a number for one that this version does not know."""
    code: int = reply.status.code
    return _NAMES.get(code) or str(code)


def timed_methods(methods: Methods, times: CallTimes[Key]) -> Methods:
    """The same methods, with the calls of RocketMQ's MessagingService timed."""

    def wrap(path: str, handler: Handler) -> Handler:
        service, _, name = path.strip("/").partition("/")
        if service != SERVICE_NAME or handler.request_streaming:
            return handler
        timing = _Timing(name, handler, times)
        method = timing.streamed if handler.response_streaming else timing.unary
        return with_method(handler, method)

    return timed(methods, wrap)
