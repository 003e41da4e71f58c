"""Every request that a node serves, sent by everybody: who is let through."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.calling import Sign
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.rules import RULES
from duolog_server.serve.server import Node
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, with_users
from tests.compat.remoting.client import SENT_ONLY, Remoting, connected
from tests.compat.remoting.guarding.asked import (
    DELETES,
    TABLE,
    Places,
    ask,
    is_refused,
    places,
    signs,
)
from tests.nodefixtures import StartNode

DENIED = ResponseCode.NO_PERMISSION
UNFOUND = ResponseCode.QUERY_NOT_FOUND
ALL_BUT_T = ("Sub Group:g", "Sub Topic:U")
ALL = tuple(sorted({need for row in TABLE.values() for need in row.needs}))


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(access=with_users(tmp_path), remoting={"listen": free_endpoint()})
    await make_topics(made, "T", "U", "ns%T")
    users = Users(made)
    await users.new("root", super=True)
    await users.new("right", *ALL)
    await users.new("none")
    return made


@pytest.fixture
async def users(node: Node) -> Users:
    return Users(node)


@pytest.fixture
async def there(node: Node) -> Places:
    async with connected(node, sign=signs("root")) as root:
        return await places(node, root)


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Remoting]:
    """Of the user without rights."""
    async with connected(node, sign=signs("none")) as made:
        yield made


async def codes(
    node: Node, sign: Sign | None, there: Places, without: tuple[int, ...] = ()
) -> dict[int, int]:
    """How each request of a client ends."""
    async with connected(node, sign=sign) as made:
        return {
            code: (await ask(made, row.ask(there))).code
            for code, row in TABLE.items()
            if code not in without
        }


def test_each_request_that_is_served_has_a_rule_and_a_row_here(node: Node) -> None:
    assert node._remoting_service is not None
    assert RULES.keys() == node._remoting_service.codes == TABLE.keys()


@pytest.mark.usefixtures("many_failures")
async def test_each_request_answers_each_kind_of_caller(
    node: Node, users: Users, there: Places
) -> None:
    await users.new("gone", *ALL)
    await users.put("gone", disabled=True)
    await users.new("elsewhere", "All Topic:ns%*", "All Topic:U", "All Group:ns%*")
    await users.put("no-signer", password="the password of no-signer")
    unknown = dict.fromkeys(TABLE, DENIED)
    denied = {code: UNFOUND if row.finds else DENIED for code, row in TABLE.items()}
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.CONSUME_MESSAGE_DIRECTLY):
        denied[code] = DENIED  # not as this group
    callers: dict[str, tuple[Sign | None, dict[int, ResponseCode]]] = {
        "nobody": (None, unknown),
        "unknown": (signs("unknown"), unknown),
        "wrong key": (signs("right", "wrong"), unknown),
        "another's key": (signs("right", "the password of root"), unknown),
        "disabled": (signs("gone"), unknown),
        "does not sign": (signs("no-signer"), unknown),
        "no rights": (signs("none"), denied),
        "another topic and namespace": (signs("elsewhere"), denied),
    }
    for caller, (sign, wanted) in callers.items():
        assert {caller: await codes(node, sign, there)} == {caller: wanted}
    for caller in ("right", "root"):
        found = await codes(node, signs(caller), there, without=DELETES)
        refused = {code for code, end in found.items() if is_refused(code, end)}
        assert not refused, caller


@pytest.mark.parametrize("code", TABLE)
async def test_a_request_needs_all_of_its_rights(
    users: Users, client: Remoting, there: Places, code: int
) -> None:
    row = TABLE[code]
    for without in row.needs:
        await users.may("none", *(need for need in row.needs if need != without), "List Topic:U")
        assert (await ask(client, row.ask(there))).code in (DENIED, UNFOUND), without
    await users.may("none", *row.needs)
    assert not is_refused(code, (await ask(client, row.ask(there))).code)


async def test_a_message_of_a_retry_topic_is_acknowledged_with_the_right_to_its_origin(
    users: Users, client: Remoting
) -> None:
    retried = Places("%RETRY%g_T")
    codes = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
    for needs, wanted in ((TABLE[codes[0]].needs, ResponseCode.NO_MESSAGE), (ALL_BUT_T, DENIED)):
        await users.may("none", *needs)
        found = [(await ask(client, TABLE[code].ask(retried))).code for code in codes]
        assert found == [wanted] * 2, needs


async def test_a_request_without_a_rule_is_for_super_users(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RULES, RequestCode.GET_MAX_OFFSET)
    node = await start_node(access=with_users(tmp_path), remoting={"listen": free_endpoint()})
    await make_topics(node, "T")
    await Users(node).new("root", super=True)
    await Users(node).new("all", "All *")
    asked = TABLE[RequestCode.GET_MAX_OFFSET].ask(Places())
    for name, wanted in (("all", DENIED), ("root", ResponseCode.SUCCESS)):
        async with connected(node, sign=signs(name)) as client:
            assert (await ask(client, asked)).code == wanted


async def test_what_is_not_served_is_said_to_be_so_to_everybody(node: Node) -> None:
    for sign in (None, signs("none"), signs("root")):
        async with connected(node, sign=sign) as client:
            for code in (318, *SENT_ONLY):
                assert (await client.ask(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_consumer_sends_to_the_retry_topic_of_its_group_and_to_no_other(
    users: Users, client: Remoting, there: Places
) -> None:
    await users.may("none", "Sub Group:g", "Pub,Sub Topic:*")
    assert (await client.send("%RETRY%g", b"again", reconsumeTimes=1)).code == 0
    assert (await client.send("%DLQ%g", b"x")).code == DENIED
    assert (await client.send("%RETRY%h", b"x")).code == DENIED
    await users.may("none", "Pub Group:h", "Pub,Sub Topic:*")
    assert (await client.send("%RETRY%g", b"again")).code == DENIED


async def test_topics_of_the_system_are_for_nobody(node: Node, users: Users) -> None:
    await users.may("none", "All Topic:*", "All Group:*")
    names = ("DUOLOG_SYS_METADATA", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
    about_topics = {
        code: row
        for code, row in TABLE.items()
        if any("Topic" in need for need in row.needs) and not row.finds
    }
    async with connected(node, sign=signs("none")) as client:
        for topic in names:
            for code, row in about_topics.items():
                assert (await ask(client, row.ask(Places(topic)))).code == DENIED, (topic, code)


async def test_traces_are_written_with_the_right_to(users: Users, client: Remoting) -> None:
    assert (await client.send("RMQ_SYS_TRACE_TOPIC", b"x")).code == DENIED
    await users.may("none", "Pub Topic:RMQ_SYS_TRACE_TOPIC")
    assert (await client.send("RMQ_SYS_TRACE_TOPIC", b"x")).code != DENIED
    read = TABLE[RequestCode.PULL_MESSAGE].ask(Places("RMQ_SYS_TRACE_TOPIC"))
    assert (await ask(client, read)).code == DENIED


async def test_everybody_gets_the_route_that_new_topics_are_made_by(
    node: Node, client: Remoting
) -> None:
    fields = {"topic": "TBW102"}
    found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    assert found.code == ResponseCode.TOPIC_NOT_EXIST, "topics are not made on this node"
    async with connected(node) as nobody:
        found = await nobody.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    assert found.code == DENIED


async def test_the_address_of_a_caller_counts(users: Users, client: Remoting) -> None:
    await users.may("none", "Get Topic:T 10.0.0.0/8")
    assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == DENIED
    await users.may("none", "Get Topic:T 127.0.0.1")
    assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0


async def test_refusals_say_who_lacks_what_as_rocketmqs_broker_does(node: Node) -> None:
    async with connected(node) as client:
        fields = {"topic": "T"}
        found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        assert found.remark.startswith("No accessKey is configured")
        client.sign = signs("right", "wrong")
        found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        assert found.remark.startswith("Check signature failed for accessKey=right")
        client.sign = signs("nobody there")
        found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        assert found.remark.startswith("Check signature failed for accessKey=nobody there")
        client.sign = signs("none")
        found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        assert found.remark == "user none: denied: the user has no entries"
