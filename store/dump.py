"""Inspection of a store directory without changing it: dump, check, stats.

The view is the result that recovery would have: queues are derived from the valid records of the
commit log, so a crashed or damaged directory is shown as it would be opened. Nothing is locked or
written.
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.commitlog import CommitLog, CorruptRange, scan_reason
from duolog_server.store.consumequeue import BLANK, ENTRY_BYTES
from duolog_server.store.consumequeueext import MAX_ADDR
from duolog_server.store.copied import ABORT, is_copied
from duolog_server.store.delay import SCHEDULE_TOPIC, parse_delay_levels
from duolog_server.store.disk import Disk
from duolog_server.store.dispatch import is_directory_name
from duolog_server.store.errors import BadStoreDirectory
from duolog_server.store.indexcheck import found_sizes
from duolog_server.store.indexservice import DIRECTORY as INDEX_DIRECTORY
from duolog_server.store.indexservice import IndexService, key_hash
from duolog_server.store.kernels import index as index_kernel
from duolog_server.store.kernels import queue as queue_kernel
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.mappedfile import MappedFile
from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata
from duolog_server.store.options import StoreOptions
from duolog_server.store.places import PlaceFinder
from duolog_server.store.queues import ROOT as QUEUE_ROOT

ROWS = 8184  # no power of two: see `store.scanahead`
QUERY_MAX = 32  # what RocketMQ's store answers to one key query by default


@dataclass(slots=True)
class QueueView:
    """One queue: its derived entries and its files."""

    minimum: int
    entries: list[list[int]] = field(default_factory=list)

    @property
    def maximum(self) -> int:
        """Queue offset after the last entry."""
        return self.minimum + len(self.entries)

    def since(self, queue_offset: int) -> "QueueView":
        """The queue's entries from a queue offset on."""
        first = max(self.minimum, queue_offset)
        return QueueView(first, self.entries[first - self.minimum :])


@dataclass(slots=True)
class StoreView:
    """The content of a directory."""

    min_phy: int
    max_phy: int
    queues: dict[tuple[str, int], QueueView]
    records: int
    torn_bytes: int
    corrupt: list[CorruptRange]
    problems: list[str]
    topics: Counter[str]
    topic_bytes: Counter[str]
    first_time: int
    last_time: int


DEFAULT = StoreOptions()


def segment_bytes(disk: Disk, options: StoreOptions) -> StoreOptions:
    """Options with the sizes of the directory's own files."""
    changed: dict[str, Any] = {}
    log_sizes = Counter(
        disk.size(f"commitlog/{name}") for name in disk.list("commitlog") if name.isdecimal()
    )
    if log_sizes and log_sizes.most_common(1)[0][0] >= 4096:
        changed["mapped_file_size_commit_log"] = log_sizes.most_common(1)[0][0]
    queue_sizes = Counter(
        disk.size(f"{QUEUE_ROOT}/{topic}/{queue}/{name}")
        for topic in disk.list(QUEUE_ROOT)
        for queue in disk.list(f"{QUEUE_ROOT}/{topic}")
        for name in disk.list(f"{QUEUE_ROOT}/{topic}/{queue}")
    )
    if queue_sizes and queue_sizes.most_common(1)[0][0] >= ENTRY_BYTES:
        changed["mapped_file_size_consume_queue"] = queue_sizes.most_common(1)[0][0]
    if (index := found_sizes(disk)) is not None:
        changed["max_hash_slot_num"], changed["max_index_num"] = index.slots, index.entries
    return dataclasses.replace(options, **changed)


def _load_log(disk: Disk, options: StoreOptions, problems: list[str]) -> CommitLog:
    """Open the segments that can be opened; the rest are problems, not errors."""
    log = CommitLog(disk, options)
    for name in disk.list("commitlog"):
        path = f"commitlog/{name}"
        size = disk.size(path)
        if not (len(name) == 20 and name.isdecimal()) or size != log.queue.file_size:
            problems.append(f"{path}: has {size} bytes, a segment has {log.queue.file_size}")
            continue
        mapped = MappedFile(disk.open(path, False), int(name))
        mapped.set_positions(size)
        if log.queue.files and log.queue.files[-1].end != mapped.start:
            problems.append(
                f"commit log [{log.queue.files[-1].end}, {mapped.start}) is missing: "
                "its segment files do not exist"
            )
        log.queue.files.append(mapped)
    return log


