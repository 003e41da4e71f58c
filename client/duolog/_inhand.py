"""Messages in hand: what a program was given and has not finished, of several queues at a time.

Pure. Its rule: a queue is consumed up to the first of its messages that is not finished, in
whatever order they finish. Messages whose queue was given up are dropped: how they end changes
nothing any more.
"""

from collections import deque
from collections.abc import Iterable

from duolog._membership import Queue
from duolog._message import Message

_WAITING, _RUNNING, _FINISHED, _DROPPED = range(4)


class Held:
    """A message in hand. behind: the queue offset behind it. key: for its worker."""

    __slots__ = ("_state", "behind", "key", "message", "queue", "size")

    def __init__(self, queue: Queue, behind: int, message: Message | None) -> None:
        self.queue = queue
        self.behind = behind
        self.message = message  # None: finished, so that its batch may be freed
        self.key = ""
        self.size = 0 if message is None else message.size
        self._state = _WAITING if message is not None else _FINISHED

    @property
    def group(self) -> str:
        """Replica group of its queue."""
        assert self.message is not None, "it is not finished"
        return self.message.group

    @property
    def dropped(self) -> bool:
        """Whether its queue was given up, or is read from elsewhere."""
        return self._state == _DROPPED


class InHand:
    """The messages in hand of one reader, in the order of their queues."""

    def __init__(self) -> None:
        self._queues: dict[Queue, deque[Held]] = {}
        self.count = 0  # messages, with finished ones behind one that is not
        self.waiting_bytes = 0  # bodies of messages whose handling has not begun

    def add(self, queue: Queue, behind: int, message: Message) -> Held:
        """The program was given a message: the next one of its queue."""
        held = Held(queue, behind, message)
        self.waiting_bytes += held.size
        self._append(held)
        return held

    def _append(self, held: Held) -> None:
        queue = self._queues.get(held.queue)
        if queue is None:
            queue = self._queues[held.queue] = deque()
        queue.append(held)
        self.count += 1

    def passed(self, queue: Queue, offset: int) -> bool:
        """Nothing lies between the last message of a queue and `offset`; False if none is held."""
        if queue not in self._queues:
            return False
        self._append(Held(queue, offset, None))
        return True

    def begin(self, held: Held) -> None:
        """Its handling begins."""
        assert held._state == _WAITING, "each message is handled once"
        held._state = _RUNNING
        self.waiting_bytes -= held.size

    def finish(self, held: Held) -> int | None:
        """It is finished; up to where its queue is consumed now, None where nothing changed."""
        if held._state != _RUNNING:
            return None
        held._state, held.message = _FINISHED, None
        queue = self._queues[held.queue]
        behind = None
        while queue and queue[0]._state == _FINISHED:
            behind = queue.popleft().behind
            self.count -= 1
        if not queue:
            del self._queues[held.queue]
        return behind

    def drop(self, queues: Iterable[Queue]) -> None:
        """Queues are given up, or read from elsewhere."""
        for queue in queues:
            for held in self._queues.pop(queue, ()):
                self.count -= 1
                if held._state == _WAITING:
                    self.waiting_bytes -= held.size
                held._state = _DROPPED

    @property
    def queues(self) -> list[Queue]:
        """The queues with unfinished messages."""
        return list(self._queues)

    @property
    def running(self) -> set[Queue]:
        """The queues with messages that are being handled."""
        return {
            queue
            for queue, held in self._queues.items()
            if any(one._state == _RUNNING for one in held)
        }

    def end(self, queue: Queue) -> int | None:
        """The queue offset behind the last message in hand."""
        held = self._queues.get(queue)
        return held[-1].behind if held else None
