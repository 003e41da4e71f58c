"""Answers to a browser: a page in the frame of all pages, or a redirect to the login.

Rules: no answer is kept in a cache; another user may look at the same address next. What was done
last is shown once, on the first page that can be shown. A browser that follows a link on another
site sends no cookie: it asks once more, from a page of the console, before its user must log in.
"""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from duolog_server.ops.console.http.security import CROSS_SITE
from duolog_server.ops.console.requests import errors
from duolog_server.ops.console.requests.guarding import raw_path
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.view.addresses import LOGIN
from duolog_server.ops.console.view.render import whole
from duolog_server.ops.console.view.visits import Shown, Undo


def html(shown: Shown, request: Request, session: Session | None, status: int = 200) -> Response:
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
        "known": session is not None,
    }
    return HTMLResponse(whole(shown, around), status, {"Cache-Control": "no-store"})


def to_login(request: Request) -> Response:
    """Redirect to the login, and from there back to the requested page."""
    login = f"{LOGIN}?next={quote(location_of(request), safe='')}"
    if request.headers.get("sec-fetch-site") != CROSS_SITE:
        return RedirectResponse(login, 303)
    told = "This link is on another site. The console opens it in a moment."
    answer = html(errors.refusal("Opening", told, again=login), request, None)
    answer.headers["Refresh"] = f"0; url={login}"
    return answer


def location_of(request: Request) -> str:
    """Path and query of a request."""
    query = request.url.query
    return f"{raw_path(request)}?{query}" if query else raw_path(request)
