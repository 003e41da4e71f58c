"""What the guards before all APIs have in common: they wrap each method as it is added."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import grpc

from duolog_server.node.net.methods import Handler, Methods


class Wraps(Protocol):
    """A guard."""

    def wrap(self, path: str, handler: Handler) -> Handler:
        """A method with its rule before it. Raises KeyError where it has none."""


class Delivering:
    """The context of a streaming call: what it writes is looked at once more."""

    def __init__(self, context: Any, check: Callable[[Any], None]) -> None:
        """check: gets each reply first. A guard's raises Unauthenticated or NoPermission where the
        right is gone.
        """
        self._context = context
        self._check = check

    async def write(self, message: Any) -> None:
        """Send a reply. Raises what the check raises."""
        self._check(message)
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def with_method(handler: Handler, method: Any) -> Handler:
    """A handler of the same kind that calls another method."""
    reads, writes = handler.request_deserializer, handler.response_serializer
    if handler.request_streaming:
        made = grpc.stream_stream_rpc_method_handler(method, reads, writes)
    elif handler.response_streaming:
        made = grpc.unary_stream_rpc_method_handler(method, reads, writes)
    else:
        made = grpc.unary_unary_rpc_method_handler(method, reads, writes)
    return cast(Handler, made)


class GuardedMethods(Methods):
    """Methods that a guard wraps as they are added."""

    def __init__(self, guard: Wraps) -> None:
        super().__init__()
        self._guard = guard

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """The same methods come for registration."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """See Methods."""
        guarded = {
            name: self._guard.wrap(f"/{service}/{name}", handler)
            for name, handler in handlers.items()
        }
        super().add_registered_method_handlers(service, guarded)
        self.generic.append(grpc.method_handlers_generic_handler(service, cast(Any, guarded)))
