"""200 SIGKILLs under load: nothing acknowledged is lost or duplicated, queue offsets are dense."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duolog
import pytest

from duolog_server.store import dump
from duolog_server.store.options import StoreOptions
from duolog_server.store.osdisk import OsDisk
from tests.process.support import INDEX_ENTRIES, INDEX_SLOTS, NodeProcess
from tests.until import until

pytestmark = [pytest.mark.process, pytest.mark.long]

KILLS = int(os.environ.get("DUOLOG_TEST_KILLS", "200"))
SHARES = 2  # tests that the kills are dealt to
NODES = 2  # of each of them, killed at the same time: most of it waits for disks and starts
FLAGS = (
    "--set", "store.flush_disk_type=SYNC_FLUSH",
    "--set", "store.mapped_file_size_commit_log=1048576",
    "--set", "store.mapped_file_size_consume_queue=20000",
    "--set", "node.log_level=error",
)  # fmt: skip


class Load:
    """Senders that never stop; what they were told."""

    def __init__(self, client: duolog.Client) -> None:
        self.client = client
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.unknown: set[bytes] = set()
        self.sent = 0
        self.stopping = False

    async def send(self, producer: duolog.Producer, sender: int) -> None:
        """One message after the other, each with its own body."""
        while not self.stopping:
            self.sent += 1
            body = b"%d-%d" % (sender, self.sent) + b"." * (self.sent % 700)
            try:
                receipt = await producer.send("T", body, timeout=60)
            except duolog.ResultUnknown:
                self.unknown.add(body)
                continue
            self.acknowledged[body] = (receipt.queue_id, receipt.queue_offset)

    def acknowledged_by(self, senders: Sequence[asyncio.Future[None]]) -> int:
        """How many messages were acknowledged. Raises what a sender has ended with."""
        for sender in senders:
            if sender.done():
                sender.result()
        return len(self.acknowledged)

    async def run(self, node: NodeProcess, kills: int, chance: random.Random) -> None:
        """Send while the node is killed again and again."""
        async with self.client.producer(timeout=20) as producer:
            senders = [asyncio.ensure_future(self.send(producer, k)) for k in range(8)]
            for _ in range(kills):
                before = len(self.acknowledged)
                await until(
                    lambda before=before: self.acknowledged_by(senders) >= before + 20,  # type: ignore[misc]
                    "sends go on after a restart",
                    seconds=120,
                    pause=0.005,
                )
                await asyncio.sleep(chance.random() * 0.05)
                node.kill()
                await asyncio.to_thread(node.start)
            self.stopping = True
            await asyncio.gather(*senders)


@pytest.mark.parametrize("share", range(SHARES))
async def test_random_sigkills_lose_nothing_acknowledged(tmp_path: Path, share: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(NODES):
            tasks.create_task(
                kill_again_and_again(tmp_path / str(number), -(-KILLS // SHARES // NODES))
            )


async def kill_again_and_again(directory: Path, kills: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"{directory}: seed {seed}")
    directory.mkdir()
    node = NodeProcess(directory / "data", *FLAGS)
    await asyncio.to_thread(node.start)
    try:
        async with duolog.Client(node.endpoint, timeout=30) as client:
            await client.admin.create_topic("T", 3)
            load = Load(client)
            await load.run(node, kills, random.Random(seed))
            found: Counter[bytes] = Counter()
            places: dict[bytes, tuple[int, int]] = {}
            (topic,) = await client.admin.topics(["T"])
            for queue in topic.stats:
                offset = queue.min_offset
                while offset < queue.max_offset:
                    batch = await client.pull("T", queue.queue_id, offset)
                    assert batch.lost == 0
                    expected = range(offset, batch.next_offset)
                    assert list(batch.queue_offsets) == list(expected)
                    for message in batch:
                        found[message.body] += 1
                        places[message.body] = (queue.queue_id, message.queue_offset)
                    offset = batch.next_offset
    finally:
        node.stop()
    assert len(load.acknowledged) > 20 * kills
    lost = [body for body in load.acknowledged if body not in found]
    doubled = [body for body, times in found.items() if times > 1]
    moved = [body for body, place in load.acknowledged.items() if places.get(body) != place]
    assert (lost, doubled, moved) == ([], [], [])
    assert set(found) <= set(load.acknowledged) | load.unknown
    options = StoreOptions(max_hash_slot_num=INDEX_SLOTS, max_index_num=INDEX_ENTRIES)
    assert dump.check(OsDisk(directory / "data", read_only=True), options)["problems"] == []
