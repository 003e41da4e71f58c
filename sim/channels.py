"""gRPC between simulated programs and nodes: stubs on one side, the services on the other.

The frames of a call arrive in order in each direction, or not at all: a cut or lossy link delays
them, and a connection that is delayed for too long breaks. A node that dies may reset its
connections; otherwise the other side notices later.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import grpc
import grpc.aio

from duolog_server.node.net.methods import Handler, Methods
from sim.network import Network

CLIENT = "client"
KEEPALIVE_MS = 1500.0  # after so long without getting through, a connection is given up
AGAIN_MS = 40.0  # until what was lost on its way is sent again
RESETS = 0.7  # how often a dead process's connections are reset at once
GUARDED = "guarded"  # begins the paths of methods with a guard before them

Details = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call that is guarded.

    Attributes:
        authorization: what its metadata says; empty for none.
        certificate: the common name of its certificate, as TLS would tell it; empty for none.
    """

    authorization: str = ""
    certificate: str = ""
    address: str = "127.0.0.1"


class Serving(Protocol):
    """The services of a running node."""

    rpc: "SimServer"


class Served(Protocol):
    """A simulated node, as seen by callers of its services."""

    name: str
    boot: int
    up: bool
    chance_of_reset: Random

    @property
    def services(self) -> Serving | None:
        """None where it has none, or does not run."""

    def guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        """Something its process does: not after it died, later where it is paused."""


