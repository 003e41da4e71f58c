"""Who is notified of which lite topic, and which of them are forgotten."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest

from duolog_server.node.pop import liteservice
from duolog_server.node.pop.liteservice import LiteService, bound, bound_topic, is_exclusive
from duolog_server.node.pop.subscriber import Line, Subscriber
from duolog_server.store.lightqueues import lite_queue

A, B, C = (lite_queue("P", name) for name in "abc")
NOW_MS = 10_000_000


class World:
    """A service without a node: queues, groups and the clock are what a test says."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.light = {A: 5, B: 5}  # and where they end
        self.readable = dict(self.light)
        self.times: dict[str, int] = {}
        self.topics = {"P": SimpleNamespace(lite_ttl_minutes=1)}
        self.forgotten: list[list[str]] = []
        self.refused = False
        self.removed: list[dict[str, int]] = []
        self.told_removed: list[dict[str, int]] = []
        self.forgets: list[dict[str, int]] = []
        self.store = SimpleNamespace(
            next_offset=lambda name, _: self.light.get(name, 0),
            queue_range=lambda name, _: (0, self.readable.get(name, 0)),
            max_offset=500,
            dispatched_offset=500,
        )
        core = SimpleNamespace(
            store=self.store,
            metadata=SimpleNamespace(
                tables=SimpleNamespace(groups=self.rows),
                topics=self.topics,
                forget_light_queues=self._forget,
            ),
            queues=SimpleNamespace(
                light_of=lambda topic: [
                    name for name in self.light if name.startswith(f"%LMQ%${topic}$")
                ],
                light_names=lambda: list(self.light),
            ),
            positions=SimpleNamespace(store_time=lambda name, _, offset: self._time(name, offset)),
            times=SimpleNamespace(wall_ms=lambda: NOW_MS, age_ms=lambda: NOW_MS),
            admission=SimpleNamespace(may_store=lambda: True),
        )
        pop = SimpleNamespace(forget_queues=self.forgets.append, removed=self.told_removed.append)
        removal = SimpleNamespace(remove_light=self._remove)
        self.lite = LiteService(cast(Any, core), cast(Any, pop), cast(Any, removal))
        self.evicted: list[tuple[str, str]] = []
        self.lite.evicted.append(lambda client, topic: self.evicted.append((client, topic)))

    def _time(self, name: str, offset: int) -> int:
        assert offset == self.readable[name] - 1, "of the last message"
        return self.times.get(name, NOW_MS)

    async def _forget(self, names: list[str]) -> None:
        if self.refused:
            raise duolog.Unavailable("a full disk")
        self.forgotten.append(names)

    async def _remove(self, ends: dict[str, int]) -> None:
        self.removed.append(ends)

    def client(self, name: str, group: str = "g", topic: str = "P") -> Subscriber:
        return self.lite.subscriber(name, group, topic)

    def sound(self) -> bool:
        wrong = self.lite.validate()
        assert wrong == ""
        return not wrong


@pytest.fixture
def world() -> World:
    return World()


def ready(subscriber: Subscriber) -> list[str]:
    """What it looks into, which then counts as empty."""
    return [queue for queue, _ in subscriber.sources("")]


def polls(subscriber: Subscriber) -> asyncio.Event:
    """A poll of it waits."""
    woken = asyncio.Event()
    subscriber.line.polls += 1
    subscriber.line.waiting.append(woken)
    return woken


async def test_a_client_looks_into_what_it_subscribed_to_and_is_woken_for_it(world: World) -> None:
    one, two = world.client("one"), world.client("two")
    woken = polls(one)
    world.lite.subscribe(one, [A, B], takes_over=True)
    world.lite.subscribe(two, [B], takes_over=True)
    assert woken.is_set(), "they may have messages"
    assert (ready(one), ready(two)) == ([A, B], [B])
    assert (ready(one), world.lite.subscriptions) == ([], 3)
    world.lite.subscribe(one, [A], takes_over=True)
    assert (ready(one), world.lite.subscriptions) == ([], 3)
    world.lite.arrived([(A, 0), (C, 0), ("P", 0)])
    assert (ready(one), ready(two)) == ([A], [])
    world.lite.notify(B)
    assert (ready(one), ready(two)) == ([B], [B])
    world.lite.notify(B, "another group")
    assert (ready(one), ready(two)) == ([], [])
    world.lite.notify(B, "g")
    assert (ready(one), ready(two)) == ([B], [B])
    assert world.lite.status() == {"lite_subscriptions": 3}
    assert world.sound()


