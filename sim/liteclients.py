"""Programs that use lite topics: they send messages, and subscribe to changing sets.

Subscriptions are sent to the master, as by RocketMQ's clients, and copies of them to the other
nodes, as by a node. Lite topics without a message for a while are forgotten.
"""

import zlib
from dataclasses import dataclass, field, replace
from functools import partial

from duolog import _errors as sdk

from duolog_server.compat.grpc.litetopics import LiteTopics
from duolog_server.compat.grpc.protocol.messages import LITE as LITE_KIND
from duolog_server.compat.grpc.protocol.messages import Sent
from duolog_server.compat.grpc.protocol.names import LITE_TOPIC
from duolog_server.compat.grpc.protocol.stubs import Resource, definition, service
from duolog_server.compat.grpc.relay.clients import Client
from duolog_server.node.broker import Broker
from duolog_server.node.filters import tagfilter
from duolog_server.node.pop.liteservice import EVERYTHING, bound, is_exclusive
from duolog_server.node.pop.popservice import Popped, PopRequest
from duolog_server.store.clocks import WallMs
from duolog_server.store.lightqueues import is_light, lite_topic_of
from duolog_server.store.metadata import LITE, TopicConfig, new_group
from duolog_server.store.record import Host
from duolog_server.store.status import PutMessageStatus
from sim.litehistory import (
    EXCLUSIVE,
    NAMES,
    PARENT,
    QUEUES,
    SHARED,
    TTL_MS,
    Boot,
    LiteHistory,
    LiteSent,
    queue_of,
)
from sim.loop import SimLoop
from sim.node import Node
from sim.servicecalls import REFUSED, Calls, Consumption, check_not_recorded, mastership
from sim.stage import Stage
from sim.witness import Violation

HOST = Host("127.0.0.1", 1)
ACTIONS = definition.LiteSubscriptionAction
ADD, REPLACE = ACTIONS.PARTIAL_ADD, ACTIONS.COMPLETE_ADD
REMOVE, LEAVE = ACTIONS.PARTIAL_REMOVE, ACTIONS.COMPLETE_REMOVE
PRODUCER = b"lite------"
MINUTE_MS = 60_000
ACTIVE, SHIFT_MS = 3, 450.0  # so many lite topics get messages at a time, others before long
STRAY = 0.5  # of those that are being forgotten get a message just then


@dataclass(slots=True)
class Subscribing:
    """A client, and what it wants. last: what it subscribes to once no more is sent."""

    group: str
    name: str
    last: tuple[str, ...]
    wanted: set[str] = field(default_factory=set)
    settled: bool = False  # it has begun to want that

    def asks(self) -> list[str]:
        """What it wants, in order."""
        return sorted(self.wanted)


