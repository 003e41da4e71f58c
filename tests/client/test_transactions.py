"""Transactions through the SDK."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import duolog
import duolog.sync
import pytest
from duolog import _transactions
from duolog._errors import DuologError
from duolog._runtime import MACHINE
from duolog._transactions import CHECKS_AT_ONCE, ProducerGroup, Transactions
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.deferred.halfmessages import IN_FLIGHT_MAX, Half, Turns
from duolog_server.node.deferred.redirect import stored_again
from duolog_server.node.deferred.transactionservice import (
    DISCARD_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    Check,
)
from duolog_server.node.engine.log import Log
from duolog_server.serve.server import Node
from duolog_server.store.clocks import MonoMs
from duolog_server.store.messagestore import PutBatch, PutResult
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of, take_checks
from tests.nodefixtures import StartNode, start_node
from tests.until import until

__all__ = ["start_node"]
QUICK = {"timeout_ms": 300, "check_interval_ms": 300}


async def node_with(start: StartNode, **transactions: int) -> Node:
    made = await start(transactions=transactions)
    async with duolog.Client(f"127.0.0.1:{made.port}") as client:
        await client.admin.create_topic("T", 1)
    return made


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    """A node that gives no half message up while a test decides."""
    return await node_with(start_node, **QUICK, check_max=1000)


@pytest.fixture
async def hasty(start_node: StartNode) -> Node:
    """A node that gives half messages up soon."""
    return take_checks(await node_with(start_node, **QUICK, check_max=3))


@pytest.fixture
async def silent(start_node: StartNode) -> Node:
    """A node that asks nobody: on a slow machine, thousands of checks leave no time to decide."""
    return await node_with(start_node, timeout_ms=600_000, check_interval_ms=600_000)


def client_of(node: Node) -> duolog.Client:
    return duolog.Client(f"127.0.0.1:{node.port}", timeout=30)


async def bodies(client: duolog.Client, node: Node, count: int) -> list[bytes]:
    """All messages, once there are so many: also what is stored and not readable yet."""
    store = broker_of(node).store
    async with asyncio.timeout(30):
        while True:
            readable = store.dispatcher.reput_from >= store.log.max_offset
            batch = await client.pull("T", 0, 0)
            if readable and batch.count >= count:
                return batch.body_list()
            await asyncio.sleep(0.02)


async def test_committed_messages_are_visible_and_rolled_back_ones_are_not(node: Node) -> None:
    async with client_of(node) as client, client.transactions("orders") as transactions:
        half = await transactions.prepare(
            "T", b"one", key="k", tags="A", properties={"color": "blue"}
        )
        dropped = await transactions.prepare("T", b"two")
        assert (await client.pull("T", 0, 0)).count == 0
        await asyncio.gather(transactions.commit(half), transactions.rollback(dropped))
        await transactions.commit(half)  # again
        with pytest.raises(duolog.NoSuchMessage, match="rolled back"):
            await transactions.commit(dropped)
        await bodies(client, node, 1)
        (found,) = list(await client.pull("T", 0, 0))
        assert (found.body, found.tags, found.keys) == (b"one", "A", ["k"])
        assert found.unique_key == half.unique_key
        assert set(found.properties) == {"KEYS", "TAGS", "UNIQ_KEY", "TRAN_MSG", "color"}
        await until(lambda: broker_of(node).transactions.waiting == 0)


async def test_a_block_commits_at_its_end_and_rolls_back_where_it_raises(node: Node) -> None:
    async with client_of(node) as client, client.transactions("orders") as transactions:
        async with transactions.begin("T", b"kept"):
            pass
        with pytest.raises(RuntimeError, match="no money"):
            async with transactions.begin("T", b"dropped"):
                raise RuntimeError("no money")
        assert await bodies(client, node, 1) == [b"kept"]
        await until(lambda: broker_of(node).transactions.waiting == 0)
        assert await bodies(client, node, 1) == [b"kept"]


async def test_a_producer_of_the_group_is_checked(node: Node) -> None:
    asked: list[duolog.UndecidedMessage] = []

    async def check(message: duolog.UndecidedMessage) -> bool | None:
        asked.append(message)
        if message.body == b"later" and sum(m.body == b"later" for m in asked) < 2:
            return None
        return message.body != b"no"

    async with client_of(node) as client:
        transactions = client.transactions("orders", check)
        async with transactions, client.transactions("others") as others:
            halves = [
                await transactions.prepare("T", body, tags="A")
                for body in (b"yes", b"no", b"later")
            ]
            await others.prepare("T", b"of nobody who listens")
            found = await bodies(client, node, 2)
            assert sorted(found) == [b"later", b"yes"]
            assert {m.unique_key for m in asked} == {half.unique_key for half in halves}
            assert asked[0].topic == "T"
            assert asked[0].properties["TAGS"] == "A"
            await until(lambda: broker_of(node).transactions.waiting == 1)  # that of the others


async def test_a_group_does_not_decide_for_another(node: Node) -> None:
    async with client_of(node) as client, client.transactions("orders") as transactions:
        half = await transactions.prepare("T", b"x")
        async with client.transactions("others") as others:
            with pytest.raises(duolog.BadRequest, match="another producer group"):
                await others.commit(half)
        wrong = duolog.Half("T", "", half.replica_group, 99)
        with pytest.raises(duolog.NoSuchMessage):
            await transactions.commit(wrong)
        results = await asyncio.gather(
            transactions.commit(half), transactions.commit(wrong), return_exceptions=True
        )
        assert results[0] is None  # one that is wrong spoils no other
        assert isinstance(results[1], duolog.NoSuchMessage)
        assert await bodies(client, node, 1) == [b"x"]


async def test_a_group_does_not_learn_how_the_transactions_of_another_ended(node: Node) -> None:
    async with (
        client_of(node) as client,
        client.transactions("orders") as orders,
        client.transactions("others") as others,
    ):
        done, dropped = [await orders.prepare("T", b"x") for _ in range(2)]
        await orders.commit(done)
        await orders.rollback(dropped)
        for known in (True, False):
            for half in (done, dropped):
                for decide in (others.commit, others.rollback):
                    with pytest.raises(duolog.BadRequest, match="another producer group"):
                        await decide(half)
            if known:
                broker_of(node).transactions._decisions.clear()  # now they are only in the log
        await orders.commit(done)


async def test_concurrent_transactions_share_requests(silent: Node) -> None:
    async with client_of(silent) as client, client.transactions("orders") as transactions:
        halves = await asyncio.gather(*(transactions.prepare("T", b"%d" % k) for k in range(2000)))
        ends = [
            transactions.commit(half) if k % 2 else transactions.rollback(half)
            for k, half in enumerate(halves)
        ]
        await asyncio.gather(*ends)
        found = await bodies(client, silent, 1000)
        assert sorted(map(int, found)) == list(range(1, 2000, 2))
        assert broker_of(silent).store.queue_range(HALF_TOPIC, 0)[1] >= 2000


async def test_half_messages_are_sent_in_batches(silent: Node) -> None:
    async with client_of(silent) as client, client.transactions("orders") as transactions:
        halves = await transactions.prepare_batch("T", [b"%d" % k for k in range(500)], tags="A")
        assert len({half.unique_key for half in halves}) == 500
        await transactions.commit_all(halves[:300])
        await transactions.rollback_all(halves[300:])
        await transactions.commit_all(halves[:300])  # decided already
        with pytest.raises(duolog.NoSuchMessage, match="rolled back"):
            await transactions.commit_all(halves)
        found = await bodies(client, silent, 300)
        assert found == [b"%d" % k for k in range(300)]
        batch = await client.pull("T", 0, 0)
        assert [message.unique_key for message in batch] == [h.unique_key for h in halves[:300]]


async def test_the_synchronous_transactions_behave_the_same(node: Node) -> None:
    def work() -> list[bytes]:
        asked: list[bytes] = []

        def check(message: duolog.UndecidedMessage) -> bool:
            asked.append(message.body)
            return True

        endpoint = f"127.0.0.1:{node.port}"
        with (
            duolog.sync.Client(endpoint) as client,
            client.transactions("orders", check) as transactions,
        ):
            with transactions.begin("T", b"block"):
                pass
            transactions.commit(transactions.prepare("T", b"commit", tags="A"))
            transactions.rollback(transactions.prepare("T", b"rollback"))
            transactions.prepare("T", b"asked")
            with client.producer() as producer:
                producer.send("T", b"delayed", delay=0.2)
            found: list[bytes] = []
            while len(found) < 4:
                found = client.pull("T", 0, 0).body_list()
            assert b"asked" in asked  # others as well, where the machine is slow to decide
            return found

    async with asyncio.timeout(60):
        found = await asyncio.to_thread(work)
    assert sorted(found) == [b"asked", b"block", b"commit", b"delayed"]


async def test_a_transaction_that_the_last_master_committed_unrecorded_is_not_stored_again(
    node: Node,
) -> None:
    async with client_of(node) as client, client.transactions("orders") as transactions:
        half = await transactions.prepare("T", b"once")
        service = broker_of(node).transactions
        await broker_of(node).log.caught_up()
        await service._known()
        service._commit(half.offset, 1, [])  # and the log is cut before the note of it
        assert await bodies(client, node, 1) == [b"once"]
        service.role_changed()
        await transactions.commit(half)
        await transactions.commit(await transactions.prepare("T", b"later"))
        assert await bodies(client, node, 2) == [b"once", b"later"]
        await until(lambda: service.waiting == 0)


async def test_a_commit_whose_record_is_refused_is_made_once(
    hasty: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full between the message and the record that it is committed or discarded."""
    write, refused = Log.write, [OP_TOPIC, OP_TOPIC, OP_TOPIC]

    def full_in_between(self: Log, batch: PutBatch) -> PutResult:
        if batch.topic in refused:
            refused.remove(batch.topic)
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "no room")
        return write(self, batch)

    async with client_of(hasty) as client, client.transactions("orders") as transactions:
        half = await transactions.prepare("T", b"one")
        left = await transactions.prepare("T", b"two")
        monkeypatch.setattr(Log, "write", full_in_between)
        await transactions.commit(half)
        assert await bodies(client, hasty, 1) == [b"one"]
        assert not refused
        refused.append(OP_TOPIC)
        await until(lambda: broker_of(hasty).transactions.waiting == 0)
        assert await bodies(client, hasty, 1) == [b"one"]
        given_up = await client.pull(DISCARD_TOPIC, 0, 0)
        assert given_up.body_list() == [b"two"]
        with pytest.raises(duolog.NoSuchMessage):
            await transactions.commit(left)


