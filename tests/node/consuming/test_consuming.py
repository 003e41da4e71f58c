"""Options of a native consumer: sharing of queues, filters, retries."""

import asyncio
import gc
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar

import duolog
import duolog.sync
import numpy as np
import pytest
from duolog._membership import SharingMember
from duolog._prefetch import Prefetch

from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.kernels.text import java_hash
from duolog_server.store.puts import PutBatch
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import StartNode, received
from tests.process.support import NodeProcess
from tests.until import until

pytestmark = pytest.mark.usefixtures("quick_groups")

FAST_LADDER = "1s"  # all levels


async def take(
    consumer: duolog.Consumer, count: int, timeout: float = 10.0
) -> list[duolog.Message]:
    found: list[duolog.Message] = []
    while len(found) < count:
        message = await consumer.get(timeout)
        if message is None:
            break
        found.append(message)
    return found


@contextmanager
def synchronous_client(tmp_path: Path, *flags: str) -> Iterator[duolog.sync.Client]:
    """A client of a node's process, and a topic `T` with one queue."""
    node = NodeProcess(tmp_path / "data", *flags)
    node.start()
    try:
        with duolog.sync.Client(node.endpoint) as client:
            client.admin.create_topic("T", 1)
            yield client
    finally:
        node.stop()


async def fill(client: duolog.Client, topic: str, count: int) -> list[bytes]:
    bodies = [b"%d" % k for k in range(count)]
    async with client.producer() as producer:
        await asyncio.gather(
            *(producer.send(topic, body, queue_id=k % 4) for k, body in enumerate(bodies))
        )
    return bodies


# -- sharing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["AVG_BY_CIRCLE", "CONSISTENT_HASH"])
async def test_a_named_strategy_shares_all_queues(client: duolog.Client, strategy: str) -> None:
    bodies = await fill(client, "T", 40)
    async with (
        client.consumer("g", "T", rebalance=strategy) as one,
        client.consumer("g", "T", rebalance=strategy) as two,
    ):
        async with asyncio.timeout(WAIT_SECONDS):
            while len(one.assignment) + len(two.assignment) < 4 or not two.assignment:
                if strategy == "CONSISTENT_HASH" and len(one.assignment) == 4:
                    break  # the ring may give one member everything
                await asyncio.sleep(0.02)
        assert not set(one.assignment) & set(two.assignment)
        heard: set[bytes] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while heard < set(bodies):
                for member in (one, two):
                    heard |= {message.body for message in await take(member, 40, 0.1)}
    assert heard == set(bodies)


async def test_a_member_reads_the_queues_that_it_names(client: duolog.Client) -> None:
    await fill(client, "T", 8)
    async with client.consumer("g", "T", rebalance="CONFIG", queues=[("T", 1), ("T", 3)]) as one:
        found = await take(one, 4)
        assert one.assignment == [("T", 1), ("T", 3)]
        assert {message.queue_id for message in found} == {1, 3}


async def test_unknown_strategies_and_invalid_sql_are_refused(client: duolog.Client) -> None:
    with pytest.raises(duolog.BadRequest, match="strategy 'avg' is unknown; strategies: AVG,"):
        await client.consumer("g", "T", rebalance="avg").start()
    async with client.consumer("g", "T"):
        with pytest.raises(duolog.BadRequest, match="strategy AVG:"):
            await client.consumer("g", "T", rebalance="AVG_BY_CIRCLE").start()
    with pytest.raises(duolog.BadRequest):
        await client.pull("T", 0, 0, sql="n >")
    with pytest.raises(duolog.BadRequest):
        await client.pull("T", 0, 0, sql="n > 1", tags=["a"])
    with pytest.raises(duolog.BadRequest):
        async with client.consumer("g", "T", sql="n >") as consumer:
            await consumer.get(5.0)


