"""`duolog topic trim`, and the retention of a topic, at two replica groups."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import duolog
import pytest
from typer.testing import CliRunner, Result

from duolog_server.node.api.admin import AdminService
from duolog_server.node.service.topics import Topics, Trim, Trimmed
from duolog_server.ops.cli import main
from duolog_server.serve.server import Node
from tests.node.replicas import WAIT_SECONDS
from tests.ops.cli.results import told

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

    async def ran(*words: str, at: str = B) -> Result:
        given = ["topic", *words, "-e", f"127.0.0.1:{nodes[at].port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        return await asyncio.to_thread(CliRunner().invoke, main.app, given)

    return ran


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


async def test_a_queue_is_trimmed_though_the_other_replica_group_answers_nothing(
    client: duolog.Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_topics = AdminService._add_topics

    async def refused(admin: AdminService, *how: Any) -> None:
        if admin._broker.group == B:
            raise duolog.BadRequest("not this group")
        await add_topics(admin, *how)

    with monkeypatch.context() as patch:
        patch.setattr(AdminService, "_add_topics", refused)
        done = await run("trim", "T", f"{A}/0", "--before", "offset:2", "--yes", at=A)
    assert done.exit_code == 0, done.stderr
    assert await minimums(client) == {A: [2], B: [0]}
    for queue, why in {f"{A}/7": "no queue 7", "absent/0": "'absent'", "/0": "is not a"}.items():
        done = await run("trim", "T", queue, "--before", "offset:2", "--yes", at=A)
        assert done.exit_code == 1
        assert why in done.stderr


async def test_queues_that_lose_nothing_are_not_asked(
    client: duolog.Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.admin.trim_topic("T", queue=duolog.QueuePlace(A, 0), offset=3)
    asked: list[Trim] = []
    trim = Topics.trim

    async def noted(topics: Topics, address: str, name: str, wanted: Trim) -> list[Trimmed]:
        asked.append(wanted)
        return await trim(topics, address, name, wanted)

    monkeypatch.setattr(Topics, "trim", noted)
    done = await run("trim", "T", "--before", "latest", "--yes", "--json")
    rows = {row["queue"]: (row["first"], row["min_offset"]) for row in told(done)}
    assert rows == {f"{A}/0": (3, 3), f"{B}/0": (0, 3)}
    assert [one.offset for one in asked if not one.dry_run] == [3]


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
