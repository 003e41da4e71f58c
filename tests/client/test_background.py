"""Background tasks have an owner, end with it, and report their errors."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import duolog
import pytest
from duolog._background import Background, Joint, all_of, close_all, together
from duolog._batcher import Batcher, Buffering
from duolog._nodechannel import AppendStream
from duolog._places import Slot
from duolog._receipts import Part
from duolog._terms import PLAIN
from duolog.wire import duolog_pb2 as wire


async def forever() -> None:
    await asyncio.Event().wait()


async def fail(error: Exception) -> None:
    raise error


def others() -> set[asyncio.Task[Any]]:
    """Tasks beside the test's own."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


# -- the owner -----------------------------------------------------------------------------------


async def test_tasks_end_with_their_owner_which_they_may_stop() -> None:
    background = Background()
    ended: list[int] = []

    async def note(number: int) -> None:
        try:
            await forever()
        finally:
            ended.append(number)

    tasks = [background.start(note(number)) for number in range(20)]
    await asyncio.sleep(0)
    await background.stop()
    assert all(task.cancelled() for task in tasks)
    assert ended == list(range(20)), "in the order of their beginnings: a simulation repeats it"
    assert not background.busy
    await background.stop()  # nothing to do
    background = Background()

    async def starts_another() -> None:
        try:
            await forever()
        finally:
            background.start(forever())

    background.start(starts_another())
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await background.stop()
    assert not others()
    background = Background()
    background.start(forever())
    stopping = background.start(background.stop())
    async with asyncio.timeout(20):
        await stopping
    assert not others()


async def test_an_error_is_reported_or_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exception] = []
    error = ValueError("x")
    owner = Background(told.append)
    owner.start(fail(error))
    await owner.finish()
    assert told == [error]
    with caplog.at_level(logging.ERROR, logger="duolog"):
        background = Background()
        background.start(fail(error))
        await background.finish()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    owner.start(forever()).cancel()
    await owner.finish()
    assert told == [error]


# -- shared calls --------------------------------------------------------------------------------


async def test_a_shared_call_is_made_once_outlives_its_waiters_and_fails_all() -> None:
    joint: Joint[str, int] = Joint()
    made = 0
    ready = asyncio.Event()

    async def make() -> int:
        nonlocal made
        made += 1
        await ready.wait()
        return made

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(joint.call("k", make))
        second = tasks.create_task(joint.call("k", make))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        ready.set()
    assert first.cancelled()
    assert second.result() == 1
    assert await joint.call("k", make) == 2  # an answer is not kept
    failing: Joint[str, None] = Joint()
    calls = (failing.call("k", lambda: fail(duolog.Busy("x"))) for _ in range(3))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in found] == [duolog.Busy] * 3
    failing = Joint()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_kind_of(failing))
        await asyncio.sleep(0)
        await failing.stop()
    assert waiting.result() is duolog.Unavailable


async def _kind_of(joint: Joint[str, None]) -> type[BaseException]:
    try:
        await joint.call("k", forever)
    except BaseException as error:
        return type(error)
    raise AssertionError("it was stopped")


async def test_tasks_of_a_group_are_awaited_and_the_first_error_is_raised_unwrapped() -> None:
    with pytest.raises(duolog.Busy):
        async with together() as tasks:
            tasks.create_task(fail(duolog.Busy("x")))
            await forever()
    assert not others()
    me = asyncio.current_task()
    assert me is not None
    for others_run in (True, False):
        with pytest.raises(duolog.Busy):
            async with together() as tasks:
                tasks.create_task(fail(duolog.Busy("x")))
                if others_run:
                    tasks.create_task(forever())
        assert me.cancelling() == 0
    assert not others()

    class Refusing:
        async def send(self, batch: Any, seconds: float) -> list[Part]:
            await asyncio.sleep(0)
            raise duolog.Busy("no room")

    async with duolog.Client("127.0.0.1:1") as client, client.producer() as producer:
        producer._sender = Refusing()  # type: ignore[assignment]
        with pytest.raises(duolog.Busy):
            await producer.send_batch("T", [bytes(700_000)] * 4)
    ended: list[int] = []

    async with together() as tasks:

        async def begin(depth: int) -> None:
            await asyncio.sleep(0)
            if depth:
                tasks.create_task(begin(depth - 1))
            ended.append(depth)

        tasks.create_task(begin(3))
    assert ended == [3, 2, 1, 0]


