"""When a name server is told, and when it is asked again: by a clock of the test."""

import asyncio
from types import SimpleNamespace

import pytest

from duolog_server.compat.remoting import naming as module
from duolog_server.compat.remoting.calling import ANYBODY, Access
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.naming import (
    CHECK_SECONDS,
    PERIOD_SECONDS,
    RETRY_SECONDS,
    NameServer,
    Registration,
    Registrations,
    Standing,
)
from duolog_server.store.clocks import WallMs

ROUTE = b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:9876"},"brokerName":"g"}]}'
STANDING = Standing("c", "g", "127.0.0.1:9876", 0, 4)


class Days:
    """A name server that is told for so long, by a clock that jumps.

    Attributes:
        asked: when it was.
        works: whether it takes registrations.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, made: list[Registration]) -> None:
        self.now = 0.0
        self.asked: list[float] = []
        self.works = False
        self._made = made
        loop = SimpleNamespace(time=lambda: self.now)
        clock = SimpleNamespace(get_running_loop=lambda: loop, timeout=asyncio.timeout)
        monkeypatch.setattr(module, "asyncio", clock)
        monkeypatch.setattr(module, "connect", self._connect)
        self.server = NameServer("names:9876", ANYBODY)

    async def _connect(self, address: str, access: Access) -> SimpleNamespace:
        self.asked.append(self.now)
        if not self.works:
            raise ConnectionError("nobody is there")
        return SimpleNamespace(is_open=True, call=self._call, close=lambda: None)

    async def _call(self, code: int, *_: object, **__: object) -> SimpleNamespace:
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return SimpleNamespace(body=ROUTE)
        if self.asked[-1:] != [self.now]:
            self.asked.append(self.now)
        return SimpleNamespace()

    async def run(self, seconds: float, step: float) -> None:
        """Let so many seconds pass, with a look each `step`; every look finds a change if that is
        shorter than a pause.
        """
        end, count = self.now + seconds, 0

        async def newer(seen: Registration | None, longest: float) -> Registration:
            nonlocal count
            self.now += min(step, longest)
            if self.now > end:
                raise asyncio.CancelledError
            count += 1
            changes = step < longest
            return self._made[count % 2 if changes else 0]

        with pytest.raises(asyncio.CancelledError):
            await self.server.run(newer)


@pytest.fixture
async def made() -> list[Registration]:
    """Two of them."""
    registrations = Registrations({})
    return [await registrations.make(STANDING, {}, WallMs(n)) for n in (1, 2)]


@pytest.mark.parametrize("step", [RETRY_SECONDS, CHECK_SECONDS / 4])
async def test_one_that_does_not_answer_is_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, made: list[Registration], step: float
) -> None:
    days = Days(monkeypatch, made)
    await days.run(200, step)
    pauses = [after - before for before, after in zip(days.asked, days.asked[1:], strict=False)]
    assert pauses[:6] == [5.0, 10.0, 20.0, 30.0, 30.0, 30.0]


async def test_one_that_answers_is_told_of_each_change_and_else_seldom(
    monkeypatch: pytest.MonkeyPatch, made: list[Registration]
) -> None:
    days = Days(monkeypatch, made)
    days.works = True
    await days.run(10, CHECK_SECONDS / 2)
    assert days.asked == [n / 2 for n in range(1, 21)]
    del days.asked[:]
    await days.run(90, RETRY_SECONDS)
    assert all(
        after - before == PERIOD_SECONDS
        for before, after in zip(days.asked, days.asked[1:], strict=False)
    )
    assert len(days.asked) in (9, 10)


async def test_after_an_answer_the_pauses_are_short_again(
    monkeypatch: pytest.MonkeyPatch, made: list[Registration]
) -> None:
    days = Days(monkeypatch, made)
    await days.run(200, RETRY_SECONDS)
    days.works = True
    await days.run(60, RETRY_SECONDS)
    assert days.server.is_reached
    days.works = False
    days.server.close()
    del days.asked[:]
    await days.run(50, RETRY_SECONDS)
    assert [at - days.asked[0] for at in days.asked] == [0.0, 5.0, 15.0, 35.0]
