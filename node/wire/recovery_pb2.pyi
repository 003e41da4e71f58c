from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginReply(_message.Message):
    __slots__ = ("challenge", "cluster", "group", "node")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    challenge: str
    cluster: str
    group: str
    node: str
    def __init__(self, challenge: _Optional[str] = ..., cluster: _Optional[str] = ..., group: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class RecoverRequest(_message.Message):
    __slots__ = ("challenge", "user", "password_hash", "mark")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_HASH_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    challenge: str
    user: str
    password_hash: str
    mark: str
    def __init__(self, challenge: _Optional[str] = ..., user: _Optional[str] = ..., password_hash: _Optional[str] = ..., mark: _Optional[str] = ...) -> None: ...

class RecoverReply(_message.Message):
    __slots__ = ("created", "others")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    created: bool
    others: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, created: _Optional[bool] = ..., others: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "endpoints")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ...) -> None: ...
