"""The places to which one producer's batches go, so that the messages of a queue stay in order.

Rules: while a batch of a queue has no answer, later ones go to the same place; one that would go
to another place waits until all of these are answered, and later ones wait behind it. A batch that
was given up without an answer may still be stored, and passed on, by the node that got it: until
that is over, nothing goes to another place.
"""

import asyncio
import itertools
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from duolog._errors import Timeout
from duolog._places import Slot

# By then, a node has stored or refused a batch that it did not answer: a master that stalls loses
# its lease, of 3 s by default, and what is passed on is given up after 2.5 s.
DOUBT_SECONDS = 10.0
LAST = 1 << 62  # after all sequences


@dataclass(order=True, slots=True)
class _Turn:
    """A batch that waits for its way; the one with the lowest sequence and number is the next."""

    sequence: int
    number: int
    is_next: asyncio.Event = field(default_factory=asyncio.Event, compare=False)


class Way:
    """The place to which the batches of a queue go that have no answer.

    in_flight: their number. doubt_until: loop time until which one that was given up may be stored.
    """

    __slots__ = ("_idle", "doubt_until", "in_flight", "name", "place", "topic")

    def __init__(self, topic: str, name: Slot, place: Slot) -> None:
        self.topic, self.name, self.place = topic, name, place
        self.in_flight = 0
        self.doubt_until = 0.0
        self._idle: asyncio.Event | None = None

    def is_over(self, now: float) -> bool:
        """Whether the next batch may go anywhere."""
        return not self.in_flight and now >= self.doubt_until

    async def over(self) -> None:
        """Wait until that may be so; the caller looks again."""
        if not self.in_flight:
            await asyncio.sleep(self.doubt_until - asyncio.get_running_loop().time())
            return
        if self._idle is None:
            self._idle = asyncio.Event()
        await self._idle.wait()

    def leave(self) -> None:
        """Count one batch less."""
        self.in_flight -= 1
        if not self.in_flight and self._idle is not None:
            self._idle.set()
            self._idle = None


class Ways:
    """The ways of one producer's batches, for queues with some in flight or in doubt."""

    def __init__(self, place_of: Callable[[str, Slot], Slot]) -> None:
        """place_of: where a queue is now, by its topic and name."""
        self._place_of = place_of
        self._ways: dict[tuple[str, Slot], Way] = {}
        self._turns: dict[tuple[str, Slot], list[_Turn]] = {}  # of those that wait, in order
        self._numbers = itertools.count()

    def begin(self, topic: str, name: Slot, now: float) -> Way | None:
        """The way of one more batch; None where it has to wait."""
        return None if (topic, name) in self._turns else self._begin(topic, name, now)

    def _begin(self, topic: str, name: Slot, now: float) -> Way | None:
        place, way = self._place_of(topic, name), self._ways.get((topic, name))
        if way is None or (way.place != place and way.is_over(now)):
            way = self._ways[topic, name] = Way(topic, name, place)
        elif way.place != place:
            return None
        way.in_flight += 1
        return way

    async def begin_later(
        self, topic: str, name: Slot, deadline: float, sequence: int = LAST
    ) -> Way:
        """The way of one more batch, once it has one. Raises Timeout.

        sequence: of a batch that was sent already, and so comes before those that were not.
        """
        turn = _Turn(sequence, next(self._numbers))
        turns = self._turns.setdefault((topic, name), [])
        insort(turns, turn)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._begin_in_turn(topic, name, turn)
        except TimeoutError:
            before = self._ways.get((topic, name))
            place = before.place if before is not None else name
            raise Timeout(
                f"{topic}: not sent: queue {name[0]}/{name[1]} moved, and earlier batches to "
                f"{place[0]}/{place[1]} have no answer yet"
            ) from None
        finally:
            turns.remove(turn)
            if turns:
                turns[0].is_next.set()
            else:
                del self._turns[topic, name]

    async def _begin_in_turn(self, topic: str, name: Slot, turn: _Turn) -> Way:
        turns, loop = self._turns[topic, name], asyncio.get_running_loop()
        while True:
            if turns[0] is not turn:
                turn.is_next.clear()
                await turn.is_next.wait()
            elif (way := self._begin(topic, name, loop.time())) is not None:
                return way
            else:
                await self._ways[topic, name].over()

    @staticmethod
    def apart(topic: str, name: Slot) -> Way:
        """The way of a batch that goes to the place where its queue was made, in any order."""
        way = Way(topic, name, name)
        way.in_flight = 1
        return way

    def end(self, way: Way, in_doubt: bool) -> None:
        """A batch is answered, or given up. in_doubt: it may yet be stored."""
        now = asyncio.get_running_loop().time() if in_doubt or way.doubt_until else 0.0
        if in_doubt:
            way.doubt_until = now + DOUBT_SECONDS
            self._forget(now)
        way.leave()
        if way.is_over(now) and self._ways.get((way.topic, way.name)) is way:
            del self._ways[way.topic, way.name]

    def _forget(self, now: float) -> None:
        """Drop those whose doubt is over, which no batch may ever ask for again."""
        for key in [key for key, way in self._ways.items() if way.is_over(now)]:
            del self._ways[key]


def answered(way: Way, began: float) -> None:
    """A batch begun at that loop time is stored: the batches given up before it are settled."""
    if began >= way.doubt_until - DOUBT_SECONDS:
        way.doubt_until = 0.0
