"""Signals that ask a program to end, for as long as its workers run: they stop all workers.

Only what nobody else handles: a program, or its server, that has a handler of its own keeps it, and
what a process was started to ignore stays ignored. A third signal acts as if no worker ran: no
worker can stop while a handler blocks the event loop. So does every signal in a forked process,
whose parent has the workers.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # from the first on, none raises KeyboardInterrupt
HEARD_MAX = 2  # signals: the second one hurries workers
_stops: dict[object, Callable[[], object]] = {}  # of the workers that run
_before: dict[int, Any] = {}  # handlers that ours took the place of
_heard = 0  # signals since the first of the workers began


def _stop_all(number: int, frame: FrameType | None) -> None:
    global _heard
    _heard += 1
    if _heard > HEARD_MAX:
        _restore()
        signal.raise_signal(number)
        return
    for stop in list(_stops.values()):
        stop()


def _restore() -> None:
    while _before:
        number, handler = _before.popitem()
        if signal.getsignal(number) is _stop_all:  # else the program has set another one since
            signal.signal(number, handler)


def _forget() -> None:
    """In a child process no worker runs."""
    _stops.clear()
    _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _unhandled(number: int) -> bool:
    """Whether a signal would end the process, with or without `asyncio.run`."""
    handler = signal.getsignal(number)
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return isinstance(runner, asyncio.Runner)  # it cancels its main task


@contextlib.contextmanager
def stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at SIGTERM and SIGINT, between any two steps of the main thread.

    Does nothing in another thread, which can handle no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _heard
    worker = object()
    if not _stops:
        _heard = 0
    try:
        _stops[worker] = stop
        for number in SIGNALS:
            if _unhandled(number):
                _before[number] = signal.signal(number, _stop_all)
        yield
    finally:
        _stops.pop(worker, None)  # there is none in a child
        if not _stops:
            _restore()
