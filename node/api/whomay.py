"""Which of very many users may do something.

Rules: a decision is that of the gate, whose own notes of users and rights are not touched: those of
users who call would be forgotten, or all users kept. Of a user's entries only those are read whose
pattern covers the resource, as no other one decides; patterns are compared once, however many users
have them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from duolog_server.node.identity.access.gate import settled_for
from duolog_server.node.identity.access.users import User
from duolog_server.node.identity.rights.decision import Decision, decide
from duolog_server.node.identity.rights.policies import Acl, BadAcl, Pattern
from duolog_server.node.identity.rights.resources import Need
from duolog_server.store.accesstables import AccessTables


class WhoMay:
    """Decisions about one need of users at one address."""

    def __init__(self, tables: AccessTables, need: Need, source: str) -> None:
        self._tables = tables
        self._need = need
        self._source = source
        self._covering: dict[str, bool] = {}

    def decision(self, user: User) -> Decision:
        """Whether a user may, and why."""
        settled = settled_for(user.name, user if user.enabled else None, self._need)
        if settled is not None:
            return settled
        return decide(self._rights_of(user.name), self._need, self._source)

    def _rights_of(self, name: str) -> Acl | None:
        row = self._tables.rights.get(name)
        try:
            return Acl.from_json(self._covering_part(row)) if row is not None else None
        except BadAcl:
            return None  # written by a newer version: it gives no rights here

    def _covering_part(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rights without the entries that are about other resources; what is no rights as it is."""
        try:
            policies = [
                {**policy, "entries": self._covering_entries(policy["entries"])}
                for policy in row["policies"]
            ]
        except (KeyError, TypeError):
            return row
        return {**row, "policies": policies}

    def _covering_entries(self, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        covering = self._covering
        # First what is known, without a call for each: there may be a million of them.
        likely = [entry for entry in entries if covering.get(entry["resource"], True)]
        return [entry for entry in likely if self._covers(entry["resource"])]

    def _covers(self, text: str) -> bool:
        known = self._covering.get(text)
        if known is None:
            try:
                known = Pattern.parse(text).covers(self._need.resource)
            except BadAcl:
                known = True  # it is read, and refused
            self._covering[text] = known
        return known
