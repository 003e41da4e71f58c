"""The metrics of a real node: all that the table declares, and nothing else."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duolog.sync
import grpc
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.grpc.protocol.stubs import rpc
from duolog_server.node.broker import EXIT_FENCED
from duolog_server.node.metrics.table import (
    AUDITED,
    AUTO,
    CERTIFIED,
    COPIED,
    MEASURED,
    METRICS,
    REGISTERED,
    SCOPES,
    SLAVES,
    TRACED,
)
from tests.process.measured import Measured, official, send_timed
from tests.process.support import run_cli

pytestmark = pytest.mark.process

# Tested with elected nodes and slaves, in tests/node/metrics; where they are told of, beside that.
ELSEWHERE = (AUTO, SLAVES, COPIED, TRACED, MEASURED, AUDITED, CERTIFIED, REGISTERED)


# A node that is fenced as soon as it answers.
FENCED = """
import asyncio, sys
from duolog_server.serve import server
from duolog_server.node.runtime.config import Config

class Node(server.Node):
    async def start(self):
        await super().start()
        asyncio.get_running_loop().call_soon(self.broker.give_up, ValueError("a test"))

server.Node = Node
config = Config.model_validate(
    {
        "node": {"data": sys.argv[1], "listen": sys.argv[2]},
        "store": {
            "mapped_file_size_commit_log": 4 << 20,
            "mapped_file_size_consume_queue": 300_000,
        },
    }
)
sys.exit(asyncio.run(server.serve(config)))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Measured]:
    made = Measured(tmp_path / "data")
    made.start()
    yield made
    assert made.stop() == 0


def work(node: Measured) -> None:
    """A little of everything that metrics tell of; consumers stay until the clients are closed."""
    with duolog.sync.Client(node.endpoint, timeout=30) as client:
        client.admin.create_topic("T", 2)
        with client.producer() as producer:
            producer.send_batch("T", [b"12345"] * 10)
            send_timed(producer, node)
            with pytest.raises(duolog.DuologError):
                producer.send("T", b"never", delay=10 * 86_400)
        with client.transactions("p") as transactions, transactions.begin("T", b"12"):
            pass
        with client.consumer("g", "T") as consumer:
            for _ in range(10):
                consumer.get(10)
    with grpc.insecure_channel(node.endpoint) as channel:
        stub: Any = rpc.MessagingServiceStub  # typed for asyncio alone
        official(stub(channel))
    until = time.monotonic() + 60
    # In a moment:
    for name in (
        "rocketmq_half_messages",
        "rocketmq_topic_retry_offset",
        "rocketmq_timer_dequeue_total",
    ):
        while not node.scrape().rows(name):
            assert time.monotonic() < until, name


def test_every_metric_of_the_table_appears_and_no_other(node: Measured) -> None:
    work(node)
    found = node.scrape()
    expected = {metric.name: metric for metric in METRICS if metric.where not in ELSEWHERE}
    assert set(found.families) == set(expected)
    for name, metric in expected.items():
        family = found.families[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        labels = {*SCOPES[metric.scope], *metric.labels}
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, name
    assert found.value("duolog_metrics_series_dropped") == 0


def test_counters_never_go_down(node: Measured) -> None:
    work(node)
    counted = {metric.name for metric in METRICS if metric.kind == "counter"}
    counted |= {
        f"{metric.name}_{part}"
        for metric in METRICS
        if metric.kind == "histogram"
        for part in ("bucket", "count", "sum")
    }
    first = node.scrape().values
    with duolog.sync.Client(node.endpoint, timeout=30) as client, client.producer() as producer:
        producer.send_batch("T", [b"12345"] * 10)
    second = node.scrape().values
    assert {key for key in first if key[0] in counted} <= set(second)
    fell = [key for key in first if key[0] in counted and second[key] < first[key]]
    assert fell == []
    grew = {key[0] for key in first if key[0] in counted and second[key] > first[key]}
    assert {"rocketmq_messages_in_total", "duolog_append_seconds_count"} <= grew


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (prometheus) is missing")
def test_prometheus_own_tool_finds_no_error(node: Measured) -> None:
    work(node)
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=node.scrape().text,
        capture_output=True,
        text=True,
        check=False,
    )
    # It also has an opinion on names, which are RocketMQ's; only what cannot be parsed is status 1.
    assert checked.returncode in (0, 3), checked.stderr


def test_a_node_is_scraped_while_it_takes_messages(node: Measured) -> None:
    with duolog.sync.Client(node.endpoint, timeout=30) as client:
        client.admin.create_topic("T", 2)
        with client.producer() as producer:
            until = time.monotonic() + 1
            sent = 0
            while time.monotonic() < until:
                producer.send_batch("T", [b"12345"] * 1000)
                sent += 1000
                found = node.scrape()
                assert found.value("rocketmq_messages_in_total", topic="T") == sent


def test_a_node_that_was_fenced_says_so_after_its_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-c", FENCED, str(data), free_endpoint()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_FENCED, done.stderr
    for how in ("fenced", "clean"):
        made = Measured(data)
        made.start()
        assert made.scrape().value("duolog_last_stop", how=how) == 1
        assert made.stop() == 0


def test_an_address_in_use_is_an_error_of_the_start(node: Measured, tmp_path: Path) -> None:
    failed = run_cli(
        *("node", "start", "--data", str(tmp_path / "other"), "--listen", free_endpoint()),
        *("--set", f"metrics.listen={node.metrics}"),
    )
    assert failed.returncode == 1
    assert f"cannot listen on {node.metrics}" in failed.stdout + failed.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (prometheus) is missing")
def test_promtool_takes_the_configurations_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    blocks = [rest.split("```")[0] for rest in page.split("```yaml\n")[1:]]
    assert len(blocks) == 2
    for block in blocks:
        file = tmp_path / "prometheus.yml"
        file.write_text(block)
        done = subprocess.run(
            ["promtool", "check", "config", "--syntax-only", str(file)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