async def test_a_queue_is_read_in_order_by_one_member_at_a_time(client: duolog.Client) -> None:
    """Consumption in order: members join and leave; no queue goes back or has two readers."""
    await fill(client, "T", 400)
    reading: dict[int, str] = {}
    seen: dict[int, list[int]] = {queue: [] for queue in range(4)}

    async def member(name: str, messages: int) -> None:
        async with client.consumer("g", "T", session=5.0) as consumer:
            for _ in range(messages):
                message = await consumer.get(WAIT_SECONDS)
                assert message is not None, f"{name} may read more"
                queue = message.queue_id
                assert reading.setdefault(queue, name) == name, "two members hold the queue"
                seen[queue].append(message.queue_offset)
                await asyncio.sleep(0.001)
                del reading[queue]

    await asyncio.gather(member("a", 150), member("b", 60), member("c", 150))
    await member("d", 40)
    async with client.consumer("g", "T") as last:
        assert await last.get(0.5) is None, "nothing comes again"
    for offsets in seen.values():
        assert offsets == list(range(100))


class Named(SharingMember):
    """Members by name: queues are shared in this order."""

    names: ClassVar[list[str]] = []

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.member_id = self.names.pop(0)


@pytest.mark.parametrize("finished", [True, False])
async def test_a_message_in_hand_is_finished_before_its_queue_goes_to_another_member(
    client: duolog.Client,
    producer: duolog.Producer,
    monkeypatch: pytest.MonkeyPatch,
    finished: bool,
) -> None:
    """If it takes too long, that member gets it as well."""
    monkeypatch.setattr("duolog._consumer.SharingMember", Named)
    monkeypatch.setattr(Named, "names", ["z", "a"])
    await client.admin.create_topic("One", 1)
    await producer.send_batch("One", [b"0", b"1", b"2"])
    session = (
        10.0 if finished else 4.0
    )  # the first one has it for longer than a machine stands still
    async with client.consumer("g", "One", session=session) as first:
        message = await received(first)
        assert message.body == b"0"
        async with client.consumer("g", "One", session=session) as second:
            await until(lambda: not (first.assignment))  # it goes to the member that is named first
            assert second.assignment == []
            if finished:
                assert await first.get(0) is None
            message = await received(second)
            assert message.body == (b"1" if finished else b"0")


# -- broadcasting --------------------------------------------------------------------------------


async def test_broadcasting_delivers_every_message_to_every_member(
    client: duolog.Client, tmp_path: Path
) -> None:
    bodies = Counter(await fill(client, "T", 40))
    files = [tmp_path / "deep" / "one.json", tmp_path / "two.json"]
    how: dict[str, Any] = {"mode": "broadcasting"}
    async with (
        client.consumer("g", "T", offsets_file=files[0], **how) as one,
        client.consumer("g", "T", offsets_file=files[1], **how) as two,
    ):
        for consumer in (one, two):
            found = await take(consumer, 40)
            assert Counter(message.body for message in found) == bodies
            assert await consumer.get(0.05) is None
            assert len(consumer.assignment) == 4
        with pytest.raises(duolog.BadRequest, match="broadcasting"):
            await one.send_back(found[0])
    assert [group.group for group in await client.admin.groups()] == []
    await fill(client, "T", 8)
    async with client.consumer("g", "T", offsets_file=files[0], **how) as again:
        assert len(await take(again, 8)) == 8
        assert await again.get(0.1) is None
    async with client.consumer("g", "T", start=duolog.Start.LATEST, **how) as fresh:
        assert await fresh.get(0.1) is None
    offsets = json.loads(files[0].read_text())["offsets"]
    assert list(offsets.values()) == [{"T": {"0": 12, "1": 12, "2": 12, "3": 12}}]


@pytest.mark.parametrize("text", ["", "[]", '{"offsets": {"g": {"T": {"0": "x"}}}}', "{}"])
def test_a_damaged_offset_file_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text(text)
    with (
        duolog.sync.Client("127.0.0.1:1") as client,
        pytest.raises(duolog.BadRequest, match=r"offsets\.json is not an offsets file"),
    ):
        client.consumer("g", "T", mode="broadcasting", offsets_file=file)


def test_invalid_modes_and_offset_files_are_refused(tmp_path: Path) -> None:
    with duolog.sync.Client("127.0.0.1:1") as client:
        with pytest.raises(duolog.BadRequest, match="mode"):
            client.consumer("g", "T", mode="anycast")
        with pytest.raises(duolog.BadRequest, match="offsets are kept by the node"):
            client.consumer("g", "T", offsets_file=tmp_path / "x")
        with pytest.raises(duolog.BadRequest, match="not by both"):
            client.consumer("g", "T", tags=["a"], sql="a = 1")


# -- choosing ------------------------------------------------------------------------------------


