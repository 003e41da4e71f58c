"""Numbers that a viewer follows: rates, gauges, what stands still, and their lines."""

import re
from math import isnan, nan

import pytest
from duolog import Durations
from hypothesis import given
from hypothesis import strategies as st

from duolog_server.ops.console.view import rates as module
from duolog_server.ops.console.view.rates import (
    GAP_SECONDS,
    LEAST_KNOWN,
    POINTS,
    SLOT_SECONDS,
    Flow,
    Rates,
    quantile_of,
    sparkline,
)


def test_a_rate_is_of_the_time_between_two_looks_and_what_stands_still_is_told() -> None:
    rates = Rates()
    assert rates.note("a", 100, 10.0) == Flow(None, ())
    assert rates.note("a", 300, 12.0) == Flow(100.0, (100.0,))
    assert rates.note("a", 310, 12.1) == Flow(100.0, (100.0,)), "too soon"
    assert rates.note("a", 700, 14.0) == Flow(200.0, (150.0,)), "the mean of the slot"
    assert rates.note("a", 900, 16.0) == Flow(100.0, (150.0, 100.0))
    assert rates.note("a", 0, 17.0) == Flow(100.0, (150.0, 100.0)), "the counter began anew"
    assert rates.note("a", 50, 18.0) == Flow(50.0, (150.0, 50.0))
    assert rates.note("a", 150, 28.0) == Flow(10.0, (150.0, 50.0, 10.0, 10.0)), "rare looks"
    assert rates.noted("a", 28.5) == Flow(None, (150.0, 50.0, 10.0, 10.0)), "nobody counts"
    assert rates.note("a", 9000, 29.0, "other") == Flow(None, (150.0, 50.0, 10.0, 10.0))
    assert rates.note("a", 9030, 30.0, "other") == Flow(30.0, (150.0, 50.0, 10.0, 10.0, 30.0))
    for second in range(31, 400):
        flow = rates.note("a", 9030, float(second), "other")
    assert flow.points == (0.0,) * POINTS
    rates = Rates()
    assert rates.still_seconds("a", None, 10.0) == 0.0
    assert rates.still_seconds("a", None, 21.0) == 11.0
    assert rates.still_seconds("a", 4, 22.0) == 0.0
    assert rates.still_seconds("a", 4, 30.0) == 8.0
    assert rates.still_seconds("a", 4, 31.0 + GAP_SECONDS) == 0.0, "it may have moved meanwhile"


def test_a_line_ends_where_nobody_counts_any_more() -> None:
    rates = Rates()
    for second in range(20):
        rates.note("a", 10 * second, float(second))
    for late in (20.0, 25.0, 26.0, 30.0):
        points = rates.noted("a", late).points
    assert points[:4] == (10.0,) * 4
    assert [isnan(one) for one in points[4:]] == [True] * 3
    assert rates.noted("b", 30.0).points == ()


def test_a_gauge_keeps_the_greatest_value_of_each_slot_and_has_gaps() -> None:
    rates = Rates()
    assert rates.gauge("a", 3, 100.0) == Flow(3, (3,))
    assert rates.gauge("a", 7, 101.0) == Flow(7, (7,))
    assert rates.gauge("a", 2, 104.9) == Flow(2, (7,))
    assert rates.gauge("a", 1, 105.0) == Flow(1, (7, 1))
    for slot in range(500):
        flow = rates.gauge("a", slot, 110.0 + slot * SLOT_SECONDS)
    assert flow.points == tuple(range(500 - POINTS, 500))
    rates = Rates()
    rates.gauge("a", 3, 0.0)
    first, *between, last = rates.gauge("a", 4, 4 * SLOT_SECONDS).points
    assert (first, last, len(between)) == (3, 4, 3)
    assert all(map(isnan, between))
    assert rates.gauge("a", 6, 6 * SLOT_SECONDS).points[-2:] == (6, 6), "looks are rare"
    after = rates.gauge("a", 5, 1e9).points
    assert (len(after), after[-1]) == (POINTS, 5)
    assert all(map(isnan, after[:-1])), "nothing of it is of the last minutes"
    assert sparkline([5] * POINTS).count("L") == 1
    assert sparkline([]) == ""


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9)), max_size=30))
def test_a_line_of_a_gauge_is_that_of_its_points(looks: list[tuple[int, float]]) -> None:
    points, lines, now = Rates(), Rates(), 0.0
    for value, passed in looks:
        now += passed
        assert lines.line("a", value, now) == points.gauge("a", value, now).line


