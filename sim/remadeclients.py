"""Programs whose topic and group are deleted and made again while messages of the former ones wait.

Rule: a consumer gets nothing that was sent to, or stored for, a deleted topic or group of the same
name. The observer reads from the log where each of them began. The same for a topic with lite
topics: what these held is forgotten after the deletion, and perhaps not before it is made again.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from functools import partial

from duolog import _errors as sdk

from duolog_server.node.broker import Broker
from duolog_server.node.filters.tagfilter import EVERYTHING
from duolog_server.node.pop.liteservice import bound
from duolog_server.node.pop.popservice import Handle, Popped, PopRequest
from duolog_server.store.columns import Columns
from duolog_server.store.grouptopics import dead_letter_topic, group_retry_topic
from duolog_server.store.lightqueues import is_light, lite_queue
from duolog_server.store.messagestore import PutBatch
from duolog_server.store.metadata import LITE, SYSTEM_TOPIC, TopicConfig, new_group
from duolog_server.store.offsets import QueueOffset
from duolog_server.store.record import Record
from duolog_server.store.status import PutMessageStatus
from sim.loop import SimLoop
from sim.node import Node
from sim.servicecalls import HOST, REFUSED, Calls, Sender
from sim.servicehistory import Sent
from sim.stage import Stage
from sim.witness import Violation

TOPIC, GROUP, PRODUCERS = "R", "r", "rt"
SENT_BACK = group_retry_topic(GROUP)
PARENT, LITE_GROUP = "RL", "rl"
QUEUE = lite_queue(PARENT, "n")
KINDS = ("plain", "plain", "level", "timer", "half")


class Beginnings:
    """Where the topic and the group began, by the changes in the log."""

    def __init__(self) -> None:
        self._read = 0
        self._there: set[str] = set()
        self._begun: list[tuple[int, str, int]] = []  # change, name, log offset

    def of(self, node: Node, name: str) -> int:
        """Where in the log the last one began, by the changes that a node has applied."""
        assert node.services is not None, "it answers"
        applied = node.services.broker.metadata.tables.applied
        while self._read < applied:
            record = node.store.record_at(SYSTEM_TOPIC, 0, QueueOffset(self._read))
            if record is None:
                break  # in a lost segment: another node tells
            self._note(json.loads(record.body), record.physical_offset)
            self._read += 1
        places = (place for change, of, place in self._begun if of == name and change < applied)
        return max(places, default=0)

    def _note(self, change: dict[str, object], place: int) -> None:
        deleted = str(change["op"]).startswith("delete_")
        match change:
            case {"op": "topic", "topic": {"topicName": str(name)}}:
                pass
            case {"op": "group", "group": {"groupName": str(name)}}:
                pass
            case {"op": "delete_topic", "topic": str(name)} | {
                "op": "delete_group",
                "group": str(name),
            }:
                pass
            case _:
                return
        if not deleted and name not in self._there:
            self._begun.append((self._read, name, place))
        (self._there.discard if deleted else self._there.add)(name)


class RemadeClients:
    """All of them."""

    def __init__(self, cluster: Stage, lite: bool) -> None:
        """lite: a topic with lite topics is made again, too."""
        self._ghost = cluster.ghost
        self._lite = lite
        self._draining = False  # nothing is sent or deleted
        self._settled = False  # the last topic and group are there
        self._sent: dict[bytes, Sent] = {}
        self._beginnings = Beginnings()
        self._remade = self._delivered = 0
        world = cluster.world
        self._chance = world.chance("remade")
        self._loop = SimLoop(
            lambda delay, do: world.after(delay, do),
            lambda: world.now / 1000,
            world.chance("remade clients' loop"),
        )
        self._calls = Calls(cluster, self._loop, self._chance)
        self._sender = Sender(cluster, self._calls, b"remade----")

    def begin(self) -> None:
        """Start all programs."""
        self._loop.run_now(self._begin)

    def _begin(self) -> None:
        more = (self._produce_lite, self._consume_lite) if self._lite else ()
        for program in (self._remake, self._produce, *more):
            self._loop.create_task(program())
        for topic in (TOPIC, TOPIC, SENT_BACK):
            self._loop.create_task(self._consume(topic))

    def drain(self) -> None:
        """Nothing is sent or deleted any more."""
        self._draining = True

    def stop(self) -> None:
        """The run is over."""
        self._loop.close()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        return {"remade": self._remade, "remade_delivered": self._delivered}

    # -- topic and group -----------------------------------------------------------------------

    async def _remake(self) -> None:
        while not self._settled:
            draining = self._draining
            await self._until_done(self._make)
            self._settled = draining
            await self._calls.pause(400)
            if not self._draining:
                kinds = self._chance.choice(("topic", "group", "topic group"))
                await self._until_done(partial(self._delete, kinds))
                self._remade += 1
                await self._calls.pause(60)

    async def _until_done(self, work: Callable[[Node, Broker], Awaitable[None]]) -> None:
        while True:
            try:
                await self._calls.call(work)
            except REFUSED:
                await self._calls.pause(40)
            else:
                return

    async def _make(self, node: Node, broker: Broker) -> None:
        broker.admission.check_current()
        metadata = broker.metadata
        if TOPIC not in metadata.topics:
            await metadata.put_topic(TopicConfig(TOPIC, 1))
        if GROUP not in metadata.tables.groups:
            await metadata.put_group({**new_group(GROUP), "retryMaxTimes": 5})
        if self._lite and PARENT not in metadata.topics:
            await metadata.put_topic(TopicConfig(PARENT, 1, message_type=LITE))
        if self._lite and LITE_GROUP not in metadata.tables.groups:
            await metadata.put_group(bound(new_group(LITE_GROUP), PARENT, exclusive=False))

    async def _delete(self, kinds: str, node: Node, broker: Broker) -> None:
        broker.admission.check_current()
        metadata = broker.metadata
        if "topic" in kinds and TOPIC in metadata.topics:
            await metadata.delete_topic(TOPIC)
        if "group" in kinds and GROUP in metadata.tables.groups:
            await metadata.delete_group(GROUP)
        if self._lite and "topic" in kinds and PARENT in metadata.topics:
            await metadata.delete_topic(PARENT)

    # -- sending -------------------------------------------------------------------------------

    async def _produce(self) -> None:
        while not self._draining:
            await self._calls.pause(50)
            sent = Sent(b"r%d" % len(self._sent), decision=self._chance.choice(KINDS))
            self._sent[sent.body] = sent
            reply = await self._sender.send(sent, TOPIC, 0, partial(self._fields, sent))
            if reply is not None and sent.decision == "half":
                sent.origin = reply.queue_offset
                self._loop.create_task(self._commit(sent))

    def _fields(self, sent: Sent, node: Node) -> dict[str, object]:
        match sent.decision:
            case "level":
                return {"delay_level": self._chance.choice((1, 2))}
            case "timer":
                return {"deliver_time": node.wall() + self._chance.randint(20, 1500)}
            case "half":
                return {"transaction_group": PRODUCERS}
        return {}

    async def _commit(self, sent: Sent) -> None:
        """Some time later, as if its producer took that long; perhaps in vain."""
        await self._calls.pause(300)

        async def end(node: Node, broker: Broker) -> None:
            broker.admission.check_current()
            await broker.transactions.end([sent.origin], True, PRODUCERS)

        for _ in range(3):
            try:
                await self._calls.call(end, 2.5)
            except (sdk.NoSuchMessage, sdk.UnknownTopic):
                return  # given up, or its topic was deleted
            except REFUSED:
                await self._calls.pause(40)
            else:
                sent.decided = True
                return

    async def _produce_lite(self) -> None:
        while not self._draining:
            await self._calls.pause(80)
            number = len(self._sent)
            sent = Sent(b"r%d" % number, decision="lite")
            self._sent[sent.body] = sent

            async def put(node: Node, broker: Broker, sent: Sent = sent) -> None:
                broker.admission.check_current()
                if PARENT not in broker.metadata.topics:
                    raise sdk.UnknownTopic(PARENT)
                columns = Columns.of([sent.body], [b""])
                batch = PutBatch(PARENT, 0, columns, node.wall(), HOST, light_queues=(QUEUE,))
                result, _ = broker.log.put(batch)
                if result.status is PutMessageStatus.PUT_OK:
                    sent.place = result.physical_offset

            with contextlib.suppress(*REFUSED):
                await self._calls.call(put)

    # -- consuming -----------------------------------------------------------------------------

    async def _consume_lite(self) -> None:
        while True:
            await self._calls.pause(40)
            with contextlib.suppress(*REFUSED):
                for popped in await self._calls.call(self._pop_lite, 1.5):
                    if self._draining or self._chance.random() < 0.7:
                        await self._calls.call(partial(self._ack_lite, popped.handle))

    async def _pop_lite(self, node: Node, broker: Broker) -> list[Popped]:
        if PARENT not in broker.metadata.topics:
            raise sdk.UnknownTopic(PARENT)
        lite, until = broker.lite, asyncio.get_running_loop().time() + 0.3
        subscriber = lite.subscriber("c", LITE_GROUP, PARENT)
        lite.subscribe(subscriber, [QUEUE], takes_over=False)
        request = PopRequest(LITE_GROUP, PARENT, -1, 3, 200, "c", EVERYTHING, subscriber=subscriber)
        found = await broker.pop.wait(request, until)
        for popped in found:
            self._check(node, popped.handle.topic, popped.handle.queue_id, popped.handle.offset)
        return found

    async def _ack_lite(self, handle: Handle, node: Node, broker: Broker) -> None:
        broker.admission.check_current()
        broker.pop.ack(LITE_GROUP, handle)

    async def _consume(self, topic: str) -> None:
        while True:
            request = PopRequest(
                GROUP, topic, -1, 3, self._chance.randint(100, 300), "c", EVERYTHING
            )
            await self._calls.pause(30)
            with contextlib.suppress(*REFUSED):
                for popped in await self._calls.call(partial(self._pop, request), 1.5):
                    await self._use(popped)

    async def _pop(self, request: PopRequest, node: Node, broker: Broker) -> list[Popped]:
        if request.topic not in broker.metadata.topics:
            raise sdk.UnknownTopic(request.topic)
        if GROUP not in broker.metadata.tables.groups:
            raise sdk.BadRequest(f"group {GROUP!r} does not exist")
        found = await broker.pop.wait(request, asyncio.get_running_loop().time() + 0.3)
        for popped in found:
            self._check(node, popped.handle.topic, popped.handle.queue_id, popped.handle.offset)
        return found

    async def _use(self, popped: Popped) -> None:
        """Acknowledge it, send it back, give it up, or let it be delivered again."""
        chance, handle = 1.0 if self._draining else self._chance.random(), popped.handle

        async def settle(node: Node, broker: Broker) -> None:
            broker.admission.check_current()
            if chance < 0.5:
                record = _record(node, handle.topic, handle.queue_id, handle.offset)
                if record is None:
                    return
                await broker.retries.send_back(GROUP, record, 1, 0)
            elif chance < 0.6:
                await broker.pop.to_dead_letters(GROUP, handle)
                return
            broker.pop.ack(GROUP, handle)

        if chance >= 0.25:
            await self._calls.call(settle)

    # -- what must be true ---------------------------------------------------------------------

    @property
    def _older_copies(self) -> bool:
        """An older copy of a directory led, whose changes are no more."""
        return self._ghost.marks["older_copy_led"] > 0

    def _check(self, node: Node, topic: str, queue_id: int, offset: int) -> bytes:
        """No message of a topic or group that was deleted. Its body."""
        record = _record(node, topic, queue_id, offset)
        if record is None or self._older_copies:
            return b""
        self._delivered += 1
        sent = self._sent[record.body]
        lite = is_light(topic)
        if sent.place < self._beginnings.of(node, PARENT if lite else TOPIC):
            raise Violation(f"{node.name} has {sent} of a deleted topic in {topic} {offset}")
        if (
            topic != TOPIC
            and not lite
            and record.physical_offset < self._beginnings.of(node, GROUP)
        ):
            raise Violation(f"{node.name} has {sent} of a deleted group in {topic} {offset}")
        return record.body

    def unfinished(self) -> str:
        """What is still to be done; empty for nothing."""
        return "" if self._settled else "a topic is to be made again"

    def final(self, master: Node) -> None:
        """The last topic has all that was sent to it, and nothing else. Raises Violation."""
        assert master.services is not None, "it has a broker"
        found = set()
        for queue_id in range(master.services.broker.metadata.topics[TOPIC].queues):
            low, high = master.store.queue_range(TOPIC, queue_id)
            found |= {self._check(master, TOPIC, queue_id, offset) for offset in range(low, high)}
        self._dead_letters_are_its_own(master)
        begun = self._beginnings.of(master, TOPIC)
        for sent in self._sent.values():
            due = sent.outcome == "ok" and (sent.decision != "half" or sent.decided)
            if due and sent.place > begun and sent.body not in found and not self._older_copies:
                raise Violation(f"{sent} is lost")

    def _dead_letters_are_its_own(self, master: Node) -> None:
        dead, begun = dead_letter_topic(GROUP), self._beginnings.of(master, GROUP)
        for offset in range(*master.store.queue_range(dead, 0)):
            record = _record(master, dead, 0, offset)
            if record and record.physical_offset < begun and not self._older_copies:
                raise Violation(f"{dead} has {record.body!r}, given up by a deleted group")


def _record(node: Node, topic: str, queue_id: int, offset: int) -> Record | None:
    return node.store.record_at(topic, queue_id, QueueOffset(offset))