async def test_a_group_with_an_sql_filter_continues_after_the_messages_it_skipped(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    await client.admin.create_topic("one", 1)
    for k in range(50):
        await producer.send("one", b"%d" % k, properties={"n": str(k)})
    async with client.consumer("g", "one", sql="n BETWEEN 10 AND 12 OR n = 40") as consumer:
        found = [*await take(consumer, 4), *await take(consumer, 1, 0.3)]
    assert [message.body for message in found] == [b"10", b"11", b"12", b"40"]
    assert [message.queue_offset for message in found] == [10, 11, 12, 40]
    group = await client.admin.group("g")
    assert sum(queue.lag_messages for queue in group.queues) == 0
    batch = await client.pull("one", 0, 0, sql="n > 47")
    assert batch.body_list() == [b"48", b"49"]
    assert [message.properties["n"] for message in batch] == ["48", "49"]
    nothing = await client.pull("one", 0, 0, sql="n > 100")
    assert (nothing.count, nothing.next_offset) == (0, 50)


async def test_tags_with_the_same_hash_are_distinguished_by_their_text(
    client: duolog.Client, producer: duolog.Producer
) -> None:
    assert java_hash_of("AaAa") == java_hash_of("BBBB") == java_hash_of("AaBB")
    await client.admin.create_topic("one", 1)
    for k in range(30):
        await producer.send("one", b"%d" % k, tags=("AaAa", "BBBB", "AaBB")[k % 3])
    async with client.consumer("g", "one", tags=["BBBB"]) as consumer:
        found = [*await take(consumer, 10), *await take(consumer, 1, 0.3)]
    assert [message.body for message in found] == [b"%d" % k for k in range(1, 30, 3)]
    batch = await client.pull("one", 0, 0, tags=["AaAa", "AaBB"])
    assert [message.queue_offset for message in batch] == [k for k in range(30) if k % 3 != 1]
    assert [message.tags for message in batch] == ["AaAa", "AaBB"] * 10


def java_hash_of(text: str) -> int:
    return int(java_hash(np.frombuffer(text.encode(), np.uint8)))


# -- trying again --------------------------------------------------------------------------------


async def test_a_message_sent_back_is_redelivered_later_and_becomes_a_dead_letter(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "data", message_delay_level=FAST_LADDER)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 4)
        await client.admin.put_group("g", retry_times=3)
        async with client.producer() as producer:
            await producer.send("T", b"poison", tags="a", keys="k", properties={"p": "1"})
            await producer.send("T", b"fine", tags="a")
        attempts: list[duolog.Message] = []
        async with client.consumer("g", "T", tags=["a"], start=duolog.Start.LATEST) as late:
            assert await late.get(0.05) is None
        await client.admin.reset_group("g", "T")
        async with client.consumer("g", "T", tags=["a"], commit_interval=0.05) as consumer:
            while len(attempts) < 4:
                message = await consumer.get(10.0)
                assert message is not None
                if message.body == b"fine":
                    continue
                attempts.append(message)
                where = await consumer.send_back(message)
        assert [message.reconsume_times for message in attempts] == [0, 1, 2, 3]
        assert {message.topic for message in attempts} == {"T"}
        assert [message.stored_topic for message in attempts] == ["T"] + ["%RETRY%g"] * 3
        assert where == "%DLQ%g"
        last = attempts[-1]
        assert (last.tags, last.keys, last.properties["p"]) == ("a", ["k"], "1")
        assert last.born_time_ms == attempts[0].born_time_ms
        (dead,) = await client.pull("%DLQ%g", 0, 0)
        assert (dead.body, dead.reconsume_times) == (b"poison", 4)
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == "T"
        group = await client.admin.group("g")
        assert sum(queue.lag_messages for queue in group.queues) == 0


async def test_messages_sent_back_keep_to_delay_levels_and_attempt_limits(
    start_node: StartNode, tmp_path: Path
) -> None:
    node = await start_node(tmp_path / "data", message_delay_level=FAST_LADDER)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer:
            for body in (b"given up", b"one try", b"whole"):
                await producer.send("T", body)
        async with client.consumer("g", "T") as consumer:
            first, second, third = await take(consumer, 3)
            assert await consumer.send_back(first, delay_level=-1) == "%DLQ%g"
            assert await consumer.send_back(second, max_attempts=1) == "%RETRY%g"
            (again,) = await take(consumer, 1)
            assert again.body == b"one try"
            assert await consumer.send_back(again, max_attempts=1) == "%DLQ%g"
            assert await consumer.get(0.2) is None
        dead = await client.pull("%DLQ%g", 0, 0)
        assert dead.body_list() == [b"given up", b"one try"]
        with pytest.raises(duolog.BadRequest, match="not delivered by this consumer"):
            await client.consumer("h", "T").send_back(third)
        async with client.consumer("g", "T") as other:
            await client.admin.delete_topic("T")
            with pytest.raises(duolog.UnknownTopic):
                await other.send_back(third)


