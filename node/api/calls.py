"""What service methods know of a call, and how they report errors: typed, with the exact kind in
the trailing metadata.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import structlog
from duolog._errors import DuologError, NotMaster, Throttled, status_of, trailing_of
from grpc.aio import ServicerContext

from duolog_server.node.identity.access.gate import VIEWER_ADDRESS
from duolog_server.node.wirecodec import error_to_sdk, peer_host
from duolog_server.store.errors import StoreError

log = structlog.get_logger("duolog.node")

# Of an error's text. gRPC drops a call, with its error, whose headers have more than 8 KiB.
DETAILS_BYTES_MAX = 2000

Message = TypeVar("Message", contravariant=True)


class Serving(Protocol):
    """A service."""

    @property
    def caught_up(self) -> Callable[[], Awaitable[None]]:
        """What it waits for before a call: its log's `caught_up`."""


Service = TypeVar("Service", bound=Serving)
Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Caller(Protocol):
    """The part of a call that a unary method uses."""

    def peer(self) -> str:
        """The client's address as gRPC names it."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What TLS says of the connection; empty without TLS and over frames."""

    def add_done_callback(self, callback: Any, /) -> None:
        """Call this, with the call, once the client has taken the answer, or is gone."""


def is_encrypted(context: Caller) -> bool:
    """Whether a call over gRPC came with TLS."""
    return b"ssl" in context.auth_context().get("transport_security_type", ())


def certificate_name(context: Caller) -> str:
    """The common name of the client's certificate, which was verified; empty without one."""
    for name in context.auth_context().get("x509_common_name", ()):
        return name.decode(errors="replace")
    return ""


class Replies(Protocol[Message]):
    """Where a streaming method writes."""

    async def write(self, message: Message, /) -> None:
        """Send one reply; wait while the client accepts none."""


class Reporting:
    """See `reporting`. No generator: there may be very many calls that wait."""

    __slots__ = ("_context",)

    def __init__(self, context: ServicerContext[Any, Any]) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        """The body begins."""

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> bool:
        """The body ended; what abort raises comes in the place of one of our errors."""
        if isinstance(error, DuologError | StoreError):
            mapped = error_to_sdk(error)
            code, name = status_of(mapped)
            tell = log.debug if isinstance(mapped, NotMaster | Throttled) else log.warning
            tell("call refused", kind=name, reason=str(mapped)[:500])
            await self._context.abort(code, _shortened(str(mapped)), tuple(trailing_of(mapped)))
        return False


def address_of_caller(context: Caller) -> str:
    """Where a call comes from, without the port: the viewer, where a console calls for one."""
    return VIEWER_ADDRESS.get() or peer_host(context.peer()).address


def reporting(context: ServicerContext[Any, Any]) -> Reporting:
    """End the call with the mapped status if the body raises one of our errors."""
    return Reporting(context)


def _shortened(text: str) -> str:
    """A text that travels in a header, where each byte may become three: it may repeat what the
    client said.
    """
    data = text.encode(errors="replace")
    if len(data) <= DETAILS_BYTES_MAX:
        return text
    return data[:DETAILS_BYTES_MAX].decode(errors="ignore") + "..."


def unary(
    method: Callable[[Service, Request, Caller], Awaitable[Reply]],
) -> Callable[[Service, Request, ServicerContext[Request, Reply]], Awaitable[Reply]]:
    """Decorate a unary method with `reporting`; it sees what was answered before."""

    async def call(
        self: Service, request: Request, context: ServicerContext[Request, Reply]
    ) -> Reply:
        async with reporting(context):
            await self.caught_up()
            return await method(self, request, context)
        raise AssertionError("abort raises")

    call.__doc__ = method.__doc__
    return call
