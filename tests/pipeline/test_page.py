"""The parts of a report's page."""

import re

from duolog_server.pipeline import page
from duolog_server.pipeline.report import with_empty


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_whole_numbers_have_no_decimals() -> None:
    rows = {"a": [(0, 1.0), (1, 300_000.0)]}
    assert texts(page.lines(rows, "messages", lambda low, high: ("", "")))[0] == "300,000 messages"
    rows = {"a": [(0, 1.0), (1, 2.25)]}
    assert texts(page.lines(rows, "ms", lambda low, high: ("", "")))[0] == "2.2 ms"


def test_a_plot_has_few_lines_and_their_sum_is_that_of_all() -> None:
    series = {f"t{k}": [(x, k) for x in range(k % 3 + 1)] for k in range(400)}
    shown = page.largest(series, sum)
    assert len(shown) == page.LINES_MAX
    assert "t399" not in shown  # its two neighbours have more points
    assert f"{401 - page.LINES_MAX} others (sum)" in shown
    for x in range(3):
        of_all = sum(dict(points).get(x, 0) for points in series.values())
        assert sum(dict(points).get(x, 0) for points in shown.values()) == of_all
    few = dict(list(series.items())[: page.LINES_MAX])
    assert page.largest(few, sum) == few
    assert len(texts(page.lines(series, "messages", lambda low, high: ("", "")))) < 20


def test_values_that_cannot_be_added_are_merged_by_the_highest() -> None:
    series = {f"t{k}": [(0, k), (1, 400 - k)] for k in range(400)}
    shown = page.largest(series, max)
    (others,) = [points for name, points in shown.items() if "others (highest)" in name]
    known = {name for name in shown if "others" not in name}
    left = [dict(series[name]) for name in series.keys() - known]
    assert dict(others) == {x: max(row[x] for row in left) for x in (0, 1)}


def test_topics_without_messages_are_shown() -> None:
    rows = with_empty([{"topic": "b", "messages": 3}], ["c", "b", "a"])
    assert [(row["topic"], row["messages"]) for row in rows] == [("a", 0), ("b", 3), ("c", 0)]
