"""A simulated cluster, as its programs, its operators and its faults see it."""

from typing import Protocol

from sim.config import Setup
from sim.etcd import SimEtcd
from sim.ghost import Ghost
from sim.network import Network
from sim.node import Node
from sim.world import World


class Keeper(Protocol):
    """Who starts nodes and gives them their roles: an operator by hand, or elections' caretaker."""

    @property
    def busy(self) -> bool:
        """A change of roles is under way."""

    @property
    def master(self) -> Node | None:
        """The node that leads."""

    def target(self, chosen: str) -> Node | None:
        """The node that a client asks, which knows of one."""

    def may_lose_disk(self, node: Node) -> bool:
        """Whether the guarantees hold though this node's disk is lost."""


class OldCopies(Protocol):
    """Copies of directories that are put back."""

    @property
    def unresolved(self) -> bool:
        """A node runs on an older copy, and has not found that out."""


class Stage(Protocol):
    """The parts of a simulated cluster."""

    world: World
    network: Network
    setup: Setup
    etcd: SimEtcd
    ghost: Ghost
    nodes: list[Node]
    by_name: dict[str, Node]
    down_until: dict[str, float]
    produce_until: float
    elected: bool

    @property
    def keeper(self) -> Keeper:
        """Who starts nodes."""

    @property
    def copies(self) -> OldCopies:
        """Copies of directories."""
