"""Forms that change something: an action is done, or undone.

Rules: nothing changes before the form has proved that it comes from a page of this session. An
action ends in a redirect to a page that shows its result, so that a reload does not repeat it; a
form that comes again gets that result again. An action is undone once at most.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from duolog import BadRequest, DuologError, ResultUnknown, Unauthenticated
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from duolog_server.ops.console.http.security import fields_of
from duolog_server.ops.console.requests.answers import (
    TookTooLong,
    error_page,
    guarded,
    html,
    location_of,
    status_of,
)
from duolog_server.ops.console.sessions.forms import FormIsOver, Told
from duolog_server.ops.console.sessions.sessions import Session
from duolog_server.ops.console.sessions.viewers import Viewers
from duolog_server.ops.console.view.addresses import CLUSTER, LOGIN, UNDO, Address, own_path
from duolog_server.ops.console.view.visits import FORM_BYTES, Action, Done

Do = Callable[[Session, Mapping[str, str]], Awaitable[Told]]


class Changes:
    """Does what forms ask for."""

    def __init__(self, viewers: Viewers) -> None:
        self._viewers = viewers

    async def act(self, action: Action, request: Request) -> Response:
        """Do an action, and redirect to the page that shows it."""

        async def do(session: Session, form: Mapping[str, str]) -> Told:
            done = await action.do(self._viewers.visit(session, request), form)
            return Told(done, session.offer(done.undo) if done.undo is not None else "")

        return await self._change(request, do, action.form_bytes, repeatable=action.repeatable)

    async def undo(self, request: Request) -> Response:
        """Undo an action."""

        async def do(session: Session, form: Mapping[str, str]) -> Told:
            undo = session.undos.get(form["once"])
            if undo is None:
                raise BadRequest("this can no longer be undone")
            done = Done(await undo.run(session.client), own_path(form.get("next", "")))
            session.undos.pop(form["once"], None)
            return Told(done)

        return await self._change(request, do)

    async def _change(
        self,
        request: Request,
        do: Do,
        form_bytes: int = FORM_BYTES,
        *,
        repeatable: bool = False,
    ) -> Response:
        session = self._viewers.session_of(request)
        if session is None:
            return RedirectResponse(LOGIN, 303)
        form: Mapping[str, str] = {}
        try:
            _check_length(request, form_bytes)
            form = await fields_of(request, form_bytes)
            if not session.proves(form.get("form", "")):
                raise FormIsOver("this form is of another session: open the page again")
            work = partial(self._guarded, partial(do, session, form), session, request)
            with session.looking():
                if repeatable:
                    told = await work()
                else:
                    told = await session.forms.once(form.get("once", ""), work)
        except Unauthenticated:
            return RedirectResponse(LOGIN, 303)
        except DuologError as error:
            again = _page_with(form, request) if isinstance(error, FormIsOver) else ""
            shown = error_page(error, (), again)  # one that follows would show the form again
            return await html(shown, request, session, status_of(error))
        session.told = told
        return RedirectResponse(await self._shown_after(session, told.done.location), 303)

    async def _shown_after(self, session: Session, location: str) -> str:
        """The page to show after a change: the first one, where its own one is denied."""
        denied = isinstance(location, Address) and not await session.rights.may(location)
        return CLUSTER if denied else location

    async def _guarded(
        self, work: Callable[[], Awaitable[Told]], session: Session, request: Request
    ) -> Told:
        """`guarded` for a change: raises ResultUnknown where a broken call may have done it."""
        try:
            return await guarded(work, session, request, self._viewers)
        except TookTooLong as error:
            raise ResultUnknown(f"{error}: it may or may not have been done") from None


def _page_with(form: Mapping[str, str], request: Request) -> str:
    """The page that has a form: an action's own one; a button that undoes it is on any page."""
    return own_path(form.get("next", "")) if request.url.path == UNDO else location_of(request)


def _check_length(request: Request, most: int) -> None:
    """Raise BadRequest for a form that is too long to be read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise BadRequest(f"this form is longer than {most >> 10} KiB")
