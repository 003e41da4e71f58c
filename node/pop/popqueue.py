"""The state of one queue for one group under POP: leases, done messages, progress. Pure.

A message that was taken is invisible to the group until its lease ends. Acknowledged messages are
done, and so is everything below `committed`. The owner of this state decides what happens when a
lease ends: the message goes to the retry topic or, in an orderly group, is delivered again first.
Time is monotonic.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from duolog_server.store.clocks import MonoMs

IN_FLIGHT_MAX = 10_000  # popInflightMessageThreshold


# A set of offsets as disjoint, sorted ranges: the messages of a queue that are done.
class OffsetRanges:
    """Half-open ranges that never touch each other."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        """ranges: (first, end) pairs."""
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def __contains__(self, offset: int) -> bool:
        return self.end_of(offset) > offset

    def end_of(self, offset: int) -> int:
        """End of the range that contains an offset; the offset itself if none does."""
        at = bisect_right(self._firsts, offset) - 1
        return self._ends[at] if at >= 0 and offset < self._ends[at] else offset

    def next_after(self, offset: int) -> int | None:
        """Start of the first range after an offset."""
        at = bisect_right(self._firsts, offset)
        return self._firsts[at] if at < len(self._firsts) else None

    def add(self, first: int, end: int) -> None:
        """Add [first, end), merged with the ranges that it overlaps or touches."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def drop_below(self, offset: int) -> None:
        """Remove everything below an offset."""
        at = bisect_right(self._ends, offset)
        del self._firsts[:at], self._ends[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], offset)

    def validate(self) -> str:
        """The first violated invariant, empty if all hold: sorted, with a gap between any two."""
        before = -1
        for first, end in zip(self._firsts, self._ends, strict=True):
            if not before < first < end:
                return f"range [{first}, {end}) follows one that ends at {before}"
            before = end
        return ""

    def pairs(self) -> list[list[int]]:
        """All ranges as [first, end] lists."""
        return [[first, end] for first, end in zip(self._firsts, self._ends, strict=True)]


@dataclass(slots=True)
class Lease:
    """One delivery. serial: random, known only to the consumer that got the message."""

    serial: int
    deadline_ms: MonoMs
    client: str
    held: bool = False  # lasts as long as its client is alive
    via: str = ""  # the node that forwards its consumer's calls; empty for none
    suspended: bool = False  # its consumer put it off: the delivery was no attempt