async def test_a_transaction_that_the_last_master_ended_unrecorded_is_not_discarded(
    hasty: Node,
) -> None:
    async with client_of(hasty) as client, client.transactions("orders") as transactions:
        committed = await transactions.prepare("T", b"committed")
        given_up = await transactions.prepare("T", b"given up")
        service = broker_of(hasty).transactions
        await broker_of(hasty).log.caught_up()
        await service._known()
        service._commit(committed.offset, 1, [])
        record = await service.find(given_up.offset)
        assert record is not None
        broker_of(hasty).metadata.make_if_missing(DISCARD_TOPIC)
        service._put(stored_again(record, DISCARD_TOPIC, record.properties))
        assert await bodies(client, hasty, 1) == [b"committed"]
        service.role_changed()  # and the log was cut before the notes
        with pytest.raises(duolog.NoSuchMessage, match="given up"):
            await transactions.commit(given_up)
        await until(lambda: service.known and service.waiting == 0)  # nobody answers
        assert (await client.pull(DISCARD_TOPIC, 0, 0)).body_list() == [b"given up"]
        with pytest.raises(duolog.NoSuchMessage, match="was committed"):
            await transactions.rollback(committed)


async def test_a_message_of_another_topic_that_was_given_up_is_not_taken_for_this_one(
    node: Node,
) -> None:
    """A sender that writes its properties itself may give it any key."""
    async with client_of(node) as client, client.transactions("orders") as transactions:
        half = await transactions.prepare("T", b"mine")
        service = broker_of(node).transactions
        await broker_of(node).log.caught_up()
        record = await service.find(half.offset)
        assert record is not None
        broker_of(node).metadata.make_if_missing(DISCARD_TOPIC)
        forged = {**record.properties, "REAL_TOPIC": "U"}
        service._put(stored_again(record, DISCARD_TOPIC, forged))
        await broker_of(node).log.caught_up()
        service.role_changed()  # this master may have been another one before
        await transactions.commit(half)
        assert await bodies(client, node, 1) == [b"mine"]


