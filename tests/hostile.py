"""Names that a client may not mean well, in every text field of a request, and what they leave."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NAMES = (
    "..",
    "../../outside",
    "/outside",
    "a/../../outside",
    "a\0b",
    "%2e%2e%2foutside",
    "%LMQ%$T$../../outside",
    "%RETRY%../../outside",
    "%DLQ%",
    "a\n\x1b[31mb\r",
    '"}{a="b"} 1\n',
    "\u202eabc\u2066",
    "e\u0301",
    "\ufeff",
    "x" * 256,
    "é" * 3000,
    "x" * 100_000,
)
_KEPT = re.compile(r"[a-zA-Z0-9%|_.$-]+")


def with_each(request: Message, name: str) -> Iterator[Any]:
    """A request with the name in each of its text fields, one after the other."""
    for path in _paths(request.DESCRIPTOR, 3):
        made: Any = type(request)()
        made.CopyFrom(request)
        inner: Any = made
        for step in path[:-1]:
            inner = getattr(inner, step.name)
            if step.is_repeated:
                inner = inner[0] if inner else inner.add()
        last = path[-1]
        if last.is_repeated:
            del getattr(inner, last.name)[:]
            getattr(inner, last.name).append(name)
        else:
            setattr(inner, last.name, name)
        yield made


def _paths(kind: Any, depth: int) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (field,)
            continue
        inner = field.message_type
        if inner is not None and depth and not inner.GetOptions().map_entry:
            yield from ((field, *rest) for rest in _paths(inner, depth - 1))


def check_files(root: Path) -> None:
    """Nothing lies beside the store in its `data`, and everything in it has a plain name."""
    assert {path.name for path in root.iterdir()} <= {"data", "first-user", "users.key"}
    for path in (root / "data").rglob("*"):
        assert _KEPT.fullmatch(path.name), path
        assert not path.is_symlink(), path
