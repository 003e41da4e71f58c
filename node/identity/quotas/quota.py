"""A quota: whom or what it limits, and to how much; as a row of the metadata and as a request.

    User:alice        one user
    User:*            every user that has no quota of its own, each by itself
    Client:10.0.0.7   the clients of one address; Client:* as for users
    Topic:orders      one topic; Topic:* as for users
    Namespace:eu      the topics whose names begin with eu%; Namespace:* as for users

All quotas that cover a call hold at the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from duolog_server.node.identity.rights.sources import address_of

Row = dict[str, Any]

NAME_MAX = 255
MOST = 1 << 50
BURST_MS, BURST_MS_MAX = 1000, 3_600_000
EVERY = "*"


class BadQuota(ValueError):
    """What was given is no quota; the text says why."""


class Kind(StrEnum):
    """What a quota limits."""

    USER = "User"
    CLIENT = "Client"
    TOPIC = "Topic"
    NAMESPACE = "Namespace"


class Limit(StrEnum):
    """What there is a limit to; bytes and messages are those of a second."""

    BYTES_IN = "bytes_in"
    MESSAGES_IN = "messages_in"
    BYTES_OUT = "bytes_out"
    MESSAGES_OUT = "messages_out"
    CONNECTIONS = "connections"
    TOPICS = "topics"


RATES = frozenset((Limit.BYTES_IN, Limit.MESSAGES_IN, Limit.BYTES_OUT, Limit.MESSAGES_OUT))
LIMITS_OF: Mapping[Kind, frozenset[Limit]] = {
    Kind.USER: RATES | {Limit.CONNECTIONS, Limit.TOPICS},
    Kind.CLIENT: RATES | {Limit.CONNECTIONS},
    Kind.TOPIC: RATES,
    Kind.NAMESPACE: frozenset((Limit.TOPICS,)),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What a quota limits: one of a kind, or with the name * every other one."""

    kind: Kind
    name: str

    @staticmethod
    def parse(text: str) -> "Subject":
        """Of KIND:NAME, the kind in any case. Raises BadQuota."""
        word, colon, name = text.partition(":")
        kinds = {kind.lower(): kind for kind in Kind}
        kind = kinds.get(word.lower())
        if kind is None or not colon:
            raise BadQuota(f"{text[:NAME_MAX]!r} is not {', '.join(f'{k}:NAME' for k in Kind)}")
        if not name or len(name) > NAME_MAX or not name.isprintable():
            raise BadQuota(f"a name has 1 to {NAME_MAX} characters that can be printed")
        if name != EVERY and EVERY in name:
            raise BadQuota(f"{text!r}: * stands alone, for each one without a quota of its own")
        if kind is Kind.CLIENT and name != EVERY:
            address = address_of(name)
            if address is None:
                raise BadQuota(f"{name!r} is no address: a client is named by its IP address")
            name = str(address)
        return Subject(kind, name)

    @property
    def text(self) -> str:
        """User:alice."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one subject; 0: none. burst_ms: so much of a rate passes at once, after a
    pause.
    """

    subject: Subject
    bytes_in: int = 0
    messages_in: int = 0
    bytes_out: int = 0
    messages_out: int = 0
    connections: int = 0
    topics: int = 0
    burst_ms: int = BURST_MS

    def limit(self, limit: Limit) -> int:
        """One of the limits; 0: none."""
        return int(getattr(self, limit))

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set, by name."""
        return {limit.value: self.limit(limit) for limit in Limit if self.limit(limit)}

    def altered(self, changes: Mapping[str, Any]) -> "Quota":
        """With other limits; those that are not named stay. Raises BadQuota."""
        made = replace(self, **changes)
        made.check()
        return made

    def check(self) -> None:
        """Raise BadQuota for a limit that cannot be, or that the subject cannot have."""
        allowed = LIMITS_OF[self.subject.kind]
        for name, value in self.limits.items():
            if Limit(name) not in allowed:
                words = ", ".join(limit for limit in Limit if limit in allowed)
                raise BadQuota(f"{self.subject.kind} has no limit {name}; it has {words}")
            if not 0 < value <= MOST:
                raise BadQuota(f"{name} is {value}; it must be 1 to {MOST}, or 0 for no limit")
        if not 1 <= self.burst_ms <= BURST_MS_MAX:
            raise BadQuota(f"burst_ms is {self.burst_ms}; it must be 1 to {BURST_MS_MAX}")

    def to_row(self) -> Row:
        """As the metadata keeps it."""
        burst = {} if self.burst_ms == BURST_MS else {"burst_ms": self.burst_ms}
        return {"subject": self.subject.text, **self.limits, **burst}

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Quota":
        """Of a row; limits of a newer version are left out. Raises BadQuota."""
        try:
            subject = Subject.parse(str(row["subject"]))
            found = {name: int(row[name]) for name in _NUMBERS if name in row}
        except (KeyError, TypeError, ValueError) as error:
            raise BadQuota(f"not a quota: {error}") from None
        return Quota(subject).altered(found)


_NUMBERS = tuple(field.name for field in fields(Quota) if field.name != "subject")
