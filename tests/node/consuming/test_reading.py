"""Reads of a node: what a slave does not answer, what is counted, and where a reader should go."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import duolog
import numpy as np
import pytest
from duolog import Start

from duolog_server.node.consuming import offsets
from duolog_server.node.consuming.reading import Reader, Selection, physical_memory
from duolog_server.node.filters.tagfilter import TagFilter
from duolog_server.node.identity.quotas.quota import Limit, Subject
from duolog_server.node.identity.quotas.quotas import Wait
from duolog_server.store.births import Births
from duolog_server.store.kernels import decode
from duolog_server.store.metadata import Metadata
from duolog_server.store.moves import Moves
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import EMPTY_TABLE, GetMessageStatus, GetResult, Wanted

S = GetMessageStatus
KEY = ("T", 0)
SELECTION = Selection(TagFilter.parse("*"), 3, 500)


def result(status: GetMessageStatus, following: int, count: int = 0, lost: int = 0) -> GetResult:
    table = np.zeros((len(EMPTY_TABLE), count), np.int64)
    places = QueueOffset(following), QueueOffset(2), QueueOffset(40)
    return GetResult(status, *places, bytes(10 * count), b"", table, lost)


class Node:
    """A node whose store answers as it is told."""

    def __init__(self, *answers: GetResult, slave: bool = False) -> None:
        self.answers = list(answers)
        self.wanted: list[tuple[int, Wanted]] = []
        self.counted: list[Any] = []
        self.behind = slave
        self.retry: Wait | None = None
        self.away = False
        self.end = 10**9
        self.master: Any = None if slave else SimpleNamespace(read_endpoint=lambda: "slave:1")
        traffic = SimpleNamespace(
            read=lambda count: self.counted.append(("read", count)),
            deliver=lambda *what: self.counted.append(("delivered", *what)),
        )
        store = SimpleNamespace(get=self._get, max_offset=0)
        self.store = store
        core: Any = SimpleNamespace(
            store=store,
            traffic=traffic,
            traces=None,
            board=None,
            metadata=SimpleNamespace(
                has_group=lambda name: name == "g", births=Births(), tables=Metadata()
            ),
            throttle=SimpleNamespace(
                may_read=self._may_read,
                read=lambda who, topic, again: self.retry if again else None,
                at_once=lambda who, topic, size, count: (size // 2, count - 1),
                sent=lambda *what: self.counted.append(("sent", *what[1:])),
            ),
        )
        self.replication = SimpleNamespace(
            slave=object() if slave else None,
            master=self.master,
            options=SimpleNamespace(access_message_in_memory_max_ratio=40, slave_read_enable=True),
            may_be_behind=lambda: self.behind,
            master_endpoint=("master:1", 7),
        )
        self.filtered: list[tuple[str, str]] = []
        filters: Any = SimpleNamespace(
            bits=lambda group, topic, _: self.filtered.append((group, topic))
        )
        nothing: Any = None
        self.core = core
        self.reader = Reader(core, cast(Any, self.replication), filters, nothing, nothing)

    def _get(self, topic: str, queue_id: int, start: int, wanted: Wanted) -> GetResult:
        self.wanted.append((start, wanted))
        return self.answers.pop(0)

    async def _may_read(self, who: object, topic: str, deadline: float, group: str) -> Wait | None:
        return self.retry


def test_a_read_is_limited_by_its_selection_and_counted() -> None:
    node = Node(result(S.FOUND, 8, 3))
    assert node.reader.read(KEY, 5, SELECTION).count == 3
    ((start, wanted),) = node.wanted
    assert (start, wanted.messages_max, wanted.bytes_max) == (5, 3, 500)
    assert node.filtered == [("", "T")]
    assert node.counted == [("read", 3)]


@pytest.mark.parametrize(
    "answer", [result(S.FOUND, 8, 2, lost=1), result(S.OFFSET_TOO_SMALL, 9)], ids=["lost", "old"]
)
def test_a_slave_never_passes_over_messages_that_its_master_may_have(answer: GetResult) -> None:
    """A group that skipped them there would never see them."""
    node = Node(answer, answer, slave=True)
    with pytest.raises(duolog.NotMaster, match="lacks messages of T/0 between offsets 5") as error:
        node.reader.read(KEY, 5, SELECTION)
    assert (error.value.endpoint, error.value.epoch) == ("master:1", 7)
    before_the_gap = result(S.FOUND, 6, 1)
    node = Node(answer, before_the_gap, slave=True)
    assert node.reader.read(KEY, 5, SELECTION) is before_the_gap
    assert [wanted.messages_max for _, wanted in node.wanted] == [3, 1]
    node = Node(answer)
    assert node.reader.read(KEY, 5, SELECTION) is answer, "a master says what is lost"


def test_a_group_gets_no_retries_of_a_deleted_one_of_its_name() -> None:
    """Messages of other topics are anybody's."""
    found = result(S.FOUND, 8, 2)
    found.table[decode.OUT_PHY] = 600, 800
    for topic, kept in (("%RETRY%g", [800]), ("T", [600, 800])):
        node = Node(found)
        node.core.metadata.births.groups["g"] = 700
        node.core.metadata.births.newest = 700
        selection = replace(SELECTION, group="g")
        read = node.reader.read((topic, 0), 5, selection)
        assert read.table[decode.OUT_PHY].tolist() == kept


