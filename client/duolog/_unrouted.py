"""Posted messages whose queue is not known yet: they wait in order until the nodes have named it.

What follows for the same topic waits behind them, so that messages of a key stay in order.
"""

import asyncio
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from duolog._background import without_frames
from duolog._batcher import Batcher, Filling
from duolog._errors import Retryable, UnknownTopic
from duolog._places import Slot
from duolog._posted import Posted, Posting, Told
from duolog._terms import Terms
from duolog._topics import TopicCache

ASK_AGAIN_SECONDS = 0.02


class Place(NamedTuple):
    """The queue that a message goes to: a key's, or one by number in a replica group.

    group: None where the topic lies in one only.
    """

    topic: str
    key: str | None
    queue_id: int | None
    group: str | None


class Goal(NamedTuple):
    """A message's destination and terms."""

    place: Place
    terms: Terms


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a place is not known, for messages that have to be answered by `until`."""

    error: Exception
    until: float


@dataclass(slots=True)
class _Waiting:
    """Messages of one topic. filling: holds them, and is not sent.

    goals: of each batch's messages; one object for all that have the same, which `known` keeps.
    """

    filling: Filling
    goals: dict[Posting, list[Goal]] = field(default_factory=dict)
    known: dict[Goal, Goal] = field(default_factory=dict)
    found: dict[Place, Slot | _Refusal] = field(default_factory=dict)

    def messages(self) -> Iterator[tuple[Posting, int, Goal]]:
        """The messages without an answer, in arrival order."""
        for posting, goals in self.goals.items():
            for place, goal in enumerate(goals):
                if not posting.knows(place):
                    yield posting, place, goal

    def unknown(self) -> tuple[list[Place], float]:
        """Unresolved places, and the last deadline of messages that go there."""
        places: dict[Place, None] = {}
        last = -inf
        for posting, at, goal in self.messages():
            found, deadline = self.found.get(goal.place), posting.deadline_of(at)
            if found is None or (isinstance(found, _Refusal) and found.until < deadline):
                places[goal.place] = None
                last = max(last, deadline)
        return list(places), last

    def refused(self) -> dict[Posting, dict[int, Exception]]:
        """Messages that no queue takes, and why."""
        errors: dict[Posting, dict[int, Exception]] = {}
        for posting, at, goal in self.messages():
            found = self.found.get(goal.place)
            if isinstance(found, _Refusal) and posting.deadline_of(at) <= found.until:
                errors.setdefault(posting, {})[at] = found.error
        return errors


class Unrouted:
    """Takes the messages that one producer posts to their queues."""

    def __init__(self, batcher: Batcher, topics: TopicCache) -> None:
        self._batcher = batcher
        self._topics = topics
        self._waiting: dict[str, _Waiting] = {}

    def holds(self, topic: str) -> bool:
        """Tell whether messages of a topic wait for their queue: others have to come after them."""
        return topic in self._waiting

    def slot_at_hand(self, place: Place, now: float) -> Slot | None:
        """A place's queue; None where it is not known, or messages of the topic wait for theirs."""
        if self.holds(place.topic):
            return None
        return _among(self._topics.at_hand(place.topic, now), place)

    def post(
        self, goal: Goal, body: bytes, text: bytes, deadline: float, on_done: Told | None
    ) -> Posted:
        """Take a message. Raises BadRequest once the producer is closed.

        text: of its properties. deadline: by the loop's clock.
        """
        topic, batcher = goal.place.topic, self._batcher
        with batcher.lock:
            waiting = self._waiting.get(topic)
            new = waiting is None
            if waiting is None:
                waiting = _Waiting(Filling(topic, None, goal.terms))
                waiting.filling.limit = 0  # it is not sent
                waiting.filling.running = 1  # so that no sender starts
            handle = batcher.add(waiting.filling, body, text, deadline, on_done)
            posting, _ = handle.at
            waiting.goals.setdefault(posting, []).append(waiting.known.setdefault(goal, goal))
            if new:
                waiting.filling.running = 0
                self._waiting[topic] = waiting
                batcher.hold(
                    waiting.filling,
                    lambda: self._route(waiting),
                    lambda: self._forget(topic, waiting),
                )
        return handle

    def _forget(self, topic: str, waiting: _Waiting) -> None:
        """What comes now does not wait behind messages that nothing routes."""
        with self._batcher.lock:
            if self._waiting.get(topic) is waiting:
                del self._waiting[topic]

    async def _route(self, waiting: _Waiting) -> None:
        """Find the queues, and put the messages there."""
        topic = waiting.filling.topic
        while not await self._found_all(waiting):
            with self._batcher.lock:
                refused = waiting.refused()
                for posting in [posting for posting in waiting.goals if posting.ended]:
                    del waiting.goals[posting]
            for posting, errors in refused.items():
                posting.fail_some(errors)
            if refused:
                await asyncio.sleep(ASK_AGAIN_SECONDS)
        with self._batcher.lock:
            del self._waiting[topic]
            refused = waiting.refused()
            self._move(waiting, refused)
        self._batcher.leave(waiting.filling, refused)

    async def _found_all(self, waiting: _Waiting) -> bool:
        """Find the queues of all unresolved places, or why they have none.

        Tells whether that are all; more may have come meanwhile.
        """
        topic = waiting.filling.topic
        with self._batcher.lock:
            places, last = waiting.unknown()
        if not places:
            return True
        now = asyncio.get_running_loop().time()
        try:
            slots = await self._topics.slots(topic, max(0.001, last - now), create=True)
        except Exception as error:
            until = last if isinstance(error, Retryable) else inf
            waiting.found.update(dict.fromkeys(places, _Refusal(without_frames(error), until)))
        else:
            for place in places:
                waiting.found[place] = _among(slots, place) or _no_such(place)
        with self._batcher.lock:
            return not waiting.unknown()[0]

    def _move(self, waiting: _Waiting, refused: dict[Posting, dict[int, Exception]]) -> None:
        """Put all messages where they belong, but for those that have no place."""
        batcher, moved = self._batcher, dict[Posting, dict[int, Posted]]()
        for posting, at, goal in waiting.messages():
            slot = waiting.found[goal.place]
            if at in refused.get(posting, ()):
                continue
            assert not isinstance(slot, _Refusal), "it is refused"
            filling = batcher.filling_of(goal.place.topic, slot, goal.terms)
            moved.setdefault(posting, {})[at] = batcher.put_elsewhere(filling, posting, at)
        for posting, to in moved.items():
            posting.move(to)


def _among(slots: list[Slot], place: Place) -> Slot | None:
    """A place's queue among those of its topic; None where they do not tell."""
    if not slots:
        return None
    if place.queue_id is None:
        assert place.key is not None, "one of them is given"
        return slots[zlib.crc32(place.key.encode()) % len(slots)]
    groups = {group for group, _ in slots}
    if len(groups) == 1 and place.group in (None, *groups):
        return groups.pop(), place.queue_id
    return (place.group, place.queue_id) if place.group in groups else None


def _no_such(place: Place) -> _Refusal:
    """Why a topic's queues do not tell which one is meant."""
    return _Refusal(
        UnknownTopic(
            f"{place.topic} has no queue {place.queue_id} in one replica group only: name its group"
            if place.group is None
            else f"{place.topic} has no queues in replica group {place.group!r}"
        ),
        inf,
    )
