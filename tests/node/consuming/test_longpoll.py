"""Long polls: what ends one, where it reads on, and how much of an answer a client has room for."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import duolog
import numpy as np
import pytest

from duolog_server.node.consuming import longpoll
from duolog_server.node.consuming.longpoll import MESSAGE_BYTES, check_place, poll, within_room
from duolog_server.node.consuming.reading import Reader, Selection
from duolog_server.node.consuming.waiting import Turns
from duolog_server.node.core.untaken import Untaken
from duolog_server.node.core.waitingcalls import WaitingCalls
from duolog_server.node.engine.arrivals import ArrivalBoard
from duolog_server.node.filters.tagfilter import TagFilter
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.reader import EMPTY_TABLE, GetMessageStatus, GetResult

KEY = ("T", 0)
S = GetMessageStatus
SELECTION = Selection(TagFilter.parse("*"), 32, 1000)
Who = Any


def result(
    status: GetMessageStatus, following: int, high: int, count: int = 0, size: int = 0
) -> GetResult:
    table = np.zeros((len(EMPTY_TABLE), count), np.int64)
    offsets = QueueOffset(following), QueueOffset(0), QueueOffset(high)
    return GetResult(status, *offsets, bytes(size), b"", table)


@dataclass
class Node:
    """Answers reads as it is told; the last answer again and again."""

    answers: list[GetResult]
    read_at: list[int] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    may: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board = ArrivalBoard()
        self.turns = Turns()
        self.calls = WaitingCalls(1)
        self.untaken = Untaken(100_000, 50_000, self.calls)

    def read(self, key: object, offset: int, selection: Selection) -> GetResult:
        self.read_at.append(offset)
        self.selections.append(selection)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def may_read(self, who: Who, topic: str, group: str, deadline: float) -> None:
        assert topic == KEY[0]
        self.asked.append("may read")

    def share(self, who: Who, topic: str, selection: Selection) -> Selection:
        assert topic == KEY[0]
        self.asked.append("share")
        return Selection(selection.filter, 7, selection.bytes_max, who=who)

    def may_go_out(self, who: Who, topic: str) -> bool:
        assert topic == KEY[0]
        self.asked.append("may go out")
        return self.may.pop(0)

    def sent(self, who: Who, topic: str, found: GetResult) -> None:
        self.asked.append(f"sent {topic} {found.count}")

    @property
    def reader(self) -> Reader:
        return cast(Reader, self)

    async def poll(
        self, offset: int = 5, seconds: float = 60.0, selection: Selection = SELECTION
    ) -> tuple[int, GetResult]:
        deadline = asyncio.get_running_loop().time() + seconds
        return await poll(self.reader, KEY, offset, selection, deadline)


FOUND = result(S.FOUND, 6, 6, 1, 10)
AT_END = result(S.OFFSET_OVERFLOW_ONE, 5, 5)


@pytest.mark.parametrize(
    "answer",
    [
        FOUND,
        result(S.OFFSET_OVERFLOW_BADLY, 3, 3),
        result(S.OFFSET_TOO_SMALL, 7, 9),
        result(S.OFFSET_OVERFLOW_ONE, 4, 4),  # the reader is beyond the end
        result(S.NO_MESSAGE_IN_QUEUE, 0, 0),
    ],
)
async def test_what_a_reader_has_to_know_is_answered_at_once(answer: GetResult) -> None:
    node = Node([answer])
    assert await node.poll() == (5, answer)
    assert node.read_at == [5]


async def test_a_poll_waits_for_a_message_and_no_longer_than_its_deadline() -> None:
    node = Node([AT_END, AT_END, FOUND])
    polling = asyncio.ensure_future(node.poll())
    await asyncio.sleep(0)
    assert (node.calls.count, len(node.board), node.read_at) == (1, 1, [5, 5])
    node.board.arrived([KEY])
    assert await polling == (5, FOUND)
    assert (node.calls.count, len(node.board)) == (0, 0)
    node = Node([AT_END])
    assert await node.poll(seconds=0.0) == (5, AT_END)
    assert node.read_at == [5]
    assert (await node.poll(seconds=0.01))[1] is AT_END
    assert (node.calls.count, len(node.board)) == (0, 0)


async def test_a_message_that_comes_between_two_looks_is_not_missed() -> None:
    node = Node([AT_END, FOUND])
    assert await node.poll() == (5, FOUND)


async def test_a_poll_that_finds_nothing_where_something_came_waits_again() -> None:
    """It may have gone to the past of the queue, or be nothing that this reader sees yet."""
    node = Node([AT_END])
    polling = asyncio.ensure_future(node.poll(seconds=0.5))
    await asyncio.sleep(0)
    for reads in (3, 4):
        node.board.arrived([KEY])
        for _ in range(5):
            await asyncio.sleep(0)
        assert (polling.done(), len(node.read_at)) == (False, reads)
    node.answers = [FOUND]
    node.board.arrived([KEY])
    assert await polling == (5, FOUND)


async def test_too_many_polls_are_refused() -> None:
    node = Node([AT_END])
    polling = asyncio.ensure_future(node.poll())
    await asyncio.sleep(0)
    with pytest.raises(duolog.Busy):
        await node.poll()
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
    assert (node.calls.count, len(node.board)) == (0, 0)


async def test_what_no_filter_takes_is_read_once_and_passed_over() -> None:
    """However much that is: the reader reads on behind it, also after it has waited."""
    none = [result(S.NO_MATCHED_MESSAGE, offset, 40) for offset in (10, 20, 30, 40)]
    node = Node([*none, result(S.FOUND, 41, 41, 1)])
    polling = asyncio.ensure_future(node.poll())
    await asyncio.sleep(0)
    assert len(node.read_at) == 2, "others have a turn before each of the next reads"
    while len(node.read_at) < 4:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not polling.done()
    node.board.arrived([KEY])
    offset, found = await polling
    assert (offset, found.status, node.read_at) == (40, S.FOUND, [5, 10, 20, 30, 40])


async def test_lost_messages_are_reported_though_the_filter_took_none() -> None:
    lost = GetResult(S.NO_MATCHED_MESSAGE, QueueOffset(9), QueueOffset(0), QueueOffset(9), lost=1)
    assert await Node([lost]).poll() == (5, lost)


async def test_a_queue_without_messages_does_not_move_its_reader() -> None:
    empty = result(S.NO_MATCHED_LOGIC_QUEUE, 0, 0)
    node = Node([empty])
    assert (await node.poll(offset=0, seconds=0.01))[0] == 0


async def test_a_quota_is_asked_before_the_read_and_again_before_the_answer() -> None:
    node = Node([FOUND], may=[False, True])
    selection = Selection(TagFilter.parse("*"), 32, 1000, who=cast(Any, "alice"))
    assert (await node.poll(selection=selection))[1] is FOUND
    assert node.asked == ["may read", "share", "may go out"] * 2
    assert [one.messages_max for one in node.selections] == [7, 7]
    node = Node([AT_END])
    assert (await node.poll(seconds=0.0, selection=selection))[1] is AT_END
    assert node.asked == ["may read", "share"], "nothing goes out"


def test_a_place_is_one_of_the_topics_queues() -> None:
    for queue, offset in ((0, 0), (3, 7)):
        check_place(("T", queue), 4, offset)
    for queue, offset, why in ((4, 0, "queues 0..3"), (-1, 0, "queue -1"), (0, -1, "negative")):
        with pytest.raises(duolog.BadRequest, match=why):
            check_place(("T", queue), 4, offset)


# -- room ------------------------------------------------------------------------------------------


class Reads:
    """Reads for `within_room`; each message has a body and properties of some size."""

    def __init__(self, node: Node, body: int, text: int, before: Any = None) -> None:
        self.node, self.body, self.text, self.before = node, body, text, before
        self.asked: list[tuple[int, int]] = []

    async def __call__(self, selection: Selection) -> tuple[int, GetResult]:
        self.asked.append((selection.messages_max, selection.bytes_max))
        if self.before is not None:
            self.before()
        count = min(selection.messages_max, max(1, selection.bytes_max // self.body))
        found = result(S.FOUND, count, count, count, count * self.body)
        return 0, replace(found, properties=bytes(count * self.text))


async def within(node: Node, reads: Reads, selection: Selection = SELECTION) -> tuple[int, int]:
    """Messages of the answer, and the bytes that are counted for it."""
    _, found, size = await within_room(node.reader, "a", KEY, selection, reads)
    return found.count, size


async def test_an_answer_is_counted_until_it_is_taken() -> None:
    node = Node([FOUND])
    reads = Reads(node, body=100, text=10)
    assert await within(node, reads) == (10, 10 * (100 + 10 + MESSAGE_BYTES))
    assert reads.asked == [(32, 1000)]
    assert node.untaken.held_bytes == 10 * (110 + MESSAGE_BYTES)
    assert node.asked == [], "who is nobody's"
    charged = Selection(TagFilter.parse("*"), 2, 1000, who=cast(Any, "alice"))
    await within(node, reads, charged)
    assert node.asked == ["sent T 2"]


async def test_a_read_asks_for_no_more_than_there_is_room_for() -> None:
    node = Node([FOUND])
    node.untaken = Untaken(4000, 1000, node.calls)
    node.untaken.take("a", 600)
    reads = Reads(node, body=100, text=0)
    await within(node, reads, Selection(TagFilter.parse("*"), 32, 400))
    assert reads.asked.pop() == (32, 400), "what it asks for has room"
    node.untaken.give("a", node.untaken.held_bytes - 600)
    assert (await within(node, reads))[0] == 4
    assert reads.asked == [(400 // MESSAGE_BYTES, 400)]
    node.untaken.give("a", node.untaken.held_bytes)


async def test_properties_that_have_no_room_are_read_again_with_fewer_messages() -> None:
    node = Node([FOUND])
    node.untaken = Untaken(4000, 1000, node.calls)
    node.untaken.take("a", 500)
    reads = Reads(node, body=10, text=250)
    assert (await within(node, reads))[0] == 2
    assert [count for count, _ in reads.asked] == [7, 2]


async def test_two_messages_that_have_no_room_together_go_one_by_one() -> None:
    node = Node([FOUND])
    node.untaken = Untaken(4000, 1000, node.calls)
    node.untaken.take("a", 500)
    reads = Reads(node, body=200, text=300)
    assert (await within(node, reads))[0] == 1
    assert [count for count, _ in reads.asked] == [7, 1]


async def test_one_message_has_room_in_any_case() -> None:
    """Its client could never get it otherwise."""
    node = Node([FOUND])
    node.untaken = Untaken(4000, 1000, node.calls)
    node.untaken.take("a", 999)
    reads = Reads(node, body=100, text=5000)
    assert await within(node, reads) == (1, 5100 + MESSAGE_BYTES)
    assert reads.asked == [(1, 1)]


async def test_an_answer_whose_room_was_taken_meanwhile_is_read_again() -> None:
    node = Node([FOUND])
    node.untaken = Untaken(4000, 1000, node.calls)
    takes = [lambda: node.untaken.take("a", 1000), lambda: None]
    reads = Reads(node, body=100, text=0, before=lambda: takes.pop(0)())
    waiting = asyncio.ensure_future(within(node, reads))
    while not node.calls.count:
        await asyncio.sleep(0)
    node.untaken.give("a", 1000)
    assert (await waiting)[0] == 10
    assert reads.asked == [(32, 1000)] * 2


def test_the_size_of_an_answer_is_that_of_its_columns() -> None:
    assert longpoll.size_of(FOUND) == 10 + MESSAGE_BYTES
    assert longpoll.size_of(AT_END) == 0
