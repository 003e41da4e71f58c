"""A loop that looks for what comes next before it sleeps, as long as that pays."""

import asyncio
from pathlib import Path

import duolog
import pytest
from duolog import sync
from duolog._busypoll import (
    LOSS_MISSES,
    MICROSECONDS_MAX,
    MISSES_MAX,
    BusyPoll,
    busy_poll,
    has_spare_core,
)

WINDOW = 0.25  # s, of the tests' clock


class World:
    """The time, which each look takes some of, and other programs."""

    def __init__(self) -> None:
        self.now = 1.0
        self.losses = 0
        self.looks = 0
        self.poll = BusyPoll(WINDOW, self._look, lambda: self.losses)

    def _look(self) -> float:
        self.looks += 1
        self.now += WINDOW / 10
        return self.now

    async def in_vain(self) -> int:
        """Expect something that does not come: how often the loop looked."""
        before = self.looks
        self.poll.expect()
        await asyncio.sleep(0)
        while self.poll.polling:
            await asyncio.sleep(0)
        return self.looks - before


async def test_a_loop_is_kept_awake_for_a_bounded_time() -> None:
    world = World()
    assert 9 <= await world.in_vain() <= 12


async def test_it_ends_at_once_when_it_came() -> None:
    world = World()
    world.poll.expect()
    await asyncio.sleep(0)
    world.poll.came()
    before = world.looks
    await asyncio.sleep(0)
    assert not world.poll.polling
    assert world.looks - before <= 1


async def test_what_comes_each_time_is_looked_for_each_time() -> None:
    world = World()
    for _ in range(1000):
        before = world.looks
        world.poll.expect()
        assert world.looks > before
        await asyncio.sleep(0)
        world.poll.came()


async def test_tries_in_vain_make_tries_rarer_and_they_never_end() -> None:
    world = World()
    tried = [n for n in range(4 << MISSES_MAX) if await world.in_vain()]
    assert tried[:4] == [0, 2, 6, 14]  # after 1, 3, 7 … that were not tried
    assert len(tried) <= 2 + MISSES_MAX + 4
    assert tried[-1] > 2 << MISSES_MAX


async def test_one_that_pays_again_is_tried_each_time_again() -> None:
    world = World()
    for _ in range(3):
        await world.in_vain()
    while not world.poll.polling:
        world.poll.expect()
    world.poll.came()
    await asyncio.sleep(0)
    world.poll.expect()
    assert world.poll.polling


async def test_it_gives_way_to_a_program_that_wants_the_processor() -> None:
    world = World()
    world.poll.expect()
    world.losses += 1
    world.poll.came()
    skipped = 0
    await asyncio.sleep(0)
    while not world.poll.polling:
        world.poll.expect()
        skipped += not world.poll.polling
    assert skipped == (1 << LOSS_MISSES) - 1


async def test_what_came_unexpectedly_changes_nothing() -> None:
    world = World()
    await world.in_vain()
    world.poll.came()
    assert not await world.in_vain()  # rarer, still


async def test_without_a_time_it_never_looks() -> None:
    poll = BusyPoll(0)
    poll.expect()
    assert not poll.polling
    assert not busy_poll(0).polling


@pytest.mark.parametrize(
    ("text", "spare"),
    [("max 100000\n", True), ("200000 100000\n", True), ("150000 100000\n", False), ("1 0", True)],
)
def test_a_container_of_less_than_two_cores_has_none_to_spare(
    tmp_path: Path, text: str, spare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert has_spare_core(tmp_path)  # not in a container
    (tmp_path / "cpu.max").write_text(text)
    assert has_spare_core(tmp_path) is spare


def test_one_core_is_not_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    assert not has_spare_core(tmp_path)


@pytest.mark.parametrize("microseconds", [-1, MICROSECONDS_MAX + 1])
def test_a_time_out_of_bounds_is_refused(microseconds: int) -> None:
    for client in (duolog.Client, sync.Client):
        with pytest.raises(duolog.BadRequest, match="busy_poll_us"):
            client("127.0.0.1:1", busy_poll_us=microseconds)
