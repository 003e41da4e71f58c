"""`duolog migrate follow` as a process that is killed: what it copied stays, and it goes on."""

import asyncio
import signal
from pathlib import Path

import duolog
import pytest
from duolog.testing._node import ChildNode
from duolog.testing._process import ChildProcess

from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.cutover import Patience
from duolog_server.compat.migration.program import Source, cut_over
from duolog_server.compat.migration.state import State
from duolog_server.store.osdisk import OsDisk
from tests.compat.migration.conftest import config_of
from tests.compat.migration.master import HandMaster, copied, serving, written
from tests.known import known
from tests.process.support import migrating
from tests.support import SMALL
from tests.until import until

pytestmark = [pytest.mark.process]

KILLS = 3
SIZES = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
    "max_message_size",
)


def _migrate(data: Path, *words: str) -> ChildProcess:
    sizes = [word for name in SIZES for word in ("--set", f"store.{name}={getattr(SMALL, name)}")]
    return migrating(data, *words, sizes=tuple(sizes))


async def test_a_follower_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    log = written(tmp_path / "made", 400)
    data = tmp_path / "copy"
    async with serving(HandMaster(b"", frame_bytes=500, pause=0.001)) as master:
        follower = _migrate(data, "follow", "--broker", master.address)
        loop = asyncio.get_running_loop()
        for kill in range(KILLS):
            had = master.reports[-1] if master.reports else 0
            await loop.run_in_executor(None, follower.start)
            await master.grow(log[len(master.log) : len(log) * (kill + 1) // (KILLS + 1)])
            await until(lambda had=had: master.reports[-1:] > [had + 2000])  # type: ignore[misc]
            await loop.run_in_executor(None, follower.kill)
            master.drop()
        await master.grow(log[len(master.log) :])
        await loop.run_in_executor(None, follower.start)
        await until(lambda: master.reports[-1:] == [len(log)])
        follower.signal(signal.SIGTERM)
        assert await loop.run_in_executor(None, follower.stop) == 0
        assert len(master.asked) == KILLS + 1
    assert copied(data, len(log)) == log
    found = known(states.load(OsDisk(data)))
    assert found.state is State.FOLLOWING


async def test_a_node_that_waits_starts_when_its_directory_is_promoted(tmp_path: Path) -> None:
    log, data = written(tmp_path / "made", 100), tmp_path / "copy"
    sizes = [word for name in SIZES for word in ("--set", f"store.{name}={getattr(SMALL, name)}")]
    late = ChildNode(tmp_path / "none", *sizes, "--after-cutover", "0")
    node = ChildNode(data, *sizes, "--after-cutover", "60")
    for one in (late, node):
        await asyncio.to_thread(one.start)
    async with serving(HandMaster(log)) as master:
        source, quick = Source(master.address), Patience(pause=0.01, look=0.01)
        assert await cut_over(config_of(data), source, lambda text: None, quick) == len(log)
    async with duolog.Client(node.endpoint, timeout=30) as client:
        await node.wait_ready(client)
        assert (await client.admin.node_status()).max_offset >= len(log)
    assert await asyncio.to_thread(node.stop) == 0
    assert late.process is not None
    assert await asyncio.to_thread(late.process.wait, 60) == 1
    assert "was not promoted within 0 s" in late.log_tail()


async def test_a_node_that_waits_ends_a_cutover_that_is_killed(tmp_path: Path) -> None:
    """The broker refuses messages, and whoever has told it so is gone."""
    log, data = written(tmp_path / "made", 100), tmp_path / "copy"
    sizes = [word for name in SIZES for word in ("--set", f"store.{name}={getattr(SMALL, name)}")]
    node = ChildNode(data, *sizes, "--after-cutover", "60")
    await asyncio.to_thread(node.start)
    await until(lambda: "waiting for a cut-over" in node.log_tail())
    async with serving(HandMaster(log)) as master:
        follower = _migrate(data, "follow", "--broker", master.address)
        await asyncio.to_thread(follower.start)
        await until(lambda: master.reports[-1:] == [len(log)])
        assert await asyncio.to_thread(follower.stop) == 0
        master.putting_ms = 1  # so it is not promoted yet
        cutover = _migrate(data, "cutover", "--yes")
        await asyncio.to_thread(cutover.start)
        await until(lambda: "the broker stores no more messages" in cutover.log_tail())
        await asyncio.to_thread(cutover.kill)
        await until(lambda: "a cut-over did not end" in node.log_tail())
        master.putting_ms = 0
        async with duolog.Client(node.endpoint, timeout=30) as client:
            await node.wait_ready(client)
            assert (await client.admin.node_status()).max_offset >= len(log)
        assert master.settings["brokerRole"] == "SLAVE"
    assert await asyncio.to_thread(node.stop) == 0
    found = known(states.load(OsDisk(data)))
    assert (found.state, found.cut) == (State.PROMOTED, len(log))
