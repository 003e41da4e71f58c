"""The program `duolog`, before any command."""

import os
import sys

import pytest
from typer.testing import CliRunner

from duolog_server.ops.cli import main as module


@pytest.mark.parametrize(
    ("words", "said", "expected"),
    [
        (["topic", "list"], None, "NONE"),
        (["topic", "list"], "debug", "debug"),
        (["node", "status"], None, "NONE"),
        (["node", "start"], None, None),
    ],
)
def test_only_a_node_prints_what_grpc_says_by_itself(
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(sys, "argv", ["duolog", *words])
    monkeypatch.setattr(module, "run", lambda _: None)
    monkeypatch.setenv("GRPC_VERBOSITY", said or "")
    if said is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    module.main()
    assert os.environ.get("GRPC_VERBOSITY") == expected
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-h"], 0, "Usage: duolog"),
        (["topic", "list", "-h"], 0, "Usage: duolog topic list"),
        (["tpic", "list"], 2, "Did you mean 'topic'?"),
        (["topic", "lst"], 2, "Did you mean 'list'?"),
    ],
)
def test_help_is_short_and_a_typing_error_is_answered_with_what_was_meant(
    monkeypatch: pytest.MonkeyPatch, words: list[str], status: int, said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["duolog", *words])
    done = CliRunner().invoke(module.app, words, prog_name="duolog")
    assert done.exit_code == status
    assert said in done.output
