"""Counts the turns of an event loop, for tests of work that gives others their turn."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def counted_turns() -> Iterator[Callable[[], int]]:
    """How many turns the running loop has had since this began."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        yield lambda: turns
    finally:
        counting.cancel()


@contextmanager
def turns_of(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> Iterator[list[int]]:
    """In which turns a function of a module, or a method of a class, is called from here on."""
    called, noted = getattr(owner, name), list[int]()
    with counted_turns() as turns:

        def noting(*given: Any) -> Any:
            noted.append(turns())
            return called(*given)

        monkeypatch.setattr(owner, name, noting)
        yield noted


__all__ = ["counted_turns", "turns_of"]
