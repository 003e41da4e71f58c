"""A client's connection: its frames are handled in the callback in which they arrive.

Rules: what is not known to be a frame ends the connection, and no other one. A request that waits
is a task, which ends with its connection. Nothing is read while the client takes no answers.
Answers come in the order in which they are made: clients know them by their numbers. However much
arrived at once, other connections have their turn after a few requests; small answers to those of
one turn are written together, as each write costs as much as a send.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

import structlog
from duolog._errors import Throttled

from node.arriving import Arriving, Pace
from node.portconnections import host_of, name_of
from node.remoting.answers import Answers
from node.remoting.codec.codes import ResponseCode
from node.remoting.codec.command import Command
from node.remoting.codec.errors import BadFrame
from node.remoting.codec.frames import FrameReader
from node.remoting.port.desk import Desk
from node.tls import common_name
from store.record import Host

log = structlog.get_logger("duolog.remoting")

OWN_BYTES = 16 << 10  # of a frame that has begun, which each connection may hold anyway
UNWRITTEN_BYTES = 1 << 20  # of answers in the transport, then nothing is read
READ_BYTES = 64 << 10  # at once
SMALL_BYTES = 16 << 10  # of a body that is copied behind its header
REQUESTS_AT_ONCE = 32  # then others have their turn
CALLS_AT_ONCE = 4  # that wait: each goes on in the next turn, where all of them do
BYTES_AT_ONCE = 64 << 10  # of them, or a single larger one
IDLE_TICKS = 120  # RocketMQ's: clients send heartbeats every 30 s
UNTAKEN_TICKS = 12  # in which the client takes nothing of its answers


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every connection.

    begin: begins a task for a request. calls_max: requests of one connection that wait. arriving:
    the room for long frames that have not arrived whole.
    """

    desk: Desk
    begin: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
    frame_bytes_max: int
    calls_max: int
    arriving: Arriving


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, terms: Terms, joined: Callable[["Connection", bool], bool]) -> None:
        """joined: is told of its beginning (which it may refuse) and its end."""
        self._terms = terms
        self._joined = joined
        self._reader = FrameReader(terms.frame_bytes_max)
        self.pace = Pace()
        self._has_long = False  # frame that has begun, and has room or waits for it
        self._waits = False  # for that room
        self._transport: asyncio.Transport | None = None
        self.host = Host("0.0.0.0", 0)
        self.certificate = ""
        self.is_encrypted = False
        self._admitted = False
        self._lost = False
        self._going = ""  # why it serves no more requests
        self._deaf = False  # the client takes no answers
        self._answers = Answers()
        self._calls: dict[asyncio.Task[None], bool] = {}  # and whether each waits for messages
        self._when_taken: list[Callable[[], None]] = []
        self._gathers = False  # answers, as it is in a turn
        self._gathered: list[bytes] = []
        self._behind = False  # requests that have arrived wait for their turn
        self._idle = self._untaken = 0  # ticks
        self._unsent = 0  # bytes of answers at the last tick

    # -- the connection ------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The client's, without its port."""
        return self.host.address

    @property
    def name(self) -> str:
        """The client's address and port."""
        return name_of(self.host)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.host = host_of(transport)
        self.certificate = common_name(transport.get_extra_info("peercert"))
        self.is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        if hasattr(transport, "max_size"):  # asyncio's: what may arrive before reading is paused
            transport.max_size = READ_BYTES
        if not self._joined(self, True):
            self.abort()
            return
        try:
            self._terms.desk.joined(self)
            self._admitted = True
        except Throttled as refused:
            log.warning("remoting: connection refused", peer=self.name, reason=str(refused))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._end()
        self._joined(self, False)

    def _end(self) -> None:
        """Nothing comes any more, and nothing is answered."""
        if self._lost:
            return
        self._lost = True
        self._terms.arriving.leave(self)
        self.end_calls()
        self._answers.end(f"the connection of {self.name} has ended")
        if self._admitted:
            self._terms.desk.left(self)
        self._tell_taken()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End it, once what was written is out."""
        if self._transport is not None:
            self._transport.close()

    # -- reading -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._lost or self._transport is None or self._transport.is_closing():
            return
        self._idle = 0
        self.pace.arrived += len(data)
        self._reader.feed(data)
        if not self._behind:
            self._go_on()

    def _go_on(self) -> None:
        """Handle some of what has arrived; what is left waits for the next turn."""
        self._behind = False
        if self._lost:
            return
        try:
            while self._read():
                if self._may_wait():
                    self._behind = True
                    asyncio.get_running_loop().call_soon(self._go_on)
                    break
            else:
                self._see_long()
                if not self._may_wait():
                    self._refuse("what has arrived and waits fills the memory there is for it")
        except BadFrame as problem:
            self._refuse(str(problem))
        self._heed()

    def _see_long(self) -> None:
        """A long frame that has begun is read on when there is room for it."""
        whole = self._reader.whole
        if whole > OWN_BYTES and not (self._has_long or self._lost):
            self._has_long = True
            self._waits = not self._terms.arriving.begin(self, whole)

    def _leave_room(self) -> None:
        """The long frame has arrived."""
        self._has_long = self._waits = False
        self._terms.arriving.end(self)

    def _may_wait(self) -> bool:
        """Whether there is memory for what has arrived and waits for its turn, or for room."""
        has_room = self._has_long and not self._waits
        held = 0 if has_room or self._lost else max(0, self._reader.held_bytes - OWN_BYTES)
        return self._terms.arriving.hold(self, held)

    @property
    def is_held_up(self) -> bool:
        """See Sender."""
        return self._behind or self._deaf

    def read_on(self) -> None:
        """See Sender."""
        self._waits = False
        self._may_wait()
        self._heed()

    def give_up(self, reason: str) -> None:
        """See Sender."""
        self._refuse(reason)

    def _read(self) -> bool:
        """Handle what has arrived whole, as long as answers are taken; whether the turn ended
        before that was done. Raises BadFrame.
        """
        self._gathers = True
        try:
            return self._read_some()
        finally:
            self._gathers = False
            self._write_gathered()

    def _read_some(self) -> bool:
        left, calls = self._reader.held_bytes - BYTES_AT_ONCE, len(self._calls) + CALLS_AT_ONCE
        for _ in range(REQUESTS_AT_ONCE):
            if self._deaf or self._lost:
                return False
            command = self._reader.next()
            if command is None:
                return False
            if self._has_long:
                self._leave_room()
            if command.is_response:
                self._answers.arrived(command)
            else:
                self._serve(command)
            if self._reader.held_bytes <= left or len(self._calls) >= calls:
                break
        return self._reader.held_bytes > 0 and not self._lost

    def _heed(self) -> None:
        """Read more, or not: while what has arrived waits, or the client takes no answers."""
        transport = self._transport
        if self._lost or transport is None or transport.is_closing():
            return
        if self._behind or self._deaf or self._waits:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _refuse(self, reason: str) -> None:
        """What came is no frame: end the connection, and everything that it waits for."""
        log.warning("remoting: connection refused", peer=self.name, reason=reason[:500])
        self._end()
        self.close()

    # -- requests ------------------------------------------------------------------------------

    def _serve(self, request: Command) -> None:
        desk = self._terms.desk
        if self._going:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            self._answer(request, request.answer(code, self._going))
            return
        if len(self._calls) >= self._terms.calls_max:  # a message would be stored all the same
            text = f"{self._terms.calls_max} requests are under way on this connection"
            self._answer(request, request.answer(ResponseCode.SYSTEM_BUSY, text))
            return
        try:
            begun = desk.serve(self, request)
        except Exception as error:
            self._answer(request, self._failed(request, error))
            return
        if isinstance(begun, Command):
            self._answer(request, begun)
        else:
            task = self._terms.begin(self._wait(request.bare(), begun))
            self._calls[task] = desk.holds(request)
            task.add_done_callback(self._calls.pop)
            close = begun.close  # of a task that is cancelled before it begins
            task.add_done_callback(lambda _: close())

    async def _wait(self, request: Command, begun: Coroutine[Any, Any, Command]) -> None:
        try:
            answer = await begun
        except Exception as error:
            answer = self._failed(request, error)
        self._answer(request, answer)

    def _failed(self, request: Command, error: Exception) -> Command:
        answer = self._terms.desk.refusal(request, error)
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

    def _write_gathered(self) -> None:
        if self._gathered and not self._lost and self._transport is not None:
            self._transport.write(b"".join(self._gathered))
        self._gathered.clear()

    def tell(self, command: Command) -> bool:
        """Send a request that nobody answers; False where the client takes nothing."""
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

    def pause_writing(self) -> None:
        """See asyncio."""
        self._deaf = True
        self._heed()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._deaf = False
        self._tell_taken()
        if not self._behind:  # else its turn comes
            self._go_on()

    def after_answer(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken the answer that is made now, or is gone.

        It is written in this turn: what makes it does not wait any more.
        """
        asyncio.get_running_loop().call_soon(self.when_taken, callback)

    def when_taken(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken what was written so far, or is gone."""
        if self._deaf and not self._lost:
            self._when_taken.append(callback)
        else:
            callback()

    def _tell_taken(self) -> None:
        waiting, self._when_taken = self._when_taken, []
        for callback in waiting:
            callback()

    # -- time, and the end ---------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second: end what has begun and does not go on, or says nothing for long."""
        if self._lost:  # it was refused, and does not even take that
            self.abort()
            return
        self._idle += 1
        reads = not (self._deaf or self._behind or self._waits)
        stalls = self.pace.stalls(reads and self._reader.held_bytes > 0)
        self._untaken = self._untaken + 1 if self._deaf and not self._takes_some() else 0
        if stalls:
            self._refuse("the rest of a frame did not come")
        elif self._idle > IDLE_TICKS or self._untaken > UNTAKEN_TICKS:
            log.info("remoting: a client does not answer", peer=self.name)
            self._end()
            self.abort()

    def _takes_some(self) -> bool:
        """Whether the client took answers since the last tick, on however slow a line."""
        assert self._transport is not None, "connected"
        before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
        return self._unsent < before

    def go(self, reason: str) -> None:
        """Serve no more requests; those under way go on, unless they wait for messages."""
        self._going = reason
        for task, holds in list(self._calls.items()):
            if holds:
                task.cancel()

    @property
    def busy(self) -> bool:
        """Whether any request is under way that does not wait for messages."""
        return not all(self._calls.values())

    def end_calls(self) -> None:
        """Cancel what is under way."""
        for task in list(self._calls):
            task.cancel()


__all__ = ["Connection", "Terms"]
