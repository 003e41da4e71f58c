"""Consumer groups read a queue that moved: one place to its end, then the next one."""

from pathlib import Path

import duolog
import pytest

from duolog_server.serve.server import Node
from duolog_server.store.moves import Place
from tests.node.moving.seams import TOPIC, A, B, Seams
from tests.node.replicas import WAIT_SECONDS, start_groups
from tests.nodefixtures import StartNode, received
from tests.until import until

pytestmark = pytest.mark.usefixtures("quick_groups")


@pytest.fixture
async def nodes(start_node: StartNode, tmp_path: Path) -> dict[str, Node]:
    return await start_groups(start_node, tmp_path)


@pytest.fixture
async def seams(nodes: dict[str, Node]) -> Seams:
    """The one queue of a topic at A, which B has as well."""
    async with client_of(nodes[A]) as client:
        await client.admin.create_topic(TOPIC, 1)
    return Seams(nodes, Place(A, 0))


def client_of(node: Node) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=WAIT_SECONDS)


async def read(consumer: duolog.Consumer, count: int) -> list[bytes]:
    return [(await received(consumer)).body for _ in range(count)]


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % k for k in range(first, end)]


async def test_a_consumer_reads_on_behind_the_seam(nodes: dict[str, Node], seams: Seams) -> None:
    await seams.put(*numbered(0, 5))
    await seams.move(B)
    await seams.put(*numbered(5, 9))
    async with (
        client_of(nodes[A]) as client,
        client.consumer("g", TOPIC, commit_interval=0.05) as consumer,
    ):
        assert await read(consumer, 9) == numbered(0, 9)
        await consumer.commit()
    assert seams.committed("g", seams.name) == 5
    await until(lambda: seams.committed("g", seams.at) == 9)


async def test_a_group_that_has_not_read_the_first_span_gets_nothing_of_the_next(
    nodes: dict[str, Node], seams: Seams
) -> None:
    """Another one that has goes on."""
    await seams.put(*numbered(0, 3))
    async with client_of(nodes[A]) as client:
        async with client.consumer("ahead", TOPIC) as consumer:
            assert await read(consumer, 3) == numbered(0, 3)
        await seams.move(B)
        await seams.put(*numbered(3, 6))
        await until(lambda: seams.may_read("ahead", seams.at))
        assert not seams.may_read("behind", seams.at)
        async with client.consumer("ahead", TOPIC) as consumer:
            assert await read(consumer, 3) == numbered(3, 6)
        async with client.consumer("behind", TOPIC, commit_interval=1000.0) as consumer:
            assert await read(consumer, 3) == numbered(0, 3)
            assert await consumer.get(1.0) is None, "it has not committed that"
            assert seams.committed("behind", seams.at) == -1
            await consumer.commit()
            assert await read(consumer, 3) == numbered(3, 6)
