"""How `duolog acl` changes entries."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duolog_server.node.identity.rights.policies import Entry
from duolog_server.ops.cli import main
from duolog_server.ops.cli.acl import granted


def entry(text: str) -> Entry:
    """`Allow Topic:T Pub,Sub [SOURCE]`."""
    decision, resource, actions, *sources = text.split(" ")
    row = {"decision": decision, "resource": resource, "actions": actions.split(",")}
    return Entry.from_json({**row, "sourceIps": sources} if sources else row)


@pytest.mark.parametrize(
    ("before", "more", "after"),
    [
        ([], "Allow Topic:T Pub", ["Allow Topic:T Pub"]),
        (["Allow Topic:T Pub"], "Allow Topic:T Sub", ["Allow Topic:T Pub,Sub"]),
        (["Allow Topic:T Pub,Sub"], "Deny Topic:T Sub", ["Allow Topic:T Pub", "Deny Topic:T Sub"]),
        (["Deny Topic:T All"], "Allow Topic:T All", ["Allow Topic:T All"]),
        (["Allow Topic:T Pub"], "Allow Topic:U Pub", ["Allow Topic:T Pub", "Allow Topic:U Pub"]),
        (["Allow Topic:T* Pub"], "Deny Topic:T Pub", ["Allow Topic:T* Pub", "Deny Topic:T Pub"]),
        (
            ["Allow Topic:T Pub 10.0.0.0/8"],
            "Deny Topic:T Pub",
            ["Allow Topic:T Pub 10.0.0.0/8", "Deny Topic:T Pub"],
        ),
    ],
)
def test_the_last_word_counts_for_its_resource(
    before: list[str], more: str, after: list[str]
) -> None:
    assert granted(map(entry, before), entry(more)) == tuple(map(entry, after))


def test_an_empty_file_takes_no_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a command whose output was empty."""
    words = ["acl", "set", "alice", "-"]
    monkeypatch.setattr(sys, "argv", ["duolog", *words])
    done = CliRunner().invoke(main.app, words, input="\n")
    assert done.exit_code == 1
    assert "- is empty: this would revoke all rights" in done.stderr


@pytest.mark.parametrize(
    ("kind", "text"),
    [("plain_acl", ""), ("plain_acl", "accounts:\n"), ("users", "[]"), ("acls", "[]")],
)
def test_a_file_without_users_is_no_import(
    kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "acl"
    file.write_text(text)
    words = ["acl", "import", str(file), "--from", kind, "--yes", "-e", "127.0.0.1:1"]
    monkeypatch.setattr(sys, "argv", ["duolog", *words])
    done = CliRunner().invoke(main.app, words)
    assert done.exit_code == 1
    assert "names no user: nothing to import" in done.stderr