# -- the SDK's parts -----------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """The endpoint of something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_a_closed_client_leaves_no_task_and_cancels_nobody(silent: str) -> None:
    client = duolog.Client(silent, timeout=30)
    producer = client.producer()

    async def kind_of(work: Any) -> type[BaseException]:
        try:
            await work
        except BaseException as error:
            return type(error)
        raise AssertionError("nobody answered")

    asked = [
        asyncio.ensure_future(kind_of(work))
        for work in (
            client.admin.create_topic("T"),
            client.pull("T", 0, 0),
            producer.send("T", b"x", key="k"),
            producer.send_batch("T", [b"x"]),
        )
    ]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        await client._topics.close()
        await client._router.close()
        kinds = await asyncio.gather(*asked)
        await client.close()
    assert set(kinds) == {duolog.Unavailable}
    assert not others()


class Dying:
    """An append call whose replies cannot be read."""

    async def write(self, request: wire.AppendRequest) -> None:
        """Swallow it."""

    async def read(self) -> object:
        """Die of a fault."""
        raise KeyError("a fault")

    def cancel(self) -> bool:
        """Nothing to do."""
        return True


async def test_an_error_of_the_append_stream_fails_its_waiters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = AppendStream(Dying())  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        with pytest.raises(duolog.Unavailable):
            await stream.append(wire.AppendRequest(id=1))
    assert "a background task failed" in caplog.text
    await stream.close()
    assert not others()


async def test_a_waiter_with_more_time_retries_a_shared_call_that_timed_out() -> None:
    joint: Joint[None, str] = Joint()
    loop = asyncio.get_running_loop()
    asked: list[float] = []

    def ask(seconds: float) -> Callable[[], Any]:
        async def call() -> str:
            asked.append(seconds)
            if len(asked) > 1:
                return "found"
            await asyncio.sleep(seconds)
            raise duolog.Timeout("no answer")

        return call

    now = loop.time()
    hasty = asyncio.ensure_future(joint.call(None, ask(0.02), now + 0.02))
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(joint.call(None, ask(20.0), now + 20))
    with pytest.raises(duolog.Timeout):
        await hasty
    assert await patient == "found"
    assert asked == [0.02, 20.0]


class SlowSender:
    """Sends when it is let."""

    producer_id = bytes(10)

    def __init__(self) -> None:
        self.let = asyncio.Event()

    async def send(self, batch: Any, seconds: float) -> list[Part]:
        """One part for all of it."""
        await self.let.wait()
        return [Part("T", 0, 0, batch.count, 0, 0, 0, "PUT_OK")]


async def _send(batcher: Batcher, slot: Slot | None) -> duolog.Receipt:
    deadline = asyncio.get_running_loop().time() + 30
    return await batcher.send(batcher.filling_of("T", slot, PLAIN), b"x", b"", deadline)


async def test_what_waits_when_the_producer_is_closed_is_not_sent_and_answered() -> None:
    batcher = Batcher(SlowSender(), Buffering(60.0))  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(_send(batcher, None))
    await asyncio.sleep(0.01)
    await batcher.close()
    async with asyncio.timeout(20):
        with pytest.raises(duolog.BadRequest, match="the producer is closed"):
            await waiting
    assert not others()
    batcher = Batcher(SlowSender(), Buffering(60.0))  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(_send(batcher, None))
    async with asyncio.timeout(20):
        while not batcher._draining.busy:
            await asyncio.sleep(0)
        await batcher.close()  # its task has not taken its first step
        with pytest.raises(duolog.BadRequest, match="the producer is closed"):
            await waiting
    assert not others()
    sender = SlowSender()
    batcher = Batcher(sender)  # type: ignore[arg-type]
    slot: Slot = ("g", 0)
    alone = asyncio.ensure_future(_send(batcher, slot))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(_send(batcher, slot))
    await asyncio.sleep(0)
    await batcher.close()
    sender.let.set()
    assert (await alone).status == "PUT_OK"
    with pytest.raises(duolog.BadRequest, match="the producer is closed"):
        await behind
    with pytest.raises(duolog.BadRequest, match="the producer is closed"):
        await _send(batcher, slot)
    assert not others()