# -- decisions, without a node -------------------------------------------------------------------


class Deciding:
    """What transactions need of a router and a producer; its node answers when it is let."""

    runtime, forked = MACHINE, False

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.let = asyncio.Event()
        self.messages = self
        self.statuses: list[str] = []  # with which it does not confirm a decision
        self.silent_after = 0  # calls; it does not answer later ones; 0: it answers all

    def check_process(self) -> None:
        """It is this one."""

    async def reach(self, replica_group: str, timeout: float) -> "Deciding":
        return self

    async def call(self, make: Any, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await make(timeout)

    async def EndTransactions(self, request: Any, timeout: float) -> None:
        self.asked.append(list(request.halves))
        await self.let.wait()
        if self.silent_after == 1:
            raise duolog.Timeout("no answer")
        self.silent_after = max(0, self.silent_after - 1)
        if self.statuses:
            raise duolog.ResultUnknown("as the node says", self.statuses.pop(0))

    async def close(self) -> None:
        """Nothing to do."""


def transactions_of(node: Deciding, timeout: float, accept_weak: bool = False) -> Transactions:
    group = ProducerGroup("g", accept_weak=accept_weak)
    return Transactions(node, node, group, timeout)  # type: ignore[arg-type]


async def outcome_of(deciding: "asyncio.Future[None]") -> DuologError | None:
    async with asyncio.timeout(20):
        try:
            await deciding
        except DuologError as error:
            return error
    return None


def half(offset: int) -> duolog.Half:
    return duolog.Half("T", "", "r", offset)


async def test_replica_groups_that_come_are_found_also_after_a_look_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_transactions, "FRESH_SECONDS", 0.0)
    made, looks = transactions_of(Deciding(), 5.0), list[int]()

    async def look() -> None:
        looks.append(len(looks))
        raise duolog.Unavailable("no node")

    monkeypatch.setattr(made, "_listen_everywhere", look)
    finding = asyncio.create_task(made._find_groups())
    await until(lambda: finding.done() or len(looks) > 2)
    finding.cancel()
    await asyncio.gather(finding, return_exceptions=True)
    assert len(looks) > 2