async def test_a_client_that_unsubscribes_gets_nothing_more_of_it(world: World) -> None:
    one = world.client("one")
    world.lite.subscribe(one, [A, B], takes_over=True)
    one.given = ("attempt", [A, B])
    world.lite.unsubscribe(one, [A, C])
    assert [*one.sources("attempt")] == [(B, 0)], "a repeat does not bring it back"
    world.lite.arrived([(A, 0)])
    assert (ready(one), world.lite.subscriptions) == ([], 1)
    assert world.sound()
    world.lite.unsubscribe(one, [B])
    assert world.lite._of_queue == {}, "nothing is kept of what has no subscriber"


async def test_a_star_is_of_every_lite_topic_also_of_later_ones(world: World) -> None:
    one = world.client("one")
    woken = polls(one)
    world.lite.subscribe_to_all(one)
    assert woken.is_set()
    assert ready(one) == [A, B]
    world.lite.arrived([(C, 0), (lite_queue("Q", "a"), 0)])
    assert ready(one) == [C]
    world.lite.subscribe(one, [A], takes_over=True)
    world.lite.unsubscribe(one, [A])
    assert ready(one) == [A], "the star has it still"
    world.lite.subscribe(one, [B], takes_over=True)
    world.lite.arrived([(C, 0)])
    one.given = ("attempt", [A, B])
    world.lite.unsubscribe_from_all(one)
    assert [*one.sources("attempt")] == [(B, 0)]
    assert world.sound()
    world.lite.arrived([(A, 0), (B, 0), (C, 0)])
    assert ready(one) == [B]
    assert world.lite._of_parent == {}


async def test_in_an_exclusive_group_the_last_to_poll_has_a_lite_topic(world: World) -> None:
    world.rows["g"] = bound({}, "P", exclusive=True)
    one, two, other = world.client("one"), world.client("two"), world.client("x", "h")
    world.lite.subscribe(other, [A], takes_over=True)
    world.lite.subscribe(one, [A, B], takes_over=True)
    world.lite.subscribe(two, [A], takes_over=False)
    assert (list(one.queues), list(two.queues), world.evicted) == ([A, B], [], [])
    world.lite.subscribe(two, [A], takes_over=True)
    assert (list(one.queues), list(two.queues)) == ([B], [A])
    assert world.evicted == [("one", "a")]
    assert list(other.queues) == [A], "of another group"
    assert world.sound()
    world.rows["g"] = bound(world.rows["g"], "P", exclusive=False)
    assert not is_exclusive(world.rows["g"])
    world.lite.subscribe(one, [A], takes_over=True)
    assert (list(two.queues), world.lite.subscriptions) == ([A], 4)


def test_a_group_is_bound_to_one_topic_and_keeps_its_other_settings() -> None:
    row = {"retryMaxTimes": 3, "attributes": {"color": "blue"}}
    assert (bound_topic(row), bound_topic({"attributes": None}), bound_topic({})) == ("", "", "")
    exclusive = bound(row, "P", exclusive=True)
    assert (bound_topic(exclusive), is_exclusive(exclusive)) == ("P", True)
    again = bound(exclusive, "Q", exclusive=False)
    assert (bound_topic(again), is_exclusive(again)) == ("Q", False)
    assert again["retryMaxTimes"] == 3
    assert again["attributes"]["color"] == "blue"


async def test_nothing_is_left_of_a_client_that_is_gone(world: World) -> None:
    one, other = world.client("one"), world.client("one", "h")
    assert world.client("one") is one
    woken = polls(one)
    world.lite.subscribe(one, [A], takes_over=True)
    woken = polls(one)
    world.lite.subscribe_to_all(other)
    world.lite.client_gone("one")
    assert woken.is_set(), "its poll ends"
    assert (world.lite.subscriptions, world.lite._subscribers) == (0, {})
    assert (world.lite._of_queue, world.lite._of_parent) == ({}, {})
    assert not one.queues
    assert not other.everything
    assert world.client("one") is not one
    world.lite.client_gone("never seen")


async def test_a_client_of_another_topic_begins_anew(world: World) -> None:
    one = world.client("one")
    world.lite.subscribe(one, [A], takes_over=True)
    again = world.client("one", topic="Q")
    assert (again.topic, list(again.queues), world.lite.subscriptions) == ("Q", [], 0)
    assert world.client("one", topic="Q") is again
    assert world.sound()


async def test_a_new_master_looks_into_everything_again(world: World) -> None:
    one, star = world.client("one"), world.client("star")
    world.lite.subscribe(one, [B], takes_over=True)
    world.lite.subscribe_to_all(star)
    assert (ready(one), ready(star)) == ([B], [A, B])
    one.given = ("attempt", [B])
    woken = [polls(one), polls(one), polls(star)]
    world.lite.role_changed()
    assert all(event.is_set() for event in woken)
    assert one.given == ("", [])
    assert (ready(one), ready(star)) == ([B], [A, B])


