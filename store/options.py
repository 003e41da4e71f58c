"""Options of the engine, RocketMQ's names in snake_case, RocketMQ 4.9's defaults."""

from dataclasses import dataclass

from store.status import BrokerRole, FlushDiskType

GIB = 1 << 30
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Everything the engine can be told. Sizes are bytes, times ms unless the name says hours."""

    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    mapped_file_size_commit_log: int = GIB
    mapped_file_size_consume_queue: int = 6_000_000
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = 48 << 20
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    message_index_safe: bool = False
    check_crc_on_recover: bool = True
    check_crc_on_read: bool = True
    enabled_append_prop_crc: bool = True
    max_message_size: int = 4 << 20
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    warm_maped_file_enable: bool = False
    os_page_cache_busy_timeout: int = 1000
    delete_when: str = "04"
    file_reserved_time: int = 72
    disk_max_used_space_ratio: int = 75
    disk_space_warning_level_ratio: int = 90
    disk_space_clean_forcibly_ratio: int = 85
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: int = 10_000
    delete_file_batch_max: int = 10
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    max_msgs_num_batch: int = 64
    producer_window: int = 1024

    def __post_init__(self) -> None:
        """Refuse sizes that no store can be built from."""
        if self.mapped_file_size_commit_log < 4096:
            raise ValueError("mapped_file_size_commit_log must be at least 4096 bytes")
        if self.max_message_size + 128 * 1024 < 0 or self.max_message_size < 1:
            raise ValueError("max_message_size must be positive")
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
            and self.broker_role is not BrokerRole.SLAVE
        )
