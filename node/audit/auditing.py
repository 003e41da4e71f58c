"""Before the methods of an API: notes how their calls end in the audit log.

It comes before the guard, so that it sees what the guard refuses. A batch that is refused in a
stream that continues is noted where it is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from duolog import _errors as sdk
from duolog._errors import ERROR_KEY

from duolog_server.node.audit.auditlog import AuditLog
from duolog_server.node.audit.entry import Decision, Entry
from duolog_server.node.audit.subjects import OPERATOR_CHANGES, is_change, resource_of, shown_of
from duolog_server.node.identity.access.gate import VIEWER_ADDRESS, name_of_caller
from duolog_server.node.identity.access.guarding import Wraps, with_method
from duolog_server.node.identity.quotas.quotas import Who
from duolog_server.node.net.methods import Handler
from duolog_server.node.wirecodec import peer_host

DENIED = (sdk.Unauthenticated.__name__, sdk.NoPermission.__name__)
ELSEWHERE = sdk.NotMaster.__name__
APPEND = "Messages/Append"
GONE = "the call ended before its answer: its client left, or the node stopped"


class Seen:
    """The context of a call; it knows with which error the call was ended."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.error = ""
        self.reason = ""
        self.request: Any = None  # the last one of a stream

    async def abort(self, code: Any, details: str = "", trailing: Iterable[Any] = ()) -> None:
        """End the call."""
        trailing = tuple(trailing)
        self.error = next((str(value) for key, value in trailing if key == ERROR_KEY), str(code))
        self.reason = details
        await self._context.abort(code, details, trailing)

    async def noting(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Requests of a stream; the last one says what it was about."""
        async for self.request in requests:
            yield self.request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Auditing:
    """Wraps methods, so that their calls are noted."""

    def __init__(self, audit: AuditLog, guard: Wraps | None) -> None:
        """guard: None where there are no users, or the methods ask for a proof themselves."""
        self._audit = audit
        self._guard = guard

    def wrap(self, path: str, handler: Handler) -> Handler:
        """A method, and the guard before it, with their ends noted."""
        inner = self._guard.wrap(path, handler) if self._guard is not None else handler
        name = path.rpartition(".")[2]  # without the package
        if inner.request_streaming:
            return with_method(inner, self._both(inner, name))
        made = self._streamed if inner.response_streaming else self._unary
        return with_method(inner, made(inner, name))

    def _unary(self, inner: Handler, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> Any:
            seen = Seen(context)
            try:
                reply = await inner.unary_unary(request, seen)
            except BaseException as error:
                self._ended(name, request, seen, error)
                raise
            self._ended(name, request, seen)
            return reply

        return call

    def _streamed(self, inner: Handler, name: str) -> Callable[[Any, Any], Any]:
        async def call(request: Any, context: Any) -> None:
            seen = Seen(context)
            try:
                await inner.unary_stream(request, seen)
            finally:
                self._ended(name, request, seen)

        return call

    def _both(self, inner: Handler, name: str) -> Callable[[Any, Any], Any]:
        async def call(requests: AsyncIterator[Any], context: Any) -> None:
            seen = Seen(context)
            if name != APPEND:  # whose batches are answered one by one, and are many
                requests = seen.noting(requests)
            try:
                await inner.stream_stream(requests, seen)
            finally:
                self._ended(name, seen.request, seen)

        return call

    def _ended(
        self, name: str, request: Any, seen: Seen, error: BaseException | None = None
    ) -> None:
        decision, reason = Decision.ALLOWED, seen.reason
        if seen.error in DENIED:
            decision = Decision.DENIED
        elif name in OPERATOR_CHANGES or not (self._audit.all_calls or is_change(name, request)):
            return
        elif seen.error == ELSEWHERE:
            return  # the master decides, and notes it
        elif seen.error:
            decision, reason = Decision.FAILED, f"{seen.error}: {reason}"
        elif error is not None:
            gone = isinstance(error, asyncio.CancelledError)
            decision, reason = Decision.FAILED, GONE if gone else type(error).__name__
        denied = decision is Decision.DENIED
        self._audit.note(
            Entry(
                self._audit.wall_ms,
                *Who.at(name_of_caller(), VIEWER_ADDRESS.get() or peer_host(seen.peer()).address),
                name,
                resource_of(name, request) if request is not None else "",
                decision,
                reason,
                {} if denied or request is None else shown_of(name, request),
            )
        )
