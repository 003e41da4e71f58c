"""Who is logged in. A session is a client of the nodes, with the rights of its user.

Rules: a session is named by a random cookie, of which only the digest is kept, and ends when it is
not used, at its longest age, or when its user logs out; the password leaves this process only in
calls to nodes. There are few sessions, and few attempts at a time from one address.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from duolog import Busy, Client

from node.console.rates import Rates
from node.console.visits import Done, Undo

IDLE_SECONDS = 30 * 60.0
AGE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 200
UNDOS_MAX = 8  # that a session can still take back
ATTEMPTS = 10  # that an address may fail
ATTEMPT_SECONDS = 30.0  # until one of them is forgotten
ADDRESSES_MAX = 10_000

MakeClient = Callable[[str, str], Client]  # user and password; raises DuologError


@dataclass(slots=True)
class Session:
    """One browser of one user. user: empty where the nodes have no users. form: proves that a form
    comes from a page of this session.
    """

    user: str
    client: Client
    began: float
    used: float
    form: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    rates: Rates = field(default_factory=Rates)
    told: Done | None = None  # what was done last, until it is shown
    undos: dict[str, Undo] = field(default_factory=dict)

    def offer(self, undo: Undo) -> str:
        """Keep how an action is taken back; its name."""
        while len(self.undos) >= UNDOS_MAX:
            del self.undos[next(iter(self.undos))]
        name = secrets.token_urlsafe(9)
        self.undos[name] = undo
        return name

    def proves(self, form: str) -> bool:
        """Whether a form's proof is this session's."""
        return hmac.compare_digest(form.encode(), self.form.encode())


class Sessions:
    """All of them. Times are seconds of a clock that does not go back."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def add(self, user: str, client: Client) -> str:
        """A new session; its cookie. Raises Busy where there are too many."""
        await self.expire()
        if len(self._sessions) >= SESSIONS_MAX:
            raise Busy(f"{SESSIONS_MAX} people are logged in: one of them must log out first")
        cookie, now = secrets.token_urlsafe(32), self._seconds()
        self._sessions[_digest(cookie)] = Session(user, client, now, now)
        return cookie

    def get(self, cookie: str) -> Session | None:
        """The session that a cookie names, which is used by this; None: it is over."""
        session = self._sessions.get(_digest(cookie))
        now = self._seconds()
        if session is None or _over(session, now):
            return None
        session.used = now
        return session

    async def end(self, cookie: str) -> None:
        """A user logs out."""
        session = self._sessions.pop(_digest(cookie), None)
        if session is not None:
            await session.client.close()

    async def expire(self) -> None:
        """End the sessions that are over."""
        now = self._seconds()
        for key, session in list(self._sessions.items()):
            if _over(session, now):
                del self._sessions[key]
                await session.client.close()

    async def close(self) -> None:
        """End all of them."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.client.close()


def _over(session: Session, now: float) -> bool:
    return now - session.used > IDLE_SECONDS or now - session.began > AGE_SECONDS


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()


class Attempts:
    """Failed logins by address: a few are free, then one in ATTEMPT_SECONDS."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._free_at: OrderedDict[str, float] = OrderedDict()  # when all of them are forgotten

    def left_seconds(self, address: str) -> float:
        """How long an address must wait until it may try; 0: it may."""
        behind = self._free_at.get(address, 0.0) - self._seconds()
        return max(0.0, behind - (ATTEMPTS - 1) * ATTEMPT_SECONDS)

    def failed(self, address: str) -> None:
        """An address tried."""
        now = self._seconds()
        self._free_at[address] = max(self._free_at.get(address, now), now) + ATTEMPT_SECONDS
        self._free_at.move_to_end(address)
        if len(self._free_at) > ADDRESSES_MAX:
            self._free_at.popitem(last=False)

    def passed(self, address: str) -> None:
        """An address proved who it is."""
        self._free_at.pop(address, None)


__all__ = ["Attempts", "MakeClient", "Session", "Sessions"]
