"""Queues that moved: what is put to them goes on to the group that they moved to."""

import asyncio
from pathlib import Path

import duolog
import pytest

from duolog_server.ha.moverevents import Reserve
from duolog_server.ha.movetarget import records_for
from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from duolog_server.store.moves import Place
from tests.node.replicas import WAIT_SECONDS, broker_of, start_groups
from tests.nodefixtures import StartNode
from tests.support import read_all

A, B = "broker-a", "broker-b"
QUEUES = 2


@pytest.fixture
async def nodes(start_node: StartNode, tmp_path: Path) -> dict[str, Node]:
    made = await start_groups(start_node, tmp_path)
    async with duolog.Client(f"127.0.0.1:{made[A].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", QUEUES)
    return made


async def reserve(source: str, target: Broker, queue_id: int = 0, move: str = "m") -> Place:
    """A place at a target, for a queue of a source that begins to move there."""
    came_from, metadata = Place(source, queue_id), target.metadata
    guest = metadata.unused_queue("T")
    asked = Reserve(move, came_from, came_from)
    await metadata.change(*records_for(metadata.stored_moves, "T", asked, guest))
    return Place(target.group, guest)


async def seal(source: Broker, to: Place, queue_id: int = 0, move: str = "m") -> int:
    return await source.metadata.seal("T", queue_id, to, move)


async def begin(target: Broker, at: Place, first: int, move: str = "m") -> None:
    """Open a reserved place."""
    op = {"op": "open", "topic": "T", "queue": at.queue_id, "first": first, "move": move}
    await target.metadata.change(op)


async def move(source: Broker, target: Broker, queue_id: int = 0, name: str = "m") -> Place:
    to = await reserve(source.group, target, queue_id, name)
    source.passing.hold("T", queue_id)
    await begin(target, to, await seal(source, to, queue_id, name), name)
    source.passing.release("T", queue_id, to)
    return to


def bodies(broker: Broker, queue_id: int) -> list[bytes]:
    return read_all(broker.store, "T", queue_id)


async def test_an_sdks_messages_are_found_where_the_queue_continues(
    nodes: dict[str, Node],
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        first = await producer.send("T", b"0", queue_id=0, group=A)
        to = await move(source, target)
        assert to == Place(B, QUEUES)
        receipt = await producer.send("T", b"1", queue_id=0, group=A)
        assert (receipt.group, receipt.queue_id, receipt.queue_offset) == (A, 0, 1)
        assert receipt.queue_offset == first.queue_offset + 1
        batch = await producer.send_batch("T", [b"2", b"3"], queue_id=0, group=A)
        assert [(one.queue_offset, one.count) for one in batch.parts] == [(2, 2)]
        sent = [producer.send("T", b"%d" % k, queue_id=0, group=A) for k in range(4, 200)]
        receipts = await asyncio.gather(*sent)
        assert [one.queue_offset for one in receipts] == list(range(4, 200))
    assert bodies(source, 0) == [b"0"]
    assert bodies(target, to.queue_id) == [b"%d" % k for k in range(1, 200)]
    assert target.log.counters.messages_in >= 199
    assert source.validate() == target.validate() == ""