def test_only_series_that_are_looked_at_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    rates = Rates()
    for second in range(5):
        assert rates.note("mine", 10 * second, float(second)).now == (10.0 if second else None)
        rates.note(f"other-{second}", 10 * second, float(second))
    late = 5.0 + GAP_SECONDS
    assert rates.note("mine", 50, 5.0).points == (10.0,) * 2
    assert rates.note("mine", 100, 10.0).points == (10.0,) * 3
    rates.note("new", 0, late)
    assert rates.note("new", 30, late + 1).now == 30.0, "other-0 made room"
    assert rates.note("mine", 0, late + 1).points != ()
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    rates = Rates()
    for second in range(100):
        for look in (rates.note, rates.gauge, rates.still_seconds):
            look(f"{second}", second, 7.0 * second)
    for kept in (rates._counters, rates._gauges, rates._still):
        assert len(kept._series) == 3


def places_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+?) ([\d.]+)", path)]


@given(st.lists(st.one_of(st.just(nan), st.floats(0, 1e12)), min_size=1, max_size=POINTS))
def test_a_line_stays_in_its_box(points: list[float]) -> None:
    path = sparkline(points)
    if sum(not isnan(one) for one in points) < LEAST_KNOWN:
        assert path == ""
        return
    places = places_of(path)
    assert all(-0.1 <= x <= 96.1 and 0 <= y <= 20 for x, y in places)
    assert places == sorted(places, key=lambda place: place[0])
    parts = sum(
        not isnan(one)
        for one, before in zip(points, [nan, *points[:-1]], strict=True)
        if isnan(before)
    )
    assert path.count("M") == parts, "a gap is not crossed"


@given(st.lists(st.integers(0, 3), min_size=LEAST_KNOWN, max_size=POINTS))
def test_a_line_has_every_height(points: list[int]) -> None:
    most = max(points) or 1
    drawn = dict(places_of(sparkline(points)))
    step = 96 / (POINTS - 1)
    for k, value in enumerate(points):
        x = round(96 - step * (len(points) - 1 - k), 1)
        before = max(at for at in drawn if at <= x + 0.05)
        assert drawn[before] == pytest.approx(19 - 18 * value / most, abs=0.051)


def test_a_quantile_is_of_what_took_time_in_each_slot() -> None:
    rates, bounds = Rates(), (0.1, 0.2, 0.4)

    def look(now: float, counts: tuple[int, ...], origin: str = "a") -> Flow:
        return rates.quantile("x", 0.5, Durations("append", bounds, counts), now, origin)

    first = look(10.0, (1000, 0, 0, 0))
    assert first.now is None, "nothing since somebody looks"
    assert [isnan(one) for one in first.points] == [True]
    assert look(11.0, (1000, 10, 0, 0)).now == pytest.approx(0.15)
    assert look(12.0, (1000, 10, 20, 0)).now == pytest.approx(0.25), "of the whole slot"
    later = look(16.0, (1000, 10, 20, 7))
    assert later.now == 0.4, "above the last bound it is not known better"
    assert list(later.points) == pytest.approx([0.25, 0.4])
    assert look(17.0, (5, 0, 0, 0), "b").now is None, "another process began anew"
    for second in range(18, 400):
        flow = look(float(second), (5, 0, 0, 0), "b")
    assert len(flow.points) == POINTS


@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.floats(0.01, 1))
def test_a_quantile_lies_where_its_share_does(counts: list[int], share: float) -> None:
    bounds = (1.0, 2.0, 3.0)
    found = quantile_of(share, bounds, counts)
    if not sum(counts):
        assert isnan(found)
        return
    below = sum(count for bound, count in zip(bounds, counts, strict=False) if bound < found)
    assert below <= share * sum(counts) + 1e-9
    up_to = sum(count for bound, count in zip(bounds, counts, strict=False) if bound - 1 < found)
    assert found == 3.0 or share * sum(counts) <= up_to + 1e-9
