"""Nodes that start in restored directories, in a group of fixed roles."""

from functools import partial
from pathlib import Path

from duolog_server.ha import identity
from duolog_server.ha.progress import ConnectionState
from duolog_server.store.backup import Wanted, backup
from duolog_server.store.clocks import WallMs
from duolog_server.store.restore import restore
from tests.node.replicas import (
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
