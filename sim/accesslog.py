"""What the log says of users, rights and quotas: a second reading of its records.

Nothing of the node's tables is used. Of rights, only the forms that the simulated administrators
write are understood.
"""

import base64
import functools
import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.witness import Violation

Row = dict[str, Any]
SUBJECT = "User:"


@functools.cache
def is_right(word: str, hashed: str) -> bool:
    """Whether that is the password of a hash, as a row has it."""
    salt, digest = map(base64.b64decode, hashed.split("$")[4:])
    found = hashlib.scrypt(word.encode(), salt=salt, n=2, r=1, p=1, dklen=len(digest))
    return found == digest


@dataclass(frozen=True, slots=True)
class Proof:
    """What a caller gives to prove that it is a user.

    word: a password, good again wherever the user has it. era: of the user when a token was issued:
    the token ends with it, for good.
    """

    name: str
    word: str = ""
    era: int = -1


@dataclass(frozen=True, slots=True)
class Said:
    """The state after some records: rows by user, and by what a quota limits.

    changes: how often the quota of a subject was set or deleted. eras: how often what was issued to
    a user has ended, by another password, by disabling it or deleting it.
    """

    users: Mapping[str, Row] = field(default_factory=dict)
    rights: Mapping[str, Row] = field(default_factory=dict)
    quotas: Mapping[str, Row] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)
    eras: Mapping[str, int] = field(default_factory=dict)

    def enabled(self, name: str) -> Row | None:
        """A user that may call."""
        row = self.users.get(name)
        return row if row is not None and row["userStatus"] == "enable" else None

    def proves(self, name: str, credentials: str) -> bool:
        """Whether credentials are those of an enabled user; empty for a certificate.

        They are the hash of a password, and how often the user had been disabled.
        """
        row = self.enabled(name)
        if row is None:
            return False
        hashed, count = row["password"], row.get("disablings", 0)
        return credentials in ("", f"{hashed}#{count}" if count else hashed)

    def admits(self, proof: Proof) -> bool:
        """Whether that proves an enabled user now."""
        row = self.enabled(proof.name)
        if row is None or not (proof.era < 0 or proof.era == self.eras[proof.name]):
            return False
        return not proof.word or is_right(proof.word, row["password"])

    def allows(self, name: str, resource: str, actions: Collection[str]) -> bool:
        """Whether a user may do one of some actions; without actions: whether it is super."""
        row = self.enabled(name)
        if row is None or row["userType"] == "Super":
            return row is not None
        return any(self._allows(name, resource, action) for action in actions)

    def _allows(self, name: str, resource: str, action: str) -> bool:
        policies = self.rights.get(name, {}).get("policies", ())
        entries = [entry for policy in policies for entry in policy["entries"]]
        found = [
            (_specificity(entry["resource"]), entry["decision"] == "Allow")
            for entry in entries
            if action in entry["actions"] and _covers(entry["resource"], resource)
        ]
        most = max(found, default=((False, 0), False))[0]
        return bool(found) and all(allow for place, allow in found if place == most)

    def quota(self, kind: str, name: str) -> Row | None:
        """What limits one subject."""
        return self.quotas.get(f"{kind}:{name}") or self.quotas.get(f"{kind}:*")

    def turns(self, kind: str, name: str) -> int:
        """How often what limits one subject may have become something else."""
        return self.changes.get(f"{kind}:{name}", 0) + self.changes.get(f"{kind}:*", 0)

    def after(self, change: Row) -> "Said":
        """With one record more."""
        match change["op"]:
            case "user":
                row, name = change["user"], change["user"]["username"]
                before = self.users.get(name)
                lasts = before is not None and before["password"] == row["password"]
                if before is not None and before["userStatus"] == "enable":
                    lasts = lasts and row["userStatus"] == "enable"
                users = {**self.users, name: row}
                return replace(self, users=users, eras=self.eras if lasts else self._ended(name))
            case "delete_user":
                name = change["user"]
                users, rights = _without(self.users, name), _without(self.rights, name)
                return replace(self, users=users, rights=rights, eras=self._ended(name))
            case "rights":
                row = change["rights"]
                name = row["subject"].removeprefix(SUBJECT)
                if name in self.users:
                    return replace(self, rights={**self.rights, name: row})
            case "delete_rights":
                return replace(self, rights=_without(self.rights, change["user"]))
            case "quota":
                row = change["quota"]
                quotas = {**self.quotas, row["subject"]: row}
                return replace(self, quotas=quotas, changes=self._changed(row["subject"]))
            case "delete_quota":
                quotas, name = _without(self.quotas, change["subject"]), change["subject"]
                return replace(self, quotas=quotas, changes=self._changed(name))
        return self

    def _ended(self, name: str) -> dict[str, int]:
        return {**self.eras, name: self.eras.get(name, 0) + 1}

    def _changed(self, subject: str) -> dict[str, int]:
        return {**self.changes, subject: self.changes.get(subject, 0) + 1}


def _without(rows: Mapping[str, Row], name: str) -> dict[str, Row]:
    return {key: row for key, row in rows.items() if key != name}


def _covers(pattern: str, resource: str) -> bool:
    return resource.startswith(pattern[:-1]) if pattern.endswith("*") else resource == pattern


def _specificity(pattern: str) -> tuple[bool, int]:
    return not pattern.endswith("*"), len(pattern)


class AccessLog:
    """The records that are known to be confirmed, and the states between them."""

    def __init__(self, bodies: list[bytes]) -> None:
        """bodies: of all metadata records; others add to them."""
        self._bodies = bodies
        self._changes: list[Row] = []
        self._begins = [0]  # each state holds from so many records on
        self._states = [Said()]

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._bodies)

    def changes(self, first: int = 0) -> list[Row]:
        """The records from one on."""
        self._read()
        return self._changes[first:]

    def at(self, applied: int) -> Said:
        """The state after so many records."""
        self._read()
        return self._states[bisect_right(self._begins, applied) - 1]

    def _read(self) -> None:
        for body in self._bodies[len(self._changes) :]:
            change = json.loads(body)
            self._changes.append(change)
            said = self._states[-1].after(change)
            if said is self._states[-1]:
                continue
            if said.users and not any(said.allows(name, "", ()) for name in said.users):
                raise Violation(f"{change} leaves no super user who could change others")
            self._begins.append(len(self._changes))
            self._states.append(said)
