"""How programs of the services call nodes: over the network, whom they take for the master."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from duolog import _errors as sdk
from duolog._columns import crc32, pack
from duolog.wire import duolog_pb2 as wire

from duolog_server.node.api.native import appends_of
from duolog_server.node.broker import Broker
from duolog_server.node.pop.popservice import Handle, Popped
from duolog_server.store.errors import StoreError
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus
from sim.deliveries import Deliveries, Mastership
from sim.loop import SimLoop
from sim.node import Node
from sim.servicehistory import Sent
from sim.stage import Stage
from sim.witness import Violation

T = TypeVar("T")

CALL_SECONDS = 0.7
HOST = Host("127.0.0.1", 1)
REFUSED = (sdk.DuologError, StoreError, TimeoutError)


def mastership(node: Node) -> Mastership:
    """Who answers."""
    assert node.master is not None, "masters answer"
    return node.name, node.boot, node.master.epoch


def check_not_recorded(node: Node, broker: Broker, group: str, found: list[Popped]) -> None:
    """A master gives messages away: its own tables do not say that they are done."""
    tables = broker.metadata.tables
    for handle in (popped.handle for popped in found):
        place = (group, handle.topic, handle.queue_id)
        ranges = tables.acknowledged(*place)
        done = any(first <= handle.offset < end for first, end in ranges)
        if done or handle.offset < tables.committed(*place):
            raise Violation(f"{node.name} gives {place} {handle.offset}, and has recorded it done")


class Calls:
    """Calls of some programs, which run on one loop."""

    def __init__(self, cluster: Stage, loop: SimLoop, chance: random.Random) -> None:
        self._network = cluster.network
        self._nodes = cluster.nodes
        self._loop = loop
        self._chance = chance
        self._target = cluster.nodes[0]

    async def call(
        self, work: Callable[[Node, Broker], Awaitable[T]], seconds: float = CALL_SECONDS
    ) -> T:
        """A call to the node that is thought to be the master. Raises what it does, TimeoutError.

        TimeoutError also where no answer came: it may have been done.
        """
        network, node = self._network, self._target
        future: asyncio.Future[T] = self._loop.create_future()

        def answer(result: T, error: Exception | None) -> None:
            network.call(node.name, "client", lambda: tell(result, error))

        def tell(result: T, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._send(node, work, answer)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except REFUSED:
            self.look_elsewhere()
            raise

    def tell_others(self, work: Callable[[Node, Broker], Awaitable[None]]) -> None:
        """Call all other nodes; nobody is told what came of it."""
        for node in self._nodes:
            if node is not self._target:
                self._send(node, work, lambda result, error: None)

    def _send(
        self,
        node: Node,
        work: Callable[[Node, Broker], Awaitable[T]],
        answer: Callable[[T, Exception | None], None],
    ) -> None:
        def arrive() -> None:
            if node.services is not None:
                node.services.serve(lambda broker: work(node, broker), answer)

        self._network.call("client", node.name, node.guarded(arrive))

    def look_elsewhere(self) -> None:
        """Another node may be the master."""
        self._target = self._chance.choice(self._nodes)

    async def pause(self, mean_ms: float) -> None:
        """Some time passes."""
        await asyncio.sleep(self._chance.expovariate(1 / mean_ms) / 1000)


class Sender:
    """Sends messages, each of them once."""

    def __init__(self, cluster: Stage, calls: Calls, producer: bytes) -> None:
        self._world = cluster.world
        self._calls = calls
        self._producer = producer
        self._number = 0

    async def send(
        self, sent: Sent, topic: str, queue_id: int, fields: Callable[[Node], dict[str, object]]
    ) -> wire.AppendReply | None:
        """Send one; None where nobody knows whether it is stored."""
        try:
            reply = await self.attempt(sent, topic, queue_id, fields)
        except REFUSED:
            return None
        if reply.status != wire.PUT_OK:
            self._calls.look_elsewhere()
            sent.outcome = "refused"
            return None
        sent.outcome = "ok"
        return reply

    async def attempt(
        self, sent: Sent, topic: str, queue_id: int, fields: Callable[[Node], dict[str, object]]
    ) -> wire.AppendReply:
        """As `send`. Raises what the node does, TimeoutError."""
        self._number += 1
        number = sent.number = self._number
        bodies, body_offsets = pack([sent.body])

        async def append(node: Node, broker: Broker) -> wire.AppendReply:
            request = wire.AppendRequest(
                id=number,
                topic=topic,
                queue_id=queue_id,
                bodies=bodies,
                body_offsets=body_offsets,
                crc32=crc32(bodies, body_offsets, b"", b""),
                born_time=node.wall(),
                producer_id=self._producer,
                sequence=number,
                **fields(node),  # type: ignore[arg-type]
            )
            sent.place = int(node.store.max_offset)  # at least, where the node dies while it stores
            reply, waiting = appends_of(broker).append(request, HOST)
            if reply.status == wire.PUT_OK:
                sent.stored, sent.stored_by = self._world.now, mastership(node)
                sent.place = reply.physical_offset
            broker.log.pump_soon()
            if waiting is not None and await waiting is not PutMessageStatus.PUT_OK:
                raise sdk.ResultUnknown("not safe in time")
            return reply

        return await self._calls.call(append)


class Consumption:
    """What consumers do with messages: they acknowledge most of them."""

    def __init__(self, calls: Calls, history: Deliveries, chance: random.Random) -> None:
        self._calls = calls
        self._history = history
        self._chance = chance
        self.draining = False  # everything is acknowledged

    async def use(self, group: str, popped: Popped, hopeless: bool = False) -> None:
        """Acknowledge a message, or do otherwise by it. hopeless: it cannot be processed."""
        if hopeless:
            return
        chance = 1.0 if self.draining else self._chance.random()
        handle = popped.handle
        if chance < 0.1:
            return  # this consumer forgets it
        if chance < 0.2:
            handle = await self._change(group, popped) or handle
            await self._calls.pause(100)
        dead = 0.2 <= chance < 0.25

        async def settle(node: Node, broker: Broker) -> None:
            broker.admission.check_current()
            if not dead:
                if broker.pop.ack(group, handle) and node.master is not None:
                    self._history.settled(mastership(node), group, handle, popped.body)
                return
            who = mastership(node)
            taken = False
            try:
                taken = await broker.pop.to_dead_letters(group, handle)
            except sdk.ResultUnknown:  # its copy is stored: the queue goes on
                taken = True
                raise
            finally:
                if taken and node.master is not None and mastership(node) == who:
                    self._history.settled(who, group, handle, popped.body, dead=True)

        for _ in range(3):
            try:
                await self._calls.call(settle)
            except REFUSED:
                await self._calls.pause(30)
            else:
                return

    async def _change(self, group: str, popped: Popped) -> Handle | None:
        async def change(node: Node, broker: Broker) -> Handle | None:
            broker.admission.check_current()
            changed = broker.pop.change_invisible(group, popped.handle, 400)
            if changed is not None:
                self._history.changed(mastership(node), group, changed, node.mono() + 400)
            return changed

        try:
            return await self._calls.call(change)
        except REFUSED:
            return None