def test_a_node_that_may_be_behind_sends_no_reader_back() -> None:
    beyond = result(S.OFFSET_OVERFLOW_BADLY, 40)
    node = Node(beyond, slave=True)
    found = node.reader.read(KEY, 50, SELECTION)
    assert (found.status, found.next_offset, found.max_offset) == (S.OFFSET_OVERFLOW_ONE, 50, 50)
    node = Node(beyond)
    assert node.reader.read(KEY, 50, SELECTION) is beyond


def test_deliveries_are_counted_by_groups_that_there_are() -> None:
    node = Node()
    node.reader.delivered(KEY, "g", result(S.FOUND, 8, 2))
    node.reader.delivered(KEY, "any text may come", result(S.FOUND, 8, 1))
    node.reader.delivered(KEY, "g", result(S.OFFSET_OVERFLOW_ONE, 8))
    assert node.counted == [("delivered", "T", "g", 2, 20), ("delivered", "T", "", 1, 10)]
    traced: list[Any] = []
    core: Any = node.reader._core
    core.traces = SimpleNamespace(delivered=lambda *what: traced.append(what))
    found = result(S.FOUND, 8, 2)
    node.reader.delivered(KEY, "g", found)
    node.reader.delivered(KEY, "g", result(S.OFFSET_OVERFLOW_ONE, 8))
    assert traced == [(*KEY, "g", found)]


async def test_a_reader_waits_for_its_quota_and_is_refused_at_the_deadline() -> None:
    node, who = Node(), cast(Any, "alice")
    await node.reader.may_read(who, "T", "g", 0.0)
    assert node.reader.may_go_out(who, "T")
    share = node.reader.share(who, "T", SELECTION)
    assert (share.bytes_max, share.messages_max) == (250, 2)
    node.retry = Wait(300, Subject.parse("user:alice"), Limit.MESSAGES_OUT, 5)
    assert not node.reader.may_go_out(who, "T")
    with pytest.raises(duolog.Throttled):
        await node.reader.may_read(who, "T", "g", 0.0)
    node.reader.sent(who, "T", replace(result(S.FOUND, 8, 2), properties=b"a\x01b"))
    node.reader.sent(who, "T", result(S.OFFSET_OVERFLOW_ONE, 8))
    assert node.counted == [("sent", "T", 23, 2)]


def test_a_reader_that_is_far_behind_is_sent_to_a_slave() -> None:
    node = Node()
    memory = node.reader._in_memory_bytes
    assert memory == physical_memory() * 2 // 5, "40 percent"
    node.store.max_offset = 5000 + memory
    assert node.reader.suggested_endpoint(5000) == "", "all that it reads is in memory"
    assert node.reader.suggested_endpoint(4999) == "slave:1"
    node.replication.options.slave_read_enable = False
    assert node.reader.suggested_endpoint(0) == ""
    slave = Node(slave=True)
    slave.store.max_offset = 5000 + memory
    assert slave.reader.suggested_endpoint(0) == "", "it does not know the others"


# -- where a group begins --------------------------------------------------------------------------


class Queues:
    """A topic T of three queues with offsets 10 to 30, and a retry topic."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], dict[int, int]] = {}
        self.begun: list[Any] = []
        births = Births()
        births.groups["g"] = 700
        self.core: Any = SimpleNamespace(
            store=SimpleNamespace(queue_range=lambda topic, queue: (10, 30)),
            positions=SimpleNamespace(
                offset_at_time=lambda topic, queue, ms: ms // 100,
                offset_in_log=lambda topic, queue, at: at // 50,
            ),
            metadata=SimpleNamespace(
                births=births,
                tables=SimpleNamespace(offsets=self.known, moves=Moves()),
                topics={
                    "T": SimpleNamespace(queues=3),
                    "%RETRY%g": SimpleNamespace(queues=1),
                },
                begin=self._begin,
            ),
        )

    async def _begin(self, group: str, places: dict[str, dict[int, int]]) -> None:
        self.begun.append((group, places))


def test_positions_in_a_queue() -> None:
    core = Queues().core
    places = [offsets.offset_at(core, "T", 0, at) for at in (Start.EARLIEST, Start.LATEST, 1500)]
    assert places == [10, 30, 15]
    assert offsets.position_of(core, "g", "T", 0, -1) == 10
    assert offsets.position_of(core, "g", "T", 0, 5) == 10, "retention is ahead"
    assert offsets.position_of(core, "g", "T", 0, 12) == 12
    assert offsets.position_of(core, "g", "%RETRY%g", 0, -1) == 14, "behind a deleted group's rest"
    assert offsets.position_of(core, "h", "%RETRY%h", 0, -1) == 10
    assert offsets.position_of(core, "g", "%RETRY%g", 0, 12) == 12
    assert offsets.position_of(core, "g", "%RETRY%g", 0, 0) == 10, "it began before"


async def test_a_group_begins_once_in_each_queue() -> None:
    queues = Queues()

    async def begin(*topics: str) -> None:
        await offsets.begin(queues.core, "g", topics, lambda topic, queue: Start.LATEST)

    await begin("T", "%RETRY%g")
    assert queues.begun == [("g", {"T": {0: 30, 1: 30, 2: 30}, "%RETRY%g": {0: 14}})]
    queues.known["T", "g"] = {0: 25, 1: 25}
    queues.known["%RETRY%g", "g"] = {0: 14}
    await begin("T", "%RETRY%g")
    assert queues.begun[1:] == [("g", {"T": {2: 10}})], "a new queue: nothing is passed over"
    queues.known["T", "g"] = {0: 25, 1: 25, 2: 10}
    await begin("T")
    assert len(queues.begun) == 2
    with pytest.raises(duolog.UnknownTopic, match="was deleted meanwhile"):
        await begin("T", "U")
