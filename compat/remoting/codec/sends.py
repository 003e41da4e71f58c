"""Headers of sends as RocketMQ 4's Java client writes them, read by position.

The requests of a producer differ from one another in four places; all else is parsed once, and
found again by its text. Rule: a header is read here as `command.read` would, or not at all.
"""

import re
from functools import lru_cache

from duolog_server.compat.remoting.codec.codes import RequestCode
from duolog_server.compat.remoting.codec.command import BadFrame, Command, Serialization, read

TEMPLATES, TEMPLATE_CHARACTERS = 512, 1024  # that are kept, and of each
HEADER_BYTES = 2048  # a longer one is read by its names in less time
_CODE = RequestCode.SEND_MESSAGE_V2.value
_CONTROLS = bytes(range(32))  # that JSON escapes; to look for them here is faster than below
_TEXT = r'"[^"\\]*"'  # without escapes
# Its places: queue, time of birth, properties, number of the request.
_SEND = re.compile(
    rf'(\{{"code":{_CODE},"extFields":\{{"a":{_TEXT},"b":{_TEXT},"c":{_TEXT},"d":{_TEXT},"e":")'
    r"([0-9]{1,5})"
    rf'(","f":{_TEXT},"g":")([0-9]{{1,18}})'
    rf'(","h":{_TEXT},"i":")([^"]*)'
    rf'(","j":{_TEXT},"k":{_TEXT}(?:,"l":{_TEXT})?(?:,"m":{_TEXT})?(?:,"n":{_TEXT})?\}},'
    rf'"flag":0,"language":{_TEXT},"opaque":)'
    r"(0|[1-9][0-9]{0,8})"
    r'(,"serializeTypeCurrentRPC":"JSON","version":[0-9]{1,9}\})'
)


def read_sent(serialization: int, header: bytes, body: bytes) -> Command:
    """As `command.read`; a send has its template. Raises BadFrame."""
    if serialization == Serialization.JSON:
        found = _by_position(header, body)
        if found is not None:
            return found
    return read(serialization, header, body)


def _by_position(header: bytes, body: bytes) -> Command | None:
    if len(header) > HEADER_BYTES or len(header.translate(None, _CONTROLS)) < len(header):
        return None
    try:
        found = _SEND.fullmatch(header.decode())
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    first, queue, second, born, third, text, fourth, opaque, last = found.groups()
    if len(found.string) - len(text) > TEMPLATE_CHARACTERS:
        return None
    template = _template(first, second, third, fourth, last)
    text = text.replace("\\u0001", "\x01").replace("\\u0002", "\x02")
    if template is None or "\\" in text:
        return None
    fields = dict(template.fields)
    fields["e"], fields["g"], fields["i"] = queue, born, text
    language, version = template.language, template.version
    return Command(
        _CODE, int(opaque), fields, body, "", 0, language, version, Serialization.JSON, template
    )


@lru_cache(TEMPLATES)
def _template(*pieces: str) -> Command | None:
    """The request with nothing in its places; None if it is none."""
    first, second, third, fourth, last = pieces
    try:
        return read(Serialization.JSON, f"{first}0{second}0{third}{fourth}0{last}".encode(), b"")
    except BadFrame:
        return None
