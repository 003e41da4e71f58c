"""The epochs of a log: which mastership wrote which bytes.

A mastership opens with a barrier record on the system topic EPOCH_TOPIC; its offset is the epoch's
start. A nonce, drawn anew each time, distinguishes two masterships of one number (a master that
lost its last barrier to a power cut, two masters by mistake). So two logs hold the same bytes as
far as their histories agree. Bytes before the first barrier are epoch 0 (RocketMQ's log).
The history follows from the log; the file keeps entries whose barriers retention or damage removed.
"""

import json
from bisect import bisect_left
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NewType

from duolog_server.ha.beginnings import STARTED, Beginning
from duolog_server.ha.crc32c import crc32c
from duolog_server.store import jsontext
from duolog_server.store.disk import Disk, no_room
from duolog_server.store.errors import BadStoreFile, StoreError
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.metadata import SYSTEM_PREFIX

EPOCH_TOPIC = SYSTEM_PREFIX + "EPOCH"
EPOCH_QUEUE = 0
PATH = "config/epochs.json"
EPOCHS_MAX = 1 << 16
_START = attrgetter("start")

Epoch = NewType("Epoch", int)
NO_EPOCH = Epoch(0)  # none yet, or a log that RocketMQ wrote


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    """One mastership: its number, the log offset of its barrier, its nonce (64 bits)."""

    epoch: Epoch
    start: int
    nonce: int


def next_epoch(*known: Epoch) -> Epoch:
    """The number of a new epoch, where these are known."""
    return Epoch(max(known) + 1)


PREHISTORY = EpochEntry(NO_EPOCH, 0, 0)


def barrier_body(epoch: Epoch, nonce: int, master: str, began: Beginning = STARTED) -> bytes:
    """Body of a barrier record."""
    value = {"epoch": epoch, "nonce": f"{nonce:016x}", "master": master, **began.to_json()}
    return json.dumps(value, separators=(",", ":")).encode()


