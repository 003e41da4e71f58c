"""Commands about messages that wait: which places they take."""

import sys

import pytest
from typer.testing import CliRunner

from duolog_server.ops.cli import main


@pytest.mark.parametrize("place", ["", "a/0", "a/x/1", "a/3/17"])
@pytest.mark.parametrize("words", [("recall", "T", "{}", "key"), ("decide", "P", "{}", "--commit")])
def test_only_a_place_where_such_messages_lie_is_taken(
    words: tuple[str, ...], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["msg", *(word.format(place) for word in words), "--yes"]
    monkeypatch.setattr(sys, "argv", ["duolog", *given])
    done = CliRunner().invoke(main.app, given)
    assert done.exit_code == 1
    wanted = "all lie in queue 0" if place == "a/3/17" else "REPLICA-GROUP/QUEUE/OFFSET"
    assert wanted in done.stderr
