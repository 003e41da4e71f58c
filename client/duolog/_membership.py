"""A consumer's place in its group: which queues it reads, where it begins, what it has consumed.

In clustering the members of a group share the queues, and the node keeps their offsets. In
broadcasting every member reads all queues, and keeps its offsets itself.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from duolog._checks import checked_number, checked_text
from duolog._connection import Connection, Others
from duolog._errors import BadRequest, DuologError, StaleMember, UnknownTopic
from duolog._start import Start, on_wire
from duolog.wire import duolog_pb2 as wire

Queue = tuple[str, int]
LEAVE_SECONDS = 2.0
SESSION_SECONDS_MAX = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """Settings shared by all replica groups: see `Client.consumer`.

    commit_interval: seconds between commits. session: seconds of silence after which the group goes
    on without the consumer. timeout: seconds of one call. begun: topics that the group reads in
    another replica group already: it begins at their first messages. broadcasting: the consumer
    keeps its offsets itself.
    """

    group: str
    tags: Sequence[str] = ()
    sql: str = ""
    start: Start = Start.EARLIEST
    commit_interval: float = 5.0
    session: float = 10.0
    timeout: float = 10.0
    begun: frozenset[str] = frozenset()
    broadcasting: bool = False

    def __post_init__(self) -> None:
        """Raise BadRequest if a start, a group, an interval or the filters are invalid."""
        checked_text("sql", self.sql or "", empty=True)
        checked_number("commit_interval", self.commit_interval, 0)
        if not checked_number("session", self.session, 0, SESSION_SECONDS_MAX):
            raise BadRequest("session is 0 s; it must be above 0")
        if self.tags and self.sql:
            raise BadRequest("filter messages by tags or by SQL, not by both")
        if not isinstance(self.start, Start):
            raise BadRequest(f"start must be Start.EARLIEST or Start.LATEST, not {self.start!r}")
        checked_text("group", self.group)


@dataclass(frozen=True, slots=True)
class Share:
    """A member's share of queues.

    pending: more is meant for it, and still held by another member. forfeited: what it read before,
    and others may read by now: it was silent for a session, or the node says so.
    """

    queues: set[Queue]
    pending: bool = False
    forfeited: set[Queue] = field(default_factory=set)


class Membership(Protocol):
    """Asked by the reader of one replica group."""

    topics: list[str]

    async def share(self, owned: Iterable[Queue]) -> Share:
        """Tell that we live and what we read; answers with what we are to read."""

    async def offsets(self, queues: Sequence[Queue], start: Start | None) -> dict[Queue, int]:
        """The group's offsets; a group without offsets begins at `start`.

        None: it does not begin now.
        A queue of which nothing is known is missing, or negative: its reader commits where it
        begins.
        """

    async def commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        """Keep what was consumed. Raises StaleMember where a queue was taken away.

        forward: what is below the group's offset changes nothing, a commit that comes late, say.
        """

    async def leave(self) -> None:
        """We read no more. Bounded."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """How queues are shared out: see `Client.consumer`."""

    strategy: str = "AVG"
    rooms: tuple[str, ...] = ()
    queues: tuple[Queue, ...] = ()


class SharingMember:
    """A member that shares the queues with others."""

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        consumption: Consumption,
        how: Clustering,
        polled: Callable[[], bool],
    ) -> None:
        """polled: whether the program has asked the consumer for messages."""
        self._connection = connection
        self._group = consumption.group
        self.topics = list(topics)
        self._how = how
        self._polled = polled
        self._sql = consumption.sql
        self._tags = None if consumption.sql else _expression(consumption.tags)
        self._session = consumption.session
        self._timeout = consumption.timeout
        runtime = connection.runtime
        self.member_id = f"{runtime.process_id()}-{runtime.chance.randbytes(6).hex()}"
        self._generation = 0
        self._known_until = 0.0  # loop time: no other member was given our queues before
        self._epoch = 0  # of the master that said so
        self._reads: set[Queue] = set()  # by the last heartbeat: what we read, or may read since
        self._sharing = asyncio.Lock()  # an older claim must not land on a newer one

    async def share(self, owned: Iterable[Queue]) -> Share:
        """A heartbeat. Who was silent for a session claims nothing: others may have it by now.

        Nor does it claim that later, while it has not been given it again.
        """
        owned = set(owned)
        async with self._sharing:
            given = await self._share(sorted(owned & self._reads))
            return replace(given, forfeited=owned - self._reads)

    async def _share(self, owned: Sequence[Queue]) -> Share:
        loop = asyncio.get_running_loop()
        self._reads = set(owned)  # what is claimed no more may be another's, whatever is answered
        request = wire.HeartbeatRequest(
            group=self._group,
            member_id=self.member_id,
            topics=self.topics,
            session_ms=int(self._session * 1000),
            owned=_refs(owned),
            strategy=self._how.strategy,
            rooms=self._how.rooms,
            wanted=_refs(self._how.queues),
            sql=self._sql,
            epoch=self._epoch,
            not_polled=not self._polled(),
            tags=self._tags,
        )
        asked = loop.time()

        def ask(left: float) -> Awaitable[wire.HeartbeatReply]:
            nonlocal asked
            asked = loop.time()
            if asked >= self._known_until:
                request.ClearField("owned")
                self._reads = set()
            return self._connection.groups.Heartbeat(request, timeout=left)

        reply = await self._connection.call(ask, self._timeout)
        self._known_until = asked + self._session
        self._epoch = reply.epoch
        self._generation = reply.generation
        granted = {(ref.topic, ref.queue_id) for ref in reply.queues}
        self._reads |= granted
        self._reads -= {(ref.topic, ref.queue_id) for ref in reply.foreign}
        return Share(granted, reply.pending)

    async def offsets(self, queues: Sequence[Queue], start: Start | None) -> dict[Queue, int]:
        """The group's committed offsets; a node of version 0.1.0 does not make it begin."""
        request = wire.OffsetsRequest(group=self._group, queues=_refs(queues))
        if start is not None:
            request.begin = on_wire(start)
        reply = await self._connection.call(
            lambda left: self._connection.groups.Offsets(request, timeout=left), self._timeout
        )
        return {(found.topic, found.queue_id): found.offset for found in reply.offsets}

    async def commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        """Commit, unless a queue went to another member.

        A new master knows no members, and refuses commits before a heartbeat. Who was silent for a
        session has nothing to claim there.
        """
        try:
            await self._commit(offsets, forward)
        except StaleMember:
            if asyncio.get_running_loop().time() >= self._known_until:
                raise
            async with self._sharing:
                await self._share(sorted(self._reads))
            await self._commit(offsets, forward)

    async def _commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        request = wire.CommitRequest(
            group=self._group,
            member_id=self.member_id,
            generation=self._generation,
            forward=forward,
            offsets=[
                wire.QueueOffset(topic=t, queue_id=q, offset=o) for (t, q), o in offsets.items()
            ],
        )
        await self._connection.call(
            lambda left: self._connection.groups.Commit(request, timeout=left), self._timeout
        )

    async def leave(self) -> None:
        """The others may have our queues."""
        request = wire.LeaveRequest(group=self._group, member_id=self.member_id)
        with contextlib.suppress(DuologError):
            await self._connection.call(
                lambda left: self._connection.groups.Leave(request, timeout=left),
                min(LEAVE_SECONDS, self._timeout),
                others=Others.NONE,
            )


