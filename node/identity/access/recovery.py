"""Recovery of a super user: what somebody proves who has the key file, and no password any more.

Rules: neither the key nor the password travels; a proof answers a challenge of one process, within
a minute, once; nothing is kept for challenges that nobody answered.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from duolog import _errors as sdk

from duolog_server.node.identity.access.secrets import KEY_BYTES, hash_password, is_hash
from duolog_server.node.identity.access.users import check_password, check_user_name
from duolog_server.node.identity.access.vouching import Vouching

PURPOSE = b"duolog recovery v1"
CHALLENGES = b"duolog recovery challenges v1"
CHALLENGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """The node at which a user is recovered."""

    cluster: str
    group: str
    node: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A user to recover, and its new password, hashed."""

    challenge: str
    user: str
    password_hash: str

    def words(self, place: Place) -> tuple[str, ...]:
        """What its mark covers."""
        where = place.cluster, place.group, place.node
        return *where, self.challenge, self.user, self.password_hash


class Challenges:
    """Of one process: it knows its own without keeping them, and those that were used."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """seconds: a monotonic clock."""
        self._seconds = seconds
        self._own = Vouching(secrets.token_bytes(KEY_BYTES), CHALLENGES)
        self._used: OrderedDict[str, float] = OrderedDict()

    def draw(self) -> str:
        """A new one."""
        until = str(int((self._seconds() + CHALLENGE_SECONDS) * 1000))
        drawn = f"{until}.{secrets.token_hex(16)}"
        return f"{drawn}.{self._own.mark((drawn,))}"

    def use(self, challenge: str) -> bool:
        """Whether it is one of ours, in time, and used for the first time."""
        now = self._seconds()
        while self._used and next(iter(self._used.values())) <= now:
            self._used.popitem(last=False)
        drawn, _, mark = challenge.rpartition(".")
        if not self._own.is_mark(mark, (drawn,)):
            return False
        until = int(drawn.partition(".")[0]) / 1000
        if until <= now or challenge in self._used:
            return False
        self._used[challenge] = now + CHALLENGE_SECONDS
        return True


class Recovery:
    """A node's side."""

    def __init__(self, key: bytes, seconds: Callable[[], float] = time.monotonic) -> None:
        """key: of the key file."""
        self._vouching = Vouching(key, PURPOSE)
        self._challenges = Challenges(seconds)

    def begin(self) -> str:
        """A challenge for any caller."""
        return self._challenges.draw()

    def check(self, claim: Claim, place: Place, mark: str) -> None:
        """Raise Unauthenticated unless a claim was made with the key, for this node, just now;
        BadRequest, BadMessage where the user cannot be."""
        if not self._vouching.is_mark(mark, claim.words(place)):
            raise sdk.Unauthenticated(
                "the proof was made with another key: a user is recovered with the "
                "access.key_file of the nodes"
            )
        check_user_name(claim.user)
        if not is_hash(claim.password_hash):
            raise sdk.BadRequest("the password is not hashed as this version does")
        if not self._challenges.use(claim.challenge):
            raise sdk.Unauthenticated(
                "the challenge is not of this node, was used, or is older than "
                f"{CHALLENGE_SECONDS:.0f} s: repeat it"
            )


class Claims:
    """An operator's side: who has the key."""

    def __init__(self, key: bytes, user: str, password: str) -> None:
        """key: of the key file. Raises BadMessage. Takes a while."""
        check_user_name(user)
        check_password(password)
        self.user = user
        self._vouching = Vouching(key, PURPOSE)
        self._hashed = hash_password(password)

    def answer(self, challenge: str, place: Place) -> tuple[Claim, str]:
        """The claim for a node's challenge, and its mark."""
        claim = Claim(challenge, self.user, self._hashed)
        return claim, self._vouching.mark(claim.words(place))
