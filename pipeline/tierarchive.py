"""The folder that segments are tiered to: whose log it holds, and what is written into it.

```
OUT/topic=orders/day=2026-11-21/broker-a-00000000000000000000.parquet
OUT/_manifest/.lock                                  held while a job settles whose log it is
OUT/_manifest/broker-a/log                           whose log it is, settled by the first job
OUT/_manifest/broker-a/00000000000000000000.json     written last: the segment is tiered
OUT/_manifest/broker-a/00000000000000000000.lock     held by the job that writes the segment
```

Rules: a manifest is never replaced, and files that one names are never written again. Every file
is synced before its name appears.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duolog.spark._tier import LOG, MANIFEST, manifest_text, read_manifest
from duolog.spark._tierfile import TierDamaged, check_size

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.logidentity import LogIdentity
from duolog_server.pipeline.segments import Segment

STAGING = "_staging"
LOCK_SECONDS = 900.0  # longest time that another job may take for a segment
LOCK_PAUSE_SECONDS = 0.1
_GROUP = re.compile(r"[A-Za-z0-9%|_-][A-Za-z0-9%|._-]{0,126}")


class Archive:
    """The part of a folder that belongs to one replica group's log."""

    def __init__(self, out: Path, group: str) -> None:
        """Raises BadJob for a folder or a group's name that cannot be used."""
        if out.exists() and not out.is_dir():
            raise BadJob(f"{out} is not a directory")
        if not _GROUP.fullmatch(group):
            raise BadJob(f"--group {group!r} is not a valid name of a replica group")
        self.out = out
        self.group = group
        self._folder = out / MANIFEST / group

    def manifest_path(self, segment: str) -> Path:
        """The path of a segment's manifest."""
        return self._folder / f"{segment}.json"

    def manifest(self, segment: Segment) -> dict[str, Any] | None:
        """The manifest of a segment; None if it is not tiered. Raises BadJob for a damaged one."""
        path = self.manifest_path(segment.name)
        try:
            found = read_manifest(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise BadJob(
                f"{path} is not a valid manifest ({error}): remove it to tier the segment again"
            ) from None
        if "log" not in found:
            raise BadJob(
                f"{path} was written by a version that did not record whose log it is: "
                "remove it to tier the segment again"
            )
        if (found["start"], found["end"]) != (segment.start, segment.start + segment.size):
            raise BadJob(
                f"{path} covers [{found['start']}, {found['end']}) and {segment.path} "
                f"covers [{segment.start}, {segment.start + segment.size}): they belong "
                "to different logs"
            )
        for file in found["files"]:
            try:
                check_size(self.out / file["path"], file["bytes"])
            except TierDamaged as error:
                raise BadJob(str(error)) from None
        return found

    # -- whose log it is -----------------------------------------------------------------------

    def settle(self, identity: LogIdentity) -> None:
        """Claim this folder for the log.

        Raises BadJob if it belongs to another log, or has this one under another group: each
        message would be in it twice.
        """
        folders = self._folder.parent
        folders.mkdir(parents=True, exist_ok=True)
        with _settling(folders):  # of two jobs at once, one is first
            path = self._folder / LOG
            self._check_others(identity)
            known = _known(self._folder)
            if path.exists() or known != LogIdentity():
                self._check(known, identity)
            if path.exists():
                return
            self._folder.mkdir(exist_ok=True)
            staged = self._folder / f".{LOG}"
            staged.write_text(json.dumps(identity.to_json()))
            sync(staged)
            os.replace(staged, path)
            sync_folders(self._folder, self.out)

    def _check_others(self, identity: LogIdentity) -> None:
        for folder in sorted(self._folder.parent.iterdir()):
            if folder != self._folder and folder.is_dir() and _known(folder).meets(identity):
                raise BadJob(
                    f"{self.out} already holds this log under group {folder.name!r} ({identity}); "
                    f"under {self.group!r}, readers would get every message twice: use "
                    f"--group {folder.name}, or give another --out"
                )

    def _check(self, known: LogIdentity, identity: LogIdentity) -> None:
        where = known.differs(identity)
        if not where and not known.meets(identity):
            where = "everything: they have no epoch and no first record of a segment in common"
        if where:
            raise BadJob(
                f"{self.out} holds another log for group {self.group!r}: it has {known}, this "
                f"store has {identity} (they differ in {where}); give another --out or --group"
            )

    # -- writing -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self, segment: Segment) -> Iterator[Path]:
        """Hold the lock of a segment; gives an empty folder to write into.

        The lock is released when its process dies. Raises BadJob.
        """
        descriptor = os.open(self._folder / f"{segment.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, f"{segment.name}: another job has been writing it")
            staging = self.out / STAGING / f"{self.group}-{segment.name}"
            shutil.rmtree(staging, ignore_errors=True)  # of a job that died
            staging.mkdir(parents=True)
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
                with contextlib.suppress(OSError):  # others are at work
                    staging.parent.rmdir()
        finally:
            os.close(descriptor)

    def place(self, staged: Path, relative: Path) -> None:
        """Move a staged file to its name."""
        target = self.out / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        sync(staged)
        os.replace(staged, target)
        sync_folders(target.parent, self.out)

    def commit(self, staging: Path, segment: Segment, manifest: dict[str, Any]) -> None:
        """Write a segment's manifest: it is tiered."""
        staged = staging / "manifest.json"
        staged.write_text(manifest_text(manifest))
        self.place(staged, self.manifest_path(segment.name).relative_to(self.out))


def _known(folder: Path) -> LogIdentity:
    """The identity of the log that a group's folder is of, from its claim and its manifests."""
    found = LogIdentity()
    claim = folder / LOG
    for each in [*([claim] if claim.exists() else []), *sorted(folder.glob("*.json"))]:
        try:
            log = json.loads(each.read_text()) if each == claim else read_manifest(each)["log"]
            found = found.joined([LogIdentity.from_json(log)])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadJob(
                f"{each} does not say whose log it belongs to "
                f"({type(error).__name__}: {error}): restore it; or, if the node "
                "still has the segment, remove it and run again"
            ) from None
    return found


@contextlib.contextmanager
def _settling(folders: Path) -> Iterator[None]:
    """Hold the lock under which jobs settle whose log a folder holds. Raises BadJob."""
    descriptor = os.open(folders / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, f"{folders}: another job has been settling whose log it holds")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, held: str) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BadJob(
                    f"{held} for {LOCK_SECONDS:g} s; run again when that job has ended"
                ) from None
        time.sleep(LOCK_PAUSE_SECONDS)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(folder: Path, top: Path) -> None:
    """Make a name in a folder durable, with those of the folders up to `top`."""
    while folder != top:
        sync(folder)
        folder = folder.parent
    sync(top)
