"""Planted bugs of log, replication and fixed roles: each is a real bug of this kind of system."""

import asyncio
import contextlib
import random
from dataclasses import replace
from typing import Any

from duolog_server.ha import frames, handshake, identity, master, slave, slaveevents, waiters
from duolog_server.ha.crc32c import crc32c
from duolog_server.ha.epochs import common_end
from duolog_server.ha.frames import Truncate
from duolog_server.ha.handshake import Stream
from duolog_server.ha.progress import SlaveSession
from duolog_server.node.upkeep.groupcommit import GroupCommitService
from duolog_server.store.clocks import MonoMs, WallMs
from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.dispatch import ArrivedRows
from duolog_server.store.idempotence import IdempotenceTable
from duolog_server.store.mappedfile import FlushJob, MappedFile
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.puts import Puts
from duolog_server.store.status import PutMessageStatus
from sim.disk import SimDisk
from sim.faults import CLASSIC_ON, NODES, Fault
from sim.planted import Mutant, Patch

_MASTER, _SLAVE = master.Master, slave.Slave


def _ack_before_slave() -> list[Patch]:
    def await_slaves(self: Any, end: int, now: int, token: Any) -> PutMessageStatus:
        return PutMessageStatus.PUT_OK

    return [(_MASTER, "await_slaves", await_slaves)]


def _max_for_min() -> list[Patch]:
    def held(self: Any) -> int:
        fastest: int = max(self._offsets_by_node().values(), default=0)
        return min(int(self.store.local_offset), fastest)

    return [(_MASTER, "_held_by_enough", held)]


def _connections_counted() -> list[Patch]:
    def offsets(self: Any) -> dict[str, int]:
        return {f"{s.node}/{s.number}": self._counted(s) for s in self._serving()}

    original = _MASTER._welcome

    def welcome(self: Any, session: SlaveSession, hello: Any, start: int, now: int) -> Any:
        others = {n: s.node for n, s in self.sessions.items() if n != session.number}
        for number in others:
            self.sessions[number].node = f"?{number}"
        effects = original(self, session, hello, start, MonoMs(now))
        for number, node in others.items():
            self.sessions[number].node = node
        return effects

    return [(_MASTER, "_offsets_by_node", offsets), (_MASTER, "_welcome", welcome)]


def _repeats_misplaced() -> list[Patch]:
    """A repeated send is answered with the place behind its first copy."""
    original = Puts._stored_before

    def stored_before(self: Any, batch: Any, known: Any) -> Any:
        result = original(self, batch, known)
        moved = tuple(replace(run, queue_offset=run.queue_offset + 1) for run in result.duplicates)
        return replace(result, duplicates=moved)

    return [(Puts, "_stored_before", stored_before)]


def _sent_for_received() -> list[Patch]:
    return [(_MASTER, "_counted", lambda self, session: session.sent)]


def _received_for_durable() -> list[Patch]:
    return [(_MASTER, "_counted", lambda self, session: session.received)]


def _falling_confirm() -> list[Patch]:
    original = _MASTER._advance

    def advance(self: Any, now: int) -> Any:
        candidate = self._held_by_enough()
        if self.promises and candidate < (self.store.replicated_offset or 0):
            self.store.replicated_offset = candidate
        return original(self, MonoMs(now))

    return [(_MASTER, "_advance", advance)]


def _memory_only_truncation() -> list[Patch]:
    """Resurrected tail: cut positions are forgotten, the bytes stay valid on the disk."""
    return [(MappedFile, "clear_from", lambda self, position: False)]


def _swallowed_sync() -> list[Patch]:
    original = FlushJob.run

    def run(self: Any) -> None:
        with contextlib.suppress(OSError):
            original(self)

    return [(FlushJob, "run", run)]


def _sync_after_failure() -> list[Patch]:
    """Retrying a failed sync: the second one says yes, and the bytes are gone."""
    original = FlushJob.run

    def run(self: Any) -> None:
        try:
            original(self)
        except OSError:
            original(self)

    return [(FlushJob, "run", run)]


def _readers_ahead() -> list[Patch]:
    return [(MessageStore, "confirm_offset", property(lambda self: self.local_offset))]


def _no_hiding() -> list[Patch]:
    def hide(self: Any, offset: int) -> None:
        self.replicated_offset = self.log.max_offset

    return [(MessageStore, "hide_from", hide)]


def _no_truncation() -> list[Patch]:
    """The slave's log is taken for a prefix whatever its history says (RocketMQ 4)."""
    original = handshake.judge

    def judge(hello: Any, *rest: Any) -> Any:
        verdict = original(hello, *rest)
        return Stream(hello.end) if isinstance(verdict, Truncate) else verdict

    return [(handshake, "judge", judge)]