@dataclass(slots=True)
class PopQueue:
    """A queue as one group sees it. Offsets are queue offsets."""

    committed: int
    orderly: bool = False
    next: int = field(init=False)
    leases: dict[int, Lease] = field(default_factory=dict)
    done: OffsetRanges = field(default_factory=OffsetRanges)  # at or after committed
    attempts: dict[int, int] = field(default_factory=dict)  # orderly: deliveries before this one
    attempt_id: str = ""
    _deadlines: list[tuple[MonoMs, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next = self.committed

    @staticmethod
    def resumed(committed: int, ranges: Iterable[Iterable[int]], orderly: bool) -> "PopQueue":
        """The state that a progress record describes. ranges: [first, end) pairs that are done."""
        made = PopQueue(committed, orderly)
        made.done = OffsetRanges(ranges)
        made._advance()
        return made

    def validate(self) -> str:
        """The first violated invariant between two events; empty if all hold.

        No message below `committed` is delivered. Leased messages lie in [committed, next), are not
        done, and are checked when their leases end. Done ranges beyond `committed` do not touch it.
        """
        wrong = self.done.validate()
        if wrong:
            return f"done: {wrong}"
        lowest = self.done.next_after(-1)
        if lowest is not None and lowest <= self.committed:
            return f"committed {self.committed}, done are {self.done.pairs()}"
        if self.next < self.committed:
            return f"gives {self.next} next, committed {self.committed}"
        if self.attempt_id and not self.leases:
            return f"repeats attempt {self.attempt_id!r}, none of whose messages are out"
        noted = set(self._deadlines)
        for offset, lease in self.leases.items():
            if not self.committed <= offset < self.next:
                return f"{offset} is out, not in [{self.committed}, {self.next})"
            if offset in self.done:
                return f"{offset} is out, and done"
            if (lease.deadline_ms, offset, lease.serial) not in noted:
                return f"no timer for {offset}, whose lease ends at {lease.deadline_ms}"
        return ""

    # -- taking --------------------------------------------------------------------------------

    def deliver_in_order(self, orderly: bool) -> None:
        """Follow the group's setting, which an operator may change at any time.

        The order ends only while no message is out: before one that is, others that were given
        back may wait for their next delivery.
        """
        if orderly or not self.leases:
            self.orderly = orderly

    @property
    def blocked(self) -> bool:
        """Whether no message may be taken now: too many in flight, or the order would break."""
        return bool(self.leases) if self.orderly else len(self.leases) >= IN_FLIGHT_MAX

    def take(self, offset: int, lease: Lease) -> None:
        """Lease a message at or after `next`."""
        assert offset >= self.next, "each message is taken once"
        assert offset not in self.done, "and not when it is done"
        self.leases[offset] = lease
        self.next = offset + 1
        self._note(offset, lease)

    def pass_over(self, end: int) -> None:
        """Skip from `next` to this offset: the filter rejects it all, so it counts as done."""
        self.done.add(self.next, end)
        self.next = max(self.next, end)
        self._advance()

    def done_below(self, offset: int) -> None:
        """Messages below this offset are done, also those that are leased."""
        for taken in [taken for taken in self.leases if taken < offset]:
            del self.leases[taken]
        self.attempts = {at: count for at, count in self.attempts.items() if at >= offset}
        self.done.add(self.committed, offset)
        self._advance()
        if not self.leases:
            self._rewind()

    def start_at(self, offset: int) -> None:
        """Messages below this offset no longer exist."""
        if offset > self.next:
            self.pass_over(offset)

    def _note(self, offset: int, lease: Lease) -> None:
        heapq.heappush(self._deadlines, (lease.deadline_ms, offset, lease.serial))

    # -- what becomes of a delivery ------------------------------------------------------------

    def lease_of(self, offset: int, serial: int) -> Lease | None:
        """The lease, if this delivery still holds it."""
        lease = self.leases.get(offset)
        return lease if lease is not None and lease.serial == serial else None

    def finish(self, offset: int) -> None:
        """Mark a message as done: acknowledged, or stored elsewhere."""
        self.leases.pop(offset, None)
        self.attempts.pop(offset, None)
        if offset >= self.committed:
            self.done.add(offset, offset + 1)
            self._advance()
        if not self.leases:
            self._rewind()

    def change(self, offset: int, lease: Lease, serial: int, deadline_ms: MonoMs) -> None:
        """Change the end of a lease; the old handle becomes invalid."""
        lease.serial, lease.suspended = serial, False
        self.put_off(offset, deadline_ms)

    def suspend(self, offset: int, deadline_ms: MonoMs) -> None:
        """Put a delivery off that is no attempt; in order, with all that is out, as all wait."""
        for each in list(self.leases) if self.orderly else [offset]:
            self.leases[each].suspended = True
            self.put_off(each, deadline_ms)

    def expired(self, mono_ms: MonoMs) -> list[int]:
        """Messages whose leases have ended, oldest first.

        In an orderly group none: `take` delivers the first message again. Otherwise the owner must
        finish each of them, or `put_off` those it could not move.
        """
        # By offset: a lease that was put off has another entry under its old serial.
        ended: dict[int, None] = {}
        while self._deadlines and self._deadlines[0][0] <= mono_ms:
            _, offset, serial = heapq.heappop(self._deadlines)
            lease = self.lease_of(offset, serial)
            if lease is not None and lease.deadline_ms <= mono_ms:
                ended[offset] = None
        if self.orderly:
            for offset in ended:
                counts = not self.leases.pop(offset).suspended
                self.attempts[offset] = self.attempts.get(offset, 0) + counts
            if ended and not self.leases:
                self._rewind()
            return []
        return sorted(ended)

    def put_off(self, offset: int, deadline_ms: MonoMs) -> None:
        """Keep a message whose lease has ended until another deadline."""
        lease = self.leases[offset]
        lease.deadline_ms, lease.held = deadline_ms, False
        self._note(offset, lease)

    def release(self, client: str, deadline_ms: MonoMs, via: str | None = None) -> None:
        """A client is gone: end its leases soon. via: only those delivered through this node."""
        for offset, lease in self.leases.items():
            if lease.client == client and lease.held and via in (None, lease.via):
                lease.held = False
                lease.deadline_ms = deadline_ms
                self._note(offset, lease)

    def next_deadline_ms(self) -> MonoMs | None:
        """The earliest end of a lease."""
        return self._deadlines[0][0] if self._deadlines else None

    def _rewind(self) -> None:
        """Orderly: continue at the first message that is not done."""
        if self.orderly:
            self.next = self.committed
            self.attempt_id = ""

    def _advance(self) -> None:
        self.committed = self.done.end_of(self.committed)
        self.done.drop_below(self.committed)
        self.next = max(self.next, self.committed)  # done messages are not delivered

    def skip_done(self) -> int:
        """Move `next` past done messages; the number of messages from there on that are not done.

        Needed after a rewind, or if another node delivered messages.
        """
        self.next = self.done.end_of(self.next)
        following = self.done.next_after(self.next)
        return following - self.next if following is not None else 1 << 62
