"""Work in small steps, between which the owner of the store may do other work."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Generator[None, None, T]) -> T:
    """Run all steps now; the result of the work."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
