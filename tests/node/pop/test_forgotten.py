"""Forgotten light queues are removed once their messages cannot come any more."""

from types import SimpleNamespace
from typing import Any, cast

from duolog_server.node.pop.liteservice import LiteService


class Calls:
    """Notes what is removed and dropped."""

    def __init__(self) -> None:
        self.removed_light: list[str] = []

    async def remove_light(self, ends: dict[str, int]) -> None:
        self.removed_light += ends

    def forget_queues(self, ends: dict[str, int]) -> None:
        """Nothing."""

    def removed(self, names: dict[str, int]) -> None:
        """Nothing."""


async def test_a_forgotten_queue_stays_forgotten_until_its_messages_are_dispatched() -> None:
    calls = Calls()
    store = SimpleNamespace(max_offset=500, dispatched_offset=100)
    core, part = cast(Any, SimpleNamespace(store=store)), cast(Any, calls)
    lite = LiteService(core, part, part)
    lite.gone({"%LMQ%$p$a": 7})

    await lite._remove_forgotten()
    assert calls.removed_light == []

    store.dispatched_offset = 500
    await lite._remove_forgotten()
    assert calls.removed_light == ["%LMQ%$p$a"]
