"""Looks at the connections of gRPC's ports, and ends those that the ledger names.

A look is cheap where nothing grows: it reads one line of the kernel's, and all connections only
where memory has grown, or something is unfinished.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import structlog

from duolog_server.node.net.grpc.receive_limit.ledger import Ledger, Name
from duolog_server.node.net.grpc.receive_limit.sockets import Sockets, has_counters
from duolog_server.node.runtime.clocks import mono_ms
from duolog_server.node.runtime.memory import OwnMemory

log = structlog.get_logger("duolog.node")
T = TypeVar("T")

LOOK_SECONDS = 0.02
NEXT_SECONDS = 0.005  # to the next look where something is unfinished
BLIND_SECONDS = 1.0  # to the next look where the system did not let this one be
KNOWN_SECONDS = 10.0  # that a connection was ended: calls of it come until the core knows as well
RESTS = 10  # times the processor time of a look, at least
IDLE_LOOKS = 50  # without a reason, until all connections are looked at
GROWN_BYTES = 4 << 20  # of memory, since then: a reason


class Watch:
    """Watches the connections of a server's ports.

    Attributes:
        looks: whether it looks at them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.looks = False
        self._ledger = ledger
        self._ended_at: dict[Name, float] = {}  # when, by time.monotonic(); the latest one last
        self._memory = OwnMemory()
        self._problem = ""  # as logged; empty: it looks
        self._task: asyncio.Task[None] | None = None

    def has_ended(self, name: Name) -> bool:
        """Whether a connection was ended lately."""
        return name in self._ended_at

    def began(self, name: Name, size: int) -> None:
        """See Ledger; without effect where nothing looks."""
        if self.looks:
            self._ledger.began(name, size)

    def known(self, name: Name, size: int) -> None:
        """See Ledger; without effect where nothing looks."""
        if self.looks:
            self._ledger.known(name, size)

    def over(self, name: Name, gave_up: bool) -> None:
        """See Ledger; without effect where nothing looks."""
        if self.looks:
            self._ledger.over(name, gave_up)

    def start(self, ports: Collection[int]) -> None:
        """Look at the connections of these ports, where the system counts their bytes."""
        if has_counters():
            self.looks = True
            self._task = asyncio.get_running_loop().create_task(self._run(Sockets(ports)))

    async def stop(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self, sockets: Sockets) -> None:
        try:
            await self._keep_looking(sockets)
        except Exception as error:
            log.error("gRPC receive limit disabled after an internal error", exc_info=error)
        finally:
            self.looks = False
            sockets.close()
            self._memory.close()

    async def _keep_looking(self, sockets: Sockets) -> None:
        least, looks, rest = 0, 0, LOOK_SECONDS
        while True:
            await asyncio.sleep(rest)
            try:
                began = time.thread_time()
                memory = self._memory.read()
                spent = time.thread_time() - began
                least, looks = min(least, memory), looks + 1
                all_of_them = memory >= least + GROWN_BYTES or looks >= IDLE_LOOKS
                if all_of_them:
                    spent += await _in_turns(sockets.find(), lambda _: None)
                    least, looks = memory, 0
            except OSError as error:  # there was no descriptor left for a moment
                self._note(str(error))
                rest = BLIND_SECONDS
                continue
            self._note("")
            if all_of_them or self._ledger.unfinished:
                spent += await _in_turns(
                    sockets.received(), lambda part: self._ledger.look(part, mono_ms())
                )
                began = time.thread_time()
                self._end(sockets, self._ledger.judge(all_of_them, mono_ms()))
                spent += time.thread_time() - began
            rest = NEXT_SECONDS if self._ledger.unfinished else LOOK_SECONDS
            rest = max(rest, RESTS * spent)

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("gRPC: connections cannot be looked at", reason=problem)
        self._problem = problem

    def _end(self, sockets: Sockets, names: Collection[Name]) -> None:
        now, ended_at = time.monotonic(), self._ended_at
        while ended_at and next(iter(ended_at.values())) <= now - KNOWN_SECONDS:
            del ended_at[next(iter(ended_at))]
        for name in names:
            ended_at.pop(name, None)
            ended_at[name] = now
            log.warning(
                "gRPC: a connection was ended",
                peer=f"{name[0]}:{name[1]}",
                reason="it sent no whole request for long, and incomplete ones take more than "
                "limits.arriving_bytes_max",
            )
        sockets.end(names)


async def _in_turns(steps: Iterable[T], take: Callable[[T], None]) -> float:
    """Work in steps, after each of which others have their turn; CPU seconds that it took."""
    spent, began = 0.0, time.thread_time()
    for step in steps:
        take(step)
        spent += time.thread_time() - began
        await asyncio.sleep(0)
        began = time.thread_time()
    return spent + time.thread_time() - began
