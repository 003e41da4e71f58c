"""`duolog topic move` and `duolog topic describe`, at two replica groups."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import duolog
import pytest
from typer.testing import CliRunner, Result

from duolog_server.ops.cli import main, topicmoves
from duolog_server.serve.server import Node
from duolog_server.store.metadata import TopicConfig
from tests.node.moving.fakemoves import with_fakes
from tests.node.replicas import WAIT_SECONDS, broker_of
from tests.nodefixtures import received
from tests.ops.cli.results import told
from tests.until import until

pytestmark = pytest.mark.usefixtures("quick_groups")

Run = Callable[..., Awaitable[Result]]
A, B = "broker-a", "broker-b"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duolog_server.node.api.queuemoves.ANSWER_SECONDS", 0.05)
    monkeypatch.setattr("duolog_server.ops.inspection.moves.POLL_SECONDS", 0.05)


@pytest.fixture
async def client(nodes: dict[str, Node]) -> object:
    """A client, and a topic T of which a/0 has three messages and no other queue any."""
    async with duolog.Client(f"127.0.0.1:{nodes[A].port}", timeout=WAIT_SECONDS) as made:
        await made.admin.create_topic("T", 2)
        async with made.producer() as producer:
            for body in (b"1", b"2", b"3"):
                await producer.send("T", body, queue_id=0, group=A)
        await made.admin.commit("g", {("T", A, 0): 1})
        yield made


@pytest.fixture
def run(nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command of `duolog topic` at a node of the group that does not hold the queue.

    One at a time: each has the process's standard output.
    """

    async def ran(*words: str, noun: str = "topic") -> Result:
        if words[0] == "move" and "--wait" not in words:
            words = (*words, "--wait", "60")
        given = [noun, *words, "-e", f"127.0.0.1:{nodes[B].port}"]
        monkeypatch.setattr(sys, "argv", ["duolog", *given])
        return await asyncio.to_thread(CliRunner().invoke, main.app, given)

    return ran


