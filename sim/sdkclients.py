"""Programs that use the SDK as it is: producers, members of a group, publishers of sinks.

Each is a process with its own event loop, which may be killed or paused; its channels connect to
the simulated nodes. Answers of nodes are checked before they are sent.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, cast

import grpc.aio
from duolog import _errors as sdk
from duolog._client import Client
from duolog._columns import pack
from duolog._consumer import Consumer
from duolog._producer import Producer
from duolog._receipts import Receipt
from duolog._runtime import Runtime
from duolog._sink import Sink
from duolog._start import Start
from duolog.wire import duolog_pb2 as wire

from duolog_server.linearizable import NEVER
from sim.channels import SimChannel
from sim.clients import read_all
from sim.loop import SimLoop
from sim.network import Network
from sim.node import WALL_MS, Node
from sim.sdkhistory import (
    CLOCKS,
    GROUP,
    PUBLISHED,
    QUEUES,
    SESSION_SECONDS,
    WRITTEN,
    Publication,
    SdkHistory,
    Written,
)
from sim.services import GROUP_GRACE_MS
from sim.stage import Stage
from sim.standstill import Standstill
from sim.witness import Violation
from sim.world import World

CALL_SECONDS = 2.0
MEMBERS = 3
PUBLISHERS = 2
SINKS = ("k0", "k1")
NO_TEXTS = (b"", b"")
MAYBE = (sdk.ResultUnknown,)
NOTHING_STORED = (sdk.Timeout, sdk.Unavailable, sdk.Busy, sdk.NotMaster)


class Reached(Protocol):
    """The nodes that programs reach."""

    network: Network

    @property
    def by_name(self) -> dict[str, Node]:
        """All of them."""


class Programs(Protocol):
    """Whose process one is."""

    world: World

    @property
    def cluster(self) -> Reached:
        """The nodes that it reaches."""

    def number_of(self, process: "Process") -> int:
        """A process id."""


class Process:
    """One program's process."""

    def __init__(self, programs: Programs, name: str) -> None:
        self.name = name
        self.world = world = programs.world
        self.chance = world.chance(f"sdk program:{name}")
        self.alive = True
        self.standstill = Standstill(world)
        self.loop = SimLoop(self._later, lambda: world.now / 1000, world.chance(f"sdk loop:{name}"))
        network, by_name = programs.cluster.network, programs.cluster.by_name

        def dial(endpoint: str) -> grpc.aio.Channel:
            node = by_name[endpoint.partition(":")[0]]
            return cast(grpc.aio.Channel, SimChannel(network, node))

        self.runtime = Runtime(
            dial,
            world.chance(f"sdk ids:{name}"),
            lambda: (WALL_MS + world.now) / 1000,
            lambda: programs.number_of(self),
        )
        endpoints = [f"{name}:1" for name in by_name]
        self.chance.shuffle(endpoints)
        self.client = Client(endpoints, timeout=CALL_SECONDS, runtime=self.runtime)
        self.consumer: Consumer | None = None
        self.member = ""

    def _later(self, delay: float, do: Callable[[], None]) -> None:
        self.world.after(delay, lambda: self._run(do))

    def _run(self, do: Callable[[], None]) -> None:
        if self.alive and not self.standstill.defers(lambda: self._run(do)):
            do()

    def begin(self, program: Callable[["Process"], Coroutine[Any, Any, None]]) -> None:
        """Run a program in it; an error that it did not expect ends the run."""

        async def main() -> None:
            try:
                await program(self)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.loop.failure = self.loop.failure or error

        self.loop.run_now(lambda: self.loop.create_task(main()))

    def kill(self) -> None:
        """Kill it; the kernel ends its connections."""
        self.alive = False
        self.loop.close()
        for producer in self.client._producers:
            producer.note_fork()  # nobody is warned of what a killed process has not sent

    async def pause(self, mean_ms: float) -> None:
        """Pause it for some time."""
        await asyncio.sleep(self.chance.expovariate(1 / mean_ms) / 1000)


Program = Callable[[Process], Coroutine[Any, Any, None]]


