"""A client's connection: its frames are handled in the callback in which they arrive.

Rules: an append is stored, and where it waits for nothing also answered, in that callback; what
waits is answered in the order of the requests, by the callback of what it waits for. Every other
call is a task. Nothing is read while the client takes no answers, or has too many open calls. What
breaks a rule of the protocol ends this connection, and no other one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol, cast

import grpc
import structlog
from duolog import _frames as frames
from duolog._busypoll import SMALL_BYTES, BusyPoll
from duolog._errors import Throttled
from duolog._frames import Frame, FrameError, FrameReader, Kind
from duolog.wire import duolog_pb2 as wire
from google.protobuf.message import DecodeError

from duolog_server.node.appending import Appending, Outcome
from duolog_server.node.net import connection_protocol
from duolog_server.node.net.connection_protocol import ANSWERS, ConnectionProtocol
from duolog_server.node.net.frames.call import Call, Trailing
from duolog_server.node.net.methods import Handler
from duolog_server.node.net.networks import plain_address
from duolog_server.node.net.receive_budget import ReceiveBudget
from duolog_server.node.runtime.tls import common_name
from duolog_server.node.wirecodec import peer_host
from duolog_server.store.record import Host

log = structlog.get_logger("duolog.node")

FRAMES_AT_ONCE = 32  # other than appends: each may begin a call; then others have their turn
STRANGER_BYTES = 512  # where frames arrive before the greeting, which is short
UNWRITTEN_BYTES = 1 << 20  # of answers in the transport, then nothing is read
GREETING_TICKS = 5
PING_TICKS = 3  # without a sign of the client, then it is pinged
SILENT_TICKS = 12  # then it is gone; not where it is this node that does not read


class Authenticator(Protocol):
    """Decides who may open a connection to the frames port, and what stores its appends."""

    def admit(self, key: bytes, host: Host, certificate: str) -> tuple[object, Appending] | None:
        """Whose connection begins with that key, and what stores its appends; None: nobody's.

        host: of the client. certificate: the common name of its certificate; empty without one.
        """

    def joined(self, principal: object, host: Host, peer: str) -> None:
        """A connection that was admitted begins. Raises Throttled where there are too many.

        peer: the client's address and port, as gRPC names it.
        """

    def left(self, principal: object, host: Host, peer: str) -> None:
        """An admitted connection ended."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every connection.

    authenticator: who may begin, and where their appends go. answered: called when a reply that
    waited for nothing is on its way. begin: begins a task for a call. appends_max: unanswered ones.
    calls_max: other open calls. arriving: the room for long frames that have not arrived whole.
    busy_poll: of the loop, for the request that follows an answer. context: of the timers and
    callbacks of calls, of which each would have a copy of its call's.
    """

    authenticator: Authenticator
    methods: dict[int, Handler]
    answered: Callable[[], None]
    begin: Callable[[Coroutine[object, None, None]], "asyncio.Task[None]"]
    frame_bytes_max: int
    appends_max: int
    calls_max: int
    arriving: ReceiveBudget
    busy_poll: BusyPoll
    context: Context = field(default_factory=Context)


@dataclass(slots=True)
class _Unanswered:
    """A reply, and what it waits for: for that, or for those before it."""

    number: int
    reply: wire.AppendReply
    outcome: Outcome | None


class Connection(ConnectionProtocol):
    """One client's connection."""

    def __init__(self, terms: Terms, joined: Callable[["Connection", bool], bool]) -> None:
        """joined: called at its beginning (which it may refuse) and its end."""
        super().__init__(terms.arriving, joined)
        self._terms = terms
        self._reader = FrameReader(frames.GREETING_BYTES, STRANGER_BYTES)
        self.peer = ""
        self._host: Host | None = None
        self._certificate = ""
        self._greeted = False
        self.principal: object = None  # whose it is, as the authenticator says
        self._appends: Appending | None = None
        self._going = ""  # why it takes no more calls
        self._calls: dict[int, Call] = {}
        self._unanswered: deque[_Unanswered] = deque()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._age = self._silent = 0  # ticks

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport = transport
        self.peer = _peer_name(transport.get_extra_info("peername"))
        self._host = peer_host(self.peer)
        self._certificate = common_name(transport.get_extra_info("peercert"))
        transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        if not self._joined(self, True):
            self.abort()

    @property
    def address(self) -> str:
        """The client's, without its port."""
        assert self._host is not None, "connected"
        return self._host.address

    def _end(self) -> None:
        """Nothing comes any more, and nothing is answered."""
        if self._lost:
            return
        self._lost = True
        if self._greeted and self._host is not None:
            self._terms.authenticator.left(self.principal, self._host, self.peer)
        self._arriving.end(self)
        self._unanswered.clear()
        self._may_write.set()
        for call in list(self._calls.values()):
            call.cancel()
        self._tell_taken()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        if self._lost:  # refused: the transport reads no more
            return memoryview(bytearray(1))
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._lost or self._transport is None or self._transport.is_closing():
            return
        self._silent = 0
        self.pace.arrived += nbytes
        self._reader.received(nbytes)
        self._read()

    def _read(self) -> None:
        """Handle what has arrived whole, unless something is waited for."""
        reader, held, others = self._reader, self._held, 0
        until = perf_counter() + connection_protocol.TURN_SECONDS
        try:
            while not held:
                found = reader.next()
                if found is None:
                    break
                if found.kind == Kind.APPEND and self._greeted:
                    self._append(found)
                    continue
                self._handle(found)
                others += 1
                is_over = others == FRAMES_AT_ONCE or perf_counter() >= until
                if is_over and reader.in_the_middle:
                    self._give_turn()
        except FrameError as problem:
            self._refuse(str(problem))
        else:
            self._see_long(reader.whole)

    def _refuse(self, reason: str) -> None:
        """What came is no frame of ours: say so, and end the connection."""
        log.warning("frames: connection refused", peer=self.peer, reason=reason[:500])
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.goaway(reason))
            self._transport.close()
        self._end()

    def _handle(self, found: Frame) -> None:
        kind = found.kind
        if not self._greeted:
            self._greet(found)
        elif kind == Kind.CALL:
            self._call(found)
        elif kind == Kind.MESSAGE:
            self._message(found)
        elif kind == Kind.CANCEL:
            self._cancel(found.call)
        elif kind == Kind.MORE:
            call = self._calls.get(found.call)
            if call is not None:
                call.more(found.number)
        elif kind == Kind.PING:
            self._write(frames.frame(Kind.PONG, number=found.number))
        elif kind != Kind.PONG:
            raise FrameError(f"a frame of kind {kind} from a client")

    def _greet(self, found: Frame) -> None:
        _, key = frames.read_hello(found)
        terms = self._terms
        assert self._host is not None, "connected"
        admitted = terms.authenticator.admit(key, self._host, self._certificate)
        if admitted is None:
            raise FrameError(
                "stale connection key (the node restarted or the key expired), or the certificate "
                "names another user"
            )
        self.principal, self._appends = admitted
        try:
            terms.authenticator.joined(self.principal, self._host, self.peer)
        except Throttled as refused:
            raise FrameError(str(refused)) from None
        self._greeted = True
        self._reader.frame_bytes_max = terms.frame_bytes_max
        self._reader.widen()
        self._write(frames.welcome(terms.frame_bytes_max, terms.calls_max))
        if self._going:
            self._write(frames.goaway(self._going))

    # -- reading and writing -------------------------------------------------------------------

    def pause_writing(self) -> None:
        """See asyncio."""
        self._may_write.clear()
        super().pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._may_write.set()
        super().resume_writing()

    async def writable(self) -> None:
        """Wait while the client takes nothing."""
        while self._deaf and not self._lost:
            await self._may_write.wait()

    def _write(self, data: bytes) -> None:
        if self._lost or self._transport is None or self._transport.is_closing():
            return  # asyncio logs each write to a connection that broke
        self._transport.write(data)

    # -- appends -------------------------------------------------------------------------------

    def _append(self, found: Frame) -> None:
        if self._going:
            self.send_end(found.call, grpc.StatusCode.UNAVAILABLE, self._going, ())
            return
        try:
            request = wire.AppendRequest.FromString(bytes(found.head))
        except DecodeError as error:
            raise FrameError(f"an append request cannot be read: {error}") from None
        appends, busy_poll = self._appends, self._terms.busy_poll
        busy_poll.came()
        is_small = len(found.payload) <= SMALL_BYTES  # while it is there
        assert appends is not None, "greeted"
        assert self._host is not None, "connected"
        try:
            reply, outcome = appends.append(request, self._host, found.body)
        except Exception as problem:  # as gRPC ends the stream: whether it is stored is not known
            log.exception("an append failed", kind=type(problem).__name__)
            raise FrameError(f"an append failed: {type(problem).__name__}") from None
        unanswered = self._unanswered
        if outcome is None and not unanswered:
            self._write(_answer(found.call, reply))
            self._terms.answered()
            if is_small:
                busy_poll.expect()
            return
        unanswered.append(_Unanswered(found.call, reply, outcome))
        if len(unanswered) >= self._terms.appends_max:
            self._hold("appends")
        if outcome is not None:
            outcome.add_done_callback(self._settled)

    def _settled(self, _: Outcome) -> None:
        """Answer what waits for nothing any more, in the order of the requests."""
        try:
            answers = self._settled_answers()
        except (Exception, asyncio.CancelledError) as problem:  # as gRPC ends the stream
            log.exception("an append cannot be answered", kind=type(problem).__name__)
            self._refuse("an append cannot be answered")
            return
        if answers:
            self._write(b"".join(answers))
        if len(self._unanswered) < self._terms.appends_max:
            self._release("appends")

    def _settled_answers(self) -> list[bytes]:
        """The frames that wait for nothing any more, nor for one before them."""
        unanswered, answers = self._unanswered, []
        while unanswered:
            first = unanswered[0]
            if first.outcome is not None:
                if not first.outcome.done():
                    break
                assert self._appends is not None, "greeted"
                self._appends.settled(first.reply, first.outcome.result())
            answers.append(_answer(first.number, first.reply))
            unanswered.popleft()
        return answers

    # -- other calls ---------------------------------------------------------------------------

    def _call(self, found: Frame) -> None:
        terms, number = self._terms, found.call
        handler = terms.methods.get(found.code)
        if number in self._calls:
            raise FrameError(f"call {number} has begun already")
        if self._going:
            self.send_end(number, grpc.StatusCode.UNAVAILABLE, self._going, ())
        elif handler is None:
            text = f"unknown method {found.code}"
            self.send_end(number, grpc.StatusCode.UNIMPLEMENTED, text, ())
        elif len(self._calls) >= terms.calls_max:
            text = f"{terms.calls_max} calls are open on this connection"
            self.send_end(number, grpc.StatusCode.RESOURCE_EXHAUSTED, text, ())
        elif not found.number and not handler.response_streaming:
            self.send_end(number, grpc.StatusCode.INVALID_ARGUMENT, "it has no deadline", ())
        else:
            self._begin(Call(self, number, handler), found, handler)

    def _begin(self, call: Call, found: Frame, handler: Handler) -> None:
        number = found.call
        if not handler.request_streaming:
            call.request(bytes(found.payload))
        if found.number:
            loop = asyncio.get_running_loop()
            call.deadline = loop.call_later(
                found.number / 1000, call.expire, context=self._terms.context
            )
        self._calls[number] = call
        call.task = self._terms.begin(call.run())
        # Not in the task: one that is cancelled before its first step never runs.
        call.task.add_done_callback(call.over, context=self._terms.context)

    def call_ended(self, number: int, call: Call, task: "asyncio.Task[None]") -> None:
        """See Peer."""
        given_up = self._calls.get(number) is not call
        if not given_up:
            del self._calls[number]
        self._release(call)
        if task.cancelled() and not given_up:
            late = grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
            ended = grpc.StatusCode.CANCELLED, "the node is stopping"
            self.send_end(number, *(late if call.late else ended), ())

    def _message(self, found: Frame) -> None:
        call = self._calls.get(found.call)
        if call is None:
            return  # it has ended
        if not call.takes_many:
            raise FrameError(f"call {found.call} has a single request")
        call.request(bytes(found.head))
        if call.full:
            self._hold(call)

    def room_for_requests(self) -> None:
        """A call took a request: the connection may be read again."""
        for call in [held for held in self._held if isinstance(held, Call) and not held.full]:
            self._release(call)

    def _cancel(self, number: int) -> None:
        """Of no interest any more; the number may be used again."""
        call = self._calls.pop(number, None)
        if call is not None:
            call.give_up()

    def send_message(self, call: int, head: bytes, body: bytes, flags: int = 0) -> None:
        """A message of a call. Raises FrameError where it is too long for a frame."""
        size = len(head) + len(body)
        if size > self._terms.frame_bytes_max:
            raise FrameError(f"a message of {size} bytes; the limit is limits.request_bytes_max")
        if call in self._calls:
            for part in frames.message_parts(Kind.MESSAGE, call, head, body, flags):
                self._write(part)

    def send_end(self, call: int, code: grpc.StatusCode, details: str, trailing: Trailing) -> None:
        """A call ended."""
        end = wire.CallEnd(details=details, trailing=dict(trailing)).SerializeToString()
        self._write(frames.frame(Kind.END, call, payload=end, code=code.value[0]))

    # -- time, and the end ---------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second: ping a silent client, end what has begun and makes no progress."""
        if self._lost:  # it was refused, and does not even take the reason
            self.abort()
            return
        self._age += 1
        self._silent = 0 if self._takes_some() else self._silent + 1
        stalls = self.pace.stalls(self._reader.in_the_middle and not self._held)
        if not self._greeted and self._age > GREETING_TICKS:
            self._refuse("no greeting came")
        elif stalls:
            self._refuse("frame timed out")
        elif self._silent > SILENT_TICKS and (ANSWERS in self._held or not self._held):
            log.info("frames: a client does not answer", peer=self.peer)
            self.abort()
        elif self._silent > PING_TICKS and not self._deaf and self._greeted:
            self._write(frames.frame(Kind.PING, number=self._silent))

    def go(self, reason: str) -> None:
        """Take no more calls; open ones end by themselves."""
        self._going = reason
        if self._greeted:
            self._write(frames.goaway(reason))

    @property
    def busy(self) -> bool:
        """Whether a call is open."""
        return bool(self._calls or self._unanswered)

    def end_calls(self) -> None:
        """Cancel open calls."""
        for call in list(self._calls.values()):
            call.cancel()


def _answer(number: int, reply: wire.AppendReply) -> bytes:
    return frames.frame(Kind.APPENDED, number, payload=reply.SerializeToString())


def _peer_name(address: object) -> str:
    """As gRPC names a client."""
    if not isinstance(address, tuple):
        return ""
    host, port = plain_address(str(address[0])), address[1]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
