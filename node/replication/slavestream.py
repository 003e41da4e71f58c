"""The slave's end of the replication stream: connects, feeds the machine, executes its effects."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio
import structlog
from duolog._errors import Unavailable
from duolog._frames import FrameError
from duolog._nodechannel import uncancelled

from duolog_server.ha import slaveevents
from duolog_server.ha.crc32c import QUICK
from duolog_server.ha.epochs import Epoch
from duolog_server.ha.frames import Kind, kind_of
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slave import Slave
from duolog_server.ha.slaveevents import Connected, Effect, Flushed, Lost, Received, Tick
from duolog_server.node.engine.log import Log
from duolog_server.node.replication.framesport import (
    CONNECT_SECONDS,
    FRAMES_METHOD,
    NONE,
    OFFER,
    SWITCH,
    FramesConnection,
    Line,
    connect,
)
from duolog_server.node.replication.keyproof import Headers, KeyProof, Opening, Unproven
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
LAST_WORD_SECONDS = 1.0  # of a master whose connection for frames ended
Call = grpc.aio.StreamStreamCall[bytes, bytes]
_CUTTING = (Kind.TRUNCATE, Kind.RESET, Kind.WELCOME)
_BROKEN = (grpc.RpcError, asyncio.InvalidStateError, ConnectionError, Unavailable)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A master's replication port.

    credentials, context: asked for each connection; None for plain text.
    """

    address: str
    credentials: Callable[[], grpc.ChannelCredentials] | None
    context: Callable[[], ssl.SSLContext] | None  # of the one for frames
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
        self._call: Call | None = None
        self._connection: FramesConnection | None = None  # that carries the call's frames
        self._reaches_frames = True  # the master's port for them, as far as known
        self._in_vain = False  # nothing came on a welcomed connection
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
            line = await self._begin_as_master_can(channel)
            self._unsent = Unsent()
            self._outgoing = Outgoing(line.write, self._unsent.take, self._cannot_send)
            self._perform(self._slave.step(Connected(), self._log.times.mono_ms()))
            # While the stream is made, a cancellation may get lost: the first read looks for it.
            first = await uncancelled(line.read())
            self._in_vain = self._in_vain and first is None
            await uncancelled(self._take_all(first, line))
            details = "" if self._closing else await self._last_word()
            reason = f"the master ended the stream {details or ''}"
        except Unproven as failure:
            reason = self._unauthorized(str(failure))
        except grpc.RpcError as failure:
            # A deadline: the master heard nothing. With all other codes it says what is wrong.
            silent = failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            self._in_vain = self._in_vain and silent
            reason = str(failure.details() or failure.code())
            if failure.code() is grpc.StatusCode.UNAUTHENTICATED:
                reason = self._unauthorized(reason)
        except (Unavailable, asyncio.InvalidStateError, ConnectionError, TimeoutError) as failure:
            reason = str(failure) or "the master did not answer"
        finally:
            await self._hang_up(channel)
        if self._failure is not None:
            raise self._failure
        return self._closing or reason, self._followed

    async def _begin_as_master_can(self, channel: grpc.aio.Channel) -> Line:
        """See `_begin`; a master of an older release knows no frames."""
        try:
            return await self._begin(channel, FRAMES_METHOD)
        except grpc.RpcError as failure:
            if failure.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        return await self._begin(channel, HA_METHOD)

    async def _begin(self, channel: grpc.aio.Channel, method: str) -> Line:
        """Call the master: what carries the frames.

        Raises Unproven; RpcError, TimeoutError where it does not answer.
        """
        opening = self.proof.opening() if self.proof is not None else None
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        stream = channel.stream_stream(method)
        call = self._call = stream(metadata=opening.headers if opening else None)
        headers: Headers = {}
        if opening is not None or method == FRAMES_METHOD:
            headers = await uncancelled(self._headers(call, method))
        first = self._proof(opening, headers) if opening is not None else None
        if first is not None:
            await uncancelled(call.write(first))
        return await self._line(call, str(headers.get(OFFER, NONE)))

    async def _headers(self, call: Call, method: str) -> Headers:
        """Headers of the master's answer. Raises RpcError, TimeoutError."""
        headers: Headers = {}
        with contextlib.suppress(TimeoutError):  # a master that says nothing proves nothing
            async with asyncio.timeout(PROOF_SECONDS):
                headers = dict(await call.initial_metadata())
        if not headers and (call.done() or method == FRAMES_METHOD):
            async with asyncio.timeout(PROOF_SECONDS):
                await call.read()  # raises why
        return headers

    def _proof(self, opening: Opening, headers: Headers) -> bytes | None:
        """This slave's proof, once the master has proved its key. Raises Unproven."""
        first = opening.first_message(headers)
        if first is None and not self._warned:
            self._warned = True
            log.warning(
                "following a master that proves no key",
                master=self._upstream.address,
                hint="access.node_proof is offered: give the master the key file too",
            )
        return first

    async def _line(self, call: Call, offer: str) -> Line:
        """What carries the frames: the connection that the master offers, or else the call."""
        in_vain, self._in_vain = self._in_vain, False
        if offer == NONE:
            return call
        host = self._upstream.address.rpartition(":")[0]
        try:
            if in_vain:  # so once over gRPC: networks may let a greeting through, and nothing else
                raise ConnectionError("it welcomed the last connection, and nothing came over it")
            tls = self._upstream.context() if self._upstream.context is not None else None
            connection = await connect(host, offer, tls)
        except (OSError, FrameError) as problem:
            if call.done():
                return call  # it says why
            if self._reaches_frames:
                log.warning(
                    "replicating over gRPC: the master's port for frames is not reached",
                    master=self._upstream.address,
                    reason=str(problem) or f"no answer within {CONNECT_SECONDS} s",
                )
            self._reaches_frames = False
            return call
        self._connection, self._reaches_frames = connection, True
        connection.take = self._take_now
        with contextlib.suppress(asyncio.InvalidStateError):  # the call is over: it says why
            await uncancelled(call.write(SWITCH))
        self._in_vain = True
        return connection

    async def _last_word(self) -> str:
        """Why the master ended the call, whose frames have ended. Raises RpcError."""
        assert self._call is not None, "begun"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                if self._connection is not None:
                    await uncancelled(self._call.read())  # raises why
                return await uncancelled(self._call.details()) or ""
        return "(the connection for frames broke)"

    def _unauthorized(self, reason: str) -> str:
        """One end does not prove its key: stay suspended until it does."""
        self._perform(self._slave.suspend(f"UNAUTHORIZED: {reason}"))
        return reason

    async def _hang_up(self, channel: grpc.aio.Channel) -> None:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            outgoing.stop()
        self._end_call()
        self._call = self._connection = None
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

    async def _take_all(self, data: object, line: Line) -> None:
        """Frames from the master, to the end of the stream; data: the first one."""
        while isinstance(data, bytes) and not self._closing:
            if kind_of(data) in _CUTTING:
                async with self._log.no_flush():  # until no flush works on the files
                    self._take(data)
            else:
                self._take(data)
            if not self._followed and self._slave.state is ConnectionState.TRANSFER:
                self._followed = True
                self._tell_of_missing_crc()
            data = await line.read()

    def _take_now(self, data: bytes) -> bool:
        """See FramesConnection: what needs no waiting, once the master is followed."""
        if not self._followed or self._closing or kind_of(data) in _CUTTING:
            return False
        self._take(data)
        return True

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
        self._end_call()

    def _end_call(self) -> None:
        if self._connection is not None:
            self._connection.abort()
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
        self._end_call()

    # -- events from elsewhere -----------------------------------------------------------------

    def flushed(self) -> None:
        """The log was synced: tell the master."""
        if self._call is not None:
            self._perform(self._slave.step(Flushed(), self._log.times.mono_ms()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._perform(self._slave.step(Tick(), self._log.times.mono_ms()))
