"""A slave as its master sees it: bytes sent, bytes acknowledged, and since when it lags."""

import enum
from collections import deque
from dataclasses import dataclass, field

from duolog_server.store.clocks import MonoMs


class ConnectionState(enum.Enum):
    """State of one replication connection, under RocketMQ's names (HAConnectionState)."""

    READY = "READY"  # not connected
    HANDSHAKE = "HANDSHAKE"
    TRANSFER = "TRANSFER"
    SUSPEND = "SUSPEND"  # refused, or held up: the reason says by what
    SHUTDOWN = "SHUTDOWN"


class RateLimit:
    """A byte rate: how long to wait before the next bytes may go out."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at_ms = 0.0

    def wait_ms(self, now_ms: MonoMs) -> int:
        """Ms until something may be sent, 0 for now."""
        return max(0, -int(-(self._free_at_ms - now_ms) // 1))

    def sent(self, size: int, now_ms: MonoMs) -> None:
        """Account for bytes sent; unused time is not saved up."""
        if self._rate:
            self._free_at_ms = max(self._free_at_ms, now_ms) + 1000 * size / self._rate


@dataclass(slots=True)
class SlaveSession:
    """One connection of one slave. Offsets are log offsets; `sent` is the next byte to send."""

    number: int
    rate: RateLimit
    state: ConnectionState = ConnectionState.HANDSHAKE
    node: str = ""
    endpoint: str = ""
    incarnation: int = 0
    start: int = 0
    sent: int = 0
    received: int = 0
    durable: int = 0
    acknowledged: bool = False  # at least once in this session
    confirm_sent: int = 0
    whole_crc: bool = False  # the CRC of its chunks covers the log bytes
    last_heard_ms: MonoMs = MonoMs(0)
    last_sent_ms: MonoMs = MonoMs(0)
    caught_up_ms: MonoMs = MonoMs(0)
    # An end of the master's log, and when it was that.
    behind_since: tuple[int, MonoMs] = (0, MonoMs(0))
    outbox: deque[bytes] = field(default_factory=deque)

    def begins_after(self, last: "SlaveSession | None", end: int, now_ms: MonoMs) -> None:
        """How far behind in time it is at its start; last: the session before it, of this replica.

        A slave that connects again and again, and takes nothing, is behind all that time.
        """
        if last is not None and self.start < last.behind_since[0]:
            self.caught_up_ms, self.behind_since = last.caught_up_ms, last.behind_since
        else:
            self.caught_up_ms, self.behind_since = now_ms, (end, now_ms)

    def note_lag(self, end: int, now_ms: MonoMs) -> None:
        """Learn how far behind in time the slave is, from an end of the log and the clock."""
        mark, at_ms = self.behind_since
        if self.received >= end:
            self.caught_up_ms = now_ms
        elif self.received >= mark:
            self.caught_up_ms = max(self.caught_up_ms, at_ms)
            self.behind_since = (end, now_ms)

    def lag_ms(self, end: int, now_ms: MonoMs) -> int:
        """How long ago the slave had the whole log; 0 if it has it now."""
        return 0 if self.received >= end else max(0, now_ms - self.caught_up_ms)


@dataclass(frozen=True, slots=True)
class SlaveRow:
    """A slave, for status."""

    node: str
    endpoint: str
    state: ConnectionState
    sent: int
    received: int
    durable: int
    lag_bytes: int
    lag_ms: int
    in_sync: bool
    reason: str = ""