@pytest.mark.parametrize("checks", [True, False])
async def test_closed_transactions_start_no_more(node: Node, checks: bool) -> None:
    """Nobody would answer the node's questions."""

    async def checker(_: duolog.UndecidedMessage) -> bool:
        return True

    async with client_of(node) as client:
        made = client.transactions("g", checker=checker if checks else None)
        await made.start()
        await made.close()
        with pytest.raises(duolog.BadRequest, match="closed"):
            await made.start()


async def test_transactions_without_time_are_refused() -> None:
    async with duolog.Client("127.0.0.1:1") as client:
        with pytest.raises(duolog.BadRequest, match="timeout"):
            client.transactions("g", timeout=0)


async def test_a_decision_whose_request_was_never_begun_is_answered() -> None:
    node = Deciding()
    transactions = transactions_of(node, 30)
    deciding = asyncio.ensure_future(transactions.commit(half(1)))
    while not transactions._deciding.busy:
        assert not deciding.done()
        await asyncio.sleep(0)
    await transactions._deciding.stop()  # its task has not taken its first step
    assert isinstance(await outcome_of(deciding), duolog.ResultUnknown)
    assert node.asked == []
    node.let.set()
    await transactions.commit(half(2))  # the next one begins anew
    assert node.asked == [[2]]


async def test_waiting_for_a_decision_is_limited_to_the_calls_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duolog._transactions.LATE_SECONDS", 0.05)
    node = Deciding()

    async def never(make: Any, timeout: float) -> None:
        await make(timeout)

    monkeypatch.setattr(node, "call", never)
    transactions = transactions_of(node, 0.5)
    sent = asyncio.ensure_future(transactions.commit(half(1)))
    await until(lambda: bool(node.asked))
    waits = asyncio.ensure_future(transactions.commit(half(2)))
    assert isinstance(await outcome_of(sent), duolog.ResultUnknown)
    late = await outcome_of(waits)
    assert isinstance(late, duolog.Timeout)
    assert str(late) == "half message 2 was not decided within 0.5 s: its turn did not come"
    node.let.set()
    await transactions._deciding.finish()
    assert node.asked == [[1]], "what was given up is not decided later"


