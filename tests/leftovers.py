"""What a test that fails has begun: its processes end with it, and their logs are told.

A process that nobody has waited for is a ResourceWarning, hence an error, of whichever test runs
when it is collected: one failure would be two. And a node that goes on takes time from the tests
that follow.

A plugin of pytest's. Processes of fixtures are those of their tests' teardown; only what a fixture
began before it failed ends here.
"""

import contextlib
import itertools
import subprocess
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from duolog.testing._process import ChildProcess

from tests.process.forks import Forked, Nursery

Process = subprocess.Popen[Any] | Forked

END_SECONDS = 60.0
LOGS_MAX = 8  # of a report, the newest processes first

_BEGAN = pytest.StashKey[int]()


class Begun:
    """Processes of this one, numbered as they begin; and programs that have logs."""

    def __init__(self) -> None:
        self._next = itertools.count()
        self._processes: weakref.WeakKeyDictionary[Process, int] = weakref.WeakKeyDictionary()
        self._children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()

    def now(self) -> int:
        """A number below those of all that begins later."""
        return next(self._next)

    def note(self, process: Process) -> None:
        """A process begins. Those that fork for all tests are none of a single one's."""
        if not isinstance(process, Nursery):
            self._processes[process] = next(self._next)

    def note_child(self, child: ChildProcess) -> None:
        """A program, not yet started."""
        self._children.add(child)

    def end_since(self, number: int) -> None:
        """Kill those that began after it, and wait for them."""
        later = [one for one, began in list(self._processes.items()) if began > number]
        for process in later:
            process.kill()  # nothing where it has ended
        for process in later:
            process.wait(END_SECONDS)
            if isinstance(process, subprocess.Popen):
                _close_pipes(process)

    def logs_since(self, number: int) -> list[tuple[str, str]]:
        """Title and end of the logs of programs that run, or began after it."""
        found = [
            (began, child)
            for child in list(self._children)
            if (process := child.process) is not None
            and ((began := self._processes.get(process, -1)) > number or process.poll() is None)
        ]
        found.sort(key=lambda one: one[0], reverse=True)
        return [
            (f"log of {child.kind} {child.name}, {child.log}", child.log_tail())
            for _, child in found[:LOGS_MAX]
        ]


def _close_pipes(process: subprocess.Popen[Any]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what is left to write
                pipe.close()


_begun = Begun()
_patch = pytest.MonkeyPatch()


def _noting(kind: type, note: Callable[[Any], None]) -> None:
    """Note what is made of a kind."""
    make = kind.__init__  # type: ignore[misc]

    def made(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        note(self)

    _patch.setattr(kind, "__init__", made)


def pytest_configure() -> None:
    _noting(subprocess.Popen, _begun.note)
    _noting(Forked, _begun.note)
    _noting(ChildProcess, _begun.note_child)


def pytest_unconfigure() -> None:
    _patch.undo()


@contextlib.contextmanager
def _ended_if_it_fails() -> Iterator[None]:
    began = _begun.now()
    try:
        yield
    except BaseException:
        _begun.end_since(began)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, Any, Any]:
    with _ended_if_it_fails():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    with _ended_if_it_fails():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[_BEGAN] = _begun.now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += _begun.logs_since(item.stash.get(_BEGAN, 0))
    return report
