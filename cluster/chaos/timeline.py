"""Timeline of a run's faults, as JSON.

Faults are struck one after the other. The words are the simulator's where it has the same fault, so
that a list from here says the same there.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

MASTER, SLAVE = "master", "slave"  # instead of a name: the node of that role at that moment
KINDS = (
    "kill",  # SIGKILL, started again after `lasts`
    "stall",  # SIGSTOP for about a lease's length: the master may still lead afterwards, or not
    "pause",  # SIGSTOP, or the freezer of a container's cgroup
    "disconnect",  # cut off from everybody in both directions
    "cut_one_way",  # what `other` sends does not reach `node`
    "restart",  # SIGTERM and start
    "etcd_kill",  # SIGKILL of an etcd member
    "disk_full",
    "disk_hang",  # a disk takes nothing for a while
    "member",  # a node joins the group, and leaves it after `lasts`
    "power_cut_all",  # all nodes lose what their disks have not
    "switch",  # a planned switch to another master
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    node: a name, "master" or "slave". other: of cut_one_way, a name, "master", "slave", "etcd" or
    "all". lasts:
    seconds until it is undone. gap: seconds of quiet before it. healthy: it waits for that until
    all replicas are in sync. at, struck, undone: seconds since the run began, filled in as it goes.
    """

    kind: str
    node: str = MASTER
    other: str = ""
    lasts: float = 1.0
    gap: float = 0.5
    healthy: bool = True
    struck: float = -1.0
    undone: float = -1.0
    hit: str = ""  # name of the node it met

    @property
    def happened(self) -> bool:
        """It was struck, and undone."""
        return self.struck >= 0 and self.undone >= self.struck


class BadTimeline(Exception):
    """A timeline cannot be read, or asks for what there is not."""


def plan(
    kinds: Mapping[str, int], seed: int, lasts: float = 1.0, gap: float = 0.5, *, shuffle: bool
) -> list[Fault]:
    """Plan so many faults of each kind, in a random order. Raises BadTimeline."""
    chance = random.Random(seed)
    found: list[Fault] = []
    for kind, count in kinds.items():
        if kind not in KINDS:
            raise BadTimeline(f"unknown fault {kind!r}; faults: {', '.join(KINDS)}")
        for k in range(count):
            node = MASTER if k % 4 != 3 or kind in ("switch", "power_cut_all") else SLAVE
            other = chance.choice(_unheard(node)) if kind == "cut_one_way" else ""
            length = round(lasts * chance.uniform(0.6, 1.6), 2)
            found.append(Fault(kind, node, other, length, round(gap * chance.uniform(0.4, 1.6), 2)))
    if shuffle:
        chance.shuffle(found)
    return found


def _unheard(node: str) -> tuple[str, ...]:
    """Of whom a node may hear nothing: of all, of etcd, or over a single link."""
    return ("all", "etcd", SLAVE if node == MASTER else MASTER)


def dumps(faults: Sequence[Fault], **about: Any) -> str:
    """Encode as JSON, with other facts of the run."""
    return json.dumps({**about, "faults": [asdict(fault) for fault in faults]}, indent=1) + "\n"


def loads(text: str) -> list[Fault]:
    """Read a list back, as not struck yet. Raises BadTimeline."""
    try:
        rows = json.loads(text)["faults"]
        found = [replace(Fault(**row), struck=-1.0, undone=-1.0, hit="") for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise BadTimeline(f"not a timeline: {error}") from error
    for fault in found:
        if fault.kind not in KINDS:
            raise BadTimeline(f"unknown fault {fault.kind!r}; faults: {', '.join(KINDS)}")
    return found
