"""Calls over gRPC: the bytes of their headers and messages, reported to a ledger."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc

from duolog_server.node.net.grpc.receive_limit.ledger import CALL_BYTES, Name, name_of, size_of
from duolog_server.node.net.methods import Handler
from duolog_server.node.wirecodec import peer_host

_BYTES_OF_FIELD = 8  # of HPACK, at most, for a header of up to some KiB


class Known(Protocol):
    """Takes note of the bytes of requests."""

    def has_ended(self, name: Name) -> bool:
        """Whether a connection was ended."""

    def began(self, name: Name, size: int) -> None:
        """The headers of a call."""

    def known(self, name: Name, size: int) -> None:
        """A message."""

    def over(self, name: Name, gave_up: bool) -> None:
        """No message of a call comes any more; see Ledger."""


@dataclass(slots=True)
class Call:
    """A call, as long as messages of it may come."""

    _known: Known
    _name: Name
    _waits: bool = True

    def came(self, size: int, is_last: bool) -> None:
        """A message of it."""
        self._known.known(self._name, size_of(size))
        if is_last:
            self._over(gave_up=False)

    def end(self, _task: object) -> None:
        """Its task is over."""
        self._over(gave_up=True)

    def _over(self, gave_up: bool) -> None:
        if self._waits:
            self._waits = False
            self._known.over(self._name, gave_up)


_CALL: ContextVar[Call] = ContextVar("the call of this context")


def begin(known: Known, context: Any) -> Call | None:
    """A call begins: to be called before its task is made, which has the context of this one.

    context: what gRPC says of the call. None for one of a connection that was ended: its headers
    may be what it was ended for. The core takes them for whole then, though they are without an
    end, and to read them takes seconds.
    """
    host = peer_host(context.peer())
    name = name_of(host.address, host.port)
    if known.has_ended(name):
        return None
    headers = context.invocation_metadata() or ()
    size = sum(len(key) + len(value) + _BYTES_OF_FIELD for key, value in headers)
    known.began(name, CALL_BYTES + size)
    call = Call(known, name)
    _CALL.set(call)
    return call


def counted(handler: Handler) -> Handler:
    """The same method; the messages of its calls are counted."""
    reads = _counting(handler.request_deserializer, is_one=not handler.request_streaming)
    writes = handler.response_serializer
    if handler.request_streaming:
        made = grpc.stream_stream_rpc_method_handler(handler.stream_stream, reads, writes)
    elif handler.response_streaming:
        made = grpc.unary_stream_rpc_method_handler(handler.unary_stream, reads, writes)
    else:
        made = grpc.unary_unary_rpc_method_handler(handler.unary_unary, reads, writes)
    return cast(Handler, made)


def _counting(reads: Callable[[bytes], Any] | None, is_one: bool) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        call = _CALL.get(None)
        if call is not None:
            call.came(len(data), is_last=is_one)
        return data if reads is None else reads(data)

    return read
