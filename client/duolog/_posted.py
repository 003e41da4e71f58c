"""Messages that go out together, and what became of them.

Nothing is done for each message that was stored, unless it has a waiter or a callback.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterable
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from duolog._background import report
from duolog._errors import Timeout
from duolog._forks import forks_before, refuse_parents
from duolog._receipts import Part, Receipt, Unconfirmed

if TYPE_CHECKING:
    from duolog._spans import Sending

Told = Callable[["Posted"], object]
Lost = tuple[int, int, Exception]  # messages [first, end), and why they may not be stored
Trying = tuple[int, int, Unconfirmed]  # messages [first, end) of what was sent
NOTHING: Trying = (0, 0, Unconfirmed())
# What a message takes in memory beside the bytes of its body: the object itself, its places in the
# columns, its share of what tells its outcome; and beside those of its properties, if it has any.
MESSAGE_BYTES = 128
TEXT_BYTES = 64
TOLD_BYTES = 512  # of one with a callback, or a task that waits for its receipt,
SEND_BYTES = MESSAGE_BYTES + TOLD_BYTES
SPAN_BYTES = 3072  # of one whose span is recorded
ALL = -1  # instead of a place: waiters for all of them
RUN_SECONDS = 0.001  # messages may end so much later than they asked for


class Posting:
    """Messages in the order in which they came, each known by its place; then their outcome.

    It belongs to the loop of its producer. Other threads may add to it, while the producer's lock
    is held, and ask what is known.
    """

    __slots__ = (
        *("_apart", "_asked", "_awaited", "_count", "_error", "_firsts", "_deadlines", "_left"),
        *("_moved", "_parts", "_part_firsts", "_producer_id", "_sent", "_went", "__weakref__"),
        *("bodies", "due", "earliest", "ended", "granted", "latest", "room", "sendings", "sends"),
        *("process", "texts", "told", "trying"),
    )

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.texts: list[bytes] = []  # of the first so many: the others have no properties
        # Messages with the same deadline, nearly, are a run: the last one's bounds, by the loop's
        # clock, and where each begins.
        self.earliest, self.latest = inf, -inf
        self._firsts: list[int] = []
        self._deadlines: list[float] = []
        self.due = inf  # the first of these that is not over
        self.granted = 0  # bytes of the producer's buffer,
        self.room = -1  # and those that no message has yet
        self.process = forks_before()
        self.ended = False
        self._sent = False
        self.trying: Trying = NOTHING
        self._left = False
        self._count = 0
        self._went: list[int] | None = None  # places of what was sent; None: all of them
        self._parts: list[Part] = []
        self._part_firsts: list[int] = []
        self._producer_id = b""
        self._error: Exception | None = None
        self._moved: dict[int, Posted] = {}
        self._apart: dict[int, Exception] = {}  # whose time was over before
        self.sends: dict[int, asyncio.Future[Receipt]] = {}  # answered when it is known
        self._awaited: dict[asyncio.Future[None], int] = {}
        self.told: dict[int, tuple[Posted, Told]] = {}
        self.sendings: dict[int, Sending] = {}  # spans that end when it is known
        self._asked: set[int] = set()  # whose error was read

    # -- filling -------------------------------------------------------------------------------

    def begin_run(self, deadline: float) -> None:
        """The next messages have to be answered by then."""
        self.earliest, self.latest = deadline, deadline + RUN_SECONDS
        self._firsts.append(len(self.bodies))
        self._deadlines.append(self.latest)
        self.due = min(self.due, self.latest)

    def put_text(self, place: int, text: bytes) -> None:
        """Take the properties of the message that comes next."""
        texts = self.texts
        if len(texts) < place:
            texts.extend([b""] * (place - len(texts)))
        texts.append(text)

    def put_sending(self, place: int, sending: "Sending") -> None:
        """Keep a message's span. Where it has no room, the next message asks for it too."""
        self.sendings[place] = sending
        if sending.records:
            self.room -= SPAN_BYTES

    def text_of(self, place: int) -> bytes:
        """A message's properties."""
        return self.texts[place] if place < len(self.texts) else b""

    def deadline_of(self, place: int) -> float:
        """A message's deadline."""
        return self._deadlines[bisect_right(self._firsts, place) - 1]

    @property
    def last_deadline(self) -> float:
        """The last of their deadlines."""
        return max(self._deadlines, default=0.0)

    def take(self) -> tuple[list[bytes], list[bytes], float]:
        """It goes out: bodies, texts (none where all are empty), and the latest deadline, of those
        not yet given up."""
        self._sent = True
        bodies, texts, deadline = self.bodies, self.texts, self.last_deadline
        if texts:
            texts.extend([b""] * (len(bodies) - len(texts)))
        if self._apart:
            went = self._went = [k for k in range(len(bodies)) if k not in self._apart]
            bodies = [bodies[k] for k in went]
            texts = [texts[k] for k in went] if texts else []
            deadline = max(map(self.deadline_of, went), default=0.0)
        return bodies, texts, deadline

    def expire(self, now: float, topic: str) -> None:
        """Give up the messages whose time is over."""
        if now < self.due:
            return
        bounds = [*self._firsts, len(self.bodies)]
        late = [
            range(first, end)
            for (first, end), deadline in zip(pairwise(bounds), self._deadlines, strict=True)
            if deadline <= now
        ]
        self.due = min((deadline for deadline in self._deadlines if deadline > now), default=inf)
        not_sent = Timeout(f"{topic}: the message was not sent in time")
        if self.due == inf and not self._sent:
            self.failed(not_sent)
            return
        places = (k for run in late for k in run if k not in self._apart)
        if self._sent:
            self.fail_some(self._unknown(places, f"{topic}: no answer in time"))
        else:
            self.fail_some(dict.fromkeys(places, not_sent))

    def _unknown(self, places: Iterable[int], why: str) -> dict[int, Exception]:
        """Errors of messages that were sent and have no answer yet, by place."""
        first, end, unconfirmed = self.trying
        tried, others, went = unconfirmed.error(why), Unconfirmed().error(why), self._went
        errors: dict[int, Exception] = {}
        for place in places:
            at = place if went is None else bisect_left(went, place)
            errors[place] = tried if first <= at < end else others
        return errors

    def closed(self) -> None:
        """The producer is closed: nobody waits for the answer of what was sent."""
        self._given_up("the producer was closed")

    def cancelled(self, topic: str) -> None:
        """Something cancelled the task that waits for the answer."""
        self._given_up(f"{topic}: the task that sent the messages was cancelled")

    def _given_up(self, why: str) -> None:
        first, end, unconfirmed = self.trying
        if end - first < len(self.bodies if self._went is None else self._went):
            unconfirmed = Unconfirmed()  # of a part of it: one error serves all
        self.failed(unconfirmed.error(why))

    def fail_some(self, errors: dict[int, Exception]) -> None:
        """Fail some of them, by place; the others continue."""
        self._apart.update(errors)
        awaited = [one for one, place in self._awaited.items() if place in errors]
        if self.sendings:
            self._end_spans([place for place in errors if place in self.sendings])
        told = self._untell(errors)
        self._answer({place: self.sends.pop(place) for place in errors if place in self.sends})
        self._wake(awaited)
        self._call_back(told)

    # -- the end -------------------------------------------------------------------------------

    def stored(self, parts: list[Part], lost: list[Lost], producer_id: bytes) -> None:
        """Settle sent messages as stored, except some by place among the sent."""
        if self.ended:
            return  # the time of all was over before
        self._parts, self._producer_id = parts, producer_id
        self._part_firsts = [part.first for part in parts]
        went = self._went
        if parts or len(lost) > 1:
            for first, end, error in lost:
                for place in range(first, end):
                    self._apart.setdefault(place if went is None else went[place], error)
        elif lost:
            self._error = lost[0][2]  # of all of them: nothing is kept for each
        self._end()

    def failed(self, error: Exception) -> None:
        """None of them is known to be stored."""
        if not self.ended:
            self._error = error
            self._end()

    def move(self, to: "dict[int, Posted]") -> None:
        """Messages go out with others, by place; their waiters wait there."""
        self._moved.update(to)
        for place in to:
            self.told.pop(place, None)
            sending = self.sendings.pop(place, None)
            if sending is not None:
                posting, at = to[place].at
                posting.put_sending(at, sending)
        for future, place in list(self._awaited.items()):
            if place in to:
                posting, at = to[place].at
                posting._awaited[future] = at
                del self._awaited[future]
        for place in self._asked & to.keys():
            to[place].dismiss()

    def left(self) -> None:
        """All of them were moved, or failed."""
        self._left = True
        self._forget()
        self._wake(list(self._awaited))

    def _end(self) -> None:
        self._count = len(self.bodies)
        self.ended = True
        self.due = inf
        self._forget()
        if self.sendings:
            self._end_spans(list(self.sendings))
        told, self.told = list(self.told.values()), {}
        sends, self.sends = self.sends, {}
        self._answer(sends)
        self._wake(list(self._awaited))
        self._call_back(told)

    def _forget(self) -> None:
        """Drop what only sending needed."""
        self.bodies, self.texts, self._firsts, self._deadlines = [], [], [], []

    def _answer(self, sends: "dict[int, asyncio.Future[Receipt]]") -> None:
        """Resume the waiting sender; an error is dropped if it was cancelled."""
        if not (self.lost_any or len(self._parts) > 1):  # the usual case, made short
            receipt, producer_id = self._parts[0].receipt, self._producer_id
            for place, future in sends.items():
                if not future.done():
                    future.set_result(receipt(place, producer_id))
            return
        for place, future in sends.items():
            error = self.error_of(place)
            if future.done():
                continue
            if error is None:
                future.set_result(self.receipt_of(place))
            else:
                future.set_exception(error)

    def _end_spans(self, places: list[int]) -> None:
        for place in places:
            sending = self.sendings.pop(place)
            error = self._apart.get(place, self._error)
            if error is not None:
                sending.failed(error)
            else:
                sending.stored(self.receipt_of(place))

    def _untell(self, places: Collection[int]) -> "list[tuple[Posted, Told]]":
        """Take those out who are to be called back of some places. Others may come meanwhile."""
        if not self.told:
            return []
        return [self.told.pop(place) for place in places if place in self.told]

    def _call_back(self, told: "list[tuple[Posted, Told]]") -> None:
        lost = self.lost_any
        for handle, on_done in told:
            if lost:
                handle.dismiss()
            try:
                on_done(handle)
            except (Exception, asyncio.CancelledError) as error:  # no task of a user runs here
                report(error)

    def _wake(self, awaited: "list[asyncio.Future[None]]") -> None:
        for future in awaited:
            self._awaited.pop(future, None)
            if not future.done():
                future.set_result(None)

    # -- what is known -------------------------------------------------------------------------

    def where(self, place: int) -> "tuple[Posting, int]":
        """The current place of a message that came here."""
        moved = self._moved.get(place)
        return (self, place) if moved is None else moved.at

    def knows(self, place: int) -> bool:
        """Tell whether it is known what became of a message."""
        return self.ended or place in self._apart or (self._left and place == ALL)

    async def settled(self, place: int) -> None:
        """Wait until it is known. Raises WrongProcess in a forked child, where it never is."""
        if not self.knows(place):
            if self.process != forks_before():
                refuse_parents()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited[future] = place
            try:
                await future
            except asyncio.CancelledError:
                self._awaited.pop(future, None)
                posting, _ = self.where(place)
                posting._awaited.pop(future, None)
                raise

    def error_of(self, place: int) -> Exception | None:
        """Why a message may not be stored; None where it is."""
        error = self._apart.get(place, self._error)
        if error is not None:
            self._asked.add(place)
        return error

    def receipt_of(self, place: int) -> Receipt:
        """A message's receipt. Raises its error."""
        error = self.error_of(place)
        if error is not None:
            raise error.with_traceback(None)
        at = place if self._went is None else bisect_left(self._went, place)
        part = self._parts[bisect_right(self._part_firsts, at) - 1]
        return part.receipt(at - part.first, self._producer_id)

    @property
    def lost_any(self) -> bool:
        """Tell whether any of them may not be stored."""
        return self._error is not None or bool(self._apart)

    def dismiss(self, place: int) -> None:
        """The result of a message is not needed."""
        self._asked.add(place)

    @property
    def weight(self) -> int:
        """How much it keeps for the errors of its messages: more than one each only at worst."""
        return 1 + len(self._apart) + len(self._asked)

    @property
    def unanswered(self) -> int:
        """Messages whose outcome is not known."""
        return 0 if self.ended else len(self.bodies) - len(self._apart)

    def unasked(self) -> tuple[int, Exception | None]:
        """How many of its messages failed without a report, and the first one's error."""
        count, first = 0, None
        places: Iterable[int] = range(self._count) if self._error is not None else self._apart
        for place in places:
            if place not in self._asked and place not in self._moved:
                first = first or self._apart.get(place, self._error)
                count += 1
        return count, first


