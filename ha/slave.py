"""The slave's side of replication: what it accepts, applies and acknowledges.

Rules: only whole, verified records are applied, at the log's end, within the epoch that the
handshake settled; nothing of an epoch older than the promised one is accepted; a promise is durable
before it is answered; the log is never truncated below what was confirmed to clients; bytes
acknowledged as received are in the log, those acknowledged as durable on disk; where damage has
destroyed some of them, a replica of an elected group becomes another one before its log is
truncated and repaired.

| state | means |
|-------|-------|
| READY | not connected |
| HANDSHAKE | Hello sent |
| TRANSFER | chunks flow |
| SUSPEND | refused or held up, `reason` says why; the owner tries again later |

The transitions are in docs/transitions.md, which is rendered from this machine.
"""

import numpy as np

from duolog_server.ha import frames, handshake, identity
from duolog_server.ha.crc32c import QUICK
from duolog_server.ha.epochs import (
    EPOCH_TOPIC,
    NO_EPOCH,
    Epoch,
    EpochEntry,
    barrier_entry,
    common_end,
)
from duolog_server.ha.frames import (
    BadFrame,
    Chunk,
    DamagedFrame,
    Frame,
    Heartbeat,
    Hello,
    Refusal,
    Refuse,
    Reset,
    Truncate,
    Welcome,
)
from duolog_server.ha.localreplica import LocalReplica, was_never_synced
from duolog_server.ha.progress import ConnectionState
from duolog_server.ha.slaveevents import (
    Adopt,
    Applied,
    CloseStream,
    Connected,
    Contradicts,
    Effect,
    Event,
    Flushed,
    FlushSoon,
    Lost,
    OlderCopy,
    Received,
    Send,
    Tick,
)
from duolog_server.store.clocks import MonoMs
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.status import BrokerRole
from duolog_server.store.wholerecords import HEAD, WholeRecords, claimed_size

CUTS_MAX = 8  # truncations and resets of one connection
MANY_BYTES = 256 << 10  # of a chunk: the records of fewer are scanned again as soon as kept
_TOPIC = np.frombuffer(EPOCH_TOPIC.encode(), np.uint8)


