"""Limits of posts: memory, time, and no message delays another past its deadline."""

import asyncio
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import duolog
import pytest
from duolog import _posted
from duolog._batcher import BATCH_BYTES, BATCH_MESSAGES, FULL
from duolog._posted import MESSAGE_BYTES, SEND_BYTES, Posting
from duolog._receipts import Part
from duolog._sending import Batch
from duolog._terms import PLAIN, Terms

from tests.client.postbench import Bench
from tests.until import until

MIB = 1 << 20


# -- memory ---------------------------------------------------------------------------------------


def post_until_full(bench: Bench, make: Callable[[int], dict[str, Any]]) -> int:
    """Post new messages without keeping their handles; how many there was room for."""
    count = 0
    while True:
        try:
            bench.producer.post("T", **make(count))
        except duolog.BufferFull:
            return count
        count += 1


@pytest.mark.parametrize(
    "make",
    [
        lambda k: {"body": b""},
        lambda k: {"body": b"%d" % k},
        lambda k: {"body": bytes([k % 251]) * 100},
        lambda k: {"body": b"%d" % k, "tags": f"{k}"},
        lambda k: {"body": b"%d" % k, "key": f"k{k % 1000}"},
        lambda k: {"body": b"%d" % k, "on_done": lambda _: k},
        lambda k: {"body": b"%d" % k, "timeout": 600 + k % 7 / 3},
        lambda k: {"body": b"%d" % k, "key": str(k % 100), "deliver_at": 4 * 10**12 + k % 50},
    ],
    ids=["empty", "small", "100 B", "tags", "keys", "callbacks", "deadlines", "delayed"],
)
@pytest.mark.parametrize("known", [True, False], ids=["queues known", "unknown"])
async def test_posted_messages_take_no_more_than_the_buffer(
    make: Callable[[int], dict[str, Any]], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of runs of equal deadlines, which take memory, is not that of a slow machine."""
    monkeypatch.setattr(_posted, "RUN_SECONDS", 0.3)
    size = 2 * MIB
    bench = Bench(bytes=size, timeout=600.0)  # posts are traced here, which takes time
    bench.nodes.let.clear()
    if known:
        await bench.queues.slots("T", 1)
    bench.queues.let.clear()
    gc.collect()
    tracemalloc.start()
    try:
        count = post_until_full(bench, make)
        await asyncio.sleep(0)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > 1000
    assert taken < 1.1 * size, f"{taken / count:.0f} bytes a message"
    bench.nodes.let.set()
    bench.queues.let.set()
    await bench.producer.flush()
    assert bench.producer._batcher.used == 0


async def test_unread_errors_take_no_memory_per_message() -> None:
    bench = Bench(bytes=MIB)
    bench.nodes.error = duolog.Unavailable("gone")

    async def rounds(count: int) -> int:
        posted = 0
        for _ in range(count):
            posted += post_until_full(bench, lambda k: {"body": b"x", "queue_id": 0, "group": "g"})
            while bench.producer._batcher.used:
                await asyncio.sleep(0)
        return posted

    await bench.queues.slots("T", 1)
    await rounds(2)
    gc.collect()
    tracemalloc.start()
    try:
        posted = await rounds(8)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert posted > 40_000
    assert taken < 5 * posted, "a list would hold 8 bytes of each"
    with pytest.raises(duolog.Unavailable):
        await bench.producer.flush()


async def test_expired_messages_release_buffer_space_while_a_batch_is_in_flight() -> None:
    bench = Bench(bytes=4000, timeout=0.02)
    bench.nodes.let.clear()
    await bench.queues.slots("T", 1)
    bench.producer.post("T", b"x", queue_id=0, group="g", timeout=60)
    await asyncio.sleep(0)
    where = {"body": b"x", "queue_id": 0, "group": "g"}
    batcher, under_way = bench.producer._batcher, 2 * MESSAGE_BYTES
    first = post_until_full(bench, lambda k: where)
    await until(lambda: batcher.used < under_way)
    assert post_until_full(bench, lambda k: where) >= first - 1
    await until(lambda: batcher.used < under_way)
    bench.nodes.let.set()
    with pytest.raises(duolog.Timeout):
        await bench.producer.flush()
    assert bench.nodes.of(("g", 0)) == [b"x"]


# -- deadlines ------------------------------------------------------------------------------------


async def test_no_message_ends_at_the_deadline_of_another_one_with_the_same_key() -> None:
    bench = Bench()
    bench.queues.let.clear()
    hasty = bench.producer.post("T", b"1", key="k", timeout=0.05)
    await asyncio.sleep(0)  # its queue is looked for, for so long
    patient = bench.producer.post("T", b"2", key="k", timeout=20)
    with pytest.raises(duolog.Timeout):
        await hasty
    await asyncio.sleep(0.05)
    assert not patient.done
    bench.queues.let.set()
    assert (await patient).queue_offset == 0


async def test_messages_of_other_timeouts_in_one_batch_each_end_in_their_own_time() -> None:
    bench = Bench()
    bench.nodes.let.clear()
    await bench.queues.slots("T", 1)
    began = time.monotonic()
    where = {"queue_id": 0, "group": "g"}
    bench.producer.post("T", b"first", timeout=60, **where)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    seconds = (0.2, 0.05, 30.0, 0.1, 0.05)
    ended: dict[int, float] = {}

    def note(place: int) -> Callable[[duolog.Posted], None]:
        return lambda _: ended.update({place: time.monotonic() - began})

    for place, timeout in enumerate(seconds):
        bench.producer.post("T", b"x", timeout=timeout, on_done=note(place), **where)  # type: ignore[arg-type]
    await until(lambda: len(ended) >= 4)
    assert 2 not in ended
    assert all(ended[place] >= seconds[place] for place in ended)
    bench.nodes.let.set()
    await bench.producer.flush()
    assert bench.nodes.of(("g", 0)) == [b"first", b"x"]


async def test_a_post_made_by_a_callback_at_a_deadline_is_sent() -> None:
    bench = Bench()
    bench.nodes.let.clear()
    await bench.queues.slots("T", 1)
    where = {"queue_id": 0, "group": "g"}
    bench.producer.post("T", b"1", **where)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    again: list[duolog.Posted] = []

    def post(late: duolog.Posted) -> None:
        assert isinstance(late.error(), duolog.Timeout)
        again.append(bench.producer.post("T", b"2", **where))  # type: ignore[arg-type]

    bench.producer.post("T", b"late", timeout=0.01, on_done=post, **where)  # type: ignore[arg-type]
    while not again:
        await asyncio.sleep(0.001)
    assert not again[0].done
    bench.nodes.let.set()
    assert (await again[0]).queue_offset == 1
    await bench.producer.flush()


# -- time -----------------------------------------------------------------------------------------


class Counted(Part):
    """Counts how often anybody looks where it begins."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "first":
            Counted.looks += 1
        return super().__getattribute__(name)


async def test_receipts_among_many_refused_messages_are_found_without_a_search() -> None:
    bench = Bench()
    send = bench.nodes.send

    async def counted(batch: Any, seconds: float) -> list[Part]:
        return [
            Counted(*(getattr(part, name) for name in Part.__slots__))
            for part in await send(batch, seconds)
        ]

    bench.producer._sender.send = counted  # type: ignore[method-assign]
    bodies = [b"good" if k % 2 else b"bad" for k in range(400)]
    handles = [bench.producer.post("T", body, queue_id=0, group="g") for body in bodies]
    with pytest.raises(duolog.MessageTooLarge):
        await bench.producer.flush()
    Counted.looks = 0
    good = [handle.receipt() for handle in handles if handle.error() is None]
    assert len(good) == 200
    assert Counted.looks <= 3 * len(good)


# -- linger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [{}, {"queue_id": 0, "group": "g"}])
async def test_a_full_batch_waits_for_no_linger(where: dict[str, Any]) -> None:
    bench = Bench(linger=60.0)
    await bench.queues.slots("T", 1)
    body = bytes(100_000)
    posts = BATCH_BYTES // len(body) + 2
    handles = [bench.producer.post("T", body, **where) for _ in range(posts)]
    async with asyncio.timeout(10):
        await handles[0]
    await bench.producer.close()


async def test_a_linger_ends_with_a_flush_a_full_batch_and_begins_again() -> None:
    bench = Bench(linger=60.0, bytes=50_000)
    post_until_full(bench, lambda k: {"body": b"x"})
    await until(lambda: not (bench.producer._batcher.used))
    bench = Bench(linger=0.5)
    bench.producer.post("T", b"1")
    await bench.producer.flush()
    one = bench.producer.post("T", b"2")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not one.done
    assert (await one).queue_offset == 1
    bench = Bench(linger=60.0)
    async with asyncio.timeout(10):
        one = bench.producer.post("T", b"1")
        await bench.producer.flush()
        assert one.done
        bench.nodes.let.clear()
        bench.producer.post("T", b"1")
        flushes = [asyncio.ensure_future(bench.producer.flush())]
        await bench.sends()
        flushes.append(asyncio.ensure_future(bench.producer.flush()))
        await asyncio.sleep(0)
        bench.nodes.let.set()
        await asyncio.gather(*flushes)
        again = bench.producer.post("T", b"1")
        await asyncio.sleep(0.01)
        assert not again.done, "the flush of a batch on its way does not hurry the next"
        two = bench.producer.post("T", b"2", key="k")
        await asyncio.sleep(0.01)
        assert not two.done
        await bench.producer.flush()
        bench.producer.post("T", b"3", queue_id=0)
        await bench.producer.close()
    assert len(bench.nodes.batches) == 5


# -- the rest -------------------------------------------------------------------------------------


async def test_posts_with_the_same_delay_share_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    asked: list[Terms] = []
    send = bench.nodes.send

    async def noted(batch: Any, seconds: float) -> list[Part]:
        asked.append(batch.terms)
        return await send(batch, seconds)

    bench.producer._sender.send = noted  # type: ignore[method-assign]
    clock = iter(range(1_700_000_000_001, 1_700_000_000_041))
    monkeypatch.setattr(type(bench.producer._runtime), "wall_ms", lambda _: next(clock))
    for _ in range(20):
        bench.producer.post("T", b"x", delay=1.0)
        bench.producer.post("T", b"x", delay=2.0)
    await bench.producer.flush()
    times = sorted({terms.deliver_time for terms in asked})
    assert len(asked) == len(times) == 8
    assert times[0] == 1_700_000_001_010, "never early"
    assert times[3] == 1_700_000_001_040


async def test_a_flush_begun_by_a_callback_ends() -> None:
    bench = Bench()
    async with asyncio.TaskGroup() as tasks:
        flushes: list[asyncio.Task[None]] = []

        def flush(_: duolog.Posted) -> None:
            flushes.append(tasks.create_task(bench.producer.flush()))

        for _ in range(3):
            bench.producer.post("T", b"x", on_done=flush)
        async with asyncio.timeout(10):
            await bench.producer.flush()
            await asyncio.gather(*flushes)
    assert len(flushes) == 3


async def test_a_batch_that_is_posted_to_is_refused_to_other_threads() -> None:
    bench = Bench()
    bench.producer.post("T", b"1")
    assert bench.producer._last.open.room > 0
    with pytest.raises(RuntimeError):
        await asyncio.to_thread(bench.producer.post, "T", b"2")
    await bench.producer.flush()
    assert bench.nodes.of(None) == [b"1"]


async def test_unused_buffer_space_is_left_to_other_batches() -> None:
    bench = Bench(bytes=100_000)
    bench.nodes.let.clear()
    for k in range(20):
        bench.producer.post("T", bytes(4000), queue_id=k, group="g")
    count = post_until_full(bench, lambda k: {"body": bytes(1000)})
    assert 12 < count < 20
    batcher = bench.producer._batcher
    used = sum(one.granted - one.room for _, one in batcher._postings())
    assert used >= 100_000
    for _ in range(10):
        with pytest.raises(duolog.BufferFull):
            bench.producer.post("T", b"x")
    bench.nodes.let.set()
    await bench.producer.flush()
    assert batcher.used == 0


async def test_a_closed_producer_refuses_what_an_open_batch_has_room_for() -> None:
    bench = Bench(timeout=5)
    bench.producer.post("T", b"1")
    closing = asyncio.ensure_future(bench.producer.close())
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(duolog.BadRequest, match="closed"):
            bench.producer.post("T", b"x")
        with pytest.raises(duolog.BadRequest, match="closed"):
            await bench.producer.send("T", b"x")
    await closing
    assert bench.nodes.of(None) == [b"1"]


async def test_sends_of_many_tasks_go_in_a_few_batches_side_by_side() -> None:
    bench = Bench()

    async def send(count: int) -> None:
        for _ in range(count):
            await bench.producer.send("T", b"x")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(1000):
            tasks.create_task(send(10))
    sizes = [len(bodies) for _, bodies in bench.nodes.batches]
    assert sum(sizes) == 10_000
    assert len(sizes) < 50
    assert bench.nodes.most[None] > 1
    sent = [await bench.producer.send("T", b"%d" % k) for k in range(60)]
    assert [one.queue_offset for one in sent] == list(range(10_000, 10_060))
    assert bench.producer._last.crowd < 3, "one that sends alone waits for no task again"


def test_a_handle_costs_no_call() -> None:
    assert duolog.Posted.__init__ is object.__init__
    assert not hasattr(duolog.Posted(), "__dict__")
    assert not hasattr(Posting(), "__dict__")


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ([b"x"] * 500, {"tags": "t" * 30_000}),
        ([b"x"] * 500, {"keys": [["k" * 20_000]] * 500}),
        ([b"x"] * 16_000 + [bytes(BATCH_BYTES // 2)] * 20, {}),
        ([b""] * 40_000, {}),
    ],
)
async def test_no_request_of_a_batch_is_larger_than_others(
    bodies: list[bytes], words: dict[str, Any]
) -> None:
    bench = Bench()
    sizes = list[int]()
    counts = list[int]()

    async def store(batch: Batch, seconds: float) -> list[Part]:
        sizes.append(len(batch.bodies[0]) + len(batch.texts[0]))
        counts.append(batch.count)
        return await bench.nodes.send(batch, seconds)

    bench.producer._sender.send = store  # type: ignore[method-assign]
    receipt = await bench.producer.send_batch("T", bodies, **words)
    assert max(sizes) <= BATCH_BYTES
    assert max(counts) <= BATCH_MESSAGES
    assert bench.nodes.of(None) == bodies
    assert [part.first for part in receipt.parts] == [sum(counts[:k]) for k in range(len(counts))]
    assert receipt.count == sum(counts) == len(bodies)


def test_a_producer_is_refused_to_another_loop() -> None:
    async def begin() -> Bench:
        bench = Bench()
        await bench.producer.post("T", b"1")
        bench.nodes.let.clear()
        bench.producer.post("T", b"2")
        return bench

    async def go_on(bench: Bench) -> None:
        for k in range(2):
            with pytest.raises(RuntimeError, match="another event loop"):
                bench.producer.post("T", b"3", queue_id=k, group="g")
            with pytest.raises(RuntimeError, match="another event loop"):
                await bench.producer.send("U", b"3")

    with asyncio.Runner() as one, asyncio.Runner() as other:
        bench = one.run(begin())
        other.run(go_on(bench))
        one.run(asyncio.to_thread(lambda: asyncio.run(go_on(bench))))
        bench.nodes.let.set()
        one.run(bench.producer.close())
    assert bench.nodes.of(None) == [b"1", b"2"]


async def test_nothing_is_added_to_a_batch_that_a_close_gives_up() -> None:
    bench = Bench(timeout=0.05, loop=asyncio.get_running_loop())
    bench.nodes.let.clear()
    batcher, told = bench.producer._batcher, list[duolog.Posted]()
    filling = batcher.filling_of("T", ("g", 0), PLAIN)
    later = asyncio.get_running_loop().time() + 60
    refused = list[duolog.DuologError]()

    def add() -> None:  # in a thread that found the producer open
        try:
            batcher.add(filling, b"late", b"", later, told.append)
        except duolog.BadRequest as error:
            refused.append(error)

    def end(handle: duolog.Posted) -> None:
        thread = threading.Thread(target=add)
        thread.start()
        thread.join(10)
        told.append(handle)

    batcher.add(filling, b"first", b"", later)
    await bench.sends()
    batcher.add(filling, b"waits", b"", later, end)
    with pytest.raises(duolog.ResultUnknown):
        await bench.producer.close()
    assert (len(told), len(refused)) == (1, 1)
    assert batcher.used == 0


async def test_threads_that_post_with_a_delay_meet_in_one_batch_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    bench = Bench(loop=loop)
    producer, nodes, batcher = bench.producer, bench.nodes, bench.producer._batcher
    real = batcher.filling_of

    def post(body: bytes) -> None:
        producer.post("T", body, queue_id=0, group="g", deliver_at=1 << 40)

    def late(*goal: Any) -> Any:  # the loop's thread sends all that waits before it is added
        found = real(*goal)
        for change in (nodes.let.set, nodes.let.clear):
            loop.call_soon_threadsafe(change)
            time.sleep(0.1)
        return found

    await bench.queues.slots("T", 1)
    nodes.let.clear()
    await asyncio.to_thread(post, b"1")
    await bench.sends()
    monkeypatch.setattr(batcher, "filling_of", late)
    await asyncio.to_thread(post, b"2")
    monkeypatch.undo()
    await asyncio.to_thread(post, b"3")
    await bench.sends()
    nodes.let.set()
    await producer.flush()
    assert nodes.of(("g", 0)) == [b"1", b"2", b"3"]
    assert nodes.most[("g", 0)] == 1


async def test_a_client_keeps_no_producer_that_was_closed() -> None:
    async with duolog.Client("127.0.0.1:1", timeout=0.1) as client:
        for _ in range(100):
            async with client.producer():
                pass
        open_ones = [client.producer() for _ in range(3)]
        assert len(client._producers) <= 4
        assert set(open_ones) <= set(client._producers)


async def open_batch(bench: Bench) -> None:
    """A batch of T that has room, and waits behind another; time stands still for the producer."""
    bench.nodes.let.clear()
    bench.producer.post("T", b"0")
    await bench.sends()
    now = asyncio.get_running_loop().time()
    bench.producer._clock = lambda: now
    bench.producer.post("T", b"0")
    assert bench.producer._last.open.room > SEND_BYTES


async def test_a_message_that_joins_an_open_batch_keeps_its_own_deadline() -> None:
    bench = Bench()
    await open_batch(bench)
    late = bench.producer.post("T", b"1", timeout=0.05)
    with pytest.raises((duolog.Timeout, duolog.ResultUnknown)):
        async with asyncio.timeout(10):
            await late
    assert bench.producer._last.open is FULL  # what comes now does not end with it
    later = bench.producer.post("T", b"2", timeout=40)
    bench.nodes.let.set()
    await later
    await bench.producer.close()


async def test_an_open_batch_takes_nothing_of_another_topic_or_once_closed() -> None:
    bench = Bench()
    await open_batch(bench)
    producer = bench.producer
    posted = producer.post("U", b"1")
    producer.post("T", b"2")
    async with asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(producer.send(topic, b"3")) for topic in "TUT"]
        await asyncio.sleep(0.01)
        bench.nodes.let.set()
    assert (await posted).topic == "U"
    assert [one.result().topic for one in sent] == ["T", "U", "T"]
    await producer.close()
    bench = Bench()
    await open_batch(bench)
    closing = asyncio.ensure_future(bench.producer.close())
    await asyncio.sleep(0)
    with pytest.raises(duolog.BadRequest, match="closed"):
        bench.producer.post("T", b"x")
    with pytest.raises(duolog.BadRequest, match="closed"):
        await bench.producer.send("T", b"x")
    bench.nodes.let.set()
    await closing
    assert bench.nodes.of(None) == [b"0", b"0"]
