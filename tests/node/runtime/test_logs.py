"""What a peer says, in a line of the log: text, and nothing that a terminal obeys."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from duolog_server.node.runtime.logs import LINES_MAX, configure_logging

HOSTILE = (
    "\x1b[31mred",
    "a\n2026-01-31 [info] forged",
    "\u202ebidi",
    "\x9b2J",
    "\u2028",
    "a\rb\x07",
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    root.handlers = before
    structlog.reset_defaults()


@pytest.mark.parametrize("said", HOSTILE)
def test_a_line_for_people_is_one_printable_line(
    said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info", as_json=False)
    structlog.get_logger("t").warning("append refused", topic=said, topics=[said], plain="T")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert repr(said) in line
    assert "plain=T" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_of_the_log_raises_nothing(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr("sys.stderr", full)
    configure_logging("info", as_json)
    for _ in range(3):
        structlog.get_logger("t").warning("append refused", reason="x" * 10_000)
    full.close()


def test_the_first_line_after_a_full_disk_has_the_number_of_those_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as log, (tmp_path / "log").open("wb") as room:
        monkeypatch.setattr("sys.stderr", log)
        configure_logging("info", as_json=True)
        for number in range(5):
            if number == 3:
                os.dup2(room.fileno(), log.fileno())
            structlog.get_logger("t").warning("append refused", number=number)
    found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(row["number"], row.get("lost_lines")) for row in found] == [(3, 3), (4, None)]


@pytest.mark.parametrize("said", HOSTILE)
def test_a_traceback_is_printable_lines(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", as_json=False)
    try:
        raise ValueError(said)
    except ValueError:
        structlog.get_logger("t").exception("a fault")
    lines = capsys.readouterr().err.split("\n")
    assert all(line.replace("\t", " ").isprintable() for line in lines)
    assert len(lines) > 3


@pytest.mark.parametrize("said", HOSTILE)
def test_a_line_of_json_is_one_line_of_ascii(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", as_json=True)
    structlog.get_logger("t").warning("append refused", topic=said)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["topic"] == said


def test_lines_of_libraries_are_lines_of_the_node_and_as_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", as_json=True)
    configure_logging("info", as_json=True)  # once more: still a line for each
    for number in range(10 * LINES_MAX):
        logging.getLogger("asyncio").warning("socket.send() raised exception %d.", number)
        logging.getLogger("asyncio").info("nobody wants to know")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == LINES_MAX
    assert lines[3]["reason"] == "asyncio: socket.send() raised exception 3."
    assert "more" in lines[-1]


def test_a_line_of_a_library_whose_arguments_do_not_fit_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    root.handlers = []  # pytest's raises
    configure_logging("info", as_json=True)
    logging.getLogger("asyncio").warning("%d connections", "many")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["reason"] == "asyncio: %d connections"
