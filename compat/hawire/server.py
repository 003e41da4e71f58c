"""The port where RocketMQ's slaves copy the log of a master, and who was refused there."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

import structlog
from duolog._background import Background

from duolog_server.compat.hawire.connection import Connection, Terms
from duolog_server.compat.hawire.source import Source
from duolog_server.node.broker import Broker
from duolog_server.node.core.rocketmqslave import RocketmqSlave
from duolog_server.node.net.listener import listen
from duolog_server.node.runtime.config import RocketmqSlavesSection
from duolog_server.store.clocks import MonoMs
from duolog_server.store.queueends import QueueKey

log = structlog.get_logger("duolog.ha")

CONNECTIONS_MAX = 16  # of allowed addresses; and as many of others, each for a while
REFUSALS_MAX = 64
REFUSED_MS = 60_000  # after its last attempt, an address is forgotten
TICK_SECONDS = 0.25


@dataclass(slots=True)
class _Refusal:
    row: RocketmqSlave
    last_ms: MonoMs


class SlavesServer:
    """Serves RocketMQ's slaves while this node is the master.

    Attributes:
        port: where it listens; 0 before.
    """

    def __init__(self, broker: Broker, section: RocketmqSlavesSection) -> None:
        self.port = 0
        self._broker = broker
        options = broker.replication.options
        self._terms = Terms(
            Source(broker.store, options.sync_from_last_file),
            broker.replication.not_master,
            section.allows,
            broker.log.threads,
            broker.times.mono_ms,
            broker.times.wall_ms,
            options.max_ha_transfer_byte_in_second,
        )
        self._open: set[Connection] = set()
        self._refusals: dict[str, _Refusal] = {}  # by address, oldest first
        self._ticking = Background(broker.give_up)
        self._server: asyncio.Server | None = None

    # -- life ----------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listen; with port 0 on a free one. Raises OSError."""
        self._server = await listen(lambda: Connection(self._terms, self), host, port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticking.start(self._tick())
        self._broker.log.dispatched.append(self._arrived)
        self._broker.dialects.rocketmq_slaves = self.rows

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._broker.log.dispatched.remove(self._arrived)
            self._broker.dialects.rocketmq_slaves = tuple
            self._server.close()
            self._server = None
        for connection in list(self._open):
            connection.abort("the node is stopping")
        await self._ticking.stop()

    def _arrived(self, _: Collection[QueueKey]) -> None:
        """Readers see more of the log, and so may slaves."""
        for connection in self._open:
            connection.wake()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for connection in list(self._open):
                connection.tick()
            self._forget(self._broker.times.mono_ms())

    def _forget(self, now_ms: MonoMs) -> None:
        late = now_ms - REFUSED_MS
        for host in [host for host, one in self._refusals.items() if one.last_ms < late]:
            del self._refusals[host]

    # -- connections ---------------------------------------------------------------------------

    def joined(self, connection: Connection) -> bool:
        """It begins; whether there is room for it."""
        alike = sum(1 for one in self._open if one.allowed == connection.allowed)
        if self._server is None or alike >= CONNECTIONS_MAX:
            return False
        self._open.add(connection)
        return True

    def left(self, connection: Connection) -> None:
        """It ended."""
        self._open.discard(connection)

    def begins(self, connection: Connection) -> None:
        """From now on it is sent the log."""
        self._refusals.pop(connection.host, None)

    def refused(self, connection: Connection) -> None:
        """It is sent nothing, or nothing more: said once, and not for each attempt."""
        now_ms, known = self._broker.times.mono_ms(), self._refusals.pop(connection.host, None)
        row = connection.row()
        if known is None or known.row.reason != row.reason:
            log.warning("a slave of RocketMQ is refused", peer=row.address, reason=row.reason)
            known = _Refusal(row, now_ms)
        known.last_ms = now_ms
        self._refusals[connection.host] = known
        while len(self._refusals) > REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]

    # -- status --------------------------------------------------------------------------------

    def rows(self) -> list[RocketmqSlave]:
        """The slaves that are connected, and addresses that were refused lately."""
        found = [one.row() for one in self._open if not one.reason]
        found += [one.row for one in self._refusals.values()]
        return sorted(found, key=lambda row: row.address)
