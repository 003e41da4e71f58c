"""Access tokens: what a program gives in the place of a user's password, until a time.

Nothing is stored for one: it is a mark, under the key that the nodes share, of the user's name, the
time, the hash of the password, and how often the user was disabled. So a new password ends all
tokens of a user, as disabling it does, and a deleted or disabled user has none.
"""

from collections.abc import Callable

from duolog_server.node.identity.access.users import TOKEN_PREFIX, User
from duolog_server.node.identity.access.vouching import Vouching

PREFIX = TOKEN_PREFIX + "v1."
PURPOSE = b"duolog access tokens v1"
SECONDS_MAX = 366 * 24 * 3600


class AccessTokens:
    """Makes tokens, and checks them."""

    def __init__(self, key: bytes, wall_ms: Callable[[], int]) -> None:
        """key: of the key file."""
        self._vouching = Vouching(key, PURPOSE)
        self.wall_ms = wall_ms

    def issue(self, user: User, seconds: int) -> str:
        """A token of a user that is good for so long."""
        until_ms = self.wall_ms() + seconds * 1000
        return f"{PREFIX}{until_ms}.{self._vouching.mark(_words(user, until_ms))}"

    def until_ms(self, user: User, token: str) -> int | None:
        """Until when a token of the user is good, wall-clock ms; None where it is not."""
        time, _, mark = token.removeprefix(PREFIX).partition(".")
        if not (time.isascii() and time.isdecimal() and len(time) < 20):
            return None
        if not self._vouching.is_mark(mark, _words(user, int(time))):
            return None
        return int(time) if self.wall_ms() < int(time) else None


def _words(user: User, until_ms: int) -> tuple[str, ...]:
    return user.name, str(until_ms), user.credentials
