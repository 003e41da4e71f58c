"""The body of a message in every form that it has, within bounds."""

import json
from dataclasses import dataclass

BODY_BYTES = 64 << 10  # of a body that a page shows
JSON_CHARACTERS = 4 * BODY_BYTES  # of a body that is set out over lines
HEX_BYTES = 4096


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
