"""The event loop of a simulated process: asyncio's own rules, in the scheduler's time."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from sim.loop import SimLoop
from sim.world import World


class Process:
    """A loop, and what its coroutines did when."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        world = self.world
        self.loop = SimLoop(
            lambda delay, do: world.after(delay, do), lambda: world.now / 1000, random.Random(seed)
        )
        self.did: list[tuple[str, float]] = []

    def note(self, what: str) -> None:
        self.did.append((what, round(self.loop.time(), 2)))

    def run(self, *works: object, ms: float = 10_000) -> None:
        for work in works:
            self.loop.run_now(lambda work=work: self.loop.create_task(work))  # type: ignore[misc]
        self.world.run_until(self.world.now + ms, lambda: None)


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.loop.close()


def test_coroutines_sleep_wait_and_time_out_in_virtual_time(process: Process) -> None:
    event = asyncio.Event()

    async def waits() -> None:
        await event.wait()
        process.note("woken")
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(60)
        except TimeoutError:
            process.note("timed out")

    async def wakes() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(2))
            tasks.create_task(asyncio.sleep(1))
        event.set()

    process.run(waits(), wakes())
    assert process.did == [("woken", 2.0), ("timed out", 2.5)]


def test_a_thread_ends_later_and_its_error_reaches_the_waiter(process: Process) -> None:

    def fails() -> None:
        raise OSError(5, "no disk")

    async def works() -> None:
        assert await process.loop.run_in_executor(None, lambda: 7) == 7
        with pytest.raises(OSError, match="no disk"):
            await process.loop.run_in_executor(None, fails)
        process.note("done")

    process.run(works())
    assert [what for what, _ in process.did] == ["done"]


def test_the_same_seed_runs_tasks_in_the_same_order() -> None:
    def trace(seed: int) -> list[tuple[str, float]]:
        process = Process(seed)

        async def works(name: str) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                process.did.append((name, process.world.now))

        process.run(works("a"), works("b"))
        process.loop.close()
        return process.did

    assert trace(1) == trace(1) != trace(2)


def test_an_error_without_a_waiter_is_raised_in_the_world(process: Process) -> None:

    def fails() -> None:
        raise ValueError("unheard")

    process.loop.call_soon(fails)
    with pytest.raises(ValueError, match="unheard"):
        process.world.run_until(10, lambda: None)


def test_a_process_that_dies_ends_its_tasks_and_does_nothing_more(process: Process) -> None:

    async def works() -> None:
        try:
            while True:
                await asyncio.sleep(0.1)
                process.note("worked")
        finally:
            process.note("ended")
            await asyncio.sleep(1)
            process.note("never")

    process.run(works(), ms=250)
    process.loop.close()
    process.loop.close()
    process.world.run_until(5000, lambda: None)
    assert [what for what, _ in process.did] == ["worked", "worked", "ended"]
    assert process.loop.is_closed()
