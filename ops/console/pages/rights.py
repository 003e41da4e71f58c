"""Effective rights of a user, and the entry that decides them. For super users."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duolog import Decision, User

from duolog_server.node.identity.rights.policies import Acl, BadAcl
from duolog_server.ops.console.pages.lists import LIVE_ROWS_MAX, ROWS, Pages, list_place, listing
from duolog_server.ops.console.view.addresses import RIGHTS, address
from duolog_server.ops.console.view.formatting import command, counted
from duolog_server.ops.console.view.visits import Shown, Visit

ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
KIND = "Topic:"  # of a resource that is named without one


@dataclass(frozen=True, slots=True)
class Asked:
    """A query of the form for rights. user: empty for everybody. source: address from
    which they call; empty: from the console's.
    """

    user: str
    action: str
    resource: str
    source: str

    @staticmethod
    def of(visit: Visit) -> "Asked":
        """Parse a link or the form."""
        user, action, resource, source = (
            visit.query.get(name, "").strip() for name in ("user", "action", "resource", "source")
        )
        if resource and ":" not in resource:
            resource = KIND + resource
        return Asked(user, action or ACTIONS[0], resource, source)

    def address(self, **other: str) -> str:
        """The address of this page with other fields."""
        fields = {"user": self.user, "action": self.action, "resource": self.resource}
        return address(RIGHTS, {**fields, "source": self.source, **other})

    def words(self, verb: str, *names: str) -> str:
        """The same for the command line."""
        source = ["--source", self.source] if self.source else []
        return command("acl", verb, names=[*names, self.action, self.resource], flags=source)


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user in a list. link: to its rights. why: the entry that decides, where one was asked."""

    user: User
    link: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry of a user. decides: what is asked about."""

    policy: str
    allow: bool
    text: str
    decides: bool


async def rights(visit: Visit) -> Shown:
    """The users; those who may do something, and why; or what the entries of one decide."""
    asked = Asked.of(visit)
    if asked.user:
        return await _of_user(visit, asked)
    if asked.resource:
        return await _who_may(visit, asked)
    at = list_place(visit)
    page = await visit.client.access.users_page(at.contains, after=at.after, limit=at.limit)
    facts = dict(listing(RIGHTS, at, page, "user"))
    facts["rows"] = [UserRow(user, asked.address(user=user.name)) for user in page.rows]
    return _shown(asked, facts, command("user", "list", *at.flags()))


async def _who_may(visit: Visit, asked: Asked) -> Shown:
    after = visit.query.get("after", "")
    page = await visit.client.access.who_may(
        asked.action, asked.resource, source=asked.source, after=after, limit=ROWS
    )
    facts = {
        "sentence": f"{counted(page.total, 'user')} may {asked.action} {asked.resource}.",
        "rows": [
            UserRow(row.user, asked.address(user=row.user.name), row.decision.reason)
            for row in page.rows
        ],
        "pages": Pages(
            first=asked.address() if after else "",
            next=asked.address(after=page.next) if page.next else "",
        ),
    }
    return _shown(asked, facts, asked.words("who"))


async def _of_user(visit: Visit, asked: Asked) -> Shown:
    """Raises BadRequest for an unknown user."""
    text = await visit.client.access.rights(asked.user)
    decision: Decision | None = None
    told, words = f"The rights of {asked.user}.", command("acl", "show", names=[asked.user])
    if asked.resource:
        decision = await visit.client.access.test(
            asked.action, asked.resource, user=asked.user, source=asked.source
        )
        may = "may" if decision.allowed else "may not"
        told = f"{asked.user} {may} {asked.action} {asked.resource}: {decision.reason}."
        words = asked.words("test", asked.user)
    entries = _entries(text, decision)
    facts = {
        "sentence": told,
        "held": entries[:LIVE_ROWS_MAX],
        "hidden": max(0, len(entries) - LIVE_ROWS_MAX),
    }
    return _shown(asked, facts, words)


def _entries(text: str, decision: Decision | None) -> Sequence[EntryRow]:
    """The entries of some rights, those that decide first; none of a newer version's."""
    try:
        acl = Acl.from_json(json.loads(text)) if text else Acl("")
    except (BadAcl, ValueError):
        return ()
    deciding = decision.entry if decision is not None else ""
    rows = [
        EntryRow(policy, entry.allow, entry.text, entry.text == deciding)
        for policy, entries in acl.policies
        for entry in entries
    ]
    return sorted(rows, key=lambda row: not row.decides)


def _shown(asked: Asked, facts: Mapping[str, object], words: str) -> Shown:
    known = {"rows": (), "held": None, "q": "", "pages": Pages()}
    form = {"asked": asked, "actions": ACTIONS, "hidden": 0}
    return Shown("rights.html", "Rights", {**known, **form, **facts}, words)
