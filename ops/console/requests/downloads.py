"""Files that browsers keep, written while they are read.

Rules: a file is never shown as a page, and its name has letters that mean nothing to a file system
or a header. A download counts as a page of its session and ends with it; few run at a
time. What prevents its first line is an error's page.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from functools import partial

from duolog import Busy, DuologError, Unauthenticated
from starlette.requests import Request
from starlette.responses import Response

from duolog_server.ops.console.http.streams import Streamed
from duolog_server.ops.console.requests import errors
from duolog_server.ops.console.requests.answers import html, to_login
from duolog_server.ops.console.requests.guarding import guarded
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.visits import Download, Exported

DOWNLOADS_MAX = 8  # of all sessions together
NAME_CHARACTERS = 100
CHUNK = 64 << 10  # characters written together
JSON_LINES = "application/x-ndjson"


class Downloads:
    """Writes files to browsers."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers
        self._open = 0

    async def file(self, download: Download, request: Request) -> Response:
        """A file, or the page that says why there is none."""
        session = self._viewers.session_of(request)
        if session is None:
            return to_login(request)
        held = ExitStack()
        try:
            self._begin(held, session)
            begun = partial(self._begun, download, session, request)
            exported, first = await guarded(begun, session, request, self._viewers)
        except BaseException as error:
            held.close()
            if isinstance(error, Unauthenticated):
                return to_login(request)
            if not isinstance(error, DuologError):
                raise
            shown = errors.page_of(error, self._viewers.settings.endpoints)
            return html(shown, request, session, errors.status_of(error))
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
