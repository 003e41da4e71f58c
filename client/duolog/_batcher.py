"""Messages that are sent one by one go out together: while a batch is on its way, the next fills.

One batch at a time for each queue and terms, so that messages of a key stay in order; of messages
for any queue, several. The first message goes out alone and at once, unless there is a linger; what
comes meanwhile goes together. A message that finds room in an open batch costs a few appends: room
is taken from the producer's buffer in pieces, and a deadline is kept once for those that share it.
"""

import asyncio
import contextlib
import copy
import threading
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from math import inf
from typing import Any

from duolog._background import Background, without_frames
from duolog._columns import pack
from duolog._errors import BadRequest, BufferFull, MessageTooLarge, Unavailable
from duolog._places import Slot
from duolog._posted import (
    ALL,
    MESSAGE_BYTES,
    TEXT_BYTES,
    TOLD_BYTES,
    Lost,
    Posted,
    Posting,
    Told,
)
from duolog._receipts import Part, Receipt
from duolog._sending import Batch, Sender
from duolog._terms import PLAIN, Terms

BATCH_BYTES = 1 << 20  # the least that limits.request_bytes_max may be: gRPC tells of no limit
BATCH_MESSAGES = 16_384
BUFFER_BYTES = 64 << 20  # some 290,000 messages of 100 bytes
ROOM_BYTES = 32 << 10  # that a batch takes of the buffer at a time
# Bytes that wait before one more batch goes out beside so many, where it need not come after them.
# Large ones cost less a message; a program that waits for its answers must not wait for two.
ENOUGH_BYTES = (0, 128 << 10, 256 << 10, 512 << 10)
CROWD = 3  # messages that were awaited together: the first one does not go alone
TURN_MESSAGES = 256  # at least, in a batch that goes while tasks write as many again
SIDE_BY_SIDE = len(ENOUGH_BYTES)  # batches of messages for any queue
FAILED_MAX = 1000  # batches with unreported errors,
FAILED_WEIGHT_MAX = 100_000  # and what they keep in all
SCAN_SHARE = 20  # of the time, one part for looking for messages whose time is over,
SCAN_SECONDS_MAX = 0.1  # but no later than this


def producer_closed() -> BadRequest:
    """The producer refused a send, or had not begun it, as it was closed: nothing was stored."""
    return BadRequest("the producer is closed")


@dataclass(frozen=True, slots=True)
class Buffering:
    """How messages wait to be sent.

    linger: seconds that a batch waits for more. bytes: of messages that are not answered, at most.
    loop: the producer's, where other threads post; None: all posts come from that loop.
    """

    linger: float = 0.0
    bytes: int = BUFFER_BYTES
    loop: asyncio.AbstractEventLoop | None = None


AT_ONCE = Buffering()
FULL = Posting()  # takes no message: in the place of a batch that is open


