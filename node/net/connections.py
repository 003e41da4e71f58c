"""The connections of one port: how many there may be, their ticks, and their clean end."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from duolog._background import Background

from duolog_server.node.net.networks import network_of, plain_address
from duolog_server.node.runtime.config import LimitsSection
from duolog_server.store.record import Host

TICK_SECONDS = 1.0
TICKS_AT_ONCE = 16  # connections, in a turn: each may end, with a line of log
POLL_SECONDS = 0.02  # while calls end


def host_of(transport: asyncio.BaseTransport) -> Host:
    """Where a connection comes from."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return Host("0.0.0.0", 0)
    return Host(plain_address(str(address[0])), int(address[1]))


class Connected(Protocol):
    """A connection, as its port sees it."""

    @property
    def address(self) -> str:
        """The client's, without its port."""

    @property
    def busy(self) -> bool:
        """Whether its end waits for an open call."""

    def tick(self) -> None:
        """Called once a second."""

    def go(self, reason: str) -> None:
        """Take no more calls; open ones end by themselves."""

    def end_calls(self) -> None:
        """Cancel open calls."""

    def close(self) -> None:
        """End it, once what was written is out."""

    def abort(self) -> None:
        """End it at once."""


C = TypeVar("C", bound=Connected)
STOPPING = "the node is stopping"


class PortConnections(Generic[C]):
    """The open connections.

    Attributes:
        refused: connections that were too many.
    """

    def __init__(self, limits: LimitsSection, refused: Callable[[str, str], None]) -> None:
        """refused: called with the address and the limit where a connection is closed at once."""
        self.refused = 0
        self._tell_refused = refused
        self._limits = limits
        self._open: set[C] = set()
        self._of_address: Counter[str] = Counter()
        self._stopping = False

    def __len__(self) -> int:
        """Open connections."""
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        """The open connections of now."""
        return iter(list(self._open))

    def joined(self, connection: C, begins: bool) -> bool:
        """A connection begins, or ends; False where it may not begin."""
        address = network_of(connection.address)
        if not begins:
            if connection in self._open:
                self._open.discard(connection)
                self._of_address[address] -= 1
                if not self._of_address[address]:
                    del self._of_address[address]
            return True
        # One may be accepted in the turn in which the server closes.
        if self._stopping or self._refuses(address):
            return False
        self._open.add(connection)
        self._of_address[address] += 1
        return True

    def _refuses(self, address: str) -> bool:
        limits = self._limits
        if len(self._open) >= limits.connections_max:
            reason = "limits.connections_max"
        elif self._of_address.get(address, 0) >= limits.connections_per_address_max:
            reason = "limits.connections_per_address_max"
        else:
            return False
        self.refused += 1
        self._tell_refused(address, reason)
        return True

    async def tick(self) -> None:
        """Tick, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for number, connection in enumerate(self):
                if number % TICKS_AT_ONCE == TICKS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if connection in self._open:
                    connection.tick()

    async def stop(self, grace: float, calls: Background) -> None:
        """Take no more calls, give open ones so many seconds to end, close."""
        self._stopping = True
        for connection in self:
            connection.go(STOPPING)
        until = asyncio.get_running_loop().time() + grace
        while self._busy and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
        for connection in self:
            connection.end_calls()
        await calls.stop()
        for connection in self:
            connection.close()
        await asyncio.sleep(0)  # what is out already closes
        for connection in self:
            connection.abort()

    @property
    def _busy(self) -> bool:
        return any(connection.busy for connection in self)
