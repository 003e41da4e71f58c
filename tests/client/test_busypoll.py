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


async def test_a_loop_is_kept_awake_for_a_bounded_time_until_it_came() -> None:
    world = World()
    assert 9 <= await world.in_vain() <= 12
    poll = BusyPoll(0)
    poll.expect()
    assert not poll.polling
    assert not busy_poll(0).polling
    world = World()
    world.poll.expect()
    await asyncio.sleep(0)
    world.poll.came()
    before = world.looks
    await asyncio.sleep(0)
    assert not world.poll.polling
    assert world.looks - before <= 1


async def test_what_comes_each_time_is_looked_for_and_tries_in_vain_get_rarer() -> None:
    world = World()
    for _ in range(1000):
        before = world.looks
        world.poll.expect()
        assert world.looks > before
        await asyncio.sleep(0)
        world.poll.came()
    world = World()
    tried = [n for n in range(4 << MISSES_MAX) if await world.in_vain()]
    assert tried[:4] == [0, 2, 6, 14]  # after 1, 3, 7 … that were not tried
    assert len(tried) <= 2 + MISSES_MAX + 4
    assert tried[-1] > 2 << MISSES_MAX
    world = World()
    for _ in range(3):
        await world.in_vain()
    while not world.poll.polling:
        world.poll.expect()
    world.poll.came()
    await asyncio.sleep(0)
    world.poll.expect()
    assert world.poll.polling
    world.poll.came()
    await asyncio.sleep(0)
    assert [bool(await world.in_vain()) for _ in range(3)] == [True, False, True]


async def test_it_gives_way_to_a_program_and_ignores_what_came_unexpectedly() -> None:
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
    world = World()
    await world.in_vain()
    world.poll.came()
    assert not await world.in_vain()  # rarer, still
    assert await world.in_vain()
    assert not any([await world.in_vain() for _ in range(3)])


@pytest.fixture
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


QUOTAS = [("max 100000\n", True), ("200000 100000\n", True), ("150000 100000\n", False)]


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize(("text", "spare"), [*QUOTAS, ("1 0", True), ("what", True)])
@pytest.mark.parametrize("own", ["0::/", "0::/../../other", None])
def test_a_container_of_less_than_two_cores_has_none_to_spare(
    tmp_path: Path, text: str, spare: bool, own: str | None
) -> None:
    groups, names = tmp_path / "groups", tmp_path / "own"
    groups.mkdir()
    if own is not None:
        names.write_text(own + "\n")
    assert has_spare_core(groups, names)  # not in a container
    (groups / "cpu.max").write_text(text)
    assert has_spare_core(groups, names) is spare


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize(("text", "spare"), QUOTAS)
@pytest.mark.parametrize("limited", ["system.slice", "system.slice/duolog.service"])
def test_a_service_of_less_than_two_cores_has_none_to_spare(
    tmp_path: Path, text: str, spare: bool, limited: str
) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/duolog.service\n")
    (tmp_path / "system.slice/duolog.service").mkdir(parents=True)
    (tmp_path / "system.slice/cpu.max").write_text("max 100000\n")
    (tmp_path / limited / "cpu.max").write_text(text)
    assert has_spare_core(tmp_path, own) is spare


@pytest.mark.usefixtures("_two_cores")
@pytest.mark.parametrize(("quota", "spare"), [("-1", True), ("200000", True), ("199999", False)])
@pytest.mark.parametrize("seen", ["", "docker/0a1b"])
def test_so_has_a_container_of_version_1(
    tmp_path: Path, quota: str, spare: bool, seen: str
) -> None:
    own = tmp_path / "own"
    own.write_text("5:memory:/docker/0a1b\n4:cpu,cpuacct:/docker/0a1b\n")
    directory = tmp_path / "cpu,cpuacct" / seen
    directory.mkdir(parents=True)
    (directory / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (directory / "cpu.cfs_period_us").write_text("100000\n")
    assert has_spare_core(tmp_path, own) is spare


def test_one_core_is_not_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    assert not has_spare_core(tmp_path, tmp_path)


@pytest.mark.parametrize("microseconds", [-1, MICROSECONDS_MAX + 1])
def test_a_time_out_of_bounds_is_refused(microseconds: int) -> None:
    for client in (duolog.Client, sync.Client):
        with pytest.raises(duolog.BadRequest, match="busy_poll_us"):
            client("127.0.0.1:1", busy_poll_us=microseconds)