async def test_a_request_has_what_is_left_of_the_time_of_its_decisions() -> None:
    node, now = Deciding(), asyncio.get_running_loop().time
    given: list[float] = []
    called: list[float] = []

    second_waits = asyncio.Event()

    async def call(make: Any, timeout: float) -> None:
        given.append(timeout)
        called.append(now())
        await second_waits.wait()
        await asyncio.sleep(0.05)
        await make(timeout)

    node.call = call  # type: ignore[method-assign]
    node.let.set()
    transactions = transactions_of(node, 10)
    began = now()
    first = asyncio.ensure_future(transactions.commit(half(1)))
    await until(lambda: bool(given))
    second_began = now()
    second = asyncio.ensure_future(transactions.commit(half(2)))
    await asyncio.sleep(0)
    second_waits.set()
    await asyncio.gather(first, second)
    assert began + 10 - called[0] <= given[0] <= 10
    assert second_began + 10 - called[1] <= given[1] < 9.98


async def test_a_decision_that_is_not_confirmed_is_repeated_until_it_is() -> None:
    node = Deciding()
    node.let.set()
    node.statuses = ["FLUSH_SLAVE_TIMEOUT", "FLUSH_DISK_TIMEOUT"]
    await transactions_of(node, 30).commit(half(1))
    assert node.asked == [[1]] * 3
    node.statuses = ["FLUSH_SLAVE_TIMEOUT"] * 1000
    with pytest.raises(duolog.ResultUnknown) as failure:
        await transactions_of(node, 0.3).rollback(half(2))
    assert failure.value.status == "FLUSH_SLAVE_TIMEOUT"
    node.statuses = ["FLUSH_SLAVE_TIMEOUT"]
    node.silent_after = 2
    with pytest.raises(duolog.ResultUnknown, match="unknown whether") as failure:
        await transactions_of(node, 0.3).rollback(half(5))  # the repeat has no answer
    assert failure.value.status == "FLUSH_SLAVE_TIMEOUT"
    node.silent_after = 0
    node.statuses, node.asked = ["SLAVE_NOT_AVAILABLE"], []
    with pytest.raises(duolog.SlaveNotAvailable):
        await transactions_of(node, 30).commit_all([half(3)])
    assert node.asked == [[3]]
    node.statuses = ["SLAVE_NOT_AVAILABLE"]
    await transactions_of(node, 30, accept_weak=True).commit(half(4))


async def test_a_decision_may_be_the_first_call_of_a_client(silent: Node) -> None:
    """A process that was started again decides about half messages that it remembers."""
    async with client_of(silent) as client, client.transactions("orders") as transactions:
        halves = [await transactions.prepare("T", b"%d" % k) for k in range(5)]
    deciding: list[Callable[[Transactions], Any]] = [
        lambda transactions: transactions.commit(halves[0]),
        lambda transactions: transactions.rollback(halves[1]),
        lambda transactions: transactions.commit_all(halves[2:4]),
        lambda transactions: transactions.rollback_all(halves[4:]),
    ]
    for decide in deciding:
        async with client_of(silent) as client, client.transactions("orders") as transactions:
            await decide(transactions)
    async with client_of(silent) as client, client.transactions("orders") as transactions:
        assert await bodies(client, silent, 3) == [b"0", b"2", b"3"]
        with pytest.raises(duolog.UnknownTopic, match="replica group 'elsewhere'"):
            await transactions.commit(replace(halves[0], replica_group="elsewhere"))


async def test_a_slow_checker_and_many_undecided_messages_are_all_decided(
    start_node: StartNode,
) -> None:
    """Checks that nobody was given, or that wait for their turn, give nothing up."""
    node = await node_with(start_node, timeout_ms=100, check_interval_ms=100, check_max=3)
    broker, side_by_side, at_once = broker_of(node), 0, 0

    async def check(message: duolog.UndecidedMessage) -> bool:
        nonlocal side_by_side, at_once
        at_once += 1
        side_by_side = max(side_by_side, at_once)
        await asyncio.sleep(0.05)
        at_once -= 1
        return True

    async with client_of(node) as client:
        async with client.transactions("orders") as transactions:
            await transactions.prepare_batch("T", [b"x"] * 100)
        await until(lambda: broker.transactions.waiting == 100)
        await until(lambda: "orders" in broker.transactions._turns._left_alone)
        assert all(half.checks == 0 for half in broker.transactions.pending())
        async with client.transactions("orders", check):
            await until(lambda: broker.transactions.waiting == 0)
        assert len(await bodies(client, node, 100)) == 100
    assert DISCARD_TOPIC not in broker.metadata.topics
    assert 1 < side_by_side <= CHECKS_AT_ONCE


