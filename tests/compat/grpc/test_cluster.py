"""RocketMQ's API on several nodes: any node takes any call, and masters change."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.messages import sent
from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.compat.grpc.relay.calls import FORWARDED, PEER, PLAIN, VIA
from duolog_server.compat.grpc.sending import Sender
from duolog_server.serve.server import Node
from duolog_server.store.record import Host
from tests.compat.grpc.api import QUEUES, Api, LocalCall, message, resource
from tests.compat.grpc.test_transactions import PATIENT, Checker, half
from tests.known import known
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until


async def start_group(start: StartNode, root: Path, **how: Any) -> Elected:
    """Three nodes, and topic T with one queue."""
    group = await Elected.start(start, root, **how)
    async with duolog.Client(group.endpoints, timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 1)
    await until(lambda: all("T" in broker_of(node).metadata.topics for node in group.nodes))
    return group


async def test_a_slave_relays_what_needs_the_master(start_node: StartNode, tmp_path: Path) -> None:
    group = await start_group(start_node, tmp_path)
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    api = Api(slave)
    route = await api.route("T")
    ports = [address.port for address in route.message_queues[0].broker.endpoints.addresses]
    assert ports[0] == master.port
    assert sorted(ports) == sorted(node.port for node in group.nodes)
    assert (await api.send(message(b"x"))).status.code == Code.OK
    received = await api.receive("g", timeout=WAIT_SECONDS)
    assert (received.code, received.bodies) == (Code.OK, [b"x"])
    changed = await api.change("g", received.handles[0], 30_000)
    assert changed.status.code == Code.OK
    reply = await api.ack("g", changed.receipt_handle)
    assert reply.status.code == Code.OK
    await api.send(message(b"held"))
    await api.receive("g", held=True, timeout=WAIT_SECONDS)
    leave = service.NotifyClientTerminationRequest(group=resource("g"))
    assert (await api.call("NotifyClientTermination", leave)).status.code == Code.OK
    found: list[Any] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while not found:
            found = (await api.receive("g", poll_ms=2000)).messages
    assert found[0].system_properties.delivery_attempt == 2


async def test_a_slave_asks_the_master_for_a_topic_that_has_not_come_to_it_yet(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    del broker_of(slave).metadata.topics["T"]
    api = Api(slave)
    route = await api.route("T")
    assert route.status.code == Code.OK
    assert [queue.id for queue in route.message_queues] == [0]
    assert route.message_queues[0].broker.endpoints.addresses[0].port == master.port
    unknown = await api.route("nobody-made-this")
    assert unknown.status.code == Code.TOPIC_NOT_FOUND


async def test_sends_and_polls_relayed_by_a_slave_survive_the_death_of_the_master(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    old = group.the_master()
    api = Api(next(node for node in group.nodes if node is not old))
    polled = asyncio.ensure_future(api.receive("g", timeout=WAIT_SECONDS))
    await asyncio.sleep(0.2)
    await old.stop()
    group.nodes.remove(old)
    assert (await api.send(message(b"after"))).status.code == Code.OK
    assert (await polled).bodies == [b"after"]


async def test_a_poll_goes_on_at_the_next_master(start_node: StartNode, tmp_path: Path) -> None:
    group = await start_group(start_node, tmp_path)
    old = group.the_master()
    api = Api(old)
    polls = [asyncio.ensure_future(api.receive(name, timeout=WAIT_SECONDS)) for name in ("g", "h")]
    await until(lambda: broker_of(old).waiting_calls.count == 2)
    async with duolog.Client(group.endpoints, timeout=WAIT_SECONDS) as client:
        new = await group.switch(client)
    # One that begins at the next master before that knows all of the last one's changes, too.
    early = Api(new)
    polls.append(asyncio.ensure_future(early.receive("early", timeout=WAIT_SECONDS)))
    assert (await early.send(message(b"x"))).status.code == Code.OK
    for received in await asyncio.gather(*polls):
        assert (received.code, received.bodies) == (Code.OK, [b"x"])


async def test_a_producer_connected_to_a_slave_receives_transaction_checks_from_any_master(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path, transactions=PATIENT)
    old = group.the_master()
    api = Api(next(node for node in group.nodes if node is not old), "p@1")
    producer = Checker(api, "T")
    await producer.settled.wait()
    first = await half(api)
    await until(lambda: first[1] in [asked.transaction_id for asked in producer.asked])
    async with duolog.Client(f"127.0.0.1:{old.port}", timeout=WAIT_SECONDS) as client:
        await group.switch(client)
    second = await half(api)
    await until(lambda: second[1] in [asked.transaction_id for asked in producer.asked])


async def test_a_messages_origin_is_the_client_and_not_the_node_that_relayed_it(node: Node) -> None:
    api = Api(node)
    api.metadata += [(FORWARDED, PLAIN), (PEER, "ipv4:10.1.2.3:5555")]  # as a slave passes it on
    assert (await api.send(message(b"x"))).status.code == Code.OK
    (found,) = (await api.receive("g", timeout=WAIT_SECONDS)).messages
    assert found.system_properties.born_host == "10.1.2.3:5555"


class HangingUp(LocalCall):
    """The call of a client that goes away when the first message comes."""

    async def write(self, reply: service.ReceiveMessageResponse) -> None:
        if reply.WhichOneof("content") == "message":
            raise ConnectionError("the client hung up")


async def test_messages_that_a_slave_cannot_deliver_are_soon_visible_again(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    assert slave.rocketmq is not None
    api = Api(master)
    await api.send(message(b"one"), message(b"two"))
    request = service.ReceiveMessageRequest(
        group=resource("g"),
        message_queue=definition.MessageQueue(topic=resource("T"), id=-1),
        batch_size=32,
        auto_renew=True,
    )
    with pytest.raises(ConnectionError):
        await slave.rocketmq.forwarder.stream(service.ReceiveMessageResponse, request, HangingUp())
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found) < 2:
            found += (await api.receive("g", poll_ms=2000)).bodies
    assert sorted(found) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("registered", "others_by", "again"),
    [
        pytest.param(0, "n/1", [b"one"], id="gone"),
        pytest.param(7, "n/1", [], id="alive"),
        pytest.param(8, "n/2", [b"one"], id="restarted"),
        pytest.param(8, "n/1", [], id="registered anew"),
    ],
)
async def test_an_orderly_queue_is_locked_by_a_living_consumer_as_long_as_it_can_acknowledge(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    registered: int,
    others_by: str,
    again: list[bytes],
) -> None:
    """It acknowledges to the node that served it: if that process is gone, the lease ends."""
    monkeypatch.setattr("duolog_server.compat.grpc.relay.clients.WAY_SECONDS", 0.5)
    leases = {"n": 7}
    monkeypatch.setattr(
        known(node.rocketmq).clients, "_registration", lambda way: leases[way.partition("/")[0]]
    )
    by_node, direct, other = Api(node), Api(node), Api(node, "other")
    by_node.metadata += [(FORWARDED, PLAIN), (VIA, "n/1")]
    other.metadata += [(FORWARDED, PLAIN), (VIA, others_by)]
    await direct.send(message(b"one", message_group="a"), message(b"two", message_group="a"))
    received = await by_node.receive("fifo", count=1, held=True, timeout=WAIT_SECONDS)
    assert received.bodies == [b"one"]
    leases["n"] = registered
    found: list[bytes] = []
    for _ in range(3):  # it polls on, so it is heard of
        await other.route("T")
        found += (await direct.receive("fifo", count=1, held=True, poll_ms=1500)).bodies
    assert found == again


async def test_a_repeat_waits_until_records_of_the_last_master_are_indexed(node: Node) -> None:
    """A repeat that comes before it would be stored a second time."""
    broker = broker_of(node)
    repeated = message(b"x")
    host = Host("127.0.0.1", 1)
    batch = sent(repeated, 100).batch("T", 0, host)
    assert broker.store.put(batch, broker.times.wall_ms()).count == 1  # not dispatched yet
    asyncio.get_running_loop().call_later(0.2, broker.log.pump_soon)
    (entry,) = await Sender(broker).send(
        "T", [repeated], host, asyncio.get_running_loop().time() + WAIT_SECONDS
    )
    assert (entry.status.code, entry.offset) == (Code.OK, 0)
    table = broker.store.topic_queue_table
    assert sum(table.get(("T", queue), 0) for queue in range(QUEUES)) == 1


async def test_a_repeat_waits_until_the_new_master_knows_what_the_last_one_stored(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch is not confirmed yet: what the last master stored is hidden from lookups."""
    broker = broker_of(node)
    behind = True
    monkeypatch.setattr(broker.replication, "may_be_behind", lambda: behind)
    repeated = message(b"x")
    host = Host("127.0.0.1", 1)
    loop = asyncio.get_running_loop()
    sending = asyncio.ensure_future(
        Sender(broker).send("T", [repeated], host, loop.time() + WAIT_SECONDS)
    )
    await asyncio.sleep(0.1)
    assert not sending.done()
    batch = sent(repeated, 100).batch("T", 0, host)
    assert (
        broker.store.put(batch, broker.times.wall_ms()).count == 1
    )  # the last master's, shown now
    broker.log.pump_soon()
    await until(lambda: broker.store.queue_range("T", 0) == (0, 1))
    behind = False
    (entry,) = await sending
    assert (entry.status.code, entry.offset) == (Code.OK, 0)
    table = broker.store.topic_queue_table
    assert sum(table.get(("T", queue), 0) for queue in range(QUEUES)) == 1


