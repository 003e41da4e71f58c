"""A node as users start it, and RocketMQ's official Python client."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import duolog.sync
import pytest

from duolog_server.chaos.processes import ProcessTarget
from tests.process.support import SMALL_FILES, NodeProcess

SMALL = (
    *SMALL_FILES,
    "--set", "node.log_level=warning",
    "--set", "store.mapped_file_size_commit_log=33554432",
)  # fmt: skip
RETRY_DELAYS_MS = (1000, 1000)
# A master that stands still for some seconds stays the master: only those that die are replaced.
LEASE_SECONDS = 6
# From the next master's lead to the first message stored: under 1 on an idle machine. A client that
# only asked for its route again would need up to 30.
LED_SECONDS_MAX = 15.0


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Apache's package; it writes its log below HOME from its import on."""
    before = os.environ.get("HOME", "")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    try:
        import rocketmq
    finally:
        os.environ["HOME"] = before
    module: ModuleType = rocketmq
    return module


def make_topics(endpoint: str) -> None:
    """What the tests send to, and groups with short delays."""
    with duolog.sync.Client(endpoint, timeout=60) as client:
        for topic, kind in (("T", ""), ("Normal", "NORMAL"), ("Fifo", "FIFO")):
            client.admin.create_topic(topic, 4, message_type=kind)
        for group in ("g", "h"):
            client.admin.put_group(group, retry_times=2, retry_delays_ms=RETRY_DELAYS_MS)
        client.admin.put_group("fifo", orderly=True, retry_times=2, retry_delays_ms=RETRY_DELAYS_MS)


def rights_of(*entries: tuple[str, str]) -> str:
    """Rights with entries such as `("Topic:T", "Pub")`."""
    rows = [
        {"resource": resource, "actions": actions.split(","), "decision": "Allow"}
        for resource, actions in entries
    ]
    return json.dumps({"policies": [{"policyType": "Custom", "entries": rows}]})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of its own for a test."""
    made = NodeProcess(tmp_path / "data", *SMALL)
    made.start()
    make_topics(made.endpoint)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for tests that use topics of their own."""
    made = NodeProcess(tmp_path_factory.mktemp("shared") / "data", *SMALL)
    made.start()
    make_topics(made.endpoint)
    yield made
    assert made.stop() == 0


@pytest.fixture
def topic(shared: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A topic for one test."""
    name = f"T-{abs(hash(request.node.name)) % 10**9}"
    with duolog.sync.Client(shared.endpoint, timeout=60) as client:
        client.admin.create_topic(name, 4)
    return name


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Clients to shut down, the last one first."""
    clients: list[Any] = []
    yield clients
    for client in reversed(clients):
        client.shutdown()


def next_master(target: ProcessTarget, old: str) -> float:
    """Wait until another node leads; wall time of that moment in seconds."""
    endpoints = [target.endpoint(name) for name in target.nodes if name != old]
    with duolog.sync.Client(endpoints, timeout=30) as client:
        end = time.monotonic() + 60
        while client.admin.route().groups[0].master in (old, "", None):
            assert time.monotonic() < end, "no other master in time"
            time.sleep(0.02)
    return time.time()


def dead_letters(endpoint: str, topic: str, **login: Any) -> list[bytes]:
    """What a dead-letter topic holds once it holds something."""
    # A client that left before it gave a message up has its lease for 60 s.
    end = time.monotonic() + 150
    with duolog.sync.Client(endpoint, **login) as client:
        while time.monotonic() < end:
            try:
                found = client.pull(topic, 0, 0, wait=1.0).body_list()
            except duolog.UnknownTopic:  # made with the first of them
                time.sleep(0.1)
            else:
                if found:
                    return found
    raise TimeoutError(topic)
