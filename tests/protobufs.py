"""A file of descriptors as protoc makes it, for tests of bodies that are Protobuf."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

ORDER = "shop.Order"
Kind = descriptor_pb2.FieldDescriptorProto.Type


def descriptors() -> FileDescriptorSet:
    """shop.Order, with what it imports."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/any.proto"])
    line = file.message_type.add(name="Line")
    _add(line, "article", 1, Field.TYPE_STRING)
    _add(line, "count", 2, Field.TYPE_INT32)
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    _add(order, "id", 1, Field.TYPE_INT64)
    _add(order, "lines", 2, Field.TYPE_MESSAGE, ".shop.Line", many=True)
    _add(order, "state", 3, Field.TYPE_ENUM, ".shop.State")
    _add(order, "card", 4, Field.TYPE_STRING)
    _add(order, "raw", 5, Field.TYPE_BYTES)
    _add(order, "at", 6, Field.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    _add(order, "parent", 7, Field.TYPE_MESSAGE, ".shop.Order")
    _add(order, "more", 8, Field.TYPE_MESSAGE, ".google.protobuf.Any")
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, Field.TYPE_STRING)
    _add(entry, "value", 2, Field.TYPE_MESSAGE, ".shop.Line")
    _add(order, "prices", 9, Field.TYPE_MESSAGE, ".shop.Order.PricesEntry", many=True)
    found = FileDescriptorSet()
    for known in (timestamp_pb2.DESCRIPTOR, any_pb2.DESCRIPTOR):
        known.CopyToProto(found.file.add())
    found.file.append(file)
    return found


def _add(
    message: Any,
    name: str,
    number: int,
    kind: "Kind.ValueType",
    type_name: str = "",
    *,
    many: bool = False,
) -> None:
    label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=label)


def file_of(directory: Path, found: FileDescriptorSet | None = None) -> Path:
    """A file with them."""
    path = directory / "shop.desc"
    path.write_bytes((found or descriptors()).SerializeToString())
    return path


def order(**fields: Any) -> Any:
    """An order."""
    pool = DescriptorPool()
    for one in descriptors().file:
        pool.AddSerializedFile(one.SerializeToString())
    made = GetMessageClass(pool.FindMessageTypeByName(ORDER))()
    for name, value in fields.items():
        _set(made, name, value)
    return made


def _set(made: Message, name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for inner, one in value.items():
            _set(getattr(made, name), inner, one)
    else:
        setattr(made, name, value)
