"""A store's state in numbers and words, for operators."""

from dataclasses import dataclass

from duolog_server.store.directories import LOG, QUEUES
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.status import BrokerRole


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How far a store reaches, and what is wrong with it. Offsets are of the log."""

    role: BrokerRole
    min_offset: int
    max_offset: int
    flushed_offset: int
    confirm_offset: int
    dispatch_behind_bytes: int
    disk_used_ratio: float
    disk_directory: str  # on the file system whose share that is
    log_disk_used_ratio: float
    queues_disk_used_ratio: float
    flags: list[str]
    fence_reason: str
    corrupt_ranges: int
    refused_records: int

    @staticmethod
    def of(store: MessageStore) -> "StoreStatus":
        """The current status."""
        return StoreStatus(
            store.role,
            store.log.min_offset,
            store.max_offset,
            store.flushed_offset,
            store.confirm_offset,
            store.dispatcher.behind_bytes(),
            store.disk.used_ratio(),
            store.retention.fullest,
            store.disk.used_ratio(LOG),
            store.disk.used_ratio(QUEUES),
            store.flags.names(),
            store.fence_reason,
            len(store.log.corrupt_ranges),
            store.dispatcher.refused,
        )
