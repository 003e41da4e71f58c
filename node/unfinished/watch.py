"""Looks at the connections of gRPC's ports, and ends those that the ledger says.

Few looks where nothing grows: every look reads a line of the kernel's, and only where memory has
grown, or something is unfinished, all connections.
"""

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

import structlog

from node.unfinished.ledger import Ledger, Name
from node.unfinished.sockets import Sockets, are_told
from store.clocks import MonoMs

log = structlog.get_logger("duolog.node")

LOOK_SECONDS = 0.05
NEXT_SECONDS = 0.01  # to the next look where something is unfinished
BLIND_SECONDS = 1.0  # to the next look where the system did not let this one be
RESTS = 10  # times what a look took, at least
IDLE_LOOKS = 20  # without a reason, until all connections are looked at
GROWN_BYTES = 4 << 20  # of memory, since then: a reason
_MEMORY = Path("/proc/self/statm")


class Watch:
    """The connections of a server's ports.

    Attributes:
        ended: connections that were ended.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ended = 0
        self._ledger = ledger
        self._looks = False
        self._problem = ""  # as logged; empty: it looks
        self._task: asyncio.Task[None] | None = None

    def known(self, name: Name, size: int) -> None:
        """See Ledger; nothing where nobody looks."""
        if self._looks:
            self._ledger.known(name, size)

    def start(self, ports: Collection[int]) -> None:
        """Look at the connections of these ports, where the system tells of them."""
        if are_told():
            self._looks = True
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
            log.error("gRPC: what has not arrived whole is not limited", exc_info=error)
        finally:
            self._looks = False
            sockets.close()

    async def _keep_looking(self, sockets: Sockets) -> None:
        loop, least, looks, rest = asyncio.get_running_loop(), 0, 0, LOOK_SECONDS
        while True:
            await asyncio.sleep(rest)
            began = loop.time()
            try:
                memory = _own_memory()
                least, looks = min(least, memory), looks + 1
                all_of_them = memory >= least + GROWN_BYTES or looks >= IDLE_LOOKS
                if all_of_them:
                    await sockets.find()
                    least, looks = memory, 0
            except OSError as error:  # there was no descriptor left for a moment
                self._note(str(error))
                rest = BLIND_SECONDS
                continue
            self._note("")
            if all_of_them or self._ledger.unfinished:
                self._look(sockets, all_of_them)
            rest = NEXT_SECONDS if self._ledger.unfinished else LOOK_SECONDS
            rest = max(rest, RESTS * (loop.time() - began))

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("gRPC: connections cannot be looked at", reason=problem)
        self._problem = problem

    def _look(self, sockets: Sockets, all_of_them: bool) -> None:
        now_ms = MonoMs(int(1000 * asyncio.get_running_loop().time()))
        for name in self._ledger.look(sockets.received(), all_of_them, now_ms):
            self.ended += 1
            log.warning(
                "gRPC: a connection was ended",
                peer=f"{name[0]}:{name[1]}",
                reason="requests that have not arrived whole fill the memory there is for them",
            )
            sockets.end(name)


def _own_memory() -> int:
    """Bytes that are of no file."""
    _, resident, shared, *_ = _MEMORY.read_bytes().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


__all__ = ["Watch"]
