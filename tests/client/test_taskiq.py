"""`duolog.taskiq`: a TaskIQ broker, against real nodes and TaskIQ's own receiver."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import duolog
import duolog.sync
import pytest
from duolog.taskiq import DuologBroker, _delay_in, _Listening
from duolog.testing import Node
from taskiq import (
    AckableMessage,
    AsyncTaskiqDecoratedTask,
    Context,
    InMemoryBroker,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqEvents,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqState,
)
from taskiq.acks import AcknowledgeType
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from tests.client.test_worker import turns
from tests.keyfiles import access_files
from tests.until import WAIT_SECONDS, until

SESSION = 1.0


@pytest.fixture(autouse=True)
def quick_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog.taskiq.COMMIT_SECONDS", 0.1)


def broker_of(node: Node, **options: Any) -> DuologBroker:
    return DuologBroker(node.endpoint, queues=options.pop("queues", 1), session=SESSION, **options)


@contextlib.asynccontextmanager
async def started(broker: DuologBroker) -> AsyncIterator[DuologBroker]:
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@contextlib.asynccontextmanager
async def working(
    broker: DuologBroker, tasks_max: int = 100, wait: float | None = None
) -> AsyncIterator[asyncio.Event]:
    """A worker as `taskiq worker` runs one, until the event is set or the block ends."""
    broker.is_worker_process = True
    receiver = Receiver(broker, max_async_tasks=tasks_max, wait_tasks_timeout=wait)
    finish = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(receiver.listen(finish))
            try:
                await until(lambda: broker._open is not None and broker._open.listening)
                yield finish
            finally:
                finish.set()
    finally:
        await broker.shutdown()


def committed(node: Node) -> int:
    """What the group has consumed of the only queue."""
    with duolog.sync.Client(node.endpoint) as client:
        (queue,) = [q for q in client.admin.group("taskiq").queues if q.topic == "taskiq"]
        assert queue.committed is not None
        return queue.committed


async def test_no_offset_passes_a_task_that_runs_and_what_has_not_ended_runs_again(
    duolog_node: Node,
) -> None:
    ran: Counter[int] = Counter()
    broker = broker_of(duolog_node)
    stuck = asyncio.Event()

    @broker.task
    async def work(number: int) -> None:
        ran[number] += 1
        if number == 3:
            await stuck.wait()

    async with started(broker):
        for number in range(10):
            await work.kiq(number)
    async with working(broker, wait=0.01):
        await until(lambda: len(ran) == 10)
    assert committed(duolog_node) == 3
    stuck.set()
    async with working(broker):
        await until(lambda: ran[9] == 2)
    assert committed(duolog_node) == 10
    assert [ran[number] for number in range(10)] == [1] * 3 + [2] * 7


async def test_a_worker_takes_no_more_tasks_than_taskiq_asks_for(duolog_node: Node) -> None:
    broker, ends = broker_of(duolog_node), asyncio.Event()
    running: list[int] = []

    @broker.task
    async def work(number: int) -> None:
        running.append(number)
        await ends.wait()

    async with started(broker):
        for number in range(50):
            await work.kiq(number)
    async with working(broker, tasks_max=2):
        await until(lambda: len(running) == 2)
        assert broker._open is not None
        (listening,) = broker._open.listening
        await turns()
        assert len(listening._unfinished) <= 4  # older TaskIQ holds two more than it runs
        ends.set()
        await until(lambda: len(running) == 50)
    assert committed(duolog_node) == 50


async def test_events_results_and_requeues_work_as_with_the_broker_in_memory(
    duolog_node: Node,
) -> None:
    seen: dict[str, list[Any]] = {}
    results: InmemoryResultBackend[int] = InmemoryResultBackend()
    brokers = InMemoryBroker(), broker_of(duolog_node).with_result_backend(results)
    for broker in brokers:
        events = seen.setdefault(type(broker).__name__, [])

        def note(event: TaskiqEvents, events: list[Any] = events) -> Callable[[TaskiqState], None]:
            return lambda state: events.append(event)

        for event in (TaskiqEvents.WORKER_STARTUP, TaskiqEvents.WORKER_SHUTDOWN):
            broker.on_event(event)(note(event))

        @broker.task
        async def double(number: int, context: Context = TaskiqDepends()) -> int:
            if "X-Taskiq-requeue" not in context.message.labels:
                await context.requeue()
            return number * 2

        @broker.task
        def fail() -> int:
            raise ValueError("no")

        if isinstance(broker, DuologBroker):
            await broker.startup()
            kicked = [await double.kiq(4), await fail.kiq()]
            await broker.shutdown()
            async with working(broker):
                found = [await one.wait_result(timeout=WAIT_SECONDS) for one in kicked]
        else:
            await broker.startup()
            kicked = [await double.kiq(4), await fail.kiq()]
            found = [await one.wait_result(timeout=WAIT_SECONDS) for one in kicked]
            await broker.shutdown()
        events += [(one.is_err, one.return_value) for one in found]
    assert seen["DuologBroker"] == seen["InMemoryBroker"]
    assert (False, 8) in seen["DuologBroker"]


async def test_labels_are_properties_the_name_a_tag_and_the_id_a_key(duolog_node: Node) -> None:
    broker = broker_of(duolog_node)

    @broker.task(task_name="shop:pay", priority=3, KEYS="mine", text="a\x01b", long="x" * 2000)
    async def pay() -> None: ...

    async with started(broker), duolog.Client(duolog_node.endpoint) as client:
        await pay.kicker().with_labels(paid=True, empty="").with_task_id("id-7").kiq()
        await pay.kicker().with_task_id("no key").kiq()
        first, second = await client.pull("taskiq", 0, 0, wait=10)
        assert first.tags == "shop:pay"
        assert first.keys == ["id-7"]
        assert second.keys == []
        mine = {"priority", "paid", "text", "long", "empty"}
        assert {k: v for k, v in first.properties.items() if k in mine} == {
            "priority": "3",
            "paid": "True",
        }
        read = broker.formatter.loads(first.body)  # has all of them
        read.parse_labels()
        assert read.labels == {
            "priority": 3,
            "KEYS": "mine",
            "text": "a\x01b",
            "long": "x" * 2000,
            "paid": True,
            "empty": "",
        }


async def test_labels_that_are_too_many_for_properties_are_in_the_body_alone(
    duolog_node: Node,
) -> None:
    broker = broker_of(duolog_node)
    labels = {f"label-{number}": "\u20ac" * 900 for number in range(20)}

    @broker.task
    async def work() -> None: ...

    async with started(broker), duolog.Client(duolog_node.endpoint) as client:
        await work.kicker().with_labels(**labels, small=1).kiq()
        (message,) = await client.pull("taskiq", 0, 0, wait=10)
        properties = message.properties
        assert 0 < len(labels.keys() & properties.keys()) < len(labels)
        assert properties["small"] == "1", "it has room where a long one has not"
        read = broker.formatter.loads(message.body)
        read.parse_labels()
        assert read.labels == {**labels, "small": 1}


async def test_a_delayed_task_waits_in_the_store(duolog_node: Node) -> None:
    broker, ran = broker_of(duolog_node), asyncio.Event()

    @broker.task
    async def remind() -> None:
        ran.set()

    async with started(broker), duolog.Client(duolog_node.endpoint) as client:
        before = int(time.time() * 1000)
        await remind.kicker().with_labels(delay=3600).kiq()
        await remind.kicker().with_labels(deliver_at=before + 7200_000).kiq()
        await remind.kicker().with_labels(delay="86400", deliver_at=before).kiq()  # a retry's

        async def hours() -> list[float]:
            waiting = (await client.admin.delayed_page("taskiq")).rows
            return [round((message.due_ms - before) / 3600_000, 1) for message in waiting]

        async def all_wait() -> bool:
            return await hours() == [1.0, 2.0, 24.0]

        await until(all_wait)
        for labels in ({"delay": "soon"}, {"deliver_at": 17}, {"delay": -1}, {"delay": 10 * 86400}):
            with pytest.raises(SendTaskError) as caught:
                await remind.kicker().with_labels(**labels).kiq()
            assert isinstance(caught.value.__cause__, duolog.BadRequest)
        duolog_node.skip(3700)
    async with working(broker):
        async with asyncio.timeout(WAIT_SECONDS):
            await ran.wait()


def test_of_two_delays_the_later_counts() -> None:
    now = time.time() * 1000
    assert _delay_in({}) == (None, None)
    assert _delay_in({"delay": "2.5"}) == (2.5, None)
    assert _delay_in({"deliver_at": "1700000000000"}) == (None, 1700000000000)
    delay, deliver_at = _delay_in({"delay": 10, "deliver_at": 1700000000000})
    assert delay is None
    assert deliver_at is not None
    assert 9_000 < deliver_at - now < 60_000
    assert _delay_in({"delay": 10, "deliver_at": now + 1e9}) == (None, int(now + 1e9))


async def test_the_smart_retry_middleware_retries_by_delayed_messages(duolog_node: Node) -> None:
    broker = broker_of(duolog_node).with_middlewares(SmartRetryMiddleware(default_delay=0.05))
    tries: list[Any] = []

    @broker.task(retry_on_error=True, max_retries=3)
    async def flaky(context: Context = TaskiqDepends()) -> None:
        tries.append(context.message.labels.get("_retries"))
        raise ConnectionError("the bank does not answer")

    async with started(broker):
        await flaky.kiq()
    async with working(broker):
        await until(lambda: len(tries) == 3)
    assert tries == [None, 1, 2]
    assert committed(duolog_node) == 3
    assert retried(duolog_node) == []


def retried(node: Node, group: str = "taskiq") -> list[bytes]:
    """Bodies that wait to be given to the group again, or that it gave up."""
    with duolog.sync.Client(node.endpoint) as client:
        try:
            found = client.admin.delayed_page(f"%RETRY%{group}").rows
        except duolog.UnknownTopic:
            return []
        return [message.unique_key.encode() for message in found]


def dead(node: Node) -> list[bytes]:
    with duolog.sync.Client(node.endpoint) as client:
        try:
            return client.pull("%DLQ%taskiq", 0, 0, wait=0.1).body_list()
        except duolog.UnknownTopic:
            return []


# An int that is none, or of a type that this TaskIQ does not know.
UNREADABLE_LABEL = (
    b'{"task_id": "1", "task_name": "work", "labels": {"n": "seven"}, "labels_types": {"n": %b},'
    b' "args": [], "kwargs": {}}'
)


async def test_what_is_no_task_is_a_dead_letter_and_blocks_nothing(
    duolog_node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    broker, ran = broker_of(duolog_node), asyncio.Event()

    @broker.task(task_name="work")
    async def work() -> None:
        ran.set()

    async with started(broker), duolog.Client(duolog_node.endpoint) as client:
        async with client.producer() as producer:
            bodies = [b"hello", b"\xff\x00", b'{"task_id": "1"}', b"[]"]
            bodies += [UNREADABLE_LABEL % kind for kind in (b"2", b"99")]
            for body in bodies:
                await producer.send("taskiq", body)
        await work.kiq()
    async with working(broker, tasks_max=1):
        await until(ran.is_set)
    assert committed(duolog_node) == 7
    assert dead(duolog_node) == bodies
    lines = [one.getMessage() for one in caplog.records if one.name == "duolog.taskiq"]
    assert len(lines) == 6
    assert all("is no task" in line and "%DLQ%taskiq" in line for line in lines)


async def test_a_task_that_a_worker_does_not_know_is_retried_by_one_that_does(
    duolog_node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    newer, older, ran = broker_of(duolog_node), broker_of(duolog_node), asyncio.Event()

    @newer.task(task_name="of-a-later-release")
    async def work() -> None:
        ran.set()

    known = asyncio.Event()

    @older.task
    async def other() -> None:
        known.set()

    async with started(newer), started(older):
        await work.kiq()
        await other.kiq()
    async with working(older):
        await until(lambda: "at attempt 1: it is retried" in caplog.text)
        await until(known.is_set)
    assert "of-a-later-release" in caplog.text
    assert committed(duolog_node) == 2
    duolog_node.skip(60)
    async with working(newer):
        await until(ran.is_set)


class Hooks(TaskiqMiddleware):
    """Raises in one of TaskIQ's hooks, the first time."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.raised = False

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        self._raise("pre_execute")
        return message

    def post_execute(self, message: TaskiqMessage, result: Any) -> None:
        self._raise("post_execute")

    def _raise(self, where: str) -> None:
        if where == self.where and not self.raised:
            self.raised = True
            raise RuntimeError(f"{where} failed")


