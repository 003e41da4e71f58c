from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_STATUS_UNSPECIFIED: _ClassVar[PutStatus]
    PUT_OK: _ClassVar[PutStatus]
    FLUSH_DISK_TIMEOUT: _ClassVar[PutStatus]
    FLUSH_SLAVE_TIMEOUT: _ClassVar[PutStatus]
    SLAVE_NOT_AVAILABLE: _ClassVar[PutStatus]
    SERVICE_NOT_AVAILABLE: _ClassVar[PutStatus]
    CREATE_MAPEDFILE_FAILED: _ClassVar[PutStatus]
    MESSAGE_ILLEGAL: _ClassVar[PutStatus]
    PROPERTIES_SIZE_EXCEEDED: _ClassVar[PutStatus]
    OS_PAGECACHE_BUSY: _ClassVar[PutStatus]
    UNKNOWN_ERROR: _ClassVar[PutStatus]
    TOPIC_NOT_EXIST: _ClassVar[PutStatus]
    NO_PERMISSION: _ClassVar[PutStatus]
    CORRUPT_BATCH: _ClassVar[PutStatus]
    SEQUENCE_TOO_OLD: _ClassVar[PutStatus]
    IN_SYNC_REPLICAS_NOT_ENOUGH: _ClassVar[PutStatus]
    NOT_MASTER: _ClassVar[PutStatus]
    MESSAGE_TOO_LARGE: _ClassVar[PutStatus]
    THROTTLED: _ClassVar[PutStatus]
    QUEUE_OFFSET_MISMATCH: _ClassVar[PutStatus]

