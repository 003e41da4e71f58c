"""Cut-overs of a move: with a node that waits, and a SIGKILL of one side that ends the next moment.

What was killed is started again at once, as a supervisor does; a broker first gets the settings
back that it had, or it would not start as a slave without a master.
"""

import asyncio
import enum
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duolog.testing._process import ChildProcess

from bench.peers.peer import Server
from tests.conformance.classic import Producer
from tests.process.support import environment

WAITING = "waiting for a cut-over"  # in a node's log
BEGUN, FROZEN, PROMOTED, SERVED = (
    "begun",
    "the broker stores no more messages",
    "promoted",
    "served",
)
BEFORE = (BEGUN, "caught up", FROZEN)
SETTLED = "both logs end at offset"
DELAY_SECONDS_MAX = 0.3  # longer than the shortest step
ATTEMPTS_MAX = 20


class Side(enum.StrEnum):
    """What is killed."""

    NOTHING = "nothing"
    COMMAND = "command"
    NODE = "node"
    BROKER = "broker"


STEPS = {
    Side.NOTHING: (BEGUN,),
    Side.COMMAND: (*BEFORE, SETTLED, PROMOTED),
    Side.NODE: (*BEFORE, SETTLED, PROMOTED, SERVED),
    Side.BROKER: BEFORE,
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Of one side, so many seconds after a step. abort: the cut-over is ended before the next."""

    side: Side = Side.NOTHING
    step: str = BEGUN
    delay: float = 0.0
    abort: bool = False

    @classmethod
    def chosen(cls, seed: int) -> "Kill":
        """The kill of a seed."""
        chance = random.Random(seed)
        side = chance.choice(list(Side))
        step = chance.choice(STEPS[side])
        delay = chance.uniform(0.0, DELAY_SECONDS_MAX)
        if step is BEGUN and side is not Side.NOTHING:
            delay *= 10  # a program loads
        return cls(side, step, delay, side is Side.COMMAND and chance.random() < 0.3)


NO_KILL = Kill()


@dataclass(slots=True)
class Line:
    """When what happened (`monotonic`), from the start of the first attempt on."""

    began: float
    times: dict[str, float] = field(default_factory=dict)

    def note(self, what: str) -> None:
        """Something happened now."""
        again = sum(name.partition(" #")[0] == what for name in self.times)
        self.times[f"{what} #{again + 1}" if again else what] = time.monotonic()


class Cutting:
    """The cut-over of one directory, tried until it ends well."""

    def __init__(
        self, data: Path, flags: Sequence[str], node: ChildProcess, broker: Server
    ) -> None:
        """flags: of the command."""
        self._command = [sys.executable, "-m", "duolog_server.ops.cli.main", "migrate"]
        self._flags = ["--data", str(data), *flags]
        self._node = node
        self._broker = broker
        self._conf = data.parent / "broker.conf"
        self._settings = self._conf.read_text()
        self._killing: asyncio.Task[None] | None = None

    async def run(self, kill: Kill, producer: Producer, listen: str) -> Line:
        """Cut over; the producer is answered by the node's port at the end. Raises ChildError."""
        producer.next_address = listen
        await asyncio.to_thread(ChildProcess.start, self._node)
        began = time.monotonic()
        while WAITING not in self._node.log_tail():  # an operator looks as well
            self._node.must_live(began)
            await asyncio.sleep(0.02)
        line = Line(time.monotonic())
        for _ in range(ATTEMPTS_MAX):
            line.note(BEGUN)
            status = await self._attempt(kill, line)
            if self._killing is not None:
                await self._killing
            if status == 0:
                break
            line.note(f"ended with {status}")
            if kill.abort and kill.side is Side.COMMAND:
                line.note(f"abort ended with {await self._abort()}")
                kill = NO_KILL
        else:
            raise AssertionError(f"no cut-over came to its end: {line.times}")
        await self._served(producer, listen)
        line.note(SERVED)
        if kill.side is Side.NODE and kill.step is SERVED:
            await self._kill(kill, line, None)
            await self._served(producer, listen)
            line.note(SERVED)
        return line

    async def _attempt(self, kill: Kill, line: Line) -> int:
        """One run of the command; its exit status."""
        pipe = asyncio.subprocess.PIPE
        command = await asyncio.create_subprocess_exec(
            *self._command, "cutover", "--yes", *self._flags,
            stderr=pipe, stdout=asyncio.subprocess.DEVNULL, env=environment(),
        )  # fmt: skip
        assert command.stderr is not None, "it is a pipe"
        self._begin_kill(kill, BEGUN, line, command)
        while text := (await command.stderr.readline()).decode().strip():
            line.note(text.partition(":")[0])
            self._begin_kill(kill, text, line, command)
        return await command.wait()

    def _begin_kill(
        self, kill: Kill, text: str, line: Line, command: asyncio.subprocess.Process
    ) -> None:
        """Only once: whatever comes next is to be unharmed."""
        if self._killing is None and kill.side is not Side.NOTHING and text.startswith(kill.step):
            self._killing = asyncio.create_task(self._kill(kill, line, command))

    async def _kill(
        self, kill: Kill, line: Line, command: asyncio.subprocess.Process | None
    ) -> None:
        await asyncio.sleep(kill.delay)
        line.note(f"{kill.side} killed")
        match kill.side:
            case Side.NODE:
                await asyncio.to_thread(self._node.kill)
                await asyncio.to_thread(ChildProcess.start, self._node)
            case Side.BROKER:
                await asyncio.to_thread(self._broker.kill)
                self._conf.write_text(self._settings)
                await asyncio.to_thread(self._broker.start)
                await asyncio.to_thread(self._broker.wait_listening, self._broker.endpoint)
                line.note("the broker listens")
            case _ if command is not None and command.returncode is None:
                command.kill()

    async def _abort(self) -> int:
        command = await asyncio.create_subprocess_exec(
            *self._command, "abort", *self._flags, env=environment()
        )
        return await command.wait()

    async def _served(self, producer: Producer, listen: str) -> None:
        """Wait until the node has acknowledged a message from now on."""
        stored = producer.acknowledged_by(listen)
        async with asyncio.timeout(self._broker.ready_seconds):
            while producer.acknowledged_by(listen) == stored:
                self._node.must_live(time.monotonic())
                await asyncio.sleep(0.01)
