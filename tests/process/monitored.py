"""A replica group at work, and a real Prometheus that scrapes it.

Answers are those of one moment, when everything that metrics tell of had happened: a client that
leaves, or a lease that ends, while the tests run changes none of them.
"""

import json
import math
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duolog.sync
import grpc
import pytest
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from duolog_server.chaos.localetcd import LocalEtcd
from duolog_server.compat.grpc.protocol.stubs import rpc
from duolog_server.demo.certificates import Authority
from tests.etcd import need_etcd
from tests.process.measured import Measured, official, received, send_timed
from tests.topics import create_topic
from tests.until import wait_until

MISSING = "prometheus is not installed (apt-get install prometheus)"
WAIT_SECONDS = 60
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: duolog
    static_configs: [{{targets: {targets}}}]
"""


def need_prometheus() -> None:
    """Skip where there is no Prometheus; in CI that is a failure."""
    if shutil.which("prometheus") is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)


class Prometheus(ChildProcess):
    """A server that scrapes nodes each second."""

    kind = "Prometheus"

    def __init__(self, directory: Path, targets: list[str]) -> None:
        self.endpoint = free_endpoint()
        self.at = 0.0  # the moment that is asked about
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(targets=json.dumps(targets)))
        command = [
            *("prometheus", "--config.file", str(config), "--web.listen-address", self.endpoint),
            *("--storage.tsdb.path", str(directory / "prometheus"), "--log.level", "warn"),
        ]
        super().__init__("prometheus", command, directory / "prometheus.log")

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP API. An expression that it cannot parse fails."""
        query = urllib.parse.urlencode({**parameters, "time": f"{self.at:.3f}"})
        try:
            with urllib.request.urlopen(
                f"http://{self.endpoint}/api/v1/{path}?{query}", timeout=20
            ) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def values(self, expression: str) -> list[float]:
        """The values of an expression, NaN left out."""
        rows = self.ask("query", query=expression)["result"]
        return [value for row in rows if not math.isnan(value := float(row["value"][1]))]

    def label_values(self, selector: str, label: str) -> list[str]:
        """The values of a label, as a dashboard's variable asks for them."""
        rows = self.ask("query", query=f"group by ({label}) ({selector})")["result"]
        return sorted(row["metric"][label] for row in rows)

    def go_to_next_scrape(self, nodes: int) -> None:
        """Ask from now on about a moment when each node had been scraped after this call."""
        began = time.time()
        # Of anything but a plain selector, timestamp() is the moment of the question.
        fresh = f"count(timestamp(up) > {began:.3f} and up == 1)"

        def reached() -> bool:
            self.at = time.time()
            return self.values(fresh) == [nodes]

        wait_until(reached, f"a scrape after {began}: {self.log_tail()}")


@contextmanager
def monitored(directory: Path) -> Iterator[Prometheus]:
    """An elected master and its slave have worked while they were scraped; clients stay."""
    need_prometheus()
    need_etcd()
    etcd = LocalEtcd(directory)
    flags = (
        *("--role", "AUTO", "--registry", *etcd.endpoints),
        *("--set", "store.flush_disk_type=SYNC_FLUSH", "--set", "registry.lease_seconds=10"),
    )
    certificate = Authority(directory / "tls").issue("node")
    flags += ("--set", f"tls.cert={certificate.cert}", "--set", f"tls.key={certificate.key}")
    nodes = [
        Measured(
            directory / name,
            *(*flags, "--ha-listen", free_endpoint(), "--set", f"tls.listen={free_endpoint()}"),
        )
        for name in ("a", "b")
    ]
    prometheus = Prometheus(directory, [node.metrics for node in nodes])
    try:
        etcd.start()
        for node in nodes:
            node.start()
        prometheus.start()
        prometheus.wait_listening(prometheus.endpoint)
        with working(nodes, prometheus):
            yield prometheus
    finally:
        prometheus.stop()
        for node in nodes:
            node.stop()
        etcd.stop()


@contextmanager
def working(nodes: list[Measured], prometheus: Prometheus) -> Iterator[None]:
    """Do everything twice, a scrape between, so that counters grow."""
    endpoints = ",".join(node.endpoint for node in nodes)
    with duolog.sync.Client(endpoints, timeout=30) as client:
        name = wait_until(lambda: client.admin.route().groups[0].master, "a master")
        (master,) = (node for node in nodes if node.name == name)
        create_topic(client, "T", 2)
        client.admin.put_group("pop", retry_delays_ms=[0])
        wait_until(lambda: master.scrape().value("duolog_in_sync_replicas") == 2, "a slave in sync")
        with (
            client.producer() as producer,
            client.consumer("g", "T") as consumer,
            grpc.insecure_channel(master.endpoint) as channel,
        ):
            stub: Any = rpc.MessagingServiceStub  # typed for asyncio alone
            for done in (1, 2):
                producer.send_batch("T", [b"12345"] * 20)
                producer.send_batch("T", [b"later"] * 2, delay_level=18)
                send_timed(producer, master)
                with pytest.raises(duolog.DuologError):
                    producer.send("T", b"never", delay=10 * 86_400)
                with pytest.raises(duolog.DuologError):
                    client.admin.delete_topic("absent")
                for _ in range(10):
                    assert consumer.get(10) is not None
                official(stub(channel))
                receive_again(stub(channel), master)
                wait_for_each(master, done)
                prometheus.go_to_next_scrape(len(nodes))
            yield


def wait_for_each(master: Measured, count: int) -> None:
    """Wait until half messages, dead letters and timed ones came as often as clients made them."""

    def total(metric: str) -> float:
        return sum(master.scrape().rows(metric).values())

    wait_until(lambda: total("rocketmq_timer_dequeue_total") == count, f"timed message {count}")
    wait_until(lambda: total("rocketmq_half_messages") == count, f"half message {count}")
    wait_until(lambda: total("rocketmq_topic_dlq_offset") == count, f"dead letter {count}")


def receive_again(stub: Any, master: Measured) -> None:
    """Receive until one more message came as another attempt."""
    headers = [("x-mq-client-id", "test@2"), ("x-mq-language", "GO")]

    def attempts() -> float:
        again = master.scrape().rows("rocketmq_messages_out_total", is_retry="true")
        return sum(again.values())

    before = attempts()
    wait_until(lambda: received(stub, headers) and attempts() > before, "another attempt")
