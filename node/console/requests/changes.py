"""Forms that change something: an action is done, or undone.

Rules: nothing changes before the form has proved that it comes from a page of this session. An
action ends in a redirect to a page that shows its result, so that a reload does not repeat it. An
action is undone once at most.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from duolog import BadRequest, DuologError, Unauthenticated
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from node.console.http.forms import fields_of
from node.console.requests import errors
from node.console.requests.answers import html
from node.console.requests.guarding import guarded
from node.console.sessions.sessions import Session
from node.console.sessions.viewers import Viewers
from node.console.view.addresses import LOGIN, own_path
from node.console.view.visits import FORM_BYTES, Action, Done


class Changes:
    """Does what forms ask for."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers

    async def act(self, action: Action, request: Request) -> Response:
        """Do an action, and go on at the page that shows it."""

        async def do(session: Session, form: Mapping[str, str]) -> Done:
            return await action.do(self._viewers.visit(session, request), form)

        return await self._change(request, do, action.form_bytes)

    async def undo(self, request: Request) -> Response:
        """Undo an action."""

        async def do(session: Session, form: Mapping[str, str]) -> Done:
            undo = session.undos.pop(form.get("undo", ""), None)
            if undo is None:
                raise BadRequest("this can no longer be undone")
            return Done(await undo.run(session.client), own_path(form.get("next", "")))

        return await self._change(request, do)

    async def _change(
        self,
        request: Request,
        do: Callable[[Session, Mapping[str, str]], Awaitable[Done]],
        form_bytes: int = FORM_BYTES,
    ) -> Response:
        session = self._viewers.session_of(request)
        if session is None:
            return RedirectResponse(LOGIN, 303)
        try:
            _check_length(request, form_bytes)
            form = await fields_of(request, form_bytes)
            if not session.proves(form.get("form", "")):
                raise BadRequest("this form is of another session: open the page again")
            with session.looking():
                work = partial(do, session, form)
                done = await guarded(work, session, request, self._viewers)
        except Unauthenticated:
            return RedirectResponse(LOGIN, 303)
        except DuologError as error:
            shown = errors.page_of(error, ())  # a page that follows would show the form again
            return html(shown, request, session, errors.status_of(error))
        session.told = done
        return RedirectResponse(done.location, 303)


def _check_length(request: Request, most: int) -> None:
    """Raise BadRequest for a form that is too long to be read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise BadRequest(f"this form is longer than {most >> 10} KiB")


__all__ = ["Changes"]
