"""The console as an ASGI application: which address has which page, and what runs beside them.

Rules: every call to a node is made as the user who is logged in, so that the nodes decide what may
be seen. A page and an action are found here and nowhere else; neither knows of HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from duolog_server.ops.console.http.security import App, Protected
from duolog_server.ops.console.pages import (
    audit,
    cluster,
    deadletters,
    finding,
    groups,
    messages,
    rights,
    sending,
    tail,
    topics,
    waiting,
)
from duolog_server.ops.console.requests.changes import Changes
from duolog_server.ops.console.requests.logins import Logins
from duolog_server.ops.console.requests.pages import Downloads, Looks
from duolog_server.ops.console.sessions.sessions import MakeClient, Sessions, boot_seconds
from duolog_server.ops.console.sessions.viewers import Settings, Viewers
from duolog_server.ops.console.view import addresses as at
from duolog_server.ops.console.view.visits import Action, Download, Page, Shown, Visit

EXPIRE_SECONDS = 30.0
NOWHERE = (404, 405)  # also addresses that forms are sent to, and that have no page
STATIC = Path(__file__).parent / "static"
PAGES: Mapping[str, Page] = {
    at.CLUSTER: cluster.cluster,
    at.DOCTOR: cluster.doctor,
    at.TOPICS: topics.topics,
    at.TOPIC: topics.topic,
    at.TAIL: tail.tail,
    at.MESSAGE: messages.message,
    at.GROUPS: groups.groups,
    at.GROUP: groups.group,
    at.DEAD: deadletters.dead,
    at.MESSAGES: finding.messages,
    at.WAY: waiting.way,
    at.DELAYED: waiting.delayed,
    at.HALVES: waiting.half,
    at.RIGHTS: rights.rights,
    at.AUDIT: audit.audit,
}
DOWNLOADS: Mapping[str, Download] = {at.DEAD_EXPORT: deadletters.dead_export}
ACTIONS: Mapping[str, Action] = {
    at.TOPIC_CREATE: topics.CREATE,
    at.TOPIC_ALTER: topics.ALTER,
    at.TOPIC_DELETE: topics.DELETE,
    at.MESSAGE_SEND: sending.SEND,
    at.MESSAGE_AGAIN: sending.AGAIN,
    at.GROUP_RESET: groups.RESET,
    at.GROUP_DELETE: groups.DELETE,
    at.GROUP_REDELIVER: deadletters.REDELIVER,
    at.SEARCH_STOP: finding.STOP,
    at.SEARCH_AGAIN: finding.AGAIN,
    at.DELAYED_RECALL: waiting.RECALL,
    at.HALF_DECIDE: waiting.DECIDE,
    at.NODE_SWITCH: cluster.SWITCH,
    at.NODE_DRAIN: cluster.DRAIN,
    at.NODE_FORGET: cluster.FORGET,
    at.NODE_UNDRAIN: cluster.UNDRAIN,
}


async def _asked(pattern: str, action: Action, visit: Visit) -> Shown:
    """The form of an action, for those who may do it."""
    await visit.rights.check(pattern, {**visit.query, **visit.path})
    return await action.ask(visit)


class Console:
    """The application and its state."""

    def __init__(
        self,
        settings: Settings,
        client_of: MakeClient,
        seconds: Callable[[], float] = boot_seconds,
    ) -> None:
        """client_of: a client of the nodes as a user; anonymous with two empty words."""
        self._settings = settings
        self._viewers = Viewers(settings, client_of, seconds)
        self.looks = Looks(self._viewers)
        self._changes = Changes(self._viewers)
        self._downloads = Downloads(self._viewers)
        self._logins = Logins(self._viewers)

    @property
    def sessions(self) -> Sessions:
        """The sessions of logged-in users."""
        return self._viewers.sessions

    def app(self) -> App:
        """The ASGI application."""
        made = Starlette(
            routes=list(self._routes()),
            lifespan=self._life,
            exception_handlers=dict.fromkeys(NOWHERE, self.looks.nowhere),
        )
        made.router.redirect_slashes = False  # it names this console as its Host and port say
        settings = self._settings
        return Protected(made, loopback_only=settings.loopback, origins=settings.origins)

    def _routes(self) -> Iterator[BaseRoute]:
        yield Route(at.LOGIN, self._logins.page, methods=["GET"])
        yield Route(at.LOGIN, self._logins.log_in, methods=["POST"])
        yield Route(at.LOGOUT, self._logins.log_out, methods=["POST"])
        yield Route(at.UNDO, self._changes.undo, methods=["POST"])
        yield Mount(at.STATIC, StaticFiles(directory=STATIC))
        for path, page in PAGES.items():
            yield Route(path, partial(self.looks.page, page), methods=["GET"])
        for path, download in DOWNLOADS.items():
            yield Route(path, partial(self._downloads.file, download), methods=["GET"])
        for path, action in ACTIONS.items():
            ask = partial(self.looks.page, partial(_asked, path, action), followed=False)
            yield Route(path, ask, methods=["GET"])
            yield Route(path, partial(self._changes.act, action), methods=["POST"])

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
        await self._viewers.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            await self.sessions.expire()
