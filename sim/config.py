"""The parameters of a run besides its faults: sizes, modes, numbers of replicas."""

import random
from dataclasses import dataclass, replace
from typing import Any

from duolog_server.ha.options import AckMode, HaOptions
from duolog_server.store.options import StoreOptions
from duolog_server.store.retention import HOUR_MS
from duolog_server.store.status import BrokerRole, FlushDiskType
from sim import decay

DELAY_LEVELS = "1s 2s"
LIGHT_QUEUES_MAX = 11  # of nodes whose clients use lite topics: two less than they use
RESERVED_MS = 1500  # for which an expiring segment is kept
DISK_TIMEOUT_MS = 160  # of a put, where answers are those of a node's own log
QUICK: dict[str, Any] = {
    "flush_interval_commit_log": 100,
    "flush_commit_log_thorough_interval": 100,
    "flush_interval_consume_queue": 400,
    "flush_consume_queue_thorough_interval": 400,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """One cluster's configuration. durable: SYNC_FLUSH and durable acknowledgements."""

    in_sync: int
    min_in_sync: int
    durable: bool
    segment_bytes: int
    batch_bytes: int
    window_batches: int
    fallbehind: int
    rate: int
    message_bytes: int
    put_gap: float
    patience: int = 3000
    producers_max: int = 10_000  # that a node remembers the sequences of
    quick: bool = False  # flushes come often; otherwise by a node's own schedule
    index: bool = False  # messages have keys, by which they are looked for
    services: bool = False  # the nodes have brokers, with POP, delays and transactions
    lite: bool = False  # programs use lite topics
    users: bool = False  # the nodes have users
    message_max: int = 4 << 10  # bytes of a body
    topics_max: int = 10_000
    expires: bool = False  # old segments are deleted
    classic: bool = False  # a producer takes every status for an answer, as RocketMQ's clients do
    decay_share: float = decay.SHARE  # of restarts that find a derived file damaged

    def store_options(self, role: BrokerRole) -> StoreOptions:
        """The engine's options for a role."""
        flush = FlushDiskType.SYNC_FLUSH if self.durable else FlushDiskType.ASYNC_FLUSH
        more = QUICK if self.quick else {}
        if self.expires:
            more = {**more, "file_reserved_time": RESERVED_MS / HOUR_MS}
        if self.classic:
            more = {**more, "sync_flush_timeout": DISK_TIMEOUT_MS}
        if self.lite:
            more = {**more, "max_lmq_consume_queue_num": LIGHT_QUEUES_MAX}
        return StoreOptions(
            broker_role=role,
            flush_disk_type=flush,
            mapped_file_size_commit_log=self.segment_bytes,
            mapped_file_size_consume_queue=20 * 64,
            max_hash_slot_num=64,
            max_index_num=256,
            max_message_size=self.message_max,
            message_index_enable=self.index,
            producers_max=self.producers_max,
            message_delay_level=DELAY_LEVELS,
            **more,
        )

    def ha_options(self) -> HaOptions:
        """Replication's options: short times, so that a run meets all of them."""
        return HaOptions(
            ack=AckMode.AUTO,
            in_sync_replicas=self.in_sync,
            min_in_sync_replicas=self.min_in_sync,
            slave_timeout=400,
            ha_max_time_slave_not_catchup=self.patience,
            ha_slave_fallbehind_max=self.fallbehind,
            ha_send_heartbeat_interval=200,
            ha_housekeeping_interval=900,
            ha_transfer_batch_size=self.batch_bytes,
            ha_in_flight_max=self.batch_bytes * self.window_batches,
            max_ha_transfer_byte_in_second=self.rate,
        )


def draw(chance: random.Random, elected: bool) -> Setup:
    """A configuration."""
    in_sync = chance.choice((2, 2, 3))
    setup = Setup(
        in_sync=in_sync,
        min_in_sync=chance.choice((1, 1, in_sync)),
        durable=chance.random() < 0.5,
        segment_bytes=chance.choice((8 << 10, 16 << 10, 64 << 10)),
        batch_bytes=chance.choice((1024, 1500, 4096)),
        window_batches=chance.choice((1, 4)),
        fallbehind=chance.choice((4 << 10, 256 << 20)),
        rate=chance.choice((0, 0, 0, 200_000)),
        message_bytes=chance.choice((40, 300, 2000)),
        put_gap=chance.choice((15.0, 30.0, 60.0)),
        quick=chance.random() < 0.5,
    )
    # Without durable acknowledgements a power cut takes confirmed bytes, and offsets with them,
    # by which a repeat is told from what was forgotten.
    if setup.durable and chance.random() < 0.5:
        setup = replace(setup, producers_max=1)
    if not elected:
        return setup
    return replace(setup, in_sync=2, min_in_sync=1, patience=chance.choice((80, 250, 800)))
