"""A node's directory is replaced by an older copy of it: a backup, a snapshot of its machine.

Messages confirmed since the copy was made are on the other nodes, and stay there.
"""

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from duolog_server.demo.registryserver import RegistryServer
from tests.known import known
from tests.process.support import NodeProcess
from tests.until import until

pytestmark = [pytest.mark.process, pytest.mark.long]

LEASE_SECONDS = 4  # a master that stands still for a shorter time stays the master
SMALL = (
    "--set", "store.mapped_file_size_commit_log=1048576",
    "--set", "store.mapped_file_size_consume_queue=20000",
    "--set", "node.log_level=warning",
    "--set", "ha.reconnect_interval=100",
)  # fmt: skip


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    server = RegistryServer()
    server.start()
    yield server
    server.stop()


def copy_of(node: NodeProcess) -> Path:
    """Copy the directory of a node while it runs, as a snapshot would.

    Files that the node is about to allocate, and those that it writes under a name of their own
    and renames, may be gone before their turn.
    """
    target = node.data.with_name(f"{node.name}.copy")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(node.data, target, ignore=shutil.ignore_patterns("*.tmp", "allocating"))
    return target


def put_back(node: NodeProcess, copy: Path) -> None:
    shutil.rmtree(node.data)
    copy.rename(node.data)


async def status_of(node: NodeProcess) -> duolog.NodeStatus:
    async with duolog.Client(node.endpoint, timeout=20) as client:
        return await client.admin.node_status()


async def send(endpoint: str, first: int, count: int) -> None:
    """Messages 0, 1, 2, ... into queue 0; every one of them is PUT_OK at its own offset."""
    async with (
        duolog.Client(endpoint, timeout=20) as client,
        client.producer(timeout=20) as producer,
    ):
        for k in range(first, first + count):
            receipt = await producer.send("T", b"%d" % k, queue_id=0)
            assert (receipt.status, receipt.queue_offset) == ("PUT_OK", k)


async def read(node: NodeProcess) -> list[bytes]:
    found: list[bytes] = []
    async with duolog.Client(node.endpoint, timeout=20) as client:
        while True:
            batch = await client.pull("T", 0, len(found))
            if not batch.count:
                return found
            found += [bytes(body) for body in batch.body_list()]


def bodies(count: int) -> list[bytes]:
    return [b"%d" % k for k in range(count)]


@pytest.mark.parametrize("swapped", [False, True])
async def test_with_roles_by_hand_a_slave_is_not_cut_to_an_older_copy_of_its_master(
    tmp_path: Path, swapped: bool
) -> None:
    """swapped: the old master comes back as the slave of a slave's older copy."""
    port = free_endpoint()
    lead = ("--role", "SYNC_MASTER", "--ha-listen", port, *SMALL)
    follow = ("--role", "SLAVE", "--ha-master", port, *SMALL)
    a, b = NodeProcess(tmp_path / "a", *lead), NodeProcess(tmp_path / "b", *follow)
    try:
        for node in (a, b):
            await asyncio.to_thread(node.start)

        async def paired() -> bool:
            rows = (await status_of(a)).replication.slaves
            return bool(rows) and rows[0].in_sync

        await until(paired)
        async with duolog.Client(a.endpoint, timeout=20) as client:
            await client.admin.create_topic("T", 1)
        await send(a.endpoint, 0, 10)
        older, newer = (b, a) if swapped else (a, b)
        copy = await asyncio.to_thread(copy_of, older)
        await send(a.endpoint, 10, 30)

        async def heard() -> bool:
            return len(await read(newer)) == 40

        await until(heard, "the other node has all of it")
        a.kill()
        b.kill()
        put_back(older, copy)
        older.flags, newer.flags = lead, follow
        await asyncio.to_thread(older.start)
        await asyncio.to_thread(newer.start)

        async def suspended() -> bool:  # it tries again now and then, without a reason meanwhile
            found = (await status_of(newer)).replication
            reason = "was confirmed to clients: not cut"
            return found.state == "SUSPEND" and reason in found.reason

        await until(suspended)
        status = await status_of(newer)
        assert status.replication.truncated_bytes == 0
        assert await read(newer) == bodies(40)
        # As the reason advises: the node that has it all becomes the master.
        a.kill()
        b.kill()
        newer.flags, older.flags = lead, follow
        await asyncio.to_thread(newer.start)
        await asyncio.to_thread(older.start)

        async def caught_up() -> bool:
            return await read(older) == bodies(40)

        await until(caught_up)
    finally:
        a.stop()
        b.stop()