def _no_dedupe() -> list[Patch]:
    """A repeated send is stored again."""
    return [
        (IdempotenceTable, "stored_prefix", lambda self, producer, topics, sequence, count: []),
        (IdempotenceTable, "overlaps_later", lambda self, producer, topics, sequence, count: False),
    ]


def _forgets_in_silence() -> list[Patch]:
    """A repeat of what was stored and forgotten is taken for a first attempt."""
    return [(IdempotenceTable, "check_not_forgotten", lambda self, sequence, known_end: None)]


def _early_durable() -> list[Patch]:
    """What was appended while a sync ran is taken for synced by it."""

    def flushed(self: Any, job: FlushJob) -> None:
        job.done()
        self.log.queue.flushed_where = self.log.queue.wrote_offset
        for mapped in self.log.queue.files[-2:]:
            mapped.flushed = mapped.wrote

    return [(MessageStore, "commit_log_flushed", flushed)]


def _new_master_cuts() -> list[Patch]:
    """A new master throws away what was not confirmed when it took over."""
    original = _MASTER.open_epoch

    def open_epoch(self: Any, nonce: int, now: WallMs, *rest: Any) -> None:
        confirmed = self.store.checkpoint.confirm_phy_offset
        if self.store.log.min_offset < confirmed < self.store.log.max_offset:
            self.store.truncate(confirmed)
            self.history.truncate(confirmed)
        original(self, nonce, now, *rest)

    return [(_MASTER, "open_epoch", open_epoch)]


def _no_nonce() -> list[Patch]:
    """Two masterships of one number pass for the same one."""

    def common(mine: Any, my_end: int, theirs: Any, their_end: int) -> tuple[int, int]:
        def plain(entries: Any) -> Any:
            return tuple(replace(entry, nonce=0) for entry in entries)

        return common_end(plain(mine), my_end, plain(theirs), their_end)

    return [(handshake, "common_end", common)]


def _no_epochs() -> list[Patch]:
    """A mastership opens no epoch of its own."""
    original = common_end
    return [
        (
            handshake,
            "common_end",
            lambda mine, my_end, theirs, their_end: original((), my_end, (), their_end),
        ),
        (handshake, "tail_crc", lambda log, start, end: None),
        (handshake, "TAIL_BYTES", -1),
    ]


def _unverified_records() -> list[Patch]:
    """The slave applies what comes, wherever it belongs."""

    def apply(self: Any, start: int, data: Any, many: bool) -> int:
        self.store.append_replica(start, data, 0)
        return len(data)

    return [(_SLAVE, "_apply", apply)]


def _gap_ignored() -> list[Patch]:
    """The slave appends at its end, whatever offset a chunk names."""
    original = _SLAVE._chunk

    def chunk(self: Any, frame: Any, now: int) -> Any:
        return original(self, replace(frame, offset=self._expected), MonoMs(now))

    return [(_SLAVE, "_chunk", chunk)]


def _storms(seed: int) -> list[Fault]:
    """Frames are lost, doubled and late for most of a run."""
    chance = random.Random(seed)
    return [
        Fault(50.0 + 500 * k, "weather", "a", "b", 480.0, round(chance.uniform(0.3, 1), 2))
        for k in range(8)
    ]


def _chunk_uncovered() -> list[Patch]:
    """No chunk's CRC covers its log bytes: records' own CRCs are all that protects them."""
    return [(master, "QUICK", False)]


def _flips(seed: int) -> list[Fault]:
    """Bits of frames flip for all of a run."""
    return [Fault(50.0, "flip_bits", "a", lasts=8000.0, level=0.8)]


def _resealed(data: bytes) -> bytes:
    """A frame whose size and CRC are made to match."""
    if len(data) < frames.HEADER_BYTES:
        return data
    size, body = frames._CRC.size, data[frames.HEADER_BYTES :]
    head = data[: frames._HEAD.size - size] + frames._CRC.pack(len(body))
    covered = data[frames.KIND_AT] != frames.Kind.CHUNK or head[7] & frames.WHOLE_CRC
    crc = crc32c(body, crc32c(head)) if covered else crc32c(head)
    return head + frames._CRC.pack(crc) + body


def _slave_unchecked() -> list[Patch]:
    """A slave takes a frame whatever its CRC says."""
    original = _SLAVE._received

    def received(self: Any, data: bytes, now: MonoMs) -> Any:
        return original(self, _resealed(data), now)

    return [(_SLAVE, "_received", received)]


def _master_unchecked() -> list[Patch]:
    """A master takes an acknowledgement whatever its CRC says."""
    original = _MASTER._receive

    def receive(self: Any, number: int, data: bytes, now: MonoMs) -> Any:
        return original(self, number, _resealed(data), now)

    return [(_MASTER, "_receive", receive)]