def test_a_group_is_asked_about_so_many_at_a_time_as_it_may_answer() -> None:
    turns, decided, now = Turns(1000), set[int](), MonoMs(0)
    for k in range(40):
        turns.add(Half(k, k, "g", 0, now))

    def given() -> list[int]:
        found = []
        while "g" in turns.groups(now) and (
            half := turns.next("g", now, lambda origin: origin not in decided)
        ):
            turns.asked(half, now)
            found.append(half.origin)
        return found

    assert given() == list(range(IN_FLIGHT_MAX))
    assert given() == []
    decided.update((3, 7))
    assert given() == [32, 33]
    now = MonoMs(1000)  # the time of the first one is over, not of those behind it
    assert given() == [34]
    assert turns.groups(now) == ["g"]
    now = MonoMs(60_000)
    assert given() == list(range(35, 40))
    assert turns.groups(now) == []


def test_an_undecided_answer_frees_its_place_also_where_it_overtakes_the_check() -> None:
    turns, now = Turns(1000), MonoMs(0)
    halves = [Half(k, k, "g", 0, now) for k in range(IN_FLIGHT_MAX + 2)]
    for half in halves:
        turns.add(half)
    for _ in range(IN_FLIGHT_MAX):
        given = turns.next("g", now, lambda _: True)
        assert given is not None
        turns.asked(given, now)
    assert turns.next("g", now, lambda _: True) is None
    assert turns.answered(halves[5])
    assert not turns.answered(halves[5])
    early = turns.next("g", now, lambda _: True)
    assert early is halves[IN_FLIGHT_MAX]
    assert turns.answered(early)
    assert turns.asked(early, now) == 1000
    last = turns.next("g", now, lambda _: True)
    assert last is halves[IN_FLIGHT_MAX + 1]


async def test_answers_that_do_not_know_yet_hold_up_no_others(start_node: StartNode) -> None:
    """Their places are free at once; each of them counts as a check."""
    node = await node_with(start_node, timeout_ms=100, check_interval_ms=20_000, check_max=9)
    broker = broker_of(node)
    asked: list[bytes] = []

    async def check(message: duolog.UndecidedMessage) -> bool | None:
        asked.append(message.body)
        if message.body == b"fails":
            raise ValueError("a checker's fault")
        return True if message.body == b"decided" else None

    async with client_of(node) as client, client.transactions("orders", check) as transactions:
        await transactions.prepare_batch("T", [b"unknown"] * IN_FLIGHT_MAX + [b"fails"])
        await until(lambda: len(asked) == IN_FLIGHT_MAX + 1)
        await transactions.prepare_batch("T", [b"decided"] * 3)
        assert await bodies(client, node, 3) == [b"decided"] * 3
        assert broker.transactions.waiting == IN_FLIGHT_MAX + 1
        assert {half.checks for half in broker.transactions.pending()} == {1}


async def test_a_group_whose_producers_take_nothing_holds_up_no_other_group(
    start_node: StartNode,
) -> None:
    node = await node_with(start_node, timeout_ms=100, check_interval_ms=100, check_max=3)
    transactions, stalled = broker_of(node).transactions, asyncio.Event()

    async def ask(check: Check) -> bool:
        if check.group == "slow":
            stalled.set()
            await asyncio.Event().wait()
        return False

    transactions.askers.insert(0, ask)

    async def check(message: duolog.UndecidedMessage) -> bool:
        return True

    async with client_of(node) as client:
        async with client.transactions("slow") as slow:
            await slow.prepare("T", b"slow")
        await stalled.wait()
        async with client.transactions("quick", check) as quick:
            await quick.prepare_batch("T", [b"x"] * 40)
            assert len(await bodies(client, node, 40)) == 40
    assert transactions.waiting == 1


