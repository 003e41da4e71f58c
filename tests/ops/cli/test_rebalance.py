"""`duolog cluster rebalance`, at two replica groups."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import duolog
import pytest
from typer.testing import CliRunner, Result

from duolog_server.ops.cli import main
from duolog_server.serve.server import Node
from tests.node.replicas import WAIT_SECONDS
from tests.nodefixtures import received
from tests.ops.cli.results import told

pytestmark = pytest.mark.usefixtures("quick_groups")

Run = Callable[..., Awaitable[Result]]
A, B = "broker-a", "broker-b"


@pytest.fixture
def run(nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch) -> Run:
    async def ran(*words: str) -> Result:
        given = ["cluster", "rebalance", *words, "-e", f"127.0.0.1:{nodes[A].port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        return await asyncio.to_thread(CliRunner().invoke, main.app, given)

    return ran


async def test_a_group_is_emptied_and_nothing_is_lost(nodes: dict[str, Node], run: Run) -> None:
    async with duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 2)
        async with client.producer() as producer:
            for k in range(4):
                await producer.send("T", b"%d" % k, queue_id=k % 2, group=A)
            planned = await run("--by", "bytes", "--empty", A, "--json")
            assert planned.exit_code == 0, planned.stderr
            rows = told(planned)
            assert {(row["queue"], row["to"]) for row in rows} == {(f"{A}/0", B), (f"{A}/1", B)}
            assert not (await client.admin.moves("T")).spans, "a plan changes nothing"
            applied = await run("--by", "bytes", "--empty", A, "--apply")
            assert applied.exit_code == 0, applied.stderr
            for k in range(4, 8):
                receipt = await producer.send("T", b"%d" % k, queue_id=k % 2, group=A)
                assert receipt.queue_offset == k // 2
        spans = (await client.admin.moves("T")).spans
        assert {str(one.place) for one in spans if one.end is None} == {f"{B}/2", f"{B}/3"}
        again = await run("--by", "bytes", "--empty", A, "--apply")
        assert again.exit_code == 0, again.stderr
        assert "nothing to move" in again.stderr
        async with client.consumer("g", "T", commit_interval=0.05) as consumer:
            found = [(await received(consumer)).body for _ in range(8)]
            assert sorted(found) == [b"%d" % k for k in range(8)]


async def test_even_groups_stay_as_they_are(nodes: dict[str, Node], run: Run) -> None:
    async with duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as client:
        await client.admin.create_topic("T", 2)
        found = await run("--by", "queues")
        assert found.exit_code == 0, found.stderr
        assert "the load is even" in found.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--by", "nonsense"], "must be one of bytes-in, bytes, queues"),
        (["--plan", "--apply"], "exclude each other"),
        (["--empty", "nowhere"], "there is no replica group 'nowhere': broker-a, broker-b"),
        (["--by", "queues", "--empty", A, "--empty", B], "no replica group stays"),
    ],
)
async def test_wrong_input_is_refused(run: Run, words: list[str], told: str) -> None:
    found = await run(*words)
    assert found.exit_code != 0
    assert told in found.stderr
