"""Programs that use queues which move: producers, members of a group, and who has queues moved."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from duolog import _errors as sdk
from duolog._columns import pack
from duolog._consumer import Consumer
from duolog._producer import Producer
from duolog._receipts import Receipt
from duolog._start import Start

from duolog_server.node.broker import Broker
from duolog_server.node.moving.moveservice import Progress
from duolog_server.store.moves import Place
from sim.group import Group
from sim.movechain import chain, moves_of, names
from sim.movehistory import GROUP, QUEUES, TOPIC, MoveHistory, Sent
from sim.network import Network
from sim.node import Node
from sim.sdkclients import CALL_SECONDS, MAYBE, NO_TEXTS, NOTHING_STORED, Process, Program
from sim.sdkhistory import SESSION_SECONDS
from sim.witness import Violation
from sim.world import World

KEYS = ("k0", "k1", "k2", "k3")
MEMBERS = 2
ABORTS = 0.15  # how often a move is aborted again
SINK = "s"
DELAYS = (0.05, 0.3, 0.8)


class Cluster(Protocol):
    """The groups of a run."""

    world: World
    network: Network
    groups: dict[str, Group]

    @property
    def by_name(self) -> dict[str, Node]:
        """All nodes."""

    def masters(self) -> Mapping[str, Node]:
        """The masters of the groups that have one."""


class MoveClients:
    """All of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.history = MoveHistory()
        self.draining = False
        self.asked: Counter[str] = Counter()  # moves, by how they ended
        self._ready = False
        self._numbers: dict[Process, int] = {}
        self._programs: list[Process] = []
        self._members: list[Process] = []
        self._chance = self.world.chance("moves")
        # The highest offset that a confirmed table ever had of the group, by place.
        self._committed: dict[Place, int] = {}
        for node in cluster.by_name.values():
            node.on_settled.append(self._look)

    def number_of(self, process: Process) -> int:
        """A process id."""
        return self._numbers.setdefault(process, len(self._numbers))

    def begin(self) -> None:
        """Start all programs."""
        works: Sequence[Program] = (
            *(self._set_up, self._write_keyed, self._write, self._delay),
            *(self._publish, self._commit),
        )
        self._programs = [self._new(f"w{k}", work) for k, work in enumerate(works)]
        self._members = [self._new(f"m{slot}", self._consume) for slot in range(MEMBERS)]
        self.world.after(700.0, self._operate)

    def _new(self, name: str, program: Program) -> Process:
        process = Process(self, f"{name}.{len(self._numbers)}")
        self.number_of(process)
        process.begin(program)
        return process

    def strike(self, level: float, lasts: float) -> None:
        """A member is killed and another one started, or it stands still."""
        slot = int(level * 997) % MEMBERS
        if level < 0.5:
            self._members[slot].kill()
            self._members[slot] = self._new(f"m{slot}", self._consume)
        else:
            self._members[slot].standstill.begin(lasts)

    def drain(self) -> None:
        """Nothing more is sent or moved."""
        self.draining = True

    def heal(self) -> None:
        """All processes go on."""
        for process in (*self._members, *self._programs):
            process.standstill.end()

    def stop(self) -> None:
        """The run is over."""
        for process in (*self._members, *self._programs):
            process.kill()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        history = self.history
        outcomes = Counter(one.outcome for one in history.sent)
        return {
            **{f"moves_sent_{outcome}": count for outcome, count in outcomes.items()},
            "moves_sent_delayed": sum(one.delayed for one in history.sent),
            "moves_given": history.deliveries,
            "moves_given_again": history.repeats,
            **{f"moves_{state.lower()}": count for state, count in self.asked.items()},
        }

    # -- moves -------------------------------------------------------------------------------------

    def _operate(self) -> None:
        """Have a queue moved, and another one after some time."""
        if self.draining:
            return
        self.world.after(self._chance.uniform(100, 900), self._operate)
        masters, chance = self.cluster.masters(), self._chance
        name = chance.choice(names([*self.cluster.groups]))
        if not self._ready or len(masters) < len(self.cluster.groups):
            return
        try:
            at = chain(masters, name)[-1].place
        except Violation:
            return  # a move is under way, or a master does not know its log yet
        target = chance.choice([group for group in self.cluster.groups if group != at.group])
        node, aborts = masters[at.group], chance.random() < ABORTS
        self.asked["asked"] += 1
        self.world.note(f"move {at} of {name} to {target}")
        self._ask(node, lambda broker: broker.moves.begin(TOPIC, at.queue_id, target))
        if aborts:
            node.later(chance.uniform(0, 30), lambda: self._abort(node, at.queue_id))

    def _abort(self, node: Node, queue_id: int) -> None:
        self._ask(node, lambda broker: broker.moves.abort(TOPIC, queue_id))

    def _ask(self, node: Node, work: Any) -> None:
        async def ask(broker: Broker) -> Progress:
            progress: Progress = await work(broker)
            return progress

        if node.services is not None and node.up and not node.stopped:
            node.services.serve(ask, self._told)

    def _told(self, progress: Any, error: Exception | None) -> None:
        self.asked[type(error).__name__ if error is not None else progress.state] += 1

    # -- what groups commit ------------------------------------------------------------------------

    def _look(self, node: Node) -> None:
        """What a master's tables have is confirmed."""
        if node.master is None or node.services is None or not self._ready:
            return
        tables = node.services.broker.metadata.tables
        for queue_id, offset in tables.offsets.get((TOPIC, GROUP), {}).items():
            place = Place(node.group, queue_id)
            self._committed[place] = max(offset, self._committed.get(place, -1))

    def _may_read(self, member: str, place: Place) -> int:
        """The first offset of a place's span; the group has committed the end of all before: M7."""
        at, first = place, 0
        while True:
            node = self._knowing(at)
            guest = moves_of(node).guest_of(TOPIC, at.queue_id) if node is not None else None
            if guest is None:
                return first if node is not None else 0
            if guest.first is None:
                raise Violation(f"M7: {member} is given messages of {at}, which is not open")
            first = guest.first if at == place else first
            at = guest.came_from
            if self._committed.get(at, -1) < guest.first and not self._is_empty(at, guest.first):
                raise Violation(
                    f"M7: {member} is given messages of {place}, and the group has committed "
                    f"{self._committed.get(at, -1)} of {at}, which ends at {guest.first}"
                )

    def _is_empty(self, place: Place, end: int) -> bool:
        node = self._knowing(place)
        guest = moves_of(node).guest_of(TOPIC, place.queue_id) if node is not None else None
        return (0 if guest is None else guest.first) == end

    def _knowing(self, place: Place) -> Node | None:
        """A node that knows the most of a place."""
        nodes = [one for one in self.cluster.groups[place.group].nodes if one.services is not None]
        return max(nodes, key=lambda one: _applied(one), default=None)

    # -- programs ----------------------------------------------------------------------------------

    async def _set_up(self, process: Process) -> None:
        await self._until_done(process, lambda: self._make_topic(process))
        await self._until_done(process, lambda: self._begin_group(process))
        self._ready = True

    async def _make_topic(self, process: Process) -> None:
        made = await process.client.admin.create_topic(TOPIC, QUEUES, groups=[*self.cluster.groups])
        assert made.topic == TOPIC

    @staticmethod
    async def _begin_group(process: Process) -> None:
        async with process.client.consumer(
            GROUP, [TOPIC], start=Start.EARLIEST, session=SESSION_SECONDS
        ):
            """It consumes nothing."""

    @staticmethod
    async def _until_done(process: Process, make: Any) -> None:
        while True:
            try:
                await make()
            except (sdk.DuologError, OSError) as error:
                if not isinstance(error, sdk.Retryable | sdk.ResultUnknown | sdk.BadRequest):
                    raise
                await process.pause(50)
            else:
                return

    async def _until_ready(self) -> None:
        while not self._ready:
            await asyncio.sleep(0.05)

    def _made(self, process: Process, key: str = "", delayed: bool = False) -> Sent:
        sent = self.history.sent
        one = Sent(b"%s-%d" % (process.name.encode(), len(sent)), key, len(sent), delayed)
        sent.append(one)
        return one

    async def _told_of(self, sent: Sequence[Sent], send: Awaitable[None]) -> None:
        self.history.under_way += 1
        try:
            await send
        except MAYBE:
            pass
        except NOTHING_STORED:
            for one in sent:
                one.outcome = "refused"
        finally:
            self.history.under_way -= 1

    @staticmethod
    async def _note_receipt(one: Sent, receipt: Awaitable[Receipt]) -> None:
        found = await receipt
        one.outcome = "ok"
        if not one.delayed:
            one.place, one.offset = Place(found.group, found.queue_id), found.queue_offset

    async def _write_keyed(self, process: Process) -> None:
        """One message of a key behind the other: each is answered before the next one is sent."""
        await self._until_ready()
        producer = process.client.producer(timeout=process.chance.choice((0.8, CALL_SECONDS)))

        async def write(key: str) -> None:
            while not self.draining:
                one = self._made(process, key)
                send = self._note_receipt(one, producer.send(TOPIC, one.body, key=key))
                await self._told_of([one], send)
                await process.pause(60)

        await asyncio.gather(*(write(key) for key in KEYS))

    async def _write(self, process: Process) -> None:
        """Batches, and several single messages at once."""
        await self._until_ready()
        chance = process.chance
        producer = process.client.producer(timeout=CALL_SECONDS)
        while not self.draining:
            sent = [self._made(process) for _ in range(chance.choice((1, 2, 4, 8)))]
            if chance.random() < 0.5:
                await self._told_of(sent, self._send_batch(producer, sent))
            else:
                sends = (self._note_receipt(one, producer.send(TOPIC, one.body)) for one in sent)
                await asyncio.gather(
                    *(self._told_of([one], send) for one, send in zip(sent, sends, strict=True))
                )
            await process.pause(90)

    @staticmethod
    async def _send_batch(producer: Producer, sent: Sequence[Sent]) -> None:
        receipt = await producer.send_batch(TOPIC, [one.body for one in sent])
        for part in receipt.parts:
            for k in range(part.count):
                one = sent[part.first + k]
                one.outcome, one.offset = "ok", part.queue_offset + k
                one.place = Place(part.group, part.queue_id)

    async def _delay(self, process: Process) -> None:
        """Messages that wait for their time."""
        await self._until_ready()
        chance = process.chance
        producer = process.client.producer(timeout=CALL_SECONDS)
        while not self.draining:
            one = self._made(process, delayed=True)
            wait: dict[str, Any] = {"delay": chance.choice(DELAYS)}
            if chance.random() < 0.2:
                wait = {"delay_level": 1}
            send = self._note_receipt(one, producer.send(TOPIC, one.body, **wait))
            await self._told_of([one], send)
            await process.pause(120)

    async def _publish(self, process: Process) -> None:
        """Batches of a sink, for the first queue of its replica group: its parts are in order."""
        await self._until_ready()
        sink = await process.client.sink(SINK, process.chance.choice([*self.cluster.groups]))
        for batch in count():
            parts: list[list[Sent]] = []
            staged: list[int] = []
            while len(staged) < process.chance.choice((1, 2, 3)):
                part = [self._made(process, SINK) for _ in range(process.chance.choice((1, 2, 5)))]
                try:
                    bodies = pack([one.body for one in part])
                    born = process.runtime.wall_ms()
                    staged.append(await sink.stage(TOPIC, 0, bodies, NO_TEXTS, born))
                    parts.append(part)
                except (sdk.Retryable, sdk.ResultUnknown):
                    for one in part:
                        one.outcome = "refused"  # it may be staged, and is never published
                    await process.pause(50)
                if self.draining:
                    break
            if self.draining:
                for one in (one for part in parts for one in part):
                    one.outcome = "refused"
                return
            self.history.under_way += 1
            await self._until_done(process, lambda: sink.publish(batch, staged))  # noqa: B023
            self.history.under_way -= 1
            for one in (one for part in parts for one in part):
                one.outcome = "ok"
            await process.pause(150)

    async def _commit(self, process: Process) -> None:
        """Half messages, each of which is committed."""
        await self._until_ready()
        transactions = process.client.transactions("t")
        await self._until_done(process, transactions.start)
        while not self.draining:
            one = self._made(process, delayed=True)
            self.history.under_way += 1
            try:
                half = await transactions.prepare(TOPIC, one.body)
                await self._until_done(process, lambda: transactions.commit(half))  # noqa: B023
                one.outcome = "ok"
            except NOTHING_STORED:
                one.outcome = "refused"
            except MAYBE:
                pass
            except sdk.NoSuchMessage:
                pass  # nobody could commit it for so long that it was given up
            finally:
                self.history.under_way -= 1
            await process.pause(120)

    # -- the group ---------------------------------------------------------------------------------

    async def _consume(self, process: Process) -> None:
        await self._until_ready()
        while True:
            consumer = process.client.consumer(
                GROUP,
                [TOPIC],
                start=Start.EARLIEST,
                session=SESSION_SECONDS,
                commit_interval=process.chance.choice((0.1, 0.4)),
            )
            try:
                await consumer.start()
                await self._read(process, consumer)
            except (sdk.Retryable, sdk.ResultUnknown):
                pass
            await consumer.close()
            await process.pause(100)

    async def _read(self, process: Process, consumer: Consumer) -> None:
        """Until it leaves by itself."""
        chance = process.chance
        while chance.random() > 0.02 or self.draining:
            message = await consumer.get(timeout=0.2)
            if message is not None:
                place = Place(message.group, message.queue_id)
                first = self._may_read(process.name, place)
                body = bytes(message.body)
                self.history.gave(process.name, place, message.queue_offset, body, first)
            if chance.random() < 0.1:
                await process.pause(40)


def _applied(node: Node) -> int:
    assert node.services is not None, "asked before"
    return node.services.broker.metadata.tables.applied