@pytest.mark.parametrize("where", ["pre_execute", "post_execute"])
async def test_a_task_whose_hooks_fail_is_retried_and_blocks_nothing(
    duolog_node: Node, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker, ran = broker_of(duolog_node).with_middlewares(Hooks(where)), Counter[int]()

    @broker.task
    async def work(number: int) -> None:
        ran[number] += 1

    async with started(broker):
        await work.kiq(0)
    async with working(broker):
        await until(lambda: "at attempt 1: it is retried" in caplog.text)
        assert f"RuntimeError: {where} failed" in caplog.text
        await until(lambda: committed(duolog_node) == 1)
        duolog_node.skip(60)
        await until(lambda: ran[0] == (2 if where == "post_execute" else 1))


async def test_a_task_of_type_manual_is_acknowledged_later_by_the_program(
    duolog_node: Node,
) -> None:
    broker, contexts = broker_of(duolog_node), list[Context]()

    @broker.task(ack_type=AcknowledgeType.MANUAL.value)
    async def gather(context: Context = TaskiqDepends()) -> None:
        contexts.append(context)

    async with started(broker):
        for _ in range(3):
            await gather.kiq()
    async with working(broker):
        await until(lambda: len(contexts) == 3)
        assert broker._open is not None
        (listening,) = broker._open.listening
        assert len(listening._unfinished) == 3
        for context in contexts[:2]:
            await context.ack()
    assert committed(duolog_node) == 2
    assert retried(duolog_node) == []
    async with working(broker):
        await until(lambda: len(contexts) == 4)


async def test_two_workers_share_tasks_and_lose_none_when_one_joins_and_leaves(
    duolog_node: Node,
) -> None:
    ran: Counter[int] = Counter()
    by: dict[str, set[int]] = {"one": set(), "two": set()}

    def worker(name: str) -> tuple[DuologBroker, AsyncTaskiqDecoratedTask[Any, Any]]:
        broker = broker_of(duolog_node, queues=4)

        @broker.task(task_name="work")
        async def work(number: int) -> None:
            ran[number] += 1
            by[name].add(number)
            await asyncio.sleep(0)

        return broker, work

    (one, work), (two, _) = worker("one"), worker("two")
    async with working(one):
        for number in range(100):
            await work.kiq(number)
        async with working(two):
            await until(lambda: len(ran) == 100)
            sent = 100
            while not by["two"]:  # it gets its queues when the other one has let go of them
                await work.kiq(sent)
                sent += 1
                await asyncio.sleep(0)
        for number in range(sent, sent + 100):
            await work.kiq(number)
        await until(lambda: len(ran) == sent + 100)
    assert set(ran) == set(range(sent + 100))


async def test_a_broker_outlives_a_restart_of_its_node(duolog_node: Node) -> None:
    broker, ran = broker_of(duolog_node), Counter[int]()

    @broker.task
    async def work(number: int) -> None:
        ran[number] += 1

    async with working(broker):
        await work.kiq(0)
        await until(lambda: ran[0])
        duolog_node.kill()
        await asyncio.to_thread(duolog_node.start)
        await work.kiq(1)
        await until(lambda: ran[1])


async def test_a_broker_that_is_not_started_says_so(duolog_node: Node) -> None:
    broker = broker_of(duolog_node)

    @broker.task
    async def work() -> None: ...

    async def refused() -> None:
        with pytest.raises(SendTaskError) as caught:
            await work.kiq()
        assert "await broker.startup()" in str(caught.value.__cause__)
        with pytest.raises(duolog.BadRequest, match="not started"):
            await anext(broker.listen())

    await refused()
    await broker.shutdown()
    await broker.startup()
    first = broker._open
    await broker.startup()
    assert broker._open is first, "a second client would be left open"
    await work.kiq()
    await broker.shutdown()
    await broker.shutdown()
    await refused()
    await broker.startup()  # it begins anew
    await work.kiq()
    await broker.shutdown()


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> set[duolog.Client]:
    """Clients of brokers that are not closed."""
    living = set[duolog.Client]()

    class Counted(duolog.Client):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            living.add(self)

        async def close(self) -> None:
            await super().close()
            living.discard(self)

    monkeypatch.setattr("duolog.taskiq.Client", Counted)
    return living


async def test_a_broker_that_is_started_twice_at_a_time_has_one_client(
    duolog_node: Node, living: set[duolog.Client]
) -> None:
    broker = broker_of(duolog_node)
    await asyncio.gather(broker.startup(), broker.startup())
    assert len(living) == 1
    await broker.shutdown()
    assert not living
    duolog_node.stop()
    broker = DuologBroker(duolog_node.endpoint, timeout=0.2)
    with pytest.raises(duolog.Retryable):
        await broker.startup()
    assert not living, "no node was there"


async def test_a_member_that_cannot_read_is_ended_before_another_one_joins(
    duolog_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = broker_of(duolog_node)
    members: list[int] = []

    async def fails_once(_: _Listening) -> None:
        assert broker._open is not None
        members.append(len(broker._open.listening))
        if len(members) == 1:
            raise duolog.Unavailable("no node")

    monkeypatch.setattr(_Listening, "next", fails_once)
    async with started(broker):
        assert [task async for task in broker.listen()] == []
    assert members == [1, 1]


async def test_a_broker_that_is_shut_down_while_it_starts_has_no_client(
    duolog_node: Node, living: set[duolog.Client]
) -> None:
    broker = broker_of(duolog_node)
    duolog_node.pause()
    starting = asyncio.create_task(broker.startup())
    await until(lambda: living)
    await broker.shutdown()
    assert not living
    with pytest.raises(duolog.DuologError):
        await starting
    assert broker._open is None
    duolog_node.resume()
    await broker.startup()  # it begins anew
    await broker.shutdown()
    assert not living


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": ""}, "topic is empty"),
        ({"group": 7}, "group must be a str"),
        ({"queues": 0}, "queues is 0"),
        ({"session": -1}, "session is -1"),
        ({"endpoints": "http://here"}, "is not HOST:PORT"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(duolog.BadRequest, match=words):
        DuologBroker(**{"endpoints": "127.0.0.1:8081", **options})


async def test_a_start_without_a_node_fails_and_leaves_nothing_open(duolog_node: Node) -> None:
    duolog_node.stop()
    broker = DuologBroker(duolog_node.endpoint, timeout=0.2)
    with pytest.raises(duolog.Retryable):
        await broker.startup()
    assert broker._open is None
    await broker.shutdown()


async def test_a_user_who_may_make_no_topic_uses_one_that_is_there(tmp_path: Path) -> None:
    password = "a password of the test"
    files = access_files(tmp_path, password)
    node = Node({f"access.{name}": value for name, value in files.items()})
    entries = [("Topic:taskiq", ["Pub", "Sub"]), ("Group:taskiq", ["Sub", "Get"])]
    policies = [{"resource": name, "actions": may, "decision": "Allow"} for name, may in entries]
    rights = json.dumps({"policies": [{"policyType": "Custom", "entries": policies}]})
    ran = asyncio.Event()
    with contextlib.closing(node):
        await asyncio.to_thread(node.start, "root", password)
        async with duolog.Client(node.endpoint, user="root", password=password) as root:
            await root.admin.create_topic("taskiq", 1)
            await root.access.create_user("root", password, is_super=True)
            await root.access.create_user("worker", password)
            await root.access.set_rights("worker", rights)
            broker = broker_of(node, user="worker", password=password)

            @broker.task
            async def work() -> None:
                ran.set()

            async with started(broker):
                await work.kiq()
            async with working(broker):
                await until(ran.is_set)


async def test_a_worker_whose_tasks_are_all_cancelled_ends_and_loses_nothing(
    duolog_node: Node,
) -> None:
    broker, ran, ends = broker_of(duolog_node), Counter[int](), asyncio.Event()

    @broker.task
    async def work(number: int) -> None:
        ran[number] += 1
        await ends.wait()

    async with started(broker):
        for number in range(3):
            await work.kiq(number)
    broker.is_worker_process = True
    async with asyncio.TaskGroup() as group:
        me = asyncio.current_task()
        group.create_task(Receiver(broker, max_async_tasks=10).listen(asyncio.Event()))
        await until(lambda: len(ran) == 3)
        for task in asyncio.all_tasks() - {me}:
            task.cancel()
    async with asyncio.timeout(WAIT_SECONDS):
        await broker.shutdown()
    ends.set()
    duolog_node.skip(60)
    async with working(broker):
        await until(lambda: min(ran[number] for number in range(3)) == 2)


async def test_an_error_of_the_reading_ends_the_worker(duolog_node: Node) -> None:
    broker = broker_of(duolog_node)
    async with started(broker):
        listening = broker.listen()
        first = asyncio.Task(anext(listening))
        await until(lambda: broker._open is not None and broker._open.listening)
        assert broker._open is not None
        worker = await _worker_of(broker)
        worker._fail(duolog.CorruptBatch("as if one had come"))
        with pytest.raises(duolog.CorruptBatch):
            await first
        assert not broker._open.listening, "its member would keep its queues"
        with duolog.sync.Client(duolog_node.endpoint) as client:
            assert client.admin.group("taskiq").members == 0


async def test_a_worker_whose_nodes_do_not_answer_for_long_joins_again(
    duolog_node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    broker, ran = broker_of(duolog_node), Counter[int]()
    waits = asyncio.Event()

    @broker.task
    async def work(number: int) -> None:
        ran[number] += 1
        await waits.wait()

    async with working(broker):
        await work.kiq(0)
        await until(lambda: ran[0])
        (await _worker_of(broker))._fail(duolog.Unavailable("as if no node had answered"))
        await work.kiq(1)
        await until(lambda: ran[1])
        assert ran[0] == 2, "the first member has not acknowledged it"
        waits.set()
    assert "will be again: as if no node had answered" in caplog.text
    assert committed(duolog_node) == 2


async def _worker_of(broker: DuologBroker) -> Any:
    assert broker._open is not None
    (listening,) = broker._open.listening
    await until(lambda: listening._worker is not None)
    return listening._worker


async def test_a_message_fetched_ahead_of_a_stop_is_given_back_as_it_is(
    duolog_node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_of(duolog_node)

    @broker.task
    async def work() -> None: ...

    async with started(broker):
        await work.kiq()
        await work.kiq()
        listening = broker.listen()
        first = await anext(listening)
        second = await anext(listening)
        assert isinstance(first, AckableMessage)
        assert first.ack() is None
        del second
        await listening.aclose()
    assert "1 tasks were not finished: they run again" in caplog.text
    assert "did not end in time" not in caplog.text
    assert committed(duolog_node) == 1
    assert retried(duolog_node) == []


async def test_who_listens_again_gets_what_was_not_finished(duolog_node: Node) -> None:
    """As a program does that cancels TaskIQ's `run_receiver_task` and runs another one."""
    broker = broker_of(duolog_node)

    @broker.task
    async def work() -> None: ...

    async with started(broker), asyncio.timeout(WAIT_SECONDS):
        await work.kiq()
        given = list[Any]()
        for _ in range(3):
            listening = broker.listen()
            given.append(await anext(listening))
            await listening.aclose()
        assert len({task.data for task in given}) == 1
        assert broker._open is not None
        assert len(broker._open.listening) == 1


def test_without_taskiq_the_module_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['taskiq'] = None\n"
        "try:\n    import duolog.taskiq\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert "pip install 'duolog[taskiq]'" in shown


PROGRAM = """
import asyncio, os, time
from duolog.taskiq import DuologBroker
broker = DuologBroker(os.environ["DUOLOG_ENDPOINTS"], queues=4, session=1.0)

@broker.task
async def work(number: int) -> None:
    await asyncio.sleep(0.02)
    with open("ran", "a") as file:
        file.write(f"{os.getpid()} {number}\\n")
"""


@pytest.mark.long
async def test_tasks_of_killed_worker_processes_run_again(
    duolog_node: Node, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = tmp_path / "ran"
    ran.touch()
    environment = {**os.environ, "DUOLOG_ENDPOINTS": duolog_node.endpoint}
    broker = broker_of(duolog_node, queues=4)

    @broker.task(task_name="program:work")
    async def work(number: int) -> None: ...

    def done() -> Counter[int]:
        return Counter(int(line.split()[1]) for line in ran.read_text().splitlines())

    def more_than(count: int) -> bool:
        return len(done()) > count

    with (tmp_path / "log").open("wb") as log:
        taskiq = subprocess.Popen(
            [sys.executable, "-m", "taskiq", "worker", "program:broker", "--workers", "2"],
            cwd=tmp_path, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            async with started(broker):
                for kill in range(4):
                    for number in range(250 * kill, 250 * (kill + 1)):
                        await work.kiq(number)
                    await until(partial(more_than, len(done()) + 100))
                    last = int(ran.read_text().splitlines()[-1].split()[0])
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(last, signal.SIGKILL)
                await until(lambda: len(done()) == 1000)
            async with duolog.Client(duolog_node.endpoint) as client:

                async def all_consumed() -> bool:
                    found = await client.admin.group("taskiq")
                    return sum(queue.lag_messages for queue in found.queues) == 0

                await until(all_consumed)
        finally:
            taskiq.terminate()
            taskiq.wait(WAIT_SECONDS)
