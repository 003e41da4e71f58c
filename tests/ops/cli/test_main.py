"""The program `duolog`, before any command."""

import os
import sys

import pytest

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
