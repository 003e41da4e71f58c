"""Redis streams: one server that appends to a file and syncs it every second, with redis-py."""

import importlib.metadata
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duolog.testing._ports import free_ports
from duolog.testing._process import ChildProcess

from bench.peers.clients.program import program
from bench.peers.peer import ClientProgram, Facts, Server, Unavailable, Work

PACKAGES = ("redis", "hiredis")
NO_REPLICAS = "a replica is asynchronous; WAIT counts acknowledgements, it does not hold them back"


@dataclass(frozen=True)
class RedisServer:
    """One."""

    processes: Sequence[ChildProcess]
    address: str

    def client(self, work: Work) -> ClientProgram:
        """A program of redis-py."""
        return program("redisstreams", self.address, work)


class RedisStreams:
    """As Debian has it."""

    name = "redis"
    facts = Facts(
        title="Redis streams",
        settings=(
            "append-only file with appendfsync everysec, no snapshots, the append-only file is not "
            "rewritten meanwhile",
            "client: redis-py with hiredis, synchronous",
            "batch call: `xadd` into a pipeline, `execute` for each 1,000; that is its form of one "
            "call a message, too",
            "consumption: XREAD with COUNT 1,000, no consumer group",
        ),
        favours=(
            "for it: no consumer group, nothing is acknowledged; all data is in memory",
            "against it: its client is Python, and a pipeline waits for its answers before the "
            "next one goes out",
        ),
        empty={
            "consume_each": "XREAD gives lists",
            "replicated_batch_small": NO_REPLICAS,
            "replicated_post_small": NO_REPLICAS,
            "replicated_batch_large": NO_REPLICAS,
            "replicated_single": NO_REPLICAS,
        },
        same_as={
            "post_small": "batch_small",
            "post_large": "batch_large",
            "server_cpu_post": "server_cpu_batch",
            "client_cpu_post": "client_cpu_batch",
        },
        consumed=250_000,
    )

    def prepare(self) -> dict[str, str]:
        """Raises Unavailable."""
        try:
            versions = {name: importlib.metadata.version(name) for name in PACKAGES}
        except importlib.metadata.PackageNotFoundError as error:
            raise Unavailable(f"the package {error.name} is not installed") from None
        if shutil.which("redis-server") is None:
            raise Unavailable("redis-server is not installed (apt-get install redis-server)")
        found = subprocess.run(["redis-server", "--version"], capture_output=True, text=True)
        version = found.stdout.partition("v=")[2].split()[0]
        return {"redis-server": version, "redis-py": versions["redis"]} | {
            "hiredis": versions["hiredis"]
        }

    def servers(self, root: Path, replicated: bool) -> RedisServer:
        """One."""
        assert not replicated, "those rows have no figure"
        port = free_ports(1)[0]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(root)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
        command += ["--auto-aof-rewrite-percentage", "0"]
        return RedisServer([Server("redis", command, root / "redis.log")], f"127.0.0.1:{port}")
