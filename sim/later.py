"""Runs coroutines of a simulated process on the scheduler, without an event loop."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Later:
    """A future result: a coroutine awaits it, an event of the scheduler completes it."""

    def __init__(self) -> None:
        self._then: Callable[[BaseException | None], None] | None = None
        self._done = False
        self._error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        """It came. Whoever awaits it goes on now; error: is raised there."""
        self._done, self._error = True, error
        if self._then is not None:
            self._then(error)

    def __await__(self) -> Generator["Later", None, None]:
        if not self._done:
            yield self
        elif self._error is not None:
            raise self._error

    def when_done(self, then: Callable[[BaseException | None], None]) -> None:
        """Called by `drive`."""
        self._then = then


def drive(work: Coroutine[Any, None, None]) -> None:
    """Run a coroutine until it waits, and on whenever what it waits for comes.

    What it raises comes out of this call, or of the `end` with which it went on.
    """

    def go_on(error: BaseException | None = None) -> None:
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        assert isinstance(awaited, Later), "nothing else is awaited here"
        awaited.when_done(go_on)

    go_on()
