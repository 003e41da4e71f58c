"""What a replica group agrees on in the registry: the keys and their values.

| key, under /duolog/CLUSTER/GROUP/ | bound to | says |
|-----------------------------------|----------|------|
| state | - | epoch, master, SyncStateSet, version; one key, changed by transaction only |
| lock | the master's lease | who is the master now; gone: elect |
| replica/NODE | NODE's lease | that it lives: incarnation, addresses, features |
| member/NODE | - | where it was last registered, since when it is not; until it is forgotten |
| drained/NODE | - | it must not become the master, nor count for puts |
| room/NODE | NODE's lease | its disk has room for what a full master cannot store |
| reach/NODE | NODE's lease | whose replication addresses it cannot reach; none: it reaches all |
| start/NODE/INCARNATION | - | the newest start of its directory: an older copy does not know it |
| guarantee | - | what puts are promised, by every master (`ha.guarantee`) |
| retiring | - | it gets no new topics and queues, and those that it has are to move away |

A group that was retired and forgotten has none of them, and a key of its own, `retired_key`.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.guarantee import BadGuarantee, Guarantee
from duolog_server.ha.registry import Row, Snapshot
from duolog_server.ha.starts import Start

ROOT = "/duolog"
MOVES = "moves"  # a node with this feature knows queues that move between replica groups
RETIREMENT = "retirement"  # and with this one, groups that retire
FEATURES = (MOVES, RETIREMENT)  # of this version


class BadState(Exception):
    """A key of the group holds what this version does not understand."""


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """A node together with its disk: after a wipe or a loss of bytes it is another replica."""

    node: str
    incarnation: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.node}/{self.incarnation:016x}"


SyncStateSet = frozenset[Replica]


@dataclass(frozen=True, slots=True)
class Discarded:
    """An unclean election: bytes in the old set's logs from an offset on were given up."""

    epoch: Epoch
    node: str
    from_offset: int
    given_up: tuple[str, ...]  # replicas that may have held more


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state key.

    group_id: drawn when the group began; another one is another group, whatever its name.
    version: counts the changes; one that falls back was restored from a backup.
    opened: puts may have been answered; before that no message in any log was acknowledged.
    successor: the preferred one, for the next election; empty for any node.
    """

    group_id: str
    epoch: Epoch
    master: Replica
    sync_state_set: SyncStateSet
    version: int = 1
    opened: bool = False
    successor: str = ""
    discarded: tuple[Discarded, ...] = ()

    def changed(self, **values: Any) -> "GroupState":
        """The next version."""
        return replace(self, version=self.version + 1, **values)

    def to_bytes(self) -> bytes:
        """As JSON."""
        value = {
            "groupId": self.group_id,
            "epoch": self.epoch,
            "version": self.version,
            "opened": self.opened,
            "master": _replica_json(self.master),
            "syncStateSet": [_replica_json(replica) for replica in sorted(self.sync_state_set)],
            "successor": self.successor,
            "discarded": [
                {
                    "epoch": row.epoch,
                    "node": row.node,
                    "fromOffset": row.from_offset,
                    "givenUp": list(row.given_up),
                }
                for row in self.discarded
            ],
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "GroupState":
        """Raises BadState."""
        try:
            value = json.loads(data)
            return cls(
                str(value["groupId"]),
                Epoch(int(value["epoch"])),
                _replica(value["master"]),
                frozenset(_replica(row) for row in value["syncStateSet"]),
                int(value["version"]),
                bool(value["opened"]),
                str(value["successor"]),
                tuple(
                    Discarded(
                        Epoch(int(row["epoch"])),
                        str(row["node"]),
                        int(row["fromOffset"]),
                        tuple(str(name) for name in row["givenUp"]),
                    )
                    for row in value["discarded"]
                ),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadState(f"cannot read the group's state: {error}") from error


def _replica_json(replica: Replica) -> dict[str, str]:
    return {"node": replica.node, "incarnation": f"{replica.incarnation:016x}"}


def _replica(value: Any) -> Replica:
    return Replica(str(value["node"]), int(value["incarnation"], 16))


@dataclass(frozen=True, slots=True)
class Registration:
    """The replica key: a node that lives, and where it is reached (HOST:PORT each).

    features: what its version knows, by name; none: an older version, which does not tell.
    """

    replica: Replica
    endpoint: str
    ha_endpoint: str
    features: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """As JSON."""
        value = {
            **_replica_json(self.replica),
            "endpoint": self.endpoint,
            "haEndpoint": self.ha_endpoint,
            **({"features": list(self.features)} if self.features else {}),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Registration":
        """Raises BadState."""
        try:
            value = json.loads(data)
            return cls(
                _replica(value),
                str(value["endpoint"]),
                str(value["haEndpoint"]),
                tuple(str(name) for name in value.get("features", ())),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadState(f"cannot read a registration: {error}") from error


@dataclass(frozen=True, slots=True)
class Member:
    """The member key: a node that belongs to the group, whether or not it lives.

    down_since_ms: wall clock of the node that first found it not registered; 0: it is, or was when
    somebody looked last.
    """

    last: Registration
    down_since_ms: int = 0
    revision: int = field(default=0, compare=False)  # to check

    def to_bytes(self) -> bytes:
        """As JSON."""
        value = {**json.loads(self.last.to_bytes()), "downSinceMs": self.down_since_ms}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_row(cls, row: Row) -> "Member":
        """Raises BadState."""
        last = Registration.from_bytes(row.value)
        try:
            return cls(last, int(json.loads(row.value)["downSinceMs"]), row.mod_revision)
        except (KeyError, TypeError, ValueError) as error:
            raise BadState(f"cannot read a member: {error}") from error


def cluster_prefix(cluster: str) -> str:
    """All keys of a cluster."""
    return f"{ROOT}/{cluster}/"


def retired_key(cluster: str, group: str = "") -> str:
    """The note that a group is no more, whose name queues may still have; their prefix.

    It is not below `cluster_prefix`, each part of which is a group.
    """
    return f"{ROOT}-retired/{cluster}/{group}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one group."""

    cluster: str
    group: str

    @property
    def prefix(self) -> str:
        """Prefix of all keys of the group."""
        return f"{cluster_prefix(self.cluster)}{self.group}/"

    @property
    def state(self) -> str:
        """The key of the group's state."""
        return self.prefix + "state"

    @property
    def lock(self) -> str:
        """The master's lock, which lives as long as its lease."""
        return self.prefix + "lock"

    @property
    def guarantee(self) -> str:
        """What puts of the group are promised."""
        return self.prefix + "guarantee"

    @property
    def retiring(self) -> str:
        """The mark of a group that retires; older nodes do not read it."""
        return self.prefix + "retiring"

    def replica(self, node: str) -> str:
        """The registration of a live node."""
        return f"{self.prefix}replica/{node}"

    def member(self, node: str) -> str:
        """The record of a node that belongs to the group; nodes of v0.1.0 write none."""
        return f"{self.prefix}member/{node}"

    def drained(self, node: str) -> str:
        """The mark of a drained node."""
        return f"{self.prefix}drained/{node}"

    def room(self, node: str) -> str:
        """The mark of a live node whose disk has room; nodes of v0.1.0 have none."""
        return f"{self.prefix}room/{node}"

    def reach(self, node: str) -> str:
        """The nodes that a live node cannot reach; nodes of v0.1.0 do not report it."""
        return f"{self.prefix}reach/{node}"

    def starts(self, node: str) -> str:
        """Prefix of a node's starts, one key for each incarnation it ever had."""
        return f"{self.prefix}start/{node}/"

    def start(self, replica: Replica) -> str:
        """The newest start of a replica's directory."""
        return f"{self.starts(replica.node)}{replica.incarnation:016x}"


