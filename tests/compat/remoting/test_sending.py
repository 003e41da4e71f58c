"""Sends over the remoting protocol: what is stored, and what is answered."""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command, Serialization
from duolog_server.compat.remoting.codec.frames import FRAME_BYTES_MAX, FrameReader
from duolog_server.compat.remoting.codec.sends import read_sent
from duolog_server.compat.remoting.port.dispatcher import Peer, Served, tried
from duolog_server.node.engine.log import Outcome
from duolog_server.node.net import connection_protocol
from duolog_server.node.runtime.clocks import TIME_MS_MAX
from duolog_server.node.service.sends import Placed
from duolog_server.serve.server import Node
from duolog_server.store.messagestore import PutResult, Singles, SinglesResult
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import (
    LOCAL_HOST,
    SENT_PROPERTIES_BYTES_MAX,
    Record,
    parse_message_id,
)
from duolog_server.store.status import PutMessageStatus
from tests.compat.remoting.client import LETTERS, Remoting, connected
from tests.compat.remoting.requests import write_batch
from tests.known import known
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

SEPARATORS, VALUES = ("\x01",) * 8 + ("", "="), ("true", "3", "x") * 3 + ("",)
NAMES = (
    *("UNIQ_KEY", "WAIT", "TAGS", "KEYS") * 3,
    *("DELAY", "TRAN_MSG", "REPLY_TO_CLIENT", "MSG_REGION", "RETRY_TOPIC", "_SYS_MSG_PRIORITY_"),
    *("__SHARDINGKEY", "TIMER_DELAY_MS", "", "xWAIT"),
)
NOT_NOW = PutMessageStatus.SERVICE_NOT_AVAILABLE


async def stored(node: Node, topic: str, queue_id: int = 0, offset: int = 0) -> Record:
    await broker_of(node).log.caught_up()
    found = known(broker_of(node).store.record_at(topic, queue_id, QueueOffset(offset)))
    return found


def properties_of(record: Record) -> dict[str, str]:
    """Those of its sender: the store adds a CRC, and the node a region."""
    added = ("__CRC32#", "MSG_REGION")
    return {name: value for name, value in record.properties.items() if name not in added}


@pytest.mark.parametrize("form", Serialization)
async def test_a_message_is_stored_as_it_was_sent(node: Node, form: Serialization) -> None:
    async with connected(node, form) as client:
        sent = await client.send("T", b"hello", "K\x01v\x02TAGS\x01red\x02WAIT\x01true\x02", 2)
    assert sent.code == ResponseCode.SUCCESS
    assert (sent.fields["queueId"], sent.fields["queueOffset"]) == ("2", "0")
    assert sent.fields["MSG_REGION"] == "DefaultRegion"
    record = await stored(node, "T", 2)
    assert sent.fields["msgId"][16:] == record.message_id[16:]
    assert parse_message_id(sent.fields["msgId"])[0].port == known(node.remoting).port
    assert (record.body, record.flag) == (b"hello", 5)
    assert properties_of(record) == {"K": "v", "TAGS": "red"}
    assert record.born_time == 1_700_000_000_000
    assert record.born_host.address == "127.0.0.1"


async def test_empty_properties_are_no_error(node: Node, remoting: Remoting) -> None:
    sent = await remoting.send("T", b"x", "KEYS\x01\x02TAGS\x01A\x02")  # of Apache Camel
    assert sent.code == ResponseCode.SUCCESS
    assert properties_of(await stored(node, "T")) == {"TAGS": "A"}


async def test_the_long_names_say_the_same(node: Node, remoting: Remoting) -> None:
    fields = {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
        "queueId": 1, "sysFlag": 1, "bornTimestamp": 9, "flag": 0, "properties": "",
    }  # fmt: skip
    sent = await remoting.ask(RequestCode.SEND_MESSAGE, fields, b"zipped")
    assert sent.code == ResponseCode.SUCCESS
    assert (await stored(node, "T", 1)).sysflag == 1  # compressed by the client, kept as it is


async def test_a_queue_is_chosen_where_the_client_chooses_none(remoting: Remoting) -> None:
    sent = [await remoting.send("T", b"x", queue_id=-1) for _ in range(4)]
    assert {one.fields["queueId"] for one in sent} == {"0", "1", "2", "3"}


