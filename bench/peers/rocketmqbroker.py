"""Servers of RocketMQ: a broker whose store outlives a change of its role, and a name server."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duolog.testing._ports import free_ports

from bench.peers.peer import Server
from bench.peers.rocketmq import LINK_PORT, PATIENT, broker_port, server_process
from duolog_server.compat.remoting.codec import fastjson

HEAP = ("-Xms96m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
GROUP = "broker-a"
INDEX_SLOTS, INDEX_ENTRIES = 50_000, 200_000


@dataclass
class RocketmqBroker:
    """One broker. heap: flags of its Java; a small one, that of a test, where not given."""

    root: Path
    jars: Path
    segment_bytes: int
    heap: Sequence[str] = HEAP

    def __post_init__(self) -> None:
        self.port = broker_port()
        self.store = self.root / "store"
        self.root.mkdir(parents=True)
        self._starts = 0

    @property
    def link(self) -> str:
        """Where its own slaves would copy its log."""
        return f"127.0.0.1:{self.port + LINK_PORT}"

    def server(self, role: str, number: int, names: str, **more: object) -> Server:
        """Its process in a role, not yet started.

        names: address of name servers. more: keys of its configuration, and others than here.
        """
        rows = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": GROUP,
            "brokerId": number,
            "brokerRole": role,
            "namesrvAddr": names,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": self.port + LINK_PORT,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": self.segment_bytes,
            "maxMessageSize": min(self.segment_bytes // 2, 4 << 20),
            "maxHashSlotNum": INDEX_SLOTS,
            "maxIndexNum": INDEX_ENTRIES,
            "diskMaxUsedSpaceRatio": 95,
            "autoCreateTopicEnable": "false",
            "timerWheelEnable": "false",
            "registerNameServerPeriod": 10_000,
            **PATIENT,
            **more,
        }
        self._starts += 1
        root = self.root / f"start{self._starts}"
        root.mkdir()
        configuration = root / "broker.conf"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in rows.items()))
        words = ["-c", str(configuration)]
        return server_process(root, self.jars, "broker.BrokerStartup", words, self.heap)

    def table(self, name: str) -> dict[str, Any]:
        """One of its files of metadata; empty while there is none."""
        path = self.store / "config" / name
        try:
            found: dict[str, Any] = loads(path.read_text())
        except (OSError, ValueError):
            return {}
        return found


def loads(text: str) -> Any:
    """JSON as RocketMQ writes it: numbers may be keys."""
    return json.loads(json.dumps(fastjson.loads(text.encode())))


def name_server(root: Path, jars: Path) -> tuple[Server, str]:
    """A name server of RocketMQ, not yet started, and its address."""
    root.mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    configuration = root / "namesrv.conf"
    port = address.rpartition(":")[2]
    configuration.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
    words = ["-c", str(configuration)]
    return server_process(root, jars, "namesrv.NamesrvStartup", words, HEAP), address


def digests(commitlog: Path) -> dict[str, str]:
    """SHA-256 of every segment of a log, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(commitlog.iterdir())
    }
