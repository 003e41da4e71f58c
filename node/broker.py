"""The broker: one store and everything that keeps it going, owned by the event loop."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog
from duolog import _errors as sdk
from duolog._machine import boot_id
from duolog.wire import duolog_pb2 as wire

from ha.master import Master
from ha.syncstate import SyncState
from node.admission import Admission
from node.clocks import Clock, SystemClock
from node.config import Config
from node.consumerfilters import ConsumerFilters
from node.delayservice import DelayService
from node.engine.allocating import Allocator
from node.engine.arrivals import ArrivalBoard
from node.engine.cleaning import Cleaner
from node.engine.filework import FileWork
from node.engine.flushing import TICK_SECONDS, Flusher
from node.engine.groupcommit import GroupCommitService
from node.engine.part import Part
from node.engine.queueremoval import QueueRemoval
from node.engine.storetimes import StoreTimes
from node.groups import NO_GRACE, GroupCoordinator
from node.liteservice import LiteService
from node.metadatalog import MetadataLog
from node.popservice import PopService
from node.publishservice import PublishService
from node.replication import Replication
from node.replication_client import ReplicationClient
from node.tagfilter import MessageFilter
from node.transactionservice import TransactionService
from node.wirecodec import PUT_STATUS
from store.clocks import MonoMs, WallMs
from store.columns import Columns
from store.disk import Disk
from store.errors import BadMessage, RepeatUnknown, StoreFenced
from store.messagestore import MessageStore, PutBatch, PutResult, StoreEvents
from store.reader import GetResult
from store.record import Host
from store.recovery import RecoveryReport
from store.status import PutMessageStatus

if TYPE_CHECKING:
    from node.failover import FailoverService

log = structlog.get_logger("duolog.node")

PUMP_SECONDS = 0.005  # longest the loop is kept dispatching at a stretch
SLAVE_PUMP_SECONDS = 0.002  # a slave's readers can wait so long; its master's writers need not
GROUP_GRACE_MS = 4000  # a new master's: its groups' members tell it first what they read
_EXPECTED_REFUSALS = (wire.NOT_MASTER, wire.IN_SYNC_REPLICAS_NOT_ENOUGH)
EXIT_FENCED = 74  # EX_IOERR


@dataclass(slots=True)
class Counters:
    """What went through this node since it started."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dispatch_behind_ms_max: float = 0.0


def physical_memory() -> int:
    """Bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def both(
    durable: "asyncio.Future[PutMessageStatus]", replicated: "asyncio.Future[PutMessageStatus]"
) -> "asyncio.Future[PutMessageStatus]":
    """What becomes of a put that waits for disk and slaves: the disk's word first."""
    outcome: asyncio.Future[PutMessageStatus] = asyncio.get_running_loop().create_future()

    def done(_: object) -> None:
        if outcome.done() or not (durable.done() and replicated.done()):
            return
        ok = durable.result() is PutMessageStatus.PUT_OK
        outcome.set_result(replicated.result() if ok else durable.result())

    durable.add_done_callback(done)
    replicated.add_done_callback(done)
    return outcome


