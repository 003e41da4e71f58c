"""Single sends that batch by themselves: while a batch is on its way, the next one fills.

One batch at a time for each queue and terms, so that messages of a key stay in order. The first
message goes out alone and at once, unless there is a linger; what comes meanwhile goes together.
"""

import asyncio
from dataclasses import dataclass, field

from duolog._background import Background
from duolog._columns import pack
from duolog._errors import BadRequest, DuologError, ResultUnknown, Timeout
from duolog._receipts import Part, Receipt
from duolog._sending import Batch, Sender, Terms
from duolog._topics import Slot

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 16_384


def producer_closed() -> BadRequest:
    """A send that a closed producer refuses, or has not begun: nothing was stored."""
    return BadRequest("the producer is closed")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, with the text of its properties. slot: its queue; None: any."""

    topic: str
    slot: Slot | None
    terms: Terms
    body: bytes
    text: bytes


@dataclass(slots=True)
class _Filling:
    """Single sends of one queue and terms that wait to go out together."""

    topic: str
    slot: Slot | None
    terms: Terms
    bodies: list[bytes] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    futures: list["asyncio.Future[Receipt]"] = field(default_factory=list)
    deadline: float = 0.0
    running: bool = False

    def add(self, body: bytes, text: bytes, deadline: float) -> "asyncio.Future[Receipt]":
        """One more; its receipt comes by the future."""
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.bodies.append(body)
        self.texts.append(text)
        self.futures.append(future)
        self.deadline = max(self.deadline, deadline)
        return future

    def take(self) -> "tuple[list[bytes], list[bytes], list[asyncio.Future[Receipt]]]":
        """As many as fit into a batch, in the order in which they came: bodies, texts, futures."""
        count = self._fit()
        bodies, self.bodies = self.bodies[:count], self.bodies[count:]
        texts, self.texts = self.texts[:count], self.texts[count:]
        futures, self.futures = self.futures[:count], self.futures[count:]
        return bodies, texts, futures

    def batch(self, bodies: list[bytes], texts: list[bytes]) -> Batch:
        """Messages of this queue and terms."""
        return Batch(self.topic, self.slot, self.terms, pack(bodies), pack(texts), len(bodies))

    def close(self) -> None:
        """Nobody sends what is left."""
        self.running = False
        _reject(self.futures, producer_closed())

    def _fit(self) -> int:
        size = 0
        for count, body in enumerate(self.bodies[:BATCH_MESSAGES]):
            size += len(body)
            if size > BATCH_BYTES and count:
                return count
        return min(len(self.bodies), BATCH_MESSAGES)

    def give_up(self, future: "asyncio.Future[Receipt]", seconds: float) -> DuologError:
        """The error of a send whose time is over; a message not yet on its way is taken back."""
        if future in self.futures:
            at = self.futures.index(future)
            del self.futures[at], self.bodies[at], self.texts[at]
            return Timeout(f"{self.topic}: not sent within {seconds:g} s")
        return ResultUnknown(
            f"{self.topic}: no answer within {seconds:g} s; the message may or may not be stored"
        )


class Batcher:
    """Sends single messages of one producer."""

    def __init__(self, sender: Sender, linger: float) -> None:
        self._sender = sender
        self._linger = linger
        self._filling: dict[tuple[str, Slot | None, Terms], _Filling] = {}
        self._draining = Background()
        self._closed = False
        self._alone = 0  # sends that go out without a task of their own
        self._quiet = asyncio.Event()

    async def send(self, message: Message, seconds: float) -> Receipt:
        """Have a message stored; raises as `Producer.send`."""
        if self._closed:
            raise producer_closed()
        filling = self._filling_of(message.topic, message.slot, message.terms)
        if not filling.running and self._linger <= 0:
            return await self._send_alone(filling, message, seconds)
        loop = asyncio.get_running_loop()
        future = filling.add(message.body, message.text, loop.time() + seconds)
        if not filling.running:
            filling.running = True
            self._begin(filling)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise filling.give_up(future, seconds) from None

    def _filling_of(self, topic: str, slot: Slot | None, terms: Terms) -> _Filling:
        found = self._filling.get((topic, slot, terms))
        if found is None:
            found = _Filling(topic, slot, terms)
            if not terms.deliver_time:  # a time is hardly asked for twice
                self._filling[topic, slot, terms] = found
        return found

    async def _send_alone(self, filling: _Filling, message: Message, seconds: float) -> Receipt:
        """Send a message while nothing else is on its way: no task, no future in between."""
        filling.running = True
        self._alone += 1
        try:
            batch = filling.batch([message.body], [message.text])
            (part,) = await self._sender.send(batch, seconds)
        finally:
            self._alone -= 1
            self._quiet.set()
            if filling.bodies and self._closed:
                filling.close()
            elif filling.bodies:  # what came meanwhile goes out together
                self._begin(filling)
            else:
                filling.running = False
        return self._receipt(part, 0)

    def _begin(self, filling: _Filling) -> None:
        """Drain it in the background."""
        drain = self._draining.start(self._drain(filling))
        # Where it is cancelled before its first step, nothing of it runs, and nobody is answered.
        drain.add_done_callback(lambda _: filling.close() if drain.cancelled() else None)

    async def _drain(self, filling: _Filling) -> None:
        """Send what has filled up, batch after batch, until nothing is left."""
        try:
            if self._linger > 0:
                await asyncio.sleep(self._linger)
            while filling.bodies:
                bodies, texts, futures = filling.take()
                left = filling.deadline - asyncio.get_running_loop().time()
                try:
                    parts = await self._sender.send(filling.batch(bodies, texts), left)
                except Exception as error:
                    _reject(futures, error)
                    continue
                except BaseException:  # cancelled in mid-way: nobody is left waiting
                    _reject(futures, ResultUnknown("the producer was closed"))
                    raise
                self._resolve(parts, futures)
        finally:
            filling.close()

    def _resolve(self, parts: list[Part], futures: "list[asyncio.Future[Receipt]]") -> None:
        for part in parts:
            for k in range(part.count):
                future = futures[part.first + k]
                if not future.done():
                    future.set_result(self._receipt(part, k))

    def _receipt(self, part: Part, k: int) -> Receipt:
        return Receipt(
            part.topic,
            part.queue_id,
            part.queue_offset + k,
            self._sender.unique_key(part.sequence + k),
            part.store_time_ms,
            part.status,
            part.duplicate,
            part.epoch,
            part.group,
        )

    async def flush(self) -> None:
        """Wait until every send that was started has its answer."""
        while self._draining.busy or self._alone:
            await self._draining.finish()
            if self._alone:
                self._quiet.clear()
                await self._quiet.wait()

    async def close(self) -> None:
        """Give up what is still on its way."""
        self._closed = True
        await self._draining.stop()


def _reject(futures: "list[asyncio.Future[Receipt]]", error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