class Column(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_UNSPECIFIED: _ClassVar[Column]
    BODIES: _ClassVar[Column]
    PROPERTIES: _ClassVar[Column]
    PHYSICAL_OFFSETS: _ClassVar[Column]
    STORE_TIMES: _ClassVar[Column]
    BORN_TIMES: _ClassVar[Column]
    FLAGS: _ClassVar[Column]
    SYSFLAGS: _ClassVar[Column]
    RECONSUME_TIMES: _ClassVar[Column]

class ReadStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_STATUS_UNSPECIFIED: _ClassVar[ReadStatus]
    FOUND: _ClassVar[ReadStatus]
    NO_NEW_MESSAGE: _ClassVar[ReadStatus]
    NO_MATCHED_MESSAGE: _ClassVar[ReadStatus]
    OFFSET_TOO_SMALL: _ClassVar[ReadStatus]
    OFFSET_TOO_LARGE: _ClassVar[ReadStatus]
    MESSAGES_LOST: _ClassVar[ReadStatus]

class Start(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_UNSPECIFIED: _ClassVar[Start]
    EARLIEST: _ClassVar[Start]
    LATEST: _ClassVar[Start]

class TrackState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACK_STATE_UNSPECIFIED: _ClassVar[TrackState]
    WAITING: _ClassVar[TrackState]
    IN_FLIGHT: _ClassVar[TrackState]
    RETRY: _ClassVar[TrackState]
    CONSUMED: _ClassVar[TrackState]
    DEAD_LETTER: _ClassVar[TrackState]

class TrackStepKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACK_STEP_UNSPECIFIED: _ClassVar[TrackStepKind]
    HALF: _ClassVar[TrackStepKind]
    DELAYED: _ClassVar[TrackStepKind]
    STORED: _ClassVar[TrackStepKind]
PUT_STATUS_UNSPECIFIED: PutStatus
PUT_OK: PutStatus
FLUSH_DISK_TIMEOUT: PutStatus
FLUSH_SLAVE_TIMEOUT: PutStatus
SLAVE_NOT_AVAILABLE: PutStatus
SERVICE_NOT_AVAILABLE: PutStatus
CREATE_MAPEDFILE_FAILED: PutStatus
MESSAGE_ILLEGAL: PutStatus
PROPERTIES_SIZE_EXCEEDED: PutStatus
OS_PAGECACHE_BUSY: PutStatus
UNKNOWN_ERROR: PutStatus
TOPIC_NOT_EXIST: PutStatus
NO_PERMISSION: PutStatus
CORRUPT_BATCH: PutStatus
SEQUENCE_TOO_OLD: PutStatus
IN_SYNC_REPLICAS_NOT_ENOUGH: PutStatus
NOT_MASTER: PutStatus
MESSAGE_TOO_LARGE: PutStatus
THROTTLED: PutStatus
QUEUE_OFFSET_MISMATCH: PutStatus
COLUMN_UNSPECIFIED: Column
BODIES: Column
PROPERTIES: Column
PHYSICAL_OFFSETS: Column
STORE_TIMES: Column
BORN_TIMES: Column
FLAGS: Column
SYSFLAGS: Column
RECONSUME_TIMES: Column
READ_STATUS_UNSPECIFIED: ReadStatus
FOUND: ReadStatus
NO_NEW_MESSAGE: ReadStatus
NO_MATCHED_MESSAGE: ReadStatus
OFFSET_TOO_SMALL: ReadStatus
OFFSET_TOO_LARGE: ReadStatus
MESSAGES_LOST: ReadStatus
START_UNSPECIFIED: Start
EARLIEST: Start
LATEST: Start
TRACK_STATE_UNSPECIFIED: TrackState
WAITING: TrackState
IN_FLIGHT: TrackState
RETRY: TrackState
CONSUMED: TrackState
DEAD_LETTER: TrackState
TRACK_STEP_UNSPECIFIED: TrackStepKind
HALF: TrackStepKind
DELAYED: TrackStepKind
STORED: TrackStepKind

class StageRequest(_message.Message):
    __slots__ = ("sink", "batch")
    SINK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    sink: str
    batch: bytes
    def __init__(self, sink: _Optional[str] = ..., batch: _Optional[bytes] = ...) -> None: ...

class StageReply(_message.Message):
    __slots__ = ("staged",)
    STAGED_FIELD_NUMBER: _ClassVar[int]
    staged: int
    def __init__(self, staged: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("sink", "batch", "staged", "contents", "publisher")
    SINK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    sink: str
    batch: int
    staged: _containers.RepeatedScalarFieldContainer[int]
    contents: str
    publisher: str
    def __init__(self, sink: _Optional[str] = ..., batch: _Optional[int] = ..., staged: _Optional[_Iterable[int]] = ..., contents: _Optional[str] = ..., publisher: _Optional[str] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: bool
    def __init__(self, before: _Optional[bool] = ...) -> None: ...

class SinkStateRequest(_message.Message):
    __slots__ = ("sink",)
    SINK_FIELD_NUMBER: _ClassVar[int]
    sink: str
    def __init__(self, sink: _Optional[str] = ...) -> None: ...

class SinkStateReply(_message.Message):
    __slots__ = ("known", "batch", "batches", "messages", "batch_messages", "lost_parts", "contents", "publisher")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BATCH_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOST_PARTS_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    known: bool
    batch: int
    batches: int
    messages: int
    batch_messages: int
    lost_parts: int
    contents: str
    publisher: str
    def __init__(self, known: _Optional[bool] = ..., batch: _Optional[int] = ..., batches: _Optional[int] = ..., messages: _Optional[int] = ..., batch_messages: _Optional[int] = ..., lost_parts: _Optional[int] = ..., contents: _Optional[str] = ..., publisher: _Optional[str] = ...) -> None: ...

class EndTransactionsRequest(_message.Message):
    __slots__ = ("group", "halves", "commit", "undecided")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HALVES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    group: str
    halves: _containers.RepeatedScalarFieldContainer[int]
    commit: bool
    undecided: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., halves: _Optional[_Iterable[int]] = ..., commit: _Optional[bool] = ..., undecided: _Optional[_Iterable[int]] = ...) -> None: ...

class EndTransactionsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransactionChecksRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("topic", "half", "body", "properties", "born_time")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BORN_TIME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    half: int
    body: bytes
    properties: _containers.ScalarMap[str, str]
    born_time: int
    def __init__(self, topic: _Optional[str] = ..., half: _Optional[int] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., born_time: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("id", "topic", "queue_id", "bodies", "body_offsets", "properties", "property_offsets", "crc32", "born_time", "flag", "producer_id", "sequence", "no_wait", "delay_level", "deliver_time", "transaction_group", "immunity_seconds", "again", "known_end", "known_nonce", "patience_ms", "copied_from", "expect_offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    BODY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    BORN_TIME_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    DELIVER_TIME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_GROUP_FIELD_NUMBER: _ClassVar[int]
    IMMUNITY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_END_FIELD_NUMBER: _ClassVar[int]
    KNOWN_NONCE_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_MS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FROM_FIELD_NUMBER: _ClassVar[int]
    EXPECT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: int
    topic: str
    queue_id: int
    bodies: bytes
    body_offsets: bytes
    properties: bytes
    property_offsets: bytes
    crc32: int
    born_time: int
    flag: int
    producer_id: bytes
    sequence: int
    no_wait: bool
    delay_level: int
    deliver_time: int
    transaction_group: str
    immunity_seconds: int
    again: bool
    known_end: int
    known_nonce: int
    patience_ms: int
    copied_from: QueueOffset
    expect_offset: int
    def __init__(self, id: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., bodies: _Optional[bytes] = ..., body_offsets: _Optional[bytes] = ..., properties: _Optional[bytes] = ..., property_offsets: _Optional[bytes] = ..., crc32: _Optional[int] = ..., born_time: _Optional[int] = ..., flag: _Optional[int] = ..., producer_id: _Optional[bytes] = ..., sequence: _Optional[int] = ..., no_wait: _Optional[bool] = ..., delay_level: _Optional[int] = ..., deliver_time: _Optional[int] = ..., transaction_group: _Optional[str] = ..., immunity_seconds: _Optional[int] = ..., again: _Optional[bool] = ..., known_end: _Optional[int] = ..., known_nonce: _Optional[int] = ..., patience_ms: _Optional[int] = ..., copied_from: _Optional[_Union[QueueOffset, _Mapping]] = ..., expect_offset: _Optional[int] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("id", "status", "reason", "count", "queue_offset", "physical_offset", "store_time", "duplicates", "store_host", "master", "master_epoch", "epoch_nonce", "retry_after_ms", "stored_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    MASTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_NONCE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: PutStatus
    reason: str
    count: int
    queue_offset: int
    physical_offset: int
    store_time: int
    duplicates: _containers.RepeatedCompositeFieldContainer[StoredRun]
    store_host: str
    master: str
    master_epoch: int
    epoch_nonce: int
    retry_after_ms: int
    stored_at: QueuePlace
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[PutStatus, str]] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_time: _Optional[int] = ..., duplicates: _Optional[_Iterable[_Union[StoredRun, _Mapping]]] = ..., store_host: _Optional[str] = ..., master: _Optional[str] = ..., master_epoch: _Optional[int] = ..., epoch_nonce: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., stored_at: _Optional[_Union[QueuePlace, _Mapping]] = ...) -> None: ...

class StoredRun(_message.Message):
    __slots__ = ("count", "topic", "queue_id", "queue_offset")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    count: int
    topic: str
    queue_id: int
    queue_offset: int
    def __init__(self, count: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "max_messages", "max_bytes", "wait_ms", "tags", "sql", "columns")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    sql: str
    columns: _containers.RepeatedScalarFieldContainer[Column]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., sql: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, str]]] = ...) -> None: ...

class MessageBatch(_message.Message):
    __slots__ = ("topic", "queue_id", "status", "next_offset", "min_offset", "max_offset", "count", "bodies", "body_offsets", "properties", "property_offsets", "crc32", "queue_offset_base", "queue_offset_deltas", "physical_offsets", "store_times", "born_times", "flags", "sysflags", "reconsume_times", "lost", "subscription", "suggest_endpoint")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    BODY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_BASE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_DELTAS_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMES_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    SYSFLAGS_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SUGGEST_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int
    bodies: bytes
    body_offsets: bytes
    properties: bytes
    property_offsets: bytes
    crc32: int
    queue_offset_base: int
    queue_offset_deltas: bytes
    physical_offsets: bytes
    store_times: bytes
    born_times: bytes
    flags: bytes
    sysflags: bytes
    reconsume_times: bytes
    lost: int
    subscription: int
    suggest_endpoint: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., status: _Optional[_Union[ReadStatus, str]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., count: _Optional[int] = ..., bodies: _Optional[bytes] = ..., body_offsets: _Optional[bytes] = ..., properties: _Optional[bytes] = ..., property_offsets: _Optional[bytes] = ..., crc32: _Optional[int] = ..., queue_offset_base: _Optional[int] = ..., queue_offset_deltas: _Optional[bytes] = ..., physical_offsets: _Optional[bytes] = ..., store_times: _Optional[bytes] = ..., born_times: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., sysflags: _Optional[bytes] = ..., reconsume_times: _Optional[bytes] = ..., lost: _Optional[int] = ..., subscription: _Optional[int] = ..., suggest_endpoint: _Optional[str] = ...) -> None: ...

class QueueRef(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class QueueOffset(_message.Message):
    __slots__ = ("topic", "queue_id", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("add", "remove", "credit_bytes", "tags", "batch_bytes", "subscription", "sql", "group", "broadcasting")
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BROADCASTING_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    remove: _containers.RepeatedCompositeFieldContainer[QueueRef]
    credit_bytes: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    batch_bytes: int
    subscription: int
    sql: str
    group: str
    broadcasting: bool
    def __init__(self, add: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., remove: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., credit_bytes: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., batch_bytes: _Optional[int] = ..., subscription: _Optional[int] = ..., sql: _Optional[str] = ..., group: _Optional[str] = ..., broadcasting: _Optional[bool] = ...) -> None: ...

class FindRequest(_message.Message):
    __slots__ = ("topic", "key", "unique_key", "message_id", "max", "begin_time", "end_time")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    unique_key: str
    message_id: str
    max: int
    begin_time: int
    end_time: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., unique_key: _Optional[str] = ..., message_id: _Optional[str] = ..., max: _Optional[int] = ..., begin_time: _Optional[int] = ..., end_time: _Optional[int] = ...) -> None: ...

class FoundMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "physical_offset", "store_time", "born_time", "flag", "sysflag", "reconsume_times", "message_id", "born_host", "body", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    BORN_TIME_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    SYSFLAG_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_time: int
    born_time: int
    flag: int
    sysflag: int
    reconsume_times: int
    message_id: str
    born_host: str
    body: bytes
    properties: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_time: _Optional[int] = ..., born_time: _Optional[int] = ..., flag: _Optional[int] = ..., sysflag: _Optional[int] = ..., reconsume_times: _Optional[int] = ..., message_id: _Optional[str] = ..., born_host: _Optional[str] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FindReply(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[FoundMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[FoundMessage, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "topics", "session_ms", "owned", "strategy", "rooms", "wanted", "sql", "epoch", "not_polled", "tags")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    ROOMS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NOT_POLLED_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    session_ms: int
    owned: _containers.RepeatedCompositeFieldContainer[QueueRef]
    strategy: str
    rooms: _containers.RepeatedScalarFieldContainer[str]
    wanted: _containers.RepeatedCompositeFieldContainer[QueueRef]
    sql: str
    epoch: int
    not_polled: bool
    tags: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., session_ms: _Optional[int] = ..., owned: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., strategy: _Optional[str] = ..., rooms: _Optional[_Iterable[str]] = ..., wanted: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., sql: _Optional[str] = ..., epoch: _Optional[int] = ..., not_polled: _Optional[bool] = ..., tags: _Optional[str] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("generation", "queues", "members", "pending", "foreign", "epoch")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueRef]
    members: int
    pending: bool
    foreign: _containers.RepeatedCompositeFieldContainer[QueueRef]
    epoch: int
    def __init__(self, generation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., members: _Optional[int] = ..., pending: _Optional[bool] = ..., foreign: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., epoch: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "member_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("group", "offsets", "member_id", "generation", "forward")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    member_id: str
    generation: int
    forward: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ..., forward: _Optional[bool] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SendBackRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "queue_offset", "delay_level", "max_attempts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    delay_level: int
    max_attempts: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., delay_level: _Optional[int] = ..., max_attempts: _Optional[int] = ...) -> None: ...

class SendBackReply(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class OffsetsRequest(_message.Message):
    __slots__ = ("group", "queues", "begin")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueRef]
    begin: Start
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueRef, _Mapping]]] = ..., begin: _Optional[_Union[Start, str]] = ...) -> None: ...

