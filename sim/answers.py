"""What the answer to a put waits for, decided by a node's own log: its disk, its slaves, or both.

Rules: the log settles each put as in a process, on an event loop of the simulation, and gives up
waiting for its disk at `sync_flush_timeout`; syncs and replication are the simulated node's.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from duolog_server.ha.master import Master
from duolog_server.node.engine.log import Log, Outcome
from duolog_server.node.runtime.clocks import Clock
from duolog_server.store.clocks import MonoMs
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.status import PutMessageStatus
from sim.loop import SimLoop


class Writer(Protocol):
    """A simulated node, as the log of its process sees it."""

    store: MessageStore
    master: Master | None

    def mono(self) -> MonoMs:
        """The monotonic clock."""

    def seconds(self) -> float:
        """The monotonic clock, as an event loop reads it."""

    def later(self, delay: float, do: Callable[..., None]) -> None:
        """Do something after some ms, if the process still lives."""

    def flush_soon(self) -> None:
        """Have the commit log synced."""


class Replicas:
    """What the log knows of the simulated replication, where the node has no services."""

    def __init__(self, node: Writer) -> None:
        self._node = node

    @property
    def waits(self) -> bool:
        """Puts wait for slaves."""
        return self._node.master is not None and self._node.master.promises

    @property
    def syncs(self) -> bool:
        """Puts wait for this node's disk, whatever its own settings say."""
        return self._node.master is not None and self._node.master.syncs

    def appended(self) -> None:
        """The node sends it after this event, and has it synced."""

    def await_slaves(self, end_offset: PhyOffset) -> Outcome:
        """What becomes of a stored put that waits for slaves."""
        future: Outcome = asyncio.get_running_loop().create_future()
        assert self._node.master is not None, "only a master stores puts"
        status = self._node.master.await_slaves(end_offset, self._node.mono(), future)
        if status is not None:
            future.set_result(status)
        return future

    def flushed(self) -> None:
        """The node says so itself."""

    def tick(self) -> None:
        """The node does so itself."""


class Answers:
    """The answers of one process. Without services it has a loop and a log for nothing else."""

    def __init__(self, log: Log, loop: SimLoop) -> None:
        self.log = log
        self.loop = loop
        if log.store.options.sync_flush:
            watch = log.group_commit.watch_deadlines
            loop.run_now(lambda: loop.create_task(watch()))

    @classmethod
    def of_node(cls, node: Writer, clock: Clock, chance: random.Random) -> "Answers":
        """Those of a node without services."""
        loop = SimLoop(node.later, node.seconds, chance)

        def failed(error: Exception) -> None:
            raise error

        log = Log(node.store, clock, failed, failed)
        log.connect(Replicas(node), lambda: None)
        return cls(log, loop)

    def when_settled(self, end: PhyOffset, answer: Callable[[PutMessageStatus], None]) -> None:
        """Answer a stored put once its log knows how: at once, or later."""
        outcome = self.loop.run_now(lambda: self.log.settle(end))
        if outcome is None:
            answer(PutMessageStatus.PUT_OK)
        else:
            outcome.add_done_callback(lambda done: answer(done.result()))

    def flushed(self) -> None:
        """The commit log was synced."""
        self.loop.run_now(self.log.group_commit.release)

    def released(self, token: Outcome, status: PutMessageStatus) -> None:
        """Slaves have what a put waits for, or it waits no longer."""
        if not token.done():
            self.loop.run_now(lambda: token.set_result(status))

    def stop(self) -> None:
        """The process dies."""
        self.loop.close()
