"""What goes wrong, and when: a list made from a seed, that can be written down and shrunk."""

import json
import random
from dataclasses import asdict, dataclass
from typing import Any

NODES = ("a", "b", "c")
KINDS = (
    "kill",
    "power_cut",
    "pause",
    "cut_link",
    "cut_one_way",
    "weather",
    "slow_disk",
    "fail_sync",
    "full_disk",
    "reset_streams",
    "double_connect",
    "switch_master",
    "clock_step",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a node (or link, or everything) at a time, for so many ms."""

    at: float
    kind: str
    node: str
    other: str = ""
    lasts: float = 0.0
    level: float = 0.0


def plan(chance: random.Random, duration: float) -> list[Fault]:
    """Faults of one run: a handful of kinds, so that runs differ in character."""
    kinds = chance.sample(KINDS, chance.randint(2, 6))
    found = []
    for _ in range(chance.randint(2, 14)):
        node, other = chance.sample(NODES, 2)
        found.append(
            Fault(
                round(chance.uniform(50, duration), 3),
                chance.choice(kinds),
                node,
                other,
                round(chance.choice((20, 200, 1000, 4000)) * chance.uniform(0.5, 1.5), 3),
                round(chance.random(), 3),
            )
        )
    return sorted(found, key=lambda fault: fault.at)


def dumps(seed: int, faults: list[Fault], why: str) -> str:
    """A run as a file."""
    value = {"seed": seed, "why": why, "faults": [asdict(fault) for fault in faults]}
    return json.dumps(value, indent=1) + "\n"


def loads(text: str) -> tuple[int, list[Fault]]:
    """Read it back."""
    value: dict[str, Any] = json.loads(text)
    return int(value["seed"]), [Fault(**row) for row in value["faults"]]
