"""Consumers over the remoting protocol: groups, pulls, offsets, what they send back."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest

from duolog_server.compat.remoting import service
from duolog_server.compat.remoting.codec.bodies import EXPRESSION_CHARACTERS_MAX
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command, Serialization
from duolog_server.compat.remoting.consuming import clients
from duolog_server.compat.remoting.consuming.offsets import TOGETHER_MAX, Commits
from duolog_server.compat.remoting.port.connection import Connection
from duolog_server.node.core import turnbudget
from duolog_server.serve.server import Node
from duolog_server.store.errors import BadGroup
from duolog_server.store.metadata import new_group
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.queueends import QueueKey
from tests.compat.remoting.client import Remoting, connected, records
from tests.compat.remoting.forged import forged
from tests.known import known
from tests.node.replicas import broker_of
from tests.until import until


async def filled(remoting: Remoting, count: int, tags: tuple[str, ...] = ("red",)) -> None:
    for k in range(count):
        await remoting.send("T", b"body%d" % k, f"TAGS\x01{tags[k % len(tags)]}")


async def reads(remoting: Remoting, tags: str = "*", group: str = "g") -> None:
    assert (await remoting.beat("c", group, "T", tags)).code == ResponseCode.SUCCESS


# -- pulls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", Serialization)
async def test_a_pull_gets_the_bytes_of_the_log(node: Node, form: Serialization) -> None:
    async with connected(node, form) as remoting:
        await filled(remoting, 5)
        await remoting.send("T", b"another queue", queue_id=1)
        await filled(remoting, 2)
        await reads(remoting)
        found = await remoting.pull("g", "T", 1)
    assert found.code == ResponseCode.SUCCESS
    assert found.fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "7",
        "minOffset": "0",
        "maxOffset": "7",
    }
    read = records(found.body)
    assert [one.queue_offset for one in read] == [1, 2, 3, 4, 5, 6]
    assert read[0].body == b"body1"
    log = broker_of(node).store.log
    raw = [log.get_data(one.physical_offset)[: one.size].tobytes() for one in read]
    assert b"".join(raw) == found.body


async def test_clients_of_rocketmq_go_on_behind_what_was_trimmed(
    node: Node, remoting: Remoting, client: duolog.Client
) -> None:
    await filled(remoting, 5)
    await client.admin.trim_topic("T", queue=duolog.QueuePlace("broker-a", 0), offset=3)
    await reads(remoting)
    below = await remoting.pull("g", "T", 1)
    assert below.code == ResponseCode.PULL_OFFSET_MOVED
    assert (below.fields["nextBeginOffset"], below.fields["minOffset"]) == ("3", "3")
    found = await remoting.pull("g", "T", 3)
    assert [one.body for one in records(found.body)] == [b"body3", b"body4"]


async def test_a_broadcasting_client_of_rocketmq_continues_behind_what_was_trimmed(
    remoting: Remoting, client: duolog.Client
) -> None:
    """It keeps its offsets in a file: of PULL_OFFSET_MOVED it would write nothing there."""
    await filled(remoting, 5)
    first = duolog.QueuePlace("broker-a", 0)
    await begins(remoting, "CONSUME_FROM_FIRST_OFFSET", messageModel="BROADCASTING")
    for minimum, bodies in ((3, [b"body3", b"body4"]), (5, [])):
        await client.admin.trim_topic("T", queue=first, offset=minimum)
        below = await remoting.pull("g", "T", 1)
        assert below.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert below.fields["nextBeginOffset"] == below.fields["minOffset"] == str(minimum)
        found = await remoting.pull("g", "T", minimum)
        assert [one.body for one in records(found.body)] == bodies
    ahead = await remoting.pull("g", "T", 99)
    assert ahead.code == ResponseCode.PULL_OFFSET_MOVED


async def test_records_are_found_across_files_of_the_log(node: Node, remoting: Remoting) -> None:
    size = 60_000
    for k in range(40):  # of 1 MiB each
        await remoting.send("T", bytes([k]) * size)
    await reads(remoting)
    offset, bodies = 0, []
    while offset < 40:
        found = await remoting.pull("g", "T", offset)
        bodies += [one.body for one in records(found.body)]
        offset = int(found.fields["nextBeginOffset"])
    assert bodies == [bytes([k]) * size for k in range(40)]


async def test_a_pull_gets_no_more_than_it_asks_for(remoting: Remoting) -> None:
    await filled(remoting, 6)
    await reads(remoting)
    few = await remoting.pull("g", "T", 0, maxMsgNums=2)
    assert len(records(few.body)) == 2
    small = await remoting.pull("g", "T", 0, maxMsgBytes=10)
    assert len(records(small.body)) == 2  # 5 bytes each
    one = await remoting.pull("g", "T", 0, maxMsgBytes=1)
    assert len(records(one.body)) == 1
    negative = await remoting.pull("g", "T", 0, maxMsgNums=-1)
    assert negative.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("count", [0, 3])
async def test_a_pull_before_the_beginning_is_sent_there(remoting: Remoting, count: int) -> None:
    await filled(remoting, count)
    await reads(remoting)
    found = await remoting.pull("g", "T", -1, wait_ms=20_000)
    assert (found.code, found.body) == (ResponseCode.PULL_OFFSET_MOVED, b"")
    assert (found.fields["nextBeginOffset"], found.fields["maxOffset"]) == ("0", str(count))


@pytest.mark.parametrize("third", ["green", "*"])
async def test_tags_select_and_an_asterisk_beside_others_is_one(
    remoting: Remoting, third: str
) -> None:
    await filled(remoting, 6, ("red", "blue", third))
    await reads(remoting, f"red || {third}")
    found = await remoting.pull("g", "T", 0)
    assert [one.body for one in records(found.body)] == [b"body0", b"body2", b"body3", b"body5"]
    assert found.fields["nextBeginOffset"] == "6"


async def test_a_pull_may_say_itself_what_it_selects(remoting: Remoting) -> None:
    await filled(remoting, 4, ("red", "blue"))
    more: dict[str, Any] = {
        "sysFlag": 4,
        "subscription": "TAGS = 'blue'",
        "expressionType": "SQL92",
    }
    found = await remoting.pull("g", "T", 0, **more)
    assert [one.body for one in records(found.body)] == [b"body1", b"body3"]
    wrong = await remoting.pull("g", "T", 0, **{**more, "subscription": "a >"})
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_a_pull_is_held_until_a_message_comes(remoting: Remoting, code: int) -> None:
    await filled(remoting, 1)
    await reads(remoting)
    pull = remoting.pull("g", "T", 1, wait_ms=20_000, code=code)
    done, _ = await asyncio.wait([pull], timeout=0.2)
    assert not done
    await remoting.send("T", b"here")
    async with asyncio.timeout(10):
        found = await pull
    assert [one.body for one in records(found.body)] == [b"here"]


async def test_a_held_pull_passes_over_what_it_does_not_select(remoting: Remoting) -> None:
    await filled(remoting, 3, ("blue",))
    await reads(remoting, "red")
    late = await remoting.pull("g", "T", 0, wait_ms=100)
    assert late.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
    assert late.fields["nextBeginOffset"] == "3"


async def test_a_held_pull_gives_nothing_of_a_subscription_that_was_replaced(
    node: Node, remoting: Remoting
) -> None:
    calls = broker_of(node).waiting_calls
    await filled(remoting, 1, ("blue",))
    await reads(remoting, "red")
    pull = remoting.pull("g", "T", 0, wait_ms=60_000)
    await until(lambda: calls.count == 1)
    await remoting.beat("c", "g", "T", "red", version=2)
    assert calls.count == 1, "it selects the same"
    # Without a turn in between: the message comes to a pull that is about to end.
    beat = remoting.beat("c", "g", "T", "blue", version=3)
    sent = remoting.send("T", b"1", "TAGS\x01red")
    await asyncio.gather(beat, sent, remoting.send("T", b"2", "TAGS\x01blue"))
    async with asyncio.timeout(10):
        ended = await pull
    assert (ended.code, ended.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    found = await remoting.pull("g", "T", 0, subVersion=3)
    assert [one.body for one in records(found.body)] == [b"body0", b"2"]
    pull = remoting.pull("g", "T", 3, wait_ms=60_000, subVersion=3)
    await until(lambda: calls.count == 1)
    await remoting.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"})
    async with asyncio.timeout(10):
        assert (await pull).code == ResponseCode.PULL_NOT_FOUND, "its member has left"
    assert broker_of(node).untaken.held_bytes == 0


async def test_a_pull_that_finds_nothing_ends_in_time(remoting: Remoting) -> None:
    await reads(remoting)
    for offset, wait_ms in ((0, 0), (0, 50)):
        found = await remoting.pull("g", "T", offset, wait_ms=wait_ms)
        assert found.code == ResponseCode.PULL_NOT_FOUND
        assert found.fields["nextBeginOffset"] == "0"


async def test_a_pull_outside_the_queue_is_told_where_to_go_on(remoting: Remoting) -> None:
    await filled(remoting, 3)
    await reads(remoting)
    found = await remoting.pull("g", "T", 99, wait_ms=5000)
    assert found.code == ResponseCode.PULL_OFFSET_MOVED
    assert found.fields["nextBeginOffset"] == "3"
    empty = await remoting.pull("g", "T", 7, queueId=1)
    assert empty.code == ResponseCode.PULL_OFFSET_MOVED
    assert empty.fields["nextBeginOffset"] == "0"


async def test_a_pull_needs_a_member_of_the_group(remoting: Remoting) -> None:
    found = await remoting.pull("g", "T", 0)
    assert found.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await remoting.beat("c", "g", "T", version=5)
    assert (await remoting.pull("g", "T", 0, subVersion=6)).code == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST
    )
    assert (await remoting.pull("g", "T", 0, subVersion=5)).code == ResponseCode.PULL_NOT_FOUND


async def test_places_that_do_not_exist_are_refused(remoting: Remoting) -> None:
    await reads(remoting)
    assert (await remoting.pull("g", "Unknown", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await remoting.pull("g", "T", 0, queueId=4)).code == ResponseCode.SYSTEM_ERROR
    assert (await remoting.pull("g", "T", 0, queueId=-1)).code == ResponseCode.SYSTEM_ERROR


async def test_a_held_pull_ends_with_its_connection(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 1)
    async with connected(node) as other:
        await reads(other)
        other.pull("g", "T", 1, wait_ms=20_000)
        await until(lambda: broker_of(node).waiting_calls.count)
    await until(lambda: not broker_of(node).waiting_calls.count)
    assert len(broker_of(node).log.board) == 0


async def test_an_expression_of_a_pull_has_a_limit(remoting: Remoting) -> None:
    fields: dict[str, Any] = {"sysFlag": 4, "expressionType": "TAG"}
    longest = "t" * EXPRESSION_CHARACTERS_MAX
    assert (await remoting.pull("g", "T", 0, subscription=longest, **fields)).code == (
        ResponseCode.PULL_NOT_FOUND
    )
    refused = await remoting.pull("g", "T", 0, subscription=f"{longest}t", **fields)
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_messages_count_for_groups_that_exist(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 1)
    await reads(remoting)
    for group in ("g", "nobody", "x" * 1000):
        await remoting.pull(group, "T", 0, sysFlag=4, subscription="*")
    counted = broker_of(node).core.traffic.delivered.table
    assert {group: flow.messages for (_, group, _), flow in counted.items()} == {"g": 1, "": 2}


async def test_answers_that_were_taken_hold_no_memory(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 8)
    await reads(remoting)
    for _ in range(5):
        await remoting.pull("g", "T", 0)
    assert broker_of(node).untaken.held_bytes == 0


# -- offsets -----------------------------------------------------------------------------------


async def offset(remoting: Remoting, code: RequestCode, **fields: object) -> tuple[int, int]:
    found = await remoting.ask(code, {"topic": "T", "queueId": 0, **fields})
    return found.code, int(found.fields.get("offset", -1))


async def test_the_ends_of_a_queue_are_told(remoting: Remoting) -> None:
    await filled(remoting, 3)
    assert await offset(remoting, RequestCode.GET_MIN_OFFSET) == (0, 0)
    assert await offset(remoting, RequestCode.GET_MAX_OFFSET) == (0, 3)
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert await offset(remoting, search, timestamp=0) == (0, 0)
    assert await offset(remoting, search, timestamp=1 << 50) == (0, 3)
    assert (await offset(remoting, RequestCode.GET_MAX_OFFSET, queueId=9))[0] != 0


async def test_an_offset_by_time_is_that_of_the_first_or_the_last_message_of_that_time(
    node: Node, remoting: Remoting, client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Boundary types of RocketMQ 5; below what was trimmed lies nothing."""
    store_times = broker_of(node).times
    times = [store_times.store_ms() + after for after in (1000, 2000, 3000)]
    async with client.producer() as producer:
        for time_ms in times:
            monkeypatch.setattr(store_times, "store_ms", lambda at=time_ms: at)
            await producer.send_batch("T", [b"a", b"b", b"c"], queue_id=0)
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    async def found(at_ms: int) -> list[int]:
        kinds: list[dict[str, str]]
        kinds = [{}, {"boundaryType": "LOWER"}, {"boundaryType": "upper"}]
        rows = [await offset(remoting, search, timestamp=at_ms, **kind) for kind in kinds]
        assert rows[0] == rows[1]
        return [row[1] for row in rows[1:]]

    assert await found(times[1]) == [3, 5]
    assert await found(times[1] - 1) == [3, 2]
    assert await found(times[0] - 1) == [0, 0]
    assert await found(times[2] + 1) == [9, 8]
    await client.admin.trim_topic("T", queue=duolog.QueuePlace("broker-a", 0), offset=4)
    assert await found(times[0]) == [4, 4]
    assert await found(times[1]) == [4, 5]
    await client.admin.trim_topic("T", queue=duolog.QueuePlace("broker-a", 0), offset=9)
    assert await found(times[0]) == await found(times[2] + 1) == [9, 9]


