"""Decisions on half messages: when they are answered, and what a repeat is answered."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duolog
import pytest

from duolog_server.node.broker import Broker
from duolog_server.node.deferred import halfmessages, transactionservice
from duolog_server.node.deferred.redirect import stored_again
from duolog_server.node.deferred.transactionservice import (
    GROUP,
    HALF_TOPIC,
    IMMUNITY_SECONDS_MAX,
    OP_TOPIC,
    TransactionService,
)
from duolog_server.store.columns import Columns
from duolog_server.store.errors import BadMessage, StoreClosed
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.offsets import PhyOffset, QueueOffset
from duolog_server.store.reader import EMPTY_TABLE, GetResult
from duolog_server.store.record import SENT_PROPERTIES_BYTES_MAX
from duolog_server.store.status import PutMessageStatus
from tests.node.deferred.test_delays import damage
from tests.node.deferred.test_delayservice import without_the_first
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until


@pytest.fixture
async def broker(start_node: StartNode, nothing_noted: None) -> Broker:
    """A node that asks nobody."""
    node = await start_node(transactions={"timeout_ms": 600_000, "check_interval_ms": 600_000})
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    return broker_of(node)


def batch(count: int = 1) -> PutBatch:
    keys = [b"UNIQ_KEY\x01%032d" % k for k in range(count)]
    return PutBatch("T", 0, Columns.of([b"%d" % k for k in range(count)], keys), 1)


def prepare(broker: Broker, count: int = 1, group: str = "g") -> list[int]:
    """Store half messages; their numbers."""
    first = broker.store.next_offset(HALF_TOPIC, 0)
    broker.transactions._put(broker.transactions.half(batch(count), group))
    broker.log.pump_soon()
    return list(range(first, first + count))


class Replicas:
    """Answers what waits for an end of the log only when it is told to."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waiting: dict[asyncio.Future[PutMessageStatus], int] = {}
        self.asked: list[int] = []
        monkeypatch.setattr(broker.log, "settle", self._settle)

    def _settle(
        self, end_offset: PhyOffset, no_wait: bool = False
    ) -> "asyncio.Future[PutMessageStatus] | None":
        if no_wait:
            return None
        self.asked.append(end_offset)
        future: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()
        self._waiting[future] = end_offset
        return future

    def confirm(self, status: PutMessageStatus = PutMessageStatus.PUT_OK) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(status)


