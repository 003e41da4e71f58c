"""What callers have used of their quotas, and how long they wait.

Rules: no clock, no IO; time arrives in monotonic ms. What is refused uses nothing. Each node counts
by itself what passes through it. An account without a debt may be forgotten: a new one says the
same.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from duolog_server.node.identity.quotas.meter import Meter
from duolog_server.node.identity.quotas.quota import EVERY, RATES, Kind, Limit, Quota, Subject

ACCOUNTS_MAX = 20_000
WAIT_MS_MAX = 24 * 3_600_000  # given to a caller
NAMESPACE = "%"
MAPPED = "::ffff:"


class Who(NamedTuple):
    """Who calls. user: empty where there are no users. address: without the port."""

    user: str
    address: str

    @staticmethod
    def at(user: str, address: str) -> "Who":
        """By an address as a connection tells it: an IPv4 one within IPv6 counts as IPv4."""
        return Who(user, address.removeprefix(MAPPED) if "." in address else address)


class Wait(NamedTuple):
    """Why something may not pass now. ms: after it, it may; 0: not known."""

    ms: int
    subject: Subject
    limit: Limit
    most: int

    @property
    def text(self) -> str:
        """For the caller."""
        rate = " a second" if self.limit in RATES else ""
        what = self.limit.replace("_", " ")
        return f"over the quota of {self.subject.text}: {what}, {self.most}{rate}"


class _Account:
    """The meters of one user, address or topic, in one direction."""

    __slots__ = ("bytes", "messages", "quota", "subject")

    def __init__(self, subject: Subject, quota: Quota, limits: tuple[Limit, Limit]) -> None:
        self.subject = subject
        self.quota = quota
        a_second = [quota.limit(limit) for limit in limits]
        meters = [Meter(rate, quota.burst_ms) if rate else None for rate in a_second]
        self.bytes, self.messages = meters

    def wait_ms(self, now_ms: int) -> int:
        """The longer of the two waits; 0: none."""
        wait = self.bytes.wait_ms(now_ms) if self.bytes is not None else 0
        if self.messages is not None:
            wait = max(wait, self.messages.wait_ms(now_ms))
        return wait

    def why(self, now_ms: int, limits: tuple[Limit, Limit]) -> Wait:
        """What is waited for."""
        of_bytes = self.bytes is not None and self.bytes.wait_ms(now_ms) >= self.wait_ms(now_ms)
        limit = limits[0] if of_bytes else limits[1]
        ms = min(self.wait_ms(now_ms), WAIT_MS_MAX)
        return Wait(ms, self.subject, limit, self.quota.limit(limit))

    def add(self, size: int, count: int, now_ms: int) -> None:
        if self.bytes is not None:
            self.bytes.add(size, now_ms)
        if self.messages is not None:
            self.messages.add(count, now_ms)

    def is_idle(self, now_ms: int) -> bool:
        return all(m is None or m.is_idle(now_ms) for m in (self.bytes, self.messages))


class _Accounts:
    """The accounts of one kind, by name, in one direction."""

    __slots__ = ("_limits", "kind", "open", "quotas")

    def __init__(self, kind: Kind, limits: tuple[Limit, Limit]) -> None:
        self.kind = kind
        self._limits = limits
        self.quotas: dict[str, Quota] = {}
        self.open: dict[str, _Account] = {}

    def replace(self, quotas: dict[str, Quota]) -> bool:
        """Go by other quotas; whether any of them has a rate."""
        self.quotas = quotas
        self.open = {n: one for n, one in self.open.items() if self._of(n) == one.quota}
        return any(map(self._has_rate, quotas.values()))

    def _has_rate(self, quota: Quota) -> bool:
        return any(quota.limit(limit) for limit in self._limits)

    def _of(self, name: str) -> Quota | None:
        return self.quotas.get(name) or self.quotas.get(EVERY)

    def opened(self, name: str, now_ms: int) -> _Account | None:
        """A new account; None where the name has no rate."""
        quota = self._of(name) if name else None
        if quota is None or not self._has_rate(quota):
            return None
        if len(self.open) >= ACCOUNTS_MAX:
            self._forget(now_ms)
        account = self.open[name] = _Account(Subject(self.kind, name), quota, self._limits)
        return account

    def _forget(self, now_ms: int) -> None:
        """Make room: of those that owe nothing, or else of the oldest half."""
        kept = {name: one for name, one in self.open.items() if not one.is_idle(now_ms)}
        if len(kept) > ACCOUNTS_MAX // 2:
            kept = dict(list(kept.items())[-(ACCOUNTS_MAX // 2) :])
        self.open = kept


class Direction:
    """One direction, in or out: the accounts of all that have a rate for it."""

    def __init__(self, of_bytes: Limit, of_messages: Limit) -> None:
        self._limits = of_bytes, of_messages
        self._all = [_Accounts(kind, self._limits) for kind in (Kind.USER, Kind.CLIENT, Kind.TOPIC)]
        # Those with rates, and where their names are in (user, address, topic).
        self._rated: list[tuple[int, _Accounts]] = []

    def replace(self, quotas: Iterable[Quota]) -> None:
        """Go by other quotas. What was used counts on where a quota is the same."""
        given = list(quotas)
        self._rated = []
        for at, accounts in enumerate(self._all):
            own = {one.subject.name: one for one in given if one.subject.kind is accounts.kind}
            if accounts.replace(own):
                self._rated.append((at, accounts))

    def _of(self, who: Who, topic: str, now_ms: int) -> list[_Account]:
        names, found = (*who, topic), []
        for at, accounts in self._rated:
            name = names[at]
            account = accounts.open.get(name) or accounts.opened(name, now_ms)
            if account is not None:
                found.append(account)
        return found

    def wait(self, who: Who, topic: str, now_ms: int) -> Wait | None:
        """Why nothing may pass now: of several reasons, the longest wait. None: it may."""
        return self._longest(self._of(who, topic, now_ms), now_ms)

    def _longest(self, accounts: list[_Account], now_ms: int) -> Wait | None:
        longest, found = 0, None
        for account in accounts:
            wait = account.wait_ms(now_ms)
            if wait > longest:
                longest, found = wait, account
        return found.why(now_ms, self._limits) if found is not None else None

    def take(self, who: Who, topic: str, passing: tuple[int, int], now_ms: int) -> Wait | None:
        """Let a batch pass, bytes and messages, or say why it may not: then nothing is used."""
        accounts = self._of(who, topic, now_ms)
        wait = self._longest(accounts, now_ms)
        if wait is None:
            for account in accounts:
                account.add(*passing, now_ms)
        return wait

    def add(self, who: Who, topic: str, passed: tuple[int, int], now_ms: int) -> None:
        """A batch passed, bytes and messages."""
        for account in self._of(who, topic, now_ms):
            account.add(*passed, now_ms)

    def at_once(self, who: Who, topic: str, most: tuple[int, int], now_ms: int) -> tuple[int, int]:
        """Bytes and messages, `most` at most, that one batch should have: no more than a burst."""
        size, count = most
        for account in self._of(who, topic, now_ms):
            if account.bytes is not None:
                size = min(size, account.bytes.burst)
            if account.messages is not None:
                count = min(count, account.messages.burst)
        return size, count


class Quotas:
    """All quotas of a node, and what was used of them.

    Attributes:
        on: whether there are any; nothing else needs to be asked where there are none.
    """

    def __init__(self) -> None:
        self.on = False
        self.incoming = Direction(Limit.BYTES_IN, Limit.MESSAGES_IN)
        self.outgoing = Direction(Limit.BYTES_OUT, Limit.MESSAGES_OUT)
        self._quotas: dict[tuple[Kind, str], Quota] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._quotas)

    def replace(self, quotas: Iterable[Quota]) -> None:
        """Go by other quotas."""
        self._quotas = {(one.subject.kind, one.subject.name): one for one in quotas}
        self.incoming.replace(self._quotas.values())
        self.outgoing.replace(self._quotas.values())
        self.on = bool(self._quotas)

    def over(self, limit: Limit, subject: Subject, count: int) -> Wait | None:
        """Why there may be no more than `count` of something."""
        key = subject.kind, subject.name
        quota = self._quotas.get(key) or self._quotas.get((subject.kind, EVERY))
        most = quota.limit(limit) if quota is not None else 0
        return Wait(0, subject, limit, most) if most and count >= most else None

    def over_topics(self, name: str, owner: str, owners: Mapping[str, str]) -> Wait | None:
        """Why one more topic may not be created beside those that exist.

        owner: the user who creates it; empty for none. owners: of those that exist.
        """
        if owner:
            count = sum(one == owner for one in owners.values())
            wait = self.over(Limit.TOPICS, Subject(Kind.USER, owner), count)
            if wait is not None:
                return wait
        namespace, percent, _ = name.partition(NAMESPACE)
        if not percent or not namespace:
            return None
        count = sum(one.startswith(namespace + NAMESPACE) for one in owners)
        return self.over(Limit.TOPICS, Subject(Kind.NAMESPACE, namespace), count)
