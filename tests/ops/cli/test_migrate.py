"""`duolog migrate`: what it prints of directories and brokers, and its exit status."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duolog
import pytest
import structlog
from typer.testing import CliRunner, Result

from duolog_server.compat.migration import state as states
from duolog_server.compat.migration import status as live
from duolog_server.compat.migration.state import Following, State
from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.replicas import TABLES
from duolog_server.node.runtime.clocks import wall_ms
from duolog_server.ops.cli import migrateafter
from duolog_server.ops.cli.migrate import app
from duolog_server.serve.server import Node
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.master import HandMaster, serving
from tests.compat.remoting.client import connected
from tests.compat.remoting.replicas.sections import slaves
from tests.node.replicas import broker_of
from tests.nodefixtures import StartNode
from tests.until import until

MADE = Following("10.0.0.1:10911", "10.0.0.1:10912", "broker-a")


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The commands write their log where the test has them write; others go on as before."""
    handlers, before = list(logging.getLogger().handlers), structlog.get_config()
    yield
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def _live(directory: Path, reason: str = "", age_ms: int = 0) -> None:
    now = wall_ms()
    found = live.Status(now - age_ms, reason, 90, 80, 70, 100, 10, 2500, 3, 2, 5, now)
    live.write(directory, found)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    states.save(OsDisk(tmp_path), MADE)
    return tmp_path