async def test_a_message_without_an_answer_is_stored(node: Node, remoting: Remoting) -> None:
    fields = {
        "a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
    }  # fmt: skip
    remoting.oneway(RequestCode.SEND_MESSAGE_V2, fields, b"quietly")
    await remoting.send("T", b"then", queue_id=1)
    assert (await stored(node, "T")).body == b"quietly"


async def test_a_batch_is_stored_whole(node: Node, remoting: Remoting) -> None:
    body = write_batch(
        [
            (1, b"one", b"K\x01a\x02WAIT\x01true"),
            (2, b"two", b"TAGS\x01red"),
            (2, b"three", b""),
        ]
    )
    fields = {
        "a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 3, "f": 0, "g": 7, "h": 0, "i": "",
        "m": "true",
    }  # fmt: skip
    sent = await remoting.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
    assert sent.code == ResponseCode.SUCCESS
    found = [await stored(node, "T", 3, k) for k in range(3)]
    assert [one.body for one in found] == [b"one", b"two", b"three"]
    assert [one.flag for one in found] == [1, 2, 2]
    assert [properties_of(one) for one in found] == [{"K": "a"}, {"TAGS": "red"}, {}]
    assert [one.born_time for one in found] == [7, 7, 7]
    assert {one.properties["MSG_REGION"] for one in found} == {"DefaultRegion"}
    ids = [parse_message_id(one) for one in sent.fields["msgId"].split(",")]
    assert [place for _, place in ids] == [one.physical_offset for one in found]
    assert {host.port for host, _ in ids} == {known(node.remoting).port}
    assert (await remoting.ask(RequestCode.SEND_BATCH_MESSAGE, fields, b"short")).code == 1


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"DELAY\x013", ResponseCode.MESSAGE_ILLEGAL),
        (b"K\x01v\x02TIMER_DELAY_SEC\x0160", ResponseCode.MESSAGE_ILLEGAL),
        (b"TIMER_DELAY_MS\x0160", ResponseCode.MESSAGE_ILLEGAL),
        (b"TIMER_DELIVER_MS\x0160", ResponseCode.MESSAGE_ILLEGAL),
        (b"TRAN_MSG\x01true\x02DELAY\x010\x02XDELAY\x013", ResponseCode.SUCCESS),
    ],
)
async def test_delayed_messages_cannot_be_in_a_batch(
    node: Node, remoting: Remoting, properties: bytes, code: ResponseCode
) -> None:
    body = write_batch([(0, b"one", b""), (0, b"two", properties)])
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 7, "h": 0, "i": ""}
    sent = await remoting.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
    assert sent.code == code, sent.remark
    await broker_of(node).log.caught_up()
    assert broker_of(node).store.queue_range("T", 0)[1] == (2 if code == 0 else 0)


async def test_a_topic_is_made_by_its_first_message(start_node: StartNode) -> None:
    node = await start_node(
        remoting={"listen": free_endpoint()},
        limits={"auto_create_topic": True, "default_topic_queues": 4},
    )
    async with connected(node) as client:
        route = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert b'"writeQueueNums":4' in route.body
        assert (await client.send("New", b"x")).code == ResponseCode.SUCCESS
        assert (await client.send("Wide", b"x", defaultTopicQueueNums=99)).code == 0
        other = await client.send("Other", b"x", defaultTopic="Mine")
    assert broker_of(node).metadata.topics["New"].queues == 3
    assert broker_of(node).metadata.topics["Wide"].queues == 4
    assert other.code == ResponseCode.TOPIC_NOT_EXIST


