"""RocketMQ's own name server and broker, with small files, for tests that move a broker."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from duolog.testing._ports import free_ports
from duolog.testing._process import ChildProcess

from bench.peers.peer import Server, Unavailable
from bench.peers.rocketmq import LINK_PORT, PATIENT, RocketMq, broker_port, server_process
from tests.conformance.languages import SHORT_LIVED

HEAP = ("-Xms256m", "-Xmx256m", "-XX:MaxDirectMemorySize=512m", *SHORT_LIVED)
NAME = "broker-a"
READY_SECONDS = 180.0  # a JVM beside others


@dataclass(frozen=True, slots=True)
class Cluster:
    """A name server and one broker; both are started and stopped by the test."""

    names: Server
    broker: Server
    name_server: str
    address: str
    store: Path


def jars_of(version: str) -> Path:
    """The folder with a version of RocketMQ, its client included; skips where Maven has it not."""
    try:
        return RocketMq(version).jars()
    except Unavailable as reason:
        pytest.skip(str(reason))


def cluster(root: Path, version: str, *, java: Sequence[str] = (), **settings: object) -> Cluster:
    """One that is not started yet; skips the test where its jars cannot be had.

    java: options of both servers. The broker's own directory is `root` / "home-broker".
    """
    jars = jars_of(version)
    port, names = broker_port(), free_ports(1)[0]
    store = root / "rocketmq"
    rows = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": NAME,
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "namesrvAddr": f"127.0.0.1:{names}",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + LINK_PORT,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "flushDiskType": "ASYNC_FLUSH",
        "diskMaxUsedSpaceRatio": 95,
        "maxHashSlotNum": 50_000,
        "maxIndexNum": 200_000,
        **PATIENT,
        **settings,
    }
    served = {"listenPort": names, "bindAddress": "127.0.0.1"}
    naming = ("-c", str(_file(root / "namesrv.conf", served)))
    serving = ("-c", str(_file(root / "broker.conf", rows)))
    heap = (*HEAP, *java)
    made = Cluster(
        server_process(root, jars, "namesrv.NamesrvStartup", naming, heap),
        server_process(root, jars, "broker.BrokerStartup", serving, heap),
        f"127.0.0.1:{names}",
        f"127.0.0.1:{port}",
        store,
    )
    made.names.ready_seconds = made.broker.ready_seconds = READY_SECONDS
    made.names.endpoint, made.broker.endpoint = made.name_server, made.address
    return made


def end_server(server: ChildProcess) -> None:
    """Kill a server, unless it has ended: a stop takes seconds, and nobody reads what it leaves."""
    if server.running:
        server.kill()


def _file(path: Path, rows: dict[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
    return path
