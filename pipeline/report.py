"""Report: traffic of topics, storage delays, and lag of groups.

Traffic and delays are counted by Spark over the messages themselves, so they are exact: quantiles
are of all messages of an hour. Each report adds the groups' lag to `lag.jsonl` in its folder; the
trend is drawn from there.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duolog import sync
from duolog._caller import NOBODY, Caller

from duolog_server.pipeline import page
from duolog_server.pipeline.errors import BadJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUANTILES = (0.5, 0.99)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Report:
    """The tables.

    traffic: by topic, tag and hour (ms since 1970): messages, bytes of bodies, the largest body,
    and the quantiles 0.5, 0.99 and the maximum of the ms between birth and storage.
    topics: the same by topic alone, also of topics without messages (their delays: None). lag: by
    consumer group and topic.
    """

    traffic: Rows
    topics: Rows
    lag: Rows
    page: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """The messages that are counted: of a cluster's topics, with older ones from a tier's folder.

    topics: all, if not told. caller: as whom the cluster is called.
    """

    endpoints: str
    topics: Sequence[str] = ()
    tier: str = ""
    caller: Caller = NOBODY


def report(
    spark: "SparkSession", source: Source, out: Path | None = None, timeout: float = 30.0
) -> Report:
    """Count. out: folder for tables and page. timeout: seconds for what the cluster is asked.

    Raises BadJob.
    """
    _check_folder(out)
    with source.caller.client(source.endpoints, timeout) as client:
        names = _names(client, source.topics)
        lag = _lag(client.admin.groups(), source.topics)
    traffic, totals = _traffic(spark, replace(source, topics=names)) if names else ([], [])
    totals = with_empty(totals, names)
    made = Report(traffic, totals, lag)
    if out is None:
        return made
    out.mkdir(parents=True, exist_ok=True)
    history = _history(out / "lag.jsonl", lag)
    for name, rows in (("traffic", traffic), ("topics", totals), ("lag", lag)):
        (out / f"{name}.json").write_text(json.dumps(rows, indent=1))
    target = out / "report.html"
    target.write_text(_page(made, history, source.endpoints))
    return Report(traffic, totals, lag, str(target))


def check(source: Source, out: Path, timeout: float = 30.0) -> None:
    """Raise BadJob, or DuologError, for what shows without Spark; the cluster is asked.

    timeout: seconds for that.
    """
    _check_folder(out)
    with source.caller.client(source.endpoints, timeout) as client:
        _names(client, source.topics)


def _check_folder(out: Path | None) -> None:
    if out is not None and out.exists() and not out.is_dir():
        raise BadJob(f"{out} is not a directory")


def _names(client: sync.Client, topics: Sequence[str]) -> list[str]:
    """The topics that are counted: those given, or all. Raises BadJob."""
    known = {topic.topic for topic in client.admin.topics()}
    if unknown := set(topics) - known:
        raise BadJob(f"topic {min(unknown)!r} does not exist")
    return sorted(topics or known)


def _traffic(spark: "SparkSession", source: Source) -> tuple[Rows, Rows]:
    from pyspark.sql import functions as F

    reader = spark.read.format("duolog").options(**source.caller.options())
    reader = reader.option("endpoints", source.endpoints)
    reader = reader.option("topics", ",".join(source.topics))
    if source.tier:
        reader = reader.option("tier", source.tier)
    columns = "topic STRING, tags STRING, body BINARY, born_time TIMESTAMP, store_time TIMESTAMP"
    delay = F.unix_millis("store_time") - F.unix_millis("born_time")
    frame = (
        reader.schema(columns)
        .load()
        .select(
            "topic",
            F.coalesce("tags", F.lit("")).alias("tag"),
            (F.floor(F.unix_millis("store_time") / 3_600_000) * 3_600_000).alias("hour"),
            F.length("body").alias("size"),
            delay.alias("delay"),
        )
    )
    sums = [
        F.count(F.lit(1)).alias("messages"),
        F.sum("size").alias("bytes"),
        F.max("size").alias("largest"),
        F.percentile("delay", F.array(*map(F.lit, QUANTILES))).alias("quantiles"),
        F.max("delay").alias("delay_max_ms"),
    ]
    by_hour = frame.groupBy("topic", "tag", "hour").agg(*sums).orderBy("topic", "tag", "hour")
    by_topic = frame.groupBy("topic").agg(*sums).orderBy("topic")
    return [_row(row) for row in by_hour.collect()], [_row(row) for row in by_topic.collect()]


def with_empty(totals: Rows, names: Sequence[str]) -> Rows:
    """The same, with the topics that have no messages."""
    empty = {"messages": 0, "bytes": 0, "largest": 0}
    delays = dict.fromkeys(("delay_max_ms", "delay_p50_ms", "delay_p99_ms"))
    found = {row["topic"]: row for row in totals}
    return [found.get(name, {"topic": name, **empty, **delays}) for name in sorted(names)]


def _row(row: Any) -> dict[str, Any]:
    found = row.asDict()
    found["delay_p50_ms"], found["delay_p99_ms"] = found.pop("quantiles")
    found["delay_max_ms"] = found.pop("delay_max_ms")
    return dict(found)


def _lag(groups: Any, topics: Sequence[str]) -> Rows:
    table: dict[tuple[str, str], dict[str, Any]] = {}
    for group in groups:
        for queue in group.queues:
            if topics and queue.topic not in topics:
                continue
            row = table.setdefault(
                (group.group, queue.topic),
                {"group": group.group, "topic": queue.topic, "lag": 0, "lag_ms": 0},
            )
            row["lag"] += queue.lag_messages
            row["lag_ms"] = max(row["lag_ms"], queue.lag_ms)
    return [table[key] for key in sorted(table)]


def _history(path: Path, lag: Rows) -> Rows:
    """All lags that were reported into this folder, this one too. Raises BadJob."""
    now = int(time.time() * 1000)
    with path.open("a") as file:
        for row in lag:
            file.write(json.dumps({"time": now, **row}) + "\n")
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError:
        raise BadJob(f"{path} is damaged: remove it to start a new trend") from None


def _when(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _page(made: Report, history: Rows, endpoints: str) -> str:
    rate: dict[str, dict[float, float]] = {}
    delays: dict[str, list[tuple[float, float]]] = {}
    for row in made.traffic:
        hours = rate.setdefault(row["topic"], {})
        hours[row["hour"]] = hours.get(row["hour"], 0) + row["messages"]
        name = f"{row['topic']} {row['tag']}".strip()
        delays.setdefault(name, []).append((row["hour"], float(row["delay_p99_ms"])))
    trend: dict[str, list[tuple[float, float]]] = {}
    for row in history:
        trend.setdefault(f"{row['group']}: {row['topic']}", []).append((row["time"], row["lag"]))

    def labels(low: float, high: float) -> tuple[str, str]:
        return _when(low), _when(high)

    traffic = [{**row, "hour": _when(row["hour"])} for row in made.traffic]
    return page.page(
        f"duolog: {endpoints}",
        [
            f"<p>as of {_when(time.time() * 1000)}</p>",
            page.heading("Topics"),
            page.table(made.topics),
            page.heading("Messages per hour"),
            page.lines({k: sorted(v.items()) for k, v in rate.items()}, "messages", labels),
            page.heading("From birth to storage, p99 of each hour"),
            page.lines(delays, "ms", labels, max),
            page.heading("Consumer lag"),
            page.table(made.lag),
            page.lines(trend, "messages", labels),
            page.heading("By topic, tag and hour"),
            page.table(traffic),
        ],
    )
