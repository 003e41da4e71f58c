"""Snapshots of the metadata tables: damage to the files leaves the tables as they were."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store import jsontext
from duolog_server.store.errors import BadStoreFile
from duolog_server.store.metadata import Json, Metadata, TopicConfig, changes_of, new_group
from duolog_server.store.metadatafiles import (
    BACKUP,
    DELAYS,
    EXPORTS,
    FILTERS,
    MARK,
    OFFSETS,
    SNAPSHOT,
    TOPICS,
    MetadataFiles,
    NotASnapshot,
    Snapshots,
    decode,
)
from duolog_server.store.metadatarecovery import PERSISTED, Doubt, MetadataRecovery, Recovered
from duolog_server.store.osdisk import OsDisk
from tests.support import NOW, FaultDisk

FILES = [SNAPSHOT, BACKUP, *(export.path for export in EXPORTS)]
ROCKETMQ_OFFSETS = '{\n\t"offsetTable":{\n\t\t"T@G":{0:250,1:250}\n\t}\n}'
ROCKETMQ_TOPICS = (
    '{"dataVersion":{"counter":2,"timestamp":1},"topicConfigTable":{"T":{"order":false,"perm":6,'
    '"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
    '"writeQueueNums":8}}}'
)
ROCKETMQ_STOPPED = {
    OFFSETS: ROCKETMQ_OFFSETS,
    DELAYS: '{\n\t"offsetTable":{1:3\n\t}\n}',
    FILTERS: '{\n\t"filterDataByTopic":{"T":{"groupFilterData":{},"topic":"T"}}\n}',
}


@dataclass
class Log:
    """The metadata queue, as a list; records before `first` are deleted."""

    rows: list[bytes] = field(default_factory=list)
    first: int = 0
    master: bool = True

    @property
    def end(self) -> int | None:
        return len(self.rows) if self.master else None

    def place(self, offset: int) -> int:
        return offset * 100 if self.first <= offset < len(self.rows) else -1

    def read(self, offset: int) -> tuple[list[bytes], int]:
        assert offset >= self.first, "what is deleted cannot be read"
        rows = self.rows[offset : offset + 2]
        return rows, offset + len(rows)


class QuickDisk(OsDisk):
    """A disk that does not sync: no test here cuts the power."""

    def write(self, path: str, data: bytes) -> None:
        full = self.root / path
        full.parent.mkdir(exist_ok=True)
        full.write_bytes(data)

    def sync_dir(self, path: str) -> None:
        pass


class Node:
    """What a node does with the files: applies, saves, starts again."""

    def __init__(self, path: Path) -> None:
        self.disk: OsDisk = QuickDisk(path)
        self.log = Log()
        self.doubts: list[Doubt] = []
        self.start()

    def start(self) -> Recovered:
        self.doubts.clear()
        self.files = MetadataFiles(self.disk)
        found = MetadataRecovery(
            Snapshots.read(self.disk), self.files, self.log, self.doubts.append
        ).run()
        self.tables = found.tables
        bodies, following = self.log.read(self.tables.applied)
        while following > self.tables.applied:
            for body in bodies:
                self.tables.apply(body)
            self.tables.applied = following
            bodies, following = self.log.read(self.tables.applied)
        self.save()
        return found

    def change(self, change: Json) -> None:
        if not self.log.rows and self.tables.empty:
            change = {**change, "complete": True}
        self.log.rows.append(json.dumps(change).encode())
        self.tables.apply(self.log.rows[-1])
        self.tables.applied += 1

    def save(self) -> None:
        if self.files.due(self.tables.changes):
            place = self.log.place(self.tables.applied - 1)
            self.files.write(self.tables.snapshot(), place, NOW)

    @property
    def state(self) -> Json:
        return json.loads(self.tables.snapshot().to_bytes())  # type: ignore[no-any-return]

    def file(self, name: str) -> Path:
        return self.disk.root / name


@contextmanager
def new_node() -> Iterator[Node]:
    with TemporaryDirectory() as path:
        yield Node(Path(path))


def topic(name: str, queues: int = 4) -> Json:
    return {"op": "topic", "topic": TopicConfig(name, queues).to_json()}


def offsets(name: str, group: str, row: dict[str, int]) -> Json:
    return {"op": "offsets", "group": group, "offsets": {name: row}}


names = st.sampled_from("ABC")
groups = st.sampled_from("gh")
small = st.integers(0, 9)
changes = st.one_of(
    st.builds(topic, names, st.integers(1, 9)),
    st.builds(lambda n, o: {"op": "delete_topic", "topic": n, "floors": {"0": o}}, names, small),
    st.builds(lambda g: {"op": "group", "group": new_group(g)}, groups),
    st.builds(lambda g: {"op": "delete_group", "group": g}, groups),
    st.builds(lambda n, g, q, o: offsets(n, g, {str(q): o}), names, groups, small, small),
    st.builds(
        lambda n, g, o: {**offsets(n, g, {"0": o}), "done": {n: {"0": [[o + 1, o + 2]]}}},
        names,
        groups,
        small,
    ),
    st.builds(lambda o: {"op": "delays", "offsets": {"3": o}}, small),
    st.builds(lambda a, b: {"op": "timers", "low": a, "done": b}, small, small),
    st.builds(
        lambda n, g: {"op": "filter", "filter": {"topic": n, "consumerGroup": g}}, names, groups
    ),
    st.builds(
        lambda s, b: {"op": "publish", "sink": s, "batch": b, "staged": [b, b + 1]}, groups, small
    ),
    st.builds(lambda s, b: {"op": "published", "sink": s, "batch": b, "done": 2}, groups, small),
)
SAVE = "save"
histories = st.lists(st.one_of(changes, st.just(SAVE)), min_size=1, max_size=25)


def live(node: Node, history: list[Json | str]) -> dict[str, list[bytes]]:
    """Make changes and save now and then; every content that each file ever had."""
    seen: dict[str, list[bytes]] = {name: [] for name in FILES}
    for step in history:
        if isinstance(step, dict):
            node.change(step)
        else:
            node.save()
            for name in FILES:
                if node.file(name).exists():
                    seen[name].append(node.file(name).read_bytes())
    return seen


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """How a file is damaged: the way, a number and some bytes."""
    ways = ["cut", "flip", "replace", "delete", "older", "splice", "empty object"]
    return draw(st.sampled_from(ways)), draw(st.integers(0, 5000)), draw(st.binary(max_size=30))


def damage(file: Path, how: tuple[str, int, bytes], older: list[bytes]) -> None:
    way, number, noise = how
    data = file.read_bytes() if file.exists() else b""
    match way:
        case "cut":
            file.write_bytes(data[: number % (len(data) + 1)])
        case "flip" if data:
            at = number % len(data)
            file.write_bytes(data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :])
        case "replace":
            file.write_bytes(noise)
        case "delete":
            file.unlink(missing_ok=True)
        case "older" if older:
            file.write_bytes(older[number % len(older)])
        case "splice":
            at = number % (len(data) + 1)
            file.write_bytes(data[:at] + noise + data[at + len(noise) :])
        case "empty object":
            file.write_bytes(b"{}")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with an empty directory."""
    return Node(tmp_path)


