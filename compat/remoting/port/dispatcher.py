"""Ports between a connection and its dispatcher."""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from duolog_server.compat.remoting.codec.command import Command
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus

P = ParamSpec("P")
T = TypeVar("T")


class Stored(NamedTuple):
    """What is stored, and answered when an outcome is known: one for all that wait for the same.

    request: without its body. The wait is shared: it does not end with a connection.
    """

    outcome: "asyncio.Future[PutMessageStatus]"
    request: Command
    answer: Callable[[PutMessageStatus], Command]

    def __await__(self) -> Generator[Any, None, Command]:
        """The answer, for those who wait for it alone."""
        return self.answer((yield from asyncio.shield(self.outcome).__await__()))


Begun = Command | Stored | Coroutine[Any, Any, Command]
Served = Begun | bytes | Exception  # bytes: the frame of an answer that says success


class Peer(Protocol):
    """A client's connection, as those who serve its requests see it."""

    @property
    def host(self) -> Host:
        """The client's address and port."""

    @property
    def name(self) -> str:
        """The client's address and port, as logs and quotas name it."""

    @property
    def certificate(self) -> str:
        """The common name of its certificate, which was verified; empty without one."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it has TLS."""

    def tell(self, command: Command) -> bool:
        """Send a oneway request; False where the client takes nothing."""

    async def ask(self, command: Command, seconds: float) -> Command:
        """Send a request, and wait for the client's answer. Its number is chosen here.

        Raises ConnectionError, also where the client takes nothing, and TimeoutError.
        """

    def after_answer(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken the answer that is made now, or is gone."""


Handler = Callable[[Peer, Command], Begun]


class Dispatcher(Protocol):
    """Serves requests."""

    def joined(self, peer: Peer) -> None:
        """A connection begins. Raises Throttled where there are too many."""

    def left(self, peer: Peer) -> None:
        """It ended."""

    def serve(self, peer: Peer, request: Command) -> Begun:
        """The answer, or what makes it and may wait. Raises what `refusal` has answers for."""

    def serve_each(self, peer: Peer, requests: Sequence[Command]) -> list[Served]:
        """Serve repeatable requests that arrived together; returns errors."""

    def holds(self, request: Command) -> bool:
        """Whether a request may wait for messages: the end of a node does not wait for it."""

    def repeats(self, code: int) -> bool:
        """Whether a client that has its answer is likely to send such a request again at once."""

    def refusal(self, request: Command, error: Exception) -> Command | None:
        """The answer to a request that failed so; None for a bug."""


def tried(do: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | Exception:
    """A call's result, or the error that it raises."""
    try:
        return do(*given, **named)
    except Exception as error:
        return error
