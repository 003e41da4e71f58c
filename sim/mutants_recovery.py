"""Planted bugs of recovery: damage of derived files that goes unnoticed."""

from sim.planted import Mutant, Patch
from store import queuecheck, recovery
from store.queuenote import QueueNotes


def _files_believed() -> list[Patch]:
    return [(recovery, "doubtful", lambda queues, noted, log_min: dict(queues.doubted))]


def _shorter_is_fine() -> list[Patch]:
    original = queuecheck._fault

    def fault(queue: object, end: object, position: int, log_min: int) -> str:
        why: str = original(queue, end, position, log_min)  # type: ignore[arg-type]
        return "" if why.startswith("ends at") else why

    return [(queuecheck, "_fault", fault)]


def _nothing_noted() -> list[Patch]:
    """Without a note, and nothing compared: as if no note meant that all is well."""
    return [
        (QueueNotes, "load", lambda self: None),
        (recovery.Recovery, "_doubted", lambda self, noted, first: dict(self.queues.doubted)),
    ]


RECOVERY = [
    Mutant("queue-files-believed", "queues are served as their files are", _files_believed),
    Mutant("short-queues-believed", "a queue that lost its end goes on there", _shorter_is_fine),
    Mutant("no-queue-ends", "how far queues reached is not known", _nothing_noted),
]
