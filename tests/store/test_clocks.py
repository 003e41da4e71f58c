"""Jumps of the wall clock: store times, ages and delays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.store.clocks import (
    FORWARD_STEP_MS,
    AgeClock,
    ForwardSteps,
    MonoMs,
    StoreClock,
    WallMs,
    WallSteps,
)
from tests.support import NOW

HOUR = 3_600_000
JUMPS = st.sampled_from((0, 0, 0, 500, -500, HOUR, -HOUR, 9000 * HOUR, -9000 * HOUR))


def test_a_jump_is_reported_once_and_slewing_is_not_a_jump() -> None:
    steps = WallSteps()
    looks = [(NOW, 0), (NOW + 100, 100), (NOW + HOUR, 200), (NOW + HOUR + 150, 300)]
    found = [steps.look(WallMs(wall), MonoMs(mono)) for wall, mono in looks]
    assert found == [0, 0, HOUR - 200, 0]
    assert steps.look(NOW, MonoMs(400)) == -HOUR - 250


@given(st.lists(st.tuples(st.integers(0, 5000), JUMPS), min_size=1), st.booleans())
def test_store_times_strictly_increase(moves: list[tuple[int, int]], stores: bool) -> None:
    clock, mono, offset = StoreClock(), 0, 0
    told = newest = clock.now(NOW, MonoMs(0), 0)
    for passed, jump in moves:
        mono, offset = mono + passed, offset + jump
        now = clock.now(WallMs(NOW + mono + offset), MonoMs(mono), newest)
        assert now >= told + passed // 2
        assert now >= NOW + mono + offset
        told, newest = now, now if stores else newest


def test_after_a_jump_back_store_times_are_the_wall_clocks_again_after_twice_as_long() -> None:
    clock = StoreClock()
    clock.now(NOW, MonoMs(0), 0)
    for minutes in range(1, 240):
        mono = minutes * 60_000
        wall = WallMs(NOW + mono - HOUR)
        ahead = clock.now(wall, MonoMs(mono), 0) - wall
        assert ahead == max(0, HOUR - mono // 2)


def test_a_store_whose_newest_record_is_ahead_of_the_clock_goes_on_from_there() -> None:
    clock = StoreClock()
    assert clock.now(NOW, MonoMs(5), NOW + HOUR) == NOW + HOUR
    assert clock.now(WallMs(NOW + 1000), MonoMs(1005), NOW + HOUR) == NOW + HOUR + 500
    newer = NOW + 2 * HOUR  # of another master, whose log this is now
    assert clock.now(WallMs(NOW + 1000), MonoMs(1005), newer) == newer
    assert clock.now(WallMs(NOW + 2000), MonoMs(2005), newer) == newer + 500


def test_data_ages_by_a_clock_that_a_jump_forward_moves_after_an_hour_only() -> None:
    clock = AgeClock()
    assert clock.now(NOW, MonoMs(0)) == NOW
    for mono in range(10_000, HOUR + 10_000, 10_000):
        assert clock.now(WallMs(NOW + mono + 100 * HOUR), MonoMs(mono)) == NOW + mono
    assert clock.now(WallMs(NOW + 102 * HOUR), MonoMs(2 * HOUR)) == NOW + 102 * HOUR


def test_a_start_believes_a_clock_far_ahead_of_the_newest_record_after_an_hour_only() -> None:
    clock = AgeClock(NOW)
    wrong = NOW + 100 * HOUR
    assert clock.now(WallMs(wrong), MonoMs(0)) == NOW
    assert clock.now(WallMs(wrong + 1000), MonoMs(1000)) == NOW + 1000
    assert clock.now(WallMs(NOW + 2000), MonoMs(2000)) == NOW + 2000, "corrected"
    clock = AgeClock(NOW)
    clock.now(WallMs(wrong), MonoMs(0))
    assert clock.now(WallMs(wrong + HOUR), MonoMs(HOUR)) == wrong + HOUR
    assert AgeClock(NOW).now(WallMs(NOW + 59_000), MonoMs(0)) == NOW + 59_000, "a restart"
    assert AgeClock(NOW).now(WallMs(NOW - HOUR), MonoMs(0)) == NOW - HOUR


def test_a_clock_that_was_corrected_again_ages_nothing() -> None:
    clock = AgeClock()
    clock.now(NOW, MonoMs(0))
    assert clock.now(WallMs(NOW + 100 * HOUR), MonoMs(1000)) == NOW + 1000
    assert clock.now(WallMs(NOW + 2000), MonoMs(2000)) == NOW + 2000
    assert clock.now(WallMs(NOW + HOUR), MonoMs(HOUR)) == NOW + HOUR
    assert clock.now(WallMs(NOW + 201 * HOUR), MonoMs(HOUR + 1000)) == NOW + HOUR + 1000


def test_after_a_jump_back_data_is_younger_at_once() -> None:
    clock = AgeClock()
    clock.now(NOW, MonoMs(0))
    assert clock.now(WallMs(NOW - HOUR), MonoMs(1000)) == NOW - HOUR
    assert clock.now(WallMs(NOW), MonoMs(2000)) == NOW - HOUR + 1000  # and back again: doubted


def test_forward_jumps_do_not_shorten_the_delay_of_a_level() -> None:
    steps = ForwardSteps()
    delay = 600_000
    stored = np.array([NOW - 1000, NOW, NOW + HOUR], np.int64)
    due = stored + delay
    steps.look(NOW, MonoMs(0))
    assert steps.corrected(due, delay).tolist() == due.tolist()
    steps.look(WallMs(NOW + HOUR + 1), MonoMs(0))  # at once, and rounded to more than it was
    assert (steps.corrected(due, delay) - due).tolist() == [HOUR + 1, HOUR + 1, 0]
    steps.look(WallMs(NOW + HOUR + 500), MonoMs(1000))  # the wall clock is behind: no jump
    assert (steps.corrected(due, delay) - due).tolist() == [HOUR + 1, HOUR + 1, 0]
    late = MonoMs(4 * HOUR)
    steps.look(WallMs(NOW + 5 * HOUR), late)
    steps.look(WallMs(NOW + 7 * HOUR), late)
    assert (steps.corrected(due, delay) - due).max() <= 2 * HOUR + 500, "old jumps are forgotten"


@given(st.lists(st.tuples(st.integers(0, 5000), JUMPS), min_size=1), st.integers(0, 60_000))
def test_no_delay_level_is_shorter_than_configured_however_the_clock_jumps(
    moves: list[tuple[int, int]], delay: int
) -> None:
    clock, steps, mono, offset = StoreClock(), ForwardSteps(), 0, 0
    stored: list[tuple[int, int]] = []
    slewed = FORWARD_STEP_MS * sum(jump != 0 for _, jump in moves)
    for passed, jump in moves:
        mono, offset = mono + passed, offset + jump
        now = clock.now(WallMs(NOW + mono + offset), MonoMs(mono), 0)
        steps.look(now, MonoMs(mono))
        if stored:
            times = np.array([time + delay for time, _ in stored], np.int64)
            for due, (_, since) in zip(steps.corrected(times, delay), stored, strict=True):
                # A jump by less than that is taken for a slewed clock.
                assert due > now or mono - since >= delay - slewed
        stored.append((now, mono))