class OffsetFile:
    """Offsets of one consumer that broadcasts, as JSON: replica group, topic, queue id, offset."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """path: None keeps them in memory only. Raises BadRequest if a file is not one."""
        if path is not None and not isinstance(path, str | os.PathLike):
            raise BadRequest(f"offsets_file must be a path, not {type(path).__name__}")
        self._path = None if path is None else Path(path)
        self._table: dict[str, dict[str, dict[str, int]]] = {}
        self._lock = threading.Lock()
        if self._path is None or not self._path.exists():
            return
        try:
            self._table = json.loads(self._path.read_text())["offsets"]
            for topics in self._table.values():
                for row in topics.values():
                    if not all(type(offset) is int for offset in row.values()):
                        raise ValueError("an offset is not an integer")
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise BadRequest(f"{self._path} is not an offsets file: {error}") from None

    def of(self, replica_group: str, queue: Queue) -> int:
        """A queue's offset, -1 if there is none."""
        return self._table.get(replica_group, {}).get(queue[0], {}).get(str(queue[1]), -1)

    def put(self, replica_group: str, offsets: dict[Queue, int]) -> None:
        """Keep offsets; the file is replaced as a whole, and synced. Raises OSError."""
        with self._lock:
            self._put(replica_group, offsets)

    def _put(self, replica_group: str, offsets: dict[Queue, int]) -> None:
        for (topic, queue_id), offset in offsets.items():
            row = self._table.setdefault(replica_group, {}).setdefault(topic, {})
            row[str(queue_id)] = offset
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(self._path.name + ".tmp")
        with beside.open("w") as file:
            json.dump({"offsets": self._table}, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


class BroadcastMember:
    """A member that reads every queue, like all others."""

    def __init__(
        self,
        connection: Connection,
        replica_group: str,
        topics: Sequence[str],
        file: OffsetFile,
        timeout: float,
    ) -> None:
        """file: shared by the readers of one consumer."""
        self._connection = connection
        self._replica_group = replica_group
        self.topics = list(topics)
        self._file = file
        self._timeout = timeout
        self._firsts: dict[Queue, int] = {}  # of queues that moved here

    async def share(self, owned: Iterable[Queue]) -> Share:
        """All queues that there are now; one that moved, where we have read all before its seam.

        Raises UnknownTopic.
        """
        request = wire.ListTopicsRequest(topics=self.topics)
        reply = await self._connection.call(
            lambda left: self._connection.admin.ListTopics(request, timeout=left), self._timeout
        )
        missing = set(self.topics) - {found.topic for found in reply.topics}
        if missing:
            raise UnknownTopic(f"topic {min(missing)!r} does not exist")
        queues = {(found.topic, q) for found in reply.topics for q in range(found.queues)}
        for found in reply.topics:
            for guest in found.guests:
                queue = found.topic, guest.queue_id
                self._firsts[queue] = guest.first
                if self._before(found.topic, guest) >= guest.first:
                    queues.add(queue)
        return Share(queues)

    def _before(self, topic: str, guest: wire.GuestQueue) -> int:
        """How far we have read the queue that a guest carries on."""
        return self._file.of(guest.from_group, (topic, guest.from_queue_id))

    async def offsets(self, queues: Sequence[Queue], start: Start | None) -> dict[Queue, int]:
        """Our own; those that moved begin where we have come to."""
        found = {queue: self._file.of(self._replica_group, queue) for queue in queues}
        return {queue: max(at, self._firsts.get(queue, at)) for queue, at in found.items()}

    async def commit(self, offsets: dict[Queue, int], forward: bool) -> None:
        """Keep them. Raises DuologError where the file cannot be written."""
        try:
            await asyncio.to_thread(self._file.put, self._replica_group, offsets)
        except OSError as error:
            raise DuologError(f"cannot write the offsets file: {error}") from None

    async def leave(self) -> None:
        """No other member waits for our queues."""


def _refs(queues: Iterable[Queue]) -> list[wire.QueueRef]:
    return [wire.QueueRef(topic=topic, queue_id=queue_id) for topic, queue_id in queues]


def _expression(tags: Sequence[str]) -> str:
    """Tags as RocketMQ writes them; `*` for all messages."""
    return " || ".join(sorted(set(tags))) or "*"