class Aborted(Exception):
    """A method ends its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Details) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
        self.trailing = trailing


class _Pipe:
    """One direction of a call: frames arrive in order, some time later."""

    def __init__(self, network: Network, ends: tuple[str, str], broken: Callable[[], None]) -> None:
        self._network = network
        self._ends = ends
        self._broken = broken
        self._frames: deque[Callable[[], None]] = deque()
        self._moving = False
        self._since: float | None = None  # when the link held it up
        self.closed = False

    def send(self, frame: Callable[[], None]) -> None:
        """Have something done at the other end."""
        if self.closed:
            return
        self._frames.append(frame)
        if not self._moving:
            self._move()

    def _move(self) -> None:
        if self.closed or not self._frames:
            self._moving = False
            return
        self._moving = True
        network, world = self._network, self._network.world
        if network.call(*self._ends, self._arrive):
            self._since = None
            return
        self._since = world.now if self._since is None else self._since
        if world.now - self._since > KEEPALIVE_MS:
            self.closed = True
            self._broken()
        else:
            world.after(AGAIN_MS, self._move)

    def _arrive(self) -> None:
        if not self.closed and self._frames:
            self._frames.popleft()()
        self._move()


class Call:
    """One call between a program and a node. Made by the program's side."""

    def __init__(
        self,
        network: Network,
        node: Served,
        path: str,
        caller: Caller | None = None,
        source: str = CLIENT,
    ) -> None:
        """caller: of a guarded method; None for one that anybody may call. source: on the network,
        of the program.
        """
        self.network = network
        self.node = node
        self.path = path if caller is None else GUARDED + path
        self.caller = caller or Caller()
        self.boot = node.boot
        self.source = source
        self.up = _Pipe(network, (source, node.name), self._lost)
        self.down = _Pipe(network, (node.name, source), self._lost)
        self.inbox: deque[Any] = deque()  # serialized replies
        self.status: tuple[grpc.StatusCode, str, Details] | None = None
        self.given_up = False  # by the program
        self.notify: Callable[[], None] = lambda: None  # at the program's side
        self.task: asyncio.Task[None] | None = None  # at the node's side
        self.requests: asyncio.Queue[bytes | None] | None = None

    # -- from the program ----------------------------------------------------------------------

    def begin(self) -> None:
        """Tell the node of it; a machine without the process says so."""
        begun = self._at_node(self._begun)

        def arrive() -> None:
            services = self._served_by()
            if services is not None:
                services.rpc.accept(self)
            begun()

        self.up.send(arrive)

    def write(self, data: bytes) -> None:
        """A request."""
        self.up.send(self._at_node(lambda: self._request(data)))

    def finish(self) -> None:
        """No more requests."""
        self.up.send(self._at_node(lambda: self._request(None)))

    def cancel(self) -> None:
        """The program wants no answer any more."""
        self.given_up = self.status is None
        self.end(grpc.StatusCode.CANCELLED, "the call was cancelled")
        self.up.send(self._at_node(self._cancelled))

    def _at_node(self, do: Callable[[], None]) -> Callable[[], None]:
        """What a frame does at the node, unless the process that the call began with is gone."""
        node = self.node

        def arrive() -> None:
            if self._served_by() is not None:
                node.guarded(do)()
            else:
                self._end_connection(node.up or node.chance_of_reset.random() < RESETS)

        return arrive

    def _served_by(self) -> Serving | None:
        """What runs in the process that the call began with; None once that is gone."""
        node = self.node
        return node.services if node.up and node.boot == self.boot else None

    def _end_connection(self, reset: bool) -> None:
        """The program is told of it by a reset, or notices by itself, as where that is lost."""
        if not (reset and self.network.call(self.node.name, self.source, self._reset)):
            self.network.world.after(KEEPALIVE_MS, self._reset)

    # -- at the node ---------------------------------------------------------------------------

    def _begun(self) -> None:
        assert self.node.services is not None, "asked on arrival"
        self.node.services.rpc.begin(self)

    def _request(self, data: bytes | None) -> None:
        if self.requests is not None:
            self.requests.put_nowait(data)

    def _cancelled(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def reply(self, data: bytes) -> None:
        """A reply goes out."""
        self.down.send(lambda: self._got(data))

    def answer(self, code: grpc.StatusCode, details: str, trailing: Details = ()) -> None:
        """The call ends."""
        self.down.send(lambda: self.end(code, details, trailing))

    def process_died(self, reset: bool) -> None:
        """The node's process is gone: nothing more comes from it."""
        self.down.closed = True
        self._end_connection(reset)

    # -- at the program ------------------------------------------------------------------------

    def _got(self, data: bytes) -> None:
        if self.status is None:
            self.inbox.append(data)
            self.notify()

    def _reset(self) -> None:
        self.end(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def _lost(self) -> None:
        """A direction was held up for too long: both sides give the connection up."""
        self.up.closed = self.down.closed = True
        if self.node.boot == self.boot:
            self.node.guarded(self._cancelled)()
        self._reset()

    def end(self, code: grpc.StatusCode, details: str, trailing: Details = ()) -> None:
        """The program is told how it ended."""
        if self.status is None:
            self.status = code, details, trailing
            self.notify()


def error(status: tuple[grpc.StatusCode, str, Details]) -> grpc.aio.AioRpcError:
    """As gRPC raises it."""
    code, details, trailing = status
    metadata = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, metadata, grpc.aio.Metadata(*trailing), details)


# -- the program's side ----------------------------------------------------------------------------


class SimStream:
    """An open call with streams, as `grpc.aio` gives one."""

    def __init__(self, call: Call, serialize: Any, deserialize: Any) -> None:
        self.call = call
        self._serialize, self._deserialize = serialize, deserialize
        self._woken = asyncio.Event()
        call.notify = self._woken.set

    async def write(self, request: Any) -> None:
        """Send a request."""
        if self.call.status is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.call.write(self._serialize(request))

    async def read(self) -> Any:
        """The next reply, or EOF."""
        while not self.call.inbox and self.call.status is None:
            self._woken.clear()
            await self._woken.wait()
        if self.call.inbox:
            return self._deserialize(self.call.inbox.popleft())
        assert self.call.status is not None, "woken by either"
        if self.call.status[0] is grpc.StatusCode.OK:
            return grpc.aio.EOF
        if self.call.given_up:
            raise asyncio.CancelledError
        raise error(self.call.status)

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        while self.call.status is None:
            self._woken.clear()
            await self._woken.wait()
        return self.call.status[0]

    async def details(self) -> str:
        """Why it ended so."""
        await self.code()
        assert self.call.status is not None, "waited for"
        return self.call.status[1]

    def cancel(self) -> bool:
        """End it."""
        if self.call.status is not None:
            return False
        self.call.cancel()
        return True


class SimChannel:
    """A program's channel to an endpoint: what the generated stubs use of one."""

    def __init__(
        self,
        network: Network,
        node: Served,
        caller: Caller | None = None,
        source: str = CLIENT,
    ) -> None:
        self._source = source
        self._network = network
        self._node = node
        self._caller = caller
        self._open: dict[Call, None] = {}
        self._closed = False

    def _begin(self, path: str) -> Call:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        for done in [call for call in self._open if call.status is not None]:
            del self._open[done]
        call = Call(self._network, self._node, path, self._caller, self._source)
        self._open[call] = None
        call.begin()
        return call

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Coroutine[Any, Any, Any]]:
        """A method with one request and one reply."""

        async def ask(request: Any, timeout: float | None = None, metadata: object = ()) -> Any:
            call = self._begin(path)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def ended() -> None:
                if call.status is not None and not future.done():
                    future.set_result(None)

            call.notify = ended
            call.write(request_serializer(request))
            call.finish()
            try:
                async with asyncio.timeout(timeout):
                    await future
            except TimeoutError:
                call.cancel()
                late = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())
                raise error(late) from None
            except asyncio.CancelledError:
                call.cancel()
                raise
            assert call.status is not None, "it has ended"
            if call.given_up:
                raise asyncio.CancelledError
            if call.status[0] is not grpc.StatusCode.OK:
                raise error(call.status)
            return response_deserializer(call.inbox[0])

        return ask

    def unary_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., SimStream]:
        """A method with one request and many replies."""

        def begin(request: Any, timeout: float | None = None) -> SimStream:
            call = self._begin(path)
            call.write(request_serializer(request))
            call.finish()
            return SimStream(call, request_serializer, response_deserializer)

        return begin

    def stream_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., SimStream]:
        """A method with many of both."""

        def begin(timeout: float | None = None, metadata: object = ()) -> SimStream:
            return SimStream(self._begin(path), request_serializer, response_deserializer)

        return begin

    async def close(self, grace: float | None = None) -> None:
        """End all calls."""
        self.reset()

    def reset(self) -> None:
        """As `close`, and as the kernel does for a process that is gone."""
        self._closed = True
        for call in list(self._open):
            if call.status is None:
                call.cancel()
        self._open.clear()


