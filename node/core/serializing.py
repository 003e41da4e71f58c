"""Messages of very many rows, serialized in slices.

Rule of protobuf: the bytes of a message are those of its fields, one after the other, and a row of
a repeated field is a field by itself. So they may be made a few rows at a time.
"""

from collections.abc import Container
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from duolog_server.node.core.slices import Slices

ROWS_MAX = 1000  # of a field; fewer are serialized at once
AT_ONCE = 100
LENGTH_DELIMITED = 2


@lru_cache(4096)
def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


async def serialized(message: Message, slices: Slices) -> bytes:
    """The bytes of a message; it may not change meanwhile."""
    fields = message.ListFields()
    long = [(field, rows) for field, rows in fields if _is_long(field, rows)]
    if not long:
        return message.SerializeToString()
    made = bytearray(_without(message, {field.name for field, _ in long}).SerializeToString())
    for field, rows in long:
        tag = _varint(field.number << 3 | LENGTH_DELIMITED)
        async for part in slices.parts(rows, AT_ONCE):
            for row in part:
                data = row.SerializeToString()
                made += tag + _varint(len(data)) + data
    return bytes(made)


def _is_long(field: FieldDescriptor, rows: Any) -> bool:
    if not field.is_repeated or field.message_type is None or len(rows) <= ROWS_MAX:
        return False
    return not field.message_type.GetOptions().map_entry


def _without(message: Message, long: Container[str]) -> Message:
    """The other fields of a message."""
    made = type(message)()
    for field, value in message.ListFields():
        if field.name in long:
            continue
        if field.is_repeated or field.message_type is not None:
            getattr(made, field.name).MergeFrom(value)
        else:
            setattr(made, field.name, value)
    return made
