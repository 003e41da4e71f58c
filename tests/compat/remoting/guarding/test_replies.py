"""Replies on a node with users: who may push them, and to whom they come."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.serve.server import Node
from tests.compat.grpc.test_rights import make_topics
from tests.compat.grpc.users import Users, with_users
from tests.compat.remoting.client import Remoting, connected
from tests.compat.remoting.guarding.asked import signs
from tests.compat.remoting.test_replies import TOPIC, reply
from tests.nodefixtures import StartNode

PUBLISHES = f"Pub Topic:{TOPIC}"


@pytest.fixture
async def node(start_node: StartNode, tmp_path: Path) -> Node:
    made = await start_node(access=with_users(tmp_path), remoting={"listen": free_endpoint()})
    await make_topics(made, TOPIC)
    users = Users(made)
    await users.new("root", super=True)
    for name in ("alice", "bob", "replier"):
        await users.new(name, PUBLISHES)
    return made


@pytest.fixture
async def clients(node: Node) -> AsyncIterator[dict[str, Remoting]]:
    """By their users."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(connected(node, sign=signs(name)))
            for name in ("alice", "bob", "replier")
        }


async def test_a_reply_comes_to_the_user_whose_client_has_the_id(
    clients: dict[str, Remoting],
) -> None:
    alice, bob = clients["alice"], clients["bob"]
    await alice.produce("asker")
    await bob.produce("asker")
    answered = reply(clients["replier"], "asker")
    pushed = await alice.asked()
    alice.reply(pushed)
    assert (await answered).code == ResponseCode.SUCCESS
    assert bob.told.empty()


async def test_a_user_that_is_disabled_gets_no_replies(
    node: Node, clients: dict[str, Remoting]
) -> None:
    await clients["alice"].produce("asker")
    await Users(node).put("alice", disabled=True)
    sent = await reply(clients["replier"], "asker")
    assert sent.code == ResponseCode.SYSTEM_ERROR
    assert "channel of <asker> not found" in sent.remark
    assert clients["alice"].told.empty()


async def test_who_may_not_send_to_the_topic_of_replies_pushes_nothing(
    node: Node, clients: dict[str, Remoting]
) -> None:
    await clients["alice"].produce("asker")
    await Users(node).may("replier", "Pub Topic:T")
    assert (await reply(clients["replier"], "asker")).code == ResponseCode.NO_PERMISSION
    other = await reply(clients["replier"], "asker", topic="T")
    assert other.code == ResponseCode.NO_PERMISSION
    assert clients["alice"].told.empty()
