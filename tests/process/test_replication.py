"""Master and slave as processes: either is killed repeatedly, and finally they are swapped.

Nothing acknowledged as PUT_OK is lost or duplicated on either node, and the logs end up equal.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import duolog
import pytest
from duolog.testing._ports import free_endpoint

from tests.process.support import NodeProcess
from tests.until import until

pytestmark = [pytest.mark.process, pytest.mark.long]

KILLS = int(os.environ.get("DUOLOG_TEST_REPLICA_KILLS", "30"))
SMALL = (
    "--set", "store.mapped_file_size_commit_log=1048576",
    "--set", "store.mapped_file_size_consume_queue=20000",
    "--set", "node.log_level=error",
)  # fmt: skip
QUEUES = 2


class Load:
    """Senders that never stop; what was promised to be on two nodes."""

    def __init__(self) -> None:
        self.safe: dict[bytes, tuple[int, int]] = {}
        self.less: set[bytes] = set()
        self.sent = 0
        self.stopping = False

    async def send(self, producer: duolog.Producer, sender: int) -> None:
        while not self.stopping:
            self.sent += 1
            body = b"%d-%d" % (sender, self.sent) + b"." * (self.sent % 900)
            try:
                receipt = await producer.send("T", body, queue_id=sender % QUEUES, timeout=20)
            except duolog.DuologError:
                self.less.add(body)
                continue
            if receipt.status == "PUT_OK":
                self.safe[body] = (receipt.queue_id, receipt.queue_offset)
            else:
                self.less.add(body)
                await asyncio.sleep(0.01)


async def status_of(node: NodeProcess) -> duolog.NodeStatus:
    async with duolog.Client(node.endpoint, timeout=20) as client:
        return await client.admin.node_status()


async def in_sync(master: NodeProcess) -> int:
    """Wait until master and slave have the same, confirmed; the end of the log."""
    end = 0
    told = list[int]()

    async def level() -> bool:
        nonlocal end
        status = await status_of(master)
        end = status.max_offset
        slaves = [row.received_offset for row in status.replication.slaves]
        told[:] = [end, status.confirm_offset, *slaves[:1]]
        return told == [end] * 3

    try:
        await until(level, f"{master.name} and its slave have the same", pause=0.05)
    finally:
        print("ends of the log, confirmed, received:", told)
    return end


async def read_all(node: NodeProcess) -> dict[tuple[int, int], bytes]:
    """Every message of the topic by queue and offset."""
    found = {}
    async with duolog.Client(node.endpoint, timeout=20) as client:
        for queue in range(QUEUES):
            offset = 0
            while True:
                batch = await client.pull("T", queue, offset)
                if not batch.count:
                    break
                for k, body in enumerate(batch.body_list()):
                    found[queue, batch[k].queue_offset] = body
                offset = batch.next_offset
    return found


def check(found: dict[tuple[int, int], bytes], load: Load) -> None:
    for body, place in load.safe.items():
        assert found.get(place) == body, f"acknowledged {body[:20]!r} is not at {place}"
    times = Counter(found.values())
    assert max(times.values()) == 1, "stored twice"
    assert set(times) <= set(load.safe) | load.less


def equal_logs(a: Path, b: Path, end: int) -> None:
    for segment in sorted((a / "commitlog").iterdir()):
        size = min(segment.stat().st_size, end - int(segment.name))
        if size > 0:
            other = (b / "commitlog" / segment.name).read_bytes()[:size]
            assert segment.read_bytes()[:size] == other, segment.name


async def test_kills_of_master_and_slave_lose_nothing_that_two_should_have(tmp_path: Path) -> None:
    port = free_endpoint()
    master = NodeProcess(tmp_path / "m", "--role", "SYNC_MASTER", "--ha-listen", port, *SMALL)
    slave = NodeProcess(
        tmp_path / "s", "--role", "SLAVE", "--ha-master", port, *SMALL,
        "--set", "ha.reconnect_interval=100",
    )  # fmt: skip
    chance = random.Random(20)
    load = Load()
    try:
        await asyncio.to_thread(master.start)
        await asyncio.to_thread(slave.start)
        await in_sync(master)
        async with duolog.Client(master.endpoint, timeout=20) as client:
            await client.admin.create_topic("T", QUEUES)
            async with client.producer(timeout=20) as producer:
                senders = [asyncio.ensure_future(load.send(producer, k)) for k in range(6)]
                for _ in range(KILLS):
                    before = len(load.safe)
                    await until(
                        lambda before=before: len(load.safe) >= before + 20,  # type: ignore[misc]
                        "both nodes store messages again",
                    )
                    victim = chance.choice((master, slave))
                    await asyncio.to_thread(victim.kill)
                    await asyncio.to_thread(victim.start)
                load.stopping = True
                await asyncio.gather(*senders)
        await in_sync(master)
        for node in (master, slave):
            check(await read_all(node), load)
        # The master goes for good, its disk with it: the slave has all that was promised.
        master.kill()
        assert slave.stop() == 0
        promoted = NodeProcess(tmp_path / "s", "--role", "SYNC_MASTER", "--ha-listen", port, *SMALL)
        again = NodeProcess(tmp_path / "m", "--role", "SLAVE", "--ha-master", port, *SMALL)
        master, slave = promoted, again
        await asyncio.to_thread(promoted.start)
        await asyncio.to_thread(again.start)
        end = await in_sync(promoted)
        for node in (promoted, again):
            check(await read_all(node), load)
        assert (again.stop(), promoted.stop()) == (0, 0)
        equal_logs(tmp_path / "s", tmp_path / "m", end)
    finally:
        for node in (slave, master):
            if node.running:
                node.kill()
    assert len(load.safe) >= 20 * KILLS
