"""`duolog pipeline`: jobs on Spark over store directories and topics."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from duolog_server.ops.cli import output
from duolog_server.ops.cli.access import caller, calls, connection_settings, prints
from duolog_server.ops.cli.store import Entries, Slots, index_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from duolog_server.pipeline.audit import Audit, Difference

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")

Directory = typer.Argument(help="Store directory.", metavar="DIR")
Master = typer.Option("--master", help="Where Spark runs: local[*], spark://HOST:PORT, ...")
PROBLEM_COLUMNS = ("kind", "segment", "offset", "bytes", "reason")


def run_job(
    name: str,
    master: str,
    work: Callable[["SparkSession"], T],
    check: Callable[[], object] = lambda: None,
    *,
    topics: bool = True,
) -> T:
    """Run with a Spark session; an error ends the command with one line.

    check: refuses what can be refused before Spark starts, which takes seconds. topics: whether
    the job reads or writes topics.
    """
    from duolog import DuologError

    from duolog_server.pipeline.errors import BadJob
    from duolog_server.pipeline.session import end_session, spark_session
    from duolog_server.pipeline.sparkerrors import reason_of
    from duolog_server.store.errors import StoreError

    refused = (BadJob, DuologError, StoreError, OSError)
    try:
        check()
    except refused as error:
        output.fail(str(error), f"duolog pipeline {name} --help")
    try:
        spark = spark_session(name, master, topics=topics)
    except BadJob as error:
        output.fail(str(error), "duolog pipeline --help")
    try:
        return work(spark)
    except refused as error:
        output.fail(str(error), f"duolog pipeline {name} --help")
    except Exception as error:
        kind = type(error).__module__
        if not kind.startswith(("pyspark", "py4j")):
            raise
        output.fail(reason_of(error), f"duolog pipeline {name} --help")
    finally:
        end_session(spark)


@prints(app)
def audit(
    directory: Annotated[Path, Directory],
    against: Annotated[
        Path | None, typer.Option(help="Another replica's directory, to compare with.")
    ] = None,
    master: Annotated[str, Master] = "",
) -> None:
    """Verify every record; with --against, print the first record in which two replicas differ.

    Exit status 2 if anything is wrong.
    """
    from duolog_server.pipeline.audit import audit as work
    from duolog_server.pipeline.audit import compare
    from duolog_server.pipeline.segments import segments_of

    directories = [one for one in (directory, against) if one is not None]

    def both(spark: "SparkSession") -> "tuple[Audit, Audit | None, Difference | None]":
        found = work(spark, directory)
        if against is None:
            return found, None, None
        other = work(spark, against)
        end = min(found.max_offset, other.max_offset)
        return found, other, compare(spark, directory, against, end)

    found, other, difference = run_job(
        "audit", master, both, lambda: [segments_of(one) for one in directories], topics=False
    )
    for one in (found, other):
        if one is not None and one.held:
            output.say(
                f"{one.directory} is open in a running node: it is read as it is, not changed"
            )
        if one is not None and one.copied:
            output.say(
                f"{one.directory} was copied while a node wrote to it: what its log lacks at "
                "the end is not lost, the original has it"
            )
    problems = [*found.problems, *(other.problems if other is not None else [])]
    facts = {k: v for k, v in found.to_json().items() if k != "problems"}
    if output.wants_json():
        compared = {"difference": asdict(difference) if difference else None} if other else {}
        output.print_json({**facts, "problems": [asdict(p) for p in problems], **compared})
    else:
        output.print_facts(facts, False)
        if problems:
            output.print_rows([asdict(p) for p in problems], PROBLEM_COLUMNS, False)
        if difference is not None:
            output.say(f"the replicas differ from offset {difference.offset:,}:")
            output.print_facts({f"here {k}": v for k, v in difference.record.items()}, False)
            output.print_facts({f"there {k}": v for k, v in difference.other.items()}, False)
        elif other is not None:
            output.say("the replicas do not differ")
    if problems or difference is not None:
        raise typer.Exit(2)


@prints(app)
def rebuild(
    directory: Annotated[Path, Directory],
    index_slots: Slots = None,
    index_entries: Entries = None,
    queue_file_size: Annotated[
        int | None,
        typer.Option(
            help="Bytes per queue file (store.mapped_file_size_consume_queue); default: as the "
            "existing ones have them.",
            min=20,
        ),
    ] = None,
    master: Annotated[str, Master] = "",
) -> None:
    """Rebuild consume queues and index from the commit log; the node must be stopped."""
    from duolog_server.pipeline.rebuild import rebuild as work
    from duolog_server.pipeline.segments import segments_of

    given = index_slots is not None or index_entries is not None
    options = index_options(index_slots, index_entries) if given else None
    made = run_job(
        "rebuild",
        master,
        lambda s: work(s, directory, options, queue_file_size),
        lambda: segments_of(directory),
        topics=False,
    )
    output.print_facts(asdict(made))


@prints(app)
def tier(
    directory: Annotated[Path, Directory],
    out: Annotated[Path, typer.Option(help="Folder for the Parquet files.")],
    group: Annotated[str, typer.Option(help="Replica group that the log belongs to.")] = "broker-a",
    compression: Annotated[
        str, typer.Option(help="Compression: zstd, snappy, gzip or none.")
    ] = "zstd",
    master: Annotated[str, Master] = "",
) -> None:
    """Write sealed segments as Parquet by topic and day, each segment once."""
    from duolog_server.pipeline.tier import check
    from duolog_server.pipeline.tier import tier as work

    if compression not in ("zstd", "snappy", "gzip", "none"):
        output.fail(
            f"--compression {compression!r}: must be zstd, snappy, gzip or none",
            "duolog pipeline tier",
        )
    made = run_job(
        "tier",
        master,
        lambda s: work(s, directory, out, group, compression),
        lambda: check(directory, out, group),
        topics=False,
    )
    columns = ("segment", "rows", "files", "bytes", "before")
    output.print_rows([asdict(one) for one in made], columns)


@calls(app, timeout=None)
def replay(
    topic: Annotated[str, typer.Option("--to", help="Topic to send to.")],
    path: Annotated[
        str, typer.Argument(help="File or folder: Parquet, JSON lines or CSV.", metavar="PATH")
    ] = "",
    source: Annotated[str, typer.Option("--from", help="Topic to read instead of files.")] = "",
    file_format: Annotated[str, typer.Option("--format", help="parquet, json or csv.")] = "",
    sql: Annotated[str, typer.Option(help="SQL query over the view `source`.")] = "",
    body: Annotated[str, typer.Option(help="Column with the body; default: the row as JSON.")] = "",
    key: Annotated[str, typer.Option(help="Column with the key.")] = "",
    tags: Annotated[str, typer.Option(help="Column with the tags.")] = "",
    event_time: Annotated[
        str, typer.Option("--time", help="Column with the time of the event.")
    ] = "",
    order: Annotated[
        list[str] | None, typer.Option(help="Column to order by (repeatable).")
    ] = None,
    rate: Annotated[float, typer.Option(help="Messages per second; 0: no limit.")] = 0.0,
    name: Annotated[str, typer.Option(help="Name of the replay: sends each row once.")] = "",
    master: Annotated[str, Master] = "",
) -> None:
    """Send files, or a topic's messages, into a topic."""
    from duolog_server.pipeline.replay import check
    from duolog_server.pipeline.replay import replay as work
    from duolog_server.pipeline.replayoptions import Replay

    what = Replay(
        connection_settings().endpoints,
        topic,
        path,
        file_format,
        source,
        sql,
        body,
        key,
        tags,
        event_time,
        tuple(order or ()),
        rate,
        name,
        caller(),
    )
    with output.progress_bar("replay") as progress:
        made = run_job(
            "replay", master, lambda spark: work(spark, what, progress), lambda: check(what)
        )
    output.print_facts({**asdict(made), "seconds": round(made.seconds, 3)})


@calls(app, timeout=None)
def report(
    out: Annotated[Path, typer.Option(help="Folder for the tables and the page.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Topic (repeatable); default: all.")
    ] = None,
    parquet: Annotated[str, typer.Option("--tier", help="Folder with tiered messages.")] = "",
    master: Annotated[str, Master] = "",
) -> None:
    """Report traffic, sizes, delays and lag, as tables and one HTML page."""
    from duolog_server.pipeline.report import Source, check
    from duolog_server.pipeline.report import report as work

    source = Source(connection_settings().endpoints, topics or (), parquet, caller())
    made = run_job(
        "report", master, lambda spark: work(spark, source, out), lambda: check(source, out)
    )
    if output.wants_json():
        output.print_json(asdict(made))
        return
    columns = ("topic", "messages", "bytes", "largest", "delay_p50_ms", "delay_p99_ms")
    output.print_rows(made.topics, columns, False)
    output.say(f"{made.page}")