@given(histories, st.dictionaries(st.sampled_from(FILES), damages(), max_size=len(FILES)))
def test_damage_to_any_files_changes_no_table(
    history: list[Json | str], wounds: dict[str, tuple[str, int, bytes]]
) -> None:
    with new_node() as node:
        seen = live(node, [topic("A"), *history])
        before = node.state
        for name, how in wounds.items():
            damage(node.file(name), how, seen[name])
        node.start()
        assert node.state == before
        assert node.start().foreign == []
        assert node.doubts == []  # all was mended
        whole = {name: node.file(name).read_bytes() for name in FILES}
        node.start()
        assert {name: node.file(name).read_bytes() for name in FILES} == whole


@given(histories, st.sampled_from(FILES), damages())
def test_damage_to_one_file_changes_no_table_though_the_records_are_deleted(
    history: list[Json | str], name: str, how: tuple[str, int, bytes]
) -> None:
    if how[0] == "older":
        return  # the records after it are gone: see below
    with new_node() as node:
        live(node, history)
        node.save()
        node.save()
        before = node.state
        node.log.first = len(node.log.rows)
        damage(node.file(name), how, [])
        node.start()
        assert node.state == before


def test_each_damaged_file_is_reported_and_rewritten(tmp_path: Path) -> None:
    for name in FILES:
        for content in (b"", b"{}", b"\xff", b"[1]", b'{"offsetTable":{"T@G":5}}\n\t \t\n', None):
            node = Node(tmp_path / name.replace("/", "-") / str(hash(content)))
            for step in (topic("A"), offsets("A", "g", {"0": 7})):
                node.change(step)
            node.save()
            before, good = node.state, node.file(name).read_bytes()
            if content is None:
                node.file(name).unlink()
            else:
                node.file(name).write_bytes(content)
            node.start()
            assert [doubt.file for doubt in node.doubts] == [name], content
            assert node.doubts[0].reason
            assert node.doubts[0].action
            assert node.state == before
            if name in (SNAPSHOT, BACKUP):
                decode(name, node.file(name).read_bytes())
            else:
                assert len(node.file(name).read_bytes()) == len(good)