def test_a_directory_that_follows_says_how_far_it_is(directory: Path) -> None:
    _live(directory)
    done = _run("status", "--data", str(directory), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["state"] == "FOLLOWING"
    assert (found["process"], found["behind_bytes"], found["behind_seconds"]) == (
        "running",
        10,
        2.5,
    )
    assert found["problems"] == []


@pytest.mark.parametrize(("reason", "age_ms"), [("refused", 0), ("", 60_000)])
def test_what_does_not_follow_now_is_a_problem(directory: Path, reason: str, age_ms: int) -> None:
    _live(directory, reason, age_ms)
    assert _run("status", "--data", str(directory)).exit_code == 2


def test_a_directory_that_was_stopped_says_why(directory: Path) -> None:
    states.save(OsDisk(directory), MADE.becomes(State.STOPPED, reason="another log"))
    done = _run("status", "--data", str(directory), "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["problems"] == ["another log"]


def test_a_directory_that_was_promoted_is_well(directory: Path) -> None:
    promoted = MADE.becomes(State.CUTTING).becomes(State.PROMOTED, cut=96)
    states.save(OsDisk(directory), promoted)
    log = directory / "commitlog"
    log.mkdir()
    for start in (0, 48, 96):
        (log / f"{start:020d}").write_bytes(b"%d" % start * 24)
    (log / f"{96:020d}").write_bytes(b"x" * 48)
    (log / f"{0:020d}").write_bytes(b"y" * 48)
    (log / f"{48:020d}").write_bytes(b"z" * 48)
    done = _run("status", "--data", str(directory), "--checksums", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["segments"] == [
        f"{hashlib.sha256(b'y' * 48).hexdigest()}  {0:020d}",
        f"{hashlib.sha256(b'z' * 48).hexdigest()}  {48:020d}",
    ], "what came after the cut is duolog's own"


def test_a_log_that_is_lost_is_said(directory: Path) -> None:
    done = _run("status", "--data", str(directory), "--checksums")
    assert done.exit_code == 1
    assert "segments cannot be read" in done.output


def test_checksums_are_of_segments_that_were_copied_whole(directory: Path) -> None:
    words = ("status", "--data", str(directory), "--checksums", "--json")
    log = directory / "commitlog"
    log.mkdir()
    assert json.loads(_run(*words).stdout)["segments"] == []
    for start in (0, 48, 96):  # the last one is allocated ahead
        (log / f"{start:020d}").write_bytes(b"x" * 48)
    assert json.loads(_run(*words).stdout)["segments"] == [], "it is not known how far it is"
    _live(directory)
    assert json.loads(_run(*words).stdout)["segments"] == [
        f"{hashlib.sha256(b'x' * 48).hexdigest()}  {0:020d}"
    ]


def test_a_directory_that_follows_nobody_is_told(tmp_path: Path) -> None:
    done = _run("status", "--data", str(tmp_path))
    assert done.exit_code == 1
    assert "is not a migration target" in done.output


@pytest.mark.parametrize("command", ["abort", "cutover"])
def test_only_what_follows_is_cut_over(tmp_path: Path, command: str) -> None:
    more = ["--yes"] if command == "cutover" else []
    done = _run(command, "--data", str(tmp_path / "none"), *more)
    assert done.exit_code == 1
    assert "give --broker" in done.output


def test_offsets_come_from_one_place(tmp_path: Path) -> None:
    for words in ([], ["--broker", "a:1", "--file", str(tmp_path)]):
        done = _run("offsets", *words)
        assert done.exit_code == 2
        assert "one of --broker and --file" in done.output


async def nine_each(client: duolog.Client, *queues: int) -> None:
    """Messages in some queues of a new topic of two."""
    await client.admin.create_topic("T", 2)
    async with client.producer() as producer:
        for queue in queues:
            await producer.send_batch("T", [b"x"] * 9, queue_id=queue)


async def test_late_offsets_are_carried_over_and_none_goes_back(tmp_path: Path, node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    late = tmp_path / "consumerOffset.json"
    async with duolog.Client(endpoint, timeout=10) as client:
        await nine_each(client, 0, 1)
        await client.admin.commit("g", {("T", "broker-a", 0): 5, ("T", "broker-a", 1): 5})
        late.write_text('{"offsetTable":{"T@g":{0:7,1:3},"T@h":{0:1},"gone@g":{0:1}}}')
        words = ("offsets", "--file", str(late), "--endpoints", endpoint, "--json")
        rows = [
            {"group": "g", "topic": "T", "queue": 0, "offset": 7},
            {"group": "h", "topic": "T", "queue": 0, "offset": 1},
        ]
        for more, moved in ((["--dry-run"], rows), ([], rows), ([], [])):
            done = await asyncio.to_thread(_run, *words, *more)
            assert json.loads(done.stdout) == moved
        queues = (await client.admin.group("g")).queues
        assert [queue.committed for queue in queues if queue.topic == "T"] == [7, 5]
        await client.admin.commit("g", {("T", "broker-a", 0): 1}, forward=True)
        queues = (await client.admin.group("g")).queues
        assert [queue.committed for queue in queues if queue.topic == "T"] == [7, 5]


@pytest.mark.parametrize(
    "words", [("plan", "foo"), ("plan", "foo:bar"), ("follow", "--broker", "foo")]
)
def test_what_is_no_address_is_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = _run(*words, "--data", str(tmp_path / "copy"))
    assert told.exit_code == 1
    assert "is not HOST:PORT" in told.output
    assert not (tmp_path / "copy" / "commitlog").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"written_ms": 1}', None],
)
def test_a_status_that_cannot_be_read_is_none(directory: Path, text: str | None) -> None:
    """It is written anew every second; None: a field has another type."""
    _live(directory)
    file = directory / states.STATUS_PATH
    row = json.loads(file.read_text())
    file.write_text(json.dumps({**row, "behind_ms": "soon"}) if text is None else text)
    done = _run("status", "--data", str(directory), "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["process"] == "not running"


def test_a_status_of_the_future_is_that_of_no_process(directory: Path) -> None:
    """The clock was set back after the process had ended."""
    _live(directory, age_ms=-3_600_000)
    done = _run("status", "--data", str(directory), "--json")
    assert (done.exit_code, json.loads(done.stdout)["process"]) == (2, "not running")


@pytest.mark.parametrize(
    ("settings", "grown", "status", "what"),
    [
        ({}, 0, 0, "the old broker has every message"),
        ({}, -5, 0, "the old broker has every message"),  # but for a note of the node's own
        ({}, -10_000, 2, "must follow it first"),
        ({}, 5, 2, "the node is not a copy of it"),
        ({"brokerName": "broker-b"}, 0, 1, "is broker 'broker-b'"),
    ],
)
async def test_the_way_back_is_said_where_the_old_broker_has_everything(
    node: Node, settings: dict[str, str], grown: int, status: int, what: str
) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client:
        await client.admin.create_topic("T", 2)
        async with client.producer() as producer:
            await producer.send("T", b"x" * 9000)
        await client.admin.create_topic("U", 2)
        found = await client.admin.node_status()
    master = HandMaster(b"x" * (found.max_offset + grown))
    master.settings |= {"brokerName": found.replication.group, **settings}
    async with serving(master):
        words = ("rollback", "--broker", master.address, "--endpoints", endpoint)
        done = await asyncio.to_thread(_run, *words)
    assert done.exit_code == status
    assert what in done.output


async def test_topics_that_will_not_allow_writes_at_the_old_broker_are_named(node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    async with duolog.Client(endpoint, timeout=10) as client:
        await client.admin.create_topic("T", 2)
        await client.admin.create_topic("Blocked", 2, perm=4)
        found = await client.admin.node_status()
        master = HandMaster(b"x" * found.max_offset)
        master.settings |= {"brokerName": found.replication.group}
        async with serving(master):
            words = ("rollback", "--broker", master.address, "--endpoints", endpoint)
            done = await asyncio.to_thread(_run, *words)
    assert "there: Blocked. To change that" in done.output


@pytest.fixture
async def left(start_node: StartNode) -> Node:
    """A node that slaves of RocketMQ copy."""
    return await start_node(**slaves())


async def test_a_node_is_frozen_until_the_old_broker_has_its_last_offsets(left: Node) -> None:
    """Else messages that it delivers at the end, and offsets of its consumers, come twice."""
    endpoint = f"127.0.0.1:{left.port}"
    async with duolog.Client(endpoint, timeout=10) as client, connected(left) as slave:
        await client.admin.create_topic("T", 2)
        async with client.producer() as producer:
            await producer.send("T", b"later", delay=0.5)
        found = await client.admin.node_status()
        master = HandMaster(b"x" * found.max_offset)
        master.settings |= {"brokerName": found.replication.group}
        async with serving(master):
            words = ("rollback", "--broker", master.address, "--endpoints", endpoint)
            running = asyncio.create_task(asyncio.to_thread(_run, *words, "--freeze", "600"))
            freeze = broker_of(left).freeze
            await until(lambda: bool(freeze.reason))
            for code in TABLES:
                assert not running.done()
                await slave.ask(code)
            master.log = b"x" * broker_of(left).store.max_offset
            done = await running
            assert done.exit_code == 0
            assert "stores nothing for 600 s" in done.output
            with pytest.raises(duolog.DuologError, match="--thaw"):
                async with client.producer() as producer:
                    await producer.send("T", b"x", timeout=0.3)
            with pytest.raises(duolog.Busy, match="--thaw"):
                await client.admin.create_topic("U", 1)
            delays, now = broker_of(left).delays, broker_of(left).times.wall_ms
            await until(lambda: delays.overdue_ms(now()) > 0)
            assert (await client.admin.node_status()).max_offset == len(master.log)
            thawed = await asyncio.to_thread(_run, *words, "--thaw")
            assert "the old broker has every message" in thawed.output
        store = broker_of(left).store
        await until(lambda: sum(store.queue_range("T", queue)[1] for queue in (0, 1)) == 1)


async def test_a_node_stores_again_where_the_old_broker_does_not_follow(
    left: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duolog_server.ops.cli.migrateafter.GIVEN_SECONDS", 0.1)
    endpoint = f"127.0.0.1:{left.port}"
    async with duolog.Client(endpoint, timeout=10) as client:
        await client.admin.create_topic("T", 2)
        found = await client.admin.node_status()
        master = HandMaster(b"x" * found.max_offset)
        master.settings |= {"brokerName": found.replication.group}
        async with serving(master):
            words = ("rollback", "--broker", master.address, "--endpoints", endpoint)
            done = await asyncio.to_thread(_run, *words, "--freeze", "600")
        assert done.exit_code == 2
        assert "did not ask for topics" in done.output
        await client.admin.create_topic("U", 2)


@pytest.mark.parametrize(
    ("frozen", "freezes_after"), [([], []), ([False, True], [0]), ([True, True], [])]
)
async def test_a_node_stores_again_where_a_later_look_fails(
    monkeypatch: pytest.MonkeyPatch, frozen: list[bool], freezes_after: list[int]
) -> None:
    """The command says that it failed: the node is not left frozen. But a freeze goes on that an
    earlier command began, as the old broker may be stopped by now to take over.
    """
    broker, node = cast(Any, SimpleNamespace(end=10)), cast(Any, None)
    looks = [
        migrateafter._WayBack(broker, node, duolog.FreezeStatus(now, 10, 10, True), [])
        for now in frozen
    ]
    freezes: list[int] = []

    async def look(*_: object) -> Any:
        if not looks:
            raise OSError("the old broker is gone")
        return looks.pop(0)

    async def freeze(seconds: int) -> None:
        freezes.append(seconds)

    monkeypatch.setattr(migrateafter, "_way_back", look)
    monkeypatch.setattr(migrateafter, "LOOK_SECONDS", 0.0)
    client = cast(Any, SimpleNamespace(admin=SimpleNamespace(freeze=freeze)))
    with pytest.raises(OSError, match="is gone"):
        await migrateafter._frozen(client, cast(Any, None), 600)
    assert freezes == freezes_after


async def test_a_freeze_ends_by_itself(node: Node) -> None:
    async with duolog.Client(f"127.0.0.1:{node.port}", timeout=10) as client:
        assert (await client.admin.freeze(1)).frozen
        await until(lambda: not broker_of(node).freeze.reason)
        await client.admin.create_topic("T", 2)
        for seconds in (-1, 86_401):
            with pytest.raises(duolog.BadRequest, match="outside"):
                await client.admin.freeze(seconds)


async def test_offsets_of_another_log_are_left_out_and_told(tmp_path: Path, node: Node) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    late = tmp_path / "consumerOffset.json"
    late.write_text('{"offsetTable":{"T@g":{0:3,1:700}}}')
    async with duolog.Client(endpoint, timeout=10) as client:
        await nine_each(client, 0)
        words = ("offsets", "--file", str(late), "--endpoints", endpoint)
        done = await asyncio.to_thread(_run, *words)
        assert done.exit_code == 0
        assert "1 offsets were moved forward" in done.output
        assert "1 offsets are left out" in done.output
        queues = (await client.admin.group("g")).queues
        assert [queue.committed for queue in queues if queue.topic == "T"][:1] == [3]


async def test_a_group_that_is_refused_does_not_keep_the_others(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"127.0.0.1:{node.port}"
    late = tmp_path / "consumerOffset.json"
    late.write_text('{"offsetTable":{"T@a":{0:3},"T@b":{0:4}}}')
    async with duolog.Client(endpoint, timeout=10) as client:
        admin = type(client.admin)
        commit = admin.commit

        async def refuses(self: Any, group: str, *more: Any, **how: Any) -> Any:
            if group == "a":
                raise duolog.NoPermission("not this one")
            return await commit(self, group, *more, **how)

        monkeypatch.setattr(admin, "commit", refuses)
        await nine_each(client, 0)
        words = ("offsets", "--file", str(late), "--endpoints", endpoint)
        done = await asyncio.to_thread(_run, *words)
        assert done.exit_code == 1
        assert "1 offsets were moved forward" in done.output
        assert "refused: a: not this one" in done.output
        queues = (await client.admin.group("b")).queues
        assert [queue.committed for queue in queues if queue.topic == "T"][:1] == [4]


async def test_what_a_broker_says_moves_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = HandMaster.answer

    def answer(self: HandMaster, request: Command) -> Command:
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            return request.answer(1, "denied \x1b[2J")
        return answered(self, request)

    monkeypatch.setattr(HandMaster, "answer", answer)
    async with serving(HandMaster(b"x" * 99)) as master:
        words = ("plan", master.address, "--data", str(tmp_path))
        done = await asyncio.to_thread(_run, *words)
    assert "denied" in done.output
    assert "\x1b" not in done.output
