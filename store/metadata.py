"""Topics, groups, offsets, users, quotas: the tables, and the records in the log that change them.

Every change is a record on the system topic, so a node that has the log has the metadata.
Applying a record again changes nothing. `store.metadatafiles` keeps snapshots of the tables.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from duolog_server.store import crossing, grouptopics
from duolog_server.store.accesstables import AccessTables
from duolog_server.store.births import Births
from duolog_server.store.crossing import Progress
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.errors import BadGroup, BadMessage
from duolog_server.store.lightqueues import is_light
from duolog_server.store.moves import Moves, Resets
from duolog_server.store.names import wrong_characters

SYSTEM_PREFIX = "DUOLOG_SYS_"
SYSTEM_TOPIC = SYSTEM_PREFIX + "METADATA"
AUDIT_TOPIC = SYSTEM_PREFIX + "AUDIT"
PERM_READ = 4
PERM_WRITE = 2
QUEUES_MAX = 1024
SINKS_MAX = 10_000
LITE_TTL_MINUTES_MAX = 10 * 365 * 24 * 60
LITE, PRIORITY = "LITE", "PRIORITY"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, LITE)
LITE_EXPIRATION = "lite.topic.expiration"  # RocketMQ 5's attribute, minutes
# Attributes that RocketMQ keeps and does not use.
OWNER = "duolog.owner"
RETENTION_HOURS, RETENTION_BYTES = "duolog.retention.hours", "duolog.retention.bytes"
RETENTION_BYTES_MAX = (1 << 63) - 1

Json = dict[str, Any]
# Errors raised by JSON with an unexpected structure.
NOT_THE_SHAPE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)

_FORGET = "forget_light_queues"


def forgotten_in(body: bytes) -> dict[str, int]:
    """The light queues that a record forgets, with their ends; empty for any other record."""
    if _FORGET.encode() not in body:
        return {}
    try:
        change = json.loads(body)
        ends = change["ends"].items() if change["op"] == _FORGET else ()
        return {str(name): int(end) for name, end in ends}
    except NOT_THE_SHAPE:
        return {}


def may_move(bodies: bytes) -> bool:
    """Whether records may be such that `follow_moves` applies."""
    return b'"move":' in bodies or b'"birth":' in bodies


def follow_moves(moves: Moves, body: bytes) -> None:
    """Apply a record to moves alone: what the tables do with it."""
    tables = Metadata(moves=moves)
    if may_move(body):
        tables.apply(body)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One entry of topics.json."""

    name: str
    queues: int = 4
    perm: int = PERM_READ | PERM_WRITE
    sysflag: int = 0
    order: bool = False
    message_type: str = ""  # one of MESSAGE_TYPES; empty: all but LITE
    lite_ttl_minutes: int = 0  # lite topics that got nothing for so long are forgotten; 0: never
    owner: str = ""  # the user who created it; empty where there were no users
    guests: int = 0  # queues after these that are there to be read: see `store.moves`
    retention_hours: int = 0  # messages are kept for so long, if the log has them; 0: as the log
    retention_bytes: int = 0  # of the newest records of the topic here that are kept; 0: all

    @property
    def read_queues(self) -> int:
        """How many queue ids readers may name; some of them may be of no queue, which is empty."""
        return self.queues + self.guests

    def to_json(self) -> Json:
        """RocketMQ's bean; attributes are those of RocketMQ 5."""
        attributes: Json = {}
        if self.message_type:
            attributes["message.type"] = self.message_type
        if self.lite_ttl_minutes:
            attributes[LITE_EXPIRATION] = str(self.lite_ttl_minutes)
        if self.owner:
            attributes[OWNER] = self.owner
        if self.retention_hours:
            attributes[RETENTION_HOURS] = str(self.retention_hours)
        if self.retention_bytes:
            attributes[RETENTION_BYTES] = str(self.retention_bytes)
        return {
            **({"attributes": attributes} if attributes else {}),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": self.sysflag,
            "writeQueueNums": self.queues,
        }

    @staticmethod
    def from_json(value: Json, moves: Moves | None = None) -> "TopicConfig":
        """Read the bean; KeyError, TypeError or ValueError if it is none.

        moves: where it has guests, only the queues before them are its own.
        """
        attributes = value.get("attributes") or {}
        name, queues = str(value["topicName"]), int(value.get("writeQueueNums", 4))
        ids = list(moves.guests.get(name, ())) if moves is not None else []
        if not ids:
            queues = max(queues, int(value.get("readQueueNums", 4)))
        made = TopicConfig(
            name,
            min([queues, *ids]),
            int(value.get("perm", 6)),
            int(value.get("topicSysFlag", 0)),
            bool(value.get("order", False)),
            str(attributes.get("message.type", "")),
            max(0, int(attributes.get(LITE_EXPIRATION, 0))),
            str(attributes.get(OWNER, "")),
            retention_hours=max(0, int(attributes.get(RETENTION_HOURS, 0))),
            retention_bytes=max(0, int(attributes.get(RETENTION_BYTES, 0))),
        )
        return made.with_guests(moves) if moves is not None and ids else made

    def with_guests(self, moves: Moves) -> "TopicConfig":
        """The topic with its open guests, which may lie behind others that readers find empty."""
        guests = moves.guests.get(self.name, {}).items()
        last = max((queue_id for queue_id, one in guests if one.first is not None), default=-1)
        return replace(self, guests=max(0, last + 1 - self.queues))

    def own(self) -> "TopicConfig":
        """The topic without guests, as changes name it."""
        return replace(self, guests=0)


