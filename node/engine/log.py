"""A node's log: puts, what a put waits for, and when readers see it.

It owns the store and its background work. Services write through it. It knows no service, and other
replicas only through `Replicas`.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import structlog

from duolog_server.node.engine.arrivals import ArrivalBoard
from duolog_server.node.engine.freeze import Freeze
from duolog_server.node.engine.part import Work
from duolog_server.node.engine.storestatus import StoreStatus
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.runtime.clocks import Clock
from duolog_server.node.runtime.histogram import Histogram
from duolog_server.node.traces.recorder import Recorder
from duolog_server.node.upkeep.allocating import Allocator
from duolog_server.node.upkeep.cleaning import Cleaner
from duolog_server.node.upkeep.flushing import TICK_SECONDS, Flusher
from duolog_server.node.upkeep.groupcommit import GroupCommitService
from duolog_server.node.upkeep.threadwork import FileWork
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreClosed, StoreError, StoreFenced
from duolog_server.store.messagestore import (
    MessageStore,
    PutBatch,
    PutResult,
    Singles,
    SinglesResult,
)
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.queueends import QueueKey
from duolog_server.store.recovery import RecoveryReport
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.node")

PUMP_SECONDS = 0.005  # longest time the loop dispatches without a pause
# Longest delay of the dispatch of answered messages that no reader waits for. Each dispatch has a
# fixed cost for each queue: after every single send, producers would wait for it.
LATER_SECONDS = 0.05
MANY_BYTES = 256 << 10  # of log: they are dispatched after a tenth of that
CATCH_UP_SECONDS = 1.0  # longest time a read waits for the dispatch of what was answered before it
SLAVE_PUMP_SECONDS = 0.002  # readers of a slave can wait that long, writers of its master need not

# Those of RocketMQ's putMessageDistributeTime, and finer ones below.
APPEND_BOUNDS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0),
)

Outcome = asyncio.Future[PutMessageStatus]  # of a put that waits


@dataclass(slots=True)
class Counters:
    """Counts of this node since its start."""

    messages_in: int = 0
    bytes_in: int = 0
    dispatch_behind_ms_max: float = 0.0


class Replicas(Protocol):
    """The part of replication that the log uses."""

    @property
    def waits(self) -> bool:
        """Puts wait for slaves."""

    @property
    def syncs(self) -> bool:
        """Puts wait for this node's disk, regardless of its own settings."""

    def appended(self) -> None:
        """The log grew: send."""

    def await_slaves(self, end_offset: PhyOffset) -> Outcome:
        """The future result of a stored put that waits for slaves."""

    def flushed(self) -> None:
        """The log was synced on this node."""

    def tick(self) -> None:
        """Deadlines and housekeeping."""


def both(durable: Outcome, replicated: Outcome) -> Outcome:
    """The result of a put that waits for disk and slaves: an error of the disk takes precedence."""
    outcome: Outcome = asyncio.get_running_loop().create_future()

    def done(_: object) -> None:
        if outcome.done() or not (durable.done() and replicated.done()):
            return
        ok = durable.result() is PutMessageStatus.PUT_OK
        outcome.set_result(replicated.result() if ok else durable.result())

    durable.add_done_callback(done)
    replicated.add_done_callback(done)
    return outcome


