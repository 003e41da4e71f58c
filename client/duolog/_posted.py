"""Messages that go out together, and what became of them.

Nothing is done for each message that was stored, unless somebody waits for it or is to be told.
"""

import asyncio
import contextlib
from bisect import bisect_left
from collections.abc import Callable, Container, Generator
from math import inf
from typing import Any

from duolog._background import report
from duolog._errors import ResultUnknown, Timeout
from duolog._receipts import Part, Receipt

UniqueKey = Callable[[int], str]  # of a sequence
Told = Callable[["Posted"], object]
MESSAGE_BYTES = 64  # what a message takes beside its body and its properties
ALL = -1  # in the place of a place: whoever waits for all of them


class Posting:
    """Messages in the order in which they came, each known by its place; then their outcome.

    It belongs to the loop of its producer. Other threads may add to it, while the producer's lock
    is held, and ask what is known.
    """

    __slots__ = (
        *("_apart", "_asked", "_awaited", "_count", "_error", "_key", "_left", "_moved", "_parts"),
        *("_sent", "_went", "bodies", "cost", "deadlines", "ended", "sends", "texts", "told"),
    )

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.texts: list[bytes] = []
        self.deadlines: list[float] = []  # by the loop's clock
        self.cost = 0  # bytes of the producer's buffer
        self.ended = False
        self._sent = False
        self._left = False
        self._count = 0
        self._went: list[int] | None = None  # places of what was sent; None: all of them
        self._parts: list[Part] = []
        self._key: UniqueKey = str
        self._error: Exception | None = None
        self._moved: dict[int, Posted] = {}
        self._apart: dict[int, Exception] = {}  # whose time was over before
        self.sends: dict[int, asyncio.Future[Receipt]] = {}  # answered when it is known
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self.told: list[tuple[Posted, Told]] = []
        self._asked: set[int] = set()  # whose error somebody knows

    # -- filling -------------------------------------------------------------------------------

    def take(self) -> tuple[list[bytes], list[bytes], float]:
        """It goes out: bodies, texts, and the latest deadline, of those not yet given up."""
        self._sent = True
        bodies, texts, deadlines = self.bodies, self.texts, self.deadlines
        if self._apart:
            went = self._went = [k for k in range(len(bodies)) if k not in self._apart]
            bodies, texts = [bodies[k] for k in went], [texts[k] for k in went]
            deadlines = [deadlines[k] for k in went]
        return bodies, texts, max(deadlines, default=0.0)

    def expire(self, now: float, topic: str) -> float:
        """Give up the messages whose time is over; the earliest deadline of the others."""
        earliest, late = inf, []
        for place, deadline in enumerate(self.deadlines):
            if place in self._apart:
                continue
            if deadline <= now:
                late.append(place)
            else:
                earliest = min(earliest, deadline)
        if late:
            self._give_up(late, topic)
        return earliest

    def _give_up(self, places: list[int], topic: str) -> None:
        error: Exception = Timeout(f"{topic}: the message was not sent in time")
        if self._sent:
            error = ResultUnknown(
                f"{topic}: no answer in time; the message may or may not be stored"
            )
        self.fail_some(dict.fromkeys(places, error))

    def fail_some(self, errors: dict[int, Exception]) -> None:
        """Some of them may not be stored, by place; the others go on."""
        self._apart.update(errors)
        awaited, self._awaited = self._awaited, []
        self._awaited = [one for one in awaited if one[0] not in errors]
        told = self._untell(errors)
        self._answer({place: self.sends.pop(place) for place in errors.keys() & self.sends.keys()})
        _wake([one for one in awaited if one[0] in errors])
        self._call_back(told)

    # -- the end -------------------------------------------------------------------------------

    def stored(self, parts: list[Part], lost: dict[int, Exception], key: UniqueKey) -> None:
        """What was sent is stored, but for some that may not be. Places count what was sent."""
        self._parts, self._key = parts, key
        went = self._went
        for place, error in lost.items():
            self._apart.setdefault(place if went is None else went[place], error)
        self._end()

    def failed(self, error: Exception) -> None:
        """None of them is known to be stored."""
        self._error = error
        self._end()

    def move(self, to: "dict[int, Posted]") -> None:
        """Messages go out with others, by place; whoever waits for one of them waits there."""
        self._moved.update(to)
        awaited, self._awaited = self._awaited, []
        self._awaited = [one for one in awaited if one[0] not in to]
        self._untell(to)
        for place, future in awaited:
            if place in to:
                posting, at = to[place].at
                posting._awaited.append((at, future))
        for place in self._asked & to.keys():
            to[place].dismiss()

    def left(self) -> None:
        """All of them were moved, or failed."""
        self._left = True
        _wake(self._awaited)
        self._awaited, self.told = [], []
        self.bodies, self.texts, self.deadlines = [], [], []

    def _end(self) -> None:
        self._count = len(self.bodies)
        self.ended = True
        self.bodies, self.texts, self.deadlines = [], [], []
        awaited, self._awaited = self._awaited, []
        told, self.told = self.told, []
        sends, self.sends = self.sends, {}
        self._answer(sends)
        _wake(awaited)
        self._call_back(told)

    def _answer(self, sends: "dict[int, asyncio.Future[Receipt]]") -> None:
        """Whoever sent them goes on, or was cancelled: then nobody wants to know of an error."""
        if not (self.lost_any or len(self._parts) > 1):  # the usual case, made short
            receipt, key = self._parts[0].receipt, self._key
            for place, future in sends.items():
                if not future.done():
                    future.set_result(receipt(place, key))
            return
        for place, future in sends.items():
            error = self.error_of(place)
            if future.done():
                continue
            if error is None:
                future.set_result(self.receipt_of(place))
            else:
                future.set_exception(error)

    def _untell(self, places: Container[int]) -> "list[tuple[Posted, Told]]":
        """Take those out who are to be called back of some places. Others may come meanwhile."""
        told = self.told[:]
        self.told[: len(told)] = [one for one in told if one[0]._place not in places]
        return [one for one in told if one[0]._place in places]

    def _call_back(self, told: "list[tuple[Posted, Told]]") -> None:
        lost = self.lost_any
        for handle, on_done in told:
            if lost:
                handle.dismiss()
            try:
                on_done(handle)
            except (Exception, asyncio.CancelledError) as error:  # this is nobody's own task
                report(error)

    # -- what is known -------------------------------------------------------------------------

    def where(self, place: int) -> "tuple[Posting, int]":
        """Where a message is now that came here."""
        moved = self._moved.get(place)
        return (self, place) if moved is None else moved.at

    def knows(self, place: int) -> bool:
        """Tell whether it is known what became of a message."""
        return self.ended or place in self._apart or (self._left and place == ALL)

    async def settled(self, place: int) -> None:
        """Wait until it is known."""
        if not self.knows(place):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.append((place, future))
            try:
                await future
            except asyncio.CancelledError:
                with contextlib.suppress(ValueError):
                    self._awaited.remove((place, future))
                raise

    def error_of(self, place: int) -> Exception | None:
        """Why a message may not be stored; None where it is."""
        error = self._apart.get(place, self._error)
        if error is not None:
            self._asked.add(place)
        return error

    def receipt_of(self, place: int) -> Receipt:
        """Where a message is stored. Raises why it may not be."""
        error = self.error_of(place)
        if error is not None:
            raise error.with_traceback(None)
        at = place if self._went is None else bisect_left(self._went, place)
        part = self._parts[0]
        if len(self._parts) > 1:
            part = next(part for part in self._parts if at < part.first + part.count)
        return part.receipt(at - part.first, self._key)

    @property
    def lost_any(self) -> bool:
        """Tell whether any of them may not be stored."""
        return self._error is not None or bool(self._apart)

    def dismiss(self, place: int) -> None:
        """Nobody wants to know what becomes of a message."""
        self._asked.add(place)

    def unasked(self) -> list[Exception]:
        """Errors of messages that nobody was told."""
        failed = dict(self._apart)
        if self._error is not None:
            for place in range(self._count) if self._went is None else self._went:
                failed.setdefault(place, self._error)
        return [error for place, error in failed.items() if place not in self._asked]


