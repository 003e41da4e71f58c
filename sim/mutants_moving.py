"""Planted bugs of queues that move between nodes of two groups: each must be caught by a run."""

from typing import Any

from duolog_server.node.deferred.outbox import QUEUE, TOPIC, Outbox
from duolog_server.node.moving.arrivals import Arrivals
from duolog_server.store.metadata import Metadata
from sim.planted import Mutant, Patch


def _the_outbox_forgets() -> list[Patch]:
    def noted_low(outbox: Outbox) -> int:
        return int(outbox._core.store.next_offset(TOPIC, QUEUE))

    return [(Outbox, "_noted_low", noted_low)]


def _due_again() -> list[Patch]:
    def was_stored(outbox: Outbox, topic: str, unique_key: str, after: int = -1) -> bool:
        return bool(outbox._copies(topic, unique_key, after))

    return [(Outbox, "was_stored", was_stored)]


def _stored_again() -> list[Patch]:
    original = Arrivals._put

    async def put(arrivals: Arrivals, stream: Any, delivery: Any) -> Any:
        delivery.again = delivery.repeat = False
        delivery.producer = b""
        return await original(arrivals, stream, delivery)

    return [(Arrivals, "_put", put)]


def _all_may_read() -> list[Patch]:
    def may_read(tables: Metadata, group: str, topic: str, queue_id: int) -> bool:
        return True

    return [(Metadata, "may_read", may_read)]


def _bug(name: str, story: str, patches: Any) -> Mutant:
    return Mutant(f"moving-{name}", story, patches, moves=True)


MOVING = [
    _bug("outbox-forgets", "what waits in the outbox is lost with its master", _the_outbox_forgets),
    _bug("due-again", "what is in the outbox is delivered again by the next master", _due_again),
    _bug("stored-again", "what is passed on again is stored again", _stored_again),
    _bug("all-may-read", "a consumer group reads a span before the one before it", _all_may_read),
]