class OffsetsReply(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class OffsetAtTimeRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "start", "time")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    start: Start
    time: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., start: _Optional[_Union[Start, str]] = ..., time: _Optional[int] = ...) -> None: ...

class OffsetAtSizeRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    bytes: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class OffsetAtTimeReply(_message.Message):
    __slots__ = ("queue_offset",)
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    def __init__(self, queue_offset: _Optional[int] = ...) -> None: ...

class ListHalvesRequest(_message.Message):
    __slots__ = ("topic", "after", "limit", "half")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after: str
    limit: int
    half: int
    def __init__(self, topic: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., half: _Optional[int] = ...) -> None: ...

class HalfMessage(_message.Message):
    __slots__ = ("topic", "producer_group", "half", "queue_offset", "store_time", "checks", "next_check_time", "size", "unique_key", "keys", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_TIME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_group: str
    half: int
    queue_offset: int
    store_time: int
    checks: int
    next_check_time: int
    size: int
    unique_key: str
    keys: str
    tags: str
    def __init__(self, topic: _Optional[str] = ..., producer_group: _Optional[str] = ..., half: _Optional[int] = ..., queue_offset: _Optional[int] = ..., store_time: _Optional[int] = ..., checks: _Optional[int] = ..., next_check_time: _Optional[int] = ..., size: _Optional[int] = ..., unique_key: _Optional[str] = ..., keys: _Optional[str] = ..., tags: _Optional[str] = ...) -> None: ...

class ListHalvesReply(_message.Message):
    __slots__ = ("messages", "next", "group", "waiting", "checks_max")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CHECKS_MAX_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[HalfMessage]
    next: str
    group: str
    waiting: int
    checks_max: int
    def __init__(self, messages: _Optional[_Iterable[_Union[HalfMessage, _Mapping]]] = ..., next: _Optional[str] = ..., group: _Optional[str] = ..., waiting: _Optional[int] = ..., checks_max: _Optional[int] = ...) -> None: ...

class DecideHalfRequest(_message.Message):
    __slots__ = ("group", "half", "commit")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    half: int
    commit: bool
    def __init__(self, group: _Optional[str] = ..., half: _Optional[int] = ..., commit: _Optional[bool] = ...) -> None: ...

class DecideHalfReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("topic", "after", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DelayedMessage(_message.Message):
    __slots__ = ("topic", "due_time", "level", "waits_in", "queue_id", "queue_offset", "store_time", "size", "unique_key", "keys", "tags")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    WAITS_IN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    due_time: int
    level: int
    waits_in: str
    queue_id: int
    queue_offset: int
    store_time: int
    size: int
    unique_key: str
    keys: str
    tags: str
    def __init__(self, topic: _Optional[str] = ..., due_time: _Optional[int] = ..., level: _Optional[int] = ..., waits_in: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., store_time: _Optional[int] = ..., size: _Optional[int] = ..., unique_key: _Optional[str] = ..., keys: _Optional[str] = ..., tags: _Optional[str] = ...) -> None: ...

class ListDelayedReply(_message.Message):
    __slots__ = ("messages", "next", "group", "examined", "waiting", "first_due_time", "last_due_time")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FIRST_DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DelayedMessage]
    next: str
    group: str
    examined: int
    waiting: int
    first_due_time: int
    last_due_time: int
    def __init__(self, messages: _Optional[_Iterable[_Union[DelayedMessage, _Mapping]]] = ..., next: _Optional[str] = ..., group: _Optional[str] = ..., examined: _Optional[int] = ..., waiting: _Optional[int] = ..., first_due_time: _Optional[int] = ..., last_due_time: _Optional[int] = ...) -> None: ...

class RecallDelayedRequest(_message.Message):
    __slots__ = ("topic", "queue_offset", "unique_key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_offset: int
    unique_key: str
    def __init__(self, topic: _Optional[str] = ..., queue_offset: _Optional[int] = ..., unique_key: _Optional[str] = ...) -> None: ...

class RecallDelayedReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutQuotaRequest(_message.Message):
    __slots__ = ("subject", "bytes_in", "messages_in", "bytes_out", "messages_out", "connections", "topics", "burst_ms")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BURST_MS_FIELD_NUMBER: _ClassVar[int]
    subject: str
    bytes_in: int
    messages_in: int
    bytes_out: int
    messages_out: int
    connections: int
    topics: int
    burst_ms: int
    def __init__(self, subject: _Optional[str] = ..., bytes_in: _Optional[int] = ..., messages_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., messages_out: _Optional[int] = ..., connections: _Optional[int] = ..., topics: _Optional[int] = ..., burst_ms: _Optional[int] = ...) -> None: ...

class QuotaReply(_message.Message):
    __slots__ = ("subject", "bytes_in", "messages_in", "bytes_out", "messages_out", "connections", "topics", "burst_ms")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BURST_MS_FIELD_NUMBER: _ClassVar[int]
    subject: str
    bytes_in: int
    messages_in: int
    bytes_out: int
    messages_out: int
    connections: int
    topics: int
    burst_ms: int
    def __init__(self, subject: _Optional[str] = ..., bytes_in: _Optional[int] = ..., messages_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., messages_out: _Optional[int] = ..., connections: _Optional[int] = ..., topics: _Optional[int] = ..., burst_ms: _Optional[int] = ...) -> None: ...

class DeleteQuotaRequest(_message.Message):
    __slots__ = ("subject",)
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    def __init__(self, subject: _Optional[str] = ...) -> None: ...

class DeleteQuotaReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasReply(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaReply]
    def __init__(self, quotas: _Optional[_Iterable[_Union[QuotaReply, _Mapping]]] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("topic", "queues", "perm", "message_type", "lite_ttl_minutes", "retention_hours", "retention_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    LITE_TTL_MINUTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_HOURS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: int
    perm: int
    message_type: str
    lite_ttl_minutes: int
    retention_hours: int
    retention_bytes: int
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[int] = ..., perm: _Optional[int] = ..., message_type: _Optional[str] = ..., lite_ttl_minutes: _Optional[int] = ..., retention_hours: _Optional[int] = ..., retention_bytes: _Optional[int] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_store_time", "log_bytes")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_time: int
    log_bytes: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_store_time: _Optional[int] = ..., log_bytes: _Optional[int] = ...) -> None: ...

class TopicReply(_message.Message):
    __slots__ = ("topic", "queues", "perm", "stats", "group", "message_type", "lite_ttl_minutes", "owner", "retention_hours", "guests", "topic_retention_hours", "retention_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    LITE_TTL_MINUTES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RETENTION_HOURS_FIELD_NUMBER: _ClassVar[int]
    GUESTS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_RETENTION_HOURS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: int
    perm: int
    stats: _containers.RepeatedCompositeFieldContainer[QueueStats]
    group: str
    message_type: str
    lite_ttl_minutes: int
    owner: str
    retention_hours: int
    guests: _containers.RepeatedCompositeFieldContainer[GuestQueue]
    topic_retention_hours: int
    retention_bytes: int
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[int] = ..., perm: _Optional[int] = ..., stats: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ..., group: _Optional[str] = ..., message_type: _Optional[str] = ..., lite_ttl_minutes: _Optional[int] = ..., owner: _Optional[str] = ..., retention_hours: _Optional[int] = ..., guests: _Optional[_Iterable[_Union[GuestQueue, _Mapping]]] = ..., topic_retention_hours: _Optional[int] = ..., retention_bytes: _Optional[int] = ...) -> None: ...

class GuestQueue(_message.Message):
    __slots__ = ("queue_id", "first", "name_group", "name_queue_id", "from_group", "from_queue_id", "sealed")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NAME_GROUP_FIELD_NUMBER: _ClassVar[int]
    NAME_QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    first: int
    name_group: str
    name_queue_id: int
    from_group: str
    from_queue_id: int
    sealed: bool
    def __init__(self, queue_id: _Optional[int] = ..., first: _Optional[int] = ..., name_group: _Optional[str] = ..., name_queue_id: _Optional[int] = ..., from_group: _Optional[str] = ..., from_queue_id: _Optional[int] = ..., sealed: _Optional[bool] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrimTopicRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "offset", "time", "dry_run")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    offset: int
    time: int
    dry_run: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ..., time: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class TrimmedQueue(_message.Message):
    __slots__ = ("queue_id", "first", "min_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    first: int
    min_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., first: _Optional[int] = ..., min_offset: _Optional[int] = ...) -> None: ...

class TrimTopicReply(_message.Message):
    __slots__ = ("queues", "group")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[TrimmedQueue]
    group: str
    def __init__(self, queues: _Optional[_Iterable[_Union[TrimmedQueue, _Mapping]]] = ..., group: _Optional[str] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("topics", "system", "create", "contains", "after", "limit", "sizes", "problems_only", "without_times")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_ONLY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TIMES_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    system: bool
    create: bool
    contains: str
    after: str
    limit: int
    sizes: bool
    problems_only: bool
    without_times: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., system: _Optional[bool] = ..., create: _Optional[bool] = ..., contains: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., sizes: _Optional[bool] = ..., problems_only: _Optional[bool] = ..., without_times: _Optional[bool] = ...) -> None: ...

class ListTopicsReply(_message.Message):
    __slots__ = ("topics", "confirm_offset", "confirm_nonce", "total", "next")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_NONCE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicReply]
    confirm_offset: int
    confirm_nonce: int
    total: int
    next: str
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicReply, _Mapping]]] = ..., confirm_offset: _Optional[int] = ..., confirm_nonce: _Optional[int] = ..., total: _Optional[int] = ..., next: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("contains", "after", "limit", "problems_only", "groups", "old_ms", "stalled_ms")
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_ONLY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OLD_MS_FIELD_NUMBER: _ClassVar[int]
    STALLED_MS_FIELD_NUMBER: _ClassVar[int]
    contains: str
    after: str
    limit: int
    problems_only: bool
    groups: _containers.RepeatedScalarFieldContainer[str]
    old_ms: int
    stalled_ms: int
    def __init__(self, contains: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., problems_only: _Optional[bool] = ..., groups: _Optional[_Iterable[str]] = ..., old_ms: _Optional[int] = ..., stalled_ms: _Optional[int] = ...) -> None: ...

