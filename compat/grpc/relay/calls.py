"""A client's call of any method: its headers, and the nodes it came through.

A node that forwards a call adds headers that tell who called it, and how.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Never, Protocol

import grpc
from duolog import _errors as sdk

OWN = "x-duolog-"  # of every header that nodes add
FORWARDED = OWN + "forwarded"  # how the client is connected
COPY = OWN + "copy"  # marks a copy of a call that another node answers
PEER = OWN + "peer"  # address of the client
VIA = OWN + "via"  # the forwarding process: NODE/START; of release 0.1.0: NODE
METHOD = OWN + "method"  # the method that is called
USER = OWN + "user"  # the user that calls, quoted as in URLs; only where there are users
PROOF = OWN + "proof"  # of the password that the forwarding node knows the user by
CLIENT_ID = "x-mq-client-id"
TLS, PLAIN = "tls", "plain"
ANSWER_MARGIN_SECONDS = 0.3  # for the way of the answer
Header = tuple[str, str | bytes]


class Call(Protocol):
    """The part of a client's call that is used, for any method."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The headers."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The security of the connection."""

    def peer(self) -> str:
        """The address of the client, as gRPC names it."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, None without one."""

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        """End the call."""


class HeadersOnce:
    """A call whose headers gRPC converts once, however often they are asked for."""

    __slots__ = ("_context", "_headers")

    def __init__(self, context: Call, is_node: Callable[[str], bool]) -> None:
        """is_node: whether a peer is a node, so that the client's address is what it says. The
        address of any other peer is that of the client.
        """
        self._context = context
        headers = tuple(context.invocation_metadata() or ())
        if any(name == PEER for name, _ in headers) and not is_node(context.peer()):
            headers = tuple(header for header in headers if header[0] != PEER)
        self._headers = headers

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The headers."""
        return self._headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The security of the connection."""
        return self._context.auth_context()

    def peer(self) -> str:
        """The address of the client, as gRPC names it."""
        return self._context.peer()

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, None without one."""
        return self._context.time_remaining()

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        """End the call."""
        await self._context.abort(code, details)


class Timed(Protocol):
    """A call that may have a deadline."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, None without one."""


def time_left(call: Timed, default: float, most: float) -> float:
    """Seconds until shortly before a call's deadline, and before `most`; `default` without one."""
    left = call.time_remaining()
    return max(0.0, (default if left is None else min(left, most)) - ANSWER_MARGIN_SECONDS)


def headers_of(context: Call) -> dict[str, str | bytes]:
    """A call's headers."""
    return dict(context.invocation_metadata() or ())


def is_encrypted(context: Call) -> bool:
    """Whether the client is connected by TLS, to this node or to the forwarding one."""
    transport = (context.auth_context() or {}).get("transport_security_type", [])
    return _how_forwarded(context) == TLS or b"ssl" in transport


async def refuse_forwarded(context: Call, error: Exception) -> None:
    """End a call that another node forwarded, as this node is not the master."""
    if isinstance(error, sdk.NotMaster) and is_forwarded(context):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def is_forwarded(context: Call) -> bool:
    """Whether another node forwarded a call to this one."""
    return bool(_how_forwarded(context))


def is_counted_elsewhere(context: Call) -> bool:
    """Whether a call's connection counts at the node that forwarded it."""
    return is_forwarded(context) and PEER in headers_of(context)


def is_copy(context: Call) -> bool:
    """Whether a call is a copy, sent by another node for information."""
    return bool(headers_of(context).get(COPY))


def _how_forwarded(context: Call) -> str:
    return str(headers_of(context).get(FORWARDED, ""))


def via_of(context: Call) -> str:
    """The process that forwarded a call; empty if the client is connected here."""
    if not is_forwarded(context):
        return ""
    return str(headers_of(context).get(VIA, ""))


def peer_of(context: Call) -> str:
    """The client's address as gRPC names it, also for forwarded calls."""
    if is_forwarded(context):
        return str(headers_of(context).get(PEER, context.peer()))
    return str(context.peer())
