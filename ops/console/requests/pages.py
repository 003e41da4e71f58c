"""Pages that browsers look at, once or live until the session ends, and files that they keep.

Rules: a live page is no use of its session and ends with it; so does a download. Nothing is shown
that was found after the session had ended. Live pages are few, of one session and of all; so are
downloads. A file is never shown as a page, and its name has letters that mean nothing to a file
system or a header. What prevents its first line is an error's page.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from duolog import Busy, DuologError, Unauthenticated
from starlette.requests import Request
from starlette.responses import Response

from duolog_server.ops.console.http.serving import EVENTS, Streamed
from duolog_server.ops.console.requests.answers import (
    UNAVAILABLE,
    error_page,
    guarded,
    html,
    refusal,
    status_of,
    to_login,
)
from duolog_server.ops.console.sessions import viewers
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.render import OVER, live
from duolog_server.ops.console.view.visits import Download, Exported, Page, Shown

DOWNLOADS_MAX = 8  # of all sessions together
NAME_CHARACTERS = 100
CHUNK = 64 << 10  # characters written together
JSON_LINES = "application/x-ndjson"


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
            return Response(OVER, media_type=EVENTS) if follows else await to_login(request)
        memory: dict[str, Any] = {}

        async def show() -> Shown:
            return await page(replace(self._viewers.visit(session, request), memory=memory))

        look = partial(guarded, show, session, request, self._viewers)
        return self._stream(session, look) if follows else await self._once(session, look, request)

    async def nowhere(self, request: Request, error: Exception) -> Response:
        """The page of an address that has none."""
        shown = refusal("Not found", "This page does not exist.")
        return await html(shown, request, self._viewers.session_of(request), 404)

    async def _once(
        self, session: Session, look: Callable[[], Awaitable[Shown]], request: Request
    ) -> Response:
        try:
            with session.looking():
                shown = await look()
                status = shown.status
        except Unauthenticated:
            return await to_login(request)
        except DuologError as error:
            shown, status = self._error(error), status_of(error)
        answer = await html(shown, request, session, status)
        return answer if self._viewers.lasts(session) else await to_login(request)

    def _stream(self, session: Session, look: Callable[[], Awaitable[Shown]]) -> Response:
        held = ExitStack()
        try:
            held.enter_context(session.looking())
            if self.streams >= viewers.STREAMS_MAX:
                raise Busy(f"{viewers.STREAMS_MAX} live pages are open: close some of them")
        except Busy as error:
            held.close()
            return Response(f"{error}\n", UNAVAILABLE, media_type="text/plain")
        self.streams += 1
        held.callback(self._stream_ended)
        lasts = partial(self._viewers.lasts, session)
        return Streamed(live(look, self._error, lasts, session.rights), held)

    def _stream_ended(self) -> None:
        self.streams -= 1

    def _error(self, error: DuologError) -> Shown:
        return error_page(error, self._viewers.settings.endpoints)


class Downloads:
    """Writes files to browsers."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers
        self._open = 0

    async def file(self, download: Download, request: Request) -> Response:
        """A file, or the page that says why there is none."""
        session = self._viewers.session_of(request)
        if session is None:
            return await to_login(request)
        held = ExitStack()
        try:
            self._begin(held, session)
            begun = partial(self._begun, download, session, request)
            exported, first = await guarded(begun, session, request, self._viewers)
        except BaseException as error:
            held.close()
            if isinstance(error, Unauthenticated):
                return await to_login(request)
            if not isinstance(error, DuologError):
                raise
            shown = error_page(error, self._viewers.settings.endpoints)
            return await html(shown, request, session, status_of(error))
        text = self._text(session, first, exported)
        named = f'attachment; filename="{file_name(exported.name)}"'
        return Streamed(text, held, JSON_LINES, {"Content-Disposition": named})

    def _begin(self, held: ExitStack, session: Session) -> None:
        """Count it. Raises Busy."""
        held.enter_context(session.looking())
        if self._open >= DOWNLOADS_MAX:
            raise Busy(f"{DOWNLOADS_MAX} downloads are running: wait for one to end")
        self._open += 1
        held.callback(self._end)

    def _end(self) -> None:
        self._open -= 1

    async def _begun(
        self, download: Download, session: Session, request: Request
    ) -> tuple[Exported, str]:
        """The download and its first line; empty where it has none."""
        exported = await download(self._viewers.visit(session, request))
        return exported, await anext(exported.lines, "")

    async def _text(
        self, session: Session, first: str, exported: Exported
    ) -> AsyncGenerator[str, None]:
        """The text in chunks, until the session ends."""
        chunk, size = [first], len(first)
        async with aclosing(exported.lines) as lines:
            async for line in lines:
                if not self._viewers.lasts(session):
                    chunk.append(exported.cut)
                    break
                chunk.append(line)
                size += len(line)
                if size >= CHUNK:
                    yield "".join(chunk)
                    chunk, size = [], 0
        yield "".join(chunk)


def file_name(name: str) -> str:
    """A name that is safe in a header and on every file system."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")
    stem, dot, ending = plain.rpartition(".")
    return f"{stem[:NAME_CHARACTERS]}{dot}{ending[:16]}"
