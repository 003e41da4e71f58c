"""A node over frames: one connection, plain or with TLS, read and written in its callbacks.

Rules: an append is written in the turn in which it is made, and answered in the turn in which its
reply arrives; nothing runs in between. One timer sees to the deadlines of all calls, another one
pings a silent node. A connection that breaks ends all its calls, and is not opened again: see
`Connection`.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from duolog import _frames as frames
from duolog._busypoll import SMALL_BYTES, BusyPoll, busy_poll
from duolog._errors import DuologError, MessageTooLarge, Unavailable, error_of
from duolog._frames import LAST, STREAM_AHEAD, Frame, FrameError, FrameReader, Kind
from duolog._runtime import MESSAGE_BYTES_MAX
from duolog.wire import duolog_pb2 as wire

TICK_SECONDS = 1.0
PING_TICKS = 5  # without a sign of the node, then it is pinged
SILENT_TICKS = 10  # then the connection is given up: a loop that stalls does not count
UNWRITTEN_BYTES = 1 << 20  # in the transport, then what comes next waits
UNARY_SECONDS = 3600.0  # of a call that is given no deadline
NUMBERS = (1 << 32) - 1

Trailing = tuple[tuple[str, str], ...]
Status = tuple[grpc.StatusCode, str, Trailing]
OK: Status = (grpc.StatusCode.OK, "", ())
LATE: Status = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _error(status: Status) -> grpc.aio.AioRpcError:
    """The error that gRPC would raise."""
    code, details, trailing = status
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


def _read_end(found: Frame) -> Status:
    """How a call ended. Raises FrameError."""
    try:
        end = wire.CallEnd.FromString(bytes(found.payload))
    except DecodeError as error:
        raise FrameError(f"the end of a call cannot be read: {error}") from None
    code = _CODES.get(found.code, grpc.StatusCode.UNKNOWN)
    return code, end.details, tuple(sorted(end.trailing.items()))


class Disowned(Unavailable):
    """The node takes the connection's key no more; it did nothing."""


class _Unary:
    """A call with one request and one reply."""

    __slots__ = ("answer", "deadline", "reply")

    def __init__(self, answer: "asyncio.Future[Status]", deadline: float) -> None:
        self.answer = answer
        self.deadline = deadline
        self.reply: tuple[bytes, bytes] | None = None

    def message(self, found: Frame) -> None:
        """The reply."""
        self.reply = bytes(found.head), bytes(found.body)

    def end(self, status: Status) -> None:
        """It is over."""
        if not self.answer.done():
            self.answer.set_result(status)


class FramesStream:
    """An open call with streams, as grpc.aio gives one."""

    def __init__(
        self,
        channel: "FramesChannel",
        number: int,
        serialize: Any,
        deserialize: Any,
        deadline: float,
    ) -> None:
        self.deadline = deadline
        self._channel = channel
        self._number = number
        self._serialize, self._deserialize = serialize, deserialize
        self._inbox: deque[tuple[bytes, bytes]] = deque()
        self._taken = 0  # that the node was not told of
        self._status: Status | None = None
        self._given_up = False
        self._woken = asyncio.Event()

    # -- from the channel ----------------------------------------------------------------------

    def message(self, found: Frame) -> None:
        """A reply. Raises FrameError where the node sends more than it may."""
        if len(self._inbox) > STREAM_AHEAD:
            raise FrameError("a stream has more messages than were asked for")
        self._inbox.append((bytes(found.head), bytes(found.body)))
        self._woken.set()

    def end(self, status: Status) -> None:
        """It is over."""
        if self._status is None:
            self._status = status
        self._woken.set()

    # -- for its user --------------------------------------------------------------------------

    async def write(self, request: Any) -> None:
        """Send a request; waits while the node takes none. Raises InvalidStateError at the end."""
        await self._channel.writable()
        if self._status is not None:
            raise asyncio.InvalidStateError("the call has ended")
        self._channel.send_message(self._number, self._serialize(request))

    async def read(self) -> Any:
        """The next reply, or EOF."""
        while not self._inbox and self._status is None:
            self._woken.clear()
            await self._woken.wait()
        if self._inbox:
            return self._take()
        assert self._status is not None, "woken by either"
        if self._status[0] is grpc.StatusCode.OK:
            return grpc.aio.EOF
        if self._given_up:
            raise asyncio.CancelledError
        raise _error(self._status)

    def _take(self) -> Any:
        head, body = self._inbox.popleft()
        self._taken += 1
        if self._taken >= STREAM_AHEAD // 2 and self._status is None:
            self._channel.send_more(self._number, self._taken)
            self._taken = 0
        return _whole(self._deserialize(head), body)

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        return (await self._ended())[0]

    async def details(self) -> str:
        """Why it ended so."""
        return (await self._ended())[1]

    async def _ended(self) -> Status:
        while self._status is None:
            self._woken.clear()
            await self._woken.wait()
        return self._status

    def cancel(self) -> bool:
        """End it."""
        if self._status is not None:
            return False
        self._given_up = True
        self._channel.give_up(self._number)
        self.end((grpc.StatusCode.CANCELLED, "the call was cancelled", ()))
        return True


