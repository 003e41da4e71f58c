"""The state of half messages, while the queue shows them later than they are stored; decisions, and
whose producers are asked next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.deferred import halfmessages
from duolog_server.node.deferred.halfmessages import (
    AGAIN_MS,
    IN_FLIGHT_MAX,
    PATIENCE_MS,
    Decision,
    Decisions,
    Half,
    HalfMessages,
    Turns,
)
from duolog_server.store.clocks import MonoMs


def half(offset: int, origin: int | None = None) -> Half:
    return Half(offset if origin is None else origin, offset, "g", 0, MonoMs(1000))


def test_half_messages_are_read_once_and_decided_in_any_order() -> None:
    halves = HalfMessages(0)
    halves.read(half(0))
    # 1 and 2 were stored, and are not readable yet; the copy of 0 comes behind them.
    halves.add(half(3, origin=0))
    halves.resolved(0)
    assert (halves.end, halves.low) == (1, 1)
    assert halves.get(0) is not None
    halves.read(half(1))
    halves.read(half(2))
    halves.read(half(3, origin=0))
    assert [origin for origin in range(4) if halves.get(origin)] == [0, 1, 2]
    assert halves.low == 1
    halves = HalfMessages(0)
    halves.read(half(0))
    halves.add(half(1, origin=0))
    halves.resolved(0)
    halves.resolved(1)
    assert len(halves) == 0
    halves.read(half(1, origin=0))
    assert len(halves) == 0
    assert (halves.end, halves.low) == (2, 2)
    halves = HalfMessages(0)
    halves.read(half(0))
    halves.read(half(1, origin=0))  # stored again; both are overdue since the same moment
    assert [found.offset for found in halves.due(MonoMs(1000), 10)] == [1]
    assert halves.due(MonoMs(1000), 10) == []
    halves = HalfMessages(0)
    halves.read(half(0))
    halves.add(half(3, origin=0))
    halves.resolved(0)
    halves.resolved(3)
    halves.reach(5)
    assert (halves.end, halves.validate(MonoMs(0))) == (5, "")
    halves.reach(2)
    assert halves.end == 5


@given(st.lists(st.sampled_from(["store", "read", "back", "decide"]), max_size=60))
def test_every_half_message_waits_or_is_decided(steps: list[str]) -> None:
    """Against a queue that is read late: nothing is forgotten, nothing comes back."""
    halves = HalfMessages(0)
    queue: list[int] = []  # origin at each offset
    decided: set[int] = set()
    known: set[int] = set()  # by origin
    for step in steps:
        waiting = sorted(known - decided)
        if step == "store":
            queue.append(len(queue))
        elif step == "read" and halves.end < len(queue):
            offset = halves.end
            halves.read(half(offset, queue[offset]))
            known.add(queue[offset])
        elif step == "back" and waiting:
            found = halves.get(waiting[0])
            assert found is not None
            halves.add(half(len(queue), waiting[0]))
            queue.append(waiting[0])
            halves.resolved(found.offset)
        elif step == "decide" and waiting:
            found = halves.get(waiting[-1])
            assert found is not None
            halves.resolved(found.offset)
            decided.add(waiting[-1])
        assert {o for o in range(len(queue)) if halves.get(o)} == known - decided
        assert halves.validate(MonoMs(0)) == ""
    while halves.end < len(queue):
        halves.read(half(halves.end, queue[halves.end]))
        assert halves.validate(MonoMs(0)) == ""
    assert {o for o in range(len(queue)) if halves.get(o)} == set(queue) - decided


def test_validate_reports_inconsistent_half_messages() -> None:
    halves = HalfMessages(0)
    halves.read(half(0))
    halves.due(MonoMs(1000), 10)
    assert halves.validate(MonoMs(1000)) == ""  # it is being asked about
    assert halves.validate(MonoMs(999)) == "no check is due for half message 0 at 1000"
    found = halves.get(0)
    assert found is not None
    found.offset = 7
    assert halves.validate(MonoMs(0)) == "half message 0 is missing at its place 7"
    halves._origins[7] = 0
    assert halves.validate(MonoMs(0)) == "1 wait, 2 places are known"
    halves = HalfMessages(0)
    halves.read(half(0))
    halves.by_topic["T"] = 1
    assert halves.validate(MonoMs(0)) == "{'': 1, 'T': 1} are counted by topic, {'': 1} wait"
    halves = HalfMessages(4)
    halves._decided_ahead.add(3)
    assert halves.validate(MonoMs(0)) == "[3] are read, and decided ahead of 4"


def named(offset: int, check_ms: int = 1000, topic: str = "T", group: str = "g") -> Half:
    return Half(offset, offset, group, 0, MonoMs(check_ms), topic)


def test_checks_are_due_at_their_times_the_earliest_first() -> None:
    halves = HalfMessages(0)
    for offset, check_ms in enumerate((3000, 1000, 2000)):
        halves.read(named(offset, check_ms))
    assert halves.due(MonoMs(999), 10) == []
    assert [half.origin for half in halves.due(MonoMs(3000), 2)] == [1, 2]
    one = halves.get(1)
    assert one is not None
    halves.ask_later(one, MonoMs(5000))
    halves.resolved(0)
    assert halves.due(MonoMs(4999), 10) == [], "0 is decided, 1 has another time, 2 is asked about"
    assert halves.due(MonoMs(5000), 10) == [one]


def test_half_messages_are_counted_by_the_topic_that_they_are_sent_to() -> None:
    halves = HalfMessages(0)
    for offset, topic in enumerate(("T", "U", "T")):
        halves.read(named(offset, topic=topic))
    halves.add(Half(0, 7, "g", 1, MonoMs(0), "T"))  # stored again
    assert halves.by_topic == {"T": 2, "U": 1}
    assert [half.origin for half in halves.all()] == [0, 1, 2]
    assert (halves.waits(1), halves.lies_at(7), halves.lies_at(0)) == (True, True, False)
    assert halves.origin_at(7) == 0
    halves.resolved(0)  # its first place: it is not there any more
    assert halves.by_topic == {"T": 2, "U": 1}
    halves.resolved(1)
    halves.resolved(7)
    assert halves.by_topic == {"T": 1}
    assert (halves.waits(1), halves.waits(2)) == (False, True)
    assert halves.low == 2


def test_what_was_decided_ahead_is_forgotten_once_it_was_passed() -> None:
    halves = HalfMessages(0)
    halves.resolved(4)
    halves.resolved(9)
    halves.reach(5)
    halves.read(named(5))
    halves.reach(9)
    halves.read(named(9))
    assert list(halves) == [5]
    assert halves.validate(MonoMs(0)) == ""


def test_the_oldest_decisions_are_left_to_the_log_and_it_is_known_how_far_they_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repeat of one of them waits until the index has it: it is not taken for undecided."""
    monkeypatch.setattr(halfmessages, "DECISIONS_MAX", 2)
    decisions = Decisions()
    assert decisions.forgotten_end == 0
    for origin, end in ((1, 900), (2, 700), (3, 800)):
        decisions.add(origin, Decision(True, end, "g"))
    assert decisions.get(1) is None
    assert decisions.get(2) == Decision(True, 700, "g")
    assert decisions.forgotten_end == 900
    decisions.add(4, Decision(False, 950, "g"))
    assert decisions.get(2) is None
    assert decisions.forgotten_end == 900, "the highest of them"
    decisions.clear()
    assert (decisions.get(4), decisions.forgotten_end) == (None, 0)


