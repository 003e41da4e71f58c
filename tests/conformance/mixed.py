"""RocketMQ's own name server and broker, beside which nodes register."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.peers import maven
from bench.peers.peer import Unavailable
from bench.peers.rocketmq import LINK_PORT, MODULES, OPENS
from demo.childprocess import ChildProcess
from demo.ports import free_ports
from node.config import FAST_PORT

SMALL_HEAP = ("-Xms128m", "-Xmx128m", "-XX:TieredStopAtLevel=1")
CLUSTER = "DefaultCluster"
BROKER = "rocketmq-a"
FIRST_PORTS = 20


def jars(version: str) -> Path:
    """RocketMQ of a version, with its client; skips where Maven cannot have it."""
    try:
        artifacts = [f"org.apache.rocketmq:rocketmq-{module}:{version}" for module in MODULES]
        return maven.jars(f"rocketmq-{version}", artifacts)
    except Unavailable as reason:
        pytest.skip(str(reason))


def name_server(root: Path, libraries: Path) -> ChildProcess:
    """A name server, started, that answers at its `name`: HOST:PORT."""
    port = free_ports(1)[0]
    configuration = root / "namesrv.conf"
    configuration.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
    words = ["namesrv.NamesrvStartup", "-c", str(configuration)]
    return _started(root, libraries, words, f"127.0.0.1:{port}")


def broker(root: Path, libraries: Path, names: str, topics: Sequence[str]) -> ChildProcess:
    """A broker of RocketMQ with topics of 4 queues, started; `name` is its HOST:PORT."""
    port = _port()
    store = root / "broker"
    (store / "config").mkdir(parents=True)
    rows = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for name in topics
    }
    table = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": rows}
    (store / "config" / "topics.json").write_text(json.dumps(table))
    properties = {
        "brokerClusterName": CLUSTER,
        "brokerName": BROKER,
        "brokerId": 0,
        "namesrvAddr": names,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + LINK_PORT,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": 1 << 24,
        "mappedFileSizeConsumeQueue": 300_000,
        "maxIndexNum": 200_000,
        "maxHashSlotNum": 50_000,
        "diskMaxUsedSpaceRatio": 95,
    }
    configuration = root / "broker.conf"
    configuration.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    words = ["broker.BrokerStartup", "-c", str(configuration)]
    return _started(root, libraries, words, f"127.0.0.1:{port}")


def _port() -> int:
    """A port whose companions are free as well."""
    for _ in range(FIRST_PORTS):
        given = set(free_ports(LINK_PORT - FAST_PORT + 1))
        port = min(given) - FAST_PORT
        if {port, port + FAST_PORT, port + LINK_PORT} <= given:
            return port
    raise AssertionError("there are no free ports beside each other")


def _started(root: Path, libraries: Path, words: Sequence[str], address: str) -> ChildProcess:
    name = Path(words[-1]).stem
    home = root / f"home-{name}"
    (home / "conf").mkdir(parents=True)
    for logs in ("namesrv", "broker"):  # 4.9 does not start without
        (home / "conf" / f"logback_{logs}.xml").write_text("<configuration/>\n")
    flags = [*SMALL_HEAP, *OPENS, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    main, *rest = words
    command = ["java", *flags, "-cp", f"{libraries}/*", f"org.apache.rocketmq.{main}", *rest]
    process = ChildProcess(address, command, root / f"{name}.log")
    process.start()
    process.wait_listening(address)
    return process
