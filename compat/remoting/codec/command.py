"""A command: one request or response, and its frame.

| bytes | field |
|------:|-------|
| 4 | length of all that follows |
| 4 | serialization (highest byte) and length of the header |
| h | header |
| rest | body |

The header is JSON (0) or RocketMQ's binary form (1); an answer has the one of its request:

| bytes | binary header |      | bytes | |
|------:|---------------|------|------:|---|
| 2 | code |               | 4 | flag |
| 1 | language |           | 4, n | remark |
| 2 | version |            | 4, n | fields: 2, n name and 4, n value each |
| 4 | opaque |

Big-endian; a length of 0 is no text. Rule: a length is compared with what is there before any byte
of it is used. Source: Apache RocketMQ 4.9.8, RemotingCommand and RocketMQSerializable.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from json.encoder import encode_basestring_ascii as _quoted


class BadFrame(Exception):
    """Bytes that are not a frame of the protocol: their connection has to be closed."""


class BadRequest(Exception):
    """A whole frame whose fields or body cannot be used: it is answered with an error."""


VERSION = 409  # clients take the version of answers for the broker's
VERSION_NAME = "V4_9_8"
RESPONSE, ONEWAY = 0x1, 0x2
HEADER_BYTES_MAX = 1 << 18  # 32 KiB of properties, each byte of them escaped, and room
FIELDS_MAX = 256
LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST",
)  # fmt: skip
OTHER = "OTHER"
_NUMBERS = {name: number for number, name in enumerate(LANGUAGES)}
_LENGTHS = struct.Struct(">II")
LENGTHS_BYTES = _LENGTHS.size  # before a header
_HEAD = struct.Struct(">hBhii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
NUMBER_MAX = (1 << 31) - 1  # of requests, and of all integers
LONG_CHARACTERS = 256
_PLAIN = bytes(set(range(32, 127)) - {ord('"'), ord("\\")})  # that JSON does not escape
_SURROGATE = b"\\ud"
_TEXTS = {str}
_decode = json.JSONDecoder().raw_decode


class Serialization(IntEnum):
    """The form of a header."""

    JSON = 0
    ROCKETMQ = 1


@dataclass(slots=True)  # never changed; but frozen, each would take three times as long to make
class Command:
    """A request or a response. fields: its header, as texts. opaque: what its answer repeats.

    template: of a send, the same with nothing in the places that differ (see `sends`); others have
    the same one.
    """

    code: int
    opaque: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str = ""
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    serialization: Serialization = Serialization.JSON
    template: "Command | None" = field(default=None, compare=False, repr=False)

    @property
    def is_response(self) -> bool:
        """It answers a request."""
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the request needs no answer."""
        return bool(self.flag & ONEWAY)

    @property
    def size(self) -> int:
        """About as many bytes as it has, without what every command has."""
        return len(self.body) + sum(len(name) + len(text) for name, text in self.fields.items())

    def bare(self) -> "Command":
        """The command without its body: all that a delayed answer needs."""
        return Command(
            self.code,
            self.opaque,
            flag=self.flag,
            language=self.language,
            version=self.version,
            serialization=self.serialization,
        )

    def answer(
        self,
        code: int,
        remark: str = "",
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> "Command":
        """The response to this request."""
        return Command(
            code,
            self.opaque,
            fields or {},
            body,
            remark,
            RESPONSE,
            serialization=self.serialization,
        )

    def head(self) -> bytes:
        """The frame up to the body."""
        binary = self.serialization is Serialization.ROCKETMQ
        header = _binary(self) if binary else _json(self)
        return with_lengths(header, self.serialization, len(self.body))

    def frame(self) -> bytes:
        """The whole frame."""
        return self.head() + self.body


def with_lengths(header: bytes, serialization: int = 0, body_bytes: int = 0) -> bytes:
    """The frame up to a body of so many bytes."""
    size = 4 + len(header) + body_bytes
    return _LENGTHS.pack(size, serialization << 24 | len(header)) + header


def read(serialization: int, header: bytes, body: bytes) -> Command:
    """The command with a header of a frame. Raises BadFrame."""
    if serialization == Serialization.JSON:
        return _read_json(header, body)
    if serialization == Serialization.ROCKETMQ:
        return _read_binary(header, body)
    raise BadFrame(f"a header has serialization {serialization}; supported: 0 (JSON) and 1")


# -- JSON ------------------------------------------------------------------------------------------


def _json(command: Command) -> bytes:
    """Written here: json.dumps makes an encoder for each text, and takes three times as long."""
    header = (
        f'{{"code":{command.code},"flag":{command.flag},"language":{_quoted(command.language)},'
        f'"opaque":{command.opaque},"serializeTypeCurrentRPC":"JSON","version":{command.version}'
    )
    if command.fields:
        pairs = [
            f"{_quoted(name)}:{(_quoted if len(text) <= LONG_CHARACTERS else _long)(text)}"
            for name, text in command.fields.items()
        ]
        header += f',"extFields":{{{",".join(pairs)}}}'
    if command.remark:
        header += f',"remark":{_quoted(command.remark)}'
    return f"{header}}}".encode()


def _long(text: str) -> str:
    """A long text in JSON: mostly ids of a batch, which stay as they are."""
    if text.isascii() and not text.encode().translate(None, _PLAIN):
        return f'"{text}"'
    return _quoted(text)


def _read_json(header: bytes, body: bytes) -> Command:
    try:
        read = _loaded(header.decode())  # strictly UTF-8: bytes might have half characters
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a header is not JSON: {str(error)[:200]}") from None
    if not isinstance(read, dict):
        raise BadFrame("a header in JSON is not an object")
    texts = sound if _SURROGATE in header.lower() else _same
    language = read.get("language")
    return Command(
        _number(read, "code"),
        _number(read, "opaque"),
        _json_fields(read.get("extFields"), texts),
        body,
        texts(_text(read.get("remark"), "remark")),
        _number(read, "flag"),
        texts(language) if isinstance(language, str) else OTHER,
        _number(read, "version"),
        Serialization.JSON,
    )


def _loaded(text: str) -> object:
    """json.loads without its search for spaces."""
    if text.startswith("{"):
        found, end = _decode(text)
        if end == len(text):
            return found
    return json.loads(text)


def _json_fields(found: object, texts: Callable[[str], str]) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadFrame("extFields of a header is not an object")
    if len(found) > FIELDS_MAX:
        raise BadFrame(f"a header has {len(found)} fields, the limit is {FIELDS_MAX}")
    if texts is _same and set(map(type, found.values())) == _TEXTS:  # as nearly all are
        return found
    return {
        texts(name): texts(_text(value, name)) for name, value in found.items() if value is not None
    }


def _text(value: object, name: str) -> str:
    """A value as text, as RocketMQ's clients write all of them; numbers are accepted."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -(1 << 63) <= value < 1 << 64 else ""
    raise BadFrame(f"field {name[:80]!r} of a header is not a text")


def _same(text: str) -> str:
    return text


def sound(text: str) -> str:
    """A text that can be encoded: JSON may name halves of characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _number(header: dict[str, object], name: str) -> int:
    value = header.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadFrame(f"{name} of a header is not a number")
    if not -NUMBER_MAX - 1 <= value <= NUMBER_MAX:
        raise BadFrame(f"{name} of a header does not fit 32 bits")
    return value


# -- RocketMQ's binary form ------------------------------------------------------------------------


def _binary(command: Command) -> bytes:
    language = _NUMBERS.get(command.language, _NUMBERS[OTHER])
    head = _HEAD.pack(command.code, language, command.version, command.opaque, command.flag)
    remark = _encoded(command.remark)
    fields = bytearray()
    for name, value in command.fields.items():
        for text, length in ((_encoded(name), _SHORT), (_encoded(value), _INT)):
            fields += length.pack(len(text)) + text
    return b"".join((head, _INT.pack(len(remark)), remark, _INT.pack(len(fields)), fields))


def _read_binary(header: bytes, body: bytes) -> Command:
    if len(header) < _HEAD.size:
        raise BadFrame(f"a binary header of {len(header)} bytes is too short")
    code, language, version, opaque, flag = _HEAD.unpack_from(header)
    remark, at = _piece(header, _HEAD.size, _INT)
    packed, end = _piece(header, at, _INT)
    if end != len(header):
        raise BadFrame(f"a binary header has {len(header) - end} bytes behind its fields")
    fields: dict[str, str] = {}
    at = 0
    while at < len(packed):
        name, at = _piece(packed, at, _SHORT)
        value, at = _piece(packed, at, _INT)
        fields[_decoded(name)] = _decoded(value)
        if len(fields) > FIELDS_MAX:
            raise BadFrame(f"a header has more than {FIELDS_MAX} fields")
    return Command(
        code,
        opaque,
        fields,
        body,
        _decoded(remark),
        flag,
        LANGUAGES[language] if language < len(LANGUAGES) else OTHER,
        version,
        Serialization.ROCKETMQ,
    )


def _piece(data: bytes, at: int, length: struct.Struct) -> tuple[bytes, int]:
    """A text with its length before it, and where it ends."""
    begin = at + length.size
    if begin > len(data):
        raise BadFrame("a binary header ends within a length")
    (size,) = length.unpack_from(data, at)
    if not 0 <= size <= len(data) - begin:
        raise BadFrame(f"a binary header has a text of {size} bytes, {len(data) - begin} are left")
    return data[begin : begin + size], begin + size


def _encoded(text: str) -> bytes:
    """Encode as UTF-8: a remark may quote half characters of a body, which have none."""
    return text.encode(errors="replace")


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise BadFrame("a binary header has a text that is not UTF-8") from None
