"""A slave of RocketMQ, as this master sees it: what it is sent, and what it says.

Rules: before a slave has said where it ends it is sent nothing, and it may be silent for 5 s, as
RocketMQ's are. What it says later is how much it has received, which counts for no put. A frame
goes out after 5 s without another one; 20 s without a word end the connection. It decides, and
never waits; bytes and times are its owner's.
"""

from duolog_server.compat.hawire.frames import HEAD
from duolog_server.compat.hawire.source import CannotFollow, Source
from duolog_server.ha.progress import ConnectionState, RateLimit, SlaveSession
from duolog_server.store.clocks import MonoMs

# RocketMQ's haSendHeartbeatInterval and haHousekeepingInterval.
HEARTBEAT_MS = 5000
HOUSEKEEPING_MS = 20_000
_TRANSFER = ConnectionState.TRANSFER


class Follower:
    """One connection of a slave."""

    def __init__(self, source: Source, bytes_per_second: int, now_ms: MonoMs) -> None:
        """bytes_per_second: the most that it is sent; 0: no limit."""
        self._source = source
        self._said: int | None = None
        self._until = 0  # where the record ends of which a part was sent
        self.session = SlaveSession(
            0, RateLimit(bytes_per_second), last_heard_ms=now_ms, last_sent_ms=now_ms
        )

    @property
    def follows(self) -> bool:
        """Whether it is being sent the log."""
        return self.session.state is _TRANSFER

    def heard(self, offset: int, now_ms: MonoMs) -> None:
        """It says where it ends. Raises CannotFollow."""
        session = self.session
        session.last_heard_ms = now_ms
        if self._said is None:
            self._said = offset
            session.last_sent_ms = now_ms  # the first sign of life is due from here
            self._begin(now_ms)
        elif not self.follows:
            pass  # it repeats what it said
        elif offset > session.sent:
            raise CannotFollow(
                f"it ends at {offset}, and was sent the log up to {session.sent} only: it copies "
                "from elsewhere, too"
            )
        elif offset > session.received:  # an empty slave repeats its 0
            session.received = offset
            session.note_lag(self._source.end, now_ms)

    def _begin(self, now_ms: MonoMs) -> None:
        assert self._said is not None, "it said where it ends"
        start = self._source.first(self._said)
        if start is None:
            return
        session = self.session
        session.state = _TRANSFER
        session.start = session.sent = session.received = self._until = start
        session.caught_up_ms = now_ms
        session.behind_since = (self._source.end, now_ms)

    def next_frame(self, now_ms: MonoMs) -> bytes | None:
        """What to send it now; None for nothing. Raises CannotFollow."""
        if self._said is None:
            return None
        if not self.follows:
            self._begin(now_ms)
        session = self.session
        frame = self._log_bytes(now_ms) if self.follows else None
        if frame is None and now_ms - session.last_sent_ms >= HEARTBEAT_MS:
            frame = HEAD.pack(session.sent if self.follows else self._said, 0)
        if frame is not None:
            session.last_sent_ms = now_ms
        return frame

    def _log_bytes(self, now_ms: MonoMs) -> bytes | None:
        session = self.session
        if session.rate.wait_ms(now_ms):
            return None
        piece = self._source.piece(session.sent, self._until)
        size = len(piece.data)
        if not size:
            return None
        frame = b"".join((HEAD.pack(session.sent, size), piece.data.data))
        session.sent += size
        self._until = piece.until
        session.rate.sent(size, now_ms)
        return frame

    def is_silent(self, now_ms: MonoMs) -> bool:
        """Whether it said nothing for so long that it must be gone."""
        return now_ms - self.session.last_heard_ms >= HOUSEKEEPING_MS

    @property
    def lag_bytes(self) -> int:
        """Of what is confirmed, what it does not have."""
        return max(0, self._source.end - self.session.received) if self.follows else 0

    def lag_ms(self, now_ms: MonoMs) -> int:
        """How long ago it had all that was confirmed; 0 while it has it."""
        return self.session.lag_ms(self._source.end, now_ms) if self.follows else 0
