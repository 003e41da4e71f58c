"""Calls over gRPC, with what is known of their requests: said to a ledger by the client's address.

The core says whose a call is only once its first message is there; until then a call keeps count
for itself.
"""

import inspect
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, cast

import grpc

from node.methods import Handler
from node.unfinished.ledger import CALL_BYTES, Name, name_of, size_of
from node.wirecodec import peer_host

Known = Callable[[Name, int], None]
_BYTES_OF_FIELD = 8  # of HPACK, at most, for a header of up to some KiB


class _Call:
    """One that is under way. size: bytes that are known, and not said yet."""

    __slots__ = ("_known", "_name", "size")

    def __init__(self, known: Known) -> None:
        self._known = known
        self._name: Name | None = None
        self.size = CALL_BYTES

    def is_of(self, peer: str, headers: int) -> None:
        """It is known whose it is. peer: as gRPC names a client. headers: bytes."""
        host = peer_host(peer)
        self._name = name_of(host.address, host.port)
        self.add(headers)

    def add(self, size: int) -> None:
        """So many bytes of a message came."""
        self.size += size
        if self._name is not None:
            self._known(self._name, self.size)
            self.size = 0


_CALL: ContextVar[_Call] = ContextVar("the call under way")


def begin(known: Known) -> None:
    """A call begins: to be called before its task is made, which has the context of this one."""
    _CALL.set(_Call(known))


def counted(handler: Handler) -> Handler:
    """The same method; the calls of it are counted, unless it runs in a thread."""
    reads, writes = _counting(handler.request_deserializer), handler.response_serializer
    if handler.request_streaming:
        made = grpc.stream_stream_rpc_method_handler(_of(handler.stream_stream), reads, writes)
    elif handler.response_streaming:
        made = grpc.unary_stream_rpc_method_handler(_of(handler.unary_stream), reads, writes)
    else:
        made = grpc.unary_unary_rpc_method_handler(_of(handler.unary_unary), reads, writes)
    return cast(Handler, made)


def _of(method: Any) -> Any:
    """A method that says whose call it is first."""
    if inspect.isasyncgenfunction(method):

        async def replies(request: Any, context: Any) -> AsyncIterator[Any]:
            _is_of(context)
            async for reply in method(request, context):
                yield reply

        return replies
    if not inspect.iscoroutinefunction(method):
        return method

    async def run(request: Any, context: Any) -> Any:
        _is_of(context)
        return await method(request, context)

    return run


def _is_of(context: Any) -> None:
    call = _CALL.get(None)
    if call is not None:
        headers = context.invocation_metadata() or ()
        size = sum(len(key) + len(value) + _BYTES_OF_FIELD for key, value in headers)
        call.is_of(context.peer(), size)


def _counting(reads: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        call = _CALL.get(None)
        if call is not None:
            call.add(size_of(len(data)))
        return data if reads is None else reads(data)

    return read


__all__ = ["Known", "begin", "counted"]
