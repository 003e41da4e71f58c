"""Searches of a session, which continue between two requests for their page.

Rules: a session has few running searches, and so have all sessions together; it keeps the results
of a few that are over. A search ends when its page is not looked at any more, when it is stopped,
and with its session; then nothing of it is read any more.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from duolog import Busy, DuologError
from duolog._background import Background, report

from duolog_server.ops.inspection.searching.search import Search
from duolog_server.ops.inspection.searching.terms import End

OF_SESSION = 2  # running searches
OF_ALL = 6
KEPT = 4  # searches of a session, also those that are over
FIRST_SECONDS = 0.5  # that the first look waits: many searches are over by then
LEFT_SECONDS = 3.0  # without a look, until a search makes room for another one
UNSEEN_SECONDS = 15.0  # without a look, until a search ends
log = structlog.get_logger("duolog.console")


class Room:
    """The number of running searches of all sessions."""

    def __init__(self, most: int = OF_ALL) -> None:
        self._most = most
        self.taken = 0

    def take(self) -> None:
        """One begins. Raises Busy."""
        if self.taken >= self._most:
            raise Busy(f"{self._most} searches run in this console: try again later")
        self.taken += 1

    def give(self) -> None:
        """One is over."""
        self.taken -= 1


@dataclass(slots=True)
class Running:
    """A search. Times are of the loop. error: that ended it. unseen: it ended unseen."""

    search: Search[object]
    began: float
    seen: float
    ended: float | None = None
    error: DuologError | None = None
    unseen: bool = False

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.ended is not None

    @property
    def end(self) -> End | None:
        """Why it is over; None: it is not, or by an error."""
        return self.search.progress.end

    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        now = asyncio.get_running_loop().time() if self.ended is None else self.ended
        return now - self.began


class Searches:
    """The searches of a session, by what they look for."""

    def __init__(self, room: Room | None = None) -> None:
        """room: of all sessions; one of its own where not given."""
        self._room = room or Room()
        self._background = Background(report)
        self._known: dict[str, Running] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def look(self, name: str, make: Callable[[], Search[object]]) -> Running:
        """A search, which begins where it is not known. Raises Busy, and what ended it at once.

        name: what it looks for.
        """
        if name not in self._known:
            await self._leave()
        found = self._known.get(name)  # another look may have begun it meanwhile
        if found is None:
            found = self._begin(name, make())
            await asyncio.wait({self._tasks[name]}, timeout=FIRST_SECONDS)
            if found.error is not None and not found.search.hits:
                self._known.pop(name, None)
                raise found.error
        found.seen = asyncio.get_running_loop().time()
        return found

    async def _leave(self) -> None:
        """End the search whose page was left, where another one would be too many."""
        if len(self._tasks) < OF_SESSION:
            return
        now = asyncio.get_running_loop().time()
        name = min(self._tasks, key=lambda one: self._known[one].seen)
        if now - self._known[name].seen > LEFT_SECONDS:
            await self.forget(name)

    async def stop(self, name: str) -> None:
        """End a search; what it has found is kept."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def forget(self, name: str) -> None:
        """End a search, so that the next look begins anew."""
        known = self._known.get(name)
        await self.stop(name)
        if self._known.get(name) is known:  # or else it began anew already
            self._known.pop(name, None)

    async def close(self) -> None:
        """End all of them."""
        await self._background.stop()
        self._known.clear()

    def _begin(self, name: str, search: Search[object]) -> Running:
        if len(self._tasks) >= OF_SESSION:
            raise Busy(f"you have {OF_SESSION} running searches: stop one of them")
        self._room.take()
        over = [key for key, one in self._known.items() if one.over]
        for key in over[: max(0, len(self._known) - KEPT + 1)]:
            del self._known[key]
        now = asyncio.get_running_loop().time()
        running = self._known[name] = Running(search, now, now)
        task = self._tasks[name] = self._background.start(_run(running))
        task.add_done_callback(lambda _: self._ended(name, running))
        return running

    def _ended(self, name: str, running: Running) -> None:
        del self._tasks[name]
        self._room.give()
        running.ended = asyncio.get_running_loop().time()


async def _run(running: Running) -> None:
    """Search until it ends, or no page asks for it."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "it runs in one"

    def watch() -> None:
        if loop.time() > running.seen + UNSEEN_SECONDS and not running.end:
            running.unseen = True
            task.cancel()

    try:
        await running.search.run(watch)
    except DuologError as error:
        running.error = error
    except Exception as error:
        log.error("a search of the console failed", exc_info=error)
        running.error = DuologError("the search failed: the log of the console says why")
