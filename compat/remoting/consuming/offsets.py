"""Offsets of queues, and committed offsets of groups.

Clients commit every few seconds, and with each pull, mostly without waiting for an answer. Such
commits are gathered, and stored five times a second: the newest of each queue.
"""

import asyncio
import contextlib

import structlog
from duolog import Start
from duolog import _errors as sdk

from duolog_server.compat.remoting.codec.bodies import FROM_FIRST, FROM_TIME
from duolog_server.compat.remoting.codec.codes import RequestCode, ResponseCode
from duolog_server.compat.remoting.codec.command import Command
from duolog_server.compat.remoting.codec.fields import read_header
from duolog_server.compat.remoting.codec.headers import (
    QueryOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateOffsetRequest,
)
from duolog_server.compat.remoting.members import Members
from duolog_server.compat.remoting.port.dispatcher import Peer
from duolog_server.compat.remoting.refusals import Refused
from duolog_server.node.broker import Broker
from duolog_server.node.consuming.offsets import begin, offset_at
from duolog_server.node.consuming.reading import physical_memory
from duolog_server.store.errors import StoreError
from duolog_server.store.queueends import QueueKey

log = structlog.get_logger("duolog.remoting")

STORE_SECONDS = 0.2
GATHERED_MAX = 100_000  # queues, of all groups
TOGETHER_MAX = 256  # queues in one change: it has to fit into a record


class Commits:
    """Commits that are not stored yet."""

    def __init__(self, broker: Broker) -> None:
        self._offsets = broker.offsets
        self._gathered: dict[str, dict[QueueKey, int]] = {}
        self._count = 0
        broker.metadata.group_deleted.append(self._group_deleted)
        broker.metadata.topic_deleted.append(self._topic_deleted)

    def note(self, group: str, key: QueueKey, offset: int) -> None:
        """A group commits an offset. Raises Busy where too many are not stored yet."""
        queues = self._gathered.setdefault(group, {})
        if key not in queues:
            if self._count >= GATHERED_MAX:
                raise sdk.Busy(f"commits of {GATHERED_MAX} queues are not stored yet")
            self._count += 1
        queues[key] = offset

    def _group_deleted(self, group: str) -> None:
        """Forget a deleted group's commits: they are not for a new one of its name."""
        self._count -= len(self._gathered.pop(group, {}))

    def _topic_deleted(self, topic: str) -> None:
        """The same of a deleted topic."""
        for group, queues in list(self._gathered.items()):
            self._forget(group, {key: at for key, at in queues.items() if key[0] == topic})

    def newest(self, group: str, key: QueueKey) -> int:
        """The offset that is not stored yet; -1 for none."""
        return self._gathered.get(group, {}).get(key, -1)

    async def run(self) -> None:
        """Store them, until cancelled."""
        while True:
            await asyncio.sleep(STORE_SECONDS)
            await self.store()

    async def store(self) -> None:
        """Store what was gathered. What a node cannot store, its clients commit again elsewhere."""
        for group in list(self._gathered):
            keys = list(self._gathered.get(group, ()))
            for first in range(0, len(keys), TOGETHER_MAX):
                queues = self._gathered.get(group, {})  # a group may be deleted meanwhile
                some = keys[first : first + TOGETHER_MAX]
                await self._store(group, {key: queues[key] for key in some if key in queues})

    async def _store(self, group: str, queues: dict[QueueKey, int]) -> None:
        if not queues:
            return
        try:
            await self._offsets.commit(group, queues)
        except (sdk.DuologError, StoreError) as error:
            log.debug("offsets were not committed", group=group, reason=str(error))
        self._forget(group, queues)

    def _forget(self, group: str, stored: dict[QueueKey, int]) -> None:
        """Drop offsets that are stored and have not moved meanwhile."""
        queues = self._gathered.get(group, {})
        for key, offset in stored.items():
            if queues.get(key) == offset:
                del queues[key]
                self._count -= 1
        if not queues:
            self._gathered.pop(group, None)


