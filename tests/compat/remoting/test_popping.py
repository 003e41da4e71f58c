"""POP over the remoting protocol: leases, receipts, retries, dead letters, queues in order."""

import base64
import json
from typing import Any

import duolog
import pytest

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import BadRequest
from duolog_server.compat.remoting.consuming import popping
from duolog_server.compat.remoting.receipts import (
    BITS_MAX,
    RECEIPTS_MAX,
    Receipt,
    read_acks,
    read_receipt,
)
from duolog_server.serve.server import Node
from duolog_server.store.record import Record
from tests.compat.remoting.client import Got, Remoting, changed, connected, receipts
from tests.node.api.test_quotas import stop_the_clock
from tests.node.replicas import broker_of
from tests.until import until

NO_MESSAGE, NOTHING = ResponseCode.NO_MESSAGE, ResponseCode.POLLING_TIMEOUT


async def fill(remoting: Remoting, count: int, properties: str = "") -> None:
    for k in range(count):
        await remoting.send("T", b"body%d" % k, properties, queue_id=k % 4)


async def group(node: Node, name: str = "g", **settings: Any) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_group(name, **settings)


async def popped(remoting: Remoting, count: int = 1, **more: Any) -> list[Got]:
    """So many messages, which are there or come soon."""
    found: list[Got] = []
    while len(found) < count:
        answer = await remoting.pop("g", "T", 5000, **more)
        assert answer.code in (0, NOTHING), answer.remark
        found += receipts(answer)
    return found


def bodies(found: list[Got]) -> list[bytes]:
    return sorted(one.record.body for one in found)


async def test_messages_of_all_queues_are_delivered_once_and_acknowledged(
    node: Node, remoting: Remoting
) -> None:
    await fill(remoting, 9)
    first = await remoting.pop("g", "T", maxMsgNums=5)
    found = receipts(first)
    assert len(found) == 5
    async with connected(node) as other:
        rest = receipts(await other.pop("g", "T", maxMsgNums=32))
    assert bodies(found + rest) == [b"body%d" % k for k in range(9)]
    assert first.fields["invisibleTime"] == "60000"
    log = broker_of(node).store.log
    assert all(_is_in_log(log, one.record) for one in found), "the bytes of the log"
    for one in found + rest:
        assert (await remoting.ack("g", "T", one.extra_info)).code == 0
        assert (await remoting.ack("g", "T", one.extra_info)).code == 0, "a repeat"
    assert not broker_of(node).pop.status()["messages_leased"]
    nothing = await remoting.pop("g", "T")
    assert (nothing.code, nothing.body) == (NOTHING, b"")
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= nothing.fields.keys()


def _is_in_log(log: Any, record: Record) -> bool:
    raw = log.get_data(record.physical_offset)[: record.size].tobytes()
    return record.body in raw and record.topic.encode() in raw


async def test_an_answer_has_no_more_bytes_than_a_frame(
    remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popping, "BYTES_MAX", 100_000)
    for k in range(8):
        await remoting.send("T", bytes([k]) * 60_000, queue_id=k % 4)
    found: list[list[Got]] = []
    while sum(map(len, found)) < 8:
        found.append(await popped(remoting))
    assert max(len(some) for some in found) == 2, "a message that is begun is whole"
    assert bodies([one for some in found for one in some]) == [
        bytes([k]) * 60_000 for k in range(8)
    ]


async def test_a_pop_waits_for_a_message(node: Node, remoting: Remoting) -> None:
    waiting = remoting.begin_pop("g", "T", 8000)
    await until(lambda: broker_of(node).pop.status()["calls_waiting"])
    async with connected(node) as other:
        await fill(other, 1)
    assert bodies(receipts(await waiting)) == [b"body0"]


