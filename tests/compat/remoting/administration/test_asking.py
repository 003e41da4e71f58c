"""What tools ask of clients goes to them, and their answers come back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from duolog_server.compat.remoting.codec.bodies import JSON_BYTES_MAX
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fastjson import dumps, loads
from duolog_server.serve.server import Node
from tests.compat.remoting.administration.support import queue, refused, told
from tests.compat.remoting.client import Remoting, connected, records
from tests.node.replicas import broker_of

ASKED_MAX = 64
INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
ASKED: dict[str, Any] = {"consumerGroup": "g", "clientId": "c1"}


@pytest.fixture
async def member(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node) as made:
        await made.beat("c1", "g", "T")
        yield made


async def asked(member: Remoting, code: int) -> Command:
    """The next request of such a code."""
    while (command := await member.told.get()).code != code:
        pass
    return command


async def test_the_state_of_a_client(remoting: Remoting, member: Remoting) -> None:
    answer = remoting.begin(INFO, {**ASKED, "jstackEnable": "true"})
    request = await asked(member, INFO)
    assert not request.is_oneway
    assert request.fields["jstackEnable"] == "true"
    member.reply(request, body=b'{"properties":{}}')
    assert (await answer).body == b'{"properties":{}}'
    again = remoting.begin(INFO, dict(ASKED))
    member.reply(await asked(member, INFO), 1, remark="it is starting")
    assert ((await again).code, (await again).remark) == (1, "it is starting")
    odd = remoting.begin(INFO, dict(ASKED))
    member.reply(await asked(member, INFO), 1 << 20)
    assert (await odd).code == ResponseCode.SYSTEM_ERROR


async def test_a_message_is_processed_by_a_client(remoting: Remoting, member: Remoting) -> None:
    sent = await remoting.send("T", b"again")
    answer = remoting.begin(DIRECTLY, {**ASKED, "msgId": sent.fields["msgId"]})
    request = await asked(member, DIRECTLY)
    assert [one.body for one in records(request.body)] == [b"again"]
    assert request.fields["brokerName"] == "broker-a"
    member.reply(request, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert (await answer).body == b'{"consumeResult":"CR_SUCCESS"}'
    for wrong in ("00" * 16, "xyz"):
        assert (await refused(remoting, DIRECTLY, **ASKED, msgId=wrong))[0] != 0


async def test_the_offsets_that_clients_have_reached(
    node: Node, remoting: Remoting, member: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    answer = remoting.begin(STATUS, {"topic": "T", "group": "g"})
    request = await asked(member, code)
    body = dumps({"messageQueueTable": {queue(0): 7, queue(1): "x"}, "consumerTable": {}})
    member.reply(request, body=body)
    assert loads((await answer).body) == {"consumerTable": {"c1": {queue(0): 7}}}
    for number, wrong in ((0, b"{"), (1, body), (0, body.ljust(JSON_BYTES_MAX + 1))):
        bad = remoting.begin(STATUS, {"topic": "T", "group": "g"})
        member.reply(await asked(member, code), number, wrong)
        assert loads((await bad).body) == {"consumerTable": {}}
    monkeypatch.setattr(
        "duolog_server.compat.remoting.administration.consumers.asking.STATUS_SECONDS", 0.05
    )
    silent = await told(remoting, STATUS, topic="T", group="g", clientAddr="c1")
    assert silent == {"consumerTable": {}}
    nobody = await refused(remoting, STATUS, topic="T", group="g", clientAddr="c2")
    assert nobody[0] == ResponseCode.SYSTEM_ERROR
    assert broker_of(node).untaken.held_bytes == 0


async def test_a_client_that_does_not_answer_is_told_of(
    node: Node, remoting: Remoting, member: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "duolog_server.compat.remoting.administration.consumers.asking.ASK_SECONDS", 0.05
    )
    code, remark = await refused(remoting, INFO, **ASKED)
    assert code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "did not answer within 0.05 s" in remark
    offline = await refused(remoting, INFO, consumerGroup="g", clientId="c2")
    assert offline == (ResponseCode.SYSTEM_ERROR, "The Consumer <g> <c2> not online")
    late = await asked(member, INFO)
    member.reply(late)  # nobody waits for it
    assert (await remoting.send("T", b"after")).code == 0


async def test_a_client_that_goes_ends_what_it_was_asked(
    remoting: Remoting, member: Remoting
) -> None:
    answer = remoting.begin(INFO, dict(ASKED))
    await asked(member, INFO)
    member.close()
    assert (await answer).code == ResponseCode.SYSTEM_BUSY
    assert "has ended" in (await answer).remark


async def test_there_is_a_limit_to_what_a_client_is_asked(
    remoting: Remoting, member: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.compat.remoting.answers.WAITING_MAX", ASKED_MAX)
    waiting = [remoting.begin(INFO, dict(ASKED)) for _ in range(ASKED_MAX)]
    requests = [await asked(member, INFO) for _ in waiting]
    assert len({one.opaque for one in requests}) == ASKED_MAX
    code, remark = await refused(remoting, INFO, **ASKED)
    assert code == ResponseCode.SYSTEM_BUSY
    assert str(ASKED_MAX) in remark
    for request in requests:
        member.reply(request)
    assert {one.code for one in await asyncio.gather(*waiting)} == {0}
