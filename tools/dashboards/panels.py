"""Grafana's JSON of a dashboard: its variables, rows and panels.

A dashboard is a value here; what Grafana wants to be told beside that, and where a panel lies, is
decided in this file alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 39
COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
# Units, by Grafana's names.
COUNT, MESSAGES_PER_S, PER_S = "short", "mps", "cps"
BYTES, BYTES_PER_S, SECONDS, MILLISECONDS, SHARE = "bytes", "binBps", "s", "ms", "percentunit"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    """An expression of PromQL, and the name of its series."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. width: of 24. states: names and colours of values; thresholds: of a stat."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = COUNT
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    states: tuple[tuple[int, str, str], ...] = ()
    thresholds: tuple[tuple[float, str], ...] = ()
    columns: tuple[str, ...] = ()  # of a table: labels


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """Values of a label that a reader chooses from; `selector` is the series that have it."""

    name: str
    label: str
    selector: str
    title: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `name` is that of its file."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...] = field(default=())

    def render(self) -> str:
        """The file."""
        made: Json = {
            "uid": f"duolog-{self.name}",
            "title": self.title,
            "description": self.description,
            "tags": ["duolog"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "links": [_links()],
            "templating": {"list": [_datasource(), *map(_variable, self.variables)]},
            "annotations": {"list": []},
            "panels": list(_laid_out(self.rows)),
        }
        return json.dumps(made, indent=2) + "\n"


def zero_is_good(title: str, description: str, expression: str) -> Panel:
    """A number that is red unless it is 0."""
    return Panel(
        title,
        description,
        (Query(expression),),
        kind="stat",
        width=4,
        height=4,
        thresholds=((0, GREEN), (1, RED)),
    )


def number(title: str, description: str, expression: str, unit: str = COUNT) -> Panel:
    """A number."""
    return Panel(
        title,
        description,
        (Query(expression),),
        unit,
        kind="stat",
        width=4,
        height=4,
        thresholds=((0, BLUE),),
    )


def graph(
    title: str, description: str, unit: str, *queries: tuple[str, str], stacked: bool = False
) -> Panel:
    """Lines over time; a query is an expression and its legend."""
    return Panel(title, description, tuple(Query(*one) for one in queries), unit, stacked=stacked)


def _links() -> Json:
    return {
        "type": "dashboards",
        "title": "duolog",
        "tags": ["duolog"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {"selected": True, "text": "default", "value": "default"},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }


def _variable(variable: Variable) -> Json:
    definition = f"label_values({variable.selector}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": definition,
        "query": {"query": definition, "refId": f"variable-{variable.name}"},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "allValue": ".+",
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _laid_out(rows: tuple[Row, ...]) -> Iterator[Json]:
    """Headings and panels from left to right, the next line below the highest one of this."""
    identity, top = 0, 0
    for row in rows:
        identity += 1
        yield {
            "id": identity,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        left, top, height = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            identity += 1
            where = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": identity, "gridPos": where, **_panel(panel)}
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _panel(panel: Panel) -> Json:
    instant = panel.kind in ("stat", "table")
    made: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + k),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": query.expression,
                "format": "table" if panel.kind == "table" else "time_series",
                "instant": instant,
                "range": not instant,
                "legendFormat": query.legend or "__auto",
            }
            for k, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }
    if panel.columns:
        made["transformations"] = [
            {"id": "filterFieldsByName", "options": {"include": {"names": list(panel.columns)}}},
            {"id": "organize", "options": {"indexByName": _numbered(panel.columns)}},
        ]
    return made


def _defaults(panel: Panel) -> Json:
    steps = [
        {"color": color, "value": value if k else None}
        for k, (value, color) in enumerate(panel.thresholds or ((0, GREEN),))
    ]
    by = "thresholds" if panel.thresholds or panel.states else "palette-classic"
    made: Json = {
        "unit": panel.unit,
        "color": {"mode": by},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [],
    }
    if panel.kind == "timeseries":
        made["min"] = 0
        made["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    if panel.states:
        options = {
            str(value): {"text": text, "color": color, "index": k}
            for k, (value, text, color) in enumerate(panel.states)
        }
        made["mappings"] = [{"type": "value", "options": options}]
        made["custom"] = {"fillOpacity": 70, "lineWidth": 0}
    return made


def _numbered(names: tuple[str, ...]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


_LEGEND = {"displayMode": "table", "placement": "bottom", "showLegend": True}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {**_LEGEND, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    },
    "state-timeline": {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.8,
        "legend": {**_LEGEND, "displayMode": "list", "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "table": {
        "showHeader": True,
        "cellHeight": "sm",
        "frameIndex": 0,
        "footer": {"show": False, "reducer": ["sum"]},
    },
}
