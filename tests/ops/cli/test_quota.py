"""`duolog quota`."""

import asyncio
import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from duolog_server.ops.cli import main
from duolog_server.ops.cli.quota import amount
from duolog_server.serve.server import Node


@pytest.mark.parametrize(
    ("text", "found"),
    [("5000", 5000), ("5k", 5000), ("10Mi", 10 << 20), ("2GI", 2 << 30), ("none", 0), ("0", 0)],
)
def test_an_amount_has_a_unit_or_none(text: str, found: int) -> None:
    assert amount(text) == found


@pytest.mark.parametrize("text", ["", "-5", "5x", "k", "5kk", "1.5k", "5ik", "9" * 5000])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amount(text)


async def test_quotas_are_set_listed_and_deleted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*words: str) -> str:
        given = ["quota", *words, "-e", f"127.0.0.1:{node.port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        done = await asyncio.to_thread(CliRunner().invoke, main.app, given)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    await run("set", "User:alice", "--bytes-in", "10Mi", "--messages-out", "5k")
    await run("set", "User:alice", "--messages-out", "none", "--burst-ms", "50")
    (row,) = json.loads(await run("list", "--json"))
    assert {name: value for name, value in row.items() if value != "none"} == {
        "subject": "User:alice",
        "bytes_in": 10 << 20,
        "burst_ms": 50,
    }
    assert "User:alice" in await run("list")
    await run("delete", "User:alice", "--yes")
    assert json.loads(await run("list", "--json")) == []
