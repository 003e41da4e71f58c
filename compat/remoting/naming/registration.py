"""A node's registration at name servers: its names and addresses, and a master's topics.

Rules: two registrations that differ have different data versions, as a name server looks at the
topics of no other ones. A topic that was registered and is deleted is registered once more, with no
queues and no rights: name servers forget none by themselves, and clients leave such a one out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from duolog_server.compat.remoting.codec.fields import write_header
from duolog_server.compat.remoting.codec.messages import body_crc
from duolog_server.compat.remoting.codec.registrations import (
    DataVersion,
    RegisterBody,
    RegisteredTopic,
    RegisterRequest,
    UnregisterBrokerRequest,
)
from duolog_server.node.core.slices import Slices
from duolog_server.store.clocks import WallMs
from duolog_server.store.metadata import TopicConfig, is_system_topic

SELF_TEST_TOPIC = "SELF_TEST_TOPIC"  # of every broker; RocketMQ 5 refuses a first single topic
DELETED_MAX = 10_000
TOGETHER = 256


@dataclass(frozen=True, slots=True)
class Standing:
    """The node's identity. address: HOST:PORT for clients. broker_id: 0 for a master."""

    cluster: str
    name: str
    address: str
    broker_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A registration to send at once. fields, body: of REGISTER_BROKER."""

    standing: Standing
    fields: Mapping[str, str]
    body: bytes

    def unregister_fields(self) -> dict[str, str]:
        """Fields of UNREGISTER_BROKER."""
        who = self.standing
        return write_header(
            UnregisterBrokerRequest(who.name, who.address, who.cluster, who.broker_id)
        )


class Registrations:
    """Makes them, one after the other."""

    def __init__(self, others: Mapping[str, tuple[int, int]]) -> None:
        """others: topics that are registered although nobody made them: queues and perm."""
        self._others = {SELF_TEST_TOPIC: (1, 0), **others}
        self._counter = 0
        self._topics: Mapping[str, TopicConfig] = {}  # of the last one
        self._deleted: dict[str, None] = {}
        self.made: Registration | None = None

    def is_due(self, standing: Standing, topics: Mapping[str, TopicConfig]) -> bool:
        """Whether the last one says something else."""
        made = self.made
        return made is None or made.standing != standing or self._topics != topics

    async def make(
        self, standing: Standing, topics: Mapping[str, TopicConfig], wall_ms: WallMs
    ) -> Registration:
        """The next one, in slices. topics: are not changed meanwhile."""
        slices = Slices()
        await self._note_deleted(topics, slices)
        rows = [row async for row in slices.each(self._rows(topics))]
        self._counter += 1
        body = RegisterBody(DataVersion(standing.epoch, wall_ms, self._counter), len(rows))
        async for part in slices.parts(rows, TOGETHER):
            body.add(part)
        data = body.finish()
        fields = RegisterRequest(
            standing.name,
            standing.address,
            standing.cluster,
            standing.broker_id,
            standing.address,  # as ha_server_addr; slaves of RocketMQ find nothing to copy there
            body.compressed,
            body_crc(data),
        )
        self._topics = topics
        self.made = Registration(standing, write_header(fields), data)
        return self.made

    async def _note_deleted(self, topics: Mapping[str, TopicConfig], slices: Slices) -> None:
        async for part in slices.parts(self._topics, TOGETHER):
            self._deleted.update((name, None) for name in part if name not in topics)
        for name in [name for name in self._deleted if name in topics]:
            del self._deleted[name]
        while len(self._deleted) > DELETED_MAX:
            del self._deleted[next(iter(self._deleted))]

    def _rows(self, topics: Mapping[str, TopicConfig]) -> Iterator[RegisteredTopic]:
        for name, one in topics.items():
            if not is_system_topic(name):
                yield RegisteredTopic(name, one.queues, one.perm, one.sysflag, one.order)
        others: Iterable[tuple[str, tuple[int, int]]] = self._others.items()
        for name, (queues, perm) in others:
            if name not in topics:
                yield RegisteredTopic(name, queues, perm)
        for name in self._deleted:
            if name not in self._others and not is_system_topic(name):
                yield RegisteredTopic(name, 0, 0)
