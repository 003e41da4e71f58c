"""Transactions and delayed messages while masters die: everything ends as it was decided, once."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import duolog
import pytest

from duolog_server.chaos.processes import ProcessTarget
from duolog_server.demo.topics import create_topic
from tests.etcd import need_etcd
from tests.process.test_failover import SMALL
from tests.until import until

pytestmark = [pytest.mark.process, pytest.mark.long]

KILLS = 5
FLAGS = (
    *SMALL,
    "--set", "transactions.timeout_ms=1000",
    "--set", "transactions.check_interval_ms=500",
)  # fmt: skip


class Told:
    """What the producers were told."""

    def __init__(self) -> None:
        self.committed: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self.prepared: set[bytes] = set()
        self.delayed: dict[bytes, int] = {}  # not to be seen before, ms
        self.over = asyncio.Event()


async def checker(message: duolog.UndecidedMessage) -> bool:
    return not message.body.endswith(b"r")


async def transact(client: duolog.Client, told: Told, name: str) -> None:
    """Halves that are committed, rolled back, or left to the checker, by their last letter."""
    dice = random.Random(name)
    number = 0
    async with client.transactions("orders", checker, timeout=20) as transactions:
        while not told.over.is_set():
            number += 1
            how = dice.choice("cru")  # the checker commits what is left
            body = f"t-{name}-{number}-{how}".encode()
            try:
                half = await transactions.prepare("T", body)
                told.prepared.add(body)
                if how == "c":
                    await transactions.commit(half)
                    told.committed.add(body)
                elif how == "r":
                    await transactions.rollback(half)
                    told.rolled_back.add(body)
            except (duolog.Retryable, duolog.ResultUnknown):
                continue


async def delay(client: duolog.Client, told: Told, name: str) -> None:
    dice = random.Random(name)
    number = 0
    async with client.producer(timeout=20) as producer:
        while not told.over.is_set():
            number += 1
            body = f"d-{name}-{number}".encode()
            seconds = dice.uniform(0.2, 5.0)
            earliest = int((time.time() + seconds) * 1000)
            try:
                await producer.send("T", body, deliver_at=earliest)
            except (duolog.Retryable, duolog.ResultUnknown):
                continue
            told.delayed[body] = earliest
            await asyncio.sleep(0.002)


async def in_sync(client: duolog.Client) -> int:
    groups = (await client.admin.route()).groups
    return sum(replica.in_sync for replica in groups[0].replicas) if groups else 0


async def leader(client: duolog.Client) -> str:
    """Wait until one leads: a master that stood still may just be replaced."""
    found = ""

    async def led() -> bool:
        nonlocal found
        groups = (await client.admin.route()).groups
        found = groups[0].master if groups else ""
        return bool(found)

    await until(led, "a master", pause=0.05)
    return found


async def stored(client: duolog.Client) -> list[duolog.Message]:
    found: list[duolog.Message] = []
    for queue in range(4):
        offset = 0
        while (batch := await client.pull("T", queue, offset)).count:
            found += batch
            offset = batch.next_offset
    return found


async def test_transactions_and_delays_are_conserved_while_masters_die(tmp_path: Path) -> None:
    need_etcd()
    target = ProcessTarget(tmp_path, lease_seconds=2, flags=FLAGS)
    await asyncio.to_thread(target.start)
    told = Told()
    try:
        async with duolog.Client([target.endpoint(n) for n in target.nodes], timeout=30) as client:

            async def all_in_sync() -> bool:
                return await in_sync(client) == 3

            await until(all_in_sync, pause=0.05)
            await create_topic(client, "T", 4)
            work = [
                asyncio.ensure_future(coroutine(client, told, f"{coroutine.__name__}{k}"))
                for coroutine in (transact, delay)
                for k in range(3)
            ]
            for _ in range(KILLS):
                await asyncio.sleep(2.0)
                master = await leader(client)
                await asyncio.to_thread(target.kill, master)
                known = len(told.committed)
                await until(
                    lambda known=known: len(told.committed) >= known + 20,  # type: ignore[misc]
                    "transactions are committed again",
                )
                await asyncio.to_thread(target.revive, master)
            # A slow machine comes to fewer meanwhile.
            await until(
                lambda: min(map(len, (told.committed, told.rolled_back, told.delayed))) > 200,
                "enough messages of each kind",
            )
            told.over.set()
            await asyncio.gather(*work)

            # Half messages that nobody decided on are asked about, and conserved, too.
            undecided = told.prepared - told.committed - told.rolled_back
            wanted = told.committed | {body for body in undecided if not body.endswith(b"r")}

            messages: list[duolog.Message] = []
            bodies: Counter[bytes] = Counter()

            async def all_came() -> bool:
                messages[:] = await stored(client)
                bodies.clear()
                bodies.update(message.body for message in messages)
                return wanted | told.delayed.keys() <= bodies.keys()

            async with client.transactions("orders", checker):
                try:
                    await until(all_came, "what was committed or delayed is stored", pause=0.5)
                finally:
                    missing = sorted((wanted | told.delayed.keys()) - bodies.keys())
                    print(len(missing), "missing:", missing[:10])
    finally:
        await asyncio.to_thread(target.stop)
    assert not told.rolled_back & bodies.keys()
    assert not {body for body in bodies if body.endswith(b"r")}
    early = {
        message.body: told.delayed[message.body] - message.store_time_ms
        for message in messages
        if message.store_time_ms < told.delayed.get(message.body, 0)
    }
    assert early == {}
    assert {body: count for body, count in bodies.items() if count > 1} == {}
