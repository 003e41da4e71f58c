"""Adds services to a server so that their methods are found by name, call by call.

Generated code also registers every method with gRPC's core. For each registered method, gRPC's
asyncio server then keeps a request for its next call, and waits on all of them after each call of
any method: a cost in proportion to the number of methods. A look-up by name costs one dictionary
access a service.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import grpc
import grpc.aio


class ByName:
    """Passes on the handlers of services, without the registration of their methods."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Serve these, found by name."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, object]) -> None:
        """Leave out what generated code asks for beside it."""


def by_name(server: grpc.aio.Server) -> grpc.aio.Server:
    """The server, for generated code that adds a service to it."""
    return cast(grpc.aio.Server, ByName(server))
