"""Transactions: messages that consumers see only once their producer has committed them.

A half message is stored like any other, and seen by nobody. Commits and rollbacks that are asked
for at a time go out together. Where neither comes (the process died, the network was gone), the
node asks a producer of the group what became of it: `checker` answers.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import grpc

from duolog._background import Background
from duolog._backoff import BackOff, would_be_cut_off
from duolog._batcher import producer_closed
from duolog._checks import (
    INT32_MAX,
    checked_bodies,
    checked_body,
    checked_flag,
    checked_number,
    checked_text,
)
from duolog._columns import property_text
from duolog._connection import Connection
from duolog._errors import (
    BadRequest,
    DuologError,
    Fatal,
    NoPermission,
    NotMaster,
    ResultUnknown,
    Retryable,
    SlaveNotAvailable,
    Timeout,
    Unauthenticated,
    error_of,
)
from duolog._nodechannel import uncancelled
from duolog._producer import Many, Message, Producer, check_place, checked_seconds, encoded_text
from duolog._receipts import Receipt
from duolog._router import FRESH_SECONDS, Router
from duolog._terms import Terms
from duolog._tracecontext import TRACEPARENT, context_of
from duolog.wire import duolog_pb2 as wire

log = logging.getLogger("duolog")

ENDS_MAX = 20_000  # in one request
_UNKNOWN = "it is unknown whether the transaction was decided"
CHECKS_AT_ONCE = 16  # that the checker is asked about side by side
UNDECIDED_SECONDS = 3.0  # within which a node learns that there is no decision yet
LATE_SECONDS = 1.0  # beyond the time of a decision: its request's result comes first


@dataclass(frozen=True, slots=True)
class Half:
    """A half message that was stored. unique_key: of the message, also once it is committed.

    traceparent: the trace that the message belongs to; empty for none.
    """

    topic: str
    unique_key: str
    replica_group: str
    offset: int
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class UndecidedMessage:
    """A half message that a checker decides."""

    topic: str
    body: bytes
    properties: dict[str, str]
    born_time_ms: int

    @property
    def unique_key(self) -> str:
        """The id that `Half.unique_key` was."""
        return self.properties.get("UNIQ_KEY", "")


# True: commit; False: roll back; None: ask again later.
Checker = Callable[[UndecidedMessage], Awaitable[bool | None]]


@dataclass(slots=True)
class _Ending:
    """Decisions of one kind that go to one replica group together."""

    halves: list[int] = field(default_factory=list)
    futures: list["asyncio.Future[None]"] = field(default_factory=list)
    deadline: float = 0.0  # of the latest one, by the loop's time
    running: bool = False
    weak: str = ""  # of those on their way: the last status of what is stored and not confirmed

    def add(self, half: int, deadline: float) -> "asyncio.Future[None]":
        """One more; it is decided once the future is done."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.halves.append(half)
        self.futures.append(future)
        self.deadline = max(self.deadline, deadline)
        return future

    def take(self) -> "tuple[list[int], list[asyncio.Future[None]]]":
        """Take as many as one request may name: half messages, futures."""
        halves, self.halves = self.halves[:ENDS_MAX], self.halves[ENDS_MAX:]
        futures, self.futures = self.futures[:ENDS_MAX], self.futures[ENDS_MAX:]
        self.weak = ""
        return halves, futures

    def give_up(self, future: "asyncio.Future[None]", seconds: float) -> DuologError:
        """The error of a decision whose time is over; one not on its way yet is taken back."""
        if future not in self.futures:
            return _unknown(f"no answer within {seconds:g} s", self.weak)
        at = self.futures.index(future)
        half = self.halves[at]
        del self.futures[at], self.halves[at]
        return Timeout(
            f"half message {half} was not decided within {seconds:g} s: its turn did not come"
        )

    def close(self) -> None:
        """Fail what is left: it is not sent."""
        self.running = False
        left, self.halves, self.futures = self.futures, [], []
        _give_up(left)


def _halves(halves: Iterable[Half]) -> list[Half]:
    """Half messages to decide. Raises BadRequest."""
    if not isinstance(halves, Iterable):
        raise BadRequest(f"halves must be a sequence of Half, not {type(halves).__name__}")
    found = list(halves)
    for half in found:
        if not isinstance(half, Half):
            raise BadRequest(f"a half message must be a Half, not {type(half).__name__}")
    return found


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """The producers that answer for each other's transactions: see `Client.transactions`."""

    name: str
    checker: Checker | None = None
    immunity: float = 0.0
    accept_weak: bool = False

    def __post_init__(self) -> None:
        """Raise BadRequest for a group without a name."""
        if not self.name:
            raise BadRequest("transactions need the name of a producer group")
        checked_text("group", self.name)
        checked_number("immunity", self.immunity, 0, INT32_MAX)
        checked_flag("accept_weak", self.accept_weak)
        if self.checker is not None and not callable(self.checker):
            raise BadRequest(f"checker must be a function, not {type(self.checker).__name__}")


