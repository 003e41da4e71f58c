"""A client's call, whatever its method: its headers, and the way it came.

A node that passes a call on says in headers of its own who called it, and how.
"""

from collections.abc import Iterable, Mapping
from typing import Never, Protocol

import grpc
from duolog import _errors as sdk

FORWARDED = "x-duolog-forwarded"  # its value says how the client came
COPY = "x-duolog-copy"  # of a call that another node answers
PEER = "x-duolog-peer"  # the client's own address
VIA = "x-duolog-via"  # name of the node that passes the call on
TLS, PLAIN = "tls", "plain"


class Call(Protocol):
    """What is asked of a client's call, whatever its method."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The headers."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """How the client is connected."""

    def peer(self) -> str:
        """Its address as gRPC names it."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, None where there is none."""

    async def abort(self, code: grpc.StatusCode, details: str) -> Never:
        """End the call."""


def headers_of(context: Call) -> dict[str, str | bytes]:
    """A call's headers."""
    return dict(context.invocation_metadata() or ())


def is_encrypted(context: Call) -> bool:
    """Whether the client came by TLS, to this node or to the one that passed its call on."""
    transport = (context.auth_context() or {}).get("transport_security_type", [])
    return _how_forwarded(context) == TLS or b"ssl" in transport


async def refuse_forwarded(context: Call, error: Exception) -> None:
    """End a call that another node passed on to this one, where this one is no master."""
    if isinstance(error, sdk.NotMaster) and is_forwarded(context):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def is_forwarded(context: Call) -> bool:
    """Whether another node passed a call on to this one."""
    return bool(_how_forwarded(context))


def is_copy(context: Call) -> bool:
    """Whether another node only lets this one know of a call."""
    return bool(headers_of(context).get(COPY))


def _how_forwarded(context: Call) -> str:
    return str(headers_of(context).get(FORWARDED, ""))


def via_of(context: Call) -> str:
    """The node that passed a call on to this one; empty where the client is connected here."""
    if not is_forwarded(context):
        return ""
    return str(headers_of(context).get(VIA, ""))


def peer_of(context: Call) -> str:
    """The client's address as gRPC names it, also where another node passed its call on."""
    if is_forwarded(context):
        return str(headers_of(context).get(PEER, context.peer()))
    return str(context.peer())
