"""One entry of the audit log, and how equal ones are written once. Pure."""

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

WORD_MAX = 1000  # characters of one word
SHOWN_MAX = 4000  # and of what a request says
_WORDS = ("user", "source", "method", "resource", "reason")
SPAN_MS = 10_000
REMEMBERED_MAX = 1000
# Different denials at one time: of a user; of callers who are no users, from one address and all.
USERS_MAX, STRANGERS_MAX, ADDRESSES_MAX = 100, 20, 500
Key = tuple[str, str, str, str, str]  # user, source, method, resource, reason


class Decision(StrEnum):
    """What became of a call."""

    ALLOWED = "allowed"
    DENIED = "denied"  # by who calls, or by its rights
    FAILED = "failed"  # allowed, and not done, or not known to be
    LOST = "lost"  # entries that there was no room for


@dataclass(frozen=True, slots=True)
class Entry:
    """One call. Words that are too long are cut.

    Attributes:
        at_ms: wall-clock ms.
        user: empty where none was recognised, or there are none.
        source: the address that it came from, without the port.
        method: as the API names it: Admin/CreateTopic.
        resource: what it was about: Topic:orders.
        reason: why it was denied or failed, with the entry that decided.
        shown: the fields of the request that are no secrets.
        times: equal calls that this entry stands for; 1 but for those after the first.
    """

    at_ms: int
    user: str
    source: str
    method: str
    resource: str
    decision: Decision
    reason: str = ""
    shown: Mapping[str, object] = field(default_factory=dict)
    times: int = 1

    def __post_init__(self) -> None:
        for name in _WORDS:  # at once: denials are remembered for a while
            object.__setattr__(self, name, getattr(self, name)[:WORD_MAX])

    def to_line(self, node: str) -> bytes:
        """As JSON, without a line's end. node: the name of the one that writes it."""
        row: dict[str, object] = {
            "time": _iso(self.at_ms),
            "node": node,
            "user": self.user,
            "source": self.source,
            "method": self.method,
            "resource": self.resource,
            "decision": self.decision,
        }
        if self.reason:
            row["reason"] = self.reason
        if self.shown:
            row["request"] = _shortened(self.shown)
        if self.times != 1:
            row["times"] = self.times
        return json.dumps(row, separators=(",", ":")).encode()


def _iso(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shortened(shown: Mapping[str, object]) -> dict[str, object]:
    left, found = SHOWN_MAX, dict(shown)
    for name, value in shown.items():
        if isinstance(value, int):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > left:
            found[name] = text[:left] + "…"
        left = max(0, left - len(text))
    return found


def _scope(key: Key) -> tuple[str, str]:
    """Within which a limited number of denials is noted: a user, or an address without one."""
    user, source = key[:2]
    return user, "" if user else source


@dataclass(slots=True)
class _Later:
    """Stands for the denials after the first, and is written then."""

    entry: Entry
    until_ms: int


class Repeats:
    """Denials that are repeated: the first is written at once, the others as one after a while.

    So nobody fills the log: not by trying again, nor a user by trying many things, nor a stranger
    by trying many names, or from many addresses. Each call is in exactly one entry.
    """

    def __init__(self) -> None:
        # What came since the first, and when it is written; in the order of these times.
        self._later: OrderedDict[Key, _Later] = OrderedDict()
        # Keys: by user, or by source of those without one; and of all of these.
        self._distinct: Counter[tuple[str, str]] = Counter()
        self._strangers = 0

    def __len__(self) -> int:
        return len(self._later)

    def taken(self, entry: Entry, now_ms: int) -> list[Entry]:
        """A denial comes: what is to be written now. now_ms: monotonic."""
        key: Key = (entry.user, entry.source, entry.method, entry.resource, entry.reason)
        most = USERS_MAX if entry.user else STRANGERS_MAX
        if key not in self._later and self._distinct[_scope(key)] >= most:
            key = (*_scope(key), "", "", "")  # one for all others
        if key not in self._later and not entry.user and self._strangers >= ADDRESSES_MAX:
            key = ("", "", "", "", "")
        known = self._later.get(key)
        if known is not None:
            known.entry = replace(entry, times=known.entry.times + 1)
            return []
        found = self._forgotten() if len(self._later) >= REMEMBERED_MAX else []
        self._later[key] = _Later(replace(entry, times=0), now_ms + SPAN_MS)
        self._distinct[_scope(key)] += 1
        self._strangers += not key[0]
        return [*found, entry]

    def _forgotten(self) -> list[Entry]:
        """Forget the oldest; what is to be written of it."""
        key, later = self._later.popitem(last=False)
        self._strangers -= not key[0]
        self._distinct[_scope(key)] -= 1
        if not self._distinct[_scope(key)]:
            del self._distinct[_scope(key)]
        return [later.entry] if later.entry.times else []

    def due(self, now_ms: int) -> list[Entry]:
        """What is to be written by now."""
        found = []
        while self._later and next(iter(self._later.values())).until_ms <= now_ms:
            found += self._forgotten()
        return found

    def rest(self) -> list[Entry]:
        """What is left at the end."""
        found = []
        while self._later:
            found += self._forgotten()
        return found
