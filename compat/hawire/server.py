"""The port where RocketMQ's slaves copy the log of a master, its connections, and who was refused.

Rules: one frame goes out in a turn of the event loop, and none while the slave does not take what
was written, so that a slow slave delays nobody. A connection that is refused stays open for 5 s
without a word: RocketMQ 4's slaves connect again at once after its end.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import structlog
from duolog._background import Background

from duolog_server.compat.hawire.follower import HOUSEKEEPING_MS, CannotFollow, Follower, Source
from duolog_server.compat.hawire.frames import BadStream, SlaveReader
from duolog_server.ha.progress import ConnectionState
from duolog_server.node.broker import Broker
from duolog_server.node.core.rocketmqslave import RocketmqSlave
from duolog_server.node.net.connections import host_of
from duolog_server.node.net.listener import close, listen
from duolog_server.node.replication.masterstream import ColdLoader
from duolog_server.node.runtime.config import RocketmqSlavesSection
from duolog_server.store.clocks import MonoMs
from duolog_server.store.queueends import QueueKey

log = structlog.get_logger("duolog.ha")

UNWRITTEN_BYTES = 1 << 20  # in the transport, then nothing more is read from the log
HOLD_MS = 5000
NOT_ALLOWED = "its address is not in rocketmq_slaves.allow"


class Connection(asyncio.Protocol):
    """One slave's.

    Attributes:
        host: its address, without the port.
        name: its address and port.
        allowed: whether the log may be copied from that address.
        reason: why it is refused; empty where it is not.
    """

    def __init__(self, server: "SlavesServer") -> None:
        self._server = server
        self._reader = SlaveReader()
        self._follower = Follower(server.source, server.bytes_per_second, server.times.mono_ms())
        self._pages = ColdLoader(server.threads)
        self._loading: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._next: asyncio.Handle | None = None
        self._deaf = False  # the slave does not take what was written
        self._since_ms = server.times.wall_ms()
        self._refused_ms = MonoMs(0)
        self._ended_by = ""  # this node's reason to end it
        self.host = self.name = self.reason = ""
        self.allowed = False

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        host = host_of(transport)
        self.host, self.name = host.address, host.endpoint
        self.allowed = self._server.allows(self.host)
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        if not self._server.joined(self):
            self.abort()
        elif not self.allowed:
            self.refuse(NOT_ALLOWED)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if self.follows:
            log.info(
                "a slave of RocketMQ is gone",
                peer=self.name,
                received=self._follower.session.received,
                reason=self._ended_by or str(exc or "it closed the connection"),
            )
        self._transport = None
        if self._next is not None:
            self._next.cancel()
        self._server.left(self)

    def abort(self, reason: str = "") -> None:
        """End it at once."""
        self._ended_by = reason
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Send nothing more, and end it in a while."""
        self.reason, self._refused_ms = reason, self._server.times.mono_ms()
        if self._transport is not None:
            self._transport.pause_reading()
        self._server.refused(self)

    # -- what the slave says -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.reason:
            return
        try:
            offset = self._reader.feed(data)
            if offset is None:
                return
            followed, why = self.follows, self._server.not_master()
            if why and followed:
                self.abort(why)
                return
            if why:
                raise CannotFollow(why)
            self._follower.heard(offset, self._server.times.mono_ms())
        except (BadStream, CannotFollow) as refusal:
            self.refuse(str(refusal))
            return
        self._tell_begin(followed)
        self.wake()

    def _tell_begin(self, followed: bool) -> None:
        """followed: before what happened last."""
        if self.follows and not followed:
            log.info(
                "a slave of RocketMQ follows", peer=self.name, start=self._follower.session.start
            )
            self._server.begins(self)

    # -- what it is sent -----------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to send."""
        if self._next is None and self._can_send:
            self._next = asyncio.get_running_loop().call_soon(self._send)

    @property
    def _can_send(self) -> bool:
        return not (self._deaf or self.reason or self._transport is None)

    def _send(self) -> None:
        self._next = None
        if not self._can_send or self._is_loading():
            return
        assert self._transport is not None, "it can send"
        why = self._server.not_master()
        if why:
            if self.follows:
                self.abort(why)
            return
        followed = self.follows
        try:
            frame = self._follower.next_frame(self._server.times.mono_ms())
        except CannotFollow as refusal:
            self.refuse(str(refusal))
            return
        self._tell_begin(followed)
        if frame is not None:
            self._transport.write(frame)
            self.wake()

    def _is_loading(self) -> bool:
        """Whether what comes next is being read from the disk; it wakes this connection."""
        if self._loading is None and self.follows:
            self._loading = self._pages.load(self._server.source.log, self._follower.session.sent)
            if self._loading is not None:
                self._loading.add_done_callback(self._loaded)
        return self._loading is not None and not self._loading.done()

    def _loaded(self, loading: "asyncio.Future[None]") -> None:
        """Where it could not be read, its file is gone: what is sent next shows that."""
        if not loading.cancelled():
            loading.exception()
        self._loading = None
        self.wake()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._deaf = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self._deaf = False
        self.wake()

    # -- time, and status ----------------------------------------------------------------------

    def tick(self) -> None:
        """End what is refused or silent; send signs of life."""
        now_ms = self._server.times.mono_ms()
        if self.reason:
            if now_ms - self._refused_ms >= HOLD_MS:
                self.abort()
        elif self._follower.is_silent(now_ms):
            self.abort(f"it said nothing for {HOUSEKEEPING_MS // 1000} s")
        else:
            self.wake()

    @property
    def follows(self) -> bool:
        """Whether it is being sent the log."""
        return self._follower.follows and not self.reason

    def row(self) -> RocketmqSlave:
        """For status."""
        follower = self._follower
        state = ConnectionState.SUSPEND if self.reason else follower.session.state
        return RocketmqSlave(
            self.name,
            state,
            self._since_ms,
            follower.session.received,
            follower.lag_bytes,
            follower.lag_ms(self._server.times.mono_ms()),
            self.reason,
        )


