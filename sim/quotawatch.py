"""Checks what nodes let in against the quotas in the log.

In any time, no more passes at a node than the rate, one burst, and one batch; nothing is refused
without reason; and the wait that a refused caller is told is enough.
"""

from dataclasses import dataclass, field

from duolog.wire import duolog_pb2 as wire

from sim.accesslog import Row, Said
from sim.node import Node
from sim.witness import Violation

CLOSE = 1e-6
# Statuses with which nothing was taken; others leave that open, but for PUT_OK.
NOT_TAKEN = (
    wire.NOT_MASTER,
    wire.IN_SYNC_REPLICAS_NOT_ENOUGH,
    wire.TOPIC_NOT_EXIST,
    wire.NO_PERMISSION,
    wire.CORRUPT_BATCH,
)
Place = tuple[str, str, str]  # user, address, topic


@dataclass(slots=True)
class _Bucket:
    """One rate of one subject at one process. passed: time in ms, amount, and whether for sure;
    from `begun` on, since the quota may have been another one.
    """

    a_second: int
    burst_ms: int
    passed: list[tuple[int, int, bool]] = field(default_factory=list)
    begun: int = 0

    @property
    def burst(self) -> float:
        return self.a_second * self.burst_ms / 1000

    def is_over(self) -> bool:
        """Whether more passed than may, up to the last batch."""
        last, total = self.passed[-1], 0
        for time, amount, sure in reversed(self.passed[self.begun :]):
            total += amount if sure else 0
            most = self.a_second * (last[0] - time) / 1000 + self.burst + last[1]
            if total > most + CLOSE:
                return True
        return False

    def may_refuse(self, now: int) -> bool:
        """Whether a burst or more is owed, as far as can be known."""
        owed, before = 0.0, 0
        for time, amount, _ in [*self.passed, (now, 0, True)]:
            owed = max(0.0, owed - self.a_second * (time - before) / 1000) + amount
            before = time
        return owed >= self.burst - CLOSE


@dataclass(slots=True)
class _Account:
    """What one subject used at one process, by one quota.

    turns: of the quota, as they were last seen. Where another one held in between, a node that has
    seen it begins to count anew, and one that has taken both records together does not.
    """

    messages: _Bucket | None
    bytes: _Bucket | None
    count: int = 0
    turns: int = 0

    @property
    def buckets(self) -> list[_Bucket]:
        return [bucket for bucket in (self.messages, self.bytes) if bucket is not None]

    def renew(self, turns: int) -> None:
        """See how often the quota has changed."""
        if turns != self.turns:
            self.turns = turns
            for bucket in self.buckets:
                bucket.begun = len(bucket.passed)

    def take(self, now: int, size: int, count: int, sure: bool) -> None:
        self.count += 1
        for bucket, amount in ((self.messages, count), (self.bytes, size)):
            if bucket is not None:
                bucket.passed.append((now, amount, sure))


@dataclass(slots=True)
class _Promise:
    """A caller was told to wait until a time. seen: the accounts, and how often they were used."""

    until: int
    seen: list[tuple[_Account, int]]


class QuotaWatch:
    """Looks at every batch."""

    def __init__(self) -> None:
        self.passed = self.throttled = self.kept = 0
        self._accounts: dict[tuple[str, int, str, str], _Account] = {}
        self._promises: dict[tuple[str, int, Place], _Promise] = {}
        self._blind: set[tuple[str, int]] = set()  # processes that passed what was not seen

    def appended(
        self,
        node: Node,
        said: Said | None,
        place: Place,
        batch: tuple[int, int],
        reply: wire.AppendReply,
    ) -> None:
        """A node answers a batch, of so many bytes and messages. Raises Violation."""
        process = node.name, node.boot
        if said is None:
            self._blind.add(process)
        if process in self._blind or said is None or reply.status in NOT_TAKEN:
            return
        now, accounts = int(node.mono()), self._of(process, said, place)
        if reply.status == wire.THROTTLED:
            self._refused(node, place, accounts, now, reply.retry_after_ms)
            return
        for account in accounts:
            account.take(now, *batch, reply.status == wire.PUT_OK)
            if any(bucket.is_over() for bucket in account.buckets):
                raise Violation(f"{node.name} lets too much pass for {place}: {account}")
        if accounts:
            self.passed += 1
            self.kept += self._promises.pop((*process, place), None) is not None

    def _of(self, process: tuple[str, int], said: Said, place: Place) -> list[_Account]:
        found = []
        for kind, name in zip(("User", "Client", "Topic"), place, strict=True):
            row = said.quota(kind, name)
            if row is not None and ("messages_in" in row or "bytes_in" in row):
                key = (*process, f"{kind}:{name}", str(sorted(row.items())))
                if key not in self._accounts:
                    self._accounts[key] = _Account(
                        _bucket(row, "messages_in"), _bucket(row, "bytes_in")
                    )
                self._accounts[key].renew(said.turns(kind, name))
                found.append(self._accounts[key])
        return found

    def _refused(
        self, node: Node, place: Place, accounts: list[_Account], now: int, wait_ms: int
    ) -> None:
        self.throttled += 1
        buckets = [bucket for account in accounts for bucket in account.buckets]
        if not any(bucket.may_refuse(now) for bucket in buckets):
            raise Violation(f"{node.name} refuses {place} without reason: {accounts}")
        if wait_ms <= 0:
            raise Violation(f"{node.name} refuses {place}, and names no wait")
        key, seen = (node.name, node.boot, place), [(one, one.count) for one in accounts]
        known = self._promises.get(key)
        if known is not None and now >= known.until and _same(known.seen, seen):
            raise Violation(f"{node.name} refuses {place} at {now}, told to wait to {known.until}")
        self._promises[key] = _Promise(now + wait_ms, seen)


def _bucket(row: Row, limit: str) -> _Bucket | None:
    return _Bucket(row[limit], row["burst_ms"]) if limit in row else None


def _same(before: list[tuple[_Account, int]], now: list[tuple[_Account, int]]) -> bool:
    """Whether the same accounts count, and nobody has used them since."""
    return len(before) == len(now) and all(
        one is other and count == again
        for (one, count), (other, again) in zip(before, now, strict=True)
    )
