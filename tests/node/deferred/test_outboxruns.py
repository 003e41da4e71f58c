"""What waits in the outbox, by queue."""

import random

import pytest

from duolog_server.node.deferred.outboxruns import OutboxRuns, Run

A, B = ("T", 0), ("T", 1)


def filled(*keys: tuple[str, int]) -> OutboxRuns:
    runs = OutboxRuns(0)
    for offset, key in enumerate(keys):
        runs.read(key, offset, offset)
    return runs


def taken(runs: OutboxRuns, key: tuple[str, int]) -> list[tuple[int, int]]:
    """Numbers and offsets of all that waits for a queue, which waits no more."""
    found = []
    while key in runs:
        run = runs.head(key, 2)
        found += [(run.origin + k, run.offset + k) for k in range(run.count)]
        runs.done(key, run.count)
        assert runs.validate() == ""
    return found


def test_messages_wait_by_queue_in_their_order() -> None:
    runs = filled(A, A, B, A)
    assert (list(runs), runs.count, runs.low, runs.end) == ([A, B], 4, 0, 4)
    assert runs.head(A, 1000) == Run(0, 0, 2)
    assert runs.head(A, 1) == Run(0, 0, 1)
    runs.done(A, 1)
    assert (runs.head(A, 1000), runs.low) == (Run(1, 1, 1), 1)
    assert taken(runs, A) == [(1, 1), (3, 3)]
    assert (A in runs, runs.low, runs.count) == (False, 2, 1)
    assert taken(runs, B) == [(2, 2)]
    assert (runs.low, runs.count, runs.first()) == (4, 0, None)


def test_what_is_stored_again_keeps_its_turn() -> None:
    runs = filled(A, A, A)
    runs.read(A, 0, 3)
    runs.read(A, 1, 4)
    assert runs.validate() == ""
    assert (runs.head(A, 1000), runs.low, runs.count) == (Run(0, 3, 2), 2, 3)
    assert taken(runs, A) == [(0, 3), (1, 4), (2, 2)]


def test_a_copy_of_what_was_delivered_or_is_gone_waits_at_its_place() -> None:
    runs = OutboxRuns(7)
    runs.reach(8)
    runs.read(A, 8, 8)
    runs.read(A, 3, 9)
    runs.read(A, 5, 10)
    assert taken(runs, A) == [(3, 9), (5, 10), (8, 8)]


def test_what_is_forgotten_waits_no_more() -> None:
    runs = filled(A, A, A, B)
    runs.forget(A, 1)
    assert runs.validate() == ""
    assert taken(runs, A) == [(0, 0), (2, 2)]
    runs.forget(B, 3)
    assert B not in runs
    assert (runs.validate(), runs.count) == ("", 0)


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_taken_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    runs, waiting = OutboxRuns(0), dict[int, int]()  # where each number lies
    for offset in range(200):
        again = waiting and chance.random() < 0.3
        origin = chance.choice([*waiting]) if again else offset
        runs.read(A, origin, offset)
        waiting[origin] = offset
        assert (runs.count, runs.low) == (len(waiting), min(waiting.values()))
        if chance.random() < 0.2:
            run = runs.head(A, 3)
            first = sorted(waiting)[: run.count]
            assert [waiting.pop(one) for one in first] == list(
                range(run.offset, run.offset + run.count)
            )
            runs.done(A, run.count)
        assert runs.validate() == ""
    assert taken(runs, A) == sorted(waiting.items())