class SdkPrograms:
    """All of them."""

    def __init__(self, cluster: Stage) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.history = SdkHistory()
        self.history.in_touch_ms = min(SESSION_SECONDS * 1000, GROUP_GRACE_MS) * CLOCKS
        self.draining = False
        self.ready = False
        self._numbers: dict[Process, int] = {}
        self.members: list[Process] = []
        self._publishers: list[Process] = []
        self._others: list[Process] = []
        for node in cluster.nodes:
            node.on_answered.append(self._answered)

    def number_of(self, process: Process) -> int:
        """A process id."""
        return self._numbers.setdefault(process, len(self._numbers))

    def begin(self) -> None:
        """Start all programs."""
        self._others = [Process(self, name) for name in ("setup", "w0", "w1")]
        setup, *writers = self._others
        setup.begin(self._set_up)
        for writer in writers:
            writer.begin(self._write)
        self._publishers = [self._new("s", slot, self._publish) for slot in range(PUBLISHERS)]
        self.members = [self._new("m", slot, self._consume) for slot in range(MEMBERS)]

    def _new(self, kind: str, slot: int, program: Program) -> Process:
        process = Process(self, f"{kind}{slot}.{len(self._numbers)}")
        self.number_of(process)
        process.begin(program)
        return process

    def strike(self, kind: str, level: float, lasts: float) -> None:
        """Inject a fault: kill a program and start another one, or pause a member."""
        if not self.members:
            return
        slot = int(level * 997) % MEMBERS
        if kind == "publisher_kill":
            slot %= PUBLISHERS
            self._publishers[slot].kill()
            self._publishers[slot] = self._new("s", slot, self._publish)
        elif kind == "member_kill":
            self.members[slot].kill()
            self.members[slot] = self._new("m", slot, self._consume)
        else:
            self.members[slot].standstill.begin(lasts)

    def drain(self) -> None:
        """No more is sent."""
        self.draining = True

    def heal(self) -> None:
        """Resume all paused members."""
        for process in (*self.members, *self._publishers, *self._others):
            process.standstill.end()

    def stop(self) -> None:
        """The run is over."""
        for process in (*self.members, *self._publishers, *self._others):
            process.kill()

    def counts(self) -> dict[str, int]:
        """What was seen in the run."""
        history = self.history
        return {
            "sdk_sent": sum(one.outcome == "ok" for one in history.written),
            "sdk_sends_unknown": sum(one.outcome == "info" for one in history.written),
            "sdk_given": history.deliveries,
            "sdk_given_again": history.repeats,
            "sdk_takeovers": history.takeovers,
            "sdk_published": sum(one.answered for one in history.publications),
        }

    # -- what nodes answer ---------------------------------------------------------------------

    def _answered(self, node: Node, request: Any, reply: Any, came: float) -> None:
        """Before the answer goes out."""
        now, history = self.world.now, self.history
        history.older_copy_led = node.ghost.marks["older_copy_led"] > 0
        who = node.name if node.master is None else f"{node.name} in epoch {node.master.epoch}"
        match request:
            case wire.HeartbeatRequest(group=group) if group == GROUP:
                owned = {(ref.topic, ref.queue_id) for ref in request.owned}
                granted = {(ref.topic, ref.queue_id) for ref in reply.queues}
                history.heartbeat(request.member_id, owned, granted, now, who)
            case wire.LeaveRequest():
                history.left(request.member_id)
            case wire.CommitRequest():
                back = not request.forward and history.older_copy_led
                history.commits(
                    request.member_id, _offsets(request.offsets), (came, now), who, back
                )
            case wire.OffsetsRequest():
                history.knows(_offsets(reply.offsets), (came, now), who)
            case wire.PublishRequest():
                self._visible(node, request)

    def _visible(self, node: Node, request: wire.PublishRequest) -> None:
        """Answered: all of one publication of that number can be read."""
        rivals = [
            one
            for one in self.history.publications
            if (one.sink, one.batch) == (request.sink, request.batch)
        ]
        rows = {q: {body for _, body in read_all(node, (PUBLISHED, q))} for q in range(QUEUES)}
        if rivals and not any(
            all(set(bodies) <= rows[q] for q, bodies in one.bodies.items()) for one in rivals
        ):
            raise Violation(
                f"{node.name} says that {request.sink} {request.batch} is published, and it is not "
                "there as a whole"
            )

    # -- programs ------------------------------------------------------------------------------

    async def _set_up(self, process: Process) -> None:
        for topic in (WRITTEN, PUBLISHED):
            await self._until_done(
                process,
                lambda topic=topic: process.client.admin.create_topic(topic, QUEUES),  # type: ignore[misc]
            )
        # The group begins at the latest message while there is none: it is to get all.
        await self._until_done(process, lambda: self._begin_group(process))
        self.ready = True

    @staticmethod
    async def _begin_group(process: Process) -> None:
        async with process.client.consumer(
            GROUP, [WRITTEN], start=Start.LATEST, session=SESSION_SECONDS
        ):
            """It consumes nothing."""

    @staticmethod
    async def _until_done(process: Process, make: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await make()
            except (sdk.Retryable, sdk.ResultUnknown):
                await process.pause(50)
            else:
                return

    async def _until_ready(self) -> None:
        while not self.ready:
            await asyncio.sleep(0.05)

    async def _write(self, process: Process) -> None:
        """Single sends, several at once, and batches."""
        await self._until_ready()
        chance = process.chance
        producer = process.client.producer(timeout=chance.choice((0.8, CALL_SECONDS)))
        while not self.draining:
            sent = [self._written(process) for _ in range(chance.choice((1, 1, 2, 4, 8)))]
            with self.history.busy():
                await self._send_some(producer, sent, chance)
            await process.pause(80)

    async def _send_some(
        self, producer: Producer, sent: list[Written], chance: random.Random
    ) -> None:
        """As a batch, or each for itself."""
        if chance.random() < 0.3:
            await self._told(sent, self._send_batch(producer, sent, chance.randrange(QUEUES)))
            return
        queue_id = chance.randrange(QUEUES) if chance.random() < 0.5 else None
        if chance.random() < 0.4:
            await self._post_all(producer, sent, queue_id)
            return
        await asyncio.gather(
            *(self._told([one], self._send(producer, one, queue_id)) for one in sent)
        )

    async def _post_all(
        self, producer: Producer, sent: list[Written], queue_id: int | None
    ) -> None:
        """Post all at once: what a queue, or a key, is given is stored in that order."""
        handles = [
            producer.post(WRITTEN, one.body, queue_id=queue_id, key=_key_of(one, queue_id))
            for one in sent
        ]
        last: dict[str | None, tuple[int, int]] = {}
        for one, handle in zip(sent, handles, strict=True):
            await self._told([one], self._note_receipt(one, handle))
            if one.outcome != "ok":
                continue
            key = _key_of(one, queue_id)
            if not last.get(key, (one.place[0], -1)) < one.place:
                raise Violation(f"{one.body!r} is at {one.place}, posted after {last.get(key)}")
            last[key] = one.place
        await producer.flush()  # nothing that nobody was told

    @staticmethod
    async def _note_receipt(one: Written, receipt: Awaitable[Receipt]) -> None:
        found = await receipt
        one.outcome, one.place = "ok", (found.queue_id, found.queue_offset)

    def _written(self, process: Process) -> Written:
        made = Written(b"%s-%d" % (process.name.encode(), len(self.history.written)), process.name)
        made.begin = self.world.now
        self.history.written.append(made)
        return made

    async def _send(self, producer: Producer, one: Written, queue_id: int | None) -> None:
        key = _key_of(one, queue_id)
        await self._note_receipt(one, producer.send(WRITTEN, one.body, queue_id=queue_id, key=key))

    @staticmethod
    async def _send_batch(producer: Producer, sent: list[Written], queue_id: int) -> None:
        receipt = await producer.send_batch(WRITTEN, [one.body for one in sent], queue_id=queue_id)
        for part in receipt.parts:
            for k in range(part.count):
                one = sent[part.first + k]
                one.outcome, one.place = "ok", (part.queue_id, part.queue_offset + k)

    async def _told(self, sent: list[Written], send: Awaitable[None]) -> None:
        """What a send came to: what it says of itself is what is checked."""
        try:
            await send
            for one in sent:
                one.end = self.world.now if one.outcome == "ok" else NEVER
        except MAYBE:
            pass
        except NOTHING_STORED:
            for one in sent:
                one.outcome = "refused"

    # -- the group -----------------------------------------------------------------------------

    async def _consume(self, process: Process) -> None:
        await self._until_ready()
        while True:
            consumer = process.client.consumer(
                GROUP,
                [WRITTEN],
                start=Start.LATEST,
                session=SESSION_SECONDS,
                commit_interval=process.chance.choice((0.1, 0.4)),
            )
            try:
                await consumer.start()
                process.consumer = consumer
                await self._read(process, consumer)
            except (sdk.Retryable, sdk.ResultUnknown, sdk.UnknownTopic) as error:
                if isinstance(error, sdk.UnknownTopic):
                    raise Violation(
                        f"{process.name} is told that {WRITTEN} does not exist"
                    ) from None
            finally:
                process.consumer = None
            await consumer.close()
            await process.pause(100)

    async def _read(self, process: Process, consumer: Consumer) -> None:
        """Until it leaves by itself."""
        chance = process.chance
        while chance.random() > 0.02 or self.draining:
            message = await consumer.get(timeout=0.2)
            if message is not None:
                queue = message.stored_topic, message.queue_id
                self._gave(process, queue)
                self.history.gave(
                    process.name, queue, message.queue_offset, bytes(message.body), self.world.now
                )
            if chance.random() < 0.3:
                await process.pause(60)
            if chance.random() < 0.05:
                try:
                    await consumer.commit()
                except sdk.StaleMember:
                    pass

    def _gave(self, process: Process, queue: tuple[str, int]) -> None:
        """Of two members in touch one reads a queue."""
        now, history = self.world.now, self.history
        if not history.may_read(member_id(process), queue, now):
            return
        for other in self.members:
            if other is process or other.consumer is None or not other.alive:
                continue
            reads = queue in other.consumer.assignment
            if reads and history.may_read(member_id(other), queue, now):
                raise Violation(f"{process.name} and {other.name} both read {queue}")

    # -- sinks ---------------------------------------------------------------------------------

    async def _publish(self, process: Process) -> None:
        """Publish the next number of a sink, as another process does."""
        await self._until_ready()
        sinks: dict[str, Sink] = {}
        while not self.draining:
            name = process.chance.choice(SINKS)
            try:
                if name not in sinks:
                    sinks[name] = await process.client.sink(name)
                with self.history.busy():
                    await self._publish_next(process, sinks[name])
            except (sdk.Retryable, sdk.ResultUnknown):
                pass
            await process.pause(150)

    async def _publish_next(self, process: Process, sink: Sink) -> None:
        chance = process.chance
        state = await sink.state()
        batch = 0 if state is None else state.batch + 1
        made = Publication(sink.name, batch, {})
        tag = len(self.history.publications)
        self.history.publications.append(made)
        staged = []
        for part in range(chance.randint(1, 3)):
            queue_id = chance.randrange(QUEUES)
            bodies = [
                b"%s-%d-%d-%d-%d" % (sink.name.encode(), batch, tag, part, k)
                for k in range(chance.choice((1, 2, 3, 12)))
            ]
            made.bodies.setdefault(queue_id, []).extend(bodies)
            number = await sink.stage(
                PUBLISHED, queue_id, pack(bodies), NO_TEXTS, process.runtime.wall_ms()
            )
            staged.append(number)
        if chance.random() < 0.1:
            return  # it is never published
        for _ in range(chance.choice((1, 1, 2))):  # some ask again for what is done
            await self._until_published(process, sink, made, staged)

    async def _until_published(
        self, process: Process, sink: Sink, made: Publication, staged: list[int]
    ) -> None:
        while True:
            try:
                await sink.publish(made.batch, staged)
            except (sdk.Retryable, sdk.ResultUnknown):
                await process.pause(50)
            else:
                made.answered = True
                return


def _key_of(one: Written, queue_id: int | None) -> str | None:
    """What tells a message's queue where it is sent to none by number."""
    return None if queue_id is not None else one.body.decode()[-1]


def member_id(process: Process) -> str:
    """What a process's consumer is called by the nodes; empty for none."""
    consumer = process.consumer
    if consumer is None:
        return ""
    reader = next(iter(consumer._readers.values()), None)
    return str(getattr(reader._membership, "member_id", "")) if reader is not None else ""


def _offsets(rows: Any) -> dict[tuple[str, int], int]:
    return {(row.topic, row.queue_id): row.offset for row in rows}