class Offsets:
    """Answers about offsets."""

    def __init__(self, broker: Broker, commits: Commits, members: Members) -> None:
        self._broker = broker
        self._members = members
        self._core = broker.core
        self._check_place = broker.offsets.check_place
        self._commits = commits
        ratio = broker.replication.options.access_message_in_memory_max_ratio
        self._in_memory_bytes = physical_memory() * ratio // 100

    async def committed(self, peer: Peer, request: Command) -> Command:
        """QUERY_CONSUMER_OFFSET: the committed offset; without one, where a small queue begins.

        Of a queue that the group may not read yet, where it will.

        Raises Refused (QUERY_NOT_FOUND): the client decides where it begins.
        """
        header = read_header(QueryOffsetRequest, request.fields)
        group, key = header.consumer_group, (header.topic, header.queue_id)
        await self._broker.log.caught_up()
        self._check_place(key)
        if (waits_at := self._broker.offsets.waits_at(group, key)) is not None:
            return request.answer(0, fields={"offset": str(waits_at)})
        offset = self._commits.newest(group, key)
        if offset < 0:
            offset = self._core.admission.group_tables().committed(group, *key)
        if offset < 0:
            offset = await self._begin(peer, header)
        if offset < 0 and not (header.set_zero_if_not_found and self._is_small(key)):
            raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group is new")
        return request.answer(0, fields={"offset": str(max(0, offset))})

    async def _begin(self, peer: Peer, header: QueryOffsetRequest) -> int:
        """Fix where the group of a push consumer begins in a topic, in all of its queues, as the
        client would; the offset in the queue that it asks for.

        -1 where the client knows better: it begins at a time, keeps its offsets itself, or leaves
        the choice to its program.
        """
        group, topic = header.consumer_group, header.topic
        member = self._members.consumer(peer, group)
        if member is None or member.broadcasting or not member.pushes:
            return -1
        if member.begins == FROM_TIME or not self._core.metadata.has_group(group):
            return -1
        start = Start.EARLIEST if member.begins == FROM_FIRST else Start.LATEST

        def place(topic: str, queue_id: int) -> Start:
            small = header.set_zero_if_not_found and self._is_small((topic, queue_id))
            return Start.EARLIEST if small else start

        await begin(self._core, group, (topic,), place)
        return self._core.metadata.tables.committed(group, topic, header.queue_id)

    async def begin_to_pop(self, group: str, topic: str, latest: bool) -> None:
        """Fix where a group begins that reads a topic by POP: as POP_MESSAGE asks.

        From the first message on, it begins by itself.
        """
        if latest:
            await begin(self._core, group, (topic,), self._latest)

    def _latest(self, topic: str, queue_id: int) -> Start:
        """The end of a queue, or the first message of a small one."""
        return Start.EARLIEST if self._is_small((topic, queue_id)) else Start.LATEST

    async def begin_at(
        self, peer: Peer, group: str, key: QueueKey, offset: int, lite: bool
    ) -> None:
        """A client pulls: its group begins there if it has no offset, for the next reader.

        RocketMQ's clients commit this some seconds later, where nothing came until then. lite: by
        LITE_PULL_MESSAGE; other clients that poll keep their offsets as they like.
        """
        tables = self._core.metadata.tables
        if tables.committed(group, *key) >= 0 or not tables.may_read(group, *key):
            return
        member = self._members.consumer(peer, group)
        if member is None or member.broadcasting or not (member.pushes or lite):
            return
        if self._commits.newest(group, key) < 0 and self._core.metadata.has_group(group):
            low, high = self._core.store.queue_range(*key)
            at = min(max(offset, low), high)
            with contextlib.suppress(sdk.NotMaster):  # a slave answers pulls as well
                await self._core.metadata.begin(group, {key[0]: {key[1]: at}})

    def _is_small(self, key: QueueKey) -> bool:
        """Whether a queue still has its first message, and not so long ago.

        RocketMQ: checkInDiskByConsumeOffset. A new group reads all of such a queue, whatever its
        clients would begin with.
        """
        low, high = self._core.store.queue_range(*key)
        if low > 0 or not high:
            return low <= 0
        first = int(self._core.store.entries(*key, 0, 1)[0, 0])
        return self._core.store.max_offset - first <= self._in_memory_bytes

    def update(self, request: Command) -> Command:
        """UPDATE_CONSUMER_OFFSET; stored soon."""
        header = read_header(UpdateOffsetRequest, request.fields)
        self.commit(header.consumer_group, (header.topic, header.queue_id), header.commit_offset)
        return request.answer(0)

    def commit(self, group: str, key: QueueKey, offset: int) -> None:
        """A group commits an offset, which changes nothing in a queue that it may not read yet.

        Raises NotMaster, UnknownTopic, BadRequest, Busy.
        """
        self._core.admission.check_current()
        self._check_place(key, offset)
        if not self._core.metadata.has_group(group):
            raise sdk.BadRequest(f"group {group[:255]!r} does not exist: heartbeats create groups")
        if self._core.metadata.tables.may_read(group, *key):
            self._commits.note(group, key, offset)

    async def end(self, peer: Peer, request: Command) -> Command:
        """GET_MAX_OFFSET, GET_MIN_OFFSET."""
        header, at = read_header(QueueRequest, request.fields), Start.EARLIEST
        if request.code == RequestCode.GET_MIN_OFFSET:
            return await self._at(request, header, at)
        since_ms = self._broadcast_since(peer, header)
        return await self._at(request, header, Start.LATEST if since_ms is None else since_ms)

    def _broadcast_since(self, peer: Peer, header: QueueRequest) -> int | None:
        """Since when, by the wall clock, a broadcasting client reads the topic of a guest, or None.

        It keeps its offsets itself, and has none of a queue that continues here. By default it
        begins at its end, however late it learns of it, and would skip what came until then.
        """
        if self._core.metadata.tables.moves.first_of(header.topic, header.queue_id) is None:
            return None
        since = self._members.broadcast_since(peer, header.topic)
        times = self._core.times
        return None if since is None else times.wall_ms() - (times.mono_ms() - since)

    async def search(self, request: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP: the first message stored at or after a time, or the end.

        At the upper boundary, the last one stored at or before it, or the first one.
        """
        header = read_header(SearchOffsetRequest, request.fields)
        at = max(0, header.timestamp)
        return await self._at(request, header, at, header.boundary_type.upper() == "UPPER")

    async def earliest(self, request: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME: -1 for an empty queue."""
        header = read_header(QueueRequest, request.fields)
        await self._broker.log.caught_up()
        key = self._check_place((header.topic, header.queue_id))
        first = self._core.store.queue_range(*key)[0]
        time_ms = self._core.positions.store_time(*key, first)
        return request.answer(0, fields={"timestamp": str(time_ms)})

    async def _at(
        self,
        request: Command,
        place: QueueRequest | SearchOffsetRequest,
        at: Start | int,
        upper: bool = False,
    ) -> Command:
        await self._broker.log.caught_up()
        key = self._check_place((place.topic, place.queue_id))
        if upper and isinstance(at, int):
            low, _ = self._core.store.queue_range(*key)
            offset = max(low, offset_at(self._core, *key, at + 1) - 1)
        else:
            offset = offset_at(self._core, *key, at)
        return request.answer(0, fields={"offset": str(offset)})
