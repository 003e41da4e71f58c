"""Rebuild: consume queues and index of a store directory, from its commit log alone.

First, tasks read pieces of the log and write each queue's entries to temporary files. Then each
task writes the files of some queues, and one writes the index, whose entries are chained in log
order. A damaged log is processed in one task, because the number of entries that a queue may lack
depends on everything before. The new files replace the old ones when all of them are synced.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.segments import (
    Piece,
    Segment,
    Stretch,
    is_written,
    piece_bytes,
    pieces,
    places_in,
    segments_of,
    walk,
)
from duolog_server.pipeline.session import each
from duolog_server.store.commitlog import CommitLog
from duolog_server.store.consumequeue import ENTRY_BYTES
from duolog_server.store.copied import LOCK
from duolog_server.store.delay import parse_delay_levels
from duolog_server.store.dispatch import Dispatcher, DispatchTargets, is_directory_name
from duolog_server.store.dump import segment_bytes
from duolog_server.store.errors import StoreError
from duolog_server.store.indexcheck import as_found
from duolog_server.store.indexservice import DIRECTORY as INDEX
from duolog_server.store.indexservice import IndexService
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.metadatafiles import SNAPSHOT, Snapshots
from duolog_server.store.openfiles import OpenFiles
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import REBUILDING, REBUILDING_THERE, OsDisk
from duolog_server.store.queuenote import PATH as NOTE
from duolog_server.store.queuenote import parse
from duolog_server.store.queues import EXT_ROOT, ROOTS, ConsumeQueues, new_queue
from duolog_server.store.queues import ROOT as QUEUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT: I64 = np.array([scan.PHY, scan.SIZE, scan.QUEUE_OFFSET, scan.TAGS_CODE])
_FOLDERS = (*ROOTS, EXT_ROOT, INDEX)
_HARMLESS = (scan.SCAN_END, scan.SCAN_BLANK)


@dataclass
class Rebuilt:
    """Result of a rebuild."""

    directory: str
    records: int
    queues: int
    queue_entries: int
    index_files: int
    damaged: bool  # the log has places without valid records


@dataclass(frozen=True)
class _Found:
    """The findings of a task in a piece."""

    path: str
    counts: dict[tuple[str, int], int]
    records: int
    sound: bool


def rebuild(
    spark: "SparkSession",
    directory: Path,
    options: StoreOptions | None = None,
    queue_file_bytes: int | None = None,
) -> Rebuilt:
    """Rebuild `consumequeue` and `index`.

    options: sizes; default: those of the existing files. queue_file_bytes: of queue files where
    none exists; default: that of the options. Raises BadJob if a running node holds the
    directory, it is not a store, its index has other sizes, or nothing tells how far queues reached
    whose records are deleted.
    """
    segments = segments_of(directory)
    disk = OsDisk(directory)
    try:
        disk.lock(LOCK)
    except StoreError as error:
        raise BadJob(f"{error}: stop the node first") from None
    try:
        _check_known(disk, segments[0].start)
        chosen = as_found(disk, options or StoreOptions(), options is not None)
        if queue_file_bytes is not None:
            chosen = dataclasses.replace(chosen, mapped_file_size_consume_queue=queue_file_bytes)
        chosen = segment_bytes(disk, chosen)
        if disk.list(EXT_ROOT) or chosen.enable_consume_queue_ext:
            chosen = dataclasses.replace(chosen, enable_consume_queue_ext=True)
        work = directory / REBUILDING
        work.mkdir(mode=0o700)
        try:
            made, roots = _make(spark, segments, directory, work, chosen)
            _take_place(directory, work, roots)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except StoreError as error:
        raise BadJob(f"{directory}: {error}") from None
    finally:
        disk.unlock()
    return made


def _check_known(disk: OsDisk, first: int) -> None:
    """Refuse to make queues that hide from the next start that the others are lost."""
    if not first or disk.list(QUEUES):
        return
    noted = parse(disk.read(NOTE)) if disk.size(NOTE) > 0 else None
    if max(noted[0].position if noted else -1, Snapshots.read(disk).ends.position) < first:
        raise BadJob(
            f"{disk.root}/{QUEUES} is lost, the log begins at {first}, and neither {NOTE} nor "
            f"{SNAPSHOT} says how far the queues reached there: restore {QUEUES}/, or a config/ "
            "that is not older than the log's first segment. To give their offsets again, start a "
            "node with store.queue_offsets_from_log_alone=true, which makes the queues itself"
        )


def _make(
    spark: "SparkSession",
    segments: list[Segment],
    directory: Path,
    work: Path,
    options: StoreOptions,
) -> tuple[Rebuilt, list[Path]]:
    """The result, and the folders with the new files."""
    found: list[_Found] = []
    roots: list[Path] = []
    sound = not options.enable_consume_queue_ext
    if sound:
        (work / "pieces").mkdir()
        parts = pieces(segments, piece_bytes(segments, spark.sparkContext.defaultParallelism))
        found = each(spark, _Entries(str(work), options), parts, "read the log")
        sound = all(one.sound for one in found) and _joined(found)
    records = sum(one.records for one in found)
    if sound:
        shards = _shards(found, max(1, spark.sparkContext.defaultParallelism))
        jobs: list[list[tuple[str, int]] | None] = [None, *shards]  # None: the index
        paths = [one.path for one in found]
        writer = _Files(str(work), paths, segments, options)
        outcome = each(spark, writer, jobs, "write queues and index")
        written = [one for one in outcome if one is not None]
        sound = len(written) == len(jobs)
        roots = [Path(one.root) for one in written]
        entries = sum(one.count for one in written[1:])
        queues = sum(len(shard) for shard in shards)
    if not sound:
        for leftover in work.iterdir():
            shutil.rmtree(leftover)
        whole = _Whole(str(directory), str(work), options)
        ((root, queues, entries),) = each(spark, whole, [0], "go through a damaged log")
        roots = [Path(root)]
    index_files = sum(len(list(root.glob(f"{INDEX}/*"))) for root in roots)
    made = Rebuilt(str(directory), records or entries, queues, entries, index_files, not sound)
    return made, roots


def _joined(found: list[_Found]) -> bool:
    """Whether the queues can be written: their names are valid directory names."""
    return all(is_directory_name(topic) and q >= 0 for one in found for topic, q in one.counts)


def _shards(found: list[_Found], count: int) -> list[list[tuple[str, int]]]:
    """Queues in groups with about the same number of entries."""
    totals: dict[tuple[str, int], int] = {}
    for one in found:
        for key, entries in one.counts.items():
            totals[key] = totals.get(key, 0) + entries
    shards: list[tuple[int, list[tuple[str, int]]]] = [(0, []) for _ in range(count)]
    for key in sorted(totals, key=lambda k: -totals[k]):
        shards.sort(key=lambda shard: shard[0])
        weight, keys = shards[0]
        shards[0] = (weight + totals[key], [*keys, key])
    return [keys for _, keys in shards if keys]


@dataclass(frozen=True)
class _Entries:
    """A task: a piece's entries by queue, into a file."""

    work: str
    options: StoreOptions

    def __call__(self, piece: Piece) -> _Found:
        memory = piece.segment.memory(piece.first, piece.end)
        delays = parse_delay_levels(self.options.message_delay_level)
        queues: dict[tuple[str, int], list[I64]] = {}
        records, sound = 0, True
        for step in walk(memory, piece, self.options.check_crc_on_recover, delays):
            if not isinstance(step, Stretch):
                open_end = step.following == len(memory) and not is_written(memory, step.position)
                sound = sound and (step.code in _HARMLESS or open_end)
                continue
            records += step.count
            for places in places_in(memory, step):
                for key, chosen in places:
                    queues.setdefault(key, []).append(places.rows[np.ix_(_KEPT, chosen)])
        arrays = {f"{q}/{topic}": np.concatenate(p, axis=1) for (topic, q), p in queues.items()}
        descriptor, path = tempfile.mkstemp(".npz", dir=Path(self.work) / "pieces")
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        counts = {key: sum(part.shape[1] for part in parts) for key, parts in queues.items()}
        return _Found(path, counts, records, sound)


