"""`duolog store`: inspect a store directory, offline. Of these, only `recover` changes anything."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import prints
from duolog_server.ops.inspection.times import iso

if TYPE_CHECKING:
    from duolog_server.store.options import StoreOptions
    from duolog_server.store.osdisk import OsDisk

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")

Slots = Annotated[
    int | None, typer.Option(help="Hash slots per index file; default: as its files have them.")
]
Entries = Annotated[
    int | None, typer.Option(help="Entries per index file; default: as its files have them.")
]
Directory = typer.Argument(help="Store directory.", metavar="DIR")


def index_options(slots: int | None, entries: int | None) -> "StoreOptions":
    """Options with the sizes of an index that a command names, if any."""
    from duolog_server.store.options import StoreOptions

    default = StoreOptions()
    try:
        return StoreOptions(
            max_hash_slot_num=default.max_hash_slot_num if slots is None else slots,
            max_index_num=default.max_index_num if entries is None else entries,
        )
    except ValueError as error:
        output.fail(str(error), output.help_of())


def _open(
    directory: Path, slots: int | None = None, entries: int | None = None
) -> "tuple[OsDisk, StoreOptions]":
    from duolog_server.store.errors import StoreError
    from duolog_server.store.osdisk import OsDisk

    options = index_options(slots, entries)
    try:
        disk = OsDisk(directory, read_only=True)
    except StoreError as error:
        output.fail(str(error), output.help_of())
    if disk.size("commitlog") < 0 and not any(
        disk.size(name) >= 0 for name in ("checkpoint", "consumequeue", "abort")
    ):
        output.fail(
            f"{directory} is not a store directory: it has no commitlog",
            "duolog node start --data DIR",
        )
    return disk, options


def guarded(work: Callable[[], T], hint: str = "duolog store check DIR") -> T:
    """What some work on a directory returns; its error ends the command. hint: what to try."""
    from duolog_server.store.disk import no_room
    from duolog_server.store.errors import StoreError

    try:
        return work()
    except StoreError as error:
        output.fail(str(error), hint)
    except OSError as error:
        output.fail(str(error), "make room, and repeat the command" if no_room(error) else hint)


@prints(app)
def dump(
    directory: Annotated[Path, Directory],
    query: Annotated[
        list[str] | None, typer.Option(help="TOPIC#KEY to look up (repeatable).")
    ] = None,
    index_slots: Slots = None,
    index_entries: Entries = None,
) -> None:
    """Print ranges, queue entries and key queries; changes nothing in the directory."""
    from duolog_server.store.dump import dump as dump_store

    queries = []
    for text in query or []:
        topic, separator, key = text.partition("#")
        if not separator or not topic or not key:
            output.fail(
                f"--query {text!r} is not TOPIC#KEY", "duolog store dump DIR --query TOPIC#KEY"
            )
        queries.append((topic, key))
    disk, options = _open(directory, index_slots, index_entries)
    found = guarded(lambda: dump_store(disk, options, queries))
    if output.wants_json():
        output.print_json(found)
        return
    rows = [
        {
            "queue": name,
            "min": queue["min"],
            "max": queue["max"],
            "first_offset": queue["entries"][0][0] if queue["entries"] else None,
            "last_offset": queue["entries"][-1][0] if queue["entries"] else None,
        }
        for name, queue in found["queues"].items()
    ]
    output.say(f"commit log [{found['min_phy']}, {found['max_phy']})")
    output.print_rows(rows, ["queue", "min", "max", "first_offset", "last_offset"], False)
    for answer in found["queries"]:
        print(f"{answer['topic']}#{answer['key']}\t{' '.join(map(str, answer['phy']))}")


@prints(app)
def check(
    directory: Annotated[Path, Directory],
    index_slots: Slots = None,
    index_entries: Entries = None,
) -> None:
    """Verify every record and compare queues with the log. Exit status 2 if anything is wrong."""
    from duolog_server.store.dump import check as check_store

    disk, options = _open(directory, index_slots, index_entries)
    found = guarded(lambda: check_store(disk, options))
    output.print_facts(found)
    if found["problems"]:
        if not output.wants_json():
            output.say("  try: stop the node, then duolog store recover DIR")
        raise typer.Exit(2)


@prints(app)
def stats(
    directory: Annotated[Path, Directory],
) -> None:
    """Show messages and bytes by topic."""
    from duolog_server.store.dump import stats as store_stats

    disk, options = _open(directory)
    found = guarded(lambda: store_stats(disk, options))
    if output.wants_json():
        output.print_json(found)
        return
    output.say(
        f"{found['records']} records in [{found['min_phy']}, {found['max_phy']}), "
        f"{iso(found['first_store_time'])} to {iso(found['last_store_time'])}"
    )
    rows = [{"topic": topic, **row} for topic, row in found["topics"].items()]
    output.print_rows(rows, ["topic", "messages", "bytes"], False)


@prints(app)
def recover(
    directory: Annotated[Path, Directory],
    index_slots: Slots = None,
    index_entries: Entries = None,
) -> None:
    """Open the directory as a node would, recover it and close it cleanly. Stop its node first."""
    import dataclasses

    from duolog_server.store.dump import segment_bytes
    from duolog_server.store.errors import StoreError
    from duolog_server.store.indexcheck import as_found
    from duolog_server.store.messagestore import MessageStore, StoreEvents
    from duolog_server.store.osdisk import OsDisk

    disk, options = _open(directory, index_slots, index_entries)
    given = index_slots is not None or index_entries is not None
    sized = guarded(lambda: segment_bytes(disk, as_found(disk, options, given)))
    events = StoreEvents(
        problem=lambda text: output.say(f"problem: {text}"),
        copied=lambda text: output.say(f"{directory} is a copy: {text}"),
    )
    shown = [0.0]

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty() and total and done / total > shown[0] + 0.01:
            shown[0] = done / total
            print(f"\rrecovering {100 * done / total:.0f} %", end="", file=sys.stderr)

    events.progress = progress
    try:
        store = MessageStore(OsDisk(directory), sized, events)
        report = store.start()
        store.shutdown()
    except (StoreError, OSError) as error:
        output.fail(str(error), "duolog store check DIR")
    output.print_facts(dataclasses.asdict(report))
