"""What programs and operators are shown of a topic with queues that moved."""

from pathlib import Path
from typing import Any

import duolog
import pytest
from duolog import QueuePlace
from duolog.spark._plan import Queue, queues_of
from duolog.spark._writer import sink_group

from duolog_server.ops.console.pages.tail import tail
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.visits import Visit
from duolog_server.ops.inspection.messages.finding import by_time
from duolog_server.ops.inspection.moves import plan_of
from duolog_server.ops.inspection.topics import messages_kept
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TopicConfig
from duolog_server.store.moves import Place
from tests.node.moving.seams import TOPIC, A, B, Seams
from tests.node.replicas import client_of
from tests.nodefixtures import received

pytestmark = pytest.mark.usefixtures("quick_groups")


@pytest.fixture
async def seams(nodes: dict[str, Node]) -> Seams:
    """A queue with two messages at A, and three behind its seam at B."""
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic(TOPIC, 1)
    seams = Seams(nodes, Place(A, 0))
    await seams.put(b"0", b"1")
    await seams.move(B)
    await seams.put(b"2", b"3", b"4")
    return seams


async def test_a_queue_that_moved_is_among_the_queues_of_its_topic(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """Spark reads, and `topic show` and `topic stats` count, what is told as queues."""
    async with client_of(nodes[A]) as client:
        parts = await client.admin.topics([TOPIC], sizes=True)
        guest = queues_of(parts)[Queue(TOPIC, B, seams.at.queue_id)]
        assert (guest.min_offset, guest.max_offset) == (2, 5)
        assert messages_kept(parts) == 5
        assert [part.queues for part in parts] == [1, 1], "keys go to as many as before"


async def test_a_search_by_time_finds_what_came_after_a_move(
    nodes: dict[str, Node], seams: Seams
) -> None:
    async with client_of(nodes[A]) as client:
        found = await by_time(client, TOPIC, 0, 0, 100)
        assert sorted(one.body for one in found) == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_plan_of_a_queue_that_moved_before_says_what_stays(
    nodes: dict[str, Node], seams: Seams, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(nodes[A]) as client:

        async def planned(*_: object, **__: object) -> None:
            """Nodes of fixed roles move nothing."""

        monkeypatch.setattr(client.admin, "move_queue", planned)
        plan = await plan_of(client, TOPIC, QueuePlace(B, seams.at.queue_id), A)
        assert (plan.queue.min_offset, plan.queue.max_offset) == (2, 5)


async def test_a_tail_in_the_console_counts_a_queue_that_moves_from_its_seam(
    nodes: dict[str, Node], seams: Seams
) -> None:
    async with client_of(nodes[A]) as client:
        memory: dict[str, object] = {}

        async def look(now: float) -> object:
            visit = Visit(client, (), {"topic": TOPIC}, {}, now, Rates(), memory=memory)
            return (await tail(visit)).facts["sentence"]

        await look(10.0)
        await seams.move(A)
        await seams.put(b"5")
        assert str(await look(14.0)).startswith("1 message arrived")


async def test_a_reset_to_the_end_skips_all_that_came_after_moves(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """The group has read nothing, so it has to come to each place first."""
    await seams.move(A)
    await seams.put(b"5")
    async with client_of(nodes[A]) as client:
        await client.admin.reset_group("g", TOPIC, duolog.Start.LATEST)
        await seams.put(b"6")
        async with client.consumer("g", TOPIC) as consumer:
            assert (await received(consumer)).body == b"6"
        await client.admin.reset_group("late", TOPIC, offset=3)
        async with client.consumer("late", TOPIC) as consumer:
            assert (await received(consumer)).body == b"3"


async def test_a_reset_to_before_a_seam_leaves_later_places_closed(
    nodes: dict[str, Node], seams: Seams
) -> None:
    async with client_of(nodes[A]) as client:
        await client.admin.reset_group("g", TOPIC, offset=1)
        assert not seams.may_read("g", seams.at)
        async with client.consumer("g", TOPIC, commit_interval=0.1) as consumer:
            bodies = [(await received(consumer)).body for _ in range(4)]
            assert bodies == [b"1", b"2", b"3", b"4"]


async def test_consumers_read_where_their_topic_has_nothing_but_queues_that_moved(
    nodes: dict[str, Node], tmp_path: Path
) -> None:
    """A target that did not have the topic gets it without queues of its own."""
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic(TOPIC, 1, groups=[A])
        seams = Seams(nodes, Place(A, 0))
        await seams.put(b"0")
        await seams.broker(B).metadata.put_topic(TopicConfig(TOPIC, 0))
        await seams.move(B)
        await seams.put(b"1")
        modes: list[dict[str, Any]] = [
            {},
            {"mode": "broadcasting", "offsets_file": tmp_path / "offsets"},
        ]
        for number, mode in enumerate(modes):
            async with client.consumer(f"g{number}", TOPIC, commit_interval=0.1, **mode) as one:
                assert [(await received(one)).body for _ in range(2)] == [b"0", b"1"], mode
        assert await sink_group(client, "s", TOPIC) == A, "the other one has no queue to write to"


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
async def test_a_consumer_of_several_topics_reads_one_that_comes_where_it_reads_others(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It is a member of its group at the target before the queue moves there."""
    monkeypatch.setattr("duolog._consumer.FRESH_SECONDS", 0.1)
    monkeypatch.setattr("duolog._topics.FRESH_SECONDS", 0.1)
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic(TOPIC, 1, groups=[A])
        await client.admin.create_topic("U", 1, groups=[B])
        seams = Seams(nodes, Place(A, 0))
        await seams.put(b"0")
        start = duolog.Start.EARLIEST
        async with client.consumer(
            "g", [TOPIC, "U"], start=start, commit_interval=0.1, mode=mode
        ) as consumer:
            assert (await received(consumer)).body == b"0"
            await seams.broker(B).metadata.put_topic(TopicConfig(TOPIC, 0))
            await seams.move(B)
            await seams.put(b"1")
            assert (await received(consumer)).body == b"1"


async def test_a_topic_gets_more_queues_in_all_its_groups_or_in_none(
    nodes: dict[str, Node], seams: Seams
) -> None:
    async with client_of(nodes[A]) as client:
        with pytest.raises(
            duolog.BadRequest, match="queue 1 of replica group broker-b moved there"
        ):
            await client.admin.alter_topic(TOPIC, 3)
        assert [part.queues for part in await client.admin.topics([TOPIC])] == [1, 1]


async def test_a_group_that_has_but_queues_that_moved_gets_no_others(
    nodes: dict[str, Node],
) -> None:
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic(TOPIC, 1, groups=[A])
        seams = Seams(nodes, Place(A, 0))
        await seams.broker(B).metadata.put_topic(TopicConfig(TOPIC, 0))
        await seams.move(B)
        await client.admin.alter_topic(TOPIC, 3, perm=4)
        parts = await client.admin.topics([TOPIC])
        assert [(part.queues, part.perm) for part in parts] == [(3, 4), (0, 4)]
