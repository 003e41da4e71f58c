"""What commands print of what others wrote."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from duolog import ResultUnknown, TrackedMessage, TrackStep
from typer.testing import CliRunner

from duolog_server.ops.cli import config
from duolog_server.ops.cli.msgprinter import Printer
from duolog_server.ops.cli.output import (
    WORD_MAX,
    fail,
    plain,
    print_facts,
    print_rows,
    run,
    show_findings,
)
from duolog_server.ops.inspection.doctor.findings import Finding
from duolog_server.ops.inspection.messages import trace as way
from duolog_server.ops.inspection.messages.trace import parse
from duolog_server.ops.inspection.times import iso

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2J\ttab\nline[/bold][link=http://x]y"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\x9b2J\ttab\nline[/bold][link=http://x]y"
KEPT = "a\\x1b[31mred\\x1b]0;title\\x07\\x9b2J\ttab\nline[/bold][link=http://x]y"


@pytest.mark.parametrize("terminal", [False, True])
def test_rows_and_facts_show_control_characters_and_obey_none(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    print_rows([{"x": HOSTILE}], ["x"], False)
    print_facts({"x": HOSTILE}, False)
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 2
    assert not {"\x07", "\x9b"} & set(out)


def test_errors_and_findings_obey_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        fail(HOSTILE, HOSTILE)
    show_findings([Finding("warning", "cause", HOSTILE, HOSTILE, HOSTILE)])
    found = capsys.readouterr()
    assert found.err.count(KEPT) == 2
    assert found.out.count(SHOWN) == 3
    with pytest.raises(typer.Exit):
        fail(f"there is no user '{'x' * 3000}', nor {'y' * WORD_MAX}")
    shown = capsys.readouterr().err
    assert "there is no user 'xxx" in shown
    assert f"x… (3,003 characters) nor {'y' * WORD_MAX}\n" in shown
    assert len(shown) < WORD_MAX + 200
    assert plain("a\n\x1bb\t", kept="\n\t") == "a\n\\x1bb\t"


def test_only_a_send_whose_result_is_unknown_is_told_to_look_for_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def drain() -> None:
        raise ResultUnknown("the registry did not answer a change; see `cluster status`")

    with pytest.raises(typer.Exit):
        run(drain())
    assert capsys.readouterr().err.endswith("see `cluster status`\n")


@pytest.mark.parametrize("template", [None, "{body} {tags} {properties[a]}"])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_message_is_escaped_on_a_terminal_alone(
    terminal: bool,
    template: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    message: Any = SimpleNamespace(
        **dict.fromkeys(("queue_id", "queue_offset", "physical_offset", "store_time_ms"), 1),
        **{"topic": "T", "born_time_ms": 1, "body": HOSTILE.encode()},
        properties={"TAGS": HOSTILE, "a": HOSTILE},
    )
    Printer(False, template).message(message)
    out = capsys.readouterr().out
    assert out.count(KEPT if terminal else HOSTILE) >= (1 if template is None else 3)
    assert ("\x1b" in out) is not terminal


@pytest.mark.parametrize("time_ms", [-(1 << 62), 10**15, (1 << 63) - 1, 10**40])
def test_a_time_that_no_calendar_has_is_shown_as_its_number(time_ms: int) -> None:
    assert iso(time_ms) == f"{time_ms} ms since 1970"
    record = f"Pub\x01{time_ms}\x01r\x01g\x01t\x01K\x01\x01\x01h\x01s\x011\x010\x01true\x02"
    step = TrackStep("STORED", "t", 0, 1, 2, 1_700_000_000_000, None)
    message = TrackedMessage("K", time_ms % (1 << 63), "h", "", (step,), ())
    shown = list(way.rows(message, parse(record.encode())))
    assert [row["step"] for row in shown if row["time"] == iso(time_ms)][-1:] == ["client sent"]


def test_a_key_that_is_not_set_is_shown_as_nothing(tmp_path: Path) -> None:
    """As other keys without a value: a file that is not named is not unknown."""
    file = tmp_path / "duolog.toml"
    file.write_text("")
    shown = CliRunner().invoke(config.app, ["show", "--config", str(file)])
    assert {"tls.cert\t", "node.advertise\t"} <= set(shown.stdout.splitlines())
    as_json = CliRunner().invoke(config.app, ["show", "--config", str(file), "--json"])
    rows = {row["key"]: row["value"] for row in json.loads(as_json.stdout)}
    assert rows["tls.cert"] is None