@pytest.fixture
def replicas(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Replicas:
    return Replicas(broker, monkeypatch)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_repeated_decision_is_answered_no_earlier_than_the_first(
    broker: Broker, replicas: Replicas, commit: bool
) -> None:
    """Both wait until the decision is durable: otherwise the next master may not know it."""
    origins = prepare(broker, 2)
    first = asyncio.create_task(broker.transactions.end(origins, commit, "g"))
    await until(lambda: len(replicas.asked) == 1)
    again = asyncio.create_task(broker.transactions.end(origins[:1], commit, "g"))
    await until(lambda: len(replicas.asked) == 2)
    assert not first.done()
    assert not again.done()
    assert replicas.asked[0] == replicas.asked[1] <= broker.store.max_offset
    noted = broker.store.max_offset
    replicas.confirm()
    await asyncio.gather(first, again)
    assert broker.store.max_offset == noted, "a repeat stores nothing"


async def test_a_decision_that_is_not_confirmed_is_unknown_also_when_it_is_repeated(
    broker: Broker, replicas: Replicas
) -> None:
    (origin,) = prepare(broker)
    for asked in (1, 2):
        deciding = asyncio.create_task(broker.transactions.end([origin], True, "g"))
        await until(lambda asked=asked: len(replicas.asked) == asked)  # type: ignore[misc]
        replicas.confirm(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        with pytest.raises(duolog.ResultUnknown) as failure:
            await deciding
        assert failure.value.status == "FLUSH_SLAVE_TIMEOUT"
    broker.log.pump_soon()
    await until(lambda: broker.store.queue_range("T", 0)[1] == 1)


async def test_a_decision_made_while_another_call_waits_for_its_turn_is_the_one_that_counts(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long list is decided in several turns of the event loop."""
    monkeypatch.setattr(transactionservice, "READ", 2)
    service, origins = broker.transactions, prepare(broker, 5)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 5)
    await service._known()
    committing = asyncio.create_task(service.end(origins, True, "g"))
    rolling_back = asyncio.create_task(service.end(origins[4:], False, "g"))
    with pytest.raises(duolog.NoSuchMessage, match="message 4 was rolled back"):
        await committing
    await rolling_back
    assert service.waiting == 0
    broker.log.pump_soon()
    await until(lambda: broker.store.queue_range("T", 0)[1] == 4)
    assert service.validate() == ""


async def test_only_its_own_group_decides_on_a_half_message_or_learns_how_it_ended(
    broker: Broker,
) -> None:
    service, (origin, other) = broker.transactions, prepare(broker, 2)
    with pytest.raises(duolog.BadRequest, match="name the producer group"):
        await service.end([origin], True, "")
    for _ in range(2):
        with pytest.raises(duolog.BadRequest, match="another producer group"):
            await service.end([origin], True, "h")
        await service.end([origin], True, None)  # whose key was proof enough
    service._decisions.clear()  # only the log knows it
    with pytest.raises(duolog.BadRequest, match="another producer group"):
        await service.end([origin], True, "h")
    assert service.pending()[0].origin == other
    for never in (-1, 2):
        with pytest.raises(duolog.NoSuchMessage, match=f"message {never} does not exist"):
            await service.end([never], True, "g")
    assert (await service.find(other)) is not None


async def test_a_decision_that_only_the_log_knows_is_told_once_the_index_has_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(halfmessages, "DECISIONS_MAX", 0)  # each is forgotten at once
    service, (committed, given_up) = broker.transactions, prepare(broker, 2)
    await service.end([committed], True, "g")
    await service.end([given_up], False, "g")
    await until(lambda: broker.store.dispatcher.behind_bytes() == 0)
    await service.end([committed], True, "g")
    await service.end([given_up], False, "g")
    with pytest.raises(duolog.NoSuchMessage, match="was committed: it cannot be rolled back"):
        await service.end([committed], False, "g")
    with pytest.raises(duolog.NoSuchMessage, match="was rolled back"):
        await service.end([given_up], True, "g")
    service._decisions.forgotten_end = broker.store.max_offset + 1  # not indexed up to there
    with pytest.raises(duolog.Unavailable, match="not indexed yet"):
        await service.end([committed], True, "g")
    service._decisions.forgotten_end = broker.store.dispatched_offset
    await service.end([committed], True, "g")


async def test_without_an_index_only_the_decisions_in_memory_are_told(
    start_node: StartNode, nothing_noted: None
) -> None:
    node = await start_node(message_index_enable=False)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    service = (broker := broker_of(node)).transactions
    committed, given_up = prepare(broker, 2)
    await service.end([committed], True, "g")
    halves = await service._known()
    half = halves.get(given_up)
    assert half is not None
    service._discard(halves, half, service._record(half.offset))
    for origin, commit in ((committed, False), (given_up, True)):
        with pytest.raises(duolog.NoSuchMessage, match="it cannot be"):
            await service.end([origin], commit, "g")
        await service.end([origin], not commit, "g")
    service._decisions.clear()  # another master
    await service.end([committed], False, "g")
    assert service.waiting == 0


async def test_a_repeat_of_a_forgotten_decision_waits_until_that_is_durable(
    start_node: StartNode, nothing_noted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an index nothing else keeps it from being answered before the first one."""
    monkeypatch.setattr(halfmessages, "DECISIONS_MAX", 0)
    node = await start_node(message_index_enable=False)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
    replicas = Replicas(broker := broker_of(node), monkeypatch)
    origins = prepare(broker)
    first = asyncio.create_task(broker.transactions.end(origins, True, "g"))
    await until(lambda: replicas.asked)
    again = asyncio.create_task(broker.transactions.end(origins, True, "g"))
    await until(lambda: again.done() or len(replicas.asked) == 2)
    done = first.done() or again.done()
    replicas.confirm()
    await asyncio.gather(first, again)
    assert not done
    assert replicas.asked[0] == replicas.asked[1] > 0


async def test_a_damaged_half_message_at_the_end_holds_up_no_reading(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, get = broker.transactions, broker.store.get

    def damaged(topic: str, *where: Any) -> GetResult:
        found = get(topic, *where)
        if topic != HALF_TOPIC:
            return found
        return replace(found, bodies=b"", properties=b"", table=EMPTY_TABLE)

    monkeypatch.setattr(broker.store, "get", damaged)
    prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    async with asyncio.timeout(30):
        halves = await service._known()
    assert (halves.end, len(halves)) == (1, 0)


async def test_a_half_message_that_cannot_be_read_yet_is_told_from_one_that_is_gone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, (origin,) = broker.transactions, prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    assert service._record(origin).body == b"0"
    for call in (lambda: service._record(1), lambda: service._commit(1, 1, [])):
        with pytest.raises(duolog.Unavailable, match="cannot be read yet"):
            call()
    monkeypatch.setattr(broker.store, "record_at", lambda *where: None)
    with pytest.raises(duolog.NoSuchMessage, match="no longer exists"):
        service._record(origin)


async def test_a_half_message_that_stays_unreadable_is_waited_for_within_a_bound(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, halves = await own_service(broker, 1)

    async def known() -> halfmessages.HalfMessages:
        return halves

    monkeypatch.setattr(transactionservice, "READABLE_SECONDS", 0.0)
    monkeypatch.setattr(service, "_known", known)
    (later,) = prepare(broker)
    with pytest.raises(duolog.Unavailable, match="cannot be read yet"):
        async with asyncio.timeout(10):
            await service._reaching([0, later])


async def test_a_decision_right_behind_its_half_message_has_it_dispatched(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing else does: neither time, nor ticks, nor flushes.
    monkeypatch.setattr("duolog_server.node.engine.log.LATER_SECONDS", 600)
    monkeypatch.setattr(broker.store.dispatcher.__class__, "behind_bytes", lambda self: 0)
    monkeypatch.setattr(broker.log._flusher, "commit_when_due", lambda: False)
    monkeypatch.setattr(broker.log.group_commit, "_on_flushed", lambda: None)
    origin = broker.store.next_offset(HALF_TOPIC, 0)
    broker.transactions._put(broker.transactions.half(batch(), "g"))
    assert broker.store.queue_range(HALF_TOPIC, 0)[1] == origin
    await broker.transactions.end([origin], False, "g")


async def test_the_commit_of_a_damaged_half_message_stores_no_other_one_in_its_place(
    broker: Broker,
) -> None:
    """A read skips it and returns what comes behind it, on which nobody decided."""
    service = broker.transactions
    keys = [b"UNIQ_KEY\x01%032d" % k for k in range(5)]
    columns = Columns.of([b"half message %d" % k for k in range(5)], keys)
    service._put(service.half(PutBatch("T", 0, columns, 1), "g"))
    broker.log.pump_soon()
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 5)
    assert sorted(await service._known()) == [0, 1, 2, 3, 4]
    damage(broker.store.log, b"half message 1")
    for origins in ([1], [0, 1, 2]):
        with pytest.raises(duolog.NoSuchMessage, match="1 no longer exists"):
            await service.end(origins, True, "g")
    await service.end([4, 0, 2], True, "g")
    await until(lambda: broker.store.dispatcher.behind_bytes() == 0)
    found = broker.store.get("T", 0, QueueOffset(0))
    assert [body for _, body, _ in found.rows()] == [b"half message %d" % k for k in (0, 2, 4)]
    assert sorted(await service._known()) == [1, 3]
    assert service.validate() == ""


async def test_a_record_that_a_read_leaves_out_is_looked_for_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, (origin,) = broker.transactions, prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    whole, reads = service._record(origin), [EMPTY_TABLE]
    get = broker.store.get
    monkeypatch.setattr(broker.store, "get", lambda *where: replace(get(*where), table=reads.pop()))
    monkeypatch.setattr(service, "_record", lambda offset: whole)
    with pytest.raises(duolog.NoSuchMessage, match="0 no longer exists"):
        service._consecutive(origin, 1)


async def test_what_nobody_is_asked_about_is_given_up_before_retention_deletes_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At half of the time for which a segment is kept."""
    service, (origin,) = broker.transactions, prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    halves = await service._known()
    half = halves.get(origin)
    assert half is not None
    age = broker.store.options.file_reserved_time * 1800 * 1000 - 1
    monkeypatch.setattr(broker.times, "store_ms", lambda: half.stored_ms + age)
    assert not await service._check(halves, half)
    assert halves.waits(origin)
    age += 1
    assert await service._check(halves, half)
    assert not halves.waits(origin)
    with pytest.raises(duolog.NoSuchMessage, match="given up"):
        await service.end([origin], True, "g")


async def test_decisions_are_counted_by_topic_with_their_age(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[str, bool, float]] = []
    traffic = type(broker.core.traffic)
    monkeypatch.setattr(traffic, "finish", lambda _, *what: counted.append(what))
    prepare(broker, 2)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 2)
    await broker.transactions._known()
    (stored_ms,) = {half.stored_ms for half in broker.transactions.pending()}
    for origin, commit, age_ms in ((0, True, 5000), (1, False, -9), (1, False, 0)):
        monkeypatch.setattr(broker.times, "store_ms", lambda age_ms=age_ms: stored_ms + age_ms)
        await broker.transactions.end([origin], commit, "g")
    assert counted == [("T", True, 5.0), ("T", False, 0.0)]


async def test_nothing_is_decided_while_the_node_stores_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, (origin,) = broker.transactions, prepare(broker)
    with monkeypatch.context() as patch:
        patch.setattr(broker.admission, "may_store", lambda: False)
        with pytest.raises(duolog.Unavailable, match="does not accept puts"):
            await service.end([origin], True, "g")
    assert service.waiting == 1
    await service.end([origin], True, "g")
    assert service.waiting == 0


async def test_what_the_last_master_left_unrecorded_waits_for_the_index(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it reaches the end of what that one wrote, a commit may be there already."""
    service, (origin,) = broker.transactions, prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    await service._known()
    service._older = origin, broker.store.max_offset + 1
    await service._known()
    service._note_ended(_halves(service), [origin])  # a half message of this master
    service._older = origin + 1, broker.store.max_offset + 1
    with pytest.raises(duolog.Unavailable, match="not indexed yet"):
        await service.end([origin], True, "g")
    service._older = origin + 1, broker.store.dispatched_offset
    await service.end([origin], True, "g")


async def test_progress_is_where_the_next_master_begins_to_read(broker: Broker) -> None:
    """Behind the first half message that is not decided, nothing is read again."""
    service = broker.transactions
    for _ in range(3):
        prepare(broker)
    await service.end([0], True, "g")
    await service.end([2], True, "g")
    await service.end([1], False, "g")
    halves = await service._known()
    prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 4)
    await service._known()
    service._save(halves)
    await until(lambda: broker.metadata.tables.committed(GROUP, HALF_TOPIC, 0) == 3)
    await until(lambda: broker.store.queue_range(OP_TOPIC, 0)[1] == 3)
    assert broker.metadata.tables.committed(GROUP, OP_TOPIC, 0) == 3
    stored = broker.store.max_offset
    service._save(halves)
    assert broker.store.max_offset == stored, "nothing is new"
    service.role_changed()
    assert list(await service._known()) == [3]


async def test_a_note_that_names_several_half_messages_is_kept_for_the_last_of_them(
    broker: Broker,
) -> None:
    """As RocketMQ 5 writes them."""
    service = broker.transactions
    prepare(broker, 4)
    note = PutBatch(OP_TOPIC, 0, Columns.of([b"0,2,x"], [b"TAGS\x01d"]), 1, accepted=True)
    broker.log.write(note)
    broker.log.pump_soon()
    await until(lambda: broker.store.queue_range(OP_TOPIC, 0)[1] == 1)
    service.role_changed()
    assert sorted(await service._known()) == [1, 3]
    service._save(await service._known())
    await until(lambda: broker.metadata.tables.committed(GROUP, HALF_TOPIC, 0) == 1)
    assert broker.metadata.tables.committed(GROUP, OP_TOPIC, 0) == 0
    service.role_changed()
    assert sorted(await service._known()) == [1, 3], "2 does not wait again"


async def test_notes_of_half_messages_that_wait_are_kept(broker: Broker) -> None:
    service = broker.transactions
    prepare(broker, 3)
    await service.end([1], True, "g")
    await service.end([2], True, "g")
    await until(lambda: broker.store.queue_range(OP_TOPIC, 0)[1] == 2)
    service._save(await service._known())
    await until(lambda: broker.metadata.tables.committed(GROUP, HALF_TOPIC, 0) == 0)
    assert broker.metadata.tables.committed(GROUP, OP_TOPIC, 0) == 0
    service.role_changed()
    assert list(await service._known()) == [0]


async def test_a_half_message_to_a_topic_that_was_made_again_is_rolled_back(
    broker: Broker,
) -> None:
    service = broker.transactions
    (old,) = prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    halves = await service._known()
    half = halves.get(old)
    assert half is not None
    assert not service.is_too_old(half)
    record = service._record(old)
    assert not service._dropped(halves, half, record)
    async with duolog.Client(broker.advertised) as client:
        await client.admin.delete_topic("T")
        await client.admin.create_topic("T", 1)
    await until(lambda: service.is_too_old(half))
    with pytest.raises(duolog.UnknownTopic, match="deleted since: roll it back"):
        await service.end([old, *prepare(broker)], True, "g")
    assert service.pending() == [half], "the other one is committed"
    assert await service._check(halves, half), "another one of its group may be next"
    await service.end([old], False, "g")
    with pytest.raises(duolog.NoSuchMessage, match="was rolled back"):
        await service.end([old], True, "g")


async def test_a_half_message_whose_topic_is_made_again_while_it_is_asked_about_is_rolled_back(
    broker: Broker,
) -> None:
    """Stored again for its next check, it would be younger than the topic."""
    service, halves = await own_service(broker, 1)

    async def remade(check: transactionservice.Check) -> bool:
        async with duolog.Client(broker.advertised) as client:
            await client.admin.delete_topic("T")
            await client.admin.create_topic("T", 1)
        await until(lambda: service.is_too_old(half))
        return True

    service.askers.append(remade)
    (half,) = service.pending()
    assert await service._check(halves, half)
    await dispatched(broker)
    assert (service.waiting, broker.store.queue_range(HALF_TOPIC, 0)[1]) == (0, 1)


@pytest.mark.parametrize("over", [0, 1])
async def test_a_check_is_counted_in_the_log_as_long_as_the_record_has_room(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    service, halves = await own_service(broker, 1)
    (half,) = service.pending()
    record = service._record(half.offset)
    counted = {**record.properties, transactionservice.CHECKS: "1", transactionservice.ORIGIN: "0"}
    size = stored_again(record, HALF_TOPIC, counted).columns.longest_properties
    monkeypatch.setattr(transactionservice, "PROPERTIES_BYTES_MAX", size - over)
    service._put_back(halves, half, record, 1000)
    await dispatched(broker)
    assert broker.store.queue_range(HALF_TOPIC, 0)[1] == 2 - over


async def test_notes_that_retention_deleted_are_passed_over(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = broker.transactions
    prepare(broker, 3)
    await service.end([1], True, "g")
    await service.end([2], True, "g")
    await until(lambda: broker.store.queue_range(OP_TOPIC, 0)[1] == 2)
    without_the_first(broker, OP_TOPIC, monkeypatch)
    service.role_changed()
    assert sorted(await service._known()) == [0, 1], "nothing tells of 1 any more"


@pytest.mark.parametrize(
    ("group", "immunity"),
    [("", 0), ("g" * 256, 0), ("a\nb", 0), ("g", -1), ("g", IMMUNITY_SECONDS_MAX + 1)],
)
async def test_a_half_message_has_a_group_and_a_bounded_first_check(
    broker: Broker, group: str, immunity: int
) -> None:
    with pytest.raises(duolog.BadRequest):
        broker.transactions.half(batch(), group, immunity)
    broker.transactions.half(batch(), "g" * 255, IMMUNITY_SECONDS_MAX)
    large = PutBatch("T", 0, Columns.of([bytes(broker.store.options.max_message_size + 1)]), 1)
    with pytest.raises(BadMessage):
        broker.transactions.half(large, "g")
    broker.transactions.half(replace(large, accepted=True), "g")
    full = Columns.of([b""], [b"p\x01".ljust(SENT_PROPERTIES_BYTES_MAX, b"v")])
    long_name = "\N{GRINNING FACE}" * 220  # of four bytes each
    with pytest.raises(BadMessage):
        broker.transactions.half(PutBatch("T", 0, full, 1), long_name)
    broker.transactions.half(PutBatch("T", 0, full, 1, accepted=True), long_name)
    broker.transactions.half(batch(), "g", 0)


async def test_a_check_is_due_after_what_is_left_of_its_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the node's, or of the one that its producer asked for; later checks by their interval."""
    service, times = broker.transactions, broker.times
    monkeypatch.setattr(times, "mono_ms", lambda: 5_000_000)
    monkeypatch.setattr(times, "store_ms", lambda: 100_000)
    service._options = service._options.model_copy(
        update={"timeout_ms": 9000, "check_interval_ms": 4000}
    )
    told = {"REAL_TOPIC": "T", "PGROUP": "g"}
    later = {**told, "TRANSACTION_CHECK_TIMES": "2", "CHECK_IMMUNITY_TIME_IN_SECONDS": "20"}
    for stored, properties, due in (
        (100_000, told, 9000),
        (99_000, told, 8000),
        (101_000, told, 9000),  # by another clock
        (1000, told, 0),
        (99_000, {**told, "CHECK_IMMUNITY_TIME_IN_SECONDS": "20"}, 19_000),
        (99_000, {**told, "CHECK_IMMUNITY_TIME_IN_SECONDS": "x"}, 8000),
        (99_000, later, 3000),
    ):
        half = service._half(7, stored, properties)
        assert half.check_ms == 5_000_000 + due
        assert (half.origin, half.offset, half.group, half.topic) == (7, 7, "g", "T")
        assert half.stored_ms == stored


async def test_an_answer_that_does_not_know_yet_has_it_asked_again_after_the_interval(
    broker: Broker,
) -> None:
    service = broker.transactions
    service.undecided([0], "g")  # nothing is known: nothing happens
    (origin,) = prepare(broker)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 1)
    halves = await service._known()
    half = halves.get(origin)
    assert half is not None
    service._options = service._options.model_copy(update={"check_interval_ms": 1000})
    service._turns.add(half)
    assert service._turns.next("g", half.check_ms, halves.waits) is half
    before = half.check_ms
    service.undecided([origin + 9, origin], "h")
    assert half.check_ms == before, "another group's"
    service.undecided([origin + 9, origin], "g")
    assert half.check_ms < before
    soon = half.check_ms
    service.undecided([origin], "g")
    assert half.check_ms == soon, "it is not asked about any more"


def _halves(service: TransactionService) -> halfmessages.HalfMessages:
    assert service.halves is not None
    return service.halves


# -- a service that no node runs -------------------------------------------------------------------


async def own_service(
    broker: Broker, count: int, **options: int
) -> tuple[TransactionService, halfmessages.HalfMessages]:
    """One that does only what a test calls, and so many half messages."""
    made = broker.transactions._options.model_copy(update=options)
    service = TransactionService(broker.core, made, broker.outbox)
    end = prepare(broker, count)[-1] + 1
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == end)
    return service, await service._known()


async def dispatched(broker: Broker) -> None:
    """What is stored is readable."""
    broker.log.pump_soon()
    await until(lambda: broker.store.dispatcher.behind_bytes() == 0)


class Producers:
    """Asks nobody; says of each check, in turn, whether a producer took it. At the end: none."""

    def __init__(self, *takes: bool) -> None:
        self.takes = list(takes)
        self.asked: list[int] = []

    async def __call__(self, check: transactionservice.Check) -> bool:
        self.asked.append(check.origin)
        return self.takes.pop(0) if self.takes else False


async def test_the_service_tells_what_it_knows_and_what_does_not_fit_together(
    broker: Broker,
) -> None:
    service, halves = await own_service(broker, 2)
    shown = (service.known, service.waiting, service.waiting_by_topic, service.status())
    assert shown == (True, 2, {"T": 2}, {"half_messages_waiting": 2})
    assert [half.origin for half in service.pending()] == [0, 1]
    service._unnoted[1] = True
    assert service.validate() == ""
    service._unnoted[9] = True
    wrong = "the half message at 9 is to be noted, and does not wait"
    assert service.validate() == wrong
    service._unnoted.clear()
    service._ops.extend([(3, 0), (2, 0)])
    assert service.validate() == "the note at 2 is known behind the one at 3"
    service._ops.clear()
    service._decisions.add(1, halfmessages.Decision(True, 5, "g"))
    assert service.validate() == "half messages [1] wait, and are decided"
    halves.by_topic["T"] = 7
    assert "are counted by topic" in service.validate()
    service.role_changed()
    shown = (service.known, service.waiting, service.waiting_by_topic, service.status())
    assert shown == (False, 0, {}, {"half_messages_waiting": 0})
    assert (service.pending(), service.validate()) == ([], "")
    service._ops.append((0, 0))
    assert service.validate() == "decisions without half messages"
    service._ops.clear()
    service._unnoted[0] = False
    assert service.validate() == "decisions without half messages"


async def test_a_change_of_the_master_ends_what_the_last_mastership_began(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of decisions that is half done is not continued with the state of another one."""
    monkeypatch.setattr(transactionservice, "READ", 1)
    service, _ = await own_service(broker, 3)
    for begin in (lambda: service.end([0, 1, 2], True, "g"), service._known):
        call = asyncio.ensure_future(begin())
        await asyncio.sleep(0)
        assert not call.done()
        service.role_changed()
        with pytest.raises(duolog.Unavailable, match="the master changed"):
            await call
        assert not service.known
        assert service._decisions.get(0) is None, "another master may have undone it"
    await dispatched(broker)
    assert sorted(await service._known()) == [1, 2], "the log has the first decision"
    found = broker.store.get("T", 0, QueueOffset(0))
    assert [body for _, body, _ in found.rows()] == [b"0"]


async def test_half_messages_are_known_wholly_or_not_at_all(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the decisions, those that were made would be taken for undecided."""
    service, _ = await own_service(broker, 2)
    await service.end([0], True, "g")
    await dispatched(broker)
    service.role_changed()
    get = broker.store.get

    def unreadable(topic: str, *where: Any) -> GetResult:
        if topic == OP_TOPIC:
            raise StoreClosed
        return get(topic, *where)

    with monkeypatch.context() as patch:
        patch.setattr(broker.store, "get", unreadable)
        with pytest.raises(StoreClosed):
            await service._known()
    assert not service.known
    assert sorted(await service._known()) == [1]


async def test_a_check_that_a_producer_took_is_counted_and_the_next_master_knows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, bool]] = []  # to the replicas, and whether somebody waits
    monkeypatch.setattr(
        broker.log, "settle", lambda end, no_wait=False: sent.append((end, no_wait))
    )
    service, halves = await own_service(broker, 1, check_interval_ms=50_000, check_max=2)
    nobody, producers = Producers(), Producers(True, True)
    service.askers += [nobody, producers]
    for checks in (1, 2):
        now = broker.times.mono_ms()
        assert await service._check(halves, service.pending()[0])
        (half,) = service.pending()
        assert (half.origin, half.offset, half.checks) == (0, checks, checks)
        assert now + 50_000 <= half.check_ms <= broker.times.mono_ms() + 50_000
        assert service.validate() == ""
        assert sent[-1] == (broker.store.max_offset, True)
        await dispatched(broker)
    assert nobody.asked == producers.asked == [0, 0]
    service.role_changed()
    halves = await service._known()
    (half,) = service.pending()
    assert (half.origin, half.offset, half.checks) == (0, 2, 2)
    assert half.stored_ms == broker.core.positions.store_time(HALF_TOPIC, 0, 0)
    assert (await service.find(0)) == service._record(2)
    assert await service._check(halves, half), "it is given up"
    assert (nobody.asked, service.waiting) == ([0, 0], 0)
    await dispatched(broker)
    given_up = broker.store.get(transactionservice.DISCARD_TOPIC, 0, QueueOffset(0))
    assert [body for _, body, _ in given_up.rows()] == [b"0"]
    monkeypatch.undo()
    with pytest.raises(duolog.NoSuchMessage, match="given up"):
        await service.end([0], True, "g")
    await service.end([0], False, "g")


async def test_a_group_is_asked_until_it_takes_nothing_and_by_one_task(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactionservice, "GROUPS_AT_ONCE", 1)
    service, halves = await own_service(broker, 3, timeout_ms=0)
    prepare(broker, 1, "h")
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] == 4)
    await service._known()
    producers = Producers(True, False)
    gate, asked = asyncio.Event(), asyncio.Event()

    async def slow(check: transactionservice.Check) -> bool:
        asked.set()
        await gate.wait()
        return await producers(check)

    service.askers.append(slow)
    async with asyncio.TaskGroup() as tasks:
        await service._check_due(halves, tasks)
        await asked.wait()
        assert list(service._asking) == ["g"]
        await service._check_due(halves, tasks)
        assert list(service._asking) == ["g"], "h waits for its turn"
        gate.set()
    assert (producers.asked, service._asking) == ([0, 1], {}), "2 is not asked about"
    async with asyncio.TaskGroup() as tasks:
        await service._check_due(halves, tasks)
    assert producers.asked == [0, 1, 3], "g is left alone for a moment"
    assert service.validate() == ""


async def test_what_was_checked_often_enough_is_given_up_also_while_its_group_is_asked(
    broker: Broker,
) -> None:
    service, halves = await own_service(broker, 1, timeout_ms=0, check_max=0)
    async with asyncio.TaskGroup() as tasks:
        service._asking["g"] = tasks.create_task(asyncio.sleep(0))
        await service._check_due(halves, tasks)
    assert service.waiting == 0


async def test_a_check_that_cannot_be_stored_is_made_again_after_the_interval(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, halves = await own_service(broker, 1, check_interval_ms=50_000, timeout_ms=0)
    service.askers.append(Producers(True))
    (half,) = halves.due(broker.times.mono_ms(), 10)
    service._turns.add(half)
    assert service._turns.next("g", broker.times.mono_ms(), halves.waits) is half
    refused = PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "full")
    with monkeypatch.context() as patch:
        patch.setattr(broker.log, "write", lambda batch: refused)
        assert not await service._check(halves, half)
    assert service.pending() == [half]
    assert (half.checks, half.offset) == (0, 0)
    assert half.check_ms > broker.times.mono_ms() + 40_000
    assert not service._turns.answered(half), "it is not asked about any more"
    assert service.validate() == ""


async def test_a_half_message_that_is_decided_while_it_is_asked_about_is_not_stored_again(
    broker: Broker,
) -> None:
    service, halves = await own_service(broker, 2)

    async def decides(check: transactionservice.Check) -> bool:
        await service.end([check.origin], True, "g")
        return True

    service.askers.append(decides)
    first, second = service.pending()
    assert await service._check(halves, first)
    assert await service._check(halves, first), "it was decided before"
    await dispatched(broker)
    assert service.pending() == [second]
    assert broker.store.queue_range(HALF_TOPIC, 0)[1] == 2
    assert broker.store.queue_range("T", 0)[1] == 1


async def test_a_half_message_that_was_deleted_is_asked_about_no_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, halves = await own_service(broker, 1)
    monkeypatch.setattr(broker.store, "record_at", lambda *where: None)
    assert await service._check(halves, service.pending()[0])
    assert (service.waiting, service.validate()) == (0, "")


@contextlib.contextmanager
def notes_are_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block that ends with the refusal of a decision's note."""
    write = broker.log.write
    refused = PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "full")
    with monkeypatch.context() as patch:
        patch.setattr(
            broker.log, "write", lambda put: refused if put.topic == OP_TOPIC else write(put)
        )
        with pytest.raises(duolog.Unavailable, match="full"):
            yield


