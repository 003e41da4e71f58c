"""Prefetching of a reader, and credit for the node: queues, batches and credit.

The one owner of all three. Pure: it says what to tell the node (`command`) and never does so; no
clock, no IO. Its rules, whatever order calls come in:

- `returned + prefetched + in flight = budget`. Credit is in flight from when the node learns of
  it until a batch that costs as much arrives. The batch's cost is prefetched until the batch is
  used up or dropped, and then returned, to be granted to the node again.
- A batch is kept only if the node sent it for the place where its queue is read now: batches of
  a queue that was ended, or that was begun again elsewhere, only give their credit back.
- While nothing is prefetched, more than 7/8 of the budget is in flight: the node never waits for
  credit while the reader waits for messages.

The user takes messages straight from an iterator (`messages`), which costs nothing else and may
happen on another thread; how far he is, is looked up when somebody asks (`given`).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from operator import length_hint

from duolog._membership import Queue
from duolog._message import Batch, Message

BATCHES_MAX = 4096  # batches without bodies cost no credit


@dataclass(frozen=True, slots=True)
class Command:
    """The next credit to report to the node.

    remove comes before add; number is echoed by batches of the queues added here.
    """

    add: dict[Queue, int]
    remove: list[Queue]
    number: int
    credit: int


@dataclass(slots=True)
class _Cursor:
    """A queue that is read. number: 0 until the node knows where to begin."""

    offset: int  # given to the user up to here: where a new stream begins
    number: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """Messages that the user was given: of one queue, one after the other.

    before, behind: queue offsets behind all but the last of them, and behind the last.
    """

    queue: Queue
    count: int
    before: int
    behind: int


class _Taking:
    """A batch whose messages are taken one at a time."""

    def __init__(self, batch: Batch) -> None:
        self._count = batch.count
        self._indices = iter(range(batch.count))
        self.messages: Iterator[Message] = map(Message, repeat(batch), self._indices)

    @property
    def taken(self) -> int:
        """Messages that were taken."""
        return self._count - length_hint(self._indices)

    def end(self) -> int:
        """Close the buffer; return the messages that were taken."""
        return self._count - len(list(self._indices))  # one step: no thread takes one meanwhile


class Prefetch:
    """The batches ahead of one reader, and the credit they are paid with."""

    def __init__(self, budget: int) -> None:
        """budget: bytes of bodies that may be on their way and not used up, at most."""
        self._budget = budget
        self._threshold = max(1, budget // 8)  # less is not worth a message to the node
        self._cursors: dict[Queue, _Cursor] = {}
        self._ready: deque[Batch] = deque()
        self._taking: _Taking | None = None  # the first batch, message by message
        self._noted = 0  # messages of it that are known to be given to the user
        self._given: Given | None = None  # taken, and not yet returned by `given`
        self._changed: set[Queue] = set()  # what the node does not know yet
        self._at_node: set[Queue] = set()
        self._numbers = 0
        self._prefetched = 0
        self._returned = budget
        self._granted = False  # anything, on the stream that is open

    # -- queues --------------------------------------------------------------------------------

    @property
    def queues(self) -> set[Queue]:
        """The queues that are read now."""
        return set(self._cursors)

    def reads(self, queue: Queue) -> bool:
        """Tell whether a queue is read now."""
        return queue in self._cursors

    def begin(self, starts: dict[Queue, int]) -> None:
        """Read queues from these offsets on, in place of where they are read now, if they are."""
        self._drop(starts)
        for queue, offset in starts.items():
            self._cursors[queue] = _Cursor(offset)
            self._changed.add(queue)

    def end(self, queues: Iterable[Queue]) -> None:
        """Read queues no more."""
        gone = set(queues)
        self._drop(gone)
        for queue in gone:
            if self._cursors.pop(queue, None) is not None:
                self._changed.add(queue)

    def _drop(self, queues: Iterable[Queue]) -> None:
        """Give up what is prefetched of some queues; its credit comes back."""
        gone = set(queues)
        kept: deque[Batch] = deque()
        for place, batch in enumerate(self._ready):
            if _queue_of(batch) in gone:
                if place == 0:
                    self._end_taking()
                self._give_back(batch)
            else:
                kept.append(batch)
        self._ready = kept

    # -- the stream ----------------------------------------------------------------------------

    def disconnected(self) -> None:
        """The stream is gone, with its credit: the next one begins where the user is."""
        self._end_taking()
        self._ready.clear()
        self._prefetched = 0
        self._returned = self._budget
        self._granted = False
        self._at_node.clear()
        self._changed = set(self._cursors)

    @property
    def has_command(self) -> bool:
        """Whether there is credit to report to the node."""
        return bool(self._changed) or (self._returned >= self._threshold and self._granted)

    def command(self) -> Command | None:
        """The credit to report now, None for none. What it returns counts as reported."""
        if not self.has_command:
            return None
        changed = sorted(self._changed)
        remove = [q for q in changed if q in self._at_node and q not in self._cursors]
        add = {q: self._cursors[q].offset for q in changed if q in self._cursors}
        self._changed.clear()
        credit = 0
        if self._returned >= self._threshold:
            credit, self._returned, self._granted = self._returned, 0, True
        if add:
            self._numbers += 1
        for queue in add:
            self._cursors[queue].number = self._numbers
        self._at_node.difference_update(remove)
        self._at_node.update(add)
        return Command(add, remove, self._numbers, credit)

    def arrived(self, batch: Batch, number: int) -> bool:
        """Take a batch that the node sent; False if it is none for now, and was dropped."""
        self._prefetched += len(batch.bodies)
        cursor = self._cursors.get(_queue_of(batch))
        if cursor is None or cursor.number != number:
            self._give_back(batch)
            return False
        self._ready.append(batch)
        return True

    @property
    def full(self) -> bool:
        """Tell whether nothing more is to be taken off the stream for now."""
        return len(self._ready) >= BATCHES_MAX

    # -- the user ------------------------------------------------------------------------------

    def head(self) -> tuple[Batch, int] | None:
        """The first batch, and how many of its messages were given to the user."""
        if not self._ready:
            return None
        return self._ready[0], 0 if self._taking is None else self._taking.taken

    def messages(self) -> Iterator[Message]:
        """The rest of the first batch; taken messages belong to the user.

        It ends early where the batch is no longer to be read.
        """
        if self._taking is None:
            self._taking = _Taking(self._ready[0])
        return self._taking.messages

    def given(self) -> Given | None:
        """Messages taken from `messages` since the last call, None for none."""
        if self._taking is not None:
            self._note(self._taking.taken)
        given, self._given = self._given, None
        return given

    def _note(self, used: int) -> None:
        """Note that so many messages of the first batch went to the user."""
        count = used - self._noted
        if not count:
            return
        batch = self._ready[0]
        queue = _queue_of(batch)
        behind = batch.queue_offsets[used] if used < batch.count else batch.next_offset
        if self._given is not None:
            count += self._given.count
        self._given = Given(queue, count, batch.queue_offsets[used - 1], behind)
        self._noted = used
        self._cursors[queue].offset = behind

    def _end_taking(self) -> None:
        if self._taking is not None:
            self._note(self._taking.end())
        self._taking, self._noted = None, 0

    def finish(self) -> Batch:
        """The first batch is given to the user as a whole, or used up; its credit comes back."""
        self._end_taking()
        batch = self._ready.popleft()
        self._cursors[_queue_of(batch)].offset = batch.next_offset
        self._give_back(batch)
        return batch

    # -- credit --------------------------------------------------------------------------------

    def _give_back(self, batch: Batch) -> None:
        self._prefetched -= len(batch.bodies)
        self._returned += len(batch.bodies)

    @property
    def prefetched(self) -> int:
        """Bytes that arrived and are not used up."""
        return self._prefetched

    @property
    def returned(self) -> int:
        """Bytes of credit to report to the node."""
        return self._returned

    @property
    def in_flight(self) -> int:
        """Bytes that the node may send, or has sent and that did not arrive yet.

        Negative for a moment where the last message cost more than was left.
        """
        return self._budget - self._returned - self._prefetched


def _queue_of(batch: Batch) -> Queue:
    return batch.topic, batch.queue_id
