"""Telemetry streams of clients that are connected to a slave, continued to the master.

The master pushes commands to clients: it asks producers about transactions, and tells consumers
that another one has their lite topic. A client's stream may end at any node of the group, so a
slave opens a stream of the same client to the master, repeats the client's settings on it, and
hands down what comes. A change of masters moves these streams; the client's own stays.
"""

import asyncio

import grpc
import structlog
from duolog import _errors as sdk
from duolog._background import Background, together
from duolog._connection import uncancelled

from node.broker import report
from node.rocketmq.calls import Call
from node.rocketmq.clients import Stream
from node.rocketmq.forward import Forwarder, Telemetry
from node.rocketmq.stubs import service

log = structlog.get_logger("duolog.rocketmq")

_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, sdk.DuologError)
LOOK_SECONDS = 0.5  # after which a change of masters is noticed
AGAIN_SECONDS = 1.0  # until a stream that ended is opened again


class Relay:
    """One client's stream here, and its continuation."""

    def __init__(self, stream: Stream, context: Call) -> None:
        self.stream = stream
        self.context = context
        self.master = ""  # where the continuation leads
        self.task: asyncio.Task[None] | None = None
        self._settings: service.TelemetryCommand | None = None
        self._changed = asyncio.Event()

    def settings(self, command: service.TelemetryCommand) -> None:
        """What the client told of itself, to be told to the master."""
        self._settings = command
        self._changed.set()

    async def run(self, forwarder: Forwarder) -> None:
        """Keep a stream to the master open, until cancelled."""
        while True:
            call = forwarder.telemetry(self.master, self.context)
            try:
                async with together() as tasks:
                    writing = tasks.create_task(self._write(call))
                    await self._read(call)
                    writing.cancel()
            except _ENDED as error:
                log.debug("a telemetry stream to the master ended", reason=str(error))
            finally:
                call.cancel()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _write(self, call: Telemetry) -> None:
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._settings is not None:
                await uncancelled(call.write(self._settings))

    async def _read(self, call: Telemetry) -> None:
        """Hand commands down; settings were answered by this node already."""
        while isinstance(command := await uncancelled(call.read()), service.TelemetryCommand):
            if command.WhichOneof("command") not in (None, "settings"):
                await self.stream.write(command)


class TelemetryRelays:
    """All of a node's clients' streams; those of a master lead nowhere else."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._relays: set[Relay] = set()
        self._leading = Background(report)

    def add(self, stream: Stream, context: Call) -> Relay:
        """A client opened a stream here."""
        relay = Relay(stream, context)
        self._relays.add(relay)
        self._lead(relay, self._forwarder.master_elsewhere())
        return relay

    async def drop(self, relay: Relay) -> None:
        """It ended."""
        self._relays.discard(relay)
        if relay.task is not None:
            relay.task.cancel()
            await asyncio.wait([relay.task])

    async def run(self) -> None:
        """Follow the mastership, until cancelled; then no stream leads anywhere."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                master = self._forwarder.master_elsewhere()
                for relay in self._relays:
                    if relay.master != master:
                        self._lead(relay, master)
        finally:
            await self._leading.stop()

    def _lead(self, relay: Relay, master: str) -> None:
        if relay.task is not None:
            relay.task.cancel()
        relay.master = master
        relay.task = self._leading.start(relay.run(self._forwarder)) if master else None
