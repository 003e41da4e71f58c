"""Transactions through RocketMQ's API: decided by the producer, asked about, given up."""

import asyncio
import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import duolog
import pytest

from duolog_server.compat.grpc.protocol.stubs import Code, definition, service
from duolog_server.node.deferred.transactionservice import HALF_TOPIC, OP_TOPIC, Check
from duolog_server.serve.server import Node
from tests.compat.grpc.api import Api, message, resource
from tests.node.replicas import WAIT_SECONDS, Elected, broker_of, take_checks
from tests.nodefixtures import StartNode
from tests.until import until

QUICK = {"timeout_ms": 300, "check_interval_ms": 300, "check_max": 2}
PATIENT = {**QUICK, "check_max": 1000}  # nothing is given up before it is decided
TRANSACTION = definition.MessageType.TRANSACTION
COMMIT = definition.TransactionResolution.COMMIT
ROLLBACK = definition.TransactionResolution.ROLLBACK
UNSPECIFIED = definition.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


async def half(api: Api, body: bytes = b"x", **system: Any) -> tuple[str, str]:
    """Send a half message: its message id and transaction id."""
    sent = message(body, message_type=TRANSACTION, **system)
    reply = await api.send(sent)
    assert reply.status.code == Code.OK
    (entry,) = reply.entries
    assert entry.transaction_id
    return entry.message_id, entry.transaction_id


async def end(
    api: Api, ids: tuple[str, str], resolution: definition.TransactionResolution, topic: str = "T"
) -> int:
    request = service.EndTransactionRequest(
        topic=resource(topic), message_id=ids[0], transaction_id=ids[1], resolution=resolution
    )
    return int((await api.call("EndTransaction", request)).status.code)


class Checker:
    """A producer's telemetry stream, and what it was asked."""

    def __init__(self, api: Api, *topics: str) -> None:
        self.api = api
        self.asked: list[Any] = []
        self.over = asyncio.Event()
        self.settled = asyncio.Event()
        publishing = definition.Publishing(topics=[resource(topic) for topic in topics])
        self._settings = definition.Settings(publishing=publishing)
        self._task = asyncio.ensure_future(self._listen())

    async def _requests(self) -> Any:
        yield service.TelemetryCommand(settings=self._settings)
        await self.over.wait()

    async def _listen(self) -> None:
        call = self.api.stub.Telemetry(self._requests(), metadata=self.api.metadata)
        async for command in call:
            if command.WhichOneof("command") == "settings":
                self.settled.set()
            else:
                self.asked.append(command.recover_orphaned_transaction_command)

    async def close(self) -> None:
        self.over.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def quick(start_node: StartNode) -> Node:
    node = await start_node(transactions=QUICK)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 2)
        await client.admin.create_topic("U", 2)
    return take_checks(node)


@pytest.fixture
async def patient(start_node: StartNode) -> Node:
    node = await start_node(transactions=PATIENT)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 2)
    return take_checks(node)


async def test_a_half_message_is_seen_when_it_is_committed_and_never_when_rolled_back(
    api: Api, node: Node
) -> None:
    one = await half(api, b"commit", tag="A", keys=["k"], properties={"color": "blue"})
    two = await half(api, b"rollback")
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND
    assert await end(api, one, COMMIT) == Code.OK
    assert await end(api, two, ROLLBACK) == Code.OK
    received = await api.receive("h", timeout=20)
    assert [one.system_properties.message_type for one in received.messages] == [TRANSACTION]
    (handle,) = received.handles
    assert (await api.change("h", handle, 0)).status.code == Code.OK
    (again,) = (await api.receive("h", timeout=20)).messages
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.message_type == TRANSACTION
    received = await api.receive("g", timeout=20)
    (found,) = received.messages
    assert found.body == b"commit"
    assert (found.system_properties.message_id, found.system_properties.tag) == (one[0], "A")
    assert dict(found.user_properties) == {"color": "blue"}
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND
    broker = broker_of(node)
    await until(lambda: broker.transactions.waiting == 0)
    assert broker.store.queue_range(HALF_TOPIC, 0) == (0, 2)
    await until(lambda: broker.store.queue_range(OP_TOPIC, 0) == (0, 2))


