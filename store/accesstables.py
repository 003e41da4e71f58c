"""Users and their rights: two tables of the metadata, as rows.

Rules: what the rows say is the node's matter; here they are only kept. Rights belong to a user and
go with it.
"""

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]

# RocketMQ's words in the rows.
SUBJECT = "User:"
SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"


@dataclass(slots=True)
class AccessTables:
    """Users by name, and the rights of users by the user's name.

    changes: rises with every change, so that what was decided before can be distinguished from what
    is decided now.
    """

    users: dict[str, Row] = field(default_factory=dict)
    rights: dict[str, Row] = field(default_factory=dict)
    changes: int = 0

    def put_user(self, row: Row) -> None:
        """Create a user, or replace it."""
        self.users[str(row["username"])] = dict(row)
        self.changes += 1

    def delete_user(self, name: str) -> None:
        """Delete a user and its rights."""
        self.users.pop(name, None)
        self.rights.pop(name, None)
        self.changes += 1

    def put_rights(self, row: Row) -> None:
        """Replace a user's rights. Nothing happens where the user was deleted meanwhile."""
        name = str(row["subject"]).removeprefix(SUBJECT)
        if name in self.users:
            self.rights[name] = dict(row)
            self.changes += 1

    def delete_rights(self, name: str) -> None:
        """Take all rights from a user."""
        self.rights.pop(name, None)
        self.changes += 1

    def replace(self, other: "AccessTables") -> None:
        """Take the rows of other tables."""
        self.users, self.rights = other.users, other.rights
        self.changes += 1

    def rows(self) -> Row:
        """A copy for a snapshot; `from_rows` reads it."""
        return {
            "users": {name: dict(row) for name, row in sorted(self.users.items())},
            "rights": {name: dict(row) for name, row in sorted(self.rights.items())},
        }

    @staticmethod
    def from_rows(value: Row) -> "AccessTables":
        """The tables of a snapshot; of one that has none, empty ones."""
        made = AccessTables()
        for row in (value.get("users") or {}).values():
            made.put_user(row)
        for row in (value.get("rights") or {}).values():
            made.put_rights(row)
        return made

    def validate(self) -> str:
        """The first violated invariant; empty if all hold."""
        strangers = sorted(self.rights.keys() - self.users.keys())
        return f"rights of {strangers[0]}, who is not a user" if strangers else ""
