"""The broker's own state, as clusterList, brokerStatus and the exporter read it."""

import re
from typing import Any

import pytest

from duolog_server.compat.remoting.administration.brokers.runtime import distribution, readable
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.serve.server import Node
from tests.compat.remoting.administration.support import refused, told
from tests.compat.remoting.client import Remoting
from tests.known import known
from tests.node.replicas import broker_of

STATS = RequestCode.VIEW_BROKER_STATS_DATA
NUMBERS = (
    "bootTimestamp", "brokerVersion", "commitLogDiskRatio", "commitLogMaxOffset",
    "commitLogMinOffset", "consumeQueueDiskRatio", "dispatchBehindBytes", "dispatchMaxBuffer",
    "earliestMessageTimeStamp", "getMessageEntireTimeMax", "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow", "msgGetTotalYesterdayMorning", "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning", "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity", "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize", "putMessageAverageSize", "putMessageEntireTimeMax",
    "putMessageSizeTotal", "putMessageTimesTotal", "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize",
    "remainTransientStoreBufferNumbs", "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
)  # fmt: skip
RATES = ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps")


async def test_the_exporter_can_parse_the_state_of_a_broker(remoting: Remoting) -> None:
    await remoting.beat("c", "g", "T")
    for _ in range(3):
        await remoting.send("T", b"0123456789")
    await remoting.pull("g", "T", 0)
    table = (await told(remoting, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert all(isinstance(value, str) for value in table.values())
    for name in NUMBERS:
        assert float(table[name]) >= 0, name
    for name in RATES:
        assert [float(word) >= 0 for word in table[name].split()] == [True] * 3
    assert table["msgPutTotalTodayNow"] == table["putMessageTimesTotal"] == "3"
    assert (table["msgGetTotalTodayNow"], table["putMessageSizeTotal"]) == ("3", "30")
    assert int(table["earliestMessageTimeStamp"]) > 1_600_000_000_000
    assert float(table["putTps"].split()[0]) > 0
    assert re.fullmatch(
        r"Total : [0-9.]+ [KMGTPE]iB, Free : [0-9.]+ [KMGTPE]iB\.", table["commitLogDirCapacity"]
    )
    assert re.fullmatch(r"[0-9.]+ ([KMGTPE]i)?B", table["remainHowManyDataToFlush"])
    assert re.fullmatch(r"\[ 0 days, 0 hours, [0-9]+ minutes, [0-9]+ seconds \]", table["runtime"])
    for word in table["putMessageDistributeTime"].split(" "):
        assert re.fullmatch(r"\[[^ \]]+\]:[0-9]+", word)
    assert re.fullmatch("[0-9]+,[0-9]+", table["scheduleMessageOffset_1"])
    assert (table["brokerVersion"], table["brokerVersionDesc"]) == ("409", "V4_9_8")
    assert table["brokerActive"] == "true"


async def test_days_begin_at_midnight(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remoting.send("T", b"x")
    service = known(node._remoting_service)._administration
    for expected in (("0", "1"), ("1", "1")):
        wall = broker_of(node).times.wall_ms() + 86_400_000
        monkeypatch.setattr(broker_of(node).times, "wall_ms", lambda wall=wall: wall)
        service.tick()
        service.tick()
        table = (await told(remoting, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        found = table["msgPutTotalYesterdayMorning"], table["msgPutTotalTodayMorning"]
        assert found == expected


@pytest.mark.parametrize(
    ("name", "key", "total"),
    [
        ("TOPIC_PUT_NUMS", "T", 3),
        ("TOPIC_PUT_SIZE", "T", 30),
        ("GROUP_GET_NUMS", "T@g", 3),
        ("GROUP_GET_SIZE", "T@g", 30),
        ("BROKER_PUT_NUMS", "cluster", 3),
        ("BROKER_GET_NUMS", "cluster", 3),
    ],
)
async def test_statistics(node: Node, remoting: Remoting, name: str, key: str, total: int) -> None:
    await remoting.beat("c", "g", "T")
    for _ in range(3):
        await remoting.send("T", b"0123456789")
    await remoting.pull("g", "T", 0)
    key = node.config.node.cluster if key == "cluster" else key
    found = await told(remoting, STATS, statsName=name, statsKey=key)
    assert found["statsDay"]["sum"] == found["statsMinute"]["sum"] == total
    assert found["statsMinute"]["tps"] > 0
    for wrong in ((name, "U"), ("X", key)):
        code, remark = await refused(remoting, STATS, statsName=wrong[0], statsKey=wrong[1])
        assert code == ResponseCode.SYSTEM_ERROR
        assert "not exist" in remark


async def test_the_configuration_is_told_and_not_set(node: Node, remoting: Remoting) -> None:
    answer = await remoting.ask(RequestCode.GET_BROKER_CONFIG)
    rows = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert rows["brokerName"] == "broker-a"
    assert rows["brokerRole"] == rows["brokerRole"].upper() == "ASYNC_MASTER"
    assert rows["mappedFileSizeCommitLog"] == str(1 << 20)
    assert rows["autoCreateTopicEnable"] == "false"
    assert not [name for name in rows if "key" in name.lower() or "password" in name.lower()]
    assert answer.fields["version"].startswith("{")
    server = await remoting.ask(RequestCode.GET_NAMESRV_CONFIG)
    assert f"listenPort={known(node.remoting).port}" in server.body.decode()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (25, "edit the node's file"),
        (318, "edit the node's file"),
        (50, "duolog acl"),
        (100, "no key-value configuration"),
        (205, "duolog cluster failover"),
        (329, "store.delete_when"),
        (513, "static topics"),
        (902, "start and stop its process"),
        (1002, "the nodes elect their master"),
        (2003, "cold data"),
        (3001, "AUTH_CREATE_USER: users and rights"),
        (3010, "AUTH_LIST_ACL: users and rights"),
        (999, "request type 999 not supported"),
    ],
)
async def test_what_is_refused_says_why(remoting: Remoting, code: int, why: str) -> None:
    answer = await remoting.ask(code, {"brokerName": "b"}, b"rocketmqHome=/tmp\n")
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert why in answer.remark


async def test_there_are_no_key_values(remoting: Remoting) -> None:
    fields: dict[str, Any] = {"namespace": "ORDER_TOPIC_CONFIG"}
    one = await refused(remoting, RequestCode.GET_KV_CONFIG, **fields, key="T")
    every = await refused(remoting, RequestCode.GET_KVLIST_BY_NAMESPACE, **fields)
    assert one[0] == every[0] == ResponseCode.QUERY_NOT_FOUND
    await told(remoting, RequestCode.DELETE_KV_CONFIG, **fields, key="T")  # as of any topic


async def test_upkeep_needs_no_tool(remoting: Remoting) -> None:
    await told(remoting, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    await told(remoting, RequestCode.CLEAN_UNUSED_TOPIC)


async def test_the_checks_of_a_half_message_go_on(node: Node, remoting: Remoting) -> None:
    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    sent = await remoting.send("T", b"half", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U1")
    await broker_of(node).transactions.find(int(sent.fields["queueOffset"]))
    await told(remoting, code, msgId=sent.fields["msgId"])
    plain = await remoting.send("T", b"plain")
    refusal = await refused(remoting, code, msgId=plain.fields["msgId"])
    assert "does not wait for a decision" in refusal[1]
    assert (await refused(remoting, code, msgId="x"))[0] == ResponseCode.MESSAGE_ILLEGAL


# -- parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 40, "1.0 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert readable(size) == text


def test_waits_are_counted_in_rocketmqs_buckets() -> None:
    times = Histogram((0.0003, 0.01, 0.3, 10.0))
    for seconds in (0.0001, 0.005, 0.2, 0.25, 7.0, 60.0):
        times.observe(seconds)
    found = dict(word.rsplit(":", 1) for word in distribution(times).split(" "))
    assert len(found) == 13
    assert {name: n for name, n in found.items() if n != "0"} == {
        "[<=0ms]": "1", "[0~10ms]": "1", "[200~500ms]": "2", "[5~10s]": "1", "[10s~]": "1",
    }  # fmt: skip