async def test_a_queue_and_a_tag_are_selected(remoting: Remoting) -> None:
    for k, tag in enumerate(("red", "blue", "red", "blue")):
        await remoting.send("T", b"%d" % k, f"TAGS\x01{tag}", queue_id=k // 2)
    assert bodies(receipts(await remoting.pop("one", "T", exp="red"))) == [b"0", b"2"]
    sql = await remoting.pop("two", "T", exp="TAGS = 'blue'", expType="SQL92")
    assert bodies(receipts(sql)) == [b"1", b"3"]
    refused = await remoting.pop("three", "T", exp="a >", expType="SQL92")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_message_that_is_not_acknowledged_comes_again(remoting: Remoting) -> None:
    await fill(remoting, 1)
    (first,) = await popped(remoting, invisibleTime=1)
    (again,) = await popped(remoting)
    assert (again.record.body, again.record.reconsume_times) == (b"body0", 1)
    assert again.extra_info.split(" ")[4] == "1", "of the retry topic"
    assert (await remoting.ack("g", "T", first.extra_info)).code == NO_MESSAGE
    assert (await remoting.ack("g", "T", again.extra_info)).code == 0
    assert (await remoting.pop("g", "T")).code == NOTHING


async def test_a_message_whose_lease_is_shortened_comes_again(
    node: Node, remoting: Remoting
) -> None:
    """What a listener that failed leads to: until then its receipt is a new one."""
    await fill(remoting, 1)
    (first,) = await popped(remoting)
    kept = await remoting.change("g", "T", first.extra_info, 30_000)
    stale = await remoting.change("g", "T", first.extra_info, 30_000)
    assert (kept.code, stale.code) == (0, NO_MESSAGE)
    assert "reviveQid" in stale.fields, "clients read it of every answer"
    assert (await remoting.ack("g", "T", first.extra_info)).code == NO_MESSAGE
    renewed = changed(first.extra_info, kept)
    assert (await remoting.change("g", "T", renewed, 1)).code == 0
    (again,) = await popped(remoting)
    longer = await remoting.change("g", "T", again.extra_info, 30_000)
    assert (await remoting.ack("g", "T", changed(again.extra_info, longer))).code == 0


async def test_after_the_last_attempt_it_is_a_dead_letter(node: Node, remoting: Remoting) -> None:
    await group(node, retry_times=1)
    await fill(remoting, 1)
    await popped(remoting, invisibleTime=1)
    await popped(remoting, invisibleTime=1)
    store = broker_of(node).store
    await until(lambda: store.queue_range("%DLQ%g", 0)[1] == 1)


async def test_a_client_is_not_told_of_so_many_attempts_that_it_gives_a_message_up(
    node: Node, remoting: Remoting
) -> None:
    """RocketMQ's acknowledges it then where it is hours old, so it would be no dead letter."""
    for times in (3, 15, 16):
        await remoting.send("T", b"%d" % times, reconsumeTimes=times)
    told = {one.record.body: one for one in await popped(remoting, 3)}
    assert {body: one.record.reconsume_times for body, one in told.items()} == {
        b"3": 3, b"15": 15, b"16": 15,
    }  # fmt: skip
    assert (await remoting.change("g", "T", told[b"16"].extra_info, 1)).code == 0
    store = broker_of(node).store
    await until(lambda: store.queue_range("%DLQ%g", 0)[1] == 1)


async def test_a_batch_is_acknowledged_at_once(remoting: Remoting) -> None:
    await fill(remoting, 12)
    found = await popped(remoting, 12)
    rows: dict[tuple[str, ...], int] = {}
    for one in found:
        words = one.extra_info.split(" ")
        key = words[0], words[3], words[4], words[6]
        rows[key] = rows.get(key, 0) | 1 << int(words[7]) - int(words[0])
    acks = [
        {
            "c": "g", "t": "T", "r": retry, "so": int(first), "q": int(queue), "rq": int(serial),
            "pt": 1, "it": 60_000, "b": base64.b64encode(bits.to_bytes(2, "little")).decode(),
        }
        for (first, serial, retry, queue), bits in rows.items()
    ]  # fmt: skip
    body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
    for _ in range(2):  # a repeat as well
        assert (await remoting.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
    acks[0]["rq"] = 1
    body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
    refused = await remoting.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    assert (refused.code, refused.remark.split(" ")[0]) == (NO_MESSAGE, "3")


async def test_a_group_in_order_gets_the_next_message_after_an_acknowledgement(
    node: Node, remoting: Remoting
) -> None:
    await group(node, orderly=True)
    for k in range(2):
        await remoting.send("T", b"%d" % k)
    (first,) = await popped(remoting, maxMsgNums=1, order="true")
    assert (await remoting.pop("g", "T", order="true")).code == NOTHING
    await remoting.change("g", "T", first.extra_info, 1)
    answer = await remoting.pop("g", "T", 5000, maxMsgNums=1, order="true")
    (again,) = receipts(answer)
    assert again.record.body == b"0"
    assert answer.fields["orderCountInfo"] == "0 qo0%0 1"
    assert (await remoting.ack("g", "T", again.extra_info)).code == 0
    assert bodies(await popped(remoting, maxMsgNums=1, order="true")) == [b"1"]


@pytest.mark.parametrize(("mode", "found"), [(0, [b"old"]), (1, [])])
async def test_a_new_group_begins_as_its_clients_ask(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch, mode: int, found: list[bytes]
) -> None:
    service = "duolog_server.compat.remoting.consuming.offsets.Offsets._is_small"
    monkeypatch.setattr(service, lambda self, key: False)
    await remoting.send("T", b"old")
    assert bodies(receipts(await remoting.pop("g", "T", initMode=mode))) == found
    await remoting.send("T", b"new")
    assert bodies(receipts(await remoting.pop("g", "T", initMode=mode))) == [b"new"]


async def test_a_small_topic_is_read_from_its_first_message(remoting: Remoting) -> None:
    await remoting.send("T", b"old")
    assert bodies(receipts(await remoting.pop("g", "T", initMode=1))) == [b"old"]


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "does not exist"),
        ({"queueId": 4}, ResponseCode.SYSTEM_ERROR, "queues 0..3"),
        ({"maxMsgNums": 0}, ResponseCode.SYSTEM_ERROR, "maxMsgNums"),
        ({"invisibleTime": 0}, ResponseCode.SYSTEM_ERROR, "invisibleTime"),
        ({"invisibleTime": 1 << 40}, ResponseCode.SYSTEM_ERROR, "invisibleTime"),
        ({"order": "true"}, ResponseCode.SYSTEM_ERROR, "does not consume in order"),
        ({"topic": "%RETRY%h"}, ResponseCode.SYSTEM_ERROR, "not read by POP"),
        ({"group": "a b"}, ResponseCode.MESSAGE_ILLEGAL, "a b"),
    ],
)
async def test_a_pop_that_cannot_be_served_is_refused(
    remoting: Remoting, more: dict[str, Any], code: ResponseCode, why: str
) -> None:
    await remoting.beat("c", "h", "T")
    names = {"group": "g", "topic": "T"}
    answer = await remoting.pop(**(names | more))
    assert (answer.code, why in answer.remark) == (code, True), answer.remark


