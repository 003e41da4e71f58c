"""Apache's clients for Java, Spring, Go, Node.js and Rust: a program of each sends every kind of
message and consumes it again."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint

from duolog_server.chaos.processes import ProcessTarget
from tests.certificates import certificates
from tests.conformance.conftest import (
    LEASE_SECONDS,
    LED_SECONDS_MAX,
    RETRY_DELAYS_MS,
    SMALL,
    dead_letters,
    make_topics,
    next_master,
)
from tests.conformance.languages import go, java, nodejs, outcome, rust, spring
from tests.conformance.users import ROOT, node_of_users
from tests.etcd import need_etcd
from tests.process.support import NodeProcess
from tests.topics import create_topic
from tests.until import wait_until

pytestmark = [pytest.mark.process, pytest.mark.long]

FIFO = [f"fifo{k}" for k in range(5)]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    node = NodeProcess(
        tmp_path / "data", *SMALL,
        "--set", "transactions.timeout_ms=1000", "--set", "transactions.check_interval_ms=1000",
    )  # fmt: skip
    node.start()
    make_topics(node.endpoint)
    yield node.endpoint
    assert node.stop() == 0


NORMAL = ["normal0", "normal1", "normal2"]
ALL = ["asked", "async", "committed", "delayed", *NORMAL]


def test_the_java_client(endpoint: str, tmp_path: Path) -> None:
    """Send, async send, FIFO with a failing message, delay, transactions with checker, SQL92."""
    found = outcome(*java(tmp_path, "RoundTrip.java"), endpoint)
    assert found["received"] == ALL
    assert list(dict.fromkeys(found["ordered"])) == FIFO
    assert found["ordered"].count("fifo2") == 2


def test_the_go_client(endpoint: str, tmp_path: Path) -> None:
    """Send, async send, FIFO, delay, transactions with checker, simple consumers."""
    command = go(tmp_path, "roundtrip.go")
    assert outcome(*command, endpoint) == {"received": ALL, "ordered": FIFO}


def test_the_nodejs_client(endpoint: str, tmp_path: Path) -> None:
    """Send, FIFO, delay, transactions, simple consumers (it polls queue 0 only)."""
    found = outcome(*nodejs(tmp_path, "round_trip.mjs"), endpoint)
    assert found == {"received": ["committed", "delayed", *NORMAL], "ordered": FIFO}


@pytest.mark.timeout(1200)
def test_the_rust_client(endpoint: str, tmp_path: Path) -> None:
    """Send, FIFO, delay, transactions with checker, simple consumers."""
    found = outcome(*rust(tmp_path, "round_trip.rs"), endpoint)
    received = ["asked", "committed", "delayed", *NORMAL]
    assert found == {"received": received, "ordered": FIFO}


@pytest.mark.parametrize(
    ("command", "program"),
    [(java, "Lite.java"), (go, "lite.go"), (nodejs, "lite.mjs")],
    ids=["java", "go", "nodejs"],
)
def test_lite_topics(
    command: Callable[[Path, str], list[str]], program: str, endpoint: str, tmp_path: Path
) -> None:
    """Each lite topic in order, a failing message retried; nothing without a subscription."""
    with duolog.sync.Client(endpoint) as client:
        client.admin.create_topic("Lite", 2, message_type="LITE")
        client.admin.put_group("lite", lite_topic="Lite", retry_delays_ms=RETRY_DELAYS_MS)
    found = outcome(*command(tmp_path, program), endpoint)
    assert {name: list(dict.fromkeys(bodies)) for name, bodies in found.items()} == {
        "a": ["a0", "a1", "a2", "a3"], "b": ["b0", "b1", "b2"],
    }  # fmt: skip
    if command is nodejs:  # what fails in order is a dead letter at once with this client
        assert dead_letters(endpoint, "%DLQ%lite") == [b"a1"]
        return
    assert len(found["a"]) + len(found["b"]) == 8
    assert found["a"].count("a1") == 2
    if command is java:  # Go's goes on to a2 while a1 waits for its next attempt
        assert found["a"][1:3] == ["a1", "a1"]


ZONE = "Asia/Shanghai"


@pytest.fixture
def of_users(tmp_path: Path) -> Iterator[tuple[ChildNode, str, Path]]:
    """A node with a TLS port and a user `ak`; the same as `secured` otherwise."""
    listen = free_endpoint()
    entries = (
        ("Topic:T", "Pub,Sub"), ("Group:simple", "Sub"), ("Group:g", "Sub"),
        ("Topic:ns%T", "Pub,Sub"), ("Group:ns%simple", "Sub"), ("Group:ns%g", "Sub"),
    )  # fmt: skip
    settings = ("--set", f"tls.listen={listen}", "--set", f"access.date_zones={ZONE}")
    with node_of_users(tmp_path, {"ak": ("sk", entries)}, *settings) as (node, tls):
        with duolog.sync.Client(node.endpoint, timeout=60, **ROOT) as client:
            for topic in ("T", "ns%T"):
                client.admin.create_topic(topic, 4)
            for group in ("simple", "g", "ns%simple", "ns%g"):
                client.admin.put_group(group, retry_times=2, retry_delays_ms=RETRY_DELAYS_MS)
        yield node, listen, tls.ca


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[NodeProcess, str, Path]]:
    """A node with a TLS port and keys, that port, and the certificate of who signed its own."""
    tls = certificates(tmp_path)
    listen = free_endpoint()
    node = NodeProcess(
        tmp_path / "data", *SMALL,
        "--set", f"tls.listen={listen}",
        "--set", f"tls.cert={tls.cert}",
        "--set", f"tls.key={tls.key}",
        "--set", "rocketmq.access_key=ak",
        "--set", "rocketmq.secret_key=sk",
    )  # fmt: skip
    node.start()
    make_topics(node.endpoint)
    with duolog.sync.Client(node.endpoint) as client:
        client.admin.create_topic("ns%T", 4)
        for group in ("simple", "g"):
            client.admin.put_group(f"ns%{group}", retry_times=2, retry_delays_ms=RETRY_DELAYS_MS)
    yield node, listen, tls.ca
    assert node.stop() == 0


BEHAVIOURS = pytest.mark.parametrize(
    ("command", "program", "namespace"),
    [
        (java, "Behaviours.java", "ns"),
        (go, "behaviours.go", "ns"),
        (nodejs, "behaviours.mjs", ""),  # it names its namespace in a header only
    ],
    ids=["java", "go", "nodejs"],
)


@BEHAVIOURS
def test_recall_redelivery_retries_and_dead_letters_over_tls_with_keys(
    command: Callable[[Path, str], list[str]],
    program: str,
    namespace: str,
    secured: tuple[NodeProcess, str, Path],
    tmp_path: Path,
) -> None:
    node, listen, ca = secured
    more = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca)}
    found = outcome(*command(tmp_path, program), listen, namespace, "ak", "sk", **more)
    check_behaviours(found, node.endpoint, namespace)


@BEHAVIOURS
def test_recall_redelivery_retries_and_dead_letters_as_a_user_in_another_time_zone(
    command: Callable[[Path, str], list[str]],
    program: str,
    namespace: str,
    of_users: tuple[ChildNode, str, Path],
    tmp_path: Path,
) -> None:
    node, listen, ca = of_users
    more = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca), "TZ": ZONE}
    found = outcome(*command(tmp_path, program), listen, namespace, "ak", "sk", **more)
    check_behaviours(found, node.endpoint, namespace, **ROOT)


def check_behaviours(found: Any, endpoint: str, namespace: str, **login: Any) -> None:
    """What the programs of that name print, and leave behind."""
    assert found.pop("stale", True)  # Go's client does not tell
    assert found == {"recalled": True, "deliveries": [1, 2], "attempts": [1, 2, 3]}
    # The client is gone, perhaps before it gave the last attempt up: the lease's end does, then.
    topic = f"%DLQ%{namespace}%g" if namespace else "%DLQ%g"
    assert dead_letters(endpoint, topic, **login) == [b"poison"]


def test_the_spring_boot_starter(secured: tuple[NodeProcess, str, Path], tmp_path: Path) -> None:
    """Send, FIFO, delay, transactions through a template; a listener, which needs a TLS port."""
    _, listen, _ = secured
    found = outcome(*spring(tmp_path, "Spring.java"), listen, "ak", "sk")
    assert found == {"received": ["committed", "delayed", *NORMAL, "ordered"]}


class Stream:
    """A program that sends and consumes until its input ends."""

    def __init__(self, command: list[str], endpoints: str, home: Path) -> None:
        self.log = (home / "stderr").open("wb")
        self.process = subprocess.Popen(
            [*command, endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        while line and line != "ready\n":
            line = self.process.stdout.readline()
        assert line, (home / "stderr").read_text()[-3000:]

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()

    def result(self) -> dict[str, Any]:
        told, _ = self.process.communicate(timeout=120)
        return dict(json.loads(told.splitlines()[-1]))


def stored_in_s(client: duolog.sync.Client) -> int:
    """How many messages the one queue of the programs' topic holds."""
    (topic,) = client.admin.topics(["S"])
    return int(topic.stats[0].max_offset)