REFUSED: list[tuple[dict[str, Any], ResponseCode, str]] = [
    ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "reserved"),
    ({"topic": "DUOLOG_SYS_METADATA"}, ResponseCode.NO_PERMISSION, "reserved"),
    ({"topic": "%RETRY%nobody"}, ResponseCode.TOPIC_NOT_EXIST, "%RETRY%nobody"),
    ({"queue_id": 4}, ResponseCode.SYSTEM_ERROR, "queueId"),
    ({"body": bytes(65 << 10)}, ResponseCode.MESSAGE_ILLEGAL, "65536"),
    ({"properties": "K"}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
    ({"properties": "K\x01" + "v" * 32_767}, ResponseCode.MESSAGE_ILLEGAL, "properties"),
    ({"properties": "DELAY\x01soon"}, ResponseCode.SYSTEM_ERROR, "DELAY"),
    *(
        ({"properties": f"{name}\x01{number}"}, ResponseCode.MESSAGE_ILLEGAL, said)
        for name, number, said in (
            ("TIMER_DELAY_SEC", 999_999, "delay"),
            ("TIMER_DELAY_MS", 999_999_000, "delay"),
            ("TIMER_DELIVER_MS", 9_999_999_999_999, "delay"),
            ("TIMER_DELIVER_MS", 1 << 62, "too large"),
        )
    ),
    (
        {"properties": "TRAN_MSG\x01true", "producerGroup": ""},
        ResponseCode.MESSAGE_ILLEGAL,
        "producer group",
    ),
    ({"sysFlag": 128}, ResponseCode.MESSAGE_ILLEGAL, "inner batches"),
    ({"bornTimestamp": "x"}, ResponseCode.SYSTEM_ERROR, "bornTimestamp"),
    ({"bornTimestamp": -1}, ResponseCode.MESSAGE_ILLEGAL, "bornTimestamp"),
    ({"bornTimestamp": 253_402_300_800_000}, ResponseCode.MESSAGE_ILLEGAL, "bornTimestamp"),
    ({"reconsumeTimes": (1 << 31) - 1}, ResponseCode.MESSAGE_ILLEGAL, "reconsumeTimes"),
]


@pytest.mark.usefixtures("nothing_noted")
@pytest.mark.parametrize(("more", "code", "remark"), REFUSED)
async def test_a_message_that_cannot_be_stored_is_refused(
    node: Node, remoting: Remoting, more: dict[str, Any], code: ResponseCode, remark: str
) -> None:
    before = broker_of(node).store.max_offset
    refused = await remoting.send(**{"topic": "T", "body": b"x", **more})
    assert (refused.code, remark in refused.remark) == (code, True), refused.remark
    assert broker_of(node).store.max_offset == before
    assert (await remoting.send("T", b"next")).code == ResponseCode.SUCCESS


async def test_a_topic_that_is_not_writable_takes_nothing(node: Node, remoting: Remoting) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("ReadOnly", 1, perm=4)
    assert (await remoting.send("ReadOnly", b"x")).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ("DELAY\x013\x02K\x01v", "SCHEDULE_TOPIC_XXXX"),
        ("TIMER_DELAY_SEC\x0160", "rmq_sys_wheel_timer"),
        ("TIMER_DELAY_MS\x0160000", "rmq_sys_wheel_timer"),
        ("TIMER_DELIVER_MS\x01{later}", "rmq_sys_wheel_timer"),
        ("TIMER_DELIVER_MS\x011000", "T"),
        ("DELAY\x010", "T"),
    ],
)
async def test_a_delayed_message_waits_where_others_do(
    node: Node, remoting: Remoting, properties: str, kept: str
) -> None:
    later = broker_of(node).times.wall_ms() + 60_000
    sent = await remoting.send("T", b"late", properties.format(later=later))
    assert sent.code == ResponseCode.SUCCESS
    record = await stored(node, kept, 2 if kept.startswith("SCHEDULE") else 0)
    assert record.body == b"late"
    if kept != "T":
        assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize(
    ("properties", "queue_id"),
    [
        ("_SYS_MSG_PRIORITY_\x012", 2),
        ("_SYS_MSG_PRIORITY_\x01900", 3),
        ("_SYS_MSG_PRIORITY_\x01-1", 1),
        ("_SYS_MSG_PRIORITY_\x012\x02__SHARDINGKEY\x01k", 1),
        ("_SYS_MSG_PRIORITY_\x012\x02TIMER_DELAY_SEC\x0160", 1),
        ("NOT_SYS_MSG_PRIORITY_\x012", 1),
    ],
)
async def test_the_queue_of_a_message_is_its_priority(
    node: Node, remoting: Remoting, properties: str, queue_id: int
) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("P", 4, message_type="PRIORITY")
    sent = await remoting.send("P", b"x", properties, queue_id=1)
    assert (sent.code, sent.fields["queueId"]) == (ResponseCode.SUCCESS, str(queue_id))