class ListGroupsReply(_message.Message):
    __slots__ = ("groups", "total", "next", "left_out")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupDescription]
    total: int
    next: str
    left_out: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupDescription, _Mapping]]] = ..., total: _Optional[int] = ..., next: _Optional[str] = ..., left_out: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group", "members", "queues", "orderly", "retry_times", "lite_topic", "lite_exclusive", "clients", "client_topics", "subscriptions", "sharing_clients", "holds")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_TIMES_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TOPICS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    SHARING_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    members: int
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    orderly: bool
    retry_times: int
    lite_topic: str
    lite_exclusive: bool
    clients: int
    client_topics: _containers.RepeatedScalarFieldContainer[str]
    subscriptions: _containers.RepeatedCompositeFieldContainer[GroupSubscription]
    sharing_clients: int
    holds: _containers.RepeatedCompositeFieldContainer[GroupHold]
    def __init__(self, group: _Optional[str] = ..., members: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., orderly: _Optional[bool] = ..., retry_times: _Optional[int] = ..., lite_topic: _Optional[str] = ..., lite_exclusive: _Optional[bool] = ..., clients: _Optional[int] = ..., client_topics: _Optional[_Iterable[str]] = ..., subscriptions: _Optional[_Iterable[_Union[GroupSubscription, _Mapping]]] = ..., sharing_clients: _Optional[int] = ..., holds: _Optional[_Iterable[_Union[GroupHold, _Mapping]]] = ...) -> None: ...

