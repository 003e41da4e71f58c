"""The native API with a clock: how long each call took that has one reply.

Streams last as long as their clients like; for batches that are appended, see `Appends`.
"""

from time import perf_counter
from typing import Any

from duolog_server.node.core.traffic import CallTimes, code_of, timed
from duolog_server.node.identity.access.guarding import with_method
from duolog_server.node.net.methods import Handler, Methods

Key = tuple[str, str, bool]  # method, code, whether it may wait for messages


def timed_methods(methods: Methods, times: CallTimes[Key]) -> Methods:
    """The same methods; those with one reply are measured."""

    def wrap(path: str, handler: Handler) -> Handler:
        if handler.request_streaming or handler.response_streaming:
            return handler
        service, _, method = path.rpartition(".")[2].partition("/")
        name, serve = f"{service}/{method}", handler.unary_unary

        async def unary(request: Any, context: Any) -> Any:
            began, code = perf_counter(), "OK"
            try:
                return await serve(request, context)
            except BaseException as error:
                code = code_of(error, context)
                raise
            finally:
                waits = bool(getattr(request, "wait_ms", 0))
                times.note((name, code, waits), perf_counter() - began)

        return with_method(handler, unary)

    return timed(methods, wrap)
