"""The slave's end of the replication stream: connects, feeds the machine, executes its effects."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio
import structlog
from duolog._errors import Unavailable
from duolog._nodechannel import uncancelled

from duolog_server.ha import slaveevents
from duolog_server.ha.crc32c import QUICK
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.frames import KIND_AT, Kind
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Connected, Effect, Flushed, Lost, Received, Tick
from duolog_server.node.engine.log import Log
from duolog_server.node.replication.keyproof import KeyProof, Opening, Unproven
from duolog_server.node.replication.outgoing import (
    HA_METHOD,
    PROOF_SECONDS,
    STREAM_OPTIONS,
    Outgoing,
    Unsent,
)
from duolog_server.store.errors import StoreError

log = structlog.get_logger("duolog.ha")

PAUSE_MIN_SECONDS = 0.01  # a master that was elected just now begins within some ms
TICK_SECONDS = 0.25
AWAY_SECONDS = 2.0  # longer than a master takes to restart
_CUTTING = (Kind.TRUNCATE, Kind.RESET, Kind.WELCOME)
_BROKEN = (grpc.RpcError, asyncio.InvalidStateError, ConnectionError, Unavailable)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A master's replication port.

    credentials: asked for each connection; None for plain text.
    """

    address: str
    credentials: Callable[[], grpc.ChannelCredentials] | None
    pause_seconds_max: float  # longest pause between two attempts