async def test_a_new_group_begins_at_the_start_of_a_small_topic(remoting: Remoting) -> None:
    query = RequestCode.QUERY_CONSUMER_OFFSET
    await filled(remoting, 3)
    assert await offset(remoting, query, consumerGroup="g") == (0, 0)
    strict = await offset(remoting, query, consumerGroup="g", setZeroIfNotFound="false")
    assert strict == (ResponseCode.QUERY_NOT_FOUND, -1)


async def begins(remoting: Remoting, where: str, **more: object) -> None:
    """A heartbeat of a push consumer of group `g`."""
    row = {"topic": "T", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    data = {"groupName": "g", "subscriptionDataSet": [row], "consumeFromWhere": where, **more}
    body = json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode()
    assert (await remoting.ask(RequestCode.HEART_BEAT, body=body)).code == 0


async def test_where_the_group_of_a_push_consumer_begins_is_kept(
    node: Node, remoting: Remoting
) -> None:
    query: Any = {"code": RequestCode.QUERY_CONSUMER_OFFSET, "consumerGroup": "g"}
    strict = {**query, "setZeroIfNotFound": "false"}
    await filled(remoting, 3)
    await begins(remoting, "CONSUME_FROM_LAST_OFFSET", messageModel="BROADCASTING")
    assert (await offset(remoting, **strict))[0] == ResponseCode.QUERY_NOT_FOUND
    await begins(remoting, "CONSUME_FROM_LAST_OFFSET")
    assert await offset(remoting, **strict) == (0, 3)
    for queue in (0, 2):
        await remoting.send("T", b"later", queue_id=queue)
    assert await offset(remoting, **strict) == (0, 3)
    assert await offset(remoting, **strict, queueId=2) == (0, 0)
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.alter_topic("T", 5)
    await remoting.send("T", b"in a new queue", queue_id=4)
    assert await offset(remoting, **strict, queueId=4) == (0, 0)


async def test_where_a_client_begins_by_itself_is_kept_from_its_first_pull(
    remoting: Remoting,
) -> None:
    """As it does by a time, for which its clients ask themselves."""
    query: Any = {"code": RequestCode.QUERY_CONSUMER_OFFSET, "consumerGroup": "g"}
    query["setZeroIfNotFound"] = "false"
    await filled(remoting, 3)
    await begins(remoting, "CONSUME_FROM_TIMESTAMP")
    assert (await offset(remoting, **query))[0] == ResponseCode.QUERY_NOT_FOUND
    assert (await remoting.pull("g", "T", 3)).code == ResponseCode.PULL_NOT_FOUND
    await filled(remoting, 1)
    assert await offset(remoting, **query) == (0, 3)
    await remoting.pull("g", "T", 1)
    assert await offset(remoting, **query) == (0, 3)


async def test_a_commit_is_known_at_once_and_stored_soon(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 3)
    await reads(remoting)
    update = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 2}
    remoting.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, update)
    query = RequestCode.QUERY_CONSUMER_OFFSET
    assert await offset(remoting, query, consumerGroup="g") == (0, 2)
    await until(lambda: broker_of(node).metadata.tables.committed("g", "T", 0) == 2)
    assert await offset(remoting, query, consumerGroup="g") == (0, 2)


