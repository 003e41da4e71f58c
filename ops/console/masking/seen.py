"""A message as a viewer sees it, with its body in every form; pages show messages through it only.

Rules: a page shows of a body and of user properties what is found here, and nothing else. Masks
hold for everybody. A message that was moved (a retry, a dead letter, one that waits) is masked as
those of its original topic are, too; where there are masks, what nodes keep without such a topic,
as batches that are not published yet, is hidden. Bodies are shown within bounds.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from duolog import BadRequest, FoundMessage, Message
from duolog._columns import RESERVED

from duolog_server.ops.console.masking.masks import Mask, Masks
from duolog_server.ops.inspection.messages.protobodies import (
    BadBody,
    BadDescriptors,
    ProtoType,
    ProtoTypes,
    as_json,
)
from duolog_server.ops.inspection.messages.sending import is_users
from duolog_server.ops.inspection.searching.terms import SEARCHED, Needle

BODY_BYTES = 64 << 10  # of a body that a page shows
JSON_CHARACTERS = 4 * BODY_BYTES  # of a body that is set out over lines
HEX_BYTES = 4096
LINE_CHARACTERS = 160
ORIGINS = ("RETRY_TOPIC", "REAL_TOPIC", "DLQ_ORIGIN_TOPIC")  # properties that nodes set
BY_POLICY = "The console hides the bodies of this topic."
NOT_UNDERSTOOD = (
    "The console masks values in bodies of this topic, and this one is hidden: it is neither JSON "
    f"nor Protobuf of a known type, or longer than {BODY_BYTES >> 10} KiB."
)


@dataclass(frozen=True, slots=True)
class Body:
    """A body as text, JSON, Protobuf and bytes. cut: bytes that are not shown.

    type_name: that its topic's bodies have as Protobuf; wrong: why that does not show it. hidden:
    why nothing of it is shown. masked: values in it are replaced.
    """

    text: str = ""
    json: str = ""
    hexadecimal: str = ""
    cut: int = 0
    protobuf: str = ""
    type_name: str = ""
    wrong: str = ""
    hidden: str = ""
    masked: bool = False


def body_of(body: bytes) -> Body:
    """A body in every form that it has."""
    shown = body[:BODY_BYTES]
    cut = len(body) - len(shown)
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        text = shown[: error.start].decode() if cut and error.start > BODY_BYTES - 4 else ""
    pretty = ""
    if text[:1] in ("{", "[") and not cut:
        pretty = set_out(text)
    return Body(text, pretty, _hex(shown[:HEX_BYTES]), cut)


def set_out(text: str) -> str:
    """JSON with a value a line; empty where it is none, or grows out of bounds by its depth."""
    try:
        return value_set_out(json.loads(text))
    except (ValueError, RecursionError):
        return ""


def value_set_out(value: object) -> str:
    """`set_out` for a value."""
    lines, characters = [], 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
            lines.append(part)
            characters += len(part)
            if characters > JSON_CHARACTERS:
                return ""
        pretty = "".join(lines)
        pretty.encode()  # an escape may name half a character
    except (ValueError, RecursionError):
        return ""
    return pretty


def _hex(body: bytes) -> str:
    """Sixteen bytes a line, as `hexdump -C` has them."""
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Seeing:
    """How messages are seen. types: of bodies that are Protobuf. masks: what is not shown."""

    types: ProtoTypes = field(default_factory=ProtoTypes)
    masks: Masks = field(default_factory=Masks)

    def see(self, message: Message | FoundMessage) -> "Seen":
        """A message as viewers see it."""
        stored = message.stored_topic if isinstance(message, Message) else message.topic
        found = (message.properties.get(name, "") for name in ORIGINS)
        origins = [topic for topic in found if topic]
        topics = (*origins, message.topic, stored)
        mask = self.masks.mask_of(topics)
        if self.masks.rules and not origins and not is_users(stored):
            mask = Mask(hidden=True)
        return Seen(message, topics, mask, self.types)

    def mask_of(self, topic: str) -> Mask:
        """The mask for a topic's messages."""
        return self.masks.mask_of([topic])

    def check_sql(self, topic: str, expression: str) -> None:
        """Raise BadRequest where what an expression matches would tell what is not shown."""
        mask = self.mask_of(topic)
        if mask.hidden:
            raise BadRequest(f"the console hides the properties of {topic}: search by text instead")
        named = mask.names_in(expression)
        if named:
            raise BadRequest(f"the console masks {named[0]} in {topic}: leave it out of the SQL")