class Posted:
    """A message on its way, made by `Producer.post`. Awaiting it gives its receipt.

    It may be awaited any number of times, by several tasks, or not at all: an error that nobody
    asks it for, and that no `on_done` gets, is raised by `Producer.flush` and `close`.
    """

    # Made without a constructor: two of three parts of a post's time would be its call.
    __slots__ = ("_place", "_posting")
    _place: int
    _posting: Posting

    @property
    def at(self) -> tuple[Posting, int]:
        """Not called by users: the messages that it goes out with, and its place among them."""
        return self._posting.where(self._place)

    def dismiss(self) -> None:
        """Ignore an error: `flush` and `close` do not raise it."""
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
        """The message's receipt; `Receipt` says what the message survives.

        Raises as `Producer.send`; BlockingIOError until it is done.
        """
        posting, place = self.at
        if not posting.knows(place):
            raise BlockingIOError("the message is not answered yet")
        return posting.receipt_of(place)

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for the receipt. Raises as `Producer.send`; a cancellation takes nothing back."""
        return self._wait().__await__()

    async def settled(self, timeout: float | None) -> None:
        """Not called by users: wait until it is done. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            posting, place = self.at
            await posting.settled(place)
        self.error()

    async def awaited(self) -> Receipt:
        """Not called by users: as awaiting it; after a cancellation an error is not reported."""
        try:
            return await self
        except asyncio.CancelledError:
            self.dismiss()
            raise

    async def _wait(self) -> Receipt:
        posting, place = self.at
        await posting.settled(place)  # it may have gone elsewhere meanwhile
        return self.receipt()
