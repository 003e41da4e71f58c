"""Relays telemetry streams of clients that are connected to a slave to the master.

The master pushes commands to clients: it sends transaction checks to producers, notifies consumers
that another one took over their lite topic, and asks questions of operators. A client may be
connected to any node of the group, so a slave opens a stream for the same client to the master,
repeats the client's settings on it, and passes on commands and answers. A change of masters moves
these streams; the client's own stream stays.
"""

import asyncio
from collections import deque

import grpc
import structlog
from duolog import _errors as sdk
from duolog._background import Background, together
from duolog._nodechannel import uncancelled

from duolog_server.compat.grpc.protocol.stubs import service
from duolog_server.compat.grpc.relay.calls import Call
from duolog_server.compat.grpc.relay.clients import Stream, nonce_of
from duolog_server.compat.grpc.relay.forward import Forwarder, Telemetry
from duolog_server.node.broker import report

log = structlog.get_logger("duolog.rocketmq")

_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, sdk.DuologError)
POLL_SECONDS = 0.5  # interval at which a change of masters is checked
AGAIN_SECONDS = 1.0  # until an ended stream is opened again
QUESTIONS_MAX = 8  # to a client, whose answers are passed on
ANSWER_BYTES_MAX = 1 << 20


class Relay:
    """One client's stream to this node, and the relay to the master."""

    def __init__(self, stream: Stream, context: Call) -> None:
        self.stream = stream
        self.context = context
        self.master = ""  # endpoint of the relay
        self.task: asyncio.Task[None] | None = None
        self._settings: service.TelemetryCommand | None = None
        self._asked: deque[str] = deque(maxlen=QUESTIONS_MAX)  # numbers of the master's questions
        self._answers: deque[service.TelemetryCommand] = deque(maxlen=QUESTIONS_MAX)
        self._changed = asyncio.Event()

    def answer(self, command: service.TelemetryCommand) -> None:
        """Send the master the client's answer to one of its questions, and nothing else."""
        nonce = nonce_of(command)
        if nonce in self._asked and command.ByteSize() <= ANSWER_BYTES_MAX:
            self._asked.remove(nonce)
            self._answers.append(command)
            self._changed.set()

    def settings(self, command: service.TelemetryCommand) -> None:
        """Note the client's settings, and send them to the master."""
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
        sent: service.TelemetryCommand | None = None
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            settings = self._settings
            if settings is not None and settings is not sent:
                sent = settings
                await uncancelled(call.write(settings))
            while self._answers:
                await uncancelled(call.write(self._answers.popleft()))

    async def _read(self, call: Telemetry) -> None:
        """Pass commands on to the client; settings were already answered by this node."""
        while isinstance(command := await uncancelled(call.read()), service.TelemetryCommand):
            if command.WhichOneof("command") not in (None, "settings"):
                if nonce := nonce_of(command):
                    self._asked.append(nonce)
                await self.stream.write(command)


class TelemetryRelays:
    """The relays of all clients of a node; on a master they are idle."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._relays: set[Relay] = set()
        self._leading = Background(report)

    def add(self, stream: Stream, context: Call) -> Relay:
        """Add the stream of a client."""
        relay = Relay(stream, context)
        self._relays.add(relay)
        self._lead(relay, self._forwarder.master_elsewhere())
        return relay

    async def drop(self, relay: Relay) -> None:
        """Remove a stream that ended."""
        self._relays.discard(relay)
        if relay.task is not None:
            relay.task.cancel()
            await asyncio.wait([relay.task])

    async def run(self) -> None:
        """Follow changes of the master, until cancelled; then end all relays."""
        try:
            while True:
                await asyncio.sleep(POLL_SECONDS)
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
