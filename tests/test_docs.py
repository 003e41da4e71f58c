"""Everything that the documentation names exists: tests, bugs, files, commands, settings, calls."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import duolog
import pytest
import typer

from sim.mutants import MUTANTS
from tests.commandline import commands_of, parse
from tests.documented import PAGES, ROOT, blocks
from tools.docs_site import CONFIGURATION, navigation_errors, site_errors

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
SDK_PAGES = [page for page in PAGES if page.name != "remoting.md"]  # is of RocketMQ's client
CALLED = {
    "client": duolog.Client,
    "client.admin": duolog.Admin,
    "consumer": duolog.Consumer,
    "producer": duolog.Producer,
}


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


# -- commands, settings and calls ----------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_exists(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in commands_of(page):
        parse(command, monkeypatch)


def test_commands_are_found_wherever_a_page_has_them() -> None:
    assert sum(len(commands_of(page)) for page in PAGES) > 200


@pytest.mark.parametrize(
    "wrong",
    [
        ["duolog", "cluster", "state"],
        ["duolog", "node", "check", "--wrte"],
        ["duolog", "group", "show"],
        ["duolog", "nod", "check"],
    ],
)
def test_a_command_that_is_not_there_is_found(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (usage_error,) = typer.BadParameter.__bases__
    with pytest.raises(usage_error):
        parse(wrong, monkeypatch)


def test_every_setting_of_a_page_exists() -> None:
    shown, known = 0, settings()
    sections = {name.partition(".")[0] for name in known}
    for page in PAGES:
        for block in blocks(page, "toml"):
            for section, keys in tomllib.loads(block.text).items():
                shown += len(keys)
                assert {f"{section}.{key}" for key in keys} <= known, (page, block.line)
    assert shown > 30
    for page in (ROOT / "docs").rglob("*.md"):
        named = set(re.findall(r"`(\w+\.\w+)`", page.read_text()))
        assert {name for name in named if name.partition(".")[0] in sections} <= known, page


def settings() -> set[str]:
    """Settings that docs/configuration.md lists, which is generated."""
    found: set[str] = set()
    for part in (ROOT / "docs" / "configuration.md").read_text().split("\n## [")[1:]:
        section, _, rest = part.partition("]")
        found |= {f"{section}.{key}" for key in re.findall(r"^\| `(\w+)` \|", rest, re.M)}
    return found


@pytest.mark.parametrize("page", SDK_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_call_of_the_sdk_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(client\.admin|\w+)\.(\w+)(?=[(`])", page.read_text())
    missing = {
        f"{owner}.{name}"
        for owner, name in named
        if owner in CALLED and name != "admin" and not hasattr(CALLED[owner], name)
    }
    assert missing == set()


# -- the site ------------------------------------------------------------------------------------


def test_the_navigation_names_every_page_once(tmp_path: Path) -> None:
    assert navigation_errors(ROOT / "docs", CONFIGURATION) == []
    (tmp_path / "docs" / "more").mkdir(parents=True)
    for name in ("a.md", "b.md", "more/c.md"):
        (tmp_path / "docs" / name).write_text("# page")
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text("nav: [a.md, {More: [d.md, more/c.md, {Again: a.md}]}]")
    assert navigation_errors(tmp_path / "docs", configuration) == [
        "b.md: not in the navigation of mkdocs.yml",
        "d.md: in the navigation, and not there",
        "a.md: in the navigation twice",
    ]


def test_dead_links_and_what_a_page_loads_from_elsewhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "style.css").write_text("body { background: url(https://example.org/b.png) }")
    (tmp_path / "a.html").write_text(
        '<h1 id="top">a</h1><a href="https://example.org">elsewhere</a><a href="#top">top</a>'
        '<a href="b.html">b</a><a href="b.html#no">b</a><a href="#none">none</a>'
        '<a href="folder/">folder</a><a href="c.html">c</a><link href="style.css">'
        '<script src="https://example.org/x.js"></script><img src="//example.org/x.png">'
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.html").write_text('<p id="yes">b</p><a href="a.html#top">a</a>')
    assert sorted(site_errors(tmp_path)) == [
        "a.html: #none has no such anchor",
        "a.html: b.html#no has no such anchor",
        "a.html: c.html is not there",
        "a.html: folder/ is not there",
        "a.html: loads //example.org/x.png",
        "a.html: loads https://example.org/x.js",
        "style.css: loads https://example.org/b.png",
    ]


@pytest.mark.long
def test_the_site_builds_without_a_network() -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(
        [sys.executable, "-m", "tools.docs_site"],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    reference = (ROOT / "build" / "site" / "sdk.html").read_text()
    classes = [name for name in duolog.__all__ if isinstance(getattr(duolog, name), type)]
    assert [name for name in classes if f'id="duolog.{name}"' not in reference] == []
    assert "Not called by users" not in reference