async def test_a_commit_to_a_deleted_group_is_not_one_to_the_next_of_its_name(
    node: Node, remoting: Remoting
) -> None:
    await filled(remoting, 3)
    await reads(remoting)
    metadata, offsets = broker_of(node).metadata, {"consumerGroup": "g", "topic": "T", "queueId": 0}
    await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**offsets, "commitOffset": 2})
    await metadata.delete_group("g")
    await metadata.ensure_group("g")
    query = RequestCode.QUERY_CONSUMER_OFFSET
    strict = await offset(remoting, query, consumerGroup="g", setZeroIfNotFound="false")
    assert strict == (0, 3), "the member's group begins at the latest message again"


async def test_many_commits_at_once_are_stored(node: Node, remoting: Remoting) -> None:
    await reads(remoting)
    topics = [f"Wide{k}" for k in range(3)]
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        for topic in topics:
            await client.admin.create_topic(topic, 1024)
    update = {"consumerGroup": "g", "commitOffset": 1 << 60}
    for topic in topics:
        for queue_id in range(1024):
            fields = {**update, "topic": topic, "queueId": queue_id}
            remoting.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    tables = broker_of(node).metadata.tables
    await until(lambda: tables.committed("g", topics[-1], 1023) == 1 << 60)
    for topic in topics:
        assert {tables.committed("g", topic, queue_id) for queue_id in range(1024)} == {1 << 60}


