"""Checks of what a program hands to the SDK: one typed error in words, before anything is sent."""

import operator
from collections.abc import Iterable, Sequence
from math import inf
from numbers import Real

from duolog._errors import BadRequest

INT32_MAX = (1 << 31) - 1
UINT32_MAX = (1 << 32) - 1
INT64_MAX = (1 << 63) - 1


def checked_text(name: str, value: str, *, empty: bool = False) -> str:
    """A text that can be sent. Raises BadRequest."""
    if not isinstance(value, str):
        raise _wrong(name, value, "a str")
    if not value and not empty:
        raise BadRequest(f"{name} is empty")
    if not value.isascii():
        encoded(name, value)
    return value


def encoded(name: str, value: str) -> bytes:
    """A text as UTF-8. Raises BadRequest for half of a surrogate pair."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} is no valid text: {error}") from None


def checked_texts(
    name: str, values: str | Iterable[str], *, empty: bool = False
) -> tuple[str, ...]:
    """Several texts; a str is one, not its letters. Raises BadRequest."""
    if isinstance(values, str):
        return (checked_text(name, values, empty=empty),)
    if not isinstance(values, Iterable) or isinstance(values, bytes):
        raise _wrong(name, values, "a str or a sequence of them")
    return tuple(checked_text(f"one of {name}", value, empty=empty) for value in values)


def checked_number(name: str, value: float, least: float = -inf, most: float = inf) -> float:
    """A number of a range, also one of numpy's. Raises BadRequest."""
    if type(value) is not float and type(value) is not int:
        if not isinstance(value, Real) or isinstance(value, bool):
            raise _wrong(name, value, "a number")
        value = float(value)  # numpy's of 32 bits hold no ms since 1970
    if not least <= value <= most:  # nor is NaN
        raise BadRequest(f"{name} is {value}; it must be {_range(least, most)}")
    return value


def checked_whole(name: str, value: int, least: int = 0, most: int = INT64_MAX) -> int:
    """A whole number of a range, also one of numpy's. Raises BadRequest."""
    if isinstance(value, bool):
        raise _wrong(name, value, "a whole number")
    try:
        whole = operator.index(value)
    except TypeError:
        raise _wrong(name, value, "a whole number") from None
    if not least <= whole <= most:
        raise BadRequest(f"{name} is {whole}; it must be {_range(least, most)}")
    return whole


def checked_wholes(
    name: str, values: Iterable[int], least: int = 0, most: int = INT64_MAX
) -> list[int]:
    """Several whole numbers of a range. Raises BadRequest."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise _wrong(name, values, "a sequence of whole numbers")
    return [checked_whole(f"one of {name}", value, least, most) for value in values]


def checked_flag(name: str, value: bool) -> bool:
    """A bool, also one of numpy's. Raises BadRequest."""
    if type(value) is not bool and type(value).__name__ not in ("bool", "bool_"):
        raise _wrong(name, value, "a bool")
    return bool(value)


def checked_body(name: str, body: bytes) -> bytes:
    """A body as bytes: of what its owner may change, a copy. Raises BadRequest."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _wrong(name, body, "bytes")
    return bytes(body)


def checked_bodies(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """Bodies of a batch, as bytes. Raises BadRequest."""
    if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Sequence):
        raise _wrong("bodies", bodies, "a sequence of bytes")
    if set(map(type, bodies)) - {bytes}:
        return [checked_body("one of bodies", body) for body in bodies]
    return bodies


def _range(least: float, most: float) -> str:
    if least == -inf and most == inf:
        return "a number"
    return f"at least {least}" if most in (inf, INT64_MAX) else f"{least} to {most}"


def _wrong(name: str, value: object, wanted: str) -> BadRequest:
    return BadRequest(f"{name} must be {wanted}, not {type(value).__name__}")
