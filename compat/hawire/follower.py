"""A slave of RocketMQ, as this master sees it: where it begins, and what it is sent next.

| a slave says that it ends at | it is sent |
|------------------------------|------------|
| 0: it is empty | the log from the first segment (the newest one, with sync_from_last_file) |
| where a record begins, up to the confirm offset | what follows |
| an offset between the confirm offset and the end | nothing yet |
| an offset that was deleted, beyond the end, or within a record | nothing: it is refused |

Rules: nothing beyond the confirm offset is sent, so that no change of masters takes back what a
slave has. Pieces end where a record or the segment does, so that an offset within a record tells a
log of another origin; only a record, or the rest of a segment, that is too large for a frame is
sent in several pieces. What is damaged is not sent: RocketMQ's slaves do not look at what they
copy.

Before a slave has said where it ends it is sent nothing, and it may be silent for 5 s, as
RocketMQ's are. What it says later is how much it has received, which counts for no put. A frame
goes out after 5 s without another one; 20 s without a word end the connection. Both classes decide,
and never wait; bytes and times are their owner's.
"""

from dataclasses import dataclass

import numpy as np

from duolog_server.compat.hawire.frames import FRAME_BYTES_MAX, HEAD
from duolog_server.ha.progress import ConnectionState, RateLimit, SlaveSession
from duolog_server.store.clocks import MonoMs
from duolog_server.store.commitlog import CommitLog, scan_reason
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import EMPTY_I64, EMPTY_U8, I64, U8
from duolog_server.store.messagestore import MessageStore

PIECE_BYTES = 1 << 20  # of records that are smaller
PIECE_RECORDS = 4096
EMPTY_IT = "empty its store directory to have it copy this log anew"


class CannotFollow(Exception):
    """A slave cannot continue with this log; the text says why, and what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Bytes of the log. until: offset where the record or blank that they are part of ends."""

    data: U8
    until: int


class Source:
    """The log of one node."""

    def __init__(self, store: MessageStore, newest_only: bool) -> None:
        """newest_only: an empty slave begins with the newest segment (sync_from_last_file)."""
        self._store = store
        self._newest_only = newest_only
        self._rows: I64 = np.empty((scan.COLUMNS, PIECE_RECORDS), np.int64)
        self._result: I64 = np.zeros(2, np.int64)

    @property
    def log(self) -> CommitLog:
        """The log itself."""
        return self._store.log

    @property
    def end(self) -> int:
        """Nothing is sent from here on."""
        return self._store.confirm_offset

    def first(self, said: int) -> int | None:
        """Where to begin for a slave that ends at an offset; None: not known yet.

        A new master learns later how far its group had confirmed. Raises CannotFollow.
        """
        log = self.log
        if said == 0:
            last = log.queue.last
            return last.start if self._newest_only and last is not None else log.min_offset
        if said < log.min_offset:
            raise CannotFollow(
                f"it ends at {said}, and this log begins at {log.min_offset}: retention deleted "
                f"what is between; {EMPTY_IT}"
            )
        if said > log.max_offset:
            raise CannotFollow(
                f"it ends at {said}, beyond the end of this log, {log.max_offset}: it has bytes "
                f"that this group never had, or lost; {EMPTY_IT}"
            )
        if said > self.end:
            return None
        if not log.is_boundary(said):
            raise CannotFollow(self._why_not_at(said))
        return said

    def _why_not_at(self, said: int) -> str:
        damaged = self.log.corrupt_range_at(said)
        if damaged is not None:
            return f"this log is damaged from {damaged.start} to {damaged.end}, and it ends there"
        return (
            f"it ends at {said}, where no record of this log begins: restart it, which cuts off a "
            f"record that is not whole; if it is refused again, its log is another one: {EMPTY_IT}"
        )

    def piece(self, offset: int, until: int) -> Piece:
        """The next bytes for a slave that has all before an offset; none: nothing is confirmed.

        until: of the piece before. Raises CannotFollow.
        """
        end = self.end
        if offset >= end:
            return Piece(EMPTY_U8, offset)
        mapped = self.log.queue.find(offset)
        if mapped is None:
            raise CannotFollow(
                f"this log has no bytes at {offset}, which it needs next: retention deleted them, "
                f"or their segment is missing; {EMPTY_IT}"
            )
        memory, base = mapped.memory, mapped.start
        at, readable = offset - base, min(mapped.readable, end - base)
        if until <= offset:
            until = base + self._whole_until(memory, at, readable, base)
        return Piece(memory[at : min(until - base, at + FRAME_BYTES_MAX)], until)

    def _whole_until(self, memory: U8, at: int, readable: int, base: int) -> int:
        """Position where some records from `at` on end, one at least, or the segment.

        Raises CannotFollow: what is confirmed ends with a record, so there is one.
        """
        upto = min(at + PIECE_BYTES, readable)
        code = scan.scan(memory, at, upto, base, False, EMPTY_I64, self._rows, self._result)
        stop = int(self._result[1])
        if stop > at:
            return stop
        if code == scan.SCAN_BLANK and readable == len(memory):
            return readable
        if code == scan.SCAN_PARTIAL:
            whole = at + self.log.record_bytes(base + at)
            if at < whole <= readable:
                return whole
        raise CannotFollow(
            f"this log is damaged at {base + at} ({scan_reason(code)}), so nothing from there on "
            "is sent: `duolog store check` shows the damage"
        )


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
