"""The faults of a run and their times: a list made from a seed, which can be saved and shrunk."""

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
    "lose_disk",
)
ETCD_KINDS = (
    "cut_etcd",
    "etcd_outage",
    "etcd_slow",
    "etcd_revoke",
    "etcd_watch_lag",
    "etcd_restore",
    "etcd_wipe",
)
INDEX_ON = "index_on"  # not a fault: a part of the setup that a kept run must repeat
DECAY_OFTEN = "decay_often"  # as well
UNREACHABLE = "unreachable"  # as well: a node whose replication address nobody reaches
SERVICES_ON = "services_on"  # as well
SDK_ON = "sdk_on"  # as well; level below ALONE: no other programs use the services
LITE_ON = "lite_on"  # as well; level as with SDK_ON
ACCESS_ON = "access_on"  # users, rights and quotas; level as with SDK_ON
POISON_ON = "poison_on"  # as well: some messages are such that no consumer can process them
REMADE_ON = "remade_on"  # as well: a topic and a group are deleted and made again
CLASSIC_ON = "classic_on"  # as well: a producer does as RocketMQ's, and disks time out
EXPIRES = "expires"  # as well: a second day follows, on which what the first one stored expires
ALONE = 0.6


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a node, a link or everything, at a time and for a number of ms."""

    at: float
    kind: str
    node: str
    other: str = ""
    lasts: float = 0.0
    level: float = 0.0


def plan(chance: random.Random, duration: float, elected: bool = False) -> list[Fault]:
    """The faults of one run: a few kinds, so that runs differ in character."""
    kinds = chance.sample(KINDS, chance.randint(2, 6))
    if elected:
        kinds += chance.sample(ETCD_KINDS, chance.randint(1, 3))
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
    if chance.random() < 0.3:
        found.append(Fault(0.0, INDEX_ON, NODES[0]))
    return sorted(found, key=lambda fault: fault.at)


def async_spells(chance: random.Random, duration: float) -> list[Fault]:
    """Times in which a master with a fixed role is asynchronous; in one run of four."""
    if chance.random() >= 0.25:
        return []
    return [
        Fault(
            round(chance.uniform(100, duration), 3),
            "go_async",
            NODES[0],
            lasts=round(chance.choice((100, 500, 1500)) * chance.uniform(0.5, 1.5), 3),
        )
        for _ in range(chance.choice((1, 1, 2)))
    ]


def damaged_links(chance: random.Random, duration: float, kind: str) -> list[Fault]:
    """Times in which frames between nodes are damaged; in one run of ten."""
    if chance.random() >= 0.1:
        return []
    return [
        Fault(
            round(chance.uniform(50, duration), 3),
            kind,
            NODES[0],
            lasts=round(chance.choice((200, 1000, 4000)) * chance.uniform(0.5, 1.5), 3),
            level=round(chance.random(), 3),
        )
        for _ in range(chance.choice((1, 1, 2)))
    ]


def classic(chance: random.Random, duration: float) -> list[Fault]:
    """Whether a producer does as RocketMQ's, and the times in which syncs take longer than a put
    waits for them, on any node; in one run of five.
    """
    if chance.random() >= 0.2:
        return []
    found = [Fault(0.0, CLASSIC_ON, NODES[0])]
    for _ in range(chance.choice((1, 2, 3))):
        at, lasts = chance.uniform(200, duration), chance.choice((300, 900))
        level = round(chance.uniform(0.6, 1.0), 3)
        found += [Fault(round(at, 3), "slow_disk", node, "", lasts, level) for node in NODES]
    return found


def unreachable(chance: random.Random, duration: float, often: float = 0.1) -> list[Fault]:
    """Whether a node advertises a wrong replication address since a restart; in one run of ten."""
    if chance.random() >= often:
        return []
    node, at = chance.choice(NODES), round(chance.uniform(400, duration / 4), 3)
    return [Fault(0.0, UNREACHABLE, node), Fault(at, "kill", node, lasts=50.0, level=0.3)]


def services(chance: random.Random) -> list[Fault]:
    """Whether the nodes of a run have services; in one run of four."""
    return [Fault(0.0, SERVICES_ON, NODES[0])] if chance.random() < 0.25 else []


def sdk(chance: random.Random, duration: float) -> list[Fault]:
    """Whether programs of the SDK use them, and the faults of these; in every other run."""
    if chance.random() < 0.5:
        return []
    found = [Fault(0.0, SDK_ON, NODES[0], level=round(chance.random(), 3))]
    for _ in range(chance.randint(0, 4)):
        found.append(
            Fault(
                round(chance.uniform(600, duration), 3),
                chance.choice(("member_kill", "member_pause", "publisher_kill")),
                NODES[0],
                lasts=round(chance.choice((200, 1000, 2500)) * chance.uniform(0.5, 1.5), 3),
                level=round(chance.random(), 3),
            )
        )
    return found


def lite(chance: random.Random) -> list[Fault]:
    """Whether programs use lite topics; in two of five runs with services."""
    if chance.random() >= 0.4:
        return []
    return [Fault(0.0, LITE_ON, NODES[0], level=round(chance.random(), 3))]


def access(chance: random.Random) -> list[Fault]:
    """Whether nodes have users, with rights and quotas; in one of three runs with services."""
    if chance.random() >= 0.33:
        return []
    return [Fault(0.0, ACCESS_ON, NODES[0], level=round(chance.random(), 3))]


def poison(chance: random.Random) -> list[Fault]:
    """Whether there are messages that no consumer can process; in every other run with services."""
    return [Fault(0.0, POISON_ON, NODES[0])] if chance.random() < 0.5 else []


def remade(chance: random.Random) -> list[Fault]:
    """Whether a topic and a group are deleted and made again; in one of four runs with services."""
    return [Fault(0.0, REMADE_ON, NODES[0])] if chance.random() < 0.25 else []


def limits(chance: random.Random, kinds: list[str]) -> list[Fault]:
    """Whether limits are lowered; in one run of ten, and in every other one with services, unless
    programs run that have to go on sending.
    """
    others = {SDK_ON, LITE_ON, ACCESS_ON}.intersection(kinds)
    without = 0.5 if SERVICES_ON in kinds else 0.9
    return [] if others or chance.random() < without else lowered(chance)


def expires(kinds: list[str]) -> list[Fault]:
    """A second day follows wherever there are services and nothing that ends before it."""
    others = {SDK_ON, LITE_ON, ACCESS_ON, REMADE_ON, "lower_limits"}.intersection(kinds)
    return [Fault(0.0, EXPIRES, NODES[0])] if SERVICES_ON in kinds and not others else []


def lowered(chance: random.Random) -> list[Fault]:
    """Each node is started again, with limits below everything that waits."""
    at = chance.uniform(1200, 3200)
    return [
        Fault(round(at + 150 * k, 3), "lower_limits", node, lasts=round(chance.uniform(5, 100), 3))
        for k, node in enumerate(NODES)
    ]


def dumps(seed: int, faults: list[Fault], why: str, elected: bool) -> str:
    """A run as a file."""
    rows = [asdict(fault) for fault in faults]
    value = {"seed": seed, "elected": elected, "why": why, "faults": rows}
    return json.dumps(value, indent=1) + "\n"


def loads(text: str) -> tuple[int, list[Fault], bool]:
    """Read it back: seed, faults, and whether the group elects its masters."""
    value: dict[str, Any] = json.loads(text)
    faults = [Fault(**row) for row in value["faults"]]
    return int(value["seed"]), faults, bool(value.get("elected", False))
