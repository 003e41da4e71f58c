"""What a broker keeps going: a part of a node that works in the background."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

Work = Callable[[], Coroutine[object, None, None]]  # in the background, until it is cancelled
Start = Callable[[Coroutine[object, None, None]], "asyncio.Task[None]"]  # begins background work


class Part(Protocol):
    """A part of a node; the broker runs it, and tells it when the node's role changes."""

    async def run(self) -> None:
        """Work, until cancelled. An error ends the node: nothing fails in silence."""

    def validate(self) -> str:
        """What is wrong with it between two events, empty for nothing; for simulator and tests."""

    def role_changed(self) -> None:
        """The node became a master or a slave: from now on only what the log says is known."""
