"""Refused puts that are answered later: once it is known which node takes them.

While a group changes its master, a client that is refused at once guesses when to ask again, and
finds the next master late. So it may have a refusal wait: it is sent as soon as this node knows who
takes puts.

Rules: nothing of the put is kept; a refusal waits no longer than its client allows, and than
PATIENCE_MS; it does not wait where this node knows better already; only so many wait.
"""

import asyncio
from collections.abc import Callable

from duolog_server.store.status import PutMessageStatus

PATIENCE_MS = 2000
WAITING_MAX = 4096

Told = asyncio.Future[PutMessageStatus]


class Refusals:
    """Refusals of one node that wait."""

    def __init__(self, settled: Callable[[], bool]) -> None:
        """settled: this node takes puts, or knows which one does."""
        self._settled = settled
        self._waiting: dict[Told, asyncio.TimerHandle] = {}
        self._ended = False

    def told_later(self, patience_ms: int) -> Told | None:
        """The future that a refusal waits for; None: it is sent now."""
        if patience_ms <= 0 or self._ended or len(self._waiting) >= WAITING_MAX or self._settled():
            return None
        loop = asyncio.get_running_loop()
        told: Told = loop.create_future()
        seconds = min(patience_ms, PATIENCE_MS) / 1000
        self._waiting[told] = loop.call_later(seconds, self._tell, told)
        return told

    def release_if_settled(self) -> None:
        """Something changed that may settle who takes puts."""
        if self._waiting and self._settled():
            self._tell_all()

    def end(self) -> None:
        """The node stops: nothing waits any more."""
        self._ended = True
        self._tell_all()

    def _tell_all(self) -> None:
        for told in list(self._waiting):
            self._tell(told)

    def _tell(self, told: Told) -> None:
        self._waiting.pop(told).cancel()
        if not told.done():
            told.set_result(PutMessageStatus.SERVICE_NOT_AVAILABLE)