async def test_of_a_group_that_is_deleted_while_its_commits_are_stored_the_rest_is_not() -> None:
    stored: list[dict[QueueKey, int]] = []
    deleted: list[Callable[[str], None]] = []

    async def commit(group: str, offsets: dict[QueueKey, int]) -> None:
        stored.append(offsets)
        if len(stored) == 1:
            deleted[0](group)
            commits.note(group, ("T", TOGETHER_MAX), 5)  # by the one that is made again

    metadata = SimpleNamespace(group_deleted=deleted, topic_deleted=[])
    offsets = SimpleNamespace(commit=commit)
    commits = Commits(cast(Any, SimpleNamespace(metadata=metadata, offsets=offsets)))
    for queue_id in range(TOGETHER_MAX + 2):
        commits.note("g", ("T", queue_id), 100)
    await commits.store()
    assert stored[1:] == [{("T", TOGETHER_MAX): 5}]
    assert commits._count == 0


async def test_commits_that_are_refused_are_forgotten_and_those_of_other_groups_stored() -> None:
    stored: list[str] = []

    async def commit(group: str, _: dict[QueueKey, int]) -> None:
        if group == "my.group":  # it was deleted meanwhile
            raise BadGroup("no name of a new group")
        stored.append(group)

    metadata = SimpleNamespace(group_deleted=[], topic_deleted=[])
    offsets = SimpleNamespace(commit=commit)
    commits = Commits(cast(Any, SimpleNamespace(metadata=metadata, offsets=offsets)))
    for group in ("my.group", "g"):
        commits.note(group, ("T", 0), 100)
    await commits.store()
    assert (stored, commits._count) == (["g"], 0)


