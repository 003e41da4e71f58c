"""Requests of values that a program gave: what a field cannot hold is refused by name, in words.

Every value is checked against its field's type, which is written once, in the protocol's schema.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from duolog._checks import (
    INT32_MAX,
    INT64_MAX,
    UINT32_MAX,
    checked_body,
    checked_flag,
    checked_text,
    checked_texts,
    checked_whole,
    checked_wholes,
)

M = TypeVar("M", bound=Message)
P = ParamSpec("P")

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-INT32_MAX - 1, INT32_MAX),
    FieldDescriptor.CPPTYPE_UINT32: (0, UINT32_MAX),
    FieldDescriptor.CPPTYPE_INT64: (-INT64_MAX - 1, INT64_MAX),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2 * INT64_MAX + 1),
}
# What the SDK calls fields that have another name in its parameters.
_NAMES = {
    "super": "is_super",
    "max": "count",
    "begin_time": "begin_ms",
    "end_time": "end_ms",
    "bytes": "size",
}


def checked_request(kind: Callable[P, M], /, *args: P.args, **fields: P.kwargs) -> M:
    """A request of these fields; None leaves out one that need not be there. Raises BadRequest."""
    known = kind.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]
    given: dict[str, Any] = {
        name: _checked(known[name], value)
        for name, value in fields.items()
        if value is not None or not known[name].has_presence
    }
    return kind(*args, **given)


def _checked(field: FieldDescriptor, value: Any) -> object:
    name, kind = _NAMES.get(field.name, field.name), field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return checked_body(name, value)
        if field.is_repeated:
            return checked_texts(name, value, empty=True)
        return checked_text(name, value, empty=True)
    if kind in _RANGES:
        checked = checked_wholes if field.is_repeated else checked_whole
        return checked(name, value, *_RANGES[kind])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return checked_flag(name, value)
    return value  # the SDK's own
