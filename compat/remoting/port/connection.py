"""A client's connection: its frames are handled in the callback in which they arrive.

Rules: what is not known to be a frame ends the connection, and no other one. A request that waits
is a task, which ends with its connection. Answers come in the order in which they are made: clients
know them by their numbers. However much arrives at once, other connections have their turn after
some requests; small answers to those of one turn, and to sends that waited for the same, are
written together, as each write costs as much as a send. What has arrived and waits is never more
than a short frame, or a long one that has room.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, cast

import structlog
from duolog._busypoll import SMALL_BYTES as ALONE_BYTES
from duolog._busypoll import BusyPoll
from duolog._errors import Throttled
from duolog._frames import frame_memory

from duolog_server.compat.remoting.answers import Answers
from duolog_server.compat.remoting.codec.codes import ResponseCode
from duolog_server.compat.remoting.codec.command import BadFrame, Command
from duolog_server.compat.remoting.codec.frames import SHORT_BYTES, FrameReader
from duolog_server.compat.remoting.port.dispatcher import Dispatcher, Served, Stored, tried
from duolog_server.node.net import connection_protocol
from duolog_server.node.net.connection_protocol import ConnectionProtocol
from duolog_server.node.net.connections import host_of
from duolog_server.node.net.receive_budget import ReceiveBudget
from duolog_server.node.runtime.tls import common_name
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus

log = structlog.get_logger("duolog.remoting")

UNWRITTEN_BYTES = 1 << 20  # of answers in the transport, then nothing is read
SMALL_BYTES = 16 << 10  # of a body that is copied behind its header
REQUESTS_AT_ONCE = 32  # then others have their turn
ENDS_AT_ONCE = 32  # calls of a connection that is gone: each lets go of what it has
IDLE_TICKS = 120  # RocketMQ's: clients send heartbeats every 30 s
UNTAKEN_TICKS = 12  # in which the client takes nothing of its answers


def _arrivals() -> memoryview:
    return memoryview(bytearray(SHORT_BYTES))


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of every connection.

    begin: begins a task for a request. calls_max: requests of one connection that wait. arriving:
    the room for long frames that have not arrived whole. busy_poll: of the loop, for the request
    that follows an answer. arrivals: where bytes of all connections arrive; each
    takes them out at once, so that one that is silent has no memory.
    """

    dispatcher: Dispatcher
    begin: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
    frame_bytes_max: int
    calls_max: int
    arriving: ReceiveBudget
    busy_poll: BusyPoll = field(default_factory=lambda: BusyPoll(0.0))
    arrivals: memoryview = field(default_factory=_arrivals)


