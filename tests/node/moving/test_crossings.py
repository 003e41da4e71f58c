"""What masters tell each other of consumer groups, with calls that are lost, doubled and late."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from duolog import _errors as sdk
from hypothesis import given, settings
from hypothesis import strategies as st

from duolog_server.node.moving.crossings import Crossings
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.metadata import Metadata, TopicConfig
from duolog_server.store.moves import Guest, Place, Seal, guest_record, seal_record

GROUP = "g"
PLACES = [Place("a", 0), Place("b", 1), Place("c", 1)]
FIRSTS, ENDS = [0, 2, 4], [2, 4]


class Site:
    """A replica group: the tables of its master, which applies changes at once."""

    def __init__(self, world: "World", at: int) -> None:
        self.tables = Metadata()
        self.leads = True
        self.groups: list[tuple[str, Any]] = []
        self.apply({"op": "topic", "topic": TopicConfig("T", 1).to_json()})
        place, move = PLACES[at], f"move-{at}"
        if at:
            guest = Guest(PLACES[0], PLACES[at - 1], move)
            self.apply(guest_record("T", place.queue_id, guest))
            opened = {"op": "open", "topic": "T", "queue": place.queue_id}
            self.apply({**opened, "first": FIRSTS[at], "move": move})
        if at < len(ENDS):
            seal = Seal(ENDS[at], PLACES[at + 1], f"move-{at + 1}")
            self.apply(seal_record("T", place.queue_id, seal))
        self.told: dict[str, list[Any]] = {}
        hooks = ("offsets_moved", "gates_changed", "sealed", "group_deleted", "topic_deleted")
        self.told = {name: [] for name in hooks}
        metadata = SimpleNamespace(
            tables=self.tables, change=self.change, ensure_group=self.ensure_group, **self.told
        )
        core: Any = SimpleNamespace(
            metadata=metadata,
            admission=SimpleNamespace(check_current=self.check_current),
            board=SimpleNamespace(arrived=lambda keys: None),
        )
        self.crossings = Crossings(core, world)

    def apply(self, change: dict[str, Any]) -> None:
        assert self.tables.apply(json.dumps(change).encode()) is not None, change

    def check_current(self) -> None:
        if not self.leads:
            raise sdk.NotMaster("not now")

    async def change(self, change: dict[str, Any]) -> None:
        self.apply(change)
        self.tell()

    def tell(self) -> None:
        for tell in self.told["offsets_moved"]:
            tell(self.tables.moved)
        self.tables.moved.clear()

    async def ensure_group(self, name: str, row: Any) -> None:
        self.groups.append((name, row))


class World:
    """Three replica groups, through which one queue went."""

    def __init__(self) -> None:
        self.sites = [Site(self, at) for at in range(3)]
        self.sent: list[tuple[int, wire.CrossRequest]] = []
        self.faults: list[str] = []  # of the next calls

    async def cross(
        self, group: str, request: wire.CrossRequest, seconds: float
    ) -> wire.CrossReply:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost":
            raise sdk.Unavailable("the call is lost")
        at = next(at for at, place in enumerate(PLACES) if place.group == group)
        self.sent.append((at, request))
        reply = await self.sites[at].crossings.hear(request)
        if fault:
            raise sdk.Unavailable("the answer is lost")
        return reply

    def committed(self, at: int) -> int:
        return self.sites[at].tables.committed(GROUP, "T", PLACES[at].queue_id)

    def may_read(self, at: int) -> bool:
        return self.sites[at].tables.may_read(GROUP, "T", PLACES[at].queue_id)

    def commit(self, at: int, offset: int) -> None:
        """A member has consumed up to there: it commits forward, and what it may read."""
        offsets = {"T": {str(PLACES[at].queue_id): offset}}
        site = self.sites[at]
        site.apply({"op": "offsets", "group": GROUP, "offsets": offsets, "forward": True})
        site.tell()

    def look(self) -> None:
        for site in self.sites:
            asyncio.run(site.crossings._look())

    def reset(self, at: int, offset: int) -> bool:
        """Whether it was done at once."""
        crossings = self.sites[at].crossings
        try:
            asyncio.run(crossings.reset(GROUP, "T", {PLACES[at].queue_id: offset}))
        except (sdk.Unavailable, sdk.Busy):
            return False
        return True

    def wrong(self) -> str:
        for at in (1, 2):
            if self.committed(at) >= 0 and self.committed(at - 1) < ENDS[at - 1]:
                return f"{PLACES[at]} is open, and the group is at {self.committed(at - 1)} before"
        return next((w for site in self.sites if (w := site.crossings.validate())), "")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    assert made.wrong() == ""


def test_a_group_comes_with_its_settings(world: World) -> None:
    world.sites[0].apply({"op": "group", "group": {"groupName": GROUP, "retryMaxTimes": 3}})
    world.commit(0, 1)
    world.look()
    assert not world.may_read(1)
    world.commit(0, 2)
    world.look()
    assert world.committed(1) == 2
    assert world.sites[1].groups == [(GROUP, {"groupName": GROUP, "retryMaxTimes": 3})]
    assert not world.may_read(2)


def test_a_group_that_the_old_place_takes_for_a_new_one_skips_nothing(world: World) -> None:
    world.commit(0, 2)
    world.look()
    request = wire.CrossRequest(topic="T", queue_id=1, group=GROUP, crossed=2, begin=4)
    asyncio.run(world.sites[1].crossings.hear(request))
    assert world.committed(1) == 2


def test_a_crossing_that_was_answered_is_not_repeated_in_a_mastership(world: World) -> None:
    world.commit(0, 2)
    for _ in range(3):
        world.sites[0].crossings._sweep_soon()
        world.look()
    assert len(world.sent) == 1
    world.sites[0].crossings.role_changed()
    world.look()
    assert len(world.sent) == 2


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
def test_a_crossing_is_repeated_until_it_is_answered(world: World, fault: str) -> None:
    world.faults = [fault, fault]
    world.commit(0, 2)
    for pending in (1, 1, 0):
        world.look()
        assert len(world.sites[0].crossings._due) == pending
    assert world.may_read(1)


def test_a_next_place_that_has_left_with_its_group_gets_no_reports(world: World) -> None:
    world.sites[0].apply({"op": "gone", "replica_group": "b"})
    world.commit(0, 2)
    world.look()
    assert (world.sent, list(world.sites[0].crossings._due)) == ([], [])
    assert world.reset(0, 1), "there is nobody to close"
    assert world.committed(0) == 1


@pytest.mark.parametrize(
    ("answer", "rounds"),
    [
        (sdk.BadRequest("its settings are no JSON"), 1),
        (wire.CrossReply(no_place=True), 1),
        (sdk.Unavailable("behind it, nobody answers"), 2),  # calls to a silent place take 3 s each
    ],
)
def test_what_one_group_is_refused_hinders_no_other(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: wire.CrossReply | sdk.DuologError,
    rounds: int,
) -> None:
    monkeypatch.setattr("duolog_server.node.moving.crossings.AT_ONCE", 1)
    hear = world.sites[1].crossings.hear

    async def refuses(request: wire.CrossRequest) -> wire.CrossReply:
        if request.group != "refused":
            return await hear(request)
        if isinstance(answer, sdk.DuologError):
            raise answer
        return answer

    monkeypatch.setattr(world.sites[1].crossings, "hear", refuses)
    for group in ("refused", GROUP):
        change = {"op": "offsets", "group": group, "offsets": {"T": {"0": 2}}, "forward": True}
        world.sites[0].apply(change)
    world.sites[0].crossings._due = {("T", group, 0): None for group in ("refused", GROUP)}
    for number in range(1, 4):
        world.look()
        assert world.may_read(1) == (number >= rounds)
    assert list(world.sites[0].crossings._due) == [("T", "refused", 0)]
    if rounds == 1:
        assert capsys.readouterr().out.count("cannot cross to the next place") == 1


@pytest.mark.parametrize("began", [True, False])
def test_a_group_crosses_a_span_that_was_hidden_before_it_read_it(began: bool) -> None:
    world = World()
    if began:
        world.commit(0, 0)
    for minimum, crosses in ((1, False), (2, began)):
        world.sites[0].apply({"op": "trim", "minimums": {"T": {"0": minimum}}})
        world.sites[0].crossings._sweep_soon()
        world.look()
        assert world.may_read(1) == crosses
    world.look()
    assert len(world.sent) == began


def test_a_slave_tells_and_hears_nothing(world: World) -> None:
    world.sites[0].leads = False
    world.commit(0, 2)
    world.look()
    assert world.sent == []
    world.sites[1].leads = False
    with pytest.raises(sdk.NotMaster):
        asyncio.run(world.sites[1].crossings.hear(wire.CrossRequest()))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (wire.CrossRequest(topic="T", queue_id=1, group=GROUP, crossed=3), sdk.BadRequest),
        (
            wire.CrossRequest(
                topic="T", queue_id=1, group=GROUP, crossed=2, group_settings=b"no JSON"
            ),
            sdk.BadRequest,
        ),
    ],
)
def test_what_cannot_be_a_crossing_here_is_refused(
    world: World, request_: wire.CrossRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        asyncio.run(world.sites[1].crossings.hear(request_))


def test_a_report_from_before_a_reset_opens_nothing_after_it(world: World) -> None:
    world.commit(0, 2)
    world.look()
    ((at, late),) = world.sent
    assert world.reset(0, 1)
    assert world.committed(1) == -1
    asyncio.run(world.sites[at].crossings.hear(late))
    assert not world.may_read(1)


def test_a_reset_of_a_later_place_is_overtaken_by_one_of_an_earlier_place(world: World) -> None:
    for at, end in enumerate(ENDS):
        world.commit(at, end)
        world.look()
    assert world.may_read(2)
    world.faults = ["lost"]
    assert not world.reset(1, 3)
    assert not world.may_read(1)
    assert world.reset(0, 0)
    world.sites[1].crossings._sweep_soon()
    world.look()
    assert [world.may_read(at) for at in range(3)] == [True, False, False]
    for at, end in enumerate(ENDS):
        world.commit(at, end)
        world.look()
    assert world.may_read(2)


EVENTS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 6)),
    st.tuples(st.just("reset"), st.integers(0, 2), st.integers(0, 6)),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
    st.tuples(st.just("late"), st.just(0), st.integers(0, 30)),
    st.tuples(st.just("role"), st.integers(0, 2), st.just(0)),
    st.tuples(st.sampled_from(("lost", "unanswered")), st.just(0), st.just(0)),
)


@given(st.lists(EVENTS, max_size=30))
@settings(deadline=None)
def test_no_place_is_open_to_a_group_that_is_before_its_seam(
    events: list[tuple[str, int, int]],
) -> None:
    """And in the end each group that has come to a seam is let in behind it."""
    world = World()
    for event, at, number in events:
        low, high = FIRSTS[at], ENDS[at] if at < 2 else 6
        offset = min(max(number, low), high)
        match event:
            case "commit":
                world.commit(at, offset)
            case "reset":
                world.reset(at, offset)
            case "look":
                world.look()
            case "late" if world.sent:
                to, request = world.sent[number % len(world.sent)]
                with contextlib.suppress(sdk.Unavailable):
                    asyncio.run(world.sites[to].crossings.hear(request))
            case "role":
                world.sites[at].crossings.role_changed()
            case "lost" | "unanswered":
                world.faults.append(event)
        assert world.wrong() == ""
    world.faults = []
    for _ in range(3):
        for site in world.sites:
            site.crossings._sweep_soon()
        world.look()
    assert not any(site.crossings.status() for site in world.sites)
    for at in (0, 1):
        assert (
            world.sites[at].tables.progress_of(GROUP, "T", PLACES[at].queue_id).going_back is None
        )
        assert (world.committed(at) >= ENDS[at]) == world.may_read(at + 1)