class GroupSubscription(_message.Message):
    __slots__ = ("topic", "expression", "is_sql", "members", "member_id", "sharing")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    IS_SQL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    topic: str
    expression: str
    is_sql: bool
    members: int
    member_id: str
    sharing: int
    def __init__(self, topic: _Optional[str] = ..., expression: _Optional[str] = ..., is_sql: _Optional[bool] = ..., members: _Optional[int] = ..., member_id: _Optional[str] = ..., sharing: _Optional[int] = ...) -> None: ...

class GroupHold(_message.Message):
    __slots__ = ("topic", "quota")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    topic: str
    quota: str
    def __init__(self, topic: _Optional[str] = ..., quota: _Optional[str] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "queue_id", "committed", "min_offset", "max_offset", "lag_messages", "lag_ms", "member_id", "replica_group", "not_polled", "stalled_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_GROUP_FIELD_NUMBER: _ClassVar[int]
    NOT_POLLED_FIELD_NUMBER: _ClassVar[int]
    STALLED_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    committed: int
    min_offset: int
    max_offset: int
    lag_messages: int
    lag_ms: int
    member_id: str
    replica_group: str
    not_polled: bool
    stalled_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., committed: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., lag_messages: _Optional[int] = ..., lag_ms: _Optional[int] = ..., member_id: _Optional[str] = ..., replica_group: _Optional[str] = ..., not_polled: _Optional[bool] = ..., stalled_ms: _Optional[int] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("group", "topic", "start", "time", "offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    start: Start
    time: int
    offset: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., start: _Optional[_Union[Start, str]] = ..., time: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PutGroupRequest(_message.Message):
    __slots__ = ("group", "orderly", "retry_times", "retry_delays_ms", "lite_topic", "lite_exclusive")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_TIMES_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAYS_MS_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    group: str
    orderly: bool
    retry_times: int
    retry_delays_ms: _containers.RepeatedScalarFieldContainer[int]
    lite_topic: str
    lite_exclusive: bool
    def __init__(self, group: _Optional[str] = ..., orderly: _Optional[bool] = ..., retry_times: _Optional[int] = ..., retry_delays_ms: _Optional[_Iterable[int]] = ..., lite_topic: _Optional[str] = ..., lite_exclusive: _Optional[bool] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrackRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "key")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    key: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., key: _Optional[str] = ...) -> None: ...

class MessageTrack(_message.Message):
    __slots__ = ("group", "state", "attempts", "copy_topic", "copy_queue_id", "copy_queue_offset", "copy_store_time")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    COPY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COPY_QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    COPY_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COPY_STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: TrackState
    attempts: int
    copy_topic: str
    copy_queue_id: int
    copy_queue_offset: int
    copy_store_time: int
    def __init__(self, group: _Optional[str] = ..., state: _Optional[_Union[TrackState, str]] = ..., attempts: _Optional[int] = ..., copy_topic: _Optional[str] = ..., copy_queue_id: _Optional[int] = ..., copy_queue_offset: _Optional[int] = ..., copy_store_time: _Optional[int] = ...) -> None: ...

class TrackStep(_message.Message):
    __slots__ = ("kind", "topic", "queue_id", "queue_offset", "physical_offset", "store_time", "deliver_time")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    DELIVER_TIME_FIELD_NUMBER: _ClassVar[int]
    kind: TrackStepKind
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_time: int
    deliver_time: int
    def __init__(self, kind: _Optional[_Union[TrackStepKind, str]] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_time: _Optional[int] = ..., deliver_time: _Optional[int] = ...) -> None: ...

class TrackedMessage(_message.Message):
    __slots__ = ("unique_key", "born_time", "born_host", "traceparent", "steps", "groups")
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    BORN_TIME_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    unique_key: str
    born_time: int
    born_host: str
    traceparent: str
    steps: _containers.RepeatedCompositeFieldContainer[TrackStep]
    groups: _containers.RepeatedCompositeFieldContainer[MessageTrack]
    def __init__(self, unique_key: _Optional[str] = ..., born_time: _Optional[int] = ..., born_host: _Optional[str] = ..., traceparent: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[TrackStep, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[MessageTrack, _Mapping]]] = ...) -> None: ...

