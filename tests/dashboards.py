"""Grafana's dashboards of cluster/grafana, read as Grafana reads them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent.parent / "cluster" / "grafana"
NAMES = ("cluster", "groups", "replication", "topics")
# What Grafana puts in place of variables.
ALL = ".+"
INTERVALS = {"$__rate_interval": "1m", "$__range": "1m"}
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
BY = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SELECTED = re.compile(r"\{([^}]*)\}")
DURATIONS = re.compile(r"\[[^]]*\]")
WORDS = re.compile(r"[a-zA-Z_:][\w:]*(?!\s*\()\b(?!\s*\()")
OPERATORS = {"by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
OPERATORS |= {"and", "or", "unless"}


@dataclass(frozen=True)
class Asked:
    """An expression, and the panel that asks."""

    dashboard: str
    panel: str
    expression: str

    @property
    def where(self) -> str:
        """The panel's name among all dashboards."""
        return f"{self.dashboard}: {self.panel}"

    @property
    def names(self) -> tuple[set[str], set[str]]:
        """The metrics and the labels that it names."""
        rest = DURATIONS.sub(" ", QUOTED.sub("''", self.expression))
        labels = {word.strip() for found in BY.findall(rest) for word in found.split(",")}
        rest = BY.sub(" ", rest)
        for found in SELECTED.findall(rest):
            labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", found))
        metrics = set(WORDS.findall(SELECTED.sub(" ", rest))) - OPERATORS
        return metrics, labels - {""}


@dataclass(frozen=True)
class Dashboard:
    """One file."""

    name: str
    json: dict[str, Any]

    @property
    def panels(self) -> list[dict[str, Any]]:
        """Without the headings of rows."""
        return [panel for panel in self.json["panels"] if panel["type"] != "row"]

    @property
    def asked(self) -> list[Asked]:
        """All expressions of its panels."""
        return [
            Asked(self.name, panel["title"], target["expr"])
            for panel in self.panels
            for target in panel["targets"]
        ]

    @property
    def variables(self) -> dict[str, tuple[str, str]]:
        """Selector and label of each variable of values."""
        found = {}
        for variable in self.json["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
                assert asked is not None
                found[variable["name"]] = (asked[1], asked[2])
        return found


def dashboards() -> list[Dashboard]:
    """All of them."""
    return [Dashboard(name, json.loads((DIRECTORY / f"{name}.json").read_text())) for name in NAMES]


def filled(expression: str, **chosen: str) -> str:
    """An expression with the values of its variables: those chosen, and all of the others."""

    def value(found: re.Match[str]) -> str:
        return INTERVALS.get(found[0]) or chosen.get(found[1], ALL)

    return re.sub(r"\$(\w+)", value, expression)