class _Scan:
    """One pass over the log that collects what a view needs."""

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self.problems: list[str] = []
        self.disk = disk
        self.options = options
        self.log = _load_log(disk, options, self.problems)
        self.delays_ms = parse_delay_levels(options.message_delay_level)
        self.rows: I64 = np.empty((scan.COLUMNS, ROWS), np.int64)
        self.queues: dict[tuple[str, int], QueueView] = {}
        self.topics: Counter[str] = Counter()
        self.topic_bytes: Counter[str] = Counter()
        self.corrupt: list[CorruptRange] = []
        self.records = 0
        self.first_time = self.last_time = 0

    def run(self) -> StoreView:
        position, end = int(self.log.min_offset), int(self.log.max_offset)
        torn = 0
        while position < end:
            mapped = self.log.queue.find(position)
            if mapped is None:
                position = self._skip(position, "a missing segment")
                if position < 0:
                    break
                continue
            result: I64 = np.zeros(2, np.int64)
            code = scan.scan(
                mapped.memory,
                position - mapped.start,
                mapped.size,
                mapped.start,
                True,
                self.delays_ms,
                self.rows,
                result,
            )
            self._take(mapped.memory, int(result[0]))
            position = mapped.start + int(result[1])
            if code == scan.SCAN_BLANK:
                if mapped is self.log.queue.files[-1]:
                    position = mapped.end
                    break
                position = mapped.end
            elif code not in (scan.SCAN_END, scan.SCAN_FULL):
                following = self._skip(position, scan_reason(int(code)))
                if following < 0:
                    tail = mapped.memory[position - mapped.start :]
                    torn = int(np.count_nonzero(tail[: 1 << 20]))
                    break
                position = following
        self._queues_without_records()
        return StoreView(
            self.log.min_offset,
            position,
            self.queues,
            self.records,
            torn,
            self.corrupt,
            self.problems,
            self.topics,
            self.topic_bytes,
            self.first_time,
            self.last_time,
        )

    def _skip(self, position: int, why: str) -> int:
        following = self.log.next_valid(position + 1)
        if following is None:
            return -1
        self.corrupt.append(CorruptRange(position, following))
        self.problems.append(f"commit log [{position}, {following}) holds no valid record: {why}")
        return following

    def _take(self, memory: U8, n: int) -> None:
        if n == 0:
            return
        rows = self.rows
        self.records += n
        self.first_time = self.first_time or int(rows[scan.STORE_TIME, 0])
        self.last_time = int(rows[scan.STORE_TIME, n - 1])
        places = PlaceFinder(n).own(memory, rows, n)
        for (topic, _), members in places.records():
            self.topics[topic] += len(members)
            self.topic_bytes[topic] += int(rows[scan.SIZE, members].sum())
        for key, members in places:
            self._add(key, members)

    def _add(self, key: tuple[str, int], members: I64) -> None:
        rows = self.rows
        view = self.queues.get(key)
        if view is None:
            view = self.queues[key] = QueueView(int(rows[scan.QUEUE_OFFSET, members[0]]))
        table = rows[:, members][[scan.PHY, scan.SIZE, scan.TAGS_CODE]].T.tolist()
        offsets = rows[scan.QUEUE_OFFSET, members].tolist()
        for offset, entry in zip(offsets, table, strict=True):
            missing = offset - view.maximum
            if missing < 0 or missing > sum(found.records_max for found in self.corrupt):
                self.problems.append(
                    f"record at {entry[0]} has queue offset {offset} in "
                    f"{key[0]}/{key[1]}, whose next offset is {view.maximum}"
                )
                continue
            view.entries += [[0, 0x7FFFFFFF, 0]] * missing
            view.entries.append(entry)

    def _queues_without_records(self) -> None:
        """Queues that have files (or, for the delay topic, a level) but no record in the log."""
        topics = self.disk.list(QUEUE_ROOT)
        for topic in topics:
            for name in self.disk.list(f"{QUEUE_ROOT}/{topic}"):
                if name.isdecimal() and (topic, int(name)) not in self.queues:
                    end = self._file_end(topic, name)
                    self.queues[topic, int(name)] = QueueView(end)
        if SCHEDULE_TOPIC in topics:
            for level in range(len(self.delays_ms)):
                self.queues.setdefault((SCHEDULE_TOPIC, level), QueueView(0))

    def _file_end(self, topic: str, queue: str) -> int:
        names = self.disk.list(f"{QUEUE_ROOT}/{topic}/{queue}")
        if not names or not names[-1].isdecimal():
            return 0
        path = f"{QUEUE_ROOT}/{topic}/{queue}/{names[-1]}"
        if self.disk.size(path) < ENTRY_BYTES:
            return int(names[-1]) // ENTRY_BYTES
        file = self.disk.open(path, False)
        state: I64 = np.zeros(1, np.int64)
        end = int(queue_kernel.walk_entries(file.memory, file.size, state))
        file.close()
        return (int(names[-1]) + end) // ENTRY_BYTES


def view_store(disk: Disk, options: StoreOptions) -> StoreView:
    """Scan a directory; sizes of segments are taken from its files."""
    return _Scan(disk, segment_bytes(disk, options)).run()


