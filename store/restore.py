"""Restores a backup into an empty directory, whole or up to a time.

Rules: the backup is never changed; the directory's files get their names last. A node that is
started before the end is refused, and a directory that a node has open is not restored into. The
result is no known member of a group: what other nodes have is never cut to it.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from duolog_server.store.backup import (
    EPOCHS,
    LOST_FOUND,
    PART,
    Manifest,
    alone,
    check_file,
    copy,
    decoded,
    first_after,
    held,
    records_in,
    synced,
)
from duolog_server.store.checkpoint import PATH as CHECKPOINT
from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.clocks import WallMs
from duolog_server.store.copied import LOCK, RESTORING
from duolog_server.store.directories import LOG
from duolog_server.store.disk import Disk
from duolog_server.store.errors import BadBackup, StoreLocked
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.mappedfilequeue import NAME_DIGITS
from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata
from duolog_server.store.metadatafiles import MetadataFiles, Saved
from duolog_server.store.osdisk import STAGING, OsDisk

CONFIG = "config"
_PARTS = (CHECKPOINT, LOG, CONFIG)  # in the order in which they get their names
_REFUSED = (LOCK, STAGING)  # what a start that was refused leaves


@dataclass(frozen=True, slots=True)
class Restored:
    """The log's bytes [start, end) that a restored directory has; left_out: bytes after that."""

    start: int
    end: int
    left_out: int


def restore(
    backup: Path,
    target: Path,
    until_ms: int | None,
    wall_ms: WallMs,
    identify: Callable[[Disk], None] = lambda disk: None,
) -> Restored:
    """Restore a backup, or continue to. until_ms: without what was stored after that time.

    identify: makes the directory a replica of its own. Raises StoreError, OSError.
    """
    manifest = Manifest.read(backup)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    work = target / RESTORING
    with alone(target), _begun(target, work):
        end = manifest.end if until_ms is None else first_after(backup, manifest, until_ms)
        if end == manifest.start:
            raise BadBackup(str(backup), "begins after that time: use an earlier backup")
        tables = _tables(backup, manifest, end)
        _put_log(backup, manifest, work / LOG, end)
        _put_config(backup, manifest, work, tables, wall_ms)
        identify(OsDisk(work))
        _put_checkpoint(work, min(manifest.confirmed, end))
        for name in _PARTS:
            if (target / name).is_dir():  # of a restore that was killed here
                shutil.rmtree(target / name)
            (work / name).replace(target / name)
            synced(target)
        shutil.rmtree(work)
    return Restored(manifest.start, end, manifest.end - end)


@contextlib.contextmanager
def _begun(target: Path, work: Path) -> Iterator[None]:
    """Mark a directory as being restored into. Raises BadBackup, StoreLocked."""
    is_new = not work.exists()
    known = {LOST_FOUND, *_REFUSED, *(() if is_new else (RESTORING, *_PARTS))}
    if any(path.name not in known for path in target.iterdir()):
        raise BadBackup(str(target), "is not empty: restore into an empty directory")
    work.mkdir(mode=0o700, exist_ok=True)  # from here on a node that starts there is refused
    with held(target) as is_free:
        if not is_free:  # one has started just before
            if is_new:
                work.rmdir()
            raise StoreLocked(str(target))
        yield


def _tables(backup: Path, manifest: Manifest, end: int) -> Saved | None:
    """The newest snapshot of the tables that holds nothing after an offset; None: all are in the
    log. Raises BadBackup where neither is so.
    """
    found = manifest.tables()
    fitting = [name for name in found if end == manifest.end or int(Path(name).stem) < end]
    for name in found:
        check_file(backup, name, manifest)
    if fitting:  # one whose last record the log lacked is named by the backup's end
        snapshots = (decoded(backup / name) for name in fitting)
        return max(snapshots, key=lambda one: one.tables.applied)
    if manifest.start == 0 and _log_has_all(backup, manifest, end):
        return None
    raise BadBackup(
        str(backup),
        "has no tables (topics, groups, offsets) from before that time, and its log does not have "
        "all their changes: name a later time, or restore an earlier backup, whose next one was "
        "made with --base",
    )


def _log_has_all(backup: Path, manifest: Manifest, end: int) -> bool:
    """Whether the log's first changes of the tables say that they began empty."""
    tables, topic, found = Metadata(), SYSTEM_TOPIC.encode(), list[bool]()

    def seen(data: U8, rows: I64) -> None:
        for row in rows[:, rows[scan.TOPIC_BYTES] == len(topic)].T if not found else ():
            at, body = row[scan.TOPIC_AT], row[scan.BODY_AT]
            if data[at : at + len(topic)].tobytes() == topic and not tables.complete:
                first = not tables.changes
                tables.apply(data[body : body + row[scan.BODY_BYTES]].tobytes())
                if tables.complete:
                    found.append(first or bool(row[scan.PHY] < end))

    for start, name, _ in manifest.segments():
        records_in(backup / name, start, manifest.segment_bytes, seen)
        if found:
            return found[0]
    return False


def _put_log(backup: Path, manifest: Manifest, log: Path, end: int) -> None:
    """Copy the segments up to an offset, and compare each with the manifest."""
    log.mkdir(mode=0o700, exist_ok=True)
    kept = set[str]()
    for start, name, size in manifest.segments():
        if start >= end:
            break
        path = log / f"{start:0{NAME_DIGITS}d}"
        kept.add(path.name)
        if (
            path.exists()
            and size == manifest.segment_bytes
            and _is_whole(backup, name, manifest, path)
        ):
            continue
        part = path.with_name(path.name + PART)
        copy(backup / name, part, size)
        check_file(backup, name, manifest, part)
        os.truncate(part, min(size, end - start))
        os.truncate(part, manifest.segment_bytes)
        synced(part)
        part.replace(path)
    for path in log.iterdir():
        if path.name not in kept:
            path.unlink()  # of an attempt up to a later time
    synced(log)


def _is_whole(backup: Path, name: str, manifest: Manifest, path: Path) -> bool:
    try:
        check_file(backup, name, manifest, path)
    except BadBackup:
        return False
    return True


def _put_config(
    backup: Path, manifest: Manifest, work: Path, tables: Saved | None, wall_ms: WallMs
) -> None:
    """Write the tables as snapshots and in RocketMQ's files; the epochs."""
    config = work / CONFIG
    shutil.rmtree(config, ignore_errors=True)
    config.mkdir(mode=0o700)
    if tables is not None:
        files = MetadataFiles(OsDisk(work))
        files.write(tables.tables.snapshot(), tables.place, wall_ms, tables.ends)
    if EPOCHS in manifest.files:
        copy(backup / EPOCHS, config / EPOCHS, manifest.files[EPOCHS][0])
        check_file(backup, EPOCHS, manifest, config / EPOCHS)
        synced(config / EPOCHS)
    synced(config)


def _put_checkpoint(work: Path, confirmed: int) -> None:
    """Note what is confirmed: a master that has less does not have the directory truncated."""
    (work / CHECKPOINT).unlink(missing_ok=True)
    checkpoint = StoreCheckpoint(OsDisk(work))
    checkpoint.load()
    checkpoint.confirm_phy_offset = confirmed
    checkpoint.flush(needed=True)
    checkpoint.close()
