"""What a user tries with the places, names and connections of others, and with signatures."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command, Serialization
from duolog_server.compat.remoting.codec.signatures import ACCESS_KEY, SIGNATURE, signed
from duolog_server.compat.remoting.producing.transactions import NO_SUCH_HALF
from duolog_server.node.deferred.transactionservice import Check
from duolog_server.node.identity.access.rules import NO_SUCH_ID
from duolog_server.serve.server import Node
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import PASSWORD, Users, with_users
from tests.compat.remoting.client import Remoting, connected, records
from tests.compat.remoting.guarding.asked import COMMIT, HALF, TABLE, Places, ask, places, signs
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

DENIED = ResponseCode.NO_PERMISSION
OF_T = ("Pub,Sub Topic:T", "Sub Group:g")
OF_U = ("Pub,Sub Topic:U", "Sub Group:h")


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(
        access=with_users(tmp_path),
        remoting={"listen": free_endpoint()},
        transactions={"timeout_ms": 100, "check_interval_ms": 100, "check_max": 1000},
    )
    await make_topics(made, "T", "U")
    users = Users(made)
    await users.new("root", super=True)
    await users.new("alice", *OF_T)
    await users.new("bob", *OF_U)
    return made


@pytest.fixture
async def users(node: Node) -> Users:
    return Users(node)


@pytest.fixture
async def alice(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node, sign=signs("alice")) as made:
        yield made


@pytest.fixture
async def bob(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node, sign=signs("bob")) as made:
        yield made


def count(node: Node, topic: str) -> int:
    """Messages that a topic has."""
    return broker_of(node).store.next_offset(topic, 0)


# -- messages of others ------------------------------------------------------------------------


async def test_a_message_of_others_is_not_told_from_none(
    node: Node, alice: Remoting, bob: Remoting
) -> None:
    theirs = await places(node, alice)
    own = await places(node, bob, "U", "h")
    end = broker_of(node).store.max_offset
    view = TABLE[RequestCode.VIEW_MESSAGE_BY_ID].ask
    back = TABLE[RequestCode.CONSUMER_SEND_MSG_BACK].ask
    for at in (theirs.message, theirs.message + 1, 0, 7, end, end + 100, 1 << 40, -1):
        for made in (view, back):
            found = await ask(bob, made(replace(own, message=at)))
            assert (found.code, found.remark) == (ResponseCode.QUERY_NOT_FOUND, NO_SUCH_ID), at
    assert count(node, "%RETRY%h") == 0, "nothing was copied to a group of bob's"
    (record,) = records((await ask(bob, view(own))).body)
    assert record.body == b"secret"
    assert (await ask(bob, back(own))).code == 0


async def test_a_half_message_of_others_is_not_told_from_none(
    node: Node, alice: Remoting, bob: Remoting
) -> None:
    theirs = await places(node, alice)
    end = TABLE[RequestCode.END_TRANSACTION].ask
    for half in (theirs.half, theirs.half + 1, 999, -1):
        command = end(replace(theirs, half=half))
        for more in ({}, {"msgId": "other"}, {"producerGroup": "q"}, {"commitOrRollback": COMMIT}):
            fields = {**command.fields, **more}
            found = await bob.ask(command.code, fields)
            assert (found.code, found.remark) == (ResponseCode.QUERY_NOT_FOUND, NO_SUCH_HALF)
    fields = {**end(theirs).fields, "commitOrRollback": COMMIT}
    assert (await alice.ask(RequestCode.END_TRANSACTION, fields)).code == 0
    assert count(node, "T") == 2


async def test_others_are_not_told_from_names_that_nobody_has(
    alice: Remoting, bob: Remoting
) -> None:
    await alice.beat("c", "g", "T")
    for code, row in TABLE.items():
        if row.finds or code == RequestCode.GET_BROKER_CLUSTER_INFO:
            continue
        answers = []
        for topic, group in (("T", "g"), ("None", "none")):
            found = await ask(bob, row.ask(Places(topic, group)))
            remark = found.remark.replace(f"Topic:{topic} ", "").replace(f"Group:{group} ", "")
            answers.append((found.code, found.fields, found.body, remark))
        assert answers[0] == answers[1], code
        assert answers[0][0] == DENIED


async def test_the_groups_of_others_are_not_listed(
    users: Users, alice: Remoting, bob: Remoting
) -> None:
    await users.may("bob", *OF_U, "Pub,Sub,Get Topic:T")
    await alice.beat("c", "g", "T")
    await bob.beat("d", "h", "T")
    answer = await bob.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert json.loads(answer.body) == {"groupList": ["h"]}
    entries = {"topic": "T", "queueId": 0, "index": 0, "count": 1}
    await alice.send("T", b"x")
    assert (await bob.ask(RequestCode.QUERY_CONSUME_QUEUE, entries)).code == 0
    for code, field in (
        (RequestCode.QUERY_CONSUME_QUEUE, "consumerGroup"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, "group"),
    ):
        assert (await bob.ask(code, {**entries, field: "g"})).code == DENIED
        assert (await bob.ask(code, {**entries, field: "h"})).code == 0


async def test_a_dead_letter_does_not_tell_whether_a_topic_exists(
    node: Node, alice: Remoting
) -> None:
    await alice.beat("c", "g", "T")
    for origin in ("U", "None", "T"):
        text = f"RETRY_TOPIC\x01{origin}"
        sent = await alice.send("%RETRY%g", b"x", text, reconsumeTimes=99)
        assert sent.code == 0
    await broker_of(node).log.caught_up()
    store = broker_of(node).store
    found = [store.record_at("%DLQ%g", 0, offset) for offset in range(3)]  # type: ignore[arg-type]
    named = [one.properties["DLQ_ORIGIN_TOPIC"] for one in found if one is not None]
    assert named == ["%RETRY%g", "%RETRY%g", "T"]


# -- connections -------------------------------------------------------------------------------


async def test_a_heartbeat_that_nobody_signed_makes_no_member(alice: Remoting) -> None:
    sign, alice.sign = alice.sign, None
    assert (await alice.beat("c", "g", "T")).code == DENIED
    alice.sign = sign
    found = await alice.pull("g", "T", 0)
    assert found.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert (await alice.ask(38, {"consumerGroup": "g"})).code == ResponseCode.SYSTEM_ERROR


async def test_two_users_on_one_connection_have_their_own_rights(
    node: Node, alice: Remoting
) -> None:
    await alice.send("T", b"of T")
    await alice.beat("c", "g", "T")
    alice.sign = signs("bob")
    assert (await alice.pull("g", "T", 0)).code == DENIED
    assert (await alice.pull("h", "T", 0)).code == DENIED
    assert (await alice.send("T", b"x")).code == DENIED
    assert (await alice.send("U", b"of U")).code == 0
    assert (await alice.pull("h", "U", 0, sysFlag=4, subscription="*")).code == 0
    alice.sign = None
    assert (await alice.pull("g", "T", 0)).code == DENIED
    alice.sign = signs("alice")
    (record,) = records((await alice.pull("g", "T", 0)).body)
    assert record.body == b"of T"
    connections = broker_of(node).core.throttle.connections
    assert [connections.of_user(name) for name in ("alice", "bob", "")] == [1, 1, 0]


async def test_users_of_connections_that_end_are_not_counted(node: Node) -> None:
    connections = broker_of(node).core.throttle.connections
    async with connected(node, sign=signs("bob")) as bob:
        await bob.send("U", b"x")
        assert connections.of_user("bob") == 1
    await until(lambda: connections.of_user("bob") == 0)
    assert connections.validate() == ""


async def test_a_disabled_user_is_unknown_on_its_open_connection(
    users: Users, bob: Remoting
) -> None:
    assert (await bob.send("U", b"x")).code == 0
    await users.put("bob", disabled=True)
    assert (await bob.send("U", b"x")).code == DENIED
    await users.put("bob", password="another", signs=True, disabled=False)
    assert (await bob.send("U", b"x")).code == DENIED
    bob.sign = signs("bob", "another")
    assert (await bob.send("U", b"x")).code == 0


async def test_a_held_pull_looks_again_before_it_delivers(
    node: Node, users: Users, alice: Remoting, bob: Remoting
) -> None:
    await alice.beat("c", "g", "T")
    pull = alice.pull("g", "T", 0, wait_ms=20_000)
    await until(lambda: broker_of(node).waiting_calls.count == 1)
    await users.may("alice", "Pub Topic:T", "Sub Group:g")
    assert (await alice.send("T", b"x")).code == 0
    async with asyncio.timeout(60):
        found = await pull
    assert (found.code, found.body, found.fields) == (DENIED, b"", {})


async def test_what_tools_ask_goes_to_clients_whose_users_may_read(
    node: Node, users: Users, alice: Remoting
) -> None:
    await users.new("carol", *OF_T, "Get Group:g")
    there = await places(node, alice)
    await alice.beat("none", "g", "T")
    directly = TABLE[RequestCode.CONSUME_MESSAGE_DIRECTLY].ask(there)
    running = TABLE[RequestCode.GET_CONSUMER_RUNNING_INFO].ask(there)
    status = TABLE[RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS].ask(there)
    async with connected(node, sign=signs("carol")) as carol:
        answer = asyncio.ensure_future(ask(carol, directly))
        while (asked := await alice.told.get()).code != directly.code:
            pass
        alice.reply(asked, body=b"{}")
        assert (await answer).body == b"{}"
        for rights in (("Sub Group:g",), ("Sub Topic:T",)):
            await users.may("alice", *rights)
            found = await ask(carol, directly)
            assert "not online" in found.remark
        assert "not online" in (await ask(carol, running)).remark
        assert "No Any Consumer online" in (await ask(carol, status)).remark
    told = [alice.told.get_nowait().code for _ in range(alice.told.qsize())]
    assert not {directly.code, running.code} & set(told)


async def test_clients_are_reset_as_long_as_their_users_may_consume(
    node: Node, users: Users, alice: Remoting
) -> None:
    reset = {"topic": "T", "group": "g", "timestamp": -1, "isForce": "true"}
    await alice.beat("c", "g", "T")
    async with connected(node, sign=signs("root")) as root:
        for rights, count in ((OF_T, 1), (("Pub,Sub Topic:T",), 0)):
            await users.may("alice", *rights)
            assert (await root.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)).code == 0
            assert (await alice.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0
            told = [alice.told.get_nowait().code for _ in range(alice.told.qsize())]
            assert told.count(RequestCode.RESET_CONSUMER_CLIENT_OFFSET) == count


async def test_a_right_to_create_a_topic_is_none_to_alter_or_delete_it(
    node: Node, users: Users
) -> None:
    await users.new("maker", "Create Topic:new")
    fields = {"topic": "new", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    async with connected(node, sign=signs("maker")) as maker:
        assert (await maker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
        assert (await maker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == DENIED
        assert (await maker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields)).code == DENIED
    assert "new" in broker_of(node).metadata.topics


async def test_a_connection_that_ends_at_once_leaves_nothing_behind(node: Node) -> None:
    for _ in range(20):
        async with connected(node, sign=signs("alice")) as one:
            one.pull("g", "T", 0, wait_ms=20_000, sysFlag=6, subscription="*")
    await until(lambda: not broker_of(node).waiting_calls.count)
    assert node.remoting is not None
    await until(lambda: node.remoting is not None and not node.remoting.connections)


# -- what the node tells clients ---------------------------------------------------------------


async def test_clients_are_told_of_members_as_long_as_they_may_be_one(
    node: Node, users: Users, alice: Remoting
) -> None:
    await users.new("carol", *OF_T)
    assert (await alice.beat("a", "g", "T")).code == 0
    assert (await alice.told.get()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    service = node._remoting_service
    assert service is not None
    async with connected(node, sign=signs("carol")) as carol:
        await carol.beat("c", "g", "T")
        assert (await alice.told.get()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        await users.may("alice", "Pub,Sub Topic:T")
        await carol.beat("c", "g", "T", "red")
        assert (await carol.told.get()).fields == {"consumerGroup": "g"}
        service._clients.expire()
        assert service.members.ids("g") == ["c"]
        assert (await carol.ask(38, {"consumerGroup": "g"})).code == 0
    assert alice.told.empty()


async def test_decisions_are_asked_of_those_who_may_send_to_the_topic(
    node: Node, users: Users, alice: Remoting, bob: Remoting
) -> None:
    producers = {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}
    for client in (alice, bob):
        body = json.dumps(producers).encode()
        assert (await client.ask(RequestCode.HEART_BEAT, body=body)).code == 0
    assert (await alice.send("T", b"half", HALF)).code == 0
    for _ in range(3):
        async with asyncio.timeout(60):
            told = await alice.told.get()
        assert told.code == RequestCode.CHECK_TRANSACTION_STATE
        (found,) = records(told.body)
        assert (found.topic, found.body) == ("T", b"half")
    assert bob.told.empty()
    await users.may("alice", "Sub Topic:T")
    service = node._remoting_service
    assert service is not None
    (half,) = broker_of(node).transactions.pending()
    record = await broker_of(node).transactions.find(half.origin)
    assert record is not None
    while not alice.told.empty():
        alice.told.get_nowait()
    assert not await service._transactions._ask(Check("p", half.origin, record))


# -- signatures --------------------------------------------------------------------------------


def of_alice(**fields: Any) -> Command:
    """A send to topic T that alice signed, with fields changed afterwards."""
    command = replace(TABLE[RequestCode.SEND_MESSAGE_V2].ask(Places()), opaque=77)
    made = signed(command, "alice", PASSWORD.format("alice"))
    return replace(made, fields={**made.fields, **fields})


async def answer(client: Remoting, command: Command) -> Command:
    async with asyncio.timeout(60):
        return await client.begin_command(command)


@pytest.mark.parametrize(
    "changed",
    [
        {"b": "U"},
        {"zz": "more"},
        {ACCESS_KEY: "bob"},
        {ACCESS_KEY: ""},
        {ACCESS_KEY: "a" * 200_000},
        {ACCESS_KEY: "alice\x00"},
        {SIGNATURE: ""},
        {SIGNATURE: "A" * 200_000},
        {SIGNATURE: "é"},
        {"SecurityToken": "token"},
    ],
)
@pytest.mark.parametrize("form", Serialization)
async def test_a_request_that_was_changed_is_refused(
    node: Node, alice: Remoting, changed: dict[str, str], form: Serialization
) -> None:
    found = await answer(alice, replace(of_alice(**changed), serialization=form))
    assert found.code == DENIED
    assert len(found.remark) < 600
    assert PASSWORD.format("alice") not in found.remark
    found = await answer(alice, replace(of_alice(), body=b"other", serialization=form))
    assert found.code == DENIED
    assert count(node, "T") == 0
    assert (await answer(alice, replace(of_alice(), serialization=form))).code == 0


async def test_the_same_request_may_come_again(node: Node, alice: Remoting, bob: Remoting) -> None:
    """The protocol signs no time and no number: TLS keeps others from reading a request."""
    assert (await answer(alice, of_alice())).code == 0
    assert (await answer(bob, of_alice())).code == 0
    assert count(node, "T") == 2


@pytest.mark.parametrize("names", [("b", "topic"), ("topic", "b")])
async def test_a_topic_under_two_names_is_one_topic(
    node: Node, alice: Remoting, names: tuple[str, str]
) -> None:
    given: tuple[tuple[str, str], ...] = (("T", "U"), ("U", "T"))
    for topics in given:
        base = TABLE[RequestCode.SEND_MESSAGE_V2].ask(Places()).fields
        others = {name: text for name, text in base.items() if name != "b"}
        fields = {**others, **dict(zip(names, topics, strict=True))}
        found = await alice.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert found.code == (0 if topics[1] == "T" else DENIED)
    assert (count(node, "T"), count(node, "U")) == (1, 0)


async def test_a_field_that_is_there_twice_is_the_one_that_is_signed(
    node: Node, alice: Remoting
) -> None:
    for first, last, code in (("U", "T", 0), ("T", "U", DENIED)):
        command = of_alice()
        header = json.dumps({"code": 310, "opaque": 77, "extFields": dict(command.fields)})
        twice = header.replace('"b": "T"', f'"b": "{first}", "b": "{last}"').encode()
        size = 4 + len(twice) + len(command.body)
        alice._waiting[77] = future = asyncio.get_running_loop().create_future()
        words = size.to_bytes(4, "big") + len(twice).to_bytes(4, "big")
        alice.write(words + twice + command.body)
        async with asyncio.timeout(60):
            assert (await future).code == code
    assert (count(node, "T"), count(node, "U")) == (1, 0)


async def test_what_cannot_be_read_is_refused_before_it_is_served(alice: Remoting) -> None:
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ):
        for body in (b"", b"[]", b"\xff", b"[" * 50_000, b'{"consumerGroup":1}'):
            assert (await alice.ask(code, body=body)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("last", ["T0", "U"])
async def test_a_heartbeat_of_very_many_topics_is_looked_at_whole(
    node: Node, users: Users, alice: Remoting, last: str
) -> None:
    await users.may("alice", "Sub Topic:T*", "Sub Group:g")
    rows = [{"topic": f"T{number}", "subString": "*"} for number in range(400)]
    data = {"groupName": "g", "subscriptionDataSet": [*rows, {"topic": last, "subString": "*"}]}
    body = json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode()
    found = await alice.ask(RequestCode.HEART_BEAT, body=body)
    assert node._remoting_service is not None
    members = node._remoting_service.members.ids("g")
    assert (found.code, members) == ((DENIED, []) if last == "U" else (0, ["c"]))
