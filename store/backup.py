"""A backup of a store: its log up to a confirmed offset, and the tables that belong to it.

| in the backup | content |
|---|---|
| `log/<20 digits>` | whole segments: copies, or links to the store's or to an earlier backup's |
| `tail` | the last segment's bytes up to the backup's end; always a copy |
| `tables/<20 digits>.json` | snapshots of the metadata tables, named by the last record in them |
| `epochs.json` | the epochs whose barriers retention may have deleted |
| `manifest.json` | offsets, and size and SHA-256 of every file; written last |

Rules: a file gets its name once it is whole and on disk, so the same call continues a killed
backup. A directory with a manifest is a whole backup and is never changed. Queues and index are
left out: a start builds them from the log. So is what makes a directory a known member of its group
(`config/replica.json`, `config/membership.jsonl`): a restored one counts once it has caught up. The
node keeps writing meanwhile: nothing changes below the confirm offset, retention deletes the oldest
segments first, and the newest are copied first.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from duolog_server.store.checkpoint import StoreCheckpoint
from duolog_server.store.copied import LOCK
from duolog_server.store.directories import LOG
from duolog_server.store.errors import BadBackup, StoreLocked
from duolog_server.store.kernels import scan
from duolog_server.store.kernels.jit import I64, U8
from duolog_server.store.mappedfilequeue import NAME_DIGITS
from duolog_server.store.metadatafiles import BACKUP, SNAPSHOT, NotASnapshot, Saved, decode
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from duolog_server.store.wholerecords import Whole, WholeRecords

FORMAT = 1
SEGMENTS = "log"
TAIL = "tail"
TABLES = "tables"
EPOCHS = "epochs.json"
MANIFEST = "manifest.json"
PART = ".part"
READ_BYTES = 1 << 20
LOST_FOUND = "lost+found"  # in the root of a file system
_NAMES = {LOST_FOUND, SEGMENTS, TAIL, TABLES, EPOCHS, MANIFEST + PART, TAIL + PART, EPOCHS + PART}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a whole backup holds: the log's bytes [start, end).

    confirmed: bytes below it are known to be confirmed to clients; of a running node, all are.
    store_time: of the newest record, ms. files: size and SHA-256, by path.
    """

    segment_bytes: int
    start: int
    end: int
    confirmed: int
    store_time: int
    files: dict[str, tuple[int, str]]

    @staticmethod
    def read(directory: Path) -> "Manifest":
        """Read the manifest of a whole backup. Raises BadBackup."""
        path = directory / MANIFEST
        try:
            value = json.loads(path.read_bytes())
            if value.pop("crc32") != _crc(value):
                raise ValueError("its checksum does not match")
            if (found := value.pop("format")) != FORMAT:
                raise ValueError(f"it has format {found}, this version reads {FORMAT}")
            value["files"] = {name: (int(b), str(h)) for name, (b, h) in value["files"].items()}
            return Manifest(**value)
        except FileNotFoundError:
            raise BadBackup(
                str(directory), f"no whole backup: it has no {MANIFEST}; repeat the backup"
            ) from None
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise BadBackup(str(path), f"cannot be read: {error}") from None

    def write(self, directory: Path) -> None:
        """Write it durably; the files that it names are on disk already."""
        value = {"format": FORMAT, **asdict(self)}
        text = json.dumps({**value, "crc32": _crc(value)}, indent=1).encode()
        with _named(directory / MANIFEST) as part:
            part.write_bytes(text)

    def segments(self) -> Iterator[tuple[int, str, int]]:
        """The files of the log in order: the offset where each begins, its path, its bytes."""
        for start in range(self.start, self.end, self.segment_bytes):
            size = min(self.segment_bytes, self.end - start)
            yield start, path_of(start) if size == self.segment_bytes else TAIL, size

    def tables(self) -> list[str]:
        """Paths of the snapshots of the tables, oldest first."""
        return sorted(name for name in self.files if name.startswith(f"{TABLES}/"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a backup is made.

    confirmed: asks the node that has the store open for its confirm offset; None: the node is
    stopped. base: an earlier backup, whose whole segments are linked. link: also link the store's.
    """

    confirmed: Callable[[], int] | None = None
    base: Path | None = None
    link: bool = False


def path_of(start: int) -> str:
    """Path of a whole segment in a backup."""
    return f"{SEGMENTS}/{start:0{NAME_DIGITS}d}"


@contextlib.contextmanager
def held(directory: Path) -> Iterator[bool]:
    """Keep nodes from starting with a store; False where one has it open. Raises OSError.

    Backups share the lock, and it needs no file system that can be written.
    """
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keep a second command from a directory. Raises StoreLocked."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StoreLocked(str(directory)) from None
    finally:
        os.close(descriptor)


def backup(store: Path, target: Path, wanted: Wanted) -> Manifest:
    """Make a backup of a store, or continue one. Raises StoreError, OSError, and what `confirmed`
    raises.
    """
    if target.resolve().is_relative_to(store.resolve()):
        raise BadBackup(str(target), "lies within the store: name a directory elsewhere")
    for directory in (target, target / SEGMENTS, target / TABLES):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone(target):
        if (target / MANIFEST).exists():
            end = Manifest.read(target).end
            raise BadBackup(
                str(target), f"is a whole backup up to {end} already: name another directory"
            )
        if strange := sorted(path.name for path in target.iterdir() if path.name not in _NAMES):
            raise BadBackup(str(target), f"has other files ({strange[0]}): name a new directory")
        return _Making(store, target, wanted).run()


class _Making:
    """One call of `backup`."""

    def __init__(self, store: Path, target: Path, wanted: Wanted) -> None:
        self._store, self._target, self._wanted = store, target, wanted
        self._log = store / LOG
        self._base = Manifest.read(wanted.base) if wanted.base is not None else None
        self._files: dict[str, tuple[int, str]] = {}
        self._segment_bytes = 0

    def run(self) -> Manifest:
        # First the tables: the offset that is asked for afterwards confirms all that they hold.
        tables, data = self._newest_tables()
        confirmed = self._wanted.confirmed() if self._wanted.confirmed is not None else None
        known = _known_confirmed(self._store) if confirmed is None else confirmed
        starts = self._starts()
        end = self._take_tail(starts, confirmed)
        if end < known:
            raise BadBackup(
                str(self._log),
                f"has valid records up to {end} only, and its node knew all up to {known} to be "
                "confirmed: back up another node of the group",
            )
        self._check_base(end)
        start = self._take_segments([at for at in starts if at + self._segment_bytes <= end], end)
        if start == end:
            raise BadBackup(str(self._log), "has no record to back up")
        self._take_tables(tables, data, start, end)
        made = Manifest(self._segment_bytes, start, end, known, 0, self._files)
        *_, (last, name, _) = made.segments()
        newest = records_in(self._target / name, last, self._segment_bytes)
        for name in (SEGMENTS, TABLES, ""):
            synced(self._target / name)
        made = replace(made, store_time=newest.store_time)
        made.write(self._target)
        return made

    def _starts(self) -> list[int]:
        """Where the store's segments begin. Raises BadBackup."""
        found = sorted(int(path.name) for path in self._log.iterdir() if path.name.isdecimal())
        size = (self._log / _name(found[-1])).stat().st_size if found else 0
        if not size:
            raise BadBackup(str(self._log), "has no record to back up")
        if missing := sorted({*range(found[0], found[-1], size)} - {*found}):
            raise BadBackup(
                str(self._log), f"lacks segment {missing[0]}: back up another node of the group"
            )
        if self._base is not None and self._base.segment_bytes != size:
            raise BadBackup(str(self._wanted.base), f"has no segments of {size} bytes")
        self._segment_bytes = size
        return found

    # -- the tables ----------------------------------------------------------------------------

    def _newest_tables(self) -> tuple[Saved, bytes]:
        """The newest snapshot of the tables, and its bytes. Raises BadBackup."""
        found, wrong = list[tuple[Saved, bytes]](), list[str]()
        for path in (SNAPSHOT, BACKUP):
            try:
                data = (self._store / path).read_bytes()
                found.append((decode(path, data), data))
            except (OSError, NotASnapshot) as error:
                wrong.append(f"{path}: {error}")
        if not found:
            raise BadBackup(
                str(self._store), f"has no tables ({'; '.join(wrong)}): start its node once"
            )
        return max(found, key=lambda one: one[0].tables.applied)

    def _take_tables(self, newest: Saved, data: bytes, start: int, end: int) -> None:
        """Take the newest snapshot, and those of earlier times that the log continues.

        Those are the base's, and what an interrupted attempt has left.
        """
        # Its last record is in the log no more, or not yet, where a slave got it from its master.
        place = newest.place if newest.place >= 0 or not newest.tables.applied else end
        name = f"{TABLES}/{max(place, 0):0{NAME_DIGITS}d}.json"
        with _named(self._target / name) as part:
            part.write_bytes(data)
        for earlier in self._base.tables() if self._base is not None else ():
            assert self._wanted.base is not None, "it has a manifest"
            if not (self._target / earlier).exists():
                self._link(self._wanted.base / earlier, self._target / earlier)
        for path in sorted((self._target / TABLES).glob("*.json")):
            if path == self._target / name or start <= int(path.stem) < end:
                self._note(f"{TABLES}/{path.name}")
            else:
                path.unlink()
        epochs = self._store / "config" / EPOCHS
        if epochs.exists():
            with _named(self._target / EPOCHS) as part:
                part.write_bytes(epochs.read_bytes())
            self._note(EPOCHS)

    # -- the log -------------------------------------------------------------------------------

    def _take_tail(self, starts: list[int], confirmed: int | None) -> int:
        """Copy the last segment's bytes up to the backup's end; that end."""
        (self._target / TAIL).unlink(missing_ok=True)
        if confirmed is None:
            last, end = self._stopped_at(starts)
        elif starts[0] < confirmed <= starts[-1] + self._segment_bytes:
            last, end = confirmed - confirmed % self._segment_bytes, confirmed
        else:
            raise BadBackup(
                str(self._store),
                f"has no log up to {confirmed}, which the node confirms: name the node of this "
                "directory with --endpoints, or repeat",
            )
        if last < end < last + self._segment_bytes:
            source = self._log / _name(last)
            with _named(self._target / TAIL) as part:
                copy(source, part, end - last)
                self._check(part, source, last, end - last)
            self._note(TAIL)
        return end

    def _stopped_at(self, starts: list[int]) -> tuple[int, int]:
        """The last segment of a stopped node's log with a record, and where that ends."""
        for start in reversed(starts):
            whole = records_in(self._log / _name(start), start, self._segment_bytes)
            if whole.size or start == starts[0]:
                break  # otherwise it was allocated ahead
        return start, start + whole.size

    def _take_segments(self, starts: list[int], end: int) -> int:
        """Take whole segments, the newest first; the offset where the backup begins."""
        first = end - end % self._segment_bytes
        begun = self._begun()
        if whole := [start for start in begun if start < first]:
            newest = max(whole)
            self._check_same(self._target / path_of(newest), newest, end)
        for start in sorted({*starts, *begun}, reverse=True):
            if start == first - self._segment_bytes and self._take_segment(start):
                first = start
            # else retention has deleted it meanwhile, and all before it
        for start in begun:
            if not first <= start < end:
                (self._target / path_of(start)).unlink()
        return first

    def _begun(self) -> list[int]:
        """Segments that are whole in the backup, by their names."""
        names = (path.name for path in (self._target / SEGMENTS).iterdir())
        return [int(name) for name in names if name.isdecimal()]

    def _take_segment(self, start: int) -> bool:
        """Take a whole segment; False where there is none any more."""
        name, source = path_of(start), self._log / _name(start)
        target = self._target / name
        known = self._base.files.get(name) if self._base is not None else None
        earlier = self._wanted.base / name if self._wanted.base is not None else None
        try:
            if target.exists():
                self._note(name)  # of an attempt before this one
            elif known is not None and earlier is not None and earlier.exists():
                self._link(earlier, target)
                self._files[name] = known
            else:
                with _named(target) as part:
                    if not (self._wanted.link and _linked(source, part)):
                        copy(source, part, self._segment_bytes)
                    self._check(part, source, start, self._segment_bytes)
                self._note(name)
        except FileNotFoundError:
            return False
        return True

    def _check(self, path: Path, source: Path, start: int, size: int) -> None:
        whole = records_in(path, start, self._segment_bytes)
        if whole.size != size:
            raise no_record(source, start, whole)

    def _check_base(self, end: int) -> None:
        """Refuse an earlier backup of another log.

        Logs with a common beginning, as a restored directory's, may part within a segment, and
        never meet again: the last bytes that both have are the same, or the logs are not.
        """
        if self._base is None or self._wanted.base is None:
            return
        both = min(self._base.end, end)
        for start, name, size in self._base.segments():
            if start < both <= start + size:
                self._check_same(self._wanted.base / name, start, both)
                return
        raise BadBackup(str(self._wanted.base), f"begins after the log of {self._store} ends")

    def _check_same(self, path: Path, start: int, end: int) -> None:
        """Refuse to mix logs: compare the records of a segment below an offset with the store's.

        What retention has deleted cannot be compared. What follows the blank record of a segment is
        not written, and may differ from replica to replica.
        """
        last = start

        def seen(_: U8, rows: I64) -> None:
            nonlocal last
            last = int(rows[scan.PHY, -1] + rows[scan.SIZE, -1])

        try:
            other = (self._log / _name(start)).open("rb")
        except FileNotFoundError:
            return
        with other, path.open("rb") as one:
            records_in(path, start, self._segment_bytes, seen)
            size = min(last, end) - start
            for done in range(0, size, READ_BYTES):
                count = min(READ_BYTES, size - done)
                if one.read(count) != other.read(count):
                    raise BadBackup(str(path), f"is of another log than {self._store}")

    def _link(self, source: Path, target: Path) -> None:
        with _named(target) as part:
            if not _linked(source, part):
                copy(source, part, source.stat().st_size)

    def _note(self, name: str) -> None:
        path = self._target / name
        self._files[name] = (path.stat().st_size, digest(path))


def verify(directory: Path) -> Manifest:
    """Compare all files of a backup with its manifest, and check all records. Raises BadBackup."""
    found = Manifest.read(directory)
    for name in found.files:
        check_file(directory, name, found)
    for start, name, size in found.segments():
        whole = records_in(directory / name, start, found.segment_bytes)
        if whole.size != size:
            raise no_record(directory / name, start, whole)
    for name in found.tables():
        decoded(directory / name)
    return found


def check_file(directory: Path, name: str, manifest: Manifest, copied: Path | None = None) -> None:
    """Compare a file (or a copy of it) with the manifest. Raises BadBackup."""
    path = copied or directory / name
    try:
        found = path.stat().st_size, digest(path)
    except OSError as error:
        raise BadBackup(str(path), error.strerror or str(error)) from None
    if found != manifest.files.get(name):
        raise BadBackup(str(directory / name), "is damaged: it differs from the manifest")


def decoded(path: Path) -> Saved:
    """A snapshot of the tables. Raises BadBackup."""
    try:
        return decode(str(path), path.read_bytes())
    except NotASnapshot as error:
        raise BadBackup(str(path), str(error)) from None


def records_in(
    path: Path,
    start: int,
    segment_bytes: int,
    seen: Callable[[U8, I64], None] = lambda data, rows: None,
) -> Whole:
    """The whole records at the beginning of a file with a segment's bytes.

    seen: called with all bytes and with tables of the records, see `WholeRecords.find`.
    """
    options = replace(StoreOptions(), mapped_file_size_commit_log=segment_bytes)
    data = np.memmap(path, np.uint8, "r")
    return WholeRecords(options).find(start, data, lambda rows: seen(data, rows))


def first_after(directory: Path, manifest: Manifest, time_ms: int) -> int:
    """Log offset of the first record stored after a time; the end where there is none.

    Every record before it is checked. Raises BadBackup.
    """
    later: list[int] = []

    def seen(_: U8, rows: I64) -> None:
        found = np.flatnonzero(rows[scan.STORE_TIME] > time_ms)
        if len(found) and not later:
            later.append(int(rows[scan.PHY, found[0]]))

    for start, name, size in manifest.segments():
        whole = records_in(directory / name, start, manifest.segment_bytes, seen)
        if later:
            return later[0]
        if whole.size != size:
            raise no_record(directory / name, start, whole)
    return manifest.end


def copy(source: Path, target: Path, size: int) -> None:
    """Copy the first bytes of a file. Raises OSError, BadBackup if there are fewer."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with (
        _blamed(source, target),
        source.open("rb") as read,
        open(os.open(target, flags, 0o600), "wb") as written,
    ):
        done = 0
        while done < size:
            count = os.sendfile(written.fileno(), read.fileno(), done, size - done)
            if not count:
                raise BadBackup(str(source), f"has {done} bytes, expected {size}")
            done += count


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def synced(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with _blamed(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _blamed(path: Path, target: Path | None = None) -> Iterator[None]:
    """Have errors of open files name the file, or source and target of a copy."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
            if target is not None:
                error.filename2 = str(target)
        raise


@contextlib.contextmanager
def _named(path: Path) -> Iterator[Path]:
    """Give a file its name once it is whole and on disk."""
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)  # perhaps a link to a file of the store
    with _blamed(part):
        yield part
    synced(part)
    part.replace(path)


def _linked(source: Path, target: Path) -> bool:
    """Link a file; False where it lies on another file system. Raises FileNotFoundError."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _known_confirmed(store: Path) -> int:
    """What a stopped node knew to be confirmed."""
    checkpoint = StoreCheckpoint(OsDisk(store, read_only=True))
    checkpoint.load(writable=False)
    known = max(checkpoint.confirm_phy_offset, checkpoint.note.confirmed)
    checkpoint.close()
    return known


def _name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def no_record(path: Path, start: int, whole: Whole) -> BadBackup:
    """The error for a file that holds no record where one must begin."""
    why = whole.wrong.reason if whole.wrong is not None else "the log ends here"
    return BadBackup(
        str(path),
        f"no valid record at {start + whole.size} ({why}): back up another node of the group, or "
        "stop this one and run duolog store recover",
    )


def _crc(value: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())
