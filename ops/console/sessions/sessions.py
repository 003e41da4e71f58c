"""Sessions of logged-in users. A session is a client of the nodes, with the rights of its user.

Rules: a session is named by a random cookie, of which only the digest is kept, and ends when it is
not used, at its longest age, or when its user logs out; the password leaves this process only in
calls to nodes. A page that follows what happens is no use of its session, and ends with it. There
are few sessions, fewer of one user, and few pages of one session at a time.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from duolog import Busy, Client, Unauthenticated

from duolog_server.ops.console.searches import Room, Searches
from duolog_server.ops.console.sessions.forms import Forms, Told
from duolog_server.ops.console.view.links import Rights
from duolog_server.ops.console.view.rates import Rates
from duolog_server.ops.console.view.visits import Undo

IDLE_SECONDS = 30 * 60.0
AGE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 200
UNDOS_MAX = 8  # actions that a session can still undo
SESSIONS_OF_USER = 20
LOOKS_MAX = 16  # pages that one session has open
MakeClient = Callable[[str, str], Client]  # user and password; raises DuologError


def boot_seconds() -> float:
    """Seconds that do not go back, and continue while the machine sleeps, where the system has such
    a clock: who wakes a machine the next day finds no session there.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(slots=True)
class Session:
    """One browser of one user. user: empty where the nodes have no users. form: proves that a form
    comes from a page of this session. undos: by the names of the forms that ask for them.
    """

    user: str
    client: Client
    began: float
    used: float
    form: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    rates: Rates = field(default_factory=Rates)
    searches: Searches = field(default_factory=Searches)
    told: Told | None = None  # what was done last, until it is shown
    forms: Forms = field(default_factory=Forms)
    undos: dict[str, Undo] = field(default_factory=dict)
    generation: bytes = b""  # of the password at the login; empty: not known
    looks_max: int = LOOKS_MAX
    looks: int = 0
    ended: bool = False
    rights: Rights = field(init=False)

    def __post_init__(self) -> None:
        self.rights = Rights(self.user, self.client)

    async def check_current(self) -> None:
        """Raise Unauthenticated if its user has another password than at the login, or one that it
        has once more: the client's calls would be good again.
        """
        if not self.generation:
            return
        now = (await self.client.access.who_am_i()).generation
        if now and now != self.generation:
            raise Unauthenticated(f"user {self.user} has got another password since the login")

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While a page is shown. Raises Busy where too many are."""
        if self.looks >= self.looks_max:
            raise Busy(f"this session has {self.looks_max} pages open: close some of them")
        self.looks += 1
        try:
            yield
        finally:
            self.looks -= 1

    def offer(self, undo: Undo) -> str:
        """Keep how an action is undone; the name of the form that does it."""
        while len(self.undos) >= UNDOS_MAX:
            del self.undos[next(iter(self.undos))]
        name = self.forms.show()
        self.undos[name] = undo
        return name

    def proves(self, form: str) -> bool:
        """Whether a form's proof is this session's."""
        return hmac.compare_digest(form.encode(), self.form.encode())


class Sessions:
    """All sessions of a console. Times are seconds of a clock that does not go back."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self.room = Room()  # for their searches
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def add(self, user: str, client: Client, generation: bytes = b"") -> str:
        """A new session; its cookie. Raises Busy where there are too many.

        Where its user has too many, the one that was not used the longest ends.
        """
        await self.expire()
        while len(own := self._of_user(user)) >= SESSIONS_OF_USER:  # others may add some meanwhile
            await self._end(min(own)[1])
        if len(self._sessions) >= SESSIONS_MAX:
            told = (
                f"the console already has its maximum of {SESSIONS_MAX} sessions: try again later"
            )
            raise Busy(told)
        cookie, now = secrets.token_urlsafe(32), self._seconds()
        searches, forms = Searches(self.room), Forms(self._seconds)
        made = Session(
            user, client, now, now, searches=searches, forms=forms, generation=generation
        )
        self._sessions[_digest(cookie)] = made
        return cookie

    def _of_user(self, user: str) -> list[tuple[float, bytes]]:
        """The last use of each session of a user, and its key."""
        return [(one.used, key) for key, one in self._sessions.items() if one.user == user]

    def get(self, cookie: str) -> Session | None:
        """The session that a cookie names, which is used by this; None: it is over."""
        session = self.peek(cookie)
        if session is not None:
            session.used = self._seconds()
        return session

    def peek(self, cookie: str) -> Session | None:
        """The session that a cookie names, without a use of it; None: it is over."""
        session = self._sessions.get(_digest(cookie))
        return session if session is not None and self.lasts(session) else None

    def lasts(self, session: Session) -> bool:
        """Whether a session is not over."""
        return not session.ended and not _over(session, self._seconds())

    async def end(self, cookie: str) -> None:
        """A user logs out."""
        await self._end(_digest(cookie))

    async def expire(self) -> None:
        """End the sessions that are over."""
        now = self._seconds()
        for key in [key for key, session in self._sessions.items() if _over(session, now)]:
            await self._end(key)

    async def close(self) -> None:
        """End all of them."""
        for key in list(self._sessions):
            await self._end(key)

    async def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)  # somebody else may end it meanwhile
        if session is not None:
            session.ended = True
            await session.searches.close()
            await session.client.close()


def _over(session: Session, now: float) -> bool:
    return now - session.used > IDLE_SECONDS or now - session.began > AGE_SECONDS


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
