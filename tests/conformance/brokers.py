"""RocketMQ's own name server and broker, with small files, for tests that move a broker."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.peers import maven
from bench.peers.peer import Server, Unavailable
from bench.peers.rocketmq import MODULES, OPENS
from demo.ports import free_ports

HEAP = ("-Xms256m", "-Xmx256m", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=1")
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


def cluster(root: Path, version: str, *, java: Sequence[str] = (), **settings: object) -> Cluster:
    """One that is not started yet; skips the test where its jars cannot be had.

    java: options of both servers. The broker's own directory is `root` / "home-broker".
    """
    group = "org.apache.rocketmq:rocketmq-"
    try:
        jars = maven.jars(
            f"rocketmq-{version}", [f"{group}{module}:{version}" for module in MODULES]
        )
    except Unavailable as error:
        pytest.skip(str(error))
    port, names = _broker_port(), free_ports(1)[0]
    store = root / "rocketmq"  # not "store": programs that begin in `root` would import that
    rows = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": NAME,
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "namesrvAddr": f"127.0.0.1:{names}",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "flushDiskType": "ASYNC_FLUSH",
        "diskMaxUsedSpaceRatio": 95,
        "maxHashSlotNum": 50_000,
        "maxIndexNum": 200_000,
        **settings,
    }
    served = {"listenPort": names, "bindAddress": "127.0.0.1"}
    made = Cluster(
        _server(root, jars, "namesrv.NamesrvStartup", _file(root / "namesrv.conf", served), java),
        _server(root, jars, "broker.BrokerStartup", _file(root / "broker.conf", rows), java),
        f"127.0.0.1:{names}",
        f"127.0.0.1:{port}",
        store,
    )
    made.names.ready_seconds = made.broker.ready_seconds = READY_SECONDS
    made.names.endpoint, made.broker.endpoint = made.name_server, made.address
    return made


def _broker_port() -> int:
    """A port whose companions, two below and one above, are free as well."""
    for _ in range(20):
        given = sorted(free_ports(4))
        if given[-1] - given[0] == 3:
            return given[2]
    raise OSError("no free ports beside each other")


def _file(path: Path, rows: dict[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
    return path


def _server(root: Path, jars: Path, main: str, configuration: Path, java: Sequence[str]) -> Server:
    home = root / f"home-{configuration.stem}"
    (home / "conf").mkdir(parents=True)
    for logs in ("namesrv", "broker"):  # 4.9 does not start without
        (home / "conf" / f"logback_{logs}.xml").write_text("<configuration/>\n")
    flags = [*HEAP, *OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", *java]
    words = [f"org.apache.rocketmq.{main}", "-c", str(configuration)]
    command = ["java", *flags, "-cp", f"{jars}/*", *words]
    return Server(configuration.stem, command, root / f"{configuration.stem}.log")
