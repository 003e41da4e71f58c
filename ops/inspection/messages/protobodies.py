"""Bodies that are Protobuf messages, with the names of their fields.

Rules: the descriptors are those that an operator gives, and no others. All that a body holds is
shown: fields without a name by their numbers. A body that does not parse is reported, never guessed
at. Nested messages have a bound of their own, that of protobuf's parser.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message
    from google.protobuf.unknown_fields import UnknownFieldSet

# The tree of commands imports this module: it imports protobuf when there is something to show.

FILE_BYTES_MAX = 16 << 20
NAMED = 5  # types that an error names
MAKE = "make it with: protoc --include_imports --descriptor_set_out=FILE"
WELL_KNOWN = "google.protobuf."
UNNAMED = "•••"


class BadDescriptors(ValueError):
    """A rule, its file or its type cannot be used; its text says why."""


class BadBody(ValueError):
    """A body does not parse as a message of its type; its text says why."""


@dataclass(frozen=True, slots=True)
class ProtoRule:
    """pattern: of topics, with * and ?. file: a FileDescriptorSet. type_name: of their bodies."""

    pattern: str
    file: Path
    type_name: str

    @staticmethod
    def of(text: str) -> "ProtoRule":
        """TOPIC=FILE:TYPE. Raises BadDescriptors."""
        pattern, separator, rest = text.partition("=")
        file, colon, type_name = rest.rpartition(":")
        if not (separator and colon and pattern.strip() and file.strip() and type_name.strip()):
            raise BadDescriptors(f"{text!r} is not of the form TOPIC=FILE:TYPE")
        return ProtoRule(pattern.strip(), Path(file.strip()), type_name.strip())


class ProtoType:
    """A type of messages, out of a file of descriptors."""

    def __init__(self, file: Path, type_name: str) -> None:
        """Raises BadDescriptors."""
        from google.protobuf.message_factory import GetMessageClass

        self.type_name = type_name
        found = _descriptors_of(file)
        self._pool = _pool_of(found, file)
        try:
            self._made = GetMessageClass(self._pool.FindMessageTypeByName(type_name))
        except KeyError:
            raise BadDescriptors(
                f"{file} has no message type {type_name!r}{_types(found)}"
            ) from None

    @staticmethod
    def of(text: str) -> "ProtoType":
        """FILE:TYPE. Raises BadDescriptors."""
        rule = ProtoRule.of(f"*={text}") if ":" in text else None
        if rule is None:
            raise BadDescriptors(f"{text!r} is not of the form FILE:TYPE")
        return ProtoType(rule.file, rule.type_name)

    def value(self, body: bytes, *, named: bool = False) -> dict[str, object]:
        """A body, as values that JSON has. Raises BadBody.

        named: of what the descriptors have no name for, only the place is shown.
        """
        from google.protobuf.message import DecodeError

        made = self._made()
        try:
            made.ParseFromString(body)
            return _Values(self._pool, named).fields(made)
        except (DecodeError, RecursionError) as error:
            why = str(error).rpartition(": ")[2]
            raise BadBody(f"the body is not a valid {self.type_name}: {why}") from None


@dataclass(frozen=True, slots=True)
class _Values:
    """Messages as values. named: see `ProtoType.value`."""

    pool: "DescriptorPool"
    named: bool

    def fields(self, message: "Message") -> dict[str, object]:
        """A message, field by field."""
        from google.protobuf.unknown_fields import UnknownFieldSet

        found: dict[str, object] = {}
        for field, value in message.ListFields():
            name = f"[{field.full_name}]" if field.is_extension else field.name
            found[name] = self._of_field(field, value)
        unknown = _unknown(UnknownFieldSet(message))
        return found | (dict.fromkeys(unknown, UNNAMED) if self.named else unknown)

    def _of_field(self, field: "FieldDescriptor", value: Any) -> object:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields_by_name["value"]
            return {str(key): self._single(of_value, one) for key, one in value.items()}
        if field.is_repeated:
            return [self._single(field, one) for one in value]
        return self._single(field, value)

    def _single(self, field: "FieldDescriptor", value: Any) -> object:
        if field.enum_type is not None:
            named = field.enum_type.values_by_number.get(value)
            return named.name if named is not None else value
        if field.message_type is not None:
            return self._message(value)
        return _text(value) if isinstance(value, bytes) else value

    def _message(self, message: "Message") -> object:
        """Protobuf's own types as its JSON has them, as a time; others field by field."""
        if message.DESCRIPTOR.full_name.startswith(WELL_KNOWN):
            from google.protobuf.json_format import Error, MessageToDict

            try:
                return MessageToDict(
                    message, preserving_proto_field_name=True, descriptor_pool=self.pool
                )
            except (Error, ValueError, TypeError):
                # Out of its range, or of a type that the file does not have.
                return UNNAMED if self.named else self.fields(message)
        return self.fields(message)


