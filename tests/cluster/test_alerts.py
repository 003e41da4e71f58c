"""The alert rules: they read what nodes tell, fire and are quiet where they should, and each has a
runbook whose commands exist.
"""

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import promql
from tests.cluster.scrapedgroup import Story
from tests.commandline import commands_of, parse, words_of

ROOT = Path(__file__).parent.parent.parent
RULE_FILE, TEST_FILE = (
    ROOT / "cluster/prometheus" / name for name in ("alerts.yml", "alerts_test.yml")
)
RUNBOOKS = ROOT / "docs/runbooks"
INDEX = RUNBOOKS / "README.md"
PAGES = sorted(set(RUNBOOKS.glob("*.md")) - {INDEX})
SECTIONS = ("What users notice", "Find the cause", "What to do", "What not to do")

Rule = dict[str, Any]

RULES: list[Rule] = [
    rule for group in yaml.safe_load(RULE_FILE.read_text())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule for rule in RULES if "record" in rule}
TESTS: list[Rule] = yaml.safe_load(TEST_FILE.read_text())["tests"]

PROMTOOL_CPU_SECONDS = 600

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (prometheus) is missing"
)


def each_alert(test: Any) -> Any:
    return pytest.mark.parametrize("name", ALERTS)(test)


def labels_of(metric: str) -> set[str]:
    """All labels that the series of a metric have, also of those recorded by the rules."""
    if metric in RECORDED:
        (labels,) = re.findall(r"by \((.*?)\)", RECORDED[metric]["expr"])
        return set(labels.split(", "))
    return promql.labels_of(metric)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_reads_only_metrics_and_labels_that_nodes_have(rule: Rule) -> None:
    expr = rule["expr"]
    chosen = promql.selectors(expr)
    assert chosen
    for metric, labels in chosen:
        assert labels <= labels_of(metric), metric
    known = set().union(*(labels_of(metric) for metric, _ in chosen))
    grouped = re.findall(r"\b(?:by|on|group_left)\s*\((.*?)\)", expr)
    assert {label for labels in grouped for label in labels.split(", ")} <= known


@each_alert
def test_an_alert_says_how_urgent_it_is_and_what_to_read(name: str) -> None:
    rule = ALERTS[name]
    assert name.startswith("Duolog")
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page = ROOT / rule["annotations"]["runbook"]
    assert page.parent == RUNBOOKS
    assert f"`{name}` ({rule['labels']['severity']})" in page.read_text()


@each_alert
def test_an_alert_uses_labels_that_it_has(name: str) -> None:
    rule = ALERTS[name]
    used = set(re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values())))
    fired = [one for case in cases_of(name) for one in case["exp_alerts"]]
    assert any(used <= set(one["exp_labels"]) for one in fired)


@each_alert
def test_an_alert_is_in_the_index_with_its_page_and_severity(name: str) -> None:
    rule = ALERTS[name]
    page = Path(rule["annotations"]["runbook"]).name
    row = f"| [{name}]({page}) | {rule['labels']['severity']} |"
    assert INDEX.read_text().count(row) == 1


def test_index_and_pages_name_no_other_alerts() -> None:
    for page in (INDEX, *PAGES):
        assert set(re.findall(r"\bDuolog[A-Z]\w+", page.read_text())) <= set(ALERTS), page
    used = {rule["annotations"]["runbook"] for rule in ALERTS.values()}
    assert used == {str(page.relative_to(ROOT)) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_all_sections(page: Path) -> None:
    assert tuple(re.findall(r"^## (.*)$", page.read_text(), re.M)) == SECTIONS


# -- promtool ------------------------------------------------------------------------------------


def cases_of(name: str) -> list[Rule]:
    """The cases of an alert in alerts_test.yml."""
    return [case for test in TESTS for case in test["alert_rule_test"] if case["alertname"] == name]


@each_alert
def test_an_alert_has_a_case_in_which_it_fires_and_one_in_which_it_must_not(name: str) -> None:
    assert any(case["exp_alerts"] for case in cases_of(name))
    quiet = [
        test
        for test in TESTS
        if all(case["alertname"] == name for case in test["alert_rule_test"])
        and not any(case["exp_alerts"] for case in test["alert_rule_test"])
    ]
    assert quiet, "a test in which it never fires"


def run_promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "GOGC": "800"},  # collecting garbage is a quarter of its work
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (PROMTOOL_CPU_SECONDS,) * 2),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@promtool
@pytest.mark.process
@pytest.mark.timeout(3600)  # its limit is of computing
def test_promtool_accepts_the_rules_and_their_cases(tmp_path: Path) -> None:
    assert f"{len(RULES)} rules found" in run_promtool("check", "rules", str(RULE_FILE))
    run_promtool("test", "rules", *(str(path) for path in parted(tmp_path)))