CONNECTIONS_MAX = 16  # of allowed addresses; and as many of others, each for a while
REFUSALS_MAX = 64
REFUSED_MS = 60_000  # after its last attempt, an address is forgotten
TICK_SECONDS = 0.25


@dataclass(slots=True)
class _Refusal:
    row: RocketmqSlave
    last_ms: MonoMs


class SlavesServer:
    """Serves RocketMQ's slaves while this node is the master.

    Attributes:
        port: where it listens; 0 before.
    """

    def __init__(self, broker: Broker, section: RocketmqSlavesSection) -> None:
        self.port = 0
        self._broker = broker
        options = broker.replication.options
        self.source = Source(broker.store, options.sync_from_last_file)
        self.not_master = broker.replication.not_master
        self.allows = section.allows
        self.threads = broker.log.threads  # load what is not in memory
        self.times = broker.times
        self.bytes_per_second = options.max_ha_transfer_byte_in_second
        self._open: set[Connection] = set()
        self._refusals: dict[str, _Refusal] = {}  # by address, oldest first
        self._ticking = Background(broker.give_up)
        self._server: asyncio.Server | None = None

    # -- life ----------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listen; with port 0 on a free one. Raises OSError."""
        self._server = await listen(lambda: Connection(self), host, port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticking.start(self._tick())
        self._broker.log.dispatched.append(self._arrived)
        self._broker.dialects.rocketmq_slaves = self.rows

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._broker.log.dispatched.remove(self._arrived)
            self._broker.dialects.rocketmq_slaves = tuple
            server, self._server = self._server, None
            await close(server)
        for connection in list(self._open):
            connection.abort("the node is stopping")
        await self._ticking.stop()

    def _arrived(self, _: Collection[QueueKey]) -> None:
        """Readers see more of the log, and so may slaves."""
        for connection in self._open:
            connection.wake()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for connection in list(self._open):
                connection.tick()
            self._forget(self.times.mono_ms())

    def _forget(self, now_ms: MonoMs) -> None:
        late = now_ms - REFUSED_MS
        for host in [host for host, one in self._refusals.items() if one.last_ms < late]:
            del self._refusals[host]

    # -- connections ---------------------------------------------------------------------------

    def joined(self, connection: Connection) -> bool:
        """It begins; whether there is room for it."""
        alike = sum(1 for one in self._open if one.allowed == connection.allowed)
        if self._server is None or alike >= CONNECTIONS_MAX:
            return False
        self._open.add(connection)
        self._broker.log.followers = len(self._open)
        return True

    def left(self, connection: Connection) -> None:
        """It ended."""
        self._open.discard(connection)
        self._broker.log.followers = len(self._open)

    def begins(self, connection: Connection) -> None:
        """From now on it is sent the log."""
        self._refusals.pop(connection.host, None)

    def refused(self, connection: Connection) -> None:
        """It is sent nothing, or nothing more: said once, and not for each attempt."""
        now_ms, known = self.times.mono_ms(), self._refusals.pop(connection.host, None)
        row = connection.row()
        if known is None or known.row.reason != row.reason:
            log.warning("a slave of RocketMQ is refused", peer=row.address, reason=row.reason)
            known = _Refusal(row, now_ms)
        known.last_ms = now_ms
        self._refusals[connection.host] = known
        while len(self._refusals) > REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]

    # -- status --------------------------------------------------------------------------------

    def rows(self) -> list[RocketmqSlave]:
        """The slaves that are connected, and addresses that were refused lately."""
        found = [one.row() for one in self._open if not one.reason]
        found += [one.row for one in self._refusals.values()]
        return sorted(found, key=lambda row: row.address)