def new_group(name: str) -> Json:
    """An entry of subscriptionGroup.json with RocketMQ's defaults."""
    return {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": name,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


@dataclass(slots=True)
class Metadata:
    """The tables. `applied` is the queue offset of the first record not in them yet."""

    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, Json] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    done: dict[tuple[str, str], dict[int, list[list[int]]]] = field(default_factory=dict)
    delay_offsets: dict[int, int] = field(default_factory=dict)
    timers: tuple[int, int] = (0, 0)  # first pending timer, first note of a delivery
    floors: dict[str, dict[int, int]] = field(default_factory=dict)
    # Below which queue offsets messages of existing topics are hidden, by topic and queue id.
    minimums: dict[str, dict[int, int]] = field(default_factory=dict)
    births: Births = field(default_factory=Births)
    moves: Moves = field(default_factory=Moves)
    filters: dict[str, dict[str, Json]] = field(default_factory=dict)  # by topic and group
    filter_changes: int = 0
    sinks: dict[str, Json] = field(default_factory=dict)  # last published batch, newest last
    access: AccessTables = field(default_factory=AccessTables)
    quotas: dict[str, Json] = field(default_factory=dict)  # by what they limit: User:alice
    applied: int = 0
    changes: int = 0
    complete: bool = False  # the log's first records say that they begin with empty tables
    # Topic, group and queue of progress, until it is noted.
    moved: set[tuple[str, str, int]] = field(default_factory=set, compare=False, repr=False)
    # The same of what consumer groups may read, or no longer, until readers are notified.
    gates: set[tuple[str, str, int]] = field(default_factory=set, compare=False, repr=False)

    def validate(self) -> str:
        """The first violated invariant; empty if all hold.

        Done ranges of a group lie after its committed offset, sorted and disjoint. A completely
        stored batch names no parts that are still to be stored.
        """
        for (topic, group), row in self.done.items():
            for queue, ranges in row.items():
                before = self.committed(group, topic, queue)
                for first, end in ranges:
                    if not before < first < end:
                        place = f"{group} in {topic}/{queue}"
                        return f"{place} has done [{first}, {end}), and all before {before}"
                    before = end
        for name, sink in self.sinks.items():
            if sink["staged"] and not 0 <= sink["done"] < len(sink["staged"]):
                return f"sink {name} has stored {sink['done']} of {len(sink['staged'])} requests"
        return self.access.validate()

    # -- changes -------------------------------------------------------------------------------

    def apply(self, body: bytes) -> Json | None:
        """Apply one record; the change, or None if the record is not understood."""
        try:
            change = json.loads(body)
            operation = getattr(self, "_apply_" + str(change["op"]), None)
            if operation is None:
                return None
            operation(change)
        except NOT_THE_SHAPE:
            return None
        self.complete = self.complete or change.get("complete") is True
        self.changes += 1
        return dict(change)

    def _apply_complete(self, change: Json) -> None:
        """The log now has everything from another program's files."""

    def _apply_topic(self, change: Json) -> None:
        if "birth" in change:
            self.moves.forget(str(change["topic"]["topicName"]))
            self.minimums.pop(str(change["topic"]["topicName"]), None)
        config = TopicConfig.from_json(change["topic"], self.moves)
        self.topics[config.name] = config
        self.births.note(self.births.topics, config.name, change)
        if "floors" in change:
            self._raise_floors(config.name, change)

    def _apply_delete_topic(self, change: Json) -> None:
        name = str(change["topic"])
        self.topics.pop(name, None)
        self.moves.forget(name)
        self.minimums.pop(name, None)
        self.births.note(self.births.topics, name, change)
        self._raise_floors(name, change)
        self._forget_filters(topic=name)
        self._forget_offsets([key for key in self.offsets if key[0] == name])

    def _raise_floors(self, name: str, change: Json) -> None:
        floors = self.floors.setdefault(name, {})
        for queue, offset in change.get("floors", {}).items():
            floors[int(queue)] = max(int(offset), floors.get(int(queue), 0))

    def _apply_trim(self, change: Json) -> None:
        for name, queues in change["minimums"].items():
            row = self.minimums.setdefault(str(name), {})
            for queue, offset in queues.items():
                row[int(queue)] = max(int(offset), row.get(int(queue), 0))

    def hidden_below(self, topic: str, queue_id: int) -> int:
        """The offset below which a record has hidden the messages of a queue; 0: none has."""
        return self.minimums.get(topic, {}).get(queue_id, 0)

    def hidden_of(self, topic: str) -> dict[int, int]:
        """Below which queue offsets messages of a topic are hidden, by queue id."""
        found = dict(self.floors.get(topic, {}))
        for queue_id, offset in self.minimums.get(topic, {}).items():
            found[queue_id] = max(offset, found.get(queue_id, 0))
        return found

    def _apply_seal(self, change: Json) -> None:
        self.moves.apply_seal(change)

    def _apply_guest(self, change: Json) -> None:
        self.moves.apply_guest(change)

    def _apply_open(self, change: Json) -> None:
        self.moves.apply_open(change)
        name = str(change["topic"])
        if name in self.topics:
            self.topics[name] = self.topics[name].with_guests(self.moves)

    def _apply_revoke(self, change: Json) -> None:
        self.moves.apply_revoke(change)

    def _apply_gone(self, change: Json) -> None:
        opened = self.moves.apply_gone(change)
        groups: dict[str, list[str]] = {}
        for topic, group in self.offsets:
            groups.setdefault(topic, []).append(group)
        self.gates.update((topic, one, q) for topic, q in opened for one in groups.get(topic, ()))

    def _apply_forget_light_queues(self, change: Json) -> None:
        names = set(change["ends"])
        self._forget_offsets([key for key in self.offsets if key[0] in names])

    def _apply_group(self, change: Json) -> None:
        name = str(change["group"]["groupName"])
        self.groups[name] = dict(change["group"])
        self.births.note(self.births.groups, name, change)

    def _apply_delete_group(self, change: Json) -> None:
        name = str(change["group"])
        self.groups.pop(name, None)
        self.moves.forget_resets(lambda key: key[1] == name)
        self.births.note(self.births.groups, name, change)
        self._forget_filters(group=name)
        self._forget_offsets([key for key in self.offsets if key[1] == name])

    def note_births(self, bodies: Iterable[bytes]) -> None:
        """Take only births from records that were applied before."""
        others = Metadata(births=self.births)
        for body in bodies:
            if b'"birth":' in body:
                others.apply(body)

    def _forget_offsets(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self.offsets[key]
            self.done.pop(key, None)

    def _apply_offsets(self, change: Json) -> None:
        group = str(change["group"])
        for topic, queues in change["offsets"].items():
            row = self.offsets.setdefault((str(topic), group), {})
            done = change.get("done", {}).get(topic, {})
            for queue, offset in queues.items():
                if change.get("absent") and int(queue) in row:
                    continue  # the group has begun
                if not self.may_read(group, str(topic), int(queue)):
                    continue  # only a crossing lets it in
                if change.get("forward") and int(offset) < row.get(int(queue), 0):
                    continue  # what is done beyond the newer offset stays done
                before = row.get(int(queue)), self.acknowledged(group, str(topic), int(queue))
                row[int(queue)] = int(offset)
                self._note_done((str(topic), group), int(queue), done.get(queue, ()))
                if before != (int(offset), self.acknowledged(group, str(topic), int(queue))):
                    self.moved.add((str(topic), group, int(queue)))

    def _apply_crossed(self, change: Json) -> None:
        told = crossing.Crossed(int(change["offset"]), int(change["resets"]))
        self._note_progress(change, lambda here: crossing.on_crossed(here, told))

    def _apply_close(self, change: Json) -> None:
        told = crossing.Close(int(change["resets"]))
        self._note_progress(change, lambda here: crossing.on_close(here, told))

    def _apply_go_back(self, change: Json) -> None:
        number, offset = int(change["resets"]), int(change["offset"])

        def step(here: Progress) -> Progress:
            if number <= here.resets:
                return here
            return replace(here, resets=number, going_back=offset)

        self._note_progress(change, step)

    def _apply_gone_back(self, change: Json) -> None:
        number = int(change["resets"])

        def step(here: Progress) -> Progress:
            is_this = here.resets == number and here.going_back is not None
            return crossing.gone_back(here) if is_this else here

        self._note_progress(change, step)

    def _note_progress(self, change: Json, step: Callable[[Progress], Progress]) -> None:
        """Change how far a consumer group is at a place, as `store.crossing` says."""
        group, topic, queue = str(change["group"]), str(change["topic"]), int(change["queue"])
        key, before = (topic, group), self.progress_of(group, topic, queue)
        after = step(before)
        if after == before:
            return
        if after.committed != before.committed or after.going_back is not None:
            self._note_done(key, queue, ())
        if after.committed is not None:
            self.offsets.setdefault(key, {})[queue] = after.committed
        else:
            self.offsets.get(key, {}).pop(queue, None)
        if after.resets:
            rows = self.moves.resets.setdefault(key, {})
            rows[queue] = Resets(after.resets, after.going_back)
        self.moved.add((topic, group, queue))
        self.gates.add((topic, group, queue))

    def _apply_delays(self, change: Json) -> None:
        for level, offset in change["offsets"].items():
            known = self.delay_offsets.get(int(level), 0)
            self.delay_offsets[int(level)] = max(known, int(offset))

    def _apply_filter(self, change: Json) -> None:
        row = dict(change["filter"])
        self.filters.setdefault(str(row["topic"]), {})[str(row["consumerGroup"])] = row
        self.filter_changes += 1

    def _forget_filters(self, topic: str = "", group: str = "") -> None:
        self.filters.pop(topic, None)
        for rows in self.filters.values():
            rows.pop(group, None)
        self.filter_changes += 1

    def _apply_publish(self, change: Json) -> None:
        name, batch = str(change["sink"]), int(change["batch"])
        known = self.sinks.get(name)
        contents = str(change.get("contents", ""))
        if known is not None:
            if known["batch"] >= batch:
                return  # published before
            if known.get("contents", "") != contents:
                return  # another user of the same name
        count = int(change.get("messages", 0))
        before = self.sinks.pop(name, None) or {}
        self.sinks[name] = {
            "batch": batch,
            "staged": [int(offset) for offset in change["staged"]],
            "done": 0,
            "contents": contents,
            "publisher": str(change.get("publisher", "")),
            "batches": before.get("batches", 0) + 1,
            "messages": before.get("messages", 0) + count,
            "batchMessages": count,
            "lost": before.get("lost", 0),
            "batchLost": 0,
        }
        self._forget_sink()

    def _forget_sink(self) -> None:
        """Drop one sink if there are too many, but none whose batch is not completely stored.

        Sinks with declared contents are dropped last: their names are meant to be used again.
        """
        if len(self.sinks) > SINKS_MAX:
            stored = [name for name, row in self.sinks.items() if not row["staged"]]
            plain = (name for name in stored if not self.sinks[name].get("contents"))
            oldest = next(plain, stored[0] if stored else None)
            if oldest is not None:
                del self.sinks[oldest]

    def _apply_published(self, change: Json) -> None:
        row = self.sinks.get(str(change["sink"]))
        if row is not None and row["batch"] == int(change["batch"]):
            if row["staged"]:  # otherwise it was applied before
                row["batchLost"] = int(change.get("lost", 0))
                row["lost"] = row.get("lost", 0) + row["batchLost"]
            row["done"] = max(row["done"], int(change["done"]))
            if row["done"] >= len(row["staged"]):
                row["staged"] = []  # the batch is complete

    def _apply_timers(self, change: Json) -> None:
        self.timers = (int(change["low"]), int(change["done"]))

    def _apply_user(self, change: Json) -> None:
        self.access.put_user(change["user"])

    def _apply_delete_user(self, change: Json) -> None:
        self.access.delete_user(str(change["user"]))

    def _apply_rights(self, change: Json) -> None:
        self.access.put_rights(change["rights"])

    def _apply_delete_rights(self, change: Json) -> None:
        self.access.delete_rights(str(change["user"]))

    def _apply_quota(self, change: Json) -> None:
        row = dict(change["quota"])
        self.quotas[str(row["subject"])] = row

    def _apply_delete_quota(self, change: Json) -> None:
        self.quotas.pop(str(change["subject"]), None)

    def _note_done(self, key: tuple[str, str], queue: int, ranges: Any) -> None:
        """ranges: [first, end) pairs that a group has done after its committed offset."""
        row = self.done.setdefault(key, {})
        row[queue] = [[int(first), int(end)] for first, end in ranges]
        if not row[queue]:
            del row[queue]
        if not row:
            del self.done[key]

    def lower_floors(self, end_of: Callable[[str, int], int]) -> bool:
        """Lower the floors of queues with messages, and the minimums of all, to their ends; whether
        one was above that.

        A message behind such a gap would have no queue entry, or be hidden. A queue without
        messages begins at its floor.
        """
        lowered = [
            (row, queue_id, end)
            for table, least in ((self.floors, 1), (self.minimums, 0))
            for topic, row in table.items()
            for queue_id, floor in row.items()
            if least <= (end := end_of(topic, queue_id)) < floor
        ]
        for row, queue_id, end in lowered:
            row[queue_id] = end
        return bool(lowered)

    def lower_consumed(
        self, end_of: Callable[[str, int], int]
    ) -> list[tuple[str, str, int, int, int]]:
        """Lower what groups and delay levels have consumed to the ends of existing queues.

        Group, topic, queue id, offset and end of each that was lowered; no group: a delay level.
        """

        def is_known(topic: str) -> bool:
            # A light queue without entries may have lost them, and continues where it ended.
            return topic in self.topics or (is_light(topic) and end_of(topic, 0) > 0)

        found = []
        for level, offset in self.delay_offsets.items():
            end = end_of(SCHEDULE_TOPIC, level - 1)
            if offset > end:
                self.delay_offsets[level] = end
                found.append(("", SCHEDULE_TOPIC, level - 1, offset, end))
        for (topic, group), row in self.offsets.items():
            if not is_known(topic):
                continue
            for queue_id, offset in row.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    row[queue_id] = end
                    found.append((group, topic, queue_id, offset, end))
        for (topic, group), queues in list(self.done.items()):
            for queue_id, ranges in list(queues.items()) if is_known(topic) else ():
                end = end_of(topic, queue_id)
                if ranges and ranges[-1][1] > end:
                    kept = [[first, min(last, end)] for first, last in ranges if first < end]
                    self._note_done((topic, group), queue_id, kept)
                    found.append((group, topic, queue_id, ranges[-1][1], end))
        self.changes += bool(found)
        return found

    def acknowledged(self, group: str, topic: str, queue_id: int) -> list[list[int]]:
        """Ranges [first, end) after the committed offset that a group has done."""
        return self.done.get((topic, group), {}).get(queue_id, [])

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """Committed offset, -1 for none."""
        return self.offsets.get((topic, group), {}).get(queue_id, -1)

    def progress_of(self, group: str, topic: str, queue_id: int) -> Progress:
        """How far a consumer group is at a place; not what only a mastership knows of it."""
        committed = self.offsets.get((topic, group), {}).get(queue_id)
        rows = self.moves.resets.get((topic, group))
        resets = rows.get(queue_id, Resets()) if rows else Resets()
        return Progress(committed, resets.number, going_back=resets.going_back)

    def may_read(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a consumer group is given messages of a queue, and its commits there count.

        False for a guest as long as the group has not committed the ends of all spans before it.
        """
        guests = self.moves.guests.get(topic)
        if not guests and not self.moves.resets:
            return True
        is_guest = self.moves.follows(topic, queue_id)
        return crossing.may_read(self.progress_of(group, topic, queue_id), is_guest)

    def readable(self, group: str, topic: str) -> Sequence[int]:
        """The queues of a topic that a consumer group may read here; none of a topic that is not
        there. group: empty for a reader without one, who may read all of them.
        """
        config = self.topics.get(topic)
        names = range(config.queues if config is not None else 0)
        if not self.moves.guests and not self.moves.resets:
            return names
        found = [*names, *self.moves.open_guests(topic)]
        return found if not group else [q for q in found if self.may_read(group, topic, q)]

    @property
    def empty(self) -> bool:
        """Whether the metadata was never written."""
        named = self.topics, self.groups, self.offsets, self.access.users, self.quotas
        return not any((*named, self.delay_offsets))

    # -- snapshots -----------------------------------------------------------------------------

    def adopt(self, data: bytes) -> None:
        """Replace the tables by another node's. Raises BadMessage if they are invalid."""
        try:
            made = Metadata.from_json(json.loads(data))
        except NOT_THE_SHAPE as error:
            raise BadMessage(f"not a metadata snapshot: {error}") from None
        self.topics, self.groups, self.offsets = made.topics, made.groups, made.offsets
        self.delay_offsets, self.floors = made.delay_offsets, made.floors
        self.minimums = made.minimums
        if made.births.known:  # else of a master of version 0.1.0
            self.births = made.births
        self.moves.take(made.moves)
        self.done, self.timers = made.done, made.timers
        self.filters, self.sinks = made.filters, made.sinks
        self.access.replace(made.access)
        self.quotas = made.quotas
        self.filter_changes += 1
        self.applied = made.applied
        self.changes += 1

    @staticmethod
    def from_json(value: Json) -> "Metadata":
        """The tables in a snapshot's value. Raises one of NOT_THE_SHAPE if it is none."""
        made = Metadata()
        made.adopt_own(value)
        made.topics = topics_of(value["topics"], made.moves)
        made.groups = {str(name): dict(row) for name, row in value["groups"].items()}
        made.offsets = offsets_of(value["offsets"])
        made.delay_offsets = {int(k): int(o) for k, o in value["delays"].items()}
        made.filters = {str(name): dict(row) for name, row in (value.get("filters") or {}).items()}
        made.applied = int(value["applied"])
        return made

    def adopt_own(self, value: Json) -> None:
        """Take the tables for which RocketMQ has no file."""
        for table, rows in (
            (self.floors, value["floors"]),
            (self.minimums, value.get("minimums") or {}),
        ):
            for name, row in rows.items():
                table[str(name)] = {int(q): int(o) for q, o in row.items()}
        known = "births" in value
        self.births = Births.from_rows(value["births"]) if known else Births(known=False)
        self.moves = Moves.from_rows(value.get("moves") or {})
        self._adopt_done(value.get("done") or {})
        low, noted = value.get("timers") or (0, 0)
        self.timers = (int(low), int(noted))
        self.sinks = {str(name): dict(row) for name, row in (value.get("sinks") or {}).items()}
        self.access = AccessTables.from_rows(value.get("access") or {})
        self.quotas = {str(name): dict(row) for name, row in (value.get("quotas") or {}).items()}

    def _adopt_done(self, rows: Json) -> None:
        for key, row in rows.items():
            topic, _, group = str(key).partition("@")
            for queue, ranges in row.items():
                self._note_done((topic, group), int(queue), ranges)

    def snapshot(self) -> "Snapshot":
        """A copy that may be written while the tables change."""
        return Snapshot(
            {name: config.to_json() for name, config in sorted(self.topics.items())},
            {name: dict(row) for name, row in sorted(self.groups.items())},
            {
                f"{topic}@{group}": dict(sorted(row.items()))
                for (topic, group), row in sorted(self.offsets.items())
            },
            dict(sorted(self.delay_offsets.items())),
            {name: dict(row) for name, row in self.floors.items()},
            self.births.rows(),
            {
                f"{topic}@{group}": dict(sorted(row.items()))
                for (topic, group), row in sorted(self.done.items())
            },
            self.timers,
            {name: dict(sorted(rows.items())) for name, rows in sorted(self.filters.items())},
            {name: dict(row) for name, row in self.sinks.items()},
            self.access.rows(),
            {name: dict(row) for name, row in sorted(self.quotas.items())},
            self.applied,
            self.changes,
            self.moves.rows(),
            {name: dict(row) for name, row in self.minimums.items()},
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tables at one moment."""

    topics: Json
    groups: Json
    offsets: Json
    delays: dict[Any, int]  # by level
    floors: Json
    births: Json
    done: Json
    timers: tuple[int, int]
    filters: Json
    sinks: Json
    access: Json
    quotas: Json
    applied: int
    changes: int
    moves: Json = field(default_factory=dict)
    minimums: Json = field(default_factory=dict)

    def tables(self) -> Json:
        """Encode all tables as `Metadata.from_json` reads them."""
        return {
            "topics": self.topics,
            "groups": self.groups,
            "offsets": self.offsets,
            "delays": self.delays,
            "floors": self.floors,
            "births": self.births,
            "done": self.done,
            "timers": list(self.timers),
            "filters": self.filters,
            "sinks": self.sinks,
            "access": self.access,
            "quotas": self.quotas,
            "applied": self.applied,
            **({"moves": self.moves} if self.moves else {}),
            **({"minimums": self.minimums} if self.minimums else {}),
        }

    def to_bytes(self) -> bytes:
        """Encode as one JSON text, for a slave: `Metadata.adopt` reads it."""
        return json.dumps(self.tables(), separators=(",", ":")).encode()


def topics_of(rows: Json, moves: Moves | None = None) -> dict[str, TopicConfig]:
    """Topics by name, from a table's entries. Raises one of NOT_THE_SHAPE if they are none."""
    found = (TopicConfig.from_json(row, moves) for row in rows.values())
    return {config.name: config for config in found}


def offsets_of(rows: Json) -> dict[tuple[str, str], dict[int, int]]:
    """Committed offsets by topic and group, from entries named topic@group.

    Others are left out: RocketMQ 5 notes under topic@group@broadcast where its own groups read that
    get every message. No group has such a name.
    """
    found = {}
    for key, row in rows.items():
        topic, _, group = str(key).partition("@")
        if "@" in group:
            continue
        found[topic, group] = {int(queue): int(offset) for queue, offset in row.items()}
    return found


def changes_of(tables: Metadata) -> list[Json]:
    """Changes that turn empty tables into these, as far as RocketMQ's files have them."""
    topics = tables.topics.values()
    found: list[Json] = [{"op": "topic", "topic": row.own().to_json()} for row in topics]
    found += [{"op": "group", "group": row} for row in tables.groups.values() if "groupName" in row]
    for (topic, group), row in tables.offsets.items():
        offsets = {topic: {str(queue): offset for queue, offset in row.items()}}
        found.append({"op": "offsets", "group": group, "offsets": offsets})
    if tables.delay_offsets:
        delays = {str(level): offset for level, offset in tables.delay_offsets.items()}
        found.append({"op": "delays", "offsets": delays})
    for rows in tables.filters.values():
        found += [{"op": "filter", "filter": row} for row in rows.values()]
    return found


def is_system_topic(name: str) -> bool:
    """Tell whether a topic belongs to the node and not to its users."""
    return name.startswith(SYSTEM_PREFIX)


# Topics that RocketMQ keeps for itself; by prefix, or by name.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # RocketMQ's clients write there what they do
GROUP_NEW_MAX = 255 - len(grouptopics.RETRY)  # characters of the name of a new group
_RESERVED_PREFIXES = (SYSTEM_PREFIX, "RMQ_SYS_", "rmq_sys_", "%SYS%")
_RESERVED_TOPICS = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "DefaultHeartBeatSyncerTopic",
    )
)


def is_reserved_topic(name: str) -> bool:
    """Whether a topic belongs to the node or to RocketMQ."""
    return name.startswith(_RESERVED_PREFIXES) or name in _RESERVED_TOPICS


def is_nodes_topic(name: str) -> bool:
    """Whether nodes create and fill a topic: retries, dead letters, and what is reserved."""
    return name.startswith(grouptopics.PREFIXES) or is_reserved_topic(name)


def is_closed_topic(name: str) -> bool:
    """Whether clients may not send to a topic: it is reserved, and not for what they tell."""
    return is_reserved_topic(name) and name != TRACE_TOPIC


def check_group(name: str) -> None:
    """Raise BadGroup for an invalid group name: as for topics, but at most 255 characters."""
    if not name or len(name) > 255:
        raise BadGroup(f"a group name must have 1 to 255 characters, this one has {len(name)}")
    wrong = wrong_characters("group", name)
    if wrong:
        raise BadGroup(wrong)


def check_new_group(name: str) -> None:
    """Raise BadGroup for a name that no new group may have; those that exist stay as they are."""
    if len(name) > GROUP_NEW_MAX:
        raise BadGroup(
            f"cannot create group {name[:40]}...: its name has {len(name)} characters, the limit "
            f"is {GROUP_NEW_MAX} (255 with the prefix {grouptopics.RETRY} of its retry topic)"
        )


def altered(config: TopicConfig, queues: int, perm: int) -> TopicConfig:
    """A topic with more queues or other permissions; queues never become fewer."""
    if queues and queues < config.queues:
        raise BadMessage(
            f"topic {config.name} has {config.queues} queues: the number can grow, not shrink"
        )
    return replace(config, queues=queues or config.queues, perm=perm or config.perm)


def check_lite_ttl(config: TopicConfig) -> None:
    """Raise BadMessage for an invalid lite TTL."""
    if config.lite_ttl_minutes and config.message_type != LITE:
        raise BadMessage(f"topic {config.name} has no lite topics: its type is not {LITE}")
    if not 0 <= config.lite_ttl_minutes <= LITE_TTL_MINUTES_MAX:
        raise BadMessage(f"lite_ttl_minutes must be from 0 to {LITE_TTL_MINUTES_MAX}")


def check_own_minimum(config: TopicConfig) -> None:
    """Raise BadMessage for a topic whose messages are never hidden before the log deletes them."""
    name = config.name
    if is_closed_topic(name):
        raise BadMessage(
            f"topic {name} belongs to the system: its messages stay as long as the log"
        )
    if name.startswith(grouptopics.RETRY):
        raise BadMessage(
            f"topic {name} holds messages that wait for redelivery: to give them up, reset the "
            "group's offsets"
        )
    if config.message_type == LITE:
        raise BadMessage(
            f"topic {name} is of type {LITE}: its lite topics expire by their lite TTL"
        )


def check_retention(config: TopicConfig, log_hours: int) -> None:
    """Raise BadMessage for an invalid retention of a topic. log_hours: that of the log."""
    hours, size = config.retention_hours, config.retention_bytes
    if not hours and not size:
        return
    check_own_minimum(config)
    if not 0 <= hours <= log_hours:
        raise BadMessage(
            f"topic {config.name} cannot keep messages for {hours} h: they share the log, which is "
            f"kept for {log_hours} h (store.file_reserved_time); retention_hours may be from 1 to "
            f"{log_hours}, or 0 for as long as the log"
        )
    if not 0 <= size <= RETENTION_BYTES_MAX:
        raise BadMessage(f"retention_bytes must be from 0 to {RETENTION_BYTES_MAX}")


def check_message_type(name: str) -> None:
    """Raise BadMessage if a topic cannot be for messages of that type only."""
    if name and name not in MESSAGE_TYPES:
        raise BadMessage(f"message type {name!r} is not one of {', '.join(MESSAGE_TYPES)}")


def check_queues(queues: int, perm: int) -> None:
    """Raise BadMessage for an invalid number of queues or permission."""
    if not 1 <= queues <= QUEUES_MAX:
        raise BadMessage(f"a topic must have 1 to {QUEUES_MAX} queues, not {queues}")
    if perm & ~(PERM_READ | PERM_WRITE) or not perm:
        raise BadMessage(f"perm {perm} is not one of 2 (write), 4 (read), 6 (both)")
