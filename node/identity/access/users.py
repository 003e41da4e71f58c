"""Users: the rows of the table, checked."""

from dataclasses import dataclass

from duolog_server.node.identity.rights.policies import NAME_MAX, NOT_IN_USERS, USER_NAMES
from duolog_server.store.accesstables import DISABLED, ENABLED, NORMAL, SUPER, Row
from duolog_server.store.errors import BadMessage

USERS_MAX = 10_000  # of a cluster
PASSWORD_MAX = 1024
TOKEN_PREFIX = "duolog-token."


@dataclass(frozen=True, slots=True)
class User:
    """One user.

    Attributes:
        is_super: may do everything.
        enabled: may call at all.
        password: its hash.
        secret: the password sealed, if the user signs with it; otherwise empty.
        recovered_ms: wall-clock ms when the password was set with the key file; 0: it was not.
        disablings: how often it was disabled, each of which ended its tokens and sessions.
    """

    name: str
    is_super: bool = False
    enabled: bool = True
    password: str = ""
    secret: str = ""
    recovered_ms: int = 0
    disablings: int = 0

    @property
    def credentials(self) -> str:
        """What its tokens and sessions are bound to: they end where this changes."""
        return f"{self.password}#{self.disablings}" if self.disablings else self.password

    def to_row(self) -> Row:
        """The row; type and status are in RocketMQ's words."""
        counts = {"recovered": self.recovered_ms, "disablings": self.disablings}
        return {
            "username": self.name,
            "userType": SUPER if self.is_super else NORMAL,
            "userStatus": ENABLED if self.enabled else DISABLED,
            "password": self.password,
            "secret": self.secret,
            **{name: count for name, count in counts.items() if count},
        }

    @staticmethod
    def from_row(row: Row) -> "User":
        """A user of the table. What is not known to be a super user or enabled is neither."""
        return User(
            str(row["username"]),
            row.get("userType") == SUPER,
            row.get("userStatus") == ENABLED,
            str(row.get("password", "")),
            str(row.get("secret", "")),
            int(row.get("recovered", 0)),
            int(row.get("disablings", 0)),
        )


def check_user_name(name: str) -> None:
    """Raise BadMessage if no user can have that name: it travels in `NAME:PASSWORD` and in
    `Credential=NAME/…, `.
    """
    wrong = set(name) & NOT_IN_USERS
    if not name or len(name) > NAME_MAX or not name.isprintable() or wrong:
        raise BadMessage(f"user name {name[:NAME_MAX]!r} must have {USER_NAMES}")


def check_password(password: str) -> None:
    """Raise BadMessage if it is no password; the text does not hold it."""
    if not 1 <= len(password) <= PASSWORD_MAX:
        raise BadMessage(f"a password must have 1 to {PASSWORD_MAX} characters")
    if password.startswith(TOKEN_PREFIX):
        raise BadMessage("a password must not be an access token")
