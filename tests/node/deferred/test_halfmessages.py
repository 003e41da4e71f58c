"""The state of half messages, while the queue shows them later than they are stored."""

from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.deferred.halfmessages import Half, HalfMessages
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
    halves = HalfMessages(4)
    halves._decided_ahead.add(3)
    assert halves.validate(MonoMs(0)) == "[3] are read, and decided ahead of 4"