@dataclass(frozen=True)
class _Written:
    """The folder of a task's files, and the number of entries or index files in it."""

    root: str
    count: int


@dataclass(frozen=True)
class _Files:
    """A task: the files of some queues, or the index; None if the log has gaps after all."""

    work: str
    pieces: list[str]
    segments: list[Segment]
    options: StoreOptions

    def __call__(self, keys: list[tuple[str, int]] | None) -> _Written | None:
        # Each attempt has its own folder and does not see the files of others.
        root = tempfile.mkdtemp(dir=self.work)
        disk = OsDisk(root)
        count = self._index(disk) if keys is None else self._queues(disk, keys)
        return None if count is None else _Written(root, count)

    def _index(self, disk: OsDisk) -> int:
        index = IndexService(disk, self.options)
        if self.options.message_index_enable:
            for memory, stretch in _stretches(self.segments):
                index.put(memory, stretch.rows, stretch.count)
            job = index.flush_all_job()
            if job is not None:
                job.run()
        return len(index.files)

    def _queues(self, disk: OsDisk, keys: list[tuple[str, int]]) -> int | None:
        entries = 0
        queues = {key: new_queue(OpenFiles(disk), key, self.options) for key in keys}
        for path in self.pieces:
            with np.load(path) as arrays:
                for (topic, queue_id), queue in queues.items():
                    name = f"{queue_id}/{topic}"
                    if name not in arrays:
                        continue
                    kept = arrays[name]
                    count = kept.shape[1]
                    rows: I64 = np.zeros((scan.COLUMNS, count), np.int64)
                    rows[_KEPT] = kept
                    order = np.arange(count, dtype=np.int64)
                    outcome = queue.put(rows, order, 0)
                    if outcome.refused or outcome.blanks:
                        return None
                    entries += count
        for queue in queues.values():
            queue.let_go()
            for mapped in queue.files.files:
                mapped.file.sync()
        return entries