def parted(folder: Path) -> list[Path]:
    """Each test of alerts_test.yml in a file, beside one with the rules that it asks about.

    promtool evaluates all rules of a file at every step: of the whole, 40 times what is asked.
    """
    groups = yaml.safe_load(RULE_FILE.read_text())["groups"]
    settings = yaml.safe_load(TEST_FILE.read_text())
    made: list[Path] = []
    for place, test in enumerate(TESTS):
        asked = {case["alertname"] for case in test["alert_rule_test"]}
        rules = [
            {**group, "rules": kept}
            for group in groups
            if (kept := [rule for rule in group["rules"] if rule.get("alert") in {*asked, None}])
        ]
        file, tested = folder / f"{place}.yml", folder / f"{place}_test.yml"
        file.write_text(yaml.safe_dump({"groups": rules}))
        tested.write_text(yaml.safe_dump({**settings, "rule_files": [file.name], "tests": [test]}))
        made.append(tested)
    return made


def away(node: str, first: int, last: int) -> Any:
    """A node that does not answer these scrapes."""
    return lambda name, scrape: name != node or not first <= scrape <= last


RESTARTS = {"c": 61, "b": 71, "a": 81}  # scrapes at which a rolling restart begins, by node
STORIES = {
    "an idle group": Story(),
    "a planned switch, between whose scrapes there is no master": Story(
        master=lambda scrape: "a" if scrape <= 60 else "" if scrape == 61 else "b",
        epoch=lambda scrape: 4 + (scrape > 60),
    ),
    "a master that is killed, and returns after 45 s": Story(
        answers=away("a", 61, 63),
        master=lambda scrape: "a" if scrape <= 60 else "" if scrape == 61 else "b",
        epoch=lambda scrape: 4 + (scrape > 60),
        killed="a",
        began=64,
    ),
    "a rolling restart, the master last": Story(
        answers=lambda name, scrape: not RESTARTS[name] <= scrape < RESTARTS[name] + 5,
        master=lambda scrape: "a" if scrape <= 80 else "b",
        epoch=lambda scrape: 4 + (scrape > 80),
    ),
    "all nodes are restarted within half a minute": Story(
        answers=lambda name, scrape: scrape not in (61, 62),
        master=lambda scrape: "a" if scrape <= 60 else "c",
        epoch=lambda scrape: 4 + (scrape > 60),
    ),
}


@promtool
@pytest.mark.process
@pytest.mark.parametrize("title", STORIES)
def test_no_alert_fires_in_a_group_that_is_well(title: str, tmp_path: Path) -> None:
    story = STORIES[title]
    cases = [
        {"eval_time": f"{scrape * 15}s", "alertname": name, "exp_alerts": []}
        for name in ALERTS
        if not (story.killed and name == "DuologAbnormalRecovery")  # which it should
        for scrape in range(40, story.scrapes)
    ]
    made = {
        "rule_files": [str(RULE_FILE)],
        "evaluation_interval": "15s",
        "tests": [
            {"interval": "15s", "input_series": story.series(), "alert_rule_test": cases},
        ],
    }
    path = tmp_path / "quiet_test.yml"
    path.write_text(yaml.safe_dump(made))
    run_promtool("test", "rules", str(path))


def test_the_stories_have_every_metric_that_rules_read() -> None:
    told = {row["series"].partition("{")[0] for row in STORIES["an idle group"].series()}
    needed = {metric for rule in RULES for metric, _ in promql.selectors(rule["expr"])} - set(
        RECORDED
    )
    assert needed - told == {
        "duolog_half_message_age_seconds",
        "duolog_replica_down_since_seconds",
        "duolog_shard_up",
        "rocketmq_half_messages",
        "rocketmq_rollback_messages_total",
    }


# -- commands of the runbooks --------------------------------------------------------------------


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_every_command_of_a_runbook_exists(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inline = re.findall(r"`(duolog [^`]+)`", page.read_text())
    found = [*commands_of(page), *(words for line in inline for words in words_of(line))]
    assert found
    for words in found:
        parse(words, monkeypatch)
