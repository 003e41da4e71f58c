"""Consumer groups as mqadmin and the dashboard make and describe them."""

import json
from typing import Any

import duolog
import pytest

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.serve.server import Node
from tests.compat.remoting.administration.support import refused, told
from tests.compat.remoting.client import Remoting
from tests.node.replicas import broker_of

PUT = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
CONFIG = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG


def body(**more: Any) -> bytes:
    return json.dumps({"groupName": "g", **more}).encode()


async def test_a_group_is_made_altered_and_deleted(node: Node, remoting: Remoting) -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000]}}
    await told(
        remoting, PUT, body(retryMaxTimes=3, consumeMessageOrderly=True, groupRetryPolicy=policy)
    )
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        found = await client.admin.group("g")
        assert (found.orderly, found.retry_times) == (True, 3)
    none = {"type": "CUSTOMIZED"}  # as RocketMQ 5's tools name their default
    more = body(consumeBroadcastEnable=False, retryQueueNums=2, groupRetryPolicy=none)
    await told(remoting, PUT, more)
    row = await told(remoting, CONFIG, group="g")
    assert (row["retryMaxTimes"], row["consumeMessageOrderly"]) == (3, True)
    assert (row["consumeBroadcastEnable"], row["retryQueueNums"]) == (False, 2)
    assert row["groupRetryPolicy"]["customizedRetryPolicy"]["next"] == [1000, 5000]
    for _ in range(2):
        await told(remoting, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g", removeOffset=True)
    gone = await refused(remoting, CONFIG, group="g")
    assert gone == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")


async def test_a_group_that_may_not_consume_pulls_nothing(remoting: Remoting) -> None:
    await remoting.beat("c", "g", "T")
    await remoting.send("T", b"one")
    await told(remoting, PUT, body(consumeEnable=False))
    assert (await remoting.pull("g", "T", 0)).code == ResponseCode.NO_PERMISSION
    await told(remoting, PUT, body(consumeEnable=True))
    assert (await remoting.pull("g", "T", 0)).code == 0


@pytest.mark.parametrize(
    "given",
    [
        b"", b"[]", b"{", b"{}", body(groupName=7), body(groupName="a b"), body(retryMaxTimes=-1),
        body(retryMaxTimes=5000), body(retryMaxTimes=True), body(consumeEnable="yes"),
        body(brokerId=1 << 40), body(consumeMessageOrderly=1),
        body(groupRetryPolicy={"type": "EXPONENTIAL"}), body(attributes={"+a": "b"}),
        body(groupRetryPolicy={"type": "CUSTOMIZED", "customizedRetryPolicy": {}}),
        body(groupRetryPolicy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [-1]}}),
        b" " * (2 << 20),
    ],
)  # fmt: skip
async def test_settings_that_are_none_are_refused(
    node: Node, remoting: Remoting, given: bytes
) -> None:
    code, remark = await refused(remoting, PUT, given)
    assert code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert remark
    assert not broker_of(node).metadata.has_group("g")


async def test_a_list_of_groups_is_made(node: Node, remoting: Remoting) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    rows = [{"groupName": "g", "retryMaxTimes": 1}, {"groupName": "h", "consumeEnable": False}]
    await told(remoting, code, json.dumps({"groupConfigList": rows}).encode())
    assert (await told(remoting, CONFIG, group="g"))["retryMaxTimes"] == 1
    assert (await told(remoting, CONFIG, group="h"))["consumeEnable"] is False
    half = [{"groupName": "i"}, {"groupName": "j", "brokerId": -1}]
    wrongs: tuple[Any, ...] = ([1], [{}], half, {}, "x")
    for wrong in wrongs:
        body = json.dumps({"groupConfigList": wrong}).encode()
        assert (await refused(remoting, code, body))[0] == ResponseCode.SYSTEM_ERROR
    too_long = await refused(remoting, code, b" " * (2 << 20))
    assert too_long[0] == ResponseCode.SYSTEM_ERROR
    assert not broker_of(node).metadata.has_group("i"), "a list is checked before anything is done"
