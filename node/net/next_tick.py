"""A call in the next turn of the event loop: one, however often it is asked for."""

import asyncio
from collections.abc import Callable


class NextTick:
    """Coalesces `call_soon` of one owner: one call a turn of the loop.

    Attributes:
        is_planned: it comes in the next turn.
    """

    __slots__ = ("_call", "is_planned")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.is_planned = False

    def plan(self) -> None:
        """Call it in the next turn; during the call, this plans another one."""
        if not self.is_planned:
            self.is_planned = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self.is_planned = False
        self._call()