async def test_of_a_topic_that_is_deleted_before_its_commits_are_stored_the_next_one_has_none(
    node: Node, remoting: Remoting
) -> None:
    await filled(remoting, 3)
    await reads(remoting)
    metadata = broker_of(node).metadata
    config = metadata.topics["T"]
    metadata.auto_create("U", 1)
    update = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3}
    for topic in ("T", "U"):
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        assert (await remoting.ask(code, {**update, "topic": topic})).code == 0
    await metadata.delete_topic("T")
    await metadata.put_topic(config)
    await until(lambda: metadata.tables.committed("g", "U", 0) == 3)
    assert metadata.tables.committed("g", "T", 0) < 0


async def test_a_group_that_a_broker_of_rocketmq_had_commits_whatever_its_name_is(
    node: Node, remoting: Remoting
) -> None:
    await filled(remoting, 3)
    metadata = broker_of(node).metadata
    metadata.tables.groups["my.group"] = new_group("my.group")  # of its configuration
    update = {"consumerGroup": "my.group", "topic": "T", "queueId": 0, "commitOffset": 3}
    assert (await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
    await until(lambda: metadata.tables.committed("my.group", "T", 0) == 3, seconds=20)


async def test_a_pull_commits_as_well(remoting: Remoting) -> None:
    await filled(remoting, 3)
    await reads(remoting)
    await remoting.pull("g", "T", 0, sysFlag=3, commitOffset=1)
    query = RequestCode.QUERY_CONSUMER_OFFSET
    assert await offset(remoting, query, consumerGroup="g") == (0, 1)


async def test_the_last_commits_are_stored_before_the_end(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 3)
    await reads(remoting)
    update = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 3}
    assert (await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
    await node.stop()
    assert broker_of(node).metadata.tables.committed("g", "T", 0) == 3


async def test_a_commit_needs_a_group_and_a_queue(remoting: Remoting) -> None:
    update = {"consumerGroup": "nobody", "topic": "T", "queueId": 0, "commitOffset": 2}
    refused = await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "does not exist" in refused.remark
    await reads(remoting)
    for wrong in ({"queueId": 4}, {"commitOffset": -1}, {"topic": "Unknown"}):
        fields = {**update, "consumerGroup": "g", **wrong}
        assert (await remoting.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code != 0


# -- members -----------------------------------------------------------------------------------


async def members(remoting: Remoting, group: str = "g") -> list[str]:
    found = await remoting.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    ids: list[str] = json.loads(found.body)["consumerIdList"] if found.code == 0 else []
    return ids


async def told(remoting: Remoting) -> str:
    async with asyncio.timeout(10):
        request = await remoting.told.get()
    assert request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert request.is_oneway
    return request.fields["consumerGroup"]


async def test_a_heartbeat_makes_group_and_retry_topic(node: Node, remoting: Remoting) -> None:
    answer = await remoting.beat("c", "g", "T")
    assert (answer.code, answer.version) == (0, 409)
    assert broker_of(node).metadata.has_group("g")
    assert broker_of(node).metadata.topics["%RETRY%g"].queues == 1


async def test_members_hear_of_each_other(node: Node, remoting: Remoting) -> None:
    await remoting.beat("c1", "g", "T")
    assert await told(remoting) == "g"
    async with connected(node) as other:
        await other.beat("c2", "g", "T")
        assert await told(remoting) == "g"
        assert await told(other) == "g"
        assert await members(remoting) == ["c1", "c2"]
        await other.beat("c2", "g", "T")  # nothing new
        await other.beat("c2", "g", "T", tags="red", version=2)
        assert await told(remoting) == "g"
        assert remoting.told.empty()
    assert await told(remoting) == "g"  # its connection has ended
    assert await members(remoting) == ["c1"]
    fields = {"clientID": "c1", "producerGroup": "", "consumerGroup": "g"}
    assert (await remoting.ask(RequestCode.UNREGISTER_CLIENT, fields)).code == 0
    empty = await remoting.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    assert empty.code == ResponseCode.SYSTEM_ERROR
    assert "no consumer" in empty.remark


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (RequestCode.HEART_BEAT, {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": []}),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"}),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": []}),
    ],
)
async def test_long_requests_are_served_one_at_a_time_and_only_so_many_wait(
    node: Node,
    remoting: Remoting,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestCode,
    said: dict[str, Any],
) -> None:
    monkeypatch.setattr(service, "LONG_MAX", 4)
    body = json.dumps({**said, "unknown": "x" * service.LONG_BYTES}).encode()
    assert (await remoting.ask(code, body=body)).code == ResponseCode.SUCCESS
    (peer,) = known(node.remoting)._connections
    assert isinstance(peer, Connection)
    begun = [known(node._remoting_service).serve(peer, Command(code, body=body)) for _ in range(10)]
    waiting = [one for one in begun if not isinstance(one, Command)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    served = [one for one in answers if isinstance(one, Command)]
    refused = [one for one in answers if isinstance(one, duolog.Busy)]
    assert (len(served), len(refused)) == (4, 6)
    assert {one.code for one in served} == {ResponseCode.SUCCESS}
    assert (await remoting.ask(code, body=body)).code == ResponseCode.SUCCESS


async def test_long_requests_that_never_begin_wait_for_no_turn(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LONG_MAX", 1)
    monkeypatch.setattr(service, "LONG_BYTES", 16)
    assert node._remoting_service is not None
    assert (await remoting.beat("c", "g", "T")).code == ResponseCode.SUCCESS
    (peer,) = known(node.remoting)._connections
    assert isinstance(peer, Connection)
    for _ in range(3):
        begun = node._remoting_service.serve(peer, Command(RequestCode.HEART_BEAT, body=b" " * 17))
        assert isinstance(begun, Coroutine)
        begun.close()  # its connection ends in the turn in which it came
    assert (await remoting.beat("c", "g", "T")).code == ResponseCode.SUCCESS


async def test_members_are_told_a_few_times_a_second_of_one_that_comes_and_leaves_all_the_time(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "TOLD_OF_GROUP_MAX", 8)
    tick = clients.Clients.tick
    monkeypatch.setattr(clients.Clients, "tick", lambda clients: None)  # it is one second
    await reads(remoting)
    async with connected(node) as other:
        leaves = {"clientID": "o", "consumerGroup": "g"}
        for _ in range(30):
            await other.beat("o", "g", "T")
            await other.ask(RequestCode.UNREGISTER_CLIENT, leaves)
        await other.beat("o", "g", "T")
        count = remoting.told.qsize()
        assert 1 <= count <= 8
        monkeypatch.setattr(clients.Clients, "tick", tick)
        await until(lambda: remoting.told.qsize() > count)  # and of the last change
    assert {remoting.told.get_nowait().fields["consumerGroup"] for _ in range(count)} == {"g"}


async def test_others_have_their_turns_between_those_of_a_large_group_that_are_told(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "TOLD_AT_ONCE", 2)
    monkeypatch.setattr(turnbudget, "SLICE_SECONDS", 0.0)
    others = 0

    def count() -> None:
        nonlocal others
        others += 1
        asyncio.get_running_loop().call_soon(count)

    turns: list[int] = []
    tell_one = clients.Clients._tell_one

    def noted(self: clients.Clients, *who: Any) -> None:
        turns.append(others)
        tell_one(self, *who)

    async with AsyncExitStack() as stack:
        all_of_them = [remoting]
        for _ in range(3):
            all_of_them.append(await stack.enter_async_context(connected(node)))
        for number, one in enumerate(all_of_them[:-1]):
            await one.beat(f"c{number}", "g", "T")
        count()
        monkeypatch.setattr(clients.Clients, "_tell_one", noted)
        await all_of_them[-1].beat("c3", "g", "T")
        assert {await told(one) for one in all_of_them} == {"g"}
        assert len(turns) >= 4, "some of those before, and each of these"
        assert len(set(turns)) == len(turns)


async def test_a_client_may_leave_right_behind_its_heartbeat(remoting: Remoting) -> None:
    data = {"groupName": "g", "subscriptionDataSet": []}
    body = json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode()
    beat = remoting.begin(RequestCode.HEART_BEAT, {}, body)
    fields = {"clientID": "c", "consumerGroup": "g"}
    leave = remoting.begin(RequestCode.UNREGISTER_CLIENT, fields)
    assert {(await beat).code, (await leave).code} == {0}
    assert await members(remoting) == []


async def test_members_of_a_group_are_shown_to_operators(node: Node, remoting: Remoting) -> None:
    await remoting.beat("c1", "g", "T")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        assert (await client.admin.group("g")).clients == 1
        with pytest.raises(duolog.Busy, match="has members"):
            await client.admin.reset_group("g", "T", duolog.Start.EARLIEST)
        fields = {"clientID": "c1", "consumerGroup": "g"}
        await remoting.ask(RequestCode.UNREGISTER_CLIENT, fields)
        assert (await client.admin.group("g")).clients == 0
        await client.admin.reset_group("g", "T", duolog.Start.EARLIEST)


async def test_a_heartbeat_that_cannot_be_used_is_refused(node: Node, remoting: Remoting) -> None:
    wrong = await remoting.ask(RequestCode.HEART_BEAT, body=b"{")
    assert wrong.code == ResponseCode.SYSTEM_ERROR
    assert (await remoting.beat("c", "no group", "T")).code == ResponseCode.MESSAGE_ILLEGAL
    assert not broker_of(node).metadata.has_group("no group")


async def test_an_expression_is_checked_before_it_is_used(remoting: Remoting) -> None:
    for expression, code in (("a > 1", 0), ("a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED)):
        row = {"topic": "T", "subString": expression, "expressionType": "SQL92"}
        body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": row}).encode()
        assert (await remoting.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


# -- what is sent back -------------------------------------------------------------------------


async def back(remoting: Remoting, node: Node, **more: object) -> int:
    await broker_of(node).log.caught_up()
    record = known(broker_of(node).store.record_at("T", 0, QueueOffset(0)))
    fields = {"offset": record.physical_offset, "group": "g", "delayLevel": 0, **more}
    return (await remoting.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code


async def test_a_message_sent_back_comes_again_later(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 1)
    await reads(remoting)
    assert await back(remoting, node, maxReconsumeTimes=16) == 0
    await broker_of(node).log.caught_up()
    again = known(broker_of(node).store.record_at("SCHEDULE_TOPIC_XXXX", 2, QueueOffset(0)))
    assert again.properties["REAL_TOPIC"] == "%RETRY%g"
    assert again.properties["RETRY_TOPIC"] == "T"
    assert again.reconsume_times == 1


async def test_a_message_given_up_is_a_dead_letter(node: Node, remoting: Remoting) -> None:
    """Also where its group gives no further attempt."""
    await filled(remoting, 1)
    await reads(remoting)
    for number, how in enumerate(({"delayLevel": -1}, {"maxReconsumeTimes": 0})):
        assert await back(remoting, node, **how) == 0
        await broker_of(node).log.caught_up()
        dead = known(broker_of(node).store.record_at("%DLQ%g", 0, QueueOffset(number)))
        assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"body0", "T")


async def test_only_messages_can_be_sent_back(node: Node, remoting: Remoting) -> None:
    await filled(remoting, 1)
    assert await back(remoting, node) == ResponseCode.SYSTEM_ERROR  # no such group
    await reads(remoting)
    assert await back(remoting, node, offset=1 << 40) == ResponseCode.SYSTEM_ERROR
    assert await back(remoting, node, offset=3) == ResponseCode.SYSTEM_ERROR
    within = await forged(node, remoting)
    assert await back(remoting, node, offset=within) == ResponseCode.QUERY_NOT_FOUND
    note = known(broker_of(node).store.record_at("DUOLOG_SYS_METADATA", 0, QueueOffset(0)))
    refused = await back(remoting, node, offset=note.physical_offset)
    assert refused == ResponseCode.NO_PERMISSION


async def test_a_new_group_has_room_in_its_name_for_its_retry_topic(remoting: Remoting) -> None:
    assert (await remoting.beat("c", "g" * 120, "T")).code == ResponseCode.SUCCESS
    refused = await remoting.beat("c", "g" * 121, "T")
    assert refused.code != ResponseCode.SUCCESS
    assert "the limit for clients of RocketMQ 4 is 120" in refused.remark