def dump(disk: Disk, options: StoreOptions, queries: list[tuple[str, str]]) -> dict[str, Any]:
    """Ranges, queue entries, and results of key queries (at most 32 offsets each)."""
    scanner = _Scan(disk, segment_bytes(disk, options))
    view = scanner.run()
    queues = {
        f"{topic}/{queue_id}": {
            "min": found.minimum,
            "max": found.maximum,
            "entries": found.entries,
        }
        for (topic, queue_id), found in sorted(view.queues.items())
    }
    answers = []
    for topic, key in queries:
        offsets = _query(scanner, options, view, topic, key)
        answers.append({"topic": topic, "key": key, "phy": offsets})
    return {
        "min_phy": view.min_phy,
        "max_phy": view.max_phy,
        "queues": queues,
        "queries": answers,
    }


def _query(
    scanner: _Scan, options: StoreOptions, view: StoreView, topic: str, key: str
) -> list[int]:
    """Offsets for a key's hash, from the index files if they reach the end of the log."""
    index = IndexService(scanner.disk, segment_bytes(scanner.disk, options))
    try:
        index.load(None, writable=False)
        newest = max(
            (queue.entries[-1][0] for queue in view.queues.values() if queue.entries), default=0
        )
        if not view.problems and index.end_offset >= newest:
            found = index.find(topic, key, QUERY_MAX, 0, 1 << 62)
            return sorted(set(found))
    except BadStoreDirectory:
        pass
    finally:
        index.close()
    return _query_log(scanner, topic, key)


def _query_log(scanner: _Scan, topic: str, key: str) -> list[int]:
    """The same from the log itself, as a rebuilt index would answer."""
    found: list[int] = []
    wanted = key_hash(topic, key)
    # A small index of one row table at a time, filled again if it does not hold all keys.
    slots, entries = 1 << 16, 1 << 20
    memory: U8 = np.zeros(40 + slots * 4 + entries * 20, np.uint8)
    for mapped in scanner.log.queue.files:
        position = 0
        while position < mapped.size:
            result: I64 = np.zeros(2, np.int64)
            code = scan.scan(
                mapped.memory,
                position,
                mapped.size,
                mapped.start,
                True,
                scanner.delays_ms,
                scanner.rows,
                result,
            )
            n = int(result[0])
            state: I64 = np.zeros(2, np.int64)
            full = True
            while full:
                memory[: index_kernel.HEADER_BYTES + slots * 4] = 0
                full = (
                    index_kernel.put_keys(
                        memory, slots, entries, mapped.memory, scanner.rows, n, state
                    )
                    == index_kernel.INDEX_FILE_FULL
                )
                out: I64 = np.empty(QUERY_MAX, np.int64)
                count = index_kernel.find_key(memory, slots, entries, wanted, 0, 1 << 62, out)
                found += sorted({int(offset) for offset in out[: int(count)]})
            position = int(result[1])
            if code == scan.SCAN_FULL:
                continue
            following = next(
                (r.end for r in scanner.corrupt if r.start == mapped.start + position), None
            )
            if following is None or following >= mapped.end:
                break
            position = following - mapped.start
    return sorted(set(found))[-QUERY_MAX:]


def check(disk: Disk, options: StoreOptions) -> dict[str, Any]:
    """Compare the directory's files with its log; `problems` is empty if they match.

    Sizes are those of the files themselves, but for an index other than the default one.
    not_in_queues: the newest messages whose queue entries a running node had not written yet, or
    not before the directory was copied (`copied`): no problem, the next start writes them.
    """
    sized = segment_bytes(disk, options)
    scanner = _Scan(disk, sized)
    view = scanner.run()
    problems = list(view.problems)
    if view.torn_bytes:
        problems.append(f"torn tail after {view.max_phy} ({view.torn_bytes} bytes used)")
    abnormal, copied = disk.size(ABORT) >= 0, is_copied(disk)
    checkpoint = StoreCheckpoint(disk)
    checkpoint.load(writable=False)
    floors = _floors(scanner.log, view)
    behind = 0
    for (topic, queue_id), found in sorted(view.queues.items()):
        kept = found.since(floors.get(topic, {}).get(queue_id, 0))
        if abnormal:
            has = _reached(disk, sized, topic, queue_id, kept) - kept.minimum
            # Entries that the checkpoint knows to be on disk must be there. In a copy, it may be
            # newer than a queue, but not than all of one.
            due = kept.entries[has : has + 1] if not (copied and has) else []
            synced = checkpoint.logics_msg_timestamp
            if all(scanner.log.store_time_at(at) > synced for at, *_ in due):
                behind += len(kept.entries) - has
                kept = QueueView(kept.minimum, kept.entries[:has])
        problems += _check_queue(disk, sized, topic, queue_id, kept)
    numbers = options.max_hash_slot_num, options.max_index_num
    named = numbers != (DEFAULT.max_hash_slot_num, DEFAULT.max_index_num)
    index_bytes = (options if named else sized).index_file_bytes
    for name in disk.list(INDEX_DIRECTORY):
        size = disk.size(f"{INDEX_DIRECTORY}/{name}")
        if size != index_bytes:
            problems.append(f"{INDEX_DIRECTORY}/{name}: has {size} bytes, expected {index_bytes}")
    return {
        "clean_stop": not abnormal,
        "records": view.records,
        "min_phy": view.min_phy,
        "max_phy": view.max_phy,
        "queues": len(view.queues),
        "copied": copied,
        "not_in_queues": behind,
        "physic_msg_timestamp": checkpoint.physic_msg_timestamp,
        "logics_msg_timestamp": checkpoint.logics_msg_timestamp,
        "index_msg_timestamp": checkpoint.index_msg_timestamp,
        "problems": problems,
    }


