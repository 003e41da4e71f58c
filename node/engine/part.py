"""A part of a node that works in the background; the broker runs all of them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

Work = Callable[[], Coroutine[object, None, None]]  # runs in the background until cancelled
Start = Callable[[Coroutine[object, None, None]], "asyncio.Task[None]"]  # starts background work


class Part(Protocol):
    """A part of a node; the broker runs it, and tells it when the node's role changes."""

    async def run(self) -> None:
        """Work until cancelled. An error ends the node, so that nothing fails silently."""

    def status(self) -> Mapping[str, int]:
        """Current figures of the part for an operator; the names are unique in a node."""

    def validate(self) -> str:
        """The first violated invariant between two events, empty if all hold; for simulator and
        tests.
        """

    def role_changed(self) -> None:
        """The node became a master or a slave: discard all state that is not in the log."""
