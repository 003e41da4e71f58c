"""Metadata through the log: a change is stored as a record, and applied once the record is
readable.

So an acknowledged change is as durable as a message, and every replica that has the log has it.
"""

import asyncio
import functools
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog
from duolog import _errors as sdk

from duolog_server.node.core.ports import Reads
from duolog_server.node.core.progress import Progress
from duolog_server.node.core.slices import Slices
from duolog_server.node.engine.log import Log, Outcome
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.node.upkeep.threadwork import done_in_thread
from duolog_server.store.accesstables import AccessTables
from duolog_server.store.births import Births
from duolog_server.store.clocks import WallMs
from duolog_server.store.columns import Columns
from duolog_server.store.errors import BadMessage
from duolog_server.store.grouptopics import dead_letter_topic
from duolog_server.store.kernels import decode
from duolog_server.store.lightqueues import is_light
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import (
    PERM_READ,
    PERM_WRITE,
    SYSTEM_TOPIC,
    Json,
    Metadata,
    Snapshot,
    TopicConfig,
    changes_of,
    check_new_group,
    check_queues,
    forgotten_in,
    is_nodes_topic,
    is_system_topic,
    new_group,
)
from duolog_server.store.metadatafiles import MetadataFiles, SavedEnds
from duolog_server.store.metadatarecovery import Doubt, MetadataRecovery, Recovered
from duolog_server.store.moves import Moves, Seal, seal_record
from duolog_server.store.names import check_topic
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.puts import QUEUE_ID_MAX
from duolog_server.store.queueends import QueueKey
from duolog_server.store.reader import Wanted
from duolog_server.store.status import BrokerRole, PutMessageStatus

log = structlog.get_logger("duolog.node")

CHANGE_SECONDS = 10.0
PAUSE_SECONDS = 0.01
QUEUE = 0
IMPORT_ROWS = 1000  # of one batch
QUEUES_AT_ONCE = 500  # of which the ends are saved
READ_ROWS, READ_BYTES = 4096, 8 << 20
QUOTA_CHANGES = ("quota", "delete_quota")


class _Records:
    """The metadata queue of a store, for `MetadataRecovery`."""

    def __init__(self, store: Reads, role: BrokerRole) -> None:
        self._store = store
        self.first: int = store.queue_range(SYSTEM_TOPIC, QUEUE)[0]
        end = store.next_offset(SYSTEM_TOPIC, QUEUE)
        # The tables of a slave may be newer than its log; those of a master never are.
        self.end = None if role is BrokerRole.SLAVE else end

    def place(self, offset: int) -> int:
        low, high = self._store.queue_range(SYSTEM_TOPIC, QUEUE)
        if not low <= offset < high:
            return -1
        return int(self._store.entries(SYSTEM_TOPIC, QUEUE, offset, 1)[0, 0])

    def read(self, offset: int) -> tuple[list[bytes], int]:
        result = self._store.get(
            SYSTEM_TOPIC, QUEUE, QueueOffset(offset), Wanted(READ_ROWS, READ_BYTES)
        )
        return [body for _, body, _ in result.rows()], result.next_offset


def _report(doubt: Doubt) -> None:
    log.warning("metadata file problem", file=doubt.file, reason=doubt.reason, action=doubt.action)


def _body(change: Json) -> bytes:
    return json.dumps(change, separators=(",", ":")).encode()


def _none_refused(config: TopicConfig) -> sdk.DuologError | None:
    """Topics may be created without quotas."""


def _nobody_knows() -> sdk.DuologError | None:
    raise AssertionError("the broker says whether metadata may be changed")


BeginAtEnds = Callable[[str, dict[str, dict[int, int]], Collection[QueueKey]], Awaitable[None]]


