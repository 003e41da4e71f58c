"""Charts: what their axes, lines and words say."""

import json
from functools import partial
from math import nan

import pytest

from duolog_server.ops.console.view.charts import HEIGHT, WIDTH, Axes
from duolog_server.ops.console.view.formatting import si
from duolog_server.ops.console.view.rates import POINTS, Flow

AXES = Axes(now=1003.0, wall_ms=10_003_000)
chart = partial(AXES.chart, "Messages, a second", told=si, least=5)


@pytest.mark.parametrize(
    ("peak", "ticks"),
    [
        (0, ["5.0", "2.5", "0"]),
        (5, ["5.0", "2.5", "0"]),
        (5.1, ["10", "5.0", "0"]),
        (11, ["20", "10", "0"]),
        (1200, ["2.0\u202fk", "1.0\u202fk", "0"]),
        (100_000, ["100\u202fk", "50.0\u202fk", "0"]),
    ],
)
def test_an_axis_is_round_and_reaches_above_the_peak(peak: float, ticks: list[str]) -> None:
    assert chart(flows={"in": Flow(peak, (0.0, peak, 0.0))}).ticks == ticks


def test_lines_share_a_scale_and_are_told_in_words() -> None:
    flows = {"in": Flow(10.0, (10.0, 10.0, 10.0)), "out": Flow(5.0, (5.0, nan, 5.0, 5.0))}
    made = chart(flows=flows)
    assert made.says == "Messages, a second: in 10, out 5.0, at most 10 in the last 5 minutes"
    assert json.loads(made.values) == [["10", "10", "10"], ["5.0", "–", "5.0", "5.0"]]
    (full, half) = (line.path for line in made.lines)
    assert full.startswith(f"M{WIDTH - 2:.1f} 1.0")
    assert f"{WIDTH:.1f} {HEIGHT / 2:.1f}" in half
    assert half.count("M") == 2, "a gap is not crossed"
    empty = chart(flows={"in": Flow(None, ())})
    assert (empty.says, empty.lines[0].path) == ("Messages, a second: in –, no data yet", "")


def test_a_time_without_a_master_has_its_place_and_moves_with_the_slots() -> None:
    assert AXES.end_ms == 10_000_000
    band = AXES.band(AXES.end_ms - 20_000, AXES.end_ms - 10_000, "why")
    assert band is not None
    assert (band.begin, band.width, band.title) == (WIDTH - 4, 2, "why")
    later = Axes(AXES.now + 1.5, AXES.wall_ms + 1500)
    assert later.band(AXES.end_ms - 20_000, AXES.end_ms - 10_000, "why") == band
    first = AXES.end_ms - 5000 * POINTS
    assert AXES.band(first - 9000, first - 2000, "long ago") is None
    clipped = AXES.band(first - 9000, AXES.end_ms, "so far")
    assert clipped is not None
    assert (clipped.begin, clipped.width) == (0, WIDTH)