def more_is_stored(client: duolog.sync.Client, most: float) -> float:
    """Wait until the program has stored some messages more; seconds until the first of them."""
    began, before, first = time.monotonic(), stored_in_s(client), 0.0
    while (stored := stored_in_s(client)) < before + MORE:
        first = first or (time.monotonic() - began if stored > before else 0.0)
        assert first or time.monotonic() < began + most, "no send in time"
        assert time.monotonic() < began + 4 * most, f"only {stored - before} sends in time"
        time.sleep(0.05)
    return first or time.monotonic() - began


def in_sync(client: duolog.sync.Client) -> int:
    """How many nodes of the replica group are."""
    groups = client.admin.route().groups
    return sum(replica.in_sync for replica in groups[0].replicas) if groups else 0


RESUMED_SECONDS_MAX = 60.0
MORE = 6
READY = 51  # messages that a program has had acknowledged when it says that it is ready
STREAMS = pytest.mark.parametrize(
    ("command", "program"),
    [
        (java, "Streaming.java"),
        (go, "streaming.go"),
        (nodejs, "streaming.mjs"),
        pytest.param(rust, "streaming.rs", marks=pytest.mark.timeout(1200)),
    ],
    ids=["java", "go", "nodejs", "rust"],
)


@STREAMS
def test_a_stream_over_restarts_of_its_node(
    command: Callable[[Path, str], list[str]], program: str, tmp_path: Path
) -> None:
    """The node is killed and stopped under load: every acknowledged message is consumed."""
    node = NodeProcess(tmp_path / "data", *SMALL)
    node.start()
    with duolog.sync.Client(node.endpoint, timeout=60) as client:
        client.admin.create_topic("S", 1)
    with Stream(command(tmp_path, program), node.endpoint, tmp_path) as stream:
        node.kill()
        time.sleep(1)
        node.start()
        with duolog.sync.Client(node.endpoint, timeout=60) as client:
            more_is_stored(client, RESUMED_SECONDS_MAX)
        assert node.stop() == 0
        node.start()
        with duolog.sync.Client(node.endpoint, timeout=60) as client:
            more_is_stored(client, RESUMED_SECONDS_MAX)
        found = stream.result()
    assert node.stop() == 0
    assert found["missing"] == []
    assert found["acknowledged"] > READY


