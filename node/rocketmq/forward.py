"""Passing calls on to the master, of this replica group or of another one: any node takes any call.

A call is passed on once. A node that another one takes for the master, and that is not, ends the
call with FAILED_PRECONDITION; the first one then asks again, until it knows better or the call's
time is over. So a change of masters delays a call and does not fail it.
"""

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio
from duolog import _errors as sdk
from duolog._connection import uncancelled

from node.broker import Broker
from node.rocketmq.stubs import rpc

FORWARDED = "x-duolog-forwarded"  # its value says how the client came
COPY = "x-duolog-copy"  # of a call that another node answers
COPY_SECONDS = 1.0
TLS, PLAIN = "tls", "plain"
PAUSE_SECONDS = 0.05
UNARY_SECONDS = 3.0
STREAM_SECONDS = 30.0
MARGIN_SECONDS = 0.2
BYTES_MAX = 64 << 20
_KEPT = ("x-mq-", "authorization")


def is_encrypted(context: Any) -> bool:
    """Whether the client came by TLS, to this node or to the one that passed its call on."""
    transport = (context.auth_context() or {}).get("transport_security_type", [])
    return _how_forwarded(context) == TLS or b"ssl" in transport


async def refuse_forwarded(context: Any, error: Exception) -> None:
    """End a call that another node passed on to this one, where this one is no master."""
    if isinstance(error, sdk.NotMaster) and is_forwarded(context):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def is_forwarded(context: Any) -> bool:
    """Whether another node passed a call on to this one."""
    return bool(_how_forwarded(context))


def is_copy(context: Any) -> bool:
    """Whether another node only lets this one know of a call."""
    return bool(dict(context.invocation_metadata() or ()).get(COPY))


def _how_forwarded(context: Any) -> str:
    return str(dict(context.invocation_metadata() or ()).get(FORWARDED, ""))


class Forwarder:
    """Channels to masters, as they come and go."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}  # by replica group
        self._peers: dict[str, grpc.aio.Channel] = {}  # by endpoint
        self._old: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Let go of the connections."""
        for channel in [*(known for _, known in self._channels.values()), *self._peers.values()]:
            await channel.close()
        for task in self._old:
            task.cancel()
        await asyncio.gather(*self._old, return_exceptions=True)

    def other_groups(self) -> list[str]:
        """Replica groups of the cluster beside this one."""
        failover = self._broker.failover
        known = failover.routes if failover is not None else ()
        return sorted(set(known) - {self._broker.config.node.group})

    def _master(self, group: str) -> str:
        """Where a group's master is reached; empty where that is not known."""
        failover = self._broker.failover
        if group == self._broker.config.node.group or failover is None:
            return self._broker.replication.master_endpoint[0]
        view = failover.routes.get(group)
        return view.master.endpoint if view is not None and view.master is not None else ""

    async def _stub(self, context: Any, deadline: float, group: str) -> Any:
        """The master's service. Raises NotMaster where there is none in time."""
        loop = asyncio.get_running_loop()
        group = group or self._broker.config.node.group
        if is_forwarded(context):
            raise sdk.NotMaster("neither this node nor the one before it is the master")
        while not (endpoint := self._master(group)):
            if loop.time() + PAUSE_SECONDS >= deadline:
                raise sdk.NotMaster(f"group {group} has no master now")
            await asyncio.sleep(PAUSE_SECONDS)
        known = self._channels.get(group)
        if known is None or known[0] != endpoint:
            if known is not None:
                old = asyncio.ensure_future(known[1].close(grace=STREAM_SECONDS))
                self._old.add(old)
                old.add_done_callback(self._old.discard)
            options = [
                ("grpc.max_receive_message_length", BYTES_MAX),
                ("grpc.max_send_message_length", BYTES_MAX),
            ]
            known = self._channels[group] = (
                endpoint,
                grpc.aio.insecure_channel(endpoint, options),
            )
        return rpc.MessagingServiceStub(known[1])

    @staticmethod
    def _metadata(context: Any) -> list[tuple[str, str]]:
        kept = [
            (name, value)
            for name, value in context.invocation_metadata() or ()
            if name.startswith(_KEPT)
        ]
        return [*kept, (FORWARDED, TLS if is_encrypted(context) else PLAIN)]

    @staticmethod
    def _seconds(context: Any, default: float) -> float:
        left = context.time_remaining()
        return max(0.05, (default if left is None else min(left, 120.0)) - MARGIN_SECONDS)

    async def unary(
        self, name: str, request: Any, context: Any, group: str = "", seconds: float = 120.0
    ) -> Any:
        """A unary call's answer. group: another replica group; seconds: at most.

        Raises NotMaster, Unavailable.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(self._seconds(context, UNARY_SECONDS), seconds)
        while True:
            method = getattr(await self._stub(context, until, group), name)
            left = until - loop.time()
            try:
                return await uncancelled(
                    method(request, timeout=left, metadata=self._metadata(context))
                )
            except grpc.aio.AioRpcError as failure:
                await self._pause_or_raise(failure, until)

    async def _pause_or_raise(self, failure: grpc.aio.AioRpcError, until: float) -> None:
        """Another try makes sense where the call did nothing and there is time."""
        if failure.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise sdk.Unavailable(f"the master does not answer: {failure.details()}") from None
        if asyncio.get_running_loop().time() + PAUSE_SECONDS >= until:
            raise sdk.NotMaster(f"the group has no master now: {failure.details()}") from None
        await asyncio.sleep(PAUSE_SECONDS)

    async def tell(self, name: str, request: Any, context: Any) -> None:
        """Let the master know, if it can be reached at once."""
        with contextlib.suppress(sdk.DuologError):
            await self.unary(name, request, context)

    def _others(self) -> list[str]:
        """Endpoints of the cluster's other nodes, as far as they are known."""
        failover = self._broker.failover
        views = failover.routes.values() if failover is not None else ()
        found = {replica.endpoint for view in views for replica in view.replicas.values()}
        return sorted(found - {self._broker.advertised, ""})

    async def copy(self, name: str, request: Any, context: Any) -> None:
        """Let all other nodes know of a call, those that can be reached at once."""
        others = self._others()
        for gone in set(self._peers) - set(others):
            channel = self._peers.pop(gone, None)
            if channel is not None:  # or another call saw it first
                await channel.close()
        await asyncio.gather(
            *(self._copy_to(endpoint, name, request, context) for endpoint in others)
        )

    async def _copy_to(self, endpoint: str, name: str, request: Any, context: Any) -> None:
        channel = self._peers.get(endpoint)
        if channel is None:
            channel = self._peers[endpoint] = grpc.aio.insecure_channel(endpoint)
        method = getattr(rpc.MessagingServiceStub(channel), name)
        metadata = [*self._metadata(context), (COPY, "1")]
        with contextlib.suppress(grpc.aio.AioRpcError, sdk.DuologError):
            await uncancelled(method(request, timeout=COPY_SECONDS, metadata=metadata))

    async def stream(self, name: str, request: Any, context: Any, group: str = "") -> None:
        """A server-streaming call. Raises NotMaster, Unavailable."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._seconds(context, STREAM_SECONDS)
        while True:
            method = getattr(await self._stub(context, until, group), name)
            left = until - loop.time()
            call = method(request, timeout=left, metadata=self._metadata(context))
            try:
                async for reply in call:
                    await context.write(reply)
                return
            except grpc.aio.AioRpcError as failure:
                await self._pause_or_raise(failure, until)
            finally:
                call.cancel()
