"""python -m duolog_server.chaos.moves: queues move between two groups whose nodes are killed.

python -m duolog_server.chaos.moves --moves 500 --seed 3

Producers send by key and wait for each answer, a consumer group reads along, one queue after
another moves to the other group, and faults come all the while: kills and stops of nodes, mostly of
masters, planned switches, and an etcd that answers nothing for a while. At the end all is healed,
every queue read from its beginning and compared with what was acknowledged.

Exit status 0: no violation; 1: a guarantee was violated; 2: the run is invalid.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import duolog
from duolog import QueuePlace
from duolog.testing._node import ForkedNode
from duolog.testing._ports import free_endpoint

from duolog_server.chaos.checkers import Finding, finding
from duolog_server.chaos.localetcd import LocalEtcd
from duolog_server.chaos.target import Unsupported

GROUPS = ("a", "b")
TOPIC, READERS = "moved", "readers"
QUEUES, KEYS = 8, 12
LEASE_SECONDS = 2
SEND_SECONDS = 30.0
HEALED_SECONDS = 120.0
POLL_SECONDS = 0.1
FAULTS = ("kill", "kill", "pause", "switch", "etcd")
LASTS_SECONDS = 3.0  # a fault, at most
GAP_SECONDS = 5.0  # between two, in the mean
MASTER_SHARE = 0.7  # of kills and pauses
BATCH = 1000


@dataclass(slots=True)
class Ledger:
    """What the clients know: the numbers that each key sent, those acknowledged, those read."""

    sent: Counter[str] = field(default_factory=Counter)
    acked: set[tuple[str, int]] = field(default_factory=set)
    read: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


class Pair:
    """Two replica groups of two nodes each, with an etcd."""

    def __init__(self, directory: Path) -> None:
        self.etcd = LocalEtcd(directory)
        flags = ["--role", "AUTO", "--registry", ",".join(self.etcd.endpoints)]
        flags += ["--set", f"registry.lease_seconds={LEASE_SECONDS}"]
        flags += ["--set", "node.log_level=warning"]
        self.nodes = {
            f"{group}{number}": ForkedNode(
                f"{group}{number}", *flags, "--ha-listen", free_endpoint(),
                "--set", f"node.group={group}",
            )
            for group in GROUPS
            for number in (1, 2)
        }  # fmt: skip
        for node in self.nodes.values():
            node.place(directory)

    async def start(self) -> None:
        """Start etcd, then all nodes. Raises Unsupported, ChildError."""
        self.etcd.start()
        await asyncio.gather(*(asyncio.to_thread(one.start) for one in self.nodes.values()))

    def stop(self) -> None:
        """All processes down."""
        for node in self.nodes.values():
            node.end()
        self.etcd.stop()

    async def heal(self) -> None:
        """Start what was killed. Raises ChildError."""
        for node in self.nodes.values():
            if not node.running:
                await asyncio.to_thread(node.start)


class Run:
    """Clients, moves and faults of one run."""

    def __init__(self, pair: Pair, client: duolog.Client, moves: int, seed: int) -> None:
        self.ledger = Ledger()
        self.moved = 0
        self.faults: Counter[str] = Counter()
        self._pair = pair
        self._client = client
        self._wanted = moves
        self._chance = random.Random(seed)
        self._over = asyncio.Event()

    async def carry_out(self) -> None:
        """Until enough queues have moved, all is healed, and consumers have read all."""
        await until("the topic has queues in both groups", self._made)
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read())
            for number in range(KEYS):
                tasks.create_task(self._produce(f"key-{number}"))
            faults = tasks.create_task(self._strike())
            await self._move()
            self._over.set()
            await faults
            await self._pair.heal()
            await until("all that was acknowledged is read", self._all_read)
            reader.cancel()

    async def _made(self) -> bool:
        with suppress(duolog.TopicExists):
            await self._client.admin.create_topic(TOPIC, QUEUES)
        return {one.group for one in await self._client.admin.topics([TOPIC])} == set(GROUPS)

    async def _produce(self, key: str) -> None:
        async with self._client.producer(timeout=SEND_SECONDS) as producer:
            while not self._over.is_set():
                number = self.ledger.sent[key]
                self.ledger.sent[key] += 1
                with suppress(duolog.DuologError):
                    await producer.send(TOPIC, json.dumps([key, number]).encode(), key=key)
                    self.ledger.acked.add((key, number))
                await asyncio.sleep(self._chance.random() * 0.01)

    async def _read(self) -> None:
        """Until cancelled; after an error, by another consumer: repeats are allowed."""
        while True:
            with suppress(duolog.DuologError):
                async with self._client.consumer(READERS, TOPIC, commit_interval=0.5) as consumer:
                    while True:
                        message = await consumer.get(1)
                        if message is not None:
                            key, number = json.loads(message.body)
                            self.ledger.read[key].append(number)
            await asyncio.sleep(GAP_SECONDS)

    async def _all_read(self) -> bool:
        read = {(key, number) for key, numbers in self.ledger.read.items() for number in numbers}
        return self.ledger.acked <= read

    async def _move(self) -> None:
        """Move queues, one after another, wherever they lie."""
        admin, end = self._client.admin, time.monotonic() + HEALED_SECONDS
        while self.moved < self._wanted:
            if time.monotonic() > end:
                raise TimeoutError(f"no queue moved in {HEALED_SECONDS:g} s")
            with suppress(duolog.DuologError):
                name = QueuePlace(self._chance.choice(GROUPS), self._chance.randrange(QUEUES))
                at = (await self.chains()).get(name, [name])[-1]
                to = GROUPS[1 - GROUPS.index(at.group)]
                move = await admin.move_queue(TOPIC, at.queue_id, to, group=at.group)
                if move.has_moved:
                    self.moved, end = self.moved + 1, time.monotonic() + HEALED_SECONDS
            await asyncio.sleep(self._chance.random())

    async def chains(self) -> dict[QueuePlace, list[QueuePlace]]:
        """The places of each queue that moved, in order. Raises DuologError."""
        found: dict[QueuePlace, list[QueuePlace]] = defaultdict(list)
        for span in (await self._client.admin.moves(TOPIC)).spans:
            found[span.name].append(span.place)
        return found

    async def _strike(self) -> None:
        while not self._over.is_set():
            await asyncio.sleep(2 * GAP_SECONDS * self._chance.random())
            kind = self._chance.choice(FAULTS)
            with suppress(duolog.DuologError):
                await self._fault(kind, self._chance.choice(GROUPS))
                self.faults[kind] += 1

    async def _fault(self, kind: str, group: str) -> None:
        lasts = LASTS_SECONDS * self._chance.random()
        if kind == "etcd":
            self._pair.etcd.pause()
            await asyncio.sleep(lasts)
            self._pair.etcd.resume()
            return
        masters = {one.group: one.master for one in (await self._client.admin.route()).groups}
        master, names = masters[group], [name for name in self._pair.nodes if name[0] == group]
        if kind == "switch":
            async with duolog.Client(self._pair.nodes[names[0]].endpoint) as client:
                await client.admin.failover()
            return
        hit = master if self._chance.random() < MASTER_SHARE else self._chance.choice(names)
        node = self._pair.nodes[hit or names[0]]
        if kind == "kill":
            node.kill()
            await asyncio.sleep(lasts)
            await asyncio.to_thread(node.start)
        else:
            node.pause()
            await asyncio.sleep(lasts)
            node.resume()

    async def check(self) -> list[Finding]:
        """What was acknowledged is there once, in the order of its key; so it was read."""
        chains = await self.chains()
        names = {at: (name, k) for name, chain in chains.items() for k, at in enumerate(chain)}
        found: dict[tuple[str, int], list[tuple[QueuePlace, int, int]]] = defaultdict(list)
        for group in GROUPS:
            highest = max([QUEUES - 1, *(at.queue_id for at in names if at.group == group)])
            for queue_id in range(highest + 1):
                at = QueuePlace(group, queue_id)
                name, turn = names.get(at, (at, 0))
                async for body, offset in self._messages(at):
                    key, number = json.loads(body)
                    found[key, number].append((name, turn, offset))
        lost = sorted(self.ledger.acked - found.keys())
        twice = [f"{what} at {places}" for what, places in found.items() if len(places) > 1]
        return [
            *finding("lost", [f"{key} {number}" for key, number in lost]),
            *finding("duplicated", twice),
            *finding("not in order", list(self._disorder(found))),
            *finding("read out of order", list(self._read_disorder())),
        ]

    async def _messages(self, at: QueuePlace) -> AsyncIterator[tuple[bytes, int]]:
        offset = 0
        while True:
            batch = await self._client.pull(
                TOPIC, at.queue_id, offset, max_messages=BATCH, group=at.group
            )
            for message in batch:
                yield message.body, message.queue_offset
            if batch.next_offset <= offset:
                return
            offset = batch.next_offset

    def _disorder(
        self, found: dict[tuple[str, int], list[tuple[QueuePlace, int, int]]]
    ) -> list[str]:
        wrong = []
        for key, count in self.ledger.sent.items():
            there = [(found[key, n][0], n) for n in range(count) if (key, n) in found]
            for (before, n), (after, later) in pairwise(there):
                if before[0] != after[0] or before[1:] >= after[1:]:
                    wrong.append(f"{key}: {n} at {before}, {later} at {after}")
        return wrong

    def _read_disorder(self) -> list[str]:
        """Repeats are allowed: only when each was read first counts."""
        wrong = []
        for key, numbers in self.ledger.read.items():
            firsts = list(dict.fromkeys(numbers))
            wrong += [f"{key}: {b} after {a}" for a, b in pairwise(firsts) if b < a]
        return wrong


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds. Raises TimeoutError."""
    end, error = time.monotonic() + HEALED_SECONDS, ""
    while time.monotonic() < end:
        try:
            if await holds():
                return
        except duolog.DuologError as problem:
            error = f": {problem}"
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError(f"never: {what}{error}")


