"""Copies of stored messages: delivered whatever clients may send now, and however full they are."""

from collections.abc import AsyncIterator
from typing import Any

import duolog
import pytest

from node.deferred.delayservice import TIMER_TOPIC
from node.deferred.redirect import NOTES, fitting
from node.deferred.transactionservice import DISCARD_TOPIC, HALF_TOPIC
from node.pop.retrytopics import dead_letter_topic, group_retry_topic
from node.server import Node
from store.columns import Columns
from store.delay import SCHEDULE_TOPIC
from store.messagestore import PutBatch
from store.offsets import QueueOffset
from store.record import PROPERTIES_BYTES_MAX, Record, decode_properties
from store.record import SENT_PROPERTIES_BYTES_MAX as SENT_MAX
from store.status import PutMessageStatus
from tests.node.conftest import StartNode
from tests.node.replicas import broker_of
from tests.until import until

QUICK = {"message_delay_level": "1s"}
CHECKS = {"timeout_ms": 0, "check_interval_ms": 100, "check_max": 2}


def put(node: Node, topic: str, text: str, body: bytes = b"x") -> None:
    """A record as RocketMQ, or an earlier version, stored it."""
    broker = broker_of(node)
    now = broker.times.wall_ms()
    batch = PutBatch(topic, 0, Columns.of([body], [text.encode()]), now, accepted=True)
    assert broker.log.put(batch)[0].status is PutMessageStatus.PUT_OK


def filled(text: str, size: int = PROPERTIES_BYTES_MAX) -> str:
    """Properties of exactly so many bytes, with a tab in one: RocketMQ stores it."""
    return f"{text}\x02p\x01\t".ljust(size, "v")


def record_of(node: Node, topic: str, offset: int = 0) -> Record | None:
    return broker_of(node).store.record_at(topic, 0, QueueOffset(offset))


async def first_in(node: Node, topic: str) -> Record:
    await until(lambda: record_of(node, topic) is not None)
    found = record_of(node, topic)
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
    assert left == list(NOTES)


@pytest.mark.parametrize(
    "how", [{}, {"delay_level": 1}, {"delay": 0.2}, {"transaction_group": "g" * 255}]
)
async def test_what_the_node_takes_it_can_deliver_and_the_rest_is_refused_at_once(
    node: Node, how: dict[str, Any]
) -> None:
    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.producer() as producer,
    ):

        async def send(size: int) -> None:
            properties = {"p": "v" * (size - 2)}
            if "transaction_group" in how:
                async with client.transactions(how["transaction_group"]) as transactions:
                    half = await transactions.prepare("T", b"%d" % size, properties=properties)
                    await transactions.commit(half)
            else:
                await producer.send("T", b"%d" % size, properties=properties, **how)

        await send(SENT_MAX)
        for size in (SENT_MAX + 1, 32_703, 32_704, 33_000):
            with pytest.raises(duolog.MessageTooLarge, match="properties exceed the limit"):
                await send(size)
        assert (await first_in(node, "T")).body == b"%d" % SENT_MAX
