"""A slave of RocketMQ, as the node's status and metrics show it."""

from dataclasses import dataclass

from duolog_server.ha.progress import ConnectionState
from duolog_server.store.clocks import WallMs


@dataclass(frozen=True, slots=True)
class RocketmqSlave:
    """One of them, or an address that was refused lately.

    address: HOST:PORT. received: log offset up to which it says that it has the log, not durably.
    lag_bytes: of what is confirmed, what it lacks; lag_ms: how long ago it lacked nothing.
    """

    address: str
    state: ConnectionState
    since_ms: WallMs
    received: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    reason: str = ""

    @property
    def host(self) -> str:
        """The slave's address, without the port."""
        return self.address.rpartition(":")[0]