class Slave:
    """Replication of one log, from the side that copies it."""

    def __init__(self, replica: LocalReplica) -> None:
        self.store = replica.store
        self.me = replica.me
        self.identity = replica.identity
        self.history = replica.history
        self.state = ConnectionState.READY
        self.reason = ""
        self.epoch = NO_EPOCH
        self.master_node = ""
        self.master_endpoint = ""
        self.master_end = 0
        self.truncated_bytes = 0
        self.resets = 0
        self.damaged_frames = 0  # received
        self.caught_up_ms = MonoMs(0)
        self.followed_ms: MonoMs | None = None  # when the master that it follows was last heard
        self._ack_durable = False
        self._promise = False
        self.whole_crc = False  # the CRC of this stream's chunks covers the log bytes
        self._pending = b""
        self._start = 0  # where an empty log begins
        self._cuts = 0
        self._damaged_as: int | None = None  # the incarnation in which its log was damaged
        self._acked = (-1, -1)
        self._ack_tail = frames.ack_tail(replica.me.node, replica.identity.incarnation)
        self._heartbeat_ms = 5000
        self._housekeeping_ms = 20_000
        self._heard_ms = self._sent_ms = MonoMs(0)
        self._records = WholeRecords(replica.store.options)
        self.many_bytes = MANY_BYTES
        elected = replica.store.options.broker_role is BrokerRole.AUTO
        noted = elected and replica.store.checkpoint.note.confirmed > 0  # config/ may be older
        if self.identity.confirmed_only or noted:
            # The last master acknowledged only confirmed bytes: the rest stays hidden for now.
            self.store.hide_from(self.store.known_confirmed)

    @property
    def replica(self) -> LocalReplica:
        """The state of this node's replica."""
        return LocalReplica(self.store, self.me, self.identity, self.history)

    @property
    def end(self) -> int:
        """End of the log."""
        return self.store.log.wrote_offset

    @property
    def lag_bytes(self) -> int:
        """Bytes of the master's log that are missing here, as far as this node knows."""
        return max(0, self.master_end - self.end)

    def lag_ms(self, now_ms: MonoMs) -> int:
        """How long ago this node had the whole log it knows of, 0 if it has it now."""
        if self.state is ConnectionState.TRANSFER and self.lag_bytes == 0:
            return 0
        return max(0, now_ms - self.caught_up_ms) if self.caught_up_ms else 0

    def validate(self) -> str:
        """The invariant that this slave breaks between two events, empty for none.

        While log bytes flow, they are of no older epoch than the promised one, and acknowledged
        bytes are here: those received in the log, those durable on the disk.
        """
        if self.state is not ConnectionState.TRANSFER:
            return ""
        if self.epoch < self.identity.promised_epoch:
            return f"follows epoch {self.epoch}, promised {self.identity.promised_epoch}"
        received, durable = self._acked
        begun = 0 if self.store.log.queue.files else self._start  # no byte of its log is older
        if received > max(self.end, begun):
            return f"acknowledged {received}, its log ends at {self.end}"
        if self._ack_durable and durable > max(self.store.flushed_offset, begun):
            return f"acknowledged {durable} as durable, {self.store.flushed_offset} is"
        return ""

    def step(self, event: Event, now_ms: MonoMs) -> list[Effect]:
        """Effects of an event. Raises OSError if the disk fails."""
        match event:
            case Received(data):
                return self._received(data, now_ms)
            case Flushed():
                return self._acknowledge(now_ms)
            case Tick():
                return self._tick(now_ms)
            case Connected():
                self._heard_ms = now_ms
                self._cuts = 0
                return self._say_hello()
            case Lost(reason):
                if self.state is ConnectionState.TRANSFER:
                    self.followed_ms = now_ms  # the other end closed it: a sign of life, the last
                if self.state is not ConnectionState.SUSPEND:
                    self.state, self.reason = ConnectionState.READY, reason
                return []

    # -- handshake -----------------------------------------------------------------------------

    def _say_hello(self) -> list[Effect]:
        self.state, self.reason = ConnectionState.HANDSHAKE, ""
        self._pending = b""
        if not self.store.log.corrupt_ranges:
            self._damaged_as = None
        elif self._damaged_as is None:
            self._damaged_as = self.identity.incarnation
        return [Send(frames.encode(self.hello()))]

    def hello(self) -> Hello:
        """The Hello of this node: its identity and its log."""
        log = self.store.log
        # Bytes after damage are not claimed: the master's bytes repair them.
        end = log.sound_end
        epochs = tuple(entry for entry in self.history.entries if entry.start < end)
        tail_start, tail_crc = handshake.tail_of(log, end)
        return Hello(
            self.me.cluster,
            self.me.group,
            self.me.node,
            self.identity.incarnation,
            self.me.endpoint,
            self.identity.promised_epoch,
            log.min_offset,
            end,
            min(end, self.store.flushed_offset),
            tail_start,
            tail_crc,
            log.queue.file_size,
            epochs,
            QUICK,
        )

    def _received(self, data: bytes, now_ms: MonoMs) -> list[Effect]:
        try:
            frame = frames.decode(data)
        except BadFrame as error:
            # What came before it is in the log: the next Hello asks for the rest from there on.
            self.damaged_frames += isinstance(error, DamagedFrame)
            return self._close(f"bad frame from the master: {error}")
        self._heard_ms = now_ms
        if self.state is ConnectionState.TRANSFER:
            self.followed_ms = now_ms
        if isinstance(frame, Chunk) and self.state is ConnectionState.TRANSFER:
            return self._chunk(frame, now_ms)
        if isinstance(frame, Heartbeat) and self.state is ConnectionState.TRANSFER:
            return self._heartbeat(frame, now_ms)
        if self.state is ConnectionState.HANDSHAKE:
            return self._answered(frame, now_ms)
        return self._close(f"{type(frame).__name__} out of order")

    def _answered(self, frame: Frame, now_ms: MonoMs) -> list[Effect]:
        if isinstance(frame, Refuse):
            stale = frame.code is Refusal.OLDER_COPY and frame.epoch >= self.identity.promised_epoch
            effects: list[Effect] = [OlderCopy(frame.reason)] if stale else []
            return effects + self._suspend(f"{frame.code.name}: {frame.reason}")
        if not isinstance(frame, Welcome | Truncate | Reset):
            return self._close(f"{type(frame).__name__} out of order")
        if frame.epoch < self.identity.promised_epoch:
            return self._suspend(
                f"the master's epoch is {frame.epoch}, but "
                f"{self.identity.promised_epoch} was already seen"
            )
        self._promise_epoch(frame.epoch)
        match frame:
            case Welcome():
                return self._welcome(frame, now_ms)
            case Truncate(end=end):
                return self._truncate(frame.epoch, end)
            case Reset(start=start):
                return self._reset(start)

    def renew(self, incarnation: int) -> None:
        """Become another replica; durable when it returns. Must not be called while following."""
        self.identity = identity.renew(self.store.disk, self.identity, incarnation)
        self._ack_tail = frames.ack_tail(self.me.node, incarnation)

    def promise(self, epoch: Epoch) -> None:
        """Accept nothing more from masters of older epochs; durable when it returns."""
        self._promise_epoch(epoch)

    def _promise_epoch(self, epoch: Epoch) -> None:
        self.identity = identity.promise(self.store.disk, self.identity, epoch)

    def _welcome(self, frame: Welcome, now_ms: MonoMs) -> list[Effect]:
        log = self.store.log
        if log.queue.files and log.min_offset == self.end != frame.start:
            self.store.reset()  # there are files, but they are empty
        if log.corrupt_ranges and frame.start == log.sound_end:
            # A master has everything below its barrier. It may need this node to confirm it.
            opened = max((entry.start for entry in frame.epochs), default=0)
            reaches = max(frame.start, frame.confirm, opened)
            common, _ = common_end(frame.epochs, reaches, self.history.entries, self.end)
            if common < self._promised:
                return self._suspend(
                    f"the log is damaged at {frame.start}, and the master may lack "
                    f"records up to {self._promised} that were confirmed: not repaired "
                    "from it"
                )
            if self._counts_still():
                return self._lacks_acknowledged(frame.start)
            self._cut(frame.start)
        if log.queue.files and frame.start != self.end:
            return self._close(
                f"the master starts at {frame.start}, but this log ends at {self.end}"
            )
        if frame.start % log.queue.file_size and not log.queue.files:
            return self._close(
                f"an empty log must start at a segment's start, not at {frame.start}"
            )
        self.state, self.epoch = ConnectionState.TRANSFER, frame.epoch
        self.master_node, self.master_endpoint = frame.node, frame.endpoint
        self._ack_durable, self._promise = frame.ack_durable, frame.promise
        self.whole_crc = frame.whole_crc
        self._heartbeat_ms, self._housekeeping_ms = frame.heartbeat_ms, frame.housekeeping_ms
        self.history.adopt(frame.epochs, frame.start)
        self.history.save(self.store.disk)
        if frame.promise and not self.identity.confirmed_only:
            # Bytes that an ASYNC_MASTER called confirmed were never guaranteed.
            self.store.forget_confirmed(PhyOffset(frame.confirm))
        self.identity = identity.follow(self.store.disk, self.identity, frame.promise)
        self._start = frame.start
        self._note_master(max(frame.start, frame.confirm), now_ms)
        effects: list[Effect] = [Adopt(frame.metadata)] if frame.metadata else []
        self._acked = (-1, -1)
        return effects + self._confirm(frame.confirm) + self._acknowledge(now_ms)

    def _truncate(self, epoch: Epoch, end: int) -> list[Effect]:
        log = self.store.log
        self._cuts += 1
        # The blank of a segment may belong to a later mastership than the record before it.
        end = log.before_blank(end)
        if not log.min_offset < end < self.end or self._cuts > CUTS_MAX:
            return self._close(f"invalid truncation to {end}")
        if end < log.before_blank(self._promised):
            reason = (
                f"the master's log diverges from this one at {end}, but everything "
                f"below {self._promised} was confirmed to clients: not cut. Make this "
                "node the master, or empty its directory to give up the difference"
            )
            return [Contradicts(epoch, reason), *self._suspend(reason)]
        if not log.is_boundary(end):
            return self._close(f"truncation to {end}, which is inside a record")
        if self._counts_still():
            return self._lacks_acknowledged(log.sound_end)
        self._cut(end)
        return [Applied(), *self._say_hello()]

    def _counts_still(self) -> bool:
        """Whether an elected group may still count on this replica for bytes lost to damage.

        Until the log is cut nobody elects it: it is damaged. After that it must be another replica.
        """
        log = self.store.log
        first = min(log.corrupt_ranges, default=None)
        elected = self.store.options.broker_role is BrokerRole.AUTO
        if first is None or not elected or was_never_synced(self.store, first):
            return False
        return self._damaged_as == self.identity.incarnation

    def _lacks_acknowledged(self, at: int) -> list[Effect]:
        """Truncate and repair the log once this node is another replica."""
        reason = f"its log is damaged at {at}: what it has acknowledged there must be copied again"
        return [OlderCopy(reason), *self._suspend(reason)]

    def _cut(self, end: int) -> None:
        before = self.end
        self.store.truncate(PhyOffset(end))
        self.truncated_bytes += before - end
        self.history.truncate(end)
        self.history.save(self.store.disk)
        if not self.store.log.corrupt_ranges:
            self._damaged_as = None  # later damage is new damage

    @property
    def _promised(self) -> int:
        """Everything below was confirmed to clients, as far as this node knows."""
        if not self.identity.confirmed_only:
            return 0
        return self.store.known_confirmed

    def _reset(self, start: int) -> list[Effect]:
        self._cuts += 1
        if start < self.end or self._cuts > CUTS_MAX:
            return self._close(f"invalid reset to {start}")
        self.store.reset()
        self.resets += 1
        return [Applied(), *self._say_hello()]

    # -- transfer ------------------------------------------------------------------------------

    def _chunk(self, chunk: Chunk, now_ms: MonoMs) -> list[Effect]:
        if chunk.epoch != self.epoch:
            return self._close(f"log bytes of epoch {chunk.epoch}, expected epoch {self.epoch}")
        if self.whole_crc and not chunk.whole_crc:
            return self._close(f"log bytes from {chunk.offset} without the CRC that was agreed on")
        expected = self._expected
        start = expected - len(self._pending)
        if chunk.offset + len(chunk.data) <= expected:
            return []  # a repeated request
        if chunk.offset != expected:
            return self._close(f"log bytes from {chunk.offset}, expected from {expected}")
        self._note_master(chunk.offset + len(chunk.data), now_ms)
        for data in self._pieces(chunk.data):
            taken = self._apply(start, data, many=len(chunk.data) >= self.many_bytes)
            if taken < 0:
                return self._suspend(f"the bytes at {start - taken - 1} hold no valid record")
            self._pending = data[taken:].tobytes()
            start += taken
        applied = self._confirm(chunk.confirm)
        return [*self._acknowledge(now_ms), *applied]  # the master's puts wait, its readers do not

    def _pieces(self, data: U8) -> list[U8]:
        """The bytes of a chunk behind those that wait for them, of which it copies few.

        The first piece ends with the record that is begun, or with the chunk.
        """
        begun = self._pending
        if not begun:
            return [data]
        head = np.frombuffer(begun + data[: HEAD.size].tobytes(), np.uint8)
        size = claimed_size(head, 0) or 0
        rest = size - len(begun) if size > len(begun) else len(data)
        first = np.frombuffer(begun + data[:rest].tobytes(), np.uint8)
        return [first, data[rest:]] if rest < len(data) else [first]

    @property
    def _expected(self) -> int:
        """Offset of the next byte expected."""
        start = self.end if self.store.log.queue.files else self._start
        return start + len(self._pending)

    def _apply(self, start: int, data: U8, many: bool) -> int:
        """Append the whole records that data begins with; bytes taken, or -1 - position of a wrong
        one. many: keep what was found for dispatch, which then scans none of them."""
        barriers: list[EpochEntry] = []
        whole = self._records.find(
            start, data, lambda rows: barriers.extend(self._barriers(data, rows))
        )
        if whole.wrong is not None:
            return -1 - whole.size
        if whole.size:
            at, rows = PhyOffset(start), whole.rows if many else None
            self.store.append_replica(at, data[: whole.size], whole.store_time, rows)
            self._note(barriers)
        return whole.size

    def _note(self, barriers: list[EpochEntry]) -> None:
        """Add the epochs whose barriers are now in the log."""
        if [entry for entry in barriers if self.history.open(entry)]:
            self.history.save(self.store.disk)

    @staticmethod
    def _barriers(data: U8, rows: I64) -> list[EpochEntry]:
        """The epochs that open in the records of a table."""
        found: list[EpochEntry] = []
        if rows.shape[1] == 1 and rows[scan.TOPIC_BYTES, 0] != len(_TOPIC):
            return found  # single records are hardly ever barriers
        same = np.flatnonzero(rows[scan.TOPIC_BYTES] == len(_TOPIC))
        for row in same:
            at = int(rows[scan.TOPIC_AT, row])
            if not np.array_equal(data[at : at + len(_TOPIC)], _TOPIC):
                continue
            body_at = int(rows[scan.BODY_AT, row])
            body = data[body_at : body_at + int(rows[scan.BODY_BYTES, row])].tobytes()
            entry = barrier_entry(int(rows[scan.PHY, row]), body)
            if entry is not None:
                found.append(entry)
        return found

    def _heartbeat(self, frame: Heartbeat, now_ms: MonoMs) -> list[Effect]:
        if frame.epoch != self.epoch:
            return self._close(f"a heartbeat of epoch {frame.epoch}, expected epoch {self.epoch}")
        if frame.sent > self._expected:
            return self._close(
                f"bytes up to {frame.sent} were sent, but only up to {self._expected} arrived"
            )
        self._note_master(frame.end, now_ms)
        return self._confirm(frame.confirm)

    def _note_master(self, end: int, now_ms: MonoMs) -> None:
        if self.lag_bytes == 0:
            self.caught_up_ms = now_ms
        self.master_end = max(end, self.end)

    def _confirm(self, confirm: int) -> list[Effect]:
        """Let readers see the bytes that the master has confirmed and this node has."""
        store = self.store
        if not self._promise:
            store.confirm_by_itself()
            return [Applied()]
        confirm = min(confirm, self.end)
        if store.replicated_offset is None:
            store.hide_from(PhyOffset(confirm))
            store.confirm(store.replicated_offset or PhyOffset(0))
        elif confirm > store.replicated_offset:
            store.confirm(PhyOffset(confirm))
        return [Applied()]

    # -- acknowledging -------------------------------------------------------------------------

    def _acknowledge(self, now_ms: MonoMs) -> list[Effect]:
        if self.state is not ConnectionState.TRANSFER:
            return []
        if not self.store.log.queue.files:
            received = durable = self._start
        else:
            received = self.end
            durable = min(received, self.store.flushed_offset)
        effects: list[Effect] = []
        if (received, durable) != self._acked:
            effects.append(self._ack(received, durable, now_ms))
        if self._ack_durable and durable < received:
            effects.append(FlushSoon())
        return effects

    def _ack(self, received: int, durable: int, now_ms: MonoMs) -> Send:
        self._acked = (received, durable)
        self._sent_ms = now_ms
        return Send(frames.ack_frame(self.epoch, received, durable, self._ack_tail))

    # -- time, ends ----------------------------------------------------------------------------

    def _tick(self, now_ms: MonoMs) -> list[Effect]:
        if self.state not in (ConnectionState.HANDSHAKE, ConnectionState.TRANSFER):
            return []
        if now_ms - self._heard_ms > self._housekeeping_ms:
            return self._close("heartbeat timeout")
        if self.state is not ConnectionState.TRANSFER:
            return []
        effects = self._acknowledge(now_ms)
        if now_ms - self._sent_ms >= self._heartbeat_ms:
            effects.append(self._ack(*self._acked, now_ms))
        return effects

    def _close(self, reason: str) -> list[Effect]:
        self.state, self.reason = ConnectionState.READY, reason
        return [CloseStream(reason)]

    def _suspend(self, reason: str) -> list[Effect]:
        self.state, self.reason = ConnectionState.SUSPEND, reason
        return [CloseStream(reason)]

    def suspend(self, reason: str) -> list[Effect]:
        """The owner cannot continue for now (no room on the disk)."""
        return self._suspend(reason)
