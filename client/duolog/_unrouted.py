"""Posted messages whose queue is not known yet: they wait in order until the nodes have named it.

What follows for the same topic waits behind them, so that messages of a key stay in order.
"""

import asyncio
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from duolog._batcher import Batcher, Filling
from duolog._errors import UnknownTopic
from duolog._posted import Posted, Posting, Told
from duolog._sending import Terms
from duolog._topics import Slot, TopicCache


class Place(NamedTuple):
    """The queue that a message shall go to: a key's, or one by number in a replica group.

    group: None where the topic lies in one only.
    """

    topic: str
    key: str | None
    queue_id: int | None
    group: str | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A message that is to go to some place. text: of its properties; deadline: as `Batcher`'s."""

    place: Place
    terms: Terms
    body: bytes
    text: bytes
    deadline: float
    on_done: Told | None


@dataclass(slots=True)
class _Waiting:
    """Messages of one topic. filling: holds them, and nobody sends it."""

    filling: Filling
    posted: list[tuple[Draft, Posted]] = field(default_factory=list)
    found: dict[Place, Slot | Exception] = field(default_factory=dict)

    def unknown(self) -> list[Place]:
        """Places that nobody has looked for."""
        places = {draft.place: None for draft, _ in self.posted}
        return [place for place in places if place not in self.found]


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

    def post(self, draft: Draft) -> Posted:
        """Take a message. Raises BadRequest once the producer is closed."""
        topic, batcher = draft.place.topic, self._batcher
        with batcher.lock:
            waiting = self._waiting.get(topic)
            if waiting is None:
                waiting = _Waiting(Filling(topic, None, draft.terms))
                waiting.filling.limit = 0  # nobody sends it
            handle = batcher.add(
                waiting.filling, draft.body, draft.text, draft.deadline, draft.on_done
            )
            waiting.posted.append((draft, handle))
            if topic not in self._waiting:
                self._waiting[topic] = waiting
                batcher.hold(waiting.filling, lambda: self._route(waiting))
        return handle

    async def _route(self, waiting: _Waiting) -> None:
        """Find the queues, and put the messages there."""
        topic = waiting.filling.topic
        while True:
            await self._find(topic, waiting)
            with self._batcher.lock:
                if not waiting.unknown():
                    del self._waiting[topic]
                    refused = self._move(waiting)
                    break
        self._batcher.leave(waiting.filling, refused)

    async def _find(self, topic: str, waiting: _Waiting) -> None:
        """Find the queues of all places that nobody has looked for, or why there are none."""
        places = waiting.unknown()
        now = asyncio.get_running_loop().time()
        seconds = max(draft.deadline for draft, _ in waiting.posted) - now
        try:
            slots = await self._topics.slots(topic, max(0.001, seconds), create=True)
        except Exception as error:
            waiting.found.update(dict.fromkeys(places, error))
            return
        for place in places:
            slot = _among(slots, place)
            waiting.found[place] = slot or UnknownTopic(
                f"{topic} has no queue {place.queue_id} in one replica group only: name its group"
                if place.group is None
                else f"{topic} has no queues in replica group {place.group!r}"
            )

    def _move(self, waiting: _Waiting) -> list[tuple[Posted, Exception]]:
        """Put all messages where they belong; those for which there is no such place."""
        refused = []
        moved: dict[Posting, dict[int, Posted]] = {}
        for draft, handle in waiting.posted:
            found = waiting.found[draft.place]
            if isinstance(found, Exception):
                refused.append((handle, found))
            elif not handle.done:  # else its time was over
                posting, place = handle.at
                moved.setdefault(posting, {})[place] = self._put(found, draft, handle)
        for posting, to in moved.items():
            posting.move(to)
            self._batcher.used -= posting.cost
            posting.cost = 0
        return refused

    def _put(self, slot: Slot, draft: Draft, handle: Posted) -> Posted:
        batcher, on_done = self._batcher, draft.on_done
        filling = batcher.filling_of(draft.place.topic, slot, draft.terms)
        told = None if on_done is None else lambda _: on_done(handle)
        return batcher.add(filling, draft.body, draft.text, draft.deadline, told)


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
