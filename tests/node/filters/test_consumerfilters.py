"""Bit maps of SQL filters: RocketMQ's bits, and reading by them."""

import json
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.node.filters.consumerfilters import BloomFilter, ConsumerFilters
from duolog_server.store.consumequeueext import FilterBits
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of
from tests.nodefixtures import StartNode
from tests.until import until

EXT: dict[str, Any] = {"enable_consume_queue_ext": True, "enable_calc_filter_bit_map": True}
SQL = "color = 'red' AND size > 10"


def test_filter_bits_are_rocketmqs_and_exclude_messages_after_the_group() -> None:
    """Computed with rocketmq-filter 4.9.7: BloomFilter.createByFn(20, 32)."""
    bloom = BloomFilter.of()
    assert (bloom.hashes, bloom.bits) == (3, 112)
    assert bloom.positions("g#T") == (90, 68, 28)
    assert bloom.positions("orders#TopicTest") == (70, 54, 67)
    assert bloom.positions("gruppe-ä#日本") == (21, 56, 91)
    bits = FilterBits((90, 68, 28), 112, 1000)
    full = bytes.fromhex("0000001000000000100000040000")
    assert bits.may_match(full, 1000)
    assert not bits.may_match(bytes(14), 1000)
    assert bits.may_match(bytes(14), 999)  # set before anyone knew of the group
    assert bits.may_match(b"", 1000)
    assert bits.may_match(bytes(8), 1000)


async def fill(client: duolog.Client, count: int) -> None:
    async with client.producer() as producer:
        for k in range(count):
            red = {"color": "red" if k % 3 else "blue", "size": str(k % 20)}
            await producer.send("T", b"%d" % k, queue_id=0, properties=red)


def expected(count: int) -> list[bytes]:
    return [b"%d" % k for k in range(count) if k % 3 and k % 20 > 10]


async def read(client: duolog.Client, group: str, sql: str, least: int = 0) -> list[bytes]:
    """All there is; the first `least` have time to come."""
    found: list[bytes] = []
    async with client.consumer(group, "T", sql=sql) as consumer:
        while message := await consumer.get(WAIT_SECONDS if len(found) < least else 0.3):
            found.append(message.body)
    return found


async def test_filter_bits_do_not_change_what_a_group_reads(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(tmp_path / "data", **EXT)
    broker = broker_of(node)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        await fill(client, 30)
        assert await read(client, "g", SQL, 6) == expected(30)  # stored before the group was known
        await until(lambda: "g" in broker.metadata.tables.filters.get("T", {}))
        await fill(client, 60)
        ext = broker.store.queues.ext["T", 0]
        queue = broker.store.queues.get("T", 0)
        assert queue is not None
        await until(lambda: queue.max_offset == 90)
        codes = queue.entries(30, 60)[2]
        units = [ext.get(int(code)) for code in codes]
        fulfilled = [
            k for k, unit in enumerate(units) if unit is not None and any(unit.filter_bit_map)
        ]
        assert [b"%d" % k for k in fulfilled] == expected(60)
        looked: list[int] = []
        chosen = ConsumerFilters.bits

        def spy(self: ConsumerFilters, group: str, topic: str, wanted: Any) -> Any:
            bits = chosen(self, group, topic, wanted)
            looked.append(bits is not None)
            return bits

        monkeypatch.setattr(ConsumerFilters, "bits", spy)
        assert await read(client, "g", SQL, 18) == expected(60)
        assert any(looked)
        # Another expression: bits of the first one say nothing of it.
        assert await read(client, "g", "color = 'blue'") == []
        await fill(client, 30)
        blue = await read(client, "g", "color = 'blue'", 10)
        assert blue == [b"%d" % k for k in range(0, 30, 3)]
    await node.stop()
    table = json.loads((tmp_path / "data" / "config" / "consumerFilter.json").read_text())
    row = table["filterDataByTopic"]["T"]["groupFilterData"]["g"]
    assert row["expression"] == "color = 'blue'"
    assert row["bloomFilterData"] == {"bitNum": 112, "bitPos": [90, 68, 28]}
    again = await start_node(tmp_path / "data", **EXT)
    async with duolog.Client(f"127.0.0.1:{again.port}") as client:
        await client.admin.reset_group("g", "T")
        everything = await read(client, "g", "color = 'blue'", 40)
        assert len(everything) == 10 + 20 + 10
        await client.admin.delete_group("g")
        assert broker_of(again).metadata.tables.filters == {"T": {}}


@pytest.mark.usefixtures("quick_groups")
async def test_consumer_filters_move_with_the_mastership(
    start_node: StartNode, tmp_path: Path
) -> None:
    group = await Elected.start(start_node, tmp_path, **EXT)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        await client.admin.create_topic("T", 1)
        assert await read(client, "g", SQL) == []
        await until(
            lambda: all(
                "g" in broker_of(node).metadata.tables.filters.get("T", {}) for node in group.nodes
            )
        )
        await fill(client, 30)
        await group.switch(client)
        assert await read(client, "g", SQL, 6) == expected(30)
        await fill(client, 30)
        assert await read(client, "g", SQL, 6) == expected(30)
