"""The drill of docs/backup.md: backups of a group under load, and what is restored from them."""

import asyncio
import contextlib
import json
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import duolog
import duolog.sync
import pytest
from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from duolog_server.demo.registryserver import RegistryServer
from tests.known import known
from tests.process.forks import PROGRAM
from tests.process.support import PATIENT, NodeProcess, environment, refused, run_cli
from tests.until import until

pytestmark = pytest.mark.process

QUEUES = 2
BODY = bytes(20_000)
SEGMENTS = ("--set", "store.mapped_file_size_commit_log=1048576")


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    server = RegistryServer()
    server.start()
    yield server
    server.stop()


class Group:
    """Nodes that elect their master."""

    def __init__(self, where: Path, registry: RegistryServer) -> None:
        self.nodes = {
            name: NodeProcess(
                where / name,
                "--role", "AUTO",
                "--registry", registry.endpoint,
                "--set", "registry.lease_seconds=4",
                "--ha-listen", free_endpoint(),
                *SEGMENTS,
                name=name,
            )
            for name in "abc"
        }  # fmt: skip

    async def start(self, *names: str) -> NodeProcess:
        """Start nodes; the master once all are in its set."""
        for name in names:
            await asyncio.to_thread(self.nodes[name].start)

        async def leads() -> NodeProcess | None:
            for node in self.nodes.values():
                if node.running:
                    part = (await status_of(node)).replication
                    if part.role == "LEADING" and len(part.sync_state_set) == len(self.nodes):
                        return node
            return None

        found: list[NodeProcess] = []

        async def whole() -> bool:
            found[:] = [node for node in [await leads()] if node is not None]
            return bool(found)

        await until(whole, "all nodes are in sync")
        return found[0]

    def end(self) -> None:
        for node in self.nodes.values():
            node.stop()


async def status_of(node: NodeProcess) -> duolog.NodeStatus:
    async with duolog.Client(node.endpoint, timeout=30) as client:
        return await client.admin.node_status()


class Load:
    """Sends without end; what was acknowledged, by queue."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.sent = 0

    def snapshot(self) -> dict[int, dict[int, bytes]]:
        return {queue: dict(row) for queue, row in self.acknowledged.items()}

    async def send(self, producer: duolog.Producer) -> None:
        self.sent += 1
        body = b"%08d" % self.sent + BODY
        queue = self.sent % QUEUES
        receipt = await producer.send("T", body, queue_id=queue)
        assert receipt.queue_offset not in self.acknowledged[queue]
        self.acknowledged[queue][receipt.queue_offset] = body[:8]

    @contextlib.asynccontextmanager
    async def running(self, endpoint: str) -> AsyncIterator[None]:
        async with duolog.Client(endpoint, timeout=30) as client, client.producer() as producer:

            async def forever() -> None:
                while True:
                    await self.send(producer)

            task = asyncio.create_task(forever())
            try:
                yield
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def read(endpoint: str) -> dict[int, dict[int, bytes]]:
    """Messages by queue and offset; each once, or the offsets would differ."""
    found: dict[int, dict[int, bytes]] = {}
    async with duolog.Client(endpoint, timeout=30) as client:
        for queue in range(QUEUES):
            row = found.setdefault(queue, {})
            while (batch := await client.pull("T", queue, len(row))).count:
                for message in batch:
                    assert message.queue_offset == len(row)
                    row[message.queue_offset] = message.body[:8]
    return found


def bodies(found: dict[int, dict[int, bytes]]) -> list[bytes]:
    return [body for row in found.values() for body in row.values()]


async def consumed(endpoint: str, count: int) -> list[bytes]:
    """Read as the group, and commit."""
    found: list[bytes] = []
    async with (
        duolog.Client(endpoint, timeout=30) as client,
        client.consumer("G", "T", start=duolog.Start.EARLIEST) as consumer,
    ):
        async for message in consumer:
            found.append(message.body[:8])
            if len(found) == count:
                break
    return found


async def backed_up(node: NodeProcess, target: Path) -> None:
    """Back up a running node; the first attempt is killed in the middle."""
    command = ["store", "backup", str(node.data), str(target), "--endpoints", node.endpoint]
    process = ChildProcess(
        "backup", [*PROGRAM, *command], target.with_suffix(".log"), environment=environment()
    )

    async def killed() -> bool:
        shutil.rmtree(target, ignore_errors=True)
        process.start()
        while process.running and not list(target.glob("log/*")):
            await asyncio.sleep(0.001)
        process.kill()
        return bool(list(target.glob("log/*"))) and not (target / "manifest.json").exists()

    await until(killed, "killed before its end")
    made = await asyncio.to_thread(run_cli, *command, *PATIENT)
    assert made.returncode == 0, made.stderr
    checked = await asyncio.to_thread(run_cli, "store", "verify", str(target))
    assert checked.returncode == 0, checked.stderr


async def restored(target: Path, where: Path, *more: str) -> None:
    done = await asyncio.to_thread(run_cli, "store", "restore", str(target), str(where), *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
async def test_a_group_under_load_is_backed_up_and_restored(
    tmp_path: Path, registry: RegistryServer
) -> None:
    group, load = Group(tmp_path, registry), Load()
    try:
        master = await group.start("a", "b", "c")
        async with duolog.Client(master.endpoint, timeout=30) as client:
            await client.admin.create_topic("T", QUEUES)
        slave = next(node for node in group.nodes.values() if node is not master)
        async with load.running(master.endpoint):
            await until(lambda: load.sent > 400, "some segments are full")
            early = await consumed(master.endpoint, 100)
            at_ms = int(time.time() * 1000)
            before = load.snapshot()
            confirmed = (await status_of(master)).confirm_offset

            async def heard() -> bool:
                return (await status_of(slave)).confirm_offset >= confirmed

            await until(heard)
            await backed_up(slave, tmp_path / "from-slave")
            await backed_up(master, tmp_path / "from-master")
        final = load.snapshot()
        await check_one_alone(tmp_path, before, final, early, at_ms)
        # One member is lost, and restored into the group that goes on.
        slave.kill()
        shutil.rmtree(slave.data)
        await restored(tmp_path / "from-slave", slave.data)
        master = await group.start(slave.name)
        part = (await status_of(slave)).replication
        assert part.truncated_bytes == 0
        for node in group.nodes.values():
            await until_has(node, final)
        # Everything is lost, the registry as well.
        for node in group.nodes.values():
            node.kill()
            shutil.rmtree(node.data)
            await restored(tmp_path / "from-master", node.data)
    finally:
        group.end()
    await check_the_whole_group(tmp_path, before, final, early)


async def until_has(node: NodeProcess, wanted: dict[int, dict[int, bytes]]) -> None:
    async def has() -> bool:
        found = await read(node.endpoint)
        return all(wanted[queue].items() <= found[queue].items() for queue in wanted)

    await until(has)


async def check_one_alone(
    where: Path,
    before: dict[int, dict[int, bytes]],
    final: dict[int, dict[int, bytes]],
    early: list[bytes],
    at_ms: int,
) -> None:
    """A node with what a slave's backup has; then one with what was stored up to a time."""
    await restored(where / "from-slave", where / "alone")
    await restored(where / "from-slave", where / "until", "--until", str(at_ms))
    for name in ("alone", "until"):
        node = NodeProcess(where / name, *SEGMENTS, name=name)
        try:
            await asyncio.to_thread(node.start)
            found = await read(node.endpoint)
            for queue in range(QUEUES):
                assert found[queue].items() <= final[queue].items() or name == "alone"
                assert before[queue].items() <= found[queue].items()
            assert len(set(bodies(found))) == len(bodies(found)), "none doubled"
            if name == "until":
                async with duolog.Client(node.endpoint, timeout=30) as client:
                    for queue, row in found.items():
                        (last,) = await client.pull("T", queue, len(row) - 1)
                        assert last.store_time_ms <= at_ms
                        assert len(row) <= len(before[queue]) + 5, "what came later is left out"
            # The group goes on behind what it has committed.
            rest = await consumed(node.endpoint, len(bodies(found)) - len(early))
            assert len({*early, *rest}) == len(bodies(found))
        finally:
            node.stop()


