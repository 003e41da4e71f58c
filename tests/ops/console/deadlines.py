"""Deadlines of the console's pages that come when a test says, however slow the machine is."""

import asyncio
import contextlib

import pytest

from duolog_server.ops.console.requests import answers as guarding


class PageDeadlines:
    """Stands for asyncio in `guarding`, whose deadlines are then this one's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made: list[asyncio.Timeout] = []
        monkeypatch.setattr(guarding, "asyncio", self)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """As asyncio's."""
        assert seconds == guarding.PAGE_SECONDS
        self._made.append(asyncio.timeout(seconds))
        return self._made[-1]

    def come(self) -> None:
        """End what is under way, as after PAGE_SECONDS."""
        for one in self._made:
            with contextlib.suppress(RuntimeError):  # it has ended before
                one.reschedule(asyncio.get_running_loop().time())
