"""How long calls of clients took, by method and how they ended; only a node with metrics asks.

Keys are names that this node gives, not its clients: there are as many as methods and codes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import grpc

from duolog_server.node.net.methods import Handler, Methods, methods_of
from duolog_server.node.runtime.histogram import Histogram

K = TypeVar("K")
Wrap = Callable[[str, Handler], Handler]  # of a path

# Seconds; and RocketMQ's bounds, milliseconds.
CALL_BOUNDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RPC_BOUNDS = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallTimes(Generic[K]):
    """A histogram for each kind of call."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.table: dict[K, Histogram] = {}
        self._bounds = bounds

    def note(self, key: K, took: float) -> None:
        """Count a call. took: in the unit of the bounds."""
        times = self.table.get(key)
        if times is None:
            times = self.table[key] = Histogram(self._bounds)
        times.observe(took)


def timed(methods: Methods, wrap: Wrap) -> Methods:
    """The same methods, each wrapped once."""
    made = Methods()
    made.by_path = {path: wrap(path, handler) for path, handler in methods.by_path.items()}
    for service in methods.generic:
        found = {
            path: made.by_path.get(path) or wrap(path, handler)
            for path, handler in methods_of(service).items()
        }
        name = next(iter(found)).split("/")[1]
        rows = {path.rpartition("/")[2]: cast(Any, handler) for path, handler in found.items()}
        made.generic.append(grpc.method_handlers_generic_handler(name, rows))
    return made


def code_of(error: BaseException, context: Any) -> str:
    """The name of the status that a call ends with, which raised an error."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    code = getattr(error, "code", None)  # of a call over frames
    if not isinstance(code, grpc.StatusCode):
        code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else _NAMES.get(code, "UNKNOWN")
