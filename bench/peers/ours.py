"""duolog itself: one node, or a SYNC_MASTER and its slave; with its SDK, or RocketMQ's client."""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duolog.testing._node import ChildNode
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from bench.peers import maven
from bench.peers.clients.program import program
from bench.peers.peer import ClientProgram, Facts, Work
from bench.peers.rocketmq import CLIENT, Brokers, RocketMq


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
        return _nodes(root, replicated)


class OverRemoting:
    """duolog over the remoting protocol, with RocketMQ's Java client."""

    name = "duolog-remoting"

    def __init__(self, rocketmq: RocketMq) -> None:
        """rocketmq: the version whose client it is."""
        self._rocketmq = rocketmq

    @property
    def facts(self) -> Facts:
        """For the page."""
        theirs = self._rocketmq.facts
        return replace(
            theirs,
            title=f"duolog, client of {theirs.title}",
            settings=(
                "ASYNC_FLUSH, the default; `remoting.listen`, `limits.auto_create_topic`",
                f"client: the program of {theirs.title}, with the same settings",
                "replicated: SYNC_MASTER and one slave",
            ),
            favours=(f"for it and against it: as for the client of {theirs.title}",),
            processes=Duolog.facts.processes,
            replicated_processes=Duolog.facts.replicated_processes,
        )

    def prepare(self) -> dict[str, str]:
        """Jars from Maven Central. Raises Unavailable."""
        return {**Duolog().prepare(), **self._rocketmq.prepare()}

    def servers(self, root: Path, replicated: bool) -> Brokers:
        """One node, or two."""
        listen, jars = free_endpoint(), self._rocketmq.jars()
        flags = ("--set", "limits.auto_create_topic=true", "--set", "remoting.vip_channel=false")
        nodes = _nodes(root, replicated, ("--set", f"remoting.listen={listen}", *flags))
        return Brokers(nodes.processes, listen, root, jars, maven.compiled(CLIENT, jars))


def _nodes(root: Path, replicated: bool, flags: Sequence[str] = ()) -> Nodes:
    """One node, or a master and its slave. flags: the master's."""
    if not replicated:
        node = ChildNode(root / "single", *flags)
        return Nodes([node], node.endpoint)
    link = free_endpoint()
    master = ChildNode(root / "master", "--role", "SYNC_MASTER", "--ha-listen", link, *flags)
    slave = ChildNode(root / "slave", "--role", "SLAVE", "--ha-master", link)
    return Nodes([slave, master], master.endpoint)
