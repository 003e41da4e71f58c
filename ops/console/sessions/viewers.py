"""Whose session a request belongs to: the cookie in the browser, and what it stands for.

Rules: a browser sends a cookie to all ports of a host, so its name holds the console's port: two
consoles on one host do not end each other's sessions. Where the nodes have no users, all browsers
on loopback share one session, of nobody; elsewhere a browser without a session must log in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from duolog_server.ops.console.masking.seen import Seeing
from duolog_server.ops.console.searches import Searches
from duolog_server.ops.console.sessions.forms import Forms
from duolog_server.ops.console.sessions.sessions import LOOKS_MAX, MakeClient, Session, Sessions
from duolog_server.ops.console.view.visits import Visit

COOKIE = "duolog_console"
STREAMS_MAX = 64  # live pages of all sessions together


@dataclass(frozen=True, slots=True)
class Settings:
    """endpoints: nodes that are called. loopback: browsers reach the console on loopback only.
    port: that it listens on. secured: browsers reach it over TLS. origins: under which browsers see
    it, where a proxy is before it; empty: there is none, and any name that leads here will do.
    seeing: how messages are shown.
    """

    endpoints: Sequence[str]
    loopback: bool
    port: int
    secured: bool = False
    origins: Sequence[str] = ()
    seeing: Seeing = field(default_factory=Seeing)


def cookie_of(settings: Settings) -> str:
    """The name of a console's cookie.

    With the prefix __Host-, a browser takes it from this very host and over TLS alone.
    """
    return f"{'__Host-' if settings.secured else ''}{COOKIE}_{settings.port}"


class Viewers:
    """The sessions of a console, as requests name them."""

    def __init__(
        self, settings: Settings, client_of: MakeClient, seconds: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.client_of = client_of
        self.seconds = seconds
        self.sessions = Sessions(seconds)
        self._cookie = cookie_of(settings)
        self._nobody: Session | None = None

    def session_of(self, request: Request, *, used: bool = True) -> Session | None:
        """The request's session; None: its user must log in first. used: count it as a use."""
        found = self.logged_in(request, used=used)
        if found is None and self.settings.loopback:
            return self._of_nobody()
        return found

    def logged_in(self, request: Request, *, used: bool = True) -> Session | None:
        """The session that a request's cookie names; None: it names none, or it is over."""
        find = self.sessions.get if used else self.sessions.peek
        return find(self._value(request))

    def lasts(self, session: Session) -> bool:
        """Whether a session is not over."""
        return session is self._nobody or self.sessions.lasts(session)

    def visit(self, session: Session, request: Request) -> Visit:
        """The input of a page or an action."""
        return Visit(
            session.client,
            self.settings.endpoints,
            request.path_params,
            request.query_params,
            self.seconds(),
            session.rates,
            searches=session.searches,
            form=session.form,
            seeing=self.settings.seeing,
            rights=session.rights,
        )

    def give(self, response: Response, value: str) -> None:
        """Set the cookie of a new session."""
        response.set_cookie(
            self._cookie, value, httponly=True, samesite="strict", secure=self.settings.secured
        )

    def take(self, response: Response) -> None:
        """Delete the browser's cookie."""
        response.delete_cookie(
            self._cookie, httponly=True, samesite="strict", secure=self.settings.secured
        )

    async def end(self, request: Request) -> None:
        """End the session that a request names; others continue."""
        await self.sessions.end(self._value(request))

    async def close(self) -> None:
        """End all sessions."""
        await self.sessions.close()
        if self._nobody is not None:
            await self._nobody.searches.close()
            await self._nobody.client.close()

    def _value(self, request: Request) -> str:
        return request.cookies.get(self._cookie, "")

    def _of_nobody(self) -> Session:
        if self._nobody is None:
            now, looks_max = self.seconds(), STREAMS_MAX + LOOKS_MAX
            client, searches = self.client_of("", ""), Searches(self.sessions.room)
            forms = Forms(self.seconds)
            self._nobody = Session(
                "", client, now, now, searches=searches, forms=forms, looks_max=looks_max
            )
        return self._nobody