def barrier_entry(start: int, body: bytes) -> EpochEntry | None:
    """The epoch a barrier record at an offset opens, or None if its body says nothing."""
    try:
        value = json.loads(body)
        return EpochEntry(Epoch(int(value["epoch"])), start, int(value["nonce"], 16))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class EpochHistory:
    """Epochs in the order of their starts; an immutable tuple that is replaced, never changed."""

    def __init__(self, entries: tuple[EpochEntry, ...] = ()) -> None:
        self.entries = entries
        self.lost: list[tuple[int, int]] = []  # where recovery could read no barrier
        self._filed: tuple[EpochEntry, ...] | None = None  # what the file has; None: not known

    @property
    def last_epoch(self) -> Epoch:
        """Number of the newest epoch; NO_EPOCH where there is none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def open(self, entry: EpochEntry) -> bool:
        """Add a newer epoch; False for one that is known or does not follow."""
        if self.entries:
            last = self.entries[-1]
            if entry.epoch <= last.epoch or entry.start <= last.start:
                return False
        if entry.epoch < 1 or entry.start < 0:
            return False
        self.entries = (*self.entries, entry)[-EPOCHS_MAX:]
        return True

    def truncate(self, offset: int) -> None:
        """Forget epochs whose barrier is truncated."""
        self.entries = tuple(entry for entry in self.entries if entry.start < offset)

    def adopt(self, entries: tuple[EpochEntry, ...], end: int) -> None:
        """Adopt a master's history for the bytes before an offset."""
        self.entries = tuple(entry for entry in entries if entry.start < end)

    def entry_at(self, offset: int) -> EpochEntry:
        """The mastership that wrote the byte at an offset."""
        found = PREHISTORY
        for entry in reversed(self.entries):
            if entry.start <= offset:
                found = entry
                break
        return found

    def is_lost(self, start: int) -> bool:
        """Whether a barrier at an offset could not be read: it expired, or is damaged."""
        return any(low <= start < high for low, high in self.lost)

    def wrote(self, end: int) -> tuple[int, int]:
        """Start and nonce of the mastership that wrote the bytes before an offset; zeros where no
        barrier says it.
        """
        entry = self.entry_at(end - 1)
        return entry.start, entry.nonce

    def held_from(self, end: int, nonce: int) -> int:
        """How far this log agrees with another log of the group that reached an offset.

        nonce: of the epoch that wrote the bytes before `end` there. If this log continued without
        some of them, its next epoch begins below `end`; if it lacks that epoch, the two may
        diverge anywhere: 0.
        """
        following: EpochEntry | None = None
        for entry in reversed(self.entries):
            if entry.nonce == nonce:
                return end if following is None else min(end, following.start)
            following = entry
        return 0

    # -- the file ------------------------------------------------------------------------------

    def save(self, disk: Disk) -> None:
        """Replace the file, atomically and durably, unless it already holds these entries."""
        if self.entries == self._filed:
            return
        self._filed = None  # until that succeeds, the file may hold the old entries or the new ones
        rows = [[entry.epoch, entry.start, f"{entry.nonce:016x}"] for entry in self.entries]
        jsontext.save(disk, PATH, {"crc32c": _crc(rows), "epochs": rows})
        self._filed = self.entries

    def load(self, disk: Disk) -> None:
        """Read the file; BadStoreFile if it exists and cannot be trusted."""
        value = jsontext.load(disk, PATH)
        if value is None:
            self._filed = ()
            return
        try:
            rows = value["epochs"]
            if value["crc32c"] != _crc(rows):
                raise ValueError("its CRC does not match")
            self.entries = tuple(
                EpochEntry(Epoch(int(epoch)), int(start), int(nonce, 16))
                for epoch, start, nonce in rows
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadStoreFile(PATH, str(error)) from error
        self._filed = self.entries


def _crc(rows: list[Any]) -> int:
    return crc32c(json.dumps(rows).encode())


def common_end(
    mine: tuple[EpochEntry, ...], my_end: int, theirs: tuple[EpochEntry, ...], their_end: int
) -> tuple[int, int]:
    """How far two logs hold the same bytes, and how many epochs they share.

    The epochs that both have in the same order agree; within the last of them both logs hold the
    same bytes until the first of the two ends it.
    """
    a, b = (PREHISTORY, *mine), (PREHISTORY, *theirs)
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    a_end = a[shared].start if shared < len(a) else my_end
    b_end = b[shared].start if shared < len(b) else their_end
    return min(a_end, b_end), shared - 1


def recover_history(store: MessageStore) -> EpochHistory:
    """The history of a recovered store: the log's own barriers, and the file's for the others.

    Those are older than the log, or lost with damaged bytes of it. Where the two differ the log is
    right. Raises BadStoreFile if the file exists and is damaged.
    """
    history = EpochHistory()
    history.load(store.disk)
    kept = history.entries
    log = store.log
    found, damaged = _barriers_in(store)
    history.lost = [(0, log.min_offset), *((one.start, one.end) for one in log.corrupt_ranges)]
    history.lost += [(start, start + 1) for start in damaged]
    filed = [entry for entry in kept if history.is_lost(entry.start) and _fits(entry, found)]
    history.entries = tuple(sorted((*found, *filed), key=_START))[-EPOCHS_MAX:]
    try:
        history.save(store.disk)
    except OSError as error:
        if not no_room(error):
            raise  # on a full disk it waits: the log has the barriers
    return history


def holds_what_it_noted(store: MessageStore, history: EpochHistory) -> bool:
    """Limit the confirm note to what this log holds of the masterships that it names, and have
    later notes name theirs; whether it held all of it.

    An older log that was put back beside a newer note ends in bytes that another mastership may
    have replaced: those were never confirmed.
    """
    note, end = store.checkpoint.note, store.log.max_offset
    durable = _held(history, note.durable, *note.durable_by)
    confirmed = max(durable, _held(history, note.confirmed, *note.confirmed_by))
    # A barrier at the end, or behind it, may have gone with what a power cut took.
    held_all = durable == note.durable and (
        confirmed == note.confirmed or note.confirmed_by[0] >= end
    )
    store.checkpoint.claim_at_most(confirmed, durable)
    note.wrote = history.wrote
    return held_all


def _held(history: EpochHistory, end: int, start: int, nonce: int) -> int:
    """How much of what a mastership had confirmed is in this log. Where its barrier expired, or is
    damaged, and the history's file does not have it, nothing contradicts that all of it is.
    """
    known = any(entry.nonce == nonce for entry in history.entries)
    if not nonce or (history.is_lost(start) and not known):
        return end
    return history.held_from(end, nonce)


def _barriers_in(store: MessageStore) -> tuple[tuple[EpochEntry, ...], list[int]]:
    """The epochs whose barriers are in the log, with those that have no queue entry yet; and the
    offsets of barriers that cannot be read.
    """
    found, damaged = EpochHistory(), list[int]()
    queue, starts = store.queues.get(EPOCH_TOPIC, EPOCH_QUEUE), []
    if queue is not None:
        count = queue.max_offset - queue.min_offset
        starts = queue.entries(queue.min_offset, count)[0].tolist()
    for start in (*starts, *store.not_dispatched(EPOCH_TOPIC, EPOCH_QUEUE)):
        try:
            entry = barrier_entry(start, store.log.get_message(start).body)
        except StoreError:  # as that of a lost record's blank entry
            damaged.append(start)
            continue
        if entry is not None:
            found.open(entry)
    return found.entries, damaged


def _fits(entry: EpochEntry, found: tuple[EpochEntry, ...]) -> bool:
    """Tell whether an epoch stands in its place among those of the log."""
    at = bisect_left(found, entry.start, key=_START)
    after = at == 0 or found[at - 1].epoch < entry.epoch
    before = at == len(found) or (entry.start < found[at].start and entry.epoch < found[at].epoch)
    return after and before


# The newest masterships of a log: their masters and begins, by barrier records.
KEPT = 16


@dataclass(frozen=True, slots=True)
class Mastership:
    """master: name of the node. began_ms: by its wall clock, when its barrier was stored."""

    epoch: Epoch
    master: str
    began_ms: int
    began: Beginning = Beginning()


class Masterships:
    """Reads each barrier once."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[EpochEntry, Mastership | None] = {}

    def newest(self, history: EpochHistory, confirmed: int) -> list[Mastership]:
        """The newest masterships that begin below a log offset, oldest first.

        Those whose barriers retention or damage removed are left out.
        """
        newest = history.entries[-2 * KEPT :]
        entries = [entry for entry in newest if entry.start < confirmed][-KEPT:]
        self._known = {
            entry: self._known[entry] if entry in self._known else self._read(entry)
            for entry in entries
        }
        return [found for found in self._known.values() if found is not None]

    def _read(self, entry: EpochEntry) -> Mastership | None:
        try:
            record = self._store.log.get_message(entry.start)
            said = json.loads(record.body)
            master, began = said["master"], Beginning.from_json(said)
        except (StoreError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return Mastership(entry.epoch, str(master), record.store_time, began)