async def test_the_first_decision_counts_and_the_other_one_is_refused(api: Api) -> None:
    invalid = Code.INVALID_TRANSACTION_ID
    one = await half(api, b"x")
    assert await end(api, one, UNSPECIFIED) == Code.OK
    assert [await end(api, one, ROLLBACK) for _ in range(2)] == [Code.OK] * 2
    assert await end(api, one, COMMIT) == invalid
    two = await half(api, b"y")
    assert [await end(api, two, COMMIT) for _ in range(3)] == [Code.OK] * 3
    assert await end(api, two, ROLLBACK) == invalid
    assert await end(api, ("other", two[1]), COMMIT) == invalid
    assert (await api.receive("g", timeout=20)).bodies == [b"y"]
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_decisions_that_are_not_in_memory_are_read_from_the_log(
    api: Api, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.node.deferred.halfmessages.DECISIONS_MAX", 2)
    ids = [await half(api, b"%d" % k) for k in range(6)]
    for k, one in enumerate(ids):
        assert await end(api, one, COMMIT if k % 2 else ROLLBACK) == Code.OK
    dispatcher = broker_of(node).store.dispatcher
    await until(lambda: dispatcher.behind_bytes() == 0)
    for k, one in enumerate(ids):
        same, other = (COMMIT, ROLLBACK) if k % 2 else (ROLLBACK, COMMIT)
        assert await end(api, one, same) == Code.OK
        assert await end(api, one, other) == Code.INVALID_TRANSACTION_ID


async def test_a_late_commit_is_answered_with_an_error(node: Node) -> None:
    async def undecided(message: duolog.UndecidedMessage) -> bool | None:
        return None

    async with (
        duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client,
        client.transactions("billing", undecided) as transactions,
    ):
        halves = [await transactions.prepare("T", b"%d" % k) for k in range(3)]
        await transactions.rollback(halves[1])
        with pytest.raises(duolog.NoSuchMessage, match="rolled back"):
            await transactions.commit(halves[1])
        with pytest.raises(duolog.NoSuchMessage, match="rolled back"):
            await transactions.commit_all(halves)  # the others are committed all the same
        await transactions.commit_all([halves[0], halves[2]])
        with pytest.raises(duolog.NoSuchMessage, match="committed"):
            await transactions.rollback(halves[2])


async def test_forged_and_foreign_transaction_ids_are_refused(api: Api) -> None:
    ids = await half(api)
    invalid = Code.INVALID_TRANSACTION_ID
    assert await end(api, (ids[0], ""), COMMIT) == invalid
    assert await end(api, (ids[0], "x"), COMMIT) == invalid
    assert await end(api, ("other", ids[1]), COMMIT) == invalid
    assert await end(api, ids, COMMIT, topic="U") == invalid
    from duolog_server.compat.grpc.protocol.handles import TransactionId

    unknown = TransactionId("broker-a", "T", 99).to_text()
    assert await end(api, (ids[0], unknown), COMMIT) == invalid
    elsewhere = TransactionId("broker-b", "T", 0).to_text()
    assert await end(api, (ids[0], elsewhere), COMMIT) == invalid
    assert await end(api, ids, COMMIT) == Code.OK


async def test_a_producer_is_checked_and_its_answer_counts(patient: Node) -> None:
    api, asked = Api(patient), Api(patient, "producer@1")
    checker = Checker(asked, "T")
    await checker.settled.wait()
    committed = await half(api, b"commit")
    dropped = await half(api, b"drop")
    await until(lambda: len({command.message.body for command in checker.asked}) == 2)
    by_body = {command.message.body: command for command in checker.asked}
    for body, (message_id, transaction_id) in ((b"commit", committed), (b"drop", dropped)):
        command = by_body[body]
        assert command.transaction_id == transaction_id
        system = command.message.system_properties
        assert system.message_id == message_id
        assert system.body_digest.checksum
        assert command.message.topic.name == "T"
    assert await end(asked, committed, COMMIT) == Code.OK
    assert await end(asked, dropped, ROLLBACK) == Code.OK
    assert (await api.receive("g", timeout=20)).bodies == [b"commit"]
    await until(lambda: broker_of(patient).transactions.waiting == 0)
    await checker.close()


async def test_a_producer_is_known_by_what_it_sent(patient: Node) -> None:
    api = Api(patient)
    checker = Checker(api)  # it publishes to nothing yet
    await checker.settled.wait()
    await half(api, b"x")
    await until(lambda: len(checker.asked) >= 1)
    await checker.close()


async def test_an_undecided_transaction_moves_to_rocketmqs_check_topic(quick: Node) -> None:
    api = Api(quick)
    ids = await half(api, b"orphan")
    broker = broker_of(quick)
    await until(lambda: "TRANS_CHECK_MAX_TIME_TOPIC" in broker.metadata.topics)
    await until(lambda: broker.transactions.waiting == 0)
    await until(lambda: broker.store.queue_range("TRANS_CHECK_MAX_TIME_TOPIC", 0) == (0, 1))
    assert broker.store.queue_range(HALF_TOPIC, 0) == (0, 1 + QUICK["check_max"])
    assert await end(api, ids, COMMIT) == Code.INVALID_TRANSACTION_ID
    assert await end(api, ids, ROLLBACK) == Code.OK
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_a_half_message_that_was_checked_is_decided_by_its_first_id(patient: Node) -> None:
    api = Api(patient)
    ids = await half(api, b"x")
    await until(lambda: broker_of(patient).store.queue_range(HALF_TOPIC, 0)[1] >= 2)
    assert await end(api, ids, COMMIT) == Code.OK
    assert (await api.receive("g", timeout=20)).bodies == [b"x"]
    assert (await api.receive("g")).code == Code.MESSAGE_NOT_FOUND


async def test_a_half_message_may_ask_for_more_time(quick: Node) -> None:
    api = Api(quick)
    sent = message(b"x", message_type=TRANSACTION)
    sent.system_properties.orphaned_transaction_recovery_duration.FromSeconds(60)
    await api.send(sent)
    await asyncio.sleep(1.0)
    assert broker_of(quick).store.queue_range(HALF_TOPIC, 0) == (0, 1)


async def test_a_transaction_decided_during_other_checks_is_not_checked(quick: Node) -> None:
    """Nor stored again: it would wait once more, and could be decided once more."""
    api = Api(quick)
    transactions = broker_of(quick).transactions
    asked: list[int] = []
    sent = asyncio.Event()

    async def ask(check: Check) -> bool:
        asked.append(check.origin)
        await sent.wait()
        if len(asked) == 1:  # it may be any of them: they were sent at once
            others = [origin for origin in range(6) if origin != check.origin]
            await transactions.end(others, True, None)
        return True

    transactions.askers.insert(0, ask)
    await asyncio.gather(*(half(api, b"%d" % k) for k in range(6)))
    sent.set()
    await until(lambda: bool(asked) and transactions.waiting == 0)
    assert len(set(asked)) == 1
    store = broker_of(quick).store
    await until(lambda: store.dispatcher.behind_bytes() == 0)
    assert store.queue_range("TRANS_CHECK_MAX_TIME_TOPIC", 0) == (0, 1)
    assert sum(store.queue_range("T", queue)[1] for queue in range(2)) == 5


async def test_every_half_message_ends_in_one_way_over_restarts(
    start_node: StartNode, tmp_path: Path
) -> None:
    async def start(check_interval_ms: int) -> tuple[Node, Api]:
        how = {**QUICK, "check_interval_ms": check_interval_ms}
        node = take_checks(await start_node(tmp_path / "d", transactions=how))
        return node, Api(node)

    # Whatever time this takes, nothing is given up before it is decided.
    node, api = await start(check_interval_ms=600_000)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 2)
    ids = [await half(api, b"%d" % k) for k in range(30)]
    for k in range(10):
        await end(api, ids[k], COMMIT)
    broker = broker_of(node)
    broker.transactions._save(await broker.transactions._known())
    for k in range(10, 15):
        await end(api, ids[k], ROLLBACK)
    await until(lambda: broker.store.queue_range(HALF_TOPIC, 0)[1] >= 45)  # 15 or more asked
    await api.close()
    await node.stop()
    node, api = await start(check_interval_ms=600_000)
    for k in range(15, 20):
        assert await end(api, ids[k], COMMIT) == Code.OK
    for k in range(5):
        assert await end(api, ids[k], COMMIT) == Code.OK  # again
        assert await end(api, ids[k], ROLLBACK) == Code.INVALID_TRANSACTION_ID
    for k in range(10, 15):
        assert await end(api, ids[k], ROLLBACK) == Code.OK
        assert await end(api, ids[k], COMMIT) == Code.INVALID_TRANSACTION_ID
    await api.close()
    await node.stop()
    node, api = await start(check_interval_ms=100)  # now all the others are overdue, at once
    broker = broker_of(node)
    await until(lambda: broker.store.queue_range("TRANS_CHECK_MAX_TIME_TOPIC", 0)[1] > 0)
    await until(lambda: broker.transactions.waiting == 0)
    found: Counter[bytes] = Counter()
    wanted = [*range(10), *range(15, 20)]
    async with asyncio.timeout(WAIT_SECONDS):
        while found.total() < len(wanted):
            found.update((await api.receive("g", poll_ms=2000)).bodies)
    found.update((await api.receive("g")).bodies)
    await until(lambda: broker.store.dispatcher.behind_bytes() == 0)
    aside = broker.store.queue_range("TRANS_CHECK_MAX_TIME_TOPIC", 0)[1]
    assert found == Counter(b"%d" % k for k in wanted)
    assert aside == 10


