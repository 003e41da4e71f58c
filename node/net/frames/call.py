"""One call over frames, as the method that serves it sees it: its requests, and its context."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, Protocol

import grpc
import structlog
from duolog._frames import LAST, STREAM_AHEAD, FrameError, split
from google.protobuf.message import DecodeError

from duolog_server.node.net.methods import Handler

log = structlog.get_logger("duolog.node")

REQUESTS_MAX = 64  # of a stream that its method has not taken; then the connection is not read
REQUESTS_BYTES_MAX = 1 << 20  # of these, as soon as there are more
Trailing = tuple[tuple[str, str], ...]


class Peer(Protocol):
    """What a call uses of its connection."""

    peer: str
    principal: object

    async def writable(self) -> None:
        """Wait while the client takes nothing."""

    def send_message(self, call: int, head: bytes, body: bytes, flags: int = 0) -> None:
        """A message of a call. Raises FrameError where it is too long for a frame."""

    def send_end(self, call: int, code: grpc.StatusCode, details: str, trailing: Trailing) -> None:
        """A call ended."""

    def room_for_requests(self) -> None:
        """A call took a request: the connection may be read again."""

    def call_ended(self, number: int, call: "Call", task: "asyncio.Task[None]") -> None:
        """The task of a call is done."""

    def when_taken(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken what was written, or is gone."""


class Aborted(Exception):
    """A method ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Trailing) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.trailing = trailing


class _Requests:
    """The messages of a stream that have arrived."""

    __slots__ = ("arrived", "bytes", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.bytes = 0
        self.arrived = asyncio.Event()


class Call:
    """An open call, and the context that its method gets.

    There may be very many that wait: what only streams need is made for them alone.
    """

    __slots__ = (
        "_ahead",
        "_done",
        "_given_up",
        "_handler",
        "_number",
        "_peer",
        "_request",
        "_requests",
        "_taken",
        "deadline",
        "late",
        "task",
    )

    def __init__(self, peer: Peer, number: int, handler: Handler) -> None:
        self._peer = peer
        self._number = number
        self._handler = handler
        self._request = b""  # of a call that has one
        self._requests = _Requests() if handler.request_streaming else None
        self._ahead = 0  # messages that the client has not taken
        self._taken = asyncio.Event() if handler.response_streaming else None
        self.late = False  # its deadline is over
        self._given_up = False  # its number may be that of another call by now
        self.task: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self._done: list[Callable[[Any], None]] = []

    # -- from the connection -------------------------------------------------------------------

    def request(self, data: bytes) -> None:
        """A request arrived."""
        requests = self._requests
        if requests is None:
            self._request = data
            return
        requests.waiting.append(data)
        requests.bytes += len(data)
        requests.arrived.set()

    @property
    def takes_many(self) -> bool:
        """Whether the client sends a stream of requests."""
        return self._handler.request_streaming

    @property
    def full(self) -> bool:
        """Whether its method has requests enough for now."""
        found = self._requests
        return found is not None and (
            len(found.waiting) >= REQUESTS_MAX or found.bytes >= REQUESTS_BYTES_MAX
        )

    def more(self, count: int) -> None:
        """The client took messages. Raises FrameError where there were not so many."""
        if count > self._ahead:
            raise FrameError("more messages were taken than were sent")
        self._ahead -= count
        if self._taken is not None:
            self._taken.set()

    def cancel(self) -> None:
        """Its answer is not needed."""
        if self.deadline is not None:
            self.deadline.cancel()
        if self.task is not None:
            self.task.cancel()

    def give_up(self) -> None:
        """The client cancelled it: nothing more is said of it."""
        self._given_up = True
        self.cancel()

    def expire(self) -> None:
        """Its time is over."""
        self.late = True
        self.cancel()

    def over(self, task: "asyncio.Task[None]") -> None:
        """Its task is done."""
        if self.deadline is not None:
            self.deadline.cancel()
        self._peer.call_ended(self._number, self, task)
        for callback in self._done:
            self._peer.when_taken(partial(callback, self))

    # -- the context ---------------------------------------------------------------------------

    def peer(self) -> str:
        """The client's address as gRPC names it."""
        return self._peer.peer

    @property
    def principal(self) -> object:
        """Whose call it is; None where the node has no users."""
        return self._peer.principal

    def invocation_metadata(self) -> Trailing:
        """Frames carry none."""
        return ()

    def auth_context(self) -> dict[str, Iterable[bytes]]:
        """Its connection began with a key, which says who it is."""
        return {}

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call this once the client has taken the answer, or is gone."""
        self._done.append(callback)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Trailing = ()
    ) -> None:
        """End the call."""
        raise Aborted(code, details, trailing_metadata)

    async def write(self, message: Any) -> None:
        """A reply of a stream; waits while the client does not take any."""
        assert self._taken is not None, "its replies are a stream"
        while self._ahead >= STREAM_AHEAD:
            self._taken.clear()
            await self._taken.wait()
        await self._peer.writable()
        self._ahead += 1
        self._send(*split(message, self._handler.response_serializer), 0)
        await self._peer.writable()  # what it holds of the memory of answers is free when it ends

    def _send(self, head: bytes, body: bytes, flags: int) -> None:
        if not self._given_up:
            self._peer.send_message(self._number, head, body, flags)

    # -- its method ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve it. What its method raises is reported to the client, and logged."""
        try:
            await self._serve()
        except Aborted as aborted:
            self._end(aborted.code, aborted.details, aborted.trailing)
        except FrameError as problem:
            self._end(grpc.StatusCode.RESOURCE_EXHAUSTED, str(problem))
        except DecodeError as problem:
            self._end(grpc.StatusCode.INTERNAL, f"the request cannot be read: {problem}")
        except Exception as problem:
            log.exception("a call failed", kind=type(problem).__name__)
            self._end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(problem)}: {problem}")

    def _end(self, code: grpc.StatusCode, details: str, trailing: Trailing = ()) -> None:
        if not self._given_up:
            self._peer.send_end(self._number, code, details, trailing)

    async def _serve(self) -> None:
        handler = self._handler
        if self._requests is not None:
            await handler.stream_stream(self._take_requests(self._requests), self)
            self._end(grpc.StatusCode.OK, "")
            return
        await self._peer.writable()  # or unread replies would fill the memory
        request, self._request = handler.request_deserializer(self._request), b""
        if handler.response_streaming:
            await handler.unary_stream(request, self)
            self._end(grpc.StatusCode.OK, "")
            return
        reply = await handler.unary_unary(request, self)
        # At once: a reply may have been serialized already, and its bytes take less than itself.
        head, body = split(reply, handler.response_serializer)
        del reply
        await self._peer.writable()
        self._send(head, body, LAST)

    async def _take_requests(self, requests: _Requests) -> AsyncIterator[Any]:
        """The client's requests; they end with the call, which it cancels."""
        while True:
            while not requests.waiting:
                requests.arrived.clear()
                await requests.arrived.wait()
            data = requests.waiting.popleft()
            requests.bytes -= len(data)
            self._peer.room_for_requests()
            yield self._handler.request_deserializer(data)
