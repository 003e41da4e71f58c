"""NATS JetStream: one server, or three whose streams have three replicas, with nats-py."""

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

MEMBERS = 3
NO_BATCH = {
    "batch_small": "post_small",
    "batch_large": "post_large",
    "replicated_batch_small": "replicated_post_small",
    "server_cpu_batch": "server_cpu_post",
    "client_cpu_batch": "client_cpu_post",
}


@dataclass(frozen=True)
class NatsServers:
    """One, or a cluster."""

    processes: Sequence[ChildProcess]
    address: str

    def client(self, work: Work) -> ClientProgram:
        """A program of nats-py."""
        return program("jetstream", self.address, work)


class JetStream:
    """As Debian has it."""

    name = "jetstream"
    facts = Facts(
        title="NATS JetStream",
        settings=(
            "file storage; sync_interval 2 minutes, the default: acknowledged from the page cache",
            "client: nats-py on asyncio",
            "one call a message: `publish_async`, 256 in flight, every acknowledgement checked",
            "replicated: three servers, streams with num_replicas 3, a majority acknowledges",
            "consumption: a pull consumer without acknowledgements, `fetch(1000)`",
        ),
        favours=(
            "for it: consumption without acknowledgements",
            "against it: its client in Python costs more than its server; its clients in other "
            "languages are not measured",
            "against it: three replicas instead of two",
        ),
        empty={"consume_each": "its pull consumers give lists"},
        same_as=NO_BATCH,
        replicated_processes="3 servers",
        consumed=80_000,
        recovery_rounds=1,
    )

    def prepare(self) -> dict[str, str]:
        """Raises Unavailable."""
        try:
            client = importlib.metadata.version("nats-py")
        except importlib.metadata.PackageNotFoundError:
            raise Unavailable("the package nats-py is not installed") from None
        if shutil.which("nats-server") is None:
            raise Unavailable("nats-server is not installed (apt-get install nats-server)")
        found = subprocess.run(["nats-server", "--version"], capture_output=True, text=True)
        return {"nats-server": found.stdout.split()[-1].lstrip("v"), "nats-py": client}

    def servers(self, root: Path, replicated: bool) -> NatsServers:
        """One, or three."""
        count = MEMBERS if replicated else 1
        ports = free_ports(2 * count)
        clients, routes = ports[:count], ports[count:]
        processes = []
        for number, (port, route) in enumerate(zip(clients, routes, strict=True)):
            name = f"nats-{number}"
            command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-n", name]
            command += ["-js", "-sd", str(root / name)]
            if replicated:
                command += ["--cluster_name", "bench", "--cluster", f"nats://127.0.0.1:{route}"]
                command += ["--routes", ",".join(f"nats://127.0.0.1:{other}" for other in routes)]
            processes.append(Server(name, command, root / f"{name}.log"))
        return NatsServers(processes, ",".join(f"127.0.0.1:{port}" for port in clients))
