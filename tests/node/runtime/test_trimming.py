"""Memory that was freed is given back once a node has grown."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from duolog_server.node.runtime import memory
from duolog_server.node.runtime.memory import OwnMemory


def test_memory_can_be_given_back() -> None:
    memory.give_back()


async def test_where_the_system_does_not_tell_of_memory_nothing_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(_: OwnMemory) -> int:
        raise FileNotFoundError("/proc/self/statm")

    monkeypatch.setattr(OwnMemory, "read", read)
    await memory.keep_trimmed()


async def test_memory_is_given_back_where_a_node_has_grown_and_not_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown = memory.GROWN_BYTES
    sizes = [100, 100 + grown - 1, 90, 90 + grown, 95, 95 + grown - 1]
    given: list[int] = []
    monkeypatch.setattr(memory, "CHECK_SECONDS", 0)
    monkeypatch.setattr(OwnMemory, "read", lambda _: sizes[0])
    monkeypatch.setattr(memory, "give_back", lambda: given.append(sizes.pop(0)))
    keeping = asyncio.create_task(memory.keep_trimmed())
    await asyncio.sleep(0)
    for _ in range(2):
        sizes.pop(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert given == []
    sizes.pop(0)
    async with asyncio.timeout(60):
        while not given:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
    sizes.pop(0)
    await asyncio.sleep(0.01)
    keeping.cancel()
    assert given == [90 + grown]


@pytest.mark.parametrize("refused", [RuntimeError("can't start new thread"), OSError("no libc")])
async def test_a_node_works_on_where_no_memory_can_be_given_back(
    monkeypatch: pytest.MonkeyPatch, refused: Exception
) -> None:
    sizes = iter(itertools.count(0, memory.GROWN_BYTES))
    tried = asyncio.Queue[None]()

    def refuse() -> None:
        tried.put_nowait(None)
        raise refused

    async def in_this_thread(work: Callable[[], None]) -> None:
        work()

    monkeypatch.setattr(memory, "CHECK_SECONDS", 0)
    monkeypatch.setattr(OwnMemory, "read", lambda _: next(sizes))
    monkeypatch.setattr(memory, "give_back", refuse)
    monkeypatch.setattr(asyncio, "to_thread", in_this_thread)
    keeping = asyncio.create_task(memory.keep_trimmed())
    async with asyncio.timeout(60):
        for _ in range(2):
            await tried.get()
    assert not keeping.done()
    keeping.cancel()