class Broker:
    """Puts, reads and dispatches, and keeps a node's parts going; the services call it."""

    def __init__(
        self, config: Config, disk: Disk, store_host: Host, clock: Clock | None = None
    ) -> None:
        """clock: the machine's where none is given."""
        self.config = config
        self.clock = clock or SystemClock()
        self.advertised = config.node.advertise or f"{store_host.address}:{store_host.port}"
        self.limits = config.limits
        options = config.store_options()
        events = StoreEvents(problem=lambda text: log.error("store", problem=text))
        self.store = MessageStore(disk, options, events, store_host, boot_id())
        self.store.events.progress = self._show_progress
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="duolog-disk")
        self.times = StoreTimes(self.clock, self.store)
        self.board = ArrivalBoard()
        self.groups = GroupCoordinator(NO_GRACE, config.node.group)
        self.counters = Counters()
        self.started_ms = self.wall_ms()
        self.recovered: RecoveryReport | None = None
        self.failed = asyncio.Event()
        self.waiting_polls = 0
        self.group_commit = GroupCommitService(
            self.store, self.threads, self._flushed, self._disk_failed
        )
        self._file_work = FileWork(self.store, self.threads, self._disk_failed)
        self._flusher = Flusher(self._file_work, self.group_commit, self.mono_ms)
        self._allocator = Allocator(self.store, self.threads)
        self._cleaner = Cleaner(self._file_work, self.times.age_ms)
        self.metadata = MetadataLog(self)
        self.removal = QueueRemoval(self._file_work, self.guard, self.metadata.exists)
        self.pop = PopService(self)
        self.lite = LiteService(self)
        self.delays = DelayService(self)
        self.filters = ConsumerFilters(self)
        self.transactions = TransactionService(self)
        self.publishes = PublishService(self)
        self._parts: tuple[Part, ...] = (
            self.pop,
            self.lite,
            self.delays,
            self.transactions,
            self.publishes,
        )
        self.failover: FailoverService | None = None  # of a node that may be elected
        self.replication = Replication(self)
        self.follower: ReplicationClient | None = None
        self.admission = Admission(
            self.store, self.replication, self.metadata, config.limits, lambda: self.follower
        )
        self._ack_task: asyncio.Task[None] | None = None
        self._ack_due = False
        self._in_memory_bytes = (
            physical_memory() * self.replication.options.access_message_in_memory_max_ratio // 100
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._pumping = False
        self._sample: tuple[int, float] | None = None
        self._progress_shown = MonoMs(0)

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> RecoveryReport:
        """Recover and begin to work. Raises what `MessageStore.start` does, and BadStoreFile."""
        loop = asyncio.get_running_loop()
        self.recovered = await loop.run_in_executor(self.threads, self.store.start)
        try:
            await loop.run_in_executor(self.threads, self.store.checkpoint.settle)
            await loop.run_in_executor(
                self.threads, self.replication.open, self.recovered, self.store_ms()
            )
            self.metadata.load()
            await self.metadata.save()
            self.filters.start()
        except BaseException:
            self.store.shutdown()
            raise
        work: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self.group_commit.run,
            self._tick_loop,
            self._flusher.run,
            self._allocator.run,
            self._cleaner.run,
            self._snapshot_loop,
            *(part.run for part in self._parts),
        ]
        if self.replication.slave is not None and not self.replication.elected:
            address = self.config.ha.master  # type: ignore[attr-defined]
            self.follower = ReplicationClient(self, self.replication.slave, address)
            work.append(self.follower.run)
        self._tasks = [loop.create_task(self.guard(task)) for task in work]
        if self.replication.master is not None and self.store.options.sync_flush:
            self.group_commit.nudge()  # the barrier
        self.pump_soon()
        if not self.store.options.message_index_enable:
            log.warning(
                "the index is off",
                effect="no lookups by key; after a failover, delayed messages and transactions may "
                "be delivered twice, and what RocketMQ's clients repeat be stored twice",
            )
        report = self.recovered
        log.info(
            "recovered",
            abnormal=report.abnormal,
            scanned_from=report.scanned_from,
            end=report.end,
            bytes_cut=report.bytes_cut,
            corrupt_ranges=report.corrupt_ranges,
            rebuilt_queues=report.rebuilt_queues,
        )
        return report

    async def guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A background task that dies takes the node with it: nothing fails in silence."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Something failed that nobody can answer for: the node ends."""
        log.error("background task failed", exc_info=error)
        self._fence(f"{type(error).__name__}: {error}")

    async def stop(self) -> None:
        """Stop working, make everything durable, close the store."""
        tasks = list(self._tasks)
        if self._ack_task is not None:
            tasks.append(self._ack_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.removal.stop()
        async with self._file_work.changes:
            if not self.store.fence_reason:
                self.metadata.catch_up()
                await self.metadata.save()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.threads, self.store.shutdown)
        self._allocator.stop()
        self.threads.shutdown(wait=True)

    def wall_ms(self) -> WallMs:
        """The wall clock: what people read, and name."""
        return self.clock.wall_ms()

    def mono_ms(self) -> MonoMs:
        """The monotonic clock: what leases, sessions and intervals are measured by."""
        return self.clock.mono_ms()

    def store_ms(self) -> WallMs:
        """The time for the next record."""
        return self.times.next_ms()

    def check_index(self) -> None:
        """Raise BadRequest where nothing can be found by key."""
        if not self.store.options.message_index_enable:
            raise sdk.BadRequest(
                "this node keeps no index (store.message_index_enable=false), so nothing is found "
                "by key: read the queue, or name the message by its id"
            )

    def _show_progress(self, done: int, total: int) -> None:
        """Told from the recovery thread, at most once a second."""
        if self.mono_ms() - self._progress_shown > 1000:
            self._progress_shown = self.mono_ms()
            log.info("recovering", done_bytes=done, total_bytes=total)

    def _disk_failed(self, error: OSError) -> None:
        self._fence(f"sync failed: {error.strerror or error}")

    def _fence(self, reason: str) -> None:
        """After a failed sync or a bug: promise nothing more, and let the process end."""
        self.store.fence(reason)
        self.group_commit.fail_all()
        self.replication.fail_all()
        self.metadata.fail_all(StoreFenced(reason))
        self.failed.set()

    # -- roles ---------------------------------------------------------------------------------

    def promote(self, epoch: int, members: SyncState) -> Master:
        """This node was elected. Raises OSError or StoreError: it is a slave then as before."""
        master = self.replication.become_master(epoch, members, self.store_ms())
        self.metadata.promoted()
        self._role_changed(MonoMs(self.mono_ms() + GROUP_GRACE_MS))
        return master

    def demote(self) -> None:
        """This node is no master any more: whoever waits is told that nobody knows."""
        self.replication.become_slave()
        self.metadata.fail_all(sdk.Unavailable("the master changed meanwhile"))
        self._role_changed(NO_GRACE)

    def _role_changed(self, grace_until: MonoMs) -> None:
        self.groups = GroupCoordinator(grace_until, self.config.node.group)
        for part in self._parts:
            part.role_changed()
        self.pump_soon()

    # -- put -----------------------------------------------------------------------------------

    def append(
        self, request: wire.AppendRequest, host: Host
    ) -> "tuple[wire.AppendReply, asyncio.Future[PutMessageStatus] | None]":
        """Store a batch: the reply, and what to wait for before it may be sent."""
        reply = wire.AppendReply(id=request.id)
        refusal = self.admission.put(request)
        if refusal is not None:
            return self._reject(reply, request, refusal.status, refusal.reason), None
        try:
            self.metadata.make_if_missing(request.topic)
        except sdk.DuologError as error:
            return self._reject(reply, request, wire.SERVICE_NOT_AVAILABLE, str(error)), None
        try:
            batch = PutBatch(
                request.topic,
                request.queue_id,
                Columns.from_wire(
                    request.bodies,
                    request.body_offsets,
                    request.properties,
                    request.property_offsets,
                ),
                request.born_time,
                host,
                request.flag,
                producer=request.producer_id,
                sequence=request.sequence,
                repeat_of=self._repeat_of(request),
            )
            if request.transaction_group:
                group, seconds = request.transaction_group, request.immunity_seconds
                batch = self.transactions.half(batch, group, seconds)
            elif request.delay_level:
                batch = self.delays.at_level(batch, request.delay_level)
            elif request.deliver_time:
                batch = self.delays.at_time(batch, request.deliver_time, self.wall_ms())
            result = self.store.put(batch, self.store_ms())
        except BadMessage as error:
            return self._reject(reply, request, wire.MESSAGE_ILLEGAL, error.reason), None
        except sdk.BadRequest as error:
            return self._reject(reply, request, wire.MESSAGE_ILLEGAL, str(error)), None
        except RepeatUnknown as error:
            return self._reject(reply, request, wire.SEQUENCE_TOO_OLD, str(error)), None
        if result.status is not PutMessageStatus.PUT_OK:
            status: wire.PutStatus = PUT_STATUS[result.status]
            return self._reject(reply, request, status, result.reason), None
        self.counters.messages_in += result.count
        self.counters.bytes_in += len(request.bodies) if result.count else 0
        self._fill(reply, result)
        return reply, self.settle(result.end_offset, request.no_wait)

    def _repeat_of(self, request: wire.AppendRequest) -> int | None:
        """Log offset that the first attempt of a repeat lies above, None for a first attempt.

        What the client knew to be confirmed may have been given up since, by an unclean election or
        a power cut of all replicas: the first attempt may lie below it in the log of today.
        """
        if not request.again:
            return None
        return self.replication.history.held_from(request.known_end, request.known_nonce)

    async def store_batch(self, batch: PutBatch) -> PutResult:
        """Store a batch and wait until it is as safe as was asked for; the status says if it is.

        For what the node itself stores, and for single messages of other protocols.
        """
        result, waiting = self.put_batch(batch)
        return result if waiting is None else replace(result, status=await waiting)

    def put_batch(
        self, batch: PutBatch
    ) -> "tuple[PutResult, asyncio.Future[PutMessageStatus] | None]":
        """As `store_batch`, with the future to wait for, or None."""
        closed = self.admission.closed()
        if closed is not None:
            return PutResult(closed.put_status, closed.reason), None
        result = self.store.put(batch, self.store_ms())
        if result.status is not PutMessageStatus.PUT_OK:
            return result, None
        self.counters.messages_in += result.count
        self.counters.bytes_in += len(batch.columns.bodies)
        waiting = self.settle(result.end_offset)
        self.pump_soon()
        return result, waiting

    def settle(
        self, end_offset: int, no_wait: bool = False
    ) -> "asyncio.Future[PutMessageStatus] | None":
        """What has to happen after an append: a future to wait for, or None.

        Without one the caller answers first and calls `pump_soon` then.
        """
        if self._sample is None:
            self._sample = (end_offset, time.monotonic())
        self._allocator.appended()
        self.replication.appended()
        sync_flush = self.store.options.sync_flush
        if no_wait or not self.waits:
            if sync_flush:
                self.group_commit.nudge()
            return None
        if not self.replication.waits:
            return self.group_commit.wait(end_offset)
        replicated = self.replication.await_slaves(end_offset)
        if not sync_flush:
            return replicated
        return both(self.group_commit.wait(end_offset), replicated)

    @property
    def waits(self) -> bool:
        """Puts are answered later: when the disk, or enough slaves, have them."""
        return self.store.options.sync_flush or self.replication.waits

    def applied(self) -> None:
        """A slave's log or confirm offset moved: dispatch in a moment, many small steps in one."""
        self._allocator.appended()
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_later(SLAVE_PUMP_SECONDS, self._pump)

    def _flushed(self) -> None:
        """The commit log was synced."""
        self.replication.flushed()
        if self.follower is not None:
            self._ack_due = True
            if self._ack_task is None or self._ack_task.done():
                work = self._acknowledge(self.follower)
                self._ack_task = asyncio.get_running_loop().create_task(work)
        self.pump_soon()

    async def _acknowledge(self, follower: ReplicationClient) -> None:
        """Tell the master of every sync, also of one that ends while the last one is told."""
        while self._ack_due:
            self._ack_due = False
            await follower.flushed()

    def no_flush(self) -> AbstractAsyncContextManager[None]:
        """While the log may be cut: no sync and no other work on its files is under way."""
        return self._flusher.stopped()

    def _reject(
        self,
        reply: wire.AppendReply,
        request: wire.AppendRequest,
        status: wire.PutStatus,
        reason: str,
    ) -> wire.AppendReply:
        # Whoever waits for a master asks often: that is no news.
        tell = log.debug if status in _EXPECTED_REFUSALS else log.warning
        tell(
            "append refused",
            topic=request.topic[:200],
            queue_id=request.queue_id,
            status=wire.PutStatus.Name(status),
            reason=reason,
        )
        reply.status = status
        reply.reason = reason
        if status == wire.NOT_MASTER:
            reply.master, reply.master_epoch = self.replication.master_endpoint
        return reply

    def _fill(self, reply: wire.AppendReply, result: PutResult) -> None:
        reply.status = wire.PUT_OK
        reply.count = result.count
        reply.queue_offset = result.queue_offset
        reply.physical_offset = result.physical_offset
        reply.store_time = result.store_time
        if result.count:
            reply.epoch_nonce = self.replication.history.entry_at(result.physical_offset).nonce
        if self.replication.master is not None:
            reply.master_epoch = self.replication.master.epoch
        reply.store_host = f"{self.store.store_host.address}:{self.store.store_host.port}"
        for run in result.duplicates:
            reply.duplicates.add(
                count=run.end - run.first,
                topic=run.topic,
                queue_id=run.queue_id,
                queue_offset=run.queue_offset,
            )

    # -- dispatch ------------------------------------------------------------------------------

    def pump_soon(self) -> None:
        """Dispatch what is readable, when the loop comes round."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Dispatch for a few ms, wake readers, come again if there is more."""
        self._pumping = False
        until = time.monotonic() + PUMP_SECONDS
        more = True
        while more and time.monotonic() < until:
            more = self.store.dispatch()
        arrivals = self.store.take_arrivals()
        if arrivals:
            keys = {(arrival.topic, arrival.queue_id) for arrival in arrivals}
            self.metadata.catch_up()
            self.board.arrived(keys)
            self.lite.arrived(topic for topic, _ in keys)
        if self._sample is not None and self.store.dispatcher.reput_from >= self._sample[0]:
            behind = (time.monotonic() - self._sample[1]) * 1000
            if not self.waits:
                self.counters.dispatch_behind_ms_max = max(
                    self.counters.dispatch_behind_ms_max, behind
                )
            self._sample = None
        if more:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    # -- background ----------------------------------------------------------------------------

    async def _tick_loop(self) -> None:
        """What is due each tick and waits for no disk: replication's deadlines among it."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.times.watch()
            self.replication.tick()
            if self._flusher.commit_when_due():
                self.pump_soon()
            if self.store.dispatcher.behind_bytes() > 0:
                self.pump_soon()  # what a full disk stopped goes on by itself

    async def _snapshot_loop(self) -> None:
        while True:
            await asyncio.sleep(self.limits.snapshot_interval_ms / 1000)
            await self.metadata.save()

    # -- reading -------------------------------------------------------------------------------

    def read(
        self,
        key: tuple[str, int],
        offset: int,
        count: int,
        size: int,
        wanted: MessageFilter,
        group: str = "",
    ) -> GetResult:
        """Messages of a queue that are wanted. group: whose bits of the ext units tell of them."""
        count = min(count, wanted.at_once)
        bits = self.filters.bits(group, key[0], wanted)
        result = wanted.chosen(self.store.get(*key, offset, count, size, wanted.codes, bits))
        if result.count or not self.replication.may_be_behind():
            return result
        return result.where_behind(offset)

    def suggested_endpoint(self, physical_offset: int) -> str:
        """suggestPullingFromSlave: where a reader at a log offset had better read, or empty.

        Who is further back than access_message_in_memory_max_ratio percent of the memory reads
        from the disk, which a slave can do without slowing the master's writers down.
        """
        master = self.replication.master
        if master is None or not self.replication.options.slave_read_enable:
            return ""
        if self.store.log.max_offset - physical_offset <= self._in_memory_bytes:
            return ""
        return master.read_endpoint()