@dataclass(frozen=True, slots=True)
class Unreached:
    """A replication address that took no connection, and why."""

    address: str
    reason: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.address} ({self.reason})"


Unreachable = Mapping[str, Unreached]  # by node, as one other node found


def reach_to_bytes(found: Unreachable) -> bytes:
    """As JSON."""
    value = {name: [one.address, one.reason] for name, one in sorted(found.items())}
    return json.dumps(value, separators=(",", ":")).encode()


def _reach_from_bytes(data: bytes) -> Unreachable:
    """Decode a replica's reach; nothing for another version's value: it only improves choices."""
    try:
        value: dict[str, Any] = json.loads(data)
        return {
            str(name): Unreached(str(address), str(reason))
            for name, (address, reason) in value.items()
        }
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {}


@dataclass(frozen=True, slots=True)
class View:
    """A group as one read of the registry showed it."""

    revision: int = 0
    state: GroupState | None = None
    state_revision: int = 0
    lock: Row | None = None
    replicas: Mapping[str, Registration] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)  # of the replicas' keys
    drained: frozenset[str] = frozenset()
    starts: Mapping[str, Row] = field(default_factory=dict)  # by key
    guarantee: Guarantee | None = None  # None: not recorded yet
    guarantee_revision: int = 0
    rooms: Mapping[str, int] = field(default_factory=dict)  # leases of nodes whose disk has room
    reach: Mapping[str, Unreachable] = field(default_factory=dict)  # by the live node that tells it
    members: Mapping[str, Member] = field(default_factory=dict)
    retiring: bool = False

    @property
    def nodes(self) -> set[str]:
        """The names of the members, whether or not they live."""
        in_set = self.state.sync_state_set if self.state is not None else frozenset()
        return {replica.node for replica in in_set} | self.members.keys() | self.replicas.keys()

    @property
    def down(self) -> dict[str, int]:
        """The members that are not registered, and since when (wall ms); 0: not known."""
        return {
            node: self.members[node].down_since_ms if node in self.members else 0
            for node in sorted(self.nodes - self.replicas.keys())
        }

    def lacking(self, feature: str) -> list[str]:
        """The members whose version lacks a feature; of one that is down, as it was last."""
        known = {**{node: one.last for node, one in self.members.items()}, **self.replicas}
        return sorted(
            node for node in self.nodes if node not in known or feature not in known[node].features
        )

    def unreached_by(self, node: str) -> dict[str, Unreached]:
        """What other live nodes found who cannot reach a node where it is registered now."""
        row = self.replicas.get(node)
        return {
            other: found[node]
            for other, found in sorted(self.reach.items())
            if other != node
            and node in found
            and row is not None
            and found[node].address == row.ha_endpoint
        }

    def has_room(self, node: str) -> bool:
        """Whether a live node says that its disk has room."""
        return node in self.leases and self.rooms.get(node) == self.leases[node]

    def start_of(self, replica: Replica, keys: Keys) -> tuple[Start | None, int]:
        """A replica's newest start in the registry, and the revision to check.

        Raises BadState.
        """
        row = self.starts.get(keys.start(replica))
        if row is None:
            return None, 0
        try:
            return Start.from_bytes(row.value), row.mod_revision
        except ValueError as error:
            raise BadState(str(error)) from error

    @property
    def holder(self) -> Replica | None:
        """The holder of the lock; None if there is none, or it is unknown."""
        if self.lock is None:
            return None
        try:
            return Registration.from_bytes(self.lock.value).replica
        except BadState:
            return None

    @property
    def master(self) -> Registration | None:
        """The master that holds the lock of its own epoch, and is registered."""
        if self.state is None or self.holder != self.state.master:
            return None
        found = self.replicas.get(self.state.master.node)
        return found if found is not None and found.replica == self.state.master else None