async def test_a_message_has_a_region_without_which_its_consumers_trace_nothing(
    node: Node, remoting: Remoting
) -> None:
    longest = "K\x01" + "v" * (SENT_PROPERTIES_BYTES_MAX - 2)
    for k, (text, region) in enumerate(
        (("", "DefaultRegion"), ("MSG_REGION\x01mine", "mine"), (longest, None))
    ):
        assert (await remoting.send("T", b"x", text)).code == ResponseCode.SUCCESS
        assert (await stored(node, "T", offset=k)).properties.get("MSG_REGION") == region


async def test_a_client_cannot_say_what_the_node_notes(node: Node, remoting: Remoting) -> None:
    await remoting.send("T", b"x", "RETRY_TOPIC\x01Other\x02DLQ_ORIGIN_TOPIC\x01Other\x02K\x01v")
    assert properties_of(await stored(node, "T")) == {"K": "v"}


async def test_a_message_sent_back_once_too_often_is_a_dead_letter(
    node: Node, remoting: Remoting
) -> None:
    await remoting.beat("c", "g", "T")
    again = "RETRY_TOPIC\x01T\x02DELAY\x014\x02TRAN_MSG\x01true"  # as committed ones have it
    sent = await remoting.send("%RETRY%g", b"x", again, reconsumeTimes=1, maxReconsumeTimes=2)
    assert sent.code == ResponseCode.SUCCESS
    waiting = await stored(node, "SCHEDULE_TOPIC_XXXX", 3)
    assert waiting.properties["RETRY_TOPIC"] == "T"
    assert waiting.reconsume_times == 1
    await remoting.send("%RETRY%g", b"x", again, reconsumeTimes=2, maxReconsumeTimes=2)
    dead = await stored(node, "%DLQ%g")
    assert properties_of(dead) == {
        "RETRY_TOPIC": "T",
        "DLQ_ORIGIN_TOPIC": "T",
        "TRAN_MSG": "true",
    }
    forged = "DLQ_ORIGIN_TOPIC\x01Other\x02DLQ_ORIGIN_MESSAGE_ID\x01ID2\x02UNIQ_KEY\x01ID1"
    await remoting.send("%RETRY%g", b"x", forged, reconsumeTimes=2, maxReconsumeTimes=2)
    assert properties_of(await stored(node, "%DLQ%g", offset=1)) == {
        "UNIQ_KEY": "ID1",
        "DLQ_ORIGIN_TOPIC": "%RETRY%g",
        "DLQ_ORIGIN_MESSAGE_ID": "ID1",
    }
    await remoting.send("%DLQ%g", b"x", forged)
    assert properties_of(await stored(node, "%DLQ%g", offset=2)) == {"UNIQ_KEY": "ID1"}


async def test_only_what_is_stored_counts_as_given_up(node: Node, remoting: Remoting) -> None:
    given_up = broker_of(node).core.traffic.dead.table
    late: dict[str, Any] = {"reconsumeTimes": 16, "body": b"four"}
    refused = await remoting.send("%RETRY%nobody", properties="RETRY_TOPIC\x01T", **late)
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert given_up == {}
    await remoting.beat("c", "g", "T")
    for origin in ("T", "NoSuchTopic"):
        await remoting.send("%RETRY%g", properties=f"RETRY_TOPIC\x01{origin}", **late)
    assert {key: flow.body_bytes for key, flow in given_up.items()} == {
        ("T", "g"): 4,
        ("%RETRY%g", "g"): 4,
    }


async def test_what_is_over_a_quota_is_not_stored(node: Node, remoting: Remoting) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.put_quota("Topic:T", messages_in=1, burst_ms=1)
    codes = [(await remoting.send("T", b"x")).code for _ in range(30)]
    assert ResponseCode.SYSTEM_BUSY in codes
    assert codes[0] == ResponseCode.SUCCESS


async def test_a_slave_says_that_it_is_none_to_send_to(start_node: StartNode) -> None:
    node = await start_node(
        remoting={"listen": free_endpoint()},
        ha={"master": "127.0.0.1:1"},
        broker_role="SLAVE",
    )
    async with connected(node) as client:
        refused = await client.send("T", b"x")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in refused.remark