class Connection(ConnectionProtocol):
    """One client's connection."""

    def __init__(self, terms: Terms, joined: Callable[["Connection", bool], bool]) -> None:
        """joined: called at its beginning (which it may refuse) and its end."""
        super().__init__(terms.arriving, joined)
        self._terms = terms
        self._reader = FrameReader(terms.frame_bytes_max, frame_memory)
        self.host = Host("0.0.0.0", 0)
        self.certificate = ""
        self.is_encrypted = False
        self._admitted = False
        self._going = ""  # why it serves no more requests
        self._answers = Answers()
        self._calls: dict[asyncio.Task[None], bool] = {}  # and whether each waits for messages
        self._stored: dict[asyncio.Future[PutMessageStatus], list[Stored]] = {}  # by their outcomes
        self._unanswered = 0  # of what is stored
        self._gathers = False  # answers, as it is in a turn
        self._gathered: list[bytes] = []
        self._answered: int | None = None  # code of the last request that waited for nothing
        self._idle = self._untaken = 0  # ticks

    # -- the connection ------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The client's, without its port."""
        return self.host.address

    @property
    def name(self) -> str:
        """The client's address and port."""
        return self.host.endpoint

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.host = host_of(transport)
        self.certificate = common_name(transport.get_extra_info("peercert"))
        self.is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        if not self._joined(self, True):
            self.abort()
            return
        try:
            self._terms.dispatcher.joined(self)
            self._admitted = True
        except Throttled as refused:
            log.warning("remoting: connection refused", peer=self.name, reason=str(refused))
            self.abort()

    def _end(self) -> None:
        """The connection was lost: read and answer no more."""
        if self._lost:
            return
        self._lost = True
        self._arriving.end(self)
        self._forget_stored()
        self._end_some(list(self._calls))
        self._answers.end(f"the connection of {self.name} has ended")
        if self._admitted:
            self._terms.dispatcher.left(self)
        self._tell_taken()

    # -- reading -------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        if self._lost:  # refused: the transport reads no more
            return memoryview(bytearray(1))
        return self._reader.room(self._terms.arrivals)

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._is_over:
            return
        self._reader.received(self._terms.arrivals, nbytes)
        self._arrived(nbytes)

    def feed(self, data: bytes) -> None:
        """Take bytes that arrived before the protocol was known; called at most once."""
        if self._is_over:
            return
        self._reader.feed(data)
        self._arrived(len(data))
        if self._held and self._reader.held_bytes > SHORT_BYTES:
            self._refuse("more came with the end of its handshake than is kept")

    def _arrived(self, size: int) -> None:
        self._idle = 0
        self.pace.arrived += size
        self._terms.busy_poll.came()
        self._answered = None
        self._read()
        code, is_small = self._answered, size <= ALONE_BYTES and not self._held
        if code is not None and is_small and self._terms.dispatcher.repeats(code):
            self._terms.busy_poll.expect()

    def _read(self) -> None:
        """Handle what has arrived whole, unless something is waited for."""
        problem = ""
        self._gathers = True
        try:
            self._read_some()
        except BadFrame as error:
            problem = str(error)
        finally:
            self._end_gathering()
        if problem:
            self._refuse(problem)
        else:
            self._see_long(self._reader.whole)

    def _read_some(self) -> None:
        """Read frames as far as a turn allows. Raises BadFrame."""
        reader, held, left = self._reader, self._held, REQUESTS_AT_ONCE
        dispatcher = self._terms.dispatcher
        until = perf_counter() + connection_protocol.TURN_SECONDS
        repeated: list[Command] = []
        try:
            while not (held or self._lost) and (command := reader.next()) is not None:
                if command.is_response:
                    self._answers.arrived(command)
                elif dispatcher.repeats(command.code):
                    repeated.append(command)
                else:
                    self._serve_each(repeated)
                    self._serve(command)
                left -= 1
                if reader.held_bytes and (not left or perf_counter() >= until):
                    self._give_turn()
        finally:
            self._serve_each(repeated)

    def _refuse(self, reason: str) -> None:
        """Close the connection for an invalid frame, and cancel what waits on it."""
        log.warning("remoting: connection refused", peer=self.name, reason=reason[:500])
        self._end()
        self.close()

    # -- requests ------------------------------------------------------------------------------

    def _serve_each(self, requests: list[Command]) -> None:
        """Serve, and forget, requests of a kind that is served together."""
        together, requests[:] = requests[:], ()
        if self._going or not self._may_begin(len(together)):
            for request in together:
                self._serve(request)
            return
        found = tried(self._terms.dispatcher.serve_each, self, together)
        each = [found] * len(together) if isinstance(found, Exception) else found
        for request, begun in zip(together, each, strict=True):
            self._take(request, begun)

    def _serve(self, request: Command) -> None:
        if self._going:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            self._answer(request, request.answer(code, self._going))
        elif not self._may_begin(1):  # a message would be stored all the same
            text = f"{self._terms.calls_max} requests are in flight on this connection"
            self._answer(request, request.answer(ResponseCode.SYSTEM_BUSY, text))
        else:
            self._take(request, tried(self._terms.dispatcher.serve, self, request))

    def _may_begin(self, count: int) -> bool:
        return len(self._calls) + self._unanswered + count <= self._terms.calls_max

    def _take(self, request: Command, begun: Served) -> None:
        """Answer a request, now or when it is served."""
        if isinstance(begun, bytes):
            if not (request.is_oneway or self._is_over):
                self._gathered.append(begun)
            self._answered = request.code
        elif isinstance(begun, Command):
            self._answer(request, begun)
            self._answered = request.code
        elif isinstance(begun, Exception):
            self._answer(request, self._failed(request, begun))
        elif isinstance(begun, Stored):
            self._await_outcome(begun)
        else:
            task = self._terms.begin(self._wait(request.bare(), begun))
            self._calls[task] = self._terms.dispatcher.holds(request)
            task.add_done_callback(self._calls.pop)
            close = begun.close  # of a task that is cancelled before it begins
            task.add_done_callback(lambda _: close())

    async def _wait(self, request: Command, begun: Coroutine[Any, Any, Command]) -> None:
        try:
            answer = await begun
        except Exception as error:
            answer = self._failed(request, error)
        if len(self._calls) > 1 and self._terms.dispatcher.repeats(request.code):
            self._gather()  # others waited for the same slave, or sync
        self._answer(request, answer)

    def _await_outcome(self, stored: Stored) -> None:
        others = self._stored.get(stored.outcome)
        if others is None:
            others = self._stored[stored.outcome] = []
            stored.outcome.add_done_callback(self._known)
        others.append(stored)
        self._unanswered += 1

    def _known(self, outcome: "asyncio.Future[PutMessageStatus]") -> None:
        """Answer all that waited for an outcome."""
        answered = self._stored.pop(outcome, [])
        self._unanswered -= len(answered)
        if outcome.cancelled():
            return
        may_be_more = bool(self._stored) or self._gathers  # that is known in this turn
        if may_be_more:
            self._gather()
        self._gathers = True
        status = tried(outcome.result)
        for _, request, answer in answered:
            found = status if isinstance(status, Exception) else tried(answer, status)
            self._answer(
                request, self._failed(request, found) if isinstance(found, Exception) else found
            )
        if not may_be_more:
            self._end_gathering()

    def _failed(self, request: Command, error: Exception) -> Command:
        answer = self._terms.dispatcher.refusal(request, error)
        if answer is not None:
            log.debug("remoting: refused", code=request.code, reason=str(error)[:300])
            return answer
        log.error("remoting: a request failed", code=request.code, exc_info=error)
        return request.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:1000])

    def _answer(self, request: Command, answer: Command) -> None:
        if request.is_oneway:
            return
        try:
            self._write(answer)
        except Exception as error:  # it has no form on the wire: a bug, and of this answer alone
            log.error("remoting: a request failed", code=request.code, exc_info=error)
            self._write_gathered()  # what others of the turn got
            self._end()
            self.abort()

    # -- writing -------------------------------------------------------------------------------

    def _write(self, command: Command) -> None:
        if self._lost or self._transport is None or self._transport.is_closing():
            return  # asyncio logs each write to a connection that broke
        if len(command.body) > SMALL_BYTES:
            self._write_gathered()
            self._transport.write(command.head())
            self._transport.write(command.body)
        elif self._gathers:
            self._gathered.append(command.frame())
        else:
            self._transport.write(command.frame())

    def _gather(self) -> None:
        """Write answers of this turn of the event loop together."""
        if not self._gathers:
            self._gathers = True
            asyncio.get_running_loop().call_soon(self._end_gathering)

    def _end_gathering(self) -> None:
        self._gathers = False
        self._write_gathered()

    def _write_gathered(self) -> None:
        if self._gathered and not self._lost and self._transport is not None:
            self._transport.write(b"".join(self._gathered))
        self._gathered.clear()

    def tell(self, command: Command) -> bool:
        """Send a oneway request; False where the client takes nothing."""
        if self._deaf or self._lost:
            return False
        self._write(command)
        return True

    async def ask(self, command: Command, seconds: float) -> Command:
        """Send a request, and wait for the client's answer. Its number is chosen here.

        Raises ConnectionError, also where the client takes nothing, and TimeoutError.
        """
        numbered = replace(command, opaque=self._answers.number())
        return await self._answers.of(numbered, self._asked, seconds)

    def _asked(self, command: Command) -> None:
        if not self.tell(command):
            raise ConnectionError(f"{self.name} takes no requests")

    def after_answer(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken the answer that is made now, or is gone.

        It is written in this turn: what makes it does not wait any more.
        """
        asyncio.get_running_loop().call_soon(self.when_taken, callback)

    # -- time, and the end ---------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second: close connections whose frame makes no progress, and silent ones."""
        if self._lost:  # it was refused, and does not even take that
            self.abort()
            return
        self._idle += 1
        stalls = self.pace.stalls(self._reader.held_bytes > 0 and not self._held)
        self._untaken = self._untaken + 1 if self._deaf and not self._takes_some() else 0
        if stalls:
            self._refuse("frame timed out")
        elif self._idle > IDLE_TICKS or self._untaken > UNTAKEN_TICKS:
            log.info("remoting: a client does not answer", peer=self.name)
            self._end()
            self.abort()

    def go(self, reason: str) -> None:
        """Serve no more requests; those in flight continue, unless they wait for messages."""
        self._going = reason
        for task, holds in list(self._calls.items()):
            if holds:
                task.cancel()

    @property
    def busy(self) -> bool:
        """Whether any request is in flight that does not wait for messages."""
        return bool(self._stored) or not all(self._calls.values())

    def end_calls(self) -> None:
        """Cancel requests in flight."""
        self._forget_stored()
        for task in list(self._calls):
            task.cancel()

    def _forget_stored(self) -> None:
        """Answer nothing of what is stored."""
        for outcome in self._stored:
            outcome.remove_done_callback(self._known)
        self._stored.clear()
        self._unanswered = 0

    def _end_some(self, calls: "list[asyncio.Task[None]]") -> None:
        """Cancel calls, some in each turn of the event loop."""
        for task in calls[:ENDS_AT_ONCE]:
            task.cancel()
        if len(calls) > ENDS_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._end_some, calls[ENDS_AT_ONCE:])