def _floors(log: CommitLog, view: StoreView) -> dict[str, dict[int, int]]:
    """What is hidden of queues: of deleted topics, and below the minimums that records have raised.

    Their files may be gone, their records remain.
    """
    tables = Metadata()
    changes = view.queues.get((SYSTEM_TOPIC, 0), QueueView(0)).entries
    for position, size, _ in changes:
        if size != BLANK:
            tables.apply(log.get_message(position).body)
    return {name: tables.hidden_of(name) for name in {*tables.floors, *tables.minimums}}


def _reached(disk: Disk, options: StoreOptions, topic: str, queue_id: int, view: QueueView) -> int:
    """The queue offset behind the newest entry that a queue's files have."""
    directory = f"{QUEUE_ROOT}/{topic}/{queue_id}"
    width = options.queue_file_bytes
    for name in reversed(disk.list(directory) if is_directory_name(topic) else []):
        if not name.isdecimal() or disk.size(f"{directory}/{name}") != width:
            return view.maximum  # a problem of its own
        file = disk.open(f"{directory}/{name}", False)
        file.cover_holes()
        for low, high in reversed(file.data_ranges(0)):
            written = np.flatnonzero(file.memory[low:high])
            if len(written):
                end = (int(name) + low + int(written[-1])) // ENTRY_BYTES + 1
                return min(max(end, view.minimum), view.maximum)
    return view.minimum


def _check_queue(
    disk: Disk, options: StoreOptions, topic: str, queue_id: int, view: QueueView
) -> list[str]:
    """Compare a queue's files with the entries the log says it has."""
    directory = f"{QUEUE_ROOT}/{topic}/{queue_id}"
    if not is_directory_name(topic):
        return [f"{len(view.entries)} records name topic {topic!r}, which cannot exist"]
    if not disk.list(directory):
        return (
            [f"{directory}: has no files for its {len(view.entries)} entries"]
            if view.entries
            else []
        )
    problems = []
    position = view.minimum
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if disk.size(path) != options.queue_file_bytes or not name.isdecimal():
            problems.append(
                f"{path}: has {disk.size(path)} bytes, expected {options.queue_file_bytes}"
            )
            continue
        first = int(name) // ENTRY_BYTES
        count = options.queue_file_bytes // ENTRY_BYTES
        file = disk.open(path, False)
        table: I64 = np.empty((3, count), np.int64)
        queue_kernel.read_entries(file.memory, 0, count, table)
        file.close()
        low, high = max(position, first), min(view.maximum, first + count)
        if low < high:
            wanted = np.array(view.entries[low - view.minimum : high - view.minimum], np.int64).T
            table = table[:, low - first : high - first]
            wanted[2] = np.where(table[2] <= MAX_ADDR, table[2], wanted[2])  # names an ext unit
            differs = (table != wanted).any(axis=0)
            differs &= wanted[1] != BLANK  # the entry of a lost record may have stayed
            differing = np.flatnonzero(differs)
            if len(differing):
                problems.append(
                    f"{path}: entry {low + int(differing[0])} (and {len(differing) - 1} more) "
                    "differs from the log"
                )
            position = high
    if position < view.maximum:
        problems.append(f"{directory}: entries {position}..{view.maximum} are missing")
    return problems


def stats(disk: Disk, options: StoreOptions) -> dict[str, Any]:
    """Messages and bytes by topic, and the time the log spans."""
    view = view_store(disk, options)
    return {
        "records": view.records,
        "min_phy": view.min_phy,
        "max_phy": view.max_phy,
        "first_store_time": view.first_time or None,
        "last_store_time": view.last_time or None,
        "topics": {
            topic: {"messages": count, "bytes": view.topic_bytes[topic]}
            for topic, count in view.topics.most_common()
        },
    }