class Listener(Protocol):
    """Notified of what only an election can act on."""

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks what was confirmed."""

    def older_copy(self, reason: str) -> None:
        """Report that this node lacks bytes that it acknowledged."""

    def lost_master(self) -> None:
        """The connection to a master that was followed broke."""


class ReplicationClient:
    """Follows the master for as long as the node lives."""

    def __init__(
        self,
        log_: Log,
        slave: Slave,
        upstream: Upstream,
        adopt: Callable[[bytes], None],
        listener: Listener | None,
    ) -> None:
        """adopt: takes over the master's tables. listener: None if roles are fixed."""
        self._log = log_
        self._slave = slave
        self._upstream = upstream
        self._adopt = adopt
        self._listener = listener
        self.proof: KeyProof | None = None  # of a node with a key file
        self._call: grpc.aio.StreamStreamCall[bytes, bytes] | None = None
        self._outgoing: Outgoing | None = None
        self._unsent = Unsent()
        self._closing = ""
        self._failure: Exception | None = None  # of ours, met while sending
        self._followed = False  # log bytes flowed on this connection
        self._away_since = time.monotonic()  # while the master is not followed
        self._warned = False  # of a master without a key
        self._uncovered = False  # the last stream's chunks had no CRC over their log bytes; logged
        self._stuck = False  # this node cannot store what the master sends
        self._lost = (slave.truncated_bytes, slave.resets)  # what was logged of them
        self._broken = False  # the connection on which log bytes flowed; nothing was heard since

    @property
    def lost(self) -> bool:
        """The connection to the master fell silent: the master may be gone."""
        return self._broken

    @property
    def away_seconds(self) -> float:
        """Seconds since the master was last followed; 0 for a short time."""
        if self._slave.state is ConnectionState.TRANSFER:
            return 0.0
        seconds = time.monotonic() - self._away_since
        return seconds if seconds >= AWAY_SECONDS else 0.0

    def describe(self) -> str:
        """The name of the master, for messages."""
        name = self._slave.master_node
        return f"{name} at {self._upstream.address}" if name else f"at {self._upstream.address}"

    async def run(self) -> None:
        """The client's task: connect and follow; after a pause, reconnect."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            await self._keep_following()

    async def _keep_following(self) -> None:
        pause = PAUSE_MIN_SECONDS
        longest = self._upstream.pause_seconds_max
        shown = ""
        while True:
            reason, followed = await self._follow()
            if followed:
                self._away_since, self._broken = time.monotonic(), True
            self._slave.step(Lost(reason), self._log.times.mono_ms())
            if followed and self._listener is not None:
                self._listener.lost_master()
            said = f"{self._slave.state.value}: {self._slave.reason}"
            if said != shown:
                log.warning("not following the master", master=self._upstream.address, reason=said)
                shown = said
            well = followed and not self._stuck
            pause = PAUSE_MIN_SECONDS if well else min(2 * pause, longest)
            await asyncio.sleep(pause)
            if well:
                shown = ""

    async def _follow(self) -> tuple[str, bool]:
        """One connection, from beginning to end: why it ended, and whether log bytes flowed."""
        channel = self._channel()
        self._closing, self._failure, self._followed, self._stuck = "", None, False, False
        try:
            stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
            stream = channel.stream_stream(HA_METHOD)
            opening = self.proof.opening() if self.proof is not None else None
            call = self._call = stream(metadata=opening.headers if opening else None)
            first = await uncancelled(self._proven(call, opening)) if opening else None
            self._unsent = Unsent()
            self._outgoing = Outgoing(call.write, self._unsent.take, self._cannot_send)
            if first is not None:
                self.send(first)
            self._perform(self._slave.step(Connected(), self._log.times.mono_ms()))
            # While the stream is made, a cancellation may get lost: the first read looks for it.
            await uncancelled(self._take_all(await uncancelled(call.read()), call))
            details = "" if self._closing else await uncancelled(call.details())
            reason = f"the master ended the stream {details or ''}"
        except Unproven as failure:
            reason = self._unauthorized(str(failure))
        except grpc.RpcError as failure:
            reason = str(failure.details() or failure.code())
            if failure.code() is grpc.StatusCode.UNAUTHENTICATED:
                reason = self._unauthorized(reason)
        except (Unavailable, asyncio.InvalidStateError) as failure:
            reason = str(failure)
        finally:
            await self._hang_up(channel)
        if self._failure is not None:
            raise self._failure
        return self._closing or reason, self._followed

    async def _proven(
        self, call: grpc.aio.StreamStreamCall[bytes, bytes], opening: Opening
    ) -> bytes | None:
        """This slave's proof, once the master has proved its key.

        Raises Unproven; RpcError where the call ended before.
        """
        headers: dict[str, str | bytes] = {}
        with contextlib.suppress(TimeoutError):  # a master that says nothing proves nothing
            async with asyncio.timeout(PROOF_SECONDS):
                headers = dict(await call.initial_metadata())
        if not headers and call.done():
            await call.read()  # raises why
        first = opening.first_message(headers)
        if first is None and not self._warned:
            self._warned = True
            log.warning(
                "following a master that proves no key",
                master=self._upstream.address,
                hint="access.node_proof is offered: give the master the key file too",
            )
        return first

    def _unauthorized(self, reason: str) -> str:
        """One end does not prove its key: stay suspended until it does."""
        self._perform(self._slave.suspend(f"UNAUTHORIZED: {reason}"))
        return reason

    async def _hang_up(self, channel: grpc.aio.Channel) -> None:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.stop()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        with contextlib.suppress(Exception):
            await channel.close(None)

    def _channel(self) -> grpc.aio.Channel:
        options = (
            *STREAM_OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 1000),
        )
        credentials = self._upstream.credentials
        if credentials is None:
            return grpc.aio.insecure_channel(self._upstream.address, options=options)
        return grpc.aio.secure_channel(self._upstream.address, credentials(), options=options)

    async def _take_all(self, data: object, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        """Frames from the master, to the end of the stream; data: the first one."""
        while isinstance(data, bytes) and not self._closing:
            if len(data) > KIND_AT and data[KIND_AT] in _CUTTING:
                async with self._log.no_flush():  # until no flush works on the files
                    self._take(data)
            else:
                self._take(data)
            if not self._followed and self._slave.state is ConnectionState.TRANSFER:
                self._followed = True
                self._tell_of_missing_crc()
            data = await call.read()

    def _tell_of_missing_crc(self) -> None:
        """Log once per master that bits which flip on their way to this node may go unnoticed."""
        if not self._slave.whole_crc and not self._uncovered:
            log.warning(
                "log bytes are copied without a checksum of their own",
                master=self._upstream.address,
                hint="upgrade the master: release 0.1.0 has none"
                if QUICK
                else "this node's isal package is missing, or has no crc32_iscsi: install isal",
            )
        self._uncovered = not self._slave.whole_crc

    def _take(self, data: bytes) -> None:
        """One frame from the master."""
        self._broken = False
        fenced = self._log.store.fence_reason
        if fenced:
            self._perform(self._slave.suspend(fenced))
            return
        try:
            effects = self._slave.step(Received(data), self._log.times.mono_ms())
        except OSError as error:
            self._stuck = True
            effects = self._slave.suspend(f"disk error: {error.strerror or error}")
        except StoreError as error:
            effects = self._slave.suspend(str(error))
        self._perform(effects)

    def _perform(self, effects: list[Effect]) -> None:
        slaveevents.perform(effects, self)

    def _cannot_send(self, error: Exception) -> None:
        """A broken stream is the reader's to report, who learns why; a fault of ours ends it."""
        if isinstance(error, _BROKEN):
            return
        self._failure = error
        if self._call is not None:
            self._call.cancel()

    # -- the port of the machine's effects -------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send a frame to the master, behind those before it; nothing where the stream is gone."""
        if self._outgoing is not None:
            self._unsent.add(data)
            self._outgoing.wake()

    def applied(self) -> None:
        """Log or confirm offset moved."""
        slave = self._slave
        if (lost := (slave.truncated_bytes, slave.resets)) != self._lost:
            self._lost = lost
            log.warning(
                "log cut to follow the master",
                end=slave.end,
                truncated_bytes=lost[0],
                resets=lost[1],
            )
        self._log.applied()

    def flush_soon(self) -> None:
        """Sync the log soon."""
        self._log.group_commit.nudge()

    def adopt(self, metadata: bytes) -> None:
        """Take over the master's tables."""
        self._adopt(metadata)

    def contradicted(self, epoch: Epoch, reason: str) -> None:
        """The master of an epoch lacks what was confirmed."""
        if self._listener is not None:
            self._listener.contradicted(epoch, reason)

    def older_copy(self, reason: str) -> None:
        """Report that this node lacks bytes that it acknowledged."""
        if self._listener is not None:
            self._listener.older_copy(reason)

    def close_stream(self, reason: str) -> None:
        """End the connection; its reader reports the loss."""
        self._closing = reason
        if self._call is not None:
            self._call.cancel()

    # -- events from elsewhere -----------------------------------------------------------------

    def flushed(self) -> None:
        """The log was synced: tell the master."""
        if self._call is not None:
            self._perform(self._slave.step(Flushed(), self._log.times.mono_ms()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._perform(self._slave.step(Tick(), self._log.times.mono_ms()))
