"""The console as an ASGI application: who may look, at what, and what errors come to.

Rules: every call to a node is made as the user who is logged in, so that the nodes decide what may
be seen. Where the nodes have no users, a console on loopback asks for none; elsewhere it shows
nothing before somebody has logged in.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote

import structlog
from duolog import (
    BadRequest,
    Busy,
    Client,
    DuologError,
    NoPermission,
    NoSuchMessage,
    Timeout,
    Unauthenticated,
    UnknownGroup,
    UnknownTopic,
)
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from node.console.actions import groups as group_actions
from node.console.actions import nodes as node_actions
from node.console.actions import topics as topic_actions
from node.console.attempts import Attempts
from node.console.pages.cluster import cluster, doctor
from node.console.pages.groups import dead, group, groups
from node.console.pages.messages import message, messages
from node.console.pages.rights import audit, rights
from node.console.pages.tail import tail
from node.console.pages.topics import topic, topics
from node.console.render import OVER, live, whole
from node.console.security import App, Protected
from node.console.sessions import LOOKS_MAX, MakeClient, Session, Sessions
from node.console.streams import EVENTS, Streamed
from node.console.visits import Action, Done, Page, Shown, Visit
from node.console.words import duration, sentence, spaced

COOKIE = "duolog_console"
FORM_BYTES_MAX = 16 << 10
STREAMS_MAX = 64
PAGE_SECONDS = 30.0  # in which nodes answer all that a page asks
LOGINS_MAX = 8  # at a time; a node lets 16 of one address, the console's, wait
EXPIRE_SECONDS = 30.0
LOGIN = "/login"
STATIC = Path(__file__).parent / "static"
PAGES: Mapping[str, Page] = {
    "/": cluster,
    "/doctor": doctor,
    "/topics": topics,
    "/topics/{topic}": topic,
    "/topics/{topic}/tail": tail,
    "/topics/{topic}/{queue}/{offset}": message,
    "/groups": groups,
    "/groups/{group}": group,
    "/groups/{group}/dead": dead,
    "/messages": messages,
    "/rights": rights,
    "/audit": audit,
}
NO_USERS = (
    "The nodes have no users, so nobody can log in: this console serves loopback only, or give the "
    "nodes access.key_file"
)
ACTIONS: Mapping[str, Action] = {
    "/create/topic": topic_actions.CREATE,
    "/topics/{topic}/grow": topic_actions.GROW,
    "/topics/{topic}/delete": topic_actions.DELETE,
    "/groups/{group}/reset": group_actions.RESET,
    "/groups/{group}/delete": group_actions.DELETE,
    "/groups/{group}/redeliver": group_actions.REDELIVER,
    "/nodes/{group}/{node}/switch": node_actions.SWITCH,
    "/nodes/{group}/{node}/drain": node_actions.DRAIN,
    "/nodes/{group}/{node}/undrain": node_actions.UNDRAIN,
}
UNDO = "/undo"
log = structlog.get_logger("duolog.console")

T = TypeVar("T")


class Defect(DuologError):
    """A page failed in a way that nothing explains."""


_STATUS: Mapping[type[DuologError], int] = {
    BadRequest: 400,
    NoPermission: 403,
    NoSuchMessage: 404,
    UnknownGroup: 404,
    UnknownTopic: 404,
    Busy: 503,
    Defect: 500,
}
UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Settings:
    """endpoints: nodes that are asked. loopback: browsers reach the console on loopback only.
    secured: they reach it over TLS.
    """

    endpoints: Sequence[str]
    loopback: bool
    secured: bool = False


class Console:
    """The application's state."""

    def __init__(
        self,
        settings: Settings,
        client_of: MakeClient,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """client_of: a client of the nodes as a user; as nobody with two empty words."""
        self._settings = settings
        self._client_of = client_of
        self._seconds = seconds
        self.sessions = Sessions(seconds)
        self._attempts = Attempts(seconds)
        self._logins = asyncio.Semaphore(LOGINS_MAX)
        # A browser takes a cookie of this name from this host over TLS alone.
        self._cookie = f"__Host-{COOKIE}" if settings.secured else COOKIE
        self._nobody: Session | None = None
        self._streams = 0

    def app(self) -> App:
        """What a server serves."""
        routes = [
            Route(LOGIN, self._login_page, methods=["GET"]),
            Route(LOGIN, self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route(UNDO, self._undo, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
            *(
                Route(path, partial(self._page, page), methods=["GET"])
                for path, page in PAGES.items()
            ),
            *(
                Route(path, partial(self._page, action.ask), methods=["GET"])
                for path, action in ACTIONS.items()
            ),
            *(
                Route(path, partial(self._act, action), methods=["POST"])
                for path, action in ACTIONS.items()
            ),
        ]
        made = Starlette(
            routes=routes, lifespan=self._life, exception_handlers={404: self._nowhere}
        )
        return Protected(made, loopback_only=self._settings.loopback)

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            expiring = tasks.create_task(self._expire())
            try:
                yield
            finally:
                expiring.cancel()
        await self.close()

    async def close(self) -> None:
        """End all sessions."""
        await self.sessions.close()
        if self._nobody is not None:
            await self._nobody.client.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            await self.sessions.expire()

    # -- pages ---------------------------------------------------------------------------------

    async def _page(self, page: Page, request: Request) -> Response:
        follows = EVENTS in request.headers.get("accept", "")
        session = self._session(request, used=not follows)
        if session is None:
            return Response(OVER, media_type=EVENTS) if follows else self._to_login(request)
        memory: dict[str, Any] = {}

        async def show() -> Shown:
            return await page(replace(self._visit(session, request), memory=memory))

        look = partial(self._guarded, show, session, request)
        if follows:
            return self._stream(session, look)
        try:
            with session.looking():
                shown, status = await look(), 200
        except Unauthenticated:
            return self._to_login(request)
        except DuologError as error:
            shown, status = self._error(error), _status(error)
        if not self._lasts(session):
            return self._to_login(request)
        return self._html(shown, request, session, status)

    async def _guarded(
        self, work: Callable[[], Awaitable[T]], session: Session, request: Request
    ) -> T:
        """What a page or an action comes to. Raises duolog's errors alone."""
        try:
            async with asyncio.timeout(PAGE_SECONDS):
                return await work()
        except Unauthenticated:
            if session is not self._nobody:
                await self.sessions.end(request.cookies.get(self._cookie, ""))
            raise
        except DuologError:
            raise
        except TimeoutError:
            told = f"the nodes did not answer within {PAGE_SECONDS:.0f} s"
            raise Timeout(told) from None
        except Exception as error:
            if self._lasts(session):  # or else its client is closed
                log.error("a page of the console failed", path=_raw_path(request), exc_info=error)
            raise Defect("This page failed: the log of the console says why") from None

    async def _act(self, action: Action, request: Request) -> Response:
        """Do what a form asks for, and go on at the page that shows it."""

        async def do(session: Session, form: Mapping[str, str]) -> Done:
            return await action.do(self._visit(session, request), form)

        return await self._change(request, do)

    async def _undo(self, request: Request) -> Response:
        """Take an action back."""

        async def do(session: Session, form: Mapping[str, str]) -> Done:
            undo = session.undos.pop(form.get("undo", ""), None)
            if undo is None:
                raise BadRequest("this can be taken back no longer")
            return Done(await undo.again(session.client), _own(form.get("next", "")))

        return await self._change(request, do)

    async def _change(
        self, request: Request, do: Callable[[Session, Mapping[str, str]], Awaitable[Done]]
    ) -> Response:
        session = self._session(request)
        if session is None:
            return RedirectResponse(LOGIN, 303)
        form = await _form(request)
        try:
            if not session.proves(form.get("form", "")):
                raise BadRequest("this form is of another session: open the page again")
            with session.looking():
                done = await self._guarded(partial(do, session, form), session, request)
        except Unauthenticated:
            return RedirectResponse(LOGIN, 303)
        except DuologError as error:
            return self._html(self._error(error), request, session, _status(error))
        session.told = done
        return RedirectResponse(done.location, 303)

    def _session(self, request: Request, *, used: bool = True) -> Session | None:
        """Who looks; None: somebody who must log in first. used: this is a use of the session."""
        find = self.sessions.get if used else self.sessions.peek
        found = find(request.cookies.get(self._cookie, ""))
        if found is None and self._settings.loopback:
            if self._nobody is None:
                now, looks_max = self._seconds(), STREAMS_MAX + LOOKS_MAX
                client = self._client_of("", "")
                self._nobody = Session("", client, now, now, looks_max=looks_max)
            return self._nobody
        return found

    def _lasts(self, session: Session) -> bool:
        return session is self._nobody or self.sessions.lasts(session)

    def _visit(self, session: Session, request: Request) -> Visit:
        return Visit(
            session.client,
            self._settings.endpoints,
            request.path_params,
            request.query_params,
            self._seconds(),
            session.rates,
        )

    def _stream(self, session: Session, look: Callable[[], Awaitable[Shown]]) -> Response:
        held = ExitStack()
        try:
            held.enter_context(session.looking())
            if self._streams >= STREAMS_MAX:
                raise Busy(f"{STREAMS_MAX} pages follow what happens: close some of them")
        except Busy as error:
            held.close()
            return Response(f"{error}\n", UNAVAILABLE, media_type="text/plain")
        self._streams += 1
        held.callback(self._stream_ended)
        return Streamed(live(look, self._error, partial(self._lasts, session)), held)

    def _stream_ended(self) -> None:
        self._streams -= 1

    def _error(self, error: DuologError) -> Shown:
        unavailable = _status(error) == UNAVAILABLE
        facts = {
            "sentence": sentence(str(error)),
            "alarm": unavailable,
            "endpoints": self._settings.endpoints if unavailable else (),
        }
        return Shown("error.html", spaced(type(error).__name__), facts)

    async def _nowhere(self, request: Request, error: Exception) -> Response:
        facts = {"sentence": "There is no such page.", "endpoints": ()}
        session = self._session(request)
        return self._html(Shown("error.html", "Not found", facts), request, session, 404)

    def _html(
        self, shown: Shown, request: Request, session: Session | None, status: int = 200
    ) -> Response:
        told = session.told if session is not None and status == 200 else None
        undo = ""
        if session is not None and told is not None:
            session.told = None
            undo = session.offer(told.undo) if told.undo is not None else ""
        around: dict[str, object] = {
            "told": told,
            "undo": undo,
            "path": request.url.path,
            "user": session.user if session is not None else "",
            "form": session.form if session is not None else "",
            "known": session is not None,
        }
        headers = {"Cache-Control": "no-store"}
        return HTMLResponse(whole(shown, around), status, headers)

    # -- who looks -----------------------------------------------------------------------------

    def _to_login(self, request: Request) -> Response:
        wanted = _raw_path(request)
        if request.url.query:
            wanted += f"?{request.url.query}"
        return RedirectResponse(f"{LOGIN}?next={quote(wanted, safe='')}", 303)

    async def _login_page(self, request: Request) -> Response:
        return self._login_form(request, "", _own(request.query_params.get("next", "")))

    def _login_form(self, request: Request, wrong: str, wanted: str, status: int = 200) -> Response:
        facts = {
            "sentence": wrong or "Log in as a user of the nodes.",
            "alarm": bool(wrong),
            "next": wanted,
            "plain": not (self._settings.secured or self._settings.loopback),
        }
        return self._html(Shown("login.html", "Log in", facts), request, None, status)

    async def _login(self, request: Request) -> Response:
        address = request.client.host if request.client is not None else ""
        fields = await _form(request)
        wanted = _own(fields.get("next", ""))
        wait = self._attempts.left_seconds(address)
        if wait:
            told = f"Too many logins failed. Try again in {duration(wait * 1000)}."
            return self._login_form(request, told, wanted, 429)
        user, password = fields.get("user", ""), fields.get("password", "")
        if not user or not password:
            return self._login_form(request, "Give a user and a password.", wanted, 400)
        self._attempts.failed(address)  # until it has proved not to
        try:
            client = await self._proven(user, password)
            try:
                cookie = await self.sessions.add(user, client)
            except DuologError:
                await client.close()
                raise
        except Unauthenticated:
            return self._login_form(request, "User or password is wrong.", wanted, 401)
        except DuologError as error:
            self._attempts.passed(address)
            return self._login_form(request, sentence(str(error)), wanted, _status(error))
        self._attempts.passed(address)
        await self.sessions.end(request.cookies.get(self._cookie, ""))
        response = RedirectResponse(wanted, 303)
        response.set_cookie(
            self._cookie,
            cookie,
            httponly=True,
            samesite="strict",
            secure=self._settings.secured,
        )
        return response

    async def _proven(self, user: str, password: str) -> Client:
        """A client of a user whose password is right. Raises Unauthenticated where it is not."""
        client = self._client_of(user, password)
        try:
            async with asyncio.timeout(PAGE_SECONDS), self._logins:
                if await self._without_users():
                    raise BadRequest(NO_USERS)
                await _prove(client)
        except TimeoutError:
            await client.close()
            raise Timeout("the nodes do not answer, or too many log in: try again") from None
        except BaseException:
            await client.close()
            raise
        return client

    async def _without_users(self) -> bool:
        """Whether the nodes let anybody in."""
        async with self._client_of("", "") as nobody:
            try:
                await nobody.admin.route()
            except Unauthenticated:
                return False
        return True

    async def _logout(self, request: Request) -> Response:
        cookie = request.cookies.get(self._cookie, "")
        session = self.sessions.get(cookie)
        fields = await _form(request)
        if session is not None and not session.proves(fields.get("form", "")):
            facts = {"sentence": "This form is of another session.", "endpoints": ()}
            return self._html(Shown("error.html", "Not logged out", facts), request, session, 403)
        await self.sessions.end(cookie)
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(
            self._cookie, httponly=True, samesite="strict", secure=self._settings.secured
        )
        return response


async def _prove(client: Client) -> None:
    """Have the nodes check who a client is. Raises Unauthenticated."""
    try:
        await client.admin.route()
    except NoPermission:
        pass  # a user, who may not see this


def _status(error: DuologError) -> int:
    found = (status for kind, status in _STATUS.items() if isinstance(error, kind))
    return next(found, UNAVAILABLE)


def _raw_path(request: Request) -> str:
    """The path as it was asked for: a name in it may have characters that only escapes carry."""
    path: bytes = request.scope["raw_path"]
    return path.decode("ascii", "replace")


def _own(path: str) -> str:
    """A path of the console, to go on at; the first page where it is none."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain and not path.startswith(LOGIN) else "/"


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; none where it is too long."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                return {}
    except ClientDisconnect:
        return {}
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=32)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in fields.items()}


__all__ = ["Console", "Settings"]
