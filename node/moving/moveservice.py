"""Moves of this node's queues to other replica groups, while it is the master of their source.

A new master holds puts to all queues that are sealed, reads the rows in the registry, and continues
what its log and they say. Some moves run at once, others wait for their turn.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from duolog import _errors as sdk
from duolog._background import Background, all_of

from duolog_server.ha.epochs import Epoch
from duolog_server.ha.mover import OVER, Mover, Span, Start, State, move_id, names_later, resume
from duolog_server.ha.moverevents import (
    Ask,
    Commit,
    Left,
    Lost,
    Nothing,
    Opened,
    Passed,
    Reply,
    Request,
    Reserve,
    Seen,
    Settled,
    joined,
)
from duolog_server.ha.movetarget import to_publish
from duolog_server.node.core.core import Core
from duolog_server.node.moving.movecodec import Settings, reply_of, request_to_wire
from duolog_server.node.moving.othergroups import OtherGroups
from duolog_server.node.moving.queuerows import QueueRows, Rows
from duolog_server.node.moving.runningmove import (
    PAUSE_SECONDS_MAX,
    Holding,
    Ports,
    Progress,
    RunningMove,
)
from duolog_server.node.replication.roles import Replication
from duolog_server.node.wire import moves_pb2 as wire
from duolog_server.store.metadata import LITE
from duolog_server.store.moves import Moves, Place
from duolog_server.store.queueends import QueueKey

__all__ = ["Links", "MoveService", "Progress"]

log = structlog.get_logger("duolog.moves")

MOVES_AT_ONCE = 4
WAITING_MAX = 1000  # moves that were asked for and have not ended
KEPT_MAX = 100  # moves that are over, for operators
WAIT_SECONDS = 10.0  # of a call that begins or aborts one
CALL_SECONDS = 2.0  # of a request to a target
ROWS_SECONDS = 1.0  # that sealed queues wait for the registry after an election
SCAN_SECONDS = 30.0  # between two looks at the rows
SETTLED_SECONDS = 0.01  # between two looks whether all is confirmed
_OVER = frozenset(state.value for state in OVER)


@dataclass(frozen=True, slots=True)
class Links:
    """What ties moves to other groups. group: this one; groups: all that the registry shows."""

    group: str
    groups: Callable[[], Collection[str]]
    others: OtherGroups
    rows: QueueRows
    passing: Holding


class MoveService:
    """Runs the moves of the queues of this group."""

    def __init__(
        self,
        core: Core,
        replication: Replication,
        links: Links,
        failed: Callable[[Exception], None],
    ) -> None:
        """failed: called with an error of a move, which is a bug."""
        self._core = core
        self._metadata = core.metadata
        self._replication = replication
        self._group = links.group
        self._groups = links.groups
        self._others = links.others
        self._rows = links.rows
        self._passing = links.passing
        self._ports = Ports(
            core.metadata,
            core.times,
            links.rows,
            links.passing,
            core.store.next_offset,
            self._ask,
        )
        self._work = Background(failed)
        self._tasks: set[asyncio.Task[None]] = set()  # of this mastership
        self._moves: dict[QueueKey, RunningMove] = {}
        self._moved: set[QueueKey] = set()  # queues that may be held or passed on
        self._slots = asyncio.Semaphore(MOVES_AT_ONCE)
        self._number = 0
        self._settled = asyncio.Event()
        self._scan_now = asyncio.Event()
        core.metadata.topic_deleted.append(self._topic_deleted)

    # -- life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled; what masterships begin ends with it."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._work.stop()

    def status(self) -> Mapping[str, int]:
        """See Part."""
        return {}

    def validate(self) -> str:
        """See Part."""
        for (topic, queue_id), move in self._moves.items():
            mover = move.mover
            holds = mover is not None and mover.holds and mover.end >= 0
            if holds and not self._passing.is_held(topic, queue_id):
                return f"puts to {topic}/{queue_id} do not wait for its move"
        return ""

    def role_changed(self) -> None:
        """See Part. Puts to queues that are sealed wait from now on.

        `Holding` hears of the change first, and has forgotten what it held.
        """
        for task in self._tasks:
            task.cancel()
        for move in self._moves.values():
            move.drop()
        self._tasks.clear()
        self._moves.clear()
        self._moved.clear()
        self._slots, self._settled = asyncio.Semaphore(MOVES_AT_ONCE), asyncio.Event()
        master = self._replication.master
        if master is None or not self._rows.there:
            return
        # A group that was restored from a backup leads in epochs that it led in before.
        self._number = int(self._core.times.store_ms())
        for topic, seals in self._metadata.stored_moves.seals.items():
            for queue_id in seals:
                self._passing.hold(topic, queue_id)
                self._moved.add((topic, queue_id))
        self._start(self._lead(master.epoch))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._work.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, epoch: Epoch) -> None:
        """Continue the moves that earlier masters began, then look after the rows."""
        rows: Rows | None = None
        try:
            async with asyncio.timeout(ROWS_SECONDS):
                rows = await self._rows.read_all()
        except (TimeoutError, sdk.Unavailable):
            if self._moved:
                log.warning("sealed queues ask where they continue: the registry does not answer")
        self._resume(epoch, rows or {})
        while self._replication.may_be_behind():
            await asyncio.sleep(SETTLED_SECONDS)
        self._settled.set()
        for move in list(self._moves.values()):
            self._settle(move)
        while True:
            self._scan_now.clear()
            try:
                await self._scan(epoch)
            except sdk.DuologError as error:
                log.debug("rows of moved queues were not compared", reason=str(error))
                self._scan_now.set()
            await asyncio.sleep(min(PAUSE_SECONDS_MAX, SCAN_SECONDS))
            with suppress(TimeoutError):
                async with asyncio.timeout(SCAN_SECONDS):
                    await self._scan_now.wait()

    def _resume(self, epoch: Epoch, rows: Rows) -> None:
        """Take up what the rows say of queues of this group, and at first what its seals say."""
        moves, places = self._metadata.stored_moves, set(self._named(rows))
        places |= set(self._unnamed(rows)) if self._settled.is_set() else self._moved
        for topic, queue_id in sorted(places):
            if not self._is_moving(topic, queue_id):
                name = Span.of(moves, topic, Place(self._group, queue_id)).name
                seen = rows.get((topic, name), Seen())
                self._take_up(Start(epoch, moves, seen), (topic, queue_id))

    def _take_up(self, start: Start, queue: QueueKey) -> None:
        """Continue with a queue by the log and its row, if there is something to be done."""
        (topic, queue_id), at = queue, Place(self._group, queue[1])
        mover = resume(start, topic, at)
        if mover is None:
            return
        if mover.state is State.DONE:
            self._passing.release(topic, queue_id, mover.to)
            return
        if mover.state is State.ASKING:
            log.warning(
                "the log lacks that a queue moved: other groups are asked",
                topic=topic,
                queue_id=queue_id,
                target=mover.target,
            )
        span = Span.of(start.moves, topic, at)
        self._continue(RunningMove(self._ports, topic, span, mover.target), mover)

    def _named(self, rows: Rows) -> Iterator[QueueKey]:
        """The places of this group that take puts of names with a row, in any state."""
        moves, births = self._metadata.stored_moves, self._metadata.births.topics
        guests: dict[tuple[str, Place], list[int]] = defaultdict(list)
        for topic in {topic for topic, _ in rows}:
            for queue_id, guest in moves.guests.get(topic, {}).items():
                guests[topic, guest.name].append(queue_id)
        for (topic, name), seen in rows.items():
            row, known = seen.row, self._metadata.topics.get(topic)
            if row is not None and row.move and row.at.group == self._group:
                here = [row.at.queue_id]
            elif known is None or topic in births:
                continue  # it may be a row of a topic that was deleted
            else:
                is_own = name.group == self._group and name.queue_id < known.queues
                here = [*([name.queue_id] if is_own else ()), *guests.get((topic, name), ())]
            for queue_id in here:
                if moves.seal_of(topic, queue_id) is None:
                    yield topic, queue_id

    def _unnamed(self, rows: Rows) -> Iterator[QueueKey]:
        """Sealed queues of which no row says what comes behind them: it may be lost."""
        moves = self._metadata.stored_moves
        for topic, seals in moves.seals.items():
            for queue_id in seals:
                at = Place(self._group, queue_id)
                row = rows.get((topic, Span.of(moves, topic, at).name), Seen()).row
                if row is None or row.at == at:
                    yield topic, queue_id

    def lost(self, topic: str, queue_id: int) -> None:
        """The place behind a sealed queue does not know of it: find out what there is."""
        master, move = self._replication.master, self._moves.get((topic, queue_id))
        if master is None or not self._settled.is_set():
            return
        if move is not None and not move.is_over:
            move.step(Lost())
            return
        log.warning("the place behind a queue does not know of it", topic=topic, queue_id=queue_id)
        moves = self._metadata.stored_moves
        if moves.seal_of(topic, queue_id) is not None:
            self._take_up(Start(master.epoch, moves, Seen()), (topic, queue_id))

    def _continue(self, move: RunningMove, mover: Mover) -> None:
        move.resume(mover)
        self._add(move)
        self._moved.add((move.topic, move.span.at.queue_id))
        self._start(move.run())
        if self._settled.is_set():
            self._settle(move)

    def _settle(self, move: RunningMove) -> None:
        """All that the log held when this mastership began is confirmed."""
        if move.topic not in self._metadata.topics and not move.is_over:
            move.topic_deleted()
        if not move.is_over:  # with its topic
            move.step(Settled())

    def _topic_deleted(self, topic: str) -> None:
        self._scan_now.set()  # a topic of its name may not move as long as there are its rows
        for queue in [queue for queue in self._moved if queue[0] == topic]:
            self._moved.discard(queue)
            self._passing.release(*queue, None)
        for (name, _), move in self._moves.items():
            if name == topic and not move.is_over:
                move.topic_deleted()

    # -- the registry's rows -----------------------------------------------------------------------

    async def _scan(self, epoch: Epoch) -> None:
        """Write rows that the registry lost, revoke moves that only it knows, remove rows of topics
        that are no more.
        """
        rows, moves = await self._rows.read_all(), self._metadata.tables.moves
        self._resume(epoch, rows)
        await self._end_with_groups()
        self._pass_over(rows)
        for topic, queue_id in [(topic, one) for topic, row in moves.guests.items() for one in row]:
            sealed = moves.seal_of(topic, queue_id) is not None
            if topic not in self._metadata.topics or (sealed and self._is_moving(topic, queue_id)):
                continue  # the row of a move is written by that
            await self._publish(moves, (topic, queue_id), rows)
        for (topic, name), seen in rows.items():
            row, exists = seen.row, self._metadata.exists(topic)
            if row is None or row.move or row.at.group != self._group:
                continue
            if not (exists and self._has(topic, name, row.at)):
                await self._rows.remove(topic, name, seen.revision)
        await self._remove_left(rows)
        await self._note_gone(moves)  # at last: it takes room on the disk

    async def _remove_left(self, rows: Rows) -> None:
        """Remove the rows of topics that were deleted, or made again since, whose queues born here
        were in groups that have left: those would have done so.
        """
        metadata, shown = self._metadata, self._groups()
        left = {
            (topic, name): seen
            for (topic, name), seen in rows.items()
            if name.group == self._group
            and (topic in metadata.births.topics or not metadata.exists(topic))
            and metadata.stored_moves.seal_of(topic, name.queue_id) is None
            and seen.row is not None
            and not seen.row.move
            and seen.row.at.group not in (self._group, *shown)
        }
        gone = await self._rows.retired() if left else set()
        for (topic, name), seen in left.items():
            if seen.row is not None and seen.row.at.group in gone:
                await self._rows.remove(topic, name, seen.revision)

    async def _end_with_groups(self) -> None:
        """End the moves that wait for a revocation by a group that has left."""
        ending = [move for move in self._moves.values() if not move.is_over and move.is_ending]
        gone = await self._rows.retired() if ending else set()
        for move in ending:
            if move.target in gone:
                move.step(Left())

    def _pass_over(self, rows: Rows) -> None:
        """Pass on to later places, by the rows, what the next one does not take."""
        moves = self._metadata.stored_moves
        for topic, queue_id in [(topic, one) for topic, row in moves.seals.items() for one in row]:
            span = Span.of(moves, topic, Place(self._group, queue_id))
            seal, seen = moves.seal_of(topic, queue_id), rows.get((topic, span.name), Seen())
            if seal is None or seen.row is None or not names_later(seen.row, span):
                continue
            at, move = seen.row.at, self._moves.get((topic, queue_id))
            is_lost = at.group == self._group and not self._has(topic, span.name, at)
            if at == seal.following or is_lost:
                continue
            if move is None or move.is_over:
                self._passing.release(topic, queue_id, at)
            elif not self._others.has_master(seal.following.group):
                move.step(Passed(seen))

    async def _note_gone(self, moves: Moves) -> None:
        """Note the groups that have left, where queues moved: guests that came from there are open
        to all, and what is put to queues that moved there, or on from there, passes them over.
        """
        if not (any(moves.guests.values()) or any(moves.seals.values())):
            return
        for group in sorted(await self._rows.retired() - moves.gone):
            await self._metadata.change({"op": "gone", "replica_group": group})
            log.info("a replica group has left", replica_group=group)

    def _has(self, topic: str, name: Place, at: Place) -> bool:
        """Whether a queue of this group carries a name; not if the topic was made again."""
        guest = self._metadata.tables.moves.guest_of(topic, at.queue_id)
        return at == name if guest is None else guest.name == name and guest.first is not None

    async def _publish(self, moves: Moves, queue: QueueKey, rows: Rows) -> None:
        """Write the row of a queue if the registry lost it, or has an older one."""
        topic, at = queue[0], Place(self._group, queue[1])
        seen = rows.get((topic, Span.of(moves, topic, at).name), Seen())
        row = to_publish(moves, topic, at, seen.row)
        if row is not None and row != seen.row:
            await self._rows.commit(topic, Commit(row, seen.revision))

    def _is_moving(self, topic: str, queue_id: int) -> bool:
        move = self._moves.get((topic, queue_id))
        return move is not None and not move.is_over

    async def _ask(self, topic: str, target: str, request: Request) -> Reply:
        """A target's answer. Raises DuologError without one."""
        if isinstance(request, Ask):
            return await self._ask_all(topic, request)
        settings = self._settings(topic) if isinstance(request, Reserve) else Settings({})
        asked = request_to_wire(topic, request, settings)
        return reply_of(await self._others.ask(target, asked, CALL_SECONDS))

    async def _ask_all(self, topic: str, request: Ask) -> Reply:
        """What the other groups say together.

        Raises DuologError while one of them is silent, unless the queue continues at another one.
        """
        shown, named = self._groups(), request.named.group
        if not shown:
            raise sdk.Unavailable("the registry has not shown the replica groups yet")
        groups = {*shown} - {self._group}
        has_left = named not in groups and named in await self._rows.retired()
        if not has_left and (named not in (*groups, self._group) or not groups):
            raise sdk.Unavailable(f"the registry does not show group {named}, which has the queue")
        asked = request_to_wire(topic, request, Settings({}))
        answers = await all_of(*(self._answer(group, asked) for group in sorted(groups)))
        replies = [answer for answer in answers if not isinstance(answer, sdk.DuologError)]
        silent = [answer for answer in answers if isinstance(answer, sdk.DuologError)]
        if silent and not any(isinstance(reply, Opened) for reply in replies):
            raise silent[0]
        return joined(replies) if replies else Nothing()

    async def _answer(self, group: str, asked: wire.MoveRequest) -> Reply | sdk.DuologError:
        try:
            return reply_of(await self._others.ask(group, asked, CALL_SECONDS))
        except sdk.DuologError as error:
            return error

    def _settings(self, topic: str) -> Settings:
        """The topic, and the consumer groups that have offsets in it."""
        tables = self._metadata.tables
        known = self._core.admission.known_topic(topic)
        groups = sorted({group for read, group in tables.offsets if read == topic})
        rows = [tables.groups[group] for group in groups if group in tables.groups]
        return Settings(known.own().to_json(), rows)

    # -- calls of operators ------------------------------------------------------------------------

    async def begin(self, topic: str, queue_id: int, target: str) -> Progress:
        """Move a queue to another replica group; how far that is after 10 s, or once it is over.

        A second call for the same target joins, also one to a later master. Raises UnknownTopic,
        BadRequest, NotMaster, Busy, and Unavailable where the master changed meanwhile.
        """
        self._check_rows()
        await self._until_settled()
        while (known := self._moves.get((topic, queue_id))) is not None and known.is_ending:
            if (await self._told(known)).state not in _OVER:
                raise sdk.Busy(f"the last move of queue {topic}/{queue_id} is not revoked yet")
        if known is not None and not known.is_over:
            if known.progress().target != target:
                raise sdk.BadRequest(
                    f"queue {topic}/{queue_id} moves to {known.progress().target} already: abort "
                    "that move, or wait until it has ended"
                )
            return await self._told(known)
        before = self._moved_before(topic, queue_id)
        if before is not None and before.target == target:
            return known.progress() if known is not None else before
        move = RunningMove(self._ports, topic, self._movable(topic, queue_id, target), target)
        self._add(move)
        self._start(self._run(move))
        return await self._told(move)

    def _check_rows(self) -> None:
        if not self._rows.there:
            raise sdk.BadRequest(
                "queues move only where masters are elected: set registry.endpoints"
            )

    def _moved_before(self, topic: str, queue_id: int) -> Progress | None:
        """The move that has ended with a sealed queue."""
        moves = self._metadata.stored_moves
        seal = moves.seal_of(topic, queue_id)
        if seal is None:
            return None
        to, done = seal.following, State.DONE.value
        name = Span.of(moves, topic, Place(self._group, queue_id)).name
        return Progress(topic, queue_id, name, seal.move, done, to.group, seal.end, to, 0, 0.0, "")

    def _movable(self, topic: str, queue_id: int, target: str) -> Span:
        """What a queue carries that may move. Raises as `begin`."""
        known = self._core.admission.known_topic(topic)
        at, moves = Place(self._group, queue_id), self._metadata.tables.moves
        if not 0 <= queue_id < known.queues and moves.guest_of(topic, queue_id) is None:
            raise sdk.BadRequest(f"topic {topic} has no queue {queue_id} in group {self._group}")
        for tables in (self._metadata.stored_moves, moves):
            closed = tables.closed(topic, queue_id)
            if closed is not None:
                raise sdk.BadRequest(closed.reason)
        if target == self._group:
            raise sdk.BadRequest(f"queue {topic}/{queue_id} lies in group {target} already")
        if not self._others.has_master(target):
            raise sdk.BadRequest(f"the registry shows no replica group {target!r} with a master")
        if known.message_type == LITE:
            raise sdk.BadRequest(f"queues of topic {topic}, which has lite topics, do not move")
        refused = self._core.admission.change()
        if refused is not None:
            raise refused
        if sum(not move.is_over for move in self._moves.values()) >= WAITING_MAX:
            raise sdk.Busy(f"{WAITING_MAX} queues of this group are to move already: try again")
        return Span.of(moves, topic, at)

    async def _run(self, move: RunningMove) -> None:
        """Run a move once its turn has come."""
        async with self._slots:
            await move.begin(self._new_id)
        if move.mover is not None and move.mover.state is State.DONE:
            self._moved.add((move.topic, move.span.at.queue_id))

    def _new_id(self) -> str:
        self._number += 1
        assert self._replication.master is not None, "a move ends with its mastership"
        return move_id(self._group, self._replication.master.epoch, self._number)

    async def _until_settled(self) -> None:
        """Wait until earlier moves are taken up. Raises NotMaster, Busy."""
        self._core.admission.check_current()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            raise sdk.Busy("this master has not taken up the moves of its group yet") from None
        self._core.admission.check_current()

    async def abort(self, topic: str, queue_id: int) -> Progress:
        """End a move that has not sealed. Raises BadRequest if there is none or it has sealed."""
        self._check_rows()
        await self._until_settled()
        move = self._moves.get((topic, queue_id))
        if move is None or (move.is_over and move.progress().state != State.ENDED.value):
            raise sdk.BadRequest(f"queue {topic}/{queue_id} does not move")
        if move.is_unsealed:
            move.abort("an operator aborted it")
        progress = move.progress()
        if progress.end >= 0:
            raise sdk.BadRequest(
                f"queue {topic}/{queue_id} ends at offset {progress.end}: its move to "
                f"{progress.target} cannot be aborted any more"
            )
        return await self._told(move)

    async def _told(self, move: RunningMove) -> Progress:
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                await move.told.wait()
        if move.is_dropped:
            self._core.admission.check_current()
            raise sdk.Unavailable("the master changed while the queue moved: call again")
        return move.progress()

    def progress(self, topic: str = "") -> list[Progress]:
        """The moves that have not ended and the last ones that have, of a topic or of all."""
        found = [move.progress() for move in self._moves.values()]
        return [one for one in found if topic in ("", one.topic)]

    @property
    def ended(self) -> Mapping[State, int]:
        """How many moves have ended in which state, since this node started."""
        return self._ports.ended

    def _add(self, move: RunningMove) -> None:
        over = [queue for queue, one in self._moves.items() if one.is_over]
        for queue in over[: max(0, len(over) - KEPT_MAX + 1)]:
            del self._moves[queue]
        queue = move.topic, move.span.at.queue_id
        self._moves.pop(queue, None)
        self._moves[queue] = move
