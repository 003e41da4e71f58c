"""The errors of the engine, as exceptions with fields.

StoreError
├── CorruptRecord(position, reason)
├── OffsetOutOfRange(asked, first, end)
├── BadMessage(reason)                  the caller's message may not be stored
├── RepeatUnknown                       cannot tell whether a repeated message was stored
│   ├── SequenceTooOld(sequence, oldest)
│   └── ProducerForgotten(sequence, known_end, horizon)
├── StoreLocked(path)                   another process holds the directory
├── BadStoreDirectory(path, reason)     wrong owner, not writable, files of wrong sizes
│   └── OtherFileSize(path, size, configured)   all queue files have another size than configured
├── BadStoreFile(path, reason)          a small file that cannot be read
├── BadBackup(path, reason)             a backup that cannot be made, trusted or restored
├── StoreFenced(reason)                 an IO error ended this store's writing for good
└── StoreClosed()
"""

from duolog_server.store.status import PutMessageStatus


class StoreError(Exception):
    """Base of all errors of the engine."""


class CorruptRecord(StoreError):
    """The bytes at a commit-log offset are not the record they should be."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no valid record at commit-log offset {position}: {reason}")
        self.position = position
        self.reason = reason


class OffsetOutOfRange(StoreError):
    """An offset below the first or past the end was asked for."""

    def __init__(self, asked: int, first: int, end: int) -> None:
        super().__init__(f"offset {asked} is outside [{first}, {end})")
        self.asked = asked
        self.first = first
        self.end = end


class BadMessage(StoreError):
    """A message breaks a limit or a rule; nothing of its batch was stored."""

    status = PutMessageStatus.MESSAGE_ILLEGAL  # of its put

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadGroup(BadMessage):
    """The name of a consumer group breaks a limit or a rule."""


class RepeatUnknown(StoreError):
    """A repeated message of which it is unknown whether the first copy was stored; it is not stored
    now.
    """


class SequenceTooOld(RepeatUnknown):
    """A producer's sequence lies before the window the store remembers."""

    def __init__(self, sequence: int, oldest: int) -> None:
        super().__init__(
            f"sequence {sequence} is older than {oldest}, the oldest one remembered for "
            "this producer"
        )
        self.sequence = sequence
        self.oldest = oldest


class ProducerForgotten(RepeatUnknown):
    """A repeat whose first attempt may be among the sequences that the store has forgotten."""

    def __init__(self, sequence: int, known_end: int, horizon: int) -> None:
        super().__init__(
            f"sequence {sequence} is a repeat of a send first made when the log ended "
            f"at {known_end} or later; sequences stored below {horizon} may be "
            "forgotten, so it may already be stored; find the message by its key "
            "before you send it again"
        )
        self.sequence = sequence
        self.known_end = known_end
        self.horizon = horizon


class StoreLocked(StoreError):
    """Another process holds the store directory."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is held by another process (lock failed, already started)")
        self.path = path


class BadStoreDirectory(StoreError):
    """The store directory cannot be used as it is."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class OtherFileSize(BadStoreDirectory):
    """The queue files are those of another configured size."""

    def __init__(self, path: str, size: int, configured: int) -> None:
        super().__init__(
            path,
            f"has {size} bytes, but store.mapped_file_size_consume_queue is {configured}, and no "
            f"queue file has that size. Set store.mapped_file_size_consume_queue={size}. To change "
            "the size of existing queues, start and stop the node once with that value, so that "
            "config/ holds their ends, then move consumequeue/ and queueends away: the next start "
            "makes the queue files anew from the log",
        )
        self.size = size
        self.configured = configured


class BadStoreFile(StoreError):
    """Neither a file nor its backup can be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BadBackup(StoreError):
    """A backup cannot be made, trusted or restored as asked."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class StoreFenced(StoreError):
    """An IO error ended this store's writing; only a restart with recovery helps."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is fenced: {reason}")
        self.reason = reason


class StoreClosed(StoreError):
    """The store was shut down."""

    def __init__(self) -> None:
        super().__init__("the store is closed")