class MetadataLog:
    """The metadata tables; stores and applies their changes."""

    def __init__(self, log_: Log, limits: LimitsSection) -> None:
        self._log = log_
        self._store = log_.store
        self._limits = limits
        self.tables = Metadata()  # for others to read
        self._files = MetadataFiles(self._store.disk)
        self._writing, self._numbers, self._written = threading.Lock(), itertools.count(1), 0
        self._store.find_since(
            lambda topic: self.tables.births.topics.get(topic, 0),
            lambda topic, queue_id: self.tables.hidden_below(topic, queue_id),
        )
        # Why nothing may be changed now, None if it may. Set by the broker.
        self.refused: Callable[[], sdk.DuologError | None] = _nobody_knows
        # Why a topic may not be created now, None if it may. Set by the throttle.
        self.topic_refused: Callable[[TopicConfig], sdk.DuologError | None] = _none_refused
        # Whether this replica group gets no new topics and queues. Set by the broker.
        self.retires: Callable[[], bool] = lambda: False
        # Called with all quotas when any of them changed.
        self.quotas_changed: list[Callable[[Mapping[str, Json]], None]] = []
        self._quotas_told = True
        # Called when a deletion is applied, also where its caller is gone.
        self.topic_deleted: list[Callable[[str], None]] = []
        self.group_deleted: list[Callable[[str], None]] = []
        # Called after that with the ends of a topic's queues: removing their files takes time.
        self.queues_deleted: list[Callable[[str, dict[int, int]], Awaitable[None]]] = []
        # Called with topics, groups and queue ids: where groups have committed something new, once
        # queues were sealed, and what they may read from now on, or no longer.
        self.offsets_moved: list[Callable[[Collection[tuple[str, str, int]]], None]] = []
        self.gates_changed: list[Callable[[Collection[tuple[str, str, int]]], None]] = []
        self.sealed: list[Callable[[], None]] = []  # called when a queue was sealed
        # `begin` for a group that begins at the ends of some sealed queues. Set by the crossings.
        self.begin_at_ends: BeginAtEnds
        # Called with forgotten light queues and their ends.
        self.light_queues_forgotten: list[Callable[[dict[str, int]], None]] = []
        self._read = 0  # queue offset up to which records were read
        self._ahead = 0  # up to which the tables are newer than the queues; 0: they are not
        self._waiting: dict[int, asyncio.Future[None]] = {}
        # Changes stored at a queue offset and not applied yet; their callers may be gone.
        self._creating: dict[str, tuple[int, TopicConfig]] = {}
        self._deleting: dict[str, int] = {}  # groups
        # Topics may be missing; the queues tell which, once so many changes are applied.
        self._missing_after: int | None = None
        # Some records could not be read: the segment that holds them is damaged or lost.
        self._lacking = False
        self.progress = Progress(log_.times.mono_ms())

    @property
    def topics(self) -> dict[str, TopicConfig]:
        """All topics."""
        return self.tables.topics

    @property
    def births(self) -> Births:
        """Where topics and groups that were made again begin in the log."""
        return self.tables.births

    def has_group(self, name: str) -> bool:
        """Whether a group exists, as far as this node knows."""
        return name in self.tables.groups

    @property
    def group_names(self) -> Collection[str]:
        """The groups, as far as this node knows."""
        return self.tables.groups.keys()

    @property
    def access(self) -> AccessTables:
        """Users and their rights."""
        return self.tables.access

    @property
    def quotas(self) -> Mapping[str, Json]:
        """The quotas, by what they limit."""
        return self.tables.quotas

    def names(self) -> Collection[str]:
        """All topics, and those that stored changes will create."""
        return self.topics.keys() | self._creating.keys()

    def owners(self) -> dict[str, str]:
        """The owners of all of these."""
        creating = {name: config.owner for name, (_, config) in self._creating.items()}
        return {**creating, **{name: config.owner for name, config in self.topics.items()}}

    def creating(self, name: str) -> TopicConfig | None:
        """A topic that a stored change will create; None if there is no such change."""
        return self._creating[name][1] if name in self._creating else None

    def exists(self, name: str) -> bool:
        """Whether a topic exists, or a stored change will create it."""
        return name in self.topics or name in self._creating

    # -- life ----------------------------------------------------------------------------------

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold.

        Every waiting call waits for a change that is stored and not applied. A master has applied
        no more than its log holds. The tables are valid.
        """
        applied, stored = self.tables.applied, self._stored
        if applied > stored and self._store.role is not BrokerRole.SLAVE:
            return f"{applied} changes are applied, {stored} are stored"
        for offset in [*self._waiting, *(offset for offset, _ in self._creating.values())]:
            if not applied <= offset < stored:
                return f"change {offset} is waited for, {applied} of {stored} are applied"
        return self.tables.validate()

    def load(self) -> None:
        """Find the tables in the snapshots and the log. Raises BadStoreFile."""
        records = self._records()
        snapshots = self._store.take_snapshots()
        found = MetadataRecovery(snapshots, self._files, records, _report).run()
        self.tables = found.tables
        self._read = found.replayed_from
        self._lacking = found.lacking
        if found.partial:
            self._missing_after = self._stored
        self.catch_up()
        self._tell_quotas()
        self._drop_unbegun()
        if self._store.role is not BrokerRole.SLAVE:
            self._keep_births()
            self._keep_floors()
        self._apply_floors()
        self._store.keep_to(self.tables.moves, self.tables.applied)
        if self._store.role is not BrokerRole.SLAVE:
            self._keep_offsets()
        for topic in {name for name, _ in self._store.queue_keys()} - set(self.tables.topics):
            if topic in self.tables.floors:
                self._store.remove_topic(topic)
        if found.foreign and self._store.role is not BrokerRole.SLAVE:
            self._import(found, records.end == 0)

    def _records(self) -> _Records:
        return _Records(self._store, self._store.role)

    def _import(self, found: Recovered, first: bool) -> None:
        """Store the tables that another program's files held, so that the log has them as well.

        It has no waiter. first: the log has no changes yet, so that it is complete afterwards.
        """
        changes = changes_of(found.tables)
        if first:
            changes.append({"op": "complete", "complete": True})
        now = self._log.times.store_ms()
        for at in range(0, len(changes), IMPORT_ROWS):
            rows = [_body(change) for change in changes[at : at + IMPORT_ROWS]]
            result = self._log.write(
                PutBatch(SYSTEM_TOPIC, QUEUE, Columns.of(rows), now, accepted=True)
            )
            if result.status is not PutMessageStatus.PUT_OK:
                log.warning(
                    "tables written by another program are in config/ only, not in the log",
                    files=found.foreign,
                    reason=result.reason,
                )
                return
            self._log.settle(result.end_offset, no_wait=True)

    def promoted(self) -> None:
        """Rebuild the tables from the log, as this node became the master."""
        self.tables.applied = min(self.tables.applied, self._stored)
        self._adopt()
        self._keep_births()
        self._keep_floors()
        self._apply_floors()  # queue offsets were counted again, from the existing files
        self._store.keep_to(self.tables.moves, self.tables.applied)
        self._keep_offsets()

    def _keep_births(self) -> None:
        """A master's tables may come from another log, as where only config/ was restored."""
        if self.tables.births.keep_within(self._store.max_offset):
            self.tables.changes += 1

    def _drop_unbegun(self) -> None:
        """At start: queues without messages begin at their floors, also where a kill left files."""
        for topic, row in self.tables.floors.items():
            for queue_id, floor in row.items():
                self._store.drop_unbegun(topic, queue_id, floor)
        for (topic, queue_id), first in self.tables.moves.opened():
            self._store.drop_unbegun(topic, queue_id, first)

    def _keep_floors(self) -> None:
        """Nor did a queue reach further than in the log, if it has messages there."""
        if self.tables.lower_floors(self._store.next_offset):
            self.tables.changes += 1

    def _keep_offsets(self) -> None:
        """Nor was anything consumed that a master's log does not have: what takes those places is
        still to be delivered.

        The snapshot is written at once: after another start, an offset may lie within the queue.
        """
        lowered = self.tables.lower_consumed(self._store.next_offset)
        for group, topic, queue_id, offset, end in lowered:
            log.warning(
                "a committed offset is after the end of its queue",
                group=group,
                topic=topic,
                queue_id=queue_id,
                offset=offset,
                end=end,
            )
        if not lowered or self._missing_after is not None:
            return
        snapshot, ends = self.tables.snapshot(), SavedEnds(self._store.dispatched_offset)
        self._store.ends_to_save(ends, self._store.queue_keys())
        place, segment = self._records().place(snapshot.applied - 1), self._store.segment
        try:
            self._writer(snapshot)(place, self._log.times.wall_ms(), ends, segment)
        except OSError as error:
            self._not_saved(error)

    @property
    def _stored(self) -> int:
        """Queue offset of the next record."""
        return self._store.next_offset(SYSTEM_TOPIC, QUEUE)

    def _adopt(self) -> None:
        """Take the topics of a directory that another program wrote from its queues.

        Not while the log holds changes that cannot be read yet: if the first one says that the log
        has all of them, they alone tell which topics exist, and with which settings.
        """
        after = self._missing_after
        if after is None or self.tables.applied < min(after, self._stored):
            return
        self._missing_after = None
        if self.tables.complete:
            return
        cut = self._stored < after  # with messages, perhaps: queues may never have had any
        for topic, queue_id in self._store.queue_keys():
            if is_system_topic(topic) or topic in self.tables.floors:
                continue
            if is_light(topic) or (cut and not self._store.queue_range(topic, queue_id)[1]):
                continue
            if self.tables.moves.guest_of(topic, queue_id) is not None:
                continue
            known = self.tables.topics.get(topic, TopicConfig(topic, 1))
            self.tables.topics[topic] = replace(known, queues=max(queue_id + 1, known.queues))
            self.tables.changes += 1

    def has_applied(self, end: int) -> bool:
        """Tell whether all changes below a log offset are applied."""
        _, high = self._store.queue_range(SYSTEM_TOPIC, QUEUE)
        return self._store.dispatched_offset >= end and self.tables.applied >= high

    def catch_up(self) -> None:
        """Apply every record that has become readable."""
        self._apply_readable()
        self._adopt()

    def _apply_readable(self) -> None:
        low, high = self._store.queue_range(SYSTEM_TOPIC, QUEUE)
        tables, self._read = self.tables, min(self._read, high)  # a slave's log may have been cut
        if not high:
            return
        tables.applied = max(tables.applied, low)
        self._read = max(min(self._read, tables.applied), low)
        while self._read < high:
            result = self._store.get(
                SYSTEM_TOPIC, QUEUE, QueueOffset(self._read), Wanted(READ_ROWS, READ_BYTES)
            )
            following = result.next_offset
            if following > tables.applied and result.count < following - self._read:
                self._lacking = True
            for numbers, body, _ in result.rows():
                if numbers[decode.OUT_QUEUE_OFFSET] >= tables.applied:
                    self._apply(body)
                # Even if adopted tables had it already: the files are this node's own.
                ends = forgotten_in(body)
                for tell in self.light_queues_forgotten if ends else ():
                    tell(ends)
            if result.next_offset <= self._read:
                break
            self._read = result.next_offset
            tables.applied = max(tables.applied, self._read)
            if 0 < self._ahead <= self._read:
                self._apply_floors()  # the queues had not come so far
        self._tell_of_crossings()
        self.progress.note(tables, self._log.times.mono_ms())
        if not self._quotas_told:  # once for all changes, and before their callers continue
            self._tell_quotas()
        for name, (offset, _) in list(self._creating.items()):
            if offset < tables.applied:
                del self._creating[name]
        for name, offset in list(self._deleting.items()):
            if offset < tables.applied:
                del self._deleting[name]
        for offset in [offset for offset in self._waiting if offset < tables.applied]:
            waiting = self._waiting.pop(offset)
            if not waiting.done():
                waiting.set_result(None)

    def _apply(self, body: bytes) -> None:
        """Apply a record."""
        change = self.tables.apply(body)
        if change is None:
            log.error("unreadable metadata record", body=body[:40])
        elif change["op"] == "delete_topic":
            # Before a topic of the same name is created: the old queues may still exist.
            self._apply_floors_of(change["topic"])
            for tell in self.topic_deleted:
                tell(change["topic"])
        elif change["op"] == "delete_group":
            for tell in self.group_deleted:
                tell(change["group"])
        elif change["op"] == "topic" and "floors" in change:
            self._apply_floors_of(change["topic"]["topicName"])
        elif change["op"] == "trim":
            for topic in change["minimums"]:
                self._apply_minimums_of(topic)
        elif change["op"] == "seal":
            for sealed in self.sealed:
                sealed()
        elif change["op"] in QUOTA_CHANGES:
            self._quotas_told = False

    def _tell_of_crossings(self) -> None:
        if self.tables.moves.seals and self.tables.moved:
            for tell in self.offsets_moved:
                tell(self.tables.moved)
        if self.tables.gates:
            for tell in self.gates_changed:
                tell(self.tables.gates)
            self.tables.gates.clear()

    def _tell_quotas(self) -> None:
        self._quotas_told = True
        for tell in self.quotas_changed:
            tell(self.tables.quotas)

    def _apply_floors(self) -> None:
        """Hide the messages of deleted topics, and those below the minimums of others.

        A slave removes the files of deleted topics at the next start. Where the tables are newer
        than the queues (a slave's are its master's, and a full disk stops the queues), again once
        those have come as far.
        """
        read = self._store.queue_range(SYSTEM_TOPIC, QUEUE)[1]
        self._ahead = self.tables.applied if read < self.tables.applied else 0
        for topic in self.tables.floors:
            self._apply_floors_of(topic)
        for topic in self.tables.minimums:
            self._apply_minimums_of(topic)

    def _apply_floors_of(self, topic: str) -> None:
        for queue_id, floor in self.tables.floors.get(topic, {}).items():
            self._store.raise_floor(topic, queue_id, QueueOffset(floor))

    def _apply_minimums_of(self, topic: str) -> None:
        for queue_id, minimum in self.tables.minimums.get(topic, {}).items():
            self._store.raise_minimum(topic, queue_id, QueueOffset(minimum))

    def snapshot_bytes(self) -> bytes:
        """The tables as of now, for a slave, and the ends of queues that its log will not have."""
        value = self.tables.snapshot().tables()
        return json.dumps(
            value | self._store.expired_ends().to_json(), separators=(",", ":")
        ).encode()

    def adopt_snapshot(self, data: bytes) -> None:
        """On a slave: take the master's tables as of the handshake; later changes come from the
        log.
        """
        before = self.tables.minimums
        try:
            self.tables.adopt(data)
        except BadMessage as error:
            log.error("cannot read the master's metadata", reason=error.reason)
            return
        for topic, row in before.items():
            for queue_id, minimum in row.items():
                if self.tables.hidden_below(topic, queue_id) < minimum:
                    self._store.show_hidden(topic, queue_id)  # an unclean election lost the change
        self._store.reserve(SavedEnds.of(json.loads(data)))
        self._missing_after = None  # the master knows which topics exist
        self._lacking = False
        self._tell_quotas()
        self._apply_floors()
        self._store.keep_to(self.tables.moves, self.tables.applied)
        self.catch_up()

    async def save(self) -> None:
        """Write a snapshot, in a thread, if anything changed and nothing is missing.

        A slave that lacks records gets them from its master, with tables that have them. A master
        has no better tables than its own.
        """
        tables, segment = self.tables, self._store.segment
        if self._missing_after is not None or not self._files.due(tables.changes, segment):
            return
        if self._lacking and self._store.role is BrokerRole.SLAVE:
            return
        snapshot = tables.snapshot()
        write = self._writer(snapshot)
        place = self._records().place(snapshot.applied - 1)
        now, ends = self._log.times.wall_ms(), SavedEnds(self._store.dispatched_offset)
        async for keys in Slices().parts(self._store.queue_keys(), QUEUES_AT_ONCE):
            self._store.ends_to_save(ends, keys)
        work = functools.partial(write, place, now, ends, segment)
        await done_in_thread(self._log.threads, work, self._not_saved)

    def _writer(self, snapshot: Snapshot) -> Callable[[int, WallMs, SavedEnds, int], None]:
        """What writes a snapshot: one at a time, and none after a newer one, as a thread may begin
        late.
        """
        number = next(self._numbers)

        def write(place: int, now: WallMs, ends: SavedEnds, segment: int) -> None:
            with self._writing:
                if number > self._written:
                    self._files.write(snapshot, place, now, ends, segment)
                    self._written = number

        return write

    @staticmethod
    def _not_saved(error: OSError) -> None:
        """Report a failed snapshot; it is retried later, and the log has everything."""
        log.warning("metadata snapshot failed", reason=error.strerror or str(error))

    def fail_all(self, error: Exception) -> None:
        """End all waiting calls: the store is fenced or the mastership over, and their results
        unknown.
        """
        self._creating.clear()
        self._deleting.clear()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(sdk.ResultUnknown(str(error)))
        self._waiting.clear()

    # -- changes -------------------------------------------------------------------------------

    def _put(self, change: Json, *more: Json) -> tuple[int, Outcome | None]:
        """Store changes one behind the other; the queue offset of the last one."""
        refused = self.refused()
        if refused is not None:
            raise refused
        if self.tables.empty and not self.tables.applied and not self._stored:
            change = {**change, "complete": True}  # from here on the log is complete
        rows = Columns.of([_body(one) for one in (change, *more)])
        now = self._log.times.store_ms()
        result = self._log.write(PutBatch(SYSTEM_TOPIC, QUEUE, rows, now, accepted=True))
        if result.status is not PutMessageStatus.PUT_OK:
            raise sdk.NotMaster(f"the change was not stored: {result.reason}")
        durable = self._log.settle(result.end_offset)
        if durable is not None:
            durable.add_done_callback(lambda _: self._log.pump_soon())  # somebody may wait for it
        self._log.pump_soon()
        return result.queue_offset + len(more), durable

    def note(self, change: Json) -> None:
        """Store a change without waiting; the next one replaces one that is lost."""
        try:
            self._put(change)
        except sdk.DuologError as error:
            log.debug("a metadata note was not stored", reason=str(error), op=change["op"])

    async def change(self, *changes: Json) -> None:
        """Store changes, one behind the other, and wait until they are durable and applied.

        Raises NotMaster if they were not stored, ResultUnknown if that is not known in time.
        """
        await self.applied(self._put(*changes)[0])

    async def all_applied(self) -> None:
        """Wait until every change that is stored now is applied, also those whose callers are gone.

        Raises Busy if that takes too long.
        """
        stored, loop = self._stored, asyncio.get_running_loop()
        deadline = loop.time() + CHANGE_SECONDS
        while self.tables.applied < stored:
            if loop.time() >= deadline:
                raise sdk.Busy("earlier changes are stored and not applied yet: try again")
            await asyncio.sleep(PAUSE_SECONDS)

    async def applied(self, offset: int) -> None:
        """Wait until a stored change is durable and applied. Raises ResultUnknown."""
        if offset < self.tables.applied:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[offset] = waiting
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                await waiting
        except TimeoutError:
            raise sdk.ResultUnknown("the change was stored, but not applied in time") from None
        finally:
            self._waiting.pop(offset, None)

    def new_topic(self, name: str, queues: int, perm: int, owner: str = "") -> TopicConfig:
        """The settings of a topic to be created. Raises BadMessage, Busy, Throttled, and
        BadRequest where this group retires.

        owner: the user who creates it; empty where there are none.
        """
        check_topic(name)
        limits = self._limits
        queues = queues or limits.default_topic_queues
        check_queues(queues, perm or 6)
        made = TopicConfig(name, queues, perm or 6, owner=owner)
        if self.exists(name):
            return made
        if self.retires():
            raise sdk.BadRequest(
                f"cannot create topic {name!r} here: this replica group retires. Create it in the "
                "others"
            )
        if self._counted(name) >= limits.topics_max:
            raise sdk.Busy(
                f"cannot create topic {name!r}: this node already has its maximum of "
                f"{limits.topics_max} topics (limits.topics_max)"
            )
        refused = self.topic_refused(made)
        if refused is not None:
            raise refused
        return made

    def auto_create(self, name: str, queues: int = 0, owner: str = "") -> TopicConfig:
        """Create a topic on its first use; it can be used at once.

        If another call is creating it, it gets the settings of that call.
        """
        creating = self.creating(name)
        if creating is not None:
            self.tables.topics[name] = creating
            return creating
        config = self.new_topic(name, queues, 0, owner)
        self._make_now(config)
        return config

    def _make_now(self, config: TopicConfig) -> None:
        """Create a topic without waiting for its record."""
        self._put_making(config)
        self.tables.topics[config.name] = config

    def _put_making(self, config: TopicConfig) -> int:
        """Store the change that makes or alters a topic: its queue offset.

        Its birth counts at once: what is copied before the change is confirmed is younger.
        """
        change, births = self._making(config), self.tables.births
        self._check_guests(config)
        offset, _ = self._put(change)
        births.note(births.topics, config.name, change)
        return offset

    def _making(self, config: TopicConfig) -> Json:
        """The change that makes or alters a topic, with its birth where one of its name was
        deleted. Its queues begin after what was stored until the deletion was confirmed.
        """
        change: Json = {"op": "topic", "topic": config.own().to_json()}
        tables = self.tables
        deleted = config.name in tables.births.topics or config.name in tables.floors
        if not deleted or self.exists(config.name):
            return change
        return {**change, "birth": self._store.max_offset, "floors": self._floors(config.name)}

    def _check_guests(self, config: TopicConfig) -> None:
        """Raise BadMessage for a topic that would get more queues than lie before its guests.

        Their ids are used up: the name of a guest's queue is another one.
        """
        guests = self._store.puts.moves.guests.get(config.name, {})
        first = min(guests, default=config.queues)
        if config.queues > first:
            raise BadMessage(
                f"topic {config.name} cannot have {config.queues} queues: queue {first} is there "
                "for a queue of another replica group, which was moved here or was to be"
            )

    @property
    def moves(self) -> Moves:
        """The moves by all changes that are confirmed."""
        return self.tables.moves

    @property
    def stored_moves(self) -> Moves:
        """The moves by all changes that are stored."""
        return self._store.puts.moves

    def floor(self, topic: str, queue_id: int) -> int:
        """The offset at which a queue begins: not 0 where a topic of its name was deleted."""
        return self.tables.floors.get(topic, {}).get(queue_id, 0)

    def readable(self, group: str, topic: str) -> Sequence[int]:
        """See `Metadata.readable`."""
        return self.tables.readable(group, topic)

    def may_read(self, group: str, topic: str, queue_id: int) -> bool:
        """See `Metadata.may_read`."""
        return self.tables.may_read(group, topic, queue_id)

    async def raise_minimums(self, minimums: Mapping[str, Mapping[int, int]]) -> None:
        """Hide the messages below queue offsets, by topic and queue id, on every replica.

        Offsets that are no higher than those before change nothing. Raises as `change`.
        """
        table: Json = {
            topic: {str(queue): offset for queue, offset in row.items()}
            for topic, row in minimums.items()
        }
        await self.change({"op": "trim", "minimums": table})

    def store_seal(self, topic: str, queue_id: int, seal: Seal, replaces: str = "") -> int:
        """Seal a queue whose next offset is the seal's end; the change's offset, for `applied`.

        replaces: the move of the seal that it has, if that is replaced.
        Raises UnknownTopic, BadMessage if it has no such queue, and NotMaster, Busy: not stored.
        """
        known = self.creating(topic) or self.topics.get(topic)
        if known is None:
            raise sdk.UnknownTopic(f"topic {topic!r} does not exist")
        guest = self.stored_moves.guest_of(topic, queue_id)
        if not 0 <= queue_id < known.queues and guest is None:
            raise BadMessage(f"topic {topic} has no queue {queue_id}")  # it may get one later
        return self._put(seal_record(topic, queue_id, seal, replaces))[0]

    def unused_queue(self, topic: str, last: bool = False) -> int:
        """A queue id of a topic, which need not exist, that was never used, for a guest.

        last: the last one, for a guest that never opens; it is in nobody's way. Raises BadMessage
        if none is left.
        """
        known = self.creating(topic) or self.topics.get(topic)
        guests = self.stored_moves.guests.get(topic, {})
        end = next(one for one in range(QUEUE_ID_MAX, -1, -1) if one not in guests)
        used = {*self._store.queue_ends(topic), *guests, known.queues - 1 if known else -1}
        for (read, _), row in self.tables.offsets.items():
            if read == topic:  # of a queue that RocketMQ took away: it would let the group in
                used.update(row)
        # A lower id may begin behind where its move ends.
        unused = max(one for one in (*used, -1) if one <= end) + 1
        if unused > end:
            raise BadMessage(f"topic {topic} has no queue id left")
        return end if last else unused

    def _floors(self, topic: str) -> Json:
        """Where queues of a topic that is made after this one begin."""
        ends = self._store.queue_ends(topic)
        return {str(queue): offset for queue, offset in ends.items()}

    def _deleting_at(self) -> Json:
        """The log offset in a change that deletes a topic or group."""
        return {"birth": self._store.max_offset, "low": self._store.min_offset}

    def _counted(self, name: str) -> int:
        """How many topics count against the limit where a caller creates one more.

        Topics that nodes keep for themselves do not, unless the caller names its own like them.
        They are looked at only where they decide.
        """
        names = self.names()
        if is_nodes_topic(name) or len(names) < self._limits.topics_max:
            return len(names)
        return sum(not is_nodes_topic(one) for one in names)

    def make_internal(self, name: str, queues: int = 1) -> None:
        """Create a topic that the node itself stores messages in, if it is missing, or has fewer
        queues.

        No limit and no quota refuses it: messages that are stored would never be delivered.
        """
        known = self.topics.get(name) or self.creating(name)
        if known is not None and known.queues >= queues:
            self.tables.topics[name] = known
            return
        if known is not None:
            self._make_now(replace(known, queues=queues))
            return
        check_topic(name)
        self._make_now(TopicConfig(name, queues, PERM_READ | PERM_WRITE))

    def make_if_missing(self, name: str, owner: str = "") -> None:
        """Create a topic that a message is stored for. Raises as `auto_create`."""
        if name not in self.topics:
            self.auto_create(name, owner=owner)

    async def put_topic(self, config: TopicConfig) -> None:
        """Create or alter a topic.

        Raises as `change`. Once stored, it is applied even if the caller is gone.
        """
        offset = self._put_making(config)
        self._creating[config.name] = offset, config
        await self.applied(offset)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; the offsets of its queues are never used again."""
        ends = self._store.queue_ends(name)
        await self.change(self._deletion_of(name))
        await self._remove_queues(name, ends)

    def _deletion_of(self, topic: str) -> Json:
        floors = self._floors(topic)
        return {"op": "delete_topic", "topic": topic, "floors": floors, **self._deleting_at()}

    async def forget_light_queues(self, names: list[str]) -> None:
        """Forget light queues; a later message creates a queue again.

        Puts to them are held meanwhile, so that no queue begins again because of a change that is
        never confirmed.
        """
        forgotten = False
        self._store.hold_light_queues(names)
        try:
            found = {name: self._store.next_offset(name, 0) for name in names}
            ends = {name: end for name, end in found.items() if end}
            if not ends:
                return  # others have forgotten them
            await self.change({"op": "forget_light_queues", "ends": ends})
            forgotten = True
        finally:
            self._store.release_light_queues(names, forgotten)

    async def ensure_group(self, name: str, row: Json | None = None) -> None:
        """Create a group on its first use. Raises Busy if there are too many."""
        if name in self.tables.groups:
            return
        if len(self.tables.groups) >= self._limits.groups_max:
            most = self._limits.groups_max
            raise sdk.Busy(f"this node has reached its limit of {most} groups (limits.groups_max)")
        await self.put_group(row or new_group(name))

    async def put_group(self, group: Json) -> None:
        """Create a group, or alter one. Raises BadGroup for a new one whose name is too long."""
        name = group["groupName"]
        if name not in self.tables.groups:
            check_new_group(name)
        change: Json = {"op": "group", "group": group}
        if name in self.tables.births.groups and name not in self.tables.groups:
            change["birth"] = self._store.max_offset  # one of its name was deleted
        # Members of the deleted one may have given up messages after its end.
        dead, ends, ended = self._end_of_dead_letters(name if "birth" in change else "")
        offset, births = self._put(*ended, change)[0], self.tables.births
        births.note(births.groups, name, change)
        await self.applied(offset)
        if ended:
            await self._remove_queues(dead, ends)

    async def delete_group(self, name: str) -> None:
        """Delete a group, its offsets, and its dead letters: those are of no other group."""
        # First, so that no group is without its dead letters' end if a log ends between.
        dead, ends, ended = self._end_of_dead_letters(name)
        deletion: Json = {"op": "delete_group", "group": name, **self._deleting_at()}
        offset = self._deleting[name] = self._put(*ended, deletion)[0]
        await self.applied(offset)
        if ended:
            await self._remove_queues(dead, ends)

    def _end_of_dead_letters(self, group: str) -> tuple[str, dict[int, int], list[Json]]:
        """The dead-letter topic of a group, the ends of its queues, and its deletion; no deletion
        where there is no such topic.
        """
        dead = dead_letter_topic(group) if group else ""
        ends = self._store.queue_ends(dead)
        return dead, ends, [self._deletion_of(dead)] if self.exists(dead) or ends else []

    async def _remove_queues(self, topic: str, ends: dict[int, int]) -> None:
        for remove in self.queues_deleted:
            await remove(topic, ends)

    def check_not_deleting(self, group: str) -> None:
        """Raise Busy while the deletion of a group is stored and not applied.

        What is stored for it after its end would be there for a new group of its name.
        """
        if group in self._deleting:
            raise sdk.Busy(f"group {group!r} is being deleted")

    async def commit(
        self, group: str, offsets: dict[str, dict[int, int]], forward: bool = False
    ) -> None:
        """Commit offsets of a group. forward: offsets below the committed ones are ignored.

        Raises Busy while the group is being deleted, and as `change`.
        """
        self.check_not_deleting(group)
        table: Json = {
            topic: {str(queue): offset for queue, offset in row.items()}
            for topic, row in offsets.items()
        }
        change: Json = {"op": "offsets", "group": group, "offsets": table}
        await self.change({**change, "forward": True} if forward else change)

    async def begin(self, group: str, offsets: dict[str, dict[int, int]]) -> None:
        """Commit where a group begins, in queues of which it has no offset. Raises as `commit`."""
        self.check_not_deleting(group)
        # forward: for replicas of a version that does not know `absent`.
        how = {"group": group, "absent": True, "forward": True}
        for topic, row in offsets.items():  # of a thousand queues at most, so that it fits
            table = {topic: {str(queue): offset for queue, offset in row.items()}}
            await self.change({"op": "offsets", "offsets": table, **how})

    async def commit_popped(self, group: str, offsets: Json, done: Json) -> None:
        """Record the progress of a group by POP: offsets, and the ranges done after them.

        Ignored where another reader has committed a later offset, which may be stored and not
        applied yet. Raises Busy while the group is being deleted, and as `change`.
        """
        self.check_not_deleting(group)
        change: Json = {"op": "offsets", "group": group, "offsets": offsets, "done": done}
        await self.change({**change, "forward": True})
