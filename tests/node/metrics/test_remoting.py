"""The figures of the remoting port: its connections, and how long requests took."""

import asyncio
import gc
import sys
import warnings
import weakref
from collections.abc import Coroutine

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.port.dispatcher import tried
from duolog_server.store.status import PutMessageStatus
from tests.compat.remoting.client import connected
from tests.compat.remoting.test_members import Client
from tests.node.metrics.test_figures import METRICS, of
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

CALLS, RPCS = "duolog_call_seconds_count", "rocketmq_rpc_latency_count"


async def test_requests_are_timed_by_code_and_answer(start_node: StartNode) -> None:
    node = await start_node(metrics=METRICS, remoting={"listen": free_endpoint()})
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
    async with connected(node) as remoting:
        await remoting.send("T", b"x")
        await remoting.send("Unknown", b"x")
        await remoting.beat("c", "g", "T")
        await remoting.pull("g", "T", 0)
        await remoting.ask(9999)
        found = await of(node)
        assert found.value("duolog_remoting_connections") == 1
    wanted = {"protocol_type": "remoting", "result": "success"}
    sends = {**wanted, "request_code": "send_message_v2", "is_long_polling": "false"}
    assert found.value(RPCS, response_code="success", **sends) == 1
    assert found.value(RPCS, response_code="topic_not_exist", **sends) == 1
    pulls = {**wanted, "request_code": "pull_message", "is_long_polling": "true"}
    assert found.value(RPCS, response_code="success", **pulls) == 1
    assert found.value("duolog_remoting_refused_connections_total") == 0
    assert found.value("duolog_remoting_buffered_bytes") == 0
    # A tool and a client of one group may be one program, which asks itself as it likes.
    code, fields = RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"}
    async with connected(node) as remoting, connected(node) as member:
        await member.beat("c", "g", "T")
        for chosen in (0, 1, 5000, 5001, 5002):
            answer = remoting.begin(code, dict(fields))
            while (asked := await member.asked()).code != code:
                pass
            member.reply(asked, chosen)
            assert (await answer).code == chosen
        found = await of(node)
    told = found.rows(RPCS, request_code=code.name.lower())
    assert {dict(labels)["response_code"]: count for (_, labels), count in told.items()} == {
        "success": 1,
        "system_error": 1,
        "other": 3,
    }
    assert node._remoting_service is not None
    asked = Command(RequestCode.GET_MAX_OFFSET, 1, {"topic": "T", "queueId": "0"})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        begun = node._remoting_service.serve(Client("gone"), asked)
        assert isinstance(begun, Coroutine)
        begun.close()
        del begun
    assert [str(one.message) for one in warned] == []
    # The frames of an error hold the request with its body, up to 16 MiB.
    gc.disable()
    try:
        asked = Command(RequestCode.SEND_MESSAGE_V2, 1)
        refused = tried(node._remoting_service.serve, Client("one"), asked)
        assert isinstance(refused, Exception)
        held = weakref.ref(refused)
        del refused
        assert held() is None
    finally:
        gc.enable()


async def test_what_waits_for_its_answer_holds_no_body(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(metrics=METRICS, remoting={"listen": free_endpoint()})
    assert node._remoting_service is not None
    broker_of(node).metadata.auto_create("T", 1)
    safe = asyncio.get_running_loop().create_future()
    sends = broker_of(node).sends
    put = sends.put
    monkeypatch.setattr(sends, "put", lambda placed: (put(placed)[0], safe))
    fields = {
        "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    }  # fmt: skip
    body = bytes(1000)
    alone = sys.getrefcount(body)
    asked = Command(RequestCode.SEND_MESSAGE_V2, 1, fields, body)
    begun = node._remoting_service.serve(Client("one"), asked)
    assert not isinstance(begun, Command)
    del asked
    assert sys.getrefcount(body) == alone
    safe.set_result(PutMessageStatus.PUT_OK)
    assert (await begun).code == ResponseCode.SUCCESS


async def test_methods_that_tools_call_are_timed_however_they_end(start_node: StartNode) -> None:
    node = await start_node(metrics=METRICS, remoting={"listen": free_endpoint()})
    async with connected(node) as remoting:
        group = {"consumerGroup": "g"}
        refused = await remoting.ask(RequestCode.GET_CONSUME_STATS, group)
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await remoting.beat("c", "g", "T")
        assert (await remoting.ask(RequestCode.GET_CONSUME_STATS, group)).code == 0
        found = await of(node)
    for code in ("NOT_FOUND", "OK"):
        assert found.value(CALLS, method="Admin/DescribeGroup", code=code) == 1


async def test_a_node_without_the_port_has_no_such_figures(start_node: StartNode) -> None:
    found = await of(await start_node(metrics=METRICS))
    assert found.rows("duolog_remoting_connections") == {}


async def test_name_servers_are_counted_where_there_are_any(start_node: StartNode) -> None:
    section = {"listen": free_endpoint(), "namesrv_addr": [free_endpoint(), free_endpoint()]}
    found = await of(await start_node(metrics=METRICS, remoting=section))
    assert found.value("duolog_name_servers") == 2
    assert found.value("duolog_name_servers_lost") == 2
