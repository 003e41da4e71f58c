"""Options of replication, RocketMQ's names where it has one."""

import enum
from dataclasses import dataclass

from store.options import option


class AckMode(enum.Enum):
    """Which offset of a slave counts: what it has received, or what its disk has."""

    AUTO = "auto"
    RECEIVED = "received"
    DURABLE = "durable"


@dataclass(frozen=True, slots=True)
class HaOptions:
    """Everything replication can be told. Sizes are bytes, times ms."""

    ack: AckMode = option(
        AckMode.AUTO,
        "which offset of a slave counts: received, durable, or auto (durable under SYNC_FLUSH)",
    )
    in_sync_replicas: int = option(
        2, "nodes, the master included, that must hold a SYNC_MASTER put before it is answered"
    )
    min_in_sync_replicas: int = option(
        1, "with fewer nodes in sync a SYNC_MASTER refuses puts (IN_SYNC_REPLICAS_NOT_ENOUGH)"
    )
    slave_timeout: int = option(3000, "longest wait for the slaves, then FLUSH_SLAVE_TIMEOUT")
    ha_slave_fallbehind_max: int = option(
        256 << 20, "a slave further behind does not count (SLAVE_NOT_AVAILABLE)"
    )
    ha_send_heartbeat_interval: int = option(5000, "longest silence towards a slave or master")
    ha_housekeeping_interval: int = option(20_000, "a peer silent for so long is given up")
    ha_transfer_batch_size: int = option(1 << 20, "largest chunk of log bytes, at most 1 MiB")
    ha_in_flight_max: int = option(8 << 20, "bytes sent to a slave and not yet acknowledged")
    ha_max_time_slave_not_catchup: int = option(
        3000, "AUTO: a slave away or behind for so long leaves the SyncStateSet"
    )
    max_ha_transfer_byte_in_second: int = option(0, "byte rate towards one slave, 0 for no limit")
    sync_from_last_file: bool = option(
        False, "an empty slave starts with the master's newest segment, not with its first"
    )
    slave_read_enable: bool = option(True, "slaves serve reads, masters send slow readers there")
    access_message_in_memory_max_ratio: int = option(
        40, "percent of memory; who reads further back than so much log is sent to a slave"
    )
    reconnect_interval: int = option(1000, "longest pause before a slave connects again")

    def __post_init__(self) -> None:
        """Refuse numbers under which nothing could be replicated."""
        if not 1 <= self.min_in_sync_replicas <= self.in_sync_replicas:
            raise ValueError("1 <= min_in_sync_replicas <= in_sync_replicas must hold")
        if not 1024 <= self.ha_transfer_batch_size <= 1 << 20:
            raise ValueError("ha_transfer_batch_size must be from 1 KiB to 1 MiB")
        if self.ha_in_flight_max < self.ha_transfer_batch_size:
            raise ValueError("ha_in_flight_max must hold one ha_transfer_batch_size at least")
        for name in (
            "slave_timeout",
            "ha_max_time_slave_not_catchup",
            "ha_send_heartbeat_interval",
            "ha_housekeeping_interval",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 ms")
        if self.max_ha_transfer_byte_in_second < 0 or self.ha_slave_fallbehind_max < 1:
            raise ValueError("a byte rate below 0, or ha_slave_fallbehind_max below 1")
        if not 0 <= self.access_message_in_memory_max_ratio <= 100:
            raise ValueError("access_message_in_memory_max_ratio is a percentage")
