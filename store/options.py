"""Options of the engine, RocketMQ's names in snake_case, RocketMQ 4.9's defaults."""

from dataclasses import dataclass, field
from typing import TypeVar

from store.status import BrokerRole, FlushDiskType

T = TypeVar("T")
GIB = 1 << 30
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def option(default: T, doc: str) -> T:
    """A field with its line of documentation."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Everything the engine can be told. Sizes are bytes, times ms unless the name says hours."""

    broker_role: BrokerRole = option(
        BrokerRole.ASYNC_MASTER, "ASYNC_MASTER, SYNC_MASTER, SLAVE, or AUTO"
    )
    flush_disk_type: FlushDiskType = option(
        FlushDiskType.ASYNC_FLUSH,
        "ASYNC_FLUSH answers before the disk has a message, SYNC_FLUSH after",
    )
    mapped_file_size_commit_log: int = option(GIB, "segment size of the commit log")
    mapped_file_size_consume_queue: int = option(
        6_000_000, "queue file size, rounded up to whole entries of 20 bytes"
    )
    enable_consume_queue_ext: bool = option(False, "keep ext units beside queue entries")
    enable_calc_filter_bit_map: bool = option(
        False, "note in ext units which groups' SQL filters a message fulfils"
    )
    mapped_file_size_consume_queue_ext: int = option(48 << 20, "file size of ext units")
    max_hash_slot_num: int = option(5_000_000, "slots of an index file")
    max_index_num: int = option(20_000_000, "entries of an index file")
    message_index_enable: bool = option(
        True, "index UNIQ_KEY and KEYS; docs/guarantees.md says what is not promised without it"
    )
    message_index_safe: bool = option(False, "recovery also waits for the index checkpoint")
    check_crc_on_recover: bool = option(True, "verify every record that recovery reads")
    check_crc_on_read: bool = option(True, "verify every record that a reader gets")
    enabled_append_prop_crc: bool = option(
        True,
        "seal each record with a CRC over all of it (20 bytes; RocketMQ 5's __CRC32# property, "
        "an ordinary property to older readers)",
    )
    max_message_size: int = option(4 << 20, "largest body")
    flush_interval_commit_log: int = option(500, "asynchronous flush")
    flush_commit_log_least_pages: int = option(4, "dirty pages worth a flush")
    flush_commit_log_thorough_interval: int = option(10_000, "flush whatever is dirty")
    commit_interval_commit_log: int = option(200, "pool buffers into the log")
    commit_commit_log_least_pages: int = option(
        4, "kept for compatibility of configs: a commit copies whatever there is"
    )
    flush_interval_consume_queue: int = option(1000, "flush of the queues")
    flush_consume_queue_least_pages: int = option(2, "dirty pages worth a flush")
    flush_consume_queue_thorough_interval: int = option(
        60_000, "flush all queues, then the checkpoint"
    )
    sync_flush_timeout: int = option(5000, "longest wait for the disk, then FLUSH_DISK_TIMEOUT")
    transient_store_pool_enable: bool = option(
        False,
        "assemble appends in memory first (asynchronous flush only; what is not committed is "
        "lost with the process)",
    )
    transient_store_pool_size: int = option(5, "buffers of one segment each")
    warm_maped_file_enable: bool = option(False, "fault in and lock a new segment's pages ahead")
    delete_when: str = option("04", "hours of day for deletion, `;` between them")
    file_reserved_time: int = option(72, "hours a segment is kept unchanged")
    disk_max_used_space_ratio: int = option(75, "over this, expired segments go at any hour")
    disk_space_warning_level_ratio: int = option(90, "over this, puts are refused (DISK_FULL)")
    disk_space_clean_forcibly_ratio: int = option(85, "over this, unexpired segments go too")
    clean_file_forcibly_enable: bool = option(True, "allow that")
    clean_resource_interval: int = option(10_000, "rounds of the cleaner")
    delete_file_batch_max: int = option(10, "segments one round removes at most")
    message_delay_level: str = option(DEFAULT_DELAY_LEVELS, "the delay levels, level 1 first")
    max_lmq_consume_queue_num: int = option(20_000, "most light queues: a lite topic takes one")
    max_msgs_num_batch: int = option(64, "most messages of one key query")
    producers_max: int = option(10_000, "producers remembered, for dropping repeats")
    producer_window: int = option(
        1024, "runs of sequences remembered per producer, for dropping repeats"
    )

    def __post_init__(self) -> None:
        """Refuse sizes that no store can be built from."""
        if self.mapped_file_size_commit_log < 4096:
            raise ValueError("mapped_file_size_commit_log must be at least 4096 bytes")
        if not 1 <= self.max_message_size <= 1 << 30:
            raise ValueError("max_message_size must be from 1 byte to 1 GiB")
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ValueError("max_hash_slot_num must be >= 1 and max_index_num >= 2")

    @property
    def queue_file_bytes(self) -> int:
        """Size of a queue file: the configured one, rounded up to whole entries."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20

    @property
    def index_file_bytes(self) -> int:
        """Size of an index file."""
        return 40 + self.max_hash_slot_num * 4 + self.max_index_num * 20

    @property
    def sync_flush(self) -> bool:
        """Puts wait for the disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def use_transient_store_pool(self) -> bool:
        """Writes go through pool buffers: only a master that flushes asynchronously may."""
        return (
            self.transient_store_pool_enable
            and not self.sync_flush
            and self.broker_role in (BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER)
        )
