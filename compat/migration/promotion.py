"""Waiting for a promotion: a node that has loaded its program continues within a moment of it.

Rules: the word PROMOTED comes first, then the end of the cut-over, which releases the directory. A
cut-over whose process was killed leaves the word CUTTING and nobody who uses the directory: it is
ended here, if the wait has seen it begin: until then the broker refuses messages, and nobody but an
operator would try again. What an earlier one has left is reported and not touched, nor what joined
another copy's or is being aborted.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.copying import CannotFollow
from duolog_server.compat.migration.cutover import CutoverFailed, Patience
from duolog_server.compat.migration.program import CutoverStopped, Source, WrongSource, cut_over
from duolog_server.compat.migration.state import UNENDED, Following, State
from duolog_server.compat.remoting.calling import Access, CallRefused
from duolog_server.node.runtime.config import Config
from duolog_server.store.copied import LOCK
from duolog_server.store.errors import StoreError, StoreLocked
from duolog_server.store.osdisk import OsDisk

log = structlog.get_logger("duolog.following")

LOOK_SECONDS = 0.02


def wait_promoted(
    directory: Path,
    group: str,
    seconds: float,
    finish: Callable[[Following], None] | None = None,
) -> None:
    """Return once a directory is promoted, and no other process uses it.

    group: of the node that waits; one of another name than the broker's does not wait, as it would
    be refused then. seconds: the longest wait. finish: called to end a cut-over that was killed,
    with what it has left; whether that went well is seen in the directory. Raises TimeoutError,
    StoreError, OSError, and what `finish` raises.
    """
    disk, until = OsDisk(directory), time.monotonic() + seconds
    before = _written(directory)
    log.info("waiting for a cut-over", seconds=seconds)
    _tell_unended(_known(disk, directory, group), disk)
    while True:
        written = _written(directory)  # before what was written is read
        if _is_promoted(following := _known(disk, directory, group), disk):
            return
        left = following if written != before else None
        if finish is not None and left is not None and _is_left(left) and _is_free(disk):
            finish(left)
            before = _written(directory)  # once for each attempt of an operator
            continue
        if time.monotonic() >= until:
            raise TimeoutError(_late(directory, seconds, following))
        time.sleep(LOOK_SECONDS)


def _tell_unended(following: Following | None, disk: OsDisk) -> None:
    """An operator may have given it up, and had the broker store messages by hand."""
    if _is_cutting(following) and _is_free(disk):
        log.warning("a cut-over before this wait did not end", reason=UNENDED)


def _late(directory: Path, seconds: float, following: Following | None) -> str:
    late = f"{directory} was not promoted within {seconds:g} s"
    return f"{late}: {UNENDED}" if _is_cutting(following) else late


def _is_cutting(following: Following | None) -> bool:
    return following is not None and following.state is State.CUTTING


def _known(disk: OsDisk, directory: Path, group: str) -> Following | None:
    following = states.load(disk)
    if following is not None:
        states.check_named(disk, str(directory), following, group)
    return following


def _written(directory: Path) -> tuple[int, int]:
    """Which writing of the file this is: every command begins with one."""
    try:
        found = (directory / states.PATH).stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _is_promoted(following: Following | None, disk: OsDisk) -> bool:
    return following is not None and following.state is State.PROMOTED and _is_free(disk)


def _is_left(following: Following) -> bool:
    """Whether a cut-over that runs, or a killed one that changed the broker, wrote it."""
    is_cutting = following.state is State.CUTTING and bool(following.saved)
    return is_cutting and not following.reason


def _is_free(disk: OsDisk) -> bool:
    try:
        disk.lock(LOCK)
    except StoreLocked:
        return False
    disk.unlock()
    return True


_FAILURES = (
    CutoverFailed,
    CannotFollow,
    WrongSource,
    StoreError,
    CallRefused,
    OSError,
    TimeoutError,
)


def finish(config: Config, access: Access, left: Following) -> None:
    """Cut over again, unless the directory says something else by now than what was left.

    What keeps it from that is logged; raises CutoverStopped or PromotedAndStopped after a signal.
    """
    log.warning("a cut-over did not end: it is tried again here")
    source, patience = Source(access=access, left=left), Patience()
    try:
        asyncio.run(
            cut_over(
                config,
                source,
                lambda text: log.info("a step of a cut-over is done", step=text),
                patience,
            )
        )
    except CutoverStopped:
        raise
    except _FAILURES as error:
        log.error("a cut-over was not ended", reason=str(error) or type(error).__name__)
