"""The report: equal to a direct calculation over the messages."""

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from pyspark.sql import SparkSession

from duolog_server.pipeline.errors import BadJob
from duolog_server.pipeline.report import Source, report
from tests.process.support import NodeProcess
from tests.sparkfixtures import Place

pytestmark = [pytest.mark.spark, pytest.mark.process]


def direct(client: duolog.sync.Client, topic: str) -> dict[Any, dict[str, float]]:
    """By topic, tag and hour, message by message."""
    rows: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for queue_id in range(2):
        offset = 0
        while (batch := client.pull(topic, queue_id, offset)).count:
            for message in batch:
                key = topic, message.tags, message.store_time_ms // 3_600_000 * 3_600_000
                delay = message.store_time_ms - message.born_time_ms
                rows[key].append((len(message.body), delay))
            offset = batch.next_offset
    found = {}
    for key, messages in rows.items():
        delays = sorted(delay for _, delay in messages)

        def quantile(share: float, delays: list[int] = delays) -> float:
            at = share * (len(delays) - 1)
            low, high = delays[math.floor(at)], delays[math.ceil(at)]
            return low + (high - low) * (at - math.floor(at))

        found[key] = {
            "messages": len(messages),
            "bytes": sum(size for size, _ in messages),
            "largest": max(size for size, _ in messages),
            "delay_p50_ms": quantile(0.5),
            "delay_p99_ms": quantile(0.99),
            "delay_max_ms": delays[-1],
        }
    return found


def test_a_report_has_tables_and_a_page(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    node, client, topic = place
    with client.producer() as producer:
        for k in range(30):
            bodies = [bytes(17 * k + n) for n in range(20)]
            producer.send_batch(topic, bodies, queue_id=k % 2, tags=("", "a", "<b>")[k % 3])
    group = f"{topic}-group"
    client.admin.commit(group, {(topic, "broker-a", 0): 100, (topic, "broker-a", 1): 300})
    out = tmp_path / "out"
    made = report(spark, Source(node.endpoint, [topic]), out)
    expected = direct(client, topic)
    assert len(expected) >= 3
    found = {(row["topic"], row["tag"], row["hour"]): row for row in made.traffic}
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        for name, value in values.items():
            assert found[key][name] == pytest.approx(value), (key, name)
    (total,) = made.topics
    assert (total["messages"], total["bytes"]) == (
        600,
        sum(values["bytes"] for values in expected.values()),
    )
    (lag,) = [row for row in made.lag if row["group"] == group]
    assert lag["lag"] == 200
    client.admin.commit(group, {(topic, "broker-a", 0): 250})
    again = report(spark, Source(node.endpoint, [topic]), out)
    history = [json.loads(line) for line in (out / "lag.jsonl").read_text().splitlines()]
    assert [row["lag"] for row in history if row["group"] == group] == [200, 50]
    page = Path(again.page).read_text()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<svg") == 3
    assert not re.search(r'(src|href)="', page)  # it needs nothing beside itself
    assert json.loads((out / "topics.json").read_text())[0]["messages"] == 600


def test_invalid_reports_are_refused(
    spark: SparkSession, node: NodeProcess, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(BadJob, match="'nobody-made-this' does not exist"):
        report(spark, Source(node.endpoint, ["nobody-made-this"]))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadJob, match="is not a directory"):
        report(spark, Source(node.endpoint, [topic]), tmp_path / "file")
    empty = report(spark, Source(node.endpoint, [topic]), tmp_path / "out")
    assert empty.traffic == []
    (row,) = empty.topics
    assert (row["topic"], row["messages"], row["bytes"], row["largest"]) == (topic, 0, 0, 0)
    assert f"<td>{topic}</td><td>0</td><td>0</td>" in Path(empty.page).read_text()
    (tmp_path / "out" / "lag.jsonl").write_text("{")
    with pytest.raises(BadJob, match=r"lag.jsonl is damaged"):
        report(spark, Source(node.endpoint, [topic]), tmp_path / "out")
