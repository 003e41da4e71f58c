"""duolog itself: one node, or a SYNC_MASTER and its slave."""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from bench.peers.clients.program import program
from bench.peers.peer import ClientProgram, Facts, Work


@dataclass(frozen=True)
class Nodes:
    """The slave comes first: the master is the one that is killed."""

    processes: Sequence[ChildProcess]
    address: str

    def client(self, work: Work) -> ClientProgram:
        """A program of the SDK."""
        return program("ours", self.address, work)


class Duolog:
    """This repository."""

    name = "duolog"
    facts = Facts(
        title="duolog",
        settings=(
            "ASYNC_FLUSH, the default; topics with 4 queues",
            "batch call: `send_batch` with 5 MiB of bodies, two calls in flight",
            "one call a message: `producer.post`, then `flush`, which raises the error of any "
            "message that was not stored",
            "one at a time: the client has `busy_poll_us=250`, the node's default; both look for "
            "what comes next before they sleep",
            "replicated: SYNC_MASTER and one slave",
            "consumption: `consumer.get`, which takes objects out of fetched batches; it has no "
            "other call that gives objects",
        ),
        favours=(
            "for it: the machine is the one that it is developed on, and its batches may be as "
            "large as the client likes",
            "against it: server and client are Python, and the client's clock for consumption "
            "starts before the first request, the others' with the first delivery",
        ),
        same_as={"consume_each": "consume"},
        replicated_processes="2 servers",
        consumed=1_500_000,
    )

    def prepare(self) -> dict[str, str]:
        """It is here."""
        return {"duolog": importlib.metadata.version("duolog-server")}

    def servers(self, root: Path, replicated: bool) -> Nodes:
        """One node, or two."""
        if not replicated:
            node = ChildNode(root / "single")
            return Nodes([node], node.endpoint)
        link = free_endpoint()
        master = ChildNode(root / "master", "--role", "SYNC_MASTER", "--ha-listen", link)
        slave = ChildNode(root / "slave", "--role", "SLAVE", "--ha-master", link)
        return Nodes([slave, master], master.endpoint)