# -- the node's side -------------------------------------------------------------------------------


class _Context:
    """What a method may ask of its call."""

    def __init__(self, call: Call, serialize: Callable[[Any], bytes]) -> None:
        self._call = call
        self._serialize = serialize

    @property
    def caller(self) -> Caller:
        """Who calls."""
        return self._call.caller

    def peer(self) -> str:
        """Its address."""
        return f"ipv4:{self.caller.address}:1"

    def invocation_metadata(self) -> Details:
        """What came with the call."""
        given = self.caller.authorization
        return (("authorization", given),) if given else ()

    def auth_context(self) -> dict[str, list[bytes]]:
        """What TLS would say of its certificate."""
        name = self.caller.certificate
        return {"x509_common_name": [name.encode()]} if name else {}

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call this once the method is over: here, clients take all answers at once."""
        assert self._call.task is not None, "a method runs in its task"
        self._call.task.add_done_callback(callback)

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Details = ()) -> None:
        """End the call."""
        raise Aborted(code, details, trailing)

    async def write(self, message: Any) -> None:
        """A reply of a stream."""
        self._call.reply(self._serialize(message))


class SimServer:
    """The calls of one process, and the services that serve them."""

    def __init__(
        self,
        node: Served,
        methods: Methods,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        failed: Callable[[Exception], None],
    ) -> None:
        """spawn: begins a task on the process's loop. failed: told of what no method may raise."""
        self._node = node
        self._methods = methods
        self._spawn = spawn
        self._failed = failed
        self._calls: dict[Call, None] = {}
        # Told of what a method answers, before the answer goes out: request, reply, and the world's
        # time when the request came.
        self.answered: Callable[[Any, Any, float], None] = lambda request, reply, came: None

    def accept(self, call: Call) -> None:
        """A call arrives, also where the process stands still: it ends with the process."""
        self._calls[call] = None

    def begin(self, call: Call) -> None:
        """The process begins with a call."""
        call.requests = asyncio.Queue()
        call.task = self._spawn(self._serve(call))

    async def _serve(self, call: Call) -> None:
        handler = self._methods.by_path[call.path]
        try:
            await self._run(call, handler)
        except Aborted as aborted:
            call.answer(aborted.code, aborted.details, aborted.trailing)
        except asyncio.CancelledError:
            call.answer(grpc.StatusCode.CANCELLED, "cancelled by the node")
            raise
        except Exception as problem:
            self._failed(problem)
        else:
            call.answer(grpc.StatusCode.OK, "")
        finally:
            self._calls.pop(call, None)

    async def _run(self, call: Call, handler: Handler) -> None:
        context = _Context(call, handler.response_serializer)
        requests = self._requests(call, handler)
        if handler.request_streaming:
            await handler.stream_stream(requests, context)
            return
        request, came = await anext(requests), call.network.world.now
        if handler.response_streaming:
            await handler.unary_stream(request, context)
            return
        reply = await handler.unary_unary(request, context)
        self.answered(request, reply, came)
        call.reply(handler.response_serializer(reply))

    @staticmethod
    async def _requests(call: Call, handler: Handler) -> AsyncIterator[Any]:
        assert call.requests is not None, "it began"
        while (data := await call.requests.get()) is not None:
            yield handler.request_deserializer(data)

    def stop(self) -> None:
        """The process dies."""
        reset = self._node.chance_of_reset.random() < RESETS
        for call in list(self._calls):
            call.process_died(reset)
        self._calls.clear()