async def test_sends_of_one_connection_are_answered_by_their_numbers(remoting: Remoting) -> None:
    sends = [remoting.send("T", b"%d" % k, queue_id=k % 4) for k in range(64)]
    found = await asyncio.gather(*sends)
    assert {one.code for one in found} == {ResponseCode.SUCCESS}
    places = {(one.fields["queueId"], one.fields["queueOffset"]) for one in found}
    assert len(places) == 64


def together(remoting: Remoting, *sends: dict[str, Any]) -> "list[asyncio.Future[Command]]":
    """Sends in one piece; their answers."""
    pieces: list[bytes] = []
    with patch.object(remoting, "write_command", lambda one: pieces.append(one.frame())):
        found = [remoting.begin_send(**{"topic": "T", "body": b"x", **one}) for one in sends]
    remoting.write(b"".join(pieces))
    return found


async def test_messages_that_come_at_once_are_stored_at_once_and_answered_each(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_protocol, "TURN_SECONDS", inf)  # however slow the machine is
    log = broker_of(node).log
    stored_at_once: list[int] = []
    put_singles = log.put_singles

    def noted(singles: Singles) -> tuple[SinglesResult, Outcome | None]:
        stored_at_once.append(singles.columns.count)
        return put_singles(singles)

    monkeypatch.setattr(log, "put_singles", noted)
    sends = [
        {"body": b"%d" % k, "queue_id": k % 3, "properties": f"K\x01{k}\x02", "flag": k}
        for k in range(20)
    ]
    found = await asyncio.gather(*together(remoting, *sends))
    assert stored_at_once == [20]
    assert {one.code for one in found} == {ResponseCode.SUCCESS}
    for k, answer in enumerate(found):
        assert (answer.fields["queueId"], answer.fields["queueOffset"]) == (str(k % 3), str(k // 3))
        record = await stored(node, "T", k % 3, k // 3)
        assert (record.body, record.flag, properties_of(record)) == (b"%d" % k, k, {"K": str(k)})
        assert answer.fields["msgId"][16:] == record.message_id[16:]
    assert broker_of(node).core.traffic.received.table["T", "normal"].messages == 20


def sends_of_the_java_client(count: int) -> Iterator[Command]:
    """Sends whose headers are read by position, with all that may be wrong with them."""
    dice = Random(7)
    for number in range(count):
        pairs = [
            f"{dice.choice(NAMES)}{dice.choice(SEPARATORS)}{dice.choice(VALUES)}"
            for _ in range(dice.randrange(4))
        ]
        values = {
            "producerGroup": "p",
            "topic": dice.choice(
                ("T", "T", "T", "T", "T", "U", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "b@d")
            ),
            "defaultTopic": dice.choice(("TBW102", "other")),
            "defaultTopicQueueNums": "4",
            "queueId": str(dice.choice((0, 0, 1, 1, 3, 4, 99))),
            "sysFlag": dice.choice(("0", "0", "0", "1", "1", "128", "x")),
            "bornTimestamp": str(dice.choice((0, 1_700_000_000_000, TIME_MS_MAX, TIME_MS_MAX + 1))),
            "flag": dice.choice(("0", "7", "-1")),
            "properties": "\x02".join(pairs) + dice.choice(("", "\x02", "\x02\x02")),
            "reconsumeTimes": dice.choice(("0", "0", "0", "1", "-1", "2000000000")),
            "unitMode": "false",
            "batch": dice.choice(("false",) * 6 + ("true",)),
        }
        fields = {LETTERS[name]: value for name, value in values.items()}
        header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA"}
        header |= {"opaque": number, "serializeTypeCurrentRPC": "JSON", "version": 401}
        text = json.dumps(header, separators=(",", ":")).encode()
        found = read_sent(Serialization.JSON, text, b"body %d" % number)
        assert found.template is not None
        yield found


def shown(begun: Served) -> bytes:
    """What a client gets, but for the place of its message."""
    if isinstance(begun, bytes):
        reader = FrameReader(FRAME_BYTES_MAX)
        reader.feed(begun)
        frame, begun = begun, known(reader.next())
        assert begun.frame() == frame, "as any answer is written"
    if isinstance(begun, Exception):
        return repr(begun).encode()
    assert isinstance(begun, Command), "nothing waits"
    places = {name: "" for name in ("msgId", "queueOffset") if name in begun.fields}
    return replace(begun, fields={**begun.fields, **places}).frame()


async def test_what_is_found_out_once_for_many_sends_is_true_of_each(node: Node) -> None:
    broker_of(node).metadata.auto_create("U", 2)
    service = known(node._remoting_service)
    sending, quick = service._sending, 0
    peer = cast(Peer, SimpleNamespace(host=LOCAL_HOST, name="p", is_encrypted=False))
    for request in sends_of_the_java_client(3000):
        config = sending._config_of(known(request.template))
        single = None if config is None else sending._as_others(request, config)
        alone = replace(request, template=None)
        if single is not None:
            quick += 1
            told = single.told._replace(request=alone)
            assert tried(sending._read, peer, alone) == single._replace(told=told)
        (found,), (expected,) = (service.serve_each(peer, [one]) for one in (request, alone))
        assert shown(found) == shown(expected)
        for one in (request, alone):
            assert shown(service.serve_each(peer, [one, one])[1]) == shown(expected)
    assert 200 < quick < 2800


async def test_what_may_not_be_stored_keeps_no_others_out(node: Node, remoting: Remoting) -> None:
    """Each is answered as if it had come alone, and they are stored in their order."""
    broker_of(node).metadata.auto_create("Other", 4)
    sends: list[dict[str, Any]] = [
        {"body": b"a"},
        {"properties": "K"},
        {"body": b"b"},
        {"topic": "Unknown"},
        {"topic": "Other", "body": b"o"},
        {"body": b"c"},
        {"body": b"later", "properties": "DELAY\x013"},
        {"bornTimestamp": "x"},
        {"body": b"d"},
    ]
    found = await asyncio.gather(*together(remoting, *sends))
    good = ResponseCode.SUCCESS
    illegal, unknown = ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST
    wrong = ResponseCode.SYSTEM_ERROR
    codes = [one.code for one in found]
    assert codes == [good, illegal, good, unknown, good, good, good, wrong, good]
    for offset, body in enumerate((b"a", b"b", b"c", b"d")):
        assert (await stored(node, "T", 0, offset)).body == body
    assert (await stored(node, "Other")).body == b"o"
    assert (await stored(node, "SCHEDULE_TOPIC_XXXX", 2)).body == b"later"


async def test_what_waits_for_its_answer_holds_no_body(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, safe = broker_of(node).log, asyncio.get_running_loop().create_future()
    sends = broker_of(node).sends
    put, stored_now = sends.put, asyncio.Event()
    monkeypatch.setattr(log, "put_singles", lambda _: (SinglesResult(NOT_NOW), None))
    places: list[int] = []

    def unconfirmed(placed: Placed) -> tuple[PutResult, Outcome | None]:
        places.append(put(placed)[0].queue_offset)
        if len(places) == 64:
            stored_now.set()
        return PutResult(PutMessageStatus.PUT_OK, queue_offset=QueueOffset(0)), safe

    monkeypatch.setattr(sends, "put", unconfirmed)
    tracemalloc.start()
    body = bytes(60_000)
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(remoting.send("T", body)) for _ in range(64)]
        await stored_now.wait()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        safe.set_result(PutMessageStatus.PUT_OK)
    assert {one.result().code for one in waiting} == {ResponseCode.SUCCESS}
    assert held < 64 * 60_000 // 2


async def test_durable_sends_wait_for_the_disk(start_node: StartNode) -> None:
    node = await start_node(
        remoting={"listen": free_endpoint()},
        limits={"auto_create_topic": True},
        flush_disk_type="SYNC_FLUSH",
    )
    async with connected(node) as client:
        assert (await client.send("T", b"x")).code == ResponseCode.SUCCESS
        assert broker_of(node).store.flushed_offset > 0
        found = await asyncio.gather(*together(client, *({"body": b"%d" % k} for k in range(8))))
        assert [one.fields["queueOffset"] for one in found] == [str(k) for k in range(1, 9)]
        assert broker_of(node).store.flushed_offset == broker_of(node).store.max_offset


def test_the_letters_cover_all_names() -> None:
    assert len(LETTERS) == 14
