"""Copies of stored messages: delivered whatever clients may send now, and however full they are."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import duolog
import pytest
from duolog._producer import Message
from duolog._terms import Terms
from duolog._unrouted import Place

from duolog_server.node.deferred.delayservice import TIMER_TOPIC
from duolog_server.node.deferred.redirect import NOTES, _real, fitting
from duolog_server.node.deferred.transactionservice import DISCARD_TOPIC, HALF_TOPIC
from duolog_server.ops.inspection.deadletters.redelivery import MARK, Bounds, redeliver
from duolog_server.ops.inspection.messages.sending import copy_of, message_at, send
from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.delay import SCHEDULE_TOPIC
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import KEPT_FLAGS, PROPERTIES_BYTES_MAX, Record, decode_properties
from duolog_server.store.record import SENT_PROPERTIES_BYTES_MAX as SENT_MAX
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

QUICK = {"message_delay_level": "1s"}
CHECKS = {"timeout_ms": 0, "check_interval_ms": 100, "check_max": 2}


def put(node: Node, topic: str, text: str, body: bytes = b"x", sysflag: int = 0) -> None:
    """A record as RocketMQ, or an earlier version, stored it."""
    broker = broker_of(node)
    now = broker.times.wall_ms()
    columns = Columns.of([body], [text.encode()])
    batch = PutBatch(topic, 0, columns, now, sysflag=sysflag, accepted=True)
    assert broker.log.put(batch)[0].status is PutMessageStatus.PUT_OK


def filled(text: str, size: int = PROPERTIES_BYTES_MAX) -> str:
    """Properties of exactly so many bytes, with a tab in one: RocketMQ stores it."""
    return f"{text}\x02p\x01\t".ljust(size, "v")


def record_of(node: Node, topic: str, offset: int = 0) -> Record | None:
    return broker_of(node).store.record_at(topic, 0, QueueOffset(offset))


async def first_in(node: Node, topic: str, offset: int = 0) -> Record:
    await until(lambda: record_of(node, topic, offset) is not None)
    found = record_of(node, topic, offset)
    assert found is not None
    return found


@pytest.fixture
async def node(start_node: StartNode) -> AsyncIterator[Node]:
    """Most it takes is 1 KiB, as if that had been more before; and no more topics."""
    node = await start_node(
        **QUICK, max_message_size=1024, limits={"topics_max": 1}, transactions=CHECKS
    )
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        yield node


REAL = "REAL_TOPIC\x01T\x02REAL_QID\x010"


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        (SCHEDULE_TOPIC, f"{REAL}\x02DELAY\x011"),
        (TIMER_TOPIC, f"{REAL}\x02TIMER_OUT_MS\x011\x02TIMER_DELIVER_MS\x011"),
    ],
)
async def test_no_limit_drops_a_delayed_message(node: Node, topic: str, text: str) -> None:
    put(node, topic, filled(text + "\x02INNER_MULTI_DISPATCH\x01%LMQ%a"), b"x" * 2000)
    found = await first_in(node, "T")
    assert len(found.body) == 2000
    assert found.properties["p"].startswith("\tvvv")
    assert "INNER_MULTI_DISPATCH" not in found.properties


async def test_no_limit_keeps_a_half_message_from_being_committed(node: Node) -> None:
    broker = broker_of(node)
    put(node, HALF_TOPIC, filled(f"{REAL}\x02TRAN_MSG\x01true\x02PGROUP\x01g"), b"x" * 2000)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    await broker.transactions.end([0], True, "g")
    assert len((await first_in(node, "T")).body) == 2000


async def test_a_full_half_message_is_asked_about_and_given_up(node: Node) -> None:
    broker, asked = broker_of(node), []

    async def ask(check: Any) -> bool:
        asked.append(check.origin)
        return True

    broker.transactions.askers.append(ask)
    put(node, HALF_TOPIC, filled(f"{REAL}\x02TRAN_MSG\x01true\x02PGROUP\x01g"), b"x" * 2000)
    assert len((await first_in(node, DISCARD_TOPIC)).body) == 2000
    assert asked == [0, 0]


async def test_no_limit_keeps_a_failed_message_from_its_next_attempt(node: Node) -> None:
    retries = broker_of(node).retries
    put(node, "T", filled("UNIQ_KEY\x01u"), b"x" * 2000)
    failed = await first_in(node, "T")
    await retries.store_again("g", "T", failed)
    again = await first_in(node, "%RETRY%g_T")
    assert (again.body, again.reconsume_times) == (failed.body, 1)
    assert again.properties == failed.properties  # no room for a note
    assert await retries.send_back("g", failed, 1, 0) == group_retry_topic("g")
    assert (await first_in(node, group_retry_topic("g"))).body == failed.body
    await retries.to_dead_letters("g", failed)
    assert (await first_in(node, dead_letter_topic("g"))).body == failed.body


async def test_a_failed_message_with_some_room_tells_where_it_comes_from(node: Node) -> None:
    retries = broker_of(node).retries
    put(node, "T", filled("UNIQ_KEY\x01u", PROPERTIES_BYTES_MAX - 30))
    failed = await first_in(node, "T")
    await retries.to_dead_letters("g", failed)
    letter = await first_in(node, dead_letter_topic("g"))
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "T"
    assert "ORIGIN_MESSAGE_ID" not in letter.properties


def test_notes_are_left_out_in_their_order_and_nothing_else() -> None:
    own = {"KEYS": "k", "p": "v" * 100}
    notes = dict.fromkeys(NOTES, "n")
    for room in range(110, 400):
        text = fitting({**notes, **own, "__CRC32#": "1"}, room).decode()
        found = decode_properties(text)
        left = [name for name in NOTES if name in found]
        assert len(text) <= room
        assert left == list(NOTES[len(NOTES) - len(left) :])
        assert {name: found[name] for name in own} == own
        gone = NOTES[: len(NOTES) - len(left)]
        assert not gone or len(text) + len(f"\x02{gone[-1]}\x01n") > room, "it has no room"
    assert left == list(NOTES)
    assert fitting({**notes, **own}, len(text)).decode() == text


@pytest.mark.parametrize(("said", "queue_id"), [(b"3", 3), (b"-1", 0), (b"x", 0), (b"", 0)])
def test_a_queue_that_is_none_is_the_first(said: bytes, queue_id: int) -> None:
    """In what RocketMQ stored, or anybody who wrote into the topic itself."""
    block = b"REAL_TOPIC\x01T\x02p\x01v\x02REAL_QID\x01" + said
    assert _real(block, frozenset()) == ("T", queue_id, b"p\x01v")


@pytest.mark.parametrize(
    "how", [{}, {"delay_level": 1}, {"delay": 0.2}, {"transaction_group": "g" * 255}]
)
async def test_what_the_node_takes_it_can_deliver_and_the_rest_is_refused_at_once(
    node: Node, bare_client: duolog.Client, how: dict[str, Any]
) -> None:
    async with bare_client.producer() as producer:

        async def send(size: int) -> None:
            properties = {"p": "v" * (size - 2)}
            if "transaction_group" in how:
                async with bare_client.transactions(how["transaction_group"]) as transactions:
                    half = await transactions.prepare("T", b"%d" % size, properties=properties)
                    await transactions.commit(half)
            else:
                await producer.send("T", b"%d" % size, properties=properties, **how)

        await send(SENT_MAX)
        for size in (SENT_MAX + 1, 32_703, 32_704, 33_000):
            with pytest.raises(duolog.MessageTooLarge, match="properties exceed the limit"):
                await send(size)
        assert (await first_in(node, "T")).body == b"%d" % SENT_MAX


async def test_no_limit_keeps_a_stored_message_from_being_sent_again(node: Node) -> None:
    retries = broker_of(node).retries
    text = f"UNIQ_KEY\x01{'u' * 32}\x02KEYS\x01k k2\x02TAGS\x01t"
    put(node, "T", filled(text, PROPERTIES_BYTES_MAX - 30), b"x" * 2000)
    put(node, "T", "UNIQ_KEY\x01v\x02p\x01v", b"y" * 2000)
    put(node, "T", "UNIQ_KEY\x01w\x02p\x01v", b"z")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        for offset in range(3):
            await retries.to_dead_letters("g", await first_in(node, "T", offset))
        dead = dead_letter_topic("g")
        await first_in(node, dead, 2)
        assert (await redeliver(client, "g", Bounds(10, 60.0))).sent == 3
        await send(client, copy_of(await message_at(client, "T", 0, 0)))
        delayed = replace(copy_of(await message_at(client, "T", 0, 1)), delay_seconds=0.05)
        await send(client, delayed)
        await first_in(node, "T", 7)
        copies = {(one.body, one.properties.get(MARK)): one for one in await client.pull("T", 0, 3)}
        # The first one has no room for a mark.
        full, *others = b"x" * 2000, (b"y" * 2000, "g/broker-a/0/1"), (b"z", "g/broker-a/0/2")
        assert copies.keys() == {(full, None), (b"y" * 2000, None), *others}
        assert copies[full, None].properties["p"].startswith("\tvvv")
        assert copies[full, None].keys == ["k", "k2"]
        assert copies[full, None].tags == "t"


async def test_only_copies_are_not_held_to_limits(node: Node) -> None:
    put(node, "T", "a\x01b\x02INNER_MULTI_DISPATCH\x01%LMQ%a", b"x" * 2000)
    await first_in(node, "T")
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.producer() as producer,
    ):

        async def copy(body: bytes, text: bytes, offset: int = 0, topic: str = "T") -> None:
            terms = Terms(copied_from=(topic, 0, offset))
            await producer.send_copy(
                Place("T", None, 0, "broker-a"), Message("T", None, terms, body, text)
            )

        await copy(b"x" * 2000, b"a\x01b")
        for wrong in (
            (b"y" * 2000, b"a\x01b"),
            (b"x" * 2000, b"a\x01c"),
            (b"x" * 2000, b"c\x01d"),
            (b"x" * 2000, b"a\x01b", 1 << 40),
            (b"x" * 2000, b"a\x01b", -1),
            (b"x" * 2000, b"a\x01b", 0, "nowhere"),
        ):
            with pytest.raises(duolog.BadRequest, match="is not a copy of"):
                await copy(*wrong)
        with pytest.raises(duolog.BadRequest, match="only be written by the store"):
            await copy(b"x" * 2000, b"INNER_MULTI_DISPATCH\x01%LMQ%a")


async def test_a_compressed_message_is_compressed_when_it_is_sent_again(node: Node) -> None:
    put(node, "T", "a\x01b", b"zlib", KEPT_FLAGS)
    await first_in(node, "T")
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        await send(client, copy_of(await message_at(client, "T", 0, 0)))
        assert [one.sysflag for one in await client.pull("T", 0, 0)] == [KEPT_FLAGS] * 2
