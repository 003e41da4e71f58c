"""Answers to a browser: a page, an error's page or a redirect to the login; work within bounds.

Rules: no answer is kept in a cache; another user may look at the same address next. What was done
last is shown once, on the first page that can be shown. A browser that follows a link on another
site sends no cookie: it asks once more, from a page of the console, before its user must log in.

The work of a page or an action ends within PAGE_SECONDS, so that nodes that hang do not pile up
pages, and raises errors of duolog alone. A user whom the nodes no longer know has no session
afterwards. A page shows an error of duolog with its own words. Any other exception is a defect, of
which only the log has the details: they may hold what the viewer must not see.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import quote

import structlog
from duolog import (
    BadRequest,
    Busy,
    DuologError,
    NoPermission,
    NoSuchMessage,
    Timeout,
    TopicExists,
    Unauthenticated,
    UnknownGroup,
    UnknownTopic,
)
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from duolog_server.ops.console.http.security import CROSS_SITE
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.addresses import CLUSTER, GROUPS, LOGIN, TOPICS
from duolog_server.ops.console.view.formatting import sentence, spaced, told_apart
from duolog_server.ops.console.view.render import whole
from duolog_server.ops.console.view.visits import Shown, Undo

UNAVAILABLE = 503
TEMPLATE = "error.html"
PAGE_SECONDS = 30.0  # in which nodes answer all that a page asks
log = structlog.get_logger("duolog.console")
T = TypeVar("T")


class Defect(DuologError):
    """A page failed because of a bug."""


class TookTooLong(Timeout):
    """The nodes did not answer all that a page asks in its time."""


_STATUS: Mapping[type[DuologError], int] = {
    BadRequest: 400,
    NoPermission: 403,
    NoSuchMessage: 404,
    UnknownGroup: 404,
    UnknownTopic: 404,
    TopicExists: 409,
    Busy: UNAVAILABLE,
    Defect: 500,
}


# Where else to go from what is gone, also while somebody looked at it.
_LISTS: Mapping[type[DuologError], tuple[str, str]] = {
    NoPermission: ("Home", CLUSTER),
    UnknownGroup: ("All groups", GROUPS),
    UnknownTopic: ("All topics", TOPICS),
}


def status_of(error: DuologError) -> int:
    """The HTTP status of an error; what nothing else is known of comes from nodes out of reach."""
    found = (status for kind, status in _STATUS.items() if isinstance(error, kind))
    return next(found, UNAVAILABLE)


def error_page(error: DuologError, endpoints: Sequence[str], again: str = "") -> Shown:
    """The page of an error. endpoints: named where the nodes may be out of reach. again: the page
    to open again; empty: none.
    """
    unavailable = status_of(error) == UNAVAILABLE
    lists = [link for kind, link in _LISTS.items() if isinstance(error, kind)]
    facts = {
        "sentence": sentence(told_apart(str(error))),
        "alarm": unavailable,
        "endpoints": endpoints if unavailable else (),
        "links": [*_again(again), *lists],
    }
    return Shown(TEMPLATE, spaced(type(error).__name__), facts)


def refusal(title: str, told: str, again: str = "") -> Shown:
    """An error page. again: see `error_page`."""
    return Shown(TEMPLATE, title, {"sentence": told, "endpoints": (), "links": _again(again)})


def _again(page: str) -> list[tuple[str, str]]:
    return [("Open the page again", page)] if page else []


async def guarded(
    work: Callable[[], Awaitable[T]], session: Session, request: Request, viewers: Viewers
) -> T:
    """Run work to its result; raises duolog's errors alone."""
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            await session.check_current()
            return await work()
    except Unauthenticated:
        await viewers.end(request)
        raise
    except DuologError:
        raise
    except TimeoutError:
        raise TookTooLong(f"the nodes did not answer within {PAGE_SECONDS:.0f} s") from None
    except Exception as error:
        if viewers.lasts(session):  # or else its client is closed
            log.error("a page of the console failed", path=raw_path(request), exc_info=error)
        raise Defect("This page failed: the log of the console says why") from None


def raw_path(request: Request) -> str:
    """The path as it was asked for: a name in it may have characters that only escapes carry."""
    path: bytes = request.scope["raw_path"]
    return path.decode("ascii", "replace")


async def html(
    shown: Shown, request: Request, session: Session | None, status: int = 200
) -> Response:
    """A page. session: None for somebody who is not logged in."""
    told = session.told if session is not None and status == 200 else None
    undo: Undo | None = None
    if session is not None and told is not None:
        session.told = None
        undo = session.undos.get(told.undo)
    around: dict[str, object] = {
        "told": told,
        "undo": undo,
        "path": raw_path(request),
        "user": session.user if session is not None else "",
        "form": session.form if session is not None else "",
        "once": session.forms.show if session is not None else None,
        "session": session,
        "rights": session.rights if session is not None else None,
    }
    draw = partial(whole, shown, around)
    if session is None:
        text = draw()
    else:  # nodes that do not answer are not asked for links
        text = await session.rights.drawn(draw, asks=status != UNAVAILABLE)
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})


async def to_login(request: Request) -> Response:
    """Redirect to the login, and from there back to the requested page."""
    login = f"{LOGIN}?next={quote(location_of(request), safe='')}"
    if request.headers.get("sec-fetch-site") != CROSS_SITE:
        return RedirectResponse(login, 303)
    told = "This link is on another site. The console opens it in a moment."
    answer = await html(refusal("Opening", told, again=login), request, None)
    answer.headers["Refresh"] = f"0; url={login}"
    return answer


def location_of(request: Request) -> str:
    """Path and query of a request."""
    query = request.url.query
    return f"{raw_path(request)}?{query}" if query else raw_path(request)
