"""Opaque tokens that clients get and send back: words, as base64."""

import base64
import binascii

VERSION = "v1"


def pack(*words: object) -> str:
    """A text of words without line ends."""
    text = "\n".join([VERSION, *map(str, words)])
    return base64.urlsafe_b64encode(text.encode()).decode()


def unpack(text: str, count: int) -> list[str]:
    """The words of a token. Raises ValueError if it is not ours, or of another kind."""
    try:
        version, *words = base64.urlsafe_b64decode(text.encode("ascii")).decode().split("\n")
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if version != VERSION or len(words) != count:
        raise ValueError(
            f"{len(words)} fields of version {version!r}, expected {count} of version {VERSION!r}"
        )
    return words


def replica_group(text: str) -> str:
    """The first word, the replica group in all of our tokens; empty for other texts."""
    try:
        version, group, *_ = base64.urlsafe_b64decode(text.encode("ascii")).decode().split("\n")
    except ValueError:  # binascii's and the codecs' errors are some, too
        return ""
    return group if version == VERSION else ""
