"""The memory of answers that clients have not taken, for all protocols.

An answer of MiBs lies in this process until its client has read it, and a client may ask for many
and read none. So all of them have a limit together, and those to one address a share of it. A
reader above it waits until the address has taken something; it counts as a call that waits. An
address that has taken all may read at any time, if only a little where the others have used up the
limit.
"""

import asyncio
from collections import deque

import structlog
from duolog import _errors as sdk

from duolog_server.node.core.waitingcalls import WaitingCalls

log = structlog.get_logger("duolog.node")

SHARES = 4  # an address may hold the 4th part, or a single answer
LITTLE_BYTES = 64 << 10  # of one answer, to an address that has taken all the others
WAIT_SECONDS = 10.0  # of a reader, then it is refused
WAITING_MAX = 256  # readers of one address: more are refused at once, as those would be together


class Untaken:
    """Counts them, by the addresses of `Who`.

    Attributes:
        held_bytes: of all addresses.
        refused: readers that waited in vain.
    """

    def __init__(self, most: int, largest: int, calls: WaitingCalls) -> None:
        """most: bytes that all may hold (limits.answers_bytes_max). largest: of one answer. calls:
        the limit on readers that wait.
        """
        self._most = most
        self._share = max(most // SHARES, min(largest, most))
        self._calls = calls
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self.held_bytes = 0
        self.refused = 0

    def validate(self) -> str:
        """The violated invariant of the count; empty if it holds."""
        total = sum(self._held.values())
        if total != self.held_bytes or any(size <= 0 for size in self._held.values()):
            return f"addresses hold {total} bytes of answers, and {self.held_bytes} are counted"
        return ""

    def room(self, address: str) -> int:
        """Bytes of the next answer to an address; 0 where it takes others first."""
        mine = self._held.get(address, 0)
        free = min(self._share - mine, self._most - self.held_bytes)
        return max(free, 0 if mine else LITTLE_BYTES)

    def take(self, address: str, size: int) -> None:
        """Count an answer of any size; the next reader may look at what is left."""
        if size:
            self._held[address] = self._held.get(address, 0) + size
            self.held_bytes += size
        if address in self._waiting and self.room(address):
            self._wake(address)

    def give(self, address: str, size: int) -> None:
        """It was taken, or its client is gone."""
        if not size:
            return
        self.held_bytes -= size
        left = self._held[address] - size
        if left:
            self._held[address] = left
        else:
            del self._held[address]
        self._wake(address)

    def _wake(self, address: str) -> None:
        """One reader at a time looks again: it may take what the next one would have wanted."""
        waiting = self._waiting.get(address, ())
        for first in waiting:
            if not first.done():
                first.set_result(None)
                return

    async def _taken(self, address: str) -> None:
        """Wait until an address took something. Raises Busy where it takes nothing, or too many
        calls wait.
        """
        waiting = self._waiting.setdefault(address, deque())
        if len(waiting) >= WAITING_MAX:
            raise self._refused(address)
        future = asyncio.get_running_loop().create_future()
        waiting.append(future)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._wake(address)  # the next one instead
            raise
        except TimeoutError:
            if not future.cancelled():
                return  # it was woken in the turn in which its time ended
            raise self._refused(address) from None
        finally:
            waiting.remove(future)
            if not waiting:
                self._waiting.pop(address, None)

    def _refused(self, address: str) -> sdk.Busy:
        self.refused += 1
        held = self._held.get(address, 0)
        log.warning("a client takes no answers", address=address, held_bytes=held)
        return sdk.Busy(
            f"answers of {held} bytes wait for {address} to read them, and there is no room "
            "for more (limits.answers_bytes_max)"
        )

    async def some_room(self, address: str) -> int:
        """Wait for room; how much there is, to be followed by `take`. Raises Busy."""
        while not (room := self.room(address)):
            with self._calls.one():
                await self._taken(address)
        return room
