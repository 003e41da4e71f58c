"""Results of a put and the flags that allow or forbid writing, under RocketMQ 4.9's names."""

import enum


class PutMessageStatus(enum.Enum):
    """The result of a put. FLUSH_ and SLAVE_ mean: stored, but not as durably as configured."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPEDFILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"  # its body; RocketMQ 4.9 says MESSAGE_ILLEGAL
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    QUEUE_OFFSET_MISMATCH = "QUEUE_OFFSET_MISMATCH"  # duolog's own
    QUEUE_MOVED = "QUEUE_MOVED"  # duolog's own: see `store.moves`
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"


# Stored, and perhaps lost with this node.
WEAK = frozenset(
    (
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    )
)


class BrokerRole(enum.Enum):
    """Part a node plays in its replica group."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"
    AUTO = "AUTO"  # elected: SLAVE until the group makes this node its master


class FlushDiskType(enum.Enum):
    """Whether a put is answered after it is on disk, or before."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class RunningFlags:
    """Reasons for which the store may not be read or written, as a set of bits."""

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    WRITE_LOGICS_QUEUE_ERROR = 4
    DISK_FULL = 16

    def __init__(self) -> None:
        self.bits = 0

    def set(self, flag: int) -> None:
        """Set a flag."""
        self.bits |= flag

    def clear(self, flag: int) -> None:
        """Clear a flag."""
        self.bits &= ~flag

    def has(self, flag: int) -> bool:
        """Whether a flag is set."""
        return bool(self.bits & flag)

    @property
    def readable(self) -> bool:
        """Messages may be read."""
        return not self.bits & self.NOT_READABLE

    @property
    def writeable(self) -> bool:
        """Messages may be put."""
        return not self.bits & ~self.NOT_READABLE

    def names(self) -> list[str]:
        """Names of the flags that are set."""
        all_flags = {
            "NOT_READABLE": self.NOT_READABLE,
            "NOT_WRITEABLE": self.NOT_WRITEABLE,
            "WRITE_LOGICS_QUEUE_ERROR": self.WRITE_LOGICS_QUEUE_ERROR,
            "DISK_FULL": self.DISK_FULL,
        }
        return [name for name, flag in all_flags.items() if self.bits & flag]
