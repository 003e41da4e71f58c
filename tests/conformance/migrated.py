"""One move of a real broker while it is written to and read, with kills on the way."""

import asyncio
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duolog.testing._ports import free_endpoint
from duolog.testing._process import ChildProcess

from duolog_server.compat.remoting.calling import connect
from tests.conformance.brokers import Cluster, cluster, end_server
from tests.conformance.classic import AWAY, QUEUES, Consumer, Producer, create_topic, send
from tests.conformance.cutting import NO_KILL, Cutting, Kill
from tests.process.support import SMALL_FILES, NodeProcess, migrating, run_cli
from tests.until import until

SEGMENT = 1 << 20
LEVELS = "1s 4s 12s"
SIZES = (
    *SMALL_FILES,
    "--set", f"store.mapped_file_size_commit_log={SEGMENT}",
    "--set", f"store.message_delay_level={LEVELS}",
)  # fmt: skip
BODY_BYTES = 4000
ENTRY = struct.Struct(">qiq")  # of a consume queue: offset, size, tags code
GAP_SECONDS = 0.2  # shorter ones are of busy processors
WAIT_SECONDS = 180.0  # programs of their own, on a machine with many guests
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01H1\x02"
LATE = "DELAY\x013\x02UNIQ_KEY\x01L1\x02"  # due after the cut-over


@dataclass(frozen=True, slots=True)
class Moved:
    """What came of it. missing, twice: acknowledged messages that consumers got not at all, or more
    than once. same: both logs have the same bytes up to the cut, and so do their queues. gaps: the
    times without an acknowledgement since the cut-over began, each with when it began, its seconds,
    and who ended it. steps: of the cut-over, in seconds since it began.
    """

    cut: int
    acknowledged: int
    missing: int
    twice: int
    same: bool
    gaps: list[tuple[float, float, str]]
    steps: dict[str, float]
    status: dict[str, object]
    plan: list[dict[str, object]]


def bytes_of(directory: Path, end: int) -> bytes:
    """The bytes of a log's segments."""
    files = sorted(file for file in directory.iterdir() if file.name.isdecimal())
    return b"".join(file.read_bytes() for file in files)[:end]


def queues_of(directory: Path, end: int) -> dict[str, bytes]:
    """The entries of all queues for records below an offset, as their files have them."""
    found: dict[str, bytes] = {}
    for queue in sorted(path for path in directory.glob("*/*") if path.is_dir()):
        entries = b"".join(file.read_bytes() for file in sorted(queue.iterdir()))
        used = 0
        for offset, size, _ in ENTRY.iter_unpack(entries):
            if not size or offset >= end:
                break
            used += ENTRY.size
        if used:
            found[f"{queue.parent.name}/{queue.name}"] = entries[:used]
    return found


def program(data: Path, *words: str) -> ChildProcess:
    """`duolog migrate ...` as a process."""
    return migrating(data, *words, sizes=SIZES)


