"""Limits of what clients send over the remoting protocol, and that nothing within them is lost."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.serve.server import Node
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic
from duolog_server.store.record import SENT_PROPERTIES_BYTES_MAX as SENT_MAX
from tests.compat.remoting.client import LETTERS, Remoting, connected
from tests.compat.remoting.requests import write_batch
from tests.compat.remoting.test_replies import ASKS, FIELDS, TOPIC
from tests.compat.remoting.test_transactions import COMMIT, HALF, end
from tests.node.deferred.test_copies import filled, first_in, put
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode

BODY_MAX = 1024
LETTERS_OF_BATCH = {"a": "p", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 7, "h": 0}


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    made = await start_node(
        remoting={"listen": free_endpoint()}, message_delay_level="1s", max_message_size=BODY_MAX
    )
    async with duolog.Client(f"127.0.0.1:{made.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        await client.admin.put_group("g")
    return made


@pytest.fixture
async def remoting(node: Node) -> AsyncIterator[Remoting]:
    async with connected(node) as made:
        yield made


async def plainly(remoting: Remoting, text: str, body: bytes) -> Command:
    return await remoting.send("T", body, text)


async def in_a_batch(remoting: Remoting, text: str, body: bytes) -> Command:
    batch = write_batch([(0, body, text.encode()), (0, b"other", b"")])
    fields = {**LETTERS_OF_BATCH, "i": "", "m": "true"}
    return await remoting.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch)


async def committed(remoting: Remoting, text: str, body: bytes) -> Command:
    half = await remoting.send("T", body, text)
    if half.code == ResponseCode.SUCCESS:
        assert (await end(remoting, half, COMMIT)).code == ResponseCode.SUCCESS
    return half


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (plainly, "UNIQ_KEY\x01u"),
        (plainly, "DELAY\x011"),
        (plainly, "TIMER_DELAY_MS\x01200"),
        (in_a_batch, "UNIQ_KEY\x01u"),
        (committed, HALF),
    ],
)
async def test_what_the_node_takes_it_delivers_and_the_rest_is_refused_at_once(
    node: Node, remoting: Remoting, how: Callable[..., Any], text: str
) -> None:
    def sized(size: int) -> str:
        return f"{text}\x02p\x01".ljust(size, "v")

    for size in (SENT_MAX + 1, 32_767):
        refused = await how(remoting, sized(size), b"x")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "properties exceed the limit" in refused.remark
    too_large = await how(remoting, text, b"x" * (BODY_MAX + 1))
    assert too_large.code == ResponseCode.MESSAGE_ILLEGAL
    assert "body exceeds the limit" in too_large.remark
    assert (await how(remoting, sized(SENT_MAX), b"x" * BODY_MAX)).code == ResponseCode.SUCCESS
    found = await first_in(node, "T")
    assert (len(found.body), len(found.properties["p"])) == (
        BODY_MAX,
        SENT_MAX - len(text.encode()) - 3,
    )
    retries = broker_of(node).retries
    await retries.send_back("g", found, 1, 0)
    again = await first_in(node, group_retry_topic("g"))
    await retries.to_dead_letters("g", again)
    dead = await first_in(node, dead_letter_topic("g"))
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "T"
    assert (dead.body, dead.properties["p"]) == (found.body, found.properties["p"])


async def test_a_reply_that_is_too_large_is_pushed_only(node: Node, remoting: Remoting) -> None:
    """As in RocketMQ: storing a reply is for tracing alone."""
    await remoting.produce("asker")
    short = {LETTERS[name]: value for name, value in FIELDS.items()}
    for more in (1, -100):  # the node adds the cluster to reply to
        text = f"{ASKS.format('asker')}\x02p\x01".ljust(SENT_MAX + more, "v")
        answered = remoting.begin(RequestCode.SEND_REPLY_MESSAGE_V2, {**short, "i": text}, b"yes")
        remoting.write((await remoting.asked()).answer(0).frame())
        sent = await answered
        assert sent.code == ResponseCode.SUCCESS
        assert (sent.fields["msgId"] == "0") == (more > 0)
    assert (await first_in(node, TOPIC)).properties["p"]


@pytest.mark.parametrize("gives_up", [False, True])
async def test_a_stored_message_is_sent_back_whatever_clients_may_send(
    node: Node, remoting: Remoting, gives_up: bool
) -> None:
    """A consumer in order sends the whole message, with what it adds to the properties."""
    text = filled("UNIQ_KEY\x01u", 32_700)
    put(node, "T", text, b"x" * 2000)
    await first_in(node, "T")
    said = f"{text}\x02RETRY_TOPIC\x01T\x02RECONSUME_TIME\x011\x02DELAY\x011"
    times = {"reconsumeTimes": 1, "maxReconsumeTimes": 1 if gives_up else 9}
    for body in (b"y" * 2000, b"x" * 1999):
        other = await remoting.send("%RETRY%g", body, said, **times)
        assert other.code == ResponseCode.MESSAGE_ILLEGAL
    sent = await remoting.send("%RETRY%g", b"x" * 2000, said, **times)
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    topic = dead_letter_topic("g") if gives_up else group_retry_topic("g")
    found = await first_in(node, topic)
    assert (len(found.body), found.properties["p"][:4]) == (2000, "\tvvv")
