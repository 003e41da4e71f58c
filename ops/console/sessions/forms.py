"""The forms that a session was shown. What one asks for is done once.

Rules: a form has a name of its own, which comes back with it. A form that comes again, by a double
click, a reload or the button Back, gets the result of the first time, and waits for it while that
still runs. Where surely nothing was done it may come again; where that is not known it may not.
A form is known for FORM_SECONDS, the newest FORMS_MAX of a session are: another one does nothing.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from duolog import BadRequest, DuologError, Fatal, ResultUnknown, Retryable

from duolog_server.ops.console.view.visits import Done

FORM_SECONDS = 2 * 3600.0
FORMS_MAX = 100
COMMAND_CHARACTERS = 4096  # of a result that is kept; a longer one is shown the first time only


class FormIsOver(BadRequest):
    """A form cannot be sent, or not again; its page may be opened again."""


@dataclass(frozen=True, slots=True)
class Told:
    """Result of a form. undo: the form that undoes it; empty: none does."""

    done: Done
    undo: str = ""

    def again(self) -> "Told":
        """The same, for a form that came again."""
        told = f"This form was sent before, so nothing was done again. {self.done.told}"
        return replace(self, done=replace(self.done, told=told))

    def kept(self) -> "Told":
        """The same, without what is too long to be kept."""
        whole = len(self.done.command) <= COMMAND_CHARACTERS
        return self if whole else replace(self, done=replace(self.done, command=""))


@dataclass(slots=True)
class _Form:
    """shown: when, in seconds. result: None: it was not sent yet, or nothing was done."""

    shown: float
    result: asyncio.Future[Told | DuologError] | None = None


class Forms:
    """The forms that a session has sent."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._known: dict[str, _Form] = {}  # the oldest first

    def show(self) -> str:
        """A form is shown; its name."""
        while len(self._known) >= FORMS_MAX:
            del self._known[next(iter(self._known))]
        name = secrets.token_urlsafe(12)
        self._known[name] = _Form(self._seconds())
        return name

    async def once(self, name: str, work: Callable[[], Awaitable[Told]]) -> Told:
        """Do what a form asks for, or tell what came of it. Raises FormIsOver, and as work does."""
        form = self._known.get(name)
        if form is None or self._seconds() - form.shown > FORM_SECONDS:
            raise FormIsOver("this form is too old: open the page again")
        before = form.result
        if before is None:
            return await _first(form, work)
        if not before.done():
            found = await asyncio.shield(before)
            if isinstance(found, DuologError):
                raise found
            return found
        if isinstance(found := before.result(), DuologError):
            raise FormIsOver(
                f"this form was sent before, and is not sent again. What came of it: {found}. See "
                "first whether it was done, then open the page again"
            )
        return found.again()


async def _first(form: _Form, work: Callable[[], Awaitable[Told]]) -> Told:
    """Do the work, and keep its result; not that of one which surely did nothing."""
    result = form.result = asyncio.get_running_loop().create_future()
    outcome: Told | DuologError = ResultUnknown("it was broken off")
    try:
        done = await work()
        outcome = done.kept()
        return done
    except DuologError as error:
        outcome = error
        raise
    finally:
        if isinstance(outcome, Fatal | Retryable):
            form.result = None
        result.set_result(outcome)
