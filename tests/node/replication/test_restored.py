"""Nodes that start in restored directories, in groups with fixed roles and with elections."""

from functools import partial
from pathlib import Path

import duolog
from duolog.testing._ports import free_endpoint

from duolog_server.ha import identity
from duolog_server.ha.progress import ConnectionState
from duolog_server.node.election.memoryregistry import MemoryRegistry
from duolog_server.serve.server import Node
from duolog_server.store.backup import Wanted, backup
from duolog_server.store.clocks import WallMs
from duolog_server.store.restore import restore
from tests.node.replicas import (
    Elected,
    Group,
    StartNode,
    broker_of,
    caught_up,
    following,
    log_bytes,
    slave_of,
)
from tests.until import until

NOW = WallMs(1_700_000_000_000)


async def test_a_restored_slave_goes_on_and_one_of_a_longer_backup_is_not_cut(
    tmp_path: Path, start_node: StartNode
) -> None:
    group = Group(start_node, tmp_path)
    master, slave = await group.start_pair()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)
        for name, of in (("short", master), ("long", slave)):
            await producer.send_batch("T", [b"%d" % k for k in range(100)])
            await client.admin.commit("G", {("T", "broker-a", 0): 7})
            await caught_up(master, slave)
            await broker_of(of).metadata.save()
            confirmed = Wanted(partial(getattr, broker_of(of).store, "confirm_offset"))
            backup(of.config.node.data, tmp_path / f"{name}.b", confirmed)
    await slave.stop()
    await master.stop()
    for name, made in (("m", "short"), ("second", "short"), ("third", "long")):
        restore(
            tmp_path / f"{made}.b",
            tmp_path / "again" / name,
            None,
            NOW,
            partial(identity.restored, incarnation=9),
        )
    again = Group(start_node, tmp_path / "again")
    master = await again.start_master()
    second, third = await again.start_slave("second"), await again.start_slave("third")
    await following(second)
    await caught_up(master, second)
    assert slave_of(second).truncated_bytes == 0
    assert log_bytes(second) == log_bytes(master)
    assert broker_of(master).metadata.tables.committed("G", "T", 0) == 7
    machine = slave_of(third)
    await until(
        lambda: (
            machine.state is ConnectionState.SUSPEND
            and "was confirmed to clients: not cut" in machine.reason
        )
    )
    assert machine.truncated_bytes == 0


async def test_a_restored_member_that_led_alone_is_not_followed_and_is_shown_as_it_is(
    tmp_path: Path, start_node: StartNode
) -> None:
    """It has taken messages by itself, and is put back into its group, which went on."""
    registry = MemoryRegistry()
    group = dict(registry=registry, broker_role="AUTO")

    async def started(where: Path, name: str) -> Node:
        return await start_node(where, name=name, ha={"listen": free_endpoint()}, **group)

    nodes = [await started(tmp_path / name, name) for name in "ab"]
    await until(lambda: Elected(nodes).master is not None)
    master = Elected(nodes).the_master()
    async with duolog.Client(f"127.0.0.1:{master.port}", timeout=10) as client:
        await client.admin.create_topic("T", 1)
        await broker_of(master).metadata.save()
        confirmed = Wanted(partial(getattr, broker_of(master).store, "confirm_offset"))
        backup(master.config.node.data, tmp_path / "backup", confirmed)
        where = tmp_path / "c"
        restore(tmp_path / "backup", where, None, NOW, partial(identity.restored, incarnation=9))
        alone = await start_node(where, name="c")
        async with (
            duolog.Client(f"127.0.0.1:{alone.port}", timeout=10) as other,
            other.producer() as producer,
        ):
            await producer.send_batch("T", [bytes(1000)] * 20)
        end = broker_of(alone).store.max_offset
        await alone.stop()
        async with client.producer() as producer:
            await producer.send("T", b"of the group")
        fork = await started(where, "c")
        machine = slave_of(fork)
        status = await client.admin.cluster_status()

        async def suspended() -> bool:  # between two tries; each begins with a handshake
            nonlocal status
            status = await client.admin.cluster_status()
            return "SUSPEND" in [of.replication.state for of in status.nodes if of.name == "c"]

        await until(suspended)
        assert machine.truncated_bytes == 0
        (shown,) = [node for node in status.nodes if node.name == "c"]
        assert (shown.listen, shown.max_offset) == (f"127.0.0.1:{fork.port}", end)
        assert "c" not in status.nodes[0].replication.sync_state_set