class TrackReply(_message.Message):
    __slots__ = ("groups", "messages")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[MessageTrack]
    messages: _containers.RepeatedCompositeFieldContainer[TrackedMessage]
    def __init__(self, groups: _Optional[_Iterable[_Union[MessageTrack, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[TrackedMessage, _Mapping]]] = ...) -> None: ...

class QueuePlace(_message.Message):
    __slots__ = ("group", "queue_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue_id: int
    def __init__(self, group: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class MoveQueueRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "group", "plan")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    group: str
    plan: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., group: _Optional[str] = ..., plan: _Optional[bool] = ...) -> None: ...

class MoveQueueReply(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: QueueMove
    def __init__(self, move: _Optional[_Union[QueueMove, _Mapping]] = ...) -> None: ...

class AbortMoveRequest(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class AbortMoveReply(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: QueueMove
    def __init__(self, move: _Optional[_Union[QueueMove, _Mapping]] = ...) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListMovesReply(_message.Message):
    __slots__ = ("moves", "spans")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[QueueMove]
    spans: _containers.RepeatedCompositeFieldContainer[QueueSpan]
    def __init__(self, moves: _Optional[_Iterable[_Union[QueueMove, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[QueueSpan, _Mapping]]] = ...) -> None: ...

class QueueMove(_message.Message):
    __slots__ = ("topic", "move", "state", "name", "source", "target", "to", "end", "begin_ms", "pause_ms", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    move: str
    state: str
    name: QueuePlace
    source: QueuePlace
    target: str
    to: QueuePlace
    end: int
    begin_ms: int
    pause_ms: float
    reason: str
    def __init__(self, topic: _Optional[str] = ..., move: _Optional[str] = ..., state: _Optional[str] = ..., name: _Optional[_Union[QueuePlace, _Mapping]] = ..., source: _Optional[_Union[QueuePlace, _Mapping]] = ..., target: _Optional[str] = ..., to: _Optional[_Union[QueuePlace, _Mapping]] = ..., end: _Optional[int] = ..., begin_ms: _Optional[int] = ..., pause_ms: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class QueueSpan(_message.Message):
    __slots__ = ("topic", "name", "place", "first", "end", "came_from", "following", "min_offset", "max_offset", "passed_on")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CAME_FROM_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PASSED_ON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: QueuePlace
    place: QueuePlace
    first: int
    end: int
    came_from: QueuePlace
    following: QueuePlace
    min_offset: int
    max_offset: int
    passed_on: int
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[_Union[QueuePlace, _Mapping]] = ..., place: _Optional[_Union[QueuePlace, _Mapping]] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., came_from: _Optional[_Union[QueuePlace, _Mapping]] = ..., following: _Optional[_Union[QueuePlace, _Mapping]] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., passed_on: _Optional[int] = ...) -> None: ...

class NodeStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatusReply(_message.Message):
    __slots__ = ("name", "role", "version", "listen", "data", "start_time", "min_offset", "max_offset", "flushed_offset", "confirm_offset", "dispatch_behind_bytes", "disk_used_ratio", "flags", "fence_reason", "recovered_abnormally", "recovered_from", "recovered_end", "messages_in", "messages_out", "bytes_in", "bytes_out", "flushes", "flushed_messages", "corrupt_ranges", "refused_records", "dispatch_behind_ms_max", "replication", "store", "stale", "parts", "wall_ms", "certificate", "certificate_until_ms", "cluster", "settings", "disk_directory", "durations", "write_holds")
    class PartsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LISTEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    FENCE_REASON_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_ABNORMALLY_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FROM_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_END_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    FLUSHES_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_RANGES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_BEHIND_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DISK_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    DURATIONS_FIELD_NUMBER: _ClassVar[int]
    WRITE_HOLDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    version: str
    listen: str
    data: str
    start_time: int
    min_offset: int
    max_offset: int
    flushed_offset: int
    confirm_offset: int
    dispatch_behind_bytes: int
    disk_used_ratio: float
    flags: _containers.RepeatedScalarFieldContainer[str]
    fence_reason: str
    recovered_abnormally: bool
    recovered_from: int
    recovered_end: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    flushes: int
    flushed_messages: int
    corrupt_ranges: int
    refused_records: int
    dispatch_behind_ms_max: int
    replication: ReplicationStatus
    store: LocalStore
    stale: bool
    parts: _containers.ScalarMap[str, int]
    wall_ms: int
    certificate: str
    certificate_until_ms: int
    cluster: str
    settings: _containers.ScalarMap[str, str]
    disk_directory: str
    durations: _containers.RepeatedCompositeFieldContainer[Durations]
    write_holds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., version: _Optional[str] = ..., listen: _Optional[str] = ..., data: _Optional[str] = ..., start_time: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., dispatch_behind_bytes: _Optional[int] = ..., disk_used_ratio: _Optional[float] = ..., flags: _Optional[_Iterable[str]] = ..., fence_reason: _Optional[str] = ..., recovered_abnormally: _Optional[bool] = ..., recovered_from: _Optional[int] = ..., recovered_end: _Optional[int] = ..., messages_in: _Optional[int] = ..., messages_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., flushes: _Optional[int] = ..., flushed_messages: _Optional[int] = ..., corrupt_ranges: _Optional[int] = ..., refused_records: _Optional[int] = ..., dispatch_behind_ms_max: _Optional[int] = ..., replication: _Optional[_Union[ReplicationStatus, _Mapping]] = ..., store: _Optional[_Union[LocalStore, _Mapping]] = ..., stale: _Optional[bool] = ..., parts: _Optional[_Mapping[str, int]] = ..., wall_ms: _Optional[int] = ..., certificate: _Optional[str] = ..., certificate_until_ms: _Optional[int] = ..., cluster: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ..., disk_directory: _Optional[str] = ..., durations: _Optional[_Iterable[_Union[Durations, _Mapping]]] = ..., write_holds: _Optional[_Iterable[str]] = ...) -> None: ...

class Durations(_message.Message):
    __slots__ = ("name", "bounds", "counts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class LocalStore(_message.Message):
    __slots__ = ("boot_id", "path", "device", "inode")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    path: str
    device: int
    inode: int
    def __init__(self, boot_id: _Optional[str] = ..., path: _Optional[str] = ..., device: _Optional[int] = ..., inode: _Optional[int] = ...) -> None: ...

class ReplicationStatus(_message.Message):
    __slots__ = ("group", "epoch", "push2slave_max_offset", "in_sync_replicas", "violations", "slaves", "state", "reason", "master", "master_offset", "lag_bytes", "lag_ms", "truncated_bytes", "resets", "role", "sync_state_set", "elections", "lease_left_ms", "discarded", "log_epochs", "lease_seconds", "lease_asked_seconds", "refusal", "renewal_ms_max", "masterships", "rocketmq_slaves", "guarantee", "unreachable", "down", "registry_silent", "barred")
    class GuaranteeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class UnreachableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class DownEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RegistrySilentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PUSH2SLAVE_MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    SLAVES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    MASTER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SYNC_STATE_SET_FIELD_NUMBER: _ClassVar[int]
    ELECTIONS_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ASKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    MASTERSHIPS_FIELD_NUMBER: _ClassVar[int]
    ROCKETMQ_SLAVES_FIELD_NUMBER: _ClassVar[int]
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    REGISTRY_SILENT_FIELD_NUMBER: _ClassVar[int]
    BARRED_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    push2slave_max_offset: int
    in_sync_replicas: int
    violations: int
    slaves: _containers.RepeatedCompositeFieldContainer[SlaveStatus]
    state: str
    reason: str
    master: str
    master_offset: int
    lag_bytes: int
    lag_ms: int
    truncated_bytes: int
    resets: int
    role: str
    sync_state_set: _containers.RepeatedScalarFieldContainer[str]
    elections: int
    lease_left_ms: int
    discarded: _containers.RepeatedScalarFieldContainer[str]
    log_epochs: _containers.RepeatedCompositeFieldContainer[LogEpoch]
    lease_seconds: int
    lease_asked_seconds: int
    refusal: str
    renewal_ms_max: int
    masterships: _containers.RepeatedCompositeFieldContainer[Mastership]
    rocketmq_slaves: _containers.RepeatedCompositeFieldContainer[RocketmqSlaveStatus]
    guarantee: _containers.ScalarMap[str, str]
    unreachable: _containers.ScalarMap[str, str]
    down: _containers.ScalarMap[str, int]
    registry_silent: _containers.ScalarMap[str, str]
    barred: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., push2slave_max_offset: _Optional[int] = ..., in_sync_replicas: _Optional[int] = ..., violations: _Optional[int] = ..., slaves: _Optional[_Iterable[_Union[SlaveStatus, _Mapping]]] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., master: _Optional[str] = ..., master_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_ms: _Optional[int] = ..., truncated_bytes: _Optional[int] = ..., resets: _Optional[int] = ..., role: _Optional[str] = ..., sync_state_set: _Optional[_Iterable[str]] = ..., elections: _Optional[int] = ..., lease_left_ms: _Optional[int] = ..., discarded: _Optional[_Iterable[str]] = ..., log_epochs: _Optional[_Iterable[_Union[LogEpoch, _Mapping]]] = ..., lease_seconds: _Optional[int] = ..., lease_asked_seconds: _Optional[int] = ..., refusal: _Optional[str] = ..., renewal_ms_max: _Optional[int] = ..., masterships: _Optional[_Iterable[_Union[Mastership, _Mapping]]] = ..., rocketmq_slaves: _Optional[_Iterable[_Union[RocketmqSlaveStatus, _Mapping]]] = ..., guarantee: _Optional[_Mapping[str, str]] = ..., unreachable: _Optional[_Mapping[str, str]] = ..., down: _Optional[_Mapping[str, int]] = ..., registry_silent: _Optional[_Mapping[str, str]] = ..., barred: _Optional[_Iterable[str]] = ...) -> None: ...

class RocketmqSlaveStatus(_message.Message):
    __slots__ = ("address", "state", "since_ms", "received_offset", "lag_bytes", "lag_ms", "reason")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    address: str
    state: str
    since_ms: int
    received_offset: int
    lag_bytes: int
    lag_ms: int
    reason: str
    def __init__(self, address: _Optional[str] = ..., state: _Optional[str] = ..., since_ms: _Optional[int] = ..., received_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Mastership(_message.Message):
    __slots__ = ("epoch", "master", "begin_ms", "cause", "unled_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    UNLED_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    master: str
    begin_ms: int
    cause: str
    unled_ms: int
    def __init__(self, epoch: _Optional[int] = ..., master: _Optional[str] = ..., begin_ms: _Optional[int] = ..., cause: _Optional[str] = ..., unled_ms: _Optional[int] = ...) -> None: ...

class LogEpoch(_message.Message):
    __slots__ = ("epoch", "start", "nonce")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start: int
    nonce: int
    def __init__(self, epoch: _Optional[int] = ..., start: _Optional[int] = ..., nonce: _Optional[int] = ...) -> None: ...

class SlaveStatus(_message.Message):
    __slots__ = ("name", "endpoint", "state", "sent_offset", "received_offset", "durable_offset", "lag_bytes", "lag_ms", "in_sync", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SENT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    endpoint: str
    state: str
    sent_offset: int
    received_offset: int
    durable_offset: int
    lag_bytes: int
    lag_ms: int
    in_sync: bool
    reason: str
    def __init__(self, name: _Optional[str] = ..., endpoint: _Optional[str] = ..., state: _Optional[str] = ..., sent_offset: _Optional[int] = ..., received_offset: _Optional[int] = ..., durable_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_ms: _Optional[int] = ..., in_sync: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("cluster", "groups", "group", "frames_port", "frames_key")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FRAMES_PORT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_KEY_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupRoute]
    group: str
    frames_port: int
    frames_key: bytes
    def __init__(self, cluster: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupRoute, _Mapping]]] = ..., group: _Optional[str] = ..., frames_port: _Optional[int] = ..., frames_key: _Optional[bytes] = ...) -> None: ...

class GroupRoute(_message.Message):
    __slots__ = ("group", "epoch", "master", "master_endpoint", "replicas", "retiring")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    MASTER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    group: str
    epoch: int
    master: str
    master_endpoint: str
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaRoute]
    retiring: bool
    def __init__(self, group: _Optional[str] = ..., epoch: _Optional[int] = ..., master: _Optional[str] = ..., master_endpoint: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[ReplicaRoute, _Mapping]]] = ..., retiring: _Optional[bool] = ...) -> None: ...

class ReplicaRoute(_message.Message):
    __slots__ = ("node", "endpoint", "in_sync", "drained")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    node: str
    endpoint: str
    in_sync: bool
    drained: bool
    def __init__(self, node: _Optional[str] = ..., endpoint: _Optional[str] = ..., in_sync: _Optional[bool] = ..., drained: _Optional[bool] = ...) -> None: ...

class FailoverRequest(_message.Message):
    __slots__ = ("node", "epoch")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: int
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class FailoverReply(_message.Message):
    __slots__ = ("over", "epoch", "master")
    OVER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    over: bool
    epoch: int
    master: str
    def __init__(self, over: _Optional[bool] = ..., epoch: _Optional[int] = ..., master: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "undo")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    node: str
    undo: bool
    def __init__(self, node: _Optional[str] = ..., undo: _Optional[bool] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetireGroupRequest(_message.Message):
    __slots__ = ("replica_group", "undo")
    REPLICA_GROUP_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    replica_group: str
    undo: bool
    def __init__(self, replica_group: _Optional[str] = ..., undo: _Optional[bool] = ...) -> None: ...

class RetireGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetGroupRequest(_message.Message):
    __slots__ = ("replica_group",)
    REPLICA_GROUP_FIELD_NUMBER: _ClassVar[int]
    replica_group: str
    def __init__(self, replica_group: _Optional[str] = ...) -> None: ...

class ForgetGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("frozen", "max_offset", "messages_end", "tables_given")
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_END_FIELD_NUMBER: _ClassVar[int]
    TABLES_GIVEN_FIELD_NUMBER: _ClassVar[int]
    frozen: bool
    max_offset: int
    messages_end: int
    tables_given: bool
    def __init__(self, frozen: _Optional[bool] = ..., max_offset: _Optional[int] = ..., messages_end: _Optional[int] = ..., tables_given: _Optional[bool] = ...) -> None: ...

class ElectUncleanRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class ElectUncleanReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetGuaranteeRequest(_message.Message):
    __slots__ = ("setting", "value")
    SETTING_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    setting: str
    value: str
    def __init__(self, setting: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SetGuaranteeReply(_message.Message):
    __slots__ = ("guarantee",)
    class GuaranteeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GUARANTEE_FIELD_NUMBER: _ClassVar[int]
    guarantee: _containers.ScalarMap[str, str]
    def __init__(self, guarantee: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ("cluster", "nodes")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatusReply]
    def __init__(self, cluster: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeStatusReply, _Mapping]]] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[PlannedCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[PlannedCall, _Mapping]]] = ...) -> None: ...

