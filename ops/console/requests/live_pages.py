"""Pages that browsers look at: once, or live, again and again until the session ends.

Rules: a live page is no use of its session and ends with it. Nothing is shown that was found after
the session had ended. Live pages are few, of one session and of all.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from duolog import Busy, DuologError, Unauthenticated
from starlette.requests import Request
from starlette.responses import Response

from duolog_server.ops.console.http.streams import EVENTS, Streamed
from duolog_server.ops.console.requests import errors
from duolog_server.ops.console.requests.answers import html, to_login
from duolog_server.ops.console.requests.guarding import guarded
from duolog_server.ops.console.sessions import viewers
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.render import OVER, live
from duolog_server.ops.console.view.visits import Page, Shown


class Looks:
    """Shows pages. streams: live pages that are open."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers
        self.streams = 0

    async def page(self, page: Page, request: Request, *, followed: bool = True) -> Response:
        """A page, or its stream where the browser asks for events. followed: it may have one."""
        follows = followed and EVENTS in request.headers.get("accept", "")
        session = self._viewers.session_of(request, used=not follows)
        if session is None:
            return Response(OVER, media_type=EVENTS) if follows else to_login(request)
        memory: dict[str, Any] = {}

        async def show() -> Shown:
            return await page(replace(self._viewers.visit(session, request), memory=memory))

        look = partial(guarded, show, session, request, self._viewers)
        return self._stream(session, look) if follows else await self._once(session, look, request)

    async def nowhere(self, request: Request, error: Exception) -> Response:
        """The page of an address that has none."""
        shown = errors.refusal("Not found", "This page does not exist.")
        return html(shown, request, self._viewers.session_of(request), 404)

    async def _once(
        self, session: Session, look: Callable[[], Awaitable[Shown]], request: Request
    ) -> Response:
        try:
            with session.looking():
                shown, status = await look(), 200
        except Unauthenticated:
            return to_login(request)
        except DuologError as error:
            shown, status = self._error(error), errors.status_of(error)
        if not self._viewers.lasts(session):
            return to_login(request)
        return html(shown, request, session, status)

    def _stream(self, session: Session, look: Callable[[], Awaitable[Shown]]) -> Response:
        held = ExitStack()
        try:
            held.enter_context(session.looking())
            if self.streams >= viewers.STREAMS_MAX:
                raise Busy(f"{viewers.STREAMS_MAX} live pages are open: close some of them")
        except Busy as error:
            held.close()
            return Response(f"{error}\n", errors.UNAVAILABLE, media_type="text/plain")
        self.streams += 1
        held.callback(self._stream_ended)
        return Streamed(live(look, self._error, partial(self._viewers.lasts, session)), held)

    def _stream_ended(self) -> None:
        self.streams -= 1

    def _error(self, error: DuologError) -> Shown:
        return errors.page_of(error, self._viewers.settings.endpoints)