def _mangled(seed: int) -> list[Fault]:
    """Parts of frames are lost, come twice, are blank, or in another place, for all of a run."""
    return [Fault(50.0, "mangle_frames", "a", lasts=8000.0, level=0.8)]


def _ack_ahead() -> list[Patch]:
    """The slave acknowledges what it holds in memory and has not applied."""
    original = _SLAVE._acknowledge

    def acknowledge(self: Any, now: int) -> Any:
        effects = original(self, MonoMs(now))
        if self._pending and self._acked[0] < self._expected:
            return [*effects, self._ack(self._expected, self._acked[1], now)]
        return effects

    return [(_SLAVE, "_acknowledge", acknowledge)]


def _durable_is_received() -> list[Patch]:
    """The slave calls durable what its page cache has."""

    def ack(self: Any, received: int, durable: int, now: int) -> Any:
        self._acked = (received, durable)
        self._sent_ms = now
        return slaveevents.Send(frames.ack_frame(self.epoch, received, received, self._ack_tail))

    return [(_SLAVE, "_ack", ack)]


def _queue_offsets_from_visible() -> list[Patch]:
    """The next queue offset is taken from the queues that readers see (rmq#7689)."""
    original = MessageStore.hide_from

    def hide(self: Any, offset: PhyOffset) -> None:
        original(self, offset)
        self.recover_topic_queue_table()

    return [(MessageStore, "hide_from", hide)]


def _blank_tail_kept() -> list[Patch]:
    """A cut queue keeps entries of records that are cut."""
    original = ConsumeQueue.truncate

    def truncate(self: Any, offset: int) -> None:
        original(self, offset + 2000)

    return [(ConsumeQueue, "truncate", truncate)]


def _cut_rows_kept() -> list[Patch]:
    """What arrived before a cut is dispatched after it."""
    return [(ArrivedRows, "forget", lambda self: None)]


def _slave_timeout_is_ok() -> list[Patch]:
    """A put that no slave has in time is answered as if they had it."""

    def expire(self: Any, now: int) -> Any:
        return waiters._release(self._waiting.expire(now), PutMessageStatus.PUT_OK)

    return [(waiters.GroupTransferService, "expire", expire)]


def _disk_timeout_is_ok() -> list[Patch]:
    """A put that the disk does not have in time is answered as if it had it."""

    async def watch_deadlines(self: Any) -> None:
        while True:
            await asyncio.sleep(self._timeout / 4)
            for future in self._waiters.expire(asyncio.get_running_loop().time()):
                if not future.done():
                    future.set_result(PutMessageStatus.PUT_OK)

    return [(GroupCommitService, "watch_deadlines", watch_deadlines)]


def _no_slave_is_ok() -> list[Patch]:
    """A SYNC_MASTER without slaves answers as if it needed none."""
    original = _MASTER.await_slaves

    def await_slaves(self: Any, end: int, now: MonoMs, token: Any) -> PutMessageStatus | None:
        status = original(self, end, now, token)
        weak = status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        return PutMessageStatus.PUT_OK if weak else status

    return [(_MASTER, "await_slaves", await_slaves)]


def slow_asynchronous(seed: int) -> list[Fault]:
    """Most of the time the master waits for its disk alone, which is too slow for most puts."""
    chance = random.Random(seed)
    found = [Fault(0.0, CLASSIC_ON, "a"), Fault(300.0, "go_async", "a", lasts=3000.0)]
    for k in range(3):
        at = 400.0 + 900 * k + chance.uniform(0, 100)
        found += [Fault(at, "slow_disk", node, "", 800.0, 1.0) for node in NODES]
    return found


def _all_confirmed() -> list[Patch]:
    """A restarted master takes its whole log for confirmed."""
    original = _MASTER.open_epoch

    def open_epoch(self: Any, nonce: int, now: WallMs, *rest: Any) -> None:
        self.store.checkpoint.confirm_phy_offset = self.store.log.max_offset
        original(self, nonce, now, *rest)

    return [(_MASTER, "open_epoch", open_epoch)]


def _master_becomes_open_slave() -> list[Patch]:
    """A master that comes back as a slave shows readers what was never confirmed."""
    return [(identity, "follow", lambda disk, who, confirmed_only: who)]


def _window_of_whole_records() -> list[Patch]:
    """A record larger than the window is never sent to its end: a silent stall."""
    from duolog_server.store.commitlog import CommitLog

    return [(CommitLog, "record_bytes", lambda self, offset: 0)]


def _deaf_heartbeat() -> list[Patch]:
    """Nobody gives up a silent peer: a half-open connection lasts for ever."""
    return [
        (_MASTER, "_tick", lambda self, now: []),
        (_SLAVE, "_tick", lambda self, now: []),
    ]


