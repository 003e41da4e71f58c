"""Messages that are sent one by one go out together: while a batch is on its way, the next fills.

One batch at a time for each queue and terms, so that messages of a key stay in order; of messages
for any queue, several. The first message goes out alone and at once, unless there is a linger; what
comes meanwhile goes together.
"""

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from math import inf
from typing import Any

from duolog._background import Background
from duolog._columns import pack, repeat
from duolog._errors import BadRequest, BufferFull, MessageTooLarge, ResultUnknown
from duolog._posted import ALL, MESSAGE_BYTES, Posted, Posting, Told
from duolog._receipts import Part, Receipt
from duolog._sending import PLAIN, Batch, Sender, Terms
from duolog._topics import Slot

BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 16_384
BUFFER_BYTES = 64 << 20  # some 400,000 messages of 100 bytes
SIDE_BY_SIDE = 4  # batches of messages for any queue
MANY = 256  # messages that do not wait for the batch before them, where they need not
FAILED_MAX = 1000  # batches whose errors nobody has been told


def producer_closed() -> BadRequest:
    """A send that a closed producer refuses, or has not begun: nothing was stored."""
    return BadRequest("the producer is closed")


@dataclass(frozen=True, slots=True)
class Buffering:
    """How messages wait to be sent.

    linger: seconds that a batch waits for more. bytes: of messages that are not answered, at most.
    loop: the producer's, where other threads post; None: whoever posts runs in it.
    """

    linger: float = 0.0
    bytes: int = BUFFER_BYTES
    loop: asyncio.AbstractEventLoop | None = None


AT_ONCE = Buffering()


class Filling:
    """Messages of one queue and terms: the batches that wait, and those on their way."""

    __slots__ = ("limit", "on_way", "running", "slot", "terms", "topic", "waiting")

    def __init__(self, topic: str, slot: Slot | None, terms: Terms) -> None:
        self.topic, self.slot, self.terms = topic, slot, terms
        self.limit = SIDE_BY_SIDE if slot is None else 1  # of `running`
        self.waiting: deque[Posting] = deque()  # the last one fills
        self.on_way: dict[Posting, None] = {}
        self.running = 0  # that send what waits, one batch after the other


