"""RocketMQ's API with a clock: how long each call took, and with which code it was answered.

Telemetry streams last as long as their clients like, and are not measured.
"""

import asyncio
import re
from time import perf_counter
from typing import Any

from duolog_server.compat.grpc.words.stubs import SERVICE_NAME, Code
from duolog_server.node.core.traffic import CallTimes, timed
from duolog_server.node.identity.access.guarding import Delivering, with_method
from duolog_server.node.net.methods import Handler, Methods

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
        began, code, result = perf_counter(), "", FAILED
        try:
            reply = await self._handler.unary_unary(request, context)
            code, result = _name(reply), SUCCESS
            return reply
        except asyncio.CancelledError:
            result = CANCELLED
            raise
        finally:
            self._note(began, code, result)

    async def streamed(self, request: Any, context: Any) -> None:
        """A call with many replies, up to the last one."""
        began, code, result = perf_counter(), "", FAILED

        def look(reply: Any) -> None:
            nonlocal code  # of the last reply that has a status
            if reply.HasField("status"):
                code = _name(reply)

        try:
            await self._handler.unary_stream(request, Delivering(context, look))
            result = SUCCESS
        except asyncio.CancelledError:
            result = CANCELLED
            raise
        finally:
            self._note(began, code, result)

    def _note(self, began: float, code: str, result: str) -> None:
        key = (self._name, code, self._waits, result)
        self._times.note(key, 1000 * (perf_counter() - began))


def _name(reply: Any) -> str:
    """The code of a reply, as a label; a number for one that this version does not know."""
    code: int = reply.status.code
    return _NAMES.get(code) or str(code)


def timed_methods(methods: Methods, times: CallTimes[Key]) -> Methods:
    """The same methods, of other services, too; those of RocketMQ's are measured."""

    def wrap(path: str, handler: Handler) -> Handler:
        service, _, name = path.strip("/").partition("/")
        if service != SERVICE_NAME or handler.request_streaming:
            return handler
        timing = _Timing(name, handler, times)
        method = timing.streamed if handler.response_streaming else timing.unary
        return with_method(handler, method)

    return timed(methods, wrap)