@STREAMS
def test_a_stream_over_the_death_of_its_master(
    command: Callable[[Path, str], list[str]], program: str, tmp_path: Path
) -> None:
    """The master, one of three access points, dies: sends continue once there is a new one."""
    need_etcd()
    target = ProcessTarget(tmp_path / "cluster", lease_seconds=LEASE_SECONDS, flags=SMALL)
    target.start()
    try:
        endpoints = [target.endpoint(name) for name in target.nodes]
        with duolog.sync.Client(endpoints, timeout=60) as client:
            wait_until(lambda: in_sync(client) == len(target.nodes))
            create_topic(client, "S", 1)
            master = client.admin.route().groups[0].master
            if command is nodejs:  # it takes one access point alone: one that will not die
                slaves = [name for name in target.nodes if name != master]
                endpoints = [target.endpoint(slaves[0])]
            command_line = command(tmp_path, program)
            with Stream(command_line, ";".join(endpoints), tmp_path) as stream:
                target.kill(master)
                next_master(target, master)
                waited = more_is_stored(client, LED_SECONDS_MAX)
                print(f"{program}: stored {waited:.1f} s after the next master leads")
                wait_until(lambda: in_sync(client) < len(target.nodes))
                target.revive(master)
                wait_until(lambda: in_sync(client) == len(target.nodes))
                found = stream.result()
            assert client.admin.route().groups[0].master != master
    finally:
        target.stop()
    assert found["missing"] == []
    assert found["acknowledged"] > READY
