"""Opaque texts that clients are given and hand back: words, as base64."""

import base64
import binascii

VERSION = "v1"


def pack(*words: object) -> str:
    """A text of words without line ends."""
    text = "\n".join([VERSION, *map(str, words)])
    return base64.urlsafe_b64encode(text.encode()).decode()


def unpack(text: str, count: int) -> list[str]:
    """The words of a text. Raises ValueError if it is none of ours, or of another kind."""
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
    """The first word, which in all of our texts names a replica group; empty if it is none."""
    try:
        version, group, *_ = base64.urlsafe_b64decode(text.encode("ascii")).decode().split("\n")
    except ValueError:  # binascii's and the codecs' errors are some, too
        return ""
    return group if version == VERSION else ""
