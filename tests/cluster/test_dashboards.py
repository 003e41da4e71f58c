"""Grafana's dashboards ask for metrics that exist, and can be laid out."""

import re

import pytest

from tests.dashboards import ALL, DIRECTORY, NAMES, Asked, Dashboard, dashboards, filled
from tests.promql import labels_of, selectors

BOARDS = dashboards()
ASKED = [asked for board in BOARDS for asked in board.asked]


def by_board() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)


def test_each_file_is_a_dashboard_and_tested() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.json")) == sorted(NAMES)
    assert len({board.json["uid"] for board in BOARDS}) == len(BOARDS)
    assert len({board.json["title"] for board in BOARDS}) == len(BOARDS)


@by_board()
def test_identities_are_unique(board: Dashboard) -> None:
    identities = [panel["id"] for panel in board.json["panels"]]
    assert len(set(identities)) == len(identities) > 10
    for panel in board.panels:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


@by_board()
def test_no_panel_lies_on_another_or_outside(board: Dashboard) -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in board.json["panels"]:
        where = panel["gridPos"]
        assert where["w"] > 0 < where["h"]
        assert 0 <= where["x"] <= 24 - where["w"]
        for x in range(where["x"], where["x"] + where["w"]):
            for y in range(where["y"], where["y"] + where["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]
    lines = {y for _, y in taken}
    assert lines == set(range(len(lines))), "no empty line between them"


@by_board()
def test_each_panel_says_what_it_shows_and_asks_the_chosen_data_source(board: Dashboard) -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in board.panels:
        title = panel["title"]
        assert len(panel["description"]) > 5, title
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])
        if panel["type"] in ("timeseries", "state-timeline"):
            assert all(target["legendFormat"] != "__auto" for target in panel["targets"]), title
    (source,) = (one for one in board.json["templating"]["list"] if one["type"] == "datasource")
    assert (source["name"], source["query"]) == ("datasource", "prometheus")


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.where)
def test_an_expression_names_metrics_and_labels_of_a_node(asked: Asked) -> None:
    metrics, labels = asked.names
    assert metrics != set()
    known = set().union(*map(labels_of, metrics))
    assert labels - known == set()
    for metric, chosen in selectors(asked.expression):
        assert chosen <= labels_of(metric)


@by_board()
def test_variables_are_labels_that_exist_and_the_expressions_use_them_all(board: Dashboard) -> None:
    used = set(re.findall(r"\$(\w+)", " ".join(one.expression for one in board.asked)))
    assert used - {"__rate_interval", "__range"} <= set(board.variables)
    chosen = [one for one in board.json["templating"]["list"] if one["type"] == "query"]
    assert {(one["allValue"], *one["current"]["value"]) for one in chosen} == {(ALL, "$__all")}
    for name, (selector, label) in board.variables.items():
        assert name in used
        (metrics, labels) = Asked(board.name, name, selector).names
        (metric,) = metrics
        assert {label, *labels} <= labels_of(metric)


def test_names_are_found_in_an_expression() -> None:
    asked = Asked(
        "", "", 'sum by (a, b) (rate(m_total{c=~"$x", d!="e{"}[5m])) / on (a) (n == bool 1)'
    )
    assert asked.names == ({"m_total", "n"}, {"a", "b", "c", "d"})
    assert filled('m{a=~"$ab", b="$a"}[$__range]', a="1", ab="2") == 'm{a=~"2", b="1"}[1m]'
    with pytest.raises(AssertionError, match="no metric of a node"):
        labels_of("duolog_append_seconds_of_another")
