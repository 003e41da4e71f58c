"""A move service that moves at once, or stays in the state that a test gives it."""

import asyncio
from dataclasses import replace

from duolog import _errors as sdk

from duolog_server.ha.mover import Span
from duolog_server.node.moving.moveservice import MoveService, Progress
from duolog_server.serve.server import Node
from duolog_server.store.moves import Place
from tests.node.moving.seams import begin, reserve
from tests.node.replicas import broker_of
from tests.node.sealing import sealed


class FakeMoves(MoveService):
    """Seals and opens by the records of the two masters; the pause is 7 ms."""

    def __init__(self, nodes: dict[str, Node], group: str, stays: str = "") -> None:
        """stays: the state in which a move remains until `state` is set; empty: it is done."""
        self._brokers = {name: broker_of(node) for name, node in nodes.items()}
        self._group = group
        self.stays = stays
        self.known: list[Progress] = []
        self.asked = 0  # how often, since the last move began

    async def begin(self, topic: str, queue_id: int, target: str) -> Progress:
        move = f"{self._group}-1-{len(self.known) + 1}"
        moves, here = self._brokers[self._group].metadata.tables.moves, Place(self._group, queue_id)
        name, self.asked = Span.of(moves, topic, here).name, 0
        begun = Progress(topic, queue_id, name, move, self.stays, target, -1, None, 5, 0.0, "")
        self.known.append(begun)
        if self.stays:
            await asyncio.Event().wait()
        return await self.finish()

    async def finish(self) -> Progress:
        """Let the last move end well."""
        last = self.known[-1]
        here, there = self._brokers[self._group], self._brokers[last.target]
        source = Place(self._group, last.queue_id)
        to = await reserve(there, source, last.move, last.name)
        end = await sealed(here.metadata, last.topic, last.queue_id, to, last.move)
        await begin(there, to, end, last.move)
        self.known[-1] = replace(last, state="DONE", end=end, to=to, pause_ms=7.0)
        return self.known[-1]

    async def abort(self, topic: str, queue_id: int) -> Progress:
        if not self.known or self.known[-1].state not in ("PREPARING", "RESERVING"):
            raise sdk.BadRequest(f"nothing of {topic}/{queue_id} can be aborted")
        self.known[-1] = replace(self.known[-1], state="ENDED", reason="aborted")
        return self.known[-1]

    def progress(self, topic: str = "") -> list[Progress]:
        self.asked += 1
        return [one for one in self.known if topic in ("", one.topic)]


def with_fakes(nodes: dict[str, Node], stays: str = "") -> dict[str, FakeMoves]:
    """The fakes in the place of the services of nodes, by replica group."""
    made = {group: FakeMoves(nodes, group, stays) for group in nodes}
    for group, node in nodes.items():
        broker_of(node).moves = made[group]
    return made