class Batcher:
    """Sends single messages of one producer.

    All of it runs in the producer's loop, but for `add`, `hold` and `filling_of`: where the loop is
    given, any thread may call these.
    """

    def __init__(self, sender: Sender, buffering: Buffering = AT_ONCE) -> None:
        self._sender = sender
        self._linger = buffering.linger
        self.buffer_bytes = buffering.bytes
        loop = buffering.loop
        self._call: Callable[..., object] = _now if loop is None else loop.call_soon_threadsafe
        self.lock = threading.RLock()  # of the fillings, and of what is used
        self._plain: dict[str, Filling] = {}  # for any queue
        self._fillings: dict[tuple[str, Slot | None, Terms], Filling] = {}
        self._busy: dict[Filling, None] = {}
        self.used = 0
        self._failed: deque[Posting] = deque()  # with errors that nobody was told
        self._older: list[Exception] = []  # of those that came before
        self._older_count = 0
        self._draining = Background()
        self._closed = False
        self._alone: dict[object, None] = {}  # sends that go out without a batch of their own
        self._quiet = asyncio.Event()
        self._due = inf  # when messages are looked for whose time is over
        self._timer: asyncio.TimerHandle | None = None

    # -- what comes ----------------------------------------------------------------------------

    def send(
        self, filling: Filling, body: bytes, text: bytes, seconds: float
    ) -> Awaitable[Receipt]:
        """Have a message stored; awaiting what it returns raises as `Producer.send`."""
        if not filling.running and self._linger <= 0:
            with self.lock:
                alone = not (filling.running or self._closed)
                if alone:
                    self._run(filling)
            if alone:
                return self._send_alone(filling, body, text, seconds)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Receipt] = loop.create_future()
        self.add(filling, body, text, loop.time() + seconds).answer(answer)
        return answer

    def add(
        self,
        filling: Filling,
        body: bytes,
        text: bytes,
        deadline: float,
        on_done: Told | None = None,
    ) -> Posted:
        """Take a message, to be sent some time. Raises BadRequest once it is closed."""
        # For each message of programs that post hundreds of thousands a second: all in one piece.
        cost = len(body) + len(text) + MESSAGE_BYTES
        with self.lock:
            if self._closed:
                raise producer_closed()
            waiting = filling.waiting
            fits = waiting and waiting[-1].cost + cost <= BATCH_BYTES
            posting = waiting[-1] if fits else Posting()
            bodies = posting.bodies
            many = len(bodies) == MANY if fits else bool(waiting)
            begins = filling.running < filling.limit and (many or not filling.running)
            arms = deadline < self._due
            if (begins or arms) and self._call is _now:
                asyncio.get_running_loop()  # raises where none runs, before anything is taken
            if not fits:
                waiting.append(posting)
            self.used += cost
            handle = Posted(posting, len(bodies))
            bodies.append(body)
            posting.texts.append(text)
            posting.deadlines.append(deadline)
            posting.cost += cost
            if on_done is not None:
                posting.told.append((handle, on_done))
            if begins:
                self._run(filling)
        if begins:
            self._call(self._begin, filling)
        if arms:
            self._call(self._arm, deadline)
        return handle

    def filling_of(self, topic: str, slot: Slot | None, terms: Terms) -> Filling:
        """Where messages for a queue and on terms go."""
        plain = slot is None and terms is PLAIN
        found = self._plain.get(topic) if plain else self._fillings.get((topic, slot, terms))
        if found is not None:
            return found
        found = Filling(topic, slot, terms)
        if plain:
            found = self._plain.setdefault(topic, found)
        else:
            found = self._fillings.setdefault((topic, slot, terms), found)
        return found

    def refuse_more(self) -> None:
        """Raise BufferFull where the buffer is used up."""
        if self.used >= self.buffer_bytes:
            raise BufferFull(
                f"{self.used} bytes are not answered yet; buffer_bytes is {self.buffer_bytes}"
            )

    def hold(self, filling: Filling, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have some work see to what waits in a filling; it ends with `leave`."""
        self._run(filling)
        self._call(lambda: self._closed or self._draining.start(work()))

    def leave(self, filling: Filling, refused: list[tuple[Posted, Exception]]) -> None:
        """What waited in a held filling is elsewhere, but for what is refused."""
        for handle, error in refused:
            posting, place = handle.at
            if not handle.done:  # else its time was over
                posting.fail_some({place: error})
        with self.lock:
            left = list(filling.waiting)
            filling.waiting.clear()
        for posting in left:
            posting.left()
            self._is_over(filling, posting)
        self._rests(filling)

    def _run(self, filling: Filling) -> None:
        """Somebody will send what waits in it."""
        filling.running += 1
        self._busy[filling] = None

    # -- what goes -----------------------------------------------------------------------------

    async def _send_alone(
        self, filling: Filling, body: bytes, text: bytes, seconds: float
    ) -> Receipt:
        """Send a message while nothing else is on its way: no task, no future in between."""
        one = object()
        self._alone[one] = None
        try:
            batch = _batch(filling, [body], [text])
            (part,) = await self._sender.send(batch, seconds)
        finally:
            del self._alone[one]
            self._quiet.set()
            if self._rests(filling):
                self._begin(filling)  # what came meanwhile goes out together
        return part.receipt(0, self._sender.unique_key)

    def _begin(self, filling: Filling) -> None:
        """Drain it in the background."""
        if not self._closed:
            self._draining.start(self._drain(filling))

    async def _drain(self, filling: Filling) -> None:
        """Send what waits, batch after batch, until nothing is left."""
        if self._linger > 0:
            await asyncio.sleep(self._linger)
        while self._rests(filling):
            with self.lock:
                posting = filling.waiting.popleft()
                filling.on_way[posting] = None
            await self._send(filling, posting)
            self._is_over(filling, posting)

    def _rests(self, filling: Filling) -> bool:
        """Tell whether anything waits; if not, whoever asks sends no more of it."""
        with self.lock:
            if filling.waiting:
                return True
            filling.running -= 1
            if not filling.running:
                self._busy.pop(filling, None)
                if filling.terms.deliver_time:  # a time is hardly asked for twice
                    self._fillings.pop((filling.topic, filling.slot, filling.terms), None)
            return False

    async def _send(self, filling: Filling, posting: Posting) -> None:
        bodies, texts, deadline = posting.take()
        parts: list[Part] = []
        lost: dict[int, Exception] = {}
        todo = [(0, len(bodies))] if bodies else []
        while todo:
            first, end = todo.pop()
            left = deadline - asyncio.get_running_loop().time()
            try:
                batch = _batch(filling, bodies[first:end], texts[first:end], first)
                parts += await self._sender.send(batch, left)
            except Exception as error:
                if isinstance(error, MessageTooLarge) and end - first > 1:
                    # A node stores all of a batch or nothing: the others shall not suffer.
                    middle = (first + end) // 2
                    todo += [(middle, end), (first, middle)]
                else:
                    lost.update(dict.fromkeys(range(first, end), error))
        posting.stored(parts, lost, self._sender.unique_key)

    def _is_over(self, filling: Filling, posting: Posting) -> None:
        with self.lock:
            filling.on_way.pop(posting, None)
            self.used -= posting.cost
        if posting.unasked():
            self._failed.append(posting)
        if len(self._failed) > FAILED_MAX:
            errors = self._failed.popleft().unasked()
            self._older = self._older or errors[:1]
            self._older_count += len(errors)

    # -- the end of their time -----------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        """Look for messages whose time is over, when the first one's is."""
        if self._closed or deadline >= self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._due, self._timer = inf, None
        now, earliest = asyncio.get_running_loop().time(), inf
        for filling, posting in self._postings():
            earliest = min(earliest, posting.expire(now, filling.topic))
        if earliest < inf:
            self._arm(earliest)

    def _postings(self) -> list[tuple[Filling, Posting]]:
        """All that have no answer yet."""
        with self.lock:
            return [(busy, one) for busy in self._busy for one in (*busy.on_way, *busy.waiting)]

    async def answered(self) -> None:
        """Wait until every message that was taken before has its answer."""
        alone = list(self._alone)
        for _ in ("where they wait for their queue", "where they go to it"):
            for _, posting in self._postings():
                await posting.settled(ALL)
        while not self._alone.keys().isdisjoint(alone):
            self._quiet.clear()
            await self._quiet.wait()
        await asyncio.sleep(0)  # whoever waits for a message of these is told first

    def raise_unasked(self) -> None:
        """Raise the first error that nobody was told, if there is one; it tells of the others."""
        errors, count = self._older, self._older_count
        self._older, self._older_count = [], 0
        while self._failed:
            found = self._failed.popleft().unasked()
            errors, count = errors or found[:1], count + len(found)
        if not errors:
            return
        error = copy.copy(errors[0])  # its handle tells of one message
        if count > 1:
            error.add_note(f"{count} messages that were posted failed")
        raise error

    async def close(self) -> None:
        """Give up what is still on its way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._draining.stop()
        for filling, posting in self._postings():
            going = posting in filling.on_way
            posting.failed(ResultUnknown("the producer was closed") if going else producer_closed())
            self._is_over(filling, posting)
        for filling in list(self._busy):
            filling.waiting.clear()
        self._busy.clear()


def _now(do: Callable[..., object], *arguments: object) -> None:
    do(*arguments)


def _batch(filling: Filling, bodies: list[bytes], texts: list[bytes], first: int = 0) -> Batch:
    packed = pack(texts) if any(texts) else repeat(b"", len(texts))
    count = len(bodies)
    return Batch(filling.topic, filling.slot, filling.terms, pack(bodies), packed, count, first)
