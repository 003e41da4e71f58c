"""Planted bugs of light queues."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from duolog_server.store.consumequeue import ConsumeQueue
from duolog_server.store.messagestore import MessageStore
from duolog_server.store.puts import LightPuts
from duolog_server.store.queueends import QueueEnds, QueueKey
from sim.planted import Mutant, Patch


def _from_zero() -> list[Patch]:
    def offsets(self: Any, names: Sequence[str], ends: QueueEnds) -> list[tuple[QueueKey, int]]:
        return [((name, 0), ends.get((name, 0), 0)) for name in names]

    return [(LightPuts, "_next_offsets", offsets)]


def _never_again() -> list[Patch]:
    """For what puts and cuts entries, no queue is of a kind that begins again."""

    def as_others(original: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: Any, *told: Any) -> Any:
            kind, self.begins_again = self.begins_again, False
            try:
                return original(self, *told)
            finally:
                self.begins_again = kind

        return changed

    return [
        (ConsumeQueue, name, as_others(getattr(ConsumeQueue, name))) for name in ("put", "_cut")
    ]


def _forgotten_unsafely() -> list[Patch]:
    original = MessageStore.hold_light_queues

    def hold(self: Any, names: Collection[str]) -> None:
        original(self, names)
        self.release_light_queues(names, forgotten=True)

    return [(MessageStore, "hold_light_queues", hold)]


def _no_places() -> list[Patch]:
    def offsets(self: Any, names: Sequence[str], ends: QueueEnds) -> list[tuple[QueueKey, int]]:
        return [((name, 0), self._log.wrote_offset) for name in names]

    return [(LightPuts, "_next_offsets", offsets)]


LIGHT = [
    Mutant("light-from-zero", "a light queue begins again at offset zero", _from_zero),
    Mutant("light-never-again", "a light queue that began again is refused", _never_again),
    Mutant("light-forgotten-early", "a light queue is forgotten unsafely", _forgotten_unsafely),
    Mutant("light-always-anew", "every message begins its light queue again", _no_places),
]
