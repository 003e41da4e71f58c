"""Queues that moved, in two replica groups inside the test's process; their records are by hand."""

from dataclasses import dataclass, field

from duolog_server.ha.moverevents import Open, Reserve
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
        tables = target.metadata.tables
        used = [tables.topics[TOPIC].queues - 1, *tables.moves.guests.get(TOPIC, ())]
        made = Place(to, max(used) + 1)
        reserve = Reserve(move, self.name, self.at)
        await target.metadata.change(*records_for(tables.moves, TOPIC, reserve, made.queue_id))
        end = await sealed(source.metadata, TOPIC, self.at.queue_id, made, move)
        await target.metadata.change(*records_for(tables.moves, TOPIC, Open(move, end), 0))
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
