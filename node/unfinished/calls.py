"""Calls over gRPC, with what is known of their requests: said to a ledger by the client's address.

A call is known once its headers are whole; its messages are as they are read.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol, cast

import grpc

from node.methods import Handler
from node.unfinished.ledger import CALL_BYTES, Name, name_of, size_of
from node.wirecodec import peer_host

_BYTES_OF_FIELD = 8  # of HPACK, at most, for a header of up to some KiB
_CALL: ContextVar[Callable[[int], None]] = ContextVar("says that a message of the call came")


class Known(Protocol):
    """Is told what came."""

    def has_ended(self, name: Name) -> bool:
        """Whether a connection was ended."""

    def began(self, name: Name, size: int) -> None:
        """The headers of a call."""

    def known(self, name: Name, size: int) -> None:
        """A message."""


def begin(known: Known, context: Any) -> bool:
    """A call begins: to be called before its task is made, which has the context of this one.

    context: what gRPC says of the call. False for one of a connection that was ended: its headers
    may be what it was ended for. The core takes them for whole then, though they are without an
    end, and to read them takes seconds.
    """
    host = peer_host(context.peer())
    name = name_of(host.address, host.port)
    if known.has_ended(name):
        return False
    headers = context.invocation_metadata() or ()
    size = sum(len(key) + len(value) + _BYTES_OF_FIELD for key, value in headers)
    known.began(name, CALL_BYTES + size)
    _CALL.set(lambda data: known.known(name, size_of(data)))
    return True


def counted(handler: Handler) -> Handler:
    """The same method; the messages of its calls are counted."""
    reads, writes = _counting(handler.request_deserializer), handler.response_serializer
    if handler.request_streaming:
        made = grpc.stream_stream_rpc_method_handler(handler.stream_stream, reads, writes)
    elif handler.response_streaming:
        made = grpc.unary_stream_rpc_method_handler(handler.unary_stream, reads, writes)
    else:
        made = grpc.unary_unary_rpc_method_handler(handler.unary_unary, reads, writes)
    return cast(Handler, made)


def _counting(reads: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        came = _CALL.get(None)
        if came is not None:
            came(len(data))
        return data if reads is None else reads(data)

    return read


__all__ = ["Known", "begin", "counted"]