@pytest.mark.parametrize("how", ["check", "commit", "rollback"])
async def test_a_commit_whose_note_was_refused_is_noted_before_anything_else_is_done(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its producer is not asked, and it is not stored again."""
    service, halves = await own_service(broker, 2)
    service.askers.append(producers := Producers(True, True))
    first, second = service.pending()
    with notes_are_refused(broker, monkeypatch):
        await service.end([0], True, "g")
    assert (service.pending(), service.validate()) == ([first, second], "")
    if how == "check":
        assert await service._check(halves, first)
        assert producers.asked == []
    elif how == "commit":
        await service.end([0], True, "g")
    else:
        with pytest.raises(duolog.NoSuchMessage, match="was committed"):
            await service.end([0], False, "g")
    await dispatched(broker)
    assert (service.pending(), service.validate()) == ([second], "")
    assert broker.store.queue_range("T", 0)[1] == 1


async def test_a_message_that_is_given_up_without_a_note_is_never_called_committed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, halves = await own_service(broker, 1, check_max=0)
    with notes_are_refused(broker, monkeypatch):
        service._give_up(halves, service.pending()[0], service._record(0))
    with pytest.raises(duolog.NoSuchMessage, match=r"given up|rolled back"):
        await service.end([0], True, "g")


async def test_checks_and_progress_wait_until_the_node_may_store(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it may lack what the last master decided."""
    monkeypatch.setattr(transactionservice, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(transactionservice, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(broker.transactions, "_save", lambda halves: None)
    service, _ = await own_service(broker, 2, timeout_ms=0)
    service.role_changed()
    service.askers.append(producers := Producers())
    may_store = False
    monkeypatch.setattr(broker.admission, "may_store", lambda: may_store)
    running = asyncio.create_task(service.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert (service.known, producers.asked, running.done()) == (False, [], False)
    may_store = True
    await until(lambda: producers.asked)
    await until(lambda: broker.metadata.tables.committed(GROUP, HALF_TOPIC, 0) == 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert service._asking == {}


async def test_a_node_that_is_not_the_master_decides_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = await own_service(broker, 1)

    def slave() -> None:
        raise duolog.NotMaster("a slave", "", 0)

    with monkeypatch.context() as patch:
        patch.setattr(broker.admission, "check_current", slave)
        with pytest.raises(duolog.NotMaster):
            await service.end([0], True, "g")
    assert service.waiting == 1


async def test_a_half_message_is_as_old_as_its_topic_or_younger(broker: Broker) -> None:
    service, halves = await own_service(broker, 1)
    (half,) = service.pending()
    record = service._record(0)
    for birth, dropped in ((record.physical_offset, False), (record.physical_offset + 1, True)):
        broker.metadata.births.topics["T"] = birth
        assert service.is_too_old(half) == dropped
        assert service._dropped(halves, half, record) == dropped
        assert halves.waits(0) != dropped


def test_offsets_are_stretches_of_consecutive_ones() -> None:
    found = transactionservice._stretches([1, 2, 3, 7, 9, 10])
    assert found == [(1, 3), (7, 1), (9, 2)]
    assert transactionservice._stretches([]) == []