class Transactions:
    """Transactions of one producer group. Made by `Client.transactions()`."""

    def __init__(
        self, router: Router, producer: Producer, group: ProducerGroup, timeout: float
    ) -> None:
        """Not called by users."""
        self.group = group.name
        self._router = router
        self._producer = producer
        self._spans = router.runtime.spans
        self._checker = group.checker
        self._timeout = timeout
        self._accept_weak = group.accept_weak
        self._terms = Terms(transaction_group=group.name, immunity_seconds=int(group.immunity))
        self._endings: dict[tuple[str, bool], _Ending] = {}
        self._deciding = Background()
        self._listening = Background()
        self._answering = Background()
        self._asking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._asked: set[tuple[str, int]] = set()  # about which the checker is asked now
        self._listeners: dict[str, asyncio.Task[None]] = {}  # by replica group
        self._started = False

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for questions, where there is a checker.

        Raises Unavailable, Timeout; BadRequest after `close`.
        """
        self._router.check_process()
        if self._producer.ended:
            raise producer_closed()
        if self._checker is not None and not self._started:
            await self._listen_everywhere()
            self._started = True
            self._listening.start(self._find_groups())

    async def close(self) -> None:
        """Finish decisions in flight (bounded), stop listening."""
        if self._router.forked:
            return
        await self._listening.stop()
        await self._answering.stop()
        self._listeners.clear()
        await self._deciding.finish(self._timeout)
        await self._deciding.stop()
        await self._producer.close()

    async def __aenter__(self) -> "Transactions":
        """Listen."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    # -- a transaction -------------------------------------------------------------------------

    async def prepare(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Half:
        """Store a half message. Raises as `Producer.send`; a message that was not stored for sure
        (ResultUnknown) is asked about by the node."""
        seconds = self._timeout if timeout is None else checked_seconds(timeout)
        check_place(topic, None)
        body = checked_body("a body", body)
        text = encoded_text(tags, key, keys, properties)
        slot = await self._producer.slot_of(topic, key, seconds) if key is not None else None
        message = Message(topic, slot, self._terms, body, text)
        if self._spans is None:
            return _half(topic, await self._producer.send_message(message, seconds))
        with self._spans.send(topic, text, self._terms) as sending:
            message = replace(message, text=sending.text(text))
            receipt = await self._producer.send_message(message, seconds)
            return _half(topic, sending.stored(receipt), sending.traceparent)

    async def prepare_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: str | None = None,
        timeout: float | None = None,
    ) -> list[Half]:
        """Store many half messages as columns: the fast way. Raises as `prepare`."""
        seconds = self._timeout if timeout is None else checked_seconds(timeout)
        check_place(topic, None)
        bodies = checked_bodies(bodies)
        if not bodies:
            return []
        same = property_text(tags, (), None)
        many, traceparent = Many(topic, bodies, same, terms=self._terms), ""
        if self._spans is None:
            receipt = await self._producer.send_many(many, seconds)
        else:
            with self._spans.send(topic, same, self._terms, len(bodies)) as sending:
                receipt = await self._producer.send_many(many.carrying(sending), seconds)
                traceparent = sending.traceparent
        key = self._producer.unique_key
        return [
            Half(
                topic, key(part.sequence + k), part.place.group, part.queue_offset + k, traceparent
            )
            for part in receipt.parts
            for k in range(part.count)
        ]

    async def commit_all(self, halves: Iterable[Half]) -> None:
        """Commit many at a time. Raises as `commit`; some may be committed then."""
        await self._end_all_in_span(_halves(halves), True)

    async def rollback_all(self, halves: Iterable[Half]) -> None:
        """Roll many back at a time. Raises as `commit`; some may be rolled back then."""
        await self._end_all_in_span(_halves(halves), False)

    async def _end_all_in_span(self, halves: list[Half], commit: bool) -> None:
        with self._deciding_span(halves, commit):
            await self._end_all(halves, commit)

    def _deciding_span(
        self, halves: Sequence[Half], commit: bool
    ) -> contextlib.AbstractContextManager[None]:
        """The span of a decision, one more step of their traces."""
        if self._spans is None or not halves:
            return contextlib.nullcontext()
        origins = (context_of(half.traceparent) for half in halves)
        operation = "commit" if commit else "rollback"
        return self._spans.decide(operation, halves[0].topic, origins, self.group)

    async def _end_all(self, halves: Sequence[Half], commit: bool) -> None:
        groups: dict[str, list[int]] = {}
        for half in halves:
            groups.setdefault(half.replica_group, []).append(half.offset)
        for replica_group, offsets in groups.items():
            for first in range(0, len(offsets), ENDS_MAX):
                some = offsets[first : first + ENDS_MAX]
                deadline = asyncio.get_running_loop().time() + self._timeout
                await self._request_end(replica_group, commit, some, _Ending(deadline=deadline))

    async def commit(self, half: Half) -> None:
        """Let consumers see it; once more does nothing.

        Raises NoSuchMessage if it was rolled back, or given up after the last check meanwhile;
        ResultUnknown (also where the decision is stored and not confirmed in time; at once, as
        SlaveNotAvailable, without slaves), Unavailable, Timeout, UnknownTopic where no node knows
        the replica group that stored the half message.
        """
        await self._end(half, True)

    async def rollback(self, half: Half) -> None:
        """Drop it. Raises as `commit`."""
        await self._end(half, False)

    @contextlib.asynccontextmanager
    async def begin(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        keys: Sequence[str] = (),
        tags: str | None = None,
        properties: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Half]:
        """Prepare a message, commit it at the end of the block, or roll back where that raises."""
        half = await self.prepare(
            topic, body, key=key, keys=keys, tags=tags, properties=properties, timeout=timeout
        )
        try:
            yield half
        except BaseException:
            await self.rollback(half)
            raise
        await self.commit(half)

    async def _end(self, half: Half, commit: bool) -> None:
        _halves([half])
        with self._deciding_span([half], commit):
            await self._end_one(half, commit)

    async def _end_one(self, half: Half, commit: bool) -> None:
        self._router.check_process()
        ending = self._endings.setdefault((half.replica_group, commit), _Ending())
        future = ending.add(half.offset, asyncio.get_running_loop().time() + self._timeout)
        if not ending.running:
            ending.running = True
            drain = self._deciding.start(self._drain(half.replica_group, commit, ending))
            # Where it is cancelled before its first step, nothing of it runs.
            drain.add_done_callback(lambda _: ending.close() if drain.cancelled() else None)
        try:
            async with asyncio.timeout(self._timeout + LATE_SECONDS):
                await future
        except DuologError:  # its Timeout is a TimeoutError
            raise
        except TimeoutError:
            raise ending.give_up(future, self._timeout) from None

    async def _drain(self, replica_group: str, commit: bool, ending: _Ending) -> None:
        """Send what has gathered, again and again, until nothing is left."""
        try:
            while ending.halves:
                halves, futures = ending.take()
                await self._send_end(replica_group, commit, halves, futures, ending)
        finally:
            ending.close()

    async def _send_end(
        self,
        replica_group: str,
        commit: bool,
        halves: list[int],
        futures: "list[asyncio.Future[None]]",
        ending: _Ending,
    ) -> None:
        try:
            await self._request_end(replica_group, commit, halves, ending)
        except DuologError as error:
            if len(halves) > 1 and isinstance(error, Fatal):
                for half, future in zip(halves, futures, strict=True):  # one of them, but which?
                    await self._send_end(replica_group, commit, [half], [future], ending)
                return
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            _give_up(futures)
            raise
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def _request_end(
        self, replica_group: str, commit: bool, halves: list[int], ending: _Ending
    ) -> None:
        loop, deadline = asyncio.get_running_loop(), ending.deadline
        seconds = max(0.0, deadline - loop.time())
        connection = await self._router.reach(replica_group, seconds)
        request = wire.EndTransactionsRequest(group=self.group, halves=halves, commit=commit)
        back_off = BackOff(self._router.runtime.chance)
        while True:
            left = deadline - loop.time()
            try:
                await connection.call(
                    lambda left: connection.messages.EndTransactions(request, timeout=left), left
                )
            except ResultUnknown as error:
                if self._accept_weak and error.status:
                    return
                if error.status == SlaveNotAvailable.STATUS:
                    raise SlaveNotAvailable(
                        f"the master stored the decision, and has too few slaves in sync to "
                        f"confirm it ({error.status}): it may be lost with it",
                        error.status,
                    ) from None
                # A repeated decision waits on the node until the first one is confirmed.
                pause = back_off.next(True)
                ending.weak = error.status or ending.weak
                if not error.status and ending.weak:
                    raise _unknown(str(error), ending.weak) from None
                if not error.status or would_be_cut_off(pause, 0.0, deadline - loop.time()):
                    raise
            except Retryable as error:
                if ending.weak:
                    raise _unknown(str(error), ending.weak) from None
                raise
            else:
                return
            await asyncio.sleep(pause)

    # -- questions -----------------------------------------------------------------------------

    async def _find_groups(self) -> None:
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            try:
                await self._listen_everywhere()
            except DuologError as error:
                log.warning("cannot find the replica groups: %s", error)

    async def _listen_everywhere(self) -> None:
        for name in await self._router.groups(self._timeout):
            known = self._listeners.get(name)
            if known is None or known.done():  # the log reports one that failed
                self._listeners[name] = self._listening.start(self._listen(name))

    async def _listen(self, replica_group: str) -> None:
        """Answer the checks of a group's master, whichever node that is."""
        connection = self._router.reading(replica_group)
        back_off = BackOff(self._router.runtime.chance)
        try:
            while True:
                move, hint, epoch = connection.moves, "", 0
                try:
                    await self._answer_all(connection, replica_group)
                    back_off = BackOff(self._router.runtime.chance)
                except (grpc.RpcError, DuologError) as failure:
                    error = error_of(failure) if isinstance(failure, grpc.RpcError) else failure
                    if isinstance(error, Unauthenticated | NoPermission):
                        raise connection.named(error) from None
                    if isinstance(error, NotMaster):
                        hint, epoch = error.endpoint, error.epoch
                await asyncio.sleep(back_off.next(bool(hint)))
                await connection.rotate(move, hint, epoch)
        finally:
            await connection.close()

    async def _answer_all(self, connection: Connection, replica_group: str) -> None:
        request = wire.TransactionChecksRequest(group=self.group)
        await connection.settled()
        call = connection.messages.TransactionChecks(request)
        try:
            while isinstance(check := await uncancelled(call.read()), wire.TransactionCheck):
                asked = replica_group, check.half
                if asked in self._asked:
                    continue  # asked again while the checker takes its time
                await self._asking.acquire()  # until then, the node's next check waits
                self._take(check, asked)
        finally:
            call.cancel()

    def _take(self, check: wire.TransactionCheck, asked: tuple[str, int]) -> None:
        """Begin to answer a check, with a permit. asked: its replica group, and its number."""

        def answered(_: "asyncio.Task[None]") -> None:
            self._asked.discard(asked)
            self._asking.release()

        self._asked.add(asked)
        answering = self._answering.start(self._answer(check, asked[0]))
        # Where it is cancelled before its first step, nothing of it runs.
        answering.add_done_callback(answered)

    async def _answer(self, check: wire.TransactionCheck, replica_group: str) -> None:
        message = UndecidedMessage(check.topic, check.body, dict(check.properties), check.born_time)
        decision = await self._asked_checker(message)
        try:
            if decision is None:
                await self._tell_undecided(replica_group, check.half)
                return
            traceparent = message.properties.get(TRACEPARENT, "")
            half = Half(check.topic, message.unique_key, replica_group, check.half, traceparent)
            await self._end(half, decision)
        except DuologError as error:
            log.warning("cannot deliver a decision to the node: %s", error)

    async def _asked_checker(self, message: UndecidedMessage) -> bool | None:
        """The checker's decision; unknown if it fails."""
        assert self._checker is not None, "only then it listens"
        try:
            return await self._checker(message)
        except Exception:
            log.exception("the checker failed; the node will ask again")
            return None

    async def _tell_undecided(self, replica_group: str, half: int) -> None:
        """Let the node ask about others meanwhile."""
        connection = await self._router.reach(replica_group, UNDECIDED_SECONDS)
        request = wire.EndTransactionsRequest(group=self.group, undecided=[half])
        await connection.call(
            lambda left: connection.messages.EndTransactions(request, timeout=left),
            UNDECIDED_SECONDS,
        )


def _half(topic: str, receipt: Receipt, traceparent: str = "") -> Half:
    """A half message, by the receipt of its message."""
    return Half(topic, receipt.unique_key, receipt.place.group, receipt.queue_offset, traceparent)


def _unknown(why: str, weak: str) -> ResultUnknown:
    """weak: the status of the decision where it is stored, and not confirmed."""
    return ResultUnknown(f"{why}: {_UNKNOWN}", weak)


def _give_up(futures: "list[asyncio.Future[None]]") -> None:
    """Closed, or a fault of ours: fail the waiters."""
    for future in futures:
        if not future.done():
            future.set_exception(ResultUnknown(_UNKNOWN))
