"""Clients of a cluster under test: producers that wait for each answer, readers of every queue, a
group that commits how far they are and asks for it, and producers of transactions."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import duolog
from duolog._background import Background
from duolog.wire import duolog_pb2 as wire

from duolog_server.chaos.history import (
    FAIL,
    OK,
    UNKNOWN,
    Commit,
    Half,
    History,
    Poll,
    Queue,
    Send,
    Told,
)
from duolog_server.demo.topics import create_topic

POLL_SECONDS = 0.5
REPLICA_GROUP = "broker-a"
IMMUNITY_SECONDS = 1.0  # of a half message, until its producer is asked
LATE_SHARE, BACK_SHARE = 4, 3  # one transaction of so many waits to be asked, or is rolled back
SETTLED_SECONDS = 120.0  # at the end, for transactions that a node asks about


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much the clients do. readers: of each queue.

    transactors: producers of transactions. timeout: seconds of one send, retries included. pause:
    seconds between a producer's sends, and ten times that between commits and transactions.
    least_ok: answered sends; a run with fewer proves nothing.
    """

    queues: int = 4
    producers: int = 4
    readers: int = 2
    transactors: int = 2
    body_bytes: int = 100
    timeout: float = 20.0
    pause: float = 0.002
    least_ok: int = 100

    def __post_init__(self) -> None:
        """Refuse clients that send nothing, or read nothing."""
        if min(self.queues, self.producers, self.readers) < 1:
            raise ValueError(f"{self}: a run needs a queue, a producer and a reader")


class Workload:
    """Producers and readers that note their calls and the answers."""

    def __init__(self, endpoints: Sequence[str], history: History, load: Load) -> None:
        self.history = history
        self.load = load
        self.queues = load.queues
        # A cluster may have been through earlier runs: a topic of this run's own.
        self.topic = f"chaos-{time.time_ns():x}"
        self.group = f"{self.topic}-group"
        history.transacted = f"{self.topic}-transacted", 0
        self._reached: dict[int, int] = {}  # by queue: the offset behind the last one read
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
        await create_topic(client, self.history.transacted[0], 1)
        for number in range(self.load.producers):
            self._producing.start(self._produce(number))
        for number in range(self.load.readers):
            for queue_id in range(self.queues):
                self._reading.start(self._read(number, queue_id))
                self._producing.start(self._consume(number, queue_id))
        for number in range(self.load.transactors):
            self._producing.start(self._transact(number))

    def _client(self, at: int = 0) -> duolog.Client:
        # Clients begin at different nodes, so that they do not all depend on the first one.
        turned = self._endpoints[at:] + self._endpoints[:at]
        made = duolog.Client(turned, timeout=self.load.timeout)
        self._clients.append(made)
        return made

    async def stop(self) -> None:
        """Let sends in flight end; stop the readers. Raises the first error of one of them."""
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
                self._reached[queue_id] = max(offset, self._reached.get(queue_id, 0))

    # -- a group -------------------------------------------------------------------------------

    async def _consume(self, number: int, queue_id: int) -> None:
        """Commit how far a queue was read; the group's members overtake one another."""
        client = self._client(number % len(self._endpoints))
        while not self._stopping:
            await asyncio.sleep(10 * self.load.pause)
            if queue_id not in self._reached:
                continue
            commit = Commit(self.topic, queue_id, self._reached[queue_id], self.now())
            self.history.commits.append(commit)
            place = (self.topic, REPLICA_GROUP, queue_id)
            try:
                await client.admin.commit(self.group, {place: commit.offset}, forward=True)
            except duolog.DuologError:
                pass  # it may have been stored
            else:
                commit.outcome, commit.end = OK, self.now()
            await self._ask(client, queue_id)

    async def _ask(self, client: duolog.Client, queue_id: int) -> None:
        """Note what a master tells of the group."""
        began, seconds = self.now(), self.load.timeout
        request = wire.OffsetsRequest(
            group=self.group, queues=[wire.QueueRef(topic=self.topic, queue_id=queue_id)]
        )
        try:
            connection = await client._router.reach(REPLICA_GROUP, seconds)
            reply: wire.OffsetsReply = await connection.call(
                lambda left: connection.groups.Offsets(request, timeout=left), seconds
            )
        except duolog.DuologError:
            return  # it tells nothing
        (told,) = reply.offsets
        row = Told(self.topic, queue_id, told.offset, began, self.now())
        self.history.told.append(row)

    async def ask_all(self) -> None:
        """Ask for all queues, when all is over."""
        client = self._client()
        for queue_id in range(self.queues):
            await self._ask(client, queue_id)
        await client.close()

    # -- transactions --------------------------------------------------------------------------

    async def _transact(self, number: int) -> None:
        """Store half messages; commit them, roll them back, or wait to be asked."""
        client = self._client(number % len(self._endpoints))
        known: dict[str, Half] = {}

        async def check(message: duolog.UndecidedMessage) -> bool | None:
            half = known.get(message.body.decode())
            if half is None:
                return None  # of the other producer
            half.asked = half.asked if half.asked >= 0 else self.now()
            return half.commit

        transactions = client.transactions(
            f"{self.group}-{number}", check, immunity=IMMUNITY_SECONDS, timeout=self.load.timeout
        )
        await self._until_started(transactions)
        try:
            while not self._stopping:
                count = len(known) + 1
                half = Half(
                    f"t{number}-{count}",
                    count % BACK_SHARE > 0,
                    count % LATE_SHARE == 0,
                    self.now(),
                )
                known[half.body] = half
                self.history.halves.append(half)
                await self._one(transactions, half)
                await asyncio.sleep(10 * self.load.pause)
            await self._settled(client, known)
        finally:
            await transactions.close()

    async def _until_started(self, transactions: duolog.Transactions) -> None:
        while not self._stopping:
            try:
                await transactions.start()
            except duolog.DuologError:
                await asyncio.sleep(0.1)
            else:
                return

    async def _one(self, transactions: duolog.Transactions, half: Half) -> None:
        try:
            prepared = await transactions.prepare(self.history.transacted[0], half.body.encode())
            half.outcome = OK
        except duolog.ResultUnknown:
            return  # if it was stored, a node asks for the decision
        except duolog.DuologError:
            half.outcome = FAIL
            return
        if half.late:
            return
        half.deciding = self.now()
        try:
            await (transactions.commit if half.commit else transactions.rollback)(prepared)
            half.decided, half.settled = OK, self.now()
        except (duolog.NoSuchMessage, duolog.BadRequest) as error:
            half.decided, half.why = FAIL, str(error)
        except duolog.DuologError as error:
            half.why = str(error)  # a node asks for it

    async def _settled(self, client: duolog.Client, known: dict[str, Half]) -> None:
        """Wait until what is committed is delivered; the checkers say so if it never is."""
        missing = {body for body, half in known.items() if half.commit and half.outcome == OK}
        until, offset = time.monotonic() + SETTLED_SECONDS, 0
        while missing and time.monotonic() < until:
            try:
                batch = await client.pull(*self.history.transacted, offset, wait=POLL_SECONDS)
            except duolog.DuologError:
                await asyncio.sleep(0.1)
                continue
            missing -= set(numbered(batch)[1])
            offset = batch.next_offset if batch.count else offset


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