async def test_a_message_of_another_log_with_any_number_of_attempts_is_a_dead_letter(
    node: Node, single: duolog.Client
) -> None:
    batch = PutBatch("T", 0, Columns.of([b"x"]), 1, reconsume_times=(1 << 31) - 1)
    await broker_of(node).core.log.put_and_wait(batch)
    async with single.consumer("g", "T") as consumer:
        (message,) = await take(consumer, 1)
        assert await consumer.send_back(message) == "%DLQ%g"
    (dead,) = await single.pull("%DLQ%g", 0, 0)
    assert dead.reconsume_times == (1 << 31) - 1


def test_a_consumer_in_a_thread_sends_back(tmp_path: Path) -> None:
    with synchronous_client(
        tmp_path, "--set", "store.message_delay_level=" + FAST_LADDER
    ) as client:
        with client.producer() as producer:
            producer.send("T", b"x")
        with client.consumer("g", "T") as consumer:
            message = consumer.get(10.0)
            assert message is not None
            assert consumer.send_back(message) == "%RETRY%g"
            again = consumer.get(10.0)
            assert again is not None
            assert (again.body, again.reconsume_times) == (b"x", 1)


def committed(client: duolog.sync.Client) -> int:
    (queue,) = (q for q in client.admin.group("g").queues if q.topic == "T")
    assert queue.committed is not None
    return queue.committed


def test_a_consumer_in_a_thread_takes_messages_of_a_batch_without_its_loop(tmp_path: Path) -> None:
    """A message is consumed when the next one is asked for, or at a clean end; not after an error,
    and not in a forked process.
    """
    with synchronous_client(tmp_path) as client:
        with client.producer() as producer:
            producer.send_batch("T", [b"%d" % k for k in range(20)])
        with (
            pytest.raises(KeyError),
            client.consumer("g", "T", commit_interval=600) as consumer,
        ):
            assert consumer.get(10.0) is not None
            run, consumer._loop.run = consumer._loop.run, refuse  # type: ignore[method-assign]
            assert [message.body for message in islice(consumer, 9)] == [
                b"%d" % k for k in range(1, 10)
            ]
            consumer._loop.run = run  # type: ignore[method-assign]
            consumer.commit()
            assert committed(client) == 9
            child = os.fork()
            if child == 0:
                gc.disable()  # garbage of other tests: gRPC's objects may not be freed in a fork
                os._exit(refused_as_forked(consumer))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert [message.body for message in islice(consumer, 2)] == [b"10", b"11"]
            consumer.commit()
            assert committed(client) == 11
            raise KeyError
        assert committed(client) == 11
        with client.consumer("g", "T", commit_interval=600) as consumer:
            assert [message.body for message in islice(consumer, 3)] == [b"11", b"12", b"13"]
            assert consumer.get(0.0) is not None
            consumer.close()
            assert next(iter(consumer), None) is None
            with pytest.raises(duolog.BadRequest, match="the consumer is closed"):
                consumer.get(0.0)
        assert committed(client) == 15


class Interruption(BaseException):
    """What a signal handler raises in these tests."""


def interrupt(number: int, frame: object) -> None:
    raise Interruption


def interrupt_when_waiting(consumer: duolog.sync.Consumer) -> None:
    """Interrupt the main thread once it waits for messages."""
    main = threading.main_thread().ident
    assert main is not None
    deadline = time.monotonic() + 20
    while not consumer._of._arrived._waiters:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    signal.pthread_kill(main, signal.SIGUSR1)