def test_a_group_that_took_no_check_is_left_alone_for_a_moment_and_keeps_its_order() -> None:
    turns, now = Turns(60_000), MonoMs(0)
    for offset in range(2):
        turns.add(named(offset))
    turns.add(named(9, group="h"))
    first = turns.next("g", now, lambda _: True)
    assert first is not None
    turns.untaken(first, now)
    assert not turns.answered(first), "its place is another's"
    assert turns.groups(now) == ["h"]
    assert not turns.may_ask("g")
    assert turns.groups(MonoMs(AGAIN_MS - 1)) == ["h"]
    assert turns.groups(MonoMs(AGAIN_MS)) == ["g", "h"]
    assert turns.next("g", now, lambda _: True) is first
    quick = Turns(300)
    quick.untaken(named(0), now)
    assert quick.groups(MonoMs(300)) == ["g"], "no longer than the interval of checks"


def test_what_is_asked_about_keeps_its_place_until_its_time_is_over() -> None:
    turns, now = Turns(1000), MonoMs(0)
    for offset in range(IN_FLIGHT_MAX + 1):
        turns.add(named(offset))
    for _ in range(IN_FLIGHT_MAX):  # asked about, and not yet taken: an answer may come at once
        assert turns.next("g", now, lambda _: True) is not None
    assert turns.next("g", MonoMs(PATIENCE_MS - 1), lambda _: True) is None
    assert turns.next("g", MonoMs(PATIENCE_MS), lambda _: True) is not None
    assert turns.groups(now) == []


def test_the_place_of_an_answer_that_does_not_come_is_anothers_once_its_time_is_over() -> None:
    turns, now = Turns(1000), MonoMs(0)
    for offset in range(IN_FLIGHT_MAX + 2):
        turns.add(named(offset))
    first = turns.next("g", now, lambda _: True)
    assert first is not None
    assert turns.asked(first, now) == 1000
    while (half := turns.next("g", now, lambda _: True)) is not None:
        last = half
    assert last.origin == IN_FLIGHT_MAX - 1
    assert turns.next("g", MonoMs(999), lambda _: True) is None
    half = turns.next("g", MonoMs(1000), lambda _: True)
    assert half is not None
    assert half.origin == IN_FLIGHT_MAX
    assert turns.answered(half)
    assert turns.asked(half, now) == 1000, "its answer came before"
    assert not turns.answered(half)


def test_an_answer_has_the_more_time_the_more_are_asked_about_up_to_a_limit() -> None:
    for interval, waits in ((1000, [1000, 2000, 3000]), (40_000, [40_000] * 3)):
        turns, now = Turns(interval), MonoMs(0)
        for offset in range(3):
            turns.add(named(offset))
        found = []
        for _ in range(3):
            half = turns.next("g", now, lambda _: True)
            assert half is not None
            found.append(turns.asked(half, now))
        assert found == waits
