"""Master and slave in one process: what flows, what is promised, what is refused."""

from pathlib import Path

import pytest

from tests.node.conftest import StartNode
from tests.node.replicas import Group, broker_of, caught_up, following, log_bytes


@pytest.fixture
def group(start_node: StartNode, tmp_path: Path) -> Group:
    return Group(start_node, tmp_path)


async def test_a_slave_holds_the_masters_log_byte_for_byte(group: Group) -> None:
    master = await group.start_master()
    slave = await group.start_slave()
    await following(slave)
    async with group.client(master) as client:
        await client.admin.create_topic("T", 4)
        async with client.producer() as producer:
            receipt = await producer.send_batch("T", [b"%d" % k for k in range(5000)])
            large = await producer.send_batch("T", [b"x" * 60_000] * 60)
        assert (receipt.status, large.status) == ("PUT_OK", "PUT_OK")
    await caught_up(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    assert broker_of(master).store.log.max_offset > 3 << 20  # several segments
    async with group.client(slave) as reader:
        seen = [
            body for queue in range(4) for body in (await reader.pull("T", queue, 0)).body_list()
        ]
    assert {b"%d" % k for k in range(5000)} <= set(seen)