def interrupted_once(call: Callable[..., object]) -> Callable[..., object]:
    """A call that a signal handler interrupts after it did its work, for the first time."""
    times = count()

    def interrupted(*arguments: object) -> object:
        done = call(*arguments)
        if next(times) == 0:
            raise Interruption
        return done

    return interrupted


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("get", [duolog.sync.Consumer.get, duolog.sync.Consumer.get_batch])
def test_a_get_that_is_interrupted_takes_nothing(
    tmp_path: Path, get: Callable[[duolog.sync.Consumer], object]
) -> None:
    with synchronous_client(tmp_path) as client:
        with (
            client.producer() as producer,
            client.consumer("g", "T", commit_interval=600) as consumer,
        ):
            thread = threading.Thread(target=interrupt_when_waiting, args=(consumer,))
            thread.start()
            with pytest.raises(Interruption):
                get(consumer)
            thread.join()
            producer.send("T", b"0")
            message = consumer.get(10.0)
            assert message is not None
            assert message.body == b"0"
        assert committed(client) == 1


@pytest.mark.parametrize("at", [0, 2])
def test_a_message_taken_by_an_interrupted_get_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """at: the message whose `get` is interrupted: the first waits for the loop's thread."""
    with synchronous_client(tmp_path) as client:
        with client.producer() as producer:
            producer.send_batch("T", [b"%d" % k for k in range(4)])
        with client.consumer("g", "T", commit_interval=600) as consumer:
            assert [message.body for message in islice(consumer, at)] == [b"0", b"1"][:at]
            whose, name = (duolog.Message, "__init__") if at else (consumer._loop, "run")
            with monkeypatch.context() as patch, pytest.raises(Interruption):
                patch.setattr(whose, name, interrupted_once(getattr(whose, name)))
                consumer.get(10.0)
            consumer.commit()
            assert consumer.get(10.0).body == b"%d" % at  # type: ignore[union-attr]
            assert consumer.get(10.0).body == b"%d" % (at + 1)  # type: ignore[union-attr]
            consumer.commit()
            assert committed(client) == at + 1


async def test_a_batch_used_up_by_another_thread_does_not_hide_the_next(
    client: duolog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, "T", 8)
    async with client.consumer("g", "T") as consumer:
        (reader,) = consumer._readers.values()
        prefetch = reader._prefetch
        await until(lambda: len(prefetch._ready) >= 4)

        def messages() -> Iterator[duolog.Message]:
            """The other thread takes all of the batch before this one takes any."""
            rest = Prefetch.messages(prefetch)
            if len(prefetch._ready) == 4:
                other.extend(rest)
            return rest

        other: list[duolog.Message] = []
        monkeypatch.setattr(prefetch, "messages", messages)
        found = await take(consumer, 8, 0.5)
        assert len(other) == 2
        assert sorted(message.body for message in [*found, *other]) == [b"%d" % k for k in range(8)]


def refuse(work: Any) -> Any:
    raise AssertionError("there are messages at hand")


def refused_as_forked(consumer: duolog.sync.Consumer) -> int:
    """0 if a consumer of the parent's gives nothing, and its end is no error."""
    try:
        consumer.close()
        consumer.__exit__(None, None, None)
    except BaseException:
        return 1
    try:
        consumer.get()
    except duolog.BadRequest as error:
        return 0 if "forked" in str(error) else 2
    except BaseException:
        return 3
    return 4


async def test_a_trace_context_survives_every_delivery_path(
    start_node: StartNode, tmp_path: Path
) -> None:
    """W3C's traceparent is a property: delayed, committed, sent back or dead, it stays."""
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    node = await start_node(tmp_path / "data", message_delay_level=FAST_LADDER)
    async with duolog.Client(f"127.0.0.1:{node.port}") as client:
        await client.admin.create_topic("T", 1)
        async with client.producer() as producer, client.transactions("g") as transactions:
            await producer.send("T", b"plain", properties=trace)
            await producer.send("T", b"delayed", properties=trace, delay=0.1)
            half = await transactions.prepare("T", b"half", properties=trace)
            await transactions.commit(half)
        async with client.consumer("g", "T") as consumer:
            found = await take(consumer, 3)
            assert {message.body for message in found} == {b"plain", b"delayed", b"half"}
            await consumer.send_back(found[0])
            found += await take(consumer, 1)
            await consumer.send_back(found[-1], delay_level=-1)
        found += await client.pull("%DLQ%g", 0, 0)
        assert len(found) == 5
        for message in found:
            assert message.properties["traceparent"] == trace["traceparent"]