class Move:
    """A broker, a node to be, and clients of whichever of them stores messages."""

    def __init__(self, root: Path, version: str, messages: int) -> None:
        """messages: sent between two kills."""
        self.made: Cluster = cluster(
            root, version, mappedFileSizeCommitLog=SEGMENT, messageDelayLevel=LEVELS
        )
        self.data = root / "data"
        self.listen = free_endpoint()
        more = ("--set", f"remoting.listen={self.listen}", "--after-cutover", "180")
        self.node = NodeProcess(self.data, *SIZES, *more)
        self.producer = Producer(self.made.address, BODY_BYTES)
        self.consumer = Consumer(self.made.address)
        self._messages = messages

    async def run(self, kill: Kill = NO_KILL) -> Moved:
        """Move it; everything is stopped at the end. kill: during the cut-over."""
        made = self.made
        for server in (made.names, made.broker):
            server.start()
        try:
            await asyncio.to_thread(made.broker.wait_listening, made.address)
            await self._retried(lambda: create_topic(made.address))
            async with asyncio.TaskGroup() as tasks:
                work = [tasks.create_task(one.run()) for one in (self.producer, self.consumer)]
                moved = await self._move(kill)
                await self._received()
                for task in work:
                    task.cancel()
            return moved
        finally:
            await asyncio.to_thread(self.node.stop)
            for server in (made.broker, made.names):
                end_server(server)

    async def _received(self) -> set[bytes]:
        """What is acknowledged now, once the consumer has it; the producer goes on meanwhile."""
        expected = {*self.producer.acknowledged, b"late"}
        missing = set(expected)

        def all_came() -> bool:
            missing.difference_update(self.consumer.bodies)
            return not missing

        try:
            await until(all_came, seconds=WAIT_SECONDS)
        finally:
            if missing:
                print("not received:", sorted(missing)[:10])
        return expected

    async def _move(self, kill: Kill) -> Moved:
        made, data = self.made, self.data
        plan: list[dict[str, object]] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while not plan:  # a broker that has just begun registers in a moment
                words = ("plan", made.name_server, *SIZES, "--json")
                done = await asyncio.to_thread(run_cli, "migrate", *words, timeout=WAIT_SECONDS)
                plan = json.loads(done.stdout or "[]")
        await self._copy_under_fire()
        calling = await connect(made.address)
        await send(calling, b"half", HALF, 4)
        await send(calling, b"late", LATE)
        calling.close()
        cutting = Cutting(data, SIZES, self.node, made.broker)
        line = await cutting.run(kill, self.producer, self.listen)
        gaps = self.producer.gaps(line.began, GAP_SECONDS)
        shown = await self.cli("status", "--data", str(data), "--checksums", "--json")
        status = json.loads(shown)
        end = status["cut"]
        same = bytes_of(data / "commitlog", end) == bytes_of(made.store / "commitlog", end)
        stored = len(self.producer.acknowledged)
        self.producer.address, self.producer.next_address = self.listen, ""
        await self.cli("offsets", "--broker", made.address, "--endpoints", self.node.endpoint)
        self.consumer.address = self.listen
        await until(
            lambda: len(self.producer.acknowledged) > stored + self._messages, seconds=WAIT_SECONDS
        )
        expected, bodies = await self._received(), self.consumer.bodies
        same = same and (
            bytes_of(data / "commitlog", end) == bytes_of(made.store / "commitlog", end)
        )
        queues = queues_of(data / "consumequeue", end)
        same = same and len(queues) >= QUEUES
        same = same and queues == queues_of(made.store / "consumequeue", end)
        return Moved(
            end,
            len(self.producer.acknowledged),
            sum(body not in bodies for body in expected),
            sum(times > 1 for times in bodies.values()),
            same,
            [
                (round(begin - line.began, 3), round(end - begin, 3), self._name(by))
                for begin, end, by in gaps
            ],
            {what: round(at - line.began, 3) for what, at in line.times.items()},
            status,
            plan,
        )

    async def _copy_under_fire(self) -> None:
        """Follow, and kill either side on the way; the follower is stopped at the end."""
        follower = program(self.data, "follow", "--broker", self.made.address)
        try:
            await asyncio.to_thread(follower.start)
            await until((self.data / "commitlog").exists, seconds=WAIT_SECONDS)
            await self._grown()
            await asyncio.to_thread(follower.kill)
            await self._grown()
            await asyncio.to_thread(follower.start)
            await self._grown()
            await asyncio.to_thread(self.made.broker.kill)
            await asyncio.to_thread(self.made.broker.start)
            await self._grown()
            await self._followed()
            assert await asyncio.to_thread(follower.stop) == 0
        finally:
            await asyncio.to_thread(follower.stop)

    async def _followed(self) -> None:
        """It follows without a problem, and has the tables."""
        found: dict[str, object] = {}

        async def well() -> bool:
            found.clear()
            found.update(await self._status())
            return bool(found.get("tables_read")) and not found.get("problems")

        await until(well, "the copy follows", seconds=WAIT_SECONDS, pause=0.2)
        assert found["state"] == "FOLLOWING", found

    def _name(self, address: str) -> str:
        return "node" if address == self.listen else "broker"

    async def _grown(self) -> None:
        end = len(self.producer.acknowledged) + self._messages
        await until(lambda: len(self.producer.acknowledged) >= end, seconds=WAIT_SECONDS)

    async def _status(self) -> dict[str, object]:
        words = ["migrate", "status", "--data", str(self.data), "--json"]
        done = await asyncio.to_thread(run_cli, *words)
        found: dict[str, object] = json.loads(done.stdout or "{}")
        return found

    async def _retried(self, work: Callable[[], object]) -> None:
        """A broker listens before it can be asked."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                with suppress(*AWAY):
                    await work()  # type: ignore[misc]
                    return
                await asyncio.sleep(0.1)

    @staticmethod
    async def cli(*words: str) -> str:
        """Run `duolog migrate ...`; what it prints."""
        done = await asyncio.to_thread(run_cli, "migrate", *words, timeout=WAIT_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