def test_an_older_snapshot_whose_next_records_are_gone_is_reported(node: Node) -> None:
    node.change(topic("A"))
    node.save()
    old = node.file(SNAPSHOT).read_bytes()
    for number in range(10):
        node.change(topic(f"B{number}"))
        node.save()
    node.save()
    before = node.state
    node.log.first = 5
    node.file(SNAPSHOT).write_bytes(old)
    node.start()  # the backup leads on
    assert node.state == before
    assert "the oldest in the log is 5" in node.doubts[0].reason
    node.file(SNAPSHOT).write_bytes(old)
    node.file(BACKUP).write_bytes(old)
    found = node.start()  # nothing does: what is missing is told, the rest is taken
    assert found.partial
    assert {"A", "B9"} <= node.tables.topics.keys()
    assert {doubt.file for doubt in node.doubts} >= {SNAPSHOT, BACKUP}


def test_a_snapshot_of_another_log_is_not_used(tmp_path: Path) -> None:
    node, other = Node(tmp_path / "a"), Node(tmp_path / "b")
    for number in range(3):
        node.change(topic(f"A{number}"))
    for number in range(2):
        other.change(topic(f"X{number}"))
    other.log.place = lambda offset: 7777  # type: ignore[method-assign]
    other.save()
    node.save()
    before = node.state
    for name in FILES:
        node.file(name).write_bytes(other.file(name).read_bytes())
    node.start()
    assert node.state == before
    assert "its last record is at 7777, in the log that record is at 100" in node.doubts[0].reason


def test_a_master_takes_back_what_its_log_has_lost_and_a_replica_does_not(tmp_path: Path) -> None:
    for master, expected in ((True, 3), (False, 90)):
        node = Node(tmp_path / str(master))
        node.change(topic("A"))
        node.change(offsets("A", "g", {"0": 3}))
        node.change(offsets("A", "g", {"0": 90}))
        node.save()
        node.log.rows.pop()  # a power cut took it, the snapshot was on disk before
        node.log.master = master
        node.start()
        assert node.tables.committed("g", "A", 0) == expected
        assert bool(node.doubts) == master


def test_the_backup_is_brought_up_to_the_snapshot_when_nothing_changes(node: Node) -> None:
    node.change(topic("A"))
    node.save()
    assert node.file(SNAPSHOT).read_bytes() != node.file(BACKUP).read_bytes()
    node.save()
    assert node.file(SNAPSHOT).read_bytes() == node.file(BACKUP).read_bytes()
    written = node.file(SNAPSHOT).stat().st_ino
    node.save()
    assert node.file(SNAPSHOT).stat().st_ino == written