@dataclass(frozen=True)
class ProtoTypes:
    """The types of topics' bodies; the first rule that matches a topic counts."""

    rules: Sequence[ProtoRule] = ()

    @staticmethod
    def of(texts: Iterable[str]) -> "ProtoTypes":
        """Read the rules of the configuration. Raises BadDescriptors for an invalid rule."""
        return ProtoTypes([ProtoRule.of(text) for text in texts])

    @cached_property
    def _types(self) -> Mapping[ProtoRule, "ProtoType | BadDescriptors"]:
        return {rule: _type_of(rule) for rule in self.rules}

    @property
    def wrong(self) -> list[str]:
        """Errors in files and types, with the rules that name them."""
        found = self._types.items()
        return [
            f"{rule.pattern}={rule.file}:{rule.type_name}: {made}"
            for rule, made in found
            if isinstance(made, BadDescriptors)
        ]

    def type_of(self, topic: str) -> ProtoType | None:
        """The type of a topic's bodies; None: not known. Raises BadDescriptors."""
        rule = next((one for one in self.rules if fnmatchcase(topic, one.pattern)), None)
        made = self._types[rule] if rule is not None else None
        if isinstance(made, BadDescriptors):
            raise made
        return made


def _type_of(rule: ProtoRule) -> ProtoType | BadDescriptors:
    try:
        return ProtoType(rule.file, rule.type_name)
    except BadDescriptors as error:
        return error


def _read(file: Path) -> bytes:
    """A file's bytes. Raises BadDescriptors; a pipe could be waited for, and read, for ever."""
    try:
        if file.exists() and not file.is_file():
            raise BadDescriptors(f"{file} is not a regular file: {MAKE}")
        with file.open("rb") as opened:
            found = opened.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadDescriptors(f"cannot read {file}: {why}") from None
    if len(found) > FILE_BYTES_MAX:
        raise BadDescriptors(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB")
    return found


def _descriptors_of(file: Path) -> "FileDescriptorSet":
    """The descriptors of a file, at least one. Raises BadDescriptors."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(_read(file))
    except DecodeError:
        raise BadDescriptors(f"{file} is not a file of descriptors: {MAKE}") from None
    if not found.file:
        raise BadDescriptors(f"{file} has no descriptors: {MAKE}")
    return found


def _pool_of(found: "FileDescriptorSet", file: Path) -> "DescriptorPool":
    """These descriptors, and nothing else. file: that they are of. Raises BadDescriptors."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for one in found.file:
        try:
            pool.AddSerializedFile(one.SerializeToString())
        except (TypeError, ValueError) as error:
            told = f"{file}: {one.name or 'a file without a name'} cannot be used ({error})"
            raise BadDescriptors(f"{told}: {MAKE}") from None
    return pool


def _types(found: "FileDescriptorSet") -> str:
    """Some of the types that a file has, for an error."""
    names = [
        ".".join(filter(None, (f.package, m.name))) for f in found.file for m in f.message_type
    ]
    own = [name for name in names if not name.startswith(WELL_KNOWN)]
    more = ", ..." if len(own) > NAMED else ""
    return f"; it has {', '.join(own[:NAMED])}{more}" if own else ""


def _unknown(fields: "UnknownFieldSet") -> dict[str, object]:
    """Fields that the type does not have, by their numbers."""
    found: dict[str, list[object]] = {}
    for k in range(len(fields)):
        field = fields[k]
        data = field.data
        if isinstance(data, bytes):
            data = _text(data)
        elif not isinstance(data, int):
            data = _unknown(data)  # a group
        found.setdefault(str(field.field_number), []).append(data)
    return {number: one[0] if len(one) == 1 else one for number, one in found.items()}


def _text(data: bytes) -> str:
    """Bytes, as Protobuf's JSON has them."""
    return base64.b64encode(data).decode()


def as_json(value: object) -> str:
    """A value on one line."""
    return json.dumps(value, ensure_ascii=False)
