"""Write docs/logs.md from the calls of the code that log; with --check, compare.

Every event is a literal, and has one level (or debug beside it), the same fields everywhere, and a
meaning in log_events.toml, which knows the fields as well.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duolog_server.node.runtime.logs import LINES_MAX, SPAN_SECONDS
from tools.generated import DOCS, write_or_compare

TARGET = DOCS / "logs.md"
_TOLD = tomllib.loads((Path(__file__).parent / "log_events.toml").read_text())
FIELDS: dict[str, str] = _TOLD["fields"]
MEANING: dict[str, str] = _TOLD["events"]
ROOT = Path(__file__).parent.parent
FOLDERS = tuple(ROOT / folder for folder in ("compat", "node", "ops", "serve"))
LEVELS = {"exception": "error", "error": "error", "warning": "warning", "info": "info"}
ORDER = ("error", "warning", "info", "debug")
HEAD = f"""# The log of a node

Generated from the code by `make docs`; do not edit.

A node writes its log to stderr: one line for each event, for people, or as JSON with
`node.log_json = true` (`--json`). `node.log_level` is the lowest level that is written:

- `error`: something is damaged, lost, or needs an operator.
- `warning`: something did not work; the node tries again, or works with less.
- `info`: what an operator wants to know of a healthy node.
- `debug`: for developers; not listed here, and not part of what we keep stable.

Names of events and fields stay the same between versions, or the changelog says so: search for
`event`. At most {LINES_MAX} lines of one event are written in {SPAN_SECONDS:.0f} s (`debug` is not
limited). The last of them has a field `more`; the first line after that time says with `left_out`
how many are missing. Lines that a full disk of the log did not take are lost: the next line that it
takes says with `lost_lines` how many; the same goes for a pipe whose reader has ended. There is no
file to open anew: SIGHUP ends a node as SIGTERM does, unless it was started by `nohup`. No line has
the body of a message from a client, or a secret.

```json
{{"epoch": 3, "event": "elected", "level": "info", "timestamp": "2026-01-31T12:00:00.000000Z", ...}}
```
"""


@dataclass(frozen=True, slots=True)
class Event:
    """A call that logs. level: the highest that it may have."""

    name: str
    level: str
    fields: frozenset[str]
    where: str


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Calls of `log.LEVEL(...)`, and of `tell(...)` where a name stands for one of two of them."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
            branches = [_level(node.value.body), _level(node.value.orelse)]
            if isinstance(node.targets[0], ast.Name) and all(branches):
                aliases[node.targets[0].id] = min(branches, key=ORDER.index)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        level = _level(node.func)
        if not level and isinstance(node.func, ast.Name):
            level = aliases.get(node.func.id, "")
        if level:
            yield node, level


def _level(node: ast.expr) -> str:
    """The level that `log.NAME` stands for, empty for anything else."""
    match node:
        case ast.Attribute(ast.Name("log"), level) if level in (*LEVELS, "debug"):
            return LEVELS.get(level, "debug")
    return ""


def events() -> list[Event]:
    """Those of a node's code and its programs'. Raises ValueError where a rule is broken."""
    found = []
    for path, folder in sorted((path, root) for root in FOLDERS for path in root.rglob("*.py")):
        for call, level in _calls(ast.parse(path.read_text())):
            where = f"{path.relative_to(folder.parent)}:{call.lineno}"
            name = call.args[0] if call.args else None
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                raise ValueError(f"{where}: an event is a literal")
            fields = {keyword.arg for keyword in call.keywords}
            unknown = sorted(str(field) for field in fields - FIELDS.keys())
            if unknown and level != "debug":
                raise ValueError(f"{where}: log_events.toml does not know the fields {unknown}")
            names = frozenset(field for field in fields if field is not None)
            found.append(Event(name.value, level, names, where))
    return found


def checked(found: list[Event]) -> dict[str, Event]:
    """By name, without debug. Raises ValueError as `events`."""
    told: dict[str, Event] = {}
    for event in found:
        before = told.setdefault(event.name, event)
        if (before.level, before.fields) != (event.level, event.fields):
            raise ValueError(f"{event.where}: {event.name!r} is another event at {before.where}")
    told = {name: event for name, event in told.items() if event.level != "debug"}
    for name in told.keys() ^ MEANING.keys():
        raise ValueError(f"log_events.toml and the code differ in {name!r}")
    for field in FIELDS.keys() - {field for event in told.values() for field in event.fields}:
        raise ValueError(f"no event has the field {field!r}")
    return told


def render(told: dict[str, Event]) -> str:
    """The page."""
    parts = [HEAD]
    for level in ORDER[:-1]:
        parts.append(f"\n## {level}\n\n| event | fields | meaning |\n|---|---|---|\n")
        for name in sorted((name for name in told if told[name].level == level), key=str.lower):
            fields = ", ".join(f"`{field}`" for field in sorted(told[name].fields))
            parts.append(f"| `{name}` | {fields} | {MEANING[name]} |\n")
    parts.append("\n## Fields\n\n| field | meaning |\n|---|---|\n")
    parts += [f"| `{field}` | {meaning} |\n" for field, meaning in sorted(FIELDS.items())]
    return "".join(parts)


if __name__ == "__main__":
    try:
        write_or_compare(TARGET, render(checked(events())))
    except ValueError as problem:
        sys.exit(f"tools/log_reference.py: {problem}")
