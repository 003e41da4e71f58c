from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Place(_message.Message):
    __slots__ = ("group", "queue_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue_id: int
    def __init__(self, group: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("topic", "reserve", "open", "revoke", "ask")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    reserve: Reserve
    open: Open
    revoke: Revoke
    ask: Ask
    def __init__(self, topic: _Optional[str] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., revoke: _Optional[_Union[Revoke, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("move", "name", "came_from", "topic_settings", "groups")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAME_FROM_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    move: str
    name: Place
    came_from: Place
    topic_settings: bytes
    groups: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, move: _Optional[str] = ..., name: _Optional[_Union[Place, _Mapping]] = ..., came_from: _Optional[_Union[Place, _Mapping]] = ..., topic_settings: _Optional[bytes] = ..., groups: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("move", "first")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    move: str
    first: int
    def __init__(self, move: _Optional[str] = ..., first: _Optional[int] = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("move", "name", "came_from")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAME_FROM_FIELD_NUMBER: _ClassVar[int]
    move: str
    name: Place
    came_from: Place
    def __init__(self, move: _Optional[str] = ..., name: _Optional[_Union[Place, _Mapping]] = ..., came_from: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("name", "came_from", "named")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAME_FROM_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    name: Place
    came_from: Place
    named: Place
    def __init__(self, name: _Optional[_Union[Place, _Mapping]] = ..., came_from: _Optional[_Union[Place, _Mapping]] = ..., named: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class MoveReply(_message.Message):
    __slots__ = ("reserved", "opened", "revoked", "refused", "nothing", "unknown", "carries")
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NOTHING_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    CARRIES_FIELD_NUMBER: _ClassVar[int]
    reserved: Reserved
    opened: Opened
    revoked: Revoked
    refused: Refused
    nothing: Nothing
    unknown: Unknown
    carries: Opened
    def __init__(self, reserved: _Optional[_Union[Reserved, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., nothing: _Optional[_Union[Nothing, _Mapping]] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., carries: _Optional[_Union[Opened, _Mapping]] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("move", "place")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    move: str
    place: Place
    def __init__(self, move: _Optional[str] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("move", "place", "first")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    move: str
    place: Place
    first: int
    def __init__(self, move: _Optional[str] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., first: _Optional[int] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: str
    def __init__(self, move: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("move", "reason")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    move: str
    reason: str
    def __init__(self, move: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Unknown(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: str
    def __init__(self, move: _Optional[str] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("id", "topic", "queue_id", "bodies", "body_offsets", "properties", "property_offsets", "born_time", "born_host", "flag", "sysflag", "reconsume_times", "prepared_offset", "producer", "sequence", "fields", "expect_offset", "again", "repeat", "no_wait", "placed", "resume", "source", "epoch", "from_queue", "past")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    BODY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTY_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BORN_TIME_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    SYSFLAG_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    PREPARED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    EXPECT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    id: int
    topic: str
    queue_id: int
    bodies: bytes
    body_offsets: bytes
    properties: bytes
    property_offsets: bytes
    born_time: int
    born_host: str
    flag: int
    sysflag: int
    reconsume_times: int
    prepared_offset: int
    producer: bytes
    sequence: int
    fields: bytes
    expect_offset: int
    again: bool
    repeat: bool
    no_wait: bool
    placed: bool
    resume: bool
    source: str
    epoch: int
    from_queue: int
    past: Past
    def __init__(self, id: _Optional[int] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., bodies: _Optional[bytes] = ..., body_offsets: _Optional[bytes] = ..., properties: _Optional[bytes] = ..., property_offsets: _Optional[bytes] = ..., born_time: _Optional[int] = ..., born_host: _Optional[str] = ..., flag: _Optional[int] = ..., sysflag: _Optional[int] = ..., reconsume_times: _Optional[int] = ..., prepared_offset: _Optional[int] = ..., producer: _Optional[bytes] = ..., sequence: _Optional[int] = ..., fields: _Optional[bytes] = ..., expect_offset: _Optional[int] = ..., again: _Optional[bool] = ..., repeat: _Optional[bool] = ..., no_wait: _Optional[bool] = ..., placed: _Optional[bool] = ..., resume: _Optional[bool] = ..., source: _Optional[str] = ..., epoch: _Optional[int] = ..., from_queue: _Optional[int] = ..., past: _Optional[_Union[Past, _Mapping]] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("name", "first")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    name: Place
    first: int
    def __init__(self, name: _Optional[_Union[Place, _Mapping]] = ..., first: _Optional[int] = ...) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("id", "status", "reason", "queue_offset", "physical_offset", "store_time", "count", "known", "store_host", "remoting_host", "stored_at", "no_place", "places")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    REMOTING_HOST_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_FIELD_NUMBER: _ClassVar[int]
    NO_PLACE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: str
    reason: str
    queue_offset: int
    physical_offset: int
    store_time: int
    count: int
    known: _containers.RepeatedCompositeFieldContainer[Known]
    store_host: str
    remoting_host: str
    stored_at: Place
    no_place: bool
    places: bytes
    def __init__(self, id: _Optional[int] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_time: _Optional[int] = ..., count: _Optional[int] = ..., known: _Optional[_Iterable[_Union[Known, _Mapping]]] = ..., store_host: _Optional[str] = ..., remoting_host: _Optional[str] = ..., stored_at: _Optional[_Union[Place, _Mapping]] = ..., no_place: _Optional[bool] = ..., places: _Optional[bytes] = ...) -> None: ...

class Known(_message.Message):
    __slots__ = ("count", "queue_offset")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    count: int
    queue_offset: int
    def __init__(self, count: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class CrossRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "group", "group_settings", "resets", "crossed", "close", "end", "begin")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GROUP_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    RESETS_FIELD_NUMBER: _ClassVar[int]
    CROSSED_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    group: str
    group_settings: bytes
    resets: int
    crossed: int
    close: bool
    end: bool
    begin: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., group: _Optional[str] = ..., group_settings: _Optional[bytes] = ..., resets: _Optional[int] = ..., crossed: _Optional[int] = ..., close: _Optional[bool] = ..., end: _Optional[bool] = ..., begin: _Optional[int] = ...) -> None: ...

class CrossReply(_message.Message):
    __slots__ = ("resets", "open", "end", "no_place")
    RESETS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NO_PLACE_FIELD_NUMBER: _ClassVar[int]
    resets: int
    open: bool
    end: int
    no_place: bool
    def __init__(self, resets: _Optional[int] = ..., open: _Optional[bool] = ..., end: _Optional[int] = ..., no_place: _Optional[bool] = ...) -> None: ...