async def test_half_messages_survive_a_failover(start_node: StartNode, tmp_path: Path) -> None:
    group = await Elected.start(start_node, tmp_path, transactions=PATIENT)
    async with duolog.Client(group.endpoints, timeout=10) as client:
        await client.admin.create_topic("T", 1)
        api = Api(group.the_master())
        ids = [await half(api, b"%d" % k) for k in range(6)]
        await end(api, ids[0], COMMIT)
        await end(api, ids[1], ROLLBACK)
        new = await group.switch(client)
        other = Api(new, "producer@2")
        checker = Checker(other, "T")
        await until(lambda: len({c.transaction_id for c in checker.asked}) == 4)
        assert {c.message.body for c in checker.asked} == {b"2", b"3", b"4", b"5"}
        slave = next(node for node in group.nodes if node is not new)
        through = Api(slave)
        assert await end(through, ids[2], COMMIT) == Code.OK
        assert await end(through, ids[0], COMMIT) == Code.OK
        assert await end(through, ids[0], ROLLBACK) == Code.INVALID_TRANSACTION_ID
        assert await end(other, ids[1], COMMIT) == Code.INVALID_TRANSACTION_ID
        for k in (3, 4, 5):
            assert await end(other, ids[k], ROLLBACK) == Code.OK
        await until(lambda: broker_of(new).transactions.waiting == 0)
        batch = await client.pull("T", 0, 0)
        assert batch.body_list() == [b"0", b"2"]
        await checker.close()
        for made in (api, other, through):
            await made.close()


async def test_a_compressed_half_message_that_was_checked_stays_compressed(patient: Node) -> None:
    api = Api(patient)
    body = gzip.compress(b"x" * 1000)
    ids = await half(api, body, body_encoding=definition.Encoding.GZIP)
    await until(lambda: broker_of(patient).store.queue_range(HALF_TOPIC, 0)[1] >= 2)
    assert await end(api, ids, COMMIT) == Code.OK
    (found,) = (await api.receive("g", timeout=20)).messages
    assert found.body == body
    assert found.system_properties.body_encoding == definition.Encoding.GZIP