async def test_a_queue_moves_and_the_topic_shows_where_its_stretches_are(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    with_fakes(nodes)
    shown = await run("describe", "T")
    assert shown.exit_code == 0, shown.stderr
    assert "no queue of it has moved" in shown.stdout
    moved = await run("move", "T", f"{A}/0", "--to", B)
    assert moved.exit_code == 0, moved.stderr
    last = moved.stderr.splitlines()[-1]
    assert last == (
        "moved: T broker-a/0 ends at 3 and continues at broker-b/2; messages waited for 7 ms"
    )
    shown = await run("describe", "T", "--json")
    found = told(shown)
    row = {"queue": f"{A}/0", "messages": 3, "first": 0, "end": 3, "takes_messages": False}
    guest = {"messages": 0, "first": 3, "end": None, "takes_messages": True, "queue": f"{A}/0"}
    assert found["spans"] == [{**row, "place": f"{A}/0"}, {**guest, "place": f"{B}/2"}]
    assert [one["state"] for one in found["moves"]] == ["DONE"]
    assert found["queues"] == {A: 2, B: 2}
    table = await run("describe", "T")
    assert f"{A}/0\t{B}/2\t3\t\t0\tTrue" in table.stdout


async def test_a_queue_moves_there_and_back_while_it_is_sent_to_and_read(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    """With the nodes' own move services: nothing is lost, doubled or out of order."""
    sent, room = list[bytes](), asyncio.Semaphore(0)
    async with (
        client.producer() as producer,
        client.consumer("readers", "T", commit_interval=0.05) as consumer,
    ):

        async def send() -> None:
            while True:
                await room.acquire()
                body = b"%d" % len(sent)
                receipt = await producer.send("T", body, queue_id=0, group=A)
                assert receipt.queue_offset == 3 + len(sent)
                sent.append(body)

        async def is_sent(count: int) -> None:
            await until(lambda: len(sent) == count or sending.done())
            assert not sending.done(), sending.exception()

        sending = asyncio.ensure_future(send())
        for target in (B, A):
            for _ in range(40):  # on their way while it moves
                room.release()
            moved = await run("move", "T", f"{A}/0", "--to", target)
            assert moved.exit_code == 0, moved.stderr
            room.release()
        await is_sent(82)
        sending.cancel()
        read = [(await received(consumer)).body for _ in range(3 + len(sent))]
        assert read == [b"1", b"2", b"3", *sent]
    count_end = 3 + len(sent)
    shown = told(await run("describe", "T", "--json"))
    assert [row["takes_messages"] for row in shown["spans"]] == [False, False, True]
    assert [row["queue"] for row in shown["spans"]] == [f"{A}/0"] * 3
    ends = [(row["first"], row["end"]) for row in shown["spans"]]
    assert ends[0][1] == ends[1][0]
    assert ends[1][1] == ends[2][0]
    onward = told(await run("move", "T", f"{A}/0", "--to", B, "--plan", "--json"))
    assert (onward["queue"], onward["from"], onward["end_now"]) == (f"{A}/0", f"{A}/2", count_end)
    assert {row["group"]: row["committed"] for row in onward["groups"]} == {
        "g": None,
        "readers": count_end,
    }
    stats = told(await run("stats", "T", "--json"))
    assert sum(row["max_offset"] - row["min_offset"] for row in stats) == count_end
    assert all(row["log_bytes"] is not None for row in stats)
    explained = await run("explain", "readers", noun="group")
    assert "no problems found" in explained.stdout, explained.stdout
    explained = await run("explain", "g", noun="group")
    assert f"T broker-a/0 moved and ends at offset {ends[0][1]}; the group has" in explained.stdout
    assert "start its consumers" in explained.stdout


async def test_a_queue_that_moved_moves_on_from_where_it_is(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    with_fakes(nodes)
    assert (await run("move", "T", f"{A}/1", "--to", B)).exit_code == 0
    again = await run("move", "T", f"{A}/1", "--to", B)
    assert again.exit_code == 1
    assert "queue T/2 is in replica group broker-b already" in again.stderr
    back = await run("move", "T", f"{A}/1", "--to", A)
    assert back.exit_code == 0, back.stderr
    assert "T broker-b/2 ends at 0 and continues at broker-a/2" in back.stderr
    spans = (await client.admin.moves("T")).spans
    assert [str(one.place) for one in spans if one.name.queue_id == 1] == [
        f"{A}/1",
        f"{B}/2",
        f"{A}/2",
    ]


async def test_a_plan_tells_what_a_move_touches_and_changes_nothing(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    fakes = with_fakes(nodes)
    shown = await run("move", "T", f"{A}/0", "--to", B, "--plan", "--json")
    assert shown.exit_code == 0, shown.stderr
    plan = told(shown)
    assert (plan["state"], plan["end_now"], plan["messages_that_stay"]) == ("PLANNED", 3, 3)
    assert plan["bytes_that_stay"] > 300
    (reader,) = plan["groups"]
    assert (reader["group"], reader["committed"], reader["lag_messages"]) == ("g", 1, 2)
    assert len(plan["steps"]) == 4
    shown = await run("move", "T", f"{A}/0", "--to", B, "--plan")
    assert "1. broker-b gets a new queue of T" in shown.stdout
    assert "nothing was changed" in shown.stderr
    assert fakes[A].known == []
    assert (await client.admin.moves()).spans == ()


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["T", "0", "--to", B], 1, "has several queues 0: name one of broker-a/0, broker-b/0"),
        (["T", "7", "--to", B], 1, "topic T has no queue 7: it has queues 0 to 1"),
        (["T", f"{A}/7", "--to", B], 1, "there is no queue T/7 in replica group broker-a"),
        (["T", "c/0", "--to", B], 1, "replica group 'c' has no topic T; it is in broker-a, bro"),
        (["T", "x", "--to", B], 1, "'x' is not a queue: give QUEUE, or REPLICA-GROUP/QUEUE"),
        (["T", "/0", "--to", B], 1, "'/0' is not a queue"),
        (["T", "-1", "--to", B], 2, "No such option"),
        (["T", f"{A}/0"], 2, "--to GROUP"),
        (["T", f"{A}/0", "--to", A], 1, "queue T/0 is in replica group broker-a already"),
        (["T", f"{A}/0", "--to", "c"], 1, "no replica group 'c'; other groups of this cluster: b"),
        (["U", "0", "--to", B], 1, "UnknownTopic: topic 'U' does not exist"),
        (["%RETRY%g", f"{A}/0", "--to", B], 1, "belongs to the nodes"),
        (["T", f"{A}/0", "--to", B, "--plan", "--abort"], 2, "exclude each other"),
        (["T", f"{A}/0", "--abort"], 1, "no move of T broker-a/0 is running"),
    ],
)
async def test_wrong_input_is_refused_with_what_to_do(
    nodes: dict[str, Node],
    client: duolog.Client,
    run: Run,
    words: list[str],
    status: int,
    reason: str,
) -> None:
    fakes = with_fakes(nodes)
    if words[0] == "%RETRY%g":
        await broker_of(nodes[A]).metadata.put_topic(TopicConfig("%RETRY%g", 1))
    done = await run("move", *words)
    assert done.exit_code == status, done.stderr
    assert reason in done.stderr
    assert fakes[A].known == []


async def test_the_command_waits_and_shows_the_states(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    fake = with_fakes(nodes, stays="RESERVING")[A]
    running = asyncio.ensure_future(run("move", "T", f"{A}/0", "--to", B))
    await until(lambda: len(fake.known) == 1 and fake.asked > 1)  # it polls
    fake.known[0] = replace(fake.known[0], state="SEALING")
    await fake.finish()
    done = await running
    assert done.exit_code == 0, done.stderr
    assert "RESERVING: T broker-a/0 to broker-b\n" in done.stderr
    assert "DONE: T broker-a/0 to broker-b/2\n" in done.stderr


async def test_a_move_that_does_not_end_is_shown_and_continues(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    fake = with_fakes(nodes, stays="OPENING")[A]
    running = asyncio.ensure_future(run("move", "T", f"{A}/0", "--to", B, "--wait", "2"))
    await until(lambda: len(fake.known) == 1)
    fake.known[0] = replace(fake.known[0], reason="Unavailable: no master")
    done = await running
    assert done.exit_code == 1
    told = "the move is OPENING after 2 s (Unavailable: no master); it continues"
    assert told in done.stderr
    assert "try: duolog topic describe T" in done.stderr
    late = await run("move", "T", f"{A}/0", "--abort")
    assert late.exit_code == 1
    assert "nothing of T/0 can be aborted" in late.stderr


async def test_a_move_is_aborted_before_its_seal(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    with_fakes(nodes, stays="RESERVING")
    await client.admin.move_queue("T", 0, B, group=A)
    second = await run("move", "T", f"{A}/0", "--to", B, "--plan", "--json")
    assert told(second)["state"] == "RESERVING"
    other = await run("move", "T", f"{A}/0", "--to", "broker-c", "--abort")
    assert "T broker-a/0 moves to broker-b, not to broker-c" in other.stderr
    done = await run("move", "T", f"{A}/0", "--abort")
    assert done.exit_code == 0, done.stderr
    assert "aborted: T broker-a/0 takes messages as before" in done.stderr


async def test_the_command_fails_where_its_move_is_aborted(
    nodes: dict[str, Node], client: duolog.Client, run: Run
) -> None:
    fake = with_fakes(nodes, stays="RESERVING")[A]
    running = asyncio.ensure_future(run("move", "T", f"{A}/0", "--to", B))
    await until(lambda: len(fake.known) == 1 and fake.asked > 1)
    await client.admin.abort_move("T", 0, group=A)
    ended = await running
    assert ended.exit_code == 1
    assert "T broker-a/0 has not moved (ENDED: aborted)" in ended.stderr


async def test_who_interrupts_the_command_learns_that_the_move_continues(
    nodes: dict[str, Node], client: duolog.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = with_fakes(nodes, stays="RESERVING")[A]
    running = asyncio.ensure_future(topicmoves._moved(client, "T", f"{A}/0", B, 600))
    await until(lambda: len(fake.known) == 1 and fake.asked > 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    error = capsys.readouterr().err
    assert "the move of T broker-a/0 to broker-b continues" in error
    assert "to end it before it seals: duolog topic move T broker-a/0 --abort" in error