async def test_a_cancellation_that_meets_an_error_is_not_lost() -> None:
    failed, ending = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            failed.set()
            await ending.wait()

    async def run() -> None:
        async with together() as tasks:
            tasks.create_task(slow_to_end())
            await asyncio.sleep(0)
            raise duolog.Unavailable("the stream broke")

    running = asyncio.ensure_future(run())
    async with asyncio.timeout(20):
        await failed.wait()
        running.cancel()
        await asyncio.sleep(0)
        ending.set()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_task_that_lost_its_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duolog._background.CANCEL_AGAIN_SECONDS", 0.01)
    cancelled = 0

    async def deaf() -> None:
        nonlocal cancelled
        while cancelled < 3:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1

    background = Background()
    background.start(deaf())
    async with asyncio.timeout(20):
        await asyncio.sleep(0)
        await background.stop()
    assert cancelled == 3


class Deaf:
    """A task that no cancellation ends, until it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()

    async def run(self) -> None:
        while not self.let.is_set():
            try:
                await self.let.wait()
            except asyncio.CancelledError:
                continue


async def test_an_owner_does_not_wait_forever_for_a_task_that_ignores_cancellation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duolog._background.CANCEL_AGAIN_SECONDS", 0.01)
    background, deaf = Background(), Deaf()
    task = background.start(deaf.run())
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await background.stop(0.05)
    assert not task.done()
    assert "1 background tasks did not end within 0.05 s of their cancellation: " in caplog.text
    assert "Deaf.run" in caplog.text
    stopping = asyncio.ensure_future(background.stop(None))
    await asyncio.sleep(0.1)
    assert not stopping.done()
    deaf.let.set()
    async with asyncio.timeout(20):
        await stopping
    assert not others()


async def test_waiting_for_work_times_out_and_the_first_error_of_several_ends_the_others() -> None:
    background = Background()
    task = background.start(forever())
    assert not await background.finish(0.01)
    assert not task.done()
    await background.stop()
    assert await background.finish(0.0)

    async def answer(number: int) -> int:
        return number

    assert await all_of(answer(1), answer(2)) == [1, 2]
    async with asyncio.timeout(20):
        with pytest.raises(duolog.Busy):
            await all_of(forever(), fail(duolog.Busy("x")))
    assert not others()


# -- closing -------------------------------------------------------------------------------------


class Closing:
    """Something to close; it may fail, and says when it is done."""

    def __init__(self, closed: list[str], name: str, error: Exception | None = None) -> None:
        self._closed, self._name, self._error = closed, name, error

    async def close(self) -> None:
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error
        await asyncio.sleep(0.01)
        self._closed.append(self._name)


async def test_a_part_that_fails_to_close_or_is_cancelled_keeps_no_other_open() -> None:
    closed: list[str] = []
    first, second = duolog.Unavailable("first"), ValueError("second")
    bad, good = Closing(closed, "bad", first), Closing(closed, "good")
    worse, last = Closing(closed, "worse", second), Closing(closed, "last")
    with pytest.raises(duolog.Unavailable, match="first"):
        await close_all([bad.close, good.close], [worse.close], [last.close])
    assert closed == ["good", "last"]
    await close_all([good.close], [])
    assert not others()
    closed.clear()
    slow, last = Background(), Closing(closed, "last", None)
    slow.start(forever())

    async def hangs() -> None:
        await forever()

    closing = asyncio.ensure_future(close_all([hangs], [slow.stop, last.close]))
    await asyncio.sleep(0.01)
    closing.cancel()
    async with asyncio.timeout(20):
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert closed == ["last"]
    assert not others()


async def test_a_client_closes_its_connections_though_a_part_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = duolog.Client("127.0.0.1:1", timeout=5)
    closed: list[str] = []
    broken, whole = client.producer(), client.producer()

    async def fail_to_close() -> None:
        raise duolog.Unavailable("cannot close")

    monkeypatch.setattr(broken, "close", fail_to_close)
    monkeypatch.setattr(whole, "close", Closing(closed, "producer").close)
    monkeypatch.setattr(client._topics, "close", Closing(closed, "topics").close)
    router = client._router
    monkeypatch.setattr(client, "_router", Closing(closed, "router"))
    with pytest.raises(duolog.Unavailable, match="cannot close"):
        await client.close()
    assert closed == ["producer", "topics", "router"]
    await router.close()


async def test_an_owned_task_is_none_of_the_programs_task_factory() -> None:
    """asyncio's own eager one runs a task before its owner has noted it."""

    def factory(*_: Any, **how: Any) -> Any:
        raise AssertionError("not asked")

    begun: list[bool] = []

    async def begin() -> None:
        begun.append(background.busy)

    background, loop = Background(), asyncio.get_running_loop()
    loop.set_task_factory(factory)
    task = background.start(begin())
    loop.set_task_factory(None)  # the loop's own end begins tasks, too
    assert not begun
    await task
    assert begun == [True]
