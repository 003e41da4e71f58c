"""Births: log offsets at which recreated topics and groups begin.

Messages wait for a topic or a group in other queues: delayed, timed and half messages, and what a
group is to get again. What is older than the birth of its topic or group belongs to the one that
was deleted, and is not delivered. The change that deletes it has its birth, and so has the one that
makes it again. Where none is recorded, as in RocketMQ's directories, it is 0: all belongs to it.

A copy is younger than its original. So who copies a waiting message asks about the original first,
and what is too old is never copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Births:
    """Log offsets, by name."""

    topics: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    newest: int = 0  # all that is not older belongs to whom it names
    known: bool = True  # False in tables of version 0.1.0, which has none: the log may have some

    def note(self, table: dict[str, int], name: str, change: Mapping[str, Any]) -> None:
        """A change deletes a topic or group, makes it, or alters it.

        low: where the log began then. Births before that are of no use any more.
        """
        for known in (self.topics, self.groups) if "low" in change else ():
            for old in [old for old, birth in known.items() if birth <= int(change["low"])]:
                del known[old]
        if "birth" in change:
            table[name] = max(int(change["birth"]), table.get(name, 0))
            self.newest = max(self.newest, table[name])

    def keep_within(self, end: int) -> bool:
        """Lower what is born after the end of the log, in another one; whether something was."""
        late = self.newest > end
        for table in (self.topics, self.groups) if late else ():
            table.update({name: end for name, birth in table.items() if birth > end})
        self.newest = min(self.newest, end)
        return late

    def rows(self) -> dict[str, dict[str, int]]:
        """Encode the births as `from_rows` reads them."""
        tables = {"topics": self.topics, "groups": self.groups}
        return {kind: dict(sorted(table.items())) for kind, table in tables.items()}

    @staticmethod
    def from_rows(rows: Mapping[str, Any]) -> "Births":
        """Raises one of `store.metadata.NOT_THE_SHAPE` if they are none."""
        topics, groups = (
            {str(name): int(birth) for name, birth in (rows.get(kind) or {}).items()}
            for kind in ("topics", "groups")
        )
        return Births(topics, groups, max((0, *topics.values(), *groups.values())))
