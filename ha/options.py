"""Options of replication, RocketMQ's names where it has one."""

import enum
from dataclasses import dataclass

from duolog_server.ha.guarantee import Guarantee
from duolog_server.store.options import StoreOptions, option


class AckMode(enum.Enum):
    """Which offset of a slave counts: the end of its log, or what is on its disk."""

    AUTO = "auto"
    RECEIVED = "received"
    DURABLE = "durable"


@dataclass(frozen=True, slots=True)
class HaOptions:
    """Options of replication. Sizes are in bytes, times in ms."""

    ack: AckMode = option(
        AckMode.AUTO,
        "which offset of a slave counts: received, durable, or auto (durable under SYNC_FLUSH)",
    )
    in_sync_replicas: int = option(
        2, "nodes, including the master, that must hold a put before a SYNC_MASTER acknowledges it"
    )
    min_in_sync_replicas: int = option(
        1, "a SYNC_MASTER with fewer nodes in sync refuses puts (IN_SYNC_REPLICAS_NOT_ENOUGH)"
    )
    slave_timeout: int = option(
        3000, "longest wait for slaves; after it a put is answered FLUSH_SLAVE_TIMEOUT"
    )
    ha_slave_fallbehind_max: int = option(
        256 << 20, "a slave further behind than this does not count (SLAVE_NOT_AVAILABLE)"
    )
    ha_send_heartbeat_interval: int = option(
        5000, "interval between heartbeats on an idle connection"
    )
    ha_housekeeping_interval: int = option(
        20_000, "a connection on which the peer is silent for this long is closed"
    )
    ha_transfer_batch_size: int = option(1 << 20, "largest chunk of log bytes, at most 1 MiB")
    ha_in_flight_max: int = option(8 << 20, "most bytes sent to a slave and not yet acknowledged")
    ha_max_time_slave_not_catchup: int = option(
        3000, "AUTO: a slave away or behind for this long is removed from the SyncStateSet"
    )
    max_ha_transfer_byte_in_second: int = option(0, "largest byte rate to one slave; 0: no limit")
    sync_from_last_file: bool = option(
        False, "an empty slave starts at the master's newest segment, not at its first"
    )
    slave_read_enable: bool = option(
        True, "slaves serve reads, and masters redirect slow readers to them"
    )
    access_message_in_memory_max_ratio: int = option(
        40, "percent of memory; readers further behind than this much log are redirected to a slave"
    )
    reconnect_interval: int = option(1000, "longest pause before a slave reconnects")

    def __post_init__(self) -> None:
        """Refuse values under which replication is impossible."""
        if not 1 <= self.min_in_sync_replicas <= self.in_sync_replicas:
            raise ValueError("1 <= min_in_sync_replicas <= in_sync_replicas must hold")
        if not 1024 <= self.ha_transfer_batch_size <= 1 << 20:
            raise ValueError("ha_transfer_batch_size must be from 1 KiB to 1 MiB")
        if self.ha_in_flight_max < self.ha_transfer_batch_size:
            raise ValueError("ha_in_flight_max must be at least ha_transfer_batch_size")
        for name in (
            "slave_timeout",
            "ha_max_time_slave_not_catchup",
            "ha_send_heartbeat_interval",
            "ha_housekeeping_interval",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 ms")
        if self.max_ha_transfer_byte_in_second < 0 or self.ha_slave_fallbehind_max < 1:
            raise ValueError(
                "max_ha_transfer_byte_in_second must be >= 0 and ha_slave_fallbehind_max >= 1"
            )
        if not 0 <= self.access_message_in_memory_max_ratio <= 100:
            raise ValueError("access_message_in_memory_max_ratio must be from 0 to 100")


def own_guarantee(options: HaOptions, store: StoreOptions) -> Guarantee:
    """The guarantee by a node's own settings."""
    durable = options.ack is AckMode.DURABLE or (options.ack is AckMode.AUTO and store.sync_flush)
    return Guarantee(options.in_sync_replicas, store.sync_flush, durable)