async def test_checks_that_end_before_they_begin_leave_their_permits(node: Node) -> None:
    async def check(message: duolog.UndecidedMessage) -> None:
        await asyncio.Event().wait()

    async with client_of(node) as client:
        transactions = client.transactions("orders", check)
        asked = ("", 1)
        for _ in range(CHECKS_AT_ONCE):
            await transactions._asking.acquire()
            transactions._take(wire.TransactionCheck(half=1), asked)
            await transactions._answering.stop()
            assert not transactions._asked
        assert transactions._asking._value == CHECKS_AT_ONCE
        await transactions.close()


async def test_a_check_that_is_asked_again_meanwhile_is_answered_once() -> None:
    """A checker that takes its time would be called anew with each interval of the node."""
    told: list[Any] = [wire.TransactionCheck(half=half) for half in (1, 1, 2, 1)]
    taken: list[tuple[str, int]] = []

    def take(check: wire.TransactionCheck, asked: tuple[str, int]) -> None:
        owner._asked.add(asked)
        taken.append(asked)

    async def read() -> Any:
        return told.pop(0) if told else None

    async def settled() -> None:
        pass

    call = SimpleNamespace(read=read, cancel=lambda: None)
    messages = SimpleNamespace(TransactionChecks=lambda request: call)
    permits = asyncio.Semaphore(4)
    owner: Any = SimpleNamespace(group="g", _asked=set(), _asking=permits, _take=take)
    reading: Any = SimpleNamespace(settled=settled, messages=messages)
    await Transactions._answer_all(owner, reading, "a")
    assert taken == [("a", 1), ("a", 2)]
    assert permits._value == 2, "each holds a permit until it is answered"


async def test_a_listener_follows_the_master_and_ends_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[Exception | None] = [
        duolog.NotMaster("see m", "m:1", 4),
        duolog.Unavailable("gone"),
        duolog.Unavailable("gone"),
        None,
        duolog.Unavailable("gone"),
        duolog.NoPermission("no"),
    ]
    pauses: list[float] = []
    rotated: list[tuple[int, str, int]] = []

    class Reading:
        moves = 7
        closed = False

        def named(self, error: duolog.DuologError) -> duolog.DuologError:
            return type(error)(f"as ann: {error}")

        async def rotate(self, *how: Any) -> None:
            rotated.append(how)

        async def close(self) -> None:
            self.closed = True

    async def answer_all(connection: object, group: str) -> None:
        assert (connection, group) == (reading, "a")
        if (failure := failures.pop(0)) is not None:
            raise failure

    async def sleep(seconds: float) -> None:
        assert len(pauses) == len(rotated), "another node is asked after the pause"
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    reading = Reading()
    runtime = SimpleNamespace(chance=SimpleNamespace(uniform=lambda low, high: 1.0))
    router = SimpleNamespace(reading=lambda group: reading, runtime=runtime)
    listener: Any = SimpleNamespace(_router=router, _answer_all=answer_all)
    with pytest.raises(duolog.NoPermission, match="as ann: no"):
        await Transactions._listen(listener, "a")
    assert rotated == [(7, "m:1", 4), *[(7, "", 0)] * 4]
    assert pauses == [0.005, 0.05, 0.1, 0.05, 0.1], "shorter again after a stream that ended well"
    assert reading.closed


async def test_decisions_end_before_their_tasks_do_and_before_the_producer() -> None:
    done: list[str] = []

    def noted(what: str) -> Any:
        async def call(*how: Any) -> None:
            done.append(" ".join(map(str, (what, *how))))

        return call

    def owner(what: str) -> Any:
        return SimpleNamespace(stop=noted(f"{what} stops"), finish=noted(f"{what} end within"))

    transactions: Any = SimpleNamespace(
        _router=SimpleNamespace(forked=False),
        _listening=owner("questions"),
        _answering=owner("answers"),
        _deciding=owner("decisions"),
        _listeners={},
        _timeout=5.0,
        _producer=SimpleNamespace(close=noted("producer")),
    )
    await Transactions.close(transactions)
    assert done == [
        "questions stops",
        "answers stops",
        "decisions end within 5.0",
        "decisions stops",
        "producer",
    ]
    transactions._router.forked = True
    await Transactions.close(transactions)
    assert len(done) == 5
