"""Queues whose puts are to wait while they move, by topic and queue id.

Until what they get is passed on, the store refuses it with QUEUE_MOVED.
"""

from duolog_server.store.moves import Place
from duolog_server.store.queueends import QueueKey


class HeldQueues:
    """Notes what is held, and where the rest continues."""

    def __init__(self) -> None:
        self.held: set[QueueKey] = set()
        self.moved: dict[QueueKey, Place] = {}

    def hold(self, topic: str, queue_id: int) -> None:
        """Hold what is put from now on."""
        self.held.add((topic, queue_id))
        self.moved.pop((topic, queue_id), None)

    def release(self, topic: str, queue_id: int, place: Place | None) -> None:
        """Pass on to this place what is held, and all that comes later; None: store it here."""
        self.held.discard((topic, queue_id))
        self.moved.pop((topic, queue_id), None)
        if place is not None:
            self.moved[topic, queue_id] = place

    def is_held(self, topic: str, queue_id: int) -> bool:
        """Whether puts wait."""
        return (topic, queue_id) in self.held
