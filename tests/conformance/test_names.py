"""Nodes at RocketMQ's own name server: one cluster with its brokers, clients that know it alone."""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duolog.sync
import pytest
from duolog.testing._ports import free_endpoint, free_ports

from bench.peers.peer import Server
from bench.peers.rocketmqbroker import RocketmqBroker, name_server
from duolog_server.chaos.processes import ProcessTarget
from duolog_server.compat.remoting.calling import CallRefused, connect
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from tests.conformance.brokers import READY_SECONDS, end_server, jars_of
from tests.conformance.conftest import LEASE_SECONDS, LED_SECONDS_MAX, SMALL, next_master
from tests.conformance.languages import java_with, need, outcome
from tests.etcd import need_etcd
from tests.process.support import NodeProcess
from tests.topics import create_topic
from tests.until import wait_until

pytestmark = [pytest.mark.process, pytest.mark.long]

VERSION = "4.9.7"
BROKER = "rocketmq-a"
SEGMENT_BYTES = 16 << 20
SENDS = 80
WELL = 3  # looks in a row that found no failure
ROUTE_MS = 1000  # how often a producer asks for routes: with its 30 s, a crash is a gap up to that


@pytest.fixture
def names(tmp_path: Path) -> Iterator[str]:
    """A name server: its HOST:PORT."""
    need("java", "mvn")
    server, address = name_server(tmp_path / "names", jars_of(VERSION))
    server.start()
    server.wait_listening(address)
    yield address
    end_server(server)


def rocketmq(root: Path, names: str, topic: str) -> Server:
    """A broker of RocketMQ with a topic of 4 queues, started."""
    broker = RocketmqBroker(root, jars_of(VERSION), SEGMENT_BYTES)
    row = {"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": {topic: row}}
    (broker.store / "config").mkdir(parents=True)
    (broker.store / "config" / "topics.json").write_text(json.dumps(table))
    server = broker.server("ASYNC_MASTER", 0, names, brokerName=BROKER)
    server.start()
    return server


def java(home: Path, program: str, *words: str) -> list[str]:
    """The command that runs a program with the classic client."""
    return [*java_with(jars_of(VERSION), home, program), *words]


def ask(names: str, code: RequestCode, **fields: str) -> Command:
    """What the name server answers."""

    async def answer() -> Command:
        calling = await connect(names)
        try:
            return await calling.call(code, fields)
        finally:
            calling.close()

    return asyncio.run(answer())


def brokers(names: str, topic: str) -> set[str]:
    """The brokers whose queues the name server gives for a topic."""
    code, only = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"acceptStandardJsonOnly": "true"}
    try:
        found = ask(names, code, topic=topic, **only)
        return {row["brokerName"] for row in json.loads(found.body)["queueDatas"]}
    except (CallRefused, OSError):  # it knows no such topic, or stands still
        return set()


