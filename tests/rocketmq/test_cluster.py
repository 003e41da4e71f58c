"""RocketMQ's API on several nodes: any node takes any call, and masters change."""

import asyncio
from pathlib import Path
from typing import Any

import duolog

from node.rocketmq.stubs import Code, service
from tests.node.conftest import StartNode
from tests.node.replicas import Elected, broker_of, until
from tests.rocketmq.api import Api, message, resource


async def start_group(start: StartNode, root: Path) -> Elected:
    """Three nodes, and topic T with one queue."""
    group = await Elected.start(start, root)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        await client.admin.create_topic("T", 1)
    await until(lambda: all("T" in broker_of(node).metadata.topics for node in group.nodes))
    return group


async def test_a_slave_passes_on_what_needs_the_master(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    master = group.the_master()
    slave = next(node for node in group.nodes if node is not master)
    api = Api(slave)
    route = await api.route("T")
    (address,) = route.message_queues[0].broker.endpoints.addresses
    assert address.port == master.port
    assert (await api.send(message(b"x"))).status.code == Code.OK
    received = await api.receive("g", timeout=5)
    assert (received.code, received.bodies) == (Code.OK, [b"x"])
    changed = await api.change("g", received.handles[0], 30_000)
    assert changed.status.code == Code.OK
    reply = await api.ack("g", changed.receipt_handle)
    assert reply.status.code == Code.OK
    await api.send(message(b"held"))
    await api.receive("g", held=True, timeout=5)
    leave = service.NotifyClientTerminationRequest(group=resource("g"))
    assert (await api.call("NotifyClientTermination", leave)).status.code == Code.OK
    found: list[Any] = []
    async with asyncio.timeout(10):
        while not found:
            found = (await api.receive("g", timeout=3)).messages
    assert found[0].system_properties.delivery_attempt == 2
    await api.close()


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
    await api.close()


async def test_sends_wait_out_a_failover_and_are_stored_once(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await start_group(start_node, tmp_path)
    apis = [Api(node) for node in group.nodes]
    stored: list[str] = []
    refused: list[str] = []
    over = asyncio.Event()

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
                        timeout=4,
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
    for _ in range(2):
        await asyncio.sleep(0.5)
        old = group.the_master()
        async with duolog.Client(f"127.0.0.1:{old.port}", timeout=10) as client:
            await group.switch(client)
    await asyncio.sleep(0.5)
    over.set()
    await asyncio.gather(*work)
    async with duolog.Client(f"127.0.0.1:{group.the_master().port}", timeout=10) as client:
        batch = await client.pull("T", 0, 0)
        bodies = [body.decode() for body in batch.body_list()]
    assert len(stored) > 50
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
    received = await api.receive("g", timeout=5)
    await api.ack("g", *received.handles[:4])
    await api.change("g", received.handles[4], 20)  # its first attempt fails
    await until(
        lambda: all(
            broker_of(node).metadata.tables.committed("g", "T", 0) == 5 for node in group.nodes
        )
    )
    await api.close()
    async with duolog.Client(f"127.0.0.1:{old.port}", timeout=10) as client:
        await group.switch(client)
    api = Api(group.the_master())
    found: dict[bytes, int] = {}
    async with asyncio.timeout(15):
        while len(found) < 2:
            for made in (await api.receive("g", timeout=4)).messages:
                found[made.body] = made.system_properties.delivery_attempt
    assert found == {b"4": 2, b"5": 1}
    stale = await api.ack("g", received.handles[5])
    assert stale.status.code == Code.INVALID_RECEIPT_HANDLE
    await api.close()