class PlannedCall(_message.Message):
    __slots__ = ("method", "request")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class PutUserRequest(_message.Message):
    __slots__ = ("user", "password", "super", "disabled", "signs", "create", "generation", "generation_counts")
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SUPER_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    SIGNS_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_COUNTS_FIELD_NUMBER: _ClassVar[int]
    user: str
    password: str
    super: bool
    disabled: bool
    signs: bool
    create: bool
    generation: bytes
    generation_counts: bool
    def __init__(self, user: _Optional[str] = ..., password: _Optional[str] = ..., super: _Optional[bool] = ..., disabled: _Optional[bool] = ..., signs: _Optional[bool] = ..., create: _Optional[bool] = ..., generation: _Optional[bytes] = ..., generation_counts: _Optional[bool] = ...) -> None: ...

class UserReply(_message.Message):
    __slots__ = ("user", "super", "disabled", "signs", "recovered_ms", "decision", "generation", "denied", "denial")
    USER_FIELD_NUMBER: _ClassVar[int]
    SUPER_FIELD_NUMBER: _ClassVar[int]
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    SIGNS_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_MS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    DENIAL_FIELD_NUMBER: _ClassVar[int]
    user: str
    super: bool
    disabled: bool
    signs: bool
    recovered_ms: int
    decision: TestAccessReply
    generation: bytes
    denied: bytes
    denial: str
    def __init__(self, user: _Optional[str] = ..., super: _Optional[bool] = ..., disabled: _Optional[bool] = ..., signs: _Optional[bool] = ..., recovered_ms: _Optional[int] = ..., decision: _Optional[_Union[TestAccessReply, _Mapping]] = ..., generation: _Optional[bytes] = ..., denied: _Optional[bytes] = ..., denial: _Optional[str] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class DeleteUserReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ("contains", "after", "limit", "may")
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MAY_FIELD_NUMBER: _ClassVar[int]
    contains: str
    after: str
    limit: int
    may: TestAccessRequest
    def __init__(self, contains: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., may: _Optional[_Union[TestAccessRequest, _Mapping]] = ...) -> None: ...

class ListUsersReply(_message.Message):
    __slots__ = ("users", "total", "next")
    USERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserReply]
    total: int
    next: str
    def __init__(self, users: _Optional[_Iterable[_Union[UserReply, _Mapping]]] = ..., total: _Optional[int] = ..., next: _Optional[str] = ...) -> None: ...

