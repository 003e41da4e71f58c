"""What a node itself puts to a queue that moved reaches the other group once, over restarts."""

from pathlib import Path

import duolog
from duolog._columns import pack

from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from tests.node.deferred.test_decisions import prepare
from tests.node.deferred.test_publishing import NOTHING
from tests.node.moving import test_passed_on as passed_on
from tests.node.moving.seams import A, B
from tests.node.moving.test_passed_on import bodies, move, restarted
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

nodes = passed_on.nodes


def waiting(broker: Broker) -> int:
    return broker.outbox.status()["outbox_waiting"]


async def test_due_committed_and_published_messages_go_where_their_queue_continues(
    nodes: dict[str, Node],
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        await producer.send("T", b"due", queue_id=0, group=A, delay=0.5)
        halves = prepare(source)
        sink = await client.sink("s", A)
        parts = [b"a", b"b"], [b"c"], [b"d", b"e"]
        staged = [await sink.stage("T", 0, pack(part), NOTHING, 1) for part in parts]
        to = await move(source, target)
        await source.transactions.end(halves, True, "g")
        await sink.publish(0, staged)
        await until(lambda: len(bodies(target, to.queue_id)) == 7 and not waiting(source))
    found = bodies(target, to.queue_id)
    assert [one for one in found if one not in (b"due", b"0")] == [b"a", b"b", b"c", b"d", b"e"]
    assert sorted(found)[0] == b"0"
    assert bodies(source, 0) == []


async def test_a_restart_of_either_group_neither_loses_nor_doubles_what_waits(
    nodes: dict[str, Node], start_node: StartNode, tmp_path: Path
) -> None:
    source, target = broker_of(nodes[A]), broker_of(nodes[B])
    to = await move(source, target)
    source.passing.hold("T", 0)
    async with (
        duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client,
        client.producer() as producer,
    ):
        for k in range(5):
            await producer.send("T", b"%d" % k, queue_id=0, group=A, delay=1.0)
        await until(lambda: waiting(source) == 5)
        source.metadata.note = lambda change: None  # type: ignore[method-assign]
        target = broker_of(await restarted(start_node, tmp_path, nodes[B]))
        source.passing.release("T", 0, to)
        await until(lambda: len(bodies(target, to.queue_id)) == 5 and not waiting(source))
    source = broker_of(await restarted(start_node, tmp_path, nodes[A]))
    source.passing.release("T", 0, to)
    end = source.store.next_offset("DUOLOG_SYS_MOVED", 0)
    assert end == 5
    await until(
        lambda: source.metadata.tables.committed("CID_RMQ_SYS_MOVED", "DUOLOG_SYS_MOVED", 0) == end
    )
    assert sorted(bodies(target, to.queue_id)) == [b"%d" % k for k in range(5)]
