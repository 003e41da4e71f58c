"""What serves the requests of a connection, and what it sees of one."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from node.remoting.codec.command import Command
from store.record import Host

Begun = Command | Coroutine[Any, Any, Command]


class Peer(Protocol):
    """A client's connection, as those who serve its requests see it."""

    @property
    def host(self) -> Host:
        """Its address and port."""

    @property
    def name(self) -> str:
        """Its address and port, as logs and quotas name it."""

    @property
    def certificate(self) -> str:
        """The common name of its certificate, which was verified; empty without one."""

    @property
    def is_encrypted(self) -> bool:
        """Whether it has TLS."""

    def tell(self, command: Command) -> bool:
        """Send a request that nobody answers; False where the client takes nothing."""

    async def ask(self, command: Command, seconds: float) -> Command:
        """Send a request, and wait for the client's answer. Its number is chosen here.

        Raises ConnectionError, also where the client takes nothing, and TimeoutError.
        """

    def after_answer(self, callback: Callable[[], None]) -> None:
        """Call this once the client has taken the answer that is made now, or is gone."""


Handler = Callable[[Peer, Command], Begun]


class Desk(Protocol):
    """Serves requests."""

    def joined(self, peer: Peer) -> None:
        """A connection begins. Raises Throttled where there are too many."""

    def left(self, peer: Peer) -> None:
        """It ended."""

    def serve(self, peer: Peer, request: Command) -> Begun:
        """The answer, or what makes it and may wait. Raises what `refusal` has answers for."""

    def holds(self, request: Command) -> bool:
        """Whether a request may wait for messages: the end of a node does not wait for it."""

    def refusal(self, request: Command, error: Exception) -> Command | None:
        """The answer to a request that failed so; None for a bug."""


__all__ = ["Begun", "Desk", "Handler", "Peer"]
