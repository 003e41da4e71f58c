"""Tasks of a client that the program cancels, as frameworks do with all tasks of a loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import duolog
import pytest
from duolog._nodechannel import AppendStream
from duolog.wire import duolog_pb2 as wire

from tests.client.postbench import Bench
from tests.client.test_groupreader import Place, reader_at
from tests.until import until

ENDS_SECONDS = 5.0  # what ends only with a timeout takes longer


async def cancel_all() -> None:
    """Cancel all tasks but ours, and wait for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others)


async def test_a_producer_whose_tasks_are_cancelled_says_so_and_sends_what_comes_then() -> None:
    bench = Bench()
    bench.nodes.let.clear()
    sent = bench.producer.post("T", b"sent", queue_id=1)
    await until(lambda: bench.nodes.under_way, "the first batch is sent")
    waiting = bench.producer.post("T", b"waiting", queue_id=1)
    await cancel_all()
    with pytest.raises(duolog.ResultUnknown, match="was cancelled"):
        await asyncio.wait_for(sent._wait(), ENDS_SECONDS)
    with pytest.raises(duolog.Unavailable, match="was cancelled"):
        await asyncio.wait_for(waiting._wait(), ENDS_SECONDS)
    bench.nodes.let.set()
    for k in range(3):
        receipt = await asyncio.wait_for(bench.producer.send("T", b"%d" % k, queue_id=1), 5)
        assert receipt.queue_offset == k
    await bench.producer.flush()
    await bench.producer.close()
    assert bench.producer._batcher.used == 0


async def test_tasks_that_are_cancelled_before_their_first_step_leave_no_message_waiting() -> None:
    bench = Bench()
    bench.queues.let.clear()
    posted = [bench.producer.post("T", b"plain"), bench.producer.post("T", b"keyed", key="k")]
    await cancel_all()
    for each in posted:
        with pytest.raises(duolog.Unavailable, match="was cancelled"):
            await asyncio.wait_for(each._wait(), ENDS_SECONDS)
    bench.queues.let.set()
    for key in (None, "k"):
        await asyncio.wait_for(bench.producer.send("T", b"x", key=key), ENDS_SECONDS)
        await asyncio.wait_for(bench.producer.post("T", b"x", key=key)._wait(), ENDS_SECONDS)
    await bench.producer.close()


class Lock:
    """Lets something else happen, as in another thread, once it is free."""

    def __init__(self, may: Callable[[], bool], then: Callable[[], None]) -> None:
        self._may, self._then = may, then
        self._depth = 0
        self.used = False

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and not self.used and self._may():
            self.used = True
            self._then()


async def test_a_message_that_another_thread_adds_meanwhile_has_a_sender() -> None:
    bench = Bench()
    bench.nodes.let.clear()
    sent = bench.producer.post("T", b"sent", queue_id=1)
    await until(lambda: bench.nodes.under_way, "the batch is sent")
    batcher, added = bench.producer._batcher, list[Any]()

    def add() -> None:
        bench.nodes.let.set()
        added.append(bench.producer.post("T", b"added", queue_id=1))

    lock: Any = Lock(lambda: batcher._cut_off, add)
    batcher.lock = lock
    await cancel_all()
    with pytest.raises(duolog.ResultUnknown):
        await sent._wait()
    receipt = await asyncio.wait_for(added[0]._wait(), ENDS_SECONDS)
    assert receipt.queue_offset == 0
    await bench.producer.close()


async def test_an_append_stream_whose_tasks_are_cancelled_fails_its_appends() -> None:
    class Call:
        def __init__(self) -> None:
            self.cancelled = False

        async def write(self, request: wire.AppendRequest) -> None:
            return None

        async def read(self) -> object:
            return await asyncio.Event().wait()

        async def code(self) -> Any:
            raise AssertionError("not asked")

        details = code

        def cancel(self) -> bool:
            self.cancelled = True
            return True

    call = Call()
    stream = AppendStream(call)
    waiting = asyncio.ensure_future(stream.append(wire.AppendRequest(id=1)))
    await until(lambda: stream.busy, "it waits")
    tasks = asyncio.all_tasks() - {asyncio.current_task(), waiting}
    for task in tasks:
        task.cancel()
    with pytest.raises(duolog.Unavailable, match="was cancelled"):
        await asyncio.wait_for(waiting, ENDS_SECONDS)
    assert stream.error is not None  # another stream is opened for the next append
    assert not call.cancelled
    await stream.close()
    assert call.cancelled


async def test_a_consumer_whose_tasks_are_cancelled_raises_instead_of_waiting() -> None:
    reader = reader_at(Place())
    await reader.start()
    await cancel_all()
    with pytest.raises(duolog.Unavailable, match="was cancelled"):
        reader.get()
    assert reader._arrived.is_set()
    await reader.close()