def _whole(message: Any, body: bytes) -> Any:
    """A message with the bodies that came behind it."""
    if body:
        message.bodies = body
    return message


class FramesChannel(asyncio.BufferedProtocol):
    """A connection to a node: made by `connect`. A NodeChannel."""

    def __init__(self, busy_poll: BusyPoll) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy_poll = busy_poll
        self._reader = FrameReader(frames.GREETING_BYTES)
        self._transport: asyncio.Transport | None = None
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._welcome: frames.Welcome | None = None
        self._bytes_max = 0  # of a frame to the node, without its header
        self.error: DuologError | None = None  # why no call may begin any more
        self.disowned = False  # its key is taken no more
        self.over = asyncio.Event()  # no call may begin, or none is in flight
        self._calls: dict[int, _Unary | FramesStream] = {}
        self._appends: dict[int, tuple[float, asyncio.Future[wire.AppendReply]]] = {}
        self._unwritten: dict[
            int, tuple[bytes, ...]
        ] = {}  # appends that the transport does not take yet
        self._paused = False
        self._may_write = asyncio.Event()  # after a pause
        self._last = 0  # number of a call
        self._due = inf  # when deadlines are checked
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._silent = 0  # ticks

    # -- the connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        self._transport = transport
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    async def greet(self, key: bytes) -> None:
        """Begin. Raises Unavailable, also where the node is another one, or none."""
        self._write(frames.hello(key))
        await self._greeted

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio: handle what has arrived whole."""
        self._silent = 0
        reader = self._reader
        reader.received(nbytes)
        try:
            while (found := reader.next()) is not None:
                if found.kind == Kind.APPENDED:
                    self._appended(found)
                else:
                    self._handle(found)
        except FrameError as problem:
            self._break(f"the connection to the node ended: {problem}")

    def _appended(self, found: Frame) -> None:
        self._busy_poll.came()
        waiting = self._appends.get(found.call)
        if waiting is None or waiting[1].done():
            return  # given up
        try:
            reply = wire.AppendReply.FromString(bytes(found.payload))
        except DecodeError as error:
            raise FrameError(f"a reply cannot be read: {error}") from None
        del self._appends[found.call]  # not before: the end of the connection fails what is left
        waiting[1].set_result(reply)
        if self.error is not None:
            self._close_if_unused()

    def _handle(self, found: Frame) -> None:
        kind = found.kind
        if self._welcome is None:
            self._welcomed(frames.read_welcome(found))
        elif kind == Kind.MESSAGE:
            self._message(found)
        elif kind == Kind.END:
            self._end(found.call, _read_end(found))
        elif kind == Kind.PING:
            self._write(frames.frame(Kind.PONG, number=found.number))
        elif kind == Kind.GOAWAY:
            self._fail(Unavailable(frames.text_of(found)))
            self._close_if_unused()
        elif kind != Kind.PONG:
            raise FrameError(f"a frame of kind {kind} from a node")

    def _welcomed(self, welcome: frames.Welcome) -> None:
        self._welcome = welcome
        self._bytes_max = welcome.frame_bytes_max
        self._reader.frame_bytes_max = MESSAGE_BYTES_MAX
        if not self._greeted.done():
            self._greeted.set_result(None)

    def _message(self, found: Frame) -> None:
        call = self._calls.get(found.call)
        if call is None:
            return  # given up
        call.message(found)
        if found.flags & LAST:
            self._end(found.call, OK)

    def _end(self, number: int, status: Status) -> None:
        error: DuologError | None = None
        if status[0] is grpc.StatusCode.UNAUTHENTICATED:
            # The key stands for a user: who we are may be right, and gRPC tells.
            status = (grpc.StatusCode.UNAVAILABLE, f"a new key is needed: {status[1]}", ())
            error = Disowned(status[1])
            self.disowned = True
            self._fail(error)
        append = self._appends.pop(number, None)
        if append is not None and not append[1].done():
            append[1].set_exception(error or error_of(_error(status)))
        call = self._calls.pop(number, None)
        if call is not None:
            call.end(status)
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        """The node takes no more calls, and none is left."""
        if self.error is not None and not (self._calls or self._appends):
            assert self._transport is not None, "connected"
            self._transport.close()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._paused = True
        self._may_write.clear()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._paused = False
        while self._unwritten and not self._paused:
            first = next(iter(self._unwritten))
            for part in self._unwritten.pop(first):
                self._write(part)
        if not self._paused:
            self._may_write.set()

    async def writable(self) -> None:
        """Wait while the node takes nothing; ends with the connection."""
        while self._paused and self.error is None:
            await self._may_write.wait()

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._break(f"the connection to the node broke ({exc or 'it was closed'})")

    def _break(self, reason: str) -> None:
        """Fail all calls: the connection is lost."""
        error = Unavailable(reason)
        self._fail(error)
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()  # it may have no waiter
        if self._transport is not None:
            self._transport.abort()
        for timer in (self._timer, self._ticker):
            if timer is not None:
                timer.cancel()
        self._may_write.set()
        self._unwritten.clear()
        appends, self._appends = self._appends, {}
        for _, answer in appends.values():
            if not answer.done():
                answer.set_exception(Unavailable(reason))
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end((grpc.StatusCode.UNAVAILABLE, reason, ()))

    def _fail(self, error: DuologError) -> None:
        """No call may begin any more."""
        self.error = self.error or error
        self.over.set()

    @property
    def closed(self) -> bool:
        """Whether it has closed."""
        return self._transport is None or self._transport.is_closing()

    async def close(self, grace: float | None = None) -> None:
        """End all calls."""
        self._break("the client was closed")

    # -- time ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        self._silent += 1
        if self._silent >= SILENT_TICKS:
            self._break("the node does not answer")
        elif self._silent >= PING_TICKS:
            self._write(frames.frame(Kind.PING, number=self._silent))

    def _arm(self, deadline: float) -> None:
        """Look at deadlines when the first one is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._due, self._timer = inf, None
        now, first = self._loop.time(), inf
        for number, (deadline, answer) in list(self._appends.items()):
            if deadline > now:
                first = min(first, deadline)
            elif not answer.done():
                self._unwritten.pop(number, None)
                answer.set_exception(TimeoutError())
        for number, call in list(self._calls.items()):
            if call.deadline > now:
                first = min(first, call.deadline)
            else:
                self.give_up(number)
                call.end(LATE)
        if first < inf:
            self._arm(first)

    # -- appends -------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether appends wait for their answers."""
        return bool(self._appends)

    async def append(
        self, request: wire.AppendRequest, bodies: bytes, deadline: float
    ) -> wire.AppendReply:
        """See NodeChannel."""
        if self.error is not None:
            raise Unavailable(str(self.error))
        answer: asyncio.Future[wire.AppendReply] = self._loop.create_future()
        number = self._next_number()
        head = request.SerializeToString()
        size = len(head) + len(bodies)
        if size > self._bytes_max:
            raise MessageTooLarge(self._too_long(size).details())
        parts = frames.message_parts(Kind.APPEND, number, head, bodies)
        self._appends[number] = (deadline, answer)
        if deadline < self._due:
            self._arm(deadline)
        if self._paused:
            self._unwritten[number] = parts
        else:
            for part in parts:
                self._write(part)
            if size <= SMALL_BYTES:
                self._busy_poll.expect()
        try:
            return await answer
        except BaseException:
            if self._appends.pop(number, None) is not None:
                self._unwritten.pop(number, None)
                self._close_if_unused()
            raise

    # -- other calls ---------------------------------------------------------------------------

    def _next_number(self) -> int:
        number = self._last % NUMBERS + 1
        while number in self._calls or number in self._appends:
            number = number % NUMBERS + 1
        self._last = number
        return number

    def _too_long(self, size: int) -> grpc.aio.AioRpcError:
        """The error of gRPC for a message over the node's limit."""
        text = f"a message of {size} bytes; the node's limit is {self._bytes_max}"
        return _error((grpc.StatusCode.RESOURCE_EXHAUSTED, text, ()))

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise self._too_long(size)

    def _check_open(self) -> None:
        """Raise as gRPC does where no call can begin, and where too many are in flight."""
        if self.error is not None:
            raise _error((grpc.StatusCode.UNAVAILABLE, str(self.error), ()))
        assert self._welcome is not None, "greeted"
        if len(self._calls) >= self._welcome.calls_max:
            text = f"{len(self._calls)} calls are in flight on this connection"
            raise _error((grpc.StatusCode.RESOURCE_EXHAUSTED, text, ()))

    def _begin(self, path: str, call: int, data: bytes, seconds: float = 0.0) -> None:
        """Send the beginning of a call."""
        self._check_size(len(data))
        milliseconds = min(NUMBERS, max(1, int(seconds * 1000))) if seconds else 0
        code = frames.NUMBERS[path]
        self._write(frames.frame(Kind.CALL, call, milliseconds, data, code))

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """A method with one request and one reply."""

        async def ask(request: Any, timeout: float | None = None) -> Any:
            deadline = self._loop.time() + (UNARY_SECONDS if timeout is None else timeout)
            try:
                async with asyncio.timeout_at(deadline):
                    await self.writable()
            except TimeoutError:
                raise _error(LATE) from None
            self._check_open()
            number = self._next_number()
            answer: asyncio.Future[Status] = self._loop.create_future()
            call = _Unary(answer, deadline)
            seconds = max(0.001, deadline - self._loop.time())
            self._begin(path, number, request_serializer(request), seconds)
            self._calls[number] = call
            if call.deadline < self._due:
                self._arm(call.deadline)
            try:
                status = await answer
            except asyncio.CancelledError:
                self.give_up(number)
                raise
            if status[0] is not grpc.StatusCode.OK or call.reply is None:
                raise _error(status)
            head, body = call.reply
            return _whole(response_deserializer(head), body)

        return ask

    def unary_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., FramesStream]:
        """A method with one request and many replies."""

        def begin(request: Any, timeout: float | None = None) -> FramesStream:
            data = request_serializer(request)
            return self._stream(path, data, timeout, (request_serializer, response_deserializer))

        return begin

    def stream_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., FramesStream]:
        """A method with many of both."""

        def begin(timeout: float | None = None) -> FramesStream:
            return self._stream(path, b"", timeout, (request_serializer, response_deserializer))

        return begin

    def _stream(
        self, path: str, data: bytes, seconds: float | None, codec: tuple[Any, Any]
    ) -> FramesStream:
        """Begin a call with streams. seconds: it may take, None without an end."""
        self._check_open()
        number = self._next_number()
        self._begin(path, number, data, 0.0 if seconds is None else max(seconds, 0.001))
        deadline = inf if seconds is None else self._loop.time() + seconds
        call = self._calls[number] = FramesStream(self, number, *codec, deadline)
        if deadline < self._due:
            self._arm(deadline)
        return call

    def send_message(self, number: int, data: bytes) -> None:
        """A message of a stream."""
        self._check_size(len(data))
        self._write(frames.message_frame(Kind.MESSAGE, number, data))

    def send_more(self, number: int, count: int) -> None:
        """Grant credit for so many messages taken from a stream."""
        self._write(frames.frame(Kind.MORE, number, count))

    def give_up(self, number: int) -> None:
        """A call is of no interest any more."""
        if self._calls.pop(number, None) is not None:
            self._write(frames.frame(Kind.CANCEL, number))
            self._close_if_unused()


async def connect(
    address: tuple[str, int],
    key: bytes,
    seconds: float,
    tls: ssl.SSLContext | None = None,
    busy_poll_us: int = 0,
) -> FramesChannel:
    """A channel to the node with this key. tls: None for plain text. busy_poll_us: see Runtime.

    Raises OSError, TimeoutError; Unavailable where it is another one, or none.
    """
    loop = asyncio.get_running_loop()
    host, port = address
    name = host if tls is not None else None  # that the certificate must be valid for
    async with asyncio.timeout(seconds):
        _, channel = await loop.create_connection(
            lambda: FramesChannel(busy_poll(busy_poll_us)),
            host,
            port,
            ssl=tls,
            server_hostname=name,
        )
        try:
            await channel.greet(key)
        except BaseException:
            await channel.close()
            raise
    return channel