def test_a_file_of_a_table_that_did_not_change_is_not_written_again(node: Node) -> None:
    node.change(topic("A"))
    node.save()
    topics, committed = (node.file(name).stat().st_ino for name in (TOPICS, OFFSETS))
    node.start()
    node.change(offsets("A", "g", {"0": 1}))
    node.save()
    assert node.file(TOPICS).stat().st_ino == topics
    assert node.file(OFFSETS).stat().st_ino != committed


def test_the_files_have_rocketmqs_shapes(node: Node) -> None:
    node.change(topic("T", 3))
    node.change(offsets("T", "G", {"0": 250, "1": 3}))
    node.save()
    text = node.file(OFFSETS).read_bytes()
    assert (
        text == b'{\n\t"offsetTable":{\n\t\t"T@G":{\n\t\t\t0:250,\n\t\t\t1:3\n\t\t}\n\t}\n}' + MARK
    )
    topics = jsontext.loads(node.file(TOPICS).read_text())
    assert topics["dataVersion"] == {"counter": node.tables.changes, "timestamp": NOW}
    assert topics["topicConfigTable"]["T"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }


def rocketmqs(path: Path) -> None:
    config = path / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / "consumerOffset.json").write_text(ROCKETMQ_OFFSETS)
    (config / "delayOffset.json").write_text('{\n\t"offsetTable":{1:0,3:22}\n}')
    (config / "topics.json").write_text(ROCKETMQ_TOPICS)


def test_a_directory_of_rocketmq_opens_with_its_tables(tmp_path: Path) -> None:
    rocketmqs(tmp_path)
    node = Node(tmp_path)
    assert node.doubts == []
    assert node.tables.topics["T"].queues == 8
    assert node.tables.offsets["T", "G"] == {0: 250, 1: 250}
    assert node.tables.delay_offsets == {1: 0, 3: 22}
    made = Metadata()
    for change in changes_of(node.tables):  # what goes into the log
        made.apply(json.dumps(change).encode())
    assert made.topics == node.tables.topics
    assert made.offsets == node.tables.offsets
    assert made.delay_offsets == node.tables.delay_offsets


def test_tables_that_rocketmq_wrote_afterwards_are_adopted(node: Node) -> None:
    node.change(topic("A"))
    node.change(offsets("A", "g", {"0": 7}))
    node.save()
    for name, text in ROCKETMQ_STOPPED.items():
        node.file(name).write_text(text)
    found = node.start()
    assert found.foreign == [OFFSETS, DELAYS, FILTERS]
    assert not found.partial
    assert told(node) == [
        (name, "RocketMQ has written it since", "its table is used")
        for name in (OFFSETS, DELAYS, FILTERS)
    ]
    assert node.tables.offsets == {("T", "G"): {0: 250, 1: 250}}
    assert node.tables.topics.keys() == {"A"}
    assert node.start().foreign == []
    assert node.tables.offsets == {("T", "G"): {0: 250, 1: 250}}


def test_one_file_that_rocketmq_might_have_written_is_a_damaged_one(node: Node) -> None:
    node.change(offsets("A", "g", {"0": 7}))
    node.save()
    before = node.state
    for name, text in ROCKETMQ_STOPPED.items():
        node.file(name).write_text(text)
        assert node.start().foreign == []
        assert [doubt.file for doubt in node.doubts] == [name]
        assert node.state == before


@pytest.mark.parametrize("text", ["{", "{}", '{"topicConfigTable":{"T":{"perm":"x"}}}', ""])
def test_a_file_of_rocketmq_that_cannot_be_read_is_an_error_unless_its_backup_can(
    tmp_path: Path, text: str
) -> None:
    rocketmqs(tmp_path)
    (tmp_path / TOPICS).write_text(text)
    if text:
        with pytest.raises(BadStoreFile, match=r"config/topics\.json.*json: "):
            Node(tmp_path)
    else:  # it never held anything
        assert Node(tmp_path / "empty").tables.topics == {}
        rocketmqs(tmp_path / "other")
        (tmp_path / "other" / TOPICS).write_text(text)
        assert Node(tmp_path / "other").tables.topics == {}
    (tmp_path / (TOPICS + ".bak")).write_text(ROCKETMQ_TOPICS)
    assert Node(tmp_path).tables.topics["T"].queues == 8