class Log:
    """Puts, dispatch and the work on the files of one store, on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        disk_failed: Callable[[OSError], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """disk_failed: called if a sync fails, which is final. failed: if dispatch does."""
        self.store = store
        self.counters = Counters()
        self.append_seconds = Histogram(APPEND_BOUNDS)
        self.board = ArrivalBoard()
        self.times = StoreTimes(clock, store)
        self.traces: Recorder | None = None  # takes notes of batches, where spans are exported
        self.freeze = Freeze()
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="duolog-disk")
        self.group_commit = GroupCommitService(store, self.threads, self._flushed, disk_failed)
        self.file_work = FileWork(store, self.threads, disk_failed)
        # Called in this order with the queues that have new entries, before readers are notified.
        self.dispatched: list[Callable[[Collection[QueueKey]], None]] = []
        self._flusher = Flusher(self.file_work, self.group_commit, self.times.mono_ms)
        self._allocator = Allocator(store, self.threads)
        self._cleaner = Cleaner(self.file_work, self.times.age_ms)
        self.followers = 0  # slaves of RocketMQ, which are sent the log behind its dispatch
        self._replicas: Replicas | None = None
        self._refused: Callable[[], PutResult | None] | None = None
        self._failed = failed
        self._next: asyncio.Handle | None = None  # the next dispatch
        self._later: asyncio.TimerHandle | None = None  # a dispatch of what was answered
        self._later_since = 0.0  # when it was planned
        self._over: StoreError | None = None  # why nothing is dispatched any more
        self._sample: tuple[int, float] | None = None
        self._progress_shown = MonoMs(0)
        store.events.progress = self._show_progress

    def connect(self, replicas: Replicas, refused: Callable[[], PutResult | None]) -> None:
        """Connect before the first put.

        refused: why nothing may be put now, None if it may.
        """
        self._replicas = replicas
        self._refused = refused

    @property
    def replicas(self) -> Replicas:
        """The node's part in its replica group."""
        assert self._replicas is not None, "connected before the first put"
        return self._replicas

    # -- life ----------------------------------------------------------------------------------

    async def recover(self, locked: Callable[[], None] = lambda: None) -> RecoveryReport:
        """Start the store, in a thread. See `MessageStore.start`, also for what it raises."""
        loop = asyncio.get_running_loop()
        self.store.lend = self.threads.submit
        report = await loop.run_in_executor(self.threads, self.store.start, locked)
        self.times.recovered()
        return report

    @property
    def work(self) -> tuple[Work, ...]:
        """Background work, to run until cancelled; an error in any of it ends the node."""
        return (
            self.group_commit.run,
            self._tick,
            self._flusher.run,
            self._allocator.run,
            self._cleaner.run,
        )

    async def close(self) -> None:
        """After the work was cancelled: make everything durable, then release the directory."""
        self.freeze.close()
        self._dispatch_no_more(StoreClosed())  # the thread below dispatches the rest
        await asyncio.get_running_loop().run_in_executor(self.threads, self.store.shutdown)
        self._allocator.stop()
        self.threads.shutdown(wait=True)

    def fence(self, reason: str) -> None:
        """After a failed sync or a bug: acknowledge nothing more."""
        self.store.fence(reason)
        self.group_commit.fail_all()

    async def _tick(self) -> None:
        """Work of each tick that never waits for the disk, such as the deadlines of replication."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.times.watch()
            self.replicas.tick()
            if self._flusher.commit_when_due():
                self.pump_soon()
            if self.store.dispatcher.behind_bytes() > 0:
                self.pump_soon()  # continues what a full disk stopped

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        """A lock held while the log may be truncated: no sync or other work on its files runs
        meanwhile.
        """
        return self._flusher.stopped()

    def _show_progress(self, done: int, total: int) -> None:
        """Log the progress of recovery; called in its thread, at most once a second."""
        if self.times.mono_ms() - self._progress_shown > 1000:
            self._progress_shown = self.times.mono_ms()
            log.info("recovering", done_bytes=done, total_bytes=total)

    # -- put -----------------------------------------------------------------------------------

    def count_in(self, messages: int, body_bytes: int = 0) -> None:
        """Count messages received from clients."""
        self.counters.messages_in += messages
        self.counters.bytes_in += body_bytes

    def write(self, batch: PutBatch) -> PutResult:
        """Store a batch now; `settle` tells what its answer must wait for."""
        if self.freeze.reason:  # also for the node's own, whose loops may have begun before
            return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, self.freeze.reason)
        began = perf_counter()
        result = self.store.put(batch, self.times.store_ms())
        if result.count:
            seconds = perf_counter() - began
            self.append_seconds.observe(seconds)
            if self.traces is not None:
                self.traces.stored(batch, result, seconds)
        return result

    def write_now(self, batch: PutBatch) -> PutResult:
        """Store a batch without waiting: later records follow it in the log."""
        result = self.write(batch)
        if result.status is PutMessageStatus.PUT_OK:
            self.settle(result.end_offset, no_wait=True)
            self.pump_soon()
        return result

    def put(self, batch: PutBatch) -> tuple[PutResult, Outcome | None]:
        """Store a batch unless puts are refused; the future to wait for, or None."""
        assert self._refused is not None, "connected before the first put"
        refused = self._refused()
        if refused is not None:
            return refused, None
        result = self.write(batch)
        if result.status is not PutMessageStatus.PUT_OK:
            return result, None
        return result, self._put(result.end_offset, result.count, len(batch.columns.bodies))

    def put_singles(self, singles: Singles) -> tuple[SinglesResult, Outcome | None]:
        """Put messages that arrived together; each is delivered by itself.

        Spans name batches: where they are exported, messages are put one by one.
        """
        assert self._refused is not None, "connected before the first put"
        assert self.traces is None, "no spans"
        refused = self._refused()
        if refused is not None:
            return SinglesResult(refused.status, refused.reason), None
        began = perf_counter()
        result = self.store.put_singles(singles, self.times.store_ms())
        if result.status is not PutMessageStatus.PUT_OK:
            return result, None
        self.append_seconds.observe(perf_counter() - began)
        columns = singles.columns
        return result, self._put(result.end_offset, columns.count, len(columns.bodies))

    def _put(self, end: PhyOffset, count: int, size: int) -> Outcome | None:
        """Note stored messages, up to an offset; return the future to wait for, or None."""
        self.count_in(count, size)
        waiting = self.settle(end)
        self.stored(waiting)
        return waiting

    def stored(self, waiting: Outcome | None) -> None:
        """A put is stored, and answered now or when its outcome is known: see `answered`."""
        if waiting is None:
            self.answered()
        else:
            self.pump_soon()

    async def put_and_wait(self, batch: PutBatch) -> PutResult:
        """Store a batch and wait until it is as durable as configured; the status says whether it
        is.

        For batches of the node itself, and single messages of other protocols.
        """
        result, waiting = self.put(batch)
        return result if waiting is None else replace(result, status=await waiting)

    def settle(self, end_offset: PhyOffset, no_wait: bool = False) -> Outcome | None:
        """The future that an answer must wait for after an append, or None.

        If None, the caller answers first and then calls `pump_soon`.
        """
        if self._sample is None:
            self._sample = (end_offset, time.monotonic())
        self._allocator.appended()
        self.replicas.appended()
        sync_flush = self.store.options.sync_flush or self.replicas.syncs
        if no_wait or not self.waits:
            if sync_flush:
                self.group_commit.nudge()
            return None
        if not self.replicas.waits:
            return self._noted("flush", end_offset, self.group_commit.wait(end_offset))
        replicated = self._noted("replicate", end_offset, self.replicas.await_slaves(end_offset))
        if not sync_flush:
            return replicated
        flushed = self._noted("flush", end_offset, self.group_commit.wait(end_offset))
        return both(flushed, replicated)

    def _noted(self, what: str, end_offset: PhyOffset, outcome: Outcome) -> Outcome:
        if self.traces is not None:
            self.traces.awaits(what, end_offset, outcome)
        return outcome

    @property
    def confirm_offset(self) -> PhyOffset:
        """Readers see nothing from this log offset on."""
        return self.store.confirm_offset

    def status(self) -> StoreStatus:
        """The state of the store."""
        return StoreStatus.of(self.store)

    @property
    def waits(self) -> bool:
        """Whether puts are answered later: when the disk or enough slaves have them."""
        return self.store.options.sync_flush or self.replicas.waits

    def answered(self) -> None:
        """A put that waits for nothing is answered: now it may be dispatched.

        At once where anybody waits for messages, else in a moment, many puts in one: a producer
        that sends one message after the other would wait for each. `caught_up` comes before a read.
        """
        if not self.waits:
            self.replicated()

    def replicated(self) -> None:
        """Enough slaves have what was put, and its answer is on its way: see `answered`."""
        if len(self.board):
            self.pump_soon()
        else:
            self._pump_in_time()

    def _pump_in_time(self) -> None:
        """Dispatch what no reader waits for: by time, or earlier behind an answer.

        After half of the delay, right after the next answer, while the client handles that: the
        timer might fire just when its next request arrives.
        """
        soon = self.followers or self.store.dispatcher.behind_bytes() >= MANY_BYTES
        delay = LATER_SECONDS / 10 if soon else LATER_SECONDS
        now = asyncio.get_running_loop().time()
        if self._later is not None and now - self._later_since >= delay / 2:
            self.pump_soon()
        else:
            self._pump_within(delay)

    def catch_up(self) -> None:
        """Dispatch what was answered; for a few ms at most.

        Raises StoreFenced if that cannot be done, StoreClosed after the end.
        """
        if self._later is not None:
            self._pump()
        if self._over is not None:
            raise self._over.with_traceback(None)

    async def caught_up(self) -> None:
        """Wait before a read until all that was answered is dispatched; a second at most.

        A large batch takes more than one turn of the event loop. Raises as `catch_up`.
        """
        answered, store = self.store.confirm_offset, self.store
        self.catch_up()
        loop = asyncio.get_running_loop()
        until = loop.time() + CATCH_UP_SECONDS
        # Nothing is planned where a full disk stopped it: then readers get what there is.
        while store.dispatched_offset < answered and self._next is not None and loop.time() < until:
            await asyncio.sleep(0)
            self.catch_up()

    def _flushed(self) -> None:
        """The commit log was synced."""
        self.replicas.flushed()
        self.pump_soon()

    # -- dispatch ------------------------------------------------------------------------------

    def applied(self) -> None:
        """A slave's log or confirm offset moved: dispatch soon, several small steps at once."""
        self._allocator.appended()
        # If it is elected, it answers only for what it has dispatched.
        self._pump_within(SLAVE_PUMP_SECONDS if len(self.board) else LATER_SECONDS / 10)

    def _pump_within(self, seconds: float) -> None:
        """Dispatch in a moment, or earlier if somebody asks for it."""
        if self._next is not None or self._over is not None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._later is None:
            self._later_since = now
        elif self._later.when() <= now + seconds:
            return
        else:
            self._later.cancel()
        self._later = loop.call_at(now + seconds, self._pump)

    def pump_soon(self) -> None:
        """Dispatch readable records in the next turn of the event loop."""
        if self._next is None and self._over is None:
            self._next = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Dispatch for a few ms, notify readers, and schedule another run if there is more.

        An error is a bug, in dispatch or in a part that was notified: readers may have missed
        messages for good, so that the node ends.
        """
        self._unplan()
        try:
            more = self._dispatch_a_while()
            self.announce()
        except Exception as error:
            self._dispatch_no_more(StoreFenced(f"{type(error).__name__}: {error}"))
            self._failed(error)
            return
        if more:
            self.pump_soon()

    def _dispatch_a_while(self) -> bool:
        """Whether there is more to dispatch."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PUMP_SECONDS
        more = True
        while more and loop.time() < until:
            more = self.store.dispatch()
        return more

    def _dispatch_no_more(self, why: StoreError) -> None:
        self._over = why
        self._unplan()

    def _unplan(self) -> None:
        """No dispatch is planned any more."""
        for planned in (self._next, self._later):
            if planned is not None:
                planned.cancel()
        self._next = self._later = None

    def announce(self) -> None:
        """Notify of dispatched messages: first the parts of the node, then the readers."""
        arrivals = self.store.take_arrivals()
        if arrivals:
            keys = dict.fromkeys((arrival.topic, arrival.queue_id) for arrival in arrivals)
            for tell in self.dispatched:
                tell(keys)
            self.board.arrived(keys)
        if self._sample is not None and self.store.dispatcher.reput_from >= self._sample[0]:
            behind = (time.monotonic() - self._sample[1]) * 1000
            if not self.waits:
                self.counters.dispatch_behind_ms_max = max(
                    self.counters.dispatch_behind_ms_max, behind
                )
            self._sample = None
