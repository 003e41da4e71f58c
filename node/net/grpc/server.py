"""gRPC's asyncio server, without the call that ends it.

grpcio (1.85) reads the name of an unknown method as UTF-8 in the task that takes all calls. A name
that is none ends that task, and with it the server: one call of anybody closes the port. Here the
methods of this node are registered with gRPC's core, which compares their names as bytes, and all
other calls are answered as unknown whatever their names are. Calls are taken by a task for each
method, so a call costs the same however many methods there are (grpcio waits for all of them anew
at each call).

This uses parts of grpcio that are not public: where they are not as they were, `serve` says so, and
gives grpcio's own server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

import grpc
import grpc.aio
import structlog
from grpc._cython import cygrpc as _cygrpc
from grpc.aio import _server

from duolog_server.node.net.grpc.options import Options
from duolog_server.node.net.grpc.receive_limit import calls
from duolog_server.node.net.grpc.receive_limit.ledger import Ledger
from duolog_server.node.net.grpc.receive_limit.watch import Watch
from duolog_server.node.net.methods import Handler, methods_of

cygrpc: Any = _cygrpc
log = structlog.get_logger("duolog.node")

UNKNOWN = "/unknown"
_USED = (
    "_handle_rpc",
    "_schedule_rpc_coro",
    "_MethodResolver",
    "_RequestCallError",
    "_ServicerContext",
)
_OVERRIDDEN = ("_make_request_call_future", "_request_call", "_request_registered_call")


class _Tracebacks:
    """In the place of the module that grpcio prints to stderr with when a call is gone before it is
    answered: its peer decides how often.
    """

    @staticmethod
    def print_exc() -> None:
        """Note it where debug lines are asked for."""
        log.debug("a call was gone before its answer", exc_info=True)


class _Core(cygrpc.AioServer):  # type: ignore[misc]
    """Takes the calls of each method by itself.

    grpcio's own loop keeps waiting for calls that never come to it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *rest: Any) -> None:
        super().__init__(loop, *rest)
        self._own_loop = loop
        self._methods: dict[str, Any] = {}
        self.calls_max = 0
        self.watch: Watch | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._resolver: Any = None

    def add_registered_method_handlers(self, handlers: Mapping[str, Any]) -> None:
        """See grpcio."""
        self._methods.update(handlers)
        super().add_registered_method_handlers(handlers)

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Future[None]":
        """Called once for each method, and once for all others."""
        name = UNKNOWN if method is None else method.decode()
        request = (
            self._request_call if method is None else partial(self._request_registered_call, method)
        )
        if self._resolver is None:
            self._resolver = cygrpc._MethodResolver([], self._methods)
        return self._own_loop.create_task(self._take(name, request))

    async def _take(self, name: str, request: Callable[[], Awaitable[Any]]) -> None:
        """Begin the calls of one method. Raises what grpcio's loop would raise."""
        loop = self._own_loop
        while True:
            try:
                state = await request()
            except cygrpc._RequestCallError:
                if self.is_running():
                    continue
                raise
            begun = self._begun(state)
            if begun is None:
                del state  # with its headers, which may be long
                continue
            # Counted here, since a call that has no request yet is known to no service.
            too_many = len(self._calls) >= self.calls_max
            if too_many:
                log.warning("gRPC: too many calls", reason=f"{self.calls_max} are open")
            serving = cygrpc._handle_rpc(name, self._resolver, (), state, loop, too_many)
            task = loop.create_task(cygrpc._schedule_rpc_coro(serving, state, loop, name))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            task.add_done_callback(begun)

    def _begun(self, state: Any) -> Callable[[object], None] | None:
        """A call that begins, and is counted: what is to be called when its task is done. None
        where it may not begin.
        """
        if self.watch is None or not self.watch.looks:
            return _nothing
        context = cygrpc._ServicerContext(state, None, None, self._own_loop)
        call = calls.begin(self.watch, context)
        return None if call is None else call.end


def _nothing(_task: object) -> None:
    """Of calls that are not counted."""


class Server(_server.Server):
    """A server whose generic handlers are those of `grpc.method_handlers_generic_handler`."""

    def __init__(self, options: Options, calls_max: int, ledger: Ledger) -> None:
        self._loop = cygrpc.get_working_loop()
        arguments = cast(Any, _server)._augment_channel_arguments(options, None)
        self._server = _Core(self._loop, None, (), (), arguments, None)
        self._server.calls_max = calls_max
        self._server.watch = self._watch = Watch(ledger)
        self._ports: set[int] = set()

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        """See grpcio: their methods are registered."""
        for service in generic_rpc_handlers:
            found: dict[str, Handler] = methods_of(service)
            self._server.add_registered_method_handlers(
                {name: calls.counted(method) for name, method in found.items()}
            )

    def add_insecure_port(self, address: str) -> int:
        """See grpcio."""
        return self._added(super().add_insecure_port(address))

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        """See grpcio."""
        return self._added(super().add_secure_port(address, server_credentials))

    def _added(self, port: int) -> int:
        self._ports.add(port)
        return port

    async def start(self) -> None:
        """See grpcio."""
        await super().start()
        self._watch.start(self._ports)

    async def stop(self, grace: float | None) -> None:
        """See grpcio."""
        await super().stop(grace)
        await self._watch.stop()


def serve(options: Options, calls_max: int, ledger: Ledger) -> grpc.aio.Server:
    """A server. calls_max: on all connections together; the others get RESOURCE_EXHAUSTED. ledger:
    of what has not arrived whole.
    """
    lacking = [name for name in _USED if not hasattr(cygrpc, name)]
    lacking += [name for name in _OVERRIDDEN if not hasattr(cygrpc.AioServer, name)]
    if lacking:
        log.warning("this grpcio can be stopped by anybody", reason=f"it lacks {lacking}")
        return grpc.aio.server(options=options, maximum_concurrent_rpcs=calls_max)
    if hasattr(cygrpc, "traceback"):
        cygrpc.traceback = _Tracebacks
    return cast(grpc.aio.Server, Server(options, calls_max, ledger))