async def check_the_whole_group(
    where: Path,
    before: dict[int, dict[int, bytes]],
    final: dict[int, dict[int, bytes]],
    early: list[bytes],
) -> None:
    registry = RegistryServer()
    registry.start()
    group, load = Group(where, registry), Load()
    try:
        master = await group.start("a", "b", "c")
        found = await read(master.endpoint)
        for queue in range(QUEUES):
            assert before[queue].items() <= found[queue].items()
        assert len(set(bodies(found))) == len(bodies(found)), "none doubled"
        load.sent, load.acknowledged = 10_000_000, defaultdict(dict)
        async with duolog.Client(master.endpoint, timeout=30) as client, client.producer() as more:
            for _ in range(10):
                await load.send(more)
        for node in group.nodes.values():
            await until_has(node, {q: found[q] | load.acknowledged[q] for q in found})
            part = (await status_of(node)).replication
            assert part.truncated_bytes == 0
        rest = await consumed(master.endpoint, len(bodies(found)) - len(early) + 10)
        assert not {*early} & {*rest}
    finally:
        group.end()
        registry.stop()
    assert known(final)


def test_a_backup_is_taken_of_the_node_that_was_asked_or_of_a_stopped_one(tmp_path: Path) -> None:
    node, other = NodeProcess(tmp_path / "a"), NodeProcess(tmp_path / "b")
    command = ["store", "backup", str(node.data), str(tmp_path / "backup"), "--endpoints"]
    try:
        node.start()
        other.start()
        with duolog.sync.Client(node.endpoint, timeout=30) as client, client.producer() as producer:
            client.admin.create_topic("T", 1)
            producer.send("T", b"first")
        refused(run_cli(*command, other.endpoint, *PATIENT), "is not the store of the node at")
        made = run_cli(*command, node.endpoint, "--json", *PATIENT)
        assert made.returncode == 0, made.stderr
        refused(run_cli(*command, node.endpoint, *PATIENT), "is a whole backup up to")
    finally:
        node.stop()
        other.stop()
    command[3] = str(tmp_path / "offline")
    offline = run_cli(*command, "127.0.0.1:1", "--json")  # nothing is asked
    assert offline.returncode == 0, offline.stderr
    running, stopped = json.loads(made.stdout), json.loads(offline.stdout)
    assert running["max_offset"] <= stopped["max_offset"] == stopped["confirmed_offset"]
    restore = ["store", "restore", str(tmp_path / "offline")]
    refused(run_cli(*restore, str(node.data)), "is not empty", "duolog store verify")
    refused(run_cli(*restore, str(tmp_path / "r"), "--until", "noon"), "is not a time")
    refused(run_cli("store", "verify", str(node.data)), "no whole backup")
    assert run_cli(*restore, str(tmp_path / "r")).returncode == 0
    node = NodeProcess(tmp_path / "r")
    try:
        node.start()
        with duolog.sync.Client(node.endpoint, timeout=30) as client:
            assert client.pull("T", 0, 0).body_list() == [b"first"]
    finally:
        node.stop()
