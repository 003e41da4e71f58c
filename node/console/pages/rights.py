"""Who may what, and what was done."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from duolog import Decision, Message, User
from duolog._background import all_of

from node.console.view.visits import Shown, Visit
from node.console.view.words import command, counted
from store.metadata import AUDIT_TOPIC

ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
USERS_ASKED = 200  # about one resource
ENTRIES = 100


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user, and whether it may do what is asked about; None: nothing is."""

    user: User
    decision: Decision | None


async def rights(visit: Visit) -> Shown:
    """The users, and who of them may do something, and why. For super users."""
    action, resource = visit.query.get("action", "Pub"), visit.query.get("resource", "").strip()
    users = await visit.client.access.users()
    asked = users[:USERS_ASKED] if resource else []
    decisions = await all_of(
        *(visit.client.access.test(action, resource, user=user.name) for user in asked)
    )
    known = dict(zip((user.name for user in asked), decisions, strict=True))
    may = sum(decision.allowed for decision in decisions)
    told = f"{counted(len(users), 'user')}."
    if resource:
        told = f"{may} of {counted(len(asked), 'user')} may {action} {resource}."
    facts = {
        "sentence": told,
        "actions": ACTIONS,
        "action": action,
        "resource": resource,
        "rows": [UserRow(user, known.get(user.name)) for user in users],
    }
    return Shown("rights.html", "Rights", facts, command("user", "list"))


async def audit(visit: Visit) -> Shown:
    """The newest entries of the audit log. For those who may read its topic."""
    parts = await visit.client.admin.topics([AUDIT_TOPIC], system=True)
    found: list[Message] = []
    for part in parts:
        for queue in part.stats:
            begin = max(queue.min_offset, queue.max_offset - ENTRIES)
            batch = await visit.client.pull(
                AUDIT_TOPIC, queue.queue_id, begin, max_messages=ENTRIES, group=part.group
            )
            found += batch
    found.sort(key=lambda one: one.store_time_ms, reverse=True)
    rows = [{"time_ms": one.store_time_ms, **_entry(one.body)} for one in found[:ENTRIES]]
    told = f"The newest {counted(len(rows), 'entry')}."
    if not parts:
        told = "The nodes keep no audit log in a topic: set audit.topic."
    return Shown("audit.html", "Audit", {"sentence": told, "rows": rows})


def _entry(body: bytes) -> Mapping[str, object]:
    """What an entry says, by name."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"says": body.decode(errors="replace")}
    found.pop("time", None)
    return {"says": ", ".join(f"{name} {value}" for name, value in found.items() if value != "")}


__all__ = ["audit", "rights"]