class PutRightsRequest(_message.Message):
    __slots__ = ("user", "rights", "expected")
    USER_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    user: str
    rights: str
    expected: str
    def __init__(self, user: _Optional[str] = ..., rights: _Optional[str] = ..., expected: _Optional[str] = ...) -> None: ...

class GetRightsRequest(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: str
    def __init__(self, user: _Optional[str] = ...) -> None: ...

class RightsReply(_message.Message):
    __slots__ = ("user", "rights")
    USER_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_FIELD_NUMBER: _ClassVar[int]
    user: str
    rights: str
    def __init__(self, user: _Optional[str] = ..., rights: _Optional[str] = ...) -> None: ...

class TestAccessRequest(_message.Message):
    __slots__ = ("user", "action", "resource", "source")
    USER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    user: str
    action: str
    resource: str
    source: str
    def __init__(self, user: _Optional[str] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class IssueTokenRequest(_message.Message):
    __slots__ = ("user", "seconds")
    USER_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    user: str
    seconds: int
    def __init__(self, user: _Optional[str] = ..., seconds: _Optional[int] = ...) -> None: ...

class IssueTokenReply(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class TestAccessReply(_message.Message):
    __slots__ = ("allowed", "entry", "reason")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    entry: str
    reason: str
    def __init__(self, allowed: _Optional[bool] = ..., entry: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CallEnd(_message.Message):
    __slots__ = ("details", "trailing")
    class TrailingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TRAILING_FIELD_NUMBER: _ClassVar[int]
    details: str
    trailing: _containers.ScalarMap[str, str]
    def __init__(self, details: _Optional[str] = ..., trailing: _Optional[_Mapping[str, str]] = ...) -> None: ...
