"""Clients of a cluster under test: producers that wait for each answer, readers of every queue."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import duolog
from duolog._background import Background

from cluster.chaos.history import FAIL, OK, UNKNOWN, History, Poll, Queue, Send
from demo.topics import create_topic

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much the clients do. readers: of each queue.

    timeout: seconds of one send, retries included. pause: seconds between a producer's sends.
    least_ok: answered sends; a run with fewer proves nothing.
    """

    queues: int = 4
    producers: int = 4
    readers: int = 2
    body_bytes: int = 100
    timeout: float = 20.0
    pause: float = 0.002
    least_ok: int = 100

    def __post_init__(self) -> None:
        """Refuse clients that send nothing, or read nothing."""
        if min(self.queues, self.producers, self.readers) < 1:
            raise ValueError(f"{self}: a run needs a queue, a producer and a reader")


class Workload:
    """Producers and readers that note what they do and are told."""

    def __init__(self, endpoints: Sequence[str], history: History, load: Load) -> None:
        self.history = history
        self.load = load
        self.queues = load.queues
        # A cluster may have been through earlier runs: a topic of this run's own.
        self.topic = f"chaos-{time.time_ns():x}"
        self.began = time.monotonic()
        self._endpoints = list(endpoints)
        self._stopping = False
        self._failed: list[Exception] = []
        self._producing = Background(self._failed.append)
        self._reading = Background(self._failed.append)
        self._clients: list[duolog.Client] = []
        self.answered: dict[int, float] = {}  # when each epoch's master first answered a send

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    async def start(self) -> None:
        """Make the topic and begin."""
        client = self._client()
        await create_topic(client, self.topic, self.queues)
        for number in range(self.load.producers):
            self._producing.start(self._produce(number))
        for number in range(self.load.readers):
            for queue_id in range(self.queues):
                self._reading.start(self._read(number, queue_id))

    def _client(self, at: int = 0) -> duolog.Client:
        # Clients begin at different nodes, so that they do not all depend on the first one.
        turned = self._endpoints[at:] + self._endpoints[:at]
        made = duolog.Client(turned, timeout=self.load.timeout)
        self._clients.append(made)
        return made

    async def stop(self) -> None:
        """Let sends under way end; stop the readers. Raises the first error of one of them."""
        self._stopping = True
        await self._producing.finish()
        await self._reading.stop()
        for client in self._clients:
            await client.close()
        if self._failed:
            raise self._failed[0]

    async def _produce(self, number: int) -> None:
        client = self._client(number % len(self._endpoints))
        producer = client.producer(timeout=self.load.timeout)
        count = 0
        while not self._stopping:
            count += 1
            body = f"{number}-{count}"
            queue_id = (number + count) % self.queues
            send = Send(number, body, self.topic, queue_id, self.now())
            self.history.sends.append(send)
            padded = body.encode().ljust(self.load.body_bytes, b".")
            try:
                receipt = await producer.send(self.topic, padded, queue_id=queue_id)
                send.outcome, send.offset = OK, receipt.queue_offset
                send.epoch = receipt.epoch
            except duolog.ResultUnknown:
                send.outcome = UNKNOWN
            except duolog.DuologError:
                send.outcome = FAIL
            send.end = self.now()
            if send.outcome == OK:
                self.answered.setdefault(send.epoch, time.monotonic())
            await asyncio.sleep(self.load.pause)

    async def _read(self, number: int, queue_id: int) -> None:
        """Read a queue from any node that answers, always from where it stands."""
        client = self._client(number % len(self._endpoints))
        offset = 0
        while not self._stopping:
            began = self.now()
            try:
                batch = await client.pull(self.topic, queue_id, offset, wait=POLL_SECONDS)
            except duolog.DuologError:
                await asyncio.sleep(0.1)
                continue
            first, bodies = numbered(batch)
            if bodies:
                poll = Poll(number, self.topic, queue_id, self.now(), first, bodies, began)
                self.history.polls.append(poll)
                offset = first + len(bodies)


def numbered(batch: duolog.Batch) -> tuple[int, list[str]]:
    """Offset of the first message of a batch, and the bodies without their padding."""
    offsets = list(batch.queue_offsets)
    bodies = [bytes(body).rstrip(b".").decode() for body in batch.body_list()]
    return (offsets[0] if offsets else 0), bodies


async def drain(
    endpoint: str, topic: str, queues: int, timeout: float
) -> dict[Queue, list[tuple[int, str]]]:
    """Everything one replica serves, from offset 0."""
    found: dict[Queue, list[tuple[int, str]]] = {}
    async with duolog.Client(endpoint, timeout=timeout) as client:
        for queue_id in range(queues):
            rows: list[tuple[int, str]] = []
            offset = 0
            while True:
                batch = await client.pull(topic, queue_id, offset)
                if not batch.count:
                    break
                rows += [
                    (at, bytes(body).rstrip(b".").decode())
                    for at, body in zip(batch.queue_offsets, batch.body_list(), strict=True)
                ]
                offset = batch.next_offset
            found[topic, queue_id] = rows
    return found
