"""A node's health, as gRPC asks for it: calls of Check, and streams of Watch, which are limited.

Rules: no watch waits for another one, so a client that takes nothing holds up neither the others
nor the end of the node. A watch too many is answered as a method that is not served: gRPC's clients
then use the node without watching it, where any other error would have them leave it.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

WATCHES_MAX = 1024  # each takes 21 KiB of gRPC's core and of this process
_Status = health_pb2.HealthCheckResponse
_Context = grpc.aio.ServicerContext[Any, Any]


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Says of each service whether it is served, and of the node by the name "".

    Attributes:
        watches: streams of Watch that are open.
    """

    def __init__(self) -> None:
        self.watches = 0
        self._is_served: dict[str, bool] = {"": True}
        self._changed = asyncio.Event()  # of now; the next change has another one

    async def Check(self, request: Any, context: _Context) -> Any:
        """Whether a service is served. Ends the call (NOT_FOUND) for an unknown one."""
        if request.service not in self._is_served:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f'this node has no service "{request.service[:256]}"'
            )
        return self._answer(request.service)

    async def Watch(self, request: Any, context: _Context) -> None:
        """Whether a service is served, now and after each change."""
        if self.watches >= WATCHES_MAX:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"this node already has its maximum of {WATCHES_MAX:,} watches of health: "
                "call Check instead",
            )
        self.watches += 1
        try:
            told = None
            while True:
                changed, answer = self._changed, self._answer(request.service)
                if answer != told:
                    await context.write(answer)
                    told = answer
                await changed.wait()
        finally:
            self.watches -= 1

    def _answer(self, service: str) -> Any:
        is_served = self._is_served.get(service)
        if is_served is None:
            return _Status(status=_Status.SERVICE_UNKNOWN)
        return _Status(status=_Status.SERVING if is_served else _Status.NOT_SERVING)

    def serve(self, services: Iterable[str]) -> None:
        """These are served."""
        self._tell(dict.fromkeys(services, True))

    def end(self) -> None:
        """Nothing is served any more."""
        self._tell(dict.fromkeys(self._is_served, False))

    def _tell(self, is_served: dict[str, bool]) -> None:
        self._is_served |= is_served
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
