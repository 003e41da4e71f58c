"""A connection of RocketMQ's replication protocol, on the side of the master.

Rules: one frame goes out in a turn of the event loop, and none while the slave does not take what
was written, so that a slow slave delays nobody. A connection that is refused stays open for 5 s
without a word: RocketMQ 4's slaves connect again at once after its end.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, cast

import structlog

from duolog_server.compat.hawire.follower import HOUSEKEEPING_MS, Follower
from duolog_server.compat.hawire.frames import BadStream, SlaveReader
from duolog_server.compat.hawire.source import CannotFollow, Source
from duolog_server.ha.progress import ConnectionState
from duolog_server.node.core.rocketmqslave import RocketmqSlave
from duolog_server.node.net.connections import host_of
from duolog_server.node.replication.masterstream import ColdLoader
from duolog_server.store.clocks import MonoMs, WallMs

log = structlog.get_logger("duolog.ha")

UNWRITTEN_BYTES = 1 << 20  # in the transport, then nothing more is read from the log
HOLD_MS = 5000
NOT_ALLOWED = "its address is not in rocketmq_slaves.allow"


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every connection.

    not_master: why this node is not the master, empty if it is. threads: load what is not in
    memory. bytes_per_second: the most that a slave is sent; 0: no limit.
    """

    source: Source
    not_master: Callable[[], str]
    allows: Callable[[str], bool]
    threads: Executor
    mono_ms: Callable[[], MonoMs]
    wall_ms: Callable[[], WallMs]
    bytes_per_second: int = 0


class Owner(Protocol):
    """Called about every connection."""

    def joined(self, connection: "Connection") -> bool:
        """It begins; whether there is room for it."""

    def left(self, connection: "Connection") -> None:
        """It ended."""

    def begins(self, connection: "Connection") -> None:
        """From now on it is sent the log."""

    def refused(self, connection: "Connection") -> None:
        """It is sent nothing, or nothing more."""


class Connection(asyncio.Protocol):
    """One slave's.

    Attributes:
        host: its address, without the port.
        name: its address and port.
        allowed: whether the log may be copied from that address.
        reason: why it is refused; empty where it is not.
    """

    def __init__(self, terms: Terms, owner: Owner) -> None:
        self._terms = terms
        self._owner = owner
        self._reader = SlaveReader()
        self._follower = Follower(terms.source, terms.bytes_per_second, terms.mono_ms())
        self._pages = ColdLoader(terms.threads)
        self._loading: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._next: asyncio.Handle | None = None
        self._deaf = False  # the slave does not take what was written
        self._since_ms = terms.wall_ms()
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
        self.allowed = self._terms.allows(self.host)
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        if not self._owner.joined(self):
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
        self._owner.left(self)

    def abort(self, reason: str = "") -> None:
        """End it at once."""
        self._ended_by = reason
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Send nothing more, and end it in a while."""
        self.reason, self._refused_ms = reason, self._terms.mono_ms()
        if self._transport is not None:
            self._transport.pause_reading()
        self._owner.refused(self)

    # -- what the slave says -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.reason:
            return
        try:
            offset = self._reader.feed(data)
            if offset is None:
                return
            followed, why = self.follows, self._terms.not_master()
            if why and followed:
                self.abort(why)
                return
            if why:
                raise CannotFollow(why)
            self._follower.heard(offset, self._terms.mono_ms())
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
            self._owner.begins(self)

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
        why = self._terms.not_master()
        if why:
            if self.follows:
                self.abort(why)
            return
        followed = self.follows
        try:
            frame = self._follower.next_frame(self._terms.mono_ms())
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
            self._loading = self._pages.load(self._terms.source.log, self._follower.session.sent)
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
        now_ms = self._terms.mono_ms()
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
            follower.lag_ms(self._terms.mono_ms()),
            self.reason,
        )