async def carried_out(moves: int, seed: int) -> dict[str, object]:
    """One run; its figures. Raises Unsupported, TimeoutError, and what processes raise."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="duolog-chaos-") as scratch:
        pair = Pair(Path(scratch))
        try:
            await pair.start()
            endpoints = [node.endpoint for node in pair.nodes.values()]
            async with duolog.Client(endpoints, timeout=SEND_SECONDS) as client:
                run = Run(pair, client, moves, seed)
                await run.carry_out()
                findings = await run.check()
        finally:
            pair.stop()
    return {
        "findings": [str(one) for one in findings],
        "moves": run.moved,
        "faults": dict(run.faults),
        "acknowledged": len(run.ledger.acked),
        "sent": run.ledger.sent.total(),
        "read": sum(map(len, run.ledger.read.values())),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m duolog_server.chaos.moves")
    parser.add_argument("--moves", type=int, default=100, help="queues to move")
    parser.add_argument("--seed", type=int, default=1, help="of the order of moves and faults")
    arguments = parser.parse_args()
    try:
        figures = asyncio.run(carried_out(arguments.moves, arguments.seed))
    except* (Unsupported, TimeoutError) as errors:
        print(f"error: {errors.exceptions[0]}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(figures, indent=1))
    return 1 if figures["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
