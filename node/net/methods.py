"""The methods of services, as generated code adds them to a server.

Generated code also registers every method with gRPC's core. For each registered method, gRPC's
asyncio server then keeps a request for its next call, and waits on all of them after each call of
any method: a cost in proportion to the number of methods. Here they are only noted. A look-up by
name costs one dictionary access a service.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import grpc
import grpc.aio


class Handler(Protocol):
    """A method of a service, as the generated code registers it."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any]
    response_serializer: Callable[[Any], bytes]
    unary_unary: Any
    unary_stream: Any
    stream_stream: Any


class Methods:
    """Collects what `add_XServicer_to_server` adds.

    Attributes:
        generic: for gRPC's server, which finds the methods of a service in each by name.
        by_path: for other servers. Without services whose code is older than registration.
    """

    def __init__(self) -> None:
        self.generic: list[grpc.GenericRpcHandler] = []
        self.by_path: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """A service, for look-ups by name."""
        self.generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """The same methods, for registration."""
        for name, handler in handlers.items():
            self.by_path[f"/{service}/{name}"] = handler

    def as_server(self) -> grpc.aio.Server:
        """For generated code, which uses these two methods of a server alone."""
        return cast(grpc.aio.Server, self)


def methods_of(service: grpc.GenericRpcHandler) -> dict[str, Handler]:
    """The methods of a service by their paths.

    service: made by `grpc.method_handlers_generic_handler`, as in generated code. Raises TypeError
    for another one, whose methods are known only as they are called.
    """
    found = getattr(service, "_method_handlers", None)
    if found is None:
        raise TypeError(f"{type(service).__name__} does not say which methods it has")
    return cast(dict[str, Handler], found)
