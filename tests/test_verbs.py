"""The verbs of the Makefile: one that names folders beside a marker leaves no test out."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHOSEN = re.findall(r"pytest .*-m (\w+)((?: tests/\w+)*)$", (ROOT / "Makefile").read_text(), re.M)


def test_some_verbs_choose_tests_by_a_marker() -> None:
    assert {"spark", "containers", "interop"} <= {marker for marker, _ in CHOSEN}


@pytest.mark.parametrize(("marker", "folders"), CHOSEN)
def test_all_tests_of_a_marker_are_in_the_folders_named_beside_it(
    marker: str, folders: str
) -> None:
    if not folders:
        return  # all of them are looked at
    marked = [
        file.relative_to(ROOT)
        for file in (ROOT / "tests").rglob("*.py")
        if f"pytest.mark.{marker}" in file.read_text() and file != Path(__file__)
    ]
    assert marked
    assert [f for f in marked if not any(f.is_relative_to(one) for one in folders.split())] == []