def _offsets_of_refused() -> list[Patch]:
    """A put that is not stored uses its queue offsets up (rmq#6570)."""
    original = MessageStore.put

    def put(self: Any, batch: Any, now: WallMs) -> Any:
        result = original(self, batch, now)
        key = (batch.topic, batch.queue_id)
        if result.status is PutMessageStatus.CREATE_MAPEDFILE_FAILED and not batch.sysflag:
            self.topic_queue_table[key] = self.topic_queue_table.get(key, 0) + 1
        return result

    return [(MessageStore, "put", put)]


def _names_unsynced() -> list[Patch]:
    """The names of new files are never made durable (rmq#5905)."""
    return [(SimDisk, "sync_dir", lambda self, path: None)]


REPLICATION = [
    Mutant("ack-before-slave", "a put is answered before any slave has it", _ack_before_slave),
    Mutant("max-for-min", "the fastest slave's offset confirms for all", _max_for_min),
    Mutant("connections-counted", "two connections of one slave count twice", _connections_counted),
    Mutant("sent-for-received", "what was sent counts as held", _sent_for_received),
    Mutant("received-for-durable", "page caches count where disks should", _received_for_durable),
    Mutant("durable-is-received", "a slave calls its page cache a disk", _durable_is_received),
    Mutant("ack-ahead", "a slave acknowledges half a record", _ack_ahead),
    Mutant("falling-confirm", "the confirm offset falls with a slave", _falling_confirm),
    Mutant("resurrected-tail", "truncation only moves positions", _memory_only_truncation),
    Mutant("swallowed-sync", "a failed sync is taken for a success", _swallowed_sync, False),
    Mutant("retried-sync", "a failed sync is tried again", _sync_after_failure, False),
    Mutant("readers-ahead", "readers see what is not confirmed", _readers_ahead),
    Mutant("nothing-hidden", "recovery shows what was never confirmed", _no_hiding),
    Mutant(
        "all-confirmed",
        "a restarted master confirms all it has",
        _all_confirmed,
    ),
    Mutant("open-slave", "an old master shows its unconfirmed tail", _master_becomes_open_slave),
    Mutant("no-truncation", "a diverged slave is appended to", _no_truncation),
    Mutant("no-dedupe", "a repeated send is stored twice", _no_dedupe),
    Mutant("repeats-misplaced", "a repeat is told another place", _repeats_misplaced),
    Mutant("forgets-in-silence", "a forgotten producer's repeat is stored", _forgets_in_silence),
    Mutant("early-durable", "a sync vouches for what came while it ran", _early_durable),
    Mutant("new-master-cuts", "a new master drops its unconfirmed tail", _new_master_cuts),
    Mutant("no-nonce", "epochs are told apart by number alone", _no_nonce),
    Mutant("no-epochs", "logs are compared by length alone", _no_epochs),
    Mutant("unverified", "bytes are applied unseen", _unverified_records),
    Mutant("gap-ignored", "a chunk is appended anywhere", _gap_ignored, weather=_storms),
    Mutant(
        "chunk-uncovered", "log bytes have no CRC on their way", _chunk_uncovered, weather=_flips
    ),
    Mutant("slave-unchecked", "a slave checks no frame's CRC", _slave_unchecked, weather=_flips),
    Mutant(
        "slave-takes-parts", "a slave takes what came of it", _slave_unchecked, weather=_mangled
    ),
    Mutant("master-unchecked", "a master checks no frame's CRC", _master_unchecked, weather=_flips),
    Mutant("slave-timeout-is-ok", "PUT_OK where FLUSH_SLAVE_TIMEOUT is due", _slave_timeout_is_ok),
    Mutant(
        "disk-timeout-is-ok",
        "PUT_OK where FLUSH_DISK_TIMEOUT is due",
        _disk_timeout_is_ok,
        False,
        slow_asynchronous,
    ),
    Mutant("no-slave-is-ok", "PUT_OK where SLAVE_NOT_AVAILABLE is due", _no_slave_is_ok, False),
    Mutant("visible-offsets", "queue offsets are given twice", _queue_offsets_from_visible),
    Mutant("queue-tail", "a cut queue keeps entries of cut records", _blank_tail_kept),
    Mutant("rows-kept", "a cut log keeps what dispatch was given of it", _cut_rows_kept),
    Mutant("small-window", "a large record stalls replication", _window_of_whole_records),
    Mutant("offsets-of-refused", "what is refused uses offsets up", _offsets_of_refused),
    Mutant("names-unsynced", "names of new files are not synced", _names_unsynced),
    Mutant("half-open", "nobody notices a dead connection", _deaf_heartbeat),
]
