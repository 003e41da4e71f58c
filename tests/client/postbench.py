"""A producer without nodes: a test records, delays or refuses what it sends."""

import asyncio
from typing import Any

import duolog
from duolog._batcher import Buffering
from duolog._columns import unpack_numbers
from duolog._places import Slot
from duolog._producer import Producer
from duolog._receipts import Part
from duolog._router import Router
from duolog._sending import Batch
from duolog._topics import TopicCache

from tests.until import until

SLOTS: list[Slot] = [("g", 0), ("g", 1), ("g", 2)]


class Queues(TopicCache):
    """Knows the queues of every topic, once it may; `none` does not exist."""

    def __init__(self, router: Router) -> None:
        super().__init__(router)
        self.let = asyncio.Event()
        self.let.set()
        self.told: set[str] = set()
        self.asked = 0
        self.error: Exception | None = None

    async def slots(self, topic: str, timeout: float, create: bool = False) -> list[Slot]:
        """Three, all in one group."""
        self.asked += 1
        try:
            await asyncio.wait_for(self.let.wait(), timeout)
        except TimeoutError:
            raise duolog.Timeout(f"no answer within {timeout:g} s") from None
        if self.error is not None:
            raise self.error
        if topic == "none":
            raise duolog.UnknownTopic(topic)
        self.told.add(topic)
        return SLOTS

    async def slot(self, topic: str, queue_id: int, group: str | None, timeout: float) -> Slot:
        """The one of that number."""
        return group or "g", queue_id

    def at_hand(self, topic: str, now: float) -> list[Slot]:
        """What was asked for before."""
        return SLOTS if topic in self.told else []


class Nodes:
    """Stores batches when it is let; what says `bad` is refused, and its whole batch with it."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.let.set()
        self.batches: list[tuple[Slot | None, list[bytes]]] = []
        self.sent: list[Batch] = []
        self.under_way: dict[Slot | None, int] = {}
        self.most: dict[Slot | None, int] = {}
        self.error: Exception | None = None

    async def send(self, batch: Batch, seconds: float) -> list[Part]:
        """As `Sender.send`."""
        self.under_way[batch.slot] = self.under_way.get(batch.slot, 0) + 1
        self.most[batch.slot] = max(self.most.get(batch.slot, 0), self.under_way[batch.slot])
        try:
            await asyncio.wait_for(self.let.wait(), seconds)
            await asyncio.sleep(0)
        except TimeoutError:
            raise duolog.ResultUnknown("no answer") from None
        finally:
            self.under_way[batch.slot] -= 1
        if self.error is not None:
            raise self.error
        blob, offsets = batch.bodies
        ends = unpack_numbers(offsets, "I")
        bodies = [blob[ends[k] : ends[k + 1]] for k in range(batch.count)]
        if b"bad" in bodies:
            raise duolog.MessageTooLarge("bad")
        first = sum(len(those) for slot, those in self.batches if slot == batch.slot)
        self.batches.append((batch.slot, bodies))
        self.sent.append(batch)
        queue_id = 9 if batch.slot is None else batch.slot[1]
        return [Part(batch.topic, queue_id, batch.first, batch.count, first, 0, 0, "PUT_OK")]

    def of(self, slot: Slot | None) -> list[bytes]:
        """What a queue has, in its order."""
        return [body for at, bodies in self.batches if at == slot for body in bodies]


class Bench:
    """A producer, and the nodes that it sends to."""

    def __init__(self, timeout: float = 20.0, **buffering: Any) -> None:
        router = Router(("127.0.0.1:1",))
        self.queues, self.nodes = Queues(router), Nodes()
        self.producer = Producer(router, self.queues, timeout, Buffering(**buffering))
        self.producer._sender.send = self.nodes.send  # type: ignore[method-assign]

    async def sends(self) -> None:
        """Wait until a batch is on its way to the nodes, which hold it."""
        await until(lambda: any(self.nodes.under_way.values()))
