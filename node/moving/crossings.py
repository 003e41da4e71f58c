"""Consumer groups cross the seams of queues: what a master tells the next place, and what it hears.

`store.crossing` decides. A group that has committed the end of a sealed queue is reported to the
next place until that answers; then it is known for this mastership. A reset to before a seam is
noted in the log, has the later places closed, the last one first, and is done only then.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import structlog
from duolog import _errors as sdk
from duolog._background import all_of

from duolog_server.node.core.core import Core
from duolog_server.node.core.slices import Slices
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store import crossing
from duolog_server.store.crossing import Close, Crossed, Progress
from duolog_server.store.metadata import NOT_THE_SHAPE, Json
from duolog_server.store.moves import Place, Seal
from duolog_server.store.queueends import QueueKey

log = structlog.get_logger("duolog.node")

CALL_SECONDS = 3.0
RETRY_SECONDS = 0.5  # until places that did not answer are called again
SWEEP_SECONDS = 10.0  # between looks at all groups: commits are looked at when they come
AT_ONCE = 16  # calls
NO_ANSWER = (sdk.Retryable, sdk.ResultUnknown)
RESETS_MAX = 8  # times that a reset takes a later number before its caller has to try again

Reader = tuple[str, str, int]  # topic, consumer group, queue id, as in `Metadata.moved`


class NoPlace(sdk.Unavailable):
    """The next place of one queue is lost, or not there yet; its replica group answers."""


class Others(Protocol):
    """The masters of other replica groups."""

    async def cross(
        self, group: str, request: wire.CrossRequest, seconds: float
    ) -> wire.CrossReply:
        """The answer of the place behind a seam. Raises DuologError."""


class Crossings:
    """A part of a node: what it knows of groups at sealed queues while it is the master."""

    def __init__(self, core: Core, others: Others) -> None:
        self._core = core
        self._metadata = core.metadata
        self._others = others
        # See `Progress.crossed`; of this mastership, and told to the place behind this seal.
        self._crossed: dict[Reader, tuple[Seal, int]] = {}
        self._begins: dict[Reader, int] = {}  # where those begin that came at the end of a name
        self._due: dict[Reader, None] = {}
        self._sweep_is_due = True
        # Replica groups that did not answer last, and readers whose report was refused.
        self._failing: set[str | Reader] = set()
        self._wake = asyncio.Event()
        # Called when the place behind a queue turns out to be lost.
        self.lost: list[Callable[[QueueKey], None]] = []
        core.metadata.offsets_moved.append(self._moved)
        core.metadata.gates_changed.append(self._gates_changed)
        core.metadata.sealed.append(self._sweep_soon)
        core.metadata.begin_at_ends = self.begin
        core.metadata.group_deleted.append(lambda group: self._forget(1, group))
        core.metadata.topic_deleted.append(lambda topic: self._forget(0, topic))

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Report groups that have come to the ends of sealed queues, until cancelled."""
        while True:
            again = self._due or (self._sweep_is_due and self._metadata.tables.moves.seals)
            try:
                async with asyncio.timeout(RETRY_SECONDS if again else SWEEP_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._sweep_is_due |= not again
            self._wake.clear()
            await self._look()

    def status(self) -> Mapping[str, int]:
        """See Part."""
        return {"group_crossings_pending": len(self._due)} if self._due else {}

    def validate(self) -> str:
        """See Part: what was answered is of sealed queues."""
        seals = self._metadata.tables.moves
        for topic, group, queue_id in self._crossed:
            if seals.seal_of(topic, queue_id) is None:
                return f"{group} has crossed at the end of {topic}/{queue_id}, which is not sealed"
        return ""

    def role_changed(self) -> None:
        """See Part: this mastership reports all groups again."""
        self._crossed.clear()
        self._begins.clear()
        self._due.clear()
        self._failing.clear()
        self._sweep_soon()

    def _sweep_soon(self) -> None:
        self._sweep_is_due = True
        self._wake.set()

    def _forget(self, at: int, name: str) -> None:
        """A topic or a group was deleted: a new one of its name has crossed nothing."""
        for table in (self._crossed, self._begins, self._due):
            for reader in [reader for reader in table if reader[at] == name]:
                del table[reader]
        self._failing = {one for one in self._failing if isinstance(one, str) or one[at] != name}

    def _moved(self, readers: Collection[Reader]) -> None:
        seal_of = self._metadata.tables.moves.seal_of
        for reader in readers:
            if seal_of(reader[0], reader[2]) is not None:
                self._due[reader] = None
                self._wake.set()

    def _gates_changed(self, readers: Collection[Reader]) -> None:
        """Groups may read queues, or no longer: polls look again."""
        self._core.board.arrived((topic, queue_id) for topic, _, queue_id in readers)

    # -- the place before a seam ---------------------------------------------------------------

    async def _look(self) -> None:
        """Look at the groups that are due; those whose next place does not answer stay due, and
        come after the others the next time: what one of them is refused hinders no other one.
        """
        if not self._metadata.tables.moves.seals or not self._leads():
            self._due.clear()
            return
        if self._sweep_is_due:
            self._sweep_is_due = False
            async for reader in Slices().each(self._readers()):
                if self._is_due(reader):
                    self._due[reader] = None
        due, self._due = self._due, {}
        silent: set[str] = set()  # replica groups, in this round
        failed: dict[Reader, None] = {}
        readers = list(due)
        for first in range(0, len(readers), AT_ONCE):
            async with asyncio.TaskGroup() as tasks:
                for reader in readers[first : first + AT_ONCE]:
                    tasks.create_task(self._step(reader, silent, failed))
        self._due |= failed

    def _leads(self) -> bool:
        try:
            self._core.admission.check_current()
        except sdk.NotMaster:
            return False
        return True

    def _readers(self) -> Iterator[Reader]:
        tables = self._metadata.tables
        only_reset = [key for key in tables.moves.resets if key not in tables.offsets]
        for topic, group in [*tables.offsets, *only_reset]:
            for queue_id in list(tables.moves.seals.get(topic, ())):
                yield topic, group, queue_id

    def _is_due(self, reader: Reader) -> bool:
        seal, here = self._seal_of(reader), self._progress(reader)
        if seal is None:
            return False
        if here.going_back is not None:
            return True
        return not self._has_left(seal) and self._to_tell(reader, seal) is not None

    def _has_left(self, seal: Seal) -> bool:
        """Whether the next place has left with its group: what came from there is open to all."""
        return seal.following.group in self._metadata.tables.moves.gone

    async def _step(self, reader: Reader, silent: set[str], failed: dict[Reader, None]) -> None:
        seal = self._seal_of(reader)
        if seal is None or not self._is_due(reader):
            return
        to = seal.following.group
        if to in silent:
            self._due[reader] = None
            return
        try:
            told = self._to_tell(reader, seal)
            if told is None:
                await self._go_back(reader)
            else:
                await self._tell(reader, seal, told)
            self._failing -= {to, reader}
        except sdk.DuologError as error:
            answered = isinstance(error, NoPlace) or not isinstance(error, NO_ANSWER)
            if not answered:
                silent.add(to)
            if self._leads():
                failed[reader] = None
                self._complain(reader, to, reader if answered else to, error)

    def _complain(
        self, reader: Reader, to: str, failing: str | Reader, error: sdk.DuologError
    ) -> None:
        """Once, until the replica group answers, or takes this report."""
        if failing not in self._failing:
            self._failing.add(failing)
            topic, group, queue_id = reader
            log.warning(
                "a consumer group cannot cross to the next place of a queue yet",
                group=group,
                topic=topic,
                queue_id=queue_id,
                to_group=to,
                reason=str(error),
            )

    async def _tell(self, reader: Reader, seal: Seal, told: Crossed) -> None:
        begin = self._begins.get(reader, 0)
        what = {"crossed": seal.first, "resets": told.resets, "begin": begin}
        await self._cross(reader, seal.following, **what)
        here = self._progress(reader)  # a failover or a deletion may have come meanwhile
        is_told = self._to_tell(reader, seal) == told
        if is_told and self._seal_of(reader) is seal and self._leads():
            self._crossed[reader] = seal, crossing.on_answer(here, told).crossed
            self._begins.pop(reader, None)

    def _seal_of(self, reader: Reader) -> Seal | None:
        topic, _, queue_id = reader
        return self._metadata.tables.moves.seal_of(topic, queue_id)

    def _to_tell(self, reader: Reader, seal: Seal) -> Crossed | None:
        """See `store.crossing`; a group has read a span that was hidden to its end."""
        here, (topic, _, queue_id) = self._progress(reader), reader
        hidden = self._metadata.tables.hidden_below(topic, queue_id)
        if here.committed is not None and hidden >= seal.end:
            here = replace(here, committed=max(here.committed, seal.end))
        return crossing.to_tell(here, seal.end)

    def _progress(self, reader: Reader) -> Progress:
        topic, group, queue_id = reader
        here = self._metadata.tables.progress_of(group, topic, queue_id)
        seal, crossed = self._crossed.get(reader, (None, -1))
        return replace(here, crossed=crossed if seal is self._seal_of(reader) else -1)

    async def _cross(self, reader: Reader, to: Place, **what: Any) -> wire.CrossReply:
        topic, group, _ = reader
        row = self._metadata.tables.groups.get(group)
        settings = json.dumps(row).encode() if row is not None else b""
        request = wire.CrossRequest(
            topic=topic, queue_id=to.queue_id, group=group, group_settings=settings, **what
        )
        reply = await self._others.cross(to.group, request, CALL_SECONDS)
        if reply.no_place:
            for lost in self.lost:
                lost((topic, reader[2]))
            raise NoPlace(f"{topic} {to} continues no other queue, or not yet")
        return reply

    async def _change(self, op: str, reader: Reader, **what: int) -> None:
        topic, group, queue_id = reader
        place = {"topic": topic, "group": group, "queue": queue_id}
        await self._metadata.change({"op": op, **place, **what})

    # -- a new group ---------------------------------------------------------------------------

    async def begin(
        self, group: str, offsets: dict[str, dict[int, int]], ends: Collection[QueueKey]
    ) -> None:
        """A group begins, at the ends of some sealed queues: it is to read their names from where
        they end now, which their last places tell.

        Where that is not told in 3 s, it gets all that came since the queue moved; so it does where
        this mastership ends before it has crossed. Raises as `MetadataLog.begin`.
        """
        readers = [(topic, group, queue_id) for topic, queue_id in ends]
        told = dict[Reader, int]()

        async def ask(some: Sequence[Reader]) -> None:
            for reader in some:
                told[reader] = await self._end(reader)

        with suppress(TimeoutError, sdk.DuologError):
            async with asyncio.timeout(CALL_SECONDS):
                await all_of(*(ask(readers[at::AT_ONCE]) for at in range(AT_ONCE)))
        for reader, end in told.items():
            if self._progress(reader).committed is None:
                self._begins[reader] = end
        try:
            await self._metadata.begin(group, offsets)
        finally:
            for reader in told:
                topic, _, queue_id = reader
                if self._progress(reader).committed != offsets[topic][queue_id]:
                    self._begins.pop(reader, None)  # other members had it begin elsewhere

    # -- resets --------------------------------------------------------------------------------

    async def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """Before a group is set to offsets of a topic: later places are closed to it where it goes
        back to before a seam; the offsets that may be set.

        A guest that the group has not come to is left out: it skips nothing. Raises DuologError
        where a later place does not answer: the reset is noted then, and is done once it does.
        """
        tables, found = self._metadata.tables, dict[int, int]()
        for queue_id, offset in offsets.items():
            reader = topic, group, queue_id
            seal, here = self._seal_of(reader), self._progress(reader)
            is_guest = tables.moves.follows(topic, queue_id)
            begun = crossing.go_back(here, offset, is_guest)
            if begun is None:
                continue
            found[queue_id] = offset
            self._begins.pop(reader, None)
            if seal is not None and (offset < seal.end or here.going_back is not None):
                await self._change("go_back", reader, offset=offset, resets=begun.resets)
                await self._go_back(reader)
        return found

    async def _go_back(self, reader: Reader) -> None:
        """Close the later places of a reset that is noted, then do it. Raises DuologError."""
        for _ in range(RESETS_MAX):
            seal, here = self._seal_of(reader), self._progress(reader)
            if seal is None or here.going_back is None:
                return  # done, or the topic is gone
            if crossing.to_close((0, seal.end), here.going_back):
                there = await self._close(reader, seal, Close(here.resets))
                found, closed = crossing.on_closed(here, there)
                if not closed:
                    offset = here.going_back
                    await self._change("go_back", reader, offset=offset, resets=found.resets)
                    continue
            await self._change("gone_back", reader, resets=here.resets)
            return
        raise sdk.Busy(f"another reset of group {reader[1]} in {reader[0]} is running: try again")

    async def _close(self, reader: Reader, seal: Seal, told: Close) -> Progress:
        """What the next place knows of a group, where it has just closed."""
        if self._has_left(seal):
            return Progress(None, told.resets)
        reply = await self._cross(reader, seal.following, close=True, resets=told.resets)
        return Progress(seal.end if reply.open else None, reply.resets)

    # -- the place behind a seam ---------------------------------------------------------------

    async def hear(self, request: wire.CrossRequest) -> wire.CrossReply:
        """A group comes, or a reset goes back to before this place: what is known here then.

        Raises BadRequest, and as a change of metadata and `OtherGroups.cross`.
        """
        self._core.admission.check_current()
        reader = request.topic, request.group, request.queue_id
        guest = self._metadata.tables.moves.guest_of(request.topic, request.queue_id)
        if guest is None or guest.first is None:
            return wire.CrossReply(no_place=True)
        if request.HasField("end"):
            return wire.CrossReply(end=await self._end(reader))
        if request.HasField("crossed"):
            await self._come(request, reader, guest.first)
        else:
            reply = await self._closed_later(request, reader)
            if reply is not None:
                return reply
            told = Close(request.resets)
            here = self._progress(reader)
            if crossing.on_close(here, told) != here:
                await self._change("close", reader, resets=request.resets)
        here = self._progress(reader)
        return wire.CrossReply(resets=here.resets, open=here.committed is not None)

    async def _come(self, request: wire.CrossRequest, reader: Reader, first: int) -> None:
        if request.crossed != first:
            raise sdk.BadRequest(
                f"{request.topic}/{request.queue_id} begins at {first}, not at {request.crossed}"
            )
        await self._metadata.ensure_group(request.group, _settings(request))
        here, seal = self._progress(reader), self._seal_of(reader)
        # The old place may have lost where the group was, which is here already: it skips nothing.
        at = max(first, request.begin) if here.committed is None else first
        end = at if seal is None else min(at, seal.end)
        told = Crossed(end, request.resets)
        if crossing.on_crossed(here, told) != here:
            self._begins.pop(reader, None)
            if end < at:
                self._begins[reader] = at
            await self._change("crossed", reader, offset=told.offset, resets=told.resets)

    async def _end(self, reader: Reader) -> int:
        """Where a name ends, as its last place has it. Raises DuologError."""
        topic, _, queue_id = reader
        seal = self._seal_of(reader)
        if seal is None:
            return self._core.store.queue_range(topic, queue_id)[1]
        return (await self._cross(reader, seal.following, end=True)).end

    async def _closed_later(
        self, request: wire.CrossRequest, reader: Reader
    ) -> wire.CrossReply | None:
        """Close the places after this one; the answer of one that stays open, or None."""
        seal = self._seal_of(reader)
        if seal is None:
            return None
        there = await self._close(reader, seal, Close(request.resets))
        if there.committed is None:
            return None
        return wire.CrossReply(resets=there.resets, open=True)


def _settings(request: wire.CrossRequest) -> Json | None:
    """The settings of a group as the asking place has them. Raises BadRequest."""
    if not request.group_settings:
        return None
    try:
        return {**json.loads(request.group_settings), "groupName": request.group}
    except NOT_THE_SHAPE:
        raise sdk.BadRequest(f"the settings of group {request.group[:255]!r} are no JSON") from None