class Filling:
    """Messages of one queue and terms: the batches that wait, and those on their way."""

    __slots__ = (
        *("crowd", "hurry", "limit", "on_way", "open", "running", "slot", "terms", "topic"),
        "waiting",
    )

    def __init__(self, topic: str, slot: Slot | None, terms: Terms) -> None:
        self.topic, self.slot, self.terms = topic, slot, terms
        self.limit = SIDE_BY_SIDE if slot is None else 1  # of `running`
        self.waiting: deque[Posting] = deque()
        self.open = FULL  # the last one that waits, where it takes more
        self.on_way: dict[Posting, None] = {}
        self.running = 0  # that send what waits, one batch after the other
        self.hurry = asyncio.Event()  # ends the linger
        self.crowd = 0  # messages that tasks waited for at the same time, lately

    def is_full(self, posting: Posting, cost: int) -> bool:
        """Whether to send an open batch without a message that costs so much."""
        if posting.granted - posting.room + cost > BATCH_BYTES:
            return True
        return self.limit > 1 and self._is_half(posting)

    def _is_half(self, posting: Posting) -> bool:
        """Tell whether it has half of what tasks wait for: they write the others meanwhile."""
        return max(TURN_MESSAGES, self.crowd // 2) <= len(posting.sends)

    def take(self) -> Posting:
        """The batch that goes out next."""
        awaited = sum(len(one.sends) for one in (*self.on_way, *self.waiting))
        self.crowd = max(awaited, self.crowd * 7 // 8)
        posting = self.waiting.popleft()
        self.on_way[posting] = None
        return posting

    def enough(self, others: int) -> bool:
        """Whether to send one more batch beside so many in flight."""
        if not others:
            return True
        if others >= self.limit or not self.waiting:
            return False
        first = self.waiting[0]
        size = first.granted - first.room - TOLD_BYTES * len(first.sends)
        return len(self.waiting) > 1 or size >= ENOUGH_BYTES[others] or self._is_half(first)


class Batcher:
    """Sends single messages of one producer.

    All of it runs in the producer's loop, but for `add`, `hold`, `refuse_more` and `filling_of`:
    where the loop is given, any thread may call these.
    """

    def __init__(self, sender: Sender, buffering: Buffering = AT_ONCE) -> None:
        self._closed = True  # until all is here
        self._sender = sender
        self._linger = buffering.linger
        self.buffer_bytes = buffering.bytes
        loop = self._loop = buffering.loop  # or the one in which the first message comes
        self._call: Callable[..., object] = _now if loop is None else loop.call_soon_threadsafe
        self.lock = threading.RLock()  # of the fillings, and of what is used
        self._plain: dict[str, Filling] = {}  # for any queue
        self._fillings: dict[tuple[str, Slot | None, Terms], Filling] = {}
        self._busy: dict[Filling, None] = {}
        self.used = 0
        self._roomy: dict[Posting, None] = {}  # that may have unused room
        # With unreported errors, and the memory they keep for these.
        self._failed: deque[tuple[Posting, int]] = deque()
        self._failed_weight = 0
        self._older: Exception | None = None  # the first of those that came before
        self._older_count = 0
        self._draining = Background()
        self._alone: dict[object, None] = {}  # sends that go out without a batch of their own
        self._quiet = asyncio.Event()
        self._cut_off = False  # tasks of ours were cancelled by something else
        self._due = inf  # when expired messages are searched for
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __del__(self) -> None:
        """Warn where messages go with it."""
        # Without the lock: nobody else has it, but a thread that a fork left behind.
        if self._closed:
            return
        count = _unanswered(self._all_postings())
        if self._cut_off:  # by the end of the loop, most often: nobody has heard of them
            count += sum(posting.unasked()[0] for posting, _ in self._failed)
        if count:
            warnings.warn(
                f"a producer was collected with {count} posted messages that have no answer, and "
                "may not be stored: close it, or its client",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- what comes ----------------------------------------------------------------------------

    def send(
        self, filling: Filling, body: bytes, text: bytes, deadline: float
    ) -> Awaitable[Receipt]:
        """Store a message; awaiting what it returns raises as `Producer.send`."""
        loop = self.running_loop()
        if not filling.running and self._linger <= 0 and filling.crowd < CROWD:
            with self.lock:
                alone = not (filling.running or self._closed)
                if alone:
                    self._run(filling)
            if alone:
                return self._send_alone(filling, body, text, deadline)
        answer: asyncio.Future[Receipt] = loop.create_future()
        with self.lock:
            posting, place = self.add(filling, body, text, deadline).at
            posting.sends[place] = answer
            posting.room -= TOLD_BYTES  # where that is too much, the next message asks for it too
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
        cost = len(body) + MESSAGE_BYTES
        if text:
            cost += len(text) + TEXT_BYTES
        if on_done is not None:
            cost += TOLD_BYTES
        handle = Posted()
        with self.lock:
            posting = filling.open
            room = posting.room - cost
            if room < 0 or not posting.earliest <= deadline <= posting.latest:
                posting = self._opened(filling, cost, deadline)
                room = posting.room - cost
            posting.room = room
            handle._posting = posting
            handle._place = place = len(posting.bodies)
            if text:
                posting.put_text(place, text)
            posting.bodies.append(body)
            if on_done is not None:
                posting.told[place] = handle, on_done
        return handle

    def _opened(self, filling: Filling, cost: int, deadline: float) -> Posting:
        """A batch that has room for one more message, to be answered by then."""
        if self._closed:
            raise producer_closed()
        if self._call is _now:
            self.running_loop()  # raises before anything is taken
        posting = filling.open
        if posting is FULL or filling.is_full(posting, cost):
            self._shut(filling)
            posting = filling.open = Posting()
            posting.room = 0
            filling.waiting.append(posting)
        if posting.room < cost:
            self._grant(posting, cost)
        if not posting.earliest <= deadline <= posting.latest:
            posting.begin_run(deadline)
        if not filling.running or filling.enough(filling.running):
            self._run(filling)
            self._call(self._begin, filling)
        elif self._linger > 0 and len(filling.waiting) > 1:
            self._call(filling.hurry.set)
        if posting.due < self._due:
            self._call(self._arm, posting.due)
        return posting

    @property
    def unanswered(self) -> int:
        """Posted messages whose outcome is not known."""
        return _unanswered(self._postings())

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """The producer's loop. Raises RuntimeError where none runs, or another one."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("the producer belongs to another event loop: make one in this loop")
        return loop

    def _grant(self, posting: Posting, cost: int) -> None:
        """Give a batch room from the buffer: for one message in any case, for some where it is."""
        least = cost - posting.room
        free = min(self.buffer_bytes - self.used, BATCH_BYTES - posting.granted)
        more = max(least, min(free, ROOM_BYTES))
        self.used += more
        posting.granted += more
        posting.room += more
        self._roomy[posting] = None

    def _give_back(self, posting: Posting) -> None:
        """Take the room that no message has; the next one asks for it again."""
        self.used -= posting.room
        posting.granted -= posting.room
        posting.room = 0

    def _shut(self, filling: Filling) -> None:
        """The open batch takes no more."""
        posting, filling.open = filling.open, FULL
        if posting is not FULL:
            self._give_back(posting)
            self._roomy.pop(posting, None)

    def filling_of(self, topic: str, slot: Slot | None, terms: Terms) -> Filling:
        """The open batch for a queue and terms."""
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
        """Raise BufferFull where the buffer is used up, also by batches that might take more."""
        with self.lock:
            while self.used >= self.buffer_bytes and self._roomy:
                posting, _ = self._roomy.popitem()
                self._give_back(posting)
            used = self.used
            if used >= self.buffer_bytes:
                self._call(self._hurry)  # nothing more will come
        if used >= self.buffer_bytes:
            raise BufferFull(
                f"{used} bytes are not answered yet; buffer_bytes is {self.buffer_bytes}"
            )

    def hold(
        self,
        filling: Filling,
        work: Callable[[], Coroutine[Any, Any, None]],
        given_up: Callable[[], None],
    ) -> None:
        """Hold a filling for some work, until `leave`. given_up: called if that is cancelled."""
        self._run(filling)

        def begin() -> None:
            if self._closed:
                return
            task = self._draining.start(work())

            def ended(_: object) -> None:
                if task.cancelled() and not self._closed:
                    given_up()
                    self._fail_left(filling, task)

            task.add_done_callback(ended)

        self._call(begin)

    def put_elsewhere(self, filling: Filling, posting: Posting, place: int) -> Posted:
        """Add a message of a held filling to another one. The lock is held."""
        told = posting.told.get(place)
        on_done = None if told is None else told[1]
        body, text = posting.bodies[place], posting.text_of(place)
        handle = self.add(filling, body, text, posting.deadline_of(place), on_done)
        if told is not None:  # with the handle that its user has
            handle._posting.told[handle._place] = told
        return handle

    def leave(self, filling: Filling, refused: dict[Posting, dict[int, Exception]]) -> None:
        """What waited in a held filling is elsewhere, but for what is refused, by place."""
        for posting, errors in refused.items():
            posting.fail_some({k: one for k, one in errors.items() if not posting.knows(k)})
        with self.lock:
            left = list(filling.waiting)
            self._shut(filling)
            filling.waiting.clear()
        for posting in left:
            posting.left()
            self._is_over(filling, posting)
        self._rests(filling)

    def _run(self, filling: Filling) -> None:
        """A sender is assigned to what waits in it."""
        filling.running += 1
        self._busy[filling] = None

    # -- what goes -----------------------------------------------------------------------------

    async def _send_alone(
        self, filling: Filling, body: bytes, text: bytes, deadline: float
    ) -> Receipt:
        """Send a message while nothing else is on its way: no task, no future in between."""
        one = object()
        self._alone[one] = None
        assert self._loop is not None, "it runs"
        try:
            batch = _batch(filling, [body], [text])
            (part,) = await self._sender.send(batch, deadline - self._loop.time())
        finally:
            del self._alone[one]
            self._quiet.set()
            if self._rests(filling):
                self._begin(filling)  # what came meanwhile goes out together
        return part.receipt(0, self._sender.producer_id)

    def _begin(self, filling: Filling) -> None:
        """Drain it in the background."""
        if not self._closed:
            drain = self._draining.start(self._drain(filling))
            drain.add_done_callback(lambda _: self._fail_left(filling, drain))

    def _fail_left(self, filling: Filling, sender: "asyncio.Task[None]") -> None:
        """Fail what waits for a task that something else cancelled; the next message has another.

        None is started here: who cancels all tasks of a loop is about to end it, most often.
        """
        if not sender.cancelled() or self._closed:
            return
        self._cut_off = True
        with self.lock:
            self._shut(filling)
            waiting = list(filling.waiting)
            filling.waiting.clear()
            self._rests(filling)  # before another thread adds a message, which would wait for us
        for posting in waiting:
            posting.failed(Unavailable(f"{filling.topic}: not sent: its task was cancelled"))
            self._is_over(filling, posting)

    async def _drain(self, filling: Filling) -> None:
        """Send what waits, batch after batch, until nothing is left, or others see to it."""
        if self._linger > 0 and filling.running == 1:
            await self._lingered(filling)
        while self._rests(filling):
            with self.lock:
                posting = filling.take()
                if posting is filling.open:
                    self._shut(filling)
            posting.expire(asyncio.get_running_loop().time(), filling.topic)
            try:
                await self._send(filling, posting)
            except asyncio.CancelledError:
                if not self._closed:  # by another than `close`
                    posting.cancelled(filling.topic)
                    self._is_over(filling, posting)
                raise
            self._is_over(filling, posting)

    def _hurry(self) -> None:
        """Let everything go out that waits for more."""
        if self._linger > 0:
            with self.lock:
                busy = list(self._busy)
            for filling in busy:
                filling.hurry.set()

    async def _lingered(self, filling: Filling) -> None:
        """Wait for more; not if a batch is full, or a flush waits for all."""
        if len(filling.waiting) < 2:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._linger):
                    await filling.hurry.wait()
        filling.hurry.clear()

    def _rests(self, filling: Filling) -> bool:
        """Whether messages wait for the sender that asks; if not, it ends."""
        with self.lock:
            if filling.waiting and filling.enough(filling.running - 1):
                return True
            filling.running -= 1
            if not filling.running:
                self._busy.pop(filling, None)
                filling.hurry.clear()
                if filling.terms.deliver_time:  # a time is hardly asked for twice
                    self._fillings.pop((filling.topic, filling.slot, filling.terms), None)
            return False

    async def _send(self, filling: Filling, posting: Posting) -> None:
        bodies, texts, deadline = posting.take()
        parts: list[Part] = []
        lost: list[Lost] = []
        todo = [(0, len(bodies))] if bodies else []
        while todo:
            first, end = todo.pop()
            left = deadline - asyncio.get_running_loop().time()
            try:
                batch = _batch(filling, bodies[first:end], texts[first:end], first)
                posting.trying = first, end, batch.unconfirmed
                parts += await self._sender.send(batch, left)
            except Exception as error:
                if isinstance(error, MessageTooLarge) and end - first > 1:
                    # A node stores all of a batch or nothing: the others must not suffer.
                    middle = (first + end) // 2
                    todo += [(middle, end), (first, middle)]
                else:
                    lost.append((first, end, without_frames(error)))
        posting.stored(parts, lost, self._sender.producer_id)

    def _is_over(self, filling: Filling, posting: Posting) -> None:
        with self.lock:
            filling.on_way.pop(posting, None)
            self.used -= posting.granted
            posting.granted = posting.room = 0
        self._note_failed(posting)

    # -- unreported errors ---------------------------------------------------------------------

    def _note_failed(self, posting: Posting) -> None:
        if not posting.unasked()[0]:
            return
        weight = posting.weight
        self._failed.append((posting, weight))
        self._failed_weight += weight
        while len(self._failed) > FAILED_MAX or self._failed_weight > FAILED_WEIGHT_MAX:
            self._count_first()

    def _count_first(self) -> None:
        """Keep of a batch only how many of its messages failed, and why the first one did."""
        posting, weight = self._failed.popleft()
        self._failed_weight -= weight
        count, error = posting.unasked()
        self._older_count += count
        self._older = self._older or error

    def raise_unasked(self) -> None:
        """Raise the first unreported error, if there is one; it names the number of the others."""
        while self._failed:
            self._count_first()
        first, count = self._older, self._older_count
        self._older, self._older_count = None, 0
        if first is None:
            return
        error = copy.copy(first)  # its handle tells of one message
        if count > 1:
            error.add_note(f"{count} messages that were posted failed")
        raise error

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
        loop = asyncio.get_running_loop()
        self._due, self._timer = inf, None
        now, earliest = loop.time(), inf
        for filling, posting in self._postings():
            if posting.due <= now:
                with self.lock:
                    if posting is filling.open:
                        self._shut(filling)  # what comes now must not end with these
                posting.expire(now, filling.topic)
            if posting.ended and posting not in filling.on_way:
                self._drop(filling, posting)
            earliest = min(earliest, posting.due)
        if earliest < inf:
            after = loop.time()
            self._arm(max(earliest, after + min(SCAN_SHARE * (after - now), SCAN_SECONDS_MAX)))

    def _drop(self, filling: Filling, posting: Posting) -> None:
        """The time of all its messages was over before it went: they keep no room."""
        with self.lock, contextlib.suppress(ValueError):
            filling.waiting.remove(posting)
        self._is_over(filling, posting)

    def _postings(self) -> list[tuple[Filling, Posting]]:
        """All that have no answer yet."""
        with self.lock:
            return self._all_postings()

    def _all_postings(self) -> list[tuple[Filling, Posting]]:
        return [(busy, one) for busy in self._busy for one in (*busy.on_way, *busy.waiting)]

    async def answered(self) -> None:
        """Wait until every message that was taken before has its answer."""
        alone = list(self._alone)
        for _ in ("where they wait for their queue", "where they go to it"):
            postings = self._postings()
            self._hurry()
            for _, posting in postings:
                await posting.settled(ALL)
        while not self._alone.keys().isdisjoint(alone):
            self._quiet.clear()
            await self._quiet.wait()
        await asyncio.sleep(0)  # waiters for these messages run first

    def abandon(self) -> None:
        """Called in a forked child: all is the parent's, and its lock may never be released."""
        self._closed = True

    async def close(self) -> None:
        """Give up what is still on its way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._draining.stop()
        with self.lock:
            for filling in self._busy:
                self._shut(filling)  # no thread adds to what ends now
        for filling, posting in self._postings():
            if posting in filling.on_way:
                posting.closed()
            else:
                posting.failed(producer_closed())
            self._is_over(filling, posting)
        for filling in list(self._busy):
            filling.waiting.clear()
        self._busy.clear()


def _unanswered(postings: list[tuple[Filling, Posting]]) -> int:
    return sum(posting.unanswered for _, posting in postings)


def _now(do: Callable[..., object], *arguments: object) -> None:
    do(*arguments)


def _batch(filling: Filling, bodies: list[bytes], texts: list[bytes], first: int = 0) -> Batch:
    """texts: none where all are empty."""
    packed = pack(texts) if any(texts) else (b"", b"")
    count = len(bodies)
    return Batch(filling.topic, filling.slot, filling.terms, pack(bodies), packed, count, first)
