"""Everything that the documentation names exists: tests, planted bugs, files, test folders."""

import re
from pathlib import Path

import pytest

from sim.mutants import MUTANTS

ROOT = Path(__file__).parent.parent
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"def (test_\w+)", path.read_text())
}
FOLDERS = "tests|node|store|ha|sim|pipeline|cluster|client|bench|tools"
# Phrases that no operator would say, and what to write in their place.
RETIRED = {
    r"\b(is|are|was|were|be|been|being) told\b": "learns, gets, reports, is notified",
    r"\bwhoever\b": "anyone who, the client that",
    r"\bunder way\b": "running, in flight",
    r"\b(goes|go|went|going) on\b": "continues, resumes",
    r"\b(stands?|stood|standing) still\b": "stalls, hangs",
    r"\bshall\b": "must, is to",
    r'"""(Those|That) (of|that|which)\b': "the noun",
}
PLAIN = (
    "ops",
    "store",
    "ha",
    "client/duolog",
    "pipeline",
    "demo",
    "cluster",
    "serve",
    "compat",
    "node",
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    missing = [name for name in re.findall(r"`(test_\w+)`", text) if name not in TESTS]
    missing += [
        name
        for name in re.findall(rf"`(tests/[\w/]+(?:\.py)?|(?:{FOLDERS})/[\w/]+\.py)`", text)
        if not (ROOT / name).exists()
    ]
    files = {path.name for path in (ROOT / "tests").rglob("*.py")}
    missing += [name for name in re.findall(r"`(test_\w+\.py)`", text) if name not in files]
    planted = {mutant.name for mutant in MUTANTS}
    for line in text.splitlines():
        _, word, names = line.partition("planted ")
        if word and "|" in line:
            names = re.sub(r"\(.*?\)", "", names.removeprefix("bug").removeprefix("s"))
            missing += [name for name in re.findall(r"`([a-z-]+)`", names) if name not in planted]
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", text)
    missing += [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_every_page_is_checked() -> None:
    assert len(PAGES) > 15
    assert len(TESTS) > 700


@pytest.mark.parametrize("floor", ["node", "compat", "ops"])
def test_every_package_of_a_floor_has_its_tests(floor: str) -> None:
    rooms, tested = (
        {path.relative_to(ROOT / folder).parts[0] for path in (ROOT / folder).glob(files)}
        for folder, files in ((floor, "*/__init__.py"), (f"tests/{floor}", "*/**/test_*.py"))
    )
    assert tested == rooms - {"wire"}, "generated stubs have none"


@pytest.mark.parametrize("folder", PLAIN)
def test_retired_phrases_stay_out(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}: write {better}"
        for path in (ROOT / folder).rglob("*.py")
        for phrase, better in RETIRED.items()
        if (match := re.search(phrase, path.read_text(), re.IGNORECASE))
    ]
    assert found == []
