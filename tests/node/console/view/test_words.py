"""Numbers, texts, rates and lines of the console."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.console.view import rates as module
from node.console.view.rates import POINTS, Rates, sparkline
from node.console.view.words import (
    command,
    counted,
    duration,
    listed,
    number,
    rate,
    sentence,
    size,
    spaced,
)


def plain(text: str) -> str:
    return text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (999_499, "999 KB"),
        (999_500, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_sizes(value: int, shown: str) -> None:
    assert plain(size(value)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0/s"),
        (0.25, "0.2/s"),
        (12, "12/s"),
        (999.6, "1.0 k/s"),
        (84_100, "84.1 k/s"),
        (2e6, "2.0 M/s"),
    ],
)
def test_rates(value: float, shown: str) -> None:
    assert plain(rate(value)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0.0 s"),
        (400, "0.4 s"),
        (14_000, "14 s"),
        (300_000, "5 min"),
        (61 * 3_600_000, "61 h"),
        (12 * 86_400_000, "12 d"),
    ],
)
def test_durations(value: int, shown: str) -> None:
    assert plain(duration(value)) == shown


def test_words() -> None:
    assert plain(number(12_345)) == "12 345"
    assert [counted(1, "message"), counted(2, "entry")] == ["1 message", "2 entries"]
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["", "a", "a, b and c"]
    assert spaced("NoSuchMessage") == "No such message"
    assert [sentence("there is none"), sentence("so.")] == ["there is none.", "so."]


@given(st.lists(st.text(min_size=1)))
def test_a_command_has_its_words_whatever_they_are(words: list[str]) -> None:
    assert shlex.split(command(*words)) == ["duolog", *words]


def test_a_rate_is_that_of_the_time_between_two_looks() -> None:
    rates = Rates()
    assert rates.note("a", 100, 10.0) == ()
    assert rates.note("a", 300, 12.0) == (100.0,)
    assert rates.note("a", 310, 12.1) == (100.0,), "too soon for a point"
    assert rates.note("a", 400, 13.0) == (100.0, 100.0)
    assert rates.note("a", 0, 14.0) == (100.0, 100.0), "the counter began anew"
    assert rates.note("a", 50, 15.0) == (100.0, 100.0, 50.0)
    for second in range(16, 200):
        points = rates.note("a", 50, float(second))
    assert len(points) == POINTS


def test_the_counters_that_are_looked_at_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    rates = Rates()
    for second in range(5):
        rates.note("mine", 10 * second, float(second))
        rates.note(f"gone-{second}", 0, float(second))
    assert rates.note("mine", 50, 5.0) == (10.0,) * 5
    assert rates.note("gone-0", 10, 5.0) == ()


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=POINTS))
def test_a_line_stays_in_its_box(points: list[float]) -> None:
    places = [tuple(map(float, place.split(","))) for place in sparkline(tuple(points)).split()]
    assert len(places) == len(points)
    assert all(-0.1 <= x <= 96.1 and 0 <= y <= 18 for x, y in places)
    assert places == sorted(places, key=lambda place: place[0])
