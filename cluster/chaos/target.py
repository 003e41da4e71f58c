"""Target of a run's faults: a replica group with its etcd, as processes or as containers."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol


class Unsupported(Exception):
    """This target cannot be broken in that way, here."""


class Target(Protocol):
    """A replica group under test. Names are those of the nodes; all calls block, with deadlines.

    Faults raise Unsupported where they cannot be struck, and anything else where they did not
    happen: a run in which a fault did not happen is not valid.
    """

    nodes: tuple[str, ...]

    def prepare(self, kinds: Collection[str]) -> None:
        """Check, or make, all that faults of these kinds need, before the first one is struck.

        Raises Unsupported, with one line that names what is missing and how to get it.
        """

    def start(self) -> None:
        """Bring everything up."""

    def stop(self) -> None:
        """Bring everything down, leave nothing behind."""

    def endpoint(self, node: str) -> str:
        """HOST:PORT of a node's client API, as seen from here."""

    def kill(self, node: str) -> None:
        """SIGKILL; it stays down until `revive`."""

    def revive(self, node: str) -> None:
        """Start a node that was killed."""

    def restart(self, node: str) -> None:
        """SIGTERM, and start."""

    def pause(self, node: str) -> None:
        """Stop its clock, so to say."""

    def resume(self, node: str) -> None:
        """Resume it."""

    def cut(self, node: str, other: str, *, both: bool) -> None:
        """Drop traffic from `other` ("all", "etcd" or a node) to node; both: and back."""

    def mend(self, node: str) -> None:
        """Undo all cuts of a node."""

    def kill_etcd(self, member: int) -> None:
        """SIGKILL of an etcd member."""

    def revive_etcd(self, member: int) -> None:
        """Start it again."""

    def fill_disk(self, node: str) -> None:
        """Leave a node no room."""

    def free_disk(self, node: str) -> None:
        """Give it back."""

    def hang_disk(self, node: str) -> None:
        """Let a node's disk take nothing, not even what it has begun."""

    def free_hung_disk(self, node: str) -> None:
        """Let it take writes again."""

    def join(self) -> str:
        """Start one more node, which `nodes` has from then on; its name."""

    def leave(self, node: str) -> None:
        """Stop a node that joined, for good."""

    def power_cut_all(self) -> None:
        """Every node loses what its disk does not have, and starts again."""

    def log_digest(self, node: str, end: int) -> str:
        """A hash over the bytes of a node's commit log below an offset."""

    def collect(self, directory: Path) -> None:
        """Put what helps to understand a failure (logs) there."""
