"""Forks of this process: whose a client is, and whether gRPC works in a child.

Rules: a client belongs to the process that made it; in a child each use of it raises WrongProcess
at once, and its end does nothing. gRPC's threads do not exist in a child, and what they were doing
is never finished: it works there only if none of them ran at the fork. They end with the last
channel, so a process whose clients use frames, or are closed, has none.
"""

import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import NoReturn

import grpc.aio

from duolog._errors import WrongProcess
from duolog._grpcswitch import SWITCH

SHUTDOWN_SECONDS = 1.0  # that gRPC's threads may take to end, once its last channel is closed
_TASKS = Path("/proc/self/task")
# Names of its threads.
_NATIVE = ("event_engine", "grpc_", "lifeguard", "resolver", "timer_manager")
_POLLER = "(_poll_wrapper)"  # end of the name of the one that grpc.aio begins in Python


class Owned:
    """Part of a client: belongs to the process that made it."""

    forked = False  # in a child of that process

    def __init__(self) -> None:
        _owned.add(self)

    def check_process(self) -> None:
        """Raise WrongProcess in a child of the process that made it."""
        if self.forked:
            refuse_parents()

    def note_fork(self) -> None:
        """Called in a child, before anything else runs there."""
        self.forked = True


_owned: "weakref.WeakSet[Owned]" = weakref.WeakSet()


def refuse_parents() -> NoReturn:
    """Raise the error of a client that is used in a child."""
    raise WrongProcess(
        "this client was made in the process that this one was forked from: make a client here, "
        "or start this process with the method `spawn`"
    )


class _Grpc:
    """What gRPC does in this process."""

    def __init__(self) -> None:
        self.channels: weakref.WeakSet[object] = weakref.WeakSet()  # open ones, of clients
        self.used = False  # since the last fork
        self.lost = False  # it runs in no child of a process in which it ran
        self.opening = threading.Lock()
        self._holder = 0  # thread that has it for a fork: another one's may have given up
        self._polls = self._runs = False

    def before_fork(self) -> None:
        # A channel that another thread is opening may hold locks that a child cannot release.
        if self.opening.acquire(timeout=SHUTDOWN_SECONDS):
            self._holder = threading.get_ident()
        if self.used and not self.channels:
            gc.collect()  # closed channels and calls refer to each other: they hold its threads
            deadline = time.monotonic() + SHUTDOWN_SECONDS
            while any(_threads()) and time.monotonic() < deadline:
                time.sleep(0.001)
            self.used = False  # what still runs is another library's: no fork waits for it again
        self._polls, self._runs = _threads()

    def after_fork(self) -> None:
        if self._holder == threading.get_ident():
            self._holder = 0
            self.opening.release()

    def in_child(self) -> None:
        self.opening, self._holder = threading.Lock(), 0
        self.channels.clear()
        self.used = False
        if self._polls or (self._runs and not _carries_threads_over()):
            self.lost = True
        if self._polls:
            # Parent's channels are collected here, too. With the last one, grpc.aio would wait for
            # its thread, for ever: one more user keeps it from that.
            grpc.aio.init_grpc_aio()


_grpc = _Grpc()
_forks = 0


def forks_before() -> int:
    """How many forks there are between this process and the first: the same in one process."""
    return _forks


def grpc_opened(channel: object) -> None:
    """A channel of gRPC is open until `grpc_closed`."""
    _grpc.used = True
    _grpc.channels.add(channel)


def grpc_closed(channel: object) -> None:
    """A channel of gRPC is closed."""
    _grpc.channels.discard(channel)


def opening_grpc() -> threading.Lock:
    """Hold this while a channel of gRPC is made. Raises WrongProcess where it cannot work."""
    if _grpc.lost:
        raise WrongProcess(
            "gRPC cannot be used in this process: it was forked from one in which gRPC was "
            "running. Close clients before the fork, or start this process with the method `spawn`"
        )
    return _grpc.opening


def _threads() -> tuple[bool, bool]:
    """Whether grpc.aio's own thread runs, and any of gRPC's core, as far as the system tells."""
    polls = any(thread.name.endswith(_POLLER) for thread in threading.enumerate())
    names = []
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:  # not Linux
        tasks = []
    for task in tasks:
        try:
            names.append((task / "comm").read_text())
        except OSError:  # it has ended since
            continue
    return polls, any(name.startswith(_NATIVE) for name in names)


def _carries_threads_over() -> bool:
    """Whether gRPC stops its core's threads at a fork, and begins them again in both processes."""
    return os.environ.get(SWITCH, "").lower() in ("1", "true", "yes")


def _in_child() -> None:
    global _forks
    _forks += 1
    _grpc.in_child()
    for each in list(_owned):
        each.note_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_grpc.before_fork, after_in_parent=_grpc.after_fork, after_in_child=_in_child
    )
