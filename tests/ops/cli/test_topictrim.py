"""`duolog topic trim`, and the retention of a topic, at two replica groups."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import duolog
import pytest
from typer.testing import CliRunner, Result

from duolog_server.ops.cli import main
from duolog_server.serve.server import Node
from tests.node.replicas import WAIT_SECONDS

pytestmark = pytest.mark.usefixtures("quick_groups")

Run = Callable[..., Awaitable[Result]]
A, B = "broker-a", "broker-b"


@pytest.fixture
async def client(nodes: dict[str, Node]) -> object:
    """A client, and a topic T of which each group has a queue with three messages."""
    async with duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as made:
        await made.admin.create_topic("T", 1)
        async with made.producer() as producer:
            for group in (A, B):
                await producer.send_batch("T", [b"1", b"2", b"3"], queue_id=0, group=group)
        yield made


@pytest.fixture
def run(nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command of `duolog topic`."""

    async def ran(*words: str) -> Result:
        given = ["topic", *words, "-e", f"127.0.0.1:{nodes[B].port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        return await asyncio.to_thread(CliRunner().invoke, main.app, given)

    return ran


def told(done: Result) -> Any:
    """What a command printed as JSON; the nodes, in this process, may have logged beside it."""
    (line,) = [one for one in done.stdout.splitlines() if one.startswith(("{", "["))]
    return json.loads(line)


async def minimums(client: duolog.Client) -> dict[str, list[int]]:
    parts = await client.admin.topics(["T"])
    return {part.group: [row.min_offset for row in part.stats] for part in parts}


async def test_a_queue_is_trimmed_and_the_command_says_when_its_space_is_freed(
    client: duolog.Client, run: Run
) -> None:
    shown = await run("trim", "T", f"{A}/0", "--before", "offset:2", "--dry-run")
    assert shown.exit_code == 0, shown.stderr
    assert f"{A}/0\t0\t2\t2" in shown.stdout
    assert "2 messages of T would no longer be readable" in shown.stderr
    asked = await run("trim", "T", f"{A}/0", "--before", "offset:2")
    assert asked.exit_code == 1
    assert "Hide 2 messages of T for good?" in asked.stderr
    assert await minimums(client) == {A: [0], B: [0]}
    done = await run("trim", "T", f"{A}/0", "--before", "offset:2", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "2 messages of T are no longer readable; their disk space is freed when" in done.stderr
    assert await minimums(client) == {A: [2], B: [0]}


async def test_all_queues_of_a_topic_are_trimmed_by_a_time(client: duolog.Client, run: Run) -> None:
    done = await run("trim", "T", "--before", "1h", "--yes", "--json")
    assert {row["messages"] for row in told(done)} == {0}
    done = await run("trim", "T", "--before", "latest", "--yes", "--json")
    rows = {row["queue"]: (row["first"], row["min_offset"]) for row in told(done)}
    assert rows == {f"{A}/0": (0, 3), f"{B}/0": (0, 3)}
    assert await minimums(client) == {A: [3], B: [3]}


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("T",), 2, "say which messages"),
        (("T", "--before", "earliest"), 2, "say which messages"),
        (("T", "--before", "offset:x"), 2, "is not offset:N"),
        (("T", "--before", "offset:2"), 2, "is of one queue"),
        (("T", "0", "--before", "offset:2"), 1, "has several queues 0"),
        (("T", f"{A}/0", "--before", "offset:9"), 1, "end at 3"),
        (("absent", "--before", "latest"), 1, "does not exist"),
    ],
)
async def test_what_cannot_be_trimmed_is_refused(
    client: duolog.Client, run: Run, words: tuple[str, ...], status: int, why: str
) -> None:
    done = await run("trim", *words, "--yes")
    assert done.exit_code == status
    assert why in done.stderr
    assert await minimums(client) == {A: [0], B: [0]}


async def test_the_retention_of_a_topic_is_set_and_shown(client: duolog.Client, run: Run) -> None:
    done = await run("alter", "T", "--retention-hours", "6", "--retention-bytes", "5000")
    assert done.exit_code == 0, done.stderr
    facts = told(await run("show", "T", "--json"))
    assert (facts["retention_hours"], facts["retention_bytes"]) == (6, 5000)
    described = told(await run("describe", "T", "--json"))
    assert (described["retention_hours"], described["retention_bytes"]) == (6, 5000)
    refused = await run("alter", "T", "--retention-hours", "100")
    assert refused.exit_code == 1
    assert "store.file_reserved_time" in refused.stderr
    nothing = await run("alter", "T")
    assert "--retention-bytes" in nothing.stderr
