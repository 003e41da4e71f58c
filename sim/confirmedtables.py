"""Compares the tables of every node with the confirmed metadata records.

A node answers from its tables and sends them to new slaves: they must not contain anything that a
failover could take back. Where groups are, the observer counts for itself: a committed offset never
goes back, in whatever order commits arrive, unless an older copy led for a while.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from duolog_server.store.metadata import SYSTEM_TOPIC, Metadata, is_reserved_topic
from sim.clients import read_all
from sim.node import Node
from sim.witness import Violation

CROSSING = ("crossed", "close", "go_back", "gone_back")
ENDING = ("forget_light_queues", "delete_topic", "delete_group")
Place = tuple[str, str]  # topic, group
Offsets = dict[Place, dict[int, int]]


def ended(change: dict[str, Any], topic: str, group: str) -> bool:
    """Whether one of ENDING deletes what a group has consumed of a topic."""
    deleted = change.get("topic") == topic or change.get("group") == group
    return deleted or topic in change.get("ends", ())


@dataclass(slots=True)
class _Replay:
    """A node's tables as they should be. boot: its process."""

    boot: int
    changes: int = -1  # of the tables that were looked at last
    tables: Metadata = field(default_factory=Metadata)
    reached: Offsets = field(default_factory=dict)

    def apply(self, body: bytes, may_go_back: bool) -> None:
        """One record more."""
        self.tables.apply(body)
        self.tables.applied += 1
        change = json.loads(body)
        if change["op"] in ENDING:
            self.reached = {
                place: row for place, row in self.reached.items() if not ended(change, *place)
            }
        if change["op"] in CROSSING:
            self._cross(str(change["topic"]), str(change["group"]), int(change["queue"]))
        for topic, offsets in change["offsets"].items() if change["op"] == "offsets" else ():
            row = self.reached.setdefault((topic, change["group"]), {})
            for queue, offset in offsets.items():
                if not self.tables.may_read(change["group"], topic, int(queue)):
                    continue  # of a guest, before its group has crossed
                back = may_go_back and not change.get("forward")
                row[int(queue)] = max(int(offset), 0 if back else row.get(int(queue), 0))

    def _cross(self, topic: str, group: str, queue_id: int) -> None:
        """A group is let in to a guest, or taken back from it, as `store.crossing` says."""
        row, at = self.reached.setdefault((topic, group), {}), self.tables.offsets
        row.pop(queue_id, None)
        if queue_id in at.get((topic, group), {}):
            row[queue_id] = at[topic, group][queue_id]


class ConfirmedTables:
    """The records that any node shows, and what each node should have made of them."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._replays: dict[str, _Replay] = {}

    def settled(self, node: Node) -> None:
        """After an event of a node with services. Raises Violation."""
        if node.older or node.lost_disk or node.services is None:
            return  # it may lack what its tables should say
        self.read(node)
        tables = node.services.broker.metadata.tables
        replay = self._replays.get(node.name)
        if replay is not None and (replay.boot, replay.changes) == (node.boot, tables.changes):
            return
        if replay is None or replay.boot != node.boot or replay.tables.applied > tables.applied:
            replay = self._replays[node.name] = _Replay(node.boot)
        if tables.applied > len(self.bodies):
            raise Violation(
                f"{node.name} has applied {tables.applied} changes, confirmed are "
                f"{len(self.bodies)}"
            )
        for body in self.bodies[replay.tables.applied : tables.applied]:
            replay.apply(body, node.ghost.marks["older_copy_led"] > 0)
        begins, replay.changes = replay.changes < 0, tables.changes
        self._compare(node.name, tables, replay)
        stored = node.store.topic_queue_table.get((SYSTEM_TOPIC, 0), 0)
        if replay.tables.complete or tables.applied < stored:  # otherwise queues may tell of topics
            self._compare_topics(node.name, tables, replay, begins)

    def read(self, node: Node) -> None:
        """Take what a node shows beyond what is known."""
        queue = node.store.queues.get(SYSTEM_TOPIC, 0)
        if queue is None or queue.max_offset <= len(self.bodies):
            return
        for offset, body in read_all(node, (SYSTEM_TOPIC, 0), len(self.bodies)):
            if offset != len(self.bodies):
                raise Violation(f"{node.name} shows no change {len(self.bodies)}, but {offset}")
            self.bodies.append(body)

    @staticmethod
    def _compare(name: str, tables: Metadata, replay: _Replay) -> None:
        wanted = replay.tables
        if _rows(tables.offsets) != _rows(replay.reached):
            raise Violation(
                f"{name} has groups at {_other(tables.offsets, replay.reached)} after "
                f"{tables.applied} changes"
            )
        for table in ("groups", "done", "delay_offsets", "timers", "sinks"):
            found, said = getattr(tables, table), getattr(wanted, table)
            if found != said:
                raise Violation(
                    f"{name} has {table} {found} after {tables.applied} changes, they say {said}"
                )

    @staticmethod
    def _compare_topics(name: str, tables: Metadata, replay: _Replay, begins: bool) -> None:
        """A topic may be used before its change is confirmed, but not by a process that begins.

        Topics of services may, retry and dead-letter topics too: they make them as they begin.
        """
        wanted = replay.tables.topics
        found = {
            topic: config
            for topic, config in tables.topics.items()
            if topic in wanted or (begins and not _is_of_a_service(topic))
        }
        if found != wanted:
            raise Violation(
                f"{name} has topics {found} after {tables.applied} changes, they say {wanted}"
            )


def _is_of_a_service(topic: str) -> bool:
    return is_reserved_topic(topic) or topic.startswith(("%RETRY%", "%DLQ%"))


def _rows(offsets: Offsets) -> dict[tuple[str, str, int], int]:
    return {(*place, queue): at for place, row in offsets.items() for queue, at in row.items()}


def _other(found: Offsets, wanted: Offsets) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Where two tables differ: what is found, and what is wanted; -1 for nothing."""
    ours, theirs = _rows(found), _rows(wanted)
    return {
        place: (ours.get(place, -1), theirs.get(place, -1))
        for place in ours.keys() | theirs.keys()
        if ours.get(place) != theirs.get(place)
    }
