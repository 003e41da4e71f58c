"""When the threads of gRPC's core give way to the event loop."""

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from duolog_server.demo.ports import free_endpoint
from duolog_server.node.net.grpc import threads as module
from duolog_server.node.net.grpc.threads import (
    AGAIN_SECONDS,
    BUSY_PART,
    FIND_SECONDS,
    NICENESS,
    QUIET_SECONDS,
    SHORT_SECONDS,
    CoreThreads,
)
from duolog_server.serve.server import Node
from tests.nodefixtures import StartNode
from tests.until import wait_until

LOOK = 0.02
BUSY = BUSY_PART * LOOK


class Clock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def go_on(self, seconds: float, used: float) -> None:
        """used: what a thread of gRPC has of a processor in this time."""
        self.now += seconds
        self.used += used

    def monotonic(self) -> float:
        return self.now

    def clock_gettime(self, clock: int) -> float:
        return self.used


@pytest.fixture
def niceness(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was asked for."""
    asked: list[int] = []

    def renice(value: int) -> int:
        asked.append(value)
        return 1

    monkeypatch.setattr(module, "_renice", renice)
    monkeypatch.setattr(os, "getpriority", lambda which, who: 0)
    return asked


def test_they_give_way_where_they_want_much_of_a_processor(niceness: list[int]) -> None:
    threads = CoreThreads()
    threads.looked(1.0, LOOK, BUSY * 0.99)
    assert not threads.give_way
    with capture_logs() as logged:
        threads.looked(1.02, LOOK, BUSY)
        threads.looked(1.04, LOOK, BUSY)
    assert threads.give_way
    assert niceness == [NICENESS]
    assert len(logged) == 1


def test_looks_in_quick_succession_say_what_they_say_together(
    niceness: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_threads", lambda: [1])
    threads = CoreThreads()
    clock.go_on(SHORT_SECONDS, used=SHORT_SECONDS)
    threads.look()
    assert niceness == [], "it was seen for the first time"
    clock.go_on(SHORT_SECONDS / 2, used=SHORT_SECONDS)
    threads.look()
    assert niceness == []
    clock.go_on(SHORT_SECONDS / 2, used=0)
    threads.look()
    assert niceness == [NICENESS]


def test_only_their_time_counts_and_one_that_ends_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        while time.thread_time() < 0.01:
            pass
        begun.set()
        may_end.wait(60)

    thread = threading.Thread(target=work)
    found: list[int] = []
    monkeypatch.setattr(module, "_threads", lambda: found)
    threads = CoreThreads()
    found.append(threading.get_native_id())
    assert threads._busy(0.0) < 0.005, "what it had before does not count"
    thread.start()
    begun.wait(60)
    assert thread.native_id is not None
    found[:] = [thread.native_id]
    assert threads._busy(FIND_SECONDS) >= 0.01
    may_end.set()
    thread.join()

    def is_forgotten() -> bool:
        threads._busy(FIND_SECONDS)
        return thread.native_id not in threads._used

    wait_until(is_forgotten, "the kernel's end of a thread that has ended")


def test_once_they_were_quiet_they_have_what_they_had(niceness: list[int]) -> None:
    threads = CoreThreads()
    threads.looked(1.0, LOOK, BUSY)
    threads.looked(1.0 + QUIET_SECONDS - LOOK, LOOK, 0)
    assert threads.give_way
    threads.looked(1.0 + QUIET_SECONDS, LOOK, 0)
    assert not threads.give_way
    threads.looked(2.0 + QUIET_SECONDS, LOOK, BUSY)
    assert niceness == [NICENESS, 0, NICENESS]


def test_where_this_process_may_not_undo_it_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def renice(value: int) -> int:
        tried.append(value)
        if value == 0:
            raise PermissionError
        return 1

    monkeypatch.setattr(module, "_renice", renice)
    monkeypatch.setattr(os, "getpriority", lambda which, who: 0)
    threads = CoreThreads()
    threads.looked(1.0, LOOK, BUSY)
    for number in range(1, 4):
        threads.looked(1.0 + number * QUIET_SECONDS, LOOK, 0)
    assert threads.give_way
    assert tried == [NICENESS, 0]


def test_where_no_descriptor_is_left_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = iter((OSError(errno.EMFILE, "Too many open files"),))
    found: list[int] = []

    def renice(value: int) -> int:
        for problem in problems:
            raise problem
        found.append(value)
        return 1

    monkeypatch.setattr(module, "_renice", renice)
    threads = CoreThreads()
    threads.looked(1.0, LOOK, BUSY)
    assert not threads.give_way
    threads.looked(1.0 + AGAIN_SECONDS / 2, LOOK, BUSY)
    assert not threads.give_way
    threads.looked(1.0 + AGAIN_SECONDS, LOOK, BUSY)
    assert threads.give_way
    assert len(found) == 1


def test_they_give_way_to_a_process_that_gives_way_itself(
    niceness: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpriority", lambda which, who: 5)
    threads = CoreThreads()
    threads.looked(1.0, LOOK, BUSY)
    threads.looked(1.0 + QUIET_SECONDS, LOOK, 0)
    assert niceness == [5 + NICENESS, 5]


async def test_they_are_looked_at_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = asyncio.Queue[None]()
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(CoreThreads, "look", lambda _: looks.put_nowait(None))
    looking = asyncio.create_task(module.keep_looking())
    async with asyncio.timeout(20):
        for _ in range(3):
            await looks.get()
    looking.cancel()
    await asyncio.wait((looking,))
    assert looking.cancelled()


async def test_a_node_works_on_where_a_look_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: CoreThreads) -> None:
        raise ValueError("no number")

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(CoreThreads, "look", look)
    with capture_logs() as logged:
        await module.keep_looking()
    assert [line["event"] for line in logged] == ["gRPC: its threads give way no more"]


async def test_one_looks_in_a_process_however_many_ports_it_has(
    monkeypatch: pytest.MonkeyPatch, start_node: StartNode
) -> None:
    looks: list[CoreThreads] = []

    def look(threads: CoreThreads) -> None:
        looks.append(threads)

    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(CoreThreads, "look", look)
    looking = asyncio.create_task(module.keep_looking())
    await start_node(ha={"listen": free_endpoint()})
    async with asyncio.timeout(20):
        while len(looks) < 3:
            await asyncio.sleep(0)
    looking.cancel()
    assert len({id(one) for one in looks}) == 1


async def test_gRPC_has_threads_of_the_names_that_are_known(node: Node) -> None:
    assert node.port
    names = [Path(entry, "comm").read_text().strip() for entry in os.scandir("/proc/self/task")]
    found = [name for name in names if name in module.NAMES]
    assert found
    assert module._renice(os.getpriority(os.PRIO_PROCESS, 0)) >= len(set(found))
