"""A value that must be there, as its type says from then on."""

from typing import TypeVar

T = TypeVar("T")


def known(found: T | None) -> T:
    """What was found; a test that finds nothing fails."""
    assert found is not None
    return found