def _stretches(segments: list[Segment]) -> Iterator[tuple[U8, Stretch]]:
    for segment in segments:
        memory = segment.memory(0, segment.size)
        for step in walk(memory, Piece(segment, 0, segment.size), False):
            if isinstance(step, Stretch):
                yield memory, step


@dataclass(frozen=True)
class _Whole:
    """A task: everything in log order, as in a recovery."""

    directory: str
    work: str
    options: StoreOptions

    def __call__(self, _: int) -> tuple[str, int, int]:
        root = tempfile.mkdtemp(dir=self.work)
        disk = OsDisk(root)
        log = CommitLog(OsDisk(self.directory, read_only=True), self.options)
        log.queue.load(writable=False)
        queues, index = ConsumeQueues(disk, self.options), IndexService(disk, self.options)
        delays = parse_delay_levels(self.options.message_delay_level)
        dispatcher = Dispatcher(
            log,
            queues,
            index,
            delays,
            self.options.message_index_enable,
            on_problem=_silent,
            reput_from=log.min_offset,
        )
        targets = DispatchTargets(queues, index if self.options.message_index_enable else None)
        while dispatcher.step(log.max_offset, self.options.check_crc_on_recover, targets):
            pass
        queues.sync()
        job = index.flush_all_job()
        if job is not None:
            job.run()
        entries = sum(queue.max_offset - queue.files.min_offset // ENTRY_BYTES for queue in queues)
        return root, len(queues.table), entries


def _silent(_: str) -> None:
    """Ignore problems: the audit reports them."""


def _take_place(directory: Path, work: Path, roots: list[Path]) -> None:
    """Replace the index, and queue by queue those of which the log has a record.

    Only their old files tell how far the others reached. If this is interrupted, a queue of the log
    or the index is missing, and the node rebuilds it at its start.
    """
    for name in _FOLDERS:
        sources = [root / name for root in roots if (root / name).is_dir()]
        if not sources and (name != INDEX or not (directory / name).is_dir()):
            continue
        target = directory / name
        target.mkdir(exist_ok=True, mode=0o700)
        # A folder may be a link to another file system: what takes place is renamed within that.
        other = target.stat().st_dev != work.stat().st_dev
        stage = Path(tempfile.mkdtemp(dir=_rebuilding(target) if other else work))
        (stage / "old").mkdir()
        if name == INDEX:
            for path in [p for p in target.iterdir() if p.name.isdecimal()]:
                path.rename(stage / "old" / path.name)
        depth = 1 if name == INDEX else 2  # TOPIC/QUEUE_ID
        for source in sources:
            for number, path in enumerate(sorted(source.glob("/".join("*" * depth)))):
                place, new = target / path.relative_to(source), path
                if other:
                    new = _copied(path, stage / f"new-{number}")
                place.parent.mkdir(exist_ok=True, mode=0o700)
                if place.exists():
                    old = stage / "old" / place.relative_to(target)
                    old.parent.mkdir(exist_ok=True)
                    place.rename(old)
                new.rename(place)
        if other:
            shutil.rmtree(stage.parent)
    disk = OsDisk(directory)
    for folder in sorted({p for name in _FOLDERS for p in _folders(directory, name)}):
        disk.sync_dir(folder)


def _rebuilding(folder: Path) -> Path:
    work = folder / REBUILDING_THERE
    work.mkdir(mode=0o700, exist_ok=True)
    return work


def _copied(source: Path, target: Path) -> Path:
    """Copy a file or the directory of a queue to another file system, durably."""
    if source.is_dir():
        target.mkdir(mode=0o700)
        for path in source.iterdir():
            _copied(path, target / path.name)
        return target
    with open(source, "rb") as read, open(target, "wb") as made:
        shutil.copyfileobj(read, made, 1 << 20)
        made.flush()
        os.fsync(made.fileno())
    return target


def _folders(directory: Path, name: str) -> Iterator[str]:
    root = directory / name
    if root.is_dir():
        yield ""
        yield name
        yield from (str(p.relative_to(directory)) for p in root.rglob("*") if p.is_dir())
