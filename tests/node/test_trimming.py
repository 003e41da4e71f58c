"""Memory that was freed is given back once a node has grown."""

import asyncio
from collections.abc import Callable

import pytest

from node import trimming


def test_the_memory_of_this_process_is_known() -> None:
    assert trimming.anonymous_mib() > 0
    trimming.give_back()


async def test_memory_is_given_back_where_a_node_has_grown_and_not_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown = trimming.GROWN_MIB
    sizes = [100, 100 + grown - 1, 90, 90 + grown, 95, 95 + grown - 1]
    given: list[int] = []
    monkeypatch.setattr(trimming, "CHECK_SECONDS", 0)
    monkeypatch.setattr(trimming, "anonymous_mib", lambda: sizes[0])
    monkeypatch.setattr(trimming, "give_back", lambda: given.append(sizes.pop(0)))
    keeping = asyncio.create_task(trimming.keep_trimmed())
    await asyncio.sleep(0)
    for _ in range(2):
        sizes.pop(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert given == []
    sizes.pop(0)
    async with asyncio.timeout(10):
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
    sizes = iter(range(0, 1 << 30, trimming.GROWN_MIB))
    tried = asyncio.Queue[None]()

    def refuse() -> None:
        tried.put_nowait(None)
        raise refused

    async def in_this_thread(work: Callable[[], None]) -> None:
        work()

    monkeypatch.setattr(trimming, "CHECK_SECONDS", 0)
    monkeypatch.setattr(trimming, "anonymous_mib", lambda: next(sizes))
    monkeypatch.setattr(trimming, "give_back", refuse)
    monkeypatch.setattr(asyncio, "to_thread", in_this_thread)
    keeping = asyncio.create_task(trimming.keep_trimmed())
    async with asyncio.timeout(10):
        for _ in range(2):
            await tried.get()
    assert not keeping.done()
    keeping.cancel()