def test_one_cluster_of_rocketmq_and_duolog(tmp_path: Path, names: str) -> None:
    with ExitStack() as stack:
        broker = rocketmq(tmp_path / "rocketmq", names, "M")
        stack.callback(end_server, broker)
        node = NodeProcess(
            tmp_path / "data", *SMALL,
            "--set", f"remoting.listen={free_endpoint()}",
            "--set", f"remoting.namesrv_addr={names}",
        )  # fmt: skip
        node.start()
        stack.callback(node.stop)
        with duolog.sync.Client(node.endpoint, timeout=60) as client:
            client.admin.create_topic("M", 4)

            def known() -> tuple[set[str], int, int]:
                parts = client.admin.node_status().parts
                return brokers(names, "M"), parts["name_servers"], parts["name_servers_lost"]

            def both_are_known() -> float:
                """Seconds until the name server knows both, and the node knows it."""
                # A registration that takes too long has lost its name server until the next one.
                began = time.monotonic()
                wait_until(
                    lambda: known() == ({BROKER, "broker-a"}, 1, 0),
                    "the name server knows both, and the node knows it",
                    seconds=READY_SECONDS,
                )
                return time.monotonic() - began

            both_are_known()
            # A namesake elsewhere stops, as the broker that a node took over from.
            ask(
                names, RequestCode.UNREGISTER_BROKER, clusterName="DefaultCluster",
                brokerName="broker-a", brokerAddr="10.0.0.9:10911", brokerId="0",
            )  # fmt: skip
            print(f"known again, if it was forgotten, after {both_are_known():.2f} s")
        found: dict[str, Any] = outcome(*java(tmp_path, "Mixed.java", names, "M", str(SENDS)))
    half = {BROKER: SENDS // 2, "broker-a": SENDS // 2}
    assert found["sent"] == half, "queues of both, in turn"
    assert found["read"] == half


class Spread(ProcessTarget):
    """Nodes on addresses of their own, with the same ports, as on three machines."""

    def __init__(self, directory: Path, *flags: str, lease_seconds: int = LEASE_SECONDS) -> None:
        super().__init__(directory, lease_seconds=lease_seconds, flags=SMALL)
        client, remoting = free_ports(2)
        self.remoting = []
        for number, node in enumerate(self._nodes.values(), 1):
            host = f"127.0.0.{number}"
            node.endpoint = f"{host}:{client}"
            self.remoting.append(f"{host}:{remoting}")
            node.flags += ("--set", f"remoting.listen={self.remoting[-1]}", *flags)


def in_sync(client: duolog.sync.Client) -> str:
    """Wait until all three nodes are in sync; the master."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        groups = client.admin.route().groups
        if groups and sum(replica.in_sync for replica in groups[0].replicas) == 3:
            return str(groups[0].master)
        time.sleep(0.05)
    raise TimeoutError("not in sync")


class Gaps:
    """A producer that sends without end."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line("ready")

    def _line(self, begin: str) -> str:
        """The next line that begins so; the client's log may be between them."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(begin):
                return line
        raise AssertionError("the program has ended")

    def longest(self) -> dict[str, int]:
        """The longest gap since the last call, ms, and how many sends succeeded and failed."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._line("{")))

    def after(self, seconds: float) -> dict[str, int]:
        """The same, once sends have succeeded for a while again."""
        end, longest, sent, failed, well = time.monotonic() + seconds, 0, 0, 0, 0
        while time.monotonic() < end:
            time.sleep(0.5)
            found = self.longest()
            longest = max(longest, found["longest_ms"])
            sent, failed = sent + found["sent"], failed + found["failed"]
            well = well + 1 if found["sent"] and not found["failed"] else 0
            if well == WELL:
                return {"longest_ms": longest, "sent": sent, "failed": failed}
        raise TimeoutError(f"the longest gap lasts: {longest} ms, {failed} failed")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def sending(home: Path, servers: str, route_ms: int) -> Iterator[Gaps]:
    """One that runs."""
    made = Gaps(java(home, "Gaps.java", servers, "S", str(route_ms)))
    try:
        yield made
    finally:
        made.end()


def test_a_producer_goes_on_when_masters_change(tmp_path: Path, names: str) -> None:
    """A switch is no gap, also for one that asks for routes every 30 s; a crash is a short one."""
    need_etcd()
    target = Spread(tmp_path / "cluster", "--set", f"remoting.namesrv_addr={names}")
    target.start()
    try:
        endpoints = [target.endpoint(one) for one in target.nodes]
        with duolog.sync.Client(endpoints, timeout=60) as client:
            in_sync(client)
            create_topic(client, "S", 4)
            with sending(tmp_path, names, 0) as slow, ExitStack() as stack:
                quick = stack.enter_context(sending(tmp_path, names, ROUTE_MS))
                for one in (slow, quick):
                    one.longest()
                client.admin.failover()
                switch = [one.after(LED_SECONDS_MAX) for one in (slow, quick)]
                master = in_sync(client)
                quick.longest()
                target.kill(master)
                next_master(target, master)
                crash = quick.after(LED_SECONDS_MAX)
        print(f"planned switch: {switch}; SIGKILL: {crash}")
    finally:
        target.stop()