@pytest.mark.parametrize("code", [200052, 200054, 200055, 200056])
async def test_other_requests_of_pop_are_refused_by_name(remoting: Remoting, code: int) -> None:
    answer = await remoting.ask(code, {"consumerGroup": "g", "topic": "T"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "POP_MESSAGE" in answer.remark


async def test_a_group_that_may_not_consume_pops_nothing(remoting: Remoting) -> None:
    await fill(remoting, 1)
    row = json.dumps({"groupName": "g", "consumeEnable": False}).encode()
    await remoting.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, row)
    assert (await remoting.pop("g", "T")).code == ResponseCode.NO_PERMISSION


async def test_a_quota_holds_a_pop(node: Node, remoting: Remoting) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_quota("Topic:T", messages_out=1)
    await fill(remoting, 4)
    stop_the_clock(node)
    assert len(receipts(await remoting.pop("g", "T"))) == 1
    assert (await remoting.pop("g", "T")).code == NOTHING


async def test_receipts_of_others_are_not_taken(remoting: Remoting) -> None:
    await fill(remoting, 1)
    (one,) = await popped(remoting)
    words = one.extra_info.split(" ")
    elsewhere = " ".join([*words[:5], "broker-b", *words[6:]])
    for group, receipt in (("h", one.extra_info), ("g", elsewhere)):
        assert (await remoting.ack(group, "T", receipt)).code == NO_MESSAGE
    assert (await remoting.ack("g", "T", one.extra_info)).code == 0


@pytest.mark.parametrize("text", ["", "1 2 3", "0 1 2 x 0 broker-a 0 0", "0 1 2 3 0 broker-a 0 x"])
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="receipt"):
        read_receipt(text)


def test_batches_name_their_members_in_two_ways() -> None:
    row = {"consumerGroup": "g", "topic": "T", "retry": "2", "startOffset": 5, "queueId": 1}
    row |= {"reviveQueueId": 9, "popTime": 1, "invisibleTime": 1, "bitSet": "BQ=="}
    (acks,) = read_acks(json.dumps({"brokerName": "b", "acks": [row]}).encode())
    assert acks.receipts == (Receipt(True, "b", 1, 5, 9), Receipt(True, "b", 1, 7, 9))
    bits = base64.b64encode(bytes(BITS_MAX // 8 + 1)).decode()
    for wrong in ({"bitSet": "?"}, {"bitSet": 5}, {"bitSet": bits}, {"startOffset": -1}):
        body = json.dumps({"brokerName": "b", "acks": [row | wrong]}).encode()
        with pytest.raises(BadRequest, match="acknowledgement"):
            read_acks(body)


@pytest.mark.parametrize("rows", [RECEIPTS_MAX // BITS_MAX, RECEIPTS_MAX // BITS_MAX + 1])
def test_a_batch_names_so_many_messages_at_most(rows: int) -> None:
    bits = base64.b64encode(b"\xff" * (BITS_MAX // 8)).decode()
    row = {"c": "g", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 1, "b": bits}
    body = json.dumps({"brokerName": "b", "acks": [row] * rows}).encode()
    if rows * BITS_MAX <= RECEIPTS_MAX:
        assert sum(len(acks.receipts) for acks in read_acks(body)) == RECEIPTS_MAX
    else:
        with pytest.raises(BadRequest, match="more than"):
            read_acks(body)