def test_a_repeated_request_has_the_same_queues_once() -> None:
    one = Subscriber("one", "g", "P", ready=dict.fromkeys((A, B)))
    one.given = ("attempt", [B, C])
    assert [*one.sources("attempt")] == [(B, 0), (C, 0), (A, 0)]
    one.ready = dict.fromkeys((A,))
    assert [*one.sources("another")] == [(A, 0)]
    one.given, one.ready = ("", [C]), {A: None}
    assert [*one.sources("")] == [(A, 0)], "who names no attempt repeats none"


def test_consumers_are_woken_one_after_the_other() -> None:
    line, first, second = Line(), asyncio.Event(), asyncio.Event()
    line.set()
    line.waiting.extend((first, second))
    line.set()
    assert (first.is_set(), second.is_set()) == (True, False)
    line.set_all()
    assert second.is_set()


def test_validate_reports_wrong_lines_and_subscriptions(world: World) -> None:
    line = Line()
    line.waiting.append(asyncio.Event())
    assert line.validate() == "1 wait of 0 polls"
    line.polls = 1
    assert line.validate() == ""
    line.waiting[0].set()
    assert line.validate() == "a woken consumer is still in the line"
    line = Line()
    line.watched.add(("P", 0))
    assert line.validate() == "watches [('P', 0)] for no poll"
    one = world.client("one")
    one.line.watched.add(("P", 0))
    assert world.lite.validate().startswith("one of g: watches")
    one.line.watched.clear()
    one.ready[A] = None
    assert "unasked" in world.lite.validate()
    one.ready.clear()
    one.everything = True
    assert world.lite.validate() == "one of g subscribes to all"
    one.everything = False
    one.queues[A] = None
    assert "is not assigned all of" in world.lite.validate()
    one.queues.clear()
    world.lite.subscribe(one, [A], takes_over=True)
    world.lite.subscriptions = 2
    assert world.lite.validate() == "1 subscriptions, counted as 2"
    world.lite.subscriptions = 1
    world.lite._subscribers.clear()
    assert world.lite.validate() == "a client that left is assigned queues"
    world.lite._subscribers["two"] = {"g": one}
    assert world.lite.validate() == "two of g is known as one of g"


# -- forgetting ------------------------------------------------------------------------------------


def test_a_lite_topic_expires_after_the_time_of_its_parent(world: World) -> None:
    world.light.update({C: 3, lite_queue("gone", "x"): 4, "%LMQ%$P$forgotten": 0})
    world.readable = dict(world.light)
    names = list(world.light)
    world.times = {A: NOW_MS - 60_001, B: NOW_MS - 60_000}
    world.readable[C] = 2  # its newest message is not readable yet
    world.times[C] = 0
    assert world.lite.expired(names, cast(Any, NOW_MS)) == [A, lite_queue("gone", "x")]
    world.topics["P"].lite_ttl_minutes = 0  # never
    assert world.lite.expired(names, cast(Any, NOW_MS)) == [lite_queue("gone", "x")]


async def test_expired_lite_topics_are_forgotten_some_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liteservice, "FORGOTTEN_AT_ONCE", 2)
    await world.lite.forget([A, B, C])
    assert world.forgotten == [[A, B], [C]]
    world.forgotten.clear()
    world.refused = True
    await world.lite.forget([A, B, C])
    assert world.forgotten == []
    world.refused = False
    await world.lite.topic_deleted("P", {})
    assert world.forgotten == [[A, B]]


async def test_queues_are_removed_once_nothing_more_comes_into_them(world: World) -> None:
    world.lite.gone({A: 5})
    world.lite.gone({B: 6})
    assert world.forgets == [{A: 5}, {B: 6}]
    world.store.dispatched_offset = 499
    await world.lite._remove_forgotten()
    assert world.removed == []
    world.store.max_offset = 499  # the log was cut
    await world.lite._remove_forgotten()
    assert world.removed == world.told_removed == [{A: 5, B: 6}]
    world.store.dispatched_offset = world.store.max_offset = 900
    await world.lite._remove_forgotten()
    assert world.removed[1:] == [{}], "once"


async def test_the_service_forgets_and_removes_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liteservice, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(liteservice, "EXPIRY_SECONDS", 0.0)
    monkeypatch.setattr(liteservice, "CHECKED_AT_ONCE", 1)
    world.times = {A: 0, B: 0}
    world.lite.gone({C: 1})
    running = asyncio.create_task(world.lite.run())
    while len(world.forgotten) < 2 or not world.removed:
        await asyncio.sleep(0)
    running.cancel()
    assert world.forgotten[:2] == [[A], [B]]
    assert world.removed == [{C: 1}]


async def test_the_service_does_not_look_for_expired_queues_all_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liteservice, "TICK_SECONDS", 0.0)
    world.times = {A: 0, B: 0}
    running = asyncio.create_task(world.lite.run())
    for ended in range(1, 4):
        world.lite.gone({C: ended})
        while len(world.removed) < ended:
            await asyncio.sleep(0)
    running.cancel()
    assert world.forgotten == []
