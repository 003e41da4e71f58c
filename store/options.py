"""Options of the engine, RocketMQ's names in snake_case, RocketMQ 4.9's defaults."""

import itertools
import os
from dataclasses import dataclass, field, fields
from typing import TypeVar

from duolog_server.store.directories import INDEX, LOG, QUEUES
from duolog_server.store.status import BrokerRole, FlushDiskType

T = TypeVar("T")
GIB = 1 << 30
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def option(default: T, doc: str) -> T:
    """A field and its line of documentation."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of the storage engine. Sizes are in bytes, times in ms unless the doc says hours."""

    broker_role: BrokerRole = option(
        BrokerRole.ASYNC_MASTER,
        "ASYNC_MASTER, SYNC_MASTER, SLAVE, or AUTO (the nodes elect their master)",
    )
    flush_disk_type: FlushDiskType = option(
        FlushDiskType.ASYNC_FLUSH,
        "ASYNC_FLUSH acknowledges a message before it is on disk, SYNC_FLUSH after",
    )
    path_commit_log: str = option(
        "",
        "directory of the commit log, on a file system of its own perhaps; empty: commitlog/ in "
        "node.data, which otherwise links there",
    )
    path_consume_queue: str = option(
        "", "directory of the consume queues; empty: consumequeue/ in node.data"
    )
    path_index: str = option("", "directory of the index; empty: index/ in node.data")
    mapped_file_size_commit_log: int = option(GIB, "size of a commit log segment")
    mapped_file_size_consume_queue: int = option(
        6_000_000, "size of a consume queue file, rounded up to whole entries of 20 bytes"
    )
    queue_offsets_from_log_alone: bool = option(
        False,
        "start although queue files and all notes of their ends are lost and old records are "
        "deleted: queues without a record in the log begin again at the furthest offset that a "
        "group committed, or at 0",
    )
    enable_consume_queue_ext: bool = option(False, "keep an extension unit beside each queue entry")
    enable_calc_filter_bit_map: bool = option(
        False, "record in extension units which groups' SQL filters a message matches"
    )
    mapped_file_size_consume_queue_ext: int = option(48 << 20, "size of an extension unit file")
    max_hash_slot_num: int = option(5_000_000, "hash slots per index file")
    max_index_num: int = option(20_000_000, "entries per index file")
    message_index_enable: bool = option(
        True,
        "index messages by UNIQ_KEY and KEYS; docs/guarantees.md lists what is lost without it",
    )
    message_index_safe: bool = option(
        False, "start recovery from the index checkpoint if it is older than the others"
    )
    check_crc_on_recover: bool = option(True, "verify the CRC of every record that recovery reads")
    check_crc_on_read: bool = option(
        True, "verify the CRC of every record before it is returned to a reader"
    )
    enabled_append_prop_crc: bool = option(
        True,
        "seal each record with a CRC over all its bytes (20 bytes, RocketMQ 5's __CRC32# property; "
        "older readers see an ordinary property)",
    )
    max_message_size: int = option(4 << 20, "largest message body")
    flush_interval_commit_log: int = option(
        500, "interval between asynchronous flushes of the commit log"
    )
    flush_commit_log_least_pages: int = option(4, "fewest dirty pages that trigger a flush")
    flush_commit_log_thorough_interval: int = option(
        10_000, "interval at which all dirty pages are flushed"
    )
    commit_interval_commit_log: int = option(
        200, "interval at which pool buffers are written to the log"
    )
    commit_commit_log_least_pages: int = option(
        4, "accepted for compatibility and ignored: a commit writes everything in the buffers"
    )
    flush_interval_consume_queue: int = option(1000, "interval between flushes of the queues")
    flush_consume_queue_least_pages: int = option(2, "fewest dirty pages that trigger a flush")
    flush_consume_queue_thorough_interval: int = option(
        60_000, "interval at which all queues are flushed, then the checkpoint"
    )
    sync_flush_timeout: int = option(
        5000, "longest wait for the disk; after it a put is answered FLUSH_DISK_TIMEOUT"
    )
    transient_store_pool_enable: bool = option(
        False,
        "collect appends in memory buffers first (asynchronous flush only; data not yet committed "
        "to the log is lost if the process dies)",
    )
    transient_store_pool_size: int = option(5, "number of pool buffers, each the size of a segment")
    warm_maped_file_enable: bool = option(
        False, "fault in and lock the pages of a new segment before it is used"
    )
    delete_when: str = option(
        "04", "hours of the day at which expired segments are deleted, separated by `;`"
    )
    file_reserved_time: int = option(72, "hours after its last change at which a segment expires")
    disk_max_used_space_ratio: int = option(
        75, "above this disk usage, expired segments are deleted at any hour"
    )
    disk_space_warning_level_ratio: int = option(
        90, "above this disk usage, puts are refused (DISK_FULL)"
    )
    disk_space_clean_forcibly_ratio: int = option(
        85, "above this disk usage, unexpired segments are deleted as well"
    )
    clean_file_forcibly_enable: bool = option(True, "allow deletion of unexpired segments")
    clean_file_forcibly_for_others: bool = option(
        False,
        "delete unexpired segments also where other files use more of the disk than this store "
        "does, as RocketMQ does; otherwise puts are refused, and segments go when they expire",
    )
    clean_resource_interval: int = option(10_000, "interval between rounds of the cleaner")
    delete_file_batch_max: int = option(10, "maximum number of segments deleted in one round")
    message_delay_level: str = option(
        DEFAULT_DELAY_LEVELS, "delays of the delay levels, level 1 first"
    )
    max_lmq_consume_queue_num: int = option(
        20_000, "maximum number of light queues; each lite topic takes one"
    )
    max_msgs_num_batch: int = option(64, "maximum number of messages returned by one key query")
    producers_max: int = option(
        10_000, "producers remembered, once for each topic, to recognise repeated sends"
    )
    producer_window: int = option(
        1024,
        "runs of sequence numbers remembered per producer and topic, to recognise repeated sends",
    )

    def __post_init__(self) -> None:
        """Refuse values that no store can work with."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{one.name} is {value}; it must not be negative")
        self._check_paths()
        if self.mapped_file_size_commit_log < 4096:
            raise ValueError("mapped_file_size_commit_log must be at least 4096 bytes")
        if not 1 <= self.max_message_size <= 1 << 30:
            raise ValueError("max_message_size must be from 1 byte to 1 GiB")
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ValueError(
                f"an index file needs at least 1 slot and 2 entries, not {self.max_hash_slot_num} "
                f"(max_hash_slot_num) and {self.max_index_num} (max_index_num)"
            )

    def _check_paths(self) -> None:
        paths = [path for path in self.paths.values() if path]
        for path in paths:
            if not os.path.isabs(path):
                raise ValueError(f"path {path!r} of a store directory must begin with /")
            if "," in path or ":" in path:
                raise ValueError(
                    f"path {path!r} must be one directory: lists, as RocketMQ has them, are not "
                    "supported"
                )
        for one, other in itertools.permutations(map(os.path.normpath, paths), 2):
            if f"{other}/".startswith(f"{one}/"):
                raise ValueError(f"{other} is within {one}: each directory needs a path of its own")

    @property
    def paths(self) -> dict[str, str]:
        """Paths of the store's directories, by name; empty: in the store's own."""
        return {
            LOG: self.path_commit_log,
            QUEUES: self.path_consume_queue,
            INDEX: self.path_index,
        }

    @property
    def queue_file_bytes(self) -> int:
        """Size of a queue file: the configured one, rounded up to whole entries."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20

    @property
    def index_file_bytes(self) -> int:
        """Size of an index file."""
        return self.index_bytes(self.max_index_num)

    def index_bytes(self, entries: int) -> int:
        """Bytes from the start of an index file to the end of so many entries."""
        return 40 + self.max_hash_slot_num * 4 + entries * 20

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
