"""Which queues a member of a group goes on taking for its own."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
from duolog._groupreader import GroupReader
from duolog._membership import Consumption, Queue, Share
from duolog._router import Router

from tests.client.test_prefetch import batch_of

FIRST, SECOND = ("T", 0), ("T", 2)
START = 5


class Place:
    """A place in a group. answers: to the next heartbeats. foreign: another member's queues."""

    def __init__(self) -> None:
        self.topics = ["T"]
        self.answers = [Share({FIRST, SECOND})]
        self.claims: list[list[Queue]] = []
        self.asked: list[dict[Queue, int]] = []
        self.foreign: set[Queue] = set()
        self.begins: list[tuple[list[Queue], duolog.Start | None]] = []

    async def share(self, owned: Iterable[Queue]) -> Share:
        self.claims.append(sorted(owned))
        return self.answers.pop(0)

    async def offsets(
        self, queues: Sequence[Queue], start: duolog.Start | None
    ) -> dict[Queue, int]:
        self.begins.append((list(queues), start))
        return dict.fromkeys(queues, START)

    async def commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        assert forward
        self.asked.append(offsets)
        if self.foreign & offsets.keys():
            raise duolog.StaleMember("another member's")

    async def leave(self) -> None:
        """Nobody is told."""


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
async def reader(place: Place) -> GroupReader:
    """The user has the first message of the second queue."""
    nothing: Any = SimpleNamespace(runtime=SimpleNamespace(chance=random.Random(1)))
    router: Any = SimpleNamespace(connection=lambda _: nothing, reading=lambda _: nothing)
    consumption = Consumption(group="g", session=5.0)
    made = GroupReader(cast(Router, router), "0", consumption, place, asyncio.Event())
    await made._heartbeat()
    arrives(made, SECOND)
    taken = made.get()
    assert taken is not None
    assert taken.queue_id == SECOND[1]
    return made


def arrives(reader: GroupReader, queue: Queue) -> None:
    """Three messages of a queue are fetched."""
    command = reader._prefetch.command()
    assert command is not None
    batch = batch_of(queue, START, count=3, size=4).wire
    batch.subscription = command.number
    reader._take(batch)


async def test_a_queue_with_a_message_in_hand_stays_claimed_until_it_is_consumed(
    place: Place, reader: GroupReader
) -> None:
    place.answers = [Share({FIRST})] * 3
    await reader._heartbeat()
    await reader._heartbeat()
    reader.consume_handed()
    await reader._heartbeat()
    assert place.claims[1:] == [[FIRST, SECOND]] * 3
    assert place.asked[-1] == {SECOND: START + 1}
    assert reader._positions.keys() == {FIRST}


async def test_a_queue_that_a_silent_member_lost_is_given_up_with_its_message_in_hand(
    place: Place, reader: GroupReader
) -> None:
    place.answers = [Share({FIRST}, forfeited={SECOND}), Share({FIRST})]
    place.foreign = {SECOND}
    await reader._heartbeat()
    assert reader.assignment == [FIRST]
    assert reader.get() is None
    await reader._heartbeat()
    assert place.claims[1:] == [[FIRST, SECOND], [FIRST]]
    assert not place.asked, "what is not ours is not committed"


async def test_what_was_consumed_of_other_queues_is_committed_when_one_was_lost(
    place: Place, reader: GroupReader
) -> None:
    reader.consume_handed()
    place.answers = [Share(set(), forfeited={FIRST})]
    place.foreign = {FIRST}
    await reader._heartbeat()
    assert place.asked == [{SECOND: START + 1}]
    assert not reader._positions


async def test_a_queue_that_comes_back_to_a_silent_member_is_read_where_the_group_is(
    place: Place, reader: GroupReader
) -> None:
    reader.consume_handed()
    place.answers = [Share({FIRST}, forfeited={SECOND}), Share({FIRST, SECOND})]
    await reader._heartbeat()
    await reader._heartbeat()
    assert reader._positions == {FIRST: START, SECOND: START}


async def test_a_group_begins_when_its_member_starts_though_it_reads_nothing_yet(
    place: Place,
) -> None:
    """As under a new master, which hears first who reads what."""
    place.answers = [Share(set(), pending=True)]
    place.topics = ["T", "U"]
    latest, earliest = duolog.Start.LATEST, duolog.Start.EARLIEST
    consumption = Consumption(group="g", start=latest, begun=frozenset("U"))
    nothing: Any = SimpleNamespace(runtime=SimpleNamespace(chance=random.Random(1)))
    router: Any = SimpleNamespace(connection=lambda _: nothing, reading=lambda _: nothing)
    made = GroupReader(cast(Router, router), "0", consumption, place, asyncio.Event())
    made._keep = lambda loop: asyncio.sleep(0)  # type: ignore[method-assign]
    await made.start()
    assert place.begins == [([("U", 0)], earliest), ([("T", 0)], latest)]
    await made._background.stop()
