"""What a peer says, in a line of the log: text, and nothing that a terminal obeys."""

import json
from collections.abc import Iterator

import pytest
import structlog

from node.logs import configure_logging

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
    yield
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
