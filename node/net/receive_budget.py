"""The memory of requests that have not arrived whole, on a port whose frames say how long they are.

A long frame is not read before there is room for all of it: so every frame that is let in can come
to its end, and what comes too fast stays with those who send it. Addresses have their turns one
after the other; one that does not fit is passed over, for a while. While one waits, those that were
let in have to arrive: a frame that would take too long at its pace ends with its connection.
A frame longer than all the room is read alone.
"""

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

LOOK_SECONDS = 0.25  # between two looks at those that were let in, while others wait
LOOKS = 64  # in which a frame arrives whole at its pace, or it is late
GRACE_LOOKS = 8  # before those, as a line that stalled begins slowly
LEAST_BYTES = 4096  # in a look
PASSED_LOOKS = 40  # in which others that fit pass one that does not; then the room is kept for it
PASSED_MAX = 64  # addresses that are passed over at once
WAIT_LOOKS = 240  # of a frame that waits; then it ends

STALLED_TICKS = 10  # in which hardly anything comes of a frame that has begun
STALLED_BYTES = 1024  # in a tick, at least
LATE = "frame timed out while others waited for buffer space"
FULL = "no buffer space for a frame in time"


class Pace:
    """How fast a client sends.

    Attributes:
        arrived: bytes, since its connection began.
    """

    __slots__ = ("_stalled", "_ticked", "arrived")

    def __init__(self) -> None:
        self.arrived = self._ticked = 0
        self._stalled = 0  # ticks

    def stalls(self, begun: bool) -> bool:
        """Called once a second: whether hardly anything came for long of what has begun.

        begun: a frame has, and the node reads.
        """
        came, self._ticked = self.arrived - self._ticked, self.arrived
        self._stalled = self._stalled + 1 if begun and came < STALLED_BYTES else 0
        return self._stalled > STALLED_TICKS


class Sender(Protocol):
    """A connection, as the room for its frames sees it."""

    pace: Pace

    @property
    def address(self) -> str:
        """The client's, without its port."""

    @property
    def is_held_up(self) -> bool:
        """Whether the node reads nothing of it, for a reason of its own."""

    def read_on(self) -> None:
        """There is room for the frame that waited."""

    def give_up(self, reason: str) -> None:
        """End it, and leave the room."""


@dataclass(slots=True)
class _Begun:
    """A frame that was let in. began: bytes of its connection then. looks: while others waited."""

    size: int
    began: int
    looks: int = 0


@dataclass(slots=True)
class _Waiting:
    """A frame that was not. looks: since it waits."""

    size: int
    looks: int = 0


class ReceiveBudget:
    """The room of a port.

    Attributes:
        taken: bytes of frames that were let in.
    """

    def __init__(self, bytes_max: int) -> None:
        self.taken = 0
        self._most = bytes_max
        self._begun: dict[Sender, _Begun] = {}
        self._waiting: dict[str, dict[Sender, _Waiting]] = {}  # by address; the next turn first
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Frames that are not let in yet."""
        return sum(map(len, self._waiting.values()))

    def begin(self, sender: Sender, size: int) -> bool:
        """A frame of so many bytes begins. False: it may be read once `read_on` is called."""
        if self._fits(size) and not self._is_kept():
            self._let_in(sender, size)
            return True
        self._waiting.setdefault(sender.address, {})[sender] = _Waiting(size)
        if self._next_look is None:
            self._look_later()
        return False

    def end(self, sender: Sender) -> None:
        """Its frame arrived whole, or its connection ended."""
        begun = self._begun.pop(sender, None)
        if begun is not None:
            self.taken -= begun.size
        self._forget(sender)
        self._go_on()

    def _forget(self, sender: Sender) -> None:
        """It waits no more."""
        waiting = self._waiting.get(sender.address, {})
        if waiting.pop(sender, None) is not None and not waiting:
            del self._waiting[sender.address]

    def _fits(self, size: int) -> bool:
        return size <= self._most - self.taken or not self._begun

    def _let_in(self, sender: Sender, size: int) -> None:
        self.taken += size
        self._begun[sender] = _Begun(size, sender.pace.arrived)

    def _go_on(self) -> None:
        """Let in those that fit, an address after the other."""
        while (address := self._next()) is not None:
            senders = self._waiting.pop(address)
            sender, waited = next(iter(senders.items()))
            del senders[sender]
            if senders:
                self._waiting[address] = senders  # its next turn is the last one
            self._let_in(sender, waited.size)
            sender.read_on()
        if not self._waiting and self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _next(self) -> str | None:
        """The address whose next frame is let in now."""
        for address, senders in islice(self._waiting.items(), PASSED_MAX):
            waited = next(iter(senders.values()))
            if self._fits(waited.size):
                return address
            if waited.looks > PASSED_LOOKS:
                break
        return None

    def _is_kept(self) -> bool:
        """Whether what room there is is kept for the one that is next."""
        first = next(iter(self._waiting.values()), None)
        return first is not None and next(iter(first.values())).looks > PASSED_LOOKS

    # -- while some wait -----------------------------------------------------------------------

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look)

    def look(self) -> None:
        """End what is late, and what has waited for too long; nothing where nobody waits."""
        self._next_look = None
        if not self._waiting:
            return
        for sender, begun in list(self._begun.items()):
            if sender in self._begun and self._is_late(sender, begun):
                sender.give_up(LATE)
        for senders in list(self._waiting.values()):
            for sender, waited in list(senders.items()):
                waited.looks += 1
                if waited.looks > WAIT_LOOKS and sender in senders:
                    sender.give_up(FULL)
        if self._waiting and self._next_look is None:
            self._look_later()

    def _is_late(self, sender: Sender, begun: _Begun) -> bool:
        if sender.is_held_up:
            return False
        begun.looks += 1
        due = (begun.looks - GRACE_LOOKS) * max(LEAST_BYTES, begun.size // LOOKS)
        return sender.pace.arrived - begun.began < min(due, begun.size)

    def validate(self) -> str:
        """The violated invariant of the counts; empty if it holds."""
        begun = sum(one.size for one in self._begun.values())
        if self.taken != begun:
            return f"{begun} bytes are let in, counted as {self.taken}"
        if not all(self._waiting.values()):
            return "an address waits with nothing"
        return ""
