"""`duolog bench`: produce and consume against a node, recover offline."""

import csv
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duolog_server.ops.cli.access import asked, calls, prints
from duolog_server.ops.cli.output import fail, print_facts, progress_bar

if TYPE_CHECKING:
    from duolog import Client

    from duolog_server.demo.measure import Measured

app = typer.Typer(no_args_is_help=True)

Csv = typer.Option("--csv", help="Append the result to this CSV file.")
Topic = typer.Option(help="Topic; created if it does not exist.")


def _report(row: dict[str, object], target: Path | None) -> None:
    if target is not None:
        row = {"time": int(time.time()), **row}
        new = not target.exists()
        with target.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow(row)
    print_facts(row)


def _positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            fail(f"--{name} is {value}; it must be at least 1", "duolog bench --help")


@calls(app, timeout=60.0)
def produce(
    topic: Annotated[str, Topic] = "bench",
    messages: Annotated[int, typer.Option(help="Messages to send.")] = 1_000_000,
    size: Annotated[int, typer.Option(help="Size of a body in bytes.")] = 100,
    batch: Annotated[int, typer.Option(help="Messages per batch; 1: one send at a time.")] = 50_000,
    senders: Annotated[int, typer.Option(help="Concurrent senders (with --batch 1).")] = 1,
    target: Annotated[Path | None, Csv] = None,
) -> None:
    """Send messages as fast as the node accepts them."""
    _positive(messages=messages, size=size, batch=batch, senders=senders)

    with progress_bar("produce", messages) as progress:

        async def work(client: "Client") -> "Measured":
            from duolog import TopicExists

            from duolog_server.demo.measure import Load, produce_batches, produce_singly

            load = Load(messages, size, topic)
            try:
                await client.admin.create_topic(topic)
            except TopicExists:
                pass
            if batch == 1:
                return await produce_singly(client, load, senders, progress)
            return await produce_batches(client, load, batch, progress)

        found = asked(work)
    _report({"bench": "produce", "size": size, "batch": batch, **found.row()}, target)


@calls(app, timeout=60.0)
def consume(
    topic: Annotated[str, Topic] = "bench",
    messages: Annotated[int, typer.Option(help="Messages to read.")] = 1_000_000,
    group: Annotated[str, typer.Option(help="Consumer group; default: a new one each time.")] = "",
    columns: Annotated[bool, typer.Option(help="Read columns, not message objects.")] = True,
    target: Annotated[Path | None, Csv] = None,
) -> None:
    """Read messages as fast as the node delivers them."""
    _positive(messages=messages)

    with progress_bar("consume", messages) as progress:

        async def work(client: "Client") -> "Measured":
            from duolog_server.demo.measure import consume as measure

            async with client.consumer(group or f"bench-{time.time_ns()}", topic) as consumer:
                return await measure(consumer, messages, not columns, 3.0, progress)

        found = asked(work)
    _report({"bench": "consume", "columns": columns, **found.row()}, target)


@prints(app)
def recover(
    megabytes: Annotated[int, typer.Option(help="Size of the log in MiB.")] = 1024,
    size: Annotated[int, typer.Option(help="Size of a body in bytes.")] = 1024,
    target: Annotated[Path | None, Csv] = None,
) -> None:
    """Write a log to a temporary directory, then recover it, rebuilding queues and index."""
    _positive(megabytes=megabytes, size=size)
    import shutil
    import tempfile

    from duolog_server.demo.measure import fill_store
    from duolog_server.demo.measure import recover as measure

    directory = Path(tempfile.mkdtemp(prefix="duolog-bench-"))
    try:
        with progress_bar("fill", megabytes << 20) as progress:
            fill_store(directory, megabytes << 20, size, progress)
        found = measure(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _report({"bench": "recover", "size": size, **found}, target)
