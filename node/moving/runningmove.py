"""One move as its source's master runs it: executes what `ha.mover` says, again and again.

A task of its own, with one thing in flight at a time. What is not answered is repeated after a
pause; the machine allows for answers that come late.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog
from duolog import _errors as sdk

from duolog_server.ha import mover as machine
from duolog_server.ha.mover import OVER, Mover, Span, State
from duolog_server.ha.moverevents import (
    Abort,
    Answered,
    Append,
    Call,
    Commit,
    Effect,
    Event,
    Held,
    Hold,
    Lost,
    NotSealed,
    Opened,
    Refused,
    Release,
    Reply,
    Report,
    Request,
    Retry,
    Sealed,
)
from duolog_server.node.core.metadatalog import MetadataLog
from duolog_server.node.engine.storetimes import StoreTimes
from duolog_server.node.moving.queuerows import QueueRows
from duolog_server.store.clocks import MonoMs
from duolog_server.store.errors import StoreError
from duolog_server.store.moves import Place

log = structlog.get_logger("duolog.moves")

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.05, 1.0
SEAL_SECONDS = 30.0  # within which a move has sealed its queue, or is aborted
WAITING = "WAITING"
ENDING = frozenset({State.REVOKING, State.CLEARING})


class Holding(Protocol):
    """Holds puts to a queue that is moving, and passes on those to one that has moved."""

    def hold(self, topic: str, queue_id: int) -> None:
        """Hold what is put from now on."""

    def release(self, topic: str, queue_id: int, place: Place | None) -> None:
        """Pass on to this place what is held, and all that comes later; None: store it here."""

    def is_held(self, topic: str, queue_id: int) -> bool:
        """Whether puts wait."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a move is. state: of `ha.mover.State`, or WAITING for its turn.

    queue_id: where the queue lies in this group; name: where it was born. end: of the seal, -1
    before. to: the place that it moves to; None before that is reserved. began_ms: by the wall
    clock. pause_ms: how long puts were held. reason: why it ended or cannot continue; empty if it
    can.
    """

    topic: str
    queue_id: int
    name: Place
    move: str
    state: str
    target: str
    end: int
    to: Place | None
    began_ms: int
    pause_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ports:
    """What moves are executed with.

    ask: a target; raises DuologError without an answer. ended: counts moves by their last state.
    """

    metadata: MetadataLog
    times: StoreTimes
    rows: QueueRows
    passing: Holding
    next_offset: Callable[[str, int], int]
    ask: Callable[[str, str, Request], Awaitable[Reply]]
    ended: Counter[State] = field(default_factory=Counter)


class RunningMove:
    """A move in this mastership, from its turn to its end."""

    def __init__(self, ports: Ports, topic: str, span: Span, target: str) -> None:
        self.topic = topic
        self.span = span
        self.target = target
        self.mover: Mover | None = None  # before its turn
        self.told = asyncio.Event()  # it is over, or its mastership has ended
        self.is_dropped = False  # by the end of its mastership
        self._ports = ports
        self._verdict = ""  # why it ended or cannot continue
        self._trouble = ""  # why the last attempt failed
        self._began_ms = int(ports.times.wall_ms())
        self._began = ports.times.mono_ms()
        self._held_since: MonoMs | None = None
        self._pause_ms = 0.0
        self._next: Effect | None = None  # what the machine waits for
        self._wake = asyncio.Event()
        self._aborted = False  # before its turn
        self._gone = False  # the topic was deleted

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done."""
        return self.mover.state in OVER if self.mover is not None else self._aborted

    @property
    def reason(self) -> str:
        """Why it ended, or does not continue now; empty if it does."""
        return self._verdict or self._trouble

    @property
    def is_unsealed(self) -> bool:
        """Whether it may be aborted."""
        return self.mover is None or self.mover.is_unsealed

    @property
    def is_ending(self) -> bool:
        """Whether nothing is left to do but to revoke it."""
        return self.mover is not None and self.mover.state in ENDING

    def progress(self) -> Progress:
        """How far it is."""
        mover, at = self.mover, self.span.at
        state = mover.state.value if mover is not None else WAITING
        if mover is None and self._aborted:
            state = State.ENDED.value
        return Progress(
            self.topic,
            at.queue_id,
            self.span.name,
            mover.move if mover is not None else "",
            state,
            self._target,
            mover.end if mover is not None else -1,
            mover.to if mover is not None else None,
            self._began_ms,
            self._paused_ms(),
            self.reason,
        )

    def _paused_ms(self) -> float:
        if self._held_since is None:
            return self._pause_ms
        return self._pause_ms + self._ports.times.mono_ms() - self._held_since

    # -- events ------------------------------------------------------------------------------------

    def resume(self, mover: Mover) -> None:
        """Continue what a former master began, or what a log or the registry tells of."""
        self.mover = mover
        if mover.holds:
            self._hold()
        elif mover.state is State.REVOKING:
            self._verdict = "the master that began it had not sealed the queue: begin it again"

    async def begin(self, new_id: Callable[[], str]) -> None:
        """Its turn has come: begin it, and run it until it is over."""
        self._began, pause = self._ports.times.mono_ms(), PAUSE_SECONDS
        while not self.is_over:
            try:
                seen = await self._ports.rows.read(self.topic, self.span.name)
            except sdk.Unavailable as error:
                self._trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
                self._abort_if_late()
                continue
            if not self.is_over:
                self._trouble = ""
                self.mover, effects = machine.begin(self.span, self.target, new_id(), seen)
                log.info(
                    "a queue begins to move",
                    topic=self.topic,
                    queue_id=self.span.at.queue_id,
                    target=self.target,
                )
                self._perform(effects)
                await self.run()

    def abort(self, reason: str) -> None:
        """End it, if it has not sealed."""
        if not self.is_unsealed:
            return
        self._verdict = reason
        if self.mover is not None:
            self.step(Abort())
        else:
            self._aborted = True
            self.told.set()

    def drop(self) -> None:
        """The mastership has ended; the next master continues it."""
        self.is_dropped = True
        self.told.set()

    def topic_deleted(self) -> None:
        """Its queue is no more: nothing is sealed, and what is reserved is revoked."""
        self._gone, self._verdict = True, "the topic was deleted"
        if self.is_unsealed:
            self.abort(self._verdict)
        elif self.mover is not None and self.mover.holds:
            self._release(None)
            asks = not self.mover.move  # what it asks for is not to be revoked
            state = State.ENDED if asks else State.REVOKING
            self.mover = replace(self.mover, state=state, settled=True)
            self._next = None
            self.step(Retry())
        elif self.mover is not None and self.mover.moved_to is not None:
            self._release(None)

    def step(self, event: Event) -> None:
        """Pass an event to the machine."""
        assert self.mover is not None, "its turn has come"
        before = self.mover.state
        match event:
            case Answered(Refused(_, reason)) if before is State.RESERVING:
                self._verdict = reason
            case Answered(Opened()) if self._gone:  # nothing can be sealed here any more
                self.mover = replace(self.mover, state=State.ENDED)
                return self._perform(())
        self.mover, effects = self.mover.step(event)
        match event:
            case Answered(Refused(_, reason)) if before is State.RENEWING:
                self._trouble = reason
            case Lost() if self.mover.holds:
                self._hold()
            case Sealed() if self.mover.first >= 0 or self.mover.replaces:
                self._sealed_again()
        if self.mover.state is not before:
            log.debug("move", state=self.mover.state.value, move=self.mover.move, topic=self.topic)
        self._perform(effects)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Release(place):
                    self._release(place)
                case Report(reason):
                    self._verdict = reason
                case _:
                    self._next = effect
                    self._wake.set()
        assert self.mover is not None, "its turn has come"
        if self.mover.state in OVER:
            self._over()
            self.told.set()

    def _sealed_again(self) -> None:
        """Say what a log that was set back has lost of the queue, or stored beside the next place.

        Where that place was lost, it begins anew where it began.
        """
        mover = self.mover
        assert mover is not None, "it has sealed"
        log.warning(
            "a queue that had moved is sealed again",
            topic=self.topic,
            queue_id=self.span.at.queue_id,
            queue_end=mover.end,
            target=str(mover.to),
            next_first=mover.first if mover.first >= 0 else mover.end,
        )

    def _over(self) -> None:
        assert self.mover is not None, "its turn has come"
        self._next, self._trouble = None, ""
        self._ports.ended[self.mover.state] += 1
        if self.mover.state is State.DONE:
            self._verdict = ""
            log.info(
                "a queue has moved",
                topic=self.topic,
                queue_id=self.span.at.queue_id,
                target=self._target,
            )
        else:
            log.warning(
                "a queue does not move",
                topic=self.topic,
                queue_id=self.span.at.queue_id,
                target=self._target,
                reason=self.reason,
            )
        self._wake.set()

    def _hold(self) -> None:
        self._ports.passing.hold(self.topic, self.span.at.queue_id)
        if self._held_since is None:
            self._held_since = self._ports.times.mono_ms()

    def _release(self, place: Place | None) -> None:
        self._pause_ms, self._held_since = self._paused_ms(), None
        self._ports.passing.release(self.topic, self.span.at.queue_id, place)

    @property
    def _target(self) -> str:
        return self.mover.target if self.mover is not None else self.target

    # -- what it waits for -------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is over."""
        pause = PAUSE_SECONDS
        while self.mover is not None and not self.is_over:
            effect = await self._following()
            if effect is None:
                continue
            before = self.mover.state
            event = await self._execute(effect)
            if event is not None:
                self.step(event)
            if self.is_over:
                break
            if self.mover.state is not before:
                pause = PAUSE_SECONDS
                if self._next is not None:
                    continue
            elif isinstance(effect, Hold) and isinstance(self._next, Append):
                continue  # no put comes between
            await self._pause(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
            self._again(effect)
        if self._gone:
            await self._remove_row()

    async def _following(self) -> Effect | None:
        while self._next is None and not self.is_over:
            self._wake.clear()
            await self._wake.wait()
        effect, self._next = self._next, None
        return effect

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, or until there is something else to do."""
        self._wake.clear()
        if self._next is not None:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _again(self, effect: Effect) -> None:
        assert self.mover is not None, "its turn has come"
        self._abort_if_late()
        if self._next is not None or self.is_over:
            return
        if isinstance(effect, Hold) and self.mover.state is State.SEALING:
            self._next = effect
        else:
            self.step(Retry())

    def _abort_if_late(self) -> None:
        elapsed = self._ports.times.mono_ms() - self._began
        if self.is_unsealed and elapsed >= SEAL_SECONDS * 1000:
            why = self._trouble or "no answer"
            self.abort(f"its queue was not sealed after {SEAL_SECONDS:g} s: {why}")

    async def _execute(self, effect: Effect) -> Event | None:
        """Do what the machine wants; None: there is no answer."""
        assert self.mover is not None, "its turn has come"
        try:
            match effect:
                case Commit():
                    event: Event | None = await self._ports.rows.commit(self.topic, effect)
                case Call(request):
                    asked = self._ports.ask(self.topic, self._target, request)
                    event = Answered(await asked)
                case Hold():
                    event = self._held()
                case Append():
                    event = await self._sealed(effect)
                case _:
                    raise AssertionError(f"{effect} is done at once")
        except (sdk.DuologError, StoreError) as error:
            self._trouble = f"{type(error).__name__}: {error}"
            return NotSealed() if isinstance(effect, Append) else None
        self._trouble = ""
        return event

    def _held(self) -> Held:
        """Hold puts. Raises why no seal can be stored now."""
        self._hold()
        refused = self._ports.metadata.refused()
        if refused is not None:
            raise refused
        return Held(self._ports.next_offset(self.topic, self.span.at.queue_id))

    async def _sealed(self, append: Append) -> Sealed | NotSealed | None:
        """Store a seal, and wait until it is confirmed, however long that takes."""
        metadata, queue_id, seal = self._ports.metadata, self.span.at.queue_id, append.seal
        try:
            offset = metadata.store_seal(self.topic, queue_id, seal, append.replaces)
        except (sdk.DuologError, StoreError):
            # Surely not stored. Unless the target has begun, puts need not wait for the next
            # attempt, and fail for the same reason, such as a full disk.
            if self.mover is not None and not self.mover.has_begun:
                self._release(None)
            raise
        while True:
            try:
                await metadata.applied(offset)
            except sdk.ResultUnknown as error:
                self._trouble = str(error)
                continue
            if self._gone:
                return None
            stored = metadata.tables.moves.seal_of(self.topic, queue_id)
            return Sealed() if stored == seal else NotSealed()

    async def _remove_row(self) -> None:
        """The topic is no more: nor is its row, unless another group has the queue."""
        pause, move = PAUSE_SECONDS, self.mover.move if self.mover is not None else ""
        while True:
            try:
                seen = await self._ports.rows.read(self.topic, self.span.name)
                row = seen.row
                if row is None or row.at != self.span.at or row.move not in ("", move):
                    return
                await self._ports.rows.remove(self.topic, self.span.name, seen.revision)
            except sdk.DuologError:  # also NotMaster: this mastership may be about to end
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
            else:
                return