class LiteClients:
    """All of them."""

    def __init__(self, cluster: Stage) -> None:
        self.world = world = cluster.world
        self.history = LiteHistory()
        self.draining = False  # no more is sent
        self._ready = False
        self._chance = world.chance("lite clients")
        self._loop = SimLoop(
            lambda delay, do: world.after(delay, do),
            lambda: world.now / 1000,
            world.chance("lite clients' loop"),
        )
        self._calls = Calls(cluster, self._loop, self._chance)
        self._consumption = Consumption(self._calls, self.history, self._chance)
        self._network = cluster.network
        self._clients = [
            Subscribing(SHARED, "s0", NAMES[:4]),
            Subscribing(SHARED, "s1", NAMES[3:-1]),
            Subscribing(EXCLUSIVE, "x0", NAMES[:-1:2]),
            Subscribing(EXCLUSIVE, "x1", NAMES[1:-1:2]),
        ]
        self._evicted: dict[Boot, list[tuple[str, str]]] = {}
        for node in cluster.nodes:
            node.on_made = self._watch

    def begin(self) -> None:
        """Start all programs."""
        self._loop.run_now(self._begin)

    def _begin(self) -> None:
        for program in (self._set_up, self._produce, self._expire):
            self._loop.create_task(program())
        for client in self._clients:
            self._loop.create_task(self._subscribe(client))
            self._loop.create_task(self._consume(client))

    def drain(self) -> None:
        """No more is sent or forgotten, and everything is acknowledged."""
        self.draining = self._consumption.draining = True

    def stop(self) -> None:
        """The run is over."""
        self._loop.close()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        history = self.history
        return {
            "lite_sent": sum(one.outcome == "ok" for one in history.sent),
            "lite_given": history.deliveries,
            "lite_given_again": history.repeats,
            "lite_subscriptions": history.changes,
            "lite_forgotten": len({queue for _, queue in history.forgotten}),
        }

    async def _until_ready(self) -> None:
        while not self._ready:
            await self._calls.pause(50)

    async def _set_up(self) -> None:
        async def make(node: Node, broker: Broker) -> None:
            broker.admission.check_current()
            metadata = broker.metadata
            if PARENT not in metadata.topics:
                made = TopicConfig(PARENT, QUEUES, message_type=LITE, lite_ttl_minutes=1)
                await metadata.put_topic(made)
            if EXCLUSIVE not in metadata.tables.groups:
                await metadata.put_group(bound(new_group(EXCLUSIVE), PARENT, exclusive=True))

        while not self._ready:
            try:
                await self._calls.call(make)
            except REFUSED:
                await self._calls.pause(50)
            else:
                self._ready = True

    # -- sending -------------------------------------------------------------------------------

    def _next_name(self) -> str:
        """Lite topics have their time, and lie idle after it."""
        first = int(self.world.now / SHIFT_MS)
        return NAMES[(first + self._chance.randrange(ACTIVE)) % len(NAMES)]

    async def _produce(self) -> None:
        await self._until_ready()
        while not self.draining:
            await self._send(self._next_name())
            await self._calls.pause(40)

    async def _send(self, name: str) -> None:
        number = len(self.history.sent)
        sent = LiteSent(b"%s-%d" % (name.encode(), number), name)
        self.history.sent.append(sent)
        queue = queue_of(sent.name)

        async def put(node: Node, broker: Broker) -> PutMessageStatus:
            if broker.replication.may_be_behind():
                return PutMessageStatus.SERVICE_NOT_AVAILABLE
            message = Sent(
                f"lite-{number}",
                LITE_KIND,
                {LITE_TOPIC: sent.name},
                sent.body,
                0,
                node.wall(),
                lite_topic=sent.name,
            )
            batch = message.batch(PARENT, zlib.crc32(sent.name.encode()) % QUEUES, HOST)
            ends = node.store.topic_queue_table
            new = (queue, 0) not in ends
            result, waiting = broker.log.put(replace(batch, producer=PRODUCER, sequence=number))
            if result.status is PutMessageStatus.PUT_OK and new:
                _check_limit(node)
            if waiting is not None and await waiting is not PutMessageStatus.PUT_OK:
                raise sdk.ResultUnknown("not safe in time")
            return result.status

        try:
            status = await self._calls.call(put)
        except REFUSED:
            return
        if status is PutMessageStatus.PUT_OK:
            sent.outcome = "ok"
        else:
            sent.outcome = "refused"
            self._calls.look_elsewhere()

    async def _expire(self) -> None:
        """Forget what has expired, as a node does, with a minute of TTL that is over sooner."""

        async def forget(node: Node, broker: Broker) -> None:
            if broker.admission.may_store():
                age_ms = WallMs(broker.log.times.age_ms() + MINUTE_MS - TTL_MS)
                lite = broker.lite
                expired = lite.expired(lite.queues_of(PARENT), age_ms)
                self._stray(expired)
                await lite.forget(expired)
            else:
                broker.admission.check_master()

        await self._until_ready()
        while not self.draining:
            try:
                await self._calls.call(forget, 1.5)
            except REFUSED:
                pass
            await self._calls.pause(150)

    def _stray(self, queues: list[str]) -> None:
        """Send to lite topics while they are being forgotten."""
        for queue in queues:
            if self._chance.random() < STRAY:
                work = self._send(lite_topic_of(queue))
                self._loop.run_now(lambda work=work: self._loop.create_task(work))  # type: ignore[misc]

    # -- subscribing ---------------------------------------------------------------------------

    async def _subscribe(self, client: Subscribing) -> None:
        """Change one's mind, and repeat everything now and then."""
        await self._until_ready()
        while True:
            action, names = self._next_wish(client)
            try:
                await self._sync(client, action, names)
            except REFUSED:
                pass
            await self._calls.pause(150)

    def _next_wish(
        self, client: Subscribing
    ) -> tuple[definition.LiteSubscriptionAction, list[str]]:
        if self.draining:
            client.wanted = set(client.last)
            taking, client.settled = not client.settled, True
            return ADD if taking else REPLACE, client.asks()
        chance = self._chance.random()
        some = self._chance.sample(NAMES, 2)
        if chance < 0.4:
            client.wanted.update(some)
            return ADD, some
        if chance < 0.55:
            client.wanted.difference_update(some)
            return REMOVE, some
        if chance < 0.6:
            client.wanted.clear()
            return LEAVE, []
        if chance < 0.65 and client.group == SHARED:
            return ADD, [EVERYTHING]
        return REPLACE, client.asks()

    async def _sync(
        self, client: Subscribing, action: definition.LiteSubscriptionAction, names: list[str]
    ) -> None:
        request = service.SyncLiteSubscriptionRequest(
            action=action,
            topic=Resource(name=PARENT),
            group=Resource(name=client.group),
            lite_topic_set=names,
        )

        async def sync(node: Node, broker: Broker, copied: bool) -> None:
            topics, caller = _lite_topics(broker), _caller(client)
            not_master = broker.replication.not_master()
            if not not_master:
                await topics.sync(request, caller)
            elif copied:
                topics.note(request, caller)
            else:
                raise sdk.NotMaster(not_master)
            self._synced(node, broker, client, action, names)

        await self._calls.call(partial(sync, copied=False))
        self._calls.tell_others(partial(sync, copied=True))

    def _synced(
        self,
        node: Node,
        broker: Broker,
        client: Subscribing,
        action: definition.LiteSubscriptionAction,
        names: list[str],
    ) -> None:
        """A node took a client's word: what it knows now is what the model knows."""
        self.history.changes += 1
        group, who = client.group, client.name
        model = self.history.of(node, group)
        exclusive = is_exclusive(broker.metadata.tables.groups.get(group, {}))
        named = [name for name in names if name != EVERYTHING]
        lost: set[tuple[str, str]] = set()
        if action == ADD:
            lost = model.add(who, named, exclusive)
            model.everything.update({who} if EVERYTHING in names else ())
        elif action == REPLACE:
            model.replace(who, named, exclusive)
            model.everything.discard(who)
        elif action == REMOVE:
            model.remove(who, named)
        else:
            model.leave(who)
        told = self._evicted[node.name, node.boot]
        if set(told) != lost:
            raise Violation(f"{node.name} tells {told} that {who} has {names} now, not {lost}")
        told.clear()
        self._check(node, broker, group)

    def _check(self, node: Node, broker: Broker, group: str) -> None:
        """What a node knows of a group's clients."""
        known = {
            client.name: broker.lite.subscriber(client.name, group, PARENT)
            for client in self._clients
            if client.group == group
        }
        model = self.history.of(node, group)
        for name, subscriber in known.items():
            found = {lite_topic_of(queue) for queue in subscriber.queues}
            if found != model.named.get(name, set()):
                raise Violation(f"{node.name} takes {name} to subscribe to {sorted(found)}")
        total = sum(
            len(names)
            for (process, _), some in self.history.subscriptions.items()
            if process == (node.name, node.boot)
            for names in some.named.values()
        )
        if broker.lite.subscriptions != total:
            raise Violation(f"{node.name} counts {broker.lite.subscriptions} of {total}")

    def _watch(self, node: Node, broker: Broker) -> None:
        """Be told what a process tells its clients, and what it forgets."""
        told: list[tuple[str, str]] = []
        self._evicted[node.name, node.boot] = told

        def evicted(name: str, lite_topic: str) -> None:
            told.append((name, lite_topic))
            client = next(client for client in self._clients if client.name == name)
            self._network.call(node.name, "client", lambda: client.wanted.discard(lite_topic))

        broker.lite.evicted.append(evicted)
        broker.metadata.light_queues_forgotten.append(lambda ends: self.history.forgot(node, ends))

    # -- consuming -----------------------------------------------------------------------------

    async def _consume(self, client: Subscribing) -> None:
        await self._until_ready()
        attempt = 0
        while True:
            request = PopRequest(
                client.group,
                PARENT,
                -1,
                self._chance.randint(1, 4),
                self._chance.randint(200, 600),
                client.name,
                tagfilter.EVERYTHING,
                attempt_id=f"{client.name}-{attempt}",
            )
            try:
                found = await self._calls.call(partial(self._pop, client, request), 1.5)
            except REFUSED:
                await self._calls.pause(40)
                continue  # with the same attempt: its answer may be lost
            attempt += 1
            for popped in found:
                await self._consumption.use(client.group, popped)

    async def _pop(
        self, client: Subscribing, request: PopRequest, node: Node, broker: Broker
    ) -> list[Popped]:
        subscriber = _lite_topics(broker).subscriber(_caller(client), client.group, PARENT)
        deadline = node.seconds() + 0.3
        found = await broker.pop.wait(replace(request, subscriber=subscriber), deadline)
        if found:
            check_not_recorded(node, broker, request.group, found)
            self.history.delivered(node, mastership(node), request, found)
        elif node.master is not None:  # the client may have left, and come again
            now = broker.lite.subscriber(client.name, client.group, PARENT)
            self.history.nothing_for(node, broker.pop, now)
        return found


def _lite_topics(broker: Broker) -> LiteTopics:
    return LiteTopics(broker.core, broker.lite, broker.pop)


def _caller(client: Subscribing) -> Client:
    """A client, as a node knows it."""
    return Client(client.name, 0.0, definition.LITE_PUSH_CONSUMER)


def _check_limit(node: Node) -> None:
    """A node has no more light queues than it may."""
    most = node.store.options.max_lmq_consume_queue_num
    count = sum(is_light(name) for name, _ in node.store.topic_queue_table)
    if count > most:
        raise Violation(f"{node.name} has {count} light queues of {most}")