@pytest.mark.parametrize("when", ["in the same run", "in an earlier run"])
@pytest.mark.parametrize("alone", [False, True])
async def test_an_older_copy_of_a_member_does_not_lead_and_loses_nothing(
    tmp_path: Path, registry: RegistryServer, when: str, alone: bool
) -> None:
    """alone: the copy has time to be elected before another member is there."""
    nodes = {
        name: NodeProcess(
            tmp_path / name,
            "--role", "AUTO",
            "--registry", registry.endpoint,
            "--set", f"registry.lease_seconds={LEASE_SECONDS}",
            "--ha-listen", free_endpoint(),
            *SMALL,
        )
        for name in "abc"
    }  # fmt: skip

    async def leader() -> NodeProcess | None:
        for node in nodes.values():
            if node.running and (await status_of(node)).replication.role == "LEADING":
                return node
        return None

    async def members(count: int) -> bool:
        found = await leader()
        if found is None:
            return False
        return len((await status_of(found)).replication.sync_state_set) == count

    async def all_in_sync() -> bool:
        return await members(3)

    try:
        for node in nodes.values():
            await asyncio.to_thread(node.start)
        await until(all_in_sync)
        master = known(await leader())
        async with duolog.Client(master.endpoint, timeout=20) as client:
            await client.admin.create_topic("T", 1)
        await send(master.endpoint, 0, 10)
        victim = master
        copy = await asyncio.to_thread(copy_of, victim)
        if when == "in an earlier run":
            victim.kill()
            await asyncio.to_thread(victim.start)
            await until(all_in_sync)
            master = known(await leader())
        await send(master.endpoint, 10, 30)
        others = [node for node in nodes.values() if node is not victim]

        async def heard() -> bool:
            return [len(await read(node)) for node in others] == [40, 40]

        await until(heard, "the others have all of it")
        for node in nodes.values():
            node.kill()
        put_back(victim, copy)
        await asyncio.to_thread(victim.start)
        if alone:
            await asyncio.sleep(LEASE_SECONDS + 3)
        for node in others:
            await asyncio.to_thread(node.start)
        await until(all_in_sync)
        master = known(await leader())
        await send(master.endpoint, 40, 10)

        async def everywhere() -> bool:
            return [await read(node) for node in nodes.values()] == [bodies(50)] * 3

        await until(everywhere)
        for node in others:
            assert (await status_of(node)).replication.truncated_bytes == 0, "only the copy is cut"
        told = "".join(node.log.read_text() for node in nodes.values())
        assert "older copy" in told
    finally:
        for node in nodes.values():
            node.stop()


async def test_a_plain_restart_of_all_members_is_not_an_older_copy(
    tmp_path: Path, registry: RegistryServer
) -> None:
    nodes = [
        NodeProcess(
            tmp_path / name,
            "--role", "AUTO",
            "--registry", registry.endpoint,
            "--set", f"registry.lease_seconds={LEASE_SECONDS}",
            "--ha-listen", free_endpoint(),
            *SMALL,
        )
        for name in "ab"
    ]  # fmt: skip
    try:
        began = time.monotonic()
        for _ in range(3):
            for node in nodes:
                await asyncio.to_thread(node.start)

            async def both() -> bool:
                found = [(await status_of(node)).replication for node in nodes]
                return any(row.role == "LEADING" and len(row.sync_state_set) == 2 for row in found)

            await until(both)
            for node in nodes:
                node.kill()
        assert time.monotonic() - began < 120
        told = "".join(node.log.read_text() for node in nodes)
        assert "older copy" not in told
        assert "lacks what it has acknowledged" not in told
    finally:
        for node in nodes:
            node.stop()
