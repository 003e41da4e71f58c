"""Answers to a browser: a page in the frame of all pages, or the way to the login.

Rules: no answer is kept in a cache; another user may look at the same address next. What was done
last is told once, on the first page that can be shown.
"""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from node.console.requests.guarding import raw_path
from node.console.sessions.sessions import Session
from node.console.view.addresses import LOGIN
from node.console.view.render import whole
from node.console.view.visits import Shown


def html(shown: Shown, request: Request, session: Session | None, status: int = 200) -> Response:
    """A page. session: None for somebody who is not logged in."""
    told = session.told if session is not None and status == 200 else None
    undo = ""
    if session is not None and told is not None:
        session.told = None
        undo = session.offer(told.undo) if told.undo is not None else ""
    around: dict[str, object] = {
        "told": told,
        "undo": undo,
        "path": raw_path(request),
        "user": session.user if session is not None else "",
        "form": session.form if session is not None else "",
        "known": session is not None,
    }
    return HTMLResponse(whole(shown, around), status, {"Cache-Control": "no-store"})


def to_login(request: Request) -> Response:
    """To the login, and from there back to the page that was asked for."""
    wanted = raw_path(request)
    if request.url.query:
        wanted += f"?{request.url.query}"
    return RedirectResponse(f"{LOGIN}?next={quote(wanted, safe='')}", 303)


__all__ = ["html", "to_login"]