@dataclass(frozen=True, slots=True)
class Seen:
    """A message as viewers see it."""

    _message: Message | FoundMessage
    _topics: Sequence[str]
    _mask: Mask
    _types: ProtoTypes

    @property
    def whole(self) -> bool:
        """Whether all of it is shown."""
        return not self._mask

    @property
    def line(self) -> str:
        """The beginning of the body, for a list; empty where it is hidden."""
        value = self._masked() if self._mask else self._unmasked()
        text = as_json(value) if value is not None else ""
        if not self._mask and value is None:
            text = self._message.body[: 4 * LINE_CHARACTERS].decode(errors="replace")
        # An escape in JSON may name half a character.
        return text[:LINE_CHARACTERS].encode(errors="replace").decode()

    @property
    def properties(self) -> dict[str, str]:
        """All properties that are shown."""
        found = self._message.properties
        if self._mask.hidden:
            return {name: value for name, value in found.items() if name in RESERVED}
        return self._mask.properties(found)

    @property
    def body(self) -> Body:
        """The body in every form that is shown."""
        if self._mask.hidden:
            return Body(hidden=BY_POLICY)
        if not self._mask:
            return self._with_protobuf(body_of(self._message.body))
        value = self._masked()
        shown = value_set_out(value) if value is not None else ""
        if not shown:
            return Body(hidden=NOT_UNDERSTOOD, masked=True)
        made = self._type()
        if made is not None:
            return Body(protobuf=shown, type_name=made.type_name, masked=True)
        return Body(text=shown, json=shown, masked=True)

    def tells(self, expression: str) -> bool:
        """Whether that it matches an SQL expression tells what is not shown of it."""
        return self._mask.hidden or bool(self._mask.names_in(expression))

    def has(self, needle: Needle) -> bool:
        """Whether what is shown of it has a text."""
        return any(needle.within(text) for text in self._texts())

    def _texts(self) -> Iterator[bytes]:
        for name, text in self.properties.items():
            if name not in RESERVED:
                yield name.encode()
            if name not in RESERVED or name in SEARCHED:
                yield text.encode()
        if not self._mask:
            yield self._message.body
        elif (value := self._masked()) is not None:
            yield as_json(value).encode(errors="replace")
            yield json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
                errors="replace"
            )

    def _masked(self) -> object | None:
        """The body's value, masked; None where it is not understood."""
        body = self._message.body
        if self._mask.hidden or len(body) > BODY_BYTES:
            return None
        try:
            made = self._type()
            value: object = made.value(body, named=True) if made is not None else json.loads(body)
            return self._mask.value(value) if isinstance(value, dict | list) else None
        except (BadBody, ValueError, RecursionError):
            return None

    def _type(self) -> ProtoType | None:
        try:
            return self._known_type()
        except BadDescriptors:
            return None

    def _known_type(self) -> ProtoType | None:
        """The type of the bodies of its topic, the original one first. Raises BadDescriptors."""
        return next(filter(None, map(self._types.type_of, self._topics)), None)

    def _with_protobuf(self, body: Body) -> Body:
        """A body as Protobuf, too, where its topic has a type."""
        try:
            made = self._known_type()
        except BadDescriptors as error:
            return replace(body, wrong=f"{error}.")
        if made is None:
            return body
        if body.cut:
            told = f"It is longer than {BODY_BYTES >> 10} KiB, and not shown as Protobuf."
            return replace(body, type_name=made.type_name, wrong=told)
        try:
            shown = value_set_out(made.value(self._message.body))
        except BadBody as error:
            return replace(body, type_name=made.type_name, wrong=f"{error}.")
        told = "" if shown else "It is too deep or too long to be shown as Protobuf."
        return replace(body, protobuf=shown, type_name=made.type_name, wrong=told)

    def _unmasked(self) -> object | None:
        """The value of a body that is Protobuf; None for any other."""
        made, body = self._type(), self._message.body
        if made is None or len(body) > BODY_BYTES:
            return None
        try:
            return made.value(body)
        except BadBody:
            return None
