"""How long each node has been in touch with its master, and whether it applied changes by then.

A node is in touch while nothing holds it or its master up: no cut, no loss, no standstill, no slow
or full disk; and it had copied what was confirmed when that began.
"""

from collections import deque

from duolog_server.ha.progress import ConnectionState
from sim.network import Weather
from sim.node import Node
from sim.stage import Stage
from sim.witness import Violation

LOOK_MS = 25.0
SOON_MS = 1000.0  # a change takes effect by then, on all nodes that are in touch


class InTouch:
    """Looks at all nodes, again and again."""

    def __init__(self, cluster: Stage) -> None:
        self._cluster = cluster
        self._since: dict[str, float] = {}
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._due = 0  # all nodes in touch have applied so many changes

    def acknowledged(self, end: int) -> None:
        """All records before one are acknowledged from now on."""
        self._acknowledged.append((self._cluster.world.now, end))

    def look(self) -> None:
        """Now, and every few ms. Raises Violation."""
        now, master = self._cluster.world.now, self._cluster.keeper.master
        while self._acknowledged and self._acknowledged[0][0] <= now - SOON_MS:
            self._due = max(self._due, self._acknowledged.popleft()[1])
        for node in self._cluster.nodes:
            if master is None or not self._is_in_touch(node, master):
                self._since.pop(node.name, None)
            elif node.name in self._since or _has_copied(node, master):
                since = self._since.setdefault(node.name, now)
                if now - since >= SOON_MS:
                    self._check(node)
        self._cluster.world.after(LOOK_MS, self.look)

    def _check(self, node: Node) -> None:
        assert node.services is not None, "it runs"
        applied = node.services.broker.metadata.tables.applied
        if applied < self._due:
            raise Violation(
                f"{node.name} has applied {applied} changes, {self._due} were acknowledged "
                f"{SOON_MS:.0f} ms ago"
            )

    def _is_in_touch(self, node: Node, master: Node) -> bool:
        network = self._cluster.network
        if network.cuts or network.weather != Weather():
            return False
        if not all(_is_well(one) for one in (node, master)) or master.master is None:
            return False
        if node is master:
            return master.master.epoch_confirmed
        slave = node.slave
        return (
            slave is not None
            and slave.state is ConnectionState.TRANSFER
            and (slave.master_node, slave.epoch) == (master.name, master.master.epoch)
        )


def _is_well(node: Node) -> bool:
    if not node.up or node.services is None or node.stopped or node.older or node.lost_disk:
        return False
    return not (node.standstill.on or node.disk.full or node.sync_ms > 1.0)


def _has_copied(node: Node, master: Node) -> bool:
    return node.store.log.max_offset >= master.store.confirm_offset