def _wake(awaited: "list[tuple[int, asyncio.Future[None]]]") -> None:
    for _, future in awaited:
        if not future.done():
            future.set_result(None)


class Posted:
    """A message on its way, made by `Producer.post`. Awaiting it gives its receipt.

    It may be awaited any number of times, by several tasks, or not at all: an error that nobody
    asks it for, and that no `on_done` is told, is raised by `Producer.flush` and `close`.
    """

    __slots__ = ("_place", "_posting")

    def __init__(self, posting: Posting, place: int) -> None:
        """Not called by users."""
        self._posting = posting
        self._place = place

    @property
    def at(self) -> tuple[Posting, int]:
        """Not called by users: the messages that it goes out with, and its place among them."""
        return self._posting.where(self._place)

    def dismiss(self) -> None:
        """Nobody wants to know of an error: it is not raised by `flush` and `close`."""
        posting, place = self.at
        posting.dismiss(place)

    @property
    def done(self) -> bool:
        """Tell whether it is known what became of the message."""
        posting, place = self.at
        return posting.knows(place)

    def error(self) -> Exception | None:
        """Why it may not be stored, as `Producer.send` raises it; None if it is, or not done."""
        posting, place = self.at
        return posting.error_of(place) if posting.knows(place) else None

    def receipt(self) -> Receipt:
        """Where it is stored. Raises as `Producer.send`; BlockingIOError while it is not done."""
        posting, place = self.at
        if not posting.knows(place):
            raise BlockingIOError("it is not known yet what became of the message")
        return posting.receipt_of(place)

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for the receipt. Raises as `Producer.send`; a cancellation takes nothing back."""
        return self._wait().__await__()

    def answer(self, future: "asyncio.Future[Receipt]") -> None:
        """Not called by users: a future that gets its receipt or error. Not of one that is done."""
        self._posting.sends[self._place] = future

    async def settled(self, timeout: float | None) -> None:
        """Not called by users: wait until it is done. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            posting, place = self.at
            await posting.settled(place)
        self.error()

    async def awaited(self) -> Receipt:
        """Not called by users: as awaiting it; after a cancellation nobody is told of an error."""
        try:
            return await self
        except asyncio.CancelledError:
            self.dismiss()
            raise

    async def _wait(self) -> Receipt:
        posting, place = self.at
        await posting.settled(place)  # it may have gone elsewhere meanwhile
        return self.receipt()


__all__ = ["ALL", "MESSAGE_BYTES", "Posted", "Posting"]
