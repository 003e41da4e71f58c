"""Rates between scrapes, whoever scrapes and however often."""

from hypothesis import given
from hypothesis import strategies as st

from duolog_server.node.metrics.rates import Rates


def at(rates: Rates, now: float, total: float) -> float:
    rates.begin(now)
    found = rates.per_second("x", total)
    rates.end()
    return found


def test_a_rate_is_over_the_time_since_the_start_and_never_negative() -> None:
    rates = Rates(60, 1000.0)
    assert at(rates, 1010.0, 50) == 5
    assert at(rates, 1020.0, 60) == 3
    rates = Rates(10, 0.0)
    at(rates, 10.0, 1000)
    assert at(rates, 20.0, 30) == 3


def test_a_rate_is_over_the_last_seconds_however_often_scrapes_come() -> None:
    rates = Rates(60, 0.0)
    total = 0
    for minute in range(1, 10):  # 1 a second, then 10, ...
        total += 60 * minute
        assert at(rates, 60.0 * minute, total) == minute
    rates = Rates(60, 0.0)
    found = [at(rates, float(second), 10 if second >= 100 else 0) for second in range(1, 160)]
    assert max(found) <= 10 / 40
    rates = Rates(60, 0.0)
    assert at(rates, 60.0, 0) == 0
    assert at(rates, 61.0, 61) == 1
    assert at(rates, 119.0, 119) == 1
    assert at(rates, 121.0, 183) == (183 - 0) / 61
    rates = Rates(60, 0.0)
    assert at(rates, 60.0, 600) == 10
    rates.begin(120.0)  # it asks for nothing, and is given up
    assert at(rates, 121.0, 1210) == (1210 - 600) / 61
    assert at(rates, 181.0, 1810) == 10


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 1000)), min_size=1, max_size=30))
def test_a_rate_lies_between_none_and_the_most_that_came_in_its_time(
    steps: list[tuple[float, int]],
) -> None:
    rates, now, total = Rates(60, 0.0), 0.0, 0
    seen = [(0.0, 0)]
    for seconds, more in steps:
        now, total = now + seconds, total + more
        found = at(rates, now, total)
        spans = [(now - then, total - before) for then, before in seen if now > then]
        assert any(abs(found - count / span) < 1e-6 * (1 + found) for span, count in spans)
        seen.append((now, total))
