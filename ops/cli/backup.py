"""`duolog store backup`, `verify`, `restore`: copies of stores, also of running nodes."""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import asked, calls, prints
from duolog_server.ops.cli.store import Directory, app, guarded
from duolog_server.ops.inspection.times import BadTime, iso, time_of

if TYPE_CHECKING:
    from duolog_server.store.backup import Manifest

Backup = typer.Argument(help="Directory of the backup.", metavar="BACKUP")


@calls(app, timeout=10.0)
def backup(
    directory: Annotated[Path, Directory],
    target: Annotated[Path, Backup],
    base: Annotated[
        Path | None, typer.Option(help="An earlier backup: its whole segments are linked.")
    ] = None,
    link: Annotated[
        bool,
        typer.Option("--link", help="Link the store's whole segments where the disk is the same."),
    ] = False,
) -> None:
    """Back up a store up to its confirm offset, beside its running node or while that is stopped.

    A running node is asked at --endpoints. Repeat the command to continue a killed backup.
    """
    from duolog_server.store import backup as backups

    def make() -> "Manifest":
        with backups.held(directory) as stopped:
            confirmed = None if stopped else _confirmed_by(directory)
            return backups.backup(directory, target, backups.Wanted(confirmed, base, link))

    output.print_facts(_facts(guarded(make, "duolog store backup DIR BACKUP")))


def _confirmed_by(directory: Path) -> Callable[[], int]:
    """Ask the node that has a directory open for its confirm offset."""
    from duolog._machine import place_of

    def ask() -> int:
        status = asked(lambda client: client.admin.node_status())
        here = place_of(str(directory.resolve()))
        if replace(status.store, path=here.path) != here:  # a container may have it elsewhere
            output.fail(
                f"{directory} is not the store of the node at {status.listen}, which is "
                f"{status.data} of its machine",
                "--endpoints HOST:PORT of the node that has this directory open",
            )
        return status.confirm_offset

    return ask


@prints(app)
def verify(target: Annotated[Path, Backup]) -> None:
    """Compare a backup with its manifest, and check every record in it.

    Exit status 1 if it is damaged.
    """
    from duolog_server.store import backup as backups

    output.print_facts(_facts(guarded(lambda: backups.verify(target), "duolog store backup")))


@prints(app)
def restore(
    target: Annotated[Path, Backup],
    directory: Annotated[Path, typer.Argument(help="Empty directory.", metavar="DIR")],
    until: Annotated[
        str, typer.Option(help="Leave out what was stored after that time: 10m, 2h, ISO or ms.")
    ] = "",
) -> None:
    """Restore a backup into an empty directory, for a node that was never started.

    The node is a new member of its group: see docs/backup.md before others are started.
    """
    from duolog_server.ha import identity
    from duolog_server.store.clocks import WallMs
    from duolog_server.store.restore import restore as restore_store

    try:
        until_ms = time_of(until) if until else None
    except BadTime as error:
        output.fail(str(error), output.help_of())
    now = WallMs(time.time_ns() // 1_000_000)
    made = guarded(
        lambda: restore_store(
            target,
            directory,
            until_ms,
            now,
            lambda disk: identity.restored(disk, secrets.randbits(64)),
        ),
        "duolog store verify BACKUP",
    )
    output.print_facts(
        {"min_offset": made.start, "max_offset": made.end, "left_out_bytes": made.left_out}
    )


def _facts(found: "Manifest") -> dict[str, object]:
    return {
        "min_offset": found.start,
        "max_offset": found.end,
        "confirmed_offset": found.confirmed,
        "newest_message": iso(found.store_time),
        "files": len(found.files),
        "bytes": sum(size for size, _ in found.files.values()),
    }
