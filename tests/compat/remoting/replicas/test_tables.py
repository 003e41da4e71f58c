"""The tables that RocketMQ's slaves copy: their contents, and when their versions change."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.remoting.codec import fastjson
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.replicas import TABLES, version_of
from duolog_server.serve.server import Node
from tests.compat.grpc.users import Users, with_users
from tests.compat.remoting.client import Remoting, connected
from tests.compat.remoting.guarding.asked import signs
from tests.compat.remoting.replicas.sections import slaves
from tests.nodefixtures import StartNode

TOPICS = RequestCode.GET_ALL_TOPIC_CONFIG
OFFSETS = RequestCode.GET_ALL_CONSUMER_OFFSET
DELAYS = RequestCode.GET_ALL_DELAY_OFFSET
GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node(**slaves(), message_delay_level="1s 1s")
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", 4)
        await client.admin.put_group("g", retry_times=3)
    return made


@pytest.fixture
async def remoting(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node) as made:
        yield made


async def table(remoting: Remoting, code: int) -> dict[Any, Any]:
    answer = await remoting.ask(code)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = fastjson.loads(answer.body)
    assert isinstance(found, dict)
    return found


async def versions(remoting: Remoting) -> dict[int, Any]:
    return {code: (await table(remoting, code))["dataVersion"] for code in TABLES}


async def test_topics_and_groups_are_those_of_the_files(node: Node, remoting: Remoting) -> None:
    found = await table(remoting, TOPICS)
    assert found["topicConfigTable"]["T"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert not [name for name in found["topicConfigTable"] if name.startswith("DUOLOG_SYS_")]
    group = (await table(remoting, GROUPS))["subscriptionGroupTable"]["g"]
    assert (group["groupName"], group["retryMaxTimes"]) == ("g", 3)


async def test_offsets_have_numbers_as_keys(node: Node, remoting: Remoting) -> None:
    await remoting.send("T", b"x", queue_id=2)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.reset_group("g", "T", offset=0)
    answer = await remoting.ask(OFFSETS)
    assert b'"T@g":{' in answer.body
    assert b"2:0" in answer.body
    assert (await table(remoting, OFFSETS))["offsetTable"]["T@g"][2] == 0
    assert (await table(remoting, DELAYS))["offsetTable"] == {}


async def test_a_version_changes_with_its_table_alone(node: Node, remoting: Remoting) -> None:
    before = await versions(remoting)
    assert await versions(remoting) == before
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("U", 1)
        after = await versions(remoting)
        assert {code for code in TABLES if before[code] != after[code]} == {TOPICS}
        await client.admin.put_group("h")
        last = await versions(remoting)
        assert {code for code in TABLES if after[code] != last[code]} == {GROUPS}
        await client.admin.delete_topic("U")
        again = await versions(remoting)
        assert again[TOPICS] == before[TOPICS], "the same table has the same version"


async def test_a_restarted_node_tells_the_same_versions(start_node: StartNode) -> None:
    how = slaves()
    node = await start_node(**how)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    async with connected(node) as remoting:
        before = await versions(remoting)
    await node.stop()
    async with connected(await start_node(**how)) as remoting:
        assert await versions(remoting) == before


def test_versions_fit_every_reader() -> None:
    found = [version_of({"a": n}) for n in range(100)]
    assert len({(one["counter"], one["timestamp"]) for one in found}) == 100
    # rocketmq-client-go has 32 bits for the counter.
    assert all(0 <= one["counter"] < 1 << 31 for one in found)
    assert all(0 <= one["timestamp"] < 1 << 53 for one in found)


async def test_a_node_without_such_slaves_has_the_tables_for_tools(start_node: StartNode) -> None:
    node = await start_node(remoting=slaves()["remoting"])
    async with connected(node) as remoting:
        for code in TABLES:
            assert (await remoting.ask(code)).code == ResponseCode.SUCCESS
        for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
            answer = await remoting.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize("allowed", ["127.0.0.1", "10.0.0.7"])
async def test_where_there_are_users_allowed_slaves_alone_do_not_sign(
    start_node: StartNode, tmp_path: Path, allowed: str
) -> None:
    how = slaves()
    how["rocketmq_slaves"]["allow"] = [allowed]
    node = await start_node(**how, access=with_users(tmp_path))
    await Users(node).new("root", super=True)
    await Users(node).new("tool", "Get Cluster:DefaultCluster")
    expected = 0 if allowed == "127.0.0.1" else ResponseCode.NO_PERMISSION
    async with connected(node) as unsigned, connected(node, sign=signs("tool")) as tool:
        for code in TABLES:
            assert (await unsigned.ask(code)).code == expected
            assert (await tool.ask(code)).code == 0


async def test_a_table_too_large_for_a_frame_is_an_error(
    remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.replicas.FRAME_BYTES_MAX", 1100)
    answer = await remoting.ask(TOPICS)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "config/topics.json has" in answer.remark
