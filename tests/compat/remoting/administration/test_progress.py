"""How far groups are, as consumerProgress and the dashboard ask for it."""

from typing import Any

import duolog
import pytest

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.serve.server import Node
from tests.compat.remoting.administration.support import queue, refused, told
from tests.compat.remoting.client import Remoting
from tests.node.replicas import broker_of

STATS = RequestCode.GET_CONSUME_STATS


async def committed(node: Node, group: str, topic: str = "T", offset: int = 1) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.reset_group(group, topic, offset=offset)


async def test_the_offsets_of_a_group(node: Node, remoting: Remoting) -> None:
    for body in (b"one", b"two", b"three"):
        await remoting.send("T", body)
    await committed(node, "g")
    found = await told(remoting, STATS, consumerGroup="g")
    assert len(found["offsetTable"]) == 4
    first = found["offsetTable"][queue(0)]
    assert (first["brokerOffset"], first["consumerOffset"]) == (3, 1)
    assert first["lastTimestamp"] > 1_600_000_000_000
    assert found["offsetTable"][queue(1)]["lastTimestamp"] == 0
    assert found["consumeTps"] == 0.0
    same = await told(remoting, STATS, consumerGroup="g", topic="T")
    assert same["offsetTable"] == found["offsetTable"]


async def test_a_topic_that_a_group_has_not_read_waits_as_a_whole(
    node: Node, remoting: Remoting
) -> None:
    await remoting.send("T", b"one")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_group("g")
    assert (await told(remoting, STATS, consumerGroup="g"))["offsetTable"] == {}
    found = await told(remoting, STATS, consumerGroup="g", topic="T")
    assert found["offsetTable"][queue(0)]["brokerOffset"] == 1
    assert found["offsetTable"][queue(0)]["consumerOffset"] == 0
    unknown = await refused(remoting, STATS, consumerGroup="g", topic="U")
    assert unknown[0] == ResponseCode.TOPIC_NOT_EXIST
    nobody = await refused(remoting, STATS, consumerGroup="h")
    assert nobody[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_group_does_not_wait_for_what_was_deleted(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in (b"one", b"two", b"three"):
        await remoting.send("T", body)
    await committed(node, "g")
    store = broker_of(node).store
    monkeypatch.setattr(type(store), "queue_range", lambda *_: (3, 3))
    found = await told(remoting, STATS, consumerGroup="g")
    first = found["offsetTable"][queue(0)]
    assert (first["brokerOffset"], first["consumerOffset"], first["pullOffset"]) == (3, 3, 3)
    page = await told(remoting, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert page["totalDiff"] == 0


async def test_a_group_with_members_is_shown_in_what_they_read(
    node: Node, remoting: Remoting
) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("U", 1)
    await committed(node, "g")
    await committed(node, "g", "U")
    await remoting.beat("c", "g", "U")
    found = await told(remoting, STATS, consumerGroup="g")
    assert list(found["offsetTable"]) == [queue(0, "U")]


async def test_all_groups_of_a_broker(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "duolog_server.compat.remoting.administration.consumers.progress.GROUPS_AT_ONCE", 2
    )
    await remoting.send("T", b"one")
    for group in "abcde":
        await committed(node, group, offset=0)
    code = RequestCode.GET_BROKER_CONSUME_STATS
    found = await told(remoting, code, isOrder="false")
    assert [list(row) for row in found["consumeStatsList"]] == [[group] for group in "abcde"]
    assert found["totalDiff"] == 5
    table = found["consumeStatsList"][0]["a"][0]["offsetTable"]
    assert table[queue(0)]["brokerOffset"] == 1
    ordered = await told(remoting, code, isOrder="true")
    assert ordered["consumeStatsList"][0] == {"a": []}
    monkeypatch.setattr(
        "duolog_server.compat.remoting.administration.consumers.progress.FRAME_BYTES_MAX", 700
    )
    refusal = await refused(remoting, code, isOrder="false")
    assert refusal[0] == ResponseCode.SYSTEM_ERROR
    assert "one group after the other" in refusal[1]


async def test_when_what_a_group_reads_was_stored(node: Node, remoting: Remoting) -> None:
    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    for body in (b"one", b"two"):
        await remoting.send("T", body)
    await committed(node, "g")
    rows = (await told(remoting, code, topic="T", group="g"))["consumeTimeSpanSet"]
    first, second = rows[:2]
    assert first["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    assert first["minTimeStamp"] == first["consumeTimeStamp"] > 1_600_000_000_000
    assert first["maxTimeStamp"] >= first["minTimeStamp"]
    assert 0 <= first["delayTime"] < 60_000
    assert (second["minTimeStamp"], second["maxTimeStamp"], second["delayTime"]) == (-1, -1, 0)
    unknown = await refused(remoting, code, topic="U", group="g")
    assert unknown[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_are_given_to_another_group(node: Node, remoting: Remoting) -> None:
    code = RequestCode.CLONE_GROUP_OFFSET
    for body in (b"one", b"two"):
        await remoting.send("T", body)
    nothing = await refused(remoting, code, srcGroup="g", destGroup="h", topic="")
    assert "no offsets to copy" in nothing[1]
    await committed(node, "g", offset=2)
    await told(remoting, code, srcGroup="g", destGroup="h", offline="true")
    found = await told(remoting, STATS, consumerGroup="h")
    assert found["offsetTable"][queue(0)]["consumerOffset"] == 2
    await remoting.beat("c", "h", "T")
    busy = await refused(remoting, code, srcGroup="g", destGroup="h", topic="T")
    assert busy[0] == ResponseCode.SYSTEM_BUSY
    assert "stop them first" in busy[1]


async def test_entries_of_a_queue(remoting: Remoting) -> None:
    code = RequestCode.QUERY_CONSUME_QUEUE
    for body in (b"one", b"two", b"three"):
        await remoting.send("T", body, "TAGS\x01a")
    await remoting.beat("c", "g", "T", "a")
    place: dict[str, Any] = {"topic": "T", "queueId": 0}
    found = await told(remoting, code, **place, index=1, count=10, consumerGroup="g")
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    assert len(found["queueData"]) == 2
    assert found["queueData"][0]["tagsCode"] == ord("a")
    assert found["queueData"][0]["physicSize"] > 100
    assert found["subscriptionData"]["tagsSet"] == ["a"]
    for index in (-1, 3, 1 << 40):
        assert (await refused(remoting, code, **place, index=index, count=1))[0] != 0
    unknown = await refused(remoting, code, topic="T", queueId=9, index=0, count=1)
    assert unknown[0] == ResponseCode.SYSTEM_ERROR