def view_of(snapshot: Snapshot, keys: Keys) -> View:
    """Read a group's keys out of a snapshot. Raises BadState where its state or its guarantee
    cannot be read.
    """
    state_row, promise_row = snapshot.rows.get(keys.state), snapshot.rows.get(keys.guarantee)
    try:
        promise = Guarantee.from_bytes(promise_row.value) if promise_row is not None else None
    except BadGuarantee as error:
        raise BadState(str(error)) from None
    replicas: dict[str, Registration] = {}
    leases: dict[str, int] = {}
    start, drained, room = keys.replica(""), keys.drained(""), keys.room("")
    reach, member = keys.reach(""), keys.member("")
    members: dict[str, Member] = {}
    for key, row in snapshot.rows.items():
        if key.startswith(member):
            with suppress(BadState):  # of another version: shown once it is written anew
                members[key[len(member) :]] = Member.from_row(row)
        if not key.startswith(start):
            continue
        try:
            registration = Registration.from_bytes(row.value)
        except BadState:
            continue  # of another version: that node cannot be followed, and nothing else needs it
        replicas[registration.replica.node] = registration
        leases[registration.replica.node] = row.lease
    return View(
        snapshot.revision,
        GroupState.from_bytes(state_row.value) if state_row is not None else None,
        state_row.mod_revision if state_row is not None else 0,
        snapshot.rows.get(keys.lock),
        replicas,
        leases,
        frozenset(key[len(drained) :] for key in snapshot.rows if key.startswith(drained)),
        {key: row for key, row in snapshot.rows.items() if key.startswith(keys.starts("")[:-1])},
        promise,
        promise_row.mod_revision if promise_row is not None else 0,
        {k[len(room) :]: row.lease for k, row in snapshot.rows.items() if k.startswith(room)},
        {
            k[len(reach) :]: _reach_from_bytes(row.value)
            for k, row in snapshot.rows.items()
            if k.startswith(reach) and leases.get(k[len(reach) :]) == row.lease
        },
        members,
        keys.retiring in snapshot.rows,
    )


def groups_of(snapshot: Snapshot, cluster: str) -> dict[str, View]:
    """All groups of a cluster, by name; one whose state cannot be read is left out."""
    rows: dict[str, dict[str, Row]] = {}
    for key, row in snapshot.rows.items():
        if name := group_of(key, cluster):
            rows.setdefault(name, {})[key] = row
    found = {}
    for name in sorted(rows):
        with suppress(BadState):
            found[name] = view_of(Snapshot(snapshot.revision, rows[name]), Keys(cluster, name))
    return found


def group_of(key: str, cluster: str) -> str:
    """The group that a key belongs to; empty for a key of no group of the cluster."""
    prefix = cluster_prefix(cluster)
    return key[len(prefix) :].partition("/")[0] if key.startswith(prefix) else ""
