"""The history of changes of users, rights and quotas, as their administrators know it.

Each change has a mark of its own where it can have one: a password that is new, the name of a topic
that no one uses, or the length of a burst. Others are told apart by their number.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sim.accesslog import SUBJECT, Row, is_right
from sim.witness import Violation

SET_UP = "root"  # the user that is made before, perhaps several times
OK, UNKNOWN, REFUSED = "ok", "unknown", "refused"

UNMARKED = ("", "enable", "disable")


@dataclass(slots=True)
class Change:
    """A change that was asked for. outcome: unknown where it may have been made or not.

    Attributes:
        subject: the user's name, or the quota's subject.
        mark: that its record alone has; empty where it cannot have one.
        began: so many records were known when it was asked for.
    """

    kind: str
    subject: str
    mark: str
    began: int
    outcome: str = UNKNOWN

    @property
    def is_marked(self) -> bool:
        """Whether no other change can be taken for it."""
        return self.mark not in UNMARKED

    def is_made_by(self, change: Row) -> bool:
        """Whether a record is this change."""
        if (self.kind, self.subject) != named(change):
            return False
        if self.kind == "user" and self.is_marked:
            return is_right(self.mark, change["user"]["password"])
        return self.mark in mark_of(change)


def named(change: Row) -> tuple[str, str]:
    """A record's kind, and what it is about; empty texts for one of other tables."""
    match change["op"]:
        case "user":
            return "user", str(change["user"]["username"])
        case "rights":
            return "rights", change["rights"]["subject"].removeprefix(SUBJECT)
        case "quota":
            return "quota", str(change["quota"]["subject"])
        case "delete_user" | "delete_rights":
            return str(change["op"]), str(change["user"])
        case "delete_quota":
            return "delete_quota", str(change["subject"])
    return "", ""


def mark_of(change: Row) -> str:
    """The text in which a change of its kind has its mark."""
    values: dict[str, Callable[[], Any]] = {
        "user": lambda: change["user"]["userStatus"],
        "rights": lambda: change["rights"],
        "quota": lambda: change["quota"]["burst_ms"],
    }
    found = values.get(change["op"])
    return json.dumps(found()) if found is not None else ""


@dataclass(slots=True)
class AccessHistory:
    """All changes."""

    changes: list[Change] = field(default_factory=list)

    def begin(self, kind: str, subject: str, mark: str, began: int) -> Change:
        """A change is asked for."""
        self.changes.append(Change(kind, subject, mark, began))
        return self.changes[-1]

    @staticmethod
    def place(change: Change, records: list[Row]) -> int:
        """Where an acknowledged change is among the records since it began."""
        for at, record in enumerate(records):
            if change.is_made_by(record):
                return change.began + at
        raise Violation(f"{change} is acknowledged, and no record of it is confirmed")

    def check(self, records: list[Row]) -> None:
        """At the end: what is acknowledged is in the log, what was refused is not."""
        made = Counter(map(named, records))
        asked = Counter((one.kind, one.subject) for one in self.changes if one.outcome != REFUSED)
        for key, count in made.items():
            if key[0] and key[1] != SET_UP and count > asked[key]:
                raise Violation(f"{count} changes {key} are made, {asked[key]} were asked for")
        for one in self.changes:
            there = any(map(one.is_made_by, records[one.began :]))
            if one.outcome == OK and not there:
                raise Violation(f"{one} is acknowledged, and lost")
            if one.outcome == REFUSED and one.is_marked and there:
                raise Violation(f"{one} was refused, and is made")
