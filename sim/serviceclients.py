"""Programs that use the services: producers and consumers as coroutines, on a loop of their own."""

import asyncio
from functools import partial

from duolog import _errors as sdk

from duolog_server.node.broker import Broker
from duolog_server.node.deferred.delayservice import RecallHandle
from duolog_server.node.deferred.transactionservice import DISCARD_TOPIC, Check
from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.node.pop.popservice import Popped, PopRequest
from duolog_server.store.metadata import TopicConfig, new_group
from sim.loop import SimLoop
from sim.node import Node
from sim.resends import Resends
from sim.servicecalls import REFUSED, Calls, Consumption, Sender, check_not_recorded, mastership
from sim.servicehistory import (
    COMMITTED,
    COPIES,
    DELAYED,
    GROUP,
    ORDERLY,
    POISON,
    PRODUCERS,
    QUEUES,
    RETRIES_MAX,
    TOPIC,
    Sent,
    ServiceHistory,
    hopeless,
)
from sim.stage import Stage
from sim.witness import Violation

PRODUCER = b"services--"
POISON_SHARE = 0.1


class ServiceClients:
    """All of them."""

    def __init__(self, cluster: Stage) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.history = ServiceHistory()
        self.chance = cluster.world.chance("service clients")
        self.draining = False  # no more is sent
        self.ready = False
        self.poisons = False  # some messages are such that no consumer can process them
        self.resends: Resends | None = None  # sends messages again
        self._poisoning = cluster.world.chance("poisoned messages")
        world = cluster.world
        self.loop = SimLoop(
            lambda delay, do: world.after(delay, do),
            lambda: world.now / 1000,
            world.chance("clients' loop"),
        )
        self._calls = Calls(cluster, self.loop, self.chance)
        self._consumption = Consumption(self._calls, self.history, self.chance)
        self._sender = Sender(cluster, self._calls, PRODUCER)
        for node in cluster.nodes:
            node.on_check = self._asked
            node.on_settled.append(self._look)

    def begin(self) -> None:
        """Start all programs."""
        self.loop.run_now(self._begin)

    def send_again(self) -> None:
        """Some messages are sent again, too."""
        chance = self.world.chance("sent again")
        self.resends = Resends(self.cluster, self._calls, chance)

    def resume(self) -> None:
        """More is sent after all."""
        self.draining = self._consumption.draining = False
        self.loop.run_now(self._send)

    def _send(self) -> None:
        for program in (self._produce, self._produce_delayed, self._produce_transactions):
            self.loop.create_task(program())

    def _begin(self) -> None:
        self.loop.create_task(self._set_up())
        self._send()
        if self.resends is not None:
            self.loop.create_task(self._send_again(self.resends))
        for group, name in ((GROUP, "c0"), (GROUP, "c1"), (ORDERLY, "c2"), (ORDERLY, "c3")):
            self.loop.create_task(self._consume(group, name))

    def _look(self, node: Node) -> None:
        """See what a master has stored by itself."""
        if node.master is not None and node.master.opened:
            who, table = mastership(node), node.store.topic_queue_table
            for topic in (DELAYED, DISCARD_TOPIC):
                end = table.get((topic, 0), 0)
                self.history.began(who, topic, end)
                self.history.stored(who, topic, end, self.world.now, node.wall())

    def drain(self) -> None:
        """No more is sent, and everything is acknowledged."""
        self.draining = self._consumption.draining = True

    def stop(self) -> None:
        """The run is over."""
        self.loop.close()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        history = self.history
        return {
            "popped": history.deliveries,
            "popped_again": history.repeats,
            "poisoned": len(history.attempts),
            "delayed": len(history.delayed),
            "recalled": sum(sent.recalled == "ok" for sent in history.delayed),
            "half_messages": len(history.halves),
            "half_messages_decided": sum(sent.decided for sent in history.halves),
        }

    # -- setting up ----------------------------------------------------------------------------

    async def _set_up(self) -> None:
        async def make(node: Node, broker: Broker) -> None:
            metadata = broker.metadata
            for topic, queues in ((TOPIC, QUEUES), (DELAYED, 1), (COMMITTED, 1)):
                if topic not in metadata.topics:
                    await metadata.put_topic(TopicConfig(topic, queues))
            if self.resends is not None and COPIES not in metadata.topics:
                await metadata.put_topic(TopicConfig(COPIES, 1))
            for group, orderly in ((GROUP, False), (ORDERLY, True)):
                if group not in metadata.tables.groups:
                    row = {"retryMaxTimes": RETRIES_MAX, "consumeMessageOrderly": orderly}
                    await metadata.put_group({**new_group(group), **row})

        while True:
            try:
                await self._calls.call(make)
            except REFUSED:
                await self._calls.pause(50)
            else:
                self.ready = True
                return

    async def _until_ready(self) -> None:
        while not self.ready:
            await asyncio.sleep(0.05)

    # -- sending -------------------------------------------------------------------------------

    async def _produce(self) -> None:
        await self._until_ready()
        while not self.draining:
            poison = self.poisons and self._poisoning.random() < POISON_SHARE
            name = POISON if poison else b"p"
            sent = Sent(name + b"%d" % len(self.history.popped))
            self.history.popped.append(sent)
            queue_id = self.chance.randrange(QUEUES)
            reply = await self._sender.send(sent, TOPIC, queue_id, lambda node: {})
            if reply is not None and self.resends is not None:
                self.resends.originals.append((sent.body, queue_id, reply.queue_offset))
            await self._calls.pause(60)

    async def _send_again(self, resends: Resends) -> None:
        await self._until_ready()
        while not self.draining:
            await resends.send(self.history.copies)
            await self._calls.pause(80)

    async def _produce_delayed(self) -> None:
        await self._until_ready()
        while not self.draining:
            sent = Sent(b"d%d" % len(self.history.delayed))
            self.history.delayed.append(sent)
            timer = self.chance.random() < 0.5
            delay_ms = self.chance.randint(20, 1500)
            if timer:

                def fields(
                    node: Node, sent: Sent = sent, delay_ms: int = delay_ms
                ) -> dict[str, object]:
                    sent.deliver_ms = node.wall() + delay_ms
                    return {"deliver_time": sent.deliver_ms}
            else:
                sent.level = self.chance.choice((1, 2))

                def fields(
                    node: Node, sent: Sent = sent, delay_ms: int = delay_ms
                ) -> dict[str, object]:
                    return {"delay_level": sent.level}

            reply = await self._sender.send(sent, DELAYED, 0, fields)
            if reply is not None and timer and self.chance.random() < 0.3:
                await self._calls.pause(delay_ms / 2)
                await self._recall(sent, reply.queue_offset)
            await self._calls.pause(120)

    async def _recall(self, sent: Sent, offset: int) -> None:
        unique = f"{PRODUCER.hex().upper()}{sent.number:012X}"
        sent.recalled = "maybe"

        async def recall(node: Node, broker: Broker) -> None:
            broker.admission.check_current()
            await broker.delays.recall(DELAYED, RecallHandle("group", DELAYED, offset, unique))

        try:
            await self._calls.call(recall, 1.5)
        except sdk.NoSuchMessage:
            sent.recalled = ""
        except REFUSED:
            pass
        else:
            sent.recalled = "ok"

    async def _produce_transactions(self) -> None:
        await self._until_ready()
        while not self.draining:
            decision = self.chance.choice(("commit", "commit", "rollback", ""))
            sent = Sent(b"x%d" % len(self.history.halves), decision=decision)
            self.history.halves.append(sent)
            reply = await self._sender.send(
                sent, COMMITTED, 0, lambda node: {"transaction_group": PRODUCERS}
            )
            if reply is not None:
                sent.origin = reply.queue_offset
                if decision and self.chance.random() < 0.7:
                    await self._decide(sent)
            await self._calls.pause(150)

    async def _decide(self, sent: Sent) -> None:
        commit = sent.decision == "commit"
        sent.deciding = min(sent.deciding, self.world.now)

        async def end(node: Node, broker: Broker) -> None:
            broker.admission.check_current()
            epoch = mastership(node)[2]
            await broker.transactions.end([sent.origin], commit, PRODUCERS)
            if sent.settled_in < 0:
                sent.settled_in = epoch

        for _ in range(3):
            try:
                await self._calls.call(end, 2.5)
            except sdk.NoSuchMessage:
                return  # decided otherwise: given up after the last check
            except REFUSED:
                await self._calls.pause(40)
            else:
                sent.decided = True
                sent.settled = min(sent.settled, self.world.now)
                return

    def _asked(self, node: Node, check: Check) -> None:
        """A node asks what became of a half message; the question may be lost."""
        body = check.record.body
        known = next((sent for sent in self.history.halves if sent.body == body), None)
        if known is None:
            return
        if node.master is None:
            raise Violation(f"{node.name} asks about {body!r}, and is a slave")
        self.history.asked(mastership(node), known)
        if self.chance.random() < 0.3:
            return
        known.origin = check.origin
        if known.decision:
            self.loop.run_now(lambda: self.loop.create_task(self._decide(known)))

    # -- consuming -----------------------------------------------------------------------------

    async def _consume(self, group: str, name: str) -> None:
        await self._until_ready()
        attempt = 0
        while True:
            request = PopRequest(
                group,
                TOPIC,
                -1,
                self.chance.randint(1, 4),
                self.chance.randint(200, 600),
                name,
                EVERYTHING,
                attempt_id=f"{name}-{attempt}",
            )
            try:
                found = await self._calls.call(partial(self._pop, request), 1.5)
            except REFUSED:
                await self._calls.pause(40)
                continue  # with the same attempt: its answer may be lost
            attempt += 1
            for popped in found:
                await self._consumption.use(group, popped, hopeless(group, popped.body))

    async def _pop(self, request: PopRequest, node: Node, broker: Broker) -> list[Popped]:
        deadline = asyncio.get_running_loop().time() + 0.3
        found = await broker.pop.wait(request, deadline)
        if found:
            check_not_recorded(node, broker, request.group, found)
            self.history.delivered(mastership(node), node.mono(), request, found)
        return found
