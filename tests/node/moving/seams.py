"""Queues that moved, in two replica groups inside the test's process; their records are by hand."""

from dataclasses import dataclass, field

from duolog_server.ha.moverevents import Reserve
from duolog_server.ha.movetarget import records_for
from duolog_server.node.broker import Broker
from duolog_server.serve.server import Node
from duolog_server.store.columns import Columns
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.moves import Place
from duolog_server.store.status import PutMessageStatus
from tests.node.replicas import broker_of
from tests.node.sealing import sealed
from tests.until import until

A, B = "broker-a", "broker-b"
TOPIC = "T"


async def reserve(
    target: Broker, came_from: Place, move: str = "m", name: Place | None = None
) -> Place:
    """A place at a target, for a queue that begins to move there."""
    metadata = target.metadata
    queue_id = metadata.unused_queue(TOPIC)
    asked = Reserve(move, name or came_from, came_from)
    await metadata.change(*records_for(metadata.stored_moves, TOPIC, asked, queue_id))
    return Place(target.group, queue_id)


async def begin(target: Broker, at: Place, first: int, move: str = "m") -> None:
    """Open a reserved place."""
    op = {"op": "open", "topic": TOPIC, "queue": at.queue_id, "first": first, "move": move}
    await target.metadata.change(op)


@dataclass
class Seams:
    """The places of one queue, in their order."""

    nodes: dict[str, Node]
    at: Place
    name: Place = field(init=False)
    _moves: int = 0

    def __post_init__(self) -> None:
        self.name = self.at

    def broker(self, group: str = "") -> Broker:
        """Of a replica group; else where the queue is now."""
        return broker_of(self.nodes[group or self.at.group])

    async def move(self, to: str) -> Place:
        """Move it to another replica group, as the masters of both do."""
        self._moves += 1
        move = f"{self.at.group}.1.{self._moves}"
        source, target = self.broker(), self.broker(to)
        made = await reserve(target, self.at, move, self.name)
        end = await sealed(source.metadata, TOPIC, self.at.queue_id, made, move)
        await begin(target, made, end, move)
        self.at = made
        return made

    async def put(self, *bodies: bytes) -> None:
        """Store messages where the queue is now, and wait until they can be read."""
        broker, queue_id = self.broker(), self.at.queue_id
        now = broker.times.store_ms()
        result = broker.log.write(PutBatch(TOPIC, queue_id, Columns.of(list(bodies)), now))
        assert result.status is PutMessageStatus.PUT_OK, result.reason
        broker.log.settle(result.end_offset)
        broker.log.pump_soon()
        end = result.queue_offset + len(bodies)
        await until(lambda: broker.store.queue_range(TOPIC, queue_id)[1] >= end)

    def committed(self, group: str, place: Place) -> int:
        """A consumer group's offset at a place, -1 for none."""
        tables = self.broker(place.group).metadata.tables
        return tables.committed(group, TOPIC, place.queue_id)

    def may_read(self, group: str, place: Place) -> bool:
        """Whether a consumer group may read a place."""
        tables = self.broker(place.group).metadata.tables
        return tables.may_read(group, TOPIC, place.queue_id)
