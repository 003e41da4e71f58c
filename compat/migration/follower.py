"""The follower: it owns the directory, copies a broker's log into it and keeps its tables.

It is the engine of a node (flushes, dispatch, retention) without the services: nothing is stored
but what the broker sends. Rules: the directory is locked while it runs; that nothing can be copied
any more is durable before it ends; a broker that is away is waited for.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import structlog
from duolog._background import Background

from duolog_server.compat.hawire.frames import BadStream, Frame
from duolog_server.compat.migration import state as states
from duolog_server.compat.migration.copying import CannotFollow, LogCopy
from duolog_server.compat.migration.link import MasterLink, connect
from duolog_server.compat.migration.preconditions import check_same, check_settings
from duolog_server.compat.migration.rocketmqbroker import (
    OldBroker,
    Runtime,
    parsed,
    read_tables,
    save_tables,
)
from duolog_server.compat.migration.state import Following, State
from duolog_server.compat.remoting.calling import CallRefused
from duolog_server.node.engine.log import Log, Outcome
from duolog_server.node.runtime.clocks import SystemClock
from duolog_server.node.runtime.config import Config
from duolog_server.node.runtime.storemaking import make_store
from duolog_server.node.upkeep.threadwork import done_in_thread
from duolog_server.store.disk import Disk
from duolog_server.store.messagestore import MessageStore, PutResult
from duolog_server.store.metadata import Metadata
from duolog_server.store.metadatafiles import SavedEnds, consumed_of
from duolog_server.store.offsets import PhyOffset
from duolog_server.store.record import LOCAL_HOST
from duolog_server.store.status import BrokerRole, FlushDiskType, PutMessageStatus

log = structlog.get_logger("duolog.following")

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.2, 5.0
TABLES_SECONDS = 10.0
UNREAD_SECONDS = 1.0  # until tables are tried again that could not be read
STALL_MS = 10_000  # without a byte from a broker that has more: connect anew
_AWAY = (OSError, TimeoutError, CallRefused, BadStream)  # what may pass


class _NoReplicas:
    """Replication, as a log without any sees it."""

    waits = syncs = False

    def appended(self) -> None:
        """See Replicas."""

    def flushed(self) -> None:
        """See Replicas."""

    def tick(self) -> None:
        """See Replicas."""

    def await_slaves(self, end_offset: PhyOffset) -> Outcome:
        """See Replicas."""
        raise AssertionError("nothing is put")


def store_of(config: Config, disk: Disk) -> MessageStore:
    """The store of a follower: a slave's, which flushes in its own time. It is not started."""
    options = dataclasses.replace(
        config.store, broker_role=BrokerRole.SLAVE, flush_disk_type=FlushDiskType.ASYNC_FLUSH
    )
    return make_store(config.model_copy(update={"store": options}), disk, LOCAL_HOST)


