"""Certificates of the replication port that are replaced under a running group."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from duolog_server.demo.certificates import Authority
from duolog_server.node.replication.roles import Replication
from duolog_server.node.runtime import certificates
from tests.node.replicas import Group, broker_of, slave_of
from tests.nodefixtures import StartNode
from tests.until import WAIT_SECONDS, until


class Files:
    """The files of one group: the authority is trusted by all, and all have one certificate."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.one = self.authority.issue("one")
        self.ha = {
            "tls_ca": self.authority.cert,
            "tls_cert": self.one.cert,
            "tls_key": self.one.key,
        }

    def replace(self, other: "Files") -> None:
        """By those of another authority."""
        for key in self.ha:
            shutil.copy(other.ha[key], self.ha[key])


def followed(replication: Replication) -> int:
    """Slaves in sync, the master among them."""
    assert replication.master is not None
    return replication.master.in_sync()


async def hang_up(replication: Replication) -> None:
    """Break the connection of each slave, one after the other: a write always finds another."""
    following = followed(replication)
    for broken in list(replication._calls.values()):
        broken.cancel()
        await asyncio.wait([broken], timeout=WAIT_SECONDS)
        await until(lambda: followed(replication) == following)


async def test_both_ends_use_new_certificates_for_new_connections(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "LOOK_SECONDS", 0.05)
    old, new = Files(tmp_path / "old"), Files(tmp_path / "new")
    unchanged = Files(tmp_path / "unchanged")
    unchanged.replace(old)
    group = Group(start_node, tmp_path, **old.ha)
    master = await group.start_master()
    replication = broker_of(master).replication
    await group.start_slave(ha=old.ha)
    await until(lambda: followed(replication) == 2)
    statuses: set[Any] = set()
    stop = asyncio.Event()
    async with group.client(master) as client, client.producer() as producer:
        await client.admin.create_topic("T", 1)

        async def send() -> None:
            while not stop.is_set():
                statuses.add((await producer.send("T", b"x")).status)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            await asyncio.sleep(0.1)
            old.replace(new)
            await asyncio.sleep(0.2)
            assert followed(replication) == 2  # an open connection lives on
            await group.start_slave("s2", ha=new.ha)
            await until(lambda: followed(replication) == 3)
            await hang_up(replication)
            stop.set()
    assert statuses == {"PUT_OK"}
    stranger = await group.start_slave("s3", ha=unchanged.ha)  # has the old ones
    slave = slave_of(stranger)
    await until(lambda: slave.reason != "")
    assert followed(replication) == 3
