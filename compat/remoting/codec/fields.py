"""How the fields of headers are read and written: they travel as texts.

The name of a field on the wire is that of its attribute in camelCase, unless the field says
otherwise. A field without a default must be there; unknown fields are left out.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from duolog_server.compat.remoting.codec.command import BadRequest

Int = Annotated[int, 32]
Long = Annotated[int, 64]
H = TypeVar("H")
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")
_FITTING_DIGITS = {32: 9, 64: 18}  # by the bits of a number
TEXT_MAX = 80  # of a value in an error
_KNOWN = {str(number): number for number in range(1024)}  # queues, flags, counts
_TRUTHS = {"true": True, "false": False}


class Field(NamedTuple):
    """One field. bits: of a number; 0 for a text, 1 for a truth value. default: where it is not
    required. key: its name where it is read, if that is another one. known: values of usual texts.
    """

    attribute: str
    name: str
    bits: int
    required: bool
    default: object
    key: str
    known: Mapping[str, int]


_FIELDS: dict[type, tuple[Field, ...]] = {}


def fields_of(kind: type) -> tuple[Field, ...]:
    """The fields of a class."""
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = _fields_of(kind)
    return found


def _fields_of(kind: type) -> tuple[Field, ...]:
    hints = get_type_hints(kind, include_extras=True)
    assert dataclasses.is_dataclass(kind), "headers are dataclasses"
    return tuple(_field_of(one, hints[one.name]) for one in dataclasses.fields(kind))


def _field_of(one: "dataclasses.Field[Any]", hint: object) -> Field:
    name = one.metadata.get("name") or camel(one.name)
    required = one.default is dataclasses.MISSING
    bits = _bits(hint)
    return Field(one.name, name, bits, required, one.default, name, _KNOWN if bits > 1 else _TRUTHS)


def camel(name: str) -> str:
    """A name of Python's as RocketMQ writes it: `queue_id` is `queueId`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _bits(hint: object) -> int:
    if get_origin(hint) is Annotated:
        return int(get_args(hint)[1])
    return 1 if hint is bool else 0


def read_header(kind: type[H], texts: Mapping[str, str]) -> H:
    """A header of its fields. Raises BadRequest."""
    return read_fields(kind, fields_of(kind), texts)


def read_fields(kind: type[H], fields: tuple[Field, ...], texts: Mapping[str, str]) -> H:
    """The same, by the keys of these fields, which are all that it has. Raises BadRequest."""
    values: list[object] = []
    for _, name, bits, required, default, key, known in fields:
        text = texts.get(key)
        if text:
            if not bits:
                values.append(text)
            elif text in known:
                values.append(known[text])
            else:
                values.append(_value(name, bits, text))
        elif not required:
            values.append(default)
        elif text is None or bits:
            raise BadRequest(f"the field {name} is missing")
        else:
            values.append(text)
    return kind(*values)


def write_header(header: object) -> dict[str, str]:
    """The fields of a header."""
    return {
        field.name: written(getattr(header, field.attribute)) for field in fields_of(type(header))
    }


def written(value: object) -> str:
    """A value as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, bits: int, text: str) -> int | bool:
    if bits == 1:
        return text.lower() == "true"
    if len(text) <= _FITTING_DIGITS[bits] and text.isascii() and text.isdecimal():
        return int(text)  # as nearly all are
    if not _NUMBER.fullmatch(text):
        raise BadRequest(f"the field {name} is not a number: {text[:TEXT_MAX]!r}")
    number, limit = int(text), 1 << bits - 1
    if not -limit <= number < limit:
        raise BadRequest(f"the field {name} does not fit {bits} bits: {number}")
    return number