class Follower:
    """Follows one broker, as the file in the directory says."""

    def __init__(self, store: MessageStore, broker: OldBroker, following: Following) -> None:
        """store: see `store_of`. following: saved already, or new."""
        self._disk = store.disk
        self.broker = broker
        self.following = following
        self.store = store
        self.log = Log(self.store, SystemClock(), self._disk_failed, self._fail)
        self.log.connect(_NoReplicas(), _nothing_is_put)
        self._copy = LogCopy(self.store)
        self._background = Background(self._fail)
        self._link: MasterLink | None = None
        self._saved: dict[str, bytes] = {}  # tables, as they are in the files
        self._taking = asyncio.Lock()  # held while they are read and written
        self._opened = False
        self._shown = asyncio.Event()  # set while the broker has shown the bytes of this copy
        self.tables = Metadata()
        self.tables_read_ms = 0
        self.tables_reason = ""  # why they are not those of now
        self.reason = "not connected yet"  # why it does not follow now
        self.broker_end = 0  # where the broker's log ended when that was last heard
        self.caught_up_ms = 0  # when the copy last had all of it
        self._moved_ms = self.log.times.mono_ms()  # when it last grew, or had nothing to wait for
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- life ----------------------------------------------------------------------------------

    async def open(self, known: Following | None) -> None:
        """Lock and recover the directory, and note the broker that it follows.

        known: what the directory said when this was decided. Raises StoreError, OSError; the
        directory is then as it was, but for the mark of a cut-over that is tried again or ended.
        """
        try:
            await self.log.recover(functools.partial(self._take_over, known))
        except BaseException:
            self.log.threads.shutdown(wait=False)
            raise
        self._opened = True
        try:
            if self.following.state is not State.CUTTING:
                self._save(self.following)
        except BaseException:
            await self.close()
            raise

    def _take_over(self, known: Following | None) -> None:
        """A node that waits sees from the first moment on that a cut-over is tried again or ended:
        what is killed in its recovery is not left to nobody.
        """
        states.check_unchanged(self._disk, known)
        if self.following.state is State.CUTTING:
            self._save(self.following)

    def begin(self, *, keep_tables: bool = True) -> None:
        """Follow, until `close`. keep_tables: not where the caller takes them at its own time."""
        tables = (self._keep_tables,) if keep_tables else ()
        for task in (*self.log.work, self._keep_following, *tables):
            self._background.start(task())
        self.log.pump_soon()
        log.info("following a broker", address=self.following.ha, end=self.end)

    async def close(self) -> None:
        """Make everything durable, and release the directory. Raises OSError, StoreError."""
        await self._background.stop(None)
        self.broker.close()
        if self._opened:
            self._opened = False
            async with self.log.file_work.changes:
                await self.log.close()

    def becomes(self, state: State, **changes: object) -> None:
        """Note the next state, durably. Raises OSError."""
        self._save(self.following.becomes(state, **changes))

    def _save(self, following: Following) -> None:
        self.following = states.save(self._disk, following)

    def _fail(self, error: Exception) -> None:
        """It is over: the program ends with this error."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, CannotFollow):
            self.reason = str(error)
            log.error("cannot follow the broker any further", reason=str(error))
            if self.following.state is State.FOLLOWING:  # a cut-over that fails goes back by itself
                with suppress(OSError):  # the next start finds the same
                    self.becomes(State.STOPPED, reason=str(error))
        else:
            self.log.fence(f"{type(error).__name__}: {error}")
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # it need not be asked for

    def _disk_failed(self, error: OSError) -> None:
        self._fail(error)

    # -- how it stands -------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The end of the copy."""
        return self._copy.end

    @property
    def follows(self) -> bool:
        """Whether it is connected, and the broker has shown that it has the bytes of this copy."""
        return not self.reason and self._copy.is_compared

    @property
    def behind_bytes(self) -> int:
        """Bytes of the broker's log that are missing here, as far as known."""
        return max(0, self.broker_end - self.end)

    async def shown(self, seconds: float) -> None:
        """Return once the broker has shown the bytes of this copy, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._shown.wait()

    async def reserve_deleted(self) -> None:
        """Extend queues whose records the broker had deleted to their ends there.

        Nothing in the log tells of them, and their groups would miss messages that begin at offset
        0 again. Raises CallRefused, OSError, TimeoutError.
        """
        while self.store.dispatch():
            await asyncio.sleep(0)
        if self.store.dispatched_offset < self.end:
            reached = self.store.dispatched_offset
            raise OSError(f"queues have the messages up to {reached}, not {self.end}")
        known, found = set(self.store.queue_keys()), SavedEnds(self.end)
        for (topic, queue_id), consumed in consumed_of(self.tables).items():
            if consumed > 0 and (topic, queue_id) not in known:
                end = await self.broker.queue_end(topic, queue_id)
                found.rows.setdefault(topic, {})[str(queue_id)] = [end, 0]
        self.store.reserve(found)

    async def made_durable(self, end: int) -> None:
        """Sync the log up to an offset. Raises OSError where that fails."""
        await self.log.group_commit.flush(0)
        if self.store.flushed_offset < end:
            raise OSError(f"the log is on disk up to {self.store.flushed_offset}, not {end}")

    async def ask(self) -> Runtime:
        """Ask the broker where its log ends. Raises CallRefused, OSError, TimeoutError."""
        held = self.end
        runtime = await self.broker.runtime()
        self.broker_end = runtime.end
        now = self.log.times.mono_ms()
        if runtime.end <= held:
            self.caught_up_ms, self._moved_ms = self.log.times.wall_ms(), now
        elif now - self._moved_ms > STALL_MS and self._link is not None:
            self._moved_ms = now
            self._link.fail(f"it sends nothing, although its log ends at {runtime.end}")
        return runtime

    # -- the log -------------------------------------------------------------------------------

    async def _keep_following(self) -> None:
        pause, shown = PAUSE_SECONDS_MIN, ""
        while True:
            began = self.end
            try:
                await self._follow()
            except _AWAY as error:
                self.reason = str(error) or type(error).__name__
            if self.reason != shown:
                log.warning(
                    "not following the broker", address=self.following.ha, reason=self.reason
                )
                shown = self.reason
            pause = PAUSE_SECONDS_MIN if self.end > began else min(2 * pause, PAUSE_SECONDS_MAX)
            await asyncio.sleep(pause)

    async def _follow(self) -> NoReturn:
        """One connection, until it ends. Raises why it ended; CannotFollow is final."""
        self._check_sound()
        settings = await self.broker.settings()
        check_settings(settings, self.store.options)
        check_same(settings, self.following.name, self.following.broker)
        held = self.end
        runtime = await self.ask()
        self._check_range(held, runtime)
        self._shown.clear()
        link = self._link = await connect(self.following.ha, self._take)
        self._moved_ms = self.log.times.mono_ms()
        try:
            link.report(self._copy.ask(runtime.first))
            self.reason = ""
            await link.hold(lambda: self._copy.report)
        finally:
            link.close()
        raise ConnectionError("the connection ended")

    def _check_sound(self) -> None:
        """The log of a node is repaired from its master; a broker sends nothing twice."""
        damaged = min(self.store.log.corrupt_ranges, default=None)
        if damaged is not None:
            raise CannotFollow(
                f"this copy is damaged: its bytes from {damaged.start} to {damaged.end} are no "
                "records. Begin with an empty directory"
            )

    def _check_range(self, held: int, runtime: Runtime) -> None:
        if held and runtime.end < held:
            raise CannotFollow(
                f"the broker's log ends at {runtime.end}, this copy of it at {held}: the broker "
                "lost the end of its log, or is another one"
            )
        if held and held < runtime.first:
            raise CannotFollow(
                f"the broker's log begins at {runtime.first}, this copy ends at {held}: the bytes "
                "between are deleted. Begin with an empty directory"
            )

    def _take(self, frames: Sequence[Frame]) -> int:
        """Append frames; where the copy ends then."""
        before = self.end
        self._copy.take(frames)
        if self._copy.is_compared:
            self._shown.set()
        if any(frame.data for frame in frames):  # of a record that takes long, too
            self._moved_ms = self.log.times.mono_ms()
        if self.end > before:
            self.broker_end = max(self.broker_end, self.end)
            self.log.applied()
        if self.end >= self.broker_end:
            self.caught_up_ms = self.log.times.wall_ms()
        return self.end

    # -- the tables ----------------------------------------------------------------------------

    async def _keep_tables(self) -> None:
        """Only from a broker that is known to be the one: another may have its address now."""
        while True:
            read = False
            try:
                await self.ask()
                if read := self.follows:
                    await self.take_tables()
            except _AWAY as error:
                read = False
                self.tables_reason = f"tables: {str(error) or type(error).__name__}"
            await asyncio.sleep(TABLES_SECONDS if read else UNREAD_SECONDS)

    async def take_tables(self) -> None:
        """Read the broker's tables and write them. Raises CallRefused, OSError, TimeoutError."""
        failed: list[OSError] = []
        async with self._taking:
            texts = await read_tables(self.broker)
            write = functools.partial(save_tables, self._disk, texts, self._saved)
            if not await done_in_thread(self.log.threads, write, failed.append):
                raise failed[0]
            self._saved = texts
        self.tables_reason = ""
        self.tables, self.tables_read_ms = parsed(texts), self.log.times.wall_ms()


def _nothing_is_put() -> PutResult:
    return PutResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, "this directory follows a broker")