async def test_sends_wait_out_a_failover_and_are_stored_once(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    apis = [Api(node) for node in group.nodes]
    stored: list[str] = []
    refused: list[str] = []
    over = asyncio.Event()

    def has_stored(wanted: int) -> bool:
        return len(stored) > wanted

    async def produce(api: Api, name: str) -> None:
        """Sends with three tries, as RocketMQ's clients do."""
        k = 0
        while not over.is_set():
            message_id = f"01{name}{k:030d}"
            for _ in range(3):
                try:
                    reply = await api.call(
                        "SendMessage",
                        service.SendMessageRequest(
                            messages=[message(message_id.encode(), message_id=message_id)]
                        ),
                        timeout=20,
                    )
                except Exception:  # the node is gone, or the time is up: try again
                    continue
                if reply.status.code == Code.OK:
                    stored.append(message_id)
                    break
                refused.append(reply.status.message)
            k += 1

    work = [
        asyncio.ensure_future(produce(api, name)) for api, name in zip(apis, "ABC", strict=True)
    ]
    for wanted in (20, 40):
        await until(partial(has_stored, wanted))
        old = group.the_master()
        async with duolog.Client(f"127.0.0.1:{old.port}", timeout=WAIT_SECONDS) as client:
            await group.switch(client)
    await until(partial(has_stored, 60))
    over.set()
    await asyncio.gather(*work)
    async with duolog.Client(
        f"127.0.0.1:{group.the_master().port}", timeout=WAIT_SECONDS
    ) as client:
        bodies: list[str] = []
        while batch := await client.pull("T", 0, len(bodies)):
            bodies += [body.decode() for body in batch.body_list()]
    assert not refused
    assert len(bodies) == len(set(bodies))
    assert set(stored) <= set(bodies)
    for api in apis:
        await api.close()


async def test_progress_and_attempts_survive_a_failover(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    old = group.the_master()
    api = Api(old)
    for k in range(6):
        await api.send(message(b"%d" % k))
    received = await api.receive("g", timeout=WAIT_SECONDS)
    await api.ack("g", *received.handles[:4])
    await api.change("g", received.handles[4], 20)  # its first attempt fails
    await until(
        lambda: all(
            broker_of(node).metadata.tables.committed("g", "T", 0) == 5 for node in group.nodes
        )
    )
    await api.close()
    async with duolog.Client(f"127.0.0.1:{old.port}", timeout=WAIT_SECONDS) as client:
        await group.switch(client)
    api = Api(group.the_master())
    found: dict[bytes, int] = {}
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found) < 2:
            for made in (await api.receive("g", timeout=4)).messages:
                found[made.body] = made.system_properties.delivery_attempt
    assert found == {b"4": 2, b"5": 1}
    stale = await api.ack("g", received.handles[5])
    assert stale.status.code == Code.INVALID_RECEIPT_HANDLE
