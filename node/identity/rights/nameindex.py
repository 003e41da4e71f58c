"""What covers a resource, found by the beginnings of its name.

A caller who lists 20,000 topics asks about each of them, and may have 1,000 entries: only those
that share a beginning with the name are compared with it.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from duolog_server.node.identity.rights.resources import Kind, Resource

T = TypeVar("T")


class NameIndex(Generic[T]):
    """Values by kind and name, or by kind and the beginning of names."""

    def __init__(self) -> None:
        self._whole: dict[tuple[Kind, str], list[T]] = {}
        self._first: dict[Kind, dict[int, dict[str, list[T]]]] = {}  # by length

    def add(self, kind: Kind, beginning: str, whole: bool, value: T) -> None:
        """whole: the beginning is all of the name."""
        if whole:
            self._whole.setdefault((kind, beginning), []).append(value)
        else:
            of_length = self._first.setdefault(kind, {}).setdefault(len(beginning), {})
            of_length.setdefault(beginning, []).append(value)

    def of(self, resource: Resource) -> Iterator[T]:
        """The values of a resource, in no order."""
        name = resource.name
        yield from self._whole.get((resource.kind, name), ())
        for length, values in self._first.get(resource.kind, {}).items():
            if length <= len(name):
                yield from values.get(name[:length], ())
