"""A replica group of nodes on this machine, which elect their master."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

import duolog
from duolog._checks import checked_number, checked_whole
from duolog.sync import Client
from duolog.testing._forks import NODES
from duolog.testing._lifetime import Lifetime
from duolog.testing._node import ForkedNode, settings_flags
from duolog.testing._ports import free_endpoint
from duolog.testing._process import READY_SECONDS, ChildError, ChildProcess
from duolog.testing._server import server_python

T = TypeVar("T")
NODES_RANGE = 2, 9  # a group takes no message before it has two
PROBE_TOPIC = "duolog-probe"
POLL_SECONDS = 0.02
CALL_SECONDS = 2.0  # of one question; the node that should answer it may just have been killed


class Registry(ChildProcess):
    """The registry of a group, as etcd is one, in the memory of a process."""

    kind = "registry"
    program = "duolog_server.demo.registryserver"

    def __init__(self) -> None:
        super().__init__("registry", [], Path("registry.log"))
        self.endpoint = free_endpoint()

    def place(self, directory: Path) -> None:
        """Have its log in a directory."""
        self.log = directory / "registry.log"

    def spawn(self) -> "subprocess.Popen[bytes]":
        """The process, just forked."""
        forked = NODES.start([self.endpoint], self.log, self.program)
        return cast("subprocess.Popen[bytes]", forked)


class Cluster(Lifetime):
    """A group of nodes that elect their master, for the time of a test.

    with Cluster(3) as cluster, duolog.sync.Client(cluster.endpoints) as client:
        cluster.master().kill()

    The registry that a real group has in etcd is the memory of a process of its own here. Nodes
    are killed, paused, resumed and started again by their own methods. When the block ends, or
    this process ends in any way, all nodes end and their data are removed.

    Attributes:
        nodes: the nodes, `n1`, `n2` and so on.
    """

    def __init__(
        self,
        nodes: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        lease_seconds: int = 2,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """Args:
        nodes: how many, 2 to 9.
        settings: of the configuration of each, such as `{"node.durability": "power"}`.
        lease_seconds: a master that has not been heard of for so long is replaced.
        ready_seconds: longest start, and longest wait of `master`, `settle` and `switch`.

        Raises ServerMissing where no server is installed.
        """
        checked_whole("nodes", nodes, *NODES_RANGE)
        self._lock = threading.RLock()  # a cancelled start still runs in its thread
        self._seconds = checked_number("ready_seconds", ready_seconds, 0)
        self._directory: Path | None = None
        server_python()
        self._registry = Registry()
        flags = settings_flags({"registry.lease_seconds": lease_seconds})
        flags += settings_flags(settings or {})
        elects = ("--role", "AUTO", "--registry", self._registry.endpoint, "--ha-listen")
        self.nodes = tuple(
            ForkedNode(f"n{number + 1}", *elects, free_endpoint(), *flags)
            for number in range(nodes)
        )
        self._processes: tuple[ForkedNode | Registry, ...] = (*self.nodes, self._registry)
        for node in self.nodes:
            node.ready_seconds = ready_seconds

    @property
    def endpoints(self) -> list[str]:
        """HOST:PORT of every node, for `duolog.Client`."""
        return [node.endpoint for node in self.nodes]

    def start(self) -> None:
        """Start all nodes, and wait until one leads and the others follow. Raises ChildError."""
        with self._lock:
            if self._directory is None:
                self._directory = NODES.directory()
                for process in self._processes:
                    process.place(self._directory)
            if not self._registry.running:
                self._registry.start()
            with ThreadPoolExecutor(len(self.nodes)) as pool:  # nodes wait for their registry
                list(pool.map(ForkedNode.start, self.nodes))
            self.settle()

    def close(self) -> None:
        """End all nodes and remove their data. May be called again.

        In a child that was forked from this process, it does nothing.
        """
        if NODES.inherited:
            return
        with self._lock:
            for process in self._processes:
                process.end()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    # -- mastership ----------------------------------------------------------------------------

    def master(self) -> ForkedNode:
        """The node that leads. Waits for an election where none does, or it was killed or paused.

        Raises ChildError.
        """
        return self._until(self._leader, "no node leads")

    def settle(self) -> None:
        """Wait until a node leads, all that answer are in sync, and topics can be created.

        Raises ChildError.
        """
        self._until(self._in_sync, "not all nodes are in sync")
        self._until(_takes_topics, "the master creates no topics")

    def switch(self, to: ForkedNode | None = None) -> ForkedNode:
        """Make another node the master while all live; the node that leads then.

        to: the next master; any that is in sync where not given. Raises BadRequest where it was
        killed or paused, ChildError where it does not lead in time.
        """
        if to is not None and not to.answering:
            raise duolog.BadRequest(f"{to.name} cannot lead: it was killed or paused")
        old = self.master()
        if to is old:
            return old

        def next_leader(client: Client, route: duolog.GroupRoute) -> ForkedNode | None:
            leader = self._leader(client, route)
            if leader not in (None, old) and to in (None, leader):
                return leader
            try:
                client.admin.failover(to.name if to else "", epoch=route.epoch)
            except duolog.BadRequest as error:  # as where others have not reached it yet
                raise duolog.Busy(str(error)) from None
            return None

        return self._until(next_leader, f"{to.name} does not lead" if to else "no other node leads")

    def _leader(self, _: Client, route: duolog.GroupRoute) -> ForkedNode | None:
        """The node that leads, unless it was killed or paused."""
        leaders = (node for node in self.nodes if node.name == route.master and node.answering)
        return next(leaders, None)

    def _in_sync(self, client: Client, route: duolog.GroupRoute) -> bool:
        in_sync = {replica.node for replica in route.replicas if replica.in_sync}
        answering = {node.name for node in self.nodes if node.answering}
        return self._leader(client, route) is not None and in_sync == answering

    def _client(self) -> Client:
        answering = [node.endpoint for node in self.nodes if node.answering]
        if not answering:
            raise ChildError("no node of the cluster is running")
        return Client(answering, timeout=CALL_SECONDS)

    def _until(self, found: Callable[[Client, duolog.GroupRoute], T | None], what: str) -> T:
        """What is found in the route, as soon as it is true. Raises ChildError, with logs."""
        deadline, last = time.monotonic() + self._seconds, ""
        with self._client() as client:
            while time.monotonic() < deadline and self._registry.running:
                try:
                    groups = client.admin.route().groups
                    if groups and (seen := found(client, groups[0])):
                        return seen
                    last = str(groups)
                except (duolog.Retryable, duolog.ResultUnknown) as error:
                    last = str(error)
                time.sleep(POLL_SECONDS)
        logs = "\n".join(f"{one.log}:\n{one.log_tail()}" for one in self._processes)
        ended = "" if self._registry.running else ": the registry has ended"
        raise ChildError(f"{what} within {self._seconds:g} s{ended} ({last})\n{logs}")


def _takes_topics(client: Client, _: duolog.GroupRoute) -> bool:
    """A group just formed takes none until its master has noted that others are in sync."""
    client.admin.create_topic(PROBE_TOPIC, 1)
    client.admin.delete_topic(PROBE_TOPIC)
    return True
