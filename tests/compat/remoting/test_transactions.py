"""Transactions over the remoting protocol: half messages, decisions, checks."""

import asyncio
import json
from collections.abc import AsyncIterator

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.port.connection import Connection
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.serve.server import Node
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import Record
from tests.compat.remoting.client import WAIT_SECONDS, Remoting, connected, records
from tests.known import known
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01ID1\x02K\x01v"


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node(
        remoting={"listen": free_endpoint()},
        transactions={"timeout_ms": 100, "check_interval_ms": 100, "check_max": 1000},
    )
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", 4)
    return made


@pytest.fixture
async def remoting(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node) as made:
        yield made


async def end(remoting: Remoting, half: Command, decision: int, **more: object) -> Command:
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": decision,
        "msgId": "ID1",
        **more,
    }
    return await remoting.ask(RequestCode.END_TRANSACTION, fields)


async def read(node: Node) -> Record | None:
    await broker_of(node).log.caught_up()
    return broker_of(node).store.record_at("T", 2, QueueOffset(0))


async def test_a_committed_message_is_delivered(node: Node, remoting: Remoting) -> None:
    half = await remoting.send("T", b"pay", HALF, 2)
    assert half.code == ResponseCode.SUCCESS
    assert half.fields["transactionId"] == "ID1"
    assert await read(node) is None
    assert (await end(remoting, half, COMMIT)).code == ResponseCode.SUCCESS
    found = known(await read(node))
    assert (found.body, found.properties["K"]) == (b"pay", "v")
    assert found.properties["TRAN_MSG"] == "true", "getTransactionId() of consumers is UNIQ_KEY"
    assert not found.properties.keys() & {"PGROUP", "REAL_TOPIC", "REAL_QID"}
    assert (await end(remoting, half, COMMIT)).code == ResponseCode.SUCCESS  # again
    assert (await end(remoting, half, ROLLBACK)).code != ResponseCode.SUCCESS


async def test_a_message_rolled_back_is_not(node: Node, remoting: Remoting) -> None:
    half = await remoting.send("T", b"pay", HALF, 2)
    assert (await end(remoting, half, UNKNOWN)).code == ResponseCode.SUCCESS
    assert (await end(remoting, half, ROLLBACK)).code == ResponseCode.SUCCESS
    assert await read(node) is None
    assert (await end(remoting, half, COMMIT)).code != ResponseCode.SUCCESS
    assert await read(node) is None


@pytest.mark.parametrize(
    "wrong",
    [{"msgId": "ID2"}, {"producerGroup": "q"}, {"producerGroup": ""}, {"tranStateTableOffset": 99}],
)
async def test_a_decision_must_be_on_the_message_that_it_names(
    node: Node, remoting: Remoting, wrong: dict[str, object]
) -> None:
    half = await remoting.send("T", b"pay", HALF, 2)
    assert (await end(remoting, half, COMMIT, **wrong)).code != ResponseCode.SUCCESS
    assert await read(node) is None


async def beat(remoting: Remoting, *groups: str) -> None:
    data = [{"groupName": group} for group in groups]
    body = json.dumps({"clientID": "c", "producerDataSet": data}).encode()
    assert (await remoting.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS


async def test_a_producer_is_asked_for_its_decision(node: Node, remoting: Remoting) -> None:
    await beat(remoting, "p", "others")
    half = await remoting.send("T", b"pay", HALF, 2)
    async with asyncio.timeout(WAIT_SECONDS):
        check = await remoting.told.get()
    assert check.code == RequestCode.CHECK_TRANSACTION_STATE
    assert check.is_oneway
    assert check.fields["tranStateTableOffset"] == half.fields["queueOffset"]
    assert check.fields["msgId"] == check.fields["transactionId"] == "ID1"
    (record,) = records(check.body)
    assert (record.topic, record.queue_id, record.body) == ("T", 2, b"pay")
    assert record.properties["PGROUP"] == "p"
    assert record.physical_offset == int(check.fields["commitLogOffset"])
    answered = await end(remoting, half, COMMIT, fromTransactionCheck="true")
    assert answered.code == ResponseCode.SUCCESS
    found = known(await read(node))
    assert found.body == b"pay"


async def test_a_producer_that_left_is_not_asked(node: Node, remoting: Remoting) -> None:
    assert node.remoting is not None
    async with connected(node) as other:
        await beat(other, "p")
        await beat(remoting, "p")
        await beat(remoting, "others")  # no longer p
        fields = {"clientID": "c", "producerGroup": "others"}
        await remoting.ask(RequestCode.UNREGISTER_CLIENT, fields)
        await remoting.send("T", b"pay", HALF, 2)
        async with asyncio.timeout(WAIT_SECONDS):
            await other.told.get()
    assert remoting.told.empty()


async def test_a_producer_that_takes_nothing_keeps_no_other_from_being_asked(
    node: Node, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.remoting is not None
    async with connected(node) as other:
        await beat(remoting, "p")
        await beat(other, "p")
        told = Connection.tell
        ours = remoting.address()

        def deaf(connection: Connection, command: Command) -> bool:
            return connection.name != ours and told(connection, command)

        monkeypatch.setattr(Connection, "tell", deaf)
        askers = broker_of(node).transactions.askers
        (ask,) = [one for one in askers if "remoting" in one.__module__]
        answers: list[bool] = []

        async def asked(check: Check) -> bool:
            answers.append(await ask(check))
            return answers[-1]

        askers[askers.index(ask)] = asked
        for _ in range(3):
            await remoting.send("T", b"pay", HALF, 2)
            async with asyncio.timeout(WAIT_SECONDS):
                assert (await other.told.get()).code == RequestCode.CHECK_TRANSACTION_STATE
        assert set(answers) == {True}
