"""Searches of sessions: how many there are, whose they are, and how they end."""

import asyncio
from collections.abc import Callable

import pytest
from duolog import BadRequest, Busy, Client, DuologError

from duolog_server.ops.console import searches as module
from duolog_server.ops.console.searches import KEPT, OF_SESSION, Room, Searches
from duolog_server.ops.inspection.searching.search import Hit, Search
from duolog_server.ops.inspection.searching.terms import End, Progress, Terms


class Scripted(Search[object]):
    """A search that goes on as a test tells it to."""

    def __init__(self, error: Exception | None = None) -> None:
        client = Client("127.0.0.1:1")
        super().__init__(client, Terms("T", text="x"), lambda message: None)
        self.go = asyncio.Event()
        self.error = error
        self.told: Callable[[], None] = lambda: None

    async def run(self, told: Callable[[], None] = lambda: None) -> None:
        self.told = told
        try:
            await self.go.wait()
            told()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.progress = Progress(1, 2, end=End.STOPPED)
            raise
        if self.error is not None:
            raise self.error
        self.progress = Progress(2, 2, end=End.WHOLE)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.0)


async def test_a_search_goes_on_from_look_to_look() -> None:
    searches, made = Searches(), Scripted()
    first = await searches.look("a", lambda: made)
    assert not first.over
    made.go.set()
    while not first.over:
        await asyncio.sleep(0)
    again = await searches.look("a", lambda: Scripted())
    assert again is first
    assert (first.end, first.seconds()) == (End.WHOLE, first.seconds())
    await searches.forget("a")
    assert await searches.look("a", lambda: Scripted()) is not first
    await searches.close()


async def test_a_search_is_stopped_and_ends_with_its_session() -> None:
    room = Room()
    searches, made = Searches(room), Scripted()
    found = await searches.look("a", lambda: made)
    assert room.taken == 1
    await searches.stop("a")
    assert (found.over, found.end, found.unseen, room.taken) == (True, End.STOPPED, False, 0)
    await searches.stop("a")
    await searches.stop("never was")
    room = Room()
    searches = Searches(room)
    both = [await searches.look(name, Scripted) for name in "ab"]
    await searches.close()
    assert [(one.over, one.end) for one in both] == [(True, End.STOPPED)] * 2
    assert room.taken == 0


async def test_a_search_that_nobody_looks_at_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSEEN_SECONDS", -1.0)
    searches, made = Searches(), Scripted()
    found = await searches.look("a", lambda: made)
    made.go.set()
    while not found.over:
        await asyncio.sleep(0)
    assert (found.end, found.unseen) == (End.STOPPED, True)
    searches = Searches()
    first, second = [await searches.look(name, Scripted) for name in "ab"]
    await searches.look("a", Scripted)
    monkeypatch.setattr(module, "LEFT_SECONDS", -1.0)
    third = await searches.look("c", Scripted)
    assert (first.over, second.over, third.over) == (False, True, False)
    await searches.close()


async def test_searches_are_few() -> None:
    room = Room(OF_SESSION + 1)
    own, other = Searches(room), Searches(room)
    for n in range(OF_SESSION):
        await own.look(str(n), Scripted)
    with pytest.raises(Busy, match="you have"):
        await own.look("more", Scripted)
    await other.look("a", Scripted)
    with pytest.raises(Busy, match="in this console"):
        await other.look("b", Scripted)
    await own.stop("0")
    await other.look("b", Scripted)
    await own.close()
    await other.close()
    assert room.taken == 0


async def test_two_looks_at_once_share_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    searches = Searches(room)
    for name in "ab":
        await searches.look(name, Scripted)
    monkeypatch.setattr(module, "LEFT_SECONDS", -1.0)
    first, second = await asyncio.gather(*(searches.look("c", Scripted) for _ in range(2)))
    assert first is second
    assert room.taken == OF_SESSION
    await searches.close()
    assert room.taken == 0
    monkeypatch.setattr(module, "LEFT_SECONDS", -1.0)
    room = Room()
    searches = Searches(room)
    for name in ("left", "seen"):
        await searches.look(name, lambda: Scripted())
    looks = (searches.look("new", lambda: Scripted()) for _ in range(2))
    first, second = await asyncio.gather(*looks)
    assert first is second
    assert room.taken == OF_SESSION
    await searches.close()
    assert room.taken == 0


async def test_the_results_of_a_few_are_kept() -> None:
    searches, made = Searches(), 0

    def ready() -> Search[object]:
        nonlocal made
        made += 1
        one = Scripted()
        one.go.set()
        return one

    for n in range(2 * KEPT):
        found = await searches.look(str(n), ready)
        while not found.over:
            await asyncio.sleep(0)
    for n in range(KEPT, 2 * KEPT):
        await searches.look(str(n), ready)
    assert made == 2 * KEPT
    await searches.look("0", ready)
    assert made == 2 * KEPT + 1
    await searches.close()


@pytest.mark.parametrize("error", [BadRequest("wrong"), ValueError("secret")])
async def test_an_error_ends_a_search(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_SECONDS", 10.0)
    searches, made = Searches(), Scripted(error)
    made.go.set()
    with pytest.raises(DuologError) as raised:
        await searches.look("a", lambda: made)
    assert "secret" not in str(raised.value)
    made = Scripted(error)
    made.go.set()
    made.hits = [Hit((0, 0, "a", 0), "kept")]
    found = await searches.look("a", lambda: made)
    assert found.over
    assert isinstance(found.error, DuologError)
    assert await searches.look("a", Scripted) is found