def test_a_directory_without_checksums_keeps_its_tables(node: Node, tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    node.change(topic("A"))
    node.change({"op": "delete_topic", "topic": "D", "floors": {"0": 9}})
    node.log.rows[0] = json.dumps(topic("A")).encode()
    before = node.state
    rocketmqs(tmp_path)
    own = {"appliedQueueOffset": 2, "queueFloors": {"D": {"0": 9}}, "timers": [4, 5], "sinks": {}}
    jsontext.save(node.disk, SNAPSHOT, own)
    node.file(BACKUP).unlink()
    node.start()
    assert node.tables.topics.keys() == {"A", "T"}
    assert node.state["floors"] == before["floors"]
    assert node.tables.timers == (4, 5)


def test_a_save_that_fails_at_any_call_leaves_tables_that_can_be_read(tmp_path: Path) -> None:
    number, failed = 0, True
    while failed:
        number += 1
        node = Node(tmp_path / str(number))
        node.change(topic("A"))
        node.save()
        node.save()
        disk = FaultDisk(node.disk.root)
        node.files._disk = disk
        node.change(topic("B"))
        node.change(offsets("B", "g", {"0": 1}))
        disk.calls, disk.fail_at = 0, number
        try:
            node.save()
        except OSError:
            pass
        failed = bool(disk.failed)
        before = node.state
        node.start()
        assert node.state == before
        node.log.first = len(node.log.rows)
        node.start()
        assert node.state == before
    assert number > 8


def test_a_save_that_failed_is_due_again_until_every_file_is_written(tmp_path: Path) -> None:
    number, failed = 0, True
    while failed:
        number += 1
        node = Node(tmp_path / str(number))
        node.change(topic("A"))
        node.save()
        node.save()
        node.file(TOPICS).write_bytes(b"{}")
        disk = FaultDisk(node.disk.root)
        node.disk, good = disk, node.disk
        disk.calls, disk.fail_at = 0, number
        try:
            node.start()
        except OSError:
            pass
        failed = bool(disk.failed)
        node.files._disk = good
        node.save()
        assert "A" in json.loads(node.file(TOPICS).read_text())["topicConfigTable"]
    assert number > 4


def test_a_backup_survives_the_start_that_finds_the_snapshot_damaged(tmp_path: Path) -> None:
    """A start that is killed while it rewrites them leaves one intact snapshot."""
    number, failed = 0, True
    while failed:
        number += 1
        node = Node(tmp_path / str(number))
        node.change(topic("A"))
        node.save()
        node.save()
        before = node.state
        node.log.first = 1
        node.file(SNAPSHOT).write_bytes(b"{}")
        disk = FaultDisk(node.disk.root, stay_broken=True)
        node.disk, good = disk, node.disk
        disk.calls, disk.fail_at = 0, number
        try:
            node.start()
        except OSError:
            pass
        failed = bool(disk.failed)
        node.disk = good
        node.start()
        assert node.state == before
    assert number > 4


def told(node: Node) -> list[tuple[str, str, str]]:
    return [(doubt.file, doubt.reason, doubt.action) for doubt in node.doubts]


def two_snapshots(path: Path) -> Node:
    """A node whose snapshot and backup both have its two topics."""
    node = Node(path)
    node.change(topic("A"))
    node.change(topic("B"))
    node.save()
    node.save()
    return node


def test_intact_files_are_used_silently_even_if_their_records_are_deleted(tmp_path: Path) -> None:
    node = two_snapshots(tmp_path)
    for first in (0, 1, 2):
        node.log.first = first
        found = node.start()
        assert (node.doubts, found.foreign, found.partial) == ([], [], False)
        assert found.tables.changes == 0, "nothing is written for it"
    node.log.master = False
    node.start()
    assert node.doubts == []


def test_a_damaged_file_is_reported_once_with_the_action_taken(tmp_path: Path) -> None:
    every, kept = (
        "all records in the log are applied again",
        " is used, and the records after it are applied",
    )
    node = two_snapshots(tmp_path)
    node.file(SNAPSHOT).unlink()
    node.start()
    assert told(node) == [(SNAPSHOT, "it is missing", BACKUP + kept)]
    node.file(BACKUP).write_bytes(b"")
    node.start()
    assert told(node) == [(BACKUP, "it is empty", SNAPSHOT + kept)]
    node.file(SNAPSHOT).unlink()
    node.file(BACKUP).unlink()
    node.start()
    assert told(node) == [(SNAPSHOT, "it and its backup are missing", every)]
    assert node.tables.topics.keys() == {"A", "B"}
    for path in (SNAPSHOT, BACKUP):
        node.file(path).write_bytes(b"x" * 99)
    assert not node.start().partial
    crc = "its checksum does not match"
    assert told(node) == [(SNAPSHOT, crc, every), (BACKUP, crc, every)]
    node.file(SNAPSHOT).unlink()
    node.file(SNAPSHOT).mkdir()
    with pytest.raises(IsADirectoryError):
        node.start()
    assert told(node) == [(SNAPSHOT, "it cannot be read: Is a directory", BACKUP + kept)]
    node.file(SNAPSHOT).rmdir()
    node.start()
    node.file(TOPICS).write_bytes(b"x")
    node.file(OFFSETS).unlink()
    node.start()
    action = f"it is rewritten from {SNAPSHOT}"
    gone = "it cannot be read: No such file or directory"
    assert told(node) == [(TOPICS, crc, action), (OFFSETS, gone, action)]
    node.start()
    assert node.doubts == []


def test_a_file_left_by_an_interrupted_save_is_rewritten_silently(tmp_path: Path) -> None:
    node = two_snapshots(tmp_path)
    old = node.file(TOPICS).read_bytes()
    node.change(topic("C"))
    node.save()
    new = node.file(TOPICS).read_bytes()
    node.file(TOPICS).write_bytes(old)
    node.start()
    assert node.doubts == []
    rows = [jsontext.loads(text.decode())["topicConfigTable"] for text in (old, new)]
    assert jsontext.loads(node.file(TOPICS).read_text())["topicConfigTable"] == rows[1] != rows[0]


def test_one_whole_snapshot_is_enough_to_see_a_damaged_file(tmp_path: Path) -> None:
    node = two_snapshots(tmp_path)
    node.file(BACKUP).unlink()
    node.file(TOPICS).write_bytes(b"x")
    node.start()
    assert [doubt.file for doubt in node.doubts] == [BACKUP, TOPICS]


@pytest.mark.parametrize("marked", [True, False])
def test_files_that_rocketmq_cannot_have_written_are_damaged_ones_though_all_are(
    tmp_path: Path, marked: bool
) -> None:
    node, other = two_snapshots(tmp_path / "a"), Node(tmp_path / "b")
    other.change(offsets("B", "other", {"0": 9}))
    other.change({"op": "delays", "offsets": {"3": 9}})
    other.change({"op": "filter", "filter": {"topic": "B", "consumerGroup": "other"}})
    other.save()
    before = node.state
    for name in PERSISTED:
        node.file(name).write_bytes(other.file(name).read_bytes() if marked else b"x")
    assert node.start().foreign == []
    assert [doubt.file for doubt in node.doubts] == list(PERSISTED)
    assert node.state == before


def test_a_snapshot_older_than_its_backup_is_reported(node: Node) -> None:
    node.change(topic("A"))
    node.save()
    node.save()
    old = node.file(SNAPSHOT).read_bytes()
    node.change(topic("B"))
    node.save()
    node.save()
    node.log.first = 1
    node.file(SNAPSHOT).write_bytes(old)
    node.start()
    assert told(node)[0] == (
        SNAPSHOT,
        "it is older than its backup",
        f"{BACKUP} is used, and the records after it are applied",
    )
    assert {doubt.file for doubt in node.doubts} == {SNAPSHOT}, "the exports are the backup's"
    assert node.tables.topics.keys() == {"A", "B"}
    node.file(SNAPSHOT).write_bytes(old)
    node.log.rows, node.log.first = [json.dumps(topic(name)).encode() for name in "CDEF"], 0
    node.log.place = lambda offset: 7777  # type: ignore[method-assign]
    assert node.start().partial
    assert node.tables.topics.keys() == set("ABCDEF"), "the newer one is the better base"


@pytest.mark.parametrize("known_by", ["a deleted record", "the end", "a record", "a file"])
def test_tables_are_read_from_the_log_if_duolog_kept_them(tmp_path: Path, known_by: str) -> None:
    """Without any snapshot, only the log or a marked file shows it."""
    node = two_snapshots(tmp_path)
    if known_by == "a file":
        node.file(SNAPSHOT).unlink()
        node.file(BACKUP).unlink()
    else:
        shutil.rmtree(tmp_path / "config")
    if known_by == "a deleted record":
        node.log.rows, node.log.first, node.log.master = node.log.rows * 2, 4, False
    elif known_by == "a record":
        del node.log.rows[1:]
        node.log.master = False
    elif known_by == "a file":
        node.log.rows.clear()
        node.log.master = False
    else:
        node.log.place = lambda offset: -1  # type: ignore[method-assign]
    found = node.start()
    assert told(node)[0][:2] == (SNAPSHOT, "it and its backup are missing")
    assert found.partial == (known_by in ("a deleted record", "a file"))
    taken = [doubt.file for doubt in node.doubts if doubt.reason == "no snapshot vouches for it"]
    assert taken == ([export.path for export in EXPORTS] if known_by == "a file" else [])
    left = {"a deleted record": set[str](), "a record": {"A"}}.get(known_by, {"A", "B"})
    assert node.tables.topics.keys() == left


def test_a_log_that_may_not_have_begun_empty_is_applied_to_the_best_tables(tmp_path: Path) -> None:
    node = two_snapshots(tmp_path)
    node.log.rows = [json.dumps(topic(name)).encode() for name in "CDEF"]
    node.log.place = lambda offset: 7777  # type: ignore[method-assign]
    found = node.start()
    assert found.partial
    assert node.tables.topics.keys() == set("ABCDEF")
    assert node.tables.applied == 4
    node = two_snapshots(tmp_path / "first")
    node.log.rows += [json.dumps(topic(name)).encode() for name in "CDEF"]
    node.log.first = 3
    node.log.rows[3] = json.dumps({**topic("D"), "complete": True}).encode()
    found = node.start()
    assert found.partial, "its first records are deleted"
    assert node.tables.topics.keys() == set("ABDEF")


def test_a_new_directory_has_no_foreign_tables_and_rocketmqs_has(tmp_path: Path) -> None:
    node = Node(tmp_path / "new")
    for path in FILES:
        node.file(path).unlink()
    found = node.start()
    assert (found.foreign, found.partial, node.doubts) == ([], True, [])
    rocketmqs(tmp_path / "rocketmq")
    found = MetadataRecovery(
        Snapshots.read(QuickDisk(tmp_path / "rocketmq")), node.files, Log(), node.doubts.append
    ).run()
    assert (found.foreign, found.partial) == ([TOPICS, OFFSETS, DELAYS], False)
    (tmp_path / "rocketmq" / TOPICS).unlink()
    found = MetadataRecovery(
        Snapshots.read(QuickDisk(tmp_path / "rocketmq")), node.files, Log(), node.doubts.append
    ).run()
    assert (found.foreign, found.partial) == ([OFFSETS, DELAYS], True)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_snapshot_or_an_error(data: bytes) -> None:
    with pytest.raises(NotASnapshot):
        decode(SNAPSHOT, data)
