"""Retention: which segments are deleted, and when the disk is too full to write.

Rules of RocketMQ 4.9.8: segments unchanged for 72 h are deleted at the hour `deleteWhen` (04), or
at any hour if the disk is over 75 % full; over 85 %, unexpired ones are deleted as well; over 90 %,
puts are refused until usage falls. Oldest first, at most 10 per round, never the last one, and
never one that is not completely dispatched and on disk. The disk is the fullest file system that
log, queues or index lie on; where the log does not lie on it, deleting messages makes no room there
to speak of: unexpired ones are kept, and puts are refused.

Where other files use more of the file system than this store does, deleting messages makes room
for those: unexpired ones are kept (`clean_file_forcibly_for_others` is RocketMQ's rule). So they
are where the disk takes no puts and other nodes of the group, which have room, take them instead.

Topics that keep their messages for a shorter time have the minimums of their queues raised, by
records in the log. What is hidden takes its room until its segment is deleted; files of queues
that name nothing else are deleted here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from duolog_server.store.clocks import WallMs
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.directories import LOG
from duolog_server.store.disk import Disk
from duolog_server.store.indexservice import IndexService
from duolog_server.store.options import StoreOptions
from duolog_server.store.queues import ConsumeQueues
from duolog_server.store.status import RunningFlags

HOUR_MS = 3_600_000
MANUAL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Files removed by one round, and the disk's usage.

    unexpired: those of the segments that went before their time, because the disk was too full.
    """

    segments: int
    queue_files: int
    index_files: int
    used_ratio: float
    unexpired: tuple[str, ...] = ()
    more: bool = False  # the disk is still too full: check again once the space is free


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes of the file system that are used, and those of them that are this store's."""

    used: int
    own: int

    @property
    def others(self) -> int:
        """Bytes that other files use."""
        return max(0, self.used - self.own)

    @property
    def mostly_others(self) -> bool:
        """Other files use more than this store does."""
        return self.others > self.own


@dataclass(slots=True)
class Retention:
    """The cleaner; `round` is called every 10 s."""

    options: StoreOptions
    disk: Disk
    log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    flags: RunningFlags
    manual_rounds: int = 0
    use: DiskUse | None = None  # as `wants_use` asked for it before this round
    ratio: float = 0.0  # used share of the disk, as it was looked at last
    refused: bool = False  # a put found no room since then
    relieved: Callable[[], bool] = lambda: False  # other nodes store what this one cannot
    # Called with the reason where the disk became too full, and with none once it has room again.
    tell: Callable[[str], None] = lambda reason: None
    told: bool = False  # that it is too full

    def trigger(self) -> None:
        """Ask for deletion now (deleteExpiredCommitLog): the next 20 rounds act at any hour."""
        self.manual_rounds = MANUAL_ROUNDS

    def check_space(self) -> float:
        """Set or clear DISK_FULL by how full the disk is; the used share."""
        self.ratio = ratio = self.disk.used_ratio()
        refused, self.refused = self.refused, False
        if ratio > self.options.disk_space_warning_level_ratio / 100:
            self.flags.set(RunningFlags.DISK_FULL)
        else:
            self.flags.clear(RunningFlags.DISK_FULL)
        if self.is_full:
            self._tell(self.full_reason)
        elif not refused:  # or the next put may find no room as well
            self._tell("")
        return ratio

    def refuse(self) -> None:
        """A put found no room for a file."""
        self.refused = True
        self._tell(f"a put found no room for a file of {LOG} ({self.full_reason})")

    def _tell(self, reason: str) -> None:
        if self.told != bool(reason):
            self.told = bool(reason)
            self.tell(reason)

    def round(self, age_ms: WallMs, hour: int, dispatched: int) -> Cleaned:
        """Run one round. age_ms: what the files' times are compared with (`store.clocks.AgeClock`).

        hour: local hour of day. dispatched: offset below which all is in queues.
        """
        ratio = self.check_space()
        at_once = self.disk.used_ratio(LOG) > self.forced_limit
        kept = self.use is not None and self.use.mostly_others
        kept = kept or (self.is_full and self.relieved())
        segments: list[str] = []
        unexpired: list[str] = []
        if self._is_time(hour) or self._over_limit(ratio) or self.manual_rounds > 0:
            self.manual_rounds = max(0, self.manual_rounds - 1)
            forcibly = at_once and self.options.clean_file_forcibly_enable and not kept
            segments, unexpired = self._delete_segments(age_ms, forcibly, dispatched)
        queue_files, index_files = self.queues.delete_hidden(), 0
        if segments:
            self.log.queue.disk_sync_names()
            oldest = self.log.min_offset
            queue_files += self.queues.delete_before(oldest)
            index_files = self.index.delete_before(oldest)
            self.check_space()
        more = at_once and bool(segments)
        return Cleaned(len(segments), queue_files, index_files, ratio, tuple(unexpired), more)

    @property
    def is_full(self) -> bool:
        """Whether the disk is too full to store anything."""
        return self.refused or self.flags.has(RunningFlags.DISK_FULL)

    @property
    def has_room(self) -> bool:
        """Well below the level at which puts are refused: messages of a full node may come here."""
        level = self.options.disk_space_warning_level_ratio / 100
        return not self.is_full and self.ratio <= min(self.forced_limit, level)

    @property
    def wants_use(self) -> bool:
        """Whether the next round depends on whose files fill the disk: `use` is to be set."""
        options = self.options
        asked = options.clean_file_forcibly_enable and not options.clean_file_forcibly_for_others
        return asked and self.disk.used_ratio(LOG) > self.forced_limit

    @property
    def fullest(self) -> str:
        """The directory that lies on the fullest file system: its name, or where a link leads."""
        name = self.disk.fullest()
        return self.disk.linked(name) or name

    @property
    def full_reason(self) -> str:
        """Which directory has no room, and how full its file system is."""
        full = f"the file system of {self.fullest} is {self.ratio:.0%} full"
        unfit = self.ratio <= self.options.disk_space_warning_level_ratio / 100
        return f"{full}, and a new file did not fit" if unfit else full

    @property
    def forced_limit(self) -> float:
        """Used share of the disk over which unexpired segments are deleted."""
        return self.options.disk_space_clean_forcibly_ratio / 100

    def _is_time(self, hour: int) -> bool:
        return hour in {
            int(word) for word in self.options.delete_when.split(";") if word.strip().isdecimal()
        }

    def _over_limit(self, ratio: float) -> bool:
        limit = min(95, max(10, self.options.disk_max_used_space_ratio)) / 100
        return ratio < 0 or ratio > limit

    def _delete_segments(
        self, age_ms: WallMs, forcibly: bool, dispatched: int
    ) -> tuple[list[str], list[str]]:
        """Paths of the segments that were removed, and of those of them that had not expired."""
        reserved_ms = self.options.file_reserved_time * HOUR_MS
        removed: list[str] = []
        unexpired: list[str] = []
        for mapped in self.log.queue.files[:-1][: self.options.delete_file_batch_max]:
            path = mapped.file.path
            expired = self.disk.modified_ms(path) + reserved_ms <= age_ms
            safe = mapped.end <= min(dispatched, self.log.queue.flushed_where)
            if not safe or not (expired or forcibly):
                break
            self.log.queue.remove(mapped)
            removed.append(path)
            if not expired:
                unexpired.append(path)
                break  # its space may be freed later: one at a time while the disk is too full
        return removed, unexpired
