"""Lite topics: many small topics inside one; each client of a group subscribes to its own set.

A message that names a lite topic is in a queue of its parent topic and in the light queue of that
name. A consumer group is bound to one parent. Its clients subscribe to lite topics; each gets only
their messages, and a lite topic delivers nothing more to a group while one of its messages is in
flight. Subscriptions are kept in memory on every node, because the next master needs them at once;
clients repeat theirs every 30 s. The progress of a group in a lite topic is in the log, as for any
queue. A lite topic without a new message for its parent's `lite.topic.expiration` is forgotten on
every node.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog
from duolog import _errors as sdk

from duolog_server.node.core.core import Core
from duolog_server.node.engine.queueremoval import QueueRemoval
from duolog_server.node.pop.popservice import PopService
from duolog_server.node.pop.subscriber import Subscriber
from duolog_server.store.clocks import WallMs
from duolog_server.store.lightqueues import is_light, lite_topic_of, parent_of
from duolog_server.store.metadata import Json
from duolog_server.store.queueends import QueueKey

log = structlog.get_logger("duolog.node")

SUBSCRIPTIONS_MAX = 100_000  # of all clients (maxLiteSubscriptionCount)
EVERYTHING = "*"
TICK_SECONDS = 1.0
EXPIRY_SECONDS = 30.0
FORGOTTEN_AT_ONCE = 1000
CHECKED_AT_ONCE = 500
BIND_TOPIC, MODEL, EXCLUSIVE = "lite.bind.topic", "lite.sub.model", "Exclusive"


def bound_topic(row: Json) -> str:
    """The topic whose lite topics a group subscribes to; empty if to none."""
    return str((row.get("attributes") or {}).get(BIND_TOPIC, ""))


def bound(row: Json, topic: str, exclusive: bool) -> Json:
    """A group's settings with the topic whose lite topics it subscribes to.

    exclusive: one client each.
    """
    model = {MODEL: EXCLUSIVE} if exclusive else {}
    others = {
        k: v for k, v in (row.get("attributes") or {}).items() if k not in (BIND_TOPIC, MODEL)
    }
    return {**row, "attributes": {**others, BIND_TOPIC: topic, **model}}


def is_exclusive(row: Json) -> bool:
    """Whether a lite topic has one subscriber in a group at a time, the last one."""
    return (row.get("attributes") or {}).get(MODEL) == EXCLUSIVE


class LiteService:
    """Keeps the subscriptions, and forgets expired lite topics."""

    def __init__(self, core: Core, pop: PopService, removal: QueueRemoval) -> None:
        self._core = core
        self._pop = pop
        self._removal = removal
        self._subscribers: dict[str, dict[str, Subscriber]] = {}  # by client and group
        self.subscriptions = 0  # of all clients to lite topics
        # By light queue and by topic; the first to subscribe is notified first.
        self._of_queue: dict[str, dict[Subscriber, None]] = {}
        self._of_parent: dict[str, dict[Subscriber, None]] = {}
        self.evicted: list[Callable[[str, str], None]] = []  # called with client and lite topic
        self._going: dict[str, int] = {}  # forgotten queues and where they ended
        self._going_at = 0  # the log's end when that was read

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Forget what has expired, until cancelled."""
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._going:
                await self._remove_forgotten()
            if loop.time() - checked >= EXPIRY_SECONDS and self._core.admission.may_store():
                checked = loop.time()
                names = self._core.queues.light_names()
                for at in range(0, len(names), CHECKED_AT_ONCE):
                    some = names[at : at + CHECKED_AT_ONCE]
                    await self.forget(self.expired(some, self._core.times.age_ms()))
                    await asyncio.sleep(0)

    def role_changed(self) -> None:
        """The mastership has changed: any subscription may have messages."""
        for groups in self._subscribers.values():
            for subscriber in groups.values():
                more = self.queues_of(subscriber.topic) if subscriber.everything else ()
                subscriber.ready = dict.fromkeys((*subscriber.queues, *more))
                subscriber.given = ("", [])
                subscriber.line.set_all()

    def status(self) -> dict[str, int]:
        """See Part."""
        return {"lite_subscriptions": self.subscriptions}

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold.

        Exactly the subscribers of a queue are notified of it; the count is that of all
        subscriptions.
        """
        told = {(queue, one) for queue, some in self._of_queue.items() for one in some}
        to_all = {(topic, one) for topic, some in self._of_parent.items() for one in some}
        for client, groups in self._subscribers.items():
            for group, one in groups.items():
                who = f"{client} of {group}"
                if (one.client, one.group) != (client, group):
                    return f"{who} is known as {one.client} of {one.group}"
                if any((queue, one) not in told for queue in one.queues):
                    return f"{who} is not assigned all of {sorted(one.queues)}"
                if one.everything != ((one.topic, one) in to_all):
                    return f"{who} subscribes to {'all' if one.everything else 'some'}"
                looks = {*one.ready, *one.given[1]}
                if not one.everything and not looks <= one.queues.keys():
                    return f"{who} looks into {looks - one.queues.keys()} unasked"
                wrong = one.line.validate()
                if wrong:
                    return f"{who}: {wrong}"
        if len(told) != self.subscriptions:
            return f"{len(told)} subscriptions, counted as {self.subscriptions}"
        known = [one for groups in self._subscribers.values() for one in groups.values()]
        if sum(len(one.queues) for one in known) != len(told):
            return "a client that left is assigned queues"
        return ""

    # -- subscriptions -------------------------------------------------------------------------

    def subscriber(self, client: str, group: str, topic: str) -> Subscriber:
        """A client in a group; one without subscriptions if it is not known."""
        found = self._subscribers.get(client, {}).get(group)
        if found is None or found.topic != topic:
            if found is not None:
                self.leave(found)
            found = Subscriber(client, group, topic)
            self._subscribers.setdefault(client, {})[group] = found
        return found

    def subscribe(self, subscriber: Subscriber, queues: Iterable[str], takes_over: bool) -> None:
        """Add subscriptions. takes_over: in an exclusive group, also from another client."""
        exclusive = is_exclusive(self._core.metadata.tables.groups.get(subscriber.group, {}))
        for queue in queues:
            if queue in subscriber.queues:
                continue
            others = self._of_queue.get(queue, ()) if exclusive else ()
            rivals = [other for other in others if other.group == subscriber.group]
            if rivals and not takes_over:
                continue
            for rival in rivals:
                self.unsubscribe(rival, [queue])
                for tell in self.evicted:
                    tell(rival.client, lite_topic_of(queue))
            self._of_queue.setdefault(queue, {})[subscriber] = None
            subscriber.queues[queue] = None
            self.subscriptions += 1
            subscriber.notify(queue)

    def subscribe_to_all(self, subscriber: Subscriber) -> None:
        """Subscribe to all lite topics of the parent, including future ones."""
        subscriber.everything = True
        self._of_parent.setdefault(subscriber.topic, {})[subscriber] = None
        for queue in self.queues_of(subscriber.topic):
            subscriber.notify(queue)

    def unsubscribe(self, subscriber: Subscriber, queues: Iterable[str]) -> None:
        """Remove subscriptions; what was delivered stays delivered and is not delivered again."""
        for queue in queues:
            if queue not in subscriber.queues:
                continue
            del subscriber.queues[queue]
            self.subscriptions -= 1
            if not subscriber.everything:
                subscriber.drop(queue)
            left = self._of_queue.get(queue, {})
            left.pop(subscriber, None)
            if not left:
                self._of_queue.pop(queue, None)

    def unsubscribe_from_all(self, subscriber: Subscriber) -> None:
        """Keep only the subscriptions to named lite topics."""
        subscriber.everything = False
        for queue in {*subscriber.ready, *subscriber.given[1]}:
            if queue not in subscriber.queues:
                subscriber.drop(queue)
        left = self._of_parent.get(subscriber.topic, {})
        left.pop(subscriber, None)
        if not left:
            self._of_parent.pop(subscriber.topic, None)

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a client from a group."""
        self.unsubscribe(subscriber, list(subscriber.queues))
        self.unsubscribe_from_all(subscriber)
        subscriber.line.set_all()
        groups = self._subscribers.get(subscriber.client, {})
        groups.pop(subscriber.group, None)
        if not groups:
            self._subscribers.pop(subscriber.client, None)

    def client_gone(self, client: str) -> None:
        """A client left or fell silent."""
        for subscriber in list(self._subscribers.get(client, {}).values()):
            self.leave(subscriber)

    # -- notification -------------------------------------------------------------------------

    def queues_of(self, topic: str) -> list[str]:
        """The light queues of a topic's lite topics."""
        return self._core.queues.light_of(topic)

    def notify(self, queue: str, group: str = "") -> None:
        """A queue got messages, or has some to deliver again. group: to which; empty: to all."""
        for subscribers in (self._of_queue.get(queue), self._of_parent.get(parent_of(queue))):
            for subscriber in subscribers or ():
                if group in ("", subscriber.group):
                    subscriber.notify(queue)

    def arrived(self, keys: Iterable[QueueKey]) -> None:
        """Queues that got messages, light ones among them."""
        for name, _ in keys:
            if is_light(name):
                self.notify(name)

    # -- forgetting ----------------------------------------------------------------------------

    def expired(self, names: list[str], age_ms: WallMs) -> list[str]:
        """Light queues whose last message is older than their parent allows, or without parent."""
        topics = self._core.metadata.topics
        found = []
        for name in names:
            if not self._core.store.next_offset(name, 0):
                continue  # forgotten meanwhile
            config = topics.get(parent_of(name))
            minutes = config.lite_ttl_minutes if config is not None else 0
            if config is None or (minutes and self._last_time(name) < age_ms - minutes * 60_000):
                found.append(name)
        return found

    def _last_time(self, name: str) -> int:
        store = self._core.store
        _, end = store.queue_range(name, 0)
        if end < store.next_offset(name, 0):
            return self._core.times.wall_ms()  # its newest message is not readable yet
        return self._core.positions.store_time(name, 0, end - 1)

    async def topic_deleted(self, topic: str, _: dict[int, int]) -> None:
        """Forget its lite topics, too."""
        await self.forget(self.queues_of(topic))

    async def forget(self, queues: list[str]) -> None:
        """Forget light queues and the progress of groups in them, on every node."""
        for at in range(0, len(queues), FORGOTTEN_AT_ONCE):
            some = queues[at : at + FORGOTTEN_AT_ONCE]
            try:
                await self._core.metadata.forget_light_queues(some)
            except sdk.DuologError as error:
                log.debug("expired lite topics are kept for now", reason=str(error))
                return
            log.info("deleted expired lite topics", count=len(some))

    def gone(self, ends: dict[str, int]) -> None:
        """A record says that queues are forgotten. ends: the offsets at which they ended."""
        self._going.update(ends)
        self._going_at = self._core.store.max_offset
        self._pop.forget_queues(ends)

    async def _remove_forgotten(self) -> None:
        """Remove them once queues have all that the log had: a restarted node may know from its
        tables what is forgotten before it sees that in its queues.
        """
        store = self._core.store
        if store.dispatched_offset < min(self._going_at, store.max_offset):
            return
        going, self._going = self._going, {}
        await self._removal.remove_light(going)
        self._pop.removed(going)
