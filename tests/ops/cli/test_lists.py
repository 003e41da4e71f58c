"""`duolog topic list` and `duolog group list`: parts of the lists."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import duolog
import pytest
from typer.testing import CliRunner

from duolog_server.ops.cli import main
from duolog_server.serve.server import Node

Run = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
def run(node: Node, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command at the node; its stdout and stderr."""

    async def ran(*words: str) -> tuple[str, str]:
        given = [*words, "-e", f"127.0.0.1:{node.port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        done = await asyncio.to_thread(CliRunner().invoke, main.app, given)
        assert done.exit_code == 0, done.stderr
        return done.stdout, done.stderr

    return ran


async def test_a_part_of_the_topics_is_listed(run: Run, client: duolog.Client) -> None:
    for name in ("Orders", "orders-eu", "payments"):
        await client.admin.create_topic(name, 1)
    shown, note = await run("topic", "list", "--json")
    assert [row["topic"] for row in json.loads(shown)] == ["Orders", "T", "orders-eu", "payments"]
    assert note == ""
    shown, note = await run("topic", "list", "--contains", "ORD", "--limit", "1", "--json")
    assert [row["topic"] for row in json.loads(shown)] == ["Orders"]
    assert note == "there are more, 2 in all; the next ones: --after Orders\n"
    shown, note = await run("topic", "list", "--contains", "ORD", "--after", "Orders")
    assert "orders-eu" in shown
    assert "payments" not in shown
    assert note == ""


async def test_where_there_is_no_audit_log_that_is_said(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["audit", "-e", f"127.0.0.1:{node.port}"]
    monkeypatch.setattr(sys, "argv", ["duolog", *words])
    done = await asyncio.to_thread(CliRunner().invoke, main.app, words)
    assert done.exit_code == 1
    assert "the nodes keep no audit log in a topic" in done.stderr


async def test_a_part_of_the_groups_is_listed(run: Run, client: duolog.Client) -> None:
    for name in ("a", "b", "c"):
        await client.admin.put_group(name)
    shown, note = await run("group", "list", "--limit", "2", "--json")
    assert [row["group"] for row in json.loads(shown)] == ["a", "b"]
    assert note == "there are more, 3 in all; the next ones: --after b\n"
    shown, note = await run("group", "list", "--after", "b", "--contains", "C", "--json")
    assert ([row["group"] for row in json.loads(shown)], note) == (["c"], "")


async def test_a_topic_and_a_group_without_dead_letters_are_shown(
    run: Run, client: duolog.Client
) -> None:
    await client.admin.create_topic("shown", 3)
    await client.admin.put_group("g")
    async with client.producer() as producer:
        receipt = await producer.send("shown", b"x")
    row = json.loads((await run("topic", "show", "shown", "--json"))[0])
    assert (row["topic"], row["queues"], row["messages"]) == ("shown", 3, 1)
    assert row["group"] == [receipt.group]
    assert row["last_store_time"] == receipt.store_time_ms
    assert await run("group", "dead", "g", "--json") == ("[]\n", "group g has no dead letters\n")
