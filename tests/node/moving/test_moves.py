"""Queues move between the masters of two replica groups, inside the test's process."""

import duolog
import pytest
from duolog import _errors as sdk

from duolog_server.compat.grpc.protocol.stubs import Code
from duolog_server.ha.moverevents import Row
from duolog_server.node.broker import Broker
from duolog_server.node.moving.moveservice import Progress
from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.metadata import new_group
from duolog_server.store.moves import Place
from duolog_server.store.status import PutMessageStatus
from tests.compat.grpc.api import Api, message
from tests.known import known
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import received
from tests.support import NOW
from tests.until import until

A, B = "broker-a", "broker-b"


async def make_topic(broker: Broker, queues: int = 2) -> None:
    await broker.metadata.put_topic(broker.metadata.new_topic("T", queues, 6))


async def put(broker: Broker, queue_id: int, *bodies: bytes) -> PutResult:
    return await broker.log.put_and_wait(
        PutBatch("T", queue_id, Columns.of(list(bodies)), NOW, accepted=True)
    )


async def moved(source: Broker, queue_id: int = 1, target: str = B) -> Progress:
    progress = await source.moves.begin("T", queue_id, target)
    assert progress.reason == ""
    assert progress.state == "DONE"
    return progress


async def test_a_queue_moves_and_its_guest_begins_where_it_ends(nodes: dict[str, Node]) -> None:
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    await make_topic(a)
    await make_topic(b, 4)
    await a.metadata.put_group(new_group("G"))
    await a.metadata.commit("G", {"T": {1: 1}})
    await put(a, 1, b"0", b"1", b"2")
    progress = await moved(a)
    to = Place(B, 4)
    assert (progress.to, progress.end, progress.name) == (to, 3, Place(A, 1))
    refused = await put(a, 1, b"late")
    assert (refused.status, refused.moved_to) == (PutMessageStatus.QUEUE_MOVED, to)
    assert (await put(b, 4, b"3")).queue_offset == 3
    assert b.metadata.has_group("G")
    rows = await a.moves._rows.read_all()
    assert [(key, seen.row) for key, seen in rows.items()] == [
        (("T", Place(A, 1)), Row(Place(A, 1), to))
    ]
    assert await a.moves.begin("T", 1, B) == progress, "a second call joins"
    with pytest.raises(sdk.BadRequest, match="continues at broker-b/4"):
        await a.moves.begin("T", 1, "broker-c")
    assert a.moves.progress("T") == [progress]
    assert a.validate() == b.validate() == ""


@pytest.mark.usefixtures("quick_groups")
async def test_a_group_without_queues_of_its_own_gets_nothing_from_producers(
    nodes: dict[str, Node],
) -> None:
    """A guest made the topic there: keys keep their queues, and consumers find no others."""
    a = broker_of(nodes[A])
    await make_topic(a)
    await moved(a)
    endpoint = f"127.0.0.1:{nodes[B].port}"
    async with duolog.Client(endpoint, timeout=WAIT_SECONDS) as client:
        slots = await client.producer()._topics.slots("T", 5)
        assert sorted(slots) == [(A, 0), (A, 1)]
        with pytest.raises(duolog.BadRequest, match="T has no queues of its own in this group"):
            await client.producer().send("T", b"x", queue_id=1, group=B)
        api = Api(nodes[B])
        assert (await api.send(message(b"x"))).status.code == Code.BAD_REQUEST, "to any queue"
        await api.close()
        await client.admin.create_topic("T", 2)  # as programs do at each start
        await client.admin.alter_topic("T", perm=4)
        await client.admin.alter_topic("T", perm=6)
        with pytest.raises(duolog.TopicExists):
            await client.admin.create_topic("T", 2, perm=4)
        listed = await client.admin.topics(["T"])
        assert {topic.group: topic.queues for topic in listed} == {A: 2, B: 0}
        async with client.producer() as producer:
            await producer.send("T", b"x", queue_id=0, group=A)
        async with client.consumer("g", "T") as consumer:
            assert (await received(consumer)).body == b"x"


@pytest.fixture
def quick_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.node.moving.moveservice.SCAN_SECONDS", 0.05)


async def test_a_topic_that_is_deleted_everywhere_and_made_again_moves_again(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: its rows are not left to the next scan."""
    monkeypatch.setattr("duolog_server.node.moving.moveservice.PAUSE_SECONDS_MAX", 0.01)
    monkeypatch.setattr("duolog_server.node.moving.moveservice.SCAN_SECONDS", 3600.0)
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    for _ in range(2):
        await make_topic(a)
        await put(a, 1, b"0")
        await until(lambda: is_free(a))
        progress = await moved(a)
        assert progress.to is not None
        assert (await put(b, progress.to.queue_id, b"1")).queue_offset == progress.end
        for broker in (a, b):
            await broker.metadata.delete_topic("T")
    await until(lambda: is_free(a))


async def is_free(broker: Broker) -> bool:
    """Whether the registry says nothing of queues that moved."""
    return not await broker.moves._rows.read_all()


async def test_a_queue_comes_back_under_another_id(nodes: dict[str, Node]) -> None:
    """From its guest it moves on, and its name and offsets stay."""
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    await make_topic(a)
    await put(a, 1, b"0")
    there = (await moved(a)).to
    assert there is not None
    await put(b, there.queue_id, b"1", b"2")
    progress = await moved(b, there.queue_id, A)
    assert (progress.name, progress.to, progress.end) == (Place(A, 1), Place(A, 2), 3)
    assert (await put(a, 2, b"3")).queue_offset == 3
    rows = await a.moves._rows.read_all()
    assert {key: seen.row for key, seen in rows.items()} == {
        ("T", Place(A, 1)): Row(Place(A, 1), Place(A, 2))
    }


@pytest.mark.usefixtures("quick_scans")
async def test_rows_that_the_registry_lost_are_written_by_those_who_have_the_queues(
    nodes: dict[str, Node],
) -> None:
    a, b = broker_of(nodes[A]), broker_of(nodes[B])
    await make_topic(a)
    to = (await moved(a)).to
    seen = (await a.moves._rows.read_all())["T", Place(A, 1)]
    await a.moves._rows.remove("T", Place(A, 1), seen.revision)

    async def is_back() -> bool:
        rows = await b.moves._rows.read_all()
        found = rows.get(("T", Place(A, 1)))
        return found is not None and found.row == Row(Place(A, 1), known(to))

    await until(is_back)
