"""Findings as pages show them."""

import re

import pytest

from duolog_server.ops.console.view.render import body
from duolog_server.ops.console.view.visits import Shown
from duolog_server.ops.inspection.doctor.findings import NOTE, WARNING, Finding


def finding(number: int, cause: str = "no-consumers", severity: str = WARNING) -> Finding:
    return Finding(severity, cause, f"consumer group g-{number}", "it is behind", "start one")


def doctor(findings: list[Finding]) -> str:
    facts = {"sentence": "", "alarm": False, "findings": findings}
    return body(Shown("doctor.html", "Doctor", facts))


@pytest.mark.parametrize(
    ("count", "folds", "shown", "left"),
    [(3, 0, 3, ""), (4, 1, 4, ""), (100, 1, 100, ""), (300, 1, 100, "200 more findings are")],
)
def test_many_findings_of_one_cause_are_one_row_with_a_count(
    count: int, folds: int, shown: int, left: str
) -> None:
    page = doctor([finding(0, "down", "error"), *map(finding, range(count))])
    told = re.findall(r"<b>(\d+) times no consumers</b>", page)
    assert told == [str(count)] * folds
    assert page.count("<details") == folds
    assert page.count("it is behind") == shown + 1
    assert (left or "findings are") in page or not left
    assert 'href="/groups/g-1"' in page


def test_findings_of_another_cause_or_severity_stay_apart_and_in_order() -> None:
    some = [finding(1), finding(2), finding(3)]
    page = doctor([*some, *(finding(k, "dead-letters", NOTE) for k in range(3)), finding(9, "x")])
    assert "<details" not in page
    assert page.index("g-3") < page.index("g-9")
